//! Tests of the drive: resume, retries, guests that die.
//! In: guests that follow a script. Out: verdicts. Knows nothing of QEMU.

use super::*;
use crate::bench::runs::{Fingerprints, expand};
use crate::bench::{chosen, requested};
use crate::topology::{Size, Topology};
use anyhow::bail;
use std::fs;
use tiercel_machine::Machine;

const FILE: &str = r#"
name = "t"
machines = ["spr-cxl"]
capacities = ["25%", "50%"]
boot_runs = 3
[[workload]]
name = "a"
command = "hotcold"
[[workload]]
name = "b"
command = "chase"
[[policy]]
name = "first-touch"
baseline = "first-touch"
[[policy]]
name = "lru"
config = { policy = { prioritise = "lru" } }
"#;

/// Peak of every workload in these tests.
const PEAK_BYTES: u64 = 64 << 20;

struct Lab {
    experiment: Experiment,
    targets: Vec<Target>,
    runs: Vec<Run>,
    store: Store,
    dir: tempfile::TempDir,
}

impl Lab {
    fn new() -> Lab {
        let experiment = Experiment::parse(FILE, &|_| Ok(())).expect("valid");
        let machine = Machine::builtin("spr-cxl").expect("known").expect("valid");
        let topology = Topology::of(&machine, Size::default()).expect("fits");
        let targets = vec![Target { name: "spr-cxl".to_owned(), machine, topology }];
        let programs = vec!["p".to_owned(), "q".to_owned()];
        let prints = Fingerprints { programs, ..Fingerprints::default() };
        let runs = expand(&experiment, &targets, &prints).expect("expands");
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(dir.path()).expect("made");
        Lab { experiment, targets, runs, store, dir }
    }

    fn go(&self, guest: &mut Scripted, retry: bool) -> (Tally, Vec<String>) {
        let Lab { experiment, targets, runs, store, .. } = self;
        let drive = Drive { experiment, targets, runs, store, retry };
        let mut lines = Vec::new();
        let tally = drive.go(guest, &mut |line| lines.push(line.to_owned())).expect("goes");
        (tally, lines)
    }

    fn failure(&self, key: &str) -> Option<Failure> {
        match self.store.entries(&mut |_| {}).expect("read").remove(key) {
            Some(Entry::Failure(failure)) => Some(failure),
            _ => None,
        }
    }

    fn key(&self, label: &str) -> &str {
        let run = self.runs.iter().find(|run| run.cell.label() == label);
        &run.expect("a run").key
    }

    /// Changes the stored lines.
    fn edit(&self, change: impl FnOnce(&mut Vec<String>)) {
        let path = self.dir.path().join("runs.jsonl");
        let text = fs::read_to_string(&path).expect("there");
        let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
        change(&mut lines);
        fs::write(path, lines.concat()).expect("written");
    }
}

