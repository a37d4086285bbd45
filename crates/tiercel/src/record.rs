//! `tiercel record`: a program with the daemon in the parent, which moves nothing and records.
//! In: [`RecordArgs`]. Out: a profile; the program's own exit status. Knows nothing of what a
//! profile has in it.
//!
//! What can be wrong is found before the program starts. However it ends, what was seen is written.

use crate::args::EngineArgs;
use crate::engine::{recording_engine, settings};
use crate::exit;
use crate::host::{Ending, end_like};
use crate::privilege::symbol_reader;
use crate::program::find;
use crate::record_args::RecordArgs;
use crate::run::{Ended, Started, host_with_runtime, refuse};
use crate::show::mixed;
use crate::terminal::{complain, format_name, note, printable};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;
use tiercel_daemon::{Settings, SiteRow, name_sites};
use tiercel_machine::{Speeds, short_bytes};
use tiercel_mover::measure;
use tiercel_profile::{LIMIT_BYTES_MIN, Mixed, Overview, Profile, RecorderConfig};
use tiercel_sampler::{Kind, in_detail};
use tiercel_symbolize::{Symbols, build_id, hex};

/// Arguments of the program that are kept, bytes in all: command lines may have 2 MiB.
const ARGUMENTS_BYTES_MAX: usize = 64 << 10;

/// Of a program that reports nothing.
const UNPROBED: &str = "no code of the program reports its accesses: compile it with tiercel cc of \
                        this version, and link it so";

/// Records the program; what it returns is the program's ending, or a refusal to start it.
pub fn record(args: &RecordArgs) -> ExitCode {
    let output = args.output.clone().unwrap_or_else(|| default_output(&args.program[0]));
    let start_unix_ns = unix_ns();
    match start(args, &output) {
        Ok((started, speeds)) => finish(args, &output, start_unix_ns, started, speeds),
        Err(error) => refuse(&error),
    }
}

/// `PROGRAM.profile` in the current folder.
fn default_output(program: &OsStr) -> PathBuf {
    let mut name = Path::new(program).file_name().unwrap_or(OsStr::new("program")).to_owned();
    name.push(".profile");
    name.into()
}

/// Starts the program, after measuring the machine's speeds: the program must not wait for that.
fn start(args: &RecordArgs, output: &Path) -> Result<(Started, Speeds)> {
    if args.limit < LIMIT_BYTES_MIN {
        bail!("--limit {}: must be at least {}", args.limit, short_bytes(LIMIT_BYTES_MIN));
    }
    tiercel_profile::vacant(output)?;
    let engine = EngineArgs {
        sampler: args.sampler,
        machine: args.machine.clone(),
        config: args.config.clone(),
        ..EngineArgs::default()
    };
    let record = RecorderConfig { limit_bytes: args.limit, ..RecorderConfig::default() };
    let settings = with_rate(args, settings(&engine)?)?;
    let mut engine = recording_engine(&settings, record)?;
    let speeds = match settings.machine.name.as_str() {
        "" => in_detail(|| measure(engine.parts.mover.as_mut(), &engine.parts.machine)),
        _ => Speeds::default(), // a description is of another machine
    };
    Ok((host_with_runtime(&args.program, engine)?, speeds))
}

/// What only compiled code can follow.
fn with_rate(args: &RecordArgs, mut settings: Settings) -> Result<Settings> {
    if (args.rate.is_some() || args.caches.is_some()) && settings.sampler != Kind::Compiled {
        bail!("--rate and --caches are for --sampler compiled");
    }
    settings.sampling.rate = args.rate.unwrap_or(settings.sampling.rate);
    settings.sampling.caches = args.caches.or(settings.sampling.caches);
    Ok(settings)
}

