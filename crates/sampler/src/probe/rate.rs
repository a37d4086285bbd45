//! Estimates the number of accesses from the number of used OS pages. In: used and present OS pages
//! of windows of CPU time. Out: accesses per OS page and second. Pure.
//!
//! Page-table bits only distinguish used from unused. If accesses fall on OS pages at random, k
//! accesses leave a share of exp(-k / n) of n OS pages unused; inverted, this counts accesses as
//! long as some OS page is unused (linear counting). A window in which all are used distinguishes
//! nothing; one in which hardly any is used has little evidence. Therefore windows of several
//! lengths begin together:
//!
//! ```text
//!                                        mappings, `rate`   spots, `hazard`
//! to the next step (50 ms to 30 s)       yes                yes
//! to the next drain (50 ms)              no                 where the step is later
//! a sleep (2 ms)                         yes                yes
//! a sleep (30 us)                        no                 yes
//! a batch of system calls (some 20 us)   no                 yes
//! ```
//!
//! Of a mapping, which has many OS pages, the longest window decides that is not full. A spot has
//! eight; the window that decides is one that earlier spots there seldom filled (`sharp`).

use std::time::Duration;

/// A window with a larger share of used OS pages is too full to count by.
pub const FULL: f64 = 0.75;

/// A shorter window with fewer used OS pages is no evidence by itself.
const PROOF_MIN: u64 = 2;
/// Nor is one that exceeds the longer one's prediction by fewer standard deviations than this.
const PROOF_DEVIATIONS: f64 = 3.0;

/// What was used, and in what time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// OS pages used.
    pub used: u64,
    /// OS pages present.
    pub total: u64,
    /// Length of the window in CPU time of the program, which excludes the time it waited.
    pub elapsed: Duration,
}

impl Seen {
    /// Share of the OS pages that was used, 0 to 1.
    pub fn share(&self) -> f64 {
        if self.total == 0 { 0.0 } else { self.used as f64 / self.total as f64 }
    }

    /// The same window, with an impossible length corrected. The kernel updates the CPU time of a
    /// running program only at ticks (4 ms at 250 Hz): a short window in which it used OS pages may
    /// seem to have no length, or more than its CPUs had in wall time. The program is then assumed
    /// to have run all the time. `pace`: its recent CPU time over wall time.
    pub fn between_ticks(self, wall: Duration, pace: f64) -> Seen {
        let most = wall.mul_f64(pace.max(1.0));
        let can_be = !self.elapsed.is_zero() && self.elapsed <= most;
        if self.used == 0 || can_be { self } else { Seen { elapsed: most, ..self } }
    }

    /// Accesses per OS page in this window: each page that was used as one of those still unused
    /// before it (Nelson and Aalen's estimate of a hazard). Its mean is that of the accesses for as
    /// long as one is unused; ln(1 / share unused) is too large for few pages.
    pub fn hazard(&self) -> f64 {
        let used = self.used.min(self.total);
        (0..used).map(|before| 1.0 / (self.total - before) as f64).sum()
    }

    /// Accesses per OS page and second, from this window alone.
    fn rate(&self) -> f64 {
        if self.used == 0 || self.elapsed.is_zero() {
            return 0.0;
        }
        let total = self.total.max(self.used) as f64;
        let unused = (total - self.used as f64).max(0.5); // All used counts as all but half.
        (total / unused).ln() / self.elapsed.as_secs_f64()
    }

    /// Whether more was used than accesses at this rate explain: then some OS pages are much busier
    /// than others, and a longer window counts each of them as one access.
    fn disproves(&self, rate: f64) -> bool {
        let expected = self.total as f64 * -(-rate * self.elapsed.as_secs_f64()).exp_m1();
        let used = self.used as f64;
        self.used >= PROOF_MIN && used > expected + PROOF_DEVIATIONS * expected.sqrt()
    }
}

/// Accesses per OS page and second, from windows that began together, the longest first; and in
/// which of them they were seen.
pub fn rate(windows: &[Seen]) -> (f64, usize) {
    let Some(longest) = windows.first() else { return (0.0, 0) };
    let (mut rate, mut is_full, mut seen_in) = (longest.rate(), longest.share() > FULL, 0);
    for (nth, window) in windows.iter().enumerate().skip(1) {
        if window.elapsed.is_zero() || !is_full && !window.disproves(rate) {
            continue;
        }
        if window.rate() > rate {
            (rate, seen_in) = (window.rate(), nth);
        }
        is_full = window.share() > FULL;
    }
    (rate, seen_in)
}

/// Windows so much longer than the one that counts give a lower bound where that shows nothing: on
/// a busy machine hardly any program runs within some microseconds.
const BOUNDS: u32 = 16;

