// SPDX-License-Identifier: GPL-2.0-or-later
//! The guest's time, as QEMU asks for it, and its timers.
//! In: virtual CPUs that run, idle, end a quantum. Out: the clock in QEMU's place, timers run when
//! they are due. Knows nothing of what makes time pass.
//!
//! QEMU's own call for plugins that control time does not move it under TCG (10.0: no accelerator
//! sets the hook it needs). So the plugin puts its clock into the accelerator's table of
//! operations, after checking that the table looks as it should.
//!
//! Timers run on virtual CPUs at the end of a quantum, or on the warp thread while all idle, never
//! on QEMU's main loop: that one reads the time at which they last ran, so that it never finds a
//! timer due. What the guest sees then depends on its own progress only, not on the host's.

use std::cell::Cell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Clock;
use crate::{ffi, thread};

/// All virtual CPUs' time.
pub static CLOCK: Clock = Clock::new();

/// Virtual CPUs are apart by little more than this, picoseconds.
pub const QUANTUM_PS: u64 = 20_000_000;

/// A virtual CPU that is ahead waits in steps, the first ones as short as this. Exclusive sections
/// of others, which wait for it, are held up by some of these steps ([`Clock::wait`]).
const WAIT_STEP: Duration = Duration::from_micros(20);
/// Steps of one length; then they are twice as long, up to 32 times: who waits that long waits for
/// the host's scheduler, and would only take time from what it waits for.
const EQUAL_STEPS: usize = 8;
const DOUBLINGS_MAX: usize = 5;

/// Picoseconds of a tick of the guest's time-stamp counter: 2 GHz.
const TICK_PS: i64 = 500;
const PS_PER_NS: i64 = 1000;

/// The accelerator's table: words that are searched, from the object's head on.
const TABLE_WORDS: usize = 32;
/// Get the virtual clock, set it, get the elapsed ticks.
const CLOCK_SLOTS: usize = 3;

/// Who waits for timers while all virtual CPUs idle looks at least so often.
const IDLE_LOOK: Duration = Duration::from_millis(10);

static IDLE: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());
/// The time at which timers last ran, picoseconds.
static REPORTED_PS: AtomicI64 = AtomicI64::new(0);
static RAN_PS: AtomicI64 = AtomicI64::new(0);

thread_local! {
    /// Set on the thread that runs timers while all virtual CPUs idle.
    static WARPS: Cell<bool> = const { Cell::new(false) };
}

/// Puts the plugin's clock into the accelerator's table, or ends QEMU with a reason.
pub fn take_over() {
    static NAME: &CStr = c"tcg-accel-ops";
    // SAFETY: the class lives for ever once the accelerator is chosen, which it is when a virtual
    // CPU exists; its table follows the object's head and is longer than what is searched.
    let found = unsafe {
        let table = ffi::object_class_by_name(NAME.as_ptr()).cast::<usize>();
        let mark = ffi::tcg_handle_interrupt as *const () as usize;
        let word = |i: usize| *table.add(i);
        let empty = |i: usize| (1..=CLOCK_SLOTS).all(|slot| word(i + slot) == 0);
        let last = TABLE_WORDS - CLOCK_SLOTS;
        let at =
            (!table.is_null()).then(|| (0..last).find(|&i| word(i) == mark && empty(i))).flatten();
        if let Some(at) = at {
            *table.add(at + 1) = get_clock as *const () as usize;
            *table.add(at + 2) = set_clock as *const () as usize;
            *table.add(at + 3) = get_ticks as *const () as usize;
        }
        at.is_some()
    };
    if !found {
        crate::fatal::give_up("this QEMU's accelerator table is not that of QEMU 10.0");
    }
}

/// Starts the thread that lets time jump while all virtual CPUs idle.
pub fn start_warping() -> std::io::Result<()> {
    std::thread::Builder::new().name("warp".to_owned()).spawn(warp).map(|_| ())
}

/// The guest's clock when a virtual CPU last ended a quantum or idled, nanoseconds: at the end, how
/// long the guest ran. After power-off it idles until the host gets to it.
pub fn ran_ns() -> i64 {
    RAN_PS.load(Ordering::Acquire) / PS_PER_NS
}

