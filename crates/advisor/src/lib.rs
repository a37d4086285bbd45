//! Turns a profile and a machine into a plan, and predicts what the plan does to the run time.
//! In: a `Profile`, a `Machine`, a [`PlanRequest`]. Out: a [`PlanResult`], a `Prediction`, a
//! [`Timeline`]. Knows nothing of files, processes or how a plan is carried out.
//!
//! ```text
//!   Profile --PlannerInput::of--> Workload --planner--> placement --assemble--> Plan
//!      |                                                                 |
//!      +--Intervals (what was accessed when)-------------> predict <-----+
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

mod advise;
mod assemble;
mod ceiling;
mod choice;
mod input;
mod intervals;
mod parts;
mod peak;
mod place;
mod predict;
mod prefetch;
mod request;
mod spread;
mod throughput;
mod timeline;
mod votes;
mod working_set;

/// The planner accepts all objects that a profile may have.
const _: () = assert!(tiercel_profile::OBJECTS_MAX <= tiercel_planner::OBJECTS_MAX);

pub use advise::{PlanRequestError, PlanResult, advise, objective_name, peak_bytes, strategy_name};
pub use assemble::{Assembly, Group, assemble, planned_label};
pub use input::{ACCESS_WEIGHT, MISS_WEIGHT, PlannerInput};
pub use predict::predict;
pub use request::PlanRequest;
pub use throughput::Throughput;
pub use timeline::{COLUMNS_MAX, Timeline, TimelineRow};
pub use working_set::{WorkingSet, working_sets};
