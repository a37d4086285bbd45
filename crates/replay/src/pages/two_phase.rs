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
    /// By first OS page: OS pages of an object that is to be fast.
    placed: BTreeMap<u64, u64>,
    /// OS pages of those that are not born: fast memory is kept for them.
    awaited: u64,
    written: Vec<f64>,
    read: Vec<f64>,
    /// Objects without a place in fast memory.
    divergent: Vec<Pages>,
    due_ns: u64,
}

impl TwoPhase {
    /// Places the objects of a stream in so much fast memory. Lives at one address are one object,
    /// which needs its room once.
    pub fn new(lives: &[Life], os_pages: u64, room_bytes: u64) -> TwoPhase {
        let mut objects: BTreeMap<u64, (u64, f64)> = BTreeMap::new();
        for life in lives {
            let object = objects.entry(life.addr).or_default();
            *object = (object.0.max(life.bytes), object.1 + life.value_ns);
        }
        let mut order: Vec<(u64, u64, f64)> =
            objects.into_iter().map(|(addr, (bytes, value))| (addr, bytes, value)).collect();
        let density = |one: &(u64, u64, f64)| one.2 / one.1 as f64;
        order.sort_by(|a, b| density(b).total_cmp(&density(a)).then(a.0.cmp(&b.0)));
        let (mut placed, mut left, mut awaited) = (BTreeMap::new(), room_bytes, 0);
        for (addr, bytes, value) in order {
            if bytes <= left && value > 0.0 {
                left -= bytes;
                let pages = pages_of(addr, bytes);
                awaited += pages.end - pages.start;
                placed.insert(pages.start, pages.end - pages.start);
            }
        }
        let none = || vec![0.0; index(os_pages)];
        let (written, read) = (none(), none());
        TwoPhase { placed, awaited, written, read, divergent: Vec::new(), due_ns: EVERY_NS }
    }

    fn promote(&mut self, world: &mut World<'_>) {
        if world.now_ns() < self.due_ns {
            return;
        }
        self.due_ns = world.now_ns() + EVERY_NS;
        let left = world.memory.left().saturating_sub(self.awaited);
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
        let placed = self.placed.get(&pages.start);
        world.memory.bind(pages.clone(), placed.is_none());
        let (fast, slow) = world.memory.lies(pages.clone());
        match placed {
            // What the heap kept of a dead one takes its room already.
            Some(_) if fast + slow > 0 => {}
            Some(os_pages) => self.awaited = self.awaited.saturating_sub(*os_pages),
            None => self.divergent.push(pages),
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

    fn died(&mut self, _: &mut World<'_>, pages: Pages, goes_back: bool) {
        let placed = self.placed.get(&pages.start);
        self.awaited += placed.filter(|_| goes_back).map_or(0, |os_pages| *os_pages);
        self.divergent.retain(|one| one.start != pages.start);
        for page in pages {
            (self.written[index(page)], self.read[index(page)]) = (0.0, 0.0);
        }
    }
}
