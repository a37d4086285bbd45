//! The order of nodes: tiers (access tier first, locality second: AutoTiering 2.2) and spaces
//! (H2M).
//! In: a [`Machine`]. Out: [`Tier`]s best first, and the nodes that answer a [`Space`]. Knows
//! nothing of who uses the nodes.

use crate::number::index_u16;
use serde::{Deserialize, Serialize};

use crate::machine::{Basis, Figures, Kind, Machine, Node, NodeId};

/// Nodes of equal rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tier {
    /// 0 is the best; ascends by one.
    pub rank: u16,
    /// Access tier (what the memory is), 0 is the best. Several ranks share one when locality
    /// splits it.
    pub access: u16,
    /// Distance from the viewpoint; `None` seen globally or where the firmware gives none.
    pub distance: Option<u16>,
    /// Ascending.
    pub nodes: Vec<NodeId>,
    /// Memory of all of them, bytes.
    pub capacity_bytes: u64,
}

/// What a programmer asks for instead of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Space {
    /// Most bytes per second.
    HighBandwidth,
    /// Shortest idle read.
    LowLatency,
    /// Most memory.
    LargeCapacity,
}

impl Space {
    /// All of them.
    pub const ALL: [Space; 3] = [Space::HighBandwidth, Space::LowLatency, Space::LargeCapacity];
}

/// Nodes whose slowness differs by less than this factor have equal rank. The kernel's memory tiers
/// are as wide: MEMTIER_CHUNK_SIZE / MEMTIER_ADISTANCE_DRAM = 128 / 576, so 22% of DRAM.
const EQUAL_RANK_FACTOR: f64 = 1.25;

/// Slowness by kind alone, where a figure is missing. Only their order matters, and that they are
/// more than [`EQUAL_RANK_FACTOR`] apart; they are never shown.
const SLOWNESS_HBM: f64 = 0.5;
const SLOWNESS_DRAM: f64 = 1.0;
const SLOWNESS_CXL: f64 = 3.0;
const SLOWNESS_NVM: f64 = 10.0;

impl Machine {
    /// All nodes with memory, best tier first, as the machine as a whole sees them: one tier for
    /// each access tier, local and remote together.
    pub fn tiers(&self) -> Vec<Tier> {
        self.split(None)
    }

    /// The same as seen from the CPUs of one node: within an access tier, the nearer nodes first.
    /// On two sockets with DRAM and NVM: local DRAM, remote DRAM, local NVM, remote NVM.
    pub fn tiers_from(&self, from: NodeId) -> Vec<Tier> {
        self.split(Some(from))
    }

    /// Nodes that answer a space, all of the best access tier for it; with a viewpoint the nearest
    /// first.
    pub fn space(&self, space: Space, from: Option<NodeId>) -> Vec<NodeId> {
        let tiers = self.tiers();
        let best = tiers.iter().min_by(|a, b| {
            let fitter = self.unfitness(space, a).total_cmp(&self.unfitness(space, b));
            // Where capacities are equal, what is large should leave the better tier to others.
            let by_rank = a.rank.cmp(&b.rank);
            fitter.then(if space == Space::LargeCapacity { by_rank.reverse() } else { by_rank })
        });
        let mut nodes = best.map_or(Vec::new(), |tier| tier.nodes.clone());
        if let Some(from) = from {
            nodes.sort_by_key(|&node| self.locality(from, node));
        }
        nodes
    }

    /// How far `node` is from `from` on a scale that works without firmware distances: the
    /// distance, else whether it is near, else whether the socket is the same.
    fn locality(&self, from: NodeId, to: NodeId) -> (u16, bool, bool) {
        if let Some(distance) = self.distance(from, to) {
            return (distance, false, false);
        }
        let socket = |id| self.node(id).and_then(|node| node.socket);
        let near = self.node(to).is_some_and(|node| node.is_near(from));
        (0, !near, socket(from) != socket(to))
    }

    fn split(&self, from: Option<NodeId>) -> Vec<Tier> {
        let mut ranked: Vec<_> = self
            .access_tiers()
            .into_iter()
            .map(|(access, node)| {
                let locality = from.map_or((0, false, false), |from| self.locality(from, node.id));
                (access, locality, node)
            })
            .collect();
        ranked.sort_by_key(|(access, locality, node)| (*access, *locality, node.id));
        ranked
            .chunk_by(|a, b| (a.0, a.1) == (b.0, b.1))
            .enumerate()
            .map(|(rank, tier)| Tier {
                rank: index_u16(rank),
                access: tier[0].0,
                distance: from.and_then(|from| self.distance(from, tier[0].2.id)),
                nodes: tier.iter().map(|(_, _, node)| node.id).collect(),
                capacity_bytes: tier.iter().map(|(_, _, node)| node.capacity_bytes).sum(),
            })
            .collect()
    }

