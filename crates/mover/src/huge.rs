//! Breaks up huge OS pages of a process, and makes them of small ones.
//! In: a process, an address. Out: what the kernel said. Knows nothing of why. Both need rights
//! that only root has by default: CAP_SYS_NICE, or debugfs.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tiercel_machine::number::index;

use super::syscall::Errno;

/// Bytes of a huge OS page on x86-64 and arm64 with OS pages of 4 KiB.
pub const HUGE_BYTES: u64 = 2 << 20;
/// linux/mman.h, since Linux 6.1.
const MADV_COLLAPSE: libc::c_int = 25;
/// Takes `PID,START,END`; of CONFIG_TRANSPARENT_HUGEPAGE with debugfs.
const SPLIT: &str = "/sys/kernel/debug/split_huge_pages";

/// Makes one huge OS page of the 2 MiB at `addr` of a process, by copying.
///
/// # Errors
/// EPERM without CAP_SYS_NICE, EINVAL where the program forbade it or the kernel is older than 6.1,
/// ENOMEM or EAGAIN without a free one, EBUSY where something holds its OS pages, ESRCH when the
/// process is gone.
pub fn collapse(pid: u32, addr: u64) -> Result<(), Errno> {
    assert!(addr.is_multiple_of(HUGE_BYTES), "{addr:#x}");
    let process = open(pid)?;
    let range = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: index(HUGE_BYTES) };
    // SAFETY: the kernel reads one iovec, which lives; its address is the other process's and is
    // never dereferenced here.
    let done = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            process.as_raw_fd(),
            &raw const range,
            1usize,
            MADV_COLLAPSE,
            0u32,
        )
    };
    if done < 0 { Err(Errno::last()) } else { Ok(()) }
}

/// Breaks up the huge OS page at `addr` of a process.
///
/// # Errors
/// EACCES or ENOENT without debugfs or the right to write there; what the kernel said otherwise.
/// That it succeeds does not mean that there was one.
pub fn split(pid: u32, addr: u64) -> Result<(), Errno> {
    let request = format!("{pid},{addr:#x},{:#x}", addr + HUGE_BYTES);
    let errno = |error: std::io::Error| Errno(error.raw_os_error().unwrap_or(libc::EIO));
    let mut file = File::options().write(true).open(SPLIT).map_err(errno)?;
    file.write_all(request.as_bytes()).map_err(errno)
}

fn open(pid: u32) -> Result<OwnedFd, Errno> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::GONE)?;
    pidfd_open(pid, PidfdFlags::empty()).map_err(|error| Errno(error.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_reshaped_is_refused() {
        let gone = i32::MAX.unsigned_abs();
        assert_eq!(collapse(gone, HUGE_BYTES).unwrap_err(), Errno(libc::ESRCH));
        let refused = collapse(std::process::id(), 0).unwrap_err();
        assert!([libc::EINVAL, libc::ENOMEM, libc::EPERM, libc::ENOSYS].contains(&refused.0));
        assert!(split(gone, HUGE_BYTES).is_err(), "no such process, or no right to ask");
    }
}
