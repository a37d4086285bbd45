//! Decides which extents belong in which tier, and when.
//! In: the ledger, the machine, budgets, the interval's counters, the time. Out: moves and
//! problems. Knows nothing of files, clocks or how anything is moved; it never calls a mover.
//!
//! MAT's four routines (3.4), each an enum of its own: [`Aggregate`] runs inside the ledger,
//! [`Prioritise`] orders extents, [`Trigger`] decides when, [`Enforce`] assigns tiers. By default a
//! [`Gate`] takes their place: shadow placements, which find out what pays without moving anything.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

mod assign;
mod budget;
mod config;
mod decision;
mod expression;
mod held;
mod interval;
mod move_builder;
mod move_cost;
mod order;
pub mod pages;
mod policy;
mod prioritise;
mod probation;
mod routine;
mod shadow;
mod shadows;
mod ticks;
mod tiers;
mod trigger;
mod usage;

pub use assign::FILL_TAIL;
pub use budget::{Budgets, Group, Limit, LimitError, Members};
pub use config::{Config, ConfigError};
pub use decision::{BirthBudget, Decision, MoveRefusal, NurseryBudget, Problem, Refused, Summary};
pub use expression::{Expression, ExpressionError, VARIABLES};
pub use interval::Interval;
pub use move_builder::MOVES_MAX;
pub use policy::{Policy, divide};
pub use probation::{PROBATION_BYTES, is_past_probation};
pub use routine::{
    Aggregate, Allocation, Enforce, Ewma, Fill, Gate, Llcmpi, Prioritise, RoutineError, ShadowGate,
    Time, Trigger,
};
pub use shadow::ShadowReport;
pub use ticks::TickSchedule;
pub use tiers::ASSUMED_GAP_NS;
