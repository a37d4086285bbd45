//! The results of an experiment on disk: one file a run.
//! In: a folder, rows, failures. Out: the same, read back. Knows nothing of guests.
//!
//! `runs/KEY.json` holds a row, `runs/KEY.failed.json` what became of a run that failed;
//! `manifest.json` says which keys the experiment has now, in order. Files are written beside their
//! place and renamed, so that an interruption leaves no half of one; what cannot be read is set
//! aside as `*.corrupt`, and its run is made again.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::row::{Failure, Row};

/// A folder of results.
#[derive(Clone, Debug)]
pub struct Store {
    dir: PathBuf,
}

/// What the experiment consists of now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The experiment's name.
    pub name: String,
    /// What it shall show.
    pub what: String,
    /// Keys of its runs that were asked for so far, in order.
    pub keys: Vec<String>,
}

impl Store {
    /// In `dir`; made when missing.
    pub fn open(dir: &Path) -> Result<Store> {
        let runs = dir.join("runs");
        fs::create_dir_all(&runs).with_context(|| format!("cannot make {}", runs.display()))?;
        Ok(Store { dir: dir.to_owned() })
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A finished run; a file that is no row of this key is set aside, and said by `note`.
    pub fn row(&self, key: &str, note: &mut dyn FnMut(&str)) -> Result<Option<Row>> {
        let path = self.path(key, "json");
        Ok(self.read(&path, note)?.filter(|row: &Row| row.key == key))
    }

    /// What is known of a run that failed.
    pub fn failure(&self, key: &str, note: &mut dyn FnMut(&str)) -> Result<Option<Failure>> {
        self.read(&self.path(key, "failed.json"), note)
    }

    /// Whether a run finished or failed.
    pub fn knows(&self, key: &str) -> bool {
        ["json", "failed.json"].iter().any(|ending| self.path(key, ending).exists())
    }

    /// Keeps a finished run; what was known of earlier failures is gone.
    pub fn keep(&self, row: &Row) -> Result<()> {
        self.write(&self.path(&row.key, "json"), row)?;
        let failed = self.path(&row.key, "failed.json");
        if failed.exists() {
            fs::remove_file(&failed)
                .with_context(|| format!("cannot remove {}", failed.display()))?;
        }
        Ok(())
    }

    /// Keeps a failure.
    pub fn keep_failure(&self, failure: &Failure) -> Result<()> {
        self.write(&self.path(&failure.key, "failed.json"), failure)
    }

    /// Says what the experiment consists of.
    pub fn keep_manifest(&self, manifest: &Manifest) -> Result<()> {
        self.write(&self.dir.join("manifest.json"), manifest)
    }

    /// What the experiment consists of.
    pub fn manifest(&self) -> Result<Manifest> {
        let path = self.dir.join("manifest.json");
        let text = fs::read_to_string(&path)
            .with_context(|| format!("{} has no results of an experiment", self.dir.display()))?;
        serde_json::from_str(&text).with_context(|| format!("in {}", path.display()))
    }

    /// All finished runs and failures of the manifest, in its order.
    pub fn all(&self, note: &mut dyn FnMut(&str)) -> Result<(Vec<Row>, Vec<Failure>)> {
        let (mut rows, mut failures) = (Vec::new(), Vec::new());
        for key in self.manifest()?.keys {
            match self.row(&key, note)? {
                Some(row) => rows.push(row),
                None => failures.extend(self.failure(&key, note)?),
            }
        }
        Ok((rows, failures))
    }

    fn path(&self, key: &str, ending: &str) -> PathBuf {
        self.dir.join("runs").join(format!("{key}.{ending}"))
    }

    fn read<T: DeserializeOwned>(
        &self,
        path: &Path,
        note: &mut dyn FnMut(&str),
    ) -> Result<Option<T>> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        match serde_json::from_slice(&text) {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                let aside = path.with_extension("json.corrupt");
                fs::rename(path, &aside)
                    .with_context(|| format!("cannot set {} aside", path.display()))?;
                note(&format!("{} is damaged ({error}); set aside", path.display()));
                Ok(None)
            }
        }
    }

    fn write<T: Serialize>(&self, path: &Path, value: &T) -> Result<()> {
        let text = serde_json::to_string(value).expect("plain data serialises") + "\n";
        let beside = path.with_extension("new");
        let about = || format!("cannot write {}", path.display());
        fs::write(&beside, text).with_context(about)?;
        fs::rename(&beside, path).with_context(about)
    }
}
