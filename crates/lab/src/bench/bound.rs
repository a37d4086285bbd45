//! The least time that a run with limited fast memory can take. In: what the timing plugin counted
//! in the run with everything in fast memory, the times with everything in fast and in slow memory.
//! Out: a time that no run should beat. Knows nothing of runs or policies.
//!
//! ```text
//!   all-fast time = rest + waits        the rest is what no placement changes
//!   all-slow time = rest + waits'
//!   bound         = rest + waits' x share of the misses that fast memory cannot serve
//! ```
//!
//! That share is the least for each millisecond by itself: the OS pages with most misses in it are
//! fast, as if known in advance and moved for nothing. What fast memory serves counts as free,
//! because it may overlap with what slow memory serves. Where a few misses of a burst are slow, the
//! burst takes more than their share of the waits. They may take less where slow memory is short of
//! bandwidth, which fewer misses would have: what the run in slow memory shows counts as well. The
//! plugin weighs misses in three ways, and the bound takes the one in its favour.

use serde::{Deserialize, Serialize};

use crate::timing::Span;

/// What is known of a workload from its run with all fast memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Share of the run in which it waited for memory, 0 to 1.
    pub waits: f64,
    /// Sizes of fast memory, ascending.
    pub bytes: Vec<u64>,
    /// The largest share of the misses that each could serve, 0 to 1.
    pub shares: Vec<f64>,
}

impl Best {
    /// From the plugin's figures; `None`: nothing missed, so there is nothing to place.
    pub(crate) fn of(span: &Span) -> Option<Best> {
        let Span { busy_ps, stalled_ps, best } = span;
        (best.misses > 0 && *busy_ps > 0).then(|| Best {
            waits: *stalled_ps as f64 / *busy_ps as f64,
            bytes: best.bytes.clone(),
            shares: best.shares.clone(),
        })
    }

    /// The largest share that so much fast memory could serve.
    fn share(&self, fast_bytes: u64) -> f64 {
        // Of the next larger size that was counted: no less than this size serves.
        let at = self.bytes.partition_point(|bytes| *bytes < fast_bytes);
        self.shares.get(at).copied().unwrap_or(1.0)
    }

    /// Nanoseconds that a run takes at least with so much fast memory. `slow` was counted in the
    /// run with all slow memory, which waits elsewhere; the share in favour of the size counts.
    pub(crate) fn least_ns(
        &self,
        slow: Option<&Best>,
        fast_bytes: u64,
        (fast_ns, slow_ns): (f64, f64),
    ) -> f64 {
        let in_slow = slow.map_or(0.0, |slow| slow.share(fast_bytes));
        let share = self.share(fast_bytes).max(in_slow);
        let rest_ns = fast_ns * (1.0 - self.waits);
        fast_ns.max(rest_ns + (1.0 - share) * (slow_ns - rest_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::Counted;

    #[test]
    fn what_cannot_be_fast_waits_as_in_slow_memory() {
        let counted = Counted { misses: 9, bytes: vec![10, 20, 40], shares: vec![0.5, 0.75, 0.95] };
        let span = Span { busy_ps: 100, stalled_ps: 60, best: counted };
        let best = Best::of(&span).expect("misses");
        // 100 ns with 40 of rest; 240 in slow memory are 200 of waits.
        let least = |bytes| best.least_ns(None, bytes, (100.0, 240.0));
        assert_eq!([0, 10, 15, 20].map(least), [140.0, 140.0, 100.0, 100.0]);
        let times = (100.0, 640.0);
        assert_eq!(best.least_ns(None, 15, times), 190.0);
        assert_eq!(best.least_ns(None, 41, times), 100.0, "everything fits");
        let slow = |share| Best { waits: 0.9, bytes: vec![20], shares: vec![share] };
        assert_eq!(best.least_ns(Some(&slow(0.5)), 15, times), 190.0);
        assert!((best.least_ns(Some(&slow(0.8)), 15, times) - 160.0).abs() < 1e-9);
        assert_eq!(Best::of(&Span::default()), None);
    }
}
