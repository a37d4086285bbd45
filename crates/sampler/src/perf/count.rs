//! Counts misses and instructions of a process and of threads that it starts later. In: threads.
//! Out: the counts since the last read. Knows nothing of sampling.

use std::os::fd::OwnedFd;

use super::attr::{self, Attr, flag};
use crate::Counters;

// PERF_TYPE_HARDWARE, PERF_COUNT_HW_* of linux/perf_event.h.
const TYPE_HARDWARE: u32 = 0;
const INSTRUCTIONS: u64 = 1;
const CACHE_MISSES: u64 = 3;

/// True when this machine can count both.
pub fn works() -> bool {
    [INSTRUCTIONS, CACHE_MISSES].iter().all(|event| attr::open(&counter(*event), 0, -1).is_ok())
}

/// The counters of one thread, including the threads that it starts.
pub struct Pair {
    instructions: Counter,
    misses: Counter,
}

impl Pair {
    /// `None` when the thread has ended or the kernel refuses; it is then not counted.
    pub fn open(tid: i32) -> Option<Pair> {
        let open = |event| attr::open(&counter(event), tid, -1).ok();
        let fresh = |fd| Counter { fd, last: 0 };
        Some(Pair { instructions: fresh(open(INSTRUCTIONS)?), misses: fresh(open(CACHE_MISSES)?) })
    }

    /// Adds the counts since the last call.
    pub fn add_to(&mut self, sum: &mut Counters) {
        sum.instructions += self.instructions.since();
        sum.llc_misses += self.misses.since();
    }
}

struct Counter {
    fd: OwnedFd,
    last: u64,
}

impl Counter {
    fn since(&mut self) -> u64 {
        let Ok(now) = attr::read_count(&self.fd) else { return 0 };
        let since = now.saturating_sub(self.last);
        self.last = now;
        since
    }
}

fn counter(event: u64) -> Attr {
    let mut attr = Attr::user_mode(TYPE_HARDWARE, event);
    attr.flags |= flag::INHERIT | flag::INHERIT_THREAD;
    attr
}
