//! Why processes are not tiered.
//! In: what the kernel, the sampler or a setting refuses. Out: [`AttachError`]. Knows nothing of
//! how anything is tiered.

use std::path::PathBuf;

use tiercel_ledger::regions::RegionsError;
use tiercel_mover::Errno;
use tiercel_policy::pages::PlacesError;
use tiercel_sampler::SamplerError;

use super::room::RoomError;

/// Why a process is not tiered.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// It is gone.
    #[error("there is no process {0}")]
    Gone(u32),
    /// It is another user's.
    #[error("process {0} is another user's: run as its user, or as root")]
    Permission(u32),
    /// The kernel refuses for another reason.
    #[error("process {0}: {1}")]
    Kernel(u32, Errno),
    /// No such directory, or it is no control group's.
    #[error("{0} is no control group: it has no cgroup.procs (they are below /sys/fs/cgroup)")]
    NoCgroup(PathBuf),
    /// Nothing to tier yet.
    #[error("no process is in control group {0}: attach when one is")]
    Empty(PathBuf),
    /// The machine gives no choice.
    #[error("{0}")]
    Places(#[from] PlacesError),
    /// The machine is too large.
    #[error("{0}")]
    Regions(#[from] RegionsError),
    /// A setting makes no sense here.
    #[error("{0}")]
    Config(#[from] tiercel_policy::ConfigError),
    /// The sampler refuses the process.
    #[error("{0}")]
    Sampler(#[from] SamplerError),
    /// The sampler scans page tables.
    #[error(
        "OS-page tiering needs to see who accesses: sampler {0} does not; use hint, perf or bpf \
         (`tiercel doctor` says which work here)"
    )]
    Blind(&'static str),
    /// What nodes have free cannot be read.
    #[error("what fits where is not known, so no OS page would be moved: {0}")]
    Room(#[from] RoomError),
    /// No thread for the mover, or no descriptor for the control socket.
    #[error("cannot start the mover's thread or wait for requests: {0}")]
    Start(#[from] std::io::Error),
    /// The mover's thread panicked.
    #[error("the mover ended by a defect; {0} keeps its memory where it is")]
    Mover(String),
}

pub(super) fn refusal(pid: u32, errno: Errno) -> AttachError {
    match errno {
        Errno(libc::ESRCH | libc::EINVAL) => AttachError::Gone(pid),
        Errno(libc::EPERM | libc::EACCES) => AttachError::Permission(pid),
        other => AttachError::Kernel(pid, other),
    }
}
