//! When tiers are assigned anew (MAT 3.4.3).
//! In: the interval's counters. Out: whether to assign now, and why, as text for users.
//! Knows nothing of extents.

use std::collections::VecDeque;

use tiercel_machine::format_bytes;

use crate::decision::Problem;
use crate::interval::Interval;
use crate::routine::{Llcmpi, Time, Trigger};

/// A tick may come a little sooner than its length says, as others came late.
const EARLY: f64 = 0.05;

/// What a trigger remembers between ticks.
#[derive(Debug, Default)]
pub(crate) struct TriggerState {
    /// Since the last assignment, in ticks of the usual length.
    ticks: f64,
    /// How long the last assignment waited, in ticks; 0: there was none.
    waited: f64,
    allocated_bytes: u64,
    /// Misses per instruction of the latest intervals, the newest last.
    llcmpi: VecDeque<f64>,
}

/// A trigger's verdict.
pub(crate) struct Verdict {
    pub(crate) fires: bool,
    pub(crate) why: String,
    pub(crate) problem: Option<Problem>,
}

impl TriggerState {
    /// `ticks`: how many of the usual length the interval was; `has_evidence`: enough is known for
    /// a first assignment.
    pub(crate) fn tick(
        &mut self,
        trigger: &Trigger,
        interval: &Interval,
        (ticks, has_evidence): (f64, bool),
    ) -> Verdict {
        self.ticks += ticks;
        self.allocated_bytes += interval.allocated_bytes;
        let verdict = match trigger {
            Trigger::Time(time) => self.time(self.due_ticks(time, has_evidence)),
            Trigger::Llcmpi(llcmpi) => self.llcmpi(llcmpi, interval),
            Trigger::Allocation(allocation) => self.allocation(allocation.bytes),
            Trigger::Never => verdict(false, "trigger never".to_owned()),
        };
        if verdict.fires {
            (self.waited, self.ticks) = (self.ticks, 0.0);
            self.allocated_bytes = 0;
        }
        verdict
    }

    /// Ticks from the last assignment to the next: twice as many as to the last, and at most
    /// `time.ticks`; with 1 each tick assigns, however short it is. The first one comes as soon as
    /// there is evidence for it, unless all wait equally long.
    fn due_ticks(&self, time: &Time, has_evidence: bool) -> f64 {
        let (first, most) = (f64::from(time.first), f64::from(time.ticks));
        match self.waited {
            _ if time.ticks == 1 => 0.0,
            0.0 if has_evidence && first < most => 0.0,
            0.0 => first.min(most),
            waited => (waited * 2.0).min(most),
        }
    }

    fn time(&self, ticks: f64) -> Verdict {
        let is_due = self.ticks + EARLY >= ticks;
        verdict(is_due, format!("tick {:.1} of {ticks:.1}", self.ticks))
    }

    fn allocation(&self, bytes: u64) -> Verdict {
        let (have, want) = (format_bytes(self.allocated_bytes), format_bytes(bytes));
        verdict(self.allocated_bytes >= bytes, format!("{have} of {want} allocated"))
    }

    fn llcmpi(&mut self, llcmpi: &Llcmpi, interval: &Interval) -> Verdict {
        let (Some(misses), Some(instructions)) = (interval.llc_misses, interval.instructions)
        else {
            // A trigger that can never fire would look like a policy with nothing to do.
            let instead_ticks = Time::default().ticks;
            let verdict = self.time(f64::from(instead_ticks));
            return Verdict { problem: Some(Problem::NoCounters { instead_ticks }), ..verdict };
        };
        if instructions == 0 {
            return verdict(false, "no instructions in this interval".to_owned());
        }
        let now = misses as f64 / instructions as f64;
        let known = self.llcmpi.len();
        let mean = self.llcmpi.iter().sum::<f64>() / known as f64;
        self.llcmpi.push_back(now);
        if known < llcmpi.intervals as usize {
            return verdict(false, format!("interval {} of {} before", known, llcmpi.intervals));
        }
        self.llcmpi.pop_front();
        let change = if mean > 0.0 {
            (now - mean).abs() / mean
        } else if now > 0.0 {
            f64::INFINITY
        } else {
            0.0
        };
        let why = format!(
            "misses per instruction {now:.2e}, mean {mean:.2e}, change {change:.2} of {}",
            llcmpi.threshold
        );
        verdict(change > llcmpi.threshold, why)
    }
}

