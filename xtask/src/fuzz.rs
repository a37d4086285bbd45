//! Builds and runs the fuzzers. In: a name and a time. Out: an error when an input crashed the
//! target, a line for each fuzzer. Knows nothing of the targets: each is a binary of the package in
//! fuzz/, or a program of runtime/fuzz/, and prints what it found.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::{build, exec, seeds};

/// Where the fuzzers are built for.
const HOST: &str = "x86_64-unknown-linux-gnu";
/// An input that takes longer counts as a hang, seconds of wall time. Inputs take milliseconds; the
/// rest is for a busy machine.
const INPUT_LIMIT_S: u64 = 100;
/// CPU time of one fuzzer beyond its wall time: loading the seeds. Chosen, not measured.
const CPU_LIMIT_MORE: Duration = Duration::from_secs(600);

#[derive(Args)]
pub struct Options {
    /// Which fuzzer; all of them when absent
    name: Option<String>,
    /// How long each runs; with 0 it only runs the kept inputs
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Only build them
    #[arg(long)]
    build: bool,
    /// Keep the inputs that were found, minimised, in fuzz/seeds
    #[arg(long)]
    keep: bool,
    /// Keep one input, such as one that crashed it, under the file's name
    #[arg(long, value_name = "FILE", requires = "name")]
    keep_input: Option<PathBuf>,
}

/// A fuzzer, by where its source is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fuzzer {
    pub name: String,
    is_rust: bool,
}

pub fn main(options: &Options) -> Result<()> {
    let all = all()?;
    let is_chosen = |one: &&Fuzzer| options.name.as_ref().is_none_or(|name| *name == one.name);
    let chosen: Vec<&Fuzzer> = all.iter().filter(is_chosen).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
        bail!("no such fuzzer; there are: {}", names.join(", "));
    }
    if let (Some(file), Some(name)) = (&options.keep_input, &options.name) {
        return seeds::add(&seed_file(name), file);
    }
    build(&chosen)?;
    if options.build {
        return Ok(());
    }
    for fuzzer in &chosen {
        if options.keep {
            keep(fuzzer)?;
        } else if options.name.is_some() {
            exec::run(&mut command(fuzzer, options.seconds)?)?;
        } else {
            run_shortly(fuzzer, options.seconds)?;
        }
    }
    Ok(())
}

/// The fuzzers: one file each in fuzz/fuzz_targets and runtime/fuzz.
pub fn all() -> Result<Vec<Fuzzer>> {
    let mut fuzzers = Vec::new();
    for (folder, ending) in [("fuzz/fuzz_targets", "rs"), ("runtime/fuzz", "c")] {
        let folder = exec::root().join(folder);
        for entry in folder.read_dir().with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.extension().is_some_and(|one| one == ending) {
                let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                fuzzers.push(Fuzzer { name, is_rust: ending == "rs" });
            }
        }
    }
    fuzzers.sort();
    let twice = fuzzers.windows(2).find(|pair| pair[0].name == pair[1].name);
    ensure!(twice.is_none(), "two fuzzers of one name: {twice:?}");
    Ok(fuzzers)
}

fn build(chosen: &[&Fuzzer]) -> Result<()> {
    if chosen.iter().any(|one| one.is_rust) {
        exec::run(&mut rust_build()?)?;
    }
    if chosen.iter().any(|one| !one.is_rust) {
        exec::run(&mut build::runtime_make(&["fuzz".into()])?)
            .context("clang with its runtime libraries is needed (package libclang-rt-dev)")?;
    }
    Ok(())
}

/// The command that builds the fuzzers in Rust.
///
/// Coverage comes from LLVM's own flags on the stable compiler, so neither nightly nor cargo-fuzz
/// is needed; libfuzzer-sys brings the engine. AddressSanitizer is part of the compiler where its
/// library is; the flag is not stable, and the variable lets a stable compiler take it.
fn rust_build() -> Result<Command> {
    let mut flags = vec![
        "-Cpasses=sancov-module",
        "-Cllvm-args=-sanitizer-coverage-level=4",
        "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
        "-Cllvm-args=-sanitizer-coverage-pc-table",
        "-Cllvm-args=-sanitizer-coverage-trace-compares",
        "-Cdebug-assertions=on",
        "-Coverflow-checks=on",
        "--cfg=fuzzing",
    ];
    let mut cargo = exec::cargo();
    cargo.args(["build", "--quiet", "--release", "--manifest-path", "fuzz/Cargo.toml", "--bins"]);
    // A target triple keeps the flags away from build scripts.
    cargo.args(["--target", HOST]);
    if has_address_sanitizer()? {
        flags.push("-Zsanitizer=address");
        cargo.env("RUSTC_BOOTSTRAP", "1");
    } else {
        eprintln!("this compiler has no AddressSanitizer; the fuzzers run without");
    }
    cargo.env("CARGO_TARGET_DIR", exec::target().join("fuzz"));
    cargo.env("RUSTFLAGS", flags.join(" "));
    Ok(cargo)
}

/// Whether the compiler came with AddressSanitizer's library: Debian's does not.
fn has_address_sanitizer() -> Result<bool> {
    let mut rustc = exec::command(&std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into()));
    rustc.args(["--print", "target-libdir", "--target", HOST]);
    let folder = exec::output(&mut rustc)?;
    let Ok(files) = Path::new(folder.trim()).read_dir() else { return Ok(false) };
    let names =
        files.filter_map(|file| Some(file.ok()?.file_name().to_string_lossy().into_owned()));
    Ok(names.into_iter().any(|name| name.ends_with("rt.asan.a")))
}

