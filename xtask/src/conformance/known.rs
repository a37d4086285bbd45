//! Differences that are known, each with its argument. In: fixtures/conformance/known.toml. Out:
//! what is expected of a test. Knows nothing of how tests are run.

use anyhow::Result;
use serde::Deserialize;

use super::list;
use super::trial::Host;

/// known.toml.
#[derive(Deserialize)]
pub struct Known {
    pub known: Vec<Entry>,
}

/// Tests that differ for one reason.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub tests: Vec<String>,
    /// `run`, `vmem`.
    pub under: Vec<String>,
    pub why: String,
    /// It depends on timing: it may pass.
    #[serde(default)]
    pub at_times: bool,
}

impl Known {
    pub fn read() -> Result<Known> {
        list::read("known.toml")
    }

    /// What is known of the test in that host.
    pub fn of(&self, test: &str, host: Host) -> Option<&Entry> {
        let is_of = |entry: &&Entry| {
            entry.tests.iter().any(|name| name == test)
                && entry.under.iter().any(|name| *name == host.to_string())
        };
        self.known.iter().find(is_of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entry_names_hosts_and_argues() {
        for entry in Known::read().expect("the committed list").known {
            let is_hosted =
                |name: &String| Host::HOSTED.iter().any(|host| host.to_string() == *name);
            assert!(
                !entry.under.is_empty() && entry.under.iter().all(is_hosted),
                "{:?}",
                entry.under
            );
            assert!(
                !entry.tests.is_empty() && entry.why.trim_end().ends_with('.'),
                "{}",
                entry.why
            );
        }
    }
}
