//! Online tiering: `mat` and `scale`. In: stored results. Out: tables, a figure.
//! Knows nothing of other experiments.

use anyhow::{Context, Result};
use tiercel_lab::bench::RunResult;
use tiercel_report::{Bars, Series};

use super::{Case, Grid, Speeds, Stored, mib, times};

const MACHINE: &str = "cascadelake-optane";
const SHARES: [&str; 3] = ["12.5%", "25%", "50%"];
const PEERS: [(&str, &str); 2] =
    [("first touch", "first-touch"), ("the kernel's tiering", "kernel-tiering")];
/// The workloads that MAT's nine policies ran at all capacities.
const FOUR: [&str; 4] = ["hotcold", "moving", "pair", "scan"];
/// A workload below this speed counts as a loss: the project's aim is at most 3% more time.
pub const LOSS: f64 = 0.97;

fn case(share: &str) -> Case<'_> {
    Case::new(MACHINE, share)
}

/// Speeds of the policies that matter most, over first touch and the kernel.
pub fn headline(stored: &Stored) -> Result<String> {
    const LINES: [(&str, &str, &str); 5] = [
        ("Tiercel over first touch", "tiercel", "first-touch"),
        ("Tiercel over the kernel's tiering", "tiercel", "kernel-tiering"),
        ("the kernel's tiering over first touch", "kernel-tiering", "first-touch"),
        ("everything fast over first touch", "all-fast", "first-touch"),
        ("everything slow over first touch", "all-slow", "first-touch"),
    ];
    let results = stored.results("mat");
    let mut grid = Grid::new(["speed"].into_iter().chain(SHARES));
    for (what, policy, peer) in LINES {
        let speeds = |share: &&str| Speeds::of(results, case(share), policy, peer).with_spread();
        grid.line(what, &SHARES, speeds);
    }
    for (name, half) in [("tuned on", "tuning"), ("held out", "report")] {
        for (peer_name, peer) in PEERS {
            let what = format!("Tiercel over {peer_name}, {name}");
            let in_half = |workload: &str| half_of(results, workload) == half;
            let speeds = |share: &&str| {
                Speeds::of(results, case(share), "tiercel", peer).only(in_half).with_spread()
            };
            grid.line(&what, &SHARES, speeds);
        }
    }
    Ok(grid.text())
}

/// The half of a workload, as experiment files spell it.
fn half_of(results: &[RunResult], workload: &str) -> String {
    let result = results.iter().find(|result| result.cell.workload == workload);
    result.map_or(String::new(), |result| format!("{:?}", result.cell.half).to_lowercase())
}

/// Tiercel's speed by workload.
pub fn workloads(stored: &Stored) -> Result<String> {
    let results = stored.results("mat");
    let names: Vec<&str> = times(results, case("25%"), "tiercel").into_keys().collect();
    let mut grid = Grid::new(["Tiercel's speed"].into_iter().chain(names.iter().copied()));
    for (peer_name, peer) in PEERS {
        for share in SHARES {
            let speeds = Speeds::of(results, case(share), "tiercel", peer);
            let cell =
                |name: &&str| speeds.0.get(name).map_or(String::new(), |s| format!("{s:.2}"));
            grid.line(&format!("over {peer_name}, {share}"), &names, cell);
        }
    }
    Ok(grid.text())
}

/// Time over all-fast at 25%, by policy and workload.
pub fn times_at_quarter(stored: &Stored) -> Result<String> {
    const POLICIES: [(&str, &str); 9] = [
        ("all slow", "all-slow"),
        ("first touch", "first-touch"),
        ("the kernel's tiering", "kernel-tiering"),
        ("MAT: FIFO by time", "mat fifo time"),
        ("MAT: LRU by time", "mat lru time"),
        ("MAT: LRU by allocation", "mat lru allocation"),
        ("MAT: APB by time", "mat apb time"),
        ("MAT: APB by allocation", "mat apb allocation"),
        ("Tiercel", "tiercel"),
    ];
    let results = stored.results("mat");
    let fast = times(results, case("25%"), "all-fast");
    let names: Vec<&str> = fast.keys().copied().collect();
    let mut grid = Grid::new(["time over all-fast"].into_iter().chain(names.iter().copied()));
    for (what, policy) in POLICIES {
        let times = times(results, case("25%"), policy);
        let over = |name: &&str| times.get(name).map(|time| time / fast[name]);
        grid.line(what, &names, |name| over(name).map_or(String::new(), |one| format!("{one:.2}")));
    }
    Ok(grid.text())
}

