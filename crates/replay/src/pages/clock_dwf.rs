//! CLOCK-DWF (Lee, Bahn, Noh, IEEE TC 2014): what is written belongs in DRAM.
//! In: reads and writes of OS pages. Out: OS pages moved. Knows nothing of how often was read.
//!
//! ```text
//! first touch   by a read: slow memory; by a write: fast memory
//! slow memory   a write moves the OS page to fast memory
//! fast is full  at the hand: dirty: clean it, count it, go on; counted more than the mean and
//!               younger than 8 rounds: age it, go on; else it is demoted
//! ```
//! From public implementations that agree but for the mean, which is reconstructed; the article was
//! not obtainable.

use tiercel_machine::number::index;

use crate::chance::Chance;
use crate::memory::Pages;
use crate::pages::{FAULT_NS, PagePolicy};
use crate::stream::Accesses;
use crate::world::World;

/// Rounds of the hand after which a page that was written often is as good as any other.
const AGE_MAX: u8 = 8;

/// Of an OS page in fast memory.
#[derive(Clone, Copy, Debug, Default)]
struct PageState {
    dirty: bool,
    age: u8,
    freq: u32,
    /// Its place in the clock and one more; 0: not in fast memory.
    place: u32,
}

/// See the module.
#[derive(Debug)]
pub struct ClockDwf {
    states: Vec<PageState>,
    clock: Vec<u64>,
    hand: usize,
    /// Mean of the counts that the hand saw.
    threshold: f64,
    looks: f64,
    chance: Chance,
}

impl ClockDwf {
    /// For so many OS pages.
    pub fn new(os_pages: u64, seed: u64) -> ClockDwf {
        ClockDwf {
            states: vec![PageState::default(); index(os_pages)],
            clock: Vec::new(),
            hand: 0,
            threshold: 0.0,
            looks: 0.0,
            chance: Chance::new(seed),
        }
    }

    fn happens(&mut self, mean: f64) -> bool {
        mean > 0.0 && self.chance.unit() < 1.0 - (-mean).exp()
    }

    fn entered(&mut self, page: u64) {
        self.clock.push(page);
        let place = tiercel_machine::number::index_u32(self.clock.len());
        self.states[index(page)] = PageState { place, ..PageState::default() };
    }

    fn leaves(&mut self, page: u64) {
        let place = index(u64::from(self.states[index(page)].place)) - 1;
        self.states[index(page)] = PageState::default();
        self.clock.swap_remove(place);
        if let Some(other) = self.clock.get(place) {
            self.states[index(*other)].place = tiercel_machine::number::index_u32(place + 1);
        }
    }

    /// The OS page that the hand stops at.
    fn victim(&mut self) -> Option<u64> {
        // Each round cleans, ages or takes: nine rounds always find one.
        for _ in 0..self.clock.len() * (usize::from(AGE_MAX) + 2) {
            self.hand = if self.hand < self.clock.len() { self.hand } else { 0 };
            let page = self.clock[self.hand];
            let state = &mut self.states[index(page)];
            self.looks += 1.0;
            self.threshold += (f64::from(state.freq) - self.threshold) / self.looks;
            if state.dirty {
                (state.dirty, state.age) = (false, 0);
                state.freq += 1;
            } else if f64::from(state.freq) > self.threshold && state.age < AGE_MAX {
                state.age += 1;
            } else {
                return Some(page);
            }
            self.hand += 1;
        }
        None
    }

    /// Makes room for one OS page; false when there is none.
    fn make_room(&mut self, world: &mut World<'_>) -> bool {
        if world.memory.left() > 0 {
            return true;
        }
        let Some(page) = self.victim() else { return false };
        let moved = world.memory.place(page..page + 1, false, 1);
        self.leaves(page);
        world.faulted(0, moved, FAULT_NS);
        world.memory.left() > 0
    }

    fn touch(&mut self, world: &mut World<'_>, page: u64, is_write: bool) {
        let is_fast = is_write && self.make_room(world);
        world.memory.bind(page..page + 1, !is_fast);
        world.memory.touch(page..page + 1);
        if is_fast {
            self.entered(page);
        }
    }

    fn write(&mut self, world: &mut World<'_>, page: u64) {
        if self.states[index(page)].place > 0 {
            self.states[index(page)].dirty = true;
        } else if self.make_room(world) {
            let moved = world.memory.place(page..page + 1, true, 1);
            world.faulted(moved, 0, FAULT_NS);
            self.entered(page);
        }
    }
}

impl PagePolicy for ClockDwf {
    fn born(&mut self, _: &mut World<'_>, _: Pages) {}

    fn access(&mut self, world: &mut World<'_>, pages: Pages, accesses: &Accesses) {
        let writes = accesses.writes as f64 / (pages.end - pages.start) as f64;
        for page in pages {
            let is_write = self.happens(writes);
            let (fast, slow) = world.memory.lies(page..page + 1);
            if fast + slow == 0 {
                self.touch(world, page, is_write);
            } else if is_write {
                self.write(world, page);
            }
        }
    }

    fn died(&mut self, _: &mut World<'_>, pages: Pages, goes_back: bool) {
        if goes_back {
            for page in pages {
                if self.states[index(page)].place > 0 {
                    self.leaves(page);
                }
            }
        }
    }
}
