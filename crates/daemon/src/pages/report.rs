//! What tiering by OS page did.
//! In: decisions, outcomes. Out: [`PagesReport`]. Knows nothing of how it is shown.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use tiercel_ledger::movement::{Outcome, Reason};
use tiercel_policy::pages::{Mode, PageDecision};

use super::rounds::Done;
use crate::moves::log::kebab;

/// What processes that share a budget held of the best tier at the last decision.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupReport {
    /// Their control group; `None`: all that have no budget of their own.
    pub cgroup: Option<PathBuf>,
    /// Their budget.
    pub fast: String,
    /// Bytes in the best tier.
    pub fast_bytes: u64,
}

/// See the module.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PagesReport {
    /// Which process or control group.
    pub target: String,
    /// Processes that were tiered: it and what it started, or those of the group.
    pub processes: u64,
    /// What decided.
    pub mode: Mode,
    /// What observed.
    pub sampler: String,
    /// Whether the processes ended, rather than this command.
    pub process_ended: bool,
    /// Seconds from attaching to detaching.
    pub seconds: f64,
    /// Windows that ended.
    pub windows: u64,
    /// Windows whose end was put off because samples were lost in them.
    pub unknown_windows: u64,
    /// Windows that took more than four times as long as they should.
    pub slow_windows: u64,
    /// Accesses seen.
    pub samples: u64,
    /// Accesses lost by the kernel or the sampler.
    pub lost: u64,
    /// Accesses to memory that is not tiered.
    pub elsewhere: u64,
    /// Units that asked to move.
    pub asked: u64,
    /// Of those, the ones that stayed.
    pub stayed: u64,
    /// Of those, the ones that had moved too often.
    pub locked: u64,
    /// Ticks at which nothing moved because too many units moved back and forth.
    pub stopped_ticks: u64,
    /// Ticks at which nothing moved because it could not be read what nodes have free.
    pub blind_ticks: u64,
    /// Demand that was dropped because there was too much.
    pub dropped: u64,
    /// Pairs that have changed places.
    pub exchanges: u64,
    /// Rounds in which moves were executed.
    pub rounds: u64,
    /// Times that the kernel refused a move for want of room.
    pub refusals: u64,
    /// Moves decided.
    pub moves: u64,
    /// Bytes that are now in better memory.
    pub promoted_bytes: u64,
    /// Bytes that were moved out of it.
    pub demoted_bytes: u64,
    /// Bytes that did not move, by reason.
    pub failed_bytes: BTreeMap<String, u64>,
    /// Groups of processes, where control groups have budgets.
    pub groups: Vec<GroupReport>,
    /// Measured cost of moves, nanoseconds a byte.
    pub move_ns_per_byte: f64,
}

impl PagesReport {
    pub(super) fn decided(&mut self, decision: &PageDecision) {
        self.asked += decision.asked;
        self.stayed += decision.stayed;
        self.locked += decision.locked;
        self.stopped_ticks += u64::from(decision.is_stopped);
    }

    pub(super) fn done(&mut self, done: &Done) {
        self.exchanges += done.exchanges;
        self.rounds += done.rounds;
        self.refusals += done.refusals;
        done.outcomes.iter().for_each(|outcome| self.moved(outcome));
    }

    fn moved(&mut self, outcome: &Outcome) {
        self.moves += 1;
        match outcome.asked.reason {
            Reason::Promote => self.promoted_bytes += outcome.moved_bytes,
            Reason::Demote | Reason::Asked => {
                self.demoted_bytes += outcome.moved_bytes;
            }
        }
        for (failure, bytes) in &outcome.failed {
            *self.failed_bytes.entry(kebab(failure)).or_default() += bytes;
        }
    }
}
