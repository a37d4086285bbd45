//! What the front asks of the broker. In: nothing. Out: plain data. Knows nothing of how it is
//! sent.
//!
//! Each service has a channel and a thread of its own, so that copying memory does not hold up
//! greetings.

use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use tiercel_sampler::{
    Allowed, Config, Cost, Counters, Drained, Kind, Method, SamplerCapabilities, SamplerError,
};
use tiercel_wire::{Now, Sample};

/// A process that was found to be the same is not looked at again for so long. Looking takes 50 us,
/// locating the OS pages of one extent 15 us; the front looks every quarter of a second.
pub(crate) const CHECK_HOLDS: Duration = Duration::from_millis(10);

/// What goes over the first channel. It has no answers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Command {
    /// Serve a channel; its other end comes with this.
    Open(Service),
    /// Remove these files when the front is gone; the lock that protects them comes with this. Only
    /// once, before the first client is served.
    RemoveAtEnd(Vec<PathBuf>),
}

/// What a new channel is for.
#[derive(Debug, Serialize, Deserialize)]
pub enum Service {
    /// [`IdentityAsk`] and [`IdentityAnswer`].
    Identity,
    /// [`MoveAsk`] and [`Moved`].
    Mover,
    /// [`SamplerAsk`] and [`SamplerAnswer`]; first, without being asked, a [`SamplerOpened`].
    Sampler(Kind, Box<Config>),
    /// Users, and a socket to a child of each that reads symbols.
    Symbols,
}

/// Why a process is not the one it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum PeerError {
    /// It ended, or cannot be looked at.
    #[error("the process that connected is gone")]
    Gone,
    /// It is in no namespace of ours, so that it has no number.
    #[error("the process is in a foreign pid namespace")]
    Foreign,
    /// It has another effective user.
    #[error("the process has another user than when it connected")]
    User,
    /// It executed a program.
    #[error("the process runs another program than when it connected")]
    Program,
    /// Its program was given privileges by the file system; the runtime is never in one.
    #[error("the process runs a set-user-ID program")]
    Privileged,
    /// A message was sent by a process that inherited the connection.
    #[error("another process than the one that connected sent the message")]
    Sender,
    /// The process that identifies others is gone.
    #[error("the daemon's broker is gone")]
    NoBroker,
}

/// Names a process that the broker identified.
pub type PeerId = u64;

/// About processes that connected.
#[derive(Debug, Serialize, Deserialize)]
pub enum IdentityAsk {
    /// Who connected to the socket that comes with this?
    Identify,
    /// Are they still what they were?
    Check(Vec<PeerId>),
    /// It is no client any more. It has no answer.
    Forget(PeerId),
}

/// A process that may be observed and moved from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identified {
    /// Its name in later questions.
    pub id: PeerId,
    /// Its number in our pid namespace.
    pub pid: u32,
    /// Its effective user now.
    pub uid: u32,
    /// When it began, clock ticks since the machine began.
    pub start_ticks: u64,
    /// What `AT_RANDOM` of its program is; 0: unknown.
    pub image: u64,
}

/// One for each process that was asked about; with [`IdentityAsk::Identify`] comes a pidfd.
pub type IdentityAnswer = Vec<Result<Identified, PeerError>>;

/// One `move_pages` call.
#[derive(Debug, Serialize, Deserialize)]
pub struct MoveAsk {
    /// Whose OS pages; must have been identified.
    pub pid: u32,
    /// Where they are, bytes.
    pub addrs: Vec<u64>,
    /// Kernel number of the node they shall go to; `None`: only say where they are.
    pub target: Option<u16>,
}

/// Its result: an errno, or how many were not moved; and one status for each.
#[derive(Debug, Serialize, Deserialize)]
pub struct Moved {
    /// As `move_pages(2)` returned.
    pub result: Result<u64, i32>,
    /// As `move_pages(2)` wrote them.
    pub status: Vec<i32>,
}

/// The methods of [`tiercel_sampler::Sampler`]. Those that return nothing have no answer, so that
/// the front does not wait for it.
#[derive(Debug, Serialize, Deserialize)]
pub enum SamplerAsk {
    /// `attach`
    Attach(u32),
    /// `accept`; the userfaultfd comes with it.
    AcceptUserfaultfd(u32),
    /// `detach`
    Detach(u32),
    /// `may_split`
    MaySplit(u32, (u64, u64)),
    /// `allow`
    Allow(u32, Allowed),
    /// `watch`
    Watch(u32, Vec<(u64, u64)>),
    /// `release`
    Release(u32, Vec<(u64, u64)>),
    /// `set_useful_rate`
    SetUsefulRate(f64),
    /// `drain`
    Drain(Now),
    /// `counters`
    Counters,
    /// `capabilities`
    Capabilities,
    /// `cost`
    Cost,
}

/// Their results.
#[derive(Debug, Serialize, Deserialize)]
pub enum SamplerAnswer {
    /// Of `attach`.
    Attached(Result<(), SamplerFault>),
    /// Of `drain`.
    Drained(Drained, Vec<Sample>),
    /// Of `counters`.
    Counters(Option<Counters>),
    /// Of `capabilities`.
    Capabilities(SamplerCapabilities),
    /// Of `cost`.
    Cost(Cost),
}

/// The sampler that was opened.
pub type SamplerOpened = Result<(Kind, Method), SamplerFault>;

/// A [`SamplerError`] on its way.
#[derive(Debug, Serialize, Deserialize)]
pub enum SamplerFault {
    /// As there.
    Unavailable(Kind, String, String),
    /// As there.
    Permission(String, String),
    /// As there.
    Vanished(u32),
    /// As there.
    Limit(String, String),
    /// As there; the error's number, or 0.
    Io(String, i32),
}

impl From<SamplerError> for SamplerFault {
    fn from(error: SamplerError) -> SamplerFault {
        match error {
            SamplerError::Unavailable { kind, why, remedy } => {
                SamplerFault::Unavailable(kind, why, remedy)
            }
            SamplerError::Permission { what, remedy } => SamplerFault::Permission(what, remedy),
            SamplerError::Vanished { pid } => SamplerFault::Vanished(pid),
            SamplerError::Limit { what, remedy } => SamplerFault::Limit(what, remedy),
            SamplerError::Io { what, source } => {
                SamplerFault::Io(what, source.raw_os_error().unwrap_or(0))
            }
        }
    }
}

impl From<SamplerFault> for SamplerError {
    fn from(fault: SamplerFault) -> SamplerError {
        match fault {
            SamplerFault::Unavailable(kind, why, remedy) => {
                SamplerError::Unavailable { kind, why, remedy }
            }
            SamplerFault::Permission(what, remedy) => SamplerError::Permission { what, remedy },
            SamplerFault::Vanished(pid) => SamplerError::Vanished { pid },
            SamplerFault::Limit(what, remedy) => SamplerError::Limit { what, remedy },
            SamplerFault::Io(what, errno) => {
                SamplerError::Io { what, source: io::Error::from_raw_os_error(errno) }
            }
        }
    }
}
