//! The summary of a run or a daemon, as text.
//! In: a [`FinalReport`]. Out: lines. Knows nothing of where they go.

use crate::table::{Align, Table};
use crate::terminal::printable;
use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::time::Duration;
use tiercel_daemon::{
    Coverage, FinalReport, Fits, Origin, PlanSummary, Sharer, SiteRow, Summary, Use, judge,
};
use tiercel_ledger::confidence::{Estimate, Ranking, SAMPLES_WANTED};
use tiercel_machine::{NodeId, number, short_bytes};
use tiercel_profile::{Mixed, MixedSite};
use tiercel_symbolize::Symbols;

/// Sites that are named and merged for a table; symbolizing one costs up to a millisecond.
const NAMED_MAX: usize = 500;

/// The summary: a table of the `rows` sites that benefit most from fast memory, then the figures.
pub fn final_report(final_report: &FinalReport, symbols: &mut Symbols, rows: usize) -> String {
    let mut out = String::new();
    if !final_report.sites.is_empty() {
        out.push_str(&ranked(final_report, symbols, rows));
    }
    out.push_str(&figures(&final_report.summary));
    out
}

/// The sites in the order that evidence allows, and how sure it is.
fn ranked(final_report: &FinalReport, symbols: &mut Symbols, rows: usize) -> String {
    let summary = &final_report.summary;
    let mut sites = final_report.sites.clone();
    let is_ranked = summary.evidence.samples >= SAMPLES_WANTED;
    if !is_ranked {
        sites.sort_by_key(|row| std::cmp::Reverse(row.used.peak_bytes));
    }
    sites.truncate(NAMED_MAX);
    let (names, mut merged): (Vec<_>, Vec<_>) = merge(&sites, symbols).into_iter().unzip();
    let ranking = judge(&mut merged, &summary.evidence);
    let mut places: Vec<_> = names.into_iter().zip(merged).collect();
    let rest = places.len().saturating_sub(rows);
    places.truncate(rows);
    let mut out = heading(&ranking, summary.elapsed_ms);
    out.push_str(&table(&places, summary, false));
    if rest > 0 {
        let _ = writeln!(out, "... and {rest} more; --rows shows them, --json all");
    }
    out
}

/// What the order of sites means.
fn heading(ranking: &Ranking, elapsed_ms: u64) -> String {
    let Ranking { settled, samples, samples_wanted, at_stake } = ranking;
    let seconds = elapsed_ms as f64 / 1e3;
    match samples {
        0 => "largest sites (no access to them was sampled):\n".to_owned(),
        _ if samples < samples_wanted => format!(
            "{samples} samples in {seconds:.1} s are too few to rank ({samples_wanted} wanted): run \
             longer\nlargest sites (share of accesses, with its 90% interval):\n"
        ),
        _ if *settled => "hottest sites first (* fits the fast-memory budget, wholly or in part; \
                          share of accesses, with its 90% interval, ? where another rank is as \
                          likely):\n"
            .to_owned(),
        _ => format!(
            "the order of sites is not settled: another choice may hold {:.0}% more of the accesses; \
             run longer\nhottest sites first, as far as known (* fits the fast-memory budget, wholly \
             or in part; share of accesses, with its 90% interval, ? where another rank is as \
             likely):\n",
            at_stake * 100.0
        ),
    }
}

/// A table of sites in the order given, those of one place together.
pub fn sites(sites: &[SiteRow], summary: &Summary, symbols: &mut Symbols) -> String {
    table(&merge(sites, symbols), summary, true)
}

/// Sites merged by function and line, in the order of the first of each: many stacks reach one line
/// of a program.
fn merge(sites: &[SiteRow], symbols: &mut Symbols) -> Vec<(String, SiteRow)> {
    let mut places: Vec<(String, SiteRow)> = Vec::new();
    for site in sites {
        let name = name(site, symbols);
        match places.iter_mut().find(|(known, _)| *known == name) {
            Some((_, row)) => {
                row.used.absorb(&site.used);
                row.shared.absorb(&site.shared);
                row.deserves_fast |= site.deserves_fast;
            }
            None => places.push((name, site.clone())),
        }
    }
    for (name, row) in &mut places {
        name.push_str(&shared(row, symbols));
    }
    places
}

/// Who shares the blocks of a row, for its name.
fn shared(row: &SiteRow, symbols: &mut Symbols) -> String {
    let text = mixed(row, symbols).text();
    if text.is_empty() { text } else { printable(&format!(", {text}")) }
}

