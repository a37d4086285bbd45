//! `./x test`: every check there is, as a list of steps. In: how long to fuzz. Out: a line a step
//! while it runs, a table at the end, the last line `N passed, N failed`, and a log file a step.
//! Knows nothing of what the steps check.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use tiercel_lab::free_bytes;

use crate::{bench, build, exec, fuzz};

/// CPU time that one step may use; a runaway one must not hold up the others. Chosen, not measured:
/// ten times the longest known piece of work, the 11 minutes of [`EXACT`].
const STEP_CPU_LIMIT: Duration = Duration::from_secs(7200);
/// The step that only runs by its name: HiGHS, which the planner is compared with there, takes 11
/// CPU minutes to build.
const EXACT: &str = "exact";
/// Lines of a failed step's output that are shown; the rest is in its log.
const TAIL_LINES: usize = 60;
/// What `target` grows to in a fresh tree, rounded up: 5.7 GiB measured by `du -sh target` after
/// `CARGO_INCREMENTAL=0 ./x test`.
const DISK_BYTES: u64 = 6 << 30;
/// Each fuzzer's time: in CI, and on a developer's machine.
const FUZZ_CI_SECONDS: u64 = 20;
const FUZZ_LOCAL_SECONDS: u64 = 5;

#[derive(Args)]
pub struct Options {
    /// Only the steps whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// How long each fuzzer runs; 20 s where CI is set, 5 s elsewhere
    #[arg(long)]
    fuzz_seconds: Option<u64>,
}

/// One step: a command and its name.
struct Step {
    name: String,
    command: Command,
}

/// The result of a step.
struct Outcome {
    name: String,
    took: Duration,
    counts: Counts,
    error: Option<anyhow::Error>,
}

/// Numbers of tests of one step. A step that reports none is one test itself.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Counts {
    passed: u64,
    failed: u64,
}

pub fn main(options: &Options) -> Result<()> {
    let mut steps = steps(options)?;
    if options.only.as_deref() == Some(EXACT) {
        let test = cargo(&["test", "-p", "tiercel-planner", "--features", EXACT, "--test", EXACT]);
        steps.push(step(EXACT, test));
    }
    if let Some(part) = &options.only {
        steps.retain(|step| step.name.contains(part.as_str()));
    }
    if steps.is_empty() {
        bail!("no step's name contains that");
    }
    if let Some(warning) = disk_warning(free_bytes(&exec::target())?) {
        eprintln!("{warning}");
    }
    let start = Instant::now();
    let outcomes: Vec<Outcome> = steps.into_iter().map(run).collect();
    let total = summary(&outcomes, start.elapsed());
    println!("{} passed, {} failed", total.passed, total.failed);
    if total.failed > 0 {
        std::process::exit(1);
    }
    Ok(())
}

fn steps(options: &Options) -> Result<Vec<Step>> {
    let in_ci = std::env::var_os("CI").is_some_and(|value| value != "false");
    let fuzz_seconds = if in_ci { FUZZ_CI_SECONDS } else { FUZZ_LOCAL_SECONDS };
    let fuzz_seconds = options.fuzz_seconds.unwrap_or(fuzz_seconds);
    let mut steps = vec![
        step("format", cargo(&["fmt", "--all", "--check"])),
        step("tidy", xtask(&["tidy"])?),
        step("licences", xtask(&["licences"])?),
        step("runtime build", build::runtime_make(&["all".into()])?),
        step("clippy", cargo(&CLIPPY)),
        step("clippy fuzz", fuzz::clippy()),
        step("cargo test", cargo(&["test", "--workspace", "--no-fail-fast"])),
        step("cargo test bpf", cargo(&["test", "-p", "tiercel-sampler", "--features", "bpf"])),
        step("documents", xtask(&["docs", "--check"])?),
        step("workloads", build::workloads_make(&["test"])),
        // Among its tests: the stress of the tracking half under ASan, UBSan and TSan.
        step("runtime test", build::runtime_make(&["test".into()])?),
        step("compiler", xtask(&["compiler", "--test"])?),
    ];
    // All in one step, so that the time of each step that follows is the fuzzer's own.
    steps.push(step("fuzz build", xtask(&["fuzz", "--build"])?));
    for fuzz::Fuzzer { name, .. } in fuzz::all()? {
        let command = xtask(&["fuzz", &name, "--seconds", &fuzz_seconds.to_string()])?;
        steps.push(step(&format!("fuzz {name}"), command));
    }
    steps.push(step("lab", xtask(&["lab", "test", "--short"])?));
    steps.push(step("real programs", xtask(&["real-programs", "--check"])?));
    steps.push(step("conformance", xtask(&["conformance", "--quick"])?));
    for name in bench::SMOKE {
        steps.push(step(&format!("bench {name}"), xtask(&["bench", name, "--quick"])?));
    }
    Ok(steps)
}

const CLIPPY: [&str; 6] = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];

