//! `tiercel lab`: programs in guests that have another machine's memory nodes.
//! In: [`LabArgs`]. Out: the guest's output and the exit status of what ran in it.
//! Knows nothing of how a guest is made.

use crate::host::EXIT_REFUSED;
use crate::lab_bench::{self, AgentArgs, BenchArgs, CompareArgs, ReportArgs, file};
use crate::terminal::note;
use anyhow::{Context, Result};
use clap::{Args as ClapArgs, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use tiercel_lab::cli::{self, GuestOptions, RunOptions};
use tiercel_lab::{Acceleration, Model, Size, Streams, Times};
use tiercel_machine::{TimeSpan, parse_bytes};

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
  tiercel lab run --machine two-socket-optane -- tiercel run --fast 25% -- ./app
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
    /// The bench's part inside the guest
    #[command(hide = true)]
    Agent(AgentArgs),
}

#[derive(ClapArgs, Debug)]
struct GuestArgs {
    /// The machine: a description's file, a name in lab/machines, or a built-in name
    #[arg(long, value_name = "FILE|NAME", default_value = "spr-cxl")]
    machine: String,
    /// Memory of the guest, divided among its nodes in the machine's proportions
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = parse_bytes)]
    memory: u64,
    /// Virtual CPUs, divided likewise
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    cpus: u32,
    /// Copy a file or folder into the guest; THERE is its path in the guest, by default the same
    #[arg(long = "file", value_name = "HERE[:THERE]")]
    files: Vec<String>,
    /// Set a variable in the guest
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    environment: Vec<(String, String)>,
    /// Emulate CPUs (TCG) even where KVM works
    #[arg(long)]
    tcg: bool,
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
        LabVerb::Agent(args) => lab_bench::agent(args),
    };
    done.unwrap_or_else(|error| {
        note(format_args!("tiercel: {error:#}"));
        ExitCode::from(EXIT_REFUSED)
    })
}

fn run(args: &LabRunArgs) -> Result<ExitCode> {
    let options = RunOptions {
        guest: options(&args.guest)?,
        command: args.program.clone(),
        timeout: args.timeout.0,
        out: args.out.clone(),
        timed: args.timed,
        model: Model { prefetch: args.prefetch, share: args.share, regions_only: args.regions },
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
    cli::shell(&options(args)?, &mut |line| note(line))?;
    Ok(ExitCode::SUCCESS)
}

fn options(args: &GuestArgs) -> Result<GuestOptions> {
    let acceleration = if args.tcg { Acceleration::Tcg } else { Acceleration::Auto };
    Ok(GuestOptions {
        machine: args.machine.clone(),
        size: Size { memory_bytes: args.memory, cpus: args.cpus },
        acceleration,
        files: args.files.iter().map(|text| file(text)).collect::<Result<_>>()?,
        environment: args.environment.clone(),
    })
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(plain) || name.starts_with(|c: char| c.is_ascii_digit())
    {
        return Err(format!("{name:?} is not the name of a variable"));
    }
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_keep_their_path_or_get_another() {
        assert_eq!(file("/proc:/x/y").expect("exists"), ("/proc".into(), "/x/y".to_owned()));
        assert_eq!(file("/proc").expect("exists"), ("/proc".into(), "/proc".to_owned()));
        assert!(file("/nowhere/at/all:/x").is_err());
    }

    #[test]
    fn variables_have_names_the_shell_knows() {
        assert_eq!(variable("A_1=b=c"), Ok(("A_1".to_owned(), "b=c".to_owned())));
        for bad in ["A", "=x", "1A=x", "A B=x", "A;B=x"] {
            assert!(variable(bad).is_err(), "{bad}");
        }
    }
}
