//! CPU time of the calling thread.
//! In: nothing. Out: nanoseconds. Knows nothing of what they were spent on.
//!
//! Not the wall clock: on a busy machine the daemon waits for its turn in the middle of its work,
//! and parts measured so would add up to more than the whole.

/// CPU time this thread has had, nanoseconds.
pub fn thread_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// CPU time since `began_ns` of the same thread, nanoseconds.
pub fn since_ns(began_ns: u64) -> u64 {
    thread_ns().saturating_sub(began_ns)
}
