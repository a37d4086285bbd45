// SPDX-License-Identifier: GPL-2.0-or-later
//! Joins QEMU, the clock and the model.
//! In: QEMU's callbacks. Out: the guest's time; statistics at exit.
//! Knows nothing of how a stall comes about.
//!
//! QEMU's own call for plugins that control time does not move it under TCG (10.0: no accelerator
//! sets the hook it needs). So the plugin puts its clock into the accelerator's table of
//! operations, after checking that the table looks as it should.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, Once, OnceLock};
use std::time::Duration;

use tiercel_machine::Machine;

use crate::clock::Clock;
use crate::config::{Config, EmulatorError, demand};
use crate::core::{Access, Core, Moment, Place, Shared};
use crate::ffi;
use crate::instruction::{self, Kind};
use crate::stats::Stats;

/// A scoreboard of so many virtual CPUs never moves in QEMU 10; a larger one may.
const MAX_VCPUS: usize = 16;

/// Virtual CPUs are apart by little more than this, picoseconds.
const QUANTUM_PS: u64 = 20_000_000;

/// A virtual CPU that is ahead waits so long, so often at most; exclusive sections of others must
/// not wait for it for ever.
const WAIT_STEP: Duration = Duration::from_micros(20);
const WAIT_STEPS: usize = 25;

/// Picoseconds of a tick of the guest's time-stamp counter: 2 GHz.
const TICK_PS: i64 = 500;

/// The accelerator's table: words that are searched, from the object's head on.
const TABLE_WORDS: usize = 32;
/// Get the virtual clock, set it, get the elapsed ticks.
const CLOCK_SLOTS: usize = 3;

/// Who waits for timers while all virtual CPUs idle looks at least so often.
const IDLE_LOOK: Duration = Duration::from_millis(10);

/// One virtual CPU's part of the scoreboard. Translated code adds to it.
#[repr(C)]
struct Counters {
    busy_ps: AtomicU64,
    since_ps: AtomicU64,
    instructions: AtomicU64,
}

struct State {
    machine: Machine,
    shared: Shared,
    score: *mut c_void,
}

// SAFETY: the scoreboard's address is only handed back to QEMU, which takes it from any thread.
unsafe impl Sync for State {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for State {}

static STATE: OnceLock<State> = OnceLock::new();
/// By virtual CPU, for callbacks that cannot afford a look-up.
static CORES: [AtomicPtr<Core>; MAX_VCPUS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_VCPUS];
static CLOCK: Clock = Clock::new();
/// Whether accesses are timed; otherwise only instructions are, and the guest runs several times
/// faster.
static DETAIL: AtomicBool = AtomicBool::new(false);
static IDLE: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

/// The version of the interface that QEMU checks.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = ffi::PLUGIN_VERSION;

/// QEMU calls this once, with `config=FILE`.
///
/// # Safety
/// QEMU's contract: `info` is valid during the call, `argv` holds `argc` strings that live on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: u64,
    info: *const ffi::Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: the caller's contract.
    let installed = unsafe { install(id, &*info, argc, argv) };
    match installed {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("tiercel emulator: {error}");
            1
        }
    }
}

