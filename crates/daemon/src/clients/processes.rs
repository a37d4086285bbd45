//! Rows of hosted processes.
//! In: clients. Out: [`ProcessRow`]s, those with most memory first. Knows nothing of sites' names.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tiercel_ledger::Ledger;
use tiercel_machine::NodeId;

use super::client::Client;

/// One hosted process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRow {
    /// Process id.
    pub pid: u32,
    /// Whose it is.
    pub uid: u32,
    /// Name of its program.
    pub program: String,
    /// When it attached, milliseconds since the daemon started.
    pub since_ms: u64,
    /// Bytes of its live objects.
    pub live_bytes: u64,
    /// Most bytes of live objects at a time.
    pub peak_bytes: u64,
    /// Accesses that samples stand for.
    pub accesses: u64,
    /// Those samples.
    pub samples: u64,
    /// Bytes of live objects by node, as of the last scan.
    pub nodes: BTreeMap<NodeId, u64>,
}

impl ProcessRow {
    /// The row of a client.
    pub(crate) fn of(client: &Client, ledger: &Ledger) -> ProcessRow {
        let (live_bytes, peak_bytes) = ledger.tracked_bytes(client.pid).unwrap_or_default();
        let mut row = ProcessRow {
            pid: client.pid,
            uid: client.peer.uid(),
            program: client.program.clone(),
            since_ms: client.since_ms,
            live_bytes,
            peak_bytes,
            ..ProcessRow::default()
        };
        for (_, used) in client.uses.by_site() {
            row.accesses = row.accesses.saturating_add(used.reads).saturating_add(used.writes);
            row.samples += used.samples;
            for (node, bytes) in &used.nodes {
                *row.nodes.entry(*node).or_default() += bytes;
            }
        }
        row
    }
}

/// The first `limit` of the rows, those with most memory first.
pub(crate) fn largest(mut rows: Vec<ProcessRow>, limit: usize) -> Vec<ProcessRow> {
    rows.sort_by_key(|row| (Reverse(row.live_bytes), row.pid));
    rows.truncate(limit);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_come_first_and_ties_do_not_flicker() {
        let row = |pid, live_bytes| ProcessRow { pid, live_bytes, ..ProcessRow::default() };
        let rows = largest(vec![row(3, 5), row(1, 9), row(2, 9), row(4, 1)], 3);
        assert_eq!(rows.iter().map(|row| row.pid).collect::<Vec<_>>(), [1, 2, 3]);
    }
}
