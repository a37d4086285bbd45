//! 2PP, the static baseline of OAM 5.1: a profile places objects, and what found no room is moved
//! by OS page when some is free. Reconstructed from OAM's words; the article was not obtainable.
//! In: what all objects will be accessed, then births and accesses. Out: OS pages bound and moved.
//! Knows nothing of when.
//!
//! ```text
//! before the run   objects by benefit per byte fill fast memory
//! every 10 ms      the most written, then most read OS pages of the others, while it has room
//! ```

use std::collections::BTreeMap;
use tiercel_machine::number::index;
use tiercel_wire::layout::OS_PAGE_BYTES;

use crate::bound::Life;
use crate::memory::{Pages, pages_of};
use crate::pages::{FAULT_NS, PagePolicy};
use crate::stream::Accesses;
use crate::world::World;

/// Time between two moves, nanoseconds (OAM 5.1).
const EVERY_NS: u64 = 10_000_000;

/// See the module.
#[derive(Debug)]
pub struct TwoPhase {
    /// By first OS page, oldest first: whether each life is to be fast.
    placed: BTreeMap<u64, Vec<bool>>,
    written: Vec<f64>,
    read: Vec<f64>,
    /// Objects without a place in fast memory.
    divergent: Vec<Pages>,
    due_ns: u64,
}

impl TwoPhase {
    /// Places the lives of a stream in so much fast memory.
    pub fn new(lives: &[Life], os_pages: u64, room_bytes: u64) -> TwoPhase {
        let mut order: Vec<usize> = (0..lives.len()).collect();
        let density = |at: usize| lives[at].value_ns / lives[at].bytes as f64;
        order.sort_by(|a, b| density(*b).total_cmp(&density(*a)).then(a.cmp(b)));
        let (mut is_fast, mut left) = (vec![false; lives.len()], room_bytes);
        for at in order {
            if lives[at].bytes <= left && lives[at].value_ns > 0.0 {
                left -= lives[at].bytes;
                is_fast[at] = true;
            }
        }
        let mut placed: BTreeMap<u64, Vec<bool>> = BTreeMap::new();
        // From the last to the first: births take them from the end.
        for (life, is_fast) in lives.iter().zip(is_fast).rev() {
            placed.entry(pages_of(life.addr, OS_PAGE_BYTES).start).or_default().push(is_fast);
        }
        let none = || vec![0.0; index(os_pages)];
        let (written, read) = (none(), none());
        TwoPhase { placed, written, read, divergent: Vec::new(), due_ns: EVERY_NS }
    }

    fn promote(&mut self, world: &mut World<'_>) {
        if world.now_ns() < self.due_ns {
            return;
        }
        self.due_ns = world.now_ns() + EVERY_NS;
        let left = world.memory.left();
        if left == 0 {
            return;
        }
        let all = self.divergent.iter().flat_map(Clone::clone);
        let mut slow: Vec<u64> = all.filter(|page| !world.memory.is_fast(*page)).collect();
        let order = |page: &u64| (self.written[index(*page)], self.read[index(*page)]);
        slow.retain(|page| order(page) > (0.0, 0.0));
        slow.sort_by(|a, b| order(b).partial_cmp(&order(a)).expect("counts are numbers"));
        let moved = slow.iter().take(index(left));
        let moved: u64 = moved.map(|page| world.memory.place(*page..page + 1, true, 1)).sum();
        world.faulted(moved, 0, FAULT_NS);
    }
}

impl PagePolicy for TwoPhase {
    fn born(&mut self, world: &mut World<'_>, pages: Pages) {
        let is_fast = self.placed.get_mut(&pages.start).and_then(Vec::pop).unwrap_or(false);
        world.memory.bind(pages.clone(), !is_fast);
        if !is_fast {
            self.divergent.push(pages);
        }
    }

    fn access(&mut self, world: &mut World<'_>, pages: Pages, accesses: &Accesses) {
        let count = (pages.end - pages.start) as f64;
        for page in pages {
            self.written[index(page)] += accesses.writes as f64 / count;
            self.read[index(page)] += accesses.reads as f64 / count;
        }
        self.promote(world);
    }

    fn died(&mut self, _: &mut World<'_>, pages: Pages, _: bool) {
        self.divergent.retain(|one| one.start != pages.start);
        for page in pages {
            (self.written[index(page)], self.read[index(page)]) = (0.0, 0.0);
        }
    }
}
