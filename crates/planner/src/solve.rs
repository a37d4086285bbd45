//! From a problem to a choice with a bound: prices, repair, and a complete search where that is
//! fast.
//! In: a problem, how much effort. Out: a choice that keeps all capacities, its cost, and a bound
//! for all choices. Knows nothing of objects or machines.

use crate::dual::{Sums, climb, no_prices, sample, stride};
use crate::exact::{ALIKE, search};
use crate::options::Effort;
use crate::problem::Problem;
use crate::repair::{Filled, by_size, by_urgency, fill};

/// Fewest rounds of a climb on everything, however large.
const ROUNDS_LEAST: usize = 8;
/// Rounds of a climb on a sample.
const ROUNDS_SAMPLE: usize = 80;
/// Times that every item chooses again at the end, unless that stops helping earlier.
const IMPROVEMENTS_MAX: usize = 3;
/// Another improvement must save this share of the rest to the bound.
const IMPROVEMENT_LEAST: f64 = 0.05;

/// A choice and what is known about it.
#[derive(Clone, Debug)]
pub struct Solution {
    pub choice: Vec<u8>,
    /// No choice costs less.
    pub bound: f64,
    /// Whether it is the best: searched completely, or at the bound.
    pub proven: bool,
    /// Price per byte of the room, `slot * memories + memory`.
    pub prices: Vec<f64>,
}

/// Solves it. `seed`: a choice that keeps the capacities, if one is known; the result is not worse.
/// The item that finds no room is the error.
pub fn solve(problem: &Problem, effort: &Effort, seed: Option<Vec<u8>>) -> Result<Solution, usize> {
    #[cfg(feature = "exact")]
    if effort.by_reference
        && let Some(choice) = crate::reference::solve(problem)
    {
        let (bound, prices) = (problem.value(&choice), no_prices(problem));
        return Ok(Solution { choice, bound, proven: true, prices });
    }
    let free = Sums::of(&no_prices(problem), problem.memories);
    let rounds = (effort.path_steps / problem.spans.len().max(1)).min(effort.rounds_max);
    let mut candidates: Vec<Filled> = Vec::new();
    candidates.extend(seed.map(|seed| Filled::of(problem, seed)));
    candidates.extend(fill(problem, &by_urgency(problem, &free), &free).ok());
    let upper = candidates.iter().map(|filled| filled.value).fold(f64::INFINITY, f64::min);
    let start = match stride(problem) {
        Some(stride) => sampled_prices(problem, stride),
        None => no_prices(problem),
    };
    let prices = climb(problem, start, upper, rounds.max(ROUNDS_LEAST));
    let sums = Sums::of(&prices.per_byte, problem.memories);
    let order = by_urgency(problem, &sums);
    let repaired = fill(problem, &order, &sums);
    let stuck = repaired.as_ref().err().copied();
    candidates.extend(repaired.ok());
    if candidates.is_empty() {
        candidates.extend(fill(problem, &by_size(problem), &free).ok());
    }
    candidates.sort_by(|a, b| a.value.total_cmp(&b.value));
    let mut best = candidates.into_iter().next();
    if let Some(best) = &mut best {
        improve(problem, best, &order, &free, prices.bound);
    }
    let known = best.as_ref().map_or(f64::INFINITY, |best| best.value);
    let mut proven = known - prices.bound <= known.abs() * ALIKE;
    let mut choice = best.map(|best| best.choice);
    if !proven {
        let searched = search(problem, &prices.per_byte, &order, known, effort.search_steps);
        proven = searched.proven;
        choice = searched.choice.or(choice);
    }
    let choice = choice.ok_or(stuck.unwrap_or(0))?;
    let value = problem.value(&choice);
    let bound = if proven { value } else { prices.bound.min(value) };
    Ok(Solution { choice, bound, proven, prices: prices.per_byte })
}

fn sampled_prices(problem: &Problem, stride: usize) -> Vec<f64> {
    let sample = sample(problem, stride);
    let free = Sums::of(&no_prices(&sample), sample.memories);
    let upper = fill(&sample, &by_urgency(&sample, &free), &free)
        .map_or(f64::INFINITY, |filled| filled.value);
    climb(&sample, no_prices(&sample), upper, ROUNDS_SAMPLE).per_byte
}

fn improve(problem: &Problem, best: &mut Filled, order: &[u32], free: &Sums, bound: f64) {
    for _ in 0..IMPROVEMENTS_MAX {
        let saved = best.improve(problem, order, free);
        if saved <= (best.value - bound) * IMPROVEMENT_LEAST {
            break;
        }
    }
}
