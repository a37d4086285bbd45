//! The summary of a run or a daemon, as text.
//! In: a [`FinalReport`]. Out: lines. Knows nothing of where they go.

use crate::figures::figures;
use crate::table::{Align, Table};
use crate::terminal::printable;
use std::collections::BTreeMap;
use std::fmt::Write;
use tiercel_daemon::{FinalReport, Fits, Origin, ProcessRow, Sharer, SiteRow, Summary, Use, judge};
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
        out.push_str(&ranking(final_report, symbols, rows));
    }
    out.push_str(&figures(&final_report.summary));
    out
}

/// Named rows in the order that evidence allows, and how sure that is.
pub fn ranked(
    final_report: &FinalReport,
    symbols: &mut Symbols,
) -> (Vec<(String, SiteRow)>, Ranking) {
    let evidence = &final_report.summary.evidence;
    let mut sites = final_report.sites.clone();
    if evidence.samples < SAMPLES_WANTED {
        sites.sort_by_key(|row| std::cmp::Reverse(row.used.peak_bytes));
    }
    sites.truncate(NAMED_MAX);
    let (names, mut merged): (Vec<_>, Vec<_>) = merge(&sites, symbols).into_iter().unzip();
    let ranking = judge(&mut merged, evidence);
    (names.into_iter().zip(merged).collect(), ranking)
}

/// The sites in that order, and what it is worth.
fn ranking(final_report: &FinalReport, symbols: &mut Symbols, rows: usize) -> String {
    let summary = &final_report.summary;
    let (mut places, ranking) = ranked(final_report, symbols);
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

/// Columns of a table of sites that live.
pub const SITE_COLUMNS: [(&str, Align); 9] = [
    ("", Align::Left),
    ("size", Align::Right),
    ("objects", Align::Right),
    ("fits", Align::Left),
    ("accesses", Align::Right),
    ("per KiB", Align::Right),
    ("heat/s", Align::Right),
    ("node", Align::Left),
    ("where", Align::Left),
];

/// Which of them is the share of accesses once all is over.
const HEAT_COLUMN: usize = 6;

/// A table of processes.
pub fn processes(rows: &[ProcessRow], summary: &Summary) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("pid", Right),
        ("size", Right),
        ("peak", Right),
        ("accesses", Right),
        ("samples", Right),
        ("node", Left),
        ("program", Left),
    ]);
    for row in rows {
        table.row(vec![
            row.pid.to_string(),
            short_bytes(row.live_bytes),
            short_bytes(row.peak_bytes),
            short_count(row.accesses),
            row.samples.to_string(),
            nodes(&row.nodes, &summary.nodes),
            row.program.clone(),
        ]);
    }
    table.text()
}

fn table(places: &[(String, SiteRow)], summary: &Summary, is_live: bool) -> String {
    let mut columns = SITE_COLUMNS;
    if !is_live {
        columns[HEAT_COLUMN] = ("share", Align::Left);
    }
    let mut table = Table::new(&columns);
    // Where all has room, there is nothing to choose.
    let has_room =
        summary.budget.fast_bytes >= summary.objects.peak_bytes && summary.objects.peak_bytes > 0;
    for (name, row) in places {
        let used = &row.used;
        let lives = used.live_bytes > 0;
        let heat = if lives { used.heat } else { used.heat_max };
        let fit = if lives { &used.fits } else { &used.last_fits };
        table.row(vec![
            if row.deserves_fast && !has_room { "*" } else { "" }.to_owned(),
            size(used),
            used.births.to_string(),
            if has_room { "all".to_owned() } else { fits(fit) },
            short_count(used.reads + used.writes),
            short_count(number::saturating_u64(used.density() * 1024.0)),
            if is_live { short_count(number::saturating_u64(heat)) } else { share(used) },
            nodes(if lives { &used.nodes } else { &used.last_nodes }, &summary.nodes),
            name.clone(),
        ]);
    }
    table.text()
}

/// Live bytes; of what is dead the peak, `<=` where only a bound of it is known.
fn size(used: &Use) -> String {
    match (used.live_bytes, used.peak_is_bound) {
        (0, true) => format!("<={}", short_bytes(used.peak_bytes)),
        (0, false) => short_bytes(used.peak_bytes),
        (live_bytes, _) => short_bytes(live_bytes),
    }
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
    fn where_all_has_room_nothing_is_chosen_and_bounds_are_marked() {
        let used = Use { peak_bytes: 60 << 20, peak_is_bound: true, samples: 1, ..Use::default() };
        let cold = Fits { of_bytes: 1 << 20, of_objects: 1, ..Fits::default() };
        let used = Use { last_fits: cold, ..used };
        let row = SiteRow { used, deserves_fast: true, ..SiteRow::default() };
        let mut summary = Summary::default();
        summary.objects.peak_bytes = 60 << 20;
        let line = |summary: &Summary| {
            let text = table(&[("x".to_owned(), row.clone())], summary, false);
            text.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        summary.budget.fast_bytes = 1 << 20;
        assert!(line(&summary).starts_with("* <=60MiB 0 none"), "{}", line(&summary));
        summary.budget.fast_bytes = 1 << 30;
        assert!(line(&summary).starts_with("<=60MiB 0 all"), "{}", line(&summary));
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
