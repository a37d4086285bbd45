//! What a daemon is made of, and what may go wrong when it starts or runs.
//! In: nothing. Out: [`Parts`], [`DaemonError`], [`Handle`]. Knows nothing of events.

use crate::net::socket_dir::SocketDirError;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tiercel_broker::Identity;
use tiercel_machine::Machine;
use tiercel_mover::Mover;
use tiercel_sampler::Sampler;

/// The parts a daemon works with; tests bring their own.
pub struct Parts {
    /// The machine, real or modelled.
    pub machine: Machine,
    /// What observes accesses; `None`: no sampler works here, objects are tracked nevertheless.
    pub sampler: Option<Box<dyn Sampler>>,
    /// What executes moves.
    pub mover: Box<dyn Mover + Send>,
    /// What identifies processes that connect.
    pub identity: Identity,
}

/// Why a daemon did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Its sockets could not be made.
    #[error(transparent)]
    SocketDir(#[from] SocketDirError),
    /// The ledger refuses its settings.
    #[error(transparent)]
    Ledger(#[from] tiercel_ledger::LedgerError),
    /// The policy refuses its settings.
    #[error("policy: {0}")]
    Policy(#[from] tiercel_policy::ConfigError),
    /// The machine has no memory to place anything in.
    #[error("the machine {0} has no tier with memory; check it with `tiercel topo`")]
    NoTier(String),
    /// The kernel refused a basic call.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the kernel answered.
        error: std::io::Error,
    },
}

impl DaemonError {
    /// For `map_err`: an error of the kernel, and what was tried.
    pub(crate) fn io(what: &'static str) -> impl Fn(std::io::Error) -> DaemonError {
        move |error| DaemonError::Io { what, error }
    }
}

/// Ends a running daemon from another thread.
#[derive(Clone)]
pub struct Handle {
    is_stopped: Arc<AtomicBool>,
    wake: Arc<OwnedFd>,
}

impl Handle {
    pub(crate) fn new() -> std::io::Result<Handle> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Handle { is_stopped: Arc::new(AtomicBool::new(false)), wake: Arc::new(wake) })
    }

    /// Requests the daemon to end: it drains once more and detaches its clients.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        // Fails only when the counter is full, and then it is readable.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }

    /// Readable after [`Handle::stop`].
    pub(crate) fn eventfd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Whether the daemon was requested to end; the eventfd is no longer readable.
    pub(crate) fn take_stop(&self) -> bool {
        let _ = rustix::io::read(&*self.wake, &mut [0u8; 8]);
        self.is_stopped.load(Ordering::Acquire)
    }
}
