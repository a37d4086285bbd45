//! Two memories and plain samples: what tests of values share. In: addresses, times. Out: samples,
//! and a ledger that counts their values. Knows nothing of what is tested.

use tiercel_ledger::{AccessValue, Config, Ledger};
use tiercel_machine::{Machine, Node, NodeId};
use tiercel_wire::{AccessKind, Sample};

pub const PID: u32 = 1;
pub const ADDR: u64 = 1 << 30;
pub const MIB: u64 = 1 << 20;

/// 100 and 300 ns, and no bandwidth known: a sample of 1000 accesses, four at once, is worth 50 us.
pub fn machine() -> Machine {
    let node = |(id, latency_ns): (u16, f64)| {
        let mut node = Node::new(NodeId(id), 1 << 40);
        (node.tier, node.figures.read_latency_ns) = (Some(id), Some(latency_ns));
        node
    };
    Machine { nodes: [(0, 100.0), (1, 300.0)].map(node).to_vec(), ..Machine::default() }
}

pub fn ledger(config: Config) -> Ledger {
    let mut ledger = Ledger::new(config, 0).expect("good");
    ledger.set_values(AccessValue::of(&machine()).expect("two tiers"));
    ledger.process_born(PID).expect("new");
    ledger
}

pub fn sample(addr: u64, at_ms: u64) -> Sample {
    let (from_ns, until_ns) = (at_ms * 1_000_000, at_ms * 1_000_000);
    let (kind, latency_ns, node, around) = (AccessKind::Read, None, None, None);
    let (pid, tid, cpu, by, weight) = (PID, 0, None, None, 1000);
    Sample { from_ns, until_ns, pid, tid, cpu, addr, kind, latency_ns, node, weight, around, by }
}
