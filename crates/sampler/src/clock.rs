//! The kernel clocks sampling needs.
//! In: nothing. Out: nanoseconds. Knows nothing of the daemon's clock, which comes in as an
//! argument.

use std::time::Duration;
use tiercel_machine::number::whole_ns;

/// Nanoseconds of CLOCK_MONOTONIC, the clock perf events are asked to use.
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// What the daemon's clock showed at `then_ns`, microseconds, where it shows `now_ms` at `now_ns`.
pub fn daemon_us(now_ms: u64, now_ns: u64, then_ns: u64) -> u64 {
    (now_ms * 1000).saturating_sub(now_ns.saturating_sub(then_ns) / 1000)
}

/// CPU time this thread has used.
pub fn thread_cpu() -> Duration {
    Duration::from_nanos(read(libc::CLOCK_THREAD_CPUTIME_ID))
}

/// CPU time all threads of a process have used; none of one that is gone.
pub fn process_cpu(pid: u32) -> Option<Duration> {
    let pid = i32::try_from(pid).ok()?;
    const SCHED: i32 = 2; // CPUCLOCK_SCHED of a whole process: while it runs, as of the last tick.
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the call to fill; nothing is kept.
    let failed = unsafe { libc::clock_gettime(!pid << 3 | SCHED, &mut time) };
    (failed == 0).then(|| duration(&time))
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the call to fill; nothing is kept.
    let failed = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(failed, 0, "such clocks exist on every Linux");
    whole_ns(duration(&time))
}

/// A time that the kernel gave: never negative, with less than a second of nanoseconds.
fn duration(time: &libc::timespec) -> Duration {
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
