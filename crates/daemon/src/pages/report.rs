//! What tiering by OS page did.
//! In: decisions, outcomes. Out: [`PagesReport`]. Knows nothing of how it is shown.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tiercel_ledger::movement::{Outcome, Reason};
use tiercel_ledger::regions::{LEVEL_MAX, Regions};
use tiercel_machine::NodeId;
use tiercel_machine::number::saturating_u64;
use tiercel_policy::pages::{Mode, PageDecision};

use super::reshape::Reshape;
use super::rounds::Done;
use crate::moves::log::kebab;

/// OS pages by level.
pub type Levels = [u64; LEVEL_MAX as usize + 1];

/// Promotion times are distinguished by a quarter of an octave, 19%.
const STEPS_PER_OCTAVE: f64 = 4.0;

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
    /// Huge OS pages that were broken up.
    pub splits: u64,
    /// Huge OS pages that were made of small ones.
    pub collapses: u64,
    /// Times that the kernel refused either.
    pub reshapes_failed: u64,
    /// OS pages of each level, 0 to 8, by node, when most of the memory was there.
    pub levels: BTreeMap<u16, Levels>,
    /// Promotions by how long after the decision they were done: within so many microseconds.
    pub promotions_us: BTreeMap<u64, u64>,
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
        for (what, result) in &done.reshaped {
            match (what, result) {
                (_, Err(_)) => self.reshapes_failed += 1,
                (Reshape::Split(_), Ok(())) => self.splits += 1,
                (Reshape::Collapse(_), Ok(())) => self.collapses += 1,
            }
        }
        for (outcome, after) in done.outcomes.iter().zip(&done.after) {
            self.moved(outcome);
            if outcome.asked.reason == Reason::Promote && outcome.moved_bytes > 0 {
                *self.promotions_us.entry(bound_us(*after)).or_default() += 1;
            }
        }
    }

    /// Notes the levels of all memory, unless there was far more before: at its end a program gives
    /// its memory back.
    pub(super) fn note_levels(&mut self, regions: &Regions, nodes: impl Iterator<Item = NodeId>) {
        let now: BTreeMap<u16, Levels> = nodes.map(|node| (node.0, regions.counts(node))).collect();
        let pages = |levels: &BTreeMap<u16, Levels>| levels.values().flatten().sum::<u64>();
        // Nine tenths, as the lab's bench takes residency.
        if pages(&now) * 10 >= pages(&self.levels) * 9 {
            self.levels = now;
        }
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

/// The least of the bounds that a time is within, microseconds.
fn bound_us(time: Duration) -> u64 {
    let us = time.as_secs_f64() * 1e6;
    let steps = (us.max(1.0).log2() * STEPS_PER_OCTAVE).ceil();
    saturating_u64((steps / STEPS_PER_OCTAVE).exp2().ceil())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_huge_os_pages_is_counted() {
        let (split, collapse) = (Reshape::Split((7, 0)), Reshape::Collapse((7, 0)));
        let busy = Err(tiercel_mover::Errno(16));
        let reshaped = vec![(split, Ok(())), (collapse, Ok(())), (collapse, busy), (split, busy)];
        let mut report = PagesReport::default();
        report.done(&Done { reshaped, ..Done::default() });
        assert_eq!((report.splits, report.collapses, report.reshapes_failed), (1, 1, 2));
    }

    #[test]
    fn times_are_distinguished_by_a_quarter_of_an_octave() {
        let bound = |us| bound_us(Duration::from_micros(us));
        assert_eq!([0, 1, 2, 1000, 1024].map(bound), [1, 1, 2, 1024, 1024]);
        assert_eq!((bound(1025), bound(1217)), (1218, 1218));
    }
}
