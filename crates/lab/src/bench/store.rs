//! The results of an experiment on disk: one line of JSON for each run.
//! In: a folder, results, failures. Out: the same, read back. Knows nothing of guests.
//!
//! ```text
//! manifest.json   the keys of the experiment's runs, in order
//! runs.jsonl      a line for each run: a `RunResult` if it finished, else a `Failure`
//! runs-2.jsonl    continues where `runs.jsonl` has reached its limit; runs-3.jsonl, ...
//! ```
//!
//! A key has at most one line. A new key is appended with a single write, so that an interruption
//! can truncate only the last line; such a line is reported when it is read, its run is repeated,
//! and the next append removes it. A result that replaces an older one rewrites the file under a
//! temporary name, which is then renamed. Other damaged lines are reported and kept, for the user
//! to repair.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::run_result::{Failure, RunResult};

/// Size at which a file is continued in the next one. `cargo xtask tidy` refuses files above 1 MiB;
/// the remaining 256 KiB are for lines that are replaced by longer ones (the longest committed line
/// has 6.5 KiB).
const FILE_BYTES_MAX: usize = 768 << 10;

/// A folder of results.
#[derive(Clone, Debug)]
pub struct Store {
    dir: PathBuf,
}

/// The current content of the experiment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The experiment's name.
    pub name: String,
    /// Its purpose.
    pub what: String,
    /// Keys of its runs that were requested so far, in order.
    pub keys: Vec<String>,
}

/// The stored outcome of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// It finished.
    Finished(Box<RunResult>),
    /// It failed.
    Failure(Failure),
}

/// The key of a line, whichever entry it holds.
#[derive(Deserialize)]
struct Keyed {
    key: String,
}

impl Store {
    /// Opens the results in `dir`, which is created if it is missing.
    pub fn open(dir: &Path) -> Result<Store> {
        let older = dir.join("runs");
        ensure!(
            !older.is_dir(),
            "{} holds a file for each run, as older versions wrote them; to convert them: \
             cd {} && cat runs/*.json > runs.jsonl && rm -r runs",
            older.display(),
            dir.display()
        );
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(Store { dir: dir.to_owned() })
    }

    /// Reads the outcomes of all runs, by key; `note` gets a line about each damaged one.
    pub fn entries(&self, note: &mut dyn FnMut(&str)) -> Result<BTreeMap<String, Entry>> {
        let mut entries = BTreeMap::new();
        for path in self.files() {
            let text = read(&path)?;
            for (at, line) in text.split_inclusive('\n').enumerate() {
                match Entry::parse(line) {
                    Ok(entry) => {
                        entries.insert(entry.key().to_owned(), entry);
                    }
                    Err(error) => {
                        let what = if line.ends_with('\n') { "is damaged" } else { "is cut off" };
                        let place = format!("{}:{}", path.display(), at + 1);
                        note(&format!("{place}: this line {what} ({error}); it is ignored"));
                    }
                }
            }
        }
        Ok(entries)
    }

    /// Stores a finished run, replacing its previous outcome.
    pub fn save_result(&self, result: &RunResult) -> Result<()> {
        self.save(&result.key, result)
    }

    /// Stores a failure, replacing the run's previous outcome.
    pub fn save_failure(&self, failure: &Failure) -> Result<()> {
        self.save(&failure.key, failure)
    }

    /// Stores the manifest.
    pub fn save_manifest(&self, manifest: &Manifest) -> Result<()> {
        replace(&self.dir.join("manifest.json"), &to_line(manifest))
    }

    /// The manifest.
    pub fn manifest(&self) -> Result<Manifest> {
        let path = self.dir.join("manifest.json");
        let text = fs::read_to_string(&path)
            .with_context(|| format!("{} holds no results of an experiment", self.dir.display()))?;
        serde_json::from_str(&text).with_context(|| format!("in {}", path.display()))
    }

    /// All finished runs and failures of the manifest, in its order.
    pub fn all(&self, note: &mut dyn FnMut(&str)) -> Result<(Vec<RunResult>, Vec<Failure>)> {
        let (mut results, mut failures) = (Vec::new(), Vec::new());
        let mut entries = self.entries(note)?;
        for key in self.manifest()?.keys {
            match entries.remove(&key) {
                Some(Entry::Finished(result)) => results.push(*result),
                Some(Entry::Failure(failure)) => failures.push(failure),
                None => {}
            }
        }
        Ok((results, failures))
    }

    fn save(&self, key: &str, value: &impl Serialize) -> Result<()> {
        let line = to_line(value);
        for path in self.files() {
            let text = read(&path)?;
            if text.lines().any(|line| has_key(line, key)) {
                return replace(&path, &with_line(&text, key, &line));
            }
        }
        append(&self.growing_file()?, &line)
    }

    /// The files that exist, in order.
    fn files(&self) -> impl Iterator<Item = PathBuf> {
        (1..).map(|number| self.file(number)).take_while(|path| path.exists())
    }

    /// The file for the next line.
    fn growing_file(&self) -> Result<PathBuf> {
        let count = self.files().count();
        let last = self.file(count.max(1));
        let is_full = count > 0 && read(&last)?.len() >= FILE_BYTES_MAX;
        Ok(if is_full { self.file(count + 1) } else { last })
    }

    fn file(&self, number: usize) -> PathBuf {
        let name = match number {
            1 => "runs.jsonl".to_owned(),
            number => format!("runs-{number}.jsonl"),
        };
        self.dir.join(name)
    }
}

impl Entry {
    /// The run's key.
    pub fn key(&self) -> &str {
        match self {
            Entry::Finished(result) => &result.key,
            Entry::Failure(failure) => &failure.key,
        }
    }

    /// A line is a failure when it is not a result; the error is about the result.
    fn parse(line: &str) -> serde_json::Result<Entry> {
        let failure = |error| serde_json::from_str(line).map(Entry::Failure).map_err(|_| error);
        serde_json::from_str(line).map(Entry::Finished).or_else(failure)
    }
}

fn has_key(line: &str, key: &str) -> bool {
    serde_json::from_str::<Keyed>(line).is_ok_and(|keyed| keyed.key == key)
}

/// `text` with the line of `key` replaced; other lines stay as they are.
fn with_line(text: &str, key: &str, line: &str) -> String {
    let lines = text.split_inclusive('\n');
    lines.map(|old| if has_key(old, key) { line } else { old }).collect()
}

fn to_line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data serialises") + "\n"
}

fn read(path: &Path) -> Result<String> {
    // A truncated line may end within a character.
    match fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Appends a line with one write; a line that an earlier call did not finish is removed first.
fn append(path: &Path, line: &str) -> Result<()> {
    let about = || format!("cannot write {}", path.display());
    let text = read(path)?;
    if !text.is_empty() && !text.ends_with('\n') {
        return replace(path, &(finished(&text) + line));
    }
    let mut file = OpenOptions::new().create(true).append(true).open(path).with_context(about)?;
    file.write_all(line.as_bytes()).with_context(about)
}

/// `text` without its unfinished last line; if only the newline is missing, it is added instead.
fn finished(text: &str) -> String {
    let (whole, last) = text.split_at(text.rfind('\n').map_or(0, |at| at + 1));
    match Entry::parse(last) {
        Ok(_) => format!("{text}\n"),
        Err(_) => whole.to_owned(),
    }
}

/// Writes a file under a temporary name and renames it.
fn replace(path: &Path, text: &str) -> Result<()> {
    let beside = path.with_extension("new");
    let about = || format!("cannot write {}", path.display());
    fs::write(&beside, text).with_context(about)?;
    fs::rename(&beside, path).with_context(about)
}
