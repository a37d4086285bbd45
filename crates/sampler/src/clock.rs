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
