//! The README's table of results. In: stored results. Out: the table.
//! Knows nothing of how the runs were made, or where the table stands.

use anyhow::{Result, ensure};

use crate::results::{Case, Grid, Speeds, Stored};

/// One line of the table.
struct Line {
    what: &'static str,
    experiment: &'static str,
    machine: &'static str,
    /// The policy and what it is compared with, as the experiment calls them.
    policy: &'static str,
    peer: &'static str,
}

const LINES: [Line; 4] = [
    Line {
        what: "online, over first touch",
        experiment: "mat",
        machine: "cascadelake-optane",
        policy: "tiercel",
        peer: "first-touch",
    },
    Line {
        what: "online, over the kernel's tiering",
        experiment: "mat",
        machine: "cascadelake-optane",
        policy: "tiercel",
        peer: "kernel-tiering",
    },
    Line {
        what: "by a plan of a recorded run, over first touch",
        experiment: "h2m",
        machine: "icelake-optane",
        policy: "joint",
        peer: "first-touch",
    },
    Line {
        what: "by a plan, over first come first served",
        experiment: "h2m",
        machine: "icelake-optane",
        policy: "joint",
        peer: "fcfs",
    },
];

const SHARES: [&str; 4] = ["12.5%", "25%", "33%", "50%"];

pub fn table(stored: &Stored) -> Result<String> {
    let head = ["speed, geometric mean (worst workload)", "workloads"];
    let mut grid = Grid::new(head.into_iter().chain(SHARES));
    for line in &LINES {
        let at = |share| {
            let case = Case::new(line.machine, share);
            Speeds::of(stored.results(line.experiment), case, line.policy, line.peer)
        };
        let speeds: Vec<Speeds<'_>> = SHARES.into_iter().map(at).collect();
        let workloads = speeds.iter().map(|speeds| speeds.0.len()).max().unwrap_or(0);
        ensure!(workloads > 0, "{}: no results of {}, {}", line.experiment, line.policy, line.peer);
        let cells = speeds.iter().map(Speeds::with_worst);
        grid.row([line.what.to_owned(), workloads.to_string()].into_iter().chain(cells));
    }
    Ok(grid.text())
}
