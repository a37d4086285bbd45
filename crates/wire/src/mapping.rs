//! A window of a memfd, mapped shared, seen as atomic words.
//! In: a memfd that cannot shrink. Out: borrowed atomics at checked offsets.
//! Knows nothing of what the words mean. All of this crate's `unsafe` is here.

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags};

/// Shared, readable and writable, unmapped on drop.
///
/// Invariant: `start..start + bytes` is mapped for the life of the value, and the file below it is
/// sealed against shrinking, or a device's memory, so that no access can raise SIGBUS for want of a
/// file.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is only ever reached through atomics; any thread may do that.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` at `offset`, both multiples of an OS page. The caller has checked that the file
    /// is that long and does not shrink.
    pub(crate) fn new(fd: impl AsFd, offset: u64, bytes: usize) -> rustix::io::Result<Mapping> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null hint lets the kernel choose free addresses: no existing memory changes.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, prot, MapFlags::SHARED, fd, offset)?
        };
        let start = NonNull::new(start.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Mapping { start, bytes })
    }

    /// The 8-byte word at `at`.
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        &self.words(at, 1)[0]
    }

    /// `count` 8-byte words from `at`.
    pub(crate) fn words(&self, at: usize, count: usize) -> &[AtomicU64] {
        assert!(at.is_multiple_of(8) && count * 8 <= self.bytes && at <= self.bytes - count * 8);
        // SAFETY: in bounds and aligned by the assertion (the start is page aligned); mapped for
        // the life of `self`; other processes write it, which atomics allow.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at).cast(), count) }
    }

    /// The 4-byte word at `at`.
    pub(crate) fn half(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at < self.bytes && self.bytes - at >= 4);
        // SAFETY: as in `words`.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(at).cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, with this length; every borrow has ended. A failure leaks the
        // mapping, which is harmless.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
