//! A machine as units see it: which nodes are better from where, and by how much.
//! In: a [`Machine`]. Out: tiers and latencies by accessor. Knows nothing of room.

use std::collections::BTreeMap;

use tiercel_ledger::regions::{Accessor, Unit};
use tiercel_machine::{Machine, NodeId, Tier};

/// Latency of the best memory where the machine knows none, nanoseconds. Only differences to it
/// are used.
const ASSUMED_BEST_NS: f64 = 100.0;

/// See the module.
#[derive(Clone, Debug)]
pub struct Places {
    /// Tiers as the CPUs of each node see them, best first.
    views: BTreeMap<NodeId, Vec<Tier>>,
    /// As the machine as a whole sees them.
    whole: Vec<Tier>,
    /// Access tier of each node with memory; 0 is the best.
    access: BTreeMap<NodeId, u16>,
    /// From the CPUs of the first node to the memory of the second, nanoseconds.
    latency_ns: BTreeMap<(NodeId, NodeId), f64>,
    /// The node whose CPUs are nearest to each node's memory.
    nearest: BTreeMap<NodeId, NodeId>,
    /// Whether all latencies were given.
    pub latencies_known: bool,
}

/// Why a machine has no places to choose from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacesError {
    /// All memory is of one kind.
    #[error(
        "this machine has one memory tier, so there is nothing to place; \
         name a modelled machine with --machine to see what would move"
    )]
    OneTier,
    /// No node has CPUs.
    #[error("no node of this machine has CPUs; describe the machine with --machine")]
    NoCpus,
}

impl Places {
    /// Of a machine; `assumed_gap_ns` is the difference between neighbouring tiers where it gives
    /// no latency.
    pub fn new(machine: &Machine, assumed_gap_ns: f64) -> Result<Places, PlacesError> {
        let whole = machine.tiers();
        if whole.len() < 2 {
            return Err(PlacesError::OneTier);
        }
        let cpu_nodes = machine.nodes.iter().filter(|node| node.has_cpus()).map(|node| node.id);
        let views: BTreeMap<_, _> = cpu_nodes.map(|id| (id, machine.tiers_from(id))).collect();
        if views.is_empty() {
            return Err(PlacesError::NoCpus);
        }
        let access = nodes_of(&whole).map(|(tier, node)| (node, tier.access)).collect();
        let nearest = nodes_of(&whole).map(|(_, node)| (node, nearest(&views, node))).collect();
        let empty = BTreeMap::new();
        let mut places =
            Places { views, whole, access, latency_ns: empty, nearest, latencies_known: true };
        places.measure(machine, assumed_gap_ns);
        Ok(places)
    }

    fn measure(&mut self, machine: &Machine, gap_ns: f64) {
        for (from, tiers) in &self.views {
            for (tier, to) in nodes_of(tiers) {
                let known = machine.figures(Some(*from), to).read_latency_ns;
                self.latencies_known &= known.is_some();
                let assumed_ns = ASSUMED_BEST_NS + gap_ns * f64::from(tier.rank);
                self.latency_ns.insert((*from, to), known.unwrap_or(assumed_ns));
            }
        }
    }

    /// Nodes with CPUs, ascending.
    pub fn cpu_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.views.keys().copied()
    }

    /// Nodes with memory, ascending.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.access.keys().copied()
    }

    /// Whether a node is of the best access tier.
    pub fn is_fast(&self, node: NodeId) -> bool {
        self.access.get(&node) == Some(&0)
    }

    /// Tiers as an accessor sees them, best first.
    pub(crate) fn tiers(&self, accessor: Accessor) -> &[Tier] {
        match accessor {
            Accessor::Node(node) => self.views.get(&node).unwrap_or(&self.whole),
            Accessor::Several | Accessor::Unknown => &self.whole,
        }
    }

    /// Which of how many tiers a unit is in, as its accessor sees them, from 1, and the best node.
    pub fn standing(&self, unit: &Unit) -> (usize, usize, NodeId) {
        let tiers = self.tiers(unit.accessor);
        let best = tiers.first().and_then(|tier| tier.nodes.first()).copied();
        (self.rank(unit.accessor, unit.node) + 1, tiers.len(), best.unwrap_or(unit.node))
    }

    /// The rank of a node for an accessor; past the last for a node without memory.
    pub(crate) fn rank(&self, accessor: Accessor, node: NodeId) -> usize {
        let tiers = self.tiers(accessor);
        tiers.iter().position(|tier| tier.nodes.contains(&node)).unwrap_or(tiers.len())
    }

    /// Tiers to which a victim can be demoted, the nearest to its accessor first. One that was
    /// never accessed goes to the slow memory beside its node.
    pub(crate) fn slower(&self, victim: &Unit) -> impl Iterator<Item = &Tier> {
        let access = self.access.get(&victim.node).copied().unwrap_or(0);
        let accessor = match victim.accessor {
            Accessor::Unknown => {
                self.nearest.get(&victim.node).map_or(Accessor::Unknown, |n| Accessor::Node(*n))
            }
            known => known,
        };
        self.tiers(accessor).iter().filter(move |tier| tier.access > access)
    }

    /// Latency of a node's memory, mean over the accessing nodes, nanoseconds. Accesses of several
    /// nodes count as equally many of each.
    pub(crate) fn latency_ns(&self, accessor: Accessor, node: NodeId) -> f64 {
        let from = |from: NodeId| self.latency_ns.get(&(from, node)).copied().unwrap_or(0.0);
        match accessor {
            Accessor::Node(one) if self.views.contains_key(&one) => from(one),
            _ => self.cpu_nodes().map(from).sum::<f64>() / self.views.len() as f64,
        }
    }
}

fn nodes_of(tiers: &[Tier]) -> impl Iterator<Item = (&Tier, NodeId)> {
    tiers.iter().flat_map(|tier| tier.nodes.iter().map(move |node| (tier, *node)))
}

/// The node from which `node` has the best rank, and of equals the one from which it is nearest.
fn nearest(views: &BTreeMap<NodeId, Vec<Tier>>, node: NodeId) -> NodeId {
    let tier = |tiers: &[Tier]| {
        let tier = tiers.iter().find(|tier| tier.nodes.contains(&node));
        tier.map(|tier| (tier.rank, tier.distance))
    };
    let nearest = views.iter().min_by_key(|(from, tiers)| (tier(tiers), **from));
    *nearest.expect("some node has CPUs").0
}
