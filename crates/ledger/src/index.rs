//! Rows of one process by address.
//! In: (first byte, row number). Out: the row at, below or above an address.
//! Knows nothing of what a row is.

use std::collections::BTreeMap;
use std::ops::Bound;

#[derive(Default)]
pub(crate) struct Index {
    rows: BTreeMap<u64, u32>,
}

impl Index {
    pub(crate) fn insert(&mut self, addr: u64, row: u32) {
        let old = self.rows.insert(addr, row);
        debug_assert!(old.is_none(), "{addr:#x} twice");
    }

    pub(crate) fn remove(&mut self, addr: u64) {
        let old = self.rows.remove(&addr);
        debug_assert!(old.is_some(), "{addr:#x} not there");
    }

    pub(crate) fn get(&self, addr: u64) -> Option<u32> {
        self.rows.get(&addr).copied()
    }

    /// The row that starts at `addr` or next below it.
    pub(crate) fn at_or_below(&self, addr: u64) -> Option<u32> {
        self.rows.range(..=addr).next_back().map(|(_, row)| *row)
    }

    /// The row that starts next above `addr`.
    pub(crate) fn above(&self, addr: u64) -> Option<u32> {
        self.rows.range((Bound::Excluded(addr), Bound::Unbounded)).next().map(|(_, row)| *row)
    }

    /// Memory held, bytes: 12 per entry at the fill a B-tree has on average.
    pub(crate) fn bytes_held(&self) -> usize {
        self.rows.len() * 18
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// In address order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.rows.values().copied()
    }
}
