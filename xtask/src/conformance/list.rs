//! The tests: what is built, how each is run, which are skipped. In: the files of
//! fixtures/conformance. Out: [`Suite`]. Knows nothing of results.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;

use super::compile::{self, Compile};
use crate::exec;

/// One test.
#[derive(Clone, Debug)]
pub struct Test {
    /// `group/name`.
    pub name: String,
    /// What it consists of; its program is the last.
    pub builds: Vec<Compile>,
    /// The program and its arguments; `{dir}` is the folder it runs in.
    pub words: Vec<String>,
    pub variables: BTreeMap<String, String>,
}

/// A test that is not run.
#[derive(Clone, Debug)]
pub struct Skipped {
    pub name: String,
    pub why: String,
}

/// Tests that belong together.
#[derive(Default)]
pub struct Suite {
    pub tests: Vec<Test>,
    pub skipped: Vec<Skipped>,
}

impl Suite {
    /// Adds what another has.
    pub fn extend(&mut self, other: Suite) {
        self.tests.extend(other.tests);
        self.skipped.extend(other.skipped);
    }

    /// Keeps the tests whose name `is_chosen`.
    pub fn retain(&mut self, is_chosen: impl Fn(&str) -> bool) {
        self.tests.retain(|test| is_chosen(&test.name));
        self.skipped.retain(|skipped| is_chosen(&skipped.name));
    }

    /// Builds all tests; those that cannot be built are skipped from now on.
    pub fn build(&mut self) -> Result<()> {
        let mut builds: Vec<Compile> = Vec::new();
        // Modules of modules come first in each test, and several tests may share one: as many
        // rounds as the longest list has entries.
        let rounds = self.tests.iter().map(|test| test.builds.len()).max().unwrap_or(0);
        let mut failed = BTreeMap::new();
        for round in (0..rounds).rev() {
            builds.clear();
            for test in &self.tests {
                let before_last = test.builds.len().checked_sub(round + 1);
                let build = before_last.map(|at| test.builds[at].clone());
                builds.extend(build.filter(|build| !builds.contains(build)));
            }
            failed.extend(compile::all(&builds));
        }
        let unbuilt = |test: &Test| {
            let why = test.builds.iter().find_map(|build| failed.get(&build.out))?;
            Some(Skipped { name: test.name.clone(), why: format!("does not compile: {why}") })
        };
        self.skipped.extend(self.tests.iter().filter_map(unbuilt));
        self.tests.retain(|test| unbuilt(test).is_none());
        Ok(())
    }
}

/// Tests that share something.
#[derive(serde::Deserialize)]
pub struct Reasoned {
    pub tests: Vec<String>,
    pub why: String,
}

/// Where the lists are.
pub fn folder() -> PathBuf {
    exec::root().join("fixtures/conformance")
}

/// Reads one of the lists.
pub fn read<T: DeserializeOwned>(name: &str) -> Result<T> {
    toml::from_str(&text(name)?).with_context(|| format!("fixtures/conformance/{name}"))
}

/// The text of a file there.
pub fn text(name: &str) -> Result<String> {
    let path = folder().join(name);
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// The tests of the subset that takes a minute or two.
pub struct Quick(Vec<String>);

impl Quick {
    pub fn contains(&self, test: &str) -> bool {
        self.0.iter().any(|name| name == test)
    }
}

/// Reads quick.toml.
pub fn quick() -> Result<Quick> {
    #[derive(serde::Deserialize)]
    struct Listing {
        tests: Vec<String>,
    }
    Ok(Quick(read::<Listing>("quick.toml")?.tests))
}

/// The path as a word of a command line.
pub fn word(path: &Path) -> String {
    path.display().to_string()
}
