//! Checks licences. In: cargo's metadata and deny.toml. Out: the packages whose licence is not
//! allowed. Knows nothing of advisories: `cargo deny check`, where it is installed, reads the same
//! deny.toml and knows those too.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::{exec, metadata};

#[derive(Deserialize)]
struct Deny {
    licenses: Licences,
}

#[derive(Deserialize)]
struct Licences {
    allow: BTreeSet<String>,
    #[serde(default)]
    exceptions: Vec<Exception>,
}

/// Further licences that one package may have.
#[derive(Deserialize)]
struct Exception {
    name: String,
    allow: BTreeSet<String>,
}

pub fn main() -> Result<()> {
    let path = exec::root().join("deny.toml");
    let deny: Deny = toml::from_str(&std::fs::read_to_string(&path).context("deny.toml")?)?;
    let packages = metadata::packages()?;
    let mut refused = Vec::new();
    for package in &packages {
        let stated = package.license.as_deref().unwrap_or("");
        let own = deny.licenses.exceptions.iter().filter(|one| one.name == package.name);
        let also = own.flat_map(|exception| exception.allow.iter());
        let allow = deny.licenses.allow.iter().chain(also).cloned().collect();
        if !allowed(stated, &allow) {
            refused.push(format!("{} {}: '{stated}'", package.name, package.version));
        }
    }
    if !refused.is_empty() {
        bail!("not allowed by deny.toml:\n{}", refused.join("\n"));
    }
    println!("{} packages, all under allowed licences", packages.len());
    Ok(())
}

/// Whether one may use what is under the SPDX expression `stated`: `OR` needs one allowed side,
/// `AND` both, and binds tighter. An old-style `A/B` means `A OR B`.
fn allowed(stated: &str, allow: &BTreeSet<String>) -> bool {
    let stated = stated.replace('/', " OR ");
    let mut parser = Parser { words: words(&stated), at: 0, allow };
    parser.either() && parser.at == parser.words.len()
}

fn words(text: &str) -> Vec<String> {
    let spaced = text.replace('(', " ( ").replace(')', " ) ");
    spaced.split_whitespace().map(String::from).collect()
}

struct Parser<'a> {
    words: Vec<String>,
    at: usize,
    allow: &'a BTreeSet<String>,
}

impl Parser<'_> {
    fn either(&mut self) -> bool {
        let mut good = self.both();
        while self.eat("OR") {
            good |= self.both();
        }
        good
    }

    fn both(&mut self) -> bool {
        let mut good = self.one();
        while self.eat("AND") {
            good &= self.one();
        }
        good
    }

    fn one(&mut self) -> bool {
        if self.eat("(") {
            let good = self.either();
            return self.eat(")") && good;
        }
        let Some(mut name) = self.words.get(self.at).cloned() else { return false };
        self.at += 1;
        if self.eat("WITH") {
            let exception = self.words.get(self.at).cloned().unwrap_or_default();
            self.at += 1;
            name = format!("{name} WITH {exception}");
        }
        self.allow.contains(&name)
    }

    fn eat(&mut self, word: &str) -> bool {
        let found = self.words.get(self.at).is_some_and(|one| one == word);
        self.at += usize::from(found);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licence_expressions_are_checked() {
        let allow: BTreeSet<String> =
            ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"].map(String::from).into();
        for good in [
            "MIT",
            "MIT/GPL-3.0",
            "GPL-3.0 OR MIT",
            "(MIT OR GPL-3.0) AND Apache-2.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
        ] {
            assert!(allowed(good, &allow), "{good}");
        }
        for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "MIT WITH Odd", "MIT )", "(MIT"] {
            assert!(!allowed(bad, &allow), "{bad}");
        }
    }
}
