//! The pool of each node: memory that is there before a program asks for it.
//! In: capacities, grants and returns by owner. Out: [`Segment`]s, sealed memfds whose memory was
//! seen to lie on the node. Knows nothing of sockets, processes or what lies in the memory.
//!
//! ```text
//!               prepare            grant               give_back
//!    (free) -----------> ready -----------> granted ------------> returned ---.
//!       ^                   \                  |  owner is gone       |        \ unmapped
//!       |                    \                 '-----> left ----------+---------> (free)
//!       '---------------------' dropped for a grant of another size
//! ```
//!
//! Where processes of several users ask, a user has a share of each pool, and memory of a node is
//! filled by who gets it: the kernel charges who touches an OS page first.
//!
//! A segment belongs to one process for as long as it lives: its memory is never handed to another
//! one, it goes back to the kernel, which zeroes it. So what an owner, or a child that it forked,
//! still maps cannot be read by another process, nor kept from being zeroed.

#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

mod account;
mod memory;
mod server;

pub use account::{Account, Figures, Owner, SegmentId};
pub use memory::{Filled, Linux, Made, Memory, Segment, Vpage};
pub use server::{Grant, Server, Status};

use tiercel_machine::NodeId;

/// Segments are multiples of this, bytes: the largest vpage.
pub const SEGMENT_UNIT_BYTES: u64 = 2 << 20;

/// Segments that are made ready ahead of a grant have this size, bytes.
pub const READY_BYTES: u64 = 64 << 20;

/// Segments that one owner may hold at once, over all nodes.
pub const OWNER_SEGMENTS_MAX: usize = 1024;

/// A pool that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Of which node.
    pub node: NodeId,
    /// Its size.
    pub bytes: u64,
    /// Where its memory is files; else it is the node's.
    pub folder: Option<std::path::PathBuf>,
}

/// Why a pool cannot do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// There is no pool of this node.
    #[error("there is no pool of node {0}; start the daemon with --pool {0}=SIZE")]
    NoPool(NodeId),
    /// Not enough is free.
    #[error("the pool of node {node} is exhausted: {asked} bytes asked, {free} free")]
    Exhausted {
        /// Of which node.
        node: NodeId,
        /// Bytes asked for.
        asked: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// Its user has as much as one user may.
    #[error("user {user} holds {held} of at most {most} bytes of the pool of node {node}")]
    Share {
        /// Of which node.
        node: NodeId,
        /// Whose share.
        user: u32,
        /// Bytes that the user's processes hold.
        held: u64,
        /// Bytes that they may hold.
        most: u64,
    },
    /// The node has less free memory than that.
    #[error("node {node} is full: {free} bytes are free, and {asked} were asked for")]
    Full {
        /// The node.
        node: NodeId,
        /// Bytes asked for.
        asked: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// No multiple of the unit, or nothing at all.
    #[error("{0} bytes are no segment: it needs a multiple of {SEGMENT_UNIT_BYTES}")]
    Size(u64),
    /// Too many segments.
    #[error("one process may hold {OWNER_SEGMENTS_MAX} segments; ask for larger ones")]
    TooMany,
    /// Another owner's segment, or one without an owner.
    #[error("segment {0} does not belong to the one who returns it")]
    Foreign(u32),
    /// The system has less memory than the pool was promised.
    #[error("the system has no memory for {bytes} bytes of node {node}: {what}: errno {errno}")]
    NoMemory {
        /// For which node.
        node: NodeId,
        /// Bytes of the segment.
        bytes: u64,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        errno: i32,
    },
    /// A folder gives no file of that size.
    #[error(
        "{} gives no file of {bytes} bytes for a pool: {what}: errno {errno}; it needs a file \
         system with room that knows files without names", folder.display()
    )]
    NoFile {
        /// The folder.
        folder: std::path::PathBuf,
        /// Bytes of the segment.
        bytes: u64,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        errno: i32,
    },
    /// The memory is there, and elsewhere.
    #[error(
        "node {node} is full: {elsewhere} of {bytes} bytes came from other nodes; make the pool \
         smaller, or free memory of that node"
    )]
    Elsewhere {
        /// The node that was meant.
        node: NodeId,
        /// Bytes of the segment.
        bytes: u64,
        /// Bytes of it that lie elsewhere.
        elsewhere: u64,
    },
    /// The kernel has no memfds, or no seals.
    #[error("this kernel gives no sealed memfd ({what}: errno {errno}); pools need Linux 4.14")]
    NoMemfd {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        errno: i32,
    },
}