/// Where Tiercel loses.
pub fn losses(stored: &Stored) -> Result<String> {
    let results = stored.results("mat");
    let mut grid = Grid::of_words(["slower by more than 3% than", "fast memory", "workloads"]);
    for (peer_name, peer) in PEERS {
        for share in SHARES {
            let below = Speeds::of(results, case(share), "tiercel", peer).below(LOSS);
            grid.row([peer_name, share, &below]);
        }
    }
    Ok(grid.text())
}

/// All of MAT's policies beside ours: eleven workloads at 25%, four at each share.
pub fn mat_policies(stored: &Stored) -> Result<String> {
    let results = stored.results("mat");
    let head = ["speed over first touch", "25%, all it ran", "workloads", "MiB moved"];
    let four = SHARES.map(|share| format!("{share}, four"));
    let mut grid = Grid::new(head.map(String::from).into_iter().chain(four));
    for policy in policies(results) {
        let all = Speeds::of(results, case("25%"), &policy, "first-touch");
        let mut cells = vec![policy.clone(), all.with_spread(), all.0.len().to_string()];
        cells.push(format!("{:.0}", moved_mib(results, &policy)?));
        let of_four = |share| {
            let speeds = Speeds::of(results, case(share), &policy, "first-touch");
            speeds.only(|name| FOUR.contains(&name)).short()
        };
        cells.extend(SHARES.map(of_four));
        grid.row(cells);
    }
    Ok(grid.text())
}

/// Those that decide something: MAT's in alphabetical order, the kernel's, ours.
fn policies(results: &[RunResult]) -> Vec<String> {
    let mut found: Vec<String> = results.iter().map(|result| result.cell.policy.clone()).collect();
    found.retain(|policy| policy.starts_with("mat "));
    found.sort();
    found.dedup();
    found.extend(["kernel-tiering".to_owned(), "tiercel".to_owned()]);
    found
}

/// Mean of a run at 25%.
fn moved_mib(results: &[RunResult], policy: &str) -> Result<f64> {
    let bytes = |result: &RunResult| result.measured.moved.migrated_bytes as f64;
    let moved: Vec<f64> = case("25%").runs(results, policy).map(bytes).collect();
    let count = moved.len();
    (count > 0).then(|| mib(moved.iter().sum::<f64>() / count as f64)).context("no runs")
}

/// Speed over first touch at 25%, by size of the workload.
fn by_size(stored: &Stored) -> Vec<(&str, f64, f64)> {
    let speeds = |name| Speeds::of(stored.results(name), case("25%"), "tiercel", "first-touch").0;
    let small = speeds("mat");
    let large = speeds("scale");
    large.into_iter().filter_map(|(name, speed)| Some((name, *small.get(name)?, speed))).collect()
}

pub fn sizes(stored: &Stored) -> Result<String> {
    let mut grid = Grid::new(["speed over first touch, 25%", "96 MiB", "384 MiB"]);
    for (name, small, large) in by_size(stored) {
        grid.row([name.to_owned(), format!("{small:.3}"), format!("{large:.3}")]);
    }
    Ok(grid.text())
}

pub fn figure_of_sizes(stored: &Stored) -> Result<String> {
    let speeds = by_size(stored);
    let series = |name: &str, of: fn(&(&str, f64, f64)) -> f64| Series {
        name: name.to_owned(),
        points: speeds.iter().enumerate().map(|(at, one)| (at as f64, of(one))).collect(),
    };
    let bars = Bars {
        title: "Online tiering by size of the workload, 25% fast memory".to_owned(),
        y: "speed over first touch".to_owned(),
        groups: speeds.iter().map(|(name, ..)| (*name).to_owned()).collect(),
        series: vec![series("96 MiB", |one| one.1), series("384 MiB", |one| one.2)],
        mark: Some(1.0),
    };
    Ok(bars.svg()?)
}
