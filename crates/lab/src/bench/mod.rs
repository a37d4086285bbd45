//! `tiercel lab bench`: executes an experiment file and writes a folder of results. In:
//! [`Experiment`], options. Out: results on disk, tables and plots beside them. Knows nothing of
//! how lines are drawn.

pub mod experiment;
pub mod share;

mod agent;
mod boot;
mod bound;
mod columns;
mod drive;
mod hog;
mod prediction;
mod residency;
mod run_result;
mod runs;
mod store;
mod summary;
mod tiercel_run;
mod waits;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use tiercel_machine::NodeId;

pub use agent::Agent;
pub use bound::Best;
pub use drive::Tally;
pub use experiment::Experiment;
pub use prediction::Predictions;
pub use run_result::{Cell, Event, Failure, Measured, Moved, Resident, RunResult, Spec, Waits};
pub(crate) use runs::fingerprint;
pub use store::{Entry, Manifest, Store};
pub use summary::{Summary, summarise};

use crate::cli::{MACHINES, find_machine, plugin};
use crate::{Acceleration, Cache, Guest, Size, Topology};
use boot::{GuestBoot, Programs};
use drive::Drive;
use runs::{Run, Target, expand};

/// The folder of profiles and plans in a folder of results.
pub const PROFILES: &str = "profiles";

/// How an experiment is executed.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Where results are.
    pub results: PathBuf,
    /// Only runs whose label, `workload/policy/25%`, contains one of these, and the all-fast runs
    /// that they need. Empty: all.
    pub only: Vec<String>,
    /// Only one repeat, and only the middle capacity.
    pub quick: bool,
    /// Repeat runs that failed in earlier calls.
    pub retry: bool,
    /// Files for every guest: (path here, path there).
    pub files: Vec<(PathBuf, String)>,
    /// KVM or TCG; timed guests always use TCG.
    pub acceleration: Acceleration,
}

/// Executes the missing runs, and draws tables and plots.
pub fn bench(
    experiment: &Experiment,
    options: &BenchOptions,
    note: &mut (dyn FnMut(&str) + Send),
) -> Result<(Tally, Summary)> {
    let mut experiment = experiment.clone();
    if options.quick {
        experiment.repeats = 1;
        let middle = experiment.capacities[experiment.capacities.len() / 2];
        experiment.capacities = vec![middle];
    }
    let targets = targets(&experiment)?;
    let programs = Programs::find(&experiment, &options.files)?;
    let plugin = experiment.timed.then(plugin).transpose()?;
    let acceleration = if experiment.timed { Acceleration::Tcg } else { options.acceleration };
    let guest = Guest::prepare(&Cache::of_user()?, acceleration, note)?;
    let prints = programs.fingerprints(&experiment, &guest, plugin.as_deref())?;
    let all = expand(&experiment, &targets, &prints)?;
    let runs = chosen(&all, &options.only);
    ensure!(!runs.is_empty(), "no run's name contains {}", options.only.join(" or "));
    let store = Store::open(&options.results)?;
    let entries = store.entries(note)?;
    store.save_manifest(&Manifest {
        name: experiment.name.clone(),
        what: experiment.what.clone(),
        keys: requested(&all, &runs, &entries),
    })?;
    let drive = Drive {
        experiment: &experiment,
        targets: &targets,
        runs: &runs,
        store: &store,
        retry: options.retry,
    };
    let mut boot = GuestBoot {
        guest: &guest,
        experiment: &experiment,
        programs: &programs,
        plugin: plugin.as_deref(),
        keep: &options.results.join(PROFILES),
    };
    let tally = drive.go(&mut boot, note)?;
    let summary = report(&options.results, note)?;
    Ok((tally, summary))
}

/// Reads a folder of results.
pub fn results(dir: &Path, note: &mut dyn FnMut(&str)) -> Result<Summary> {
    ensure!(dir.is_dir(), "{} is not a folder of results", dir.display());
    let store = Store::open(dir)?;
    let manifest = store.manifest()?;
    let (results, failures) = store.all(note)?;
    Ok(summarise(&manifest, results, failures))
}

/// Repeats the prediction of each plan with `predict`, from the profile and plan that are stored
/// for its run; returns the number of repeated predictions. A run without them keeps its
/// prediction.
pub fn repeat_predictions(
    dir: &Path,
    predict: &mut dyn FnMut(&Path, &Path) -> Result<serde_json::Value>,
    note: &mut dyn FnMut(&str),
) -> Result<usize> {
    let (results, store) = (results(dir, note)?.results().to_vec(), Store::open(dir)?);
    let mut count = 0;
    for mut result in results {
        let Some(profile) = result.measured.tiercel["planned"]["profile"].as_str() else {
            continue;
        };
        let folder = dir.join(PROFILES).join(&result.cell.machine);
        let (profile, plan) = (folder.join(profile), folder.join(format!("{}.plan", result.key)));
        if !profile.exists() || !plan.exists() {
            note(&format!("{}: its profile or plan is missing", result.cell.label()));
            continue;
        }
        let predicted = predict(&profile, &plan).with_context(|| result.cell.label())?;
        result.measured.tiercel["planned"]["expected"]["time"] = predicted;
        store.save_result(&result)?;
        count += 1;
    }
    Ok(count)
}

/// Draws tables and plots of a folder of results into that folder.
pub fn report(dir: &Path, note: &mut dyn FnMut(&str)) -> Result<Summary> {
    let summary = results(dir, note)?;
    let pictures = summary.pictures()?;
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    for (name, svg) in &pictures {
        write(name, svg)?;
    }
    let names: Vec<&str> = pictures.iter().map(|(name, _)| name.as_str()).collect();
    write("README.md", &summary.markdown(&names))?;
    Ok(summary)
}

fn targets(experiment: &Experiment) -> Result<Vec<Target>> {
    let size = Size { memory_bytes: experiment.memory, cpus: experiment.vcpus };
    let target = |name: &String| {
        let mut machine = find_machine(name, &[Path::new(MACHINES)])?;
        if let Some(nodes) = experiment.nodes.get(name) {
            let ids: Vec<NodeId> = nodes.iter().copied().map(NodeId).collect();
            machine = machine.part(&ids).map_err(|id| anyhow!("{name} has no node {}", id.0))?;
        }
        let topology = Topology::of(&machine, size)?;
        let target = Target { name: name.clone(), machine, topology };
        let (fast, slow) = target.tiers();
        let both = !fast.is_empty() && !slow.is_empty();
        ensure!(both, "machine {name}: all its memory is one tier, so there is nothing to compare");
        Ok(target)
    };
    experiment.machines.iter().map(target).collect()
}

/// Keys of the runs that are requested now, and of those that an earlier call executed.
fn requested(all: &[Run], now: &[Run], entries: &BTreeMap<String, Entry>) -> Vec<String> {
    let is_requested =
        |run: &&Run| now.iter().any(|one| one.key == run.key) || entries.contains_key(&run.key);
    all.iter().filter(is_requested).map(|run| run.key.clone()).collect()
}

/// The runs that match `only`, and the runs whose peaks they need.
fn chosen(runs: &[Run], only: &[String]) -> Vec<Run> {
    let named = |run: &Run| {
        let label = run.cell.label();
        only.is_empty() || only.iter().any(|part| label.contains(part.as_str()))
    };
    let needed: Vec<&String> =
        runs.iter().filter(|run| named(run)).filter_map(|run| run.sized_by.as_ref()).collect();
    runs.iter().filter(|run| named(run) || needed.contains(&&run.key)).cloned().collect()
}
