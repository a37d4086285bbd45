//! How many accesses there were, judged by how many OS pages were used.
//! In: used and present OS pages of a window of time. Out: accesses. Pure.
//!
//! Page-table bits say used or not. If accesses fall on OS pages at random, k accesses leave a
//! share of exp(-k / n) of n OS pages unused; turned around, that counts accesses as long as some
//! OS page is left unused (linear counting). In a window in which all are used nothing can be told
//! apart, so there are two lengths of window, and the shorter one decides where the longer one is
//! full.

use std::time::Duration;

/// More used than this share of a window's OS pages: too full to count by.
pub const FULL: f64 = 0.75;

/// What was used in how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// OS pages used.
    pub used: u64,
    /// OS pages there were.
    pub total: u64,
    /// Length of the window.
    pub elapsed: Duration,
}

impl Seen {
    /// Share of the OS pages that was used, 0 to 1.
    pub fn share(&self) -> f64 {
        if self.total == 0 { 0.0 } else { self.used as f64 / self.total as f64 }
    }

    /// Accesses in a window of `per` at this rate.
    pub fn accesses(&self, per: Duration) -> f64 {
        if self.used == 0 || self.elapsed.is_zero() {
            return 0.0;
        }
        let total = self.total.max(self.used) as f64;
        let unused = (total - self.used as f64).max(0.5); // All used: as if half of one were not.
        total * (total / unused).ln() * (per.as_secs_f64() / self.elapsed.as_secs_f64())
    }
}

/// Accesses in a window of `per`, by a long window and a short one within it.
pub fn accesses(long: &Seen, short: &Seen, per: Duration) -> f64 {
    let by_long = long.accesses(per);
    if long.share() <= FULL { by_long } else { by_long.max(short.accesses(per)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn seen(used: u64, elapsed_ms: u64) -> Seen {
        Seen { used, total: 512, elapsed: Duration::from_millis(elapsed_ms) }
    }

    fn about(value: f64, expect: f64) {
        assert!((value - expect).abs() <= expect * 0.02, "{value}, expected {expect}");
    }

    #[test]
    fn few_used_os_pages_are_as_many_accesses() {
        about(seen(5, 1000).accesses(SECOND), 5.0);
        about(seen(5, 100).accesses(SECOND), 50.0);
        about(seen(256, 1000).accesses(SECOND), 512.0 * 2f64.ln());
        about(seen(0, 1000).accesses(SECOND), 0.0);
    }

    #[test]
    fn a_full_long_window_is_decided_by_the_short_one() {
        // 512 x 10 accesses a second: in 1 s all are used, in 2 ms ten.
        let (hot, warm) = (seen(512, 1000), seen(400, 1000));
        about(accesses(&hot, &seen(10, 2), SECOND), 5050.0);
        assert!(accesses(&warm, &seen(0, 2), SECOND) < accesses(&hot, &seen(0, 2), SECOND));
        let barely = accesses(&seen(100, 1000), &seen(100, 2), SECOND);
        about(barely, seen(100, 1000).accesses(SECOND)); // a burst in the short window is one
    }

    #[test]
    fn nonsense_gives_numbers() {
        let odd = Seen { used: 9, total: 3, elapsed: Duration::from_nanos(1) };
        assert!(odd.accesses(SECOND).is_finite());
        about(Seen { elapsed: Duration::ZERO, ..odd }.accesses(SECOND), 0.0);
        about(Seen { total: 0, ..odd }.share(), 0.0);
    }
}
