//! When ticks are due: short while something is new, and longer until they have the usual length.
//! In: the time, what a tick took, whether there is anything to decide. Out: due times.
//! Knows nothing of what is done at a tick.

use std::time::Duration;

use tiercel_machine::number::saturating_u64;

/// Share of a CPU that ticks may take while they are shorter than the usual ones.
const TIME_SHARE: f64 = 0.01;

/// Each tick is so much longer than the last one, until it has the usual length. In replay 1.25
/// misses three points more of what the bound gains, and 1.03 misses as much with a third more
/// ticks. From 32 ms to 2 s these are 94 ticks within 43 s. A ranking that is settled is no reason
/// for longer ones: with 1.25 from then on, `moving` of the lab was found 22 times in five seconds,
/// and its hot window late.
const LONGER: f64 = 1.05;

/// The same where there is nothing to decide: six ticks within two seconds.
const LONGER_IDLE: f64 = 2.0;

/// Due times, milliseconds on the caller's clock.
#[derive(Clone, Debug)]
pub struct TickSchedule {
    /// The usual time between two ticks, and the shortest.
    usual_ms: u64,
    first_ms: u64,
    /// The present one.
    every_ms: u64,
    due_ms: u64,
    /// When the last tick was paid off: no shorter one comes before.
    earned_ms: u64,
}

impl TickSchedule {
    /// Nothing has begun: the first tick is a usual one. `first_ms`: 0 if all are equally long.
    pub fn new(usual_ms: u64, first_ms: u64) -> TickSchedule {
        let first_ms = if first_ms == 0 { usual_ms } else { first_ms.min(usual_ms) };
        TickSchedule { usual_ms, first_ms, every_ms: usual_ms, due_ms: usual_ms, earned_ms: 0 }
    }

    /// When the next tick is due.
    pub fn due_ms(&self) -> u64 {
        self.due_ms
    }

    /// Whether the next tick is late by half of a usual one.
    pub fn is_overdue(&self, now_ms: u64) -> bool {
        now_ms >= self.due_ms + self.usual_ms / 2
    }

    /// Time from the last tick to the next.
    pub fn every_ms(&self) -> u64 {
        self.every_ms
    }

    /// Something began of which nothing is known: ticks are short again, as far as that was earned.
    pub fn hasten(&mut self, now_ms: u64) {
        self.every_ms = self.first_ms;
        self.due_ms = self.due_ms.min((now_ms + self.first_ms).max(self.earned_ms));
    }

    /// A tick ended its interval and took so long; returns how late it was, milliseconds. A late
    /// tick does not make the next ones early.
    pub fn ticked(&mut self, took: Duration, is_idle: bool, now_ms: u64) -> u64 {
        let late_ms = now_ms.saturating_sub(self.due_ms);
        let factor = if is_idle { LONGER_IDLE } else { LONGER };
        let longer = self.every_ms as f64 * factor;
        let pause_ms = saturating_u64(took.as_secs_f64() * 1e3 / TIME_SHARE);
        self.every_ms = saturating_u64(longer).max(pause_ms).min(self.usual_ms);
        self.due_ms = now_ms.max(self.due_ms) + self.every_ms;
        self.earned_ms = now_ms + pause_ms;
        late_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_tick_is_measured_and_does_not_make_the_next_ones_early() {
        let mut ticks = TickSchedule::new(100, 100);
        assert_eq!(ticks.ticked(Duration::ZERO, false, 100), 0);
        assert_eq!(ticks.ticked(Duration::ZERO, false, 350), 150);
        assert_eq!(ticks.due_ms(), 450);
    }

    #[test]
    fn processes_that_come_all_the_time_cause_no_more_ticks_than_are_earned() {
        let mut ticks = TickSchedule::new(2000, 32);
        let mut count = 0;
        for now_ms in 0..10_000 {
            ticks.hasten(now_ms);
            if now_ms >= ticks.due_ms() {
                ticks.ticked(Duration::from_millis(4), false, now_ms);
                count += 1;
            }
        }
        // One each 400 ms: 4 ms are a hundredth of that.
        assert_eq!(count, 25);
    }

    /// Times of the ticks after something began at 10 s, until they have the usual length.
    fn times(first_ms: u64, took_ms: u64, is_idle: bool) -> Vec<u64> {
        let mut ticks = TickSchedule::new(2000, first_ms);
        ticks.ticked(Duration::ZERO, true, 9_999);
        ticks.hasten(10_000);
        let mut times = Vec::new();
        while times.is_empty() || ticks.every_ms() < 2000 {
            let now_ms = ticks.due_ms();
            times.push(now_ms - 10_000);
            ticks.ticked(Duration::from_millis(took_ms), is_idle, now_ms);
        }
        times
    }

    #[test]
    fn first_ticks_are_short_and_lengthen() {
        assert_eq!(times(32, 0, true), [32, 96, 224, 480, 992, 2016]);
        let open = times(32, 0, false);
        assert_eq!((open[0], open[4], open.len()), (32, 170, 94));
        assert!((40_000..43_000).contains(open.last().unwrap()), "{open:?}");
        // Ticks of 5 ms take their hundredth of a CPU, and with 0 all are equally long.
        assert_eq!(times(32, 5, true), [32, 532, 1532]);
        assert_eq!(times(0, 0, true), [1999]);
    }
}
