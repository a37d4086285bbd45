//! `tiercel heat`: which objects of a recorded program were accessed when, in a terminal.
//! In: [`HeatArgs`], a profile. Out: a line for each object, a column for each interval. Knows
//! nothing of colours.
//!
//! ```text
//!   a block, low to high   accesses, each step a factor of two; the highest is the hottest cell
//!   .                      alive, and no sample hit it
//!   ?                      alive, and the sampler saw nothing at all in that interval
//!   blank                  gone, or not born yet
//! ```

use crate::terminal::{printable, say, say_json};
use anyhow::Result;
use clap::Args as ClapArgs;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;
use tiercel_advisor::{COLUMNS_MAX, Timeline, TimelineRow};
use tiercel_machine::number::saturating_u64;
use tiercel_machine::short_bytes;

/// From cold to hot.
const BLOCKS: [char; 8] = [
    '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}',
];
const UNUSED: char = '.';
const UNSEEN: char = '?';
const GONE: char = ' ';

/// Columns of time: with a size and a name they fit into 100 characters.
const COLUMNS: u64 = 60;

/// Characters of a site's name.
const NAME_CHARS: usize = 40;

/// `tiercel heat`.
#[derive(ClapArgs, Debug)]
pub struct HeatArgs {
    /// The profile: what `tiercel record` wrote
    #[arg(value_name = "PROFILE")]
    profile: PathBuf,
    /// Rows, those with most accesses
    #[arg(long, value_name = "ROWS", default_value_t = 20)]
    rows: usize,
    /// Columns of time
    #[arg(long, value_name = "COUNT", default_value_t = COLUMNS)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=COLUMNS_MAX))]
    columns: u64,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Everything that is printed.
#[derive(Serialize)]
struct Map {
    /// Length of a column.
    column_s: f64,
    /// Whether the sampler saw anything in each column.
    seen: Vec<bool>,
    rows: Vec<MapRow>,
}

#[derive(Serialize)]
struct MapRow {
    /// What plans call the site.
    name: String,
    objects: u64,
    /// Of the largest object.
    bytes: u64,
    /// Accesses in each column; `null` where none of the objects lives.
    accesses: Vec<Option<f64>>,
}

/// `tiercel heat`.
pub fn heat(args: &HeatArgs) -> Result<()> {
    let profile = tiercel_profile::read(&args.profile)?;
    let map = map(&Timeline::of(&profile, args.rows), args.columns);
    if args.json { say_json("heat", &map) } else { say(&text(&map)) }
}

/// The timeline with at most so many columns.
fn map(timeline: &Timeline, columns: u64) -> Map {
    let have = timeline.live_bytes.len().max(1);
    let joined = have.div_ceil(usize::try_from(columns).unwrap_or(usize::MAX)).max(1);
    let column_ns = timeline.column_ns.saturating_mul(joined as u64);
    let rows: Vec<MapRow> =
        timeline.rows.iter().map(|row| map_row(row, joined, column_ns)).collect();
    let count = have.div_ceil(joined);
    let is_seen = |at: usize| rows.iter().any(|row| row.accesses[at].is_some_and(|all| all > 0.0));
    let seen = (0..count).map(is_seen).collect();
    Map { column_s: column_ns as f64 / 1e9, seen, rows }
}

fn map_row(row: &TimelineRow, joined: usize, column_ns: u64) -> MapRow {
    let cell = |(at, part): (usize, &[f64])| {
        let (from, to) = (at as u64 * column_ns, (at as u64 + 1) * column_ns);
        let all: f64 = part.iter().sum();
        let lives = row.lives.iter().any(|(birth, death)| *birth < to && *death > from);
        (lives || all > 0.0).then_some(all)
    };
    let name = if row.class.is_none() { "others".to_owned() } else { row.place.clone() };
    let accesses = row.accesses.chunks(joined).enumerate().map(cell).collect();
    MapRow { name, objects: row.objects, bytes: row.bytes, accesses }
}

fn text(map: &Map) -> String {
    let cells = map.rows.iter().flat_map(|row| row.accesses.iter().flatten());
    let most = cells.copied().fold(0.0, f64::max);
    let mut out = String::new();
    for row in &map.rows {
        let marks = row.accesses.iter().zip(&map.seen);
        let marks: String = marks.map(|(cell, seen)| mark(*cell, *seen, most)).collect();
        let count = if row.objects == 1 { String::new() } else { format!("{} x ", row.objects) };
        let name: String =
            printable(&format!("{count}{}", row.name)).chars().take(NAME_CHARS).collect();
        let _ = writeln!(out, "{:>8} |{marks}| {name}", short_bytes(row.bytes));
    }
    let column = Duration::from_nanos(saturating_u64(map.column_s * 1e9));
    let _ = writeln!(
        out,
        "a column is {column:.1?}; {} to {}: accesses, each step a factor of two; {UNUSED} alive and \
         not sampled; {UNSEEN} alive, and nothing was sampled at all; blank: gone",
        BLOCKS[0],
        BLOCKS[BLOCKS.len() - 1],
    );
    out
}

fn mark(cell: Option<f64>, is_seen: bool, most: f64) -> char {
    match cell {
        None => GONE,
        Some(_) if !is_seen => UNSEEN,
        Some(all) if all <= 0.0 => UNUSED,
        Some(all) => {
            let below = usize::try_from(saturating_u64((most / all).log2().max(0.0))).unwrap_or(0);
            BLOCKS[BLOCKS.len() - 1 - below.min(BLOCKS.len() - 1)]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(place: &str, lives: &[(u64, u64)], accesses: &[f64]) -> TimelineRow {
        TimelineRow {
            class: Some((1, 12)),
            place: place.to_owned(),
            objects: 1,
            bytes: 4096,
            lives: lives.to_vec(),
            accesses: accesses.to_vec(),
        }
    }

    #[test]
    fn hot_unused_unseen_and_gone_differ() {
        let timeline = Timeline {
            end_ns: 60,
            column_ns: 10,
            rows: vec![
                row("hot", &[(0, 60)], &[64.0, 32.0, 0.0, 0.0, 1.0, 0.1]),
                row("short", &[(10, 35)], &[0.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
            ],
            live_bytes: vec![0; 6],
            phases: Vec::new(),
        };
        let whole = map(&timeline, 6);
        let said = text(&whole);
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines[0], "    4KiB |\u{2588}\u{2587}??\u{2582}\u{2581}| hot");
        assert_eq!(lines[1], "    4KiB | .??  | short");
        assert!(lines[2].starts_with("a column is 10.0ns"), "{said}");
        // Two columns in one: what was seen in either is seen.
        let half = map(&timeline, 3);
        assert_eq!(half.rows[0].accesses, [Some(96.0), Some(0.0), Some(1.1)]);
        assert_eq!((half.seen, half.rows[1].accesses[2]), (vec![true, false, true], None));
    }
}
