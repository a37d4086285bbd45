//! What came out. In: a row for each test. Out: text or JSON, and how much is unexpected. Knows
//! nothing of how tests are run.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::json;

use super::known::{Entry, Known};
use super::list::{Skipped, Suite};
use super::trial::{Ending, Host};

/// A test's outcomes.
#[derive(Debug)]
pub struct TestRow {
    pub name: String,
    pub plain: Ending,
    /// Where it did not pass although it does plainly.
    pub differences: Vec<Difference>,
    pub peers: Vec<(Host, Ending)>,
}

impl Default for TestRow {
    fn default() -> TestRow {
        TestRow {
            name: String::new(),
            plain: Ending::Passed,
            differences: Vec::new(),
            peers: Vec::new(),
        }
    }
}

/// A test did not pass hosted.
#[derive(Debug)]
pub struct Difference {
    pub host: Host,
    pub ending: Ending,
    /// How it ended the second time, alone.
    pub again: Ending,
}

impl Difference {
    /// Whether it also passed: a matter of timing.
    fn is_unsteady(&self) -> bool {
        self.again == Ending::Passed
    }
}

/// All that came out.
pub struct Report {
    pub rows: Vec<TestRow>,
    pub skipped: Vec<Skipped>,
    pub known: Known,
}

/// What the list of known differences says of an outcome.
#[derive(Clone, Copy, PartialEq)]
enum Verdict {
    Same,
    Known,
    Unsteady,
    New,
    Gone,
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Verdict::Same => "same",
            Verdict::Known => "known, see docs/conformance.md",
            Verdict::Unsteady => "passed when run again",
            Verdict::New => "NOT KNOWN",
            Verdict::Gone => "KNOWN BUT GONE",
        }
    }

    fn is_failure(self) -> bool {
        matches!(self, Verdict::New | Verdict::Gone)
    }
}

fn verdict(known: Option<&Entry>, difference: Option<&Difference>) -> Verdict {
    match (known, difference) {
        (Some(_), Some(_)) => Verdict::Known,
        (Some(entry), None) if entry.at_times => Verdict::Same,
        (Some(_), None) => Verdict::Gone,
        (None, Some(difference)) if difference.is_unsteady() => Verdict::Unsteady,
        (None, Some(_)) => Verdict::New,
        (None, None) => Verdict::Same,
    }
}

impl Report {
    /// Outcomes that are not expected.
    pub fn failures(&self) -> usize {
        self.verdicts().filter(|(_, _, verdict)| verdict.is_failure()).count()
    }

    /// What is to be said of each test that passes plainly, in each host.
    fn verdicts(&self) -> impl Iterator<Item = (&TestRow, Host, Verdict)> {
        let compared = self.rows.iter().filter(|row| row.plain == Ending::Passed);
        compared.flat_map(|row| {
            Host::HOSTED.map(|host| {
                let difference = row.differences.iter().find(|one| one.host == host);
                (row, host, verdict(self.known.of(&row.name, host), difference))
            })
        })
    }

    pub fn print(&self) {
        for (name, counts) in self.counts() {
            println!("{}", counts.line(name));
        }
        for (row, host, verdict) in self.verdicts() {
            if verdict != Verdict::Same {
                println!("{}", explained(row, host, verdict));
            }
        }
        let failed = self.failures();
        println!("{} passed, {failed} failed", self.verdicts().count() - failed);
    }

    fn counts(&self) -> BTreeMap<&str, Counts> {
        let mut groups: BTreeMap<&str, Counts> = BTreeMap::new();
        for row in &self.rows {
            let counts = groups.entry(group(&row.name)).or_default();
            counts.tests += 1;
            counts.plain += usize::from(row.plain == Ending::Passed);
        }
        for (row, host, _) in self.verdicts() {
            let differs = row.differences.iter().any(|one| one.host == host && !one.is_unsteady());
            let counts = groups.entry(group(&row.name)).or_default();
            *counts.hosted.entry(host).or_default() += usize::from(!differs);
        }
        for skipped in &self.skipped {
            groups.entry(group(&skipped.name)).or_default().skipped += 1;
        }
        groups
    }

