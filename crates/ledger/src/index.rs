//! Rows of one process by address.
//! In: (first byte, row number). Out: the row at, below or above an address.
//! Knows nothing of what a row is.
//!
//! A map of leaves, each with up to 64 addresses side by side and their rows beside them:
//!
//! ```text
//! leaves: BTreeMap { 0x0 -> [0x1000 0x3000 ... | row row ...], 0x9000 -> [0x9000 ...], ... }
//! ```
//! A search touches the few hot nodes of a map 64 times smaller, then two or three lines of one
//! leaf. A plain map touches two lines on each of five levels; `bench_ledger` has both.

use std::collections::BTreeMap;
use std::ops::Bound;

/// Addresses of a leaf: 512 bytes, eight cache lines, of which a binary search touches three.
const LEAF: usize = 64;

/// A leaf that falls below this is joined with the next, if both fit in one with room to spare.
const SPARSE: usize = LEAF / 4;

/// Invariants: a leaf's key is at most its first address and above every address of the leaf
/// before; no leaf is empty, except the only one.
#[derive(Default)]
pub(crate) struct Index {
    leaves: BTreeMap<u64, Box<Leaf>>,
    len: usize,
}

struct Leaf {
    len: usize,
    addrs: [u64; LEAF],
    rows: [u32; LEAF],
}

impl Index {
    pub(crate) fn insert(&mut self, addr: u64, row: u32) {
        self.len += 1;
        let Some((_, leaf)) = self.leaves.range_mut(..=addr).next_back() else {
            self.leaves.insert(0, Leaf::of(addr, row));
            return;
        };
        let at = leaf.search(addr);
        debug_assert!(at == 0 || leaf.addrs[at - 1] != addr, "{addr:#x} twice");
        if leaf.len < LEAF {
            leaf.insert(at, addr, row);
            return;
        }
        if at == LEAF {
            // Objects are mostly born in ascending order: full leaves stay behind.
            self.leaves.insert(addr, Leaf::of(addr, row));
            return;
        }
        let mut upper = leaf.split();
        if at <= LEAF / 2 {
            leaf.insert(at, addr, row);
        } else {
            upper.insert(at - LEAF / 2, addr, row);
        }
        self.leaves.insert(upper.addrs[0], upper);
    }

    pub(crate) fn remove(&mut self, addr: u64) {
        let found = self.leaves.range_mut(..=addr).next_back();
        let (&key, leaf) = found.expect("callers remove what is there");
        let at = leaf.search(addr).wrapping_sub(1);
        assert!(leaf.addrs.get(at) == Some(&addr), "{addr:#x} is not there");
        leaf.remove(at);
        self.len -= 1;
        if leaf.len < SPARSE {
            self.join(key);
        }
    }

    pub(crate) fn get(&self, addr: u64) -> Option<u32> {
        let (_, leaf) = self.leaves.range(..=addr).next_back()?;
        let at = leaf.search(addr).checked_sub(1)?;
        (leaf.addrs[at] == addr).then(|| leaf.rows[at])
    }

    /// The row that starts at `addr` or next below it.
    pub(crate) fn at_or_below(&self, addr: u64) -> Option<u32> {
        let mut leaves = self.leaves.range(..=addr);
        let (_, leaf) = leaves.next_back()?;
        match leaf.search(addr) {
            0 => leaves.next_back().map(|(_, before)| before.rows[before.len - 1]),
            above => Some(leaf.rows[above - 1]),
        }
    }

    /// The row that starts next above `addr`.
    pub(crate) fn above(&self, addr: u64) -> Option<u32> {
        if let Some((_, leaf)) = self.leaves.range(..=addr).next_back() {
            let at = leaf.search(addr);
            if at < leaf.len {
                return Some(leaf.rows[at]);
            }
        }
        let mut after = self.leaves.range((Bound::Excluded(addr), Bound::Unbounded));
        after.next().map(|(_, leaf)| leaf.rows[0])
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Memory held, bytes: leaves, and about 24 for each in the map.
    pub(crate) fn bytes_held(&self) -> usize {
        self.leaves.len() * (size_of::<Leaf>() + 24)
    }

    /// In address order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.leaves.values().flat_map(|leaf| leaf.rows[..leaf.len].iter().copied())
    }

