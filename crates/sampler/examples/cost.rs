//! What sampling costs: the program's time with and without a sampler, and ours per sample. In:
//! `--quick`. Out: one JSON object per row, as every bench of this repository prints them. Knows
//! nothing of the tables that are drawn from its rows.
//!
//! The program is the worst case for every sampler: it does nothing but touch OS pages.

use std::time::{Duration, Instant};

use tiercel_sampler::{Config, Kind, Sampler, Source, TargetHandle, open};
use tiercel_wire::Now;

// The tests' child process; commands through a pipe say what it touches and when.
#[path = "../src/testing.rs"]
mod testing;

use testing::Child;

/// 256 MiB of OS pages: more than any cache, and eight first-level page tables' worth of TLB
/// misses.
const BUFFER: u64 = 65_536;
/// How long one run with sampling, or without, lasts.
const INTERVAL: Duration = Duration::from_millis(200);
/// How often the daemon drains.
const DRAIN_EVERY: Duration = Duration::from_millis(50);

fn main() {
    let quick = std::env::args().any(|arg| arg == "--quick");
    let (pairs, intervals) = if quick { (3, 25) } else { (9, 100) };
    for kind in [Kind::Perf, Kind::Bpf] {
        first_touches(kind, pairs);
    }
    steady(intervals);
    passes(pairs);
}

/// Page faults, each one a sample: the most expensive kind, because each has its own interrupt.
fn first_touches(kind: Kind, pairs: usize) {
    let config = Config { source: Source::PageFaults, cpu_budget: 1e9, ..Config::default() };
    let config = Config { ring_bytes: 4 << 20, ..config };
    let (mut with, mut without, mut beside, mut ours) = (vec![], vec![], vec![], vec![]);
    for _ in 0..pairs {
        without.push(touch_all(None));
        // An ordinary user may not lock this much memory; the default fits.
        let small = Config { ring_bytes: 256 << 10, ..config.clone() };
        let Ok(mut sampler) = open(kind, &config).or_else(|_| open(kind, &small)) else { return };
        with.push(touch_all(Some(&mut *sampler)));
        ours.push(
            sampler.cost().daemon_cpu.as_nanos() as f64 / sampler.cost().samples.max(1) as f64,
        );
        beside.push(touch_all(None));
    }
    let (name, unsampled) = (kind.name(), Some((&without[..], "no sampler")));
    row(&format!("{name}, a first touch"), &with, unsampled, None, "ns");
    row(&format!("{name}, a bystander's first touch"), &beside, unsampled, None, "ns");
    row(&format!("{name}, our time a sample"), &ours, None, Some(1000.0), "ns");
}

/// CPU nanoseconds of the child per first touch.
fn touch_all(mut sampler: Option<&mut dyn Sampler>) -> f64 {
    let mut child = Child::new(BUFFER);
    if let Some(sampler) = &mut sampler {
        sampler.attach(child.pid).expect("our own child");
    }
    let (before, mut out) = (child.cpu(), Vec::new());
    for part in 0..16 {
        child.write(part * BUFFER / 16..(part + 1) * BUFFER / 16);
        if let Some(sampler) = &mut sampler {
            sampler.drain(Now::at_ms(0), &mut out);
            out.clear();
        }
    }
    let spent = child.cpu() - before;
    if let Some(sampler) = &mut sampler {
        sampler.detach(child.pid);
    }
    spent.as_nanos() as f64 / BUFFER as f64
}

