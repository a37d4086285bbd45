//! What each node's memory really takes, by the samples that say so.
//! In: samples with latency. Out: the mean latency of each node of late. Knows nothing of tiers.

use std::collections::BTreeMap;

use tiercel_machine::NodeId;
use tiercel_wire::Sample;

use crate::ledger::Ledger;
use crate::row::Home;

/// A mean of fewer samples says nothing.
const SAMPLES_MIN: f32 = 64.0;

/// Nodes that are told apart; samples of others are left out. Linux has 1024 at most.
const NODES_MAX: usize = 1024;

/// What a node served, fading as the averages of extents do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Served {
    samples: f32,
    accesses: f32,
    latency_ns: f32,
}

impl Ledger {
    /// Mean latency of the sampled accesses that a node served of late, nanoseconds. `None` where
    /// too few were seen, or without latencies.
    pub fn latency_ns(&self, node: NodeId) -> Option<f32> {
        let served = self.served.get(&node).filter(|served| served.samples >= SAMPLES_MIN)?;
        (served.accesses > 0.0).then(|| served.latency_ns / served.accesses)
    }

    /// A sample hit a row: its node served it, the one the sample names or the one the row lies on.
    pub(crate) fn count_served(&mut self, number: u32, sample: &Sample) {
        let Some(latency_ns) = sample.latency_ns else { return };
        let Some(node) = sample.node.map(NodeId).or(self.home(number)) else { return };
        if self.served.len() >= NODES_MAX && !self.served.contains_key(&node) {
            return;
        }
        let served = self.served.entry(node).or_default();
        served.samples += 1.0;
        served.accesses += sample.weight as f32;
        served.latency_ns += sample.weight as f32 * latency_ns as f32;
    }

    /// The node all of a row lies on, as far as somebody looked.
    pub(crate) fn home(&self, number: u32) -> Option<NodeId> {
        let [(node, bytes), (_, second)] = self.rows[number].homes.map(Home::get);
        (bytes > 0 && second == 0).then_some(node)
    }

    /// So many intervals ended.
    pub(crate) fn fade_served(&mut self, intervals: u32) {
        let decay = self.decay(intervals);
        for served in self.served.values_mut() {
            served.samples *= decay;
            served.accesses *= decay;
            served.latency_ns *= decay;
        }
    }
}

/// By node.
pub(crate) type ServedByNode = BTreeMap<NodeId, Served>;
