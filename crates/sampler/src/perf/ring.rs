//! A ring shared with the kernel: one per CPU, holding the records of all processes observed there.
//! In: an owner event, or a writer in tests. Out: [`PerfRecord`]s, AUX bytes, losses. Knows nothing
//! of what records mean.
//!
//! ```text
//! [ control OS page | data, a power of two of bytes ]      [ AUX, a power of two of bytes ]
//!   data_head: kernel writes, only grows                     aux_head, aux_tail likewise
//!   data_tail: we write, only grows; data[tail % size .. head % size] is unread
//! ```
//!
//! Invariant: the kernel never writes between tail and head, so those bytes do not change while
//! they are copied. Everything is copied before it is parsed.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use tiercel_machine::number::{index, signed};

use super::record::{self, HEADER_BYTES, PerfRecord};

/// Bytes of the control part: one OS page. (With larger OS pages any multiple works.)
const OS_PAGE: usize = 4096;
/// Positions of head and tail in the control part, in 8-byte words.
const DATA_HEAD: usize = 1024 / 8;
const DATA_TAIL: usize = 1032 / 8;
const AUX_HEAD: usize = 1056 / 8;
const AUX_TAIL: usize = 1064 / 8;
const AUX_OFFSET: usize = 1072 / 8;
const AUX_SIZE: usize = 1080 / 8;

/// A ring and, for PMUs that write packets, its AUX area.
pub struct Ring {
    /// Keeps the ring alive; other events are redirected to it.
    owner: Option<OwnedFd>,
    control: Mapping,
    data_bytes: usize,
    aux: Option<Mapping>,
    sample_type: u64,
    scratch: Vec<u8>,
}

// SAFETY: a ring is two mappings and a descriptor, none tied to the thread that made them; all
// access goes through `&mut self`.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring of `owner`. `data_bytes` and `aux_bytes` are powers of two; 0: no AUX.
    ///
    /// # Errors
    /// The kernel's error; EPERM means more memory than `perf_event_mlock_kb` allows.
    pub fn map(
        owner: OwnedFd,
        data_bytes: usize,
        aux_bytes: usize,
        sample_type: u64,
    ) -> io::Result<Ring> {
        assert!(data_bytes.is_power_of_two() && data_bytes >= OS_PAGE, "{data_bytes} bytes");
        let control = Mapping::of(owner.as_raw_fd(), OS_PAGE + data_bytes, 0)?;
        let aux = if aux_bytes == 0 {
            None
        } else {
            let offset = OS_PAGE + data_bytes;
            control.word(AUX_OFFSET).store(offset as u64, Ordering::Relaxed);
            control.word(AUX_SIZE).store(aux_bytes as u64, Ordering::Relaxed);
            Some(Mapping::of(owner.as_raw_fd(), aux_bytes, offset)?)
        };
        let owner = Some(owner);
        Ok(Ring { owner, control, data_bytes, aux, sample_type, scratch: Vec::new() })
    }

    /// The event that others are redirected to.
    pub fn owner(&self) -> &OwnedFd {
        self.owner.as_ref().expect("only the tests' rings have no owner")
    }

    /// Passes at most `max` records to `visit`, oldest first, and frees their space. Returns how
    /// many were skipped because they were malformed.
    pub fn drain(&mut self, max: usize, mut visit: impl FnMut(PerfRecord)) -> u64 {
        let head = self.control.word(DATA_HEAD).load(Ordering::Acquire);
        let mut tail = self.control.word(DATA_TAIL).load(Ordering::Relaxed);
        let mut senseless = 0;
        for _ in 0..max {
            let unread = head.wrapping_sub(tail);
            if unread == 0 {
                break;
            }
            let Some(bytes) = self.copy_record(tail, unread) else {
                tail = head; // Out of step: the records after this one cannot be separated.
                senseless += 1;
                break;
            };
            match record::parse(&self.scratch[..bytes], self.sample_type) {
                Some(record) => visit(record),
                None => senseless += 1,
            }
            tail = tail.wrapping_add(bytes as u64);
        }
        self.control.word(DATA_TAIL).store(tail, Ordering::Release);
        senseless
    }

    /// Copies AUX bytes `offset..offset + bytes` to `out`; false when the kernel has overwritten
    /// them.
    pub fn copy_aux(&self, offset: u64, bytes: u64, out: &mut Vec<u8>) -> bool {
        let Some(aux) = &self.aux else { return false };
        let (head, tail) = (
            self.control.word(AUX_HEAD).load(Ordering::Acquire),
            self.control.word(AUX_TAIL).load(Ordering::Relaxed),
        );
        let Some(end) = offset.checked_add(bytes) else { return false };
        if offset < tail || end > head || bytes > aux.bytes as u64 {
            return false;
        }
        out.clear();
        out.resize(index(bytes), 0);
        aux.copy_wrapped(0, aux.bytes, offset, out);
        true
    }

    /// Frees the AUX area up to `position`.
    pub fn release_aux(&self, position: u64) {
        self.control.word(AUX_TAIL).store(position, Ordering::Release);
    }

    /// Copies the record at `tail` to `scratch`; returns its bytes, or `None` when its length is
    /// invalid.
    fn copy_record(&mut self, tail: u64, unread: u64) -> Option<usize> {
        if unread < HEADER_BYTES as u64 || unread > self.data_bytes as u64 {
            return None;
        }
        let mut header = [0u8; HEADER_BYTES];
        self.control.copy_wrapped(OS_PAGE, self.data_bytes, tail, &mut header);
        let bytes = record::stated_bytes(header);
        if bytes < HEADER_BYTES || bytes as u64 > unread {
            return None;
        }
        self.scratch.resize(bytes, 0);
        self.control.copy_wrapped(OS_PAGE, self.data_bytes, tail, &mut self.scratch);
        Some(bytes)
    }
}

