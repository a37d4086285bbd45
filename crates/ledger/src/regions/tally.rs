//! How many samples a window each 64 KiB of a piece had, where samples are counted.
//! In: samples, the ends of windows. Out: means. Knows nothing of what a sample stands for.
//!
//! A history says in how many windows memory was accessed, and above a few samples a window that is
//! all of them. A count goes on telling warm from hot.

use tiercel_machine::number::{index, index_u32};

use super::PIECE_PAGES;

/// OS pages of a count: 64 KiB, so that counts take 0.375 bytes of an OS page.
pub(crate) const TALLY_PAGES: usize = 16;
const TALLIES: usize = PIECE_PAGES / TALLY_PAGES;
/// Weight of the newest window, 2 / (8 + 1): the mean is then as old as that of eight windows.
const NEWEST: f32 = 2.0 / 9.0;
/// Windows until then: their mean is a plain one.
const PLAIN: u64 = 4;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    open: [u16; TALLIES],
    mean: [f32; TALLIES],
}

pub(crate) const NO_SAMPLES: Tally = Tally { open: [0; TALLIES], mean: [0.0; TALLIES] };

impl Tally {
    /// A sample of an OS page.
    pub(crate) fn count(&mut self, page: usize) {
        let open = &mut self.open[page / TALLY_PAGES];
        *open = open.saturating_add(1);
    }

    /// Ends a window, the `nth` of this piece from 1.
    pub(crate) fn close(&mut self, nth: u64) {
        let plain = [1.0, 1.0 / 2.0, 1.0 / 3.0, 1.0 / 4.0];
        let share = if nth > PLAIN { NEWEST } else { plain[index(nth.max(1)) - 1] };
        for (open, mean) in self.open.iter_mut().zip(&mut self.mean) {
            *mean += (f32::from(*open) - *mean) * share;
            *open = 0;
        }
    }

    /// Samples a window of OS pages from `first` on; less than 64 KiB has its part.
    pub(crate) fn mean(&self, first: usize, pages: usize) -> f64 {
        let part = f64::from(index_u32(pages.min(TALLY_PAGES))) / TALLY_PAGES as f64;
        let last = (first + pages).div_ceil(TALLY_PAGES);
        let all = self.mean[first / TALLY_PAGES..last].iter();
        all.map(|mean| f64::from(*mean)).sum::<f64>() * part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_is_of_the_windows_that_were() {
        let mut tally = NO_SAMPLES;
        for (nth, samples) in [6, 2, 1].into_iter().enumerate() {
            (0..samples).for_each(|_| tally.count(17));
            tally.close(nth as u64 + 1);
        }
        assert!((tally.mean(16, 16) - 3.0).abs() < 1e-6);
        assert_eq!(tally.mean(0, 512), tally.mean(16, 16), "all of the piece");
        assert_eq!(tally.mean(17, 1), tally.mean(16, 16) / 16.0, "an OS page has its part");
        assert_eq!((tally.mean(0, 16), tally.mean(32, 16)), (0.0, 0.0));
    }

    #[test]
    fn old_samples_fade() {
        let mut tally = NO_SAMPLES;
        (0..64).for_each(|_| tally.count(0));
        (8..16).for_each(|nth| tally.close(nth));
        // 64 x 2/9 x (7/9)^7.
        assert!((tally.mean(0, 16) - 2.449).abs() < 0.001, "{}", tally.mean(0, 16));
    }
}
