//! Long work over a ledger, which pauses so that others are served meanwhile.
//! In: work, by units. Out: pauses. Knows nothing of what is done in a pause.
//!
//! A pause takes the ledger away and brings it back changed: no reference into it lives across one.
//! What work keeps are numbers of extents and of processes, which it looks up again.

use crate::ledger::Ledger;

/// Most units of work between two pauses: 0.3 to 1 ms. A unit is what looking at an extent costs,
/// 65 to 150 ns, or comparing [`CHEAP_IN_UNIT`] numbers.
pub const PIECE_UNITS: usize = 4096;

/// Comparisons of two numbers in a unit of work, at 2 to 6 ns each.
pub const CHEAP_IN_UNIT: usize = 16;

/// The ledger, and when to pause.
pub trait Pace {
    /// The ledger, until the next pause.
    fn ledger(&self) -> &Ledger;

    /// So many units of work were done; pauses if that is due. Callers do at most [`PIECE_UNITS`]
    /// between two calls.
    fn worked(&mut self, units: usize);

    /// So many comparisons were made; at most [`PIECE_UNITS`] times [`CHEAP_IN_UNIT`] between two
    /// calls.
    fn compared(&mut self, count: usize) {
        self.worked(count.div_ceil(CHEAP_IN_UNIT));
    }
}

/// Work without a pause.
pub struct AtOnce<'a>(pub &'a Ledger);

impl Pace for AtOnce<'_> {
    fn ledger(&self) -> &Ledger {
        self.0
    }

    fn worked(&mut self, _: usize) {}
}
