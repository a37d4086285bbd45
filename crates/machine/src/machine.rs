//! The data: [`Machine`], [`Node`], [`Figures`], [`Link`], and plain look-ups on them.
//! In: what `discover` or `text` put in. Out: answers to "which node", "how far", "how slow".
//! Knows nothing of where the figures came from. An unknown figure is `None`, never a guess.

use crate::number::index_u16;
use serde::{Deserialize, Serialize};

use crate::curve::CurveLine;
use crate::units::{self, CpuList};

/// Most nodes of a machine: Linux's largest MAX_NUMNODES (1 << CONFIG_NODES_SHIFT, at most 10).
pub const MAX_NODES: usize = 1024;

/// The kernel's number of a node (or an emulated pool's number after them).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u16);

impl std::fmt::Display for NodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Nodes, their CPUs and how far they are from one another.
///
/// Invariants (kept by `discover` and `from_toml`): nodes ascend by id without doubles; no CPU
/// belongs to two nodes; `distances` is empty or square with one row and column per node in node
/// order; links name existing nodes, ascend by (from, to) without doubles.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Short name in kebab-case; `this-machine` for the discovered one.
    pub name: String,
    /// One line for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Firmware distances (10 = local), `distances[i][j]` from the i-th node to the j-th. Empty:
    /// unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distances: Vec<Vec<u16>>,
    /// Ascending by id; ids may have holes.
    #[serde(rename = "node")]
    pub nodes: Vec<Node>,
    /// Figures of nodes seen from nodes that are not their nearest initiator, where known.
    #[serde(default, rename = "link", skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
}

/// One pool of physical memory with one set of attributes, with or without CPUs beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// The kernel's number.
    pub id: NodeId,
    /// For people; empty: `node3`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// What the memory is made of.
    #[serde(default)]
    pub kind: Kind,
    /// How `kind` is known.
    #[serde(default, skip_serializing_if = "Basis::is_given")]
    pub basis: Basis,
    /// All its memory. 0: CPUs without memory. TOML: `"64 GiB"` or a number of bytes.
    #[serde(rename = "capacity", with = "units::bytes")]
    pub capacity_bytes: u64,
    /// Memory free when it was looked at; `None` in descriptions.
    #[serde(
        default,
        rename = "free",
        with = "units::option_bytes",
        skip_serializing_if = "Option::is_none"
    )]
    pub free_bytes: Option<u64>,
    /// CPUs that sit beside it; none for memory-only nodes. TOML: `"0-15,32-47"`.
    #[serde(default, skip_serializing_if = "CpuList::is_empty")]
    pub cpus: CpuList,
    /// The socket (physical package) it hangs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<u16>,
    /// Nodes whose CPUs reach it best; `figures` are as these see it. Contains itself when it has
    /// CPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub initiators: Vec<NodeId>,
    /// The kernel's memory tier number (lower is faster), where the kernel has tiers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_tier: Option<u16>,
    /// The user's override of the access tier (0 is the best); wins over everything discovered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<u16>,
    /// True for memory that is modelled and does not exist here (one-node machines).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub modelled: bool,
    /// Bytes the device moves at least per access (Optane: 256); `None`: a cache line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granularity_bytes: Option<u32>,
    /// Idle latency and bandwidth limits as its nearest initiators see it.
    #[serde(default, skip_serializing_if = "Figures::is_empty")]
    pub figures: Figures,
    /// Energy, for plans that weigh it.
    #[serde(default, skip_serializing_if = "Energy::is_empty")]
    pub energy: Energy,
    /// Latency under load, ascending by read share. Empty: unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curve: Vec<CurveLine>,
}

/// What the memory of a node is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// DIMMs on the socket's own channels.
    Dram,
    /// Stacked memory in the package.
    Hbm,
    /// Memory behind a CXL link.
    Cxl,
    /// Persistent memory (Optane, PCM).
    Nvm,
    /// Unknown. Overridable by [`crate::NodeOverride`].
    #[default]
    Unknown,
}

/// How a node's kind is known, weakest last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// The description states it.
    #[default]
    Given,
    /// The device that provides the memory (a CXL region, a persistent memory bus).
    Device,
    /// The processor model is known to have such memory.
    Processor,
    /// The firmware's figures (HMAT) distinguish it from the DRAM.
    Figures,
    /// The kernel's tier order distinguishes it from the DRAM.
    KernelTier,
    /// It has CPUs beside it, as DRAM does.
    Cpus,
    /// It is not known.
    Nothing,
}

/// Idle latency and bandwidth limits. GB are 10^9 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// Idle read latency, nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_latency_ns: Option<f64>,
    /// Idle write latency, nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_latency_ns: Option<f64>,
    /// Most that reads alone reach, GB/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_gb_s: Option<f64>,
    /// Most that writes alone reach, GB/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_gb_s: Option<f64>,
}

/// What a node costs to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Energy {
    /// Picojoules per bit read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_pj_per_bit: Option<f64>,
    /// Picojoules per bit written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_pj_per_bit: Option<f64>,
    /// Watts of the whole node while nothing happens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub static_w: Option<f64>,
}

