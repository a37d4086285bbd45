//! `tiercel report`: a profile, a plan for it, and how far predictions are off, as one HTML file.
//! In: [`ReportArgs`], a profile, a plan, results of the lab. Out: a file that needs no network, no
//! script, nothing.
//! Knows nothing of markup, nor of how figures come about.

use crate::figures::plural;
use crate::plan::{PLAN_COLUMNS, nodes, plan_cells};
use crate::plan_args::{ReportArgs, StrategyArg};
use crate::whatif::{OPEN, Point, machines_of, plot, points_of};
use anyhow::{Context, Result};
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;
use tiercel_advisor::{Timeline, TimelineRow, peak_bytes, planned_label};
use tiercel_lab::bench::{self, Predictions};
use tiercel_ledger::confidence::SAMPLES_WANTED;
use tiercel_machine::short_bytes;
use tiercel_plan::{Plan, PlannedClass, PlannedSite, read_plan};
use tiercel_profile::{Overview, Profile, Site, owning_frame};
use tiercel_report::{HeatMap, HeatRow, Lines, Page, Series, Table, TimeSpan};

use crate::profile::{
    ACCESS_COLUMNS, PHASE_COLUMNS, SITE_COLUMNS, access_cells, phase_cells, site_cells,
};
use crate::show::short_count;
use crate::table::Align;
use crate::terminal::{note, reason, say};

/// Sites that the conclusion names.
const HOT_MAX: usize = 3;

/// `tiercel report`.
pub fn report(args: &ReportArgs) -> Result<()> {
    let profile = tiercel_profile::read(&args.profile)?;
    let plan = args.plan.as_deref().map(read_plan).transpose()?;
    let lab = args.lab.as_deref().map(predictions).transpose()?;
    let (overview, rows) = (profile.overview(), usize::from(args.rows));
    let name = overview.runs.last().map_or("a program", |run| &*run.program);
    let mut page = Page::new(&format!("Tiercel: {name}"));
    let curve = curve(args, &profile)?;
    add_conclusion(&mut page, &profile, &overview, curve.as_deref().unwrap_or_default());
    add_runs(&mut page, &overview);
    add_objects(&mut page, &profile, plan.as_ref(), rows)?;
    add_curve(&mut page, curve)?;
    add_predictions(&mut page, lab.as_ref())?;
    add_plan(&mut page, &profile, plan.as_ref(), rows);
    add_sites(&mut page, &profile, &overview, rows);
    add_accessing_code(&mut page, &overview, rows);
    add_phases(&mut page, &overview);
    add_origin(&mut page, &overview);
    let output = args.output.clone().unwrap_or_else(|| args.profile.with_extension("html"));
    let wrote = std::fs::write(&output, page.html());
    wrote.with_context(|| format!("cannot write the report {}", output.display()))?;
    say(&format!("written    {}\n", output.display()))
}

/// A table with the columns that the terminal's has.
fn table(columns: &[(&str, Align)]) -> Table {
    let column = |(name, align): &(&str, Align)| {
        let align = match align {
            Align::Left => tiercel_report::Align::Left,
            Align::Right => tiercel_report::Align::Right,
        };
        ((*name).to_owned(), align)
    };
    Table::new(columns.iter().map(column).collect())
}

