//! Interrupts system calls in which another process makes one of our threads wait. In: a thread.
//! Out: nothing; its wait ends. Knows nothing of what it waits for.
//!
//! `close` of a TCP socket with `SO_LINGER` waits for as long as its creator chose, or until a
//! signal arrives. `SIGURG` is ignored unless it has a handler, no part of this program uses it
//! otherwise, and a program that is executed gets the kernel's default again.

use rustix::io::Errno;
use std::sync::Once;

/// A thread of this process, while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadId(rustix::process::Pid);

extern "C" fn nothing(_signal: libc::c_int) {}

impl ThreadId {
    /// The calling thread.
    #[must_use]
    pub fn current() -> ThreadId {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install);
        ThreadId(rustix::thread::gettid())
    }

    /// Ends its wait. The thread must not have ended: its number may belong to another thread by
    /// now, which would be interrupted for no reason.
    ///
    /// # Errors
    /// If there is no such thread.
    pub fn interrupt(self) -> Result<(), Errno> {
        let process = rustix::process::getpid().as_raw_nonzero().get();
        let thread = self.0.as_raw_nonzero().get();
        // SAFETY: a signal whose handler does nothing, to a thread of this process.
        let result = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGURG) };
        if result == 0 { Ok(()) } else { Err(Errno::SRCH) }
    }
}

/// Restartable calls are restarted: only waits end early.
fn install() {
    // SAFETY: all zeros is a valid `sigaction`; the handler does nothing and is of the right type.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(libc::c_int) = nothing;
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        // Fails only for invalid signals.
        libc::sigaction(libc::SIGURG, &raw const action, std::ptr::null_mut());
    }
}
