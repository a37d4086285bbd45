//! A plan as a daemon is configured with it.
//! In: a plan. Out: [`PlanChoice`], plain data. Knows nothing of how a plan is carried out.

use std::sync::Arc;
use tiercel_plan::Plan;

/// A plan and how it is used.
#[derive(Clone, Debug)]
pub struct PlanChoice {
    /// What to do. Shared: a large plan takes milliseconds to copy, and to free.
    pub plan: Arc<Plan>,
    /// What it decides.
    pub role: PlanRole,
}

/// What a plan decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PlanRole {
    /// All of it, for the objects that it places.
    Binding {
        /// The policy decides about sites without a plan, and about all once the plan is abandoned.
        adapt: bool,
    },
    /// Where objects are born; the policy decides about all of them. It is what earlier runs
    /// learned.
    Prior {
        /// Share of the accesses that the fastest memory should serve then, 0 to 1.
        fast_share: f64,
    },
}

impl PlanChoice {
    /// Whether the policy may move what the plan places.
    pub fn is_prior(&self) -> bool {
        matches!(self.role, PlanRole::Prior { .. })
    }
}
