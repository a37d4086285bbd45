//! The policy's output: a [`Decision`], with the moves it refused and why.
//! In: nothing. Out: plain data. Knows nothing of how it was decided.

use serde::Serialize;
use tiercel_ledger::movement::Move;
use tiercel_machine::{NodeId, format_bytes};

use crate::shadow::ShadowReport;

/// The moves to make after a tick.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Decision {
    /// Demotions first, then promotions; to be executed in this order.
    pub moves: Vec<Move>,
    /// Why the trigger fired or did not, as text for the user.
    pub trigger: String,
    /// The extents considered, and the moves refused. `None` when the trigger did not fire.
    pub summary: Option<Summary>,
    /// What keeps the policy from working, and what to do about it.
    pub problems: Vec<Problem>,
    /// Bytes that each process may allocate in each tier before the next tick.
    pub births: Vec<BirthBudget>,
    /// The accounts of shadow placements, by group and tier.
    pub shadows: Vec<ShadowReport>,
}

/// What an assignment considered, over all groups.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Extents that were assigned a tier.
    pub extents: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes that already are in their assigned tier.
    pub in_place_bytes: u64,
    /// Bytes of requested demotions.
    pub demoted_bytes: u64,
    /// Bytes of requested promotions.
    pub promoted_bytes: u64,
    /// Expected benefit of all moves, nanoseconds of stall time per second.
    pub gain_ns_per_s: f64,
    /// Expected cost of all moves, nanoseconds.
    pub cost_ns: f64,
    /// Extents in the wrong tier that do not move, by reason.
    pub refused: Vec<Refused>,
}

/// Extents that do not move, for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// Why.
    pub why: MoveRefusal,
    /// How many.
    pub extents: u64,
    /// Bytes of them.
    pub bytes: u64,
}

/// Why an extent in the wrong tier does not move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MoveRefusal {
    /// The migration cost exceeds the benefit within the horizon.
    CostExceedsBenefit,
    /// Moves may not cost more now: neither the loss budget nor what was saved pays for it.
    LossBudget,
    /// The rate limit is used up.
    RateLimit,
    /// The target tier is full.
    NoRoom,
    /// A decision has no more than [`crate::MOVES_MAX`] moves.
    TooManyMoves,
}

/// What keeps the policy from working.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Problem {
    /// The machine has one tier only.
    OneTier,
    /// The trigger needs counters that are not available.
    NoCounters {
        /// Ticks after which it triggers instead.
        instead_ticks: u32,
    },
    /// A group's budget leaves no room in the best tier.
    NoBudget {
        /// The group.
        group: String,
        /// Bytes the budget gives.
        limit_bytes: u64,
        /// Bytes of it that untracked memory takes.
        outside_bytes: u64,
    },
    /// The latencies of the machine are unknown; benefits are assumptions.
    LatenciesUnknown {
        /// Assumed latency gap between neighbouring tiers.
        assumed_gap_ns: f64,
    },
    /// The residency of these extents is unknown; they are assumed to be in the slowest tier.
    Unlocated {
        /// How many.
        extents: u64,
        /// Bytes of them.
        bytes: u64,
    },
    /// The user's expression yields no number for these extents; they come last.
    NotANumber {
        /// The expression.
        expression: String,
        /// How many extents.
        extents: u64,
    },
    /// No extent has an access yet, so all priorities are equal.
    NoAccesses,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Problem::OneTier => f.write_str(
                "this machine has one memory tier, so there is nothing to place; \
                 name a modelled machine to see what would move",
            ),
            Problem::NoCounters { instead_ticks } => write!(
                f,
                "trigger llcmpi needs cache-miss and instruction counters, and none are \
                 available; triggering every {instead_ticks} ticks instead; choose trigger time or \
                 allocation, or see `tiercel doctor`"
            ),
            Problem::NoBudget { group, limit_bytes, outside_bytes } => write!(
                f,
                "group {group} has no room in the fast tier: untracked memory takes {1} of its \
                 budget of {0}; raise the budget",
                format_bytes(*limit_bytes),
                format_bytes(*outside_bytes)
            ),
            Problem::LatenciesUnknown { assumed_gap_ns } => write!(
                f,
                "the memory latencies of this machine are unknown; benefits assume \
                 {assumed_gap_ns} ns per tier; measure the machine, or set gate = \"none\""
            ),
            Problem::Unlocated { extents, bytes } => write!(
                f,
                "residency of {extents} extents ({}) unknown; assuming the slowest tier",
                format_bytes(*bytes)
            ),
            Problem::NotANumber { expression, extents } => write!(
                f,
                "expression `{expression}` yields no number for {extents} extents; they come last"
            ),
            Problem::NoAccesses => f.write_str(
                "no sample has hit an extent yet, so all extents rank equal; see \
                 `tiercel doctor` for what the sampler can observe",
            ),
        }
    }
}

/// Bytes that a process may allocate in each tier before the next tick.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BirthBudget {
    /// The process.
    pub pid: u32,
    /// Per tier, fastest first: its nodes, and the bytes that may be allocated there. The last tier
    /// has no limit.
    pub tiers: Vec<(Vec<NodeId>, u64)>,
    /// Index of the fastest tier with room: new blocks go there.
    pub small_tier: usize,
    /// Room that sites keep, beside this.
    pub nursery: NurseryBudget,
}

/// Room in the best tier that some sites of a process keep for their births.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NurseryBudget {
    /// The sites, by number, ascending.
    pub sites: Vec<u32>,
    /// Bytes that these keep.
    pub bytes: u64,
    /// Of these, bytes in which nothing lives: so many may still be born before the next tick.
    pub left_bytes: u64,
}
