//! Everything below `lab/results` that documents show. In: the folder. Out: results by experiment,
//! lines of JSON of other benches. Knows nothing of tables.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
use tiercel_lab::bench::{Manifest, RunResult, Store};

/// The experiments, in the order in which documents list them.
pub const EXPERIMENTS: [&str; 8] =
    ["mat", "scale", "h2m", "h2m-adapt", "pair", "margin", "movers", "autotiering"];

/// All stored results.
pub struct Stored {
    root: PathBuf,
    experiments: BTreeMap<&'static str, (Manifest, Vec<RunResult>)>,
}

impl Stored {
    /// Reads all experiments of the tree; a damaged line or a failed run is an error.
    pub fn open(root: &Path) -> Result<Stored> {
        let root = root.join("lab/results");
        let mut experiments = BTreeMap::new();
        for name in EXPERIMENTS {
            experiments.insert(name, read(&root.join(name)).context(name)?);
        }
        Ok(Stored { root, experiments })
    }

    pub fn results(&self, experiment: &str) -> &[RunResult] {
        &self.experiments[experiment].1
    }

    pub fn manifest(&self, experiment: &str) -> &Manifest {
        &self.experiments[experiment].0
    }

    /// A file of JSON lines below `lab/results`.
    pub fn lines<T: DeserializeOwned>(&self, name: &str) -> Result<Vec<T>> {
        let text = std::fs::read_to_string(self.root.join(name)).context(name.to_owned())?;
        text.lines().map(|line| serde_json::from_str(line).context(name.to_owned())).collect()
    }
}

fn read(folder: &Path) -> Result<(Manifest, Vec<RunResult>)> {
    let store = Store::open(folder)?;
    let mut notes = Vec::new();
    let (results, failures) = store.all(&mut |note| notes.push(note.to_owned()))?;
    ensure!(notes.is_empty(), "{}", notes.join("; "));
    ensure!(failures.is_empty(), "{} runs failed", failures.len());
    ensure!(results.iter().all(|result| result.timed), "runs without modelled time");
    Ok((store.manifest()?, results))
}
