//! Builds and runs the fuzzers. In: a name and a time. Out: an error when an input crashed the
//! target. Knows nothing of the targets: each is a binary of the package in fuzz/, and prints what
//! it found.

use std::process::Command;

use anyhow::{Result, bail, ensure};
use clap::Args;

use crate::exec;

/// Where the fuzzers are built for.
const HOST: &str = "x86_64-unknown-linux-gnu";
/// An input that takes longer counts as a hang, seconds of wall time. Inputs take milliseconds; the
/// rest is for a busy machine.
const INPUT_LIMIT_S: u64 = 100;

#[derive(Args)]
pub struct Options {
    /// Which fuzzer; all of them when absent
    name: Option<String>,
    /// How long each runs
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Only build them
    #[arg(long)]
    build: bool,
}

pub fn main(options: &Options) -> Result<()> {
    let all = names()?;
    let chosen: Vec<&String> = match &options.name {
        Some(name) => all.iter().filter(|one| *one == name).collect(),
        None => all.iter().collect(),
    };
    if chosen.is_empty() {
        bail!("no such fuzzer; there are: {}", all.join(", "));
    }
    exec::run(&mut build_command())?;
    for name in chosen.into_iter().filter(|_| !options.build) {
        exec::run(&mut fuzzer(name, options.seconds)?)?;
    }
    Ok(())
}

/// The fuzzers: one file each in fuzz/fuzz_targets.
pub fn names() -> Result<Vec<String>> {
    let mut names = Vec::new();
    let Ok(folder) = std::fs::read_dir(exec::root().join("fuzz/fuzz_targets")) else {
        return Ok(names);
    };
    for entry in folder {
        let path = entry?.path();
        ensure!(path.extension().is_some_and(|e| e == "rs"), "{} is no fuzzer", path.display());
        names.push(path.file_stem().unwrap_or_default().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// The command that builds all fuzzers.
///
/// Coverage comes from LLVM's own flags on the stable compiler, so neither nightly nor cargo-fuzz
/// is needed; libfuzzer-sys brings the engine.
fn build_command() -> Command {
    let flags = [
        "-Cpasses=sancov-module",
        "-Cllvm-args=-sanitizer-coverage-level=4",
        "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
        "-Cllvm-args=-sanitizer-coverage-pc-table",
        "-Cllvm-args=-sanitizer-coverage-trace-compares",
        "-Cdebug-assertions=on",
        "--cfg=fuzzing",
    ];
    let mut cargo = exec::cargo();
    cargo.args(["build", "--quiet", "--release", "--manifest-path", "fuzz/Cargo.toml", "--bins"]);
    // A target triple keeps the flags away from build scripts.
    cargo.args(["--target", HOST]);
    cargo.env("CARGO_TARGET_DIR", exec::target().join("fuzz"));
    cargo.env("RUSTFLAGS", flags.join(" "));
    cargo
}

/// The command that lints the fuzzers, which the workspace's own clippy does not see.
pub fn clippy() -> Command {
    let mut cargo = exec::cargo();
    cargo.args(["clippy", "--manifest-path", "fuzz/Cargo.toml", "--", "-D", "warnings"]);
    cargo.env("CARGO_TARGET_DIR", exec::target().join("fuzz"));
    cargo
}

/// The command that runs one fuzzer, which is built.
fn fuzzer(name: &str, seconds: u64) -> Result<Command> {
    let corpus = exec::target().join("fuzz-corpus").join(name);
    let artifacts = exec::target().join("fuzz-artifacts").join(name);
    // An engine that cannot write its folders would throw away what it learns.
    for folder in [&corpus, &artifacts] {
        std::fs::create_dir_all(folder)?;
    }
    let built = exec::target().join("fuzz").join(HOST).join("release").join(name);
    let mut fuzzer = exec::command(&built.display().to_string());
    fuzzer.arg(&corpus);
    fuzzer.arg(format!("-max_total_time={seconds}"));
    fuzzer.arg(format!("-artifact_prefix={}/", artifacts.display()));
    fuzzer.arg(format!("-timeout={INPUT_LIMIT_S}"));
    fuzzer.args(["-rss_limit_mb=2048", "-print_final_stats=1"]);
    Ok(fuzzer)
}
