//! A window of a memfd, mapped shared, seen as atomic words.
//! In: a memfd that cannot shrink. Out: borrowed atomics at checked offsets.
//! Knows nothing of what the words mean. All of this crate's `unsafe` is here.

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::bits::index;
use crate::layout::OS_PAGE_BYTES;

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
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Mapping { start, bytes })
    }

    /// Gives the OS pages of a range memory. A kernel before 5.14 cannot, and does it later.
    pub(crate) fn provide(&self, at: usize, bytes: usize) -> rustix::io::Result<()> {
        let os_page = index(OS_PAGE_BYTES);
        let (first, end) = (at / os_page * os_page, (at + bytes).next_multiple_of(os_page));
        assert!(end <= self.bytes);
        // SAFETY: a part of our own mapping; what is there already stays as it is.
        let provided = unsafe {
            let start = self.start.as_ptr().add(first).cast();
            rustix::mm::madvise(start, end - first, Advice::LinuxPopulateWrite)
        };
        provided.or_else(|errno| if errno == Errno::INVAL { Ok(()) } else { Err(errno) })
    }

    /// The 8-byte word at `at`.
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        &self.words(at, 1)[0]
    }

    /// `count` 8-byte words from `at`.
    pub(crate) fn words(&self, at: usize, count: usize) -> &[AtomicU64] {
        assert!(at.is_multiple_of(8) && at <= self.bytes && count <= (self.bytes - at) / 8);
        // SAFETY: in bounds and aligned by the assertion (the start is page aligned); mapped for
        // the life of `self`; other processes write it, which atomics allow.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at).cast(), count) }
    }

    /// Overwrites bytes from `at`, one after the other.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at <= self.bytes && bytes.len() <= self.bytes - at);
        for (nth, byte) in bytes.iter().enumerate() {
            // SAFETY: in bounds by the assertion; otherwise as in `words`.
            let into = unsafe { AtomicU8::from_ptr(self.start.as_ptr().add(at + nth)) };
            into.store(*byte, Ordering::Relaxed);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    /// Memory without a file, which Miri knows as well.
    fn anonymous(bytes: usize) -> Mapping {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: as in `new`.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, prot, flags) };
        let start = NonNull::new(start.expect("memory").cast()).expect("not at 0");
        Mapping { start, bytes }
    }

    #[test]
    fn every_word_and_half_is_within_the_mapping() {
        let mapping = anonymous(4096);
        std::thread::scope(|scope| {
            scope.spawn(|| mapping.words(0, 256).iter().for_each(|word| word.store(7, Relaxed)));
            scope.spawn(|| mapping.half(4092).store(9, Relaxed));
            scope.spawn(|| mapping.half(2048).store(8, Relaxed));
        });
        assert_eq!(mapping.word(2040).load(Relaxed), 7);
        assert_eq!(mapping.half(2048).load(Relaxed), 8);
        assert_eq!(mapping.half(4092).load(Relaxed), 9);
        assert_eq!(mapping.words(4096, 0).len(), 0);
    }

    #[test]
    fn nothing_beyond_the_mapping_is_borrowed() {
        let mapping = anonymous(4096);
        let is_refused = |borrow: &dyn Fn(&Mapping)| {
            let borrow = std::panic::AssertUnwindSafe(|| borrow(&mapping));
            std::panic::catch_unwind(borrow).is_err()
        };
        assert!(is_refused(&|mapping| _ = mapping.word(4096)));
        assert!(is_refused(&|mapping| _ = mapping.word(4)));
        assert!(is_refused(&|mapping| _ = mapping.words(8, 512)));
        assert!(is_refused(&|mapping| _ = mapping.words(8, usize::MAX / 8 + 2)));
        assert!(is_refused(&|mapping| _ = mapping.half(4094)));
        assert!(is_refused(&|mapping| _ = mapping.half(4096)));
    }
}
