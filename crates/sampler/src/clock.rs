//! The kernel clocks sampling needs.
//! In: nothing. Out: CPU times. Knows nothing of the daemon's clock, which comes in as an argument.

use std::time::Duration;

/// CLOCK_MONOTONIC, the clock that we set for perf events.
pub use tiercel_wire::clock::monotonic_ns;

/// CPU time this thread has used.
pub fn thread_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the call to fill; nothing is kept.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0, "such clocks exist on every Linux");
    duration(&time)
}

/// CPU time that all threads of a process have used; zero once the process is gone.
pub fn process_cpu(pid: u32) -> Option<Duration> {
    let pid = i32::try_from(pid).ok()?;
    const SCHED: i32 = 2; // CPUCLOCK_SCHED of a whole process: while it runs, as of the last tick.
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the call to fill; nothing is kept.
    let failed = unsafe { libc::clock_gettime(!pid << 3 | SCHED, &mut time) };
    (failed == 0).then(|| duration(&time))
}

/// A time from the kernel: never negative, with less than a second of nanoseconds.
fn duration(time: &libc::timespec) -> Duration {
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Sleeps about so long: the kernel may add up to 50 us to other sleeps, to join wake-ups.
pub fn nap(time: Duration) {
    const SLACK_NS: libc::c_ulong = 1_000;
    const USUAL: libc::c_ulong = 0; // As the thread had it at its start.
    // SAFETY: these calls only change how late timers of this thread may be.
    let _ = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NS) };
    std::thread::sleep(time);
    // SAFETY: as above.
    let _ = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, USUAL) };
}
