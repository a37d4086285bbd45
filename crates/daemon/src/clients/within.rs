//! Where within the largest object of a site accesses fall.
//! In: live extents of a site, by address. Out: [`Within`], accesses by equal parts of the object.
//! Knows nothing of sites, or of objects that are dead.
//!
//! A site may have many objects; which of them has which accesses, extents say. A user who reads of
//! sites wants to know whether a large array is hot all over.

use serde::{Deserialize, Serialize};
use tiercel_ledger::Extent;

/// Equal parts of an object: with 25% of the memory fast, 8 of them fit.
pub const PARTS: usize = 32;

/// Objects below this are not divided: parts would be smaller than what a page-table scan
/// distinguishes (256 KiB).
const LARGE_BYTES: u64 = 8 << 20;

/// Where within the largest object of a site accesses fall.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Within {
    /// Bytes of the object; 0: no scan found a large one.
    pub bytes: u64,
    /// Accesses to each of [`PARTS`] equal parts; empty without a large object.
    pub accesses: Vec<f64>,
}

/// The extents of an object, ascending: offset, bytes, accesses per second.
type Pieces = Vec<(u64, u64, f64)>;

/// Finds the largest object of a site among its extents.
#[derive(Debug, Default)]
pub(crate) struct LargestObject {
    start: u64,
    open: Pieces,
    largest_bytes: u64,
    largest: Pieces,
}

impl LargestObject {
    /// The next extent of the site.
    pub(crate) fn see(&mut self, extent: &Extent<'_>) {
        if extent.is_head {
            self.start = extent.addr;
            self.open.clear();
            if extent.is_last && extent.bytes < LARGE_BYTES {
                return;
            }
        }
        let offset = extent.addr.saturating_sub(self.start);
        self.open.push((offset, extent.bytes, f64::from(extent.accesses_per_s())));
        let bytes = offset + extent.bytes;
        if extent.is_last && bytes >= LARGE_BYTES.max(self.largest_bytes) {
            self.largest_bytes = bytes;
            std::mem::swap(&mut self.largest, &mut self.open);
        }
    }
}

impl Within {
    /// Adds what a scan found, after so many seconds.
    pub(crate) fn add(&mut self, found: &LargestObject, seconds: f64) {
        if found.largest_bytes == 0 || found.largest_bytes < self.bytes {
            return;
        }
        let mut parts = vec![0.0; PARTS];
        let old = std::mem::take(&mut self.accesses);
        let part_bytes = self.bytes as f64 / PARTS as f64;
        self.bytes = found.largest_bytes;
        for (nth, accesses) in old.into_iter().enumerate() {
            spread(&mut parts, self.bytes, (nth as f64 * part_bytes, part_bytes), accesses);
        }
        for &(offset, bytes, rate) in &found.largest {
            spread(&mut parts, self.bytes, (offset as f64, bytes as f64), rate * seconds);
        }
        self.accesses = parts;
    }

    /// Keeps what is known of the larger object.
    pub(crate) fn absorb(&mut self, other: &Within) {
        if other.bytes > self.bytes {
            self.clone_from(other);
        }
    }
}

/// Adds accesses to bytes from an offset on, of an object of `whole` bytes, to its equal parts.
pub(crate) fn spread(parts: &mut [f64], whole: u64, (from, bytes): (f64, f64), accesses: f64) {
    let part_bytes = whole as f64 / parts.len() as f64;
    for (nth, part) in parts.iter_mut().enumerate() {
        let (start, end) = (nth as f64 * part_bytes, (nth as f64 + 1.0) * part_bytes);
        let overlap = ((from + bytes).min(end) - from.max(start)).max(0.0);
        *part += accesses * overlap / bytes.max(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn found(pieces: &[(u64, u64, f64)]) -> LargestObject {
        let largest: Pieces = pieces.iter().map(|(at, mib, r)| (at * MIB, mib * MIB, *r)).collect();
        let end = largest.last().map_or(0, |(at, bytes, _)| at + bytes);
        LargestObject { largest_bytes: end, largest, ..LargestObject::default() }
    }

    #[test]
    fn accesses_fall_where_extents_say() {
        let mut within = Within::default();
        within.add(&found(&[(0, 24, 0.0), (24, 8, 80.0), (32, 32, 32.0)]), 0.5);
        within.add(&found(&[]), 1.0);
        assert_eq!((within.bytes, within.accesses.len()), (64 * MIB, PARTS));
        let part = |nth: usize| within.accesses[nth];
        assert_eq!((part(11), part(12), part(15), part(16)), (0.0, 10.0, 10.0, 1.0));
    }

    #[test]
    fn an_object_that_grows_keeps_what_was_seen_of_its_head() {
        let mut within = Within::default();
        within.add(&found(&[(0, 32, 32.0)]), 1.0);
        within.add(&found(&[(0, 64, 0.0)]), 1.0);
        assert_eq!((within.accesses[0], within.accesses[15], within.accesses[16]), (2.0, 2.0, 0.0));
        within.add(&found(&[(0, 16, 100.0)]), 1.0);
        assert_eq!(within.accesses[0], 2.0, "a smaller one is another object");
        let mut other = Within::default();
        other.absorb(&within);
        assert_eq!(other, within);
    }
}