/// The same with names, as profiles keep it.
pub fn mixed(row: &SiteRow, symbols: &mut Symbols) -> Mixed {
    let site = |sharer: &Sharer| {
        let named = symbols.owned_by(row.uid).owning_frame(&sharer.frames);
        let label = named.map_or_else(|| "unknown site".to_owned(), |named| named.short());
        MixedSite { hash: sharer.hash, label, samples: sharer.samples }
    };
    Mixed { samples: row.shared.samples, sites: row.shared.sharers.iter().map(site).collect() }
}

fn table(places: &[(String, SiteRow)], summary: &Summary, is_live: bool) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("", Left),
        ("size", Right),
        ("objects", Right),
        ("fits", Left),
        ("accesses", Right),
        ("per KiB", Right),
        if is_live { ("heat/s", Right) } else { ("share", Left) },
        ("node", Left),
        ("where", Left),
    ]);
    for (name, row) in places {
        let used = &row.used;
        let lives = used.live_bytes > 0;
        let heat = if lives { used.heat } else { used.heat_max };
        table.row(vec![
            if row.deserves_fast { "*" } else { "" }.to_owned(),
            short_bytes(if lives { used.live_bytes } else { used.peak_bytes }),
            used.births.to_string(),
            fits(if lives { &used.fits } else { &used.last_fits }),
            short_count(used.reads + used.writes),
            short_count(number::saturating_u64(used.density() * 1024.0)),
            if is_live { short_count(number::saturating_u64(heat)) } else { share(used) },
            nodes(if lives { &used.nodes } else { &used.last_nodes }, &summary.nodes),
            name.clone(),
        ]);
    }
    table.text()
}

/// Share of accesses with its interval: `53% (48-58)`, and whether its rank is certain.
fn share(used: &Use) -> String {
    let Estimate { of, low, high } = used.share;
    let percent = |share: f64| format!("{:.0}", share * 100.0);
    let doubt = if used.settled { "" } else { "?" };
    format!("{}% ({}-{}){doubt}", percent(of), percent(low), percent(high))
}

/// Function and line of a site, its program in front.
pub fn name(row: &SiteRow, symbols: &mut Symbols) -> String {
    if let Origin::Data(name) = &row.origin {
        return printable(&format!("{}: {name}", row.program));
    }
    let place = match symbols.owned_by(row.uid).owning_frame(&row.frames) {
        Some(named) => named.short(),
        None if row.used.blocks => "small objects".to_owned(),
        None => "unknown site".to_owned(),
    };
    let what = match row.origin {
        Origin::Shared => " (shared memory)",
        Origin::File => " (file)",
        _ if row.used.blocks && !row.frames.is_empty() => " (small objects)",
        _ => "",
    };
    printable(&format!("{}: {place}{what}", row.program))
}

/// How much of a site the budget has room for: `all`, `none`, or a part.
fn fits(fits: &Fits) -> String {
    match fits {
        Fits { of_bytes: 0, .. } => "-".to_owned(),
        Fits { bytes: 0, .. } => "none".to_owned(),
        Fits { bytes, of_bytes, .. } if bytes == of_bytes => "all".to_owned(),
        Fits { bytes, objects, of_bytes, of_objects } => format!(
            "{} of {}, {objects} of {of_objects}",
            short_bytes(*bytes),
            short_bytes(*of_bytes)
        ),
    }
}

/// Residency of objects: `fast 80% slow 20%`.
fn nodes(nodes: &BTreeMap<NodeId, u64>, labels: &BTreeMap<u16, String>) -> String {
    let total: u64 = nodes.values().sum();
    let shares = nodes.iter().filter(|(_, bytes)| **bytes > 0).map(|(node, bytes)| {
        let label = labels.get(&node.0).cloned().unwrap_or_else(|| format!("node{}", node.0));
        let percent = *bytes * 100 / total;
        if percent == 100 { label } else { format!("{label} {percent}%") }
    });
    let shares: Vec<String> = shares.collect();
    if shares.is_empty() { "-".to_owned() } else { shares.join(" ") }
}

/// The figures, one line each.
pub fn figures(s: &Summary) -> String {
    let mut out = String::new();
    objects_line(&mut out, s);
    let records = &s.records;
    let (drained, lost, resyncs) = (records.drained, records.lost, records.resyncs);
    let _ = writeln!(out, "records    {drained} drained, {lost} lost, {resyncs} resyncs");
    samples(&mut out, s);
    coverage(&mut out, s);
    moves(&mut out, s);
    budget_line(&mut out, s);
    if let Some(plan) = &s.plan {
        planned(&mut out, plan);
    }
    spent(&mut out, s);
    problems(&mut out, s);
    clients(&mut out, s);
    if s.modelled {
        modelled_line(&mut out, s);
    }
    out
}

