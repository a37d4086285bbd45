//! The contract of all benches. In: rows as JSON lines from bench programs. Out: a table, the same
//! lines again (`--json`), or a list of the rows that miss their limit (`--check`). Knows nothing
//! of what is measured.

mod alloc;
mod attach;
mod counted;
mod heaps;
mod idle_plan;
mod limits;
mod load;
mod moves;
mod overhead;
mod probe;
mod record;
mod truth;
mod vmem;
mod vmem_apps;

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::exec;
use load::Load;
use tiercel_bench::BenchResult;

/// CPU time that a program of a `--quick` run may use: the 40 s it is meant to take, on four CPUs.
const QUICK_CPU_LIMIT: Duration = Duration::from_secs(160);
/// CPU time that any of them may use: a runaway one must not hold CI for ever.
const FULL_CPU_LIMIT: Duration = Duration::from_secs(4 * 3600);

#[derive(Args, Clone)]
pub struct Options {
    /// Which bench
    #[arg(value_parser = names())]
    name: String,
    /// A shorter run: about 40 s after the build on a quiet machine
    #[arg(long)]
    pub quick: bool,
    /// Print the rows as JSON lines
    #[arg(long)]
    json: bool,
    /// Two busy loops for each CPU run beside it, as on a machine that others use
    #[arg(long)]
    load: bool,
    /// Fail when a row misses its limit, and list those rows
    #[arg(long)]
    check: bool,
}

/// How a bench is run.
#[derive(Clone, Copy)]
enum Program {
    /// The examples named `bench*` of a crate, built in release mode; they print rows on stdout.
    Examples(&'static str),
    /// One example of a crate, likewise.
    Example(&'static str, &'static str),
    /// A function of xtask.
    Function(fn(quick: bool) -> Result<Vec<BenchResult>>),
}

/// Every bench: its name and what it runs.
const BENCHES: &[(&str, &[Program])] = &[
    ("alloc", &[Program::Function(alloc::rows)]),
    ("heaps", &[Program::Function(heaps::rows)]),
    ("attach", &[Program::Function(attach::rows)]),
    ("ledger", &[Program::Examples("ledger"), Program::Examples("wire")]),
    ("overhead", &[Program::Function(overhead::rows)]),
    ("pages", &[Program::Example("ledger", "regions_cost")]),
    ("plan-overhead", &[Program::Function(overhead::planned_rows)]),
    ("instructions", &[Program::Function(counted::rows)]),
    ("vmem-instructions", &[Program::Function(counted::vmem_rows)]),
    ("probe", &[Program::Function(probe::rows)]),
    ("probe-fidelity", &[Program::Function(probe::fidelity_rows)]),
    ("record", &[Program::Function(record::rows)]),
    ("truth", &[Program::Function(truth::rows)]),
    ("vmem", &[Program::Function(vmem::rows)]),
    ("vmem-moves", &[Program::Function(moves::rows)]),
    ("vmem-apps", &[Program::Function(vmem_apps::rows)]),
    ("planner", &[Program::Examples("planner")]),
    ("memsim", &[Program::Examples("memsim")]),
    ("policy", &[Program::Examples("policy")]),
    ("replay", &[Program::Examples("replay")]),
    ("mover", &[Program::Examples("mover")]),
    ("sampler", &[Program::Examples("sampler")]),
];

/// Those that `./x test` runs briefly, to see that they work. Their figures are not judged there,
/// where other work shares the machine.
pub const SMOKE: &[&str] = &["ledger", "mover"];

fn names() -> Vec<&'static str> {
    BENCHES.iter().map(|(name, _)| *name).collect()
}

pub fn main(options: &Options) -> Result<()> {
    let load = options.load.then(Load::begin).transpose()?;
    let rows = measure(&options.name, options.quick)?;
    drop(load);
    if options.json {
        for row in &rows {
            println!("{}", serde_json::to_string(row)?);
        }
    } else {
        print!("{}", table(&rows));
    }
    let missed: Vec<&BenchResult> = rows.iter().filter(|row| !row.holds).collect();
    if options.check && !missed.is_empty() {
        for row in &missed {
            eprintln!("misses its limit: {}", line(row));
        }
        bail!("{} of {} rows of bench {} miss their limit", missed.len(), rows.len(), options.name);
    }
    Ok(())
}

