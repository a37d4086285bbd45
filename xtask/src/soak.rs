//! `cargo xtask soak`: real programs, one run after the other, in heaps that move all the time.
//! In: the scripts of workloads/programs and workloads/soak. Out: a line for each run that differs
//! from a plain one or hangs, with the stacks of its processes; an error if there was any. Knows
//! nothing of what the programs do.
//!
//! Turn and turn about a run is under `shaker`, which moves the whole heap of each process without
//! a pause (workloads/shaker/shaker.c), and under `tiercel run --backing vmem`, whose policies move
//! what they choose where the machine has several nodes.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;

use crate::programs::{self, Host, Parts, Program, Ran};
use crate::{build, exec};

/// Besides those of workloads/programs.
const FOLDER: &str = "workloads/soak";

#[derive(Args)]
pub struct Options {
    /// How many runs
    #[arg(long, default_value_t = 1000)]
    runs: usize,
    /// No further run begins after so many seconds
    #[arg(long, default_value_t = 7200)]
    seconds: u64,
    /// Only the programs whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Use what was built last
    #[arg(long)]
    built: bool,
}

/// What happened to one program's runs.
#[derive(Default)]
struct Tally {
    runs: usize,
    differing: usize,
    hung: usize,
}

pub fn main(options: &Options) -> Result<()> {
    let parts = if options.built { Parts::built() } else { Parts::build()? };
    let shaker = build::program("shaker", &["-pthread"])?;
    let report = tempfile::NamedTempFile::new()?;
    // Programs that give up root report as another user.
    report.as_file().set_permissions(std::fs::Permissions::from_mode(0o666))?;
    let shaken = Host::Shaken { shaker, report: report.path().to_owned() };
    let hosts = [shaken, Host::Tiercel(vec!["--fast", "25%", "--backing", "vmem"])];
    let plain = plain_runs(options, &parts)?;
    let mut tallies: BTreeMap<&str, Tally> = BTreeMap::new();
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let turns = hosts.iter().flat_map(|host| plain.iter().map(move |one| (host, one)));
    for (host, (program, expected)) in turns.cycle().take(options.runs) {
        if Instant::now() > end {
            break;
        }
        let tally = tallies.entry(&program.name).or_default();
        tally.runs += 1;
        match programs::run(program, &parts, host, 1) {
            Ok(ran) if is_alike(expected, &ran) => {}
            Ok(ran) => {
                tally.differing += 1;
                println!("{} DIFFERS under {host:?}\n{}", program.name, shown(expected, &ran));
            }
            Err(error) => {
                tally.hung += 1;
                println!("{} HANGS under {host:?}: {error:#}", program.name);
            }
        }
    }
    summary(&tallies, &std::fs::read_to_string(report.path())?)
}

/// Each program that is installed, and its plain run.
fn plain_runs(options: &Options, parts: &Parts) -> Result<Vec<(Program, Ran)>> {
    let mut all = programs::all()?;
    all.extend(programs::in_folder(&exec::root().join(FOLDER))?);
    all.retain(|program| options.only.as_ref().is_none_or(|part| program.name.contains(part)));
    let mut found = Vec::new();
    for program in all {
        let plain = programs::run(&program, parts, &Host::Plain, 1)?;
        if plain.is_missing() {
            println!("{}: not installed: {}", program.name, plain.stderr.trim_end());
        } else {
            found.push((program, plain));
        }
    }
    if found.is_empty() {
        bail!("no program is installed: see setup/packages.txt");
    }
    Ok(found)
}

fn is_alike(expected: &Ran, ran: &Ran) -> bool {
    (&expected.stdout, expected.status) == (&ran.stdout, ran.status)
}

fn shown(expected: &Ran, ran: &Ran) -> String {
    format!(
        "plainly, status {:?}:\n{}\nhosted, status {:?}:\n{}\n{}",
        expected.status, expected.stdout, ran.status, ran.stdout, ran.stderr
    )
}

/// Sums of what the shakers reported: processes, requests, bytes that moved.
fn moved(report: &str) -> [u64; 3] {
    let mut sums = [0; 3];
    for line in report.lines().filter_map(|line| line.strip_prefix("shaken ")) {
        let figures = line.split(' ').map(|word| word.parse::<u64>().unwrap_or(0));
        sums.iter_mut().zip(figures).for_each(|(sum, figure)| *sum += figure);
    }
    sums
}

fn summary(tallies: &BTreeMap<&str, Tally>, report: &str) -> Result<()> {
    /// Bytes of a GiB, by their logarithm.
    const GIB_SHIFT: u32 = 30;
    for (name, Tally { runs, differing, hung }) in tallies {
        println!("{name:14} {runs} runs, {differing} differed, {hung} hung");
    }
    let [processes, requests, bytes] = moved(report);
    let gib = bytes >> GIB_SHIFT;
    println!("{gib} GiB moved in {requests} requests to {processes} processes");
    let runs: usize = tallies.values().map(|tally| tally.runs).sum();
    let failed: usize = tallies.values().map(|tally| tally.differing + tally.hung).sum();
    println!("{} passed, {failed} failed", runs - failed);
    if failed > 0 {
        bail!("{failed} of {runs} runs differ or hang");
    }
    if requests == 0 {
        bail!("no heap moved: moves need Linux 6.8 and root (docs/pools.md)");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_shakers_are_added_up() {
        assert_eq!(moved("shaken 1 2 3\nshaken 4 5 6\ntorn"), [5, 7, 9]);
        let of = |runs, differing| Tally { runs, differing, hung: 0 };
        let report = "shaken 1 1 1";
        assert!(summary(&BTreeMap::from([("a", of(2, 0))]), report).is_ok());
        assert!(summary(&BTreeMap::from([("a", of(2, 1))]), report).is_err());
        assert!(summary(&BTreeMap::from([("a", of(2, 0))]), "").is_err(), "nothing moved");
    }
}
