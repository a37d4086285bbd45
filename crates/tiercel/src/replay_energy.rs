//! Energies of replays: joules, energy-delay product, moves and wear, over OS pages in turns.
//! In: comparisons of a machine with known energies. Out: rows, a table. Knows nothing of streams.

use crate::table::{Align, Table};
use serde::Serialize;
use std::collections::BTreeSet;
use tiercel_replay::{Comparison, ContenderResult, RunReport};

/// A contender with one size of fast memory, over all streams.
#[derive(Serialize)]
pub struct EnergyStanding {
    policy: String,
    /// Fast memory, thousandths of the peak.
    per_mille: u64,
    comparisons: usize,
    /// Time over that of interleave, geometric mean.
    time: f64,
    /// For each factor of static power; empty where energies are unknown.
    energies: Vec<EnergyRatio>,
    /// Bytes moved over the peak, mean; that and the next two are unknown of the bound.
    moved: Option<f64>,
    /// Time of moves over that of the run, mean.
    moving: Option<f64>,
    /// Share of misses that fast memory served, mean.
    fast_share: Option<f64>,
    /// Bytes written to slow memory, all streams together, over those of interleave.
    written_slow: Option<f64>,
}

/// Energy over that of interleave, geometric means.
#[derive(Serialize)]
struct EnergyRatio {
    /// Static power is so many times what the machine's description has.
    static_times: f64,
    joules: f64,
    /// Energy-delay product.
    edp: f64,
}

/// A run of a contender, and interleave's of the same stream and size.
type Pair<'a> = (&'a Comparison, &'a RunReport);

/// Name of the row of the bounds: time and energy are each at least that, not in one run.
const BOUND: &str = "bound";

/// Standings of all contenders with each size of fast memory, and of the bounds.
pub fn energy_standings(comparisons: &[Comparison], factors: &[f64]) -> Vec<EnergyStanding> {
    let sizes: BTreeSet<u64> = comparisons.iter().map(|one| one.per_mille).collect();
    let names = comparisons.first().map(|one| one.results.iter().map(|result| &result.name));
    let of_size = |per_mille: u64| {
        comparisons.iter().filter(|one| one.per_mille == per_mille).collect::<Vec<_>>()
    };
    let mut standings = Vec::new();
    for name in names.into_iter().flatten() {
        for per_mille in &sizes {
            let is_named = |result: &&ContenderResult| result.name == *name;
            let results = of_size(*per_mille).into_iter().flat_map(|one| {
                one.results.iter().filter(is_named).map(move |result| (one, result))
            });
            let results: Vec<(&Comparison, &ContenderResult)> = results.collect();
            standings.extend(standing(name, *per_mille, &results, factors));
        }
    }
    let bounds = sizes.iter().filter_map(|size| bound(*size, &of_size(*size), factors));
    standings.extend(bounds);
    standings
}

fn standing(
    name: &str,
    per_mille: u64,
    results: &[(&Comparison, &ContenderResult)],
    factors: &[f64],
) -> Option<EnergyStanding> {
    let runs = results.iter().flat_map(|(one, result)| result.runs.iter().map(move |r| (*one, r)));
    let pairs: Vec<Pair<'_>> = runs.collect();
    if pairs.is_empty() {
        return None;
    }
    let time = |(one, run): &Pair<'_>| run.time_ns / one.interleave.time_ns;
    let is_known = |(one, run): &Pair<'_>| run.joules.is_some() && one.interleave.joules.is_some();
    let factors = if pairs.iter().all(is_known) { factors } else { &[] };
    let joules = |pair: &Pair<'_>, factor: f64| total_j(pair.1, factor) / turns_j(pair.0, factor);
    let moved = |(one, run): &Pair<'_>| {
        (run.promoted_bytes + run.demoted_bytes) as f64 / one.peak_bytes.max(1) as f64
    };
    let written = |run: &RunReport| run.written_slow_bytes();
    let turns_written: f64 = pairs.iter().map(|(one, _)| written(&one.interleave)).sum();
    let own_written: f64 = pairs.iter().map(|(_, run)| written(run)).sum();
    let fast_share = |(_, run): &Pair<'_>| run.spent.fast_misses / run.spent.misses.max(1.0);
    Some(EnergyStanding {
        policy: name.to_owned(),
        per_mille,
        comparisons: results.len(),
        time: geometric(&pairs, time),
        energies: ratios(&pairs, factors, time, joules),
        moved: Some(mean(&pairs, moved)),
        moving: Some(mean(&pairs, |(_, run)| run.moving_ns() / run.time_ns)),
        fast_share: Some(mean(&pairs, fast_share)),
        written_slow: (turns_written > 0.0).then_some(own_written / turns_written),
    })
}