unsafe fn install(
    id: u64,
    info: &ffi::Info,
    argc: c_int,
    argv: *const *const c_char,
) -> Result<(), EmulatorError> {
    // SAFETY: QEMU hands over `argc` valid strings and a valid name.
    let (arguments, target) = unsafe {
        let text = |at: *const c_char| CStr::from_ptr(at).to_string_lossy().into_owned();
        let arguments: Vec<String> = (0..argc as usize).map(|i| text(*argv.add(i))).collect();
        (arguments, text(info.target_name))
    };
    demand(info.system_emulation && target == "x86_64", "it needs qemu-system-x86_64")?;
    demand(info.version_cur >= ffi::PLUGIN_VERSION, "it needs QEMU 10")?;
    demand(info.max_vcpus as usize <= MAX_VCPUS, "more than 16 virtual CPUs")?;
    let path = arguments.iter().find_map(|a| a.strip_prefix("config="));
    let path = path.ok_or(EmulatorError::Invalid("config=FILE is missing"))?;
    let text = std::fs::read_to_string(path)
        .map_err(|source| EmulatorError::File { path: path.to_owned(), source })?;
    let (config, machine) = Config::parse(&text)?;
    let enough = config.cpu_nodes.len() >= info.max_vcpus as usize;
    demand(enough, "the configuration has fewer virtual CPUs than QEMU")?;
    let vcpus = config.cpu_nodes.len().min(MAX_VCPUS);
    let shared = Shared::new(config, &machine)?;
    for (index, slot) in CORES.iter().enumerate().take(vcpus) {
        slot.store(Box::leak(Box::new(shared.core(index)?)), Ordering::Release);
    }
    // SAFETY: plain registration; the callbacks live as long as the library, which stays loaded.
    unsafe {
        let score = ffi::qemu_plugin_scoreboard_new(size_of::<Counters>());
        let state = State { machine, shared, score };
        demand(STATE.set(state).is_ok(), "it is loaded twice")?;
        ffi::qemu_plugin_register_vcpu_init_cb(id, vcpu_begins);
        ffi::qemu_plugin_register_vcpu_idle_cb(id, vcpu_idles);
        ffi::qemu_plugin_register_vcpu_resume_cb(id, vcpu_resumes);
        ffi::qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
        ffi::qemu_plugin_register_atexit_cb(id, at_exit, std::ptr::null_mut());
    }
    std::thread::Builder::new()
        .name("warp".to_owned())
        .spawn(warp)
        .map_err(EmulatorError::Thread)?;
    Ok(())
}

fn state() -> &'static State {
    STATE.get().expect("callbacks come after installation")
}

fn counters(vcpu: c_uint) -> &'static Counters {
    // SAFETY: QEMU keeps one element for each virtual CPU, zeroed and aligned to 8 bytes, in place
    // for ever below MAX_VCPUS of them.
    unsafe { &*ffi::qemu_plugin_scoreboard_find(state().score, vcpu).cast::<Counters>() }
}

/// Puts the plugin's clock into the accelerator's table, or ends QEMU with a reason.
fn take_over_clock() {
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
        eprintln!(
            "tiercel emulator: this QEMU's accelerator table is not that of QEMU 10.0; the lab's \
             own QEMU is needed"
        );
        std::process::exit(1);
    }
}

extern "C" fn get_clock() -> i64 {
    CLOCK.now_ns()
}

extern "C" fn set_clock(now_ns: i64) {
    if !CLOCK.anybody() {
        CLOCK.warp_ns(now_ns - CLOCK.now_ns());
    }
}

extern "C" fn get_ticks() -> i64 {
    CLOCK.now_ps() / TICK_PS
}

extern "C" fn vcpu_begins(_id: u64, vcpu: c_uint) {
    static TAKEN: Once = Once::new();
    TAKEN.call_once(take_over_clock);
    CLOCK.attach(vcpu as usize, &counters(vcpu).busy_ps);
}

extern "C" fn vcpu_resumes(_id: u64, vcpu: c_uint) {
    CLOCK.resume(vcpu as usize);
}

extern "C" fn vcpu_idles(_id: u64, vcpu: c_uint) {
    CLOCK.idle(vcpu as usize);
    if !CLOCK.anybody() {
        let mut idle = IDLE.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *idle = true;
        IDLE.1.notify_one();
    }
}

/// A thread of its own: while all virtual CPUs idle, time jumps to the next timer.
fn warp() {
    // SAFETY: once, at the thread's start; timers read QEMU's lists under RCU.
    unsafe { ffi::rcu_register_thread() };
    loop {
        let idle = IDLE.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (mut idle, _) = IDLE
            .1
            .wait_timeout_while(idle, IDLE_LOOK, |idle| !*idle)
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        *idle = false;
        drop(idle);
        while !CLOCK.anybody() && warp_once() {}
    }
}

