//! Where OS pages lie, for baselines. In: where they go. Out: where they are, and what is left.
//! Knows nothing of why.

use super::PageStep;
use tiercel_machine::number::index;

/// Of an OS page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Untouched,
    Fast,
    Slow,
}

/// See the module. Invariant: no more than `room` are fast.
#[derive(Clone, Debug)]
pub(super) struct PagePlaces {
    places: Vec<Place>,
    fast: u64,
    room: u64,
}

impl PagePlaces {
    pub(super) fn new(os_pages: u64, room: u64) -> PagePlaces {
        PagePlaces { places: vec![Place::Untouched; index(os_pages)], fast: 0, room }
    }

    /// OS pages that the fast memory could still take.
    pub(super) fn left(&self) -> u64 {
        self.room - self.fast
    }

    pub(super) fn is_touched(&self, os_page: u64) -> bool {
        self.places[index(os_page)] != Place::Untouched
    }

    pub(super) fn is_fast(&self, os_page: u64) -> bool {
        self.places[index(os_page)] == Place::Fast
    }

    /// Puts an OS page into a memory; the fast one must have room.
    pub(super) fn put(&mut self, os_page: u64, is_fast: bool) -> PageStep {
        let is_first = !self.is_touched(os_page);
        self.fast -= u64::from(self.is_fast(os_page));
        self.fast += u64::from(is_fast);
        assert!(self.fast <= self.room, "the fast memory has no room");
        self.places[index(os_page)] = if is_fast { Place::Fast } else { Place::Slow };
        PageStep { os_page, is_fast, is_first }
    }

    /// Its memory goes back.
    pub(super) fn release(&mut self, os_page: u64) {
        self.fast -= u64::from(self.is_fast(os_page));
        self.places[index(os_page)] = Place::Untouched;
    }
}
