//! CLOCK-DWF (Lee, Bahn, Noh, IEEE TC 2014): what is written belongs in DRAM.
//! In: reads and write-backs of OS pages. Out: OS pages placed and moved. Knows nothing of how
//! often was read.
//!
//! ```text
//! first touch   by a read: slow memory; by a write: fast memory
//! slow memory   a write moves the OS page to fast memory, where it is clean
//! fast is full  at the hand: dirty: clean it, count it, age 0, go on; counted more often than
//!               the mean and younger than 8 looks: age it, go on; else it is demoted
//! ```
//! From two public implementations that agree but for the mean and the 8, which are reconstructed:
//! [`ClockRules`]. The article was not obtainable. Its referenced bits decide only what leaves slow
//! memory for a disk, and slow memory is never full here.

use tiercel_machine::number::{index, index_u32};

use super::page_places::PagePlaces;
use super::{OsPages, PageAccess, PageBaseline, PageStep};

/// What is reconstructed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockRules {
    /// Looks after which an OS page that was written often is as good as any other.
    pub age_max: u8,
    /// What the threshold of writes is the mean of.
    pub mean_of: MeanOf,
}

/// N of the threshold, T = (T (N - 1) + freq) / N at each look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeanOf {
    /// Looks so far: a plain mean.
    Looks,
    /// OS pages in fast memory: a mean that forgets.
    Resident,
}

impl Default for ClockRules {
    fn default() -> ClockRules {
        ClockRules { age_max: 8, mean_of: MeanOf::Looks }
    }
}

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
    rules: ClockRules,
    places: PagePlaces,
    states: Vec<PageState>,
    clock: Vec<u64>,
    hand: usize,
    /// T.
    threshold: f64,
    looks: f64,
}

impl ClockDwf {
    /// For so many OS pages, with room for some in fast memory.
    pub fn new(os_pages: u64, room: u64, rules: ClockRules) -> ClockDwf {
        ClockDwf {
            rules,
            places: PagePlaces::new(os_pages, room),
            states: vec![PageState::default(); index(os_pages)],
            clock: Vec::new(),
            hand: 0,
            threshold: 0.0,
            looks: 0.0,
        }
    }

    /// The place in the clock at which the hand stops.
    fn victim(&mut self) -> Option<usize> {
        // A round cleans, as many as the largest age age, and one more takes.
        for _ in 0..self.clock.len() * (usize::from(self.rules.age_max) + 2) {
            self.hand = if self.hand < self.clock.len() { self.hand } else { 0 };
            let state = &mut self.states[index(self.clock[self.hand])];
            self.looks += 1.0;
            let mean_of = match self.rules.mean_of {
                MeanOf::Looks => self.looks,
                MeanOf::Resident => self.clock.len() as f64,
            };
            self.threshold += (f64::from(state.freq) - self.threshold) / mean_of;
            if state.dirty {
                (state.dirty, state.age) = (false, 0);
                state.freq += 1;
            } else if f64::from(state.freq) > self.threshold && state.age < self.rules.age_max {
                state.age += 1;
            } else {
                return Some(self.hand);
            }
            self.hand += 1;
        }
        None
    }

    /// Puts an OS page into fast memory, in the place of a victim if that is full; false where
    /// there is no room at all.
    fn enter(&mut self, os_page: u64, steps: &mut Vec<PageStep>) -> bool {
        let at = if self.places.left() > 0 {
            self.clock.push(os_page);
            self.clock.len() - 1
        } else {
            let Some(at) = self.victim() else { return false };
            let leaves = std::mem::replace(&mut self.clock[at], os_page);
            self.states[index(leaves)] = PageState::default();
            steps.push(self.places.put(leaves, false));
            self.hand = at + 1;
            at
        };
        self.states[index(os_page)] =
            PageState { place: index_u32(at + 1), ..PageState::default() };
        steps.push(self.places.put(os_page, true));
        true
    }

    fn leave(&mut self, os_page: u64) {
        let place = std::mem::take(&mut self.states[index(os_page)]).place;
        if place > 0 {
            let at = place as usize - 1;
            self.clock.swap_remove(at);
            if let Some(other) = self.clock.get(at) {
                self.states[index(*other)].place = place;
            }
        }
    }
}

impl PageBaseline for ClockDwf {
    fn access(&mut self, os_page: u64, access: PageAccess, _: f64, steps: &mut Vec<PageStep>) {
        let is_write = access == PageAccess::WriteBack;
        if self.places.is_fast(os_page) {
            self.states[index(os_page)].dirty |= is_write;
            return;
        }
        let enters = is_write && self.enter(os_page, steps);
        if !enters && !self.places.is_touched(os_page) {
            steps.push(self.places.put(os_page, false));
        }
    }

    fn died(&mut self, os_pages: OsPages, goes_back: bool) {
        for os_page in os_pages.filter(|_| goes_back) {
            self.leave(os_page);
            self.places.release(os_page);
        }
    }
}
