//! What the accesses of an extent would save in fast memory, as far as samples show it.
//! In: samples, what misses cost in both memories. Out: nanoseconds, and nanoseconds a second over
//! two time constants. Knows nothing of where extents lie, nor of policies.
//!
//! ```text
//! value of a sample = weight x (ns in the slowest memory - ns in the fastest), wherever it lies
//! ns                = by the machine's figures x what misses there took of late over the figures
//! mean(tau)         = sum over samples of value / tau x weight, over the sum of weights / tau
//! weight            = exp(-integral of 1 / tau from the sample to now)
//! ```
//! Time constants grow with the age of the extent, up to a length that is configured: what one
//! second of a run of ten seconds says is worth as much as what a minute of one of ten minutes
//! says.
//! Only extents that samples hit have an entry, so that ten million that nothing hits cost nothing.

use std::collections::BTreeMap;

use tiercel_machine::number::nearest_f32;
use tiercel_machine::{Machine, MissCost, NodeId};
use tiercel_wire::{AccessKind, Sample};

use crate::config::AT_ONCE;
use crate::extent::ExtentId;

/// Time constants of the averages, in units of [`TimeScale`]: one that follows a program, and one
/// that distinguishes extents by an order of magnitude more samples. Chosen, as powers of two.
pub const VALUE_TAU_UNITS: [f64; 2] = [2.0, 16.0];

/// The unit is this part of an age. In replay 0.025 to 0.1 differ by less than two points of what
/// the bound gains, for streams of 4 and of 32 s.
const UNIT_OF_AGE: f64 = 0.05;

/// Latency of the fastest memory where it is unknown, about one local DRAM access, and the gap to
/// the slowest one, about one hop over a link; nanoseconds.
const ASSUMED_LATENCY_NS: f64 = 100.0;

/// What an access costs more in the slowest memory of a machine than in the fastest: by the
/// machine's figures, and by what samples say that it takes. Figures do not know how much of a
/// memory's bandwidth others take; latencies do, since what waits for bandwidth has a long one.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessValue {
    fast: Side,
    slow: Side,
}

/// One of both memories.
#[derive(Clone, Debug, PartialEq)]
struct Side {
    nodes: Vec<NodeId>,
    cost: MissCost,
    /// Of misses with neighbours in their blocks, and without.
    taken: [Taken; 2],
}

/// What sampled misses took, against the machine's figures.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Taken {
    samples: f64,
    /// Latency over misses under way at once (Little's law), nanoseconds.
    observed_ns: f64,
    figures_ns: f64,
}

/// A unit of time that grows with the age of what it measures, from the present tick to the usual
/// one: more often nothing is decided.
#[derive(Clone, Copy, Debug)]
pub struct TimeScale {
    least_s: f64,
    most_s: f64,
}

impl TimeScale {
    /// Of the present and the usual tick, milliseconds.
    pub fn new(present_ms: u64, usual_ms: u64) -> TimeScale {
        let [present_s, most_s] = [present_ms, usual_ms].map(|ms| ms as f64 / 1e3);
        TimeScale { least_s: present_s.min(most_s), most_s }
    }

    /// The unit at an age, both in seconds.
    pub fn unit_s(&self, age_s: f64) -> f64 {
        (age_s * UNIT_OF_AGE).clamp(self.least_s, self.most_s)
    }

    /// How many units have passed at an age: the integral of 1 / unit.
    pub fn passed(&self, age_s: f64) -> f64 {
        let [grows_s, grown_s] = [self.least_s, self.most_s].map(|unit_s| unit_s / UNIT_OF_AGE);
        let young = age_s.min(grows_s) / self.least_s;
        let growing = (age_s.clamp(grows_s, grown_s) / grows_s).ln() / UNIT_OF_AGE;
        young + growing + (age_s - grown_s).max(0.0) / self.most_s
    }
}

/// The value of an extent's accesses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExtentValue {
    /// The extent.
    pub id: ExtentId,
    /// Value of all samples so far, nanoseconds.
    pub total_ns: f64,
    /// Means over [`VALUE_TAU_UNITS`], nanoseconds a second.
    pub ns_per_s: [f64; 2],
    /// Their standard deviations by sampling.
    pub deviation: [f64; 2],
}

/// Samples after which what they took counts as much as the figures: their ratio is known to 18%.
const TRUSTED_SAMPLES: f64 = 32.0;

/// Samples after which older ones count half, so that the load of now is known.
const RECENT_SAMPLES: f64 = 4096.0;

/// Figures are corrected by this factor at most: one of twenty CPUs that share a memory may have it
/// alone, or all of them.
const CORRECTED_MAX: f64 = 20.0;

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
    /// Sum of the squares of samples' values: their variance, if they come by chance.
    pub(crate) squares: f64,
    /// Nanoseconds a second, as of `at_ns`.
    pub(crate) means: [f32; 2],
    /// The sums of weights over time constants as of then: 1 of what was observed for ever.
    pub(crate) weights: [f64; 2],
    pub(crate) at_ns: u64,
}

