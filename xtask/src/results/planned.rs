//! Planned placement: `h2m`, `h2m-adapt`, `pair`, `margin`. In: stored results. Out: tables.
//! Knows nothing of how plans are made.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use tiercel_lab::bench::{RunResult, summarise};

use super::online::LOSS;
use super::{Case, Grid, Speeds, Stored, times};

const MACHINES: [&str; 2] = ["icelake-optane", "xeonmax-hbm"];
const SHARES: [&str; 3] = ["25%", "33%", "50%"];
const POLICIES: [(&str, &str); 9] = [
    ("all fast", "all-fast"),
    ("all slow", "all-slow"),
    ("first touch", "first-touch"),
    ("online", "tiercel"),
    ("FCFS", "fcfs"),
    ("IDP", "idp"),
    ("lifetimes", "lifetimes"),
    ("phased", "phased"),
    ("joint", "joint"),
];

/// Each policy over first touch and over FCFS.
pub fn headline(stored: &Stored, machine: &str) -> Result<String> {
    let results = stored.results("h2m");
    let peers = [("first touch", "first-touch"), ("FCFS", "fcfs")];
    let columns: Vec<(&str, &str, &str)> = peers
        .into_iter()
        .flat_map(|(name, peer)| SHARES.map(|share| (name, peer, share)))
        .collect();
    let heads = columns.iter().map(|(name, _, share)| format!("over {name}, {share}"));
    let mut grid = Grid::new([format!("{machine}: speed")].into_iter().chain(heads));
    for (name, policy) in POLICIES {
        grid.line(name, &columns, |(_, peer, share)| {
            Speeds::of(results, Case::new(machine, share), policy, peer).with_spread()
        });
    }
    Ok(grid.text())
}

/// Where the default strategy loses.
pub fn losses(stored: &Stored) -> Result<String> {
    let results = stored.results("h2m");
    let head = ["joint is slower than first touch", "fast memory", "at all", "by more than 3%"];
    let mut grid = Grid::of_words(head);
    for machine in MACHINES {
        for share in SHARES {
            let speeds = Speeds::of(results, Case::new(machine, share), "joint", "first-touch");
            // Below the third digit two times count as equal.
            grid.row([machine, share, &speeds.below(0.995), &speeds.below(LOSS)]);
        }
    }
    Ok(grid.text())
}

/// Seconds by workload and policy, a table for each share.
pub fn seconds(stored: &Stored, machine: &str) -> Result<String> {
    let results = stored.results("h2m");
    let mut text = String::new();
    for share in SHARES {
        let case = Case::new(machine, share);
        let columns: Vec<_> =
            POLICIES.iter().map(|(_, policy)| times(results, case, policy)).collect();
        let head = format!("{machine}, {share}: seconds");
        let mut grid = Grid::new([head.as_str()].into_iter().chain(POLICIES.map(|(name, _)| name)));
        for workload in columns[0].keys() {
            let time = |times: &BTreeMap<&str, f64>| seconds_of(times[workload]);
            grid.line(workload, &columns, time);
        }
        text += &format!("{}\n", grid.text());
    }
    Ok(text.trim_end().to_owned() + "\n")
}

/// Three digits.
fn seconds_of(ns: f64) -> String {
    let seconds = ns / 1e9;
    if seconds < 1.0 { format!("{seconds:.3}") } else { format!("{seconds:.2}") }
}

/// A chain and a stream on HBM.
pub fn pair(stored: &Stored) -> Result<String> {
    let results = stored.results("pair");
    let case = Case::new("xeonmax-hbm", "60%");
    let policies = [
        ("all in HBM", "all-fast"),
        ("all in DDR", "all-slow"),
        ("FCFS: the chain in HBM", "fcfs"),
        ("planned: the stream in HBM", "lifetimes"),
    ];
    let mut grid = Grid::new(["", "seconds", "speed over FCFS"]);
    for (name, policy) in policies {
        let time = times(results, case, policy)["pair"];
        let speed = Speeds::of(results, case, policy, "fcfs").short();
        grid.row([name.to_owned(), seconds_of(time), speed]);
    }
    Ok(grid.text())
}

/// A plan that fills its room beside one that leaves a margin.
pub fn margin(stored: &Stored) -> Result<String> {
    let results = stored.results("margin");
    let case = Case::new("cascadelake-optane", "25%");
    let (full, spare) = (times(results, case, "lifetimes"), times(results, case, "joint"));
    let speeds = Speeds::of(results, case, "joint", "lifetimes");
    let head = ["recording", "`lifetimes`, s", "`joint`, s", "speed of `joint`"];
    let mut grid = Grid::new(head);
    for (name, speed) in &speeds.0 {
        let speed = format!("{speed:.2}");
        grid.row([(*name).to_owned(), seconds_of(full[name]), seconds_of(spare[name]), speed]);
    }
    let none = String::new();
    grid.row(["geometric mean".to_owned(), none.clone(), none, speeds.short()]);
    Ok(grid.text())
}

/// How near predictions of plans are to measured times, in sentences.
pub fn predictions(stored: &Stored) -> Result<String> {
    let mut text = String::from("Of the whole program's time:\n\n");
    for experiment in ["h2m", "h2m-adapt", "pair", "margin", "movers"] {
        let results = stored.results(experiment);
        for machine in machines(results) {
            let here =
                results.iter().filter(|result| result.cell.machine == machine).cloned().collect();
            let summary = summarise(stored.manifest(experiment), here, Vec::new());
            let found = summary.predictions().context("no predictions")?;
            text += &format!("- `{experiment}`, {machine}: {}\n", found.accuracy);
        }
    }
    Ok(text)
}

fn machines(results: &[RunResult]) -> Vec<String> {
    let mut found: Vec<String> = results.iter().map(|result| result.cell.machine.clone()).collect();
    found.sort();
    found.dedup();
    found
}

/// `--adapt` over the plan alone.
pub fn adapt(stored: &Stored) -> Result<String> {
    let results = stored.results("h2m-adapt");
    let mut grid = Grid::new(["speed of `--adapt` over the plan alone"].into_iter().chain(SHARES));
    for machine in MACHINES {
        let speeds = |share: &&str| {
            Speeds::of(results, Case::new(machine, share), "joint-adapt", "joint").with_spread()
        };
        grid.line(machine, &SHARES, speeds);
    }
    Ok(grid.text())
}

pub fn adapt_workloads(stored: &Stored) -> Result<String> {
    let results = stored.results("h2m-adapt");
    let quarter = Case::new(MACHINES[0], SHARES[0]);
    let names: Vec<&str> = times(results, quarter, "joint").into_keys().collect();
    let head = ["`--adapt` over the plan alone"];
    let mut grid = Grid::new(head.into_iter().chain(names.iter().copied()));
    for machine in MACHINES {
        for share in SHARES {
            let speeds = Speeds::of(results, Case::new(machine, share), "joint-adapt", "joint");
            let cell = |name: &&str| format!("{:.2}", speeds.0[name]);
            grid.line(&format!("{machine}, {share}"), &names, cell);
        }
    }
    Ok(grid.text())
}