/// Accesses per OS page and second that the few OS pages of a spot show, and in which of these
/// windows, the longest first. The first one not longer than `longest` counts; if `longest` is
/// zero, the last one. Which length that is must not depend on what this spot shows, but on what
/// others showed: of a window in which all were used the estimate is a lower bound, and where only
/// such are replaced by shorter ones, all that is busy looks the same. A bound from a window that
/// is not much longer replaces a smaller estimate. `None`: all windows were longer, as the daemon
/// had to wait for a CPU.
pub fn hazard(windows: &[Seen], longest: Duration) -> Option<(f64, usize)> {
    let is_looked = |window: &Seen| !window.elapsed.is_zero();
    let counts = match longest.is_zero() {
        true => windows.iter().rposition(is_looked),
        false => windows.iter().position(|one| is_looked(one) && one.elapsed <= longest),
    };
    let rate = |at: usize| windows[at].hazard() / windows[at].elapsed.as_secs_f64();
    let is_near = |at: &usize| is_looked(&windows[*at]) && windows[*at].elapsed <= longest * BOUNDS;
    let bounds = (0..counts.unwrap_or(windows.len())).filter(is_near);
    let found = counts.into_iter().chain(bounds).map(|at| (rate(at), at));
    found.max_by(|a, b| a.0.total_cmp(&b.0))
}

/// The longest window in which an OS page stayed unused; of none, a quarter of the shortest.
/// `None`: a longer one might do as well.
pub fn sharp(windows: &[Seen]) -> Option<Duration> {
    let mut looked = windows.iter().filter(|window| !window.elapsed.is_zero());
    let is_sharp = |window: &&Seen| window.used < window.total;
    if looked.clone().next().is_none_or(|longest| is_sharp(&longest)) {
        return None;
    }
    let found = looked.clone().find(is_sharp).map(|window| window.elapsed);
    found.or_else(|| looked.next_back().map(|window| window.elapsed / 4))
}

/// How much of the time that a short window seems to have had the program really ran. On a busy
/// machine the sampler takes the CPU from it just when it looks; then what is hot, which only short
/// windows show, would seem less hot. Where a longer window is not full it says how many OS pages
/// the shorter one should show: each that was used in the longer one was first used before the end
/// of the shorter one with the probability (1 - exp(-r short)) / (1 - exp(-r long)).
#[derive(Clone, Copy, Debug, Default)]
pub struct Shown {
    seen: f64,
    expected: f64,
}

/// OS pages for which it counts that nothing is missed, and those that count at most. Chosen: a
/// spot has 8.
const SHOWN_PRIOR: f64 = 8.0;
const SHOWN_MAX: f64 = 256.0;
/// The least part that is believed. Chosen, not measured.
const SHOWN_MIN: f64 = 0.1;

impl Shown {
    /// A window, and a longer one that began with it, whose length is right.
    pub fn compare(&mut self, short: &Seen, long: &Seen) {
        let (of_short, of_long) = (short.elapsed.as_secs_f64(), long.elapsed.as_secs_f64());
        if of_short <= 0.0 || of_short >= of_long || long.share() > FULL {
            return;
        }
        let unused = 1.0 - long.share();
        let rate = -unused.ln() / of_long;
        let part = if rate > 0.0 { -(-rate * of_short).exp_m1() / (1.0 - unused) } else { 0.0 };
        self.seen += short.used as f64;
        self.expected += long.used as f64 * part;
        if self.expected > SHOWN_MAX {
            (self.seen, self.expected) = (self.seen / 2.0, self.expected / 2.0);
        }
    }