fn measure(name: &str, quick: bool) -> Result<Vec<BenchResult>> {
    let (_, programs) = BENCHES.iter().find(|(one, _)| *one == name).context("no such bench")?;
    let mut rows = Vec::new();
    for program in *programs {
        rows.extend(match program {
            Program::Examples(of) => run_examples(of, quick)?,
            Program::Example(of, example) => run_example(of, example, quick)?,
            Program::Function(function) => function(quick)?,
        });
    }
    Ok(rows)
}

fn run_examples(of: &str, quick: bool) -> Result<Vec<BenchResult>> {
    let folder = exec::root().join("crates").join(of).join("examples");
    let mut rows = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let example = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if !example.starts_with("bench") {
            continue;
        }
        rows.extend(run_example(of, &example, quick)?);
    }
    Ok(rows)
}

fn run_example(of: &str, example: &str, quick: bool) -> Result<Vec<BenchResult>> {
    let which = ["--quiet", "--release", "--package", &format!("tiercel-{of}"), "--example"];
    exec::run(exec::cargo().arg("build").args(which).arg(example))?;
    let built = exec::target().join("release/examples").join(example);
    let mut command = exec::command(&built.display().to_string());
    command.args(quick.then_some("--quick"));
    run_program(&mut command, quick)
}

/// Runs a bench program within its limit and reads its rows.
fn run_program(command: &mut std::process::Command, quick: bool) -> Result<Vec<BenchResult>> {
    let log = tempfile::NamedTempFile::new()?;
    command.stdout(log.reopen()?);
    let limit = if quick { QUICK_CPU_LIMIT } else { FULL_CPU_LIMIT };
    let status = exec::run_limited(command, limit)?;
    if !status.success() {
        bail!("{} ended with {status}", exec::shown(command));
    }
    parse(&std::fs::read_to_string(log.path())?)
        .with_context(|| format!("output of {}", exec::shown(command)))
}

/// Reads rows, one JSON object a line; other lines are refused, so that nothing is lost silently.
fn parse(text: &str) -> Result<Vec<BenchResult>> {
    let rows: Vec<BenchResult> = text
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("no row: {line}")))
        .collect::<Result<_>>()?;
    if rows.is_empty() {
        bail!("no rows");
    }
    Ok(rows)
}

fn table(rows: &[BenchResult]) -> String {
    let name_width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max(4);
    let mut text = format!(
        "{:name_width$}  {:>12}  {:>12}  {:10}  {:12}  {:>7}  {:>7}  {:>6}  holds\n",
        "name", "ours", "peer's", "unit", "peer", "ratio", "limit", "spread"
    );
    for row in rows {
        let _ = writeln!(
            text,
            "{:name_width$}  {:>12}  {:>12}  {:10}  {:12}  {:>7}  {:>7}  {:>6}  {}",
            row.name,
            figure(Some(row.ours)),
            figure(row.peer),
            row.unit,
            row.peer_name.as_deref().unwrap_or("-"),
            ratio(row.ratio),
            ratio(row.limit),
            row.spread.map_or("-".into(), |spread| format!("{:.1}%", spread * 100.0)),
            if row.holds { "yes" } else { "NO" },
        );
    }
    text
}

fn line(row: &BenchResult) -> String {
    let figure = row.ratio.unwrap_or(row.ours);
    format!("{}: {} against a limit of {}", row.name, ratio(Some(figure)), ratio(row.limit))
}

fn figure(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(value) if value.abs() >= 1000.0 => format!("{value:.0}"),
        Some(value) if value.abs() >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.3}"),
    }
}

fn ratio(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_and_other_lines_refused() {
        let good = r#"{"name":"tick","ours":80.0,"peer":null,"peer_name":null,"ratio":null,
            "limit":100.0,"holds":true,"spread":0.01,"unit":"ms"}"#
            .replace('\n', "");
        assert_eq!(parse(&good).unwrap()[0].name, "tick");
        assert!(parse("a word").is_err());
        assert!(parse("").is_err());
    }

    #[test]
    fn a_result_that_misses_its_limit_is_marked() {
        let (ours, theirs) = ([9.0, 18.0, 9.0], [10.0, 20.0, 9.0]);
        let row = BenchResult::of_pairs("small".into(), "glibc", &ours, &theirs, Some(0.75), "ns");
        assert_eq!((row.ours, row.peer, row.ratio), (9.0, Some(10.0), Some(0.9)));
        let drawn = table(std::slice::from_ref(&row));
        assert!(drawn.ends_with("  NO\n"), "{drawn}");
        assert_eq!(line(&row), "small: 0.900 against a limit of 0.750");
    }
}
