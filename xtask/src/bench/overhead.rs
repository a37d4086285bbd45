//! `./x bench overhead` and `plan-overhead`: Tiercel's cost for a program that gains nothing. In:
//! real programs, each hosted in several ways. Out: rows, user and system time of all processes
//! (the daemon among them) and wall time over the plain program's, run in turns. Knows nothing of
//! what the time went into; `./x bench instructions` counts instructions, which noise does not
//! change.
//!
//! Other load on a machine only adds to a program's time. So the minimum of many short runs is the
//! program's cost; medians of the same runs vary by ten per cent on a shared machine.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::counted;
use super::idle_plan::{PLANNED_SITES, idle_plan};
use super::limits::{LIMITS, Limits, PLANNED_LIMITS, Series};
use crate::exec;
use crate::measure::Cost;
use crate::programs::{self, Host, Parts, Program};
use tiercel_bench::BenchResult;

/// Rounds of a full run: each round runs every program in every way once.
const ROUNDS: usize = 12;
/// No further round begins after this in a quick run, which must end within 40 s.
const QUICK: Duration = Duration::from_secs(8);

const PROGRAMS: &[&str] = &["python", "gcc", "sqlite3", "liblinear", "zstd", "numpy", "redis"];
/// CPU time of a plain run: a full run enlarges its programs to reach it. Starting and ending
/// `tiercel run` takes milliseconds, which only jobs of seconds and more amortise.
const RUN_S: f64 = 2.0;
/// Largest size: scripts generate the inputs before each run.
const SIZE_MAX: u32 = 40;
/// How many of them a quick run has, at size 1.
const QUICK_PROGRAMS: usize = 5;

/// A way of hosting.
struct Way {
    name: &'static str,
    host: fn() -> Host,
    quick: bool,
}

const WAYS: &[Way] = &[
    Way { name: "tracking", host: || tiercel(&["--sampler", "none"]), quick: true },
    Way { name: "sampling", host: || tiercel(&["--trigger", "never"]), quick: false },
    Way { name: "everything", host: || tiercel(&[]), quick: true },
];

/// A plan of ten thousand sites that changes nothing; and plain once more, which shows the noise.
const PLANNED: &[Way] = &[
    Way { name: "planned", host: planned, quick: true },
    Way { name: "plain again", host: || Host::Plain, quick: false },
];

fn planned() -> Host {
    tiercel(&["--plan", idle_plan_path()])
}

/// Where the plan of [`PLANNED`] is written. Programs run in folders of their own.
fn idle_plan_path() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| exec::target().join("idle.plan").display().to_string())
}