/// A guest that measures, fails or dies as scripted.
#[derive(Default)]
struct Scripted {
    /// Labels of runs that fail, and how often.
    fails: Vec<(&'static str, u32)>,
    /// Labels of runs in which the guest dies, and how often.
    dies: Vec<(&'static str, u32)>,
    /// Labels of the runs in each boot.
    boots: Vec<Vec<String>>,
    sizes: BTreeMap<String, Option<u64>>,
}

fn due(list: &mut [(&'static str, u32)], label: &str) -> bool {
    let entry = list.iter_mut().find(|(name, left)| *name == label && *left > 0);
    entry.map(|entry| entry.1 -= 1).is_some()
}

impl Boot for Scripted {
    fn boot(
        &mut self,
        _place: &Target,
        batch: &[(&Run, Option<u64>)],
        events: &mut (dyn FnMut(Event, f64) + Send),
    ) -> Result<()> {
        let labels = batch.iter().map(|(run, _)| run.cell.label());
        self.boots.push(labels.collect());
        for (run, fast) in batch {
            let label = run.cell.label();
            self.sizes.insert(label.clone(), *fast);
            events(Event::Begin(run.key.clone()), 1.0);
            if due(&mut self.dies, &label) {
                bail!("killed; its console's last lines:\n    Kernel panic");
            }
            let event = match due(&mut self.fails, &label) {
                true => Event::Failed("WRONG".to_owned()),
                false => Event::Done(Box::new(Measured {
                    time_ns: 1_500_000_000,
                    peak_bytes: PEAK_BYTES,
                    ..Measured::default()
                })),
            };
            events(event, 60.0);
        }
        Ok(())
    }

    fn command(&self, run: &Run) -> Vec<String> {
        run.workload.command.words()
    }
}

#[test]
fn runs_are_sized_by_their_all_fast_run_and_share_boots() {
    let lab = Lab::new();
    let mut guest = Scripted::default();
    let (tally, lines) = lab.go(&mut guest, false);
    assert_eq!(tally, Tally { done: 10, failed: 0, unsized_runs: 0 });
    assert_eq!(guest.boots[0], ["a/all-fast", "b/all-fast"]);
    assert_eq!(guest.boots.iter().map(Vec::len).collect::<Vec<_>>(), [2, 3, 3, 2]);
    assert_eq!(guest.sizes["a/all-fast"], None);
    assert_eq!(guest.sizes["b/lru/25%"], Some(16 << 20));
    assert_eq!(guest.sizes["a/first-touch/50%"], Some(32 << 20));
    assert!(
        lines.contains(&"lab: 2 of 10, about 8 min left: b/all-fast: 1.500 s".to_owned()),
        "{lines:#?}"
    );
}

#[test]
fn damaged_and_missing_runs_are_repeated_and_stored_ones_are_not() {
    let lab = Lab::new();
    lab.go(&mut Scripted::default(), false);
    let mut guest = Scripted::default();
    let (tally, lines) = lab.go(&mut guest, false);
    assert_eq!((tally.done, guest.boots.len()), (10, 0));
    assert_eq!(lines, ["lab: 10 of 10 runs are there already"]);
    // A truncated line, a line of another run, and a missing line.
    lab.edit(|lines| {
        let at = |lines: &[String], label| {
            lines.iter().position(|line| line.contains(lab.key(label))).expect("stored")
        };
        let other = lines[at(lines, "b/lru/25%")].clone();
        let changed = at(lines, "b/lru/50%");
        lines[changed] = other;
        lines.remove(at(lines, "a/first-touch/50%"));
        let cut = lines.remove(at(lines, "a/lru/25%"));
        lines.push(cut[..cut.len() / 2].to_owned());
    });
    let (tally, lines) = lab.go(&mut guest, false);
    assert_eq!(tally.done, 10);
    let mut made = guest.boots.concat();
    made.sort();
    assert_eq!(made, ["a/first-touch/50%", "a/lru/25%", "b/lru/50%"]);
    assert!(lines[0].contains("runs.jsonl:9: this line is cut off"), "{lines:#?}");
    // The next write removed the truncated line; all others are whole.
    let mut notes = Vec::new();
    let entries = lab.store.entries(&mut |line| notes.push(line.to_owned())).expect("read");
    assert_eq!((entries.len(), notes), (10, Vec::new()));
}

#[test]
fn a_partial_run_keeps_the_results_of_others() {
    let mut lab = Lab::new();
    let all = lab.runs.clone();
    let part = |lab: &mut Lab, only: &str| {
        lab.runs = chosen(&all, &[only.to_owned()]);
        let entries = lab.store.entries(&mut |_| {}).expect("read");
        let keys = requested(&all, &lab.runs, &entries);
        lab.go(&mut Scripted::default(), false);
        keys.len()
    };
    assert_eq!(part(&mut lab, "a/lru"), 3, "two, and the run that sizes them");
    assert_eq!(part(&mut lab, "b/"), 3 + 5);
    assert_eq!(part(&mut lab, "a/"), 10);
}

#[test]
fn a_failing_run_is_retried_once() {
    let lab = Lab::new();
    let fails = vec![("a/lru/25%", 1), ("b/lru/50%", 9)];
    let mut guest = Scripted { fails, ..Scripted::default() };
    let (tally, lines) = lab.go(&mut guest, false);
    assert_eq!(tally, Tally { done: 9, failed: 1, unsized_runs: 0 });
    let tries = |guest: &Scripted, label: &str| {
        guest.boots.concat().iter().filter(|other| *other == label).count()
    };
    assert_eq!((tries(&guest, "a/lru/25%"), tries(&guest, "b/lru/50%")), (2, 2));
    assert!(lines.last().is_some_and(|line| line.ends_with("b/lru/50%: FAILED")), "{lines:#?}");
    let key = lab.key("b/lru/50%");
    let failure = lab.failure(key).expect("there");
    assert_eq!((failure.attempts, failure.why.as_str()), (2, "WRONG"));
    // The next call does not repeat it; with `retry` it is repeated and may succeed.
    let mut again = Scripted::default();
    assert_eq!(lab.go(&mut again, false).0.failed, 1);
    assert!(again.boots.is_empty());
    assert_eq!(lab.go(&mut again, true).0.done, 10);
    assert!(lab.failure(key).is_none());
}

#[test]
fn a_guest_crash_costs_only_the_current_run_an_attempt() {
    let lab = Lab::new();
    let dies = vec![("a/first-touch/25%", 1), ("b/all-fast", 9)];
    let mut guest = Scripted { dies, ..Scripted::default() };
    let (tally, _) = lab.go(&mut guest, false);
    // Without b's peak its other four runs cannot be sized.
    assert_eq!(tally, Tally { done: 5, failed: 1, unsized_runs: 4 });
    let key = lab.key("b/all-fast");
    let failure = lab.failure(key).expect("there");
    assert!(failure.why.contains("Kernel panic"), "{}", failure.why);
}

#[test]
fn keys_hash_everything_that_determines_a_run() {
    let lab = Lab::new();
    let keys: std::collections::BTreeSet<&String> = lab.runs.iter().map(|run| &run.key).collect();
    assert_eq!(keys.len(), lab.runs.len());
    let with = |prints: Fingerprints, memory: u64| {
        let mut experiment = lab.experiment.clone();
        experiment.memory = memory;
        expand(&experiment, &lab.targets, &prints).expect("expands")
    };
    let prints = |tiercel: &str, program: &str| Fingerprints {
        tiercel: tiercel.to_owned(),
        programs: vec![program.to_owned(), "q".to_owned()],
        ..Fingerprints::default()
    };
    let changed = |other: Vec<Run>| -> Vec<String> {
        let pairs = lab.runs.iter().zip(other).filter(|(a, b)| a.key != b.key);
        pairs.map(|(a, _)| a.cell.label()).collect()
    };
    let memory = lab.experiment.memory;
    assert_eq!(changed(with(prints("", "p"), memory)).len(), 0);
    assert_eq!(changed(with(prints("", "p"), memory + 1)).len(), 10);
    // A new build of Tiercel repeats no baselines; a new program repeats only the runs of its
    // workload.
    assert!(changed(with(prints("new", "p"), memory)).iter().all(|label| label.contains("lru")));
    let other = changed(with(prints("", "new"), memory));
    assert_eq!(other.len(), 5);
    assert!(other.iter().all(|label| label.starts_with("a/")), "{other:?}");
}
