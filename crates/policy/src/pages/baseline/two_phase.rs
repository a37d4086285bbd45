//! 2PP (Wei and others, PACT 2015), as far as OAM 5.1 describes it: a profile places objects, and
//! what found no room is moved by OS page when some is free. Reconstructed from OAM's words and the
//! abstract; the article was not obtainable.
//! In: what each object gains in fast memory, then births and accesses. Out: OS pages placed and
//! moved. Knows nothing of when what is accessed.
//!
//! ```text
//! before the run   objects by benefit per byte fill fast memory; what does not fit is divergent
//! every 10 ms      the most written, then most read OS pages of divergent objects, while the fast
//!                  memory has room that no placed object will need
//! ```

use std::collections::BTreeMap;
use tiercel_machine::number::index;

use super::page_places::PagePlaces;
use super::{OsPages, PageAccess, PageBaseline, PageStep};

/// Time between two moves, nanoseconds: 10 ms, reconstructed.
const EVERY_NS: u64 = 10_000_000;

/// What a profile knows of an object. Several at one address are one object, one after another.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownObject {
    /// Where it will be.
    pub os_pages: OsPages,
    /// What its global reads and writes gain in fast memory; any unit.
    pub benefit: f64,
}

/// See the module.
#[derive(Debug)]
pub struct TwoPhase {
    places: PagePlaces,
    /// OS pages of objects that are to be fast.
    placed: Vec<bool>,
    /// Those of them that are not there: fast memory is kept for them.
    awaited: u64,
    /// By first OS page: the end of each object that would gain but did not fit.
    divergent: BTreeMap<u64, u64>,
    /// Those of them that live, likewise.
    living: BTreeMap<u64, u64>,
    written: Vec<f64>,
    read: Vec<f64>,
    due_ns: u64,
}

impl TwoPhase {
    /// Places the objects of a profile in fast memory with room for so many OS pages.
    pub fn new(known: &[KnownObject], os_pages: u64, room: u64) -> TwoPhase {
        let none = || vec![0.0; index(os_pages)];
        let mut made = TwoPhase {
            places: PagePlaces::new(os_pages, room),
            placed: vec![false; index(os_pages)],
            awaited: 0,
            divergent: BTreeMap::new(),
            living: BTreeMap::new(),
            written: none(),
            read: none(),
            due_ns: EVERY_NS,
        };
        for (first, end) in by_density(known) {
            if end - first <= room - made.awaited {
                made.awaited += end - first;
                made.placed[index(first)..index(end)].fill(true);
            } else {
                made.divergent.insert(first, end);
            }
        }
        made
    }

    fn promote(&mut self, steps: &mut Vec<PageStep>) {
        let left = self.places.left().saturating_sub(self.awaited);
        if left == 0 {
            return;
        }
        let counts = |os_page: &u64| (self.written[index(*os_page)], self.read[index(*os_page)]);
        let all = self.living.iter().flat_map(|(first, end)| *first..*end);
        let mut slow: Vec<u64> = all
            .filter(|os_page| self.places.is_touched(*os_page) && !self.places.is_fast(*os_page))
            .filter(|os_page| counts(os_page) > (0.0, 0.0))
            .collect();
        slow.sort_by(|a, b| {
            let (a, b) = (counts(a), counts(b));
            b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1))
        });
        slow.truncate(index(left));
        steps.extend(slow.into_iter().map(|os_page| self.places.put(os_page, true)));
    }
}

/// Objects that gain, by benefit per byte: first OS page and end.
fn by_density(known: &[KnownObject]) -> Vec<(u64, u64)> {
    let mut objects: BTreeMap<u64, (u64, f64)> = BTreeMap::new();
    for one in known {
        let object = objects.entry(one.os_pages.start).or_default();
        *object = (object.0.max(one.os_pages.end), object.1 + one.benefit);
    }
    let mut order: Vec<(u64, u64, f64)> =
        objects.into_iter().map(|(first, (end, benefit))| (first, end, benefit)).collect();
    order.retain(|(first, end, benefit)| end > first && *benefit > 0.0);
    let density = |one: &(u64, u64, f64)| one.2 / (one.1 - one.0) as f64;
    order.sort_by(|a, b| density(b).total_cmp(&density(a)).then(a.0.cmp(&b.0)));
    order.into_iter().map(|(first, end, _)| (first, end)).collect()
}

impl PageBaseline for TwoPhase {
    fn born(&mut self, os_pages: OsPages) {
        if let Some(end) = self.divergent.get(&os_pages.start) {
            self.living.insert(os_pages.start, *end);
        }
    }

    fn access(&mut self, os_page: u64, access: PageAccess, count: f64, steps: &mut Vec<PageStep>) {
        let counts = match access {
            PageAccess::Read => &mut self.read,
            PageAccess::WriteBack => &mut self.written,
        };
        counts[index(os_page)] += count;
        if !self.places.is_touched(os_page) {
            let is_fast = self.placed[index(os_page)] && self.places.left() > 0;
            self.awaited -= u64::from(is_fast);
            steps.push(self.places.put(os_page, is_fast));
        }
    }

    fn tick(&mut self, now_ns: u64, steps: &mut Vec<PageStep>) {
        if now_ns >= self.due_ns {
            self.due_ns = now_ns + EVERY_NS;
            self.promote(steps);
        }
    }

    fn died(&mut self, os_pages: OsPages, goes_back: bool) {
        self.living.remove(&os_pages.start);
        for os_page in os_pages {
            let at = index(os_page);
            (self.written[at], self.read[at]) = (0.0, 0.0);
            if goes_back {
                self.awaited += u64::from(self.placed[at] && self.places.is_fast(os_page));
                self.places.release(os_page);
            }
        }
    }
}
