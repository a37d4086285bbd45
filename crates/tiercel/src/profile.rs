//! `tiercel profile`: what can be done with profiles.
//! In: [`ProfileArgs`]. Out: tables, JSON, CSV, profiles. Knows nothing of how they are made.

use crate::memprof::import_memprof;
use crate::profile_args::{ProfileArgs, ProfileVerb};
use crate::table::{Align, Table};
use crate::terminal::{printable, say, say_json};
use anyhow::{Context, Result};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tiercel_machine::short_bytes;
use tiercel_profile::{
    AccessSums, Diff, Fidelity, Format, LARGE_SHARE, Mixed, Overview, PhaseSums, Profile, Relation,
    Run, SiteSums, TABLES, diff, merge, read, write,
};

/// `tiercel profile`.
pub fn profile(args: &ProfileArgs) -> Result<()> {
    match &args.verb {
        ProfileVerb::Show { profile, rows, json } => {
            let overview = read(profile)?.overview();
            if *json {
                return say_json("profile", &overview);
            }
            say(&shown(&overview, *rows))
        }
        ProfileVerb::Diff { before, after, rows, fidelity, json } => {
            let diff = diff(&read(before)?.overview(), &read(after)?.overview());
            match (fidelity, json) {
                (true, true) => say_json("profile-fidelity", &diff.fidelity()),
                (true, false) => say(&fidelity_lines(&diff.fidelity())),
                (false, true) => say_json("profile-diff", &diff),
                (false, false) => say(&differences(&diff, *rows)),
            }
        }
        ProfileVerb::Merge { output, ranks, limit, json, profiles } => {
            let relation = if *ranks { Relation::Parts } else { Relation::Runs };
            let overview = merge_all(output, relation, *limit, profiles)?;
            if *json {
                return say_json("profile", &overview);
            }
            let (runs, objects) = (overview.runs.len(), overview.objects);
            say(&format!("{}: {runs} runs, {objects} allocations\n", output.display()))
        }
        ProfileVerb::ImportMemprof(args) => import_memprof(args),
        ProfileVerb::Export { profile, table, output, json } => {
            let format = if *json { Format::Json } else { Format::Csv };
            export(&read(profile)?, table.as_deref(), output.as_deref(), format)
        }
    }
}

fn merge_all(output: &Path, relation: Relation, limit: u64, paths: &[PathBuf]) -> Result<Overview> {
    tiercel_profile::vacant(output)?;
    let profiles = paths.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
    let mut merged =
        merge(profiles, relation).with_context(|| format!("cannot merge {}", numbered(paths)))?;
    merged.keep(limit);
    write(&merged, output)?;
    Ok(merged.overview())
}

/// `0: a.profile, 1: b.profile`: errors of merging name profiles by number.
fn numbered(paths: &[PathBuf]) -> String {
    let names = paths.iter().enumerate().map(|(at, path)| format!("{at}: {}", path.display()));
    names.collect::<Vec<_>>().join(", ")
}

