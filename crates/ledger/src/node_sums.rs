//! Latency sums by node.
//! In: sampled accesses. Out: a decayed mean for each node. Knows nothing of rows.

use std::collections::BTreeMap;

use tiercel_machine::NodeId;

/// A mean of fewer samples says nothing.
pub(crate) const SAMPLES_MIN: f32 = 64.0;

/// What a node served, fading as the averages of extents do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LatencySums {
    pub(crate) samples: f32,
    pub(crate) accesses: f32,
    pub(crate) latency_ns: f32,
}

/// By node.
pub(crate) type LatencyByNode = BTreeMap<NodeId, LatencySums>;