fn finish(
    args: &RecordArgs,
    output: &Path,
    start_unix_ns: u64,
    started: Started,
    speeds: Speeds,
) -> ExitCode {
    let Ended { ending, final_report, remarks, .. } = started.wait();
    let ending = match ending {
        Ok(ending) => ending,
        Err(error) => {
            complain(&error);
            return ExitCode::from(exit::REFUSED);
        }
    };
    let problems =
        final_report.as_ref().map(|end| end.summary.problems.clone()).unwrap_or_default();
    let clients = final_report.as_ref().map(|end| &end.summary.clients);
    let attached = clients.map_or(0, |clients| clients.attached);
    let is_unprobed = args.sampler.map(Kind::from) == Some(Kind::Compiled)
        && clients.is_some_and(|clients| clients.probed == 0);
    let (profile, sites) = final_report.map_or((None, Vec::new()), |end| (end.profile, end.sites));
    let written = match profile.map(|profile| *profile) {
        Some(mut profile) => {
            let mixed = mixed_of(&sites, &mut Symbols::new(&symbol_reader()));
            for run in &mut profile.runs {
                (run.speeds, run.mixed) = (speeds.clone(), mixed.clone());
            }
            write_profile(args, output, start_unix_ns, ending, profile)
        }
        None => Err(anyhow::anyhow!("the daemon failed; no profile was written")),
    };
    print_remarks(&remarks, &problems);
    match written {
        Ok(overview) if args.json => note(format_args!("{}", json(&overview, output, ending))),
        Ok(_) if args.quiet => {}
        Ok(overview) => {
            if is_unprobed {
                note(format_args!("tiercel: {UNPROBED}"));
            }
            if attached == 0 {
                note(format_args!("tiercel: no process attached: no objects were tracked"));
            }
            note(format_args!("tiercel: {}: {}", output.display(), overview_line(&overview)));
        }
        Err(error) => complain(&error),
    }
    end_like(ending)
}

/// Who shares blocks of small objects, over all users and programs of the run.
fn mixed_of(sites: &[SiteRow], symbols: &mut Symbols) -> Mixed {
    let mut all = Mixed::default();
    sites.iter().for_each(|row| all.absorb(&mixed(row, symbols)));
    all
}

fn print_remarks(remarks: &[String], problems: &BTreeMap<String, u64>) {
    for remark in remarks {
        note(format_args!("tiercel: {}", printable(remark)));
    }
    for (problem, count) in problems {
        note(format_args!("tiercel: {} ({count} times)", printable(problem)));
    }
}

/// Fills in what only we know, finds names, and writes.
fn write_profile(
    args: &RecordArgs,
    output: &Path,
    start_unix_ns: u64,
    ending: Ending,
    mut profile: Profile,
) -> Result<Overview> {
    let path = std::env::var_os("PATH");
    let found = find(&args.program[0], path.as_deref());
    let found = found.map(|file| file.canonicalize().unwrap_or(file)).unwrap_or_default();
    let run = profile.runs.first_mut().context("a recorded profile has a run")?;
    run.program = found.to_string_lossy().into_owned();
    let id = build_id(&found).unwrap_or_default();
    run.build_id = hex::text(&id);
    run.arguments = stored_arguments(&args.program);
    run.start_unix_ns = start_unix_ns;
    run.ending = ending_text(ending);
    name_sites(&mut profile, &mut Symbols::new(&symbol_reader()));
    // Names are the last thing that makes it larger.
    profile.keep(args.limit);
    tiercel_profile::write(&profile, output)?;
    Ok(profile.overview())
}

/// The arguments up to their limit; an ellipsis stands for the rest.
fn stored_arguments(program: &[OsString]) -> Vec<String> {
    let mut arguments = Vec::new();
    let mut left = ARGUMENTS_BYTES_MAX;
    for argument in program {
        let text = argument.to_string_lossy();
        let Some(rest) = left.checked_sub(text.len()) else {
            arguments.push("...".to_owned());
            break;
        };
        left = rest;
        arguments.push(text.into_owned());
    }
    arguments
}

fn ending_text(ending: Ending) -> String {
    match ending {
        Ending::Exited(status) => format!("exited {status}"),
        Ending::Killed(signal) => format!("killed by signal {signal}"),
    }
}

fn overview_line(overview: &Overview) -> String {
    let seen = overview.runs.first().map(|run| &run.observed);
    let (samples, lost) = seen.map_or((0, 0), |seen| (seen.samples, seen.records_lost));
    let lost = if lost > 0 { format!("; {lost} records were lost") } else { String::new() };
    format!(
        "{} allocations ({}) of {} sites, {} phases, {samples} samples{lost}; `tiercel profile \
         show` shows it",
        overview.objects,
        short_bytes(overview.born_bytes),
        overview.sites.len(),
        overview.phases.len(),
    )
}

fn json(overview: &Overview, output: &Path, ending: Ending) -> serde_json::Value {
    serde_json::json!({
        "format": format_name("record"),
        "profile": output.display().to_string(),
        "exit_status": ending.shell_status(),
        "overview": overview,
        "peak_memory_bytes": peak_memory_bytes(),
    })
}

/// Most memory this process had at a time, the daemon in it included; 0 when the kernel does not
/// report it.
fn peak_memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|text| text.trim().trim_end_matches(" kB").parse().ok());
    kib.unwrap_or(0u64) * 1024
}

fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
