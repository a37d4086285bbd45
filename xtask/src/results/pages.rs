//! OS-page tiering: the experiment `autotiering`, with the paper's values beside ours. In: stored
//! results. Out: tables. Knows nothing of how OS pages are tiered.

use anyhow::{Context, Result};
use tiercel_lab::bench::RunResult;

use super::{Case, Grid, Speeds, Stored, mib, times};

const EXPERIMENT: &str = "autotiering";
const CASE: Case<'static> = Case { machine: "two-socket-optane", share: "50%" };
/// The kernel's balancing, with which the paper compares.
const PEER: &str = "autonuma";
/// Policies as tables name them.
const POLICIES: [(&str, &str); 12] = [
    ("everything fast", "all-fast"),
    ("first touch", "first-touch"),
    ("AutoNUMA, slow scan", "autonuma-slow"),
    ("the kernel's tiering", "kernel-tiering"),
    ("CPM", "cpm"),
    ("CPMX", "cpmx"),
    ("OPM", "opm"),
    ("OPMX", "opmx"),
    ("OPM(BD)", "opm-bd"),
    ("`benefit` by hints", "benefit-hint"),
    ("`benefit` by misses", "benefit"),
    ("AutoNUMA", PEER),
];
/// A workload, and what the paper's 5.2 says of the program that it stands for.
struct Published {
    workload: &'static str,
    program: &'static str,
    /// Speed over AutoNUMA of CPM (figure 9).
    cpm: &'static str,
    /// Of the best of its modes.
    best: &'static str,
}

const PAPER: [Published; 6] = [
    Published { workload: "bfs", program: "graph500", cpm: "1.17", best: "6.9" },
    Published { workload: "pagerank", program: "GraphMat", cpm: "1.19", best: "2.3" },
    Published { workload: "stencil-serial", program: "503", cpm: "over 2", best: "" },
    Published { workload: "stencil-parallel", program: "555", cpm: "1.0", best: "" },
    Published { workload: "lulesh", program: "553", cpm: "over 2", best: "" },
    Published { workload: "minife", program: "559", cpm: "1.6", best: "" },
];
/// Modes of which levels and times are compared.
const LEVELLED: [&str; 4] = ["opm", "opmx", "opm-bd", "benefit-hint"];
/// The levels that are hot (AutoTiering, figure 11).
const HOT: [usize; 2] = [7, 8];
/// Nodes of `two-socket-optane` that are DRAM, in the guest as on the machine.
const DRAM: [&str; 2] = ["0", "1"];

/// What of the paper's list ran under AutoNUMA.
fn columns(results: &[RunResult]) -> Vec<&'static Published> {
    let ran = times(results, CASE, PEER);
    PAPER.iter().filter(|one| ran.contains_key(one.workload)).collect()
}

/// The run of a workload under a policy.
fn run<'r>(results: &'r [RunResult], workload: &str, policy: &str) -> Option<&'r RunResult> {
    CASE.runs(results, policy).find(|run| run.cell.workload == workload)
}

/// Figure 9: speeds over AutoNUMA.
pub fn speeds(stored: &Stored) -> Result<String> {
    let results = stored.results(EXPERIMENT);
    let columns = columns(results);
    let head = columns.iter().map(|one| format!("{} ({})", one.workload, one.program));
    let mut grid = Grid::new(["speed over AutoNUMA".to_owned()].into_iter().chain(head));
    grid.line("paper: CPM", &columns, |one| one.cpm.to_owned());
    grid.line("paper: the best", &columns, |one| one.best.to_owned());
    for (what, policy) in POLICIES {
        let speeds = Speeds::of(results, CASE, policy, PEER).0;
        let cell = |one: &&Published| {
            speeds.get(one.workload).map_or(String::new(), |speed| format!("{speed:.2}"))
        };
        if !speeds.is_empty() {
            grid.line(what, &columns, cell);
        }
    }
    Ok(grid.text())
}

/// Figure 10: where the memory was.
pub fn nodes(stored: &Stored) -> Result<String> {
    let results = stored.results(EXPERIMENT);
    let head = ["MiB", "DRAM 0", "DRAM 1", "Optane 0", "Optane 1", "moved"];
    let mut grid = Grid::new(head);
    for Published { workload, .. } in columns(results) {
        for (what, policy) in POLICIES {
            let Some(run) = run(results, workload, policy) else { continue };
            let nodes = &run.measured.resident.node_bytes;
            if nodes.is_empty() || run.cell.share.is_none() {
                continue;
            }
            let on = |node| mib(nodes.get(&node).copied().unwrap_or(0) as f64);
            let moved = mib(run.measured.moved.migrated_bytes as f64);
            let mut cells = vec![format!("{workload}: {what}")];
            cells.extend((0..4).map(|node| format!("{:.0}", on(node))));
            cells.push(format!("{moved:.0}"));
            grid.row(cells);
        }
    }
    Ok(grid.text())
}