/// The command that lints the fuzzers, which the workspace's own clippy does not see.
pub fn clippy() -> Command {
    let mut cargo = exec::cargo();
    cargo.args(["clippy", "--manifest-path", "fuzz/Cargo.toml", "--", "-D", "warnings"]);
    cargo.env("CARGO_TARGET_DIR", exec::target().join("fuzz"));
    cargo
}

fn seed_file(name: &str) -> PathBuf {
    exec::root().join("fuzz/seeds").join(name).with_extension("txt")
}

fn corpus(fuzzer: &Fuzzer) -> Result<PathBuf> {
    folder("fuzz-corpus", fuzzer)
}

/// An engine that cannot write its folders would throw away what it learns.
fn folder(kind: &str, fuzzer: &Fuzzer) -> Result<PathBuf> {
    let folder = exec::target().join(kind).join(&fuzzer.name);
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// The program, which is built.
fn program(fuzzer: &Fuzzer) -> PathBuf {
    let folder = if fuzzer.is_rust {
        exec::target().join("fuzz").join(HOST).join("release")
    } else {
        exec::target().join("runtime/fuzz")
    };
    folder.join(&fuzzer.name)
}

fn bare_command(fuzzer: &Fuzzer) -> Result<Command> {
    let artifacts = folder("fuzz-artifacts", fuzzer)?;
    let mut command = exec::command(&program(fuzzer).display().to_string());
    command.arg(format!("-artifact_prefix={}/", artifacts.display()));
    command.arg(format!("-timeout={INPUT_LIMIT_S}"));
    // Leaks are the business of the limit on memory: a search for them takes longer than an input.
    command.args(["-rss_limit_mb=2048", "-print_final_stats=1", "-detect_leaks=0"]);
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    Ok(command)
}

/// The command that runs one fuzzer: first on the kept inputs, then on what it makes of them.
fn command(fuzzer: &Fuzzer, seconds: u64) -> Result<Command> {
    let kept = folder("fuzz-seeds", fuzzer)?;
    seeds::unpack(&seed_file(&fuzzer.name), &kept)?;
    let mut command = bare_command(fuzzer)?;
    if seconds == 0 {
        command.arg("-runs=0").arg(kept);
    } else {
        command.arg(format!("-max_total_time={seconds}")).arg(corpus(fuzzer)?).arg(kept);
    }
    Ok(command)
}

/// Runs one fuzzer, its output in a file, and prints a line.
fn run_shortly(fuzzer: &Fuzzer, seconds: u64) -> Result<()> {
    let log = exec::target().join("test-logs").join(format!("fuzz-{}.log", fuzzer.name));
    let began = Instant::now();
    let limit = Duration::from_secs(seconds) + CPU_LIMIT_MORE;
    let ended = exec::run_logged(&mut command(fuzzer, seconds)?, &log, limit);
    let output = String::from_utf8_lossy(&std::fs::read(&log)?).into_owned();
    let verdict = if ended.is_ok() { "ok" } else { "FAILED" };
    let took = began.elapsed().as_secs();
    println!("{:12} {verdict:6} {took:5} s  {}", fuzzer.name, figures(&output));
    ended.with_context(|| format!("see {}", log.display()))
}

/// What the engine printed last: `12345 runs, cov: 80 ft: 91 corp: 7/1Kb`.
fn figures(output: &str) -> String {
    let runs = output.lines().rev().find_map(|line| line.strip_prefix("stat::number_of_executed"));
    let runs = runs.and_then(|line| line.split_whitespace().last()).unwrap_or("?");
    let covered = |line: &str| {
        let (_, covered) = line.split_once("cov: ")?;
        let end = covered.find(" lim:").or(covered.find(" exec/s:"))?;
        Some(covered[..end].to_owned())
    };
    let covered = output.lines().rev().find_map(covered).unwrap_or_default();
    format!("{runs} runs, cov: {covered}")
}

/// Writes the smallest inputs that cover what the corpus covers to the kept ones.
fn keep(fuzzer: &Fuzzer) -> Result<()> {
    let least = folder("fuzz-least", fuzzer)?;
    std::fs::remove_dir_all(&least)?;
    std::fs::create_dir_all(&least)?;
    let log = exec::target().join("test-logs").join(format!("fuzz-keep-{}.log", fuzzer.name));
    let mut merge = bare_command(fuzzer)?;
    merge.arg("-set_cover_merge=1").arg(&least).arg(corpus(fuzzer)?);
    exec::run_logged(&mut merge, &log, CPU_LIMIT_MORE)?;
    let kept = seeds::replace_learnt(&seed_file(&fuzzer.name), &least)?;
    println!("{:12} {kept} inputs kept", fuzzer.name);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::figures;

    #[test]
    fn the_last_figures_of_the_engine_are_shown() {
        let output = "#2\tINITED cov: 1 ft: 1 corp: 1/1b exec/s: 0 rss: 30Mb\n\
                      #9\tNEW    cov: 80 ft: 91 corp: 7/1Kb lim: 8 exec/s: 0 rss: 30Mb L: 2/2\n\
                      stat::number_of_executed_units: 12345\nstat::new_units_added: 3\n";
        assert_eq!(figures(output), "12345 runs, cov: 80 ft: 91 corp: 7/1Kb");
        assert_eq!(figures("nothing"), "? runs, cov: ");
    }
}