    pub fn print_json(&self) -> Result<()> {
        let rows: Vec<_> = self.rows.iter().map(|row| self.json(row)).collect();
        let skipped: Vec<_> =
            self.skipped.iter().map(|one| json!({ "name": one.name, "why": one.why })).collect();
        let all = json!({ "failed": self.failures(), "tests": rows, "skipped": skipped });
        println!("{}", serde_json::to_string_pretty(&all)?);
        Ok(())
    }

    fn json(&self, row: &TestRow) -> serde_json::Value {
        let differences: Vec<_> = row
            .differences
            .iter()
            .map(|one| {
                let known = self.known.of(&row.name, one.host).map(|entry| &entry.why);
                json!({
                    "under": one.host.to_string(), "ending": one.ending.to_string(),
                    "again": one.again.to_string(), "known": known,
                })
            })
            .collect();
        let peers = row.peers.iter().map(|(peer, end)| (peer.to_string(), end.to_string().into()));
        let peers: serde_json::Map<String, serde_json::Value> = peers.collect();
        json!({
            "name": row.name, "plain": row.plain.to_string(),
            "differences": differences, "peers": peers,
        })
    }
}

fn explained(row: &TestRow, host: Host, verdict: Verdict) -> String {
    let mut text = format!("{} under {host}: {}", row.name, verdict.text());
    if let Some(one) = row.differences.iter().find(|one| one.host == host) {
        text += &format!("; {}, again: {}", one.ending, one.again);
        let peers = row.peers.iter().map(|(peer, ending)| format!("; {peer}: {ending}"));
        text.extend(peers);
    }
    text
}

#[derive(Default)]
struct Counts {
    tests: usize,
    plain: usize,
    hosted: BTreeMap<Host, usize>,
    skipped: usize,
}

impl Counts {
    fn line(&self, group: &str) -> String {
        let mut line = format!("{group:12} {:4} tests: {} pass plain", self.tests, self.plain);
        for (host, passed) in &self.hosted {
            line += &format!(", {passed} {host}");
        }
        line + &format!("; {} skipped", self.skipped)
    }
}

fn group(name: &str) -> &str {
    name.split('/').next().unwrap_or_default()
}

/// Prints what there is.
pub fn list(suite: &Suite) {
    for test in &suite.tests {
        println!("{}", test.name);
    }
    for skipped in &suite.skipped {
        println!("{}  skipped: {}", skipped.name, skipped.why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(plain: Ending, again: Option<Ending>, known: bool) -> Report {
        let host = Host::Run;
        let ending = Ending::Status(1);
        let differences = again.map(|again| Difference { host, ending, again });
        let differences = differences.into_iter().collect();
        let row = TestRow { name: "a/b".into(), plain, differences, peers: Vec::new() };
        let entry = Entry {
            tests: vec!["a/b".into()],
            under: vec!["run".into()],
            why: "So.".into(),
            at_times: false,
        };
        let known = Known { known: Vec::from_iter(known.then_some(entry)) };
        Report { rows: vec![row], skipped: Vec::new(), known }
    }

    #[test]
    fn a_new_difference_and_one_that_is_gone_fail() {
        let twice = Some(Ending::Signal(6));
        assert_eq!(report(Ending::Passed, twice.clone(), false).failures(), 1);
        assert_eq!(report(Ending::Passed, twice, true).failures(), 0);
        assert_eq!(report(Ending::Passed, None, true).failures(), 1);
        assert_eq!(report(Ending::Passed, None, false).failures(), 0);
    }

    #[test]
    fn what_passes_the_second_time_or_fails_plainly_is_no_failure() {
        assert_eq!(report(Ending::Passed, Some(Ending::Passed), false).failures(), 0);
        assert_eq!(report(Ending::Status(77), None, true).failures(), 0);
    }
}
