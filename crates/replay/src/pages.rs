//! Baselines of OS pages in the model: the program waits while they move.
//! In: births, deaths and accesses of a stream. Out: OS pages placed and moved in the [`World`].
//! Knows nothing of how they decide.
//!
//! A stream spreads accesses over ranges; a baseline is driven by single OS pages. Whether an OS
//! page has its part is chance, by the seed, with the range's mean.

use tiercel_policy::pages::baseline::{PageAccess, PageBaseline, PageStep};

use crate::chance::Chance;
use crate::memory::Pages;
use crate::stream::Accesses;
use crate::world::World;

/// What a fault and the remapping cost beside the copy, nanoseconds for an OS page: with the 2 us
/// that any move has, a move costs 3 us and its traffic, as in comparisons of page policies.
const FAULT_NS: f64 = 1000.0;

/// See the module.
pub struct PageDriver {
    baseline: Box<dyn PageBaseline>,
    chance: Chance,
    steps: Vec<PageStep>,
}

impl PageDriver {
    /// Drives a baseline that knows as many OS pages, and as much room, as the memory.
    pub fn new(baseline: Box<dyn PageBaseline>, seed: u64) -> PageDriver {
        PageDriver { baseline, chance: Chance::new(seed), steps: Vec::new() }
    }

    /// An object is born.
    pub fn born(&mut self, pages: Pages) {
        self.baseline.born(pages);
    }

    /// An object is dead; `goes_back`: and its memory with it.
    pub fn died(&mut self, pages: Pages, goes_back: bool) {
        self.baseline.died(pages, goes_back);
    }

    /// Memory is about to be accessed.
    pub fn access(&mut self, world: &mut World<'_>, pages: Pages, accesses: &Accesses) {
        let each = |count: u64| count as f64 / (pages.end - pages.start) as f64;
        let (reads, stores) = (each(accesses.reads), each(accesses.writes));
        let written_back = each(accesses.dirtied);
        for page in pages {
            let (fast, slow) = world.memory.lies(page..page + 1);
            if fast + slow == 0 {
                let is_stored = self.happens(stores);
                let kind = if is_stored { PageAccess::WriteBack } else { PageAccess::Read };
                self.baseline.access(page, kind, 1.0, &mut self.steps);
                self.apply(world);
                continue;
            }
            for (kind, mean) in [(PageAccess::Read, reads), (PageAccess::WriteBack, written_back)] {
                if self.happens(mean) {
                    self.baseline.access(page, kind, mean.max(1.0), &mut self.steps);
                }
            }
            self.apply(world);
        }
        self.baseline.tick(world.now_ns(), &mut self.steps);
        self.apply(world);
    }

    /// Whether one of so many in the mean happens.
    fn happens(&mut self, mean: f64) -> bool {
        mean > 0.0 && self.chance.unit() < 1.0 - (-mean).exp()
    }

    fn apply(&mut self, world: &mut World<'_>) {
        for step in std::mem::take(&mut self.steps) {
            let page = step.os_page..step.os_page + 1;
            if step.is_first {
                world.memory.bind(page.clone(), !step.is_fast);
                world.memory.touch(page);
                continue;
            }
            let moved = world.memory.place(page, step.is_fast, 1);
            debug_assert_eq!(moved, 1, "a baseline knows where its OS pages are");
            let (up, down) = if step.is_fast { (moved, 0) } else { (0, moved) };
            world.faulted(up, down, FAULT_NS);
        }
    }
}
