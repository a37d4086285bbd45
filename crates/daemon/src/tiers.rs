//! The machine's memory as the daemon hands it out: the best tier, its budget, and the arenas.
//! In: a machine, the budget's limit. Out: nodes, budgets in bytes, arenas by node and back.
//! Knows nothing of what is in that memory.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::Path;
use tiercel_machine::number::saturating_u64;
use tiercel_machine::{Machine, NodeId, Room, Space, Tier};
use tiercel_policy::Limit;
use tiercel_wire::layout::{ARENAS_MAX, NODE_MODELLED, NODE_NONE, SPACES};

/// How this run treats memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Treatment {
    /// Moves are simulated: no arena may be bound to a node.
    pub(crate) is_modelled: bool,
    /// A plan places births, also on a modelled machine.
    pub(crate) has_plan: bool,
    /// Births stay where the kernel puts them, to be recorded as they are without us.
    pub(crate) is_recorded: bool,
}

/// The machine's tiers.
pub(crate) struct Tiers {
    pub(crate) machine: Machine,
    /// Nodes of the best tier.
    pub(crate) fast: Vec<NodeId>,
    /// Nodes of the arenas in which programs allocate, best tier first; empty where there is one
    /// kind of memory.
    pub(crate) arenas: Vec<NodeId>,
    /// Budget of the best tier; a request may change it.
    pub(crate) budget: Limit,
    pub(crate) treatment: Treatment,
    /// Read where a decision first needs it.
    available: OnceCell<Room>,
}

impl Tiers {
    /// `None` when the machine has no tier.
    pub(crate) fn new(machine: Machine, budget: Limit, treatment: Treatment) -> Option<Tiers> {
        let tiers = machine.tiers();
        let fast = tiers.first()?.nodes.clone();
        let arenas = if treatment.is_recorded { Vec::new() } else { arenas(&tiers) };
        Some(Tiers { machine, fast, arenas, budget, treatment, available: OnceCell::new() })
    }

    /// The first node of the slowest tier; `None` where there is one tier.
    pub(crate) fn slowest(&self) -> Option<NodeId> {
        let tiers = self.machine.tiers();
        let (slowest, better) = tiers.split_last()?;
        if better.is_empty() { None } else { slowest.nodes.first().copied() }
    }

    /// Whether a node belongs to the best tier.
    pub(crate) fn is_fast(&self, node: NodeId) -> bool {
        self.fast.contains(&node)
    }

    /// The node of an arena.
    pub(crate) fn node_of(&self, arena: u8) -> Option<NodeId> {
        self.arenas.get(usize::from(arena)).copied()
    }

    /// The kernel's number of a node, as sessions learn it for their arenas. On a modelled machine
    /// nothing may be bound; where births are planned the arena is assigned nevertheless, for the
    /// modelled mover.
    pub(crate) fn wire_node(&self, node: NodeId) -> i32 {
        match (self.treatment.is_modelled, self.treatment.has_plan) {
            (false, _) => i32::from(node.0),
            (true, true) => NODE_MODELLED,
            (true, false) => NODE_NONE,
        }
    }

    /// Arenas of the spaces; none where there is one kind of memory.
    pub(crate) fn arenas_of_spaces(&self) -> [Option<u8>; SPACES] {
        Space::ALL.map(|space| {
            let nodes = self.machine.space(space, None);
            let arena = |node: &NodeId| self.arenas.iter().position(|one| one == node);
            nodes.iter().find_map(arena).and_then(|arena| u8::try_from(arena).ok())
        })
    }

    /// The best tier's budget, bytes, when all objects together had `peak_bytes` at most.
    pub(crate) fn fast_budget_bytes(&self, peak_bytes: u64) -> u64 {
        let nodes = self.fast.iter().filter_map(|node| self.machine.node(*node));
        let capacity_bytes: u64 = nodes.map(|node| node.capacity_bytes).sum();
        match self.budget {
            Limit::Capacity => capacity_bytes,
            Limit::Bytes(bytes) => bytes.min(capacity_bytes),
            Limit::ShareOfPeak(share) => {
                saturating_u64(peak_bytes as f64 * share).min(capacity_bytes)
            }
        }
    }

    /// Bytes that are available now on the nodes of all tiers but the last; nothing is known of a
    /// modelled machine.
    pub(crate) fn available_bytes(&self) -> BTreeMap<NodeId, u64> {
        let tiers = self.machine.tiers();
        let (Some((_, better)), false) = (tiers.split_last(), self.treatment.is_modelled) else {
            return BTreeMap::new();
        };
        let os_page_bytes = rustix::param::page_size() as u64;
        let available = self.available.get_or_init(|| Room::of(Path::new("/"), os_page_bytes));
        let nodes = better.iter().flat_map(|tier| &tier.nodes);
        nodes.filter_map(|node| Some((*node, available.left_bytes(*node)?))).collect()
    }
}

/// One arena per node, best tier first; none where there is one kind of memory. Where there are
/// more nodes than arenas every tier has some, so that what does not fit the best tier always has
/// one.
fn arenas(tiers: &[Tier]) -> Vec<NodeId> {
    if tiers.len() < 2 {
        return Vec::new();
    }
    let of_tier = |(rank, tier): (usize, &Tier)| {
        let nodes = tier.nodes.clone().into_iter().enumerate();
        nodes.map(move |(nth, node)| (nth, rank, node)).collect::<Vec<_>>()
    };
    let mut nodes: Vec<_> = tiers.iter().enumerate().flat_map(of_tier).collect();
    nodes.sort_unstable(); // the first of each tier, then the second, ...
    nodes.truncate(ARENAS_MAX);
    nodes.sort_unstable_by_key(|(nth, rank, _)| (*rank, *nth));
    nodes.into_iter().map(|(.., node)| node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tier_has_an_arena() {
        let arenas = |name: &str| -> Vec<u16> {
            let machine = Machine::builtin(name).unwrap().unwrap();
            arenas(&machine.tiers()).iter().map(|node| node.0).collect()
        };
        assert_eq!(arenas("spr-cxl"), [0, 1]);
        // Of eight and eight.
        assert_eq!(arenas("xeonmax-hbm"), [8, 9, 10, 11, 0, 1, 2, 3]);
    }
}