    /// In address order, those that start at `addr` or above.
    pub(crate) fn iter_from(&self, addr: u64) -> impl Iterator<Item = u32> {
        let first = self.leaves.range(..=addr).next_back().map_or(0, |(key, _)| *key);
        self.leaves.range(first..).flat_map(move |(_, leaf)| {
            let from = leaf.addrs[..leaf.len].partition_point(|at| *at < addr);
            leaf.rows[from..leaf.len].iter().copied()
        })
    }

    /// Joins a sparse leaf with the one after it, if that leaves room to grow; removes an empty
    /// one.
    fn join(&mut self, key: u64) {
        let mut after = self.leaves.range((Bound::Excluded(key), Bound::Unbounded));
        let next = after.next().map(|(key, next)| (*key, next.len));
        let leaf = self.leaves.get_mut(&key).expect("the caller found it");
        match next {
            Some((next, len)) if leaf.len + len <= LEAF - SPARSE => {
                let from = self.leaves.remove(&next).expect("found above");
                let leaf = self.leaves.get_mut(&key).expect("found above");
                leaf.append(&from);
            }
            _ if leaf.len == 0 => {
                self.leaves.remove(&key);
            }
            _ => {}
        }
    }
}

impl Leaf {
    fn of(addr: u64, row: u32) -> Box<Leaf> {
        let mut leaf = Box::new(Leaf { len: 1, addrs: [0; LEAF], rows: [0; LEAF] });
        leaf.addrs[0] = addr;
        leaf.rows[0] = row;
        leaf
    }

    /// How many addresses are at most `addr`.
    fn search(&self, addr: u64) -> usize {
        self.addrs[..self.len].partition_point(|at| *at <= addr)
    }

    fn insert(&mut self, at: usize, addr: u64, row: u32) {
        self.addrs.copy_within(at..self.len, at + 1);
        self.rows.copy_within(at..self.len, at + 1);
        self.addrs[at] = addr;
        self.rows[at] = row;
        self.len += 1;
    }

    fn remove(&mut self, at: usize) {
        self.addrs.copy_within(at + 1..self.len, at);
        self.rows.copy_within(at + 1..self.len, at);
        self.len -= 1;
    }

    fn append(&mut self, from: &Leaf) {
        self.addrs[self.len..self.len + from.len].copy_from_slice(&from.addrs[..from.len]);
        self.rows[self.len..self.len + from.len].copy_from_slice(&from.rows[..from.len]);
        self.len += from.len;
    }

    /// Gives the upper half away.
    fn split(&mut self) -> Box<Leaf> {
        let mut upper = Box::new(Leaf { len: 0, addrs: [0; LEAF], rows: [0; LEAF] });
        upper.len = self.len - LEAF / 2;
        upper.addrs[..upper.len].copy_from_slice(&self.addrs[LEAF / 2..self.len]);
        upper.rows[..upper.len].copy_from_slice(&self.rows[LEAF / 2..self.len]);
        self.len = LEAF / 2;
        upper
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a plain map.
        #[test]
        fn answers_as_a_plain_map_does(
            // Runs of neighbours, inserted or removed, so that leaves fill and empty.
            steps in proptest::collection::vec((any::<bool>(), 0u64..2000, 1u64..200), 1..60),
            probes in proptest::collection::vec(0u64..2100, 50),
        ) {
            let (mut ours, mut plain) = (Index::default(), BTreeMap::new());
            for (adds, first, count) in steps {
                for addr in first..first + count {
                    if adds && plain.insert(addr, addr as u32).is_none() {
                        ours.insert(addr, addr as u32);
                    } else if !adds && plain.remove(&addr).is_some() {
                        ours.remove(addr);
                    }
                }
            }
            prop_assert_eq!(ours.len(), plain.len());
            prop_assert!(ours.iter().eq(plain.values().copied()));
            for addr in probes {
                let below = plain.range(..=addr).next_back().map(|(_, row)| *row);
                prop_assert_eq!(ours.at_or_below(addr), below);
                let above = plain.range(addr + 1..).next().map(|(_, row)| *row);
                prop_assert_eq!(ours.above(addr), above);
                prop_assert_eq!(ours.get(addr), plain.get(&addr).copied());
            }
        }
    }
}
