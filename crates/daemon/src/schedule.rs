//! When drains and ticks are due, and how long costly work pauses.
//! In: the time, how full the rings were, how long draining took. Out: due times.
//! Knows nothing of what is drained or decided.

use crate::config::DaemonConfig;
use crate::net::socket_dir::Access;
use std::time::Duration;
use tiercel_machine::number::saturating_u64;
use tiercel_policy::TickSchedule;
use tiercel_wire::layout::RING_RECORDS;

/// Longest the loop sleeps when nothing is due, milliseconds. Nothing depends on it but how late
/// connections that never sent a hello are closed (after 2 s, give or take this).
const IDLE_MS: u64 = 500;

/// Records in a ring at which the next drain comes sooner: at a quarter, a ring that fills four
/// times as fast as in the last interval still does not overflow.
const RING_QUARTER: usize = RING_RECORDS / 4;

/// Share of wall time that draining records may take: an eighth of a CPU. What is lost beyond it a
/// resync heals.
const DRAIN_TIME_SHARE: f64 = 1.0 / 8.0;

/// The same while there is more to do than fits a turn, where all users are served: what floods
/// the loop must not take a CPU of the machine's. On a busy machine a turn lasts longer than it
/// works, and the pause after it with it: a thread that asks for more than its share of the CPUs
/// waits for them, and all that wait for the loop with it.
const FLOOD_TIME_SHARE: f64 = 0.5;

/// Due times on the daemon's clock, milliseconds.
#[derive(Debug)]
pub(crate) struct Schedule {
    ticks: TickSchedule,
    /// Shortest and longest time between two drains.
    drain_bounds_ms: (u64, u64),
    drain_every_ms: u64,
    drain_due_ms: u64,
    /// Share of wall time for turns that leave something to do.
    flood_share: f64,
}

impl Schedule {
    pub(crate) fn new(config: &DaemonConfig) -> Schedule {
        Schedule {
            ticks: TickSchedule::new(config.tick_ms, config.first_tick_ms),
            drain_bounds_ms: (config.poll_min_ms, config.poll_max_ms),
            drain_every_ms: config.poll_max_ms,
            drain_due_ms: 0,
            flood_share: match config.access {
                Access::Owner => 1.0,
                Access::AllUsers => FLOOD_TIME_SHARE,
            },
        }
    }

    /// How long the loop may sleep if nothing happens. Without work nothing is drained; a tick that
    /// has begun goes on with the drains.
    pub(crate) fn poll_timeout(&self, now_ms: u64, has_work: bool, is_ticking: bool) -> Duration {
        let mut due_ms = now_ms + IDLE_MS;
        if !is_ticking {
            due_ms = due_ms.min(self.ticks.due_ms());
        }
        if has_work {
            due_ms = due_ms.min(self.drain_due_ms);
        }
        Duration::from_millis(due_ms.saturating_sub(now_ms))
    }

    pub(crate) fn is_drain_due(&self, now_ms: u64) -> bool {
        now_ms >= self.drain_due_ms
    }

    pub(crate) fn is_tick_due(&self, now_ms: u64) -> bool {
        now_ms >= self.ticks.due_ms()
    }

    /// Whether a tick is late by half of a usual one: what it waited for then waits for it.
    pub(crate) fn is_tick_overdue(&self, now_ms: u64) -> bool {
        self.ticks.is_overdue(now_ms)
    }

    /// What was begun goes on as soon as others were served.
    pub(crate) fn drain_now(&mut self, now_ms: u64) {
        self.drain_due_ms = now_ms;
    }

    /// A client came: its rings are drained soon.
    pub(crate) fn drain_soon(&mut self, now_ms: u64) {
        self.drain_due_ms = self.drain_due_ms.min(now_ms + self.drain_bounds_ms.0);
    }

    /// The sampler wants to be drained at this time.
    pub(crate) fn drain_by(&mut self, due_ms: u64) {
        self.drain_due_ms = self.drain_due_ms.min(due_ms);
    }

    /// A turn that began and ended then took `fullest` records of one client at most, within
    /// `took_ns` of CPU time. With `has_more` it left something to do.
    pub(crate) fn drained(
        &mut self,
        fullest: usize,
        has_more: bool,
        took_ns: u64,
        (began_ms, now_ms): (u64, u64),
    ) {
        let every_ms = drain_pause_ms(self.drain_every_ms, fullest, took_ns, self.drain_bounds_ms);
        self.drain_every_ms = every_ms;
        let lasted = Duration::from_millis(now_ms.saturating_sub(began_ms));
        let took = lasted.max(Duration::from_nanos(took_ns));
        let flood_ms = pause_ms(took, self.flood_share) - pause_ms(took, 1.0);
        self.drain_due_ms = now_ms + if has_more { flood_ms } else { every_ms };
    }

    /// Something began of which nothing is known: ticks are short again, as far as that was earned.
    pub(crate) fn hasten(&mut self, now_ms: u64) {
        self.ticks.hasten(now_ms);
    }

