//! Results for people and for programs. In: figures. Out: tables, JSON lines, Markdown, plots.
//! Knows nothing of how they were measured.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use tiercel_report::{Align, Table};

use super::{Figure, Results, plot};

/// What the figures of a group have in common: the figure's words before its numbers.
fn group(figure: &Figure) -> String {
    let what = match figure.what.split_once(' ') {
        Some(("latency", _)) if figure.limit.is_some() => "loaded latency below the knee",
        Some(("latency", _)) => "loaded latency beyond the knee, and with writes to large blocks",
        Some(("chase", rest)) => match rest.strip_prefix("in ").and_then(|r| r.split(' ').next()) {
            Some("4" | "8" | "16") => "chase in the first level",
            Some("64" | "128" | "256" | "512") => "chase in the second level",
            Some("2048" | "3072") => "chase in the shared level",
            _ => "chase in memory",
        },
        Some(("idle", rest)) if rest.starts_with("latency") => "idle latency",
        Some(("peak", _)) if figure.limit.is_some() => "peak bandwidth",
        Some(("peak", _)) => "peak bandwidth, with writes to large blocks",
        Some(("STREAM", _)) if figure.limit.is_some() => "STREAM",
        Some(("STREAM", _)) => "STREAM, large blocks",
        Some(("published:", _)) => "published figures",
        _ if figure.what.contains("prefetcher") => "prefetcher",
        _ => "chains",
    };
    what.to_owned()
}

/// One line for a figure.
pub fn line(figure: &Figure) -> String {
    let Figure { machine, vcpus, model, path, what, measured, unit, .. } = figure;
    let expected = figure.expected.map_or(String::new(), |value| format!(", expected {value:.4}"));
    let error = figure.error.map_or(String::new(), |error| format!(", {:+.1}%", error * 100.0));
    format!("{machine} {path}, {vcpus} CPU, {model}: {what}: {measured:.4} {unit}{expected}{error}")
}

/// By group: how many figures, how far off, how many miss; then every miss.
pub fn table(figures: &[&Figure]) -> String {
    let columns = ["machine", "vCPUs", "what", "figures", "worst", "limit", "miss"];
    let left = |name: &str| matches!(name, "machine" | "what");
    let column =
        |name: &str| (name.to_owned(), if left(name) { Align::Left } else { Align::Right });
    let mut table = Table::new(columns.map(column).to_vec());
    let mut groups: BTreeMap<(String, u32, String), Vec<&Figure>> = BTreeMap::new();
    for figure in figures {
        groups
            .entry((figure.machine.clone(), figure.vcpus, group(figure)))
            .or_default()
            .push(figure);
    }
    for ((machine, vcpus, what), figures) in groups {
        let worst = figures
            .iter()
            .filter_map(|figure| figure.error)
            .max_by(|a, b| a.abs().total_cmp(&b.abs()));
        let limit = figures.iter().filter_map(|figure| figure.limit).max_by(f64::total_cmp);
        let percent = |value: Option<f64>, sign: bool| match (value, sign) {
            (Some(value), true) => format!("{:+.1}%", value * 100.0),
            (Some(value), false) => format!("{:.0}%", value * 100.0),
            (None, _) => String::new(),
        };
        table.row(vec![
            machine,
            vcpus.to_string(),
            what,
            figures.len().to_string(),
            percent(worst, true),
            percent(limit, false),
            figures.iter().filter(|figure| !figure.holds).count().to_string(),
        ]);
    }
    table.markdown()
}

/// One machine's figures, by the number of busy virtual CPUs, and plots. What other runs found with
/// other numbers stays.
pub fn write(results: &Results, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let name = &results.machine.name;
    let mut files: BTreeMap<u32, String> = BTreeMap::new();
    for figure in &results.figures {
        writeln!(files.entry(figure.vcpus).or_default(), "{}", serde_json::to_string(figure)?)?;
    }
    for (vcpus, json) in files {
        std::fs::write(folder.join(format!("{name}-{vcpus}.jsonl")), json)?;
    }
    for (kind, svg) in plot::all(&results.machine, &results.seen)? {
        std::fs::write(folder.join(format!("{name}-{kind}.svg")), svg)?;
    }
    Ok(())
}

/// The page over all machines with figures, and the plots of those that have several runs.
pub fn summary(folder: &Path) -> Result<()> {
    let figures = read(folder)?;
    let figures: Vec<&Figure> = figures.iter().collect();
    let missed: Vec<&&Figure> = figures.iter().filter(|figure| !figure.holds).collect();
    let mut page = "# What the timed lab measures, against what it should\n\n\
        Written by `./x lab validate`. Every figure is in `MACHINE-N.jsonl` (N busy virtual\n\
        CPUs a node), one a line; the plots are `MACHINE-*.svg`. `worst` is the largest distance\n\
        from what is expected; without a limit it is only reported. See docs/lab.md,\n\
        \"How far to believe it\".\n\n"
        .to_owned();
    writeln!(page, "{} figures, {} miss their limit.\n", figures.len(), missed.len())?;
    page += &table(&figures);
    if !missed.is_empty() {
        page += "\n## Misses\n\n";
        for figure in missed {
            writeln!(page, "- {}", line(figure))?;
        }
    }
    let machines: BTreeSet<&str> = figures.iter().map(|figure| figure.machine.as_str()).collect();
    for machine in machines {
        if let Some(svg) = plot::chains(machine, &figures)? {
            std::fs::write(folder.join(format!("{machine}-chains.svg")), svg)?;
        }
    }
    let path = folder.join("README.md");
    std::fs::write(&path, page).with_context(|| path.display().to_string())
}

/// Rows written by [`write`], of this run and of others.
fn read(folder: &Path) -> Result<Vec<Figure>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        paths.push(entry?.path());
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    paths.sort();
    let mut figures = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path)?;
        for line in text.lines() {
            let figure = serde_json::from_str(line);
            figures.push(figure.with_context(|| format!("{}: {line}", path.display()))?);
        }
    }
    Ok(figures)
}
