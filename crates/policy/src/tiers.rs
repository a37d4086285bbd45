//! Tiers as a group of processes sees them: the rank of each node, the latency of each rank.
//! In: a [`Machine`], the group's home. Out: [`Tiers`]. Knows nothing of extents and budgets.

use tiercel_ledger::{Extent, Ledger};
use tiercel_machine::number::{index_u8, nearest_f32, signed};
use tiercel_machine::{Machine, NodeId, Tier};

/// Latency gap assumed between neighbouring tiers where the machine gives none, nanoseconds. About
/// one hop over a link.
pub const ASSUMED_GAP_NS: f64 = 100.0;

/// Misses under way at once, by which latency is divided to get stall time: between a pointer chase
/// (1) and a stream (10 line-fill buffers and more).
const AT_ONCE: f64 = 4.0;

/// Latency the best tier is given where the machine knows none. Only ratios to it are used.
const ASSUMED_BEST_NS: f64 = 100.0;

pub(crate) struct Tiers {
    pub(crate) tiers: Vec<Tier>,
    /// Mean (read, write) latency of each tier, nanoseconds.
    latency_ns: Vec<(f64, f64)>,
    /// Rank by node number; of nodes in no tier, the last.
    ranks: Vec<u8>,
    /// False when a latency had to be assumed.
    pub(crate) latencies_known: bool,
    /// Bytes assumed to be free in each tier and node while moves are planned.
    free: Vec<Vec<(NodeId, i64)>>,
}

impl Tiers {
    pub(crate) fn new(machine: &Machine, home: Option<NodeId>) -> Tiers {
        let tiers = home.map_or_else(|| machine.tiers(), |home| machine.tiers_from(home));
        let mut latencies_known = true;
        let mut latency_ns: Vec<(f64, f64)> = Vec::new();
        for tier in &tiers {
            let better = latency_ns
                .last()
                .map(|(read, write)| (read + ASSUMED_GAP_NS, write + ASSUMED_GAP_NS));
            let (read, write) = mean_latency(machine, home, tier);
            latencies_known &= read.is_some();
            let read_ns = read.or(better.map(|b| b.0)).unwrap_or(ASSUMED_BEST_NS);
            latency_ns.push((read_ns, write.or(read).unwrap_or(better.map_or(read_ns, |b| b.1))));
        }
        let nodes = tiers.iter().flat_map(|tier| &tier.nodes).map(|node| usize::from(node.0) + 1);
        let mut ranks = vec![index_u8(tiers.len().saturating_sub(1)); nodes.max().unwrap_or(0)];
        for (rank, tier) in tiers.iter().enumerate() {
            tier.nodes.iter().for_each(|node| ranks[usize::from(node.0)] = index_u8(rank));
        }
        let free_of = |id: NodeId| {
            let node = machine.node(id);
            signed(node.map_or(0, |node| node.free_bytes.unwrap_or(node.capacity_bytes)))
        };
        let free =
            tiers.iter().map(|t| t.nodes.iter().map(|n| (*n, free_of(*n))).collect()).collect();
        Tiers { tiers, latency_ns, ranks, latencies_known, free }
    }

    pub(crate) fn len(&self) -> usize {
        self.tiers.len()
    }

    pub(crate) fn last(&self) -> u8 {
        index_u8(self.len() - 1)
    }

    pub(crate) fn rank(&self, node: NodeId) -> u8 {
        self.ranks.get(usize::from(node.0)).copied().unwrap_or(self.last())
    }

    /// Uses the latencies that samples show where they exceed those of idle memory: under load a
    /// tier is slower than its description, and leaving it gains more.
    pub(crate) fn observe(&mut self, ledger: &Ledger) {
        for ((read, write), tier) in self.latency_ns.iter_mut().zip(&self.tiers) {
            let seen: Vec<f32> =
                tier.nodes.iter().filter_map(|node| ledger.latency_ns(*node)).collect();
            let mean = f64::from(seen.iter().sum::<f32>()) / seen.len() as f64;
            if mean > *read {
                (*read, *write) = (mean, *write * mean / *read);
            }
        }
    }

    /// Stall time saved per second by serving an extent from tier `to` instead of `from`.
    pub(crate) fn gain_ns_per_s(&self, extent: &Extent, from: u8, to: u8) -> f64 {
        let (from, to) = (self.latency_ns[usize::from(from)], self.latency_ns[usize::from(to)]);
        let reads = f64::from(extent.reads_per_s) * (from.0 - to.0);
        let writes = f64::from(extent.writes_per_s) * (from.1 - to.1);
        (reads + writes) / AT_ONCE
    }

    /// What of the gap between the best tier and the last lies below this one, 0 to 1.
    pub(crate) fn gap_below(&self, rank: u8) -> f64 {
        let at = |rank: usize| self.latency_ns[rank].0;
        let all = at(self.len() - 1) - at(0);
        let below = at(usize::from(rank) + 1) - at(usize::from(rank));
        if all > 0.0 { (below / all).clamp(0.0, 1.0) } else { 1.0 / (self.len() - 1) as f64 }
    }

    /// Read latency of the last tier over that of `rank`: turns a stall measured there into the
    /// stall it would be in the last tier. 1 where latencies are unknown.
    pub(crate) fn slowdown(&self, rank: u8) -> f32 {
        if !self.latencies_known {
            return 1.0;
        }
        let last = self.latency_ns[usize::from(self.last())].0;
        nearest_f32(last / self.latency_ns[usize::from(rank)].0)
    }

    /// The node of a tier with most room; its room is then reduced.
    pub(crate) fn take_node(&mut self, rank: u8, bytes: u64) -> NodeId {
        let nodes = &mut self.free[usize::from(rank)];
        let most = nodes.iter_mut().max_by_key(|(node, free)| (*free, std::cmp::Reverse(*node)));
        let (node, free) = most.expect("a tier has nodes");
        *free -= signed(bytes);
        *node
    }
}

fn mean_latency(
    machine: &Machine,
    home: Option<NodeId>,
    tier: &Tier,
) -> (Option<f64>, Option<f64>) {
    let figures: Vec<_> = tier.nodes.iter().map(|node| machine.figures(home, *node)).collect();
    let mean = |known: Vec<f64>| {
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    };
    let reads = figures.iter().filter_map(|figures| figures.read_latency_ns).collect();
    let writes = figures.iter().filter_map(|figures| figures.write_latency_ns).collect();
    (mean(reads), mean(writes))
}
