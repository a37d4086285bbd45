//! Observes stopped processes from the moment they continue until they end, and sums the samples.
//! In: a sampler's name, a period, processes. Out: a line for each process, thread, node, kind of
//! access, TiB of addresses and CPU, and one for the counters. For guest tests.

use std::collections::BTreeMap;
use std::process::{Command, ExitCode};
use std::time::Duration;

use tiercel_sampler::{Config, Counters, Kind, SamplerError};
use tiercel_wire::Now;

/// Time between two drains.
const LOOK: Duration = Duration::from_millis(10);
/// Length of a pass of `hint`, as in the lab's experiments with OS pages.
const WINDOW_MS: u64 = 200;

/// What the samples of one group have in common.
#[derive(Default)]
struct Sort {
    samples: u64,
    weight: u64,
    latency_ns: u64,
    lowest: u64,
    highest: u64,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (Some(kind), [_, period, pids @ ..]) = (arguments.first(), &arguments[..]) else {
        eprintln!("usage: samples emulator|perf|probe|hint PERIOD PROCESS...");
        return ExitCode::from(2);
    };
    let pids: Vec<u32> = pids.iter().filter_map(|pid| pid.parse().ok()).collect();
    match observe(kind, period.parse().unwrap_or(4096), &pids) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("samples: {error}");
            ExitCode::FAILURE
        }
    }
}

fn observe(kind: &str, period: u64, pids: &[u32]) -> Result<(), SamplerError> {
    let kinds = [Kind::Emulator, Kind::Perf, Kind::Probe, Kind::Hint];
    let kind = kinds.into_iter().find(|known| known.name() == kind).unwrap_or(Kind::Auto);
    let config = Config { period, cpu_budget: 1.0, hint_window_ms: WINDOW_MS, ..Config::default() };
    let mut sampler = tiercel_sampler::open(kind, &config)?;
    for pid in pids {
        sampler.attach(*pid)?;
        let status = Command::new("kill").args(["-CONT", &pid.to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "process {pid} cannot be continued");
    }
    let (mut sorts, mut out) = (BTreeMap::<_, Sort>::new(), Vec::new());
    let (mut lost, mut passes, mut counted) = (0, 0, Counters::default());
    loop {
        let over = pids.iter().all(|pid| ended(*pid));
        std::thread::sleep(LOOK);
        let drained = sampler.drain(Now::at_ms(0), &mut out);
        (lost, passes) = (lost + drained.lost, passes + drained.passes);
        if let Some(since) = sampler.counters() {
            counted.llc_misses += since.llc_misses;
            counted.instructions += since.instructions;
        }
        for sample in out.drain(..) {
            let node = sample.node.map_or(-1, i64::from);
            let (kind, tib) = (format!("{:?}", sample.kind), sample.addr >> 40);
            let key = (sample.pid, sample.tid, node, kind, tib, sample.cpu.map_or(-1, i32::from));
            let sort = sorts.entry(key).or_default();
            let first = sort.samples == 0;
            sort.samples += 1;
            sort.weight += u64::from(sample.weight);
            sort.latency_ns += u64::from(sample.latency_ns.unwrap_or(0));
            sort.lowest = if first { sample.addr } else { sort.lowest.min(sample.addr) };
            sort.highest = sort.highest.max(sample.addr);
        }
        if over {
            break;
        }
    }
    println!("# process thread node kind TiB samples weight mean-latency-ns lowest highest cpu");
    for ((pid, tid, node, kind, tib, cpu), sort) in sorts {
        let Sort { samples, weight, latency_ns, lowest, highest } = sort;
        let mean = latency_ns / samples;
        println!(
            "{pid} {tid} {node} {kind} {tib} {samples} {weight} {mean} {lowest:#x} {highest:#x} \
             {cpu}"
        );
    }
    let Counters { llc_misses, instructions } = counted;
    println!("counted {llc_misses} misses {instructions} instructions {lost} lost {passes} passes");
    Ok(())
}

/// Whether a process has exited; a zombie counts as exited.
fn ended(pid: u32) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    text.split_whitespace().next().is_none_or(|size| size == "0")
}