impl AccessValue {
    /// Of a machine; `None` where it has one tier. Latencies that are unknown are assumed.
    pub fn of(machine: &Machine) -> Option<AccessValue> {
        let tiers = machine.tiers();
        let [best, .., last] = tiers.as_slice() else { return None };
        let of = |tier: &tiercel_machine::Tier, assumed_ns: f64| {
            let node = tier.nodes.first().and_then(|node| machine.node(*node))?;
            let cost = MissCost::with_latency(machine, node, assumed_ns);
            Some(Side { nodes: tier.nodes.clone(), cost, taken: Default::default() })
        };
        let fast = of(best, ASSUMED_LATENCY_NS)?;
        let fast_ns = fast.cost.miss_ns(1.0, false, false);
        Some(AccessValue { fast, slow: of(last, fast_ns + ASSUMED_LATENCY_NS)? })
    }

    /// Learns what a miss took, if the sample says that and where.
    pub fn observe(&mut self, sample: &Sample) {
        let (Some(latency_ns), Some(node)) = (sample.latency_ns, sample.node.map(NodeId)) else {
            return;
        };
        let sides = [&mut self.fast, &mut self.slow];
        let side = sides.into_iter().find(|side| side.nodes.contains(&node));
        if let (Some(side), false) = (side, sample.kind == AccessKind::Dirtied) {
            side.observe(sample, f64::from(latency_ns));
        }
    }

    /// Of what a sample stands for, nanoseconds. `writes_back`: a store's line goes back later.
    pub fn ns(&self, sample: &Sample, writes_back: bool) -> f64 {
        let (_, is_apart) = around(sample);
        let back = |side: &Side| side.cost.write_back_ns(is_apart) * side.corrected(is_apart);
        let back_ns = back(&self.slow) - back(&self.fast);
        let miss_ns = self.slow.miss_ns(sample) - self.fast.miss_ns(sample);
        let ns = match sample.kind {
            AccessKind::Dirtied => back_ns,
            AccessKind::Write if writes_back => miss_ns + back_ns,
            _ => miss_ns,
        };
        f64::from(sample.weight) * ns
    }
}

/// Misses under way at once, at least 1, and whether the line had no neighbours.
fn around(sample: &Sample) -> (f64, bool) {
    let around = sample.around.map(|around| (f64::from(around.at_once), around.apart));
    let (at_once, is_apart) = around.unwrap_or((AT_ONCE.into(), false));
    (at_once.max(1.0), is_apart)
}

impl Side {
    fn figures_ns(&self, sample: &Sample) -> f64 {
        let (at_once, is_apart) = around(sample);
        self.cost.miss_ns(at_once, is_apart, sample.kind == AccessKind::Write)
    }

    fn miss_ns(&self, sample: &Sample) -> f64 {
        self.figures_ns(sample) * self.corrected(around(sample).1)
    }

    fn corrected(&self, is_apart: bool) -> f64 {
        self.taken[usize::from(is_apart)].over_figures()
    }

    fn observe(&mut self, sample: &Sample, latency_ns: f64) {
        let ((at_once, is_apart), figures_ns) = (around(sample), self.figures_ns(sample));
        self.taken[usize::from(is_apart)].add(latency_ns / at_once, figures_ns);
    }
}

impl Taken {
    fn add(&mut self, observed_ns: f64, figures_ns: f64) {
        let kept = if self.samples >= RECENT_SAMPLES { 0.5 } else { 1.0 };
        self.samples = self.samples * kept + 1.0;
        self.observed_ns = self.observed_ns * kept + observed_ns;
        self.figures_ns = self.figures_ns * kept + figures_ns;
    }

    /// What misses take over what the figures say; 1 where no sample said.
    fn over_figures(&self) -> f64 {
        if self.figures_ns <= 0.0 {
            return 1.0;
        }
        let share = self.samples / (self.samples + TRUSTED_SAMPLES);
        let ratio = 1.0 - share + share * self.observed_ns / self.figures_ns;
        ratio.clamp(1.0 / CORRECTED_MAX, CORRECTED_MAX)
    }
}

/// Time as an entry counts it: how long its extent has been observed, seconds.
#[derive(Clone, Copy)]
pub(crate) struct Since {
    pub(crate) scale: TimeScale,
    /// When that began, nanoseconds.
    pub(crate) begin_ns: u64,
}

impl Since {
    pub(crate) fn age_s(&self, at_ns: u64) -> f64 {
        at_ns.saturating_sub(self.begin_ns) as f64 / 1e9
    }

