//! The kernel interfaces for probing: userfaultfd registration by another process, PAGEMAP_SCAN,
//! clear_refs. In: descriptors, ranges. Out: ranges of written OS pages. Knows nothing of schedules
//! or extents.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

use super::OS_PAGE;

/// Most regions that one PAGEMAP_SCAN returns; the next call continues where it stopped.
const REGIONS: usize = 1024;

/// `_IOWR(type, number, bytes)`.
const fn iowr(class: u8, number: u8, bytes: usize) -> libc::c_ulong {
    assert!(bytes < 1 << 14, "the size has 14 bits");
    3 << 30
        | (bytes as libc::c_ulong) << 16
        | (class as libc::c_ulong) << 8
        | number as libc::c_ulong
}

#[repr(C)]
struct UffdApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdRange {
    start: u64,
    len: u64,
}

#[repr(C)]
struct UffdRegister {
    range: UffdRange,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdWriteProtect {
    range: UffdRange,
    mode: u64,
}

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// Enables a userfaultfd that a process opened on itself: with asynchronous write protection, which
/// the kernel resolves, no thread ever waits for the daemon.
///
/// # Errors
/// EINVAL: the kernel is older than 6.7, or the descriptor was enabled before. ENOTTY: it is not a
/// userfaultfd. An untrusted descriptor may be anything, so its name is checked before any ioctl.
pub fn take_up(uffd: &OwnedFd) -> io::Result<()> {
    let name = std::fs::read_link(format!("/proc/self/fd/{}", uffd.as_raw_fd()))?;
    if name.as_os_str() != "anon_inode:[userfaultfd]" {
        return Err(io::Error::from_raw_os_error(libc::ENOTTY));
    }
    // UFFD_API and UFFD_FEATURE_* of linux/userfaultfd.h.
    const API: u64 = 0xaa;
    const WP_SHMEM: u64 = 1 << 12; // a heap of vregions
    const WP_UNPOPULATED: u64 = 1 << 13;
    const WP_ASYNC: u64 = 1 << 15;
    let features = WP_SHMEM | WP_UNPOPULATED | WP_ASYNC;
    let mut arg = UffdApi { api: API, features, ioctls: 0 };
    // SAFETY: UFFDIO_API reads and writes `arg`, which is live and has the right size.
    check(unsafe {
        libc::ioctl(uffd.as_raw_fd(), iowr(0xaa, 0x3f, size_of::<UffdApi>()), &mut arg)
    })
}

/// Makes the kernel keep written bits for a range of the process that opened `uffd`. A mapping is
/// split where the range begins or ends inside it.
///
/// # Errors
/// The kernel's error; EBUSY when the program tracks the range itself.
pub fn register(uffd: &OwnedFd, range: &Range<u64>) -> io::Result<()> {
    // UFFDIO_REGISTER_MODE_WP of linux/userfaultfd.h.
    const MODE_WP: u64 = 2;
    let mut arg = UffdRegister { range: uffd_range(range), mode: MODE_WP, ioctls: 0 };
    let request = iowr(0xaa, 0x00, size_of::<UffdRegister>());
    // SAFETY: UFFDIO_REGISTER reads and writes `arg`, which is live and has the right size.
    // Asynchronous mode never blocks the program on the range.
    check(unsafe { libc::ioctl(uffd.as_raw_fd(), request, &mut arg) })
}

/// Ends [`register`]; the mappings merge again.
///
/// # Errors
/// What the kernel said; the range may be unmapped by now.
pub fn unregister(uffd: &OwnedFd, range: &Range<u64>) -> io::Result<()> {
    const UNREGISTER: libc::c_ulong = 0x8010_aa01; // _IOR(0xaa, 1, struct uffdio_range)
    let arg = uffd_range(range);
    // SAFETY: UFFDIO_UNREGISTER reads `arg`, which is live and has the right size.
    check(unsafe { libc::ioctl(uffd.as_raw_fd(), UNREGISTER, &arg) })
}

/// Ends the protection of a range that is registered with `uffd`.
///
/// # Errors
/// What the kernel said; the range may be unmapped by now.
pub fn disarm(uffd: &OwnedFd, range: &Range<u64>) -> io::Result<()> {
    let mut arg = UffdWriteProtect { range: uffd_range(range), mode: 0 };
    let request = iowr(0xaa, 0x06, size_of::<UffdWriteProtect>());
    // SAFETY: UFFDIO_WRITEPROTECT reads `arg`, which is live and has the right size.
    check(unsafe { libc::ioctl(uffd.as_raw_fd(), request, &mut arg) })
}

/// Whether a walk reports written bits or arms them again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// Reports the writes since arming.
    Look,
    /// Arms again, reports nothing.
    Arm,
}

