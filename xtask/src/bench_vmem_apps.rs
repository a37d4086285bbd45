//! `./x bench vmem-apps`: what a heap of vregions costs programs that nobody moves. In: workloads
//! of our own and real programs, hosted with `--backing vmem` and with `--backing kernel` in turns.
//! Out: rows of CPU time of all processes, and of the largest one's peak memory. Knows nothing of
//! how vregions work.
//!
//! What else runs on a machine only ever adds to a program's time: as in `./x bench overhead` the
//! least of many runs is what a program costs.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::bench::Row;
use crate::measure::{self, Cost};
use crate::programs::{self, Host, Parts};
use crate::{build, exec};

/// Rounds of a full run and of a quick one: each runs every program in both ways once.
const ROUNDS: [usize; 2] = [8, 2];
/// No further round begins after this.
const LONGEST: Duration = Duration::from_secs(1500);
/// Limits: 2% mean, 5% worst, memory within 5%.
const MEAN: f64 = 1.02;
const WORST: f64 = 1.05;

/// KiB of a MiB.
const KIB: f64 = 1024.0;

/// Real programs, and how much of each.
const PROGRAMS: &[(&str, u32)] =
    &[("python", 1), ("gcc", 1), ("sqlite3", 1), ("liblinear", 10), ("numpy", 6), ("redis", 1)];

/// Workloads of our own.
const WORKLOADS: &[&str] = &[
    "xsbench mib=64 lookups=2m",
    "pagerank mib=64 iterations=30",
    "kv mib=64 operations=4m",
    "bfs mib=64 roots=16",
    "phases mib=64 rounds=8 rows=16",
];

/// Both ways of one program, a round each.
struct Series {
    name: String,
    kernel: Vec<Cost>,
    vmem: Vec<Cost>,
}

/// Measures and returns the rows of the bench.
pub fn rows(quick: bool) -> Result<Vec<Row>> {
    let (parts, began) = (Parts::build()?, Instant::now());
    let rounds = ROUNDS[usize::from(quick)];
    let names = PROGRAMS.iter().map(|(name, _)| *name).chain(WORKLOADS.iter().copied());
    let empty = |name: &str| Series { name: name.into(), kernel: vec![], vmem: vec![] };
    let mut table: Vec<Series> = names.map(empty).collect();
    for round in 0..rounds {
        if round > 1 && began.elapsed() > LONGEST {
            break;
        }
        for series in &mut table {
            let mut both = [Cost::default(); 2];
            for turn in 0..2 {
                let which = (turn + round) % 2;
                both[which] = run(&series.name, &parts, which == 1)?;
            }
            series.kernel.push(both[0]);
            series.vmem.push(both[1]);
            eprintln!("round {} of {rounds}: {}", round + 1, series.name);
        }
    }
    let mut rows: Vec<Row> =
        table.iter().flat_map(|series| [cpu(series), memory(series)]).collect();
    for (what, of) in [("cpu", cpu as fn(&Series) -> Row), ("peak memory", memory)] {
        let ratios: Vec<f64> = table.iter().filter_map(|series| of(series).ratio).collect();
        let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
        let limit = if what == "cpu" { MEAN } else { WORST };
        rows.push(Row::alone(
            format!("geometric mean, {what}, over kernel"),
            mean,
            Some(limit),
            "x",
        ));
    }
    Ok(rows)
}

/// One run; its result is checked by the script or by the workload.
fn run(name: &str, parts: &Parts, vmem: bool) -> Result<Cost> {
    let backing = if vmem { "vmem" } else { "kernel" };
    let arguments = vec!["--quiet", "--sampler", "none", "--backing", backing];
    let host = Host::Tiercel(arguments);
    if let Some((name, size)) = PROGRAMS.iter().find(|(known, _)| *known == name) {
        let ran = programs::run(&programs::named(name)?, parts, &host, *size)?;
        ensure!(ran.status == Some(0), "{name}, {backing}: {}", ran.stderr);
        return Ok(ran.cost);
    }
    let folder = tempfile::tempdir()?;
    let report = folder.path().join("cost");
    let (program, rest) = name.split_once(' ').unwrap_or((name, ""));
    let words = programs::hosting(parts, &host, &report)?;
    let mut words = words.split(' ');
    let mut command = exec::command(words.next().unwrap_or_default());
    command.args(words).arg(build::workloads()?.join(program)).args(rest.split(' '));
    ensure!(command.stdout(Stdio::null()).status()?.success(), "{name}, {backing}");
    measure::read(&report)
}

fn cpu(series: &Series) -> Row {
    row(series, "cpu", |cost| cost.cpu_s, "s")
}

fn memory(series: &Series) -> Row {
    row(series, "peak memory", |cost| cost.peak_kib as f64 / KIB, "MiB")
}

fn row(series: &Series, what: &str, of: fn(&Cost) -> f64, unit: &str) -> Row {
    let least = |costs: &[Cost], from: usize, step: usize| {
        costs.iter().skip(from).step_by(step).map(of).fold(f64::INFINITY, f64::min)
    };
    let (ours, theirs) = (least(&series.vmem, 0, 1), least(&series.kernel, 0, 1));
    let half = |from| least(&series.vmem, from, 2) / least(&series.kernel, from, 2);
    let ratio = ours / theirs;
    Row {
        name: format!("{}, {what}", series.name),
        ours,
        peer: Some(theirs),
        peer_name: Some("kernel".into()),
        ratio: Some(ratio),
        limit: Some(WORST),
        holds: ratio <= WORST,
        spread: (series.vmem.len() > 1).then(|| f64::abs(half(0) - half(1))),
        unit: unit.into(),
    }
}
