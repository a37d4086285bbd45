//! `./x bench vmem-apps`: the cost of a heap of vregions whose memory is never moved. In: workloads
//! of our own and real programs, hosted with `--backing vmem` and with `--backing kernel` in turns.
//! Out: rows of CPU time of all processes, and of the largest one's peak memory. Knows nothing of
//! how vregions work.
//!
//! Other load only adds to a program's time, so the minimum of many runs is the program's cost, as
//! in `./x bench overhead`.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::limits::{Limits, Series};
use crate::measure::{self, Cost};
use crate::programs::{self, Host, Parts};
use crate::{build, exec};
use tiercel_bench::BenchResult;

/// Rounds of a full run and of a quick one: each runs every program in both ways once.
const ROUNDS: [usize; 2] = [8, 2];
/// No further round begins after this.
const LONGEST: Duration = Duration::from_secs(1500);
/// 2% mean, 5% worst, memory within 5%.
const CPU: Limits = Limits { mean: 1.02, worst: 1.05 };
const MEMORY: Limits = Limits { mean: 1.05, worst: 1.05 };

/// KiB in a MiB.
const KIB: f64 = 1024.0;

/// Real programs and their sizes.
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

/// Both ways of one program.
struct Both {
    name: &'static str,
    cpu_s: Series,
    peak_mib: Series,
}

/// Measures and returns the rows of the bench.
pub fn rows(quick: bool) -> Result<Vec<BenchResult>> {
    let (parts, began) = (Parts::build()?, Instant::now());
    let rounds = ROUNDS[usize::from(quick)];
    let names = PROGRAMS.iter().map(|(name, _)| *name).chain(WORKLOADS.iter().copied());
    let empty = |name| Both { name, cpu_s: Series::default(), peak_mib: Series::default() };
    let mut table: Vec<Both> = names.map(empty).collect();
    for round in 0..rounds {
        if round > 1 && began.elapsed() > LONGEST {
            break;
        }
        for both in &mut table {
            let mut costs = [Cost::default(); 2];
            for turn in 0..2 {
                let which = (turn + round) % 2;
                costs[which] = run(both.name, &parts, which == 1)?;
            }
            let [kernel, vmem] = costs;
            both.cpu_s.push(kernel.cpu_s, vmem.cpu_s);
            both.peak_mib.push(kernel.peak_kib as f64 / KIB, vmem.peak_kib as f64 / KIB);
            eprintln!("round {} of {rounds}: {}", round + 1, both.name);
        }
    }
    let mut rows = Vec::new();
    for Both { name, cpu_s, peak_mib } in &table {
        rows.push(CPU.of_series(format!("{name}, cpu"), cpu_s, "s"));
        rows.push(MEMORY.of_series(format!("{name}, peak memory"), peak_mib, "MiB"));
    }
    let ratios = |of: fn(&Both) -> &Series| table.iter().map(|both| of(both).ratio()).collect();
    let (cpu, memory): (Vec<f64>, Vec<f64>) = (ratios(|b| &b.cpu_s), ratios(|b| &b.peak_mib));
    rows.push(CPU.mean("geometric mean, cpu", &cpu));
    rows.push(MEMORY.mean("geometric mean, peak memory", &memory));
    let over_kernel = |row: BenchResult| BenchResult { peer_name: Some("kernel".into()), ..row };
    Ok(rows.into_iter().map(over_kernel).collect())
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
