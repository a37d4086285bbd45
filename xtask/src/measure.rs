//! `cargo xtask measure`: runs one command and records its cost. In: a command. Out: a line of
//! JSON in a file, and the command's own exit status. Knows nothing of what it runs.
//!
//! The cost is that of all descendants, so that it includes the daemon inside `tiercel run`.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde::{Deserialize, Serialize};

/// The exit status is this plus the number of the signal that ended the command, as in shells.
const SIGNAL_STATUS: i32 = 128;
/// The exit status for a command that could not be run, as in shells.
const NOT_RUN_STATUS: i32 = 127;

#[derive(Args)]
pub struct Options {
    /// Where to append the cost
    #[arg(long)]
    report: PathBuf,
    /// The command
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// The cost of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// User and system time of it and its descendants, seconds.
    pub cpu_s: f64,
    /// From its start to its end, seconds.
    pub wall_s: f64,
    /// Peak resident memory of the largest of them, KiB.
    pub peak_kib: u64,
}

/// Runs the command and ends this process as the command ended.
pub fn main(options: &Options) -> Result<()> {
    let (program, arguments) = options.command.split_first().context("no command")?;
    let mut command = Command::new(program);
    command.args(arguments);
    let start = Instant::now();
    let status = match command.status() {
        Ok(status) => status.code().unwrap_or(SIGNAL_STATUS + status.signal().unwrap_or(0)),
        Err(error) => {
            eprintln!("xtask measure: {program}: {error}");
            NOT_RUN_STATUS
        }
    };
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let cpu = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    let cpu_s = Duration::from_micros(u64::try_from(cpu)?).as_secs_f64();
    let peak_kib = u64::try_from(usage.max_rss())?; // Linux counts KiB
    let cost = Cost { cpu_s, wall_s: start.elapsed().as_secs_f64(), peak_kib };
    let mut report = OpenOptions::new().append(true).create(true).open(&options.report)?;
    // One write a line, so that reports of commands that run side by side do not mix.
    report.write_all(format!("{}\n", serde_json::to_string(&cost)?).as_bytes())?;
    std::process::exit(status);
}

/// The sum of all costs in a report, and the highest peak; nothing when no command was run.
pub fn read(report: &Path) -> Result<Cost> {
    let text = match std::fs::read_to_string(report) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Cost::default()),
        other => other?,
    };
    let mut sum = Cost::default();
    for line in text.lines() {
        let cost: Cost = serde_json::from_str(line)?;
        sum.cpu_s += cost.cpu_s;
        sum.wall_s += cost.wall_s;
        sum.peak_kib = sum.peak_kib.max(cost.peak_kib);
    }
    Ok(sum)
}
