// SPDX-License-Identifier: GPL-2.0-or-later
//! Joins QEMU, the clock, the model and the export of samples.
//! In: QEMU's callbacks. Out: the guest's time; samples; statistics at exit.
//! Knows nothing of how a stall comes about.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use tiercel_machine::number::index_u32;

use tiercel_machine::{Machine, NodeId};
use tiercel_memsim::Pending;
use tiercel_wire::AccessKind;
use tiercel_wire::emulator::{Area, VCPUS_MAX};

use crate::config::{Config, EmulatorError, Samples, demand};
use crate::core::{Access, Core, Cost, Dirtied, Fetched, Moment, Place, Shared};
use crate::fatal::give_up;
use crate::ffi;
use crate::instruction::{self, Kind};
use crate::per_vcpu::PerVcpu;
use crate::regions::Regions;
use crate::samples::{self, Export, Now};
use crate::stats::{Stats, TraceStats, VcpuStats};
use crate::task::Reader;
use crate::thread;
use crate::time::{self, CLOCK, QUANTUM_PS};
use crate::trace::{self, Trace};
use crate::windows::Windows;

/// Up to this many virtual CPUs QEMU 10 never reallocates a scoreboard.
const MAX_VCPUS: usize = VCPUS_MAX;

/// Instructions below this address are user code; a block is all of one kind.
const USER_END: u64 = 1 << 47;

/// One virtual CPU's part of the scoreboard. Translated code adds to it.
#[repr(C)]
struct Counters {
    busy_ps: AtomicU64,
    since_ps: AtomicU64,
    instructions: AtomicU64,
    user_instructions: AtomicU64,
}

// Words alone: QEMU hands out zeroed memory, aligned to a word, and adds to words in it.
const _: () = assert!(size_of::<Counters>() == 4 * size_of::<u64>());
const _: () = assert!(align_of::<Counters>() == align_of::<u64>());

struct State {
    machine: Machine,
    shared: Shared,
    /// What the guest's sampler reads.
    area: Option<Area>,
    score: Scoreboard,
}

/// QEMU's name of the scoreboard of [`Counters`].
#[derive(Clone, Copy)]
struct Scoreboard(*mut c_void);

// SAFETY: the address is never followed, only handed back to QEMU, which takes it from any thread.
unsafe impl Sync for Scoreboard {}
// SAFETY: likewise.
unsafe impl Send for Scoreboard {}

/// One virtual CPU's part of the export of samples.
struct Tap {
    export: Export,
    reader: Reader,
    /// Whose addresses these are, for the trace; `None`: not yet known.
    traced: Option<u32>,
}

static STATE: OnceLock<State> = OnceLock::new();
/// Set before any callback comes.
static CORES: PerVcpu<Core> = PerVcpu::new();
/// None where nothing is exported.
static TAPS: PerVcpu<Tap> = PerVcpu::new();
/// What each virtual CPU had counted at its latest quantum, for marks of others.
static COUNTED: [Mutex<VcpuStats>; MAX_VCPUS] = [const { Mutex::new(VcpuStats::new()) }; MAX_VCPUS];
static REGIONS: Mutex<Regions> = Mutex::new(Regions::new());
/// Not set where none is wanted.
static TRACE: OnceLock<Mutex<Trace>> = OnceLock::new();
static WINDOWS: LazyLock<Mutex<Windows>> = LazyLock::new(Mutex::default);
/// Whether a region of interest is open.
static IS_IN_REGION: AtomicBool = AtomicBool::new(false);
/// Whether accesses are timed; otherwise only instructions are, and the guest runs several times
/// faster.
static DETAIL: AtomicBool = AtomicBool::new(false);

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