/// Runs the next timers of an idle guest; false when there are none, or it is not idle.
fn warp_once() -> bool {
    // SAFETY: QEMU's calls, under the lock they need, which this thread does not hold yet.
    unsafe {
        ffi::bql_lock_impl(c"tiercel".as_ptr(), 0);
        let idle = ffi::all_cpu_threads_idle() && !CLOCK.anybody();
        let deadline = ffi::qemu_clock_deadline_ns_all(ffi::CLOCK_VIRTUAL, ffi::ALL_TIMERS);
        let go = idle && deadline >= 0;
        if go {
            CLOCK.warp_ns(deadline);
            ffi::qemu_clock_run_timers(ffi::CLOCK_VIRTUAL);
        }
        ffi::bql_unlock();
        go
    }
}

/// A block is translated: what it costs is added as it begins, its accesses call back.
extern "C" fn translate(_id: u64, block: *mut c_void) {
    let config = state().shared.config();
    let detail = DETAIL.load(Ordering::Relaxed);
    // SAFETY: `block` and its instructions are valid during this call.
    unsafe {
        let count = ffi::qemu_plugin_tb_n_insns(block);
        let mut cost_ps = count as u64 * config.instruction_ps;
        for index in 0..count {
            let instruction = ffi::qemu_plugin_tb_get_insn(block, index);
            let mut bytes = [0; instruction::MAX_BYTES];
            let length = ffi::qemu_plugin_insn_data(
                instruction,
                bytes.as_mut_ptr().cast(),
                instruction::MAX_BYTES,
            );
            let kind = instruction::kind(&bytes[..length.min(instruction::MAX_BYTES)]);
            cost_ps += extra_ps(kind);
            let (none, flags) = (std::ptr::null_mut(), ffi::NO_REGISTERS);
            let special: Option<ffi::ExecCallback> = match kind {
                Kind::AddressSpace => Some(forget),
                Kind::Begin => Some(begin),
                Kind::End => Some(end),
                _ => None,
            };
            if let Some(callback) = special {
                ffi::qemu_plugin_register_vcpu_insn_exec_cb(instruction, callback, flags, none);
            }
            if !detail {
                continue;
            }
            for (which, callback) in [(ffi::READS, load as ffi::MemCallback), (ffi::WRITES, store)]
            {
                ffi::qemu_plugin_register_vcpu_mem_cb(instruction, callback, flags, which, none);
            }
        }
        let add = |offset: usize, value: u64| {
            let entry = entry(offset);
            ffi::qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(block, ffi::ADD, entry, value);
        };
        add(std::mem::offset_of!(Counters, instructions), count as u64);
        add(std::mem::offset_of!(Counters, busy_ps), cost_ps);
        add(std::mem::offset_of!(Counters, since_ps), cost_ps);
        ffi::qemu_plugin_register_vcpu_tb_exec_cond_cb(
            block,
            quantum,
            ffi::NO_REGISTERS,
            ffi::GREATER_OR_EQUAL,
            entry(std::mem::offset_of!(Counters, since_ps)),
            QUANTUM_PS,
            std::ptr::null_mut(),
        );
    }
}

fn entry(offset: usize) -> ffi::Entry {
    ffi::Entry { score: state().score, offset }
}

/// What a kind of instruction takes beyond an ordinary one, picoseconds: polling loops must make
/// time go on. Orders of magnitude of Skylake: pause 140 cycles, rdtsc 25, cpuid 100 and more.
fn extra_ps(kind: Kind) -> u64 {
    match kind {
        Kind::Ordinary | Kind::Begin | Kind::End => 0,
        Kind::Timestamp => 10_000,
        Kind::Pause => 40_000,
        Kind::Slow | Kind::AddressSpace => 100_000,
        Kind::Port => 1_000_000,
    }
}

fn core(vcpu: c_uint) -> &'static mut Core {
    // SAFETY: set to a core that lives for ever before any callback comes. Only the virtual CPU's
    // own thread asks for its core, and drops the reference before the callback returns; callbacks
    // of one virtual CPU do not nest.
    unsafe { &mut *CORES[vcpu as usize].load(Ordering::Relaxed) }
}

extern "C" fn load(vcpu: c_uint, info: u32, address: u64, _data: *mut c_void) {
    let core = core(vcpu);
    if !core.hits(address, Access::Load) {
        miss(core, vcpu, info, address, Access::Load);
    }
}