fn objects_line(out: &mut String, s: &Summary) {
    let objects = &s.objects;
    let _ = writeln!(
        out,
        "objects    {} allocated ({}), {} of them ephemeral; peak {} in {}",
        objects.born,
        short_bytes(objects.born_bytes),
        objects.ephemeral,
        short_bytes(objects.peak_bytes),
        plural(s.clients.attached, "process", "processes"),
    );
}

fn samples(out: &mut String, s: &Summary) {
    let samples = &s.samples;
    let _ = writeln!(
        out,
        "samples    {} by {}: {} in objects, {} in ephemeral objects, {} elsewhere; {} lost",
        samples.seen,
        s.sampler,
        samples.attributed,
        samples.ephemeral,
        samples.outside,
        samples.lost
    );
    if samples.ended + samples.undecided > 0 {
        let _ = writeln!(
            out,
            "late       {} samples were of objects that had died when they were read, {} undecided",
            samples.ended, samples.undecided
        );
    }
    if samples.lives_forgotten > 0 {
        let count = samples.lives_forgotten;
        let _ =
            writeln!(out, "forgotten  {count} lives of objects, before all samples of them came");
    }
    if samples.throttled > 0 {
        let count = samples.throttled;
        let _ = writeln!(out, "throttled  the kernel throttled sampling {count} times");
    }
    if samples.blind > 0 {
        let _ = writeln!(
            out,
            "skipped    {} page-table scans: the process is too large to be probed for reads",
            samples.blind
        );
    }
}

/// What is seen of the processes' memory and of their accesses, and what is not.
fn coverage(out: &mut String, s: &Summary) {
    let Coverage { rss_bytes, tracked_bytes: (least, most), .. } = s.coverage;
    if rss_bytes > 0 {
        let percent = |bytes: u64| number::saturating_u64(bytes as f64 * 100.0 / rss_bytes as f64);
        let (of, tracked) = (short_bytes(rss_bytes), range(short_bytes(least), short_bytes(most)));
        let percents = range(percent(least).to_string(), percent(most).to_string());
        let _ = write!(out, "coverage   tracked {tracked} of {of} of RSS ({percents}%)");
        if s.samples.seen > 0 {
            let known = s.samples.seen.saturating_sub(s.samples.outside);
            let _ = write!(out, ", {}% of samples", known * 100 / s.samples.seen);
        }
        if let Some((name, bytes)) = &s.coverage.largest_untracked {
            let _ =
                write!(out, "; largest untracked: {}, {}", short_bytes(*bytes), printable(name));
        }
        out.push('\n');
    }
    if s.coverage.unread > 0 {
        let processes = plural(s.coverage.unread, "process", "processes");
        let _ = writeln!(out, "coverage   of {processes} the mappings cannot be read");
    }
}

/// `5 to 6`, or `5`.
fn range(least: String, most: String) -> String {
    if least == most { least } else { format!("{least} to {most}") }
}

/// Problems, and bytes that stayed in the wrong tier.
fn problems(out: &mut String, s: &Summary) {
    for (problem, count) in &s.problems {
        let _ = writeln!(out, "problem    {}{}", printable(problem), times(*count));
    }
    for (why, bytes) in s.left_bytes.iter().filter(|(_, bytes)| **bytes > 0) {
        let _ = writeln!(out, "not moved  {} in the wrong tier: {why}", short_bytes(*bytes));
    }
}

/// Processes that detached, and connections that were refused.
fn clients(out: &mut String, s: &Summary) {
    for (reason, count) in &s.clients.stepped_aside {
        let processes = plural(*count, "process", "processes");
        let _ = writeln!(out, "detached   {processes}: {}", printable(reason));
    }
    if s.clients.adopted > 0 {
        let processes = plural(s.clients.adopted, "forked process", "forked processes");
        let _ = writeln!(out, "forked     {processes} did not attach: known as the parent had it");
    }
    if s.clients.unseen > 0 {
        let processes = plural(s.clients.unseen, "forked process", "forked processes");
        let _ = writeln!(out, "unseen     {processes} did not attach: nothing of it is known");
    }
    if s.clients.small > 0 {
        let programs = plural(s.clients.small, "process", "processes");
        let _ = writeln!(out, "small      {programs} ended small, or stayed so: not attached");
    }
    if s.clients.failed > 0 {
        let processes = plural(s.clients.failed, "process", "processes");
        let why = s.clients.failure.as_deref().unwrap_or("unknown");
        let _ = writeln!(out, "failed     {processes} could not attach: {}", printable(why));
    }
    for (remark, count) in &s.clients.remarks {
        let _ = writeln!(out, "remark     {}: {remark}", plural(*count, "process", "processes"));
    }
    for (reason, count) in &s.clients.refused {
        let connections = plural(*count, "connection", "connections");
        let _ = writeln!(out, "refused    {connections}: {reason}");
    }
}

