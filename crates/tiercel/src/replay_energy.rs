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
    /// For each factor of static power.
    energies: Vec<EnergyRatio>,
    /// Bytes moved over the peak, mean.
    moved: f64,
    /// Time of moves over that of the run, mean.
    moving: f64,
    /// Share of misses that fast memory served, mean.
    fast_share: f64,
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

/// Standings of all contenders; none where energies are unknown.
pub fn energy_standings(comparisons: &[Comparison], factors: &[f64]) -> Vec<EnergyStanding> {
    let sizes: BTreeSet<u64> = comparisons.iter().map(|one| one.per_mille).collect();
    let names = comparisons.first().map(|one| one.results.iter().map(|result| &result.name));
    let mut standings = Vec::new();
    for name in names.into_iter().flatten() {
        for per_mille in &sizes {
            let of_size = comparisons.iter().filter(|one| one.per_mille == *per_mille);
            let is_named = |result: &&ContenderResult| result.name == *name;
            let results = of_size.flat_map(|one| {
                one.results.iter().filter(is_named).map(move |result| (one, result))
            });
            let results: Vec<(&Comparison, &ContenderResult)> = results.collect();
            standings.extend(standing(name, *per_mille, &results, factors));
        }
    }
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
    let is_known = |(one, run): &Pair<'_>| run.joules.is_some() && one.interleave.joules.is_some();
    if pairs.is_empty() || !pairs.iter().all(is_known) {
        return None;
    }
    let time = |(one, run): &Pair<'_>| run.time_ns / one.interleave.time_ns;
    let joules = |pair: &Pair<'_>, factor: f64| {
        let total = |run: &RunReport| run.joules.unwrap_or_default().total_j(factor);
        total(pair.1) / total(&pair.0.interleave)
    };
    let ratio = |factor: &f64| EnergyRatio {
        static_times: *factor,
        joules: geometric(&pairs, |pair| joules(pair, *factor)),
        edp: geometric(&pairs, |pair| joules(pair, *factor) * time(pair)),
    };
    let moved = |(one, run): &Pair<'_>| {
        (run.promoted_bytes + run.demoted_bytes) as f64 / one.peak_bytes.max(1) as f64
    };
    let written = |run: &RunReport| run.written_slow_bytes();
    let turns_written: f64 = pairs.iter().map(|(one, _)| written(&one.interleave)).sum();
    let own_written: f64 = pairs.iter().map(|(_, run)| written(run)).sum();
    Some(EnergyStanding {
        policy: name.to_owned(),
        per_mille,
        comparisons: results.len(),
        time: geometric(&pairs, time),
        energies: factors.iter().map(ratio).collect(),
        moved: mean(&pairs, moved),
        moving: mean(&pairs, |(_, run)| run.moving_ns() / run.time_ns),
        fast_share: mean(&pairs, |(_, run)| run.spent.fast_misses / run.spent.misses.max(1.0)),
        written_slow: (turns_written > 0.0).then_some(own_written / turns_written),
    })
}

fn geometric(pairs: &[Pair<'_>], of: impl Fn(&Pair<'_>) -> f64) -> f64 {
    mean(pairs, |pair| of(pair).ln()).exp()
}

fn mean(pairs: &[Pair<'_>], of: impl Fn(&Pair<'_>) -> f64) -> f64 {
    pairs.iter().map(of).sum::<f64>() / pairs.len() as f64
}

/// The table, and what it shows; empty without standings.
pub fn energy_text(standings: &[EnergyStanding]) -> String {
    let Some(first) = standings.first() else { return String::new() };
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
         misses; slow writes: bytes over interleave's\n",
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
    cells.push(format!("{:.2}", one.moved));
    cells.extend([one.moving, one.fast_share].map(|share| format!("{:.1}%", share * 100.0)));
    cells.push(one.written_slow.map_or("-".to_owned(), |ratio| format!("{ratio:.3}")));
    cells
}
