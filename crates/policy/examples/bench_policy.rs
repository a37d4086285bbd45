//! What an assignment costs with many extents, against sorting them all.
//! In: `--quick` for a tenth of the extents. Out: bench rows, one JSON line each.
//! Knows nothing of real programs: objects and heat are made up, from a fixed seed.

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use tiercel_ledger::{Config as LedgerConfig, Ledger, Range};
use tiercel_machine::{Machine, Node, NodeId};
use tiercel_policy::{Budgets, Config, Interval, Limit, Policy};
use tiercel_wire::{AccessKind, Flags, Record, Sample, Version};

/// Processes, and sizes of OS pages and objects, bytes; decisions of which the median counts.
/// Chosen, not measured.
const PROCESSES: u64 = 100;
const OS_PAGE: u64 = 4096;
const OBJECT: u64 = 8 * OS_PAGE;
const ROUNDS: usize = 5;
/// For 10 M extents: half of a tick of 2 s, once every few ticks.
const LIMIT_MS: f64 = 1000.0;
const EXPRESSION: &str = "expression:(reads * 2 + writes * 10) / bytes";

fn main() {
    let quick = std::env::args().any(|arg| arg == "--quick");
    let extents: u64 = if quick { 1_000_000 } else { 10_000_000 };
    let ledger = ledger(extents);
    let machine = machine();
    let budgets = Budgets::fast(Limit::ShareOfPeak(0.25));
    let mut plain = Vec::new();
    let mut rows: Vec<(&str, Vec<f64>)> = vec![
        ("apb", Vec::new()),
        ("cpb", Vec::new()),
        ("lru", Vec::new()),
        (EXPRESSION, Vec::new()),
    ];
    for _ in 0..ROUNDS {
        plain.push(plain_ms(&ledger, extents * OBJECT / 4));
        for (prioritise, times) in &mut rows {
            times.push(assignment_ms(&ledger, &machine, &budgets, prioritise));
        }
    }
    for (prioritise, times) in &rows {
        let name = prioritise.split(':').next().unwrap_or(prioritise);
        let limit_ms = LIMIT_MS * extents as f64 / 10e6;
        print_result(
            &format!("assignment by {name}, {} M extents", extents / 1_000_000),
            times,
            None,
            Some(limit_ms),
        );
    }
    print_result("assignment by apb against sorting alone", &rows[0].1, Some(&plain), None);
}

/// A fifth of the objects in fast memory.
fn ledger(extents: u64) -> Ledger {
    let mut ledger = Ledger::new(LedgerConfig::default(), 0).expect("a good config");
    ledger.set_arenas(&[Some(NodeId(0)), Some(NodeId(1))]);
    let mut random = 1u64;
    for pid in 0..PROCESSES as u32 {
        ledger.process_born(pid).expect("a new process");
        for nth in 0..extents / PROCESSES {
            let arena = Some(u8::from(nth % 5 != 0));
            let version = Version { carve: nth as u32, generation: 0 };
            let (addr, flags) = (0x7000_0000_0000 + nth * 2 * OBJECT, Flags(0));
            let record =
                Record::Born { addr, bytes: OBJECT, site: 0, version, arena, flags, time_ns: 0 };
            ledger.apply(pid, &record);
        }
    }
    ledger.tick(2000);
    for _ in 0..extents / 10 {
        random ^= random >> 12;
        random ^= random << 25;
        random ^= random >> 27;
        // As after some assignments: nine accesses of ten go to what is fast already.
        let nth = (random >> 20) % (extents / PROCESSES);
        let nth = if random.is_multiple_of(10) { nth } else { nth / 5 * 5 };
        let sample = Sample {
            from_ns: 2_000_000_000,
            until_ns: 2_000_000_000,
            pid: (random % PROCESSES) as u32,
            tid: 0,
            addr: 0x7000_0000_0000 + nth * 2 * OBJECT,
            kind: if random & 1 << 17 == 0 { AccessKind::Read } else { AccessKind::Write },
            latency_ns: Some(100 + (random >> 40) as u32 % 400),
            node: None,
            weight: 4096,
            around: None,
            cpu: None,
        };
        ledger.sample(&sample);
    }
    // One is looked up, so that nothing is special about arenas.
    let range = Range { pid: 0, addr: 0x7000_0000_0000, bytes: OBJECT };
    ledger.set_residency(range, &[(NodeId(1), OBJECT)], 3000);
    ledger.tick(4000);
    ledger
}

fn machine() -> Machine {
    let node = |(id, latency_ns): (u16, f64)| {
        let mut node = Node::new(NodeId(id), 1 << 42);
        node.tier = Some(id);
        node.figures.read_latency_ns = Some(latency_ns);
        node
    };
    let nodes = [(0, 100.0), (1, 300.0)].map(node).to_vec();
    Machine { name: "bench".to_owned(), nodes, ..Machine::default() }
}

/// Once through the whole tick, with a fresh policy.
fn assignment_ms(ledger: &Ledger, machine: &Machine, budgets: &Budgets, prioritise: &str) -> f64 {
    let config = Config {
        prioritise: prioritise.parse().expect("a routine"),
        trigger: "time:ticks=1".parse().expect("a routine"),
        ..Config::default()
    };
    let mut policy = Policy::new(config).expect("a good config");
    let interval = Interval { elapsed_ms: 2000, ..Interval::default() };
    let began = cpu_ns();
    let decision = policy.tick(ledger, machine, budgets, &interval);
    let ms = (cpu_ns() - began) / 1e6;
    assert!(decision.summary.is_some_and(|summary| summary.extents > 0), "something was assigned");
    ms
}

/// The least there is to do: accesses per byte of every extent, sorted, filled. It knows neither
/// where extents lie nor what to move.
fn plain_ms(ledger: &Ledger, room: u64) -> f64 {
    let began = cpu_ns();
    let mut all: Vec<_> = ledger
        .extents()
        .map(|extent| (extent.accesses_per_s() / extent.bytes as f32, extent.id, extent.bytes))
        .collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut used = 0;
    let fast: Vec<_> = all
        .iter()
        .take_while(|(_, _, bytes)| {
            used += bytes;
            used <= room
        })
        .collect();
    assert!(!fast.is_empty(), "something fits");
    (cpu_ns() - began) / 1e6
}

/// Processor time of this thread: what else runs here counts less than on a clock on the wall.
fn cpu_ns() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

#[derive(Serialize)]
struct BenchResult<'a> {
    name: &'a str,
    ours: f64,
    peer: Option<f64>,
    peer_name: Option<&'a str>,
    ratio: Option<f64>,
    limit: Option<f64>,
    holds: bool,
    spread: f64,
    unit: &'a str,
}

/// Medians, and the quartiles' distance over the median: of the paired ratios where there is a
/// peer.
fn print_result(name: &str, ours: &[f64], peer: Option<&[f64]>, limit: Option<f64>) {
    let paired: Vec<f64> = match peer {
        Some(peer) => ours.iter().zip(peer).map(|(ours, peer)| ours / peer).collect(),
        None => ours.to_vec(),
    };
    let figure = quantile(&paired, 0.5);
    let result = BenchResult {
        name,
        ours: quantile(ours, 0.5),
        peer: peer.map(|peer| quantile(peer, 0.5)),
        peer_name: peer.map(|_| "sort"),
        ratio: peer.map(|_| figure),
        limit,
        holds: limit.is_none_or(|limit| figure <= limit),
        spread: (quantile(&paired, 0.75) - quantile(&paired, 0.25)) / figure,
        unit: "ms",
    };
    println!("{}", serde_json::to_string(&result).expect("numbers are JSON"));
}

fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}
