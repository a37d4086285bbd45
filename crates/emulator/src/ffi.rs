// SPDX-License-Identifier: GPL-2.0-or-later
//! What of QEMU 10 the plugin calls: its plugin interface, version 4, and a few exported internals.
//! In: nothing. Out: declarations. Knows nothing of what they are used for.
//!
//! The internals (clock, timers, the big lock) are exported because QEMU is built with modules;
//! `plugin` checks what it relies on before it uses them.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// The version of the interface that the plugin was written against.
pub const PLUGIN_VERSION: c_int = 4;
/// `QEMU_PLUGIN_CB_NO_REGS`
pub const NO_REGISTERS: c_int = 0;
/// `QEMU_PLUGIN_MEM_R`
pub const READS: c_int = 1;
/// `QEMU_PLUGIN_MEM_W`
pub const WRITES: c_int = 2;
/// `QEMU_PLUGIN_COND_GE`
pub const GREATER_OR_EQUAL: c_int = 7;
/// `QEMU_PLUGIN_INLINE_ADD_U64`
pub const ADD: c_int = 0;
/// `QEMU_CLOCK_VIRTUAL`
pub const CLOCK_VIRTUAL: c_int = 1;
/// `QEMU_TIMER_ATTR_ALL`
pub const ALL_TIMERS: c_int = -1;

/// `qemu_info_t`
#[repr(C)]
pub struct Info {
    pub target_name: *const c_char,
    pub version_min: c_int,
    pub version_cur: c_int,
    pub system_emulation: bool,
    pub smp_vcpus: c_int,
    pub max_vcpus: c_int,
}

/// `qemu_plugin_u64`: a 64-bit word of each virtual CPU's part of a scoreboard.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Entry {
    pub score: *mut c_void,
    pub offset: usize,
}

/// `qemu_plugin_mem_value`
#[repr(C)]
pub struct Value {
    pub kind: c_int,
    pub low: u64,
    pub high: u64,
}

/// glib's `GByteArray`.
#[repr(C)]
pub struct Bytes {
    pub data: *mut u8,
    pub length: c_uint,
}

/// glib's `GArray` of [`Register`]s.
#[repr(C)]
pub struct Registers {
    pub data: *const Register,
    pub length: c_uint,
}

/// `qemu_plugin_reg_descriptor`
#[repr(C)]
pub struct Register {
    pub handle: *mut c_void,
    pub name: *const c_char,
    pub feature: *const c_char,
}

// The layouts of QEMU 10 and glib 2 on x86-64; what a later field would move is caught here.
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Info>() == 32 && offset_of!(Info, version_min) == 8);
    assert!(offset_of!(Info, version_cur) == 12 && offset_of!(Info, system_emulation) == 16);
    assert!(offset_of!(Info, smp_vcpus) == 20 && offset_of!(Info, max_vcpus) == 24);
    assert!(size_of::<Entry>() == 16 && offset_of!(Entry, offset) == 8);
    assert!(
        size_of::<Value>() == 24 && offset_of!(Value, low) == 8 && offset_of!(Value, high) == 16
    );
    assert!(size_of::<Bytes>() == 16 && offset_of!(Bytes, length) == 8);
    assert!(size_of::<Registers>() == 16 && offset_of!(Registers, length) == 8);
    assert!(size_of::<Register>() == 24 && offset_of!(Register, name) == 8);
};

pub type VcpuCallback = extern "C" fn(id: u64, vcpu: c_uint);
pub type ExecCallback = extern "C" fn(vcpu: c_uint, data: *mut c_void);
/// `run_on_cpu_func`; the last is a union of words.
pub type CpuWork = extern "C" fn(cpu: *mut c_void, data: u64);
pub type MemCallback = extern "C" fn(vcpu: c_uint, info: u32, address: u64, data: *mut c_void);

