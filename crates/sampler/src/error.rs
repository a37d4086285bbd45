//! Why a sampler cannot be had or cannot observe a process.
//! In: kernel errors. Out: [`SamplerError`], each with what failed, on what, and what to do.
//! Knows nothing of how samplers work.

use std::io;

use crate::Kind;

/// Why sampling failed.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    /// This kind of sampler does not work on this machine.
    #[error("sampler {}: {why}{}{remedy}", kind.name(), if remedy.is_empty() { "" } else { "; " })]
    Unavailable {
        /// Which.
        kind: Kind,
        /// What was found.
        why: String,
        /// What to do about it, may be empty.
        remedy: String,
    },
    /// The kernel does not let us observe.
    #[error("{what} is not permitted: {remedy}")]
    Permission {
        /// What was tried, on what.
        what: String,
        /// What to do about it.
        remedy: String,
    },
    /// The process is gone.
    #[error("process {pid} has vanished")]
    Vanished {
        /// Which.
        pid: u32,
    },
    /// Observing needs more than we may have.
    #[error("{what}: {remedy}")]
    Limit {
        /// What ran out, on what.
        what: String,
        /// What to do about it.
        remedy: String,
    },
    /// Anything else the kernel said.
    #[error("{what}: {source}")]
    Io {
        /// What was tried, on what.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
}
