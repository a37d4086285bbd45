//! The result of planning: where each object is, and how good that is.
//! In: nothing. Out: plain data. Knows nothing of how placements are found.

use crate::estimate::Cost;

/// The memories of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Index of the memory it is born in.
    pub birth: u8,
    /// (phase, memory), ascending: where it moves at the start of a phase.
    pub moves: Vec<(u32, u8)>,
}

/// One step of a phase start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The phase that starts.
    pub phase: u32,
    /// Index of the object.
    pub object: usize,
    /// Index of the memory it leaves.
    pub from: u8,
    /// Index of the memory it goes to.
    pub to: u8,
}

/// What a plan is expected to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Promise {
    /// Accesses and moves.
    pub cost: Cost,
    /// The moves' share of it.
    pub moves: Cost,
    /// Bytes moved.
    pub moved_bytes: u64,
    /// Everything in the last memory, for comparison.
    pub in_last: Cost,
    /// The objective's value: nanoseconds, picojoules, or their product.
    pub value: f64,
    /// No plan of this strategy's kind has less; `None` where the strategy knows no bound.
    pub bound: Option<f64>,
    /// Share of the best possible gain over `in_last` that may be missing.
    pub gap: Option<f64>,
    /// Whether nothing of this strategy's kind is better.
    pub proven: bool,
}

/// Which memory each object is born in and goes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Placements {
    /// One per object.
    pub placements: Vec<Placement>,
    /// All moves, by phase, in an order in which nothing overflows. It has the moves of the
    /// placements and, where full memories swap, detours over the last memory, which the promise
    /// does not count.
    pub moves: Vec<Move>,
    /// The largest overflow of a memory between two moves, bytes: 0 unless all are full.
    pub overflow_bytes: u64,
    /// What it is expected to do.
    pub promise: Promise,
    /// The value of a byte of room in each memory (columns), in the objective's units if that is
    /// time or energy: for a whole phase in each row with [`Strategy::Joint`], for the whole run in
    /// a single row with other strategies that have a bound. Empty without a bound.
    pub prices: Vec<f64>,
}