fn modelled_line(out: &mut String, s: &Summary) {
    let note = if s.mover_note.is_empty() { "moves are simulated" } else { &s.mover_note };
    let _ = writeln!(out, "MODELLED   no memory was moved: {note}");
}

fn moves(out: &mut String, s: &Summary) {
    let verb = if s.modelled { "would have moved" } else { "moved" };
    let _ = writeln!(
        out,
        "moves      {} requested in {}; {verb} {}{}; failed {}{}",
        s.moves.asked,
        plural(s.decisions, "decision", "decisions"),
        short_bytes(s.moves.moved_bytes_all()),
        amounts(&s.moves.moved_bytes),
        short_bytes(s.moves.failed_bytes.values().sum()),
        amounts(&s.moves.failed_bytes),
    );
    if s.moves.own_bytes > 0 {
        let own = short_bytes(s.moves.own_bytes);
        let _ = writeln!(out, "           {own} of it by the hosted programs");
    }
    out.push_str(&refused_by_programs(s));
}

/// What hosted programs were asked to move and cannot without loss; empty where there is none.
pub fn refused_by_programs(s: &Summary) -> String {
    let refused = &s.moves.own_refused_bytes;
    let bytes: u64 = refused.values().sum();
    if bytes == 0 {
        return String::new();
    }
    format!(
        "           {} left to the kernel by the hosted programs{}\n",
        short_bytes(bytes),
        amounts(refused)
    )
}

/// Bytes by reason in brackets; nothing where there are none.
fn amounts<K: Display>(bytes: &BTreeMap<K, u64>) -> String {
    let parts = bytes.iter().map(|(reason, bytes)| format!("{reason} {}", short_bytes(*bytes)));
    let parts: Vec<String> = parts.collect();
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}

fn budget_line(out: &mut String, s: &Summary) {
    let _ = writeln!(
        out,
        "budget     {} of fast memory ({}), {} used at the last tick; machine {}",
        short_bytes(s.budget.fast_bytes),
        s.budget.fast,
        short_bytes(s.budget.used_bytes),
        s.machine,
    );
}

/// The outcome of the plan, and its sites without a match.
fn planned(out: &mut String, plan: &PlanSummary) {
    let by_name = match plan.by_name {
        0 => String::new(),
        count => format!(" ({count} by function and line)"),
    };
    let _ = writeln!(
        out,
        "plan       {} of {} sites matched{by_name}; {} allocated as planned, {} at unplanned \
         sites{}",
        plan.matched,
        plan.sites,
        short_bytes(plan.planned_bytes),
        short_bytes(plan.unplanned_bytes),
        if plan.adapt { "; the policy places the rest" } else { "" },
    );
    if plan.phases_entered + plan.phases_lost > 0 {
        phases_line(out, plan);
    }
    for remark in &plan.remarks {
        let _ = writeln!(out, "remark     {}", printable(remark));
    }
    for place in &plan.unmatched {
        let _ = writeln!(out, "unmatched  {}", printable(place));
    }
}

fn phases_line(out: &mut String, plan: &PlanSummary) {
    let _ = writeln!(
        out,
        "phases     {} entered, objects moved at {}, {} moved ahead, {} missed",
        plan.phases_entered,
        plan.phases_moved,
        short_bytes(plan.early_bytes),
        plan.phases_lost
    );
}

fn spent(out: &mut String, s: &Summary) {
    let share = s.spent.cpu_ns as f64 / (s.elapsed_ms.max(1) as f64 * 1e6) * 100.0;
    let ms = |ns: u64| format!("{:.1?}", Duration::from_nanos(ns));
    let _ = writeln!(
        out,
        "overhead   {} CPU in {:.1?} ({share:.2}%): records {}, samples {}, ledger {}, policy {}, \
         mover {}, attaching and detaching {}; {} ticks",
        ms(s.spent.cpu_ns),
        Duration::from_millis(s.elapsed_ms),
        ms(s.spent.records_ns),
        ms(s.spent.samples_ns),
        ms(s.spent.ledger_ns),
        ms(s.spent.policy_ns),
        ms(s.spent.mover_ns),
        ms(s.spent.other_ns()),
        s.spent.ticks,
    );
}