extern "C" fn store(vcpu: c_uint, info: u32, address: u64, _data: *mut c_void) {
    let core = core(vcpu);
    if !core.hits(address, Access::Store) {
        miss(core, vcpu, info, address, Access::Store);
    }
}

#[cold]
fn miss(core: &mut Core, vcpu: c_uint, info: u32, address: u64, access: Access) {
    let counters = counters(vcpu);
    let instruction = counters.instructions.load(Ordering::Relaxed);
    let now_ps = CLOCK.time_ps(vcpu as usize) as u64;
    let at = Moment { instruction, now_ps };
    // SAFETY: both are asked during the callback of this access.
    let value = || unsafe { ffi::qemu_plugin_mem_get_value(info).low };
    let stall_ps = core.miss(&state().shared, address, access, at, || place(info, address), value);
    hold_up(counters, stall_ps);
}

fn place(info: u32, address: u64) -> Place {
    // SAFETY: called during the callback of this access; the handle is not kept.
    unsafe {
        let hardware = ffi::qemu_plugin_get_hwaddr(info, address);
        if hardware.is_null() || ffi::qemu_plugin_hwaddr_is_io(hardware) {
            return Place::Device;
        }
        Place::Memory(ffi::qemu_plugin_hwaddr_phys_addr(hardware))
    }
}

/// Adds without a locked instruction: only this thread and its translated code write here.
fn hold_up(counters: &Counters, stall_ps: u64) {
    for counter in [&counters.busy_ps, &counters.since_ps] {
        counter.store(counter.load(Ordering::Relaxed) + stall_ps, Ordering::Relaxed);
    }
}

extern "C" fn forget(vcpu: c_uint, _data: *mut c_void) {
    core(vcpu).forget_addresses();
}

extern "C" fn begin(vcpu: c_uint, _data: *mut c_void) {
    translate_anew(vcpu, true);
}

extern "C" fn end(vcpu: c_uint, _data: *mut c_void) {
    translate_anew(vcpu, false);
}

/// Switches detail on or off: what was translated is dropped.
fn translate_anew(vcpu: c_uint, detail: bool) {
    if DETAIL.swap(detail, Ordering::Relaxed) != detail {
        // SAFETY: called by the virtual CPU itself, from a block; QEMU defers what it must.
        unsafe { ffi::tb_flush(ffi::qemu_get_cpu(vcpu as c_int)) };
    }
}

/// Once a quantum: lets the others catch up, runs timers that are due.
extern "C" fn quantum(vcpu: c_uint, _data: *mut c_void) {
    counters(vcpu).since_ps.store(0, Ordering::Relaxed);
    for _ in 0..WAIT_STEPS {
        if CLOCK.lead_ps(vcpu as usize) <= QUANTUM_PS as i64 {
            break;
        }
        std::thread::sleep(WAIT_STEP);
    }
    // SAFETY: QEMU's calls; this thread does not hold the lock while it executes a block.
    unsafe {
        if ffi::qemu_clock_deadline_ns_all(ffi::CLOCK_VIRTUAL, ffi::ALL_TIMERS) == 0 {
            ffi::bql_lock_impl(c"tiercel".as_ptr(), 0);
            ffi::qemu_clock_run_timers(ffi::CLOCK_VIRTUAL);
            ffi::bql_unlock();
        }
    }
}

extern "C" fn at_exit(_id: u64, _data: *mut c_void) {
    let state = state();
    let vcpus = (0..state.shared.config().cpu_nodes.len())
        .map(|vcpu| {
            let mut stats = core(vcpu as c_uint).stats();
            let counters = counters(vcpu as c_uint);
            stats.instructions = counters.instructions.load(Ordering::Relaxed);
            stats.busy_ps = counters.busy_ps.load(Ordering::Relaxed);
            stats
        })
        .collect();
    let nodes = state.shared.nodes(&state.machine);
    let stats = Stats { elapsed_ns: CLOCK.now_ns(), vcpus, nodes };
    let path = &state.shared.config().stats;
    let text = serde_json::to_string_pretty(&stats).unwrap_or_default();
    if let Err(error) = std::fs::write(path, text) {
        eprintln!("tiercel emulator: cannot write {}: {error}", path.display());
    }
}
