//! The clocks of records and samples, and the daemon's, which they become.
//! In: this machine's clocks. Out: instants on the daemon's clock, nanoseconds since it began.
//! Knows nothing of records.
//!
//! The daemon's clock is CLOCK_MONOTONIC, by which samples are dated, less the time when it began.
//! Records carry the low 48 bits of that clock or, where the kernel keeps time by it, of the CPU's
//! counter, which costs programs a third as much to read. Two readings of both clocks, around the
//! records in question, convert one into the other:
//!
//! ```text
//! counter    --before---------r------latest-->     error: that of one reading, some 0.1 us
//! monotonic  --before---------?------latest-->
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::layout::TIME_BITS;

/// What records take their time from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum ClockSource {
    /// CLOCK_MONOTONIC, right everywhere.
    #[default]
    Monotonic = 0,
    /// The CPU's counter.
    Counter = 1,
}

impl ClockSource {
    /// The best one here: the counter, where the kernel itself keeps time by it, so that it runs
    /// evenly and all CPUs agree.
    #[must_use]
    pub fn of_this_machine() -> ClockSource {
        let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        let name = std::fs::read_to_string(path).unwrap_or_default();
        match name.trim() {
            "tsc" if cfg!(target_arch = "x86_64") => ClockSource::Counter,
            "arch_sys_counter" if cfg!(target_arch = "aarch64") => ClockSource::Counter,
            _ => ClockSource::Monotonic,
        }
    }
}

/// One moment on two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Now {
    /// The daemon's clock, nanoseconds.
    pub ns: u64,
    /// CLOCK_MONOTONIC, nanoseconds.
    pub monotonic_ns: u64,
}

impl Now {
    /// The present, on a daemon's clock that shows `ms`: for tests and measurements.
    #[must_use]
    pub fn at_ms(ms: u64) -> Now {
        Now { ns: ms * 1_000_000, monotonic_ns: monotonic_ns() }
    }

    /// The daemon's clock in whole milliseconds.
    #[must_use]
    pub fn ms(self) -> u64 {
        self.ns / 1_000_000
    }

    /// The daemon's clock when CLOCK_MONOTONIC showed `then_ns`; 0 before it began.
    #[must_use]
    pub fn when(self, then_ns: u64) -> u64 {
        (self.ns + then_ns.saturating_sub(self.monotonic_ns))
            .saturating_sub(self.monotonic_ns.saturating_sub(then_ns))
    }
}

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reading {
    monotonic_ns: u64,
    ticks: u64,
}

/// Readings this close together make a poor ratio: 0.1 us of 1 ms is 1 in 10,000.
const APART_NS: u64 = 1_000_000;

/// Attempts at a reading, of which the quickest counts: between the two clocks a thread may be
/// interrupted.
const ATTEMPTS: usize = 3;

/// A record this far in the future was not written while rings were drained: a drain takes some
/// milliseconds. It is taken for as old as it is when it is read.
const FUTURE_NS_MAX: u64 = 1_000_000_000;

/// Converts times of records. Its clock goes on by [`Timeline::look`] alone.
#[derive(Clone, Copy, Debug)]
pub struct Timeline {
    /// CLOCK_MONOTONIC when the daemon's clock began.
    began_ns: u64,
    first: Reading,
    before: Reading,
    latest: Reading,
}

impl Timeline {
    /// The daemon's clock begins now.
    #[must_use]
    pub fn begin() -> Timeline {
        let first = read_both();
        Timeline { began_ns: first.monotonic_ns, first, before: first, latest: first }
    }

    /// A clock that stands at `now_ns`, and has begun with CLOCK_MONOTONIC: for tests.
    #[must_use]
    pub fn at(now_ns: u64) -> Timeline {
        let first = Reading { monotonic_ns: now_ns, ticks: now_ns };
        Timeline { began_ns: 0, first, before: first, latest: first }
    }

    /// The same clock, so much later: for tests and fuzzers.
    #[must_use]
    pub fn later(self, by: Duration) -> Timeline {
        let by_ns = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        Timeline { began_ns: self.began_ns.saturating_sub(by_ns), ..self }
    }

    /// Reads the clocks. Records that are drained after this look and before the next are dated
    /// by it.
    pub fn look(&mut self) -> Now {
        let latest = read_both();
        if latest.monotonic_ns >= self.before.monotonic_ns.saturating_add(APART_NS) {
            self.before = self.latest;
        }
        self.latest = latest;
        self.now()
    }

    /// The moment of the latest look.
    #[must_use]
    pub fn now(&self) -> Now {
        let monotonic_ns = self.latest.monotonic_ns;
        Now { ns: monotonic_ns.saturating_sub(self.began_ns), monotonic_ns }
    }

    /// The daemon's clock at this moment, nanoseconds; no look.
    #[must_use]
    pub fn elapsed_ns(&self) -> u64 {
        monotonic_ns().saturating_sub(self.began_ns)
    }

