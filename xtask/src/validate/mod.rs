//! `cargo xtask lab validate`: what programs measure in a timed guest, against the machine's file
//! and published figures. In: which machines. Out: a table; figures as JSON; a summary and plots
//! below `lab/results/validate`. Knows nothing of how the guest is timed.
//!
//! A miss is a figure like any other, and `--check` ends with it.

mod expect;
mod guests;
mod plot;
mod published;
mod report;
mod sensitivity;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use tiercel_lab::{Acceleration, Cache, Guest, Model, cli};
use tiercel_machine::Machine;

use crate::exec;
use guests::{Boot, Seen, Tools};

/// The machines whose limits count.
const MACHINES: [&str; 4] = ["icelake-optane", "xeonmax-hbm", "spr-cxl", "two-socket-optane"];

#[derive(Args)]
pub struct Options {
    /// Only this machine
    #[arg(long)]
    machine: Option<String>,
    /// One virtual CPU beside each node only
    #[arg(long)]
    quick: bool,
    /// Only guests with so many busy virtual CPUs beside a node
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=2))]
    vcpus: Option<u32>,
    /// Print the figures as JSON lines
    #[arg(long)]
    json: bool,
    /// Fail when a figure misses its limit, and list those figures
    #[arg(long)]
    check: bool,
    /// Instead: how far the ranking of placements depends on each constant; no guest
    #[arg(long)]
    sensitivity: bool,
    /// Use the timing plugin as it was built last
    #[arg(long)]
    built: bool,
}

/// One figure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    pub machine: String,
    /// Virtual CPUs beside the node that the program runs on, all of them busy.
    pub vcpus: u32,
    /// `whole`, `share` or `share, prefetch`.
    pub model: String,
    /// Node of the CPUs and node of the memory.
    pub path: String,
    pub what: String,
    pub measured: f64,
    pub expected: Option<f64>,
    pub unit: String,
    /// Measured over expected, less 1.
    pub error: Option<f64>,
    /// The largest absolute error that is allowed; `None`: reported only.
    pub limit: Option<f64>,
    pub holds: bool,
}

/// All measurements of one machine.
pub struct Results {
    pub machine: Machine,
    pub seen: Vec<(Boot, Vec<Seen>)>,
    pub figures: Vec<Figure>,
}

pub fn main(options: &Options) -> Result<()> {
    if options.sensitivity {
        return sensitivity::main(&folder(options.quick));
    }
    let started = Instant::now();
    let tools = Tools::build(options.built)?;
    let mut progress = |line: &str| eprintln!("{line}");
    let guest = Guest::prepare(&Cache::of_user()?, Acceleration::Tcg, &mut progress)?;
    let names: Vec<&str> = match &options.machine {
        Some(name) => vec![name],
        None => MACHINES.to_vec(),
    };
    let mut all = Vec::new();
    for name in names {
        let machine = cli::find_machine(name, &[&exec::root().join("lab/machines")])?;
        let mut seen = Vec::new();
        for boot in boots(options) {
            eprintln!("{name}: {}, {:.0} s so far", boot.label(), started.elapsed().as_secs_f64());
            seen.push((boot, guests::measure(&guest, &tools, &machine, boot)?));
        }
        let mut figures = expect::figures(&machine, &seen);
        figures.extend(published::figures(&machine, &seen)?);
        let results = Results { machine, seen, figures };
        report::write(&results, &folder(options.quick))?;
        all.push(results);
    }
    let figures: Vec<&Figure> = all.iter().flat_map(|results| &results.figures).collect();
    if options.json {
        for figure in &figures {
            println!("{}", serde_json::to_string(figure)?);
        }
    } else {
        print!("{}", report::table(&figures));
    }
    report::summary(&folder(options.quick))?;
    eprintln!("{} figures in {:.0} s", figures.len(), started.elapsed().as_secs_f64());
    verdict(&figures, options.check)
}

/// The output folder: a quick run is not kept among the results.
fn folder(quick: bool) -> PathBuf {
    match quick {
        true => exec::target().join("lab/validate"),
        false => exec::root().join("lab/results/validate"),
    }
}

/// The guests of one machine: alone for idle latency and chains, in its share of the machine for
/// everything that bandwidth limits, and once more without the prefetcher.
fn boots(options: &Options) -> Vec<Boot> {
    let alone = Model::default();
    let share = Model { share: true, prefetch: true, ..alone };
    let mut boots = Vec::new();
    for vcpus in if options.quick { 1..=1 } else { 1..=2 } {
        boots.push(Boot { vcpus, model: alone });
        boots.push(Boot { vcpus, model: share });
    }
    boots.push(Boot { vcpus: 1, model: Model { share: true, ..alone } });
    boots.retain(|boot| options.vcpus.is_none_or(|vcpus| boot.vcpus == vcpus));
    boots
}

fn verdict(figures: &[&Figure], check: bool) -> Result<()> {
    let missed: Vec<&&Figure> = figures.iter().filter(|figure| !figure.holds).collect();
    for figure in &missed {
        eprintln!("misses its limit: {}", report::line(figure));
    }
    if check && !missed.is_empty() {
        bail!("{} of {} figures miss their limit", missed.len(), figures.len());
    }
    Ok(())
}