/// A virtual CPU has nothing to do.
pub fn idle(vcpu: usize) {
    RAN_PS.fetch_max(CLOCK.time_ps(vcpu), Ordering::AcqRel);
    CLOCK.idle(vcpu);
    if !CLOCK.is_running() {
        let mut idle = IDLE.0.lock().unwrap_or_else(PoisonError::into_inner);
        *idle = true;
        IDLE.1.notify_one();
    }
}

/// Before a virtual CPU reads the time: what it reads shall be its own.
pub fn read(vcpu: usize) {
    CLOCK.wait(vcpu, 0, thread::sleeps, pause);
}

/// Once a quantum: lets the others catch up, runs timers that are due.
pub fn end_quantum(vcpu: usize) {
    CLOCK.wait(vcpu, QUANTUM_PS.cast_signed(), thread::sleeps, pause);
    let now_ps = CLOCK.now_ps();
    // SAFETY: QEMU's calls; this thread does not hold the lock while it executes a block.
    unsafe {
        if ffi::qemu_clock_deadline_ns_all(ffi::CLOCK_VIRTUAL, ffi::ALL_TIMERS) == 0 {
            ffi::bql_lock_impl(c"tiercel".as_ptr(), 0);
            ffi::qemu_clock_run_timers(ffi::CLOCK_VIRTUAL);
            ffi::bql_unlock();
        }
    }
    REPORTED_PS.fetch_max(now_ps, Ordering::AcqRel);
    RAN_PS.fetch_max(now_ps, Ordering::AcqRel);
}

/// One step of waiting for others.
fn pause(step: usize) {
    std::thread::sleep(WAIT_STEP * (1 << (step / EQUAL_STEPS).min(DOUBLINGS_MAX)));
}

/// The time that the calling thread may know.
fn visible_ps() -> i64 {
    // SAFETY: the call reads a variable of the thread.
    if WARPS.get() || unsafe { ffi::qemu_in_vcpu_thread() } {
        CLOCK.now_ps()
    } else {
        REPORTED_PS.load(Ordering::Acquire)
    }
}

extern "C" fn get_clock() -> i64 {
    visible_ps() / PS_PER_NS
}

extern "C" fn set_clock(now_ns: i64) {
    if !CLOCK.is_running() {
        CLOCK.warp_ns(now_ns - CLOCK.now_ns());
    }
}

extern "C" fn get_ticks() -> i64 {
    visible_ps() / TICK_PS
}

/// A thread of its own: while all virtual CPUs idle, time jumps to the next timer.
fn warp() {
    WARPS.set(true);
    // SAFETY: once, at the thread's start; timers read QEMU's lists under RCU.
    unsafe { ffi::rcu_register_thread() };
    loop {
        let idle = IDLE.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut idle, _) = IDLE
            .1
            .wait_timeout_while(idle, IDLE_LOOK, |idle| !*idle)
            .unwrap_or_else(PoisonError::into_inner);
        *idle = false;
        drop(idle);
        while !CLOCK.is_running() && warp_once() {}
    }
}

/// Runs the next timers of an idle guest; false when there are none, or it is not idle.
fn warp_once() -> bool {
    // SAFETY: QEMU's calls, under the lock they need, which this thread does not hold yet.
    unsafe {
        ffi::bql_lock_impl(c"tiercel".as_ptr(), 0);
        let idle = ffi::all_cpu_threads_idle() && !CLOCK.is_running();
        let deadline = ffi::qemu_clock_deadline_ns_all(ffi::CLOCK_VIRTUAL, ffi::ALL_TIMERS);
        let go = idle && deadline >= 0;
        if go {
            CLOCK.warp_ns(deadline);
            let now_ps = CLOCK.now_ps();
            ffi::qemu_clock_run_timers(ffi::CLOCK_VIRTUAL);
            REPORTED_PS.fetch_max(now_ps, Ordering::AcqRel);
        }
        ffi::bql_unlock();
        go
    }
}