/// The probe at its defaults, on a program that writes one byte of each of its OS pages in a loop:
/// the program's time per OS page, and ours as a share of a CPU. Runs with and without drains
/// alternate, so that other load on the machine affects both.
fn steady(intervals: usize) {
    let mut child = Child::new(BUFFER);
    child.write(0..BUFFER);
    let mut sampler = open(Kind::Probe, &Config::default()).expect("/proc is there");
    attach(&mut *sampler, &child);
    let (mut with, mut without, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    let (mut sampled, mut out) = (Duration::ZERO, Vec::new());
    for _ in 0..intervals {
        without.push(rounds(&mut child, &mut |_| ()));
        let before = sampler.cost().daemon_cpu;
        let (began, elapsed_before) = (Instant::now(), sampled);
        with.push(rounds(&mut child, &mut |elapsed| {
            sampler.drain(Now::at_ms((elapsed_before + elapsed).as_millis() as u64), &mut out);
            out.clear();
        }));
        sampled += began.elapsed();
        let spent = sampler.cost().daemon_cpu - before;
        ours.push(spent.as_secs_f64() / began.elapsed().as_secs_f64());
    }
    row("probe, the program's round", &with, Some((&without, "unprobed")), Some(1.02), "ns");
    row("probe, our share of a CPU", &[mean(&ours)], None, Some(0.01), "CPU");
}

/// CPU nanoseconds per OS page over one run, with drains as often as the daemon's.
fn rounds(child: &mut Child, drain: &mut dyn FnMut(Duration)) -> f64 {
    let (began, before) = (Instant::now(), child.cpu());
    let (mut count, mut due) = (0u64, Duration::ZERO);
    while began.elapsed() < INTERVAL {
        child.write(0..BUFFER);
        count += 1;
        if began.elapsed() >= due {
            drain(began.elapsed());
            due = began.elapsed() + DRAIN_EVERY;
        }
    }
    (child.cpu() - before).as_nanos() as f64 / (count * BUFFER) as f64
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// One scan of everything: our time per OS page with all pieces armed, and with none.
fn passes(pairs: usize) {
    let config = Config { cpu_budget: 1e9, probe_interval_ms: 1, ..Config::default() };
    let mut child = Child::new(BUFFER);
    child.write(0..BUFFER);
    let mut without_uffd = Vec::new();
    for _ in 0..pairs {
        let mut sampler = open(Kind::Probe, &config).expect("/proc is there");
        sampler.attach(child.pid).expect("our own child");
        sampler.watch(child.pid, std::slice::from_ref(&child.buffer));
        without_uffd.push(pass_ns(&mut *sampler));
    }
    row("probe, clear_refs and smaps, an OS page", &without_uffd, None, None, "ns");
    let mut sampler = open(Kind::Probe, &config).expect("/proc is there");
    attach(&mut *sampler, &child);
    (0..16).for_each(|now_ms| {
        sampler.drain(Now::at_ms(now_ms), &mut Vec::new());
    });
    let (mut armed, mut faults) = (Vec::new(), Vec::new());
    for turn in 0..pairs as u64 {
        let before = child.cpu();
        child.write(0..BUFFER);
        let written = child.cpu() - before;
        let before = child.cpu();
        child.write(0..BUFFER);
        let again = child.cpu() - before;
        faults.push(written.saturating_sub(again).as_nanos() as f64 / BUFFER as f64);
        let cost = sampler.cost();
        sampler.drain(Now::at_ms(100 + turn), &mut Vec::new());
        armed.push((sampler.cost().daemon_cpu - cost.daemon_cpu).as_nanos() as f64 / BUFFER as f64);
    }
    row("probe, both mechanisms, an OS page", &armed, None, None, "ns");
    row("probe, a write to an armed OS page", &faults, None, None, "ns");
}

fn pass_ns(sampler: &mut dyn Sampler) -> f64 {
    sampler.drain(Now::at_ms(0), &mut Vec::new());
    let before = sampler.cost().daemon_cpu;
    sampler.drain(Now::at_ms(1000), &mut Vec::new());
    (sampler.cost().daemon_cpu - before).as_nanos() as f64 / BUFFER as f64
}

fn attach(sampler: &mut dyn Sampler, child: &Child) {
    sampler.attach(child.pid).expect("our own child");
    for uffd in child.userfaultfds() {
        sampler.accept(child.pid, TargetHandle::Userfaultfd(uffd));
    }
    sampler.may_split(child.pid, child.buffer.clone());
    let extent = 64 << 20;
    let starts = child.buffer.clone().step_by(extent);
    let ranges: Vec<_> = starts.map(|at| at..(at + extent as u64).min(child.buffer.end)).collect();
    sampler.watch(child.pid, &ranges);
}

/// Prints one row: medians (of pairs where there are any), and the spread around our median.
fn row(name: &str, ours: &[f64], peer: Option<(&[f64], &str)>, limit: Option<f64>, unit: &str) {
    let median = |values: &[f64]| {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let (middle, (least, most)) = (median(ours), bounds(ours));
    let peer_value = peer.map(|(values, _)| median(values));
    let by_pair =
        |peers: &[f64]| -> Vec<f64> { ours.iter().zip(peers).map(|(a, b)| a / b).collect() };
    let ratio = peer.map(|(values, _)| median(&by_pair(values)));
    let holds = limit.is_none_or(|limit| ratio.unwrap_or(middle) <= limit);
    let number = |value: Option<f64>| value.map_or("null".to_owned(), |v| format!("{v:.4}"));
    let peer_name = peer.map_or("null".to_owned(), |(_, name)| format!("\"{name}\""));
    println!(
        "{{\"name\":\"sampling: {name}\",\"ours\":{middle:.4},\"peer\":{},\"peer_name\":{peer_name},\
         \"ratio\":{},\"limit\":{},\"holds\":{holds},\"spread\":{:.4},\"unit\":\"{unit}\"}}",
        number(peer_value),
        number(ratio),
        number(limit),
        (most - least) / middle,
    );
}

fn bounds(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::MAX, f64::MIN), |(least, most), v| (least.min(*v), most.max(*v)))
}
