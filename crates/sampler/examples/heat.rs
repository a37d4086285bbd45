//! How well the probe distinguishes hot from cold: a process with areas of known heat, and the
//! estimates for them. In: `--quick`. Out: one JSON object per row. Knows nothing of the tables
//! that are drawn from them.
//!
//! 64 MiB: 4 MiB hot, 12 MiB warm, 48 MiB cold, with 100 : 10 : 1 accesses a byte. A row's figure
//! is the estimated ratio of two neighbours over the true one, inverted if below 1: 1 is exact, and
//! 2 is the limit.

use std::time::{Duration, Instant};

use tiercel_sampler::{Config, Kind, TargetHandle, open};
use tiercel_wire::{Now, Sample};

#[path = "../src/testing.rs"]
mod testing;

use testing::Child;

/// (64 KiB units, accesses a byte in proportion) of hot, warm and cold.
const AREAS: [(u64, u64); 3] = [(64, 100), (192, 10), (768, 1)];
/// The size of an extent in the daemon.
const EXTENT: u64 = 1 << 20;
/// How often the daemon drains.
const DRAIN_EVERY: Duration = Duration::from_millis(50);

fn main() {
    let quick = std::env::args().any(|arg| arg == "--quick");
    let took = Duration::from_secs(if quick { 4 } else { 20 });
    for (name, writes, pause_us, limit) in [
        ("writes without a pause", true, 0, Some(2.0)),
        ("writes", true, 2000, Some(2.0)),
        ("reads", false, 2000, Some(2.0)),
        // A known bad estimate: within any 2 ms, everything but the cold area is read.
        ("reads without a pause", false, 0, None),
    ] {
        measure(name, writes, Duration::from_micros(pause_us), took, limit);
    }
}

fn measure(name: &str, writes: bool, pause: Duration, took: Duration, limit: Option<f64>) {
    let units: u64 = AREAS.iter().map(|(units, _)| units).sum();
    let mut child = Child::new(units * 16);
    child.write(0..units * 16);
    let mut sampler = open(Kind::Probe, &Config::default()).expect("/proc is there");
    sampler.attach(child.pid).expect("our own child");
    child
        .userfaultfds()
        .into_iter()
        .for_each(|fd| sampler.accept(child.pid, TargetHandle::Userfaultfd(fd)));
    sampler.may_split(child.pid, child.buffer.clone());
    let ranges: Vec<_> =
        child.buffer.clone().step_by(EXTENT as usize).map(|at| at..at + EXTENT).collect();
    child.stir(writes, AREAS, pause);
    let began = Instant::now();
    let (mut samples, mut sums, mut next) = (Vec::new(), [0f64; 3], Duration::ZERO);
    while began.elapsed() < took {
        std::thread::sleep(DRAIN_EVERY);
        if next <= began.elapsed() {
            sampler.watch(child.pid, &ranges);
            next += Duration::from_secs(2);
        }
        samples.clear();
        sampler.drain(Now::at_ms(began.elapsed().as_millis() as u64), &mut samples);
        samples.iter().for_each(|sample| add(&mut sums, sample, child.buffer.start));
    }
    let cost = sampler.cost();
    let per_unit: Vec<f64> = sums.iter().zip(AREAS).map(|(sum, (n, _))| sum / n as f64).collect();
    for (nth, pair) in ["hot over warm", "warm over cold"].iter().enumerate() {
        let truth = AREAS[nth].1 as f64 / AREAS[nth + 1].1 as f64;
        let off = per_unit[nth] / per_unit[nth + 1].max(1e-9) / truth;
        row(&format!("{name}, {pair}: off by"), off.max(1.0 / off.max(1e-9)), limit, "times");
    }
    let share = (cost.daemon_cpu + cost.program_cpu).as_secs_f64() / began.elapsed().as_secs_f64();
    row(&format!("{name}: cost"), 100.0 * share, Some(1.0), "% of a CPU");
}

fn add(sums: &mut [f64; 3], sample: &Sample, base: u64) {
    let unit = (sample.addr - base) >> 16;
    let area = usize::from(unit >= AREAS[0].0) + usize::from(unit >= AREAS[0].0 + AREAS[1].0);
    sums[area] += f64::from(sample.weight);
}

fn row(name: &str, ours: f64, limit: Option<f64>, unit: &str) {
    println!(
        "{{\"name\":\"probe: {name}\",\"ours\":{ours:.4},\"peer\":null,\"peer_name\":null,\
         \"ratio\":null,\"limit\":{},\"holds\":{},\"spread\":0,\"unit\":\"{unit}\"}}",
        limit.map_or("null".to_owned(), |limit| limit.to_string()),
        limit.is_none_or(|limit| ours <= limit)
    );
}