    /// The daemon's clock at the time of a record. 0 is no time.
    pub(crate) fn instant(&self, low: u64, is_ticks: bool) -> u64 {
        let now = self.now();
        if low == 0 {
            return now.ns;
        }
        let monotonic_ns = if is_ticks {
            self.of_ticks(expand(low, self.latest.ticks))
        } else {
            expand(low, self.latest.monotonic_ns)
        };
        let at_ns = now.when(monotonic_ns);
        if at_ns > now.ns.saturating_add(FUTURE_NS_MAX) { now.ns } else { at_ns }
    }

    /// CLOCK_MONOTONIC when the counter showed `ticks`: on the line through the two readings around
    /// it, or the two nearest.
    fn of_ticks(&self, ticks: u64) -> u64 {
        let recent = ticks >= self.before.ticks;
        let (from, to) =
            if recent { (self.before, self.latest) } else { (self.first, self.before) };
        let (from, to) = if to.ticks > from.ticks { (from, to) } else { (self.first, self.latest) };
        let run = i128::from(to.ticks) - i128::from(from.ticks);
        let rise = i128::from(to.monotonic_ns) - i128::from(from.monotonic_ns);
        let since = i128::from(ticks) - i128::from(to.ticks);
        let ns = i128::from(to.monotonic_ns) + since * rise.max(1) / run.max(1);
        u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
    }
}

/// Nanoseconds of CLOCK_MONOTONIC.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

fn read_both() -> Reading {
    let attempt = |_| {
        let before = ticks();
        let monotonic_ns = monotonic_ns();
        let took = ticks().wrapping_sub(before);
        (took, Reading { monotonic_ns, ticks: before + took / 2 })
    };
    let best = (0..ATTEMPTS).map(attempt).min_by_key(|(took, _)| *took);
    best.expect("there is one attempt at least").1
}

/// The CPU's counter; CLOCK_MONOTONIC where none is known.
fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads a register that every x86-64 CPU has; this process does not forbid it.
    let ticks = unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(target_arch = "aarch64")]
    let ticks = {
        let ticks: u64;
        // SAFETY: reads a register that Linux lets programs read, and touches nothing else.
        unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
        ticks
    };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let ticks = monotonic_ns();
    ticks
}

/// The full value of a clock whose low 48 bits are `low`: at most half a turn before or after
/// `near`.
fn expand(low: u64, near: u64) -> u64 {
    /// Of the bits that a record keeps: 2^48 values.
    const TURN: u64 = 1 << TIME_BITS;
    let ahead = low.wrapping_sub(near) & (TURN - 1);
    if ahead < TURN / 2 { near.saturating_add(ahead) } else { near.saturating_sub(TURN - ahead) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As in [`expand`]: 2^48.
    const TURN: u64 = 1 << TIME_BITS;

    #[test]
    fn a_time_is_expanded_against_the_clock() {
        assert_eq!(expand(7, 9), 7);
        assert_eq!(expand(TURN - 1, TURN + 4), TURN - 1);
        assert_eq!(expand(3, TURN - 2), TURN + 3);
    }

    #[test]
    fn no_time_and_a_time_far_ahead_are_now() {
        let line = Timeline::at(5_000_000_000);
        assert_eq!(line.instant(0, false), 5_000_000_000);
        assert_eq!(line.instant(5_900_000_000, false), 5_900_000_000, "written meanwhile");
        assert_eq!(line.instant(9_000_000_000, false), 5_000_000_000);
        assert_eq!(line.instant(4_000_000_000, false), 4_000_000_000);
    }

    #[test]
    fn the_counter_is_converted_within_the_error_of_a_reading() {
        let mut line = Timeline::begin();
        let mut error = || {
            // A moment that both clocks know, before the look that dates it.
            let known = read_both();
            line.look();
            let ns = line.instant(known.ticks & (TURN - 1), true);
            ns.abs_diff(known.monotonic_ns - line.began_ns)
        };
        let mut errors: Vec<u64> = (0..101).map(|_| error()).collect();
        errors.sort_unstable();
        // The median: a reading that was interrupted three times is off by the interruption. Far
        // below the millisecond of a clock that a daemon sets.
        assert!(errors[50] < 100_000, "{errors:?}");
    }

    proptest! {
        #[test]
        fn conversion_is_exact_on_a_line(
            ns in 1u64 << 40..1 << 50,
            step in 1u64 << 20..1 << 40,
            ratio in 1u64..5,
            at in 0u64..100,
        ) {
            let time = |n| ns + n * step;
            let reading = |n| Reading { monotonic_ns: time(n), ticks: time(n) * ratio };
            let line = Timeline {
                began_ns: ns, first: reading(0), before: reading(1), latest: reading(2),
            };
            let then = ns + 2 * step * at / 100;
            let got = line.instant((then * ratio) & (TURN - 1), true);
            prop_assert!(got.abs_diff(then - ns) <= 1, "{got} {}", then - ns);
        }
    }
}
