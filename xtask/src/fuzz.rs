//! Runs the fuzzers. In: a name and a time. Out: an error when an input crashed the target. Knows
//! nothing of the targets: each is a binary of the package in fuzz/, and says itself what it found.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::Args;

use crate::exec;

/// Time for building a fuzzer and for shutting down, beyond the fuzzing itself.
const OVERTIME: Duration = Duration::from_secs(300);

#[derive(Args)]
pub struct Options {
    /// Which fuzzer; all of them when absent
    name: Option<String>,
    /// How long each runs
    #[arg(long, default_value_t = 60)]
    seconds: u64,
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
    for name in chosen {
        exec::run(&mut fuzzer(name, options.seconds))?;
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

/// How long at most a fuzzer asked to run for `seconds` may take.
pub fn limit(seconds: u64) -> Duration {
    Duration::from_secs(seconds) + OVERTIME
}

/// The command that builds and runs one fuzzer.
///
/// Coverage comes from LLVM's own flags on the stable compiler, so neither nightly nor cargo-fuzz
/// is needed; libfuzzer-sys brings the engine.
pub fn fuzzer(name: &str, seconds: u64) -> std::process::Command {
    let flags = [
        "-Cpasses=sancov-module",
        "-Cllvm-args=-sanitizer-coverage-level=4",
        "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
        "-Cllvm-args=-sanitizer-coverage-pc-table",
        "-Cllvm-args=-sanitizer-coverage-trace-compares",
        "-Cdebug-assertions=on",
        "--cfg=fuzzing",
    ];
    let host = "x86_64-unknown-linux-gnu";
    let corpus = exec::target().join("fuzz-corpus").join(name);
    let artifacts = exec::target().join("fuzz-artifacts").join(name);
    // An engine that cannot write its folders would throw away what it learns.
    for folder in [&corpus, &artifacts] {
        let _ = std::fs::create_dir_all(folder);
    }
    let mut cargo = exec::cargo();
    cargo.args(["run", "--quiet", "--release", "--manifest-path", "fuzz/Cargo.toml"]);
    // A target triple keeps the flags away from build scripts.
    cargo.args(["--target", host, "--bin", name, "--"]);
    cargo.arg(&corpus);
    cargo.arg(format!("-max_total_time={seconds}"));
    cargo.arg(format!("-artifact_prefix={}/", artifacts.display()));
    cargo.args(["-rss_limit_mb=2048", "-timeout=10", "-print_final_stats=1"]);
    cargo.env("CARGO_TARGET_DIR", exec::target().join("fuzz"));
    cargo.env("RUSTFLAGS", flags.join(" "));
    cargo
}
