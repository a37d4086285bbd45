//! What is known of a slowdown where the sampler did not count misses.
//! In: a profile, memories. Out: [`PredictionBounds`]. Knows nothing of plans or of intervals.
//!
//! Page-table bits and hint faults show that an OS page was used, not how often, and not whether a
//! cache served the use. Both leave the time that the program waited for memory unknown, so that a
//! single figure would only look like a prediction. What is left are the two extremes:
//!
//! ```text
//!   least     caches served everything: no placement changes the time
//!   most      the program did nothing but wait, for the figure in which memories differ most
//! ```
//!
//! A plan is between them by the share of accesses that it leaves in slower memories. That share is
//! an estimate, too; the most that it may be enters here.

use tiercel_machine::number::index_u32;
use tiercel_plan::{Bounds, PredictionBounds};
use tiercel_planner::Memory;
use tiercel_profile::Profile;

/// Half-width of a 95% confidence interval in standard deviations of a normal distribution.
pub(crate) const DEVIATIONS: f64 = 1.96;

/// By how much the ratio of two objects' rates may be off: the largest that `./x bench sampler`
/// measured for what it distinguishes at all (docs/samplers.md, reads without a pause).
const RATIO_ERROR_MAX: f64 = 7.6;

/// Of n trials without a hit, 3 / n is the upper end of the 95% interval of the share of hits.
const NO_HIT: f64 = 3.0;

/// Name of the sampler, where one run of the profile was not observed by counting misses.
pub(crate) fn ceiling_of(profile: &Profile) -> Option<&str> {
    profile.runs.iter().find(|run| !run.misses_only).map(|run| run.sampler.as_str())
}

/// What bounds rest on.
pub(crate) struct Known<'a> {
    pub(crate) profile: &'a Profile,
    /// Fastest first.
    pub(crate) memories: &'a [Memory],
    /// Whether the plan has everything in the fastest memory.
    pub(crate) is_all_fast: bool,
    /// Share of the accesses that the fastest memory serves, as far as they were observed.
    pub(crate) fast_share: Option<f64>,
    /// Time of moves over the all-fast time.
    pub(crate) moves: f64,
}

impl Known<'_> {
    /// The bounds of a prediction; `None` where misses were counted.
    pub(crate) fn bounds(&self) -> Option<PredictionBounds> {
        ceiling_of(self.profile)?;
        let (fastest, others) = self.memories.split_first()?;
        let threads = index_u32(self.profile.machine.cpus().len().max(1));
        let ratios = |memory| ratios(fastest, memory, threads);
        let all: Vec<f64> = others.iter().flat_map(ratios).collect();
        let last = others.last().map_or(Vec::new(), |memory| ratios(memory).into());
        let planned = between(&all, self.slow_share_max());
        let slowdown = Bounds { most: planned.most + self.moves, ..planned };
        Some(PredictionBounds { slowdown, all_slow: between(&last, 1.0) })
    }

    /// The most that the share of accesses to slower memories may be: chance, with each cell of the
    /// profile as one trial, because samples of one look come together; and then the sampler's
    /// error of ratios, by which the odds may be off.
    fn slow_share_max(&self) -> f64 {
        if self.is_all_fast {
            return 0.0;
        }
        let share = self.fast_share.map_or(1.0, |fast| (1.0 - fast).clamp(0.0, 1.0));
        let trials = self.profile.accesses.len().max(1) as f64;
        let chance = DEVIATIONS * (share * (1.0 - share) / trials).sqrt() + NO_HIT / trials;
        let share = (share + chance).min(1.0);
        let odds = share * RATIO_ERROR_MAX;
        odds / (odds + 1.0 - share)
    }
}

/// The extremes of a time over the all-fast one, if this share of accesses is slower by one of
/// `ratios`.
fn between(ratios: &[f64], share: f64) -> Bounds {
    let extreme = |of: fn(f64, f64) -> f64| ratios.iter().copied().fold(1.0, of);
    let at = |ratio: f64| 1.0 + (ratio - 1.0) * share;
    Bounds { least: at(extreme(f64::min)), most: at(extreme(f64::max)) }
}

/// How much longer another memory takes than the fastest, by each figure that a program may wait
/// for, with one thread and with as many as the recording machine has CPUs. Whatever mixture it
/// waits for lies between these.
fn ratios(fastest: &Memory, other: &Memory, threads: u32) -> [f64; 8] {
    let costs = |memory: &Memory| {
        let (read, write) = (memory.read_gb_s_with(threads), memory.write_gb_s_with(threads));
        [
            memory.read_latency_ns,
            memory.write_latency_ns,
            memory.read_gb_s_with(1).recip(),
            memory.write_gb_s_with(1).recip(),
            read.recip(),
            write.recip(),
            memory.isolated_read_factor / read,
            memory.isolated_write_factor / write,
        ]
    };
    let (fast, slow) = (costs(fastest), costs(other));
    std::array::from_fn(|at| slow[at] / fast[at])
}
