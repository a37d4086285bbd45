// SPDX-License-Identifier: GPL-2.0-or-later
//! The guest's time, from the times of its virtual CPUs.
//! In: counters of virtual CPUs, who runs and who idles. Out: nanoseconds that never go back.
//! Knows nothing of QEMU.
//!
//! A virtual CPU's time is its offset plus its counter of picoseconds. Time is the least of the
//! running ones; while all idle it stands still until it is warped.
//!
//! So a CPU that reads the time while others are behind would get less than has passed for it. It
//! therefore waits for them ([`Clock::wait`]), unless they cannot go on without it.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU64, Ordering};

/// Virtual CPUs of a guest, at most.
pub const MAX_VCPUS: usize = 64;

/// Picoseconds of a nanosecond.
const PS_PER_NS: i64 = 1000;

/// Steps that a virtual CPU waits for one that does not get any further because it waits itself,
/// perhaps for the first one.
const STUCK_STEPS: usize = 12;
/// Steps that it waits at all; a virtual CPU whose thread the host stopped must not stop the others
/// for ever. With the steps of `time` that is some seconds of the host.
const WAIT_STEPS: usize = 5_000;

/// One virtual CPU's share of the clock.
struct Slot {
    /// Picoseconds it has computed and stalled; written by its own thread only.
    counter: AtomicPtr<AtomicU64>,
    offset_ps: AtomicI64,
    running: AtomicBool,
}

/// All of them.
pub struct Clock {
    slots: [Slot; MAX_VCPUS],
    /// The latest time that any CPU read, picoseconds.
    last_ps: AtomicI64,
}

static ZERO: AtomicU64 = AtomicU64::new(0);

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}

impl Clock {
    /// Time 0, no CPU runs.
    pub const fn new() -> Clock {
        Clock { slots: [const { Slot::new() }; MAX_VCPUS], last_ps: AtomicI64::new(0) }
    }

    /// A virtual CPU counts its picoseconds there.
    pub fn attach(&self, vcpu: usize, counter: &'static AtomicU64) {
        self.slots[vcpu].counter.store((&raw const *counter).cast_mut(), Ordering::Release);
    }

    /// A virtual CPU begins to run, now.
    pub fn resume(&self, vcpu: usize) {
        let now = self.now_ps();
        let slot = &self.slots[vcpu];
        slot.offset_ps.store(now - slot.counted(), Ordering::Release);
        slot.running.store(true, Ordering::Release);
    }

    /// A virtual CPU has nothing to do. The last one to idle takes time with it.
    pub fn idle(&self, vcpu: usize) {
        let slot = &self.slots[vcpu];
        let own = slot.time_ps();
        slot.running.store(false, Ordering::Release);
        if !self.is_running() {
            self.last_ps.fetch_max(own, Ordering::AcqRel);
        }
    }

    /// Whether any virtual CPU runs.
    pub fn is_running(&self) -> bool {
        self.slots.iter().any(|slot| slot.running.load(Ordering::Acquire))
    }

    /// Picoseconds since the guest's start.
    pub fn now_ps(&self) -> i64 {
        let least = self.running().map(Slot::time_ps).min();
        let now = least.unwrap_or_else(|| self.last_ps.load(Ordering::Acquire));
        self.last_ps.fetch_max(now, Ordering::AcqRel).max(now)
    }

    /// Nanoseconds since the guest's start.
    pub fn now_ns(&self) -> i64 {
        self.now_ps() / PS_PER_NS
    }

    /// A virtual CPU's own time, picoseconds; what its accesses happen at.
    pub fn time_ps(&self, vcpu: usize) -> i64 {
        self.slots[vcpu].time_ps()
    }

    /// Lets others catch up with a virtual CPU until it is ahead by `lead_ps` at most. It gives up
    /// on one that stays where it is while its thread `sleeps`: that one may wait for this one.
    /// `pause` is a step of waiting, counted from 0.
    pub fn wait(
        &self,
        vcpu: usize,
        lead_ps: i64,
        sleeps: impl Fn(usize) -> bool,
        mut pause: impl FnMut(usize),
    ) {
        let (mut seen, mut stuck) = (None, 0);
        for step in 0..WAIT_STEPS {
            let last = self.last(vcpu);
            let Some((other, time_ps)) = last else { return };
            if self.time_ps(vcpu) - time_ps <= lead_ps {
                return;
            }
            // Asking the host about a thread is dear: only of one that did not get any further.
            stuck = if seen == last && sleeps(other) { stuck + 1 } else { 0 };
            if stuck == STUCK_STEPS {
                return;
            }
            seen = last;
            pause(step);
        }
    }

    /// Jumps forward while no CPU runs.
    pub fn warp_ns(&self, by_ns: i64) {
        self.last_ps.fetch_add(by_ns.max(0) * PS_PER_NS, Ordering::AcqRel);
    }

