//! `./x bench record`: the cost of recording a program that allocates all the time. In: whether to
//! be quick. Out: rows: time over plain, memory of the recorder, time to open the profile. Knows
//! nothing of what is in a profile.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::{build, exec};
use tiercel_bench::{BenchResult, median};

/// The program, its arguments, how many allocations it makes.
struct Case {
    name: &'static str,
    arguments: [&'static str; 3],
    /// For each of its two threads.
    allocations: u64,
}

/// In the second, nearly every allocation is an object; it has no limit.
const CASES: &[Case] = &[
    Case {
        name: "one in 2000 of 4 KiB and more",
        arguments: ["churn", "slots=100000", "largest=1024"],
        allocations: 25_000_000,
    },
    Case {
        name: "most of 4 KiB and more",
        arguments: ["churn", "slots=2000", "largest=65536"],
        allocations: 1_000_000,
    },
];

/// Runs of which the median counts. Chosen, not measured.
const ROUNDS: usize = 3;
/// A quick run makes one allocation in this many.
const QUICK_PART: u64 = 25;
/// Run time over plain. The project's target.
const TIME_LIMIT: f64 = 2.0;
/// Memory of the recorder, MiB: its own bounds add up to 140 MiB, the rest is
/// for the ledger.
const MEMORY_LIMIT: f64 = 512.0;
/// Opening the profile, seconds. The project's target.
const OPEN_LIMIT: f64 = 5.0;

pub fn rows(quick: bool) -> Result<Vec<BenchResult>> {
    build::runtime(&[])?;
    let (tiercel, workloads) = (build::tiercel()?, build::workloads()?);
    let profile = exec::target().join("bench.profile");
    let mut rows = Vec::new();
    for (index, case) in CASES.iter().enumerate() {
        let limit = (index == 0).then_some(TIME_LIMIT);
        rows.extend(measure(case, quick, limit, &tiercel, &workloads, &profile)?);
    }
    Ok(rows)
}

fn measure(
    case: &Case,
    quick: bool,
    limit: Option<f64>,
    tiercel: &Path,
    workloads: &Path,
    profile: &Path,
) -> Result<Vec<BenchResult>> {
    let [program, first, second] = case.arguments;
    let allocations = if quick { case.allocations / QUICK_PART } else { case.allocations };
    let program = workloads.join(program);
    let arguments = [first, second, "threads=2", &format!("accesses={allocations}")];
    let (mut plain, mut recorded, mut memory, mut open) = (vec![], vec![], vec![], vec![]);
    for _ in 0..if quick { 1 } else { ROUNDS } {
        let (seconds, _) = timed(Command::new(&program).args(arguments))?;
        plain.push(seconds);
        let mut record = Command::new(tiercel);
        record.args(["record", "--json", "-o"]).arg(profile).arg("--").arg(&program);
        let (seconds, printed) = timed(record.args(arguments))?;
        recorded.push(seconds);
        let line = printed.lines().find(|line| line.starts_with('{')).context("no JSON")?;
        let value: serde_json::Value = serde_json::from_str(line)?;
        let bytes = value["peak_memory_bytes"].as_f64().context("no peak memory")?;
        memory.push(bytes / f64::from(1 << 20));
        let mut show = Command::new(tiercel);
        open.push(timed(show.args(["profile", "show", "--json"]).arg(profile))?.0);
    }
    let thousands = 2 * allocations / 1000;
    let name = |what: &str| format!("{what}, {thousands} k allocations, {}", case.name);
    let time = BenchResult::of_pairs(name("record"), "plain", &recorded, &plain, limit, "s");
    let alone = |what: &str, values: &[f64], limit, unit| {
        BenchResult::alone(name(what), median(values), Some(limit), unit)
    };
    let memory = alone("recorder's memory", &memory, MEMORY_LIMIT, "MiB");
    Ok(vec![time, memory, alone("open", &open, OPEN_LIMIT, "s")])
}

/// Seconds that a command took, and what it printed on standard error.
fn timed(command: &mut Command) -> Result<(f64, String)> {
    let start = Instant::now();
    let out = command.stdout(Stdio::null()).output()?;
    let seconds = start.elapsed().as_secs_f64();
    ensure!(out.status.success(), "{} ended with {}", exec::shown(command), out.status);
    Ok((seconds, String::from_utf8_lossy(&out.stderr).into_owned()))
}
