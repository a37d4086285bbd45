//! The machine's memory as the daemon hands it out: the best tier, its budget, and the arenas.
//! In: a machine, the budget's limit. Out: nodes, budgets in bytes, arenas by node and back.
//! Knows nothing of what is in that memory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use tiercel_machine::{Machine, NodeId, Room, Space, Tier};
use tiercel_policy::Limit;
use tiercel_wire::Session;
use tiercel_wire::layout::{ARENAS_MAX, NODE_MODELLED, NODE_NONE, SPACES};

/// How long watermarks are believed: the kernel raises them for a while after it found too little
/// memory in one piece. Reading them takes 0.1 ms, and a millisecond on machines with hundreds of
/// CPUs.
const WATERMARKS_KEPT: Duration = Duration::from_secs(1);

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
    /// The arena among them whose budget is room that sites keep for their births: memory of the
    /// best tier's only node as well. `None` where that tier has several, or moves nothing.
    pub(crate) nursery_arena: Option<u8>,
    /// Budget of the best tier; a request may change it.
    pub(crate) budget: Limit,
    pub(crate) treatment: Treatment,
    /// Births that nothing else places are left to the kernel: what the best tier's nodes have left
    /// limits them, and no budget.
    pub(crate) is_by_kernel: bool,
    /// Its watermarks, and when they were read.
    available: RefCell<Option<(Instant, Room)>>,
}

impl Tiers {
    /// `None` when the machine has no tier.
    pub(crate) fn new(machine: Machine, budget: Limit, treatment: Treatment) -> Option<Tiers> {
        let tiers = machine.tiers();
        let fast = tiers.first()?.nodes.clone();
        let mut arenas = if treatment.is_recorded { Vec::new() } else { arenas(&tiers) };
        let nursery_arena = add_nursery(&mut arenas, &fast, treatment);
        let (is_by_kernel, available) = (false, RefCell::default());
        Some(Tiers {
            machine,
            fast,
            arenas,
            nursery_arena,
            budget,
            treatment,
            is_by_kernel,
            available,
        })
    }

    /// The arenas that are charged where no nursery is: numbers and nodes.
    pub(crate) fn budgeted(&self) -> impl Iterator<Item = (usize, NodeId)> {
        let nursery = self.nursery_arena.map(usize::from);
        let arenas = self.arenas.iter().copied().enumerate();
        arenas.filter(move |(arena, _)| Some(*arena) != nursery)
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
        self.budget.bytes(peak_bytes, capacity_bytes)
    }

    /// Bytes that are available now on the nodes of all tiers but the last; nothing is known of a
    /// modelled machine.
    pub(crate) fn available_bytes(&self) -> BTreeMap<NodeId, u64> {
        let tiers = self.machine.tiers();
        let (Some((_, better)), false) = (tiers.split_last(), self.treatment.is_modelled) else {
            return BTreeMap::new();
        };
        let mut available = self.available.borrow_mut();
        let known = available.take().filter(|(read, _)| read.elapsed() < WATERMARKS_KEPT);
        let os_page_bytes = rustix::param::page_size() as u64;
        let read = || (Instant::now(), Room::of(Path::new("/"), os_page_bytes));
        let (_, room) = available.insert(known.unwrap_or_else(read));
        let nodes = better.iter().flat_map(|tier| &tier.nodes);
        nodes.filter_map(|node| Some((*node, room.left_bytes(*node)?))).collect()
    }

    /// Bytes that are available now on all nodes of the best tier; `None`: nothing is known of one.
    pub(crate) fn fast_left_bytes(&self) -> Option<u64> {
        let left = self.available_bytes();
        self.fast.iter().map(|node| left.get(node).copied()).sum()
    }

    /// Decides who places births, when objects have `used_bytes` in the best tier. True when that
    /// changed.
    pub(crate) fn choose_placer(&mut self, used_bytes: u64, peak_bytes: u64) -> bool {
        let budget_left = self.fast_budget_bytes(peak_bytes).saturating_sub(used_bytes);
        let was = self.is_by_kernel;
        self.is_by_kernel = budget_left > 0
            && self.arenas.len() > 1
            && self.fast_left_bytes().is_some_and(|left| left <= budget_left);
        self.is_by_kernel != was
    }

    /// Passes to a process who places births that neither it nor a plan places.
    pub(crate) fn name_placer(&self, session: &Session) {
        let fast: Vec<_> = self.fast.iter().map(|node| self.wire_node(*node)).collect();
        session.set_first_touch(&fast, self.is_by_kernel);
    }
}

/// Adds the arena of nurseries behind that of the best tier's only node; its number.
fn add_nursery(arenas: &mut Vec<NodeId>, fast: &[NodeId], treatment: Treatment) -> Option<u8> {
    let [node] = fast else { return None };
    // One more is the kernel's.
    let has_room = !arenas.is_empty() && arenas.len() + 1 < ARENAS_MAX;
    if treatment.is_modelled || !has_room {
        return None;
    }
    arenas.insert(1, *node);
    Some(1)
}

/// One arena per node, best tier first; none where there is one kind of memory. One more is the
/// kernel's. Where there are more nodes than arenas every tier has some, so that what does not fit
/// the best tier always has one.
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
    nodes.truncate(ARENAS_MAX - 1);
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
        assert_eq!(arenas("xeonmax-hbm"), [8, 9, 10, 11, 0, 1, 2]);
    }

    #[test]
    fn nurseries_have_an_arena_where_the_best_tier_is_one_node() {
        let real = Treatment { is_modelled: false, has_plan: false, is_recorded: false };
        let of = |name: &str, treatment: Treatment| {
            let machine = Machine::builtin(name).unwrap().unwrap();
            let tiers = Tiers::new(machine, Limit::Capacity, treatment).unwrap();
            let arenas: Vec<u16> = tiers.arenas.iter().map(|node| node.0).collect();
            let budgeted: Vec<usize> = tiers.budgeted().map(|(arena, _)| arena).collect();
            (arenas, tiers.nursery_arena, budgeted)
        };
        assert_eq!(of("spr-cxl", real), (vec![0, 0, 1], Some(1), vec![0, 2]));
        assert_eq!(of("xeonmax-hbm", real).1, None, "eight nodes");
        let modelled = Treatment { is_modelled: true, ..real };
        assert_eq!(of("spr-cxl", modelled), (vec![0, 1], None, vec![0, 1]));
        let recorded = Treatment { is_recorded: true, ..real };
        assert_eq!(of("spr-cxl", recorded), (vec![], None, vec![]));
    }
}
