//! A plan in a run: its rows in sessions, its moves at phase entries, and whether it still fits.
//! In: a plan, the phases that programs enter, samples. Out: moves, a summary. Knows nothing of how
//! a plan is made.
//!
//! ```text
//! runner --> rows      which row holds for an object
//!        --> split     objects that are in two memories
//!        --> prefetch  moves during one phase for the next
//!        --> rematch   sites of rebuilt modules, found by function and line
//!        --> drift     does the plan deliver what it predicted?
//! ```

pub(crate) mod choice;
pub(crate) mod drift;
pub(crate) mod objects;
pub(crate) mod prefetch;
pub(crate) mod rematch;
pub(crate) mod rows;
pub(crate) mod runner;
pub(crate) mod split;
