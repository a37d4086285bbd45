//! What policies ask for and movers answer: [`Move`] and [`Outcome`].
//! In: nothing. Out: plain data. Knows nothing of who decides or who copies.

use serde::{Deserialize, Serialize};
use tiercel_machine::NodeId;

/// A request to migrate a range of one process's memory to a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Move {
    /// Process whose memory it is.
    pub pid: u32,
    /// First byte; a multiple of the OS page size.
    pub addr: u64,
    /// Bytes; a multiple of the OS page size.
    pub bytes: u64,
    /// The node that has most of it, as last scanned; `None`: never scanned.
    pub from: Option<NodeId>,
    /// Where it should be.
    pub to: NodeId,
    /// Why.
    pub reason: Reason,
    /// Stall time the move is expected to save per second, nanoseconds.
    pub gain_ns_per_s: f64,
    /// What executing it is expected to cost once, nanoseconds.
    pub cost_ns: f64,
}

/// Why a move was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Makes room in a better tier.
    Demote,
    /// Deserves a better tier.
    Promote,
    /// A user or a plan asked.
    Asked,
}

/// What became of a move. Byte counts are by residency after the fact, never by a call's return.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The request.
    pub asked: Move,
    /// Bytes that were elsewhere before and are on `asked.to` now.
    pub moved_bytes: u64,
    /// Of those, what the process moved itself.
    pub own_bytes: u64,
    /// Bytes on `asked.to` now, moved or there before.
    pub resident_bytes: u64,
    /// Bytes with no physical memory behind them (never touched).
    pub absent_bytes: u64,
    /// Bytes that stayed elsewhere, and why, most frequent reason first.
    pub failed: Vec<(Failure, u64)>,
    /// Time the mover took, nanoseconds.
    pub took_ns: u64,
}

impl Outcome {
    /// The outcome of a request for which nothing was attempted.
    pub fn of(asked: Move) -> Outcome {
        Outcome {
            asked,
            moved_bytes: 0,
            own_bytes: 0,
            resident_bytes: 0,
            absent_bytes: 0,
            failed: Vec::new(),
            took_ns: 0,
        }
    }
}

/// Why bytes did not move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Failure {
    /// The OS page is pinned or locked just now (EBUSY).
    Busy,
    /// Another process maps the OS page too, as after a fork (EACCES for that OS page).
    Shared,
    /// No room on the target (ENOMEM).
    NoMemory,
    /// Its target had no room left when its turn came; the kernel was not asked.
    NoRoom,
    /// The move that makes sense of it failed, so it stays; the kernel was not asked.
    Unpaired,
    /// The target node does not exist or is offline (ENODEV).
    NoNode,
    /// Not ours to move (EACCES, EPERM).
    Permission,
    /// The process is gone (ESRCH).
    Vanished,
    /// The kernel reported success and the OS page is still elsewhere.
    Misplaced,
    /// Anything else the kernel said.
    Other,
}
