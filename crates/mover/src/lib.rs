//! Edge out: executes moves and reports what really happened.
//! In: [`tiercel_ledger::movement::Move`]s. Out: [`tiercel_ledger::movement::Outcome`]s by
//! residency. Knows nothing of why a move was asked for. Memory that is not there yet cannot be
//! steered from here: `mbind` works only inside the process, so birth placement is the runtime's.

#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

mod calibration;
mod huge;
mod kernel;
mod modelled;
mod own;
mod self_mover;
mod support;
mod syscall;

pub use calibration::measure;
pub use huge::{HUGE_BYTES, collapse, split};
pub use kernel::{KernelMover, MAX_QUERIED_OS_PAGES};
pub use modelled::ModelledMover;
pub use own::{Preference, move_own_memory, prefer_for_this_thread};
pub use self_mover::{SelfMover, SelfMovers};
pub use support::{support, support_below};
pub use syscall::{Errno, Kernel, Linux, STATUS_UNTOUCHED};

use tiercel_ledger::movement::{Move, Outcome};
use tiercel_machine::NodeId;

/// What executes moves. Owned by one thread; calls block for as long as the copying takes.
pub trait Mover {
    /// Executes `moves` in order (so demotions that make room come first) and returns one outcome
    /// for each, in the same order. Never fails as a whole: what went wrong is in the outcomes.
    fn execute(&mut self, moves: &[Move]) -> Vec<Outcome>;

    /// Where the memory of `ranges` of one process is now; one answer per range, in order.
    fn residency(&mut self, pid: u32, ranges: &[Range]) -> Vec<Result<Residency, ResidencyError>>;

    /// Processes that this mover asks to move their own memory; `None`: it asks no process.
    fn self_movers(&self) -> Option<SelfMovers> {
        None
    }

    /// True when nothing really moves; then [`Mover::note`] says so and must be shown. The daemon
    /// runs a modelled mover on the thread of its loop, between two events, and delivers births,
    /// deaths and ends of processes to it. Any other mover runs on a separate thread and gets none
    /// of these calls.
    fn is_modelled(&self) -> bool;

    /// One sentence that the user must see before believing any figure; empty when there is none.
    fn note(&self) -> String {
        String::new()
    }

    /// An object was born, on `node` if its arena is bound to one. Delivered to modelled movers
    /// only.
    fn born(&mut self, _pid: u32, _range: Range, _node: Option<NodeId>) {}

    /// An object died. Delivered to modelled movers only.
    fn died(&mut self, _pid: u32, _range: Range) {}

    /// A process is gone. Delivered to modelled movers only.
    fn gone(&mut self, _pid: u32) {}
}

/// A piece of one process's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    /// First byte; a multiple of the OS page size.
    pub addr: u64,
    /// Bytes; a multiple of the OS page size.
    pub bytes: u64,
}

/// Where a range is. `nodes` and `absent_bytes` add up to the range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Residency {
    /// Bytes per node, ascending by node, no zeros.
    pub nodes: Vec<(NodeId, u64)>,
    /// Bytes with no physical memory behind them (never touched, swapped out, the shared zero
    /// page).
    pub absent_bytes: u64,
    /// Bytes that were looked at. Less than the range when it was sampled: then the other figures
    /// are the shares of the sample scaled to the range.
    pub queried_bytes: u64,
}

/// Why the residency of a range is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResidencyError {
    /// Another user's process, or one that forbids inspection.
    #[error("not allowed to look at this process; run as its user or with CAP_SYS_PTRACE")]
    Permission,
    /// The process is gone.
    #[error("the process is gone")]
    Vanished,
    /// Anything else the kernel said.
    #[error("move_pages: {0}")]
    Kernel(Errno),
}

impl Range {
    /// The range a move is about.
    pub fn of(asked: &Move) -> Range {
        Range { addr: asked.addr, bytes: asked.bytes }
    }
}