    /// Time constants at a time, seconds.
    fn tau_s(&self, at_ns: u64) -> [f64; 2] {
        VALUE_TAU_UNITS.map(|units| units * self.scale.unit_s(self.age_s(at_ns)))
    }

    /// What is left of a value of one time at a later one.
    fn kept(&self, from_ns: u64, until_ns: u64) -> [f64; 2] {
        let [from, until] = [from_ns, until_ns].map(|at_ns| self.scale.passed(self.age_s(at_ns)));
        VALUE_TAU_UNITS.map(|units| (-(until - from).max(0.0) / units).exp())
    }

    /// Weights of what was observed for half a unit: a mean over less is no mean.
    pub(crate) fn least_weights(&self) -> [f64; 2] {
        VALUE_TAU_UNITS.map(|units| 1.0 - (-0.5 / units).exp())
    }

    /// Seconds of samples on which an average rests: two time constants.
    pub(crate) fn support_s(&self, at_ns: u64) -> [f64; 2] {
        self.tau_s(at_ns).map(|tau_s| 2.0 * tau_s)
    }
}

impl Entry {
    /// Of an extent that was observed since then without a sample.
    pub(crate) fn new(at_ns: u64, since: Since) -> Entry {
        let (begin_ns, means, weights) = (since.begin_ns, [0.0; 2], [0.0; 2]);
        let entry = Entry { total_ns: 0.0, squares: 0.0, means, weights, at_ns: begin_ns };
        entry.at(at_ns, since)
    }

    /// The same as of a later time.
    pub(crate) fn at(&self, at_ns: u64, since: Since) -> Entry {
        let kept = since.kept(self.at_ns, at_ns);
        Entry {
            means: [0, 1].map(|tau| self.means[tau] * nearest_f32(kept[tau])),
            weights: [0, 1].map(|tau| 1.0 - (1.0 - self.weights[tau]) * kept[tau]),
            at_ns: self.at_ns.max(at_ns),
            ..*self
        }
    }

    pub(crate) fn add(&mut self, ns: f64, at_ns: u64, since: Since) {
        self.add_sum(ns, ns * ns, at_ns, since);
    }

    /// Adds what several samples came to: the sum of their values, and that of the squares.
    pub(crate) fn add_sum(&mut self, ns: f64, squares: f64, at_ns: u64, since: Since) {
        *self = self.at(at_ns, since);
        // A late sample counts less.
        let (tau_s, kept) = (since.tau_s(at_ns), since.kept(at_ns, self.at_ns));
        for (mean, (tau_s, kept)) in self.means.iter_mut().zip(tau_s.into_iter().zip(kept)) {
            *mean += nearest_f32(ns / tau_s * kept);
        }
        self.total_ns += ns;
        self.squares += squares;
    }

    /// The averages, nanoseconds a second.
    pub(crate) fn rates(&self, least: [f64; 2]) -> [f64; 2] {
        [0, 1].map(|tau| f64::from(self.means[tau]) / self.weights[tau].max(least[tau]))
    }

    /// So much of it: of what it saw, and of the rates.
    pub(crate) fn part(&self, of_total: f64, of_means: f32) -> Entry {
        let means = self.means.map(|mean| mean * of_means);
        let (total_ns, squares) = (self.total_ns * of_total, self.squares * of_total);
        Entry { total_ns, squares, means, ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_as_its_unit_grows() {
        let scale = TimeScale::new(32, 2000);
        let units_s = [0.1, 0.64, 10.0, 40.0, 1e4].map(|age_s| scale.unit_s(age_s));
        assert_eq!(units_s, [0.032, 0.032, 0.5, 2.0, 2.0]);
        let step_s = 1e-3;
        let mut passed = 0.0;
        for at in 0..100_000 {
            let age_s = f64::from(at) * step_s;
            assert!((scale.passed(age_s) - passed).abs() < 0.02 + passed * 1e-3, "{age_s}");
            passed += step_s / scale.unit_s(age_s + step_s / 2.0);
        }
    }

    #[test]
    fn a_constant_rate_is_its_average_at_any_age_and_with_any_ticks() {
        let since = |tick_ms| Since { scale: TimeScale::new(tick_ms, 2000), begin_ns: 0 };
        let mut entry = Entry::new(0, since(32));
        for ms in 1..100_000_u64 {
            let tick_ms = if ms % 20_000 < 10_000 { 32 } else { 900 };
            entry.add(7e3, ms * 1_000_000, since(tick_ms));
            if [50, 300, 1_000, 10_000, 10_500, 20_100, 50_000].contains(&ms) {
                let rates = entry.rates([0.0; 2]);
                assert!(rates.iter().all(|rate| (rate / 7e6 - 1.0).abs() < 0.02), "{rates:?}");
            }
        }
    }
}
