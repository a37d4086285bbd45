//! What becomes of freed memory: the program's own allocator.
//! In: births and deaths. Out: whether memory goes back to the kernel. Knows nothing of nodes.
//!
//! glibc maps large allocations and unmaps them when they are freed, but what it unmapped once it
//! takes from the heap from then on, where freed memory keeps its OS pages: M_MMAP_THRESHOLD adapts
//! (mallopt(3)). So a temporary that is born anew in each round is soon where it was before.

use std::collections::BTreeSet;

/// M_MMAP_THRESHOLD at first, bytes.
const MAP_BYTES: u64 = 128 << 10;
/// And at most (DEFAULT_MMAP_THRESHOLD_MAX on 64-bit machines).
const MAP_BYTES_MAX: u64 = 32 << 20;

/// What becomes of freed memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Freed {
    /// As glibc does it, and Tiercel's heap about so.
    #[default]
    AsGlibc,
    /// All goes back at once.
    GoesBack,
}

/// See the module.
#[derive(Debug)]
pub struct Heap {
    freed: Freed,
    map_bytes: u64,
    mapped: BTreeSet<u64>,
}

impl Heap {
    /// Nothing is allocated.
    pub fn new(freed: Freed) -> Heap {
        Heap { freed, map_bytes: MAP_BYTES, mapped: BTreeSet::new() }
    }

    /// An object is born; `is_touched`: its memory was used before.
    pub fn born(&mut self, addr: u64, bytes: u64, is_touched: bool) {
        if bytes >= self.map_bytes && !is_touched {
            self.mapped.insert(addr);
        }
    }

    /// An object dies; true when its memory goes back.
    pub fn died(&mut self, addr: u64, bytes: u64) -> bool {
        let was_mapped = self.mapped.remove(&addr);
        if was_mapped && bytes <= MAP_BYTES_MAX {
            self.map_bytes = self.map_bytes.max(bytes + 1);
        }
        was_mapped || self.freed == Freed::GoesBack
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_unmapped_once_is_kept_from_then_on() {
        let mut heap = Heap::new(Freed::AsGlibc);
        heap.born(0, 1 << 20, false);
        assert!(heap.died(0, 1 << 20));
        heap.born(0, 1 << 20, false);
        assert!(!heap.died(0, 1 << 20));
        heap.born(0, 64 << 20, false);
        assert!(heap.died(0, 64 << 20));
        heap.born(0, 33 << 20, false);
        assert!(heap.died(0, 33 << 20), "too large to be kept");
    }

    #[test]
    fn or_everything_goes_back() {
        let mut heap = Heap::new(Freed::GoesBack);
        heap.born(0, 4096, true);
        assert!(heap.died(0, 4096));
    }
}
