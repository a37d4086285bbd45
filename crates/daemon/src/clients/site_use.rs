//! What the objects of one site did.
//! In: births, samples, scans. Out: [`Use`]. Knows nothing of clients and stacks.

use super::within::Within;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tiercel_ledger::confidence::{Estimate, Evidence};
use tiercel_machine::NodeId;
use tiercel_wire::layout::OS_PAGE_BYTES;

/// What a site takes that was used, bytes: a [`Use`] (440), its two maps of nodes (88 each), the
/// parts of its largest object (256) and its place in a table.
pub(crate) const USE_BYTES: usize = 936;

/// What of a site's objects deserves the best tier, within its budget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fits {
    /// Bytes that are accessed and fit.
    pub bytes: u64,
    /// Objects, or blocks of small allocations, of which at least a part is accessed and fits.
    pub objects: u64,
    /// Of so many live bytes; 0: no scan found any.
    pub of_bytes: u64,
    /// Of so many live objects.
    pub of_objects: u64,
}

impl Fits {
    /// Adds another process's.
    pub fn absorb(&mut self, other: &Fits) {
        self.bytes += other.bytes;
        self.objects += other.objects;
        self.of_bytes += other.of_bytes;
        self.of_objects += other.of_objects;
    }
}

/// What the objects of one site did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Use {
    /// Objects, or blocks of small allocations, born.
    pub births: u64,
    /// Bytes born.
    pub born_bytes: u64,
    /// Bytes that lived at the last residency scan.
    pub live_bytes: u64,
    /// Most bytes that lived at any scan.
    pub peak_bytes: u64,
    /// Some processes ended before any scan: their part of the peak is the most that it can be.
    #[serde(default)]
    pub peak_is_bound: bool,
    /// Reads that samples stand for; accesses of unknown kind count as reads.
    pub reads: u64,
    /// Writes that samples stand for.
    pub writes: u64,
    /// Samples they came from.
    pub samples: u64,
    /// Heat of the live objects, accesses per second.
    pub heat: f64,
    /// Bytes of the live objects by node, as far as their residency is known.
    pub nodes: BTreeMap<NodeId, u64>,
    /// Highest heat at any scan.
    pub heat_max: f64,
    /// Bytes by node at the last scan that found any.
    pub last_nodes: BTreeMap<NodeId, u64>,
    /// What of the live objects deserves the best tier.
    pub fits: Fits,
    /// The same at the last scan that found live objects.
    pub last_fits: Fits,
    /// Some of its objects are blocks of small allocations.
    pub blocks: bool,
    /// Where within its largest object accesses fall, summed over scans.
    #[serde(default)]
    pub within: Within,
    /// Share of the accesses to objects, of all sites.
    #[serde(default)]
    pub share: Estimate,
    /// The heat of the live objects, or the highest one once they are dead.
    #[serde(default)]
    pub heat_range: Estimate,
    /// Its rank by accesses per byte is certain: those beside it differ beyond chance.
    #[serde(default)]
    pub settled: bool,
    /// What its share rests on.
    #[serde(default)]
    pub evidence: Evidence,
}

impl Use {
    /// Accesses per byte of the peak: the order in which sites deserve fast memory. A peak counts
    /// as at least one OS page, the least that is placed.
    pub fn density(&self) -> f64 {
        (self.reads + self.writes) as f64 / self.peak_bytes.max(OS_PAGE_BYTES) as f64
    }

    /// Adds the use of the same site by another process, or by one that has left.
    pub fn absorb(&mut self, other: &Use) {
        self.births += other.births;
        self.born_bytes = self.born_bytes.saturating_add(other.born_bytes);
        self.live_bytes += other.live_bytes;
        self.peak_bytes += other.peak_bytes;
        self.reads += other.reads;
        self.writes += other.writes;
        self.samples += other.samples;
        self.heat += other.heat;
        self.heat_max += other.heat_max;
        self.blocks |= other.blocks;
        self.peak_is_bound |= other.peak_is_bound;
        self.evidence.absorb(&other.evidence);
        self.within.absorb(&other.within);
        self.fits.absorb(&other.fits);
        self.last_fits.absorb(&other.last_fits);
        for (into, from) in
            [(&mut self.nodes, &other.nodes), (&mut self.last_nodes, &other.last_nodes)]
        {
            for (node, bytes) in from {
                *into.entry(*node).or_default() += bytes;
            }
        }
    }
}
