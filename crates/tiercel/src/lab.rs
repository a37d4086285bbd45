//! `tiercel lab`: programs in guests that have another machine's memory nodes.
//! In: [`LabArgs`]. Out: the guest's output and the exit status of what ran in it.
//! Knows nothing of how a guest is made.

use crate::exit;
use crate::lab_bench::{self, AgentArgs, BenchArgs, CompareArgs, ReportArgs};
use crate::lab_guest::{GuestArgs, options};
use crate::lab_truth::{self, TruthArgs};
use crate::terminal::{complain, note};
use anyhow::{Context, Result};
use clap::{Args as ClapArgs, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use tiercel_lab::cli::{self, RunOptions};
use tiercel_lab::{Model, Streams, Times};
use tiercel_machine::TimeSpan;

/// Virtual CPUs of a guest: one for the program, and one for what else runs.
const CPUS: u32 = 2;

#[derive(ClapArgs, Debug)]
pub struct LabArgs {
    #[command(subcommand)]
    verb: LabVerb,
}

#[derive(Subcommand, Debug)]
enum LabVerb {
    /// Run a program in a guest that has a machine's memory nodes
    #[command(after_help = "Examples:
  tiercel lab run --machine spr-cxl -- numactl -H
  tiercel lab run --machine two-socket-optane -- tiercel run -v --fast 25% -- ./app
  tiercel lab run --file data --out results -- ./app data")]
    Run(LabRunArgs),
    /// Open a shell in a guest that has the memory nodes of another machine
    #[command(after_help = "Example: tiercel lab shell --machine two-socket-optane")]
    Shell(GuestArgs),
    /// Make the missing runs of an experiment, and draw its tables and plots
    #[command(after_help = "Examples:
  tiercel lab bench smoke
  tiercel lab bench lab/experiments/mat.toml --only hotcold --quick")]
    Bench(BenchArgs),
    /// Compare a program's speed under several policies on a machine
    #[command(after_help = "Examples:
  tiercel lab compare --machine spr-cxl --fast 25% -- ./app
  tiercel lab compare --fast 12.5% --fast 50% --policy first-touch --policy tiercel -- ./app")]
    Compare(CompareArgs),
    /// Redraw an experiment's tables and plots
    #[command(after_help = "Example: tiercel lab report lab/results/smoke")]
    Report(ReportArgs),
    /// Count every miss of a program by allocation site, and compare with what sampling sees
    #[command(after_help = "Example: tiercel lab truth --machine spr-cxl -- ./app small-input")]
    Truth(TruthArgs),
    /// The bench's part inside the guest
    #[command(hide = true)]
    Agent(AgentArgs),
}

#[derive(ClapArgs, Debug)]
struct LabRunArgs {
    #[command(flatten)]
    guest: GuestArgs,
    /// Kill the guest after this time
    #[arg(long, value_name = "TIME", default_value = "600s")]
    timeout: TimeSpan,
    /// Copy what the program writes to /out into this folder
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Model the time of every access by the machine's figures; the guest's clock shows that time
    #[arg(long)]
    timed: bool,
    /// Limit the guest's CPUs to their share of the machine's bandwidth, as if its other CPUs were
    /// as busy
    #[arg(long, requires = "timed")]
    share: bool,
    /// Model a hardware prefetcher for streams
    #[arg(long, requires = "timed")]
    prefetch: bool,
    /// Model memory only in regions of interest, which the program marks; elsewhere only
    /// instructions take time
    #[arg(long, requires = "timed")]
    regions: bool,
    /// Write the counters of each virtual CPU and node to this file (JSON)
    #[arg(long, value_name = "FILE", requires = "timed")]
    stats: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

/// Exits with the status of the program in the guest.
pub fn lab(args: &LabArgs) -> ExitCode {
    let done = match &args.verb {
        LabVerb::Run(args) => run(args),
        LabVerb::Shell(args) => shell(args),
        LabVerb::Bench(args) => lab_bench::bench(args),
        LabVerb::Compare(args) => lab_bench::compare(args),
        LabVerb::Report(args) => lab_bench::report(args),
        LabVerb::Truth(args) => lab_truth::truth(args),
        LabVerb::Agent(args) => lab_bench::agent(args),
    };
    let runs = matches!(args.verb, LabVerb::Run(_) | LabVerb::Shell(_) | LabVerb::Truth(_));
    done.unwrap_or_else(|error| {
        complain(&error);
        ExitCode::from(if runs { exit::REFUSED } else { exit::FAILED })
    })
}

fn run(args: &LabRunArgs) -> Result<ExitCode> {
    let options = RunOptions {
        guest: options(&args.guest, CPUS)?,
        command: args.program.clone(),
        timeout: args.timeout.0,
        out: args.out.clone(),
        timed: args.timed,
        model: Model { prefetch: args.prefetch, share: args.share, regions_only: args.regions },
        trace: None,
    };
    let (mut stdout, mut stderr) = (std::io::stdout(), std::io::stderr());
    let streams = Streams { stdout: &mut stdout, stderr: &mut stderr };
    let outcome = cli::run(&options, streams, &mut |line| note(line))?;
    if let Some(stats) = &outcome.timing {
        report_times(args, stats)?;
    }
    if let Some(out) = &args.out {
        note(format_args!("lab: {} files from /out are in {}", outcome.files, out.display()));
    }
    Ok(ExitCode::from(u8::try_from(outcome.status).unwrap_or(u8::MAX)))
}

/// Writes the plugin's statistics where requested, and prints the regions' time.
fn report_times(args: &LabRunArgs, stats: &str) -> Result<()> {
    if let Some(path) = &args.stats {
        write_stats(path, stats)?;
    }
    let times = Times::parse(stats)?;
    match times.regions_ns() {
        Ok(ns) => print_regions(times.regions.len(), ns),
        Err(error) if args.regions => {
            note(format_args!("lab: no region of interest was timed: {error}"))
        }
        Err(_) => {}
    }
    Ok(())
}

fn write_stats(path: &std::path::Path, stats: &str) -> Result<()> {
    std::fs::write(path, stats).with_context(|| format!("cannot write {}", path.display()))
}

fn print_regions(count: usize, ns: u64) {
    let seconds = ns as f64 / 1e9;
    note(format_args!("lab: {count} region(s) of interest took {seconds:.6} s, modelled"));
}

fn shell(args: &GuestArgs) -> Result<ExitCode> {
    cli::shell(&options(args, CPUS)?, &mut |line| note(line))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use crate::lab_bench::file;

    #[test]
    fn files_keep_their_path_or_get_another() {
        assert_eq!(file("/proc:/x/y").expect("exists"), ("/proc".into(), "/x/y".to_owned()));
        assert_eq!(file("/proc").expect("exists"), ("/proc".into(), "/proc".to_owned()));
        assert!(file("/nowhere/at/all:/x").is_err());
    }
}
