//! What the user requests of a plan.
//! In: the user's options. Out: a [`PlanRequest`]. Knows nothing of profiles.

use tiercel_plan::Unplanned;
use tiercel_planner::{Objective, Strategy};

/// What a plan is requested for.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanRequest {
    /// How placements are found.
    pub strategy: Strategy,
    /// What is minimized.
    pub objective: Objective,
    /// Most that time may grow for objectives other than time (0.1: a tenth).
    pub slowdown_max: Option<f64>,
    /// Bytes of the fastest memory that the whole program may use; at most its capacity is used.
    pub fast_bytes: u64,
    /// The same as the user typed it.
    pub fast: String,
    /// Where objects go that the plan does not know.
    pub unplanned: Unplanned,
    /// Objects may move before the phase that they move for.
    pub prefetch: bool,
}
