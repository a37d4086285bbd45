//! What a policy answers: [`Decision`], with what it could not do and why.
//! In: nothing. Out: plain data. Knows nothing of how it was decided.

use serde::Serialize;
use tiercel_ledger::movement::Move;
use tiercel_machine::{NodeId, format_bytes};

use crate::trial::Judged;

/// What should happen after a tick.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Decision {
    /// What is taken back first, then demotions, then promotions; to be executed in this order.
    pub moves: Vec<Move>,
    /// Why the trigger fired or did not, for people.
    pub trigger: String,
    /// What was looked at, and what was refused. `None` when the trigger did not fire.
    pub summary: Option<Summary>,
    /// What keeps the policy from doing its work, and what to do about it.
    pub problems: Vec<Problem>,
    /// What each process may give birth to before the next tick.
    pub births: Vec<BirthPlan>,
    /// Moves of an earlier decision, expected against measured.
    pub judged: Option<Judged>,
}

/// What an assignment looked at, over all groups.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Extents that were given a tier.
    pub extents: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes that already lie in the tier they were given.
    pub in_place_bytes: u64,
    /// Bytes asked to move to a worse tier.
    pub demoted_bytes: u64,
    /// Bytes asked to move to a better tier.
    pub promoted_bytes: u64,
    /// Expected gain of all moves, nanoseconds of stall time per second.
    pub gain_ns_per_s: f64,
    /// Expected cost of all moves, nanoseconds.
    pub cost_ns: f64,
    /// Extents that lie in the wrong tier and are left there, by reason.
    pub refused: Vec<Refused>,
}

/// Extents left where they are, for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// Why.
    pub why: WhyNot,
    /// How many.
    pub extents: u64,
    /// Bytes of them.
    pub bytes: u64,
}

/// Why an extent is left in the wrong tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhyNot {
    /// Moving it costs more than it saves within the horizon.
    DoesNotPay,
    /// It moved a short while ago.
    MovedLately,
    /// The rate limit is used up.
    RateLimit,
    /// The tier it should go to has no room.
    NoRoom,
    /// A share goes first, to see whether moving pays.
    Canary,
    /// What was moved last is being judged, or did not pay.
    Held,
    /// A decision has no more than [`crate::MOVES_MAX`] moves.
    TooManyMoves,
    /// Nothing that deserves its place is allowed to take it.
    NotNeeded,
}

/// What keeps the policy from doing its work.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Problem {
    /// The machine has nothing to choose from.
    OneTier,
    /// The trigger needs counters that nobody reads.
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
        /// Bytes taken off because no object names them.
        outside_bytes: u64,
    },
    /// The machine does not know its latencies; gains are guesses.
    LatenciesUnknown {
        /// What each tier is believed to be slower by than the next better one.
        assumed_gap_ns: f64,
    },
    /// Nobody has said where these extents lie; they are taken to lie in the last tier.
    Unlocated {
        /// How many.
        extents: u64,
        /// Bytes of them.
        bytes: u64,
    },
    /// The user's expression gave no number; these extents come last.
    NotANumber {
        /// The expression.
        expression: String,
        /// How many extents.
        extents: u64,
    },
    /// No extent has an access to its name, so priorities are empty.
    NoAccesses,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Problem::OneTier => f.write_str(
                "this machine has one tier of memory, so there is nothing to choose; \
                 describe a modelled machine to see what would be moved",
            ),
            Problem::NoCounters { instead_ticks } => write!(
                f,
                "trigger llcmpi needs cache-miss and instruction counters and gets none; \
                 triggering every {instead_ticks} ticks instead; choose trigger time or \
                 allocation, or see `tiercel doctor`"
            ),
            Problem::NoBudget { group, limit_bytes, outside_bytes } => write!(
                f,
                "group {group} has no room in the best tier: its budget is {}, of which {} are \
                 held by memory that is no object; raise the budget",
                format_bytes(*limit_bytes),
                format_bytes(*outside_bytes)
            ),
            Problem::LatenciesUnknown { assumed_gap_ns } => write!(
                f,
                "this machine does not know its memory latencies; gains assume {assumed_gap_ns} ns \
                 per tier; measure the machine, or set gate = \"none\""
            ),
            Problem::Unlocated { extents, bytes } => write!(
                f,
                "nobody has said where {extents} extents ({}) lie; they are taken to lie in the \
                 last tier",
                format_bytes(*bytes)
            ),
            Problem::NotANumber { expression, extents } => write!(
                f,
                "expression `{expression}` gives no number for {extents} extents; they come last"
            ),
            Problem::NoAccesses => f.write_str(
                "no sample has hit an extent yet, so no extent deserves more than another; see \
                 `tiercel doctor` for what the sampler can see",
            ),
        }
    }
}

/// What a process may give birth to before the next tick.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BirthPlan {
    /// The process.
    pub pid: u32,
    /// Per tier, best first: its nodes, and the bytes that may be born there. The last tier is not
    /// limited.
    pub tiers: Vec<(Vec<NodeId>, u64)>,
    /// Index of the best tier with room: where blocks of small slots are born.
    pub small_tier: usize,
}
