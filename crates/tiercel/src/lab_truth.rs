//! `tiercel lab truth`: the exact misses of a program by allocation site, beside what sampling made
//! of them. In: [`TruthArgs`]. Out: a table. Knows nothing of how misses are counted or joined.

use crate::lab_guest::{GuestArgs, options};
use crate::table::{Align, Table};
use crate::terminal::{note, printable, say, say_json};
use anyhow::{Context, Result, ensure};
use clap::Args as ClapArgs;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::process::ExitCode;
use tiercel_lab::cli::{self, RunOptions};
use tiercel_lab::truth::{Counts, Life, Truth, truth as join};
use tiercel_lab::{Model, Streams, Times, Trace, Traced};
use tiercel_machine::{TimeSpan, parse_bytes, short_bytes};
use tiercel_profile::{Profile, site_label};

/// The profile's name in the guest's folder of results.
const PROFILE: &str = "truth.profile";

#[derive(ClapArgs, Debug)]
pub struct TruthArgs {
    #[command(flatten)]
    guest: GuestArgs,
    /// Kill the guest after this time
    #[arg(long, value_name = "TIME", default_value = "1800s")]
    timeout: TimeSpan,
    /// Most bytes of the trace of all misses, 16 each; it is a temporary file
    #[arg(long, value_name = "SIZE", default_value = "8GiB", value_parser = parse_bytes)]
    limit: u64,
    /// Sites to show, those with most misses
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    rows: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

/// Everything that is printed.
#[derive(Debug, Serialize)]
struct Report {
    /// Misses of the program's processes.
    misses: u64,
    /// How many accesses a sample stood for.
    sample_period: f64,
    /// Samples that the profile rests on.
    samples: u64,
    /// Allocations that the profile has merged with others: their misses count as outside.
    merged: u64,
    /// Those with most misses first.
    sites: Vec<SiteRow>,
    /// Where no object lived.
    outside: SiteRow,
}

/// One site. Shares are of the program's, 0 to 1.
#[derive(Clone, Debug, Serialize)]
struct SiteRow {
    site: String,
    misses: u64,
    share: f64,
    stall_share: f64,
    reads: u64,
    writes: u64,
    dirtied: u64,
    /// Share of the misses by sampling.
    sampled_share: f64,
}

/// Runs the program once, and prints the truth.
pub fn truth(args: &TruthArgs) -> Result<ExitCode> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let trace = Trace { path: folder.path().join("trace"), bytes_max: args.limit };
    let out = folder.path().join("out");
    let record = ["tiercel", "record", "--quiet", "--sampler", "emulator", "--output"];
    let mut command: Vec<String> = record.map(str::to_owned).to_vec();
    command.extend([format!("/out/{PROFILE}"), "--".to_owned()]);
    command.extend(args.program.iter().cloned());
    let guest = options(&args.guest, 1)?;
    ensure!(
        guest.size.cpus == 1,
        "--cpus {}: misses are in the order of time only with 1",
        guest.size.cpus
    );
    let run = RunOptions {
        guest,
        command,
        timeout: args.timeout.0,
        out: Some(out.clone()),
        timed: true,
        model: Model::default(),
        trace: Some(trace.clone()),
    };
    let (mut stdout, mut stderr) = (std::io::stderr(), std::io::stderr());
    let streams = Streams { stdout: &mut stdout, stderr: &mut stderr };
    let outcome = cli::run(&run, streams, &mut |line| note(line))?;
    let stats = outcome.timing.context("the guest was not timed")?;
    let Traced { misses, lost, origin_ns } =
        Times::parse(&stats)?.trace.context("the timing plugin wrote no trace")?;
    ensure!(
        lost == 0,
        "{lost} of {} misses did not fit into {}: use a smaller input, or --limit",
        misses + lost,
        short_bytes(args.limit)
    );
    let origin_ns = origin_ns.context("nothing was sampled: the program may not have started")?;
    let profile = tiercel_profile::read(&out.join(PROFILE))?;
    let lives = lives(&profile);
    let processes: Vec<u32> = profile.processes.iter().map(|process| process.pid).collect();
    let found = join(&trace.path, origin_ns, &lives, &processes, profile.sites.len())?;
    let report = report(&profile, &found);
    if args.json {
        say_json("lab-truth", &report)?;
    } else {
        say(&text(&report, args.rows))?;
    }
    Ok(ExitCode::from(u8::try_from(outcome.status).unwrap_or(u8::MAX)))
}

