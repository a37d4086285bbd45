//! How well Tiercel's figures agree with programs of known truth. In: stored rows of `./x bench
//! truth`. Out: tables. Knows nothing of how the rows were measured.

use anyhow::Result;
use serde_json::Value;

use super::{Grid, Stored};
use tiercel_bench::BenchResult;

const ROWS: &str = "truth/loaded.jsonl";
const EXACT: &str = "truth/exact.jsonl";
/// Sites with less of the misses are not compared: the limit.
const MATTERS: f64 = 0.05;
const HALVES: [&str; 4] =
    ["tuned on, record", "tuned on, run", "held out, record", "held out, run"];

/// A line for each figure, over all patterns of a half.
pub fn summary(stored: &Stored) -> Result<String> {
    let rows: Vec<BenchResult> = stored.lines(ROWS)?;
    let of = |half: &str, figure: &str| {
        let name = format!("all, {half}: {figure}");
        let row = rows.iter().find(|row| row.name == name);
        row.map_or("-".to_owned(), |row| format!("{:.2}", row.ours))
    };
    let mut figures: Vec<&str> = Vec::new();
    for row in &rows {
        let Some(name) = row.name.strip_prefix("all, ") else { continue };
        let Some((_, figure)) = name.split_once(": ") else { continue };
        if !figures.contains(&figure) {
            figures.push(figure);
        }
    }
    let mut grid = Grid::new(["mean over programs"].into_iter().chain(HALVES));
    for figure in figures {
        let values = HALVES.map(|half| of(half, figure));
        grid.row([figure.to_owned()].into_iter().chain(values));
    }
    Ok(grid.text())
}

/// A line for each real program: how far sampling was from the truth, of sites that matter.
pub fn exact(stored: &Stored) -> Result<String> {
    let columns = [
        "program",
        "language",
        "misses",
        "samples",
        "one of",
        "sites of 5% or more",
        "largest error, points",
    ];
    let mut grid = Grid::new(columns);
    for row in stored.lines::<Value>(EXACT)? {
        let truth = &row["truth"];
        let number = |key: &str| truth[key].as_f64().unwrap_or(0.0);
        let sites = truth["sites"].as_array().map(Vec::as_slice).unwrap_or_default();
        let share = |site: &Value, key: &str| site[key].as_f64().unwrap_or(0.0);
        let matter: Vec<f64> = sites
            .iter()
            .filter(|site| share(site, "share") >= MATTERS)
            .map(|site| 100.0 * (share(site, "sampled_share") - share(site, "share")).abs())
            .collect();
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        grid.row([
            text("program"),
            text("language"),
            format!("{:.1} M", number("misses") / 1e6),
            format!("{:.0}", number("samples")),
            format!("{:.0}", number("sample_period")),
            matter.len().to_string(),
            format!("{:.1}", matter.into_iter().fold(0.0, f64::max)),
        ]);
    }
    Ok(grid.text())
}

/// A line for each pattern, as `tiercel run` saw it.
pub fn patterns(stored: &Stored) -> Result<String> {
    let rows: Vec<BenchResult> = stored.lines(ROWS)?;
    let figures = [
        "error of shares",
        "best quarter holds",
        "intervals hold the truth",
        "settled",
        "first rank settled but wrong",
    ];
    let mut grid = Grid::new(["pattern"].into_iter().chain(figures));
    let first = format!(", run: {}", figures[0]);
    let names = rows.iter().filter_map(|row| row.name.strip_suffix(&first));
    for name in names.filter(|name| !name.starts_with("all, ")) {
        let value = |figure: &str| {
            let name = format!("{name}, run: {figure}");
            let row = rows.iter().find(|row| row.name == name);
            row.map_or("-".to_owned(), |row| format!("{:.2}", row.ours))
        };
        grid.row([name.to_owned()].into_iter().chain(figures.map(value)));
    }
    Ok(grid.text())
}