/// What no run is below.
fn bound(per_mille: u64, of_size: &[&Comparison], factors: &[f64]) -> Option<EnergyStanding> {
    let is_known = |one: &&Comparison| one.bound_j.is_some() && one.interleave.joules.is_some();
    let factors = if of_size.iter().all(is_known) { factors } else { &[] };
    let time = |one: &&Comparison| one.paid.bound_ns / one.interleave.time_ns;
    // Static power is of as many bytes as interleave has, for at least the bound's time.
    let joules = |one: &&Comparison, factor: f64| {
        let holding_j = one.interleave.joules.unwrap_or_default().holding_j * time(one);
        (one.bound_j.unwrap_or_default() + factor * holding_j) / turns_j(one, factor)
    };
    (!of_size.is_empty()).then(|| EnergyStanding {
        policy: BOUND.to_owned(),
        per_mille,
        comparisons: of_size.len(),
        time: geometric(of_size, time),
        energies: ratios(of_size, factors, time, joules),
        moved: None,
        moving: None,
        fast_share: None,
        written_slow: None,
    })
}

fn total_j(run: &RunReport, factor: f64) -> f64 {
    run.joules.unwrap_or_default().total_j(factor)
}

fn turns_j(one: &Comparison, factor: f64) -> f64 {
    total_j(&one.interleave, factor)
}

fn ratios<T>(
    all: &[T],
    factors: &[f64],
    time: impl Fn(&T) -> f64,
    joules: impl Fn(&T, f64) -> f64,
) -> Vec<EnergyRatio> {
    let ratio = |factor: &f64| EnergyRatio {
        static_times: *factor,
        joules: geometric(all, |one| joules(one, *factor)),
        edp: geometric(all, |one| joules(one, *factor) * time(one)),
    };
    factors.iter().map(ratio).collect()
}

fn geometric<T>(all: &[T], of: impl Fn(&T) -> f64) -> f64 {
    mean(all, |one| of(one).ln()).exp()
}

fn mean<T>(all: &[T], of: impl Fn(&T) -> f64) -> f64 {
    all.iter().map(of).sum::<f64>() / all.len() as f64
}

/// The table, and what it shows; empty where energies are unknown: `--json` has the rest.
pub fn energy_text(standings: &[EnergyStanding]) -> String {
    let first = standings.first().filter(|first| !first.energies.is_empty());
    let Some(first) = first else { return String::new() };
    use Align::{Left, Right};
    let name = |one: &EnergyRatio| format!("x{}", one.static_times);
    let factors: Vec<String> = first.energies.iter().map(name).collect();
    let ratios: Vec<[String; 2]> =
        factors.iter().map(|name| [format!("J {name}"), format!("EDP {name}")]).collect();
    let mut columns = vec![("policy", Left), ("fast", Right), ("cases", Right), ("time", Right)];
    columns.extend(ratios.iter().flatten().map(|name| (name.as_str(), Right)));
    let rest = ["moved", "moving", "in fast", "slow writes"];
    columns.extend(rest.map(|name| (name, Right)));
    let mut table = Table::new(&columns);
    standings.iter().for_each(|one| table.row(cells(one)));
    format!(
        "\n{}energies over those of interleave, static power of the provisioned memory {} what the \
         description has; moved: bytes over the peak; moving: share of the time; in fast: of \
         misses; slow writes: bytes over interleave's; bound: no run takes less time, nor less \
         energy\n",
        table.text(),
        factors.join(", ")
    )
}

fn cells(one: &EnergyStanding) -> Vec<String> {
    let mut cells = vec![
        one.policy.clone(),
        format!("{}%", one.per_mille as f64 / 10.0),
        one.comparisons.to_string(),
        format!("{:.3}", one.time),
    ];
    for ratio in &one.energies {
        cells.extend([ratio.joules, ratio.edp].map(|value| format!("{value:.3}")));
    }
    let shown = |value: Option<f64>, show: fn(f64) -> String| value.map_or("-".to_owned(), show);
    cells.push(shown(one.moved, |ratio| format!("{ratio:.2}")));
    let shares = [one.moving, one.fast_share];
    cells.extend(shares.map(|value| shown(value, |share| format!("{:.1}%", share * 100.0))));
    cells.push(shown(one.written_slow, |ratio| format!("{ratio:.3}")));
    cells
}
