//! Decides before a run which memory every object is born in and moves to at every phase.
//! In: a [`Workload`] (what a profile observed), memories of a machine, [`Options`]. Out:
//! [`Placements`] with their estimate, and how far they may be from the best ones. Knows nothing of
//! files, clocks, runtimes.
//!
//! H2M III-D is the starting point: access time (Eq. 1), score (Eq. 2), one knapsack (Eq. 3-5), its
//! recursion over lifetimes (Algorithm 1), phases with migration costs (Eq. 6). All of them, and
//! the joint programs over all lifetimes, phases and memories, are one shape here:
//!
//! ```text
//!   item (object)   segment 0 --- segment 1 --- ... each segment in one memory; changing costs
//!                      |             |
//!   slots           [ 0 | 1 | 2 ][ 3 | 4 ] ...      in no slot a memory holds more than it has
//! ```
//!
//! An object that stays where it was born is an item of one segment; one that may move has a
//! segment for each phase. Prices per byte for the room in each slot (Lagrange multipliers)
//! separate the items: each takes its shortest path. That gives a bound that no plan can beat,
//! equal to the linear program's; a repair by the same prices gives a plan. Small programs are
//! searched completely. OAM's strategy is apart from that: it decides each birth once, by utility
//! (Eq. 1-3, Algorithm 1). With the feature `exact`, HiGHS solves the same programs for comparison.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

mod baseline;
mod dual;
mod dymalloc;
mod estimate;
mod evaluate;
mod exact;
mod lifetimes;
mod memory;
mod object_phases;
mod objective;
mod options;
mod order;
mod phased;
mod placement;
mod planner;
mod problem;
#[cfg(feature = "exact")]
mod reference;
mod repair;
mod room;
mod slots;
mod solve;
mod span;
mod utility;
mod workload;

pub use estimate::{
    Cost, Demand, MoveSpeed, access_ns, demand, energy_pj, move_cost_per_byte, score_ns,
};
pub use evaluate::evaluate;
pub use memory::{Energy, LINE_BYTES, LINES_PER_THREAD, Left, MEMORIES_MAX, Memory, Scaling};
pub use options::{Effort, Levels, Objective, Options, Strategy, UtilityRules};
pub use placement::{Move, Placement, Placements, Promise};
pub use planner::{object_cost, plan};
pub use utility::{Utility, delay_ns, utilities, utility};
pub use workload::{BLOCK_BYTES, OBJECTS_MAX, Object, Phase, SEGMENTS_MAX, Use, Workload};

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The workload contradicts itself.
    #[error("{place}: {what}")]
    Workload {
        /// `object 3 (name)`, `phase 2 (name)`.
        place: String,
        /// What contradicts.
        what: &'static str,
    },
    /// More than the planner's limits.
    #[error("{count} {what}; at most {limit} can be planned, merge objects by site first")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        limit: usize,
    },
    /// An impossible memory or option.
    #[error("{0}")]
    Options(&'static str),
    /// An objective with energy, but a memory whose energy is unknown.
    #[error("the energy of memory {0} is unknown; give it in the machine description")]
    NoEnergy(String),
    /// The memories together do not hold the objects.
    #[error(
        "object {object} ({bytes} bytes) finds no room in any memory; split or merge objects, \
             or give the last memory more room"
    )]
    NoRoom {
        /// Its index.
        object: usize,
        /// Its size.
        bytes: u64,
    },
}
