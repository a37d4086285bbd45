//! The clocks sampling needs.
//! In: nothing. Out: nanoseconds. Knows nothing of the daemon's clock, which comes in as an
//! argument.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Between two of the kernel's updates of a running process's CPU time, at most.
const TICK: Duration = Duration::from_millis(10);
/// Time over which it is seen how fast CPU time passes.
const PACE_SPAN: Duration = Duration::from_millis(100);

/// Nanoseconds of CLOCK_MONOTONIC, the clock perf events are asked to use.
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// CPU time this thread has used.
pub fn thread_cpu() -> Duration {
    Duration::from_nanos(read(libc::CLOCK_THREAD_CPUTIME_ID))
}

/// CPU time of another process, also between the kernel's updates.
///
/// What the kernel tells of a process that runs is as old as the last tick (4 ms at 250 Hz) or
/// change of threads, and windows are much shorter. So it is taken to go on at the pace of late, by
/// a tick at most.
#[derive(Debug)]
pub struct ProcessClock {
    pid: u32,
    last: Cell<Reading>,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    /// As judged, and when.
    cpu: Duration,
    at: Instant,
    /// CPU time that passes in a time, and what the kernel told when that was seen.
    pace: f64,
    told: Duration,
    told_at: Instant,
}

impl ProcessClock {
    /// Of a process that may be gone.
    pub fn new(pid: u32) -> ProcessClock {
        let (cpu, now) = (process_cpu(pid).unwrap_or_default(), Instant::now());
        let last = Reading { cpu, at: now, pace: 1.0, told: cpu, told_at: now };
        ProcessClock { pid, last: last.into() }
    }

    /// Whose it is.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// CPU time all threads have used; none of a process that is gone.
    pub fn now(&self) -> Option<Duration> {
        let next = self.last.get().next(process_cpu(self.pid)?, Instant::now());
        self.last.set(next);
        Some(next.cpu)
    }
}

impl Reading {
    fn next(mut self, told: Duration, now: Instant) -> Reading {
        let span = now - self.told_at;
        if span >= PACE_SPAN {
            let passed = told.saturating_sub(self.told);
            self.pace = passed.as_secs_f64() / span.as_secs_f64();
            (self.told, self.told_at) = (told, now);
        }
        let goes_on = self.cpu + (now - self.at).mul_f64(self.pace);
        let most = (told + TICK.mul_f64(self.pace.max(1.0))).max(self.cpu);
        (self.cpu, self.at) = (goes_on.clamp(told, most.max(told)), now);
        self
    }
}

/// CPU time all threads of a process have used, by the kernel's last update; none of one that is
/// gone.
fn process_cpu(pid: u32) -> Option<Duration> {
    const SCHED: i32 = 2; // CPUCLOCK_SCHED of a whole process.
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the call to fill; nothing is kept.
    let failed = unsafe { libc::clock_gettime(!(pid as i32) << 3 | SCHED, &mut time) };
    (failed == 0).then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the call to fill; nothing is kept.
    let failed = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(failed, 0, "such clocks exist on every Linux");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn start() -> Reading {
        let at = Instant::now();
        Reading { cpu: MS, at, pace: 1.0, told: MS, told_at: at }
    }

    #[test]
    fn it_goes_on_between_ticks() {
        let first = start();
        let later = first.next(MS, first.at + MS / 10);
        assert_eq!(later.cpu, MS + MS / 10);
        // The tick tells no more than what was judged already, and then more.
        assert_eq!(later.next(MS, later.at + MS).cpu, MS * 2 + MS / 10);
        assert_eq!(later.next(MS * 5, later.at + MS).cpu, MS * 5);
    }

    #[test]
    fn one_that_waits_stands_still() {
        let first = start();
        let later = first.next(MS, first.at + 50 * MS);
        assert_eq!(later.cpu, MS + TICK, "by then a tick would have told");
        let waits = later.next(MS, first.at + 100 * MS);
        assert_eq!((waits.cpu, waits.pace), (later.cpu, 0.0));
        assert_eq!(waits.next(MS, first.at + 101 * MS).cpu, later.cpu);
    }

    #[test]
    fn many_threads_pass_it_faster() {
        let first = start();
        let later = first.next(401 * MS, first.at + 100 * MS);
        assert_eq!(later.pace, 4.0);
        assert_eq!(later.next(401 * MS, later.at + MS).cpu, 405 * MS);
    }
}