/// A count from QEMU; a negative one counts as 0.
fn count(stated: c_int) -> usize {
    usize::try_from(stated).unwrap_or(0)
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
        let arguments: Vec<String> = (0..count(argc)).map(|i| text(*argv.add(i))).collect();
        (arguments, text(info.target_name))
    };
    demand(info.system_emulation && target == "x86_64", "it needs qemu-system-x86_64")?;
    demand(info.version_cur >= ffi::PLUGIN_VERSION, "it needs QEMU 10")?;
    demand(count(info.max_vcpus) <= MAX_VCPUS, "more than 16 virtual CPUs")?;
    let path = arguments.iter().find_map(|a| a.strip_prefix("config="));
    let path = path.ok_or(EmulatorError::Invalid("config=FILE is missing"))?;
    let text = std::fs::read_to_string(path)
        .map_err(|source| EmulatorError::File { path: path.to_owned(), source })?;
    let (config, machine) = Config::parse(&text)?;
    let enough = config.cpu_nodes.len() >= count(info.max_vcpus);
    demand(enough, "the configuration has fewer virtual CPUs than QEMU")?;
    let vcpus = config.cpu_nodes.len().min(MAX_VCPUS);
    let area = config.samples.as_ref().map(|samples| samples::open(samples, vcpus)).transpose()?;
    if let Some(file) = &config.trace {
        let trace = Trace::create(&file.path, file.bytes_max).map_err(|source| {
            EmulatorError::Trace { path: file.path.display().to_string(), source }
        })?;
        demand(TRACE.set(Mutex::new(trace)).is_ok(), "it is loaded twice")?;
    }
    let shared = Shared::new(config, &machine)?;
    for index in 0..vcpus {
        CORES.set(index, shared.core(index)?);
    }
    // SAFETY: plain registration; the callbacks live as long as the library, which stays loaded.
    unsafe {
        let score = Scoreboard(ffi::qemu_plugin_scoreboard_new(size_of::<Counters>()));
        let state = State { machine, shared, area, score };
        demand(STATE.set(state).is_ok(), "it is loaded twice")?;
        ffi::qemu_plugin_register_vcpu_init_cb(id, vcpu_begins);
        ffi::qemu_plugin_register_vcpu_idle_cb(id, vcpu_idles);
        ffi::qemu_plugin_register_vcpu_resume_cb(id, vcpu_resumes);
        ffi::qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
        ffi::qemu_plugin_register_atexit_cb(id, at_exit, std::ptr::null_mut());
    }
    time::start_warping().map_err(EmulatorError::Thread)
}

fn state() -> &'static State {
    STATE.get().expect("callbacks come after installation")
}

fn counters(vcpu: c_uint) -> &'static Counters {
    // SAFETY: QEMU keeps one element of this size for each virtual CPU, zeroed and aligned to 8
    // bytes, in place for ever below MAX_VCPUS of them. Counters are words, as asserted above.
    unsafe { &*ffi::qemu_plugin_scoreboard_find(state().score.0, vcpu).cast::<Counters>() }
}

extern "C" fn vcpu_begins(_id: u64, vcpu: c_uint) {
    static TAKEN: Once = Once::new();
    TAKEN.call_once(time::take_over);
    CLOCK.attach(vcpu as usize, &counters(vcpu).busy_ps);
    thread::is_this(vcpu as usize);
    if state().area.is_some() {
        let Some(reader) = Reader::new() else { give_up("this QEMU does not show k_gs_base") };
        TAPS.set(vcpu as usize, Tap { export: Export::new(vcpu as usize), reader, traced: None });
    }
}

extern "C" fn vcpu_resumes(_id: u64, vcpu: c_uint) {
    CLOCK.resume(vcpu as usize);
}

extern "C" fn vcpu_idles(_id: u64, vcpu: c_uint) {
    time::idle(vcpu as usize);
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
            if let Some(callback) = special(kind) {
                ffi::qemu_plugin_register_vcpu_insn_exec_cb(instruction, callback, flags, none);
            }
            if !detail {
                continue;
            }
            // Code that processes share is translated once: with random addresses, the one at which
            // it was translated may be another process's.
            let at = ffi::qemu_plugin_insn_vaddr(instruction) as *mut c_void;
            for (which, callback) in [(ffi::READS, load as ffi::MemCallback), (ffi::WRITES, store)]
            {
                ffi::qemu_plugin_register_vcpu_mem_cb(instruction, callback, flags, which, at);
            }
        }
        let add = |offset: usize, value: u64| {
            let entry = entry(offset);
            ffi::qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(block, ffi::ADD, entry, value);
        };
        add(std::mem::offset_of!(Counters, instructions), count as u64);
        if ffi::qemu_plugin_tb_vaddr(block) < USER_END {
            add(std::mem::offset_of!(Counters, user_instructions), count as u64);
        }
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

