//! File descriptors from raw system calls. In: what the call answered. Out: an owned descriptor, or
//! the error. Knows nothing of what it is open on.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Takes the descriptor that a system call answered.
///
/// # Safety
/// The call makes a new descriptor, and nothing else owns it.
///
/// # Errors
/// What the kernel said, where it answered none.
pub unsafe fn owned(answer: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(answer) {
        // SAFETY: the caller vouches for it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