fn add_runs(page: &mut Page, overview: &Overview) {
    page.section("Runs");
    for run in &overview.runs {
        let only = if run.misses_only { "misses only" } else { "all accesses" };
        page.paragraph(&format!(
            "{} ({}), {:.1?}. Sampler {}: {} samples, each for {:.0} accesses, {only}; {} outside \
             of objects, {} lost. {}",
            run.arguments.join(" "),
            run.ending,
            Duration::from_nanos(run.duration_ns),
            run.sampler,
            run.observed.samples,
            run.sample_period,
            run.observed.samples_outside,
            run.observed.samples_lost,
            run.sampler_note,
        ));
    }
    page.paragraph(&format!(
        "Machine {}; {}, {} allocations ({}), {} reads, {} writes.",
        overview.machine,
        plural(overview.processes as u64, "process", "processes"),
        overview.objects,
        short_bytes(overview.born_bytes),
        short_count(overview.reads),
        short_count(overview.writes),
    ));
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The heat map, and live bytes over time.
fn add_objects(page: &mut Page, profile: &Profile, plan: Option<&Plan>, rows: usize) -> Result<()> {
    page.section("Objects over time");
    let timeline = Timeline::of(profile, rows);
    if timeline.rows.is_empty() {
        page.paragraph("The profile has no objects.");
        return Ok(());
    }
    page.figure(
        &heat_map(&timeline, plan),
        "A row is an object, or all objects of one site and size; a bar is its lifetime. On the \
         right: its usual placement in the plan.",
    )?;
    page.figure(&live(&timeline, plan), "The largest number of live bytes in each interval.")?;
    Ok(())
}

fn heat_map(timeline: &Timeline, plan: Option<&Plan>) -> HeatMap {
    let planned: HashMap<(u64, u32), String> = plan.map_or_else(HashMap::new, |plan| {
        let of_site = |site: &PlannedSite| {
            let hash = site.hash;
            let class = move |class: &PlannedClass| {
                ((hash, u32::from(class.size_class())), nodes(plan, &class.placements[0]))
            };
            site.classes.iter().map(class).collect::<Vec<_>>()
        };
        plan.sites.iter().flat_map(of_site).collect()
    });
    let row = |row: &TimelineRow| HeatRow {
        name: row_name(row),
        note: row.class.and_then(|class| planned.get(&class).cloned()).unwrap_or_default(),
        lives: row.lives.iter().map(|&(from, to)| (seconds(from), seconds(to))).collect(),
        cells: row.accesses.clone(),
    };
    let interval = |(name, from, to): &(String, u64, u64)| TimeSpan {
        name: name.clone(),
        start_s: seconds(*from),
        end_s: seconds(*to),
    };
    HeatMap {
        title: "Accesses by object and time".to_owned(),
        unit: format!("accesses in {:.1?}", Duration::from_nanos(timeline.column_ns)),
        rows: timeline.rows.iter().map(row).collect(),
        intervals: timeline.phases.iter().map(interval).collect(),
        seen: seen(timeline),
        column_s: seconds(timeline.column_ns),
        end_s: seconds(timeline.end_ns),
    }
}

/// Whether a sample hit any row, by column: where none did, nothing was observed.
fn seen(timeline: &Timeline) -> Vec<bool> {
    let hit = |at: usize| {
        timeline.rows.iter().any(|row| row.accesses.get(at).is_some_and(|all| *all > 0.0))
    };
    (0..timeline.live_bytes.len()).map(hit).collect()
}

fn row_name(row: &TimelineRow) -> String {
    let size = short_bytes(row.bytes);
    match (row.class, row.objects) {
        (None, objects) => format!("{objects} others"),
        (_, 1) => format!("{size} {}", row.place),
        (_, objects) => format!("{objects} x {size} {}", row.place),
    }
}

fn live(timeline: &Timeline, plan: Option<&Plan>) -> Lines {
    // Bytes of a MiB.
    const MIB: f64 = (1u64 << 20) as f64;
    let column_s = seconds(timeline.column_ns);
    let points = timeline.live_bytes.iter().enumerate();
    let points = points.map(|(at, bytes)| (at as f64 * column_s, *bytes as f64 / MIB));
    let room = plan.map(|plan| plan.fast_bytes() as f64 / MIB);
    let most = timeline.live_bytes.iter().max().copied().unwrap_or(0) as f64 / MIB;
    Lines {
        title: match room {
            Some(room) => format!("Live bytes; the plan's fast memory is {room:.1} MiB"),
            None => "Live bytes".to_owned(),
        },
        x: "seconds".to_owned(),
        y: "MiB".to_owned(),
        series: vec![Series { name: "live".to_owned(), points: points.collect() }],
        errors: Vec::new(),
        expected: Vec::new(),
        powers: false,
        // A line far above the curve would only flatten it.
        mark: room.filter(|room| *room <= 2.0 * most),
    }
}

/// Points of the curve, or why there is none: for the profile's own machine that is no error.
fn curve(args: &ReportArgs, profile: &Profile) -> Result<Result<Vec<Point>, String>> {
    let mut points: Vec<Point> = Vec::new();
    for machine in &machines_of(&args.machine, profile)? {
        match points_of(profile, machine, &[], StrategyArg::Joint) {
            Ok(more) => points.extend(more),
            // A requested curve must be drawn.
            Err(error) if !args.machine.is_empty() => return Err(error),
            Err(error) => return Ok(Err(reason(&error))),
        }
    }
    Ok(Ok(points))
}

/// What the rest of the page is evidence for, in a few sentences.
fn add_conclusion(page: &mut Page, profile: &Profile, overview: &Overview, points: &[Point]) {
    page.section("In short");
    let samples: u64 = overview.runs.iter().map(|run| run.observed.samples).sum();
    page.paragraph(&match samples {
        0 => "What is hot is unknown: no access was sampled.".to_owned(),
        few if few < SAMPLES_WANTED => format!(
            "What is hot is unknown: {few} samples are too few to rank ({SAMPLES_WANTED} wanted)."
        ),
        _ => {
            let hot = overview.sites.iter().take(HOT_MAX).map(|site| {
                let (share, size) = (site.share * 100.0, short_bytes(site.peak_bytes));
                format!("{} ({share:.0}% of the accesses, {size})", site.label)
            });
            format!("Hottest: {}.", hot.collect::<Vec<_>>().join("; "))
        }
    });
    let peak = short_bytes(peak_bytes(profile));
    let needs = points.iter().filter(|point| point.is_quarter()).map(Point::sentence);
    let needs: Vec<String> = needs.collect();
    page.paragraph(&format!("Peak of memory: {peak}. {}", needs.join(" ")));
}

/// Where and when the profile and this page were made.
fn add_origin(page: &mut Page, overview: &Overview) {
    let recorded = overview.runs.iter().map(|run| date(run.start_unix_ns)).collect::<Vec<_>>();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    page.paragraph(&format!(
        "Recorded {}. This page was written by tiercel {} on {}.",
        recorded.join(", "),
        env!("CARGO_PKG_VERSION"),
        host.trim(),
    ));
}

/// `2026-11-25 18:02 UTC`, in the proleptic Gregorian calendar (Hinnant, days_from_civil).
fn date(unix_ns: u64) -> String {
    let minutes = unix_ns / 60_000_000_000;
    let days = minutes / 1440 + 719_468; // from 0000-03-01
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153; // from March
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year_of_era + era * 400 + next;
    let (hour, minute) = (minutes / 60 % 24, minutes % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// Predicted slowdown over sizes of the fast memory.
fn add_curve(page: &mut Page, curve: Result<Vec<Point>, String>) -> Result<()> {
    page.section("How much fast memory it needs");
    let points = match curve {
        Ok(points) if points.is_empty() => return Ok(()),
        Ok(points) => points,
        Err(why) => {
            page.paragraph(&format!("No curve: {why}."));
            return Ok(());
        }
    };
    if points.iter().any(Point::is_bounded) {
        page.paragraph(&format!("The bars are {OPEN}."));
    }
    page.figure(
        &plot(&points),
        "Time over that with all memory being fast, as `tiercel whatif` predicts it. Bars: \
         95% confidence intervals from the number of samples; errors of the model come on top.",
    )?;
    Ok(())
}

/// The predictions in results of the lab.
fn predictions(folder: &Path) -> Result<Predictions> {
    let results = bench::results(folder, &mut |line| note(format_args!("tiercel: {line}")))?;
    let predictions = results.predictions().cloned();
    predictions.with_context(|| {
        format!("{} has no run by a plan beside one with all memory fast", folder.display())
    })
}

/// Errors of predictions like the curve's, where run times were measured.
fn add_predictions(page: &mut Page, lab: Option<&Predictions>) -> Result<()> {
    page.section("Accuracy of predictions");
    let Some(Predictions { accuracy, table, plot, spread }) = lab else {
        page.paragraph(
            "No results were given: `tiercel lab bench` runs programs by their plans, `--lab` \
             compares its results with the predictions here.",
        );
        return Ok(());
    };
    page.paragraph(&format!("Of plans that were run in the lab: {accuracy}"));
    page.figure(
        spread,
        "The horizontal line is the share of predictions that should have an error of at most 10 \
         percentage points of the all-fast time.",
    )?;
    page.figure(plot, "A dot is a run by a plan; on the line, it took as long as predicted.")?;
    page.table(table);
    Ok(())
}

fn add_plan(page: &mut Page, profile: &Profile, plan: Option<&Plan>, rows: usize) {
    page.section("Plan");
    let Some(plan) = plan else {
        page.paragraph("No plan was given: `tiercel plan` makes one, `--plan` shows it here.");
        return;
    };
    let own = profile.runs.iter().any(|run| run.build_id == plan.program.build_id);
    if !own {
        page.paragraph(&format!(
            "The plan was made for another build or program ({}, build-id {}): its sites may differ \
             from those above.",
            plan.program.path, plan.program.build_id,
        ));
    }
    let expected = &plan.expected;
    let time = |ns: f64| {
        format!(
            "{:.2?}",
            Duration::from_nanos(tiercel_machine::number::saturating_u64(ns.clamp(0.0, 1e18)))
        )
    };
    page.paragraph(&format!(
        "Made for {}, {} of fast memory ({}), strategy {}, objective {}. Expected: {} of accesses, \
         {} all slow, {} all fast; {} moved.",
        plan.machine.name,
        short_bytes(plan.fast_bytes()),
        plan.options.fast,
        plan.options.strategy,
        plan.options.objective,
        time(expected.access_ns),
        time(expected.in_slowest_ns),
        time(expected.in_fastest_ns),
        short_bytes(expected.moved_bytes),
    ));
    let mut table = table(&PLAN_COLUMNS);
    let (cells, rest) = plan_cells(plan, rows);
    cells.into_iter().for_each(|cells| table.row(cells));
    if table.is_empty() {
        page.paragraph("The plan names no site: objects are placed first come, first served.");
        return;
    }
    page.table(&table);
    if rest > 0 {
        page.paragraph(&format!("... and {rest} more; --rows shows them."));
    }
}

/// Top sites, each with its stack.
fn add_sites(page: &mut Page, profile: &Profile, overview: &Overview, rows: usize) {
    page.section("Allocation sites");
    let by_hash: HashMap<String, &Site> =
        profile.sites.iter().map(|site| (format!("{:016x}", site.hash), site)).collect();
    let named = [("where", Align::Left), ("source", Align::Left)];
    let mut table = table(&[&SITE_COLUMNS[..], &named].concat());
    for sums in overview.sites.iter().take(rows) {
        let (place, source) = by_hash.get(&sums.hash).map_or_else(Default::default, |site| {
            let named = owning_frame(site).map(|(_, name)| source(&name.file, name.line));
            (planned_label(site), named.unwrap_or_default())
        });
        let mut cells = site_cells(sums);
        cells.extend([place, source]);
        table.row(cells);
    }
    if table.is_empty() {
        page.paragraph("No allocation site is known.");
        return;
    }
    page.table(&table);
    if overview.sites.len() > rows {
        page.paragraph(&format!(
            "... and {} more; --rows shows them.",
            overview.sites.len() - rows
        ));
    }
    page.paragraph("Call stacks of these sites, innermost frame first:");
    for sums in overview.sites.iter().take(rows) {
        if let Some(site) = by_hash.get(&sums.hash) {
            page.folded(&planned_label(site), &stack(site));
        }
    }
}

/// The code that accesses most, where a sampler reported it.
fn add_accessing_code(page: &mut Page, overview: &Overview, rows: usize) {
    if overview.access_sites.is_empty() {
        return;
    }
    page.section("Accesses by code");
    let mut table = table(&ACCESS_COLUMNS);
    overview.access_sites.iter().take(rows).for_each(|sums| table.row(access_cells(sums)));
    page.table(&table);
}

fn stack(site: &Site) -> Vec<String> {
    let lines = site.frames.iter().flat_map(|frame| {
        let module = frame.module.rsplit('/').next().unwrap_or_default();
        let address = format!("{module}+{:#x}", frame.address);
        let mut lines: Vec<String> = Vec::new();
        for name in &frame.names {
            lines.push(format!("{}  {}  {address}", name.function, source(&name.file, name.line)));
        }
        if lines.is_empty() {
            lines.push(address);
        }
        lines
    });
    lines.collect()
}

fn source(file: &str, line: u32) -> String {
    if file.is_empty() { String::new() } else { format!("{file}:{line}") }
}

fn add_phases(page: &mut Page, overview: &Overview) {
    page.section("Phases");
    let mut table = table(&PHASE_COLUMNS);
    overview.phases.iter().for_each(|sums| table.row(phase_cells(sums)));
    page.table(&table);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_of_the_calendar() {
        let at = |seconds: u64| date(seconds * 1_000_000_000);
        assert_eq!(at(0), "1970-01-01 00:00 UTC");
        assert_eq!(at(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(at(1_767_225_599), "2025-12-31 23:59 UTC");
    }
}
