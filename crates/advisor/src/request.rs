//! What a plan is to achieve.
//! In: the user's options. Out: a [`PlanRequest`]. Knows nothing of profiles.

use tiercel_plan::Unplanned;
use tiercel_planner::{Objective, Strategy};

/// How a plan is wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanRequest {
    /// How placements are found.
    pub strategy: Strategy,
    /// What is made small.
    pub objective: Objective,
    /// Most that time may grow for objectives other than time (0.1: a tenth).
    pub slowdown_max: Option<f64>,
    /// Room in the fastest memory for all of the program, bytes; at most its capacity is used.
    pub fast_bytes: u64,
    /// The same as the user said it.
    pub fast: String,
    /// The default for what the plan does not know.
    pub unplanned: Unplanned,
    /// Objects may move before the phase they move for.
    pub prefetch: bool,
}