/// What is called when an instruction of this kind is executed.
fn special(kind: Kind) -> Option<ffi::ExecCallback> {
    match kind {
        Kind::AddressSpace => Some(change_space),
        Kind::Invalidate => Some(forget),
        Kind::Timestamp => Some(read_time),
        Kind::Begin => Some(begin),
        Kind::End => Some(end),
        Kind::RegionBegin => Some(region_begin),
        Kind::RegionEnd => Some(region_end),
        Kind::OwnBegin => Some(own_begin),
        Kind::OwnEnd => Some(own_end),
        _ => None,
    }
}

fn entry(offset: usize) -> ffi::Entry {
    ffi::Entry { score: state().score.0, offset }
}

/// What a kind of instruction takes beyond an ordinary one, picoseconds: polling loops must make
/// time go on. Orders of magnitude of Skylake: pause 140 cycles, rdtsc 25, cpuid 100 and more.
fn extra_ps(kind: Kind) -> u64 {
    match kind {
        Kind::Ordinary | Kind::Begin | Kind::End => 0,
        Kind::RegionBegin | Kind::RegionEnd | Kind::OwnBegin | Kind::OwnEnd => 0,
        Kind::Timestamp => 10_000,
        Kind::Pause => 40_000,
        Kind::Slow | Kind::AddressSpace | Kind::Invalidate => 100_000,
        Kind::Port => 1_000_000,
    }
}

fn with_core<R>(vcpu: c_uint, borrow: impl FnOnce(&mut Core) -> R) -> R {
    CORES.with(vcpu as usize, borrow).expect("each virtual CPU has a core")
}

/// Does nothing where nothing is exported.
fn with_tap(vcpu: c_uint, borrow: impl FnOnce(&mut Tap, &Area, &Samples)) {
    let state = state();
    if let (Some(area), Some(samples)) = (&state.area, &state.shared.config().samples) {
        TAPS.with(vcpu as usize, |tap| borrow(tap, area, samples));
    }
}

extern "C" fn load(vcpu: c_uint, info: u32, address: u64, at: *mut c_void) {
    access(vcpu, info, address, Access::Load, at as u64);
}

extern "C" fn store(vcpu: c_uint, info: u32, address: u64, at: *mut c_void) {
    access(vcpu, info, address, Access::Store, at as u64);
}

#[inline]
fn access(vcpu: c_uint, info: u32, address: u64, access: Access, code: u64) {
    with_core(vcpu, |core| {
        if !core.hits(address, access) {
            miss(core, vcpu, info, address, access, code);
        }
    });
}

#[cold]
fn miss(core: &mut Core, vcpu: c_uint, info: u32, address: u64, access: Access, code: u64) {
    let counters = counters(vcpu);
    let instruction = counters.instructions.load(Ordering::Relaxed);
    let now_ps = CLOCK.time_ps(vcpu as usize).cast_unsigned();
    let at = Moment { instruction, now_ps };
    // SAFETY: both are asked during the callback of this access.
    let value = || unsafe { ffi::qemu_plugin_mem_get_value(info).low };
    let cost = core.miss(&state().shared, address, access, at, || place(info, address), value);
    add_stall(counters, cost.stall_ps);
    if code < USER_END {
        count_miss(&cost, now_ps);
        report(core.pending(), vcpu, address, access, code, &cost);
    }
}

/// Counts what memory did for an access of user code.
fn count_miss(cost: &Cost, now_ps: u64) {
    if cost.fetched.is_none() && cost.dirtied.is_none() {
        return;
    }
    let mut windows = lock(&WINDOWS);
    if !windows.is_open() {
        return;
    }
    for ideal in windows.ideals(IS_IN_REGION.load(Ordering::Relaxed)) {
        if let Some(Fetched { physical, .. }) = cost.fetched {
            ideal.missed(physical, cost.stall_ps, now_ps);
        }
        if let Some(Dirtied { physical, .. }) = cost.dirtied {
            ideal.dirtied(physical, now_ps);
        }
    }
}

/// Reports an access of user code to the guest's sampler, if it wants that.
fn report(pending: Pending, vcpu: c_uint, address: u64, access: Access, code: u64, cost: &Cost) {
    with_tap(vcpu, |tap, area, samples| {
        let now = now_with(vcpu, pending);
        if let Some(trace) = TRACE.get() {
            write_trace(trace, tap, area, now.now_ns, (address, access), cost);
        }
        let taken = report_to(tap, area, samples, now, (address, access, code), cost);
        add_stall(counters(vcpu), taken * samples.sample_ps);
    });
}

