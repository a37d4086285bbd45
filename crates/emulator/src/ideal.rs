// SPDX-License-Identifier: GPL-2.0-or-later
//! How much a placement could serve from fast memory at best, if it knew everything and moved for
//! nothing. In: misses of user code, by physical OS page, with what they waited. Out: for sizes of
//! fast memory, the share that the OS pages with most of it had in each slot of time. Knows nothing
//! of nodes.
//!
//! ```text
//!   slot of 1 ms     OS page -> misses, waits, dirtied lines        forgotten when the slot ends
//!   at its end       OS pages in descending order, by each of three weights
//!                    best[weight][size] += weight of as many as the size holds
//! ```
//!
//! What a miss costs in another memory is not known here, so three weights stand for it, and each
//! size gets the largest share of the three: misses; their waits; misses and dirtied lines.

use std::collections::HashMap;

use crate::stats::BestStats;

/// Within a slot nothing can be gained by a move: in a millisecond a processor moves about 1 MiB,
/// which is what it then has no time to use.
const SLOT_PS: u64 = 1_000_000_000;
const PAGE_BYTES: u64 = 4096;
/// The smallest size of fast memory, and how many there are: 16 in each doubling, to 2 GiB. One
/// step is 4% more.
const FIRST_BYTES: f64 = 65_536.0;
const STEPS: u32 = 16;
const SIZES: u32 = 15 * STEPS + 1;
/// Misses that a dirtied line counts as: Optane writes a third to a quarter as fast as it reads.
const DIRTIED_MISSES: u64 = 4;
const WEIGHTS: usize = 3;

/// Sums over some time.
#[derive(Debug)]
pub struct Ideal {
    slot: HashMap<u64, [u64; WEIGHTS]>,
    slot_ends_ps: u64,
    sizes: Vec<usize>,
    best: [Vec<u64>; WEIGHTS],
    all: [u64; WEIGHTS],
}

impl Default for Ideal {
    fn default() -> Ideal {
        let size = |step: u32| FIRST_BYTES * (f64::from(step) / f64::from(STEPS)).exp2();
        let pages = |step| tiercel_machine::number::saturating_u64(size(step)) / PAGE_BYTES;
        let sizes: Vec<usize> =
            (0..SIZES).map(|step| usize::try_from(pages(step)).unwrap_or(usize::MAX)).collect();
        let best = std::array::from_fn(|_| vec![0; sizes.len()]);
        Ideal { slot: HashMap::new(), slot_ends_ps: 0, sizes, best, all: [0; WEIGHTS] }
    }
}

impl Ideal {
    /// Memory served an access, for which the processor waited so long.
    pub fn missed(&mut self, physical: u64, stall_ps: u64, now_ps: u64) {
        self.add(physical, [1, stall_ps, 1], now_ps);
    }

    /// A store made a line dirty.
    pub fn dirtied(&mut self, physical: u64, now_ps: u64) {
        self.add(physical, [0, 0, DIRTIED_MISSES], now_ps);
    }

    /// For each size of fast memory the share that it serves at best.
    pub fn take(&mut self) -> BestStats {
        self.end_slot();
        let share = |size: usize| {
            let of = |weight: usize| match self.all[weight] {
                0 => 0.0,
                all => self.best[weight][size] as f64 / all as f64,
            };
            (0..WEIGHTS).map(of).fold(0.0, f64::max)
        };
        let stats = BestStats {
            bytes: self.sizes.iter().map(|pages| *pages as u64 * PAGE_BYTES).collect(),
            shares: (0..self.sizes.len()).map(share).collect(),
            misses: self.all[0],
        };
        *self = Ideal::default();
        stats
    }

    fn add(&mut self, physical: u64, weights: [u64; WEIGHTS], now_ps: u64) {
        if now_ps >= self.slot_ends_ps {
            self.end_slot();
            self.slot_ends_ps = now_ps + SLOT_PS;
        }
        let sums = self.slot.entry(physical / PAGE_BYTES).or_default();
        sums.iter_mut().zip(weights).for_each(|(sum, more)| *sum += more);
    }

    fn end_slot(&mut self) {
        for weight in 0..WEIGHTS {
            let mut of_pages: Vec<u64> = self.slot.values().map(|sums| sums[weight]).collect();
            of_pages.sort_unstable_by(|a, b| b.cmp(a));
            let (mut sum, mut pages) = (0, of_pages.iter());
            let mut taken = 0;
            for (size, best) in self.sizes.iter().zip(&mut self.best[weight]) {
                sum += pages.by_ref().take(size - taken).sum::<u64>();
                taken = *size;
                *best += sum;
            }
            self.all[weight] += of_pages.iter().sum::<u64>();
        }
        self.slot.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shares for some numbers of OS pages.
    fn shares(ideal: &mut Ideal, pages: &[u64]) -> Vec<f64> {
        let stats = ideal.take();
        let at = |pages: &u64| stats.bytes.iter().position(|bytes| *bytes == pages * PAGE_BYTES);
        pages.iter().map(|pages| stats.shares[at(pages).expect("a size")]).collect()
    }

    /// `misses` on each of so many OS pages from `first` on.
    fn miss(ideal: &mut Ideal, first: u64, pages: u64, misses: u64, now_ps: u64) {
        for page in first..first + pages {
            (0..misses).for_each(|_| ideal.missed(page * PAGE_BYTES, 10, now_ps));
        }
    }

    #[test]
    fn the_best_pages_of_each_slot_count() {
        let mut ideal = Ideal::default();
        // 16 hot pages and 48 others; in the next slot other 16 are hot.
        miss(&mut ideal, 0, 16, 30, 5);
        miss(&mut ideal, 16, 48, 10, 7);
        miss(&mut ideal, 100, 16, 60, SLOT_PS + 5);
        let all = 480.0 + 480.0 + 960.0;
        assert_eq!(shares(&mut ideal, &[16, 32, 64]), [1440.0 / all, 1600.0 / all, 1.0]);
        assert_eq!(ideal.take().misses, 0, "it begins anew");
    }

    #[test]
    fn the_weight_that_favours_a_size_counts() {
        let mut ideal = Ideal::default();
        miss(&mut ideal, 0, 16, 1, 5);
        // As many misses elsewhere, that waited nine times as long.
        (16..32).for_each(|page| ideal.missed(page * PAGE_BYTES, 90, 6));
        assert_eq!(shares(&mut ideal, &[16, 32]), [0.9, 1.0]);
        miss(&mut ideal, 0, 32, 1, 5);
        (0..16).for_each(|page| ideal.dirtied(page * PAGE_BYTES, 6));
        assert_eq!(shares(&mut ideal, &[16]), [(16.0 * 5.0) / (32.0 + 64.0)]);
    }
}