    /// The window as long as the program ran in it. Never longer than it seems: in a long window
    /// several accesses of a burst look like one, and short ones show more of them.
    pub fn corrected(&self, window: &Seen) -> Seen {
        let part = (self.seen + SHOWN_PRIOR) / (self.expected + SHOWN_PRIOR);
        Seen { elapsed: window.elapsed.mul_f64(part.clamp(SHOWN_MIN, 1.0)), ..*window }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(used: u64, elapsed_us: u64) -> Seen {
        Seen { used, total: 512, elapsed: Duration::from_micros(elapsed_us) }
    }

    fn about(value: f64, expect: f64) {
        assert!((value - expect).abs() <= expect * 0.02, "{value}, expected {expect}");
    }

    #[test]
    fn few_used_os_pages_count_as_that_many_accesses() {
        about(512.0 * seen(5, 1_000_000).rate(), 5.0);
        about(512.0 * seen(5, 100_000).rate(), 50.0);
        about(seen(256, 1_000_000).rate(), 2f64.ln());
        about(seen(0, 1_000_000).rate(), 0.0);
    }

    #[test]
    fn a_full_window_is_decided_by_the_next_shorter_one() {
        // 512 x 10 accesses a second: all are used within 1 s, ten within 2 ms.
        let (hot, warm) = (seen(512, 1_000_000), seen(400, 1_000_000));
        about(512.0 * rate(&[hot, seen(10, 2_000)]).0, 5050.0);
        assert!(rate(&[warm, seen(0, 2_000)]).0 < rate(&[hot, seen(0, 2_000)]).0);
        // And 512 x 20,000: only the shortest is not full.
        let hotter = [hot, seen(512, 2_000), seen(324, 50)];
        about(rate(&hotter).0, 20_000.0);
        assert_eq!((rate(&hotter).1, rate(&[warm, seen(0, 2_000)]).1), (2, 0), "where it was seen");
    }

    #[test]
    fn a_hot_spot_shows_in_a_short_window() {
        // A quarter is used all the time, the rest never: the long window yields 0.3 a second.
        let spot = [seen(128, 1_000_000), seen(128, 2_000), seen(100, 50)];
        about(rate(&spot).0, seen(100, 50).rate());
        // A single access in a short window is not a hot spot.
        let cold = [seen(100, 1_000_000), seen(1, 2_000), seen(0, 50)];
        about(rate(&cold).0, cold[0].rate());
    }

    #[test]
    fn windows_between_ticks_have_a_length() {
        let wall = Duration::from_micros(100);
        let length = |window: Seen, pace| window.between_ticks(wall, pace).elapsed.as_micros();
        assert_eq!(length(seen(5, 0), 0.5), 100, "it ran between two ticks");
        assert_eq!(length(seen(5, 4000), 1.0), 100, "a tick added 4 ms");
        assert_eq!(length(seen(5, 4000), 3.0), 300, "three threads run");
        assert_eq!(length(seen(5, 20), 1.0), 20, "it waited, and the kernel updated its time");
        assert_eq!(length(seen(0, 0), 1.0), 0, "it may not have run");
    }

    #[test]
    fn short_windows_are_as_long_as_longer_ones_say() {
        let short = |used: u64| Seen { used, ..seen(0, 1_000) };
        let long = |used: u64| Seen { used, ..seen(0, 10_000) };
        let mut shown = Shown::default();
        // A tenth of 100, and a little more, as OS pages that were used later do not count.
        (0..20).for_each(|_| shown.compare(&short(11), &long(100)));
        about(shown.corrected(&short(11)).elapsed.as_secs_f64(), 1e-3);
        (0..200).for_each(|_| shown.compare(&short(3), &long(100)));
        let corrected = shown.corrected(&short(11)).elapsed.as_secs_f64();
        assert!((0.25e-3..0.4e-3).contains(&corrected), "{corrected}");
        // One that is full says nothing, and short windows that show more are believed.
        let mut shown = Shown::default();
        (0..200).for_each(|_| shown.compare(&short(3), &long(512)));
        (0..200).for_each(|_| shown.compare(&short(90), &long(100)));
        assert_eq!(shown.corrected(&short(11)), short(11));
    }

    #[test]
    fn invalid_windows_yield_finite_rates() {
        let odd = Seen { used: 9, total: 3, elapsed: Duration::from_nanos(1) };
        assert!(odd.rate().is_finite());
        about(Seen { elapsed: Duration::ZERO, ..odd }.rate(), 0.0);
        about(Seen { total: 0, ..odd }.share(), 0.0);
        about(rate(&[]).0, 0.0);
    }

    /// A random process with known rates over five decades: the estimate is within a factor of 1.7.
    #[test]
    fn rates_over_five_decades_are_estimated() {
        let lengths =
            [Duration::from_millis(200), Duration::from_millis(2), Duration::from_micros(80)];
        // The longest in which at most one of ten spots is full.
        let longest = |truth: f64| {
            let full = |at: &Duration| (1.0 - (-truth * at.as_secs_f64()).exp()).powi(8);
            lengths.into_iter().find(|length| full(length) < 0.1).unwrap_or(lengths[2])
        };
        let mut random = fastrand::Rng::with_seed(3);
        for truth in [0.3f64, 3.0, 30.0, 300.0, 3_000.0, 20_000.0] {
            const SPOTS: u64 = 6000;
            let (mut sum, mut hazards) = (0.0, 0.0);
            for _ in 0..SPOTS {
                // The time at which each of 8 OS pages is first used.
                let first: [f64; 8] = std::array::from_fn(|_| {
                    let uniform = 1.0 - random.f64();
                    -uniform.ln() / truth
                });
                let window = |elapsed: Duration| {
                    let used = first.iter().filter(|at| **at < elapsed.as_secs_f64()).count();
                    Seen { used: used as u64, total: 8, elapsed }
                };
                sum += rate(&lengths.map(window)).0;
                let longest = longest(truth);
                hazards += hazard(&lengths.map(window), longest).expect("one is short").0;
            }
            let estimate = sum / SPOTS as f64;
            let ratio = estimate / truth;
            assert!((0.66..1.7).contains(&ratio), "{truth} a second estimated as {estimate}");
            let ratio = hazards / SPOTS as f64 / truth;
            assert!((0.93..1.07).contains(&ratio), "{truth} a second is {ratio} times as much");
        }
    }
}