/// Writes what memory did for an access, once it is known whose it is. The lab has one virtual CPU
/// where it wants a trace, so that misses are in the order of time.
fn write_trace(
    trace: &Mutex<Trace>,
    tap: &mut Tap,
    area: &Area,
    now_ns: u64,
    (address, access): (u64, Access),
    cost: &Cost,
) {
    if tap.traced.is_none() {
        tap.traced = tap.reader.task(area.task_offsets()).map(|task| task.pid);
    }
    let Some(pid) = tap.traced else { return };
    let mut trace = lock(trace);
    if cost.fetched.is_some() {
        let kind = if access == Access::Store { trace::Kind::Write } else { trace::Kind::Read };
        trace.miss(now_ns, pid, kind, address, cost.stall_ps);
    }
    if cost.dirtied.is_some() {
        trace.miss(now_ns, pid, trace::Kind::Dirtied, address, 0);
    }
}

/// How many samples were taken.
fn report_to(
    tap: &mut Tap,
    area: &Area,
    samples: &Samples,
    now: Now,
    (address, access, code): (u64, Access, u64),
    cost: &Cost,
) -> u64 {
    if tap.export.asks()
        && let Some(task) = tap.reader.task(area.task_offsets())
    {
        tap.export.meet(task.pid, now);
    }
    let Tap { export, reader, .. } = tap;
    let number = |node: NodeId| {
        let number = samples.nodes.iter().position(|known| *known == node).unwrap_or(usize::MAX);
        u16::try_from(number).unwrap_or(u16::MAX)
    };
    let mut task = || reader.task(area.task_offsets());
    let mut taken = 0;
    if let Some(Fetched { physical, node, latency_ps }) = cost.fetched {
        let kind = if access == Access::Store { AccessKind::Write } else { AccessKind::Read };
        let miss = samples::miss(kind, [address, physical, code], latency_ps, number(node));
        taken += u64::from(export.miss(area, now, miss, &mut task));
    }
    if let Some(Dirtied { physical, node }) = cost.dirtied {
        let line = [address, physical, code];
        let miss = samples::miss(AccessKind::Dirtied, line, 0, number(node));
        taken += u64::from(export.dirtied(area, now, miss, &mut task));
    }
    taken
}

/// Where a virtual CPU stands, for its own thread.
fn now(vcpu: c_uint) -> Now {
    now_with(vcpu, with_core(vcpu, |core| core.pending()))
}

