//! Vregions: `./x bench vmem-moves` and the experiment `movers`. In: stored rows. Out: tables, a
//! figure. Knows nothing of how memory moves.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use tiercel_lab::bench::RunResult;
use tiercel_report::{Bars, Series};

use super::{Case, Grid, Stored, mib};
use tiercel_bench::BenchResult;

const FILE: &str = "vmem/moves.jsonl";
const KERNEL: &str = "kernel, mbind";
/// As the bench names what moves, and what a thread does meanwhile.
const KINDS: [&str; 4] = [
    "4 KiB, read meanwhile",
    "4 KiB, written meanwhile",
    "2 MiB, read meanwhile",
    "2 MiB, written meanwhile",
];
/// As the bench names the ways to move.
const WAYS: [&str; 5] = [
    KERNEL,
    "vmem, copy and switch",
    "vmem, back to a shadow",
    "vmem, copy alone",
    "vmem, switch alone",
];
const WAITS: &str = ": longest wait for memory";

/// Figures of the bench by name.
struct Figures(BTreeMap<String, f64>);

impl Figures {
    fn read(stored: &Stored) -> Result<Figures> {
        let rows: Vec<BenchResult> = stored.lines(FILE)?;
        Ok(Figures(rows.into_iter().map(|row| (row.name, row.ours)).collect()))
    }

    fn of(&self, name: &str) -> Result<f64> {
        self.0.get(name).copied().with_context(|| format!("{FILE} lacks {name:?}"))
    }

    /// The time of the kernel's move over that of `way`.
    fn speed(&self, kind: &str, way: &str) -> Result<f64> {
        Ok(self.of(&format!("{kind}: {KERNEL}"))? / self.of(&format!("{kind}: {way}"))?)
    }
}

/// GB/s, and the speed over the kernel's.
pub fn speeds(stored: &Stored) -> Result<String> {
    let figures = Figures::read(stored)?;
    let cell = |kind: &str, way: &str| {
        // The bench gives nanoseconds for an OS page of 4096 bytes.
        let gb_s = 4096.0 / figures.of(&format!("{kind}: {way}"))?;
        Ok(format!("{gb_s:.2} ({:.2})", figures.speed(kind, way)?))
    };
    table("GB/s (over the kernel's)", &cell)
}

/// The longest wait for memory, milliseconds.
pub fn waits(stored: &Stored) -> Result<String> {
    let figures = Figures::read(stored)?;
    let cell = |kind: &str, way: &str| {
        Ok(format!("{:.2}", figures.of(&format!("{kind}: {way}{WAITS}"))? / 1e3))
    };
    table("longest wait for memory, ms", &cell)
}

fn table(name: &str, cell: &dyn Fn(&str, &str) -> Result<String>) -> Result<String> {
    let mut grid = Grid::new([name].into_iter().chain(WAYS));
    for kind in KINDS {
        let cells: Result<Vec<String>> = WAYS.iter().map(|way| cell(kind, way)).collect();
        grid.row([kind.to_owned()].into_iter().chain(cells?));
    }
    Ok(grid.text())
}

pub fn figure(stored: &Stored) -> Result<String> {
    let figures = Figures::read(stored)?;
    let mut series = Vec::new();
    for way in &WAYS[1..] {
        let mut points = Vec::new();
        for (at, kind) in KINDS.iter().enumerate() {
            points.push((at as f64, figures.speed(kind, way)?));
        }
        series.push(Series { name: (*way).to_owned(), points });
    }
    let bars = Bars {
        title: "Migration of 32 MiB by vregions, spr-vmem".to_owned(),
        y: "speed over the kernel's mbind".to_owned(),
        groups: KINDS.map(String::from).to_vec(),
        series,
        mark: Some(1.0),
    };
    Ok(bars.svg()?)
}

/// A value of a run, and its decimals.
type Value = fn(&RunResult) -> f64;

/// The experiment `movers`: the kernel's mover and the program's own, by workload.
pub fn movers(stored: &Stored) -> Result<String> {
    const LINES: [(&str, &str, Value); 15] = [
        ("first touch: time, s", "first-touch", time_s),
        ("online, kernel's mover: time, s", "kernel's mover", time_s),
        ("online, program's mover: time, s", "vmem", time_s),
        ("online, kernel's mover: moved, MiB", "kernel's mover", moved_mib),
        ("online, program's mover: moved, MiB", "vmem", moved_mib),
        ("of it by the program itself, MiB", "vmem", own_mib),
        ("online, kernel's mover: ns a byte", "kernel's mover", ns_per_byte),
        ("online, program's mover: ns a byte", "vmem", ns_per_byte),
        ("online, kernel's mover: waits for memory, ms", "kernel's mover", waits_ms),
        ("online, program's mover: waits for memory, ms", "vmem", waits_ms),
        ("online, kernel's mover: longest wait, ms", "kernel's mover", longest_ms),
        ("online, program's mover: longest wait, ms", "vmem", longest_ms),
        ("online, kernel's mover: daemon's CPU, ms", "kernel's mover", daemon_ms),
        ("online, program's mover: daemon's CPU, ms", "vmem", daemon_ms),
        ("by a plan, kernel's mover: time, s", "plan, kernel's mover", time_s),
    ];
    let rows = stored.results("movers");
    let mut names: Vec<&str> = rows.iter().map(|row| row.cell.workload.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let mut grid = Grid::new([""].into_iter().chain(names.iter().copied()));
    let last = ("by a plan, program's mover: time, s", "plan, vmem", time_s as Value);
    for (what, policy, value) in LINES.into_iter().chain([last]) {
        let case = Case::new("cascadelake-optane", "25%");
        let run = |name: &str| case.runs(rows, policy).find(|row| row.cell.workload == name);
        let cell = |name: &&str| run(name).map_or(String::new(), |row| digits(value(row)));
        grid.line(what, &names, cell);
    }
    Ok(grid.text())
}

/// Three digits.
fn digits(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn time_s(run: &RunResult) -> f64 {
    run.measured.time_ns as f64 / 1e9
}

fn moved_mib(run: &RunResult) -> f64 {
    mib(run.measured.bytes_moved_by_us() as f64)
}

fn own_mib(run: &RunResult) -> f64 {
    mib(run.measured.figure(&["moves", "own_bytes"]).unwrap_or(0.0))
}

fn ns_per_byte(run: &RunResult) -> f64 {
    let took_ns = run.measured.figure(&["moves", "took_ns"]).unwrap_or(0.0);
    took_ns / (run.measured.bytes_moved_by_us() as f64).max(1.0)
}

fn waits_ms(run: &RunResult) -> f64 {
    run.measured.waits.map_or(0.0, |waits| waits.for_memory_ns as f64 / 1e6)
}

fn longest_ms(run: &RunResult) -> f64 {
    run.measured.waits.map_or(0.0, |waits| waits.for_memory_ns_max as f64 / 1e6)
}

fn daemon_ms(run: &RunResult) -> f64 {
    run.measured.figure(&["spent", "cpu_ns"]).unwrap_or(0.0) / 1e6
}
