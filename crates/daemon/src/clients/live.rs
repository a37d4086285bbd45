//! What lives of one site, as a scan counts it.
//! In: live extents of a site. Out: their sums. Knows nothing of dead objects.

use super::within::LargestObject;
use std::collections::BTreeMap;
use tiercel_machine::NodeId;

/// The live objects of one site, as a scan counts them.
#[derive(Debug, Default)]
pub(crate) struct LiveUse {
    pub(crate) bytes: u64,
    /// Accesses per second.
    pub(crate) heat: f64,
    /// Bytes by node, as far as their residency is known.
    pub(crate) nodes: BTreeMap<NodeId, u64>,
    pub(crate) largest: LargestObject,
}
