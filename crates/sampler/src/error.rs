//! Why a sampler cannot be opened or cannot observe a process. In: kernel errors. Out:
//! [`SamplerError`], each with what failed, on what, and what to do. Knows nothing of how samplers
//! work.

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
        /// What to do about it; may be empty.
        remedy: String,
    },
    /// The kernel does not permit observation.
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
    /// Observation needs more of a resource than we may use.
    #[error("{what}: {remedy}")]
    Limit {
        /// What ran out, and for what.
        what: String,
        /// What to do about it.
        remedy: String,
    },
    /// Any other error of the kernel.
    #[error("{what}: {source}")]
    Io {
        /// What was tried, on what.
        what: String,
        /// The kernel's error.
        source: io::Error,
    },
}