fn step(name: &str, command: Command) -> Step {
    Step { name: name.into(), command }
}

fn cargo(args: &[&str]) -> Command {
    let mut cargo = exec::cargo();
    cargo.args(args);
    cargo
}

/// Another verb of this program, as a process of its own so that it gets a log and a limit.
fn xtask(args: &[&str]) -> Result<Command> {
    let mut command = exec::command(&std::env::current_exe()?.display().to_string());
    command.args(args);
    Ok(command)
}

fn run(mut step: Step) -> Outcome {
    eprintln!("--- {}: {}", step.name, exec::shown(&step.command));
    let log = log_path(&step.name);
    let start = Instant::now();
    let error = exec::run_logged(&mut step.command, &log, STEP_CPU_LIMIT).err();
    let took = start.elapsed();
    let output = String::from_utf8_lossy(&std::fs::read(&log).unwrap_or_default()).into_owned();
    if let Some(error) = &error {
        for line in output.lines().filter(|line| line.ends_with("FAILED")) {
            eprintln!("{line}");
        }
        eprintln!("{}", tail(&output));
        eprintln!("!!! {} failed: {error:#} (full log: {})", step.name, log.display());
    }
    let counts = counts(&output, error.is_none());
    Outcome { name: step.name, took, counts, error }
}

fn log_path(name: &str) -> PathBuf {
    exec::target().join("test-logs").join(Path::new(&name.replace(' ', "-")).with_extension("log"))
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// Adds up the test counts that a step prints: cargo's `test result: ok. N passed; M failed`, or a
/// line `N passed, M failed`. A failed step has at least one failure, whatever it prints.
fn counts(output: &str, succeeded: bool) -> Counts {
    let mut sum = Counts::default();
    for line in output.lines() {
        if let Some(one) = counts_of_line(line) {
            sum.passed += one.passed;
            sum.failed += one.failed;
        }
    }
    if succeeded && sum == Counts::default() {
        sum.passed = 1;
    }
    if !succeeded && sum.failed == 0 {
        sum.failed = 1;
    }
    sum
}

fn counts_of_line(line: &str) -> Option<Counts> {
    let line = line
        .strip_prefix("test result: ")
        .map_or(line, |rest| rest.trim_start_matches("ok. ").trim_start_matches("FAILED. "));
    let mut words = line.split([' ', ',', ';']).filter(|word| !word.is_empty());
    let passed = words.next()?.parse().ok()?;
    if words.next()? != "passed" {
        return None;
    }
    let failed = words.next()?.parse().ok()?;
    (words.next()? == "failed").then_some(Counts { passed, failed })
}

fn disk_warning(free: u64) -> Option<String> {
    (free < DISK_BYTES).then(|| {
        format!(
            "!!! {} has {} MiB free; a fresh tree needs {} MiB. Steps that fail with \"No space left \
             on device\", a bus error or a failed link may fail for that alone.",
            exec::target().display(),
            free >> 20,
            DISK_BYTES >> 20
        )
    })
}

fn summary(outcomes: &[Outcome], took: Duration) -> Counts {
    let width = outcomes.iter().map(|one| one.name.len()).max().unwrap_or(0);
    let mut total = Counts::default();
    println!();
    for one in outcomes {
        let verdict = if one.error.is_none() { "ok" } else { "FAILED" };
        let seconds = one.took.as_secs_f64();
        println!(
            "{:width$}  {verdict:6}  {seconds:7.1} s  {} passed, {} failed in it",
            one.name, one.counts.passed, one.counts.failed
        );
        total.passed += one.counts.passed;
        total.failed += one.counts.failed;
    }
    println!("{:width$}  {:6}  {:7.1} s", "all", "", took.as_secs_f64());
    for one in outcomes {
        if let Some(error) = &one.error {
            println!("failed: {}: {error:#}", one.name);
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nearly_full_disk_is_reported_before_the_first_step() {
        assert_eq!(disk_warning(DISK_BYTES), None);
        let warning = disk_warning(DISK_BYTES - (1 << 30)).expect("a warning");
        assert!(warning.contains("has 5120 MiB free; a fresh tree needs 6144 MiB"), "{warning}");
    }

    #[test]
    fn test_counts_of_steps_are_added_up() {
        let cargo = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n\
                     test result: FAILED. 1 passed; 2 failed; 0 ignored\n";
        assert_eq!(counts(cargo, false), Counts { passed: 4, failed: 2 });
        assert_eq!(counts("7 passed, 0 failed\n", true), Counts { passed: 7, failed: 0 });
        assert_eq!(counts("7 passed, 0 failed\n", false), Counts { passed: 7, failed: 1 });
        assert_eq!(counts("", true), Counts { passed: 1, failed: 0 });
        assert_eq!(counts("error", false), Counts { passed: 0, failed: 1 });
        assert_eq!(counts("3 passed the gate, 4 failed\n", true), Counts { passed: 1, failed: 0 });
    }
}
