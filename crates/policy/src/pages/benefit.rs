//! What a move gains by estimate: the modes order by it only in reports, mode `benefit` decides by
//! it.
//! In: units, latencies, measured costs. Out: nanoseconds. Knows nothing of room.
//!
//! Where samples are counted they give the rate. A history of bits sees whether a window had an
//! access, not how many. If they come at random, a share p of windows without any means -ln(p) in
//! each. A full history gives a lower bound. Both are uncertain, and a unit that replaces another
//! must be ahead by more than that: else units of equal rates would change places all the time.

use tiercel_ledger::regions::{Early, Unit};
use tiercel_machine::NodeId;

use super::places::Places;

/// What a full history counts as, windows: half a window short of full, between what 7 of 8 and a
/// history twice as long would show. Its rate is a lower bound.
const FULL_SHORT_OF: f64 = 0.5;

/// The figures that estimates need and the machine does not have.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Windows of a history.
    pub history: u8,
    /// Length of a window, seconds.
    pub window_s: f64,
    /// Accesses that one seen access stands for; 1 where every first one in a window is seen.
    pub weight: f64,
    /// How long rates are believed to last, seconds.
    pub horizon_s: f64,
    /// How many times its cost a move must save.
    pub margin: f64,
    /// Accesses under way at once.
    pub parallelism: f64,
    /// Measured cost of moving a byte, nanoseconds: 2 to 19.
    pub move_ns_per_byte: f64,
}

impl Estimate {
    /// Accesses a second: as counted, or by a unit's level, or by what was seen of it so far.
    pub fn rate_per_s(&self, unit: &Unit) -> f64 {
        let (accessed, windows) = self.seen(unit);
        let seen = unit.samples.unwrap_or_else(|| -(1.0 - accessed / windows).ln());
        seen / self.window_s * self.weight
    }

    /// Standard error of that. Of k counted samples: the square root of k. Of a share p of n
    /// windows: that of a binomial count, through the derivative of the logarithm.
    fn rate_error_per_s(&self, unit: &Unit) -> f64 {
        let (accessed, windows) = self.seen(unit);
        let variance = match unit.samples {
            Some(samples) => samples / windows,
            None => accessed / windows / (windows - accessed),
        };
        variance.sqrt() / self.window_s * self.weight
    }

    /// In how many windows a unit was accessed, and of how many.
    fn seen(&self, unit: &Unit) -> (f64, f64) {
        let (accessed, windows) = match unit.early {
            Some(Early { windows, accessed }) if windows > 0 => (accessed, windows),
            _ => (unit.level, self.history),
        };
        let windows = f64::from(windows);
        (f64::from(accessed).min(windows - FULL_SHORT_OF), windows)
    }

    /// Stall time that accesses to a unit would cost a second if it were on a node.
    pub(crate) fn stall_ns_per_s(&self, places: &Places, unit: &Unit, node: NodeId) -> f64 {
        self.rate_per_s(unit) * places.latency_ns(unit.accessor, node) / self.parallelism
    }

    /// Stall time that a unit costs a second beyond what it would in the best memory for it,
    /// nanoseconds.
    pub fn lost_ns_per_s(&self, places: &Places, unit: &Unit) -> f64 {
        let (_, _, best) = places.standing(unit);
        self.stall_ns_per_s(places, unit, unit.node) - self.stall_ns_per_s(places, unit, best)
    }

    /// Stall time that a move saves within the horizon, without its cost; negative: it costs more.
    pub(crate) fn saved_ns(&self, places: &Places, unit: &Unit, to: NodeId) -> f64 {
        let here = self.stall_ns_per_s(places, unit, unit.node);
        (here - self.stall_ns_per_s(places, unit, to)) * self.horizon_s
    }

    /// Standard error of [`Estimate::saved_ns`].
    pub(crate) fn error_ns(&self, places: &Places, unit: &Unit, to: NodeId) -> f64 {
        let latency_ns = |node| places.latency_ns(unit.accessor, node);
        let closer_ns = (latency_ns(unit.node) - latency_ns(to)).abs();
        self.rate_error_per_s(unit) * closer_ns / self.parallelism * self.horizon_s
    }

    /// What moving so many bytes costs once.
    pub(crate) fn cost_ns(&self, bytes: u64) -> f64 {
        bytes as f64 * self.move_ns_per_byte
    }

    /// What a move saves beyond its cost, with the margin.
    pub(crate) fn net_ns(&self, places: &Places, unit: &Unit, to: NodeId) -> f64 {
        self.saved_ns(places, unit, to) - self.cost_ns(unit.bytes) * self.margin
    }
}