fn verdict(fires: bool, why: String) -> Verdict {
    Verdict { fires, why, problem: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    /// One interval per word: `100` misses in 1000 instructions, `-` without counters, `+100` bytes
    /// allocated. Shows `!` where the trigger fires.
    fn check(trigger: &str, intervals: &str, want: Expect) {
        let trigger: Trigger = trigger.parse().expect("a trigger");
        let mut state = TriggerState::default();
        let shown: String = intervals
            .split_whitespace()
            .map(|word| {
                let allocated_bytes =
                    word.strip_prefix('+').map_or(0, |n| n.parse().expect("bytes"));
                let llc_misses = word.parse().ok().filter(|_| !word.starts_with('+'));
                let instructions = llc_misses.map(|_: u64| 1000);
                let interval = Interval {
                    elapsed_ms: 2000,
                    allocated_bytes,
                    llc_misses,
                    instructions,
                    is_modelled: false,
                };
                let verdict = state.tick(&trigger, &interval, (1.0, false));
                let mark = if verdict.fires { '!' } else { '.' };
                mark.to_string() + if verdict.problem.is_some() { "?" } else { "" }
            })
            .collect();
        want.assert_eq(&shown);
    }

    #[test]
    fn time_fires_every_n_ticks() {
        check("time:first=5", "- - - - - - - - - - -", expect!["....!....!."]);
        check("time", "- - - - - - - - - - - - -", expect!["!.!...!....!."]);
        check("time:ticks=1", "- - -", expect!["!!!"]);
    }

    #[test]
    fn the_first_assignment_comes_with_the_first_evidence() {
        let (trigger, interval) = ("time".parse().expect("a trigger"), Interval::default());
        let mut state = TriggerState::default();
        let mut fired = Vec::new();
        for at in 1..=200 {
            // Ticks of a tenth; evidence from the second on.
            if state.tick(&trigger, &interval, (0.1, at >= 2)).fires {
                fired.push(at);
            }
        }
        assert_eq!(fired, [2, 6, 14, 30, 62, 112, 162]);
    }

    #[test]
    fn one_tick_is_each_tick_however_short() {
        let (trigger, interval) = ("time:ticks=1".parse().expect("a trigger"), Interval::default());
        let mut state = TriggerState::default();
        assert!((0..5).all(|_| state.tick(&trigger, &interval, (0.016, false)).fires));
    }

    #[test]
    fn allocation_counts_since_the_last_assignment() {
        check("allocation:bytes=100", "+40 +59 +1 +99 +1 +250 +0", expect!["..!.!!."]);
    }

    #[test]
    fn llcmpi_compares_with_the_mean_of_the_intervals_before() {
        // Mean of ten is 10; the change must exceed 2, so 29 does not fire and 31 does. Then the
        // mean of the latest ten is (9 x 10 + 31) / 10 = 12.1, and 36 changes it by 1.98, 37 by
        // 2.06.
        check("llcmpi", "10 10 10 10 10 10 10 10 10 10 29", expect!["..........."]);
        check("llcmpi", "10 10 10 10 10 10 10 10 10 10 31 36", expect!["..........!."]);
        check("llcmpi", "10 10 10 10 10 10 10 10 10 10 31 37", expect!["..........!!"]);
        check("llcmpi:threshold=0.5,intervals=2", "10 10 4 10 10", expect!["..!.."]);
        check("llcmpi:intervals=1", "0 0 1", expect!["..!"]);
    }

    #[test]
    fn llcmpi_without_counters_says_so_and_goes_by_time() {
        check("llcmpi", "- - - - - -", expect![".?.?.?.?!?.?"]);
    }

    #[test]
    fn never_never_fires() {
        check("never", "- - - - - - +9999999999", expect!["......."]);
    }
}
