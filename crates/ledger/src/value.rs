//! What the accesses of an extent would save in fast memory, as far as samples show it.
//! In: samples, what misses cost in both memories. Out: nanoseconds, and nanoseconds a second over
//! two time constants. Knows nothing of where extents lie, nor of policies.
//!
//! ```text
//! value of a sample = weight x (ns in the slowest memory - ns in the fastest), wherever it lies
//! mean(tau)         = sum over samples of value / tau x exp(-age of the sample / tau)
//!                     over 1 - exp(-age of the extent / tau): as if it had lived for ever
//! ```
//! Only extents that samples hit have an entry, so that ten million that nothing hits cost nothing.

use std::collections::BTreeMap;

use tiercel_machine::number::nearest_f32;
use tiercel_machine::{Machine, MissCost};
use tiercel_wire::{AccessKind, Sample};

use crate::config::AT_ONCE;
use crate::extent::ExtentId;

/// Time constants of the averages, ticks: one that follows a program within some ticks, and one
/// that distinguishes extents by an order of magnitude more samples. Chosen, as powers of two.
pub const VALUE_TAU_TICKS: [f64; 2] = [2.0, 16.0];

/// Latency of the fastest memory where it is unknown, about one local DRAM access, and the gap to
/// the slowest one, about one hop over a link; nanoseconds.
const ASSUMED_LATENCY_NS: f64 = 100.0;

/// What an access costs more in the slowest memory of a machine than in the fastest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AccessValue {
    fast: MissCost,
    slow: MissCost,
    /// So many times the value is taken; 1, but where a bench asks what wrong values do.
    times: f64,
}

/// The value of an extent's accesses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExtentValue {
    /// The extent.
    pub id: ExtentId,
    /// Value of all samples so far, nanoseconds.
    pub total_ns: f64,
    /// Sum of the squares of samples' values: their variance, if they come by chance.
    pub squares: f64,
    /// Means over [`VALUE_TAU_TICKS`], nanoseconds a second.
    pub ns_per_s: [f64; 2],
    /// Their standard deviations by sampling.
    pub deviation: [f64; 2],
}

/// All entries.
#[derive(Default)]
pub(crate) struct Values {
    pub(crate) of: Option<AccessValue>,
    pub(crate) entries: BTreeMap<u32, Entry>,
    /// When the first sample came, nanoseconds: no average has seen more.
    pub(crate) first_ns: Option<u64>,
    /// Lines that were dirtied are reported themselves.
    pub(crate) has_dirtied: bool,
    pub(crate) sweep_at: u32,
}

#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) total_ns: f64,
    pub(crate) squares: f64,
    /// Nanoseconds a second, as of `at_ns`.
    pub(crate) means: [f32; 2],
    pub(crate) at_ns: u64,
}

impl AccessValue {
    /// Of a machine; `None` where it has one tier. Latencies that are unknown are assumed.
    pub fn of(machine: &Machine) -> Option<AccessValue> {
        let tiers = machine.tiers();
        let [best, .., last] = tiers.as_slice() else { return None };
        let of = |tier: &tiercel_machine::Tier, assumed_ns: f64| {
            let node = tier.nodes.first().and_then(|node| machine.node(*node))?;
            Some(MissCost::with_latency(machine, node, assumed_ns))
        };
        let fast = of(best, ASSUMED_LATENCY_NS)?;
        let fast_ns = fast.miss_ns(1.0, false, false);
        Some(AccessValue { fast, slow: of(last, fast_ns + ASSUMED_LATENCY_NS)?, times: 1.0 })
    }

    /// The same, wrong by a factor.
    pub fn times(self, times: f64) -> AccessValue {
        AccessValue { times, ..self }
    }

    /// Of what a sample stands for, nanoseconds. `writes_back`: a store's line goes back later.
    pub fn ns(&self, sample: &Sample, writes_back: bool) -> f64 {
        let around = sample.around.map(|around| (f64::from(around.at_once), around.apart));
        let (at_once, is_apart) = around.unwrap_or((AT_ONCE.into(), false));
        let is_write = sample.kind == AccessKind::Write;
        let miss = |cost: &MissCost| cost.miss_ns(at_once.max(1.0), is_apart, is_write);
        let back = |cost: &MissCost| cost.write_back_ns(is_apart);
        let ns = match sample.kind {
            AccessKind::Dirtied => back(&self.slow) - back(&self.fast),
            AccessKind::Write if writes_back => {
                miss(&self.slow) - miss(&self.fast) + back(&self.slow) - back(&self.fast)
            }
            _ => miss(&self.slow) - miss(&self.fast),
        };
        f64::from(sample.weight) * ns * self.times
    }
}

impl Entry {
    /// The averages as of a later time.
    pub(crate) fn faded(&self, now_ns: u64, tau_s: [f64; 2]) -> [f32; 2] {
        let passed_s = now_ns.saturating_sub(self.at_ns) as f64 / 1e9;
        std::array::from_fn(|at| self.means[at] * nearest_f32((-passed_s / tau_s[at]).exp()))
    }

    pub(crate) fn add(&mut self, ns: f64, at_ns: u64, tau_s: [f64; 2]) {
        self.means = self.faded(at_ns, tau_s);
        let late_s = self.at_ns.saturating_sub(at_ns) as f64 / 1e9;
        self.at_ns = self.at_ns.max(at_ns);
        for (mean, tau_s) in self.means.iter_mut().zip(tau_s) {
            *mean += nearest_f32(ns / tau_s * (-late_s / tau_s).exp());
        }
        self.total_ns += ns;
        self.squares += ns * ns;
    }

    /// So much of it: of what it saw, and of the rates.
    pub(crate) fn part(&self, of_total: f64, of_means: f32) -> Entry {
        let means = self.means.map(|mean| mean * of_means);
        let (total_ns, squares) = (self.total_ns * of_total, self.squares * of_total);
        Entry { total_ns, squares, means, ..*self }
    }
}