/// The lives of all objects that the profile keeps apart.
fn lives(profile: &Profile) -> Vec<Life> {
    let apart = profile.objects.iter().filter(|object| object.count == 1 && object.address > 0);
    let life = |object: &tiercel_profile::Object| Life {
        process: profile.processes[object.process as usize].pid,
        address: object.address,
        bytes: object.peak_bytes.max(object.bytes),
        birth_ns: object.birth_ns,
        death_ns: object.death_ns,
        site: object.site as usize,
    };
    apart.map(life).collect()
}

fn report(profile: &Profile, found: &Truth) -> Report {
    let all = found.of_program();
    let mut sampled = vec![0u64; profile.sites.len()];
    for access in &profile.accesses {
        sampled[profile.objects[access.object as usize].site as usize] += access.accesses();
    }
    let sampled_all: u64 = sampled.iter().sum();
    let share = |of: u64, all: u64| if all > 0 { of as f64 / all as f64 } else { 0.0 };
    let row = |site: String, counts: &Counts, sampled: u64| SiteRow {
        site,
        misses: counts.misses(),
        share: share(counts.misses(), all.misses()),
        stall_share: share(counts.stall_ps, all.stall_ps),
        reads: counts.reads,
        writes: counts.writes,
        dirtied: counts.dirtied,
        sampled_share: share(sampled, sampled_all),
    };
    let mut by_name: BTreeMap<String, (Counts, u64)> = BTreeMap::new();
    let named = profile.sites.iter().zip(&found.sites).zip(sampled);
    for ((site, counts), sampled) in named {
        let sum = by_name.entry(site_label(site)).or_default();
        sum.0.reads += counts.reads;
        sum.0.writes += counts.writes;
        sum.0.dirtied += counts.dirtied;
        sum.0.stall_ps += counts.stall_ps;
        sum.1 += sampled;
    }
    let mut sites: Vec<SiteRow> =
        by_name.into_iter().map(|(name, (counts, sampled))| row(name, &counts, sampled)).collect();
    sites.sort_by_key(|row| Reverse(row.misses));
    let merged = profile.objects.iter().filter(|object| object.count > 1);
    Report {
        misses: all.misses(),
        sample_period: profile.runs.first().map_or(0.0, |run| run.sample_period),
        samples: profile.accesses.iter().map(|access| access.samples).sum(),
        merged: merged.map(|object| object.count).sum(),
        sites,
        outside: row("(no object)".to_owned(), &found.outside, 0),
    }
}

fn text(report: &Report, rows: usize) -> String {
    let columns = [
        ("misses", Align::Right),
        ("share", Align::Right),
        ("of the stall", Align::Right),
        ("reads", Align::Right),
        ("writes", Align::Right),
        ("dirtied", Align::Right),
        ("sampled", Align::Right),
        ("error", Align::Right),
        ("where", Align::Left),
    ];
    let mut table = Table::new(&columns);
    let percent = |share: f64| format!("{:.1}%", share * 100.0);
    for row in report.sites.iter().take(rows).chain([&report.outside]) {
        table.row(vec![
            row.misses.to_string(),
            percent(row.share),
            percent(row.stall_share),
            row.reads.to_string(),
            row.writes.to_string(),
            row.dirtied.to_string(),
            percent(row.sampled_share),
            format!("{:+.1}", (row.sampled_share - row.share) * 100.0),
            printable(&row.site).to_string(),
        ]);
    }
    let rest = report.sites.len().saturating_sub(rows);
    let mut text = table.text();
    if rest > 0 {
        text.push_str(&format!("... and {rest} more; --rows shows them\n"));
    }
    text.push_str(&format!(
        "{} misses, every one counted; {} samples, one of {:.0}; errors in points\n",
        report.misses, report.samples, report.sample_period
    ));
    if report.merged > 0 {
        let merged = report.merged;
        text.push_str(&format!(
            "{merged} allocations were merged in recording: their misses have no object here\n"
        ));
    }
    text
}