    /// Each node with memory and its access tier, numbered from 0 without gaps.
    fn access_tiers(&self) -> Vec<(u16, &Node)> {
        let reference = self.reference();
        let mut by_slowness: Vec<(f64, &Node)> =
            self.memory_nodes().map(|node| (slowness(node, reference), node)).collect();
        by_slowness.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut tiers = Vec::with_capacity(by_slowness.len());
        let (mut first, mut access) = (by_slowness.first().map_or(0.0, |(s, _)| *s), 0);
        for (slowness, node) in by_slowness {
            if slowness > first * EQUAL_RANK_FACTOR {
                (first, access) = (slowness, access + 1);
            }
            tiers.push((node.tier.unwrap_or(access), node));
        }
        let mut used: Vec<u16> = tiers.iter().map(|(access, _)| *access).collect();
        used.sort_unstable();
        used.dedup();
        for (access, _) in &mut tiers {
            *access = index_u16(used.partition_point(|other| other < access));
        }
        tiers
    }

    /// The node the others are compared with: DRAM with CPUs, before anything else with CPUs,
    /// before anything else; with figures before without; the lowest number.
    fn reference(&self) -> Option<&Node> {
        self.memory_nodes().min_by_key(|node| {
            let known = product(&node.figures).is_some();
            (!node.has_cpus(), node.kind != Kind::Dram, !known, node.id)
        })
    }

    /// Smaller is better; comparable within one space only.
    fn unfitness(&self, space: Space, tier: &Tier) -> f64 {
        let nodes = || tier.nodes.iter().filter_map(|&id| self.node(id));
        let all_known = |figure: fn(&Figures) -> Option<f64>| {
            self.memory_nodes().all(|node| figure(&node.figures).is_some())
        };
        let best = |value: &dyn Fn(&Node) -> f64| nodes().map(value).fold(f64::INFINITY, f64::min);
        match space {
            Space::LargeCapacity => -(tier.capacity_bytes as f64),
            Space::HighBandwidth if all_known(|f| f.read_gb_s) => {
                best(&|node| -node.figures.read_gb_s.unwrap_or(0.0))
            }
            Space::LowLatency if all_known(|f| f.read_latency_ns) => {
                best(&|node| node.figures.read_latency_ns.unwrap_or(f64::INFINITY))
            }
            // Without figures: the tier order, except that HBM idles slower than DRAM
            // (112 against 139 ns, 98 against 121 ns: H2M IV-B, bsc-mem/Mess-Results).
            Space::LowLatency => best(&|node| match node.kind {
                Kind::Hbm => f64::from(tier.rank) + 1.5,
                _ => f64::from(tier.rank),
            }),
            Space::HighBandwidth => f64::from(tier.rank),
        }
    }
}

/// How many times slower than the reference: latency ratio times inverse bandwidth ratio, as the
/// kernel computes its abstract distance (mm/memory-tiers.c, mt_perf_to_adistance); by kind where a
/// figure is missing, by the kernel's own tier or the absence of CPUs where the kind is.
fn slowness(node: &Node, reference: Option<&Node>) -> f64 {
    let Some(reference) = reference else { return SLOWNESS_DRAM };
    if let (Some(own), Some(its)) = (product(&node.figures), product(&reference.figures)) {
        return own / its;
    }
    match node.kind {
        Kind::Hbm => SLOWNESS_HBM,
        Kind::Dram => SLOWNESS_DRAM,
        Kind::Cxl => SLOWNESS_CXL,
        Kind::Nvm => SLOWNESS_NVM,
        Kind::Unknown => match (node.kernel_tier, reference.kernel_tier) {
            (Some(own), Some(its)) if own < its => SLOWNESS_HBM,
            (Some(own), Some(its)) if own > its => SLOWNESS_CXL,
            _ if node.has_cpus() || node.basis == Basis::Cpus => SLOWNESS_DRAM,
            _ => SLOWNESS_CXL,
        },
    }
}

/// Read latency over read bandwidth, nanoseconds per GB/s.
fn product(figures: &Figures) -> Option<f64> {
    let (latency, bandwidth) = (figures.read_latency_ns?, figures.read_gb_s?);
    Some(latency / bandwidth)
}
