//! The Open POSIX Test Suite: memory, processes, threads and signals. In:
//! fixtures/conformance/posix.toml and the suite's sources. Out: a [`Suite`]. Knows nothing of what
//! the tests test.

use std::path::Path;

use anyhow::Result;
use serde::Deserialize;

use super::compile::Compile;
use super::list::{self, Reasoned, Skipped, Suite, Test, word};

/// posix.toml.
#[derive(Deserialize)]
struct Listing {
    /// Folders of conformance/interfaces.
    interfaces: Vec<String>,
    /// As `INTERFACE/TEST`; with `*` at the end all that begin so.
    skip: Vec<Reasoned>,
}

impl Listing {
    fn why_skipped(&self, name: &str) -> Option<&String> {
        let names = |pattern: &String| match pattern.strip_suffix('*') {
            Some(begin) => name.starts_with(begin),
            None => pattern == name,
        };
        Some(&self.skip.iter().find(|skip| skip.tests.iter().any(names))?.why)
    }
}

pub fn suite() -> Result<Suite> {
    let listing: Listing = list::read("posix.toml")?;
    let source = super::sources().newest("posixtestsuite")?;
    let build = super::folder().join("built-posixtestsuite");
    let mut suite = Suite::default();
    for interface in &listing.interfaces {
        let folder = source.join("conformance/interfaces").join(interface);
        std::fs::create_dir_all(build.join(interface))?;
        for name in tests(&folder)? {
            let name = format!("{interface}/{name}");
            match listing.why_skipped(&name) {
                Some(why) => {
                    suite.skipped.push(Skipped { name: named(&name), why: why.clone() });
                }
                None => suite.tests.push(test(&name, &source, &build)),
            }
        }
    }
    Ok(suite)
}

fn named(test: &str) -> String {
    format!("posix-suite/{test}")
}

/// The tests in a folder: sources named by the number of what they assert.
fn tests(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let is_test = name.starts_with(|c: char| c.is_ascii_digit());
        names.extend(name.strip_suffix(".c").filter(|_| is_test).map(String::from));
    }
    names.sort();
    Ok(names)
}

fn test(name: &str, source: &Path, build: &Path) -> Test {
    let file = source.join("conformance/interfaces").join(format!("{name}.c"));
    let out = build.join(name);
    let mut words: Vec<String> =
        ["gcc", "-std=gnu99", "-O2", "-w", "-D_GNU_SOURCE"].map(String::from).to_vec();
    words.extend([format!("-I{}", word(&source.join("include"))), word(&file)]);
    words.extend(["-lpthread", "-lrt"].map(String::from));
    Test {
        name: named(name),
        builds: vec![Compile { out: out.clone(), words }],
        words: vec![word(&out)],
        variables: Default::default(),
    }
}
