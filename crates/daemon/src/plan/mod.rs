//! A plan in a run: its rows in sessions, its moves at phase entries, and whether it still fits.
//! In: a plan, the phases that programs enter. Out: moves, a summary. Knows nothing of how a plan
//! is made.

pub(crate) mod drift;
pub(crate) mod prefetch;
pub(crate) mod rematch;
pub(crate) mod runner;
pub(crate) mod split;
