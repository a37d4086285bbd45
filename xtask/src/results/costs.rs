//! The set-up of all experiments, and what Tiercel costs. In: stored rows. Out: tables, a figure.
//! Knows nothing of what is gained.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use tiercel_lab::bench::RunResult;
use tiercel_report::{Bars, Series};

use super::stored::EXPERIMENTS;
use super::{Case, Grid, Stored, mib};
use tiercel_bench::BenchResult;

const INSTRUCTIONS: &str = "overhead/instructions.jsonl";
/// What ran beside the program, as the bench of instructions names it.
const STAGES: [&str; 3] = ["tracking", "everything", "planned"];

/// A line for each experiment.
pub fn setup(stored: &Stored) -> Result<String> {
    let head =
        ["experiment", "machines", "fast memory", "workloads", "policies", "runs", "of each"];
    let mut grid = Grid::of_words(head);
    for name in EXPERIMENTS {
        let rows = stored.results(name);
        let distinct =
            |of: &dyn Fn(&RunResult) -> String| rows.iter().map(of).collect::<BTreeSet<_>>();
        let listed = |found: BTreeSet<String>| found.into_iter().collect::<Vec<_>>().join(", ");
        let mut shares: Vec<_> = rows.iter().filter_map(|row| row.cell.share).collect();
        shares.sort_by(|a, b| a.of_one().total_cmp(&b.of_one()));
        shares.dedup();
        let shares: Vec<String> = shares.iter().map(ToString::to_string).collect();
        let repeats = rows.iter().map(|row| row.cell.repeat + 1).max().unwrap_or(0);
        grid.row([
            format!("[{name}](../lab/results/{name}/README.md)"),
            listed(distinct(&|row| row.cell.machine.clone())),
            shares.join(", "),
            distinct(&|row| row.cell.workload.clone()).len().to_string(),
            distinct(&|row| row.cell.policy.clone()).len().to_string(),
            rows.len().to_string(),
            repeats.to_string(),
        ]);
    }
    Ok(grid.text())
}

/// MAT's table 3, and what a run costs, by workload.
pub fn online(stored: &Stored) -> Result<String> {
    let head = [
        "Tiercel at 25%",
        "peak, MiB",
        "objects",
        "samples",
        "in objects, %",
        "moved, MiB",
        "daemon, % of the time",
    ];
    let mut grid = Grid::new(head);
    for run in Case::new("cascadelake-optane", "25%").runs(stored.results("mat"), "tiercel") {
        let of = |path: &[&str]| run.measured.figure(path).unwrap_or(0.0);
        let seen = of(&["samples", "seen"]);
        grid.row([
            run.cell.workload.clone(),
            format!("{:.1}", mib(run.measured.peak_bytes as f64)),
            format!("{:.0}", of(&["objects", "born"])),
            format!("{seen:.0}"),
            format!("{:.1}", 100.0 * of(&["samples", "attributed"]) / seen.max(1.0)),
            format!("{:.0}", mib(run.measured.bytes_moved_by_us() as f64)),
            format!("{:.1}", 100.0 * share_of_daemon(run)),
        ]);
    }
    Ok(grid.text())
}

/// The daemon's CPU time over the run's time.
fn share_of_daemon(run: &RunResult) -> f64 {
    let cpu_ns = run.measured.figure(&["spent", "cpu_ns"]).unwrap_or(0.0);
    cpu_ns / (run.measured.wall_ns as f64).max(1.0)
}

/// What of the program's only CPU the daemon takes, and sampling.
pub fn daemon(stored: &Stored) -> Result<String> {
    const LINES: [(&str, &str, &str, &str, &str); 5] = [
        ("online", "mat", "cascadelake-optane", "25%", "tiercel"),
        ("online, program's own mover", "movers", "cascadelake-optane", "25%", "vmem"),
        ("by a plan", "h2m", "icelake-optane", "25%", "joint"),
        ("by a plan", "h2m", "xeonmax-hbm", "25%", "joint"),
        ("by a plan with `--adapt`", "h2m-adapt", "icelake-optane", "25%", "joint-adapt"),
    ];
    let head = ["% of the run's time", "machine", "runs", "daemon", "of it the mover", "sampling"];
    let mut grid = Grid::new(head);
    for (what, experiment, machine, share, policy) in LINES {
        let runs: Vec<&RunResult> =
            Case::new(machine, share).runs(stored.results(experiment), policy).collect();
        let percent = |key: &str| {
            let of = |run: &&RunResult| {
                let ns = run.measured.figure(&["spent", key]).unwrap_or(0.0);
                100.0 * ns / (run.measured.wall_ns as f64).max(1.0)
            };
            spread(&runs.iter().map(of).collect::<Vec<f64>>())
        };
        let figures = ["cpu_ns", "mover_ns", "theirs_ns"].map(percent);
        let words = [format!("{what}, `{experiment}`"), machine.to_owned(), runs.len().to_string()];
        grid.row(words.into_iter().chain(figures));
    }
    Ok(grid.text())
}

/// `7.8 (0.9 to 14.2)`: the mean, the least and the most.
fn spread(values: &[f64]) -> String {
    let mean = values.iter().sum::<f64>() / (values.len() as f64).max(1.0);
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    format!("{mean:.1} ({least:.1} to {most:.1})")
}

/// Instructions over plain: program, ratio for each stage.
fn ratios(stored: &Stored) -> Result<Vec<(String, [f64; 3])>> {
    let rows: Vec<BenchResult> = stored.lines(INSTRUCTIONS)?;
    let ratio = |name: &str| {
        let row = rows.iter().find(|row| row.name == name);
        row.and_then(|row| row.ratio).with_context(|| format!("no row {name:?}"))
    };
    let mut found = Vec::new();
    for row in &rows {
        let Some((program, _)) = row.name.split_once(", tracking, ") else { continue };
        let mut three = [0.0; 3];
        for (value, stage) in three.iter_mut().zip(STAGES) {
            *value = ratio(&format!("{program}, {stage}, instructions"))?;
        }
        found.push((program.to_owned(), three));
    }
    Ok(found)
}

pub fn instructions(stored: &Stored) -> Result<String> {
    let mut grid = Grid::new(["instructions over plain"].into_iter().chain(STAGES));
    for (program, ratios) in ratios(stored)? {
        grid.line(&program, &ratios, |ratio| format!("{ratio:.3}"));
    }
    Ok(grid.text())
}

pub fn figure(stored: &Stored) -> Result<String> {
    let ratios = ratios(stored)?;
    let series = |(stage, name): (usize, &str)| Series {
        name: name.to_owned(),
        points: ratios.iter().enumerate().map(|(at, one)| (at as f64, one.1[stage])).collect(),
    };
    let bars = Bars {
        title: "Instructions of unmodified programs under Tiercel".to_owned(),
        y: "instructions over plain".to_owned(),
        groups: ratios.iter().map(|(program, _)| program.clone()).collect(),
        series: STAGES.into_iter().enumerate().map(series).collect(),
        mark: Some(1.0),
    };
    Ok(bars.svg()?)
}