/// `1 process`, `2 processes`.
fn plural(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn times(count: u64) -> String {
    if count == 1 { String::new() } else { format!(" ({count} times)") }
}

/// Three significant digits and a decimal unit: `12.3k`.
pub fn short_count(count: u64) -> String {
    match count {
        0..1_000 => count.to_string(),
        1_000..1_000_000 => format!("{:.1}k", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}M", count as f64 / 1e6),
        _ => format!("{:.1}G", count as f64 / 1e9),
    }
}

/// As JSON, with names beside the frames of the first sites.
pub fn named_json(
    final_report: &FinalReport,
    symbols: &mut Symbols,
) -> serde_json::Result<serde_json::Value> {
    let mut value = serde_json::to_value(final_report)?;
    let rows = value.get_mut("sites").and_then(|sites| sites.as_array_mut());
    for (row, site) in rows.into_iter().flatten().zip(&final_report.sites).take(NAMED_MAX) {
        row["name"] = name(site, symbols).into();
        row["stack"] = serde_json::to_value(symbols.owned_by(site.uid).stack(&site.frames))
            .unwrap_or_default();
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tiercel_daemon::Shared;
    use tiercel_symbolize::SiteFrame;

    #[test]
    fn fits_names_the_part_that_fits() {
        let check = |bytes: u64, objects, of: u64, expect: &str| {
            let got = Fits { bytes: bytes << 20, objects, of_bytes: of << 20, of_objects: 64 };
            assert_eq!(fits(&got), expect);
        };
        check(32, 8, 256, "32MiB of 256MiB, 8 of 64");
        check(256, 64, 256, "all");
        check(0, 0, 256, "none");
        check(0, 0, 0, "-");
    }

    #[test]
    fn a_heading_states_what_the_order_is_worth() {
        let heading = |samples, settled| {
            let ranking = Ranking { settled, samples, samples_wanted: 200, at_stake: 0.231 };
            super::heading(&ranking, 4_900)
        };
        let few = "18 samples in 4.9 s are too few to rank (200 wanted): run longer";
        assert!(heading(18, false).starts_with(few));
        assert!(heading(900, true).starts_with("hottest sites first"));
        assert!(heading(900, false).contains("another choice may hold 23% more"));
        let share_of = Estimate { of: 0.53, low: 0.481, high: 0.577 };
        let used = Use { share: share_of, ..Use::default() };
        assert_eq!(share(&used), "53% (48-58)?");
        assert_eq!(share(&Use { settled: true, ..used }), "53% (48-58)");
    }

    #[test]
    fn mixed_blocks_name_who_shares_them() {
        let frame = |addr| SiteFrame { path: Path::new("/x").into(), build_id: [].into(), addr };
        let sharer = |hash, samples| Sharer { hash, frames: [frame(hash)].into(), samples };
        let row = SiteRow {
            program: "p".into(),
            used: Use { blocks: true, ..Use::default() },
            shared: Shared { sharers: vec![sharer(9, 80), sharer(8, 10)], samples: 100 },
            ..SiteRow::default()
        };
        let mut symbols = Symbols::new(&tiercel_symbolize::Reader::InProcess);
        let places = merge(std::slice::from_ref(&row), &mut symbols);
        assert_eq!(places[0].0, "p: small objects, mixed: x+0x9 73 to 86%, x+0x8 6 to 16%, others");
        // Of two users, or programs of one name: four times as much is known.
        let places = merge(&[row.clone(), row.clone(), row.clone(), row], &mut symbols);
        assert_eq!(places[0].0, "p: small objects, mixed: x+0x9 77 to 83%, x+0x8 8 to 13%, others");
    }

    #[test]
    fn a_modelled_run_says_that_no_memory_was_moved() {
        let mut end = FinalReport::default();
        end.summary.modelled = true;
        end.summary.problems.insert("x\ny".into(), 2);
        end.summary.samples.blind = 7;
        let used = Use { peak_bytes: 1 << 20, samples: 1, reads: 5000, ..Use::default() };
        end.sites.push(SiteRow {
            hash: 1,
            program: "p\x1b".into(),
            used,
            deserves_fast: true,
            ..SiteRow::default()
        });
        let text = final_report(&end, &mut Symbols::new(&tiercel_symbolize::Reader::InProcess), 10);
        assert!(text.contains("MODELLED   no memory was moved"), "{text}");
        assert!(text.contains("problem    x?y (2 times)"), "{text}");
        assert!(text.contains("skipped    7 page-table scans"), "{text}");
        assert!(text.contains("*  1MiB"), "{text}");
        assert!(text.contains("largest sites (no access"), "{text}");
        assert!(text.contains("p?: unknown site"), "{text}");
    }
}
