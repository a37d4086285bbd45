//! Programs of our own that do something odd, and stress-ng, which verifies what it does. In:
//! fixtures/conformance/odd/ and stress.toml. Out: a [`Suite`]. Knows nothing of what they test.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use serde::Deserialize;

use super::compile::Compile;
use super::list::{self, Suite, Test, word};
use crate::exec;

/// stress.toml.
#[derive(Deserialize)]
struct Listing {
    /// Arguments of every test.
    always: Vec<String>,
    /// How many operations of each stressor.
    operations: BTreeMap<String, u64>,
}

/// stress-ng's tests of memory and processes, each as a program of its own.
pub fn stress() -> Result<Suite> {
    let listing: Listing = list::read("stress.toml")?;
    let tests = listing.operations.iter().map(|(name, count)| {
        let mut words = vec!["stress-ng".into(), format!("--{name}"), "1".into()];
        words.extend([format!("--{name}-ops"), count.to_string()]);
        words.extend(listing.always.iter().cloned());
        let name = format!("stress/{name}");
        Test { name, builds: Vec::new(), words, variables: BTreeMap::new() }
    });
    Ok(Suite { tests: tests.collect(), skipped: Vec::new() })
}

/// The odd programs: one source each.
pub fn odd() -> Result<Suite> {
    let build = super::folder().join("built-odd");
    std::fs::create_dir_all(&build)?;
    let mut names = Vec::new();
    for entry in std::fs::read_dir(list::folder().join("odd"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".c").map(String::from));
    }
    names.sort();
    let tests = names.iter().map(|name| program(name, &build)).collect();
    Ok(Suite { tests, skipped: Vec::new() })
}

fn program(name: &str, build: &Path) -> Test {
    let out = build.join(name);
    let source = list::folder().join("odd").join(format!("{name}.c"));
    let mut words: Vec<String> =
        ["gcc", "-std=gnu17", "-O1", "-Wall", "-Wextra", "-pthread"].map(String::from).to_vec();
    if name.starts_with("static-") {
        words.push("-static".into());
    }
    // So that a change of it is noticed.
    words.extend(["-include".into(), word(&source.with_file_name("odd.h"))]);
    words.push(word(source.strip_prefix(exec::root()).unwrap_or(&source)));
    Test {
        name: format!("odd/{name}"),
        builds: vec![Compile { out: out.clone(), words }],
        words: vec![word(&out)],
        variables: BTreeMap::new(),
    }
}
