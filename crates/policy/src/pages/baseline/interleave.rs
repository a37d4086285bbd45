//! OS pages in turns, as `MPOL_INTERLEAVE` with equal weights: OAM's baseline.
//! In: first touches. Out: where each goes. Knows nothing of accesses.

use super::page_places::PagePlaces;
use super::{OsPages, PageAccess, PageBaseline, PageStep};

/// See the module.
#[derive(Debug)]
pub struct Interleave {
    places: PagePlaces,
    is_slow_next: bool,
}

impl Interleave {
    /// For so many OS pages, with room for some in fast memory. The first one goes there.
    pub fn new(os_pages: u64, room: u64) -> Interleave {
        Interleave { places: PagePlaces::new(os_pages, room), is_slow_next: false }
    }
}

impl PageBaseline for Interleave {
    fn access(&mut self, os_page: u64, _: PageAccess, _: f64, steps: &mut Vec<PageStep>) {
        if !self.places.is_touched(os_page) {
            let is_slow = self.is_slow_next || self.places.left() == 0;
            steps.push(self.places.put(os_page, !is_slow));
            self.is_slow_next = !self.is_slow_next;
        }
    }

    fn died(&mut self, os_pages: OsPages, goes_back: bool) {
        os_pages.filter(|_| goes_back).for_each(|os_page| self.places.release(os_page));
    }
}