fn now_with(vcpu: c_uint, pending: Pending) -> Now {
    Now {
        now_ns: CLOCK.time_ps(vcpu as usize).cast_unsigned() / 1000,
        instructions: counters(vcpu).user_instructions.load(Ordering::Relaxed),
        pending,
    }
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
fn add_stall(counters: &Counters, stall_ps: u64) {
    for counter in [&counters.busy_ps, &counters.since_ps] {
        counter.store(counter.load(Ordering::Relaxed) + stall_ps, Ordering::Relaxed);
    }
}

extern "C" fn forget(vcpu: c_uint, _data: *mut c_void) {
    with_core(vcpu, Core::forget_addresses);
}

extern "C" fn change_space(vcpu: c_uint, _data: *mut c_void) {
    with_core(vcpu, Core::forget_addresses);
    with_tap(vcpu, |tap, area, _| {
        tap.traced = None;
        tap.export.leave(area, now(vcpu));
    });
}

extern "C" fn read_time(vcpu: c_uint, _data: *mut c_void) {
    time::read(vcpu as usize);
}

/// The command begins: regions so far are of what prepared it, such as a recording.
extern "C" fn begin(vcpu: c_uint, _data: *mut c_void) {
    *lock(&REGIONS) = Regions::new();
    IS_IN_REGION.store(false, Ordering::Relaxed);
    lock(&WINDOWS).begin(counted_by(vcpu));
    set_detail(vcpu, !state().shared.config().regions_only);
}

extern "C" fn end(vcpu: c_uint, _data: *mut c_void) {
    let now = counted_by(vcpu);
    lock(&WINDOWS).end(&now, lock(&REGIONS).all());
    set_detail(vcpu, false);
}

extern "C" fn region_begin(vcpu: c_uint, data: *mut c_void) {
    lock(&REGIONS).begin(counted_by(vcpu));
    IS_IN_REGION.store(true, Ordering::Relaxed);
    own_begin(vcpu, data);
}

extern "C" fn region_end(vcpu: c_uint, data: *mut c_void) {
    lock(&REGIONS).end(&counted_by(vcpu));
    IS_IN_REGION.store(false, Ordering::Relaxed);
    own_end(vcpu, data);
}

/// What follows is timed in detail, where otherwise only regions are.
extern "C" fn own_begin(vcpu: c_uint, _data: *mut c_void) {
    if state().shared.config().regions_only {
        set_detail(vcpu, true);
    }
}

extern "C" fn own_end(vcpu: c_uint, _data: *mut c_void) {
    if state().shared.config().regions_only {
        set_detail(vcpu, false);
    }
}

/// Switches detail on or off: what was translated is dropped, once this block has ended. A flush
/// in the middle of it, which is what QEMU does at once for a single virtual CPU, would take the
/// memory away in which the block and those it is chained to go on running.
fn set_detail(vcpu: c_uint, detail: bool) {
    if DETAIL.swap(detail, Ordering::Relaxed) != detail {
        // SAFETY: called by the virtual CPU itself; the work runs between two of its blocks, while
        // no other executes any.
        unsafe {
            ffi::async_safe_run_on_cpu(ffi::qemu_get_cpu(vcpu.cast_signed()), drop_blocks, 0)
        };
    }
}

extern "C" fn drop_blocks(cpu: *mut c_void, _data: u64) {
    // SAFETY: as above.
    unsafe { ffi::tb_flush(cpu) };
}

/// Once a quantum: what cannot wait, and what must not happen in the middle of a block.
extern "C" fn quantum(vcpu: c_uint, _data: *mut c_void) {
    counters(vcpu).since_ps.store(0, Ordering::Relaxed);
    time::end_quantum(vcpu as usize);
    let config = state().shared.config();
    let now_ps = CLOCK.time_ps(vcpu as usize).cast_unsigned();
    let walks = config.walks_per_flush;
    if walks > 0 && with_core(vcpu, |core| core.replaced_translations(walks, now_ps)) {
        // SAFETY: of this thread's own virtual CPU, between two blocks.
        unsafe { ffi::tlb_flush(ffi::qemu_get_cpu(vcpu.cast_signed())) };
    }
    with_tap(vcpu, |tap, area, _| {
        let now = now(vcpu);
        area.set_clock_ns(now.now_ns);
        tap.export.look(area, now);
    });
    *lock(&COUNTED[vcpu as usize]) = counted(vcpu);
}

/// What a virtual CPU has counted, for its own thread.
fn counted(vcpu: c_uint) -> VcpuStats {
    let counters = counters(vcpu);
    VcpuStats {
        instructions: counters.instructions.load(Ordering::Relaxed),
        busy_ps: counters.busy_ps.load(Ordering::Relaxed),
        ..with_core(vcpu, |core| core.stats())
    }
}

/// Everything counted, as far as this virtual CPU's thread can know.
fn counted_by(vcpu: c_uint) -> Stats {
    let mut stats = all(|other| match other == vcpu {
        true => counted(vcpu),
        false => lock(&COUNTED[other as usize]).clone(),
    });
    stats.elapsed_ns = CLOCK.time_ps(vcpu as usize) / 1000;
    stats
}

fn all(of: impl Fn(c_uint) -> VcpuStats) -> Stats {
    let state = state();
    let vcpus = (0..index_u32(state.shared.config().cpu_nodes.len())).map(of).collect();
    let nodes = state.shared.nodes(&state.machine);
    Stats { elapsed_ns: time::ran_ns(), vcpus, nodes, ..Stats::default() }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic under a lock ends QEMU anyway; statistics are still worth having.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// QEMU pauses all virtual CPUs before it runs exit handlers, so that this thread may borrow what
/// is theirs.
extern "C" fn at_exit(_id: u64, _data: *mut c_void) {
    let mut stats = all(counted);
    (stats.regions, stats.regions_left_out) = lock(&REGIONS).take();
    stats.windows = lock(&WINDOWS).take();
    stats.trace = TRACE.get().map(|trace| {
        let origin_ns = state().area.as_ref().and_then(Area::origin_ns);
        TraceStats { origin_ns, ..lock(trace).finish() }
    });
    let path = &state().shared.config().stats;
    let text = serde_json::to_string_pretty(&stats).unwrap_or_default();
    if let Err(error) = std::fs::write(path, text) {
        eprintln!("tiercel emulator: cannot write {}: {error}", path.display());
    }
}