/// Walks `range` of the process behind `pagemap` and passes ranges of written OS pages to `visit`.
/// Parts that are not registered are skipped.
///
/// # Errors
/// The kernel's error; ENOTTY before Linux 6.7, ESRCH when the process is gone.
pub fn scan(
    pagemap: &File,
    range: &Range<u64>,
    what: Scan,
    visit: impl FnMut(Range<u64>),
) -> io::Result<()> {
    // PM_SCAN_* and PAGE_IS_* of linux/fs.h.
    const WP_MATCHING: u64 = 1;
    const WPALLOWED: u64 = 1;
    const WRITTEN: u64 = 2;
    const PRESENT: u64 = 8;
    debug_assert!(
        range.start.is_multiple_of(OS_PAGE),
        "the kernel refuses other ranges: {range:x?}"
    );
    let reports = what == Scan::Look;
    let asked = ScanArg {
        flags: if reports { 0 } else { WP_MATCHING },
        category_mask: WPALLOWED | WRITTEN | PRESENT,
        return_mask: if reports { WRITTEN } else { 0 },
        ..ScanArg::default()
    };
    walk_all(pagemap, range, &asked, visit)
}

/// Passes runs of huge OS pages of `range` to `visit`, as far as each is mapped as one.
///
/// # Errors
/// As [`scan`].
pub fn huge_runs(
    pagemap: &File,
    range: &Range<u64>,
    visit: impl FnMut(Range<u64>),
) -> io::Result<()> {
    // PAGE_IS_* of linux/fs.h.
    const PRESENT: u64 = 8;
    const HUGE: u64 = 1 << 6;
    let asked = ScanArg { category_mask: PRESENT | HUGE, return_mask: HUGE, ..ScanArg::default() };
    walk_all(pagemap, range, &asked, visit)
}

/// Walks all of `range` as `asked` says, call by call, and passes what is returned to `visit`.
fn walk_all(
    pagemap: &File,
    range: &Range<u64>,
    asked: &ScanArg,
    mut visit: impl FnMut(Range<u64>),
) -> io::Result<()> {
    let mut regions = [Region::default(); REGIONS];
    let room = if asked.return_mask == 0 { 0 } else { REGIONS };
    let mut from = range.start;
    while from < range.end {
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start: from,
            end: range.end,
            vec: if room == 0 { 0 } else { regions.as_mut_ptr() as u64 },
            vec_len: room as u64,
            ..*asked
        };
        let found = walk(pagemap, &mut arg)?;
        regions[..found.min(room)].iter().for_each(|r| visit(r.start..r.end));
        if arg.walk_end <= from {
            break; // The kernel always makes progress; this ends the loop if it ever does not.
        }
        from = arg.walk_end;
    }
    Ok(())
}

/// Walks page tables as `arg` says; returns how many regions it found.
fn walk(pagemap: &File, arg: &mut ScanArg) -> io::Result<usize> {
    let request = iowr(b'f', 16, size_of::<ScanArg>());
    // SAFETY: PAGEMAP_SCAN reads and writes `arg` and fills at most `vec_len` regions, which its
    // caller keeps alive for the call.
    let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), request, arg) };
    usize::try_from(found).map_err(|_| io::Error::last_os_error())
}

/// Whether writes to the OS page at an address are tracked, whether it is there or not: a mapping
/// that the program moved or made anew is registered with no userfaultfd.
pub fn is_registered(pagemap: &File, addr: u64) -> bool {
    const WPALLOWED: u64 = 1; // PAGE_IS_* of linux/fs.h
    let mut region = Region::default();
    let start = addr / OS_PAGE * OS_PAGE;
    let mut arg = ScanArg {
        size: size_of::<ScanArg>() as u64,
        start,
        end: start + OS_PAGE,
        vec: &raw mut region as u64,
        vec_len: 1,
        category_mask: WPALLOWED,
        return_mask: WPALLOWED,
        ..ScanArg::default()
    };
    walk(pagemap, &mut arg).is_ok_and(|found| found == 1)
}

/// Whether there is a huge OS page at an address.
pub fn is_huge(pagemap: &File, addr: u64) -> bool {
    // PAGE_IS_* of linux/fs.h.
    const PRESENT: u64 = 8;
    const HUGE: u64 = 1 << 6;
    let mut region = Region::default();
    let start = addr / OS_PAGE * OS_PAGE;
    let mut arg = ScanArg {
        size: size_of::<ScanArg>() as u64,
        start,
        end: start + OS_PAGE,
        vec: &raw mut region as u64,
        vec_len: 1,
        category_mask: PRESENT | HUGE,
        return_mask: HUGE,
        ..ScanArg::default()
    };
    walk(pagemap, &mut arg).is_ok_and(|found| found == 1)
}

fn uffd_range(range: &Range<u64>) -> UffdRange {
    UffdRange { start: range.start, len: range.end - range.start }
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
