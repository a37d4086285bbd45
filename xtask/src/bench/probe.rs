//! `./x bench probe` and `probe-fidelity`: what programs that `tiercel cc` compiled cost, and what
//! a share of their lines says of all. In: whether to be quick. Out: rows: CPU time over plain, by
//! workload and over all; misses that a sampled recording gives to other sites than an exact one.
//! Knows nothing of how accesses are checked.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::{build, compiler, exec, measure};
use tiercel_bench::{BenchResult, median};

/// Workloads of each kind of access, with their arguments, some seconds each under the exact probe.
const WORKLOADS: &[(&str, &[&str])] = &[
    ("xsbench", &["mib=64", "lookups=200k"]),
    ("minife", &["mib=32"]),
    ("lulesh", &["mib=16", "steps=20"]),
    ("bfs", &["mib=32"]),
    ("kv", &["mib=32", "operations=500k"]),
    ("pagerank", &["mib=32"]),
    ("bt", &["mib=16", "steps=5"]),
    ("stream", &["kib=16384"]),
];
/// Runs of which the median counts. Chosen, not measured.
const ROUNDS: usize = 5;
const QUICK_ROUNDS: usize = 1;
/// Of an ordinary server; so that the workloads exceed them on any machine.
const CACHES: &str = "32K/8,1M/16,4M/16";
/// Limits, of the project's targets: means over workloads, and the worst of sampled ones.
const UNHOSTED_LIMIT: f64 = 1.5;
const SAMPLED_LIMIT: f64 = 1.7;
const SAMPLED_WORST_LIMIT: f64 = 3.0;
const EXACT_LIMIT: f64 = 15.0;
/// Share of the misses that a sampled recording may give to other sites, and how far off the
/// misses of a site may be that has at least 1% of them. The project's targets.
const MISPLACED_LIMIT: f64 = 0.01;
const SITE_ERROR_LIMIT: f64 = 0.10;

/// How a workload is run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    Unhosted,
    Recorded(&'static str),
}

const WAYS: [(&str, Way, f64); 3] = [
    ("unhosted", Way::Unhosted, UNHOSTED_LIMIT),
    ("1/32", Way::Recorded("1/32"), SAMPLED_LIMIT),
    ("exact", Way::Recorded("1"), EXACT_LIMIT),
];

/// What is built once.
struct Built {
    tiercel: PathBuf,
    plain: PathBuf,
    checked: PathBuf,
}

pub fn rows(quick: bool) -> Result<Vec<BenchResult>> {
    let built = build_all()?;
    let rounds = if quick { QUICK_ROUNDS } else { ROUNDS };
    let (mut rows, mut ratios) = (Vec::new(), vec![Vec::new(); WAYS.len()]);
    for (name, arguments) in WORKLOADS {
        let plain = costs(&built, Way::Plain, name, arguments, rounds)?;
        for ((what, way, _), all) in WAYS.iter().zip(&mut ratios) {
            let ours = costs(&built, *way, name, arguments, rounds)?;
            let pairs: Vec<f64> =
                ours.iter().zip(&plain).map(|(ours, plain)| ours / plain).collect();
            all.push(median(&pairs));
            let name = format!("{name}, {what}, CPU time");
            rows.push(BenchResult::of_pairs(name, "plain", &ours, &plain, None, "s"));
        }
    }
    for ((what, way, limit), all) in WAYS.iter().zip(&ratios) {
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let worst = all.iter().copied().fold(0.0, f64::max);
        let worst_limit = (*way == Way::Recorded("1/32")).then_some(SAMPLED_WORST_LIMIT);
        let row = |which: &str, value, limit| {
            BenchResult::alone(format!("{which}, {what} over plain"), value, limit, "times")
        };
        rows.extend([row("mean", mean, Some(*limit)), row("worst", worst, worst_limit)]);
    }
    Ok(rows)
}

pub fn fidelity_rows(quick: bool) -> Result<Vec<BenchResult>> {
    let built = build_all()?;
    let few = if quick { &WORKLOADS[..1] } else { WORKLOADS };
    let mut rows = Vec::new();
    for (name, arguments) in few {
        let exact = recorded(&built, "1", name, arguments)?;
        let sampled = recorded(&built, "1/32", name, arguments)?;
        let Fidelity { misplaced, worst_error } = fidelity(&built, &exact, &sampled)?;
        let row = |what: &str, value, limit| {
            BenchResult::alone(format!("{name}, {what} at 1/32"), value, Some(limit), "of misses")
        };
        rows.push(row("misplaced", misplaced, MISPLACED_LIMIT));
        rows.push(row("worst site above 1%", worst_error, SITE_ERROR_LIMIT));
    }
    Ok(rows)
}

fn build_all() -> Result<Built> {
    build::runtime(&[])?;
    compiler::build()?;
    let tiercel = build::tiercel()?;
    let names: Vec<&str> = WORKLOADS.iter().map(|(name, _)| *name).collect();
    let plain = build::clang_workloads("workloads-clang", &["CC=clang-19"], &names)?;
    let cc = format!("CC={} cc", tiercel.display());
    let checked = build::clang_workloads("workloads-checked", &[&cc], &names)?;
    Ok(Built { tiercel, plain, checked })
}

/// CPU time of the program alone, without the daemon's, seconds.
fn costs(
    built: &Built,
    way: Way,
    name: &str,
    arguments: &[&str],
    rounds: usize,
) -> Result<Vec<f64>> {
    let report = exec::target().join("bench-probe.jsonl");
    let one = |_| {
        let _ = std::fs::remove_file(&report);
        let folder = if way == Way::Plain { &built.plain } else { &built.checked };
        let measure = std::env::current_exe()?;
        let mut words = vec![measure.display().to_string(), "measure".into(), "--report".into()];
        words.extend([report.display().to_string(), "--".into()]);
        words.push(folder.join(name).display().to_string());
        words.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        match way {
            Way::Recorded(rate) => exec::quietly(record(built, rate).args(&words))?,
            Way::Plain | Way::Unhosted => exec::quietly(Command::new(&words[0]).args(&words[1..]))?,
        }
        Ok(measure::read(&report)?.cpu_s)
    };
    (0..rounds).map(one).collect()
}

/// The profile of a run without random addresses.
fn recorded(built: &Built, rate: &str, name: &str, arguments: &[&str]) -> Result<PathBuf> {
    let profile = profile(rate);
    let mut record = record(built, rate);
    record.args(["setarch", "-R"]).arg(built.checked.join(name));
    exec::quietly(record.args(arguments))?;
    Ok(profile)
}

/// `tiercel record`, to which the program must be added.
fn record(built: &Built, rate: &str) -> Command {
    let mut record = Command::new(&built.tiercel);
    record.args(["record", "--quiet", "--sampler", "compiled", "--rate", rate]);
    record.args(["--caches", CACHES, "-o"]).arg(profile(rate)).arg("--");
    record
}

fn profile(rate: &str) -> PathBuf {
    exec::target().join(format!("bench-probe-{}.profile", rate.replace('/', "-")))
}

/// What `tiercel profile diff --fidelity` says.
#[derive(Deserialize)]
struct Fidelity {
    misplaced: f64,
    worst_error: f64,
}

fn fidelity(built: &Built, exact: &Path, sampled: &Path) -> Result<Fidelity> {
    let mut diff = Command::new(&built.tiercel);
    diff.args(["profile", "diff", "--fidelity", "--json"]).args([exact, sampled]);
    serde_json::from_str(&exec::output(&mut diff)?).context("fidelity as JSON")
}
