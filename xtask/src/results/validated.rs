//! The timed lab against its machine files and published figures. In: `lab/results/validate`.
//! Out: tables. Knows nothing of how the figures are measured.

use anyhow::{Context, Result};

use super::{Grid, Stored};
use crate::validate::Figure;

const MACHINES: [&str; 4] = ["icelake-optane", "spr-cxl", "two-socket-optane", "xeonmax-hbm"];
/// Busy virtual CPUs of each node, one file each.
const VCPUS: [u32; 2] = [1, 2];
const PUBLISHED: &str = "published: ";

fn figures(stored: &Stored, machine: &str, vcpus: u32) -> Result<Vec<Figure>> {
    stored.lines(&format!("validate/{machine}-{vcpus}.jsonl"))
}

/// By machine: how many figures, how many miss, how far off.
pub fn groups(stored: &Stored) -> Result<String> {
    let head = [
        "machine",
        "busy virtual CPUs",
        "figures",
        "with a limit",
        "misses",
        "median error, %",
        "90th percentile, %",
        "worst, %",
    ];
    let mut grid = Grid::new(head);
    for machine in MACHINES {
        for vcpus in VCPUS {
            let figures = figures(stored, machine, vcpus)?;
            let limited: Vec<&Figure> =
                figures.iter().filter(|figure| figure.limit.is_some()).collect();
            let mut errors: Vec<f64> =
                limited.iter().filter_map(|figure| Some(100.0 * figure.error?.abs())).collect();
            errors.sort_by(f64::total_cmp);
            let last = errors.len().checked_sub(1).context("no figures")?;
            let misses = figures.iter().filter(|figure| !figure.holds).count();
            let counts = [figures.len(), limited.len(), misses].map(|count| count.to_string());
            let errors = [errors[last / 2], errors[last * 9 / 10], errors[last]];
            let words = [machine.to_owned(), vcpus.to_string()];
            let errors = errors.map(|error| format!("{error:.1}"));
            grid.row(words.into_iter().chain(counts).chain(errors));
        }
    }
    Ok(grid.text())
}

/// Each published figure beside what one busy virtual CPU measures.
pub fn published(stored: &Stored) -> Result<String> {
    let mut grid = Grid::new(["published figure", "published", "measured", "error, %", "limit, %"]);
    for machine in MACHINES {
        for figure in figures(stored, machine, VCPUS[0])? {
            let Some(what) = figure.what.strip_prefix(PUBLISHED) else { continue };
            let percent = |part: f64| 100.0 * part;
            let value = |value: f64| format!("{value:.4} {}", figure.unit).trim_end().to_owned();
            let short = |one: f64| {
                if one >= 10.0 { format!("{one:.0} {}", figure.unit) } else { value(one) }
            };
            grid.row([
                format!("{machine}, {}: {what}", figure.path),
                figure.expected.map_or(String::new(), short),
                short(figure.measured),
                figure.error.map_or(String::new(), |error| format!("{:+.1}", percent(error))),
                figure
                    .limit
                    .map_or("reported".to_owned(), |limit| format!("{:.0}", percent(limit))),
            ]);
        }
    }
    Ok(grid.text())
}
