//! Why a unit that asked to move stays where it is.
//! In: nothing. Out: plain data. Knows nothing of how it is decided.

use serde::{Deserialize, Serialize};
use tiercel_ledger::regions::Unit;
use tiercel_machine::NodeId;

/// Units of a tick whose reason is kept: four times the most moves of a tick, 5 MB.
pub(crate) const STAYS_MAX: usize = 65_536;

/// A unit that asked to move and does not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stayed {
    /// Which.
    pub unit: Unit,
    /// Why.
    pub why: Stay,
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stay {
    /// It is where its accessors want it.
    Settled,
    /// It leaves already, to make room for another.
    Leaving,
    /// The tick has as many moves as one may have.
    TooMany,
    /// No window has ended since it was mapped, so its rate is unknown.
    New,
    /// Better nodes are full, and nothing there may leave for it.
    NoRoom,
    /// No move pays: even the best one, to `node`, is so far from it within the horizon.
    NoGain {
        /// Where to.
        node: NodeId,
        /// What it saves beyond its cost, nanoseconds: not above 0.
        net_ns: f64,
    },
    /// It moved twice in a few windows.
    Locked,
    /// Nothing moves, because too many units moved back and forth.
    Stopped,
}