fn export(
    profile: &Profile,
    table: Option<&str>,
    folder: Option<&Path>,
    format: Format,
) -> Result<()> {
    let Some(folder) = folder else {
        let mut out = BufWriter::new(std::io::stdout().lock());
        let table = table.context("name a table, or a folder for all tables")?;
        let wrote = profile.export(table, format, &mut out).and_then(|_| out.flush());
        // A reader that closes the pipe early (`| head`) is not an error.
        return match wrote {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
            _ => Ok(()),
        };
    };
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let ending = if format == Format::Json { "json" } else { "csv" };
    for table in TABLES {
        let path = folder.join(format!("{table}.{ending}"));
        let file = std::fs::File::create(&path);
        let mut out = BufWriter::new(file.with_context(|| path.display().to_string())?);
        let wrote = profile.export(table, format, &mut out).and_then(|_| out.flush());
        wrote.with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn shown(overview: &Overview, rows: usize) -> String {
    let mut out: String = overview.runs.iter().map(run_lines).collect();
    out.push_str(&format!(
        "machine    {}; {} processes, {} allocations ({}) in {} rows\n",
        printable(&overview.machine),
        overview.processes,
        overview.objects,
        short_bytes(overview.born_bytes),
        overview.object_rows,
    ));
    out.push_str(&format!(
        "accesses   {} reads, {} writes in {} rows of {:.1?}; {} uncompressed\n",
        count(overview.reads),
        count(overview.writes),
        overview.access_rows,
        Duration::from_nanos(overview.slot_ns),
        short_bytes(overview.bytes),
    ));
    out.push_str(&coarse_line(overview));
    let named = [("site", Align::Left), ("where", Align::Left)];
    let mut sites = Table::new(&[&SITE_COLUMNS[..], &named].concat());
    for sums in overview.sites.iter().take(rows) {
        let mut cells = site_cells(sums);
        cells.extend([sums.hash.clone(), sums.label.clone() + &mixed(sums, overview)]);
        sites.row(cells);
    }
    out.push_str(&format!("\n{}", sites.text()));
    if overview.sites.len() > rows {
        out.push_str(&format!("... and {} more; --rows shows them\n", overview.sites.len() - rows));
    }
    out.push_str(&accessing_code(overview, rows));
    out.push_str(&format!("\n{}", phases(overview)));
    out
}

/// The code that accesses most; nothing where no sampler reported it.
fn accessing_code(overview: &Overview, rows: usize) -> String {
    if overview.access_sites.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&ACCESS_COLUMNS);
    overview.access_sites.iter().take(rows).for_each(|sums| table.row(access_cells(sums)));
    format!("\n{}", table.text())
}

/// Columns of a table of the code that accesses.
pub const ACCESS_COLUMNS: [(&str, Align); 6] = [
    ("share", Align::Right),
    ("reads", Align::Right),
    ("writes", Align::Right),
    ("pattern", Align::Left),
    ("accessed by", Align::Left),
    ("objects of", Align::Left),
];

/// Its cells of these.
pub fn access_cells(sums: &AccessSums) -> Vec<String> {
    vec![
        percent(sums.share),
        count(sums.reads),
        count(sums.writes),
        sums.pattern.clone(),
        sums.code.clone(),
        sums.site.clone(),
    ]
}

/// Who shares the blocks of the unknown site, in all runs together.
fn mixed(sums: &SiteSums, overview: &Overview) -> String {
    let mut all = Mixed::default();
    if sums.is_unknown {
        overview.runs.iter().for_each(|run| all.absorb(&run.mixed));
    }
    let text = all.text();
    if text.is_empty() { text } else { printable(&format!(", {text}")) }
}

fn run_lines(run: &Run) -> String {
    let seen = &run.observed;
    let only = if run.misses_only { ", misses only" } else { "" };
    let time = Duration::from_nanos(run.duration_ns);
    let mut out = format!(
        "run        {} ({}), {time:.1?}\nsampler    {}: {} samples, each for {:.0} accesses{only}; {} \
         outside of objects, {} lost\n",
        printable(&run.arguments.join(" ")),
        printable(&run.ending),
        printable(&run.sampler),
        seen.samples,
        run.sample_period,
        seen.samples_outside,
        seen.samples_lost,
    );
    for (count, what) in [
        (seen.records_lost, "records were lost: lifetimes of objects around them are uncertain"),
        (seen.births_refused, "births were refused: their objects are missing"),
        (seen.phases_refused, "phase entries were too many, or too short for the clock"),
        (seen.scans_skipped, "scans of the sampler were skipped"),
    ] {
        if count > 0 {
            out.push_str(&format!("           {count} {what}\n"));
        }
    }
    out
}

fn coarse_line(overview: &Overview) -> String {
    let coarse = &overview.coarsening;
    let parts: Vec<String> = [
        (coarse.objects_merged, "allocations are merged with others of their site and size"),
        (coarse.extents_merged, "allocations have no extents"),
        (coarse.sites_merged, "sites are merged into the unknown site"),
        (coarse.processes_merged, "processes are merged with others"),
    ]
    .iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect();
    if parts.is_empty() { String::new() } else { format!("coarser    {}\n", parts.join("; ")) }
}

fn phases(overview: &Overview) -> String {
    let mut table = Table::new(&PHASE_COLUMNS);
    overview.phases.iter().for_each(|sums| table.row(phase_cells(sums)));
    table.text()
}

/// Columns of a table of sites, before what names them.
pub const SITE_COLUMNS: [(&str, Align); 6] = [
    ("share", Align::Right),
    ("reads", Align::Right),
    ("writes", Align::Right),
    ("latency", Align::Right),
    ("room", Align::Right),
    ("objects", Align::Right),
];

/// A site's cells of these.
pub fn site_cells(sums: &SiteSums) -> Vec<String> {
    vec![
        percent(sums.share),
        count(sums.reads),
        count(sums.writes),
        sums.latency_ns.map_or("-".to_owned(), |ns| format!("{ns:.0}ns")),
        short_bytes(sums.peak_bytes),
        sums.objects.to_string(),
    ]
}

/// Columns of a table of phases.
pub const PHASE_COLUMNS: [(&str, Align); 6] = [
    ("phase", Align::Left),
    ("entered", Align::Right),
    ("time", Align::Right),
    ("reads", Align::Right),
    ("writes", Align::Right),
    ("", Align::Left),
];

/// A phase's cells of these.
pub fn phase_cells(sums: &PhaseSums) -> Vec<String> {
    vec![
        sums.name.clone(),
        sums.entries.to_string(),
        format!("{:.1?}", Duration::from_nanos(sums.time_ns)),
        count(sums.reads),
        count(sums.writes),
        if sums.detected { "detected" } else { "marked" }.to_owned(),
    ]
}

fn differences(diff: &Diff, rows: usize) -> String {
    use Align::{Left, Right};
    let mut sites = Table::new(&[
        ("share", Right),
        ("accesses", Right),
        ("room", Right),
        ("objects", Right),
        ("where", Left),
    ]);
    let pair =
        |one: &Option<SiteSums>, other: &Option<SiteSums>, of: &dyn Fn(&SiteSums) -> String| {
            let side = |sums: &Option<SiteSums>| sums.as_ref().map_or("-".to_owned(), of);
            format!("{} > {}", side(one), side(other))
        };
    for one in diff.sites.iter().take(rows) {
        let cell = |of: &dyn Fn(&SiteSums) -> String| pair(&one.before, &one.after, of);
        let rebuilt = if one.matched_by_label { " (rebuilt)" } else { "" };
        sites.row(vec![
            cell(&|sums| percent(sums.share)),
            cell(&|sums| count(sums.reads.saturating_add(sums.writes))),
            cell(&|sums| short_bytes(sums.peak_bytes)),
            cell(&|sums| sums.objects.to_string()),
            format!("{}{rebuilt}", one.label),
        ]);
    }
    let mut phases =
        Table::new(&[("phase", Left), ("entered", Right), ("time", Right), ("accesses", Right)]);
    for one in &diff.phases {
        let cell = |of: &dyn Fn(&PhaseSums) -> String| {
            let side = |sums: &Option<_>| sums.as_ref().map_or("-".to_owned(), of);
            format!("{} > {}", side(&one.before), side(&one.after))
        };
        phases.row(vec![
            one.name.clone(),
            cell(&|sums| sums.entries.to_string()),
            cell(&|sums| format!("{:.1?}", Duration::from_nanos(sums.time_ns))),
            cell(&|sums| count(sums.reads.saturating_add(sums.writes))),
        ]);
    }
    format!("{}\n{}", sites.text(), phases.text())
}

fn fidelity_lines(found: &Fidelity) -> String {
    let site = found.worst_site.as_ref().map_or("-".to_owned(), |site| {
        format!("{} off: {}", fine_percent(found.worst_error), printable(site))
    });
    let correlation = found.rank_correlation.map_or("-".to_owned(), |rho| format!("{rho:.3}"));
    let missed = found.missed_writes.map_or("-".to_owned(), fine_percent);
    format!(
        "misplaced         {} of {} accesses\nworst large site  {site}\nrank correlation  \
         {correlation}\nwrites missed     {missed}\n(large: at least {} of the accesses)\n",
        fine_percent(found.misplaced),
        count(found.accesses),
        percent(LARGE_SHARE),
    )
}

fn fine_percent(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// Three significant digits and a decimal unit: `12.3k`.
fn count(count: u64) -> String {
    crate::show::short_count(count)
}