/// With a budget of all fast memory there is nothing to gain.
fn tiercel(more: &[&'static str]) -> Host {
    Host::Tiercel([&["--quiet", "--fast", "all"], more].concat())
}

/// By program, way, and kind of cost.
type Table = BTreeMap<(String, &'static str, &'static str), Series>;

pub fn rows(quick: bool) -> Result<Vec<BenchResult>> {
    rows_of(WAYS, &LIMITS, quick)
}

/// `./x bench plan-overhead`: interception, stack walk and look-up under a plan that changes
/// nothing. Instructions have limits, times are reported only: on shared machines two plain runs
/// differ by ten times the limit.
pub fn planned_rows(quick: bool) -> Result<Vec<BenchResult>> {
    std::fs::write(idle_plan_path(), idle_plan(PLANNED_SITES))?;
    let mut rows = if quick { Vec::new() } else { counted::planned_rows()? };
    let timed = rows_of(PLANNED, &PLANNED_LIMITS, quick)?;
    rows.extend(timed.into_iter().map(|row| BenchResult { limit: None, holds: true, ..row }));
    Ok(rows)
}

fn rows_of(ways: &'static [Way], limits: &Limits, quick: bool) -> Result<Vec<BenchResult>> {
    let parts = Parts::build()?;
    let ways: Vec<&Way> = ways.iter().filter(|way| way.quick || !quick).collect();
    let chosen =
        PROGRAMS[..if quick { QUICK_PROGRAMS } else { PROGRAMS.len() }].iter().map(|name| {
            let program = programs::named(name)?;
            let size = if quick { 1 } else { size_of(&program, &parts)? };
            Ok((program, size))
        });
    let chosen: Vec<(Program, u32)> = chosen.collect::<Result<_>>()?;
    let mut table = Table::new();
    let start = Instant::now();
    for round in 0..ROUNDS {
        if quick && round > 0 && start.elapsed() > QUICK {
            break;
        }
        for (program, size) in &chosen {
            one_round(program, &parts, &ways, *size, round, &mut table)?;
            eprintln!("round {} of {ROUNDS}: {} of size {size}", round + 1, program.name);
        }
    }
    let mut rows: Vec<BenchResult> =
        table.iter().map(|(key, series)| row(key, series, limits)).collect();
    rows.extend(means(&table, &ways, limits));
    Ok(rows)
}

/// The size at which a program takes [`RUN_S`] on this machine.
fn size_of(program: &Program, parts: &Parts) -> Result<u32> {
    let of_size = |size| -> Result<f64> {
        let ran = programs::run(program, parts, &Host::Plain, size)?;
        ensure!(ran.status == Some(0), "{}: {}", program.name, ran.stderr);
        Ok(ran.cost.cpu_s)
    };
    let (one, two) = (of_size(1)?, of_size(2)?);
    let more = (RUN_S - one) / (two - one).max(RUN_S / f64::from(SIZE_MAX));
    Ok((1..SIZE_MAX).find(|size| f64::from(*size) >= 1.0 + more).unwrap_or(SIZE_MAX))
}

/// Plain and every way once. Each round begins with another way, so that warm-up and slow-downs
/// affect all alike.
fn one_round(
    program: &Program,
    parts: &Parts,
    ways: &[&Way],
    size: u32,
    round: usize,
    table: &mut Table,
) -> Result<()> {
    let count = ways.len() + 1;
    let mut costs = vec![Cost::default(); count];
    let mut printed = vec![String::new(); count];
    for turn in 0..count {
        let which = (turn + round) % count;
        let host = ways.get(which).map_or(Host::Plain, |way| (way.host)());
        let ran = programs::run(program, parts, &host, size)?;
        ensure!(ran.status == Some(0), "{}: {host:?}: {}", program.name, ran.stderr);
        (costs[which], printed[which]) = (ran.cost, ran.stdout);
    }
    let plain = costs[ways.len()];
    for (which, way) in ways.iter().enumerate() {
        ensure!(
            printed[which] == printed[ways.len()],
            "{}, {}: output differs from plain\n{}\nplain\n{}",
            program.name,
            way.name,
            printed[which],
            printed[ways.len()]
        );
        let mut note = |what, plain, ours| {
            table.entry((program.name.clone(), way.name, what)).or_default().push(plain, ours);
        };
        note("cpu", plain.cpu_s, costs[which].cpu_s);
        note("wall", plain.wall_s, costs[which].wall_s);
    }
    Ok(())
}

type Key = (String, &'static str, &'static str);

fn row((program, way, what): &Key, series: &Series, limits: &Limits) -> BenchResult {
    limits.of_series(format!("{program}, {way}, {what}"), series, "s")
}

/// The means over the programs of each way's ratios.
fn means(table: &Table, ways: &[&Way], limits: &Limits) -> Vec<BenchResult> {
    let mut rows = Vec::new();
    for way in ways {
        for what in ["cpu", "wall"] {
            let of_way = table.iter().filter(|(key, _)| key.1 == way.name && key.2 == what);
            let ratios: Vec<f64> = of_way.map(|(_, series)| series.ratio()).collect();
            if !ratios.is_empty() {
                rows.push(limits.mean(&format!("mean, {}, {what}", way.name), &ratios));
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_become_a_result_for_each_program_and_a_mean() {
        let mut table = Table::new();
        for (program, ours) in [("a", 1.0), ("b", 1.21)] {
            table.entry((program.into(), "tracking", "cpu")).or_default().push(1.0, ours);
        }
        let ways: Vec<&Way> = WAYS.iter().collect();
        let rows: Vec<BenchResult> =
            table.iter().map(|(key, series)| row(key, series, &LIMITS)).collect();
        assert!(rows[0].holds && !rows[1].holds);
        let mean = means(&table, &ways, &LIMITS).remove(0);
        assert!((mean.ours - 1.1).abs() < 1e-9 && !mean.holds, "{mean:?}");
    }
}
