//! A plan as a daemon is configured with it.
//! In: a plan. Out: [`PlanChoice`], plain data. Knows nothing of how a plan is carried out.

use std::sync::Arc;
use tiercel_plan::Plan;

/// A plan and how it is used.
#[derive(Clone, Debug)]
pub struct PlanChoice {
    /// What to do. Shared: a large plan takes milliseconds to copy, and to free.
    pub plan: Arc<Plan>,
    /// The policy decides about sites without a plan, and about all once the plan is abandoned.
    pub adapt: bool,
}
