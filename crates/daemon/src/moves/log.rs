//! What was moved and why: totals since the start, and the last moves one by one.
//! In: outcomes. Out: [`MoveTotals`], [`LoggedMove`]s. Knows nothing of how memory is moved.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use tiercel_ledger::movement::{Outcome, Reason};

/// Moves that are kept one by one: 0.8 MiB at 200 bytes each, and four times the rows of the
/// longest answer.
pub const LOG_MAX: usize = 4096;

/// Sums over all moves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MoveTotals {
    /// Moves requested.
    pub asked: u64,
    /// Bytes requested to move.
    pub asked_bytes: u64,
    /// Bytes moved, by reason: `promote`, `demote`, `asked`.
    pub moved_bytes: BTreeMap<String, u64>,
    /// Of those, bytes that the processes moved themselves.
    #[serde(default)]
    pub own_bytes: u64,
    /// Bytes that processes were asked to move and did not, by reason. The kernel moved what it
    /// may of them.
    #[serde(default)]
    pub own_refused_bytes: BTreeMap<String, u64>,
    /// Bytes that did not move, by failure.
    pub failed_bytes: BTreeMap<String, u64>,
    /// Bytes that had no physical memory behind them.
    pub absent_bytes: u64,
    /// Time movers took, nanoseconds; modelled when moves are.
    pub took_ns: u64,
}

impl MoveTotals {
    /// Bytes moved for any reason.
    pub fn moved_bytes_all(&self) -> u64 {
        self.moved_bytes.values().sum()
    }
}

/// One move that was tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoggedMove {
    /// When, daemon's clock, milliseconds.
    pub time_ms: u64,
    /// Hash of the object's site; 0 when it has none or is dead.
    pub site: u64,
    /// What was requested and why, and what became of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Totals and the last moves.
#[derive(Debug, Default)]
pub struct MoveLog {
    /// Sums since the start.
    pub totals: MoveTotals,
    last: VecDeque<LoggedMove>,
}

impl MoveLog {
    /// Adds the outcome of a move of an object from `site`.
    pub fn add(&mut self, time_ms: u64, site: u64, outcome: Outcome) {
        let totals = &mut self.totals;
        totals.asked += 1;
        totals.asked_bytes += outcome.asked.bytes;
        totals.absent_bytes += outcome.absent_bytes;
        totals.took_ns += outcome.took_ns;
        totals.own_bytes += outcome.own_bytes;
        let reason = reason_name(outcome.asked.reason).to_owned();
        *totals.moved_bytes.entry(reason).or_default() += outcome.moved_bytes;
        for (failure, bytes) in &outcome.failed {
            *totals.failed_bytes.entry(kebab(failure)).or_default() += bytes;
        }
        if self.last.len() == LOG_MAX {
            self.last.pop_front();
        }
        self.last.push_back(LoggedMove { time_ms, site, outcome });
    }

    /// The last `limit` moves, newest first.
    pub fn last(&self, limit: usize) -> Vec<LoggedMove> {
        self.last.iter().rev().take(limit).cloned().collect()
    }
}

fn reason_name(reason: Reason) -> &'static str {
    match reason {
        Reason::Demote => "demote",
        Reason::Promote => "promote",
        Reason::Asked => "asked",
    }
}

/// A fieldless variant's name as it is serialised.
pub(crate) fn kebab<T: Serialize>(variant: &T) -> String {
    match serde_json::to_value(variant) {
        Ok(serde_json::Value::String(name)) => name,
        _ => "other".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_ledger::movement::{Failure, Move};
    use tiercel_machine::NodeId;

    fn outcome(addr: u64) -> Outcome {
        let asked = Move {
            pid: 1,
            addr,
            bytes: 8192,
            from: None,
            to: NodeId(1),
            reason: Reason::Demote,
            gain_ns_per_s: 0.0,
            cost_ns: 0.0,
        };
        Outcome {
            moved_bytes: 4096,
            resident_bytes: 4096,
            failed: vec![(Failure::NoMemory, 4096)],
            took_ns: 5,
            ..Outcome::of(asked)
        }
    }

    #[test]
    fn totals_cover_all_moves_and_the_log_is_bounded() {
        let mut log = MoveLog::default();
        for i in 0..LOG_MAX as u64 + 10 {
            log.add(i, 7, outcome(i * 4096));
        }
        assert_eq!(log.totals.asked, LOG_MAX as u64 + 10);
        assert_eq!(log.totals.moved_bytes["demote"], log.totals.asked * 4096);
        assert_eq!(log.totals.failed_bytes["no-memory"], log.totals.asked * 4096);
        let last = log.last(usize::MAX);
        assert_eq!(last.len(), LOG_MAX);
        assert_eq!(last[0].time_ms, LOG_MAX as u64 + 9);
        assert_eq!(log.last(3).len(), 3);
    }
}
