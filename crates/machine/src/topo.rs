//! What `tiercel topo` shows, as rows.
//! In: a [`Machine`]. Out: [`Topo`], ready to draw or to serialise.
//! Knows nothing of terminals.

use serde::Serialize;

use crate::machine::{Basis, Figures, Kind, Machine, NodeId};
use crate::tier::{Space, Tier};

/// The machine as a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Topo {
    /// Name of the machine.
    pub machine: String,
    /// One row per node, ascending by id, memory-less ones included.
    pub nodes: Vec<TopoNode>,
    /// Tiers of the machine as a whole, best first.
    pub tiers: Vec<Tier>,
    /// Tiers as each node with CPUs sees them.
    pub seen_from: Vec<TopoTier>,
    /// What each space resolves to.
    pub spaces: Vec<TopoSpace>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopoNode {
    /// The kernel's number.
    pub id: NodeId,
    /// Its name, or `node3`.
    pub label: String,
    /// What the memory is made of.
    pub kind: Kind,
    /// How the kind is known.
    pub basis: Basis,
    /// Rank of its tier in the machine as a whole, 0 is the best; `None` without memory.
    pub tier: Option<u16>,
    /// Memory, bytes.
    pub capacity_bytes: u64,
    /// Free memory, bytes.
    pub free_bytes: Option<u64>,
    /// CPUs beside it, `0-3,8`; empty when there are none.
    pub cpus: String,
    /// The socket it hangs on.
    pub socket: Option<u16>,
    /// As its nearest CPUs see it.
    pub figures: Figures,
    /// Firmware distance to each node, in row order; empty when unknown.
    pub distances: Vec<u16>,
    /// True for memory that is modelled and does not exist here.
    pub modelled: bool,
}

/// The order of tiers from one place.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopoTier {
    /// Node whose CPUs look.
    pub from: NodeId,
    /// Best first.
    pub tiers: Vec<Tier>,
}

/// One space.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopoSpace {
    /// What is asked for.
    pub space: Space,
    /// Nodes that answer it.
    pub nodes: Vec<NodeId>,
}

impl Machine {
    /// Everything `tiercel topo` shows.
    pub fn topo(&self) -> Topo {
        let tiers = self.tiers();
        let rank = |id| tiers.iter().find(|tier| tier.nodes.contains(&id)).map(|tier| tier.rank);
        let node_rows = self.nodes.iter().enumerate().map(|(index, node)| TopoNode {
            id: node.id,
            label: node.label(),
            kind: node.kind,
            basis: node.basis,
            tier: rank(node.id),
            capacity_bytes: node.capacity_bytes,
            free_bytes: node.free_bytes,
            cpus: node.cpus.to_string(),
            socket: node.socket,
            figures: node.figures,
            distances: self.distances.get(index).cloned().unwrap_or_default(),
            modelled: node.modelled,
        });
        let with_cpus = self.nodes.iter().filter(|node| node.has_cpus());
        Topo {
            machine: self.name.clone(),
            nodes: node_rows.collect(),
            seen_from: with_cpus
                .map(|node| TopoTier { from: node.id, tiers: self.tiers_from(node.id) })
                .collect(),
            spaces: Space::ALL
                .map(|space| TopoSpace { space, nodes: self.space(space, None) })
                .to_vec(),
            tiers,
        }
    }
}