    /// Time from the last tick to the next, milliseconds.
    pub(crate) fn tick_every_ms(&self) -> u64 {
        self.ticks.every_ms()
    }

    /// A tick ended its interval and took so long; returns how late it was, milliseconds.
    pub(crate) fn ticked(&mut self, took: Duration, is_idle: bool, now_ms: u64) -> u64 {
        self.ticks.ticked(took, is_idle, now_ms)
    }
}

/// Milliseconds to pause after work that took so long, so that it takes at most `share` of wall
/// time.
pub(crate) fn pause_ms(took: Duration, share: f64) -> u64 {
    saturating_u64(took.as_secs_f64() * 1e3 / share)
}

/// The same for work that may follow itself at once if it takes less than a millisecond: it is
/// done at an event that is rare (a tick, a request, the end of a client).
pub(crate) fn pause_of_long_work_ms(took: Duration, share: f64) -> u64 {
    pause_ms(Duration::from_millis(took.as_secs() * 1000 + u64::from(took.subsec_millis())), share)
}

/// Time to the next drain: sooner in proportion when rings fill, a quarter later when they do not.
/// A ring must not overflow between two drains, an idle daemon must cost nothing that can be
/// measured, and a flood of records (100 ns each) must not take more than [`DRAIN_TIME_SHARE`].
fn drain_pause_ms(
    every_ms: u64,
    fullest: usize,
    took_ns: u64,
    (shortest, longest): (u64, u64),
) -> u64 {
    let every_ms = if fullest > RING_QUARTER {
        every_ms * RING_QUARTER as u64 / fullest as u64
    } else if fullest < RING_QUARTER / 4 {
        every_ms + every_ms / 4 + 1
    } else {
        every_ms
    };
    let earned_ms = pause_ms(Duration::from_nanos(took_ns), DRAIN_TIME_SHARE);
    every_ms.max(earned_ms).clamp(shortest, longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drains_follow_the_fullest_ring_within_their_share_of_the_time() {
        let check = |every_ms, fullest, took_us: u64, expect| {
            assert_eq!(drain_pause_ms(every_ms, fullest, took_us * 1000, (4, 100)), expect);
        };
        check(100, 0, 10, 100);
        check(100, 4 * RING_QUARTER, 400, 25);
        check(100, 64 * RING_QUARTER, 400, 4);
        check(4, 4 * RING_QUARTER, 400, 4);
        check(4, 4 * RING_QUARTER, 3_000, 24);
        check(4, 4 * RING_QUARTER, 900_000, 100);
        check(40, RING_QUARTER / 2, 10, 40);
        check(40, 10, 10, 51);
    }

    #[test]
    fn what_floods_a_daemon_for_all_gets_half_of_the_time() {
        let due = |access| {
            let mut config = DaemonConfig::new(&crate::Settings::default()).unwrap();
            config.access = access;
            let mut schedule = Schedule::new(&config);
            let mut due = Vec::new();
            for (began_ms, last_ms) in [(100, 102), (93, 106)] {
                schedule.drained(4096, true, 3_000_000, (began_ms, 100));
                due.extend([100, last_ms, last_ms + 1].map(|now_ms| schedule.is_drain_due(now_ms)));
            }
            due
        };
        assert_eq!(due(Access::Owner), [true; 6]);
        // Of the time that passes, not only of what it works.
        assert_eq!(due(Access::AllUsers), [false, false, true, false, false, true]);
    }

    #[test]
    fn while_a_tick_waits_for_drains_the_loop_sleeps_until_they_are_due() {
        let mut config = DaemonConfig::new(&crate::Settings::default()).unwrap();
        config.access = Access::AllUsers;
        let mut schedule = Schedule::new(&DaemonConfig { tick_ms: 100, ..config });
        schedule.drained(4096, true, 5_000_000, (100, 100));
        let sleeps = |is_ticking| schedule.poll_timeout(101, true, is_ticking).as_millis();
        assert_eq!((sleeps(false), sleeps(true)), (0, 4));
    }

    #[test]
    fn a_tick_that_is_late_by_half_of_one_goes_first() {
        let config = DaemonConfig::new(&crate::config::Settings::default()).unwrap();
        let config = DaemonConfig { tick_ms: 100, first_tick_ms: 8, ..config };
        let mut schedule = Schedule::new(&config);
        assert!(!schedule.is_tick_overdue(149) && schedule.is_tick_overdue(150));
        schedule.ticked(Duration::ZERO, true, 160);
        assert!(!schedule.is_tick_overdue(160), "the next one is not due");
        schedule.hasten(170);
        assert!(!schedule.is_tick_overdue(227) && schedule.is_tick_overdue(228));
    }

    #[test]
    fn work_and_its_pause_keep_the_share() {
        assert_eq!(pause_ms(Duration::from_millis(5), 0.01), 500);
        assert_eq!(pause_ms(Duration::from_micros(100), 0.01), 10);
        assert_eq!(pause_of_long_work_ms(Duration::from_micros(999), 0.05), 0);
        assert_eq!(pause_of_long_work_ms(Duration::from_micros(3_999), 0.05), 60);
    }
}
