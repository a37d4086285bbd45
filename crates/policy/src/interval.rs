//! The time between two decisions, as the policy sees it.
//! In: the ledger's summary of a tick, counters. Out: an [`Interval`]. Knows nothing of extents.

use tiercel_ledger::TickSummary;

/// An interval's figures that are not in the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    /// How long it was.
    pub elapsed_ms: u64,
    /// Bytes of objects born in it that became rows. Ephemeral objects do not count: a program that
    /// allocates and frees in a loop does not change what should be placed where.
    pub allocated_bytes: u64,
    /// Last-level cache misses of the tracked processes; `None` where they are not counted.
    pub llc_misses: Option<u64>,
    /// Instructions of the tracked processes; `None` where they are not counted.
    pub instructions: Option<u64>,
    /// Moves are modelled: they do not change the programs' speed.
    pub is_modelled: bool,
}

impl Interval {
    /// The interval of a tick of the ledger, without counters.
    pub fn of(summary: &TickSummary) -> Interval {
        Interval {
            elapsed_ms: summary.elapsed_ms,
            allocated_bytes: summary.counts.recorded_bytes,
            llc_misses: None,
            instructions: None,
            is_modelled: false,
        }
    }
}
