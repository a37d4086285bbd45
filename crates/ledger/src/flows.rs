//! What is counted of the short lives of a process's sites.
//! In: lives that end, bytes that come and go. Out: sums by site. Knows nothing of rows.

use std::collections::BTreeMap;

use tiercel_machine::NodeId;

use crate::value::Entry;

/// Sites of a process whose short lives are followed; of further ones nothing is known. 200 bytes
/// each.
const FOLLOWED_MAX: usize = 4096;

/// Sums over the short lives of a site, as [`crate::ShortLives`] states them.
#[derive(Clone)]
pub(crate) struct Flow {
    pub(crate) value: Entry,
    pub(crate) ended_bytes: u64,
    /// Of these, those of which it was known where they lay.
    pub(crate) ended_on: BTreeMap<NodeId, u64>,
    pub(crate) byte_ns: f64,
    /// Bytes that lived in the open interval: fewest, most.
    pub(crate) live: (u64, u64),
    /// What that came to in the last closed one.
    pub(crate) swing_bytes: u64,
    /// And what of that lived at its end.
    pub(crate) above_bytes: u64,
    /// The most that lived in it.
    pub(crate) most_bytes: u64,
}

/// All of a process, by site.
#[derive(Default)]
pub(crate) struct Flows(pub(crate) BTreeMap<u32, Flow>);

impl Flows {
    /// So much of a site lives from now on.
    pub(crate) fn lives(&mut self, site: u32, bytes: u64) {
        if let Some(flow) = self.0.get_mut(&site) {
            flow.live = (flow.live.0.min(bytes), flow.live.1.max(bytes));
        }
    }

    /// That of a site, a new one where there is none and there is room.
    pub(crate) fn of(&mut self, site: u32, new: impl FnOnce() -> Flow) -> Option<&mut Flow> {
        if self.0.len() >= FOLLOWED_MAX {
            return self.0.get_mut(&site);
        }
        Some(self.0.entry(site).or_insert_with(new))
    }
}
