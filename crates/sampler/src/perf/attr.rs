//! `perf_event_open` and its ioctls, as far as sampling needs them.
//! In: an [`Attr`], a task, a CPU. Out: file descriptors, ids. Knows nothing of what events mean.
//!
//! Raw system calls rather than a crate: this sampler redirects the events of many tasks into one
//! ring per CPU, and needs AUX areas and `inherit_thread`; no crate wraps all three.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::descriptor;

/// Software events.
pub const TYPE_SOFTWARE: u32 = 1;
/// Raw events of the core PMU.
pub const TYPE_RAW: u32 = 4;
/// Page faults; carries the address.
pub const SW_PAGE_FAULTS: u64 = 2;
/// Counts nothing; owns a ring.
pub const SW_DUMMY: u64 = 9;

/// Fields of a sample.
pub mod sample_type {
    #![allow(missing_docs)]
    // PERF_SAMPLE_* of linux/perf_event.h.
    pub const TID: u64 = 1 << 1;
    pub const TIME: u64 = 1 << 2;
    pub const ADDR: u64 = 1 << 3;
    pub const PERIOD: u64 = 1 << 8;
    pub const RAW: u64 = 1 << 10;
    pub const WEIGHT: u64 = 1 << 14;
    pub const DATA_SRC: u64 = 1 << 15;
    pub const IDENTIFIER: u64 = 1 << 16;
}

/// Bits of `Attr::flags`, by the bit-field order of `struct perf_event_attr`.
pub mod flag {
    #![allow(missing_docs)]
    // Positions in the bit field of `struct perf_event_attr`, linux/perf_event.h.
    pub const DISABLED: u64 = 1 << 0;
    pub const INHERIT: u64 = 1 << 1;
    pub const EXCLUDE_KERNEL: u64 = 1 << 5;
    pub const EXCLUDE_HV: u64 = 1 << 6;
    pub const PRECISE_SHIFT: u32 = 15;
    pub const SAMPLE_ID_ALL: u64 = 1 << 18;
    pub const USE_CLOCKID: u64 = 1 << 25;
    /// Linux 5.13. Without it a forked process would be observed twice: through this inherited
    /// event and by its own attachment.
    pub const INHERIT_THREAD: u64 = 1 << 35;
}

/// Size of the kernel's `struct perf_event_attr` in its version 7 (PERF_ATTR_SIZE_VER7), bytes.
const ATTR_BYTES: u32 = 128;

/// `struct perf_event_attr`, PERF_ATTR_SIZE_VER7.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// PMU.
    pub kind: u32,
    /// Size of this struct, bytes.
    pub size: u32,
    /// Event.
    pub config: u64,
    /// Events per sample.
    pub period: u64,
    /// Fields of a sample.
    pub sample_type: u64,
    /// Fields of a read.
    pub read_format: u64,
    /// See [`flag`].
    pub flags: u64,
    /// Unused: no thread sleeps on a ring.
    pub wakeup: u32,
    /// Unused.
    pub bp_type: u32,
    /// Event, continued (load latency threshold).
    pub config1: u64,
    /// Event, continued (IBS software filter, SPE least latency).
    pub config2: u64,
    /// Unused.
    pub unused: [u64; 2],
    /// Unused.
    pub stack_user: u32,
    /// Clock of TIME.
    pub clockid: i32,
    /// Unused.
    pub regs_intr: u64,
    /// AUX wake-up, bytes.
    pub aux_watermark: u32,
    /// Unused.
    pub rest: [u32; 5],
}

const _: () = {
    assert!(size_of::<Attr>() == ATTR_BYTES as usize);
    assert!(std::mem::offset_of!(Attr, config1) == 56);
    assert!(std::mem::offset_of!(Attr, clockid) == 92);
    assert!(std::mem::offset_of!(Attr, aux_watermark) == 104);
};

impl Attr {
    /// An event of user mode only, dated by CLOCK_MONOTONIC.
    pub fn user_mode(kind: u32, config: u64) -> Attr {
        Attr {
            kind,
            size: ATTR_BYTES,
            config,
            flags: flag::EXCLUDE_KERNEL
                | flag::EXCLUDE_HV
                | flag::USE_CLOCKID
                | flag::SAMPLE_ID_ALL,
            clockid: libc::CLOCK_MONOTONIC,
            ..Attr::default()
        }
    }
}

/// Opens an event on a thread (0: the calling one; -1: all, on `cpu`) and a CPU (-1: any).
///
/// # Errors
/// What the kernel said.
pub fn open(attr: &Attr, tid: i32, cpu: i32) -> io::Result<OwnedFd> {
    const CLOEXEC: libc::c_ulong = 1 << 3;
    // SAFETY: `attr` is a live struct of the size it states; the kernel only reads it, and returns
    // a new descriptor.
    unsafe {
        let attr = attr as *const Attr;
        let fd = libc::syscall(libc::SYS_perf_event_open, attr, tid, cpu, -1, CLOEXEC);
        descriptor::owned(fd)
    }
}

/// Sends the samples of `event` into the ring of `owner`, which must be on the same CPU.
///
/// # Errors
/// What the kernel said.
pub fn redirect(event: &OwnedFd, owner: &OwnedFd) -> io::Result<()> {
    const SET_OUTPUT: libc::c_ulong = 0x2405;
    // SAFETY: both descriptors are open; the argument is an integer.
    check(unsafe { libc::ioctl(event.as_raw_fd(), SET_OUTPUT as _, owner.as_raw_fd()) })
}

/// Changes the period of an event. Threads that have inherited it keep theirs.
///
/// # Errors
/// What the kernel said.
#[cfg(feature = "bpf")]
pub fn set_period(event: &OwnedFd, period: u64) -> io::Result<()> {
    const PERIOD: libc::c_ulong = 0x4008_2404;
    // SAFETY: `period` is a live u64 for the kernel to read.
    check(unsafe { libc::ioctl(event.as_raw_fd(), PERIOD as _, &period) })
}

/// The id of an event in records; threads that inherit the event share it.
///
/// # Errors
/// What the kernel said.
pub fn id(event: &OwnedFd) -> io::Result<u64> {
    const GET_ID: libc::c_ulong = 0x8008_2407;
    let mut id = 0u64;
    // SAFETY: `id` is a live u64 for the kernel to fill.
    check(unsafe { libc::ioctl(event.as_raw_fd(), GET_ID as _, &mut id) })?;
    Ok(id)
}

/// Reads a counting event: the sum over the thread and the threads it started.
///
/// # Errors
/// What the kernel said.
pub fn read_count(event: &OwnedFd) -> io::Result<u64> {
    let mut count = [0u8; 8];
    // SAFETY: the buffer has the stated length.
    let got = unsafe { libc::read(event.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    if got != count.len().cast_signed() {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::from_ne_bytes(count))
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