/// Figures 11 and 12: the hot OS pages that are in DRAM, and how long promotions take.
pub fn levels(stored: &Stored) -> Result<String> {
    let results = stored.results(EXPERIMENT);
    let head = [
        "",
        "of levels 7 and 8 in DRAM, %",
        "of levels 0 to 6 in DRAM, %",
        "promotions",
        "median, ms",
        "90%, ms",
    ];
    let mut grid = Grid::new(head);
    let modes = POLICIES.iter().filter(|(_, policy)| LEVELLED.contains(policy));
    for Published { workload, .. } in columns(results) {
        for (what, policy) in modes.clone() {
            let Some(run) = run(results, workload, policy) else { continue };
            let pages = &run.measured.tiercel["pages"];
            let in_dram = |hot| Ok::<_, anyhow::Error>(percent(dram_share(pages, hot)?));
            let times = Times::of(pages)?;
            let ms = |share| {
                times.within_us(share).map_or(String::new(), |us| format!("{:.1}", us / 1e3))
            };
            grid.row([
                format!("{workload}: {what}"),
                in_dram(true)?,
                in_dram(false)?,
                times.count().to_string(),
                ms(0.5),
                ms(0.9),
            ]);
        }
    }
    Ok(grid.text())
}

fn percent(share: Option<f64>) -> String {
    share.map_or(String::new(), |share| format!("{:.0}", share * 100.0))
}

/// The share of the hot OS pages, or of all others, that is in DRAM.
fn dram_share(pages: &serde_json::Value, hot: bool) -> Result<Option<f64>> {
    let levels = pages["levels"].as_object().context("a run without levels")?;
    let (mut dram, mut all) = (0.0, 0.0);
    for (node, counts) in levels {
        let counts = counts.as_array().context("levels of a node")?;
        let is_meant = |level: usize| HOT.contains(&level) == hot;
        let counts = counts.iter().enumerate().filter(|(level, _)| is_meant(*level));
        let pages: f64 = counts.filter_map(|(_, count)| count.as_f64()).sum();
        all += pages;
        dram += if DRAM.contains(&node.as_str()) { pages } else { 0.0 };
    }
    Ok((all > 0.0).then(|| dram / all))
}

/// How many promotions were done within how many microseconds, ascending.
struct Times(Vec<(f64, f64)>);

impl Times {
    fn of(pages: &serde_json::Value) -> Result<Times> {
        let bounds = pages["promotions_us"].as_object().context("a run without its promotions")?;
        let pair = |(bound, count): (&String, &serde_json::Value)| {
            Some((bound.parse().ok()?, count.as_f64()?))
        };
        let mut times: Vec<(f64, f64)> = bounds.iter().filter_map(pair).collect();
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ok(Times(times))
    }

    fn count(&self) -> f64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    /// The bound within which this share of them is.
    fn within_us(&self, share: f64) -> Option<f64> {
        let wanted = self.count() * share;
        let mut sum = 0.0;
        let reached = self.0.iter().find(|(_, count)| {
            sum += count;
            sum >= wanted
        });
        reached.map(|(bound, _)| *bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hot_and_the_rest_have_shares() {
        let levels = serde_json::json!({"levels": {
            "0": [1, 0, 0, 0, 0, 0, 0, 3, 3], "2": [7, 0, 0, 0, 0, 0, 0, 0, 2]}});
        assert_eq!(percent(dram_share(&levels, true).ok().flatten()), "75");
        assert_eq!(percent(dram_share(&levels, false).ok().flatten()), "12");
        assert!(dram_share(&serde_json::json!({}), true).is_err());
    }

    #[test]
    fn quantiles_are_of_counts() {
        let times = Times::of(&serde_json::json!({"promotions_us": {"1000": 5, "20": 4, "3": 1}}));
        let times = times.expect("promotions");
        assert_eq!(times.count(), 10.0);
        assert_eq!(
            [0.1, 0.5, 0.51, 1.0].map(|share| times.within_us(share)),
            [Some(3.0), Some(20.0), Some(1000.0), Some(1000.0)]
        );
    }
}