unsafe extern "C" {
    pub fn qemu_plugin_register_vcpu_init_cb(id: u64, callback: VcpuCallback);
    pub fn qemu_plugin_register_vcpu_idle_cb(id: u64, callback: VcpuCallback);
    pub fn qemu_plugin_register_vcpu_resume_cb(id: u64, callback: VcpuCallback);
    pub fn qemu_plugin_register_vcpu_tb_trans_cb(
        id: u64,
        callback: extern "C" fn(id: u64, block: *mut c_void),
    );
    pub fn qemu_plugin_register_atexit_cb(
        id: u64,
        callback: extern "C" fn(id: u64, data: *mut c_void),
        data: *mut c_void,
    );
    pub fn qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(
        block: *mut c_void,
        op: c_int,
        entry: Entry,
        value: u64,
    );
    pub fn qemu_plugin_register_vcpu_tb_exec_cond_cb(
        block: *mut c_void,
        callback: ExecCallback,
        flags: c_int,
        condition: c_int,
        entry: Entry,
        value: u64,
        data: *mut c_void,
    );
    pub fn qemu_plugin_register_vcpu_insn_exec_cb(
        instruction: *mut c_void,
        callback: ExecCallback,
        flags: c_int,
        data: *mut c_void,
    );
    pub fn qemu_plugin_register_vcpu_mem_cb(
        instruction: *mut c_void,
        callback: MemCallback,
        flags: c_int,
        which: c_int,
        data: *mut c_void,
    );
    pub fn qemu_plugin_insn_vaddr(instruction: *const c_void) -> u64;
    pub fn qemu_plugin_tb_vaddr(block: *const c_void) -> u64;
    pub fn qemu_plugin_get_registers() -> *mut Registers;
    pub fn qemu_plugin_read_register(register: *mut c_void, out: *mut Bytes) -> c_int;
    pub fn qemu_plugin_read_memory_vaddr(address: u64, out: *mut Bytes, bytes: usize) -> bool;
    pub fn g_byte_array_new() -> *mut Bytes;
    pub fn g_byte_array_set_size(bytes: *mut Bytes, length: c_uint) -> *mut Bytes;
    pub fn qemu_plugin_tb_n_insns(block: *const c_void) -> usize;
    pub fn qemu_plugin_tb_get_insn(block: *const c_void, index: usize) -> *mut c_void;
    pub fn qemu_plugin_insn_data(
        instruction: *const c_void,
        destination: *mut c_void,
        bytes: usize,
    ) -> usize;
    pub fn qemu_plugin_mem_get_value(info: u32) -> Value;
    pub fn qemu_plugin_get_hwaddr(info: u32, address: u64) -> *mut c_void;
    pub fn qemu_plugin_hwaddr_is_io(address: *const c_void) -> bool;
    pub fn qemu_plugin_hwaddr_phys_addr(address: *const c_void) -> u64;
    pub fn qemu_plugin_scoreboard_new(element_bytes: usize) -> *mut c_void;
    pub fn qemu_plugin_scoreboard_find(score: *mut c_void, vcpu: c_uint) -> *mut c_void;

    pub fn object_class_by_name(name: *const c_char) -> *mut c_void;
    pub fn qemu_get_cpu(index: c_int) -> *mut c_void;
    pub fn async_safe_run_on_cpu(cpu: *mut c_void, work: CpuWork, data: u64);
    pub fn tb_flush(cpu: *mut c_void);
    pub fn tlb_flush(cpu: *mut c_void);
    pub fn qemu_in_vcpu_thread() -> bool;
    pub fn tcg_handle_interrupt(cpu: *mut c_void, mask: c_int);
    pub fn qemu_clock_deadline_ns_all(clock: c_int, attributes: c_int) -> i64;
    pub fn qemu_clock_run_timers(clock: c_int) -> bool;
    pub fn all_cpu_threads_idle() -> bool;
    pub fn bql_lock_impl(file: *const c_char, line: c_int);
    pub fn bql_unlock();
    pub fn rcu_register_thread();
}