/// A node's figures as CPUs of another node see them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Node with the CPUs.
    pub from: NodeId,
    /// Node with the memory.
    pub to: NodeId,
    /// What is seen.
    #[serde(default)]
    pub figures: Figures,
}

impl Machine {
    /// The node with this number.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.position(id).map(|index| &self.nodes[index])
    }

    /// Firmware distance from the CPUs of one node to the memory of another (10 = local);
    /// `None` when a node does not exist or the firmware said nothing.
    pub fn distance(&self, from: NodeId, to: NodeId) -> Option<u16> {
        let (from, to) = (self.position(from)?, self.position(to)?);
        self.distances.get(from)?.get(to).copied()
    }

    /// Latency and bandwidth of `to` for the CPUs of `from`; every field `None` where unknown.
    /// With `from` = `None`, as its nearest initiators see it.
    pub fn figures(&self, from: Option<NodeId>, to: NodeId) -> Figures {
        let Some(node) = self.node(to) else { return Figures::default() };
        match from {
            Some(from) if !node.is_near(from) => self
                .links
                .binary_search_by_key(&(from, to), |link| (link.from, link.to))
                .map_or(Figures::default(), |index| self.links[index].figures),
            _ => node.figures,
        }
    }

    /// All CPUs, ascending, each with its node.
    pub fn cpus(&self) -> Vec<(u32, NodeId)> {
        let mut cpus: Vec<_> =
            self.nodes.iter().flat_map(|n| n.cpus.iter().map(|cpu| (cpu, n.id))).collect();
        cpus.sort_unstable();
        cpus
    }

    /// The node a CPU sits beside.
    pub fn node_of_cpu(&self, cpu: u32) -> Option<NodeId> {
        self.nodes.iter().find(|node| node.cpus.contains(cpu)).map(|node| node.id)
    }

    /// Nodes with memory, ascending by id.
    pub fn memory_nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.has_memory())
    }

    /// Memory of all nodes, bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.nodes.iter().map(|node| node.capacity_bytes).sum()
    }

    /// The part of it that has these nodes, numbered from 0 in their order here, as if there were
    /// no others: one socket of two. `Err` with the number of a node that does not exist.
    pub fn part(&self, ids: &[NodeId]) -> Result<Machine, NodeId> {
        let find = |id: &NodeId| self.position(*id).ok_or(*id);
        let mut places = ids.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        places.sort_unstable();
        places.dedup();
        let kept: Vec<NodeId> = places.iter().map(|place| self.nodes[*place].id).collect();
        let number = |id: &NodeId| kept.binary_search(id).ok().map(|at| NodeId(index_u16(at)));
        let node = |place: &usize| {
            let node = &self.nodes[*place];
            let initiators = node.initiators.iter().filter_map(number).collect();
            let id = number(&node.id).unwrap_or(node.id);
            Node { id, initiators, ..node.clone() }
        };
        let link = |link: &Link| {
            let (from, to) = (number(&link.from)?, number(&link.to)?);
            Some(Link { from, to, ..link.clone() })
        };
        let row = |from: &usize| places.iter().map(|to| self.distances[*from][*to]).collect();
        let is_known = !self.distances.is_empty();
        Ok(Machine {
            name: self.name.clone(),
            description: self.description.clone(),
            distances: if is_known { places.iter().map(row).collect() } else { Vec::new() },
            nodes: places.iter().map(node).collect(),
            links: self.links.iter().filter_map(link).collect(),
        })
    }

    pub(crate) fn position(&self, id: NodeId) -> Option<usize> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok()
    }
}

impl Node {
    /// A node of which only number and capacity are known.
    pub fn new(id: NodeId, capacity_bytes: u64) -> Node {
        Node {
            id,
            name: String::new(),
            kind: Kind::Unknown,
            basis: Basis::Nothing,
            capacity_bytes,
            free_bytes: None,
            cpus: CpuList::default(),
            socket: None,
            initiators: Vec::new(),
            kernel_tier: None,
            tier: None,
            modelled: false,
            granularity_bytes: None,
            figures: Figures::default(),
            energy: Energy::default(),
            curve: Vec::new(),
        }
    }

    /// Its name, or `node3`.
    pub fn label(&self) -> String {
        if self.name.is_empty() { format!("node{}", self.id) } else { self.name.clone() }
    }

    /// Whether CPUs sit beside it.
    pub fn has_cpus(&self) -> bool {
        !self.cpus.is_empty()
    }

    /// Whether anything can be placed on it.
    pub fn has_memory(&self) -> bool {
        self.capacity_bytes > 0
    }

    /// Whether CPUs of `from` are among those that reach it best.
    pub fn is_near(&self, from: NodeId) -> bool {
        self.id == from || self.initiators.contains(&from)
    }
}

impl Basis {
    pub(crate) fn is_given(&self) -> bool {
        *self == Basis::Given
    }
}

impl Figures {
    /// True when nothing is known.
    pub fn is_empty(&self) -> bool {
        *self == Figures::default()
    }
}

impl Energy {
    /// True when nothing is known.
    pub fn is_empty(&self) -> bool {
        *self == Energy::default()
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Kind::Dram => "dram",
            Kind::Hbm => "hbm",
            Kind::Cxl => "cxl",
            Kind::Nvm => "nvm",
            Kind::Unknown => "unknown",
        })
    }
}
