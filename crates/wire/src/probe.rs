//! What compiled code is to report: which lines are sampled, and through which caches.
//! In: a rate, shapes of caches. Out: words of the control page. Knows nothing of how misses are
//! found; `runtime/probe` does.

use crate::layout::control;
use crate::session::Session;
use std::sync::atomic::Ordering;

/// Lowest rate: one line in 2^6. The smallest cache, an L1 of 64 sets, has one set then.
pub const RATE_SHIFT_MAX: u32 = 6;
/// Most ways of a cache: their bits fill half a word.
pub const WAYS_MAX: u32 = 32;
/// Most sets of a cache among sampled lines: 2 GiB of 32 ways.
const SETS_MAX: u32 = 1 << 20;

/// The shape of a cache among all lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct CacheShape {
    /// Sets, one at least.
    pub sets: u32,
    /// Lines of a set.
    pub ways: u32,
}

/// What a process is asked to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct ProbeTerms {
    /// One line in 2^`shift` is sampled, at most [`RATE_SHIFT_MAX`].
    pub shift: u32,
    /// L1 and L2 of a thread, last level of the process.
    pub caches: [CacheShape; 3],
}

impl ProbeTerms {
    /// Hashes below this are sampled. Hashes are multiples of 64, so that all are below 2^32 - 1.
    fn limit(&self) -> u32 {
        match self.shift {
            0 => u32::MAX,
            shift => 1 << (u32::BITS - shift),
        }
    }

    /// The words of `tcl_probe_terms`, in order.
    fn words(&self) -> [u32; 8] {
        let [l1, l2, last] = self.caches.map(|cache| cache.among_sampled(self.shift));
        [self.limit(), self.shift, l1.sets, l1.ways, l2.sets, l2.ways, last.sets, last.ways]
    }
}

impl CacheShape {
    /// The cache that sampled lines meet: as small a share of the sets as they are of all lines.
    fn among_sampled(self, shift: u32) -> CacheShape {
        CacheShape { sets: (self.sets >> shift).clamp(1, SETS_MAX), ways: self.ways }
    }
}

impl Session {
    /// Asks compiled code to report its misses.
    ///
    /// # Panics
    /// When the rate is below [`RATE_SHIFT_MAX`], or a cache has no ways or too many.
    pub fn set_probe(&self, terms: &ProbeTerms) {
        assert!(terms.shift <= RATE_SHIFT_MAX, "a rate of 2^-{}", terms.shift);
        for cache in terms.caches {
            assert!((1..=WAYS_MAX).contains(&cache.ways), "{cache:?}");
        }
        for (at, word) in terms.words().into_iter().enumerate() {
            self.control_half(control::PROBE + at * 4).store(word, Ordering::Relaxed);
        }
    }

    /// Misses that no record was written of: a claim.
    #[must_use]
    pub fn lost_misses(&self) -> u64 {
        self.header_word(crate::layout::header::LOST_MISSES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_shrink_with_the_rate() {
        let shape = |sets, ways| CacheShape { sets, ways };
        let caches = [shape(64, 8), shape(1024, 16), shape(40_960, 11)];
        let all = ProbeTerms { shift: 0, caches };
        assert_eq!(all.words(), [u32::MAX, 0, 64, 8, 1024, 16, 40_960, 11]);
        let few = ProbeTerms { shift: 5, caches };
        assert_eq!(few.words(), [1 << 27, 5, 2, 8, 32, 16, 1280, 11]);
        assert_eq!(shape(4, 1).among_sampled(6), shape(1, 1));
    }
}
