//! What an assignment costs with many extents, against sorting them all.
//! In: `--quick` for a tenth of the extents. Out: bench rows, one JSON line each.
//! Knows nothing of real programs: objects and heat are made up, from a fixed seed.

use tiercel_bench::{BenchResult, thread_cpu_ns};
use tiercel_ledger::{AccessValue, Config as LedgerConfig, Ledger, Range};
use tiercel_machine::{Machine, Node, NodeId};
use tiercel_policy::{Budgets, Config, Gate, Interval, Limit, Policy};
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
    let (mut plain, mut shadow) = (Vec::new(), Vec::new());
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
        shadow.push(shadow_ms(&ledger, &machine, &budgets));
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
    let name = format!("shadow placements, {} M extents, a tenth sampled", extents / 1_000_000);
    print_result(&name, &shadow, None, Some(LIMIT_MS * extents as f64 / 10e6));
    print_result("assignment by apb against sorting alone", &rows[0].1, Some(&plain), None);
}

/// A fifth of the objects in fast memory.
fn ledger(extents: u64) -> Ledger {
    let mut ledger = Ledger::new(LedgerConfig::default(), 0).expect("a good config");
    ledger.set_arenas(&[Some(NodeId(0)), Some(NodeId(1))]);
    ledger.set_values(AccessValue::of(&machine()).expect("two tiers"));
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
            by: None,
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
        gate: Gate::None,
        ..Config::default()
    };
    decision_ms(config, ledger, machine, budgets)
}

/// One tick of shadow placements, the first, of all extents that samples hit.
fn shadow_ms(ledger: &Ledger, machine: &Machine, budgets: &Budgets) -> f64 {
    decision_ms(Config::default(), ledger, machine, budgets)
}

fn decision_ms(config: Config, ledger: &Ledger, machine: &Machine, budgets: &Budgets) -> f64 {
    let mut policy = Policy::new(config).expect("a good config");
    let interval = Interval { elapsed_ms: 2000, ..Interval::default() };
    let began = thread_cpu_ns();
    let decision = policy.tick(ledger, machine, budgets, &interval);
    let ms = (thread_cpu_ns() - began) / 1e6;
    assert!(decision.summary.is_some_and(|summary| summary.extents > 0), "something was assigned");
    ms
}

/// The least there is to do: accesses per byte of every extent, sorted, filled. It knows neither
/// where extents lie nor what to move.
fn plain_ms(ledger: &Ledger, room: u64) -> f64 {
    let began = thread_cpu_ns();
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
    (thread_cpu_ns() - began) / 1e6
}

/// Medians; with the time of sorting, of paired ratios.
fn print_result(name: &str, ours: &[f64], peer: Option<&[f64]>, limit: Option<f64>) {
    let row = match peer {
        Some(peer) => BenchResult::of_pairs(name.into(), "sort", ours, peer, limit, "ms"),
        None => BenchResult::of_values(name.into(), ours, limit, "ms"),
    };
    println!("{row}");
}
