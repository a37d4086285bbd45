//! The plan file: the memory in which the objects of each site are born, and the moves at each
//! phase.
//! In: JSON. Out: a [`Plan`] that [`check_plan`] accepts, or an error; rows for the runtime
//! ([`fit`]). Knows nothing of profiles, of how plans are made, or of how they are carried out.
//!
//! ```text
//!   app.plan --read_plan--> Plan --fit (this program's sites)--> rows of the session's plan table
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

mod check;
mod compile;
mod file;
mod model;
mod stack_keys;

pub use check::{PLACEMENTS_MAX, check_plan};
pub use compile::{Fit, fit};
pub use file::{PLAN_BYTES_MAX, PLAN_VERSION, PlanFileError, read_plan, write_plan};
pub use model::{
    Basis, Bounds, CLASS_MIN, Expected, Plan, PlanOptions, PlannedClass, PlannedFrame,
    PlannedMachine, PlannedMemory, PlannedModule, PlannedMove, PlannedPhase, PlannedPlacement,
    PlannedProgram, PlannedRange, PlannedSite, Prediction, PredictionBounds, Unplanned,
};
pub use stack_keys::{StackKeys, numbered};