    fn running(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| slot.running.load(Ordering::Acquire))
    }

    /// Of the others that run the slowest, and its time.
    fn last(&self, vcpu: usize) -> Option<(usize, i64)> {
        let others = self.slots.iter().enumerate().filter(|(other, _)| *other != vcpu);
        let running = others.filter(|(_, slot)| slot.running.load(Ordering::Acquire));
        running.map(|(other, slot)| (other, slot.time_ps())).min_by_key(|(_, time_ps)| *time_ps)
    }
}

impl Slot {
    const fn new() -> Slot {
        Slot {
            counter: AtomicPtr::new((&raw const ZERO).cast_mut()),
            offset_ps: AtomicI64::new(0),
            running: AtomicBool::new(false),
        }
    }

    fn counted(&self) -> i64 {
        // SAFETY: points to ZERO or to what `attach` got, both of which live forever.
        let counter = unsafe { &*self.counter.load(Ordering::Acquire) };
        counter.load(Ordering::Relaxed).cast_signed()
    }

    fn time_ps(&self) -> i64 {
        self.offset_ps.load(Ordering::Acquire) + self.counted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter() -> &'static AtomicU64 {
        Box::leak(Box::default())
    }

    /// How far the first virtual CPU is ahead of the second one, picoseconds.
    fn lead_ps(clock: &Clock) -> i64 {
        clock.time_ps(0) - clock.time_ps(1)
    }

    #[test]
    fn time_is_that_of_the_slowest_running_one() {
        let clock = Clock::new();
        let counters = [counter(), counter()];
        for (vcpu, counter) in counters.iter().enumerate() {
            clock.attach(vcpu, counter);
            clock.resume(vcpu);
        }
        counters[0].store(9_000, Ordering::Relaxed);
        assert_eq!(clock.now_ns(), 0);
        assert_eq!(lead_ps(&clock), 9_000);
        counters[1].store(4_000, Ordering::Relaxed);
        assert_eq!(clock.now_ns(), 4);
        clock.idle(1);
        assert_eq!(clock.now_ns(), 9);
        clock.resume(1);
        assert_eq!(clock.time_ps(1), 9_000, "who wakes up is not in the past");
        assert_eq!(lead_ps(&clock), 0);
    }

    #[test]
    fn idle_time_stands_still_until_it_is_warped() {
        let clock = Clock::new();
        let counter = counter();
        clock.attach(0, counter);
        clock.resume(0);
        counter.store(5_000, Ordering::Relaxed);
        clock.idle(0);
        assert!(!clock.is_running());
        assert_eq!(clock.now_ns(), 5);
        clock.warp_ns(100);
        assert_eq!(clock.now_ns(), 105);
        clock.resume(0);
        counter.store(6_000, Ordering::Relaxed);
        assert_eq!(clock.now_ns(), 106);
    }

    /// Two virtual CPUs, the first 500 us ahead, as when the host let the other one's thread wait.
    fn one_ahead() -> (Clock, [&'static AtomicU64; 2]) {
        let clock = Clock::new();
        let counters = [counter(), counter()];
        for (vcpu, counter) in counters.iter().enumerate() {
            clock.attach(vcpu, counter);
            clock.resume(vcpu);
        }
        counters[0].store(500_000_000, Ordering::Relaxed);
        (clock, counters)
    }

    #[test]
    fn a_cpu_reads_its_own_time_however_far_others_were_behind() {
        let (clock, counters) = one_ahead();
        let catch_up = |_| _ = counters[1].fetch_add(1_000_000, Ordering::Relaxed);
        clock.wait(0, 0, |_| false, catch_up);
        assert_eq!(clock.now_ps(), clock.time_ps(0));
        // It is not held up by who is ahead of it.
        clock.wait(1, 0, |_| unreachable!("none is behind"), |_| unreachable!("no need to wait"));
    }

    #[test]
    fn one_whose_thread_the_host_lets_wait_is_waited_for_and_one_that_sleeps_is_not() {
        let (clock, counters) = one_ahead();
        let mut steps = 0;
        let late = |step| {
            assert_eq!(step, steps);
            steps += 1;
            counters[1].fetch_add(if steps > 1000 { 500_000_000 } else { 0 }, Ordering::Relaxed);
        };
        clock.wait(0, 20_000_000, |_| false, late);
        assert_eq!((lead_ps(&clock), steps), (0, 1001));
        let (clock, _) = one_ahead();
        let mut steps = 0;
        clock.wait(0, 0, |vcpu| vcpu == 1, |_| steps += 1);
        assert_eq!(steps, STUCK_STEPS);
        let mut steps = 0;
        clock.wait(0, 0, |_| false, |_| steps += 1);
        assert_eq!(steps, WAIT_STEPS, "not for ever");
    }

    #[test]
    fn time_never_goes_back() {
        let clock = Clock::new();
        let (fast, slow) = (counter(), counter());
        clock.attach(0, fast);
        clock.attach(1, slow);
        clock.resume(0);
        fast.store(50_000, Ordering::Relaxed);
        assert_eq!(clock.now_ns(), 50);
        clock.resume(1);
        slow.store(1, Ordering::Relaxed);
        assert_eq!(clock.now_ns(), 50);
    }
}
