//! Policies of OS pages, baselines of the OAM paper: the program waits while they move.
//! In: births and accesses. Out: OS pages moved in the [`World`]. Knows nothing of objects' worth.

mod clock_dwf;
mod two_phase;

pub use clock_dwf::ClockDwf;
pub use two_phase::TwoPhase;

use crate::memory::Pages;
use crate::stream::Accesses;
use crate::world::World;

/// What a fault and the remapping cost beside the copy, nanoseconds for an OS page: with the 2 us
/// that any move has, a move costs 3 us and its traffic, as in comparisons of page policies.
pub(crate) const FAULT_NS: f64 = 1000.0;

/// A policy of OS pages.
pub trait PagePolicy {
    /// An object is born.
    fn born(&mut self, world: &mut World<'_>, pages: Pages);
    /// Memory is about to be accessed.
    fn access(&mut self, world: &mut World<'_>, pages: Pages, accesses: &Accesses);
    /// An object is dead; `goes_back`: and its memory with it.
    fn died(&mut self, world: &mut World<'_>, pages: Pages, goes_back: bool);
}
