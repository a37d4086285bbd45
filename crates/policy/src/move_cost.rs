//! What moving a byte costs, by destination: slow memory is slower to write than to read.
//! In: the machine's figures, outcomes of moves. Out: nanoseconds a byte. Knows nothing of why
//! anything moves.

use std::collections::BTreeMap;

use tiercel_ledger::movement::Outcome;
use tiercel_machine::{Machine, MissCost, NodeId};

use crate::tiers::Tiers;

/// Weight of the initial estimate of the cost of a byte, in bytes moved: a few MiB of real moves
/// outweigh it.
const ASSUMED_BYTES: f64 = (1u64 << 20) as f64;
/// Bytes after which what was learned from earlier bytes fades.
const LEARNED_BYTES_MAX: f64 = (640u64 << 20) as f64;

/// See the module.
#[derive(Debug)]
pub(crate) struct MoveCost {
    all: Cost,
    to: BTreeMap<NodeId, Cost>,
}

/// A mean over the latest bytes.
#[derive(Clone, Copy, Debug)]
struct Cost {
    ns_per_byte: f64,
    bytes: f64,
}

impl MoveCost {
    pub(crate) fn new(ns_per_byte: f64) -> MoveCost {
        MoveCost { all: Cost { ns_per_byte, bytes: ASSUMED_BYTES }, to: BTreeMap::new() }
    }

    /// Takes what the machine's figures say of nodes to which nothing was moved yet: as much as a
    /// CPU with its share of the bandwidth takes. Where figures are unknown, the estimate stays.
    pub(crate) fn assume(&mut self, machine: &Machine, tiers: &Tiers) {
        let of = |rank: usize| {
            let node = machine.node(*tiers.tiers[rank].nodes.first()?)?;
            MissCost::of(machine, node).filter(MissCost::has_bandwidth)
        };
        for rank in 1..tiers.len() {
            let (Some(fast), Some(slow)) = (of(rank - 1), of(rank)) else { continue };
            self.assume_to(tiers, rank - 1, slow.copy_ns_per_byte(&fast));
            self.assume_to(tiers, rank, fast.copy_ns_per_byte(&slow));
        }
    }

    fn assume_to(&mut self, tiers: &Tiers, rank: usize, ns_per_byte: f64) {
        for node in &tiers.tiers[rank].nodes {
            self.to.entry(*node).or_insert(Cost { ns_per_byte, bytes: ASSUMED_BYTES });
        }
    }

    /// To a node. A node to which nothing was moved yet is assumed to cost the average.
    pub(crate) fn ns_per_byte(&self, to: NodeId) -> f64 {
        self.to.get(&to).unwrap_or(&self.all).ns_per_byte
    }

    /// Moves that moved nothing show nothing about bytes, and movers that take no time (modelled
    /// ones) do not make moving free.
    pub(crate) fn learn(&mut self, outcome: &Outcome) {
        if outcome.moved_bytes == 0 || outcome.took_ns == 0 {
            return;
        }
        let (bytes, ns) = (outcome.moved_bytes as f64, outcome.took_ns as f64);
        let unknown = Cost { bytes: ASSUMED_BYTES, ..self.all };
        self.to.entry(outcome.asked.to).or_insert(unknown).learn(bytes, ns);
        self.all.learn(bytes, ns);
    }
}

impl Cost {
    fn learn(&mut self, bytes: f64, ns: f64) {
        self.ns_per_byte += (ns / bytes - self.ns_per_byte) * bytes / (self.bytes + bytes);
        self.bytes = (self.bytes + bytes).min(LEARNED_BYTES_MAX);
    }
}