/// Memory shared with the kernel; unmapped when dropped.
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    fn of(fd: i32, bytes: usize, offset: usize) -> io::Result<Mapping> {
        let flags = if fd < 0 { libc::MAP_PRIVATE | libc::MAP_ANONYMOUS } else { libc::MAP_SHARED };
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no memory in use.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, prot, flags, fd, signed(offset as u64))
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("mmap never returns null");
        Ok(Mapping { base, bytes })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < OS_PAGE / 8);
        // SAFETY: the mapping is at least one OS page, aligned to it, lives as long as `self`, and
        // both sides access this word atomically only.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().cast::<u64>().add(index)) }
    }

    /// Copies from the circular part `start..start + size` at running position `at`.
    fn copy_wrapped(&self, start: usize, size: usize, at: u64, out: &mut [u8]) {
        assert!(out.len() <= size && start + size <= self.bytes && size.is_power_of_two());
        let from = index(at % size as u64);
        let first = out.len().min(size - from);
        let (ahead, around) = out.split_at_mut(first);
        // SAFETY: both source ranges lie in the mapping (asserted above: from + first <= size, the
        // rest is shorter than size); the kernel does not write there between tail and head.
        unsafe {
            let data = self.base.as_ptr().add(start);
            ahead.as_mut_ptr().copy_from_nonoverlapping(data.add(from), ahead.len());
            around.as_mut_ptr().copy_from_nonoverlapping(data, around.len());
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping of `of`, and no reference into it is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::attr::sample_type;
    use super::*;
    use proptest::prelude::*;

    const DATA: usize = 4096;

    /// A ring in plain memory; the test plays the kernel.
    fn ring() -> Ring {
        let control = Mapping::of(-1, OS_PAGE + DATA, 0).expect("8 KiB");
        Ring {
            owner: None,
            control,
            data_bytes: DATA,
            aux: None,
            sample_type: sample_type::ADDR,
            scratch: Vec::new(),
        }
    }

    fn kernel_writes(ring: &Ring, bytes: &[u8]) {
        let head = ring.control.word(DATA_HEAD).load(Ordering::Relaxed);
        for (i, byte) in bytes.iter().enumerate() {
            let at = OS_PAGE + ((head + i as u64) % DATA as u64) as usize;
            // SAFETY: `at` lies in the mapping by the remainder above.
            unsafe { ring.control.base.as_ptr().add(at).write(*byte) };
        }
        ring.control.word(DATA_HEAD).store(head + bytes.len() as u64, Ordering::Release);
    }

    fn sample_bytes(addr: u64) -> Vec<u8> {
        let mut out = 9u32.to_ne_bytes().to_vec();
        out.extend([0, 0]);
        out.extend(16u16.to_ne_bytes());
        out.extend(addr.to_ne_bytes());
        out
    }

    #[test]
    fn an_invalid_length_drops_the_ring_content_and_reading_continues() {
        let mut ring = ring();
        kernel_writes(&ring, &sample_bytes(1));
        kernel_writes(&ring, &[9, 0, 0, 0, 0, 0, 3, 0]); // states 3 bytes
        kernel_writes(&ring, &sample_bytes(2));
        let mut seen = 0;
        assert_eq!(ring.drain(100, |_| seen += 1), 1);
        assert_eq!(seen, 1);
        kernel_writes(&ring, &sample_bytes(3));
        assert_eq!(ring.drain(100, |_| seen += 1), 0);
        assert_eq!(seen, 2, "back in step");
    }

    proptest! {
        #[test]
        fn records_are_read_as_written(bursts in prop::collection::vec(0u64..200, 1..40)) {
            let mut ring = ring();
            let (mut written, mut read) = (0u64, 0u64);
            for burst in bursts {
                for _ in 0..burst {
                    kernel_writes(&ring, &sample_bytes(written));
                    written += 1;
                }
                let senseless = ring.drain(usize::MAX, |record| {
                    let PerfRecord::Sample(sample) = record else { panic!("{record:?}") };
                    assert_eq!(sample.addr, read);
                    read += 1;
                });
                prop_assert_eq!((senseless, read), (0, written));
            }
        }

        #[test]
        fn any_content_is_safe(bytes in prop::collection::vec(any::<u8>(), 0..DATA), head: u64) {
            let mut ring = ring();
            kernel_writes(&ring, &bytes);
            let mut seen = 0usize;
            ring.drain(usize::MAX, |_| seen += 1);
            prop_assert!(seen <= bytes.len() / HEADER_BYTES);
            ring.control.word(DATA_HEAD).store(head, Ordering::Relaxed);
            ring.drain(1000, |_| seen += 1);
        }
    }
}
