//! What each node's memory really takes, by the samples that say so.
//! In: samples with latency. Out: the mean latency of each node of late. Knows nothing of tiers.

use tiercel_machine::NodeId;
use tiercel_wire::Sample;

use crate::ledger::Ledger;
use crate::node_sums::SAMPLES_MIN;
use crate::row::Home;

/// Nodes that are distinguished; samples of others do not count. Linux has 1024 at most.
const NODES_MAX: usize = 1024;

impl Ledger {
    /// Mean latency of the sampled accesses that a node served of late, nanoseconds. `None` where
    /// too few were seen, or without latencies.
    pub fn latency_ns(&self, node: NodeId) -> Option<f32> {
        let served = self.latencies.get(&node).filter(|served| served.samples >= SAMPLES_MIN)?;
        (served.accesses > 0.0).then(|| served.latency_ns / served.accesses)
    }

    /// A sample hit a row: its node served it, the one the sample names or the one the row lies on.
    pub(crate) fn count_latency(&mut self, number: u32, sample: &Sample) {
        let Some(latency_ns) = sample.latency_ns else { return };
        let Some(node) = sample.node.map(NodeId).or(self.home(number)) else { return };
        if self.latencies.len() >= NODES_MAX && !self.latencies.contains_key(&node) {
            return;
        }
        let served = self.latencies.entry(node).or_default();
        served.samples += 1.0;
        served.accesses += sample.weight as f32;
        served.latency_ns += sample.weight as f32 * latency_ns as f32;
    }

    /// The node that has all of a row, if its residency is known.
    pub(crate) fn home(&self, number: u32) -> Option<NodeId> {
        let [(node, bytes), (_, second)] = self.rows[number].homes.map(Home::get);
        (bytes > 0 && second == 0).then_some(node)
    }

    /// So many intervals ended.
    pub(crate) fn decay_latencies(&mut self, intervals: u32) {
        let decay = self.decay(intervals);
        for served in self.latencies.values_mut() {
            served.samples *= decay;
            served.accesses *= decay;
            served.latency_ns *= decay;
        }
    }
}
