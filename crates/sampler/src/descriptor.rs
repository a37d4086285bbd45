//! File descriptors from raw system calls. In: what the call answered. Out: an owned descriptor, or
//! the error. Knows nothing of what it is open on.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Takes ownership of the descriptor that a system call returned.
///
/// # Safety
/// The call creates a new descriptor, and nothing else owns it.
///
/// # Errors
/// The kernel's error, if the call returned no descriptor.
pub unsafe fn owned(answer: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(answer) {
        // SAFETY: guaranteed by the caller.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
