//! Tests that run inside the guest. In: a folder of scripts, the programs that they use. Out: a
//! verdict for each of their checks. Knows nothing of what is tested. One boot runs all tests of a
//! machine; when the guest dies, the test that was running has failed and the rest runs in a new
//! boot.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::image::quote;
use crate::{Guest, Payload, Request, Streams, Times, Timing, Topology};

/// Time limit of a test, unless its header sets one.
const DEFAULT_LIMIT: Duration = Duration::from_secs(30);

/// Time for boot and power-off, beyond the tests' own limits.
const BOOT_LIMIT: Duration = Duration::from_secs(60);

/// Factor on all limits, which are for a quiet host: on two CPUs, two virtual CPUs among eight
/// other threads get a fifth of the time. Only a test that hangs takes this long.
const BUSY_FACTOR: u32 = 10;

/// Lines of a test's output that a failure shows.
const SHOWN_LINES: usize = 60;

/// Functions for the scripts: `ok`, `not_ok`, `equal`, ...
const PRELUDE: &str = include_str!("../guest/prelude.sh");

/// Runs the tests in the guest, each in its own control group, which is emptied afterwards.
const RUNNER: &str = include_str!("../guest/runner.sh");

/// Keys of a test's header.
const HEADERS: [&str; 8] =
    ["what", "machines", "programs", "trees", "limit", "short", "timed", "regions"];

/// A script, and its header.
///
/// The header is the script's leading comment lines `# key: value`: `what` (one line), `machines`
/// (names), `programs` (names), and optionally `trees` (files and folders of the host that programs
/// read, at the same paths), `limit` (seconds), `short` (yes: part of the short run), `timed` (yes:
/// every access takes the machine's time) and `regions` (how many regions of interest the plugin
/// must have counted at the end; such a test has a boot of its own).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// The script's file name without `.sh`.
    pub name: String,
    /// What it tests, for readers.
    pub what: String,
    /// The machines on which it runs.
    pub machines: Vec<String>,
    /// Programs that it calls, from the suite's tables.
    pub programs: Vec<String>,
    /// Files and folders of the host that it reads, at the same paths.
    pub trees: Vec<String>,
    /// Time after which it counts as hung.
    pub limit: Duration,
    /// Whether the short run includes it.
    pub short: bool,
    /// Whether it needs the timing plugin.
    pub timed: bool,
    /// How many regions of interest the timing plugin must have counted when it ends.
    pub regions: Option<usize>,
    script: String,
}

/// One check of one test on one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The machine's name.
    pub machine: String,
    /// The test's name.
    pub test: String,
    /// What was checked.
    pub what: String,
    /// Why it failed; `None` when it passed.
    pub failure: Option<String>,
}

/// Reads all tests of a folder, by name.
pub fn load(dir: &Path) -> Result<Vec<Test>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "sh"))
        .collect();
    paths.sort();
    ensure!(!paths.is_empty(), "{} has no tests", dir.display());
    let read = |path: &PathBuf| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let script = fs::read_to_string(path)?;
        Test::parse(name, script)
    };
    paths.iter().map(|p| read(p).with_context(|| format!("test {}", p.display()))).collect()
}

/// Runs tests of one machine, either all timed or all untimed. `programs` maps the names that tests
/// use to paths; `cases` gets each verdict as it arrives.
pub fn run(
    guest: &Guest,
    topology: &Topology,
    timing: Option<Timing<'_>>,
    tests: &[Test],
    programs: &BTreeMap<String, PathBuf>,
    cases: &mut (dyn FnMut(Case) + Send),
) -> Result<()> {
    let mut left = tests;
    // Each boot finishes at least one test, so this loop ends.
    while !left.is_empty() {
        let mut reader = Reader::new(&topology.machine, cases);
        let batch = batch(left);
        let ended = boot(guest, (topology, timing), batch, programs, &mut reader);
        reader.finish(ended, batch);
        let done = reader.done;
        ensure!(done > 0, "no test began; this is a defect of the lab");
        left = &left[done.min(left.len())..];
    }
    Ok(())
}

/// The tests of the next boot: those up to one whose regions are counted, or that one alone.
fn batch(left: &[Test]) -> &[Test] {
    let shared = left.iter().take_while(|test| test.regions.is_none()).count();
    &left[..shared.max(1)]
}

impl Test {
    fn parse(name: String, script: String) -> Result<Test> {
        let mut fields = BTreeMap::new();
        for line in script.lines().skip(1).map_while(|line| line.strip_prefix("# ")) {
            let (key, value) = line.split_once(": ").context("a header line is `# key: value`")?;
            ensure!(HEADERS.contains(&key), "unknown header {key:?}");
            fields.insert(key.to_owned(), value.trim().to_owned());
        }
        let words = |key: &str| -> Vec<String> {
            let text = fields.get(key).map_or("", String::as_str);
            text.split_whitespace().map(str::to_owned).collect()
        };
        let limit = match fields.get("limit") {
            Some(text) => Duration::from_secs(text.parse().context("limit: seconds")?),
            None => DEFAULT_LIMIT,
        };
        let regions = fields.get("regions").map(|text| text.parse().context("regions: a number"));
        let test = Test {
            name,
            what: fields.get("what").cloned().context("the header `# what:` is missing")?,
            machines: words("machines"),
            programs: words("programs"),
            trees: words("trees"),
            limit,
            short: fields.get("short").is_some_and(|v| v == "yes"),
            timed: fields.get("timed").is_some_and(|v| v == "yes"),
            regions: regions.transpose()?,
            script,
        };
        ensure!(!test.machines.is_empty(), "the header `# machines:` is missing");
        Ok(test)
    }
}

fn boot(
    guest: &Guest,
    (topology, timing): (&Topology, Option<Timing<'_>>),
    tests: &[Test],
    programs: &BTreeMap<String, PathBuf>,
    reader: &mut Reader<'_>,
) -> Result<()> {
    let mut payload = Payload::default();
    payload.text("lab/prelude.sh", 0o644, PRELUDE);
    payload.text("lab/runner.sh", 0o755, RUNNER);
    let mut command = String::new();
    let mut timeout = BOOT_LIMIT * BUSY_FACTOR;
    for test in tests {
        payload.text(&format!("lab/tests/{}", test.name), 0o755, &test.script);
        for name in &test.programs {
            let path = programs
                .get(name)
                .with_context(|| format!("test {}: there is no program {name}", test.name))?;
            payload.program(path, &place_of(name))?;
        }
        for tree in &test.trees {
            payload.tree(Path::new(tree), tree)?;
        }
        let limit = (test.limit * BUSY_FACTOR).as_secs();
        command += &format!("sh /lab/runner.sh {} {limit}\n", quote(&test.name));
        timeout += test.limit * BUSY_FACTOR;
    }
    let request = Request {
        topology,
        payload,
        command: &command,
        environment: &[],
        timeout,
        out: None,
        timing,
    };
    let mut sink = io::sink();
    let outcome = guest.run(request, Streams { stdout: reader, stderr: &mut sink })?;
    if outcome.status != 0 {
        bail!("the guest's runner ended with status {}", outcome.status);
    }
    if let [Test { name, regions: Some(expected), .. }] = tests {
        let stats = outcome.timing.context("regions are counted only in timed guests")?;
        let counted = Times::parse(&stats)?.regions.len();
        let failure = (counted != *expected)
            .then(|| format!("expected {expected} regions of interest, counted {counted}"));
        reader.counted(name, failure);
    }
    Ok(())
}

/// Libraries are in the folder where the `tiercel` binary looks for its runtime.
fn place_of(program: &str) -> String {
    match program.ends_with(".so") {
        true => format!("usr/lib/tiercel/{program}"),
        false => format!("usr/bin/{program}"),
    }
}

/// Parses the runner's output, line by line: `lab-begin NAME`, then any lines, among which `ok
/// WHAT` and `not ok WHAT: WHY` are verdicts, then `lab-end STATUS`.
struct Reader<'a> {
    machine: String,
    cases: &'a mut (dyn FnMut(Case) + Send),
    pending: Vec<u8>,
    current: Option<Current>,
    /// Tests that have ended, passed or failed.
    done: usize,
}

struct Current {
    test: String,
    verdicts: usize,
    lines: Vec<String>,
}

impl<'a> Reader<'a> {
    fn new(machine: &str, cases: &'a mut (dyn FnMut(Case) + Send)) -> Reader<'a> {
        Reader { machine: machine.to_owned(), cases, pending: Vec::new(), current: None, done: 0 }
    }

    fn line(&mut self, line: &str) {
        if let Some(test) = line.strip_prefix("lab-begin ") {
            let test = test.to_owned();
            self.current = Some(Current { test, verdicts: 0, lines: Vec::new() });
            return;
        }
        let Some(current) = &mut self.current else { return };
        if let Some(what) = line.strip_prefix("ok ") {
            current.verdicts += 1;
            self.case(what, None);
        } else if let Some(text) = line.strip_prefix("not ok ") {
            current.verdicts += 1;
            let (what, why) = text.split_once(": ").unwrap_or((text, "no reason given"));
            let why = format!("{why}{}", shown(&current.lines));
            self.case(what, Some(why));
        } else if let Some(status) = line.strip_prefix("lab-end ") {
            let failure = match (status, current.verdicts) {
                ("0", 0) => Some("it checked nothing".to_owned()),
                ("0", _) => None,
                ("137" | "143", _) => Some("it took too long and was killed".to_owned()),
                (status, _) => Some(format!("it ended with status {status}")),
            };
            let failure = failure.map(|why| why + &shown(&current.lines));
            self.end(failure);
        } else {
            current.lines.push(line.to_owned());
        }
    }

    /// Ends the running test; a bad exit becomes a failed case of its own.
    fn end(&mut self, failure: Option<String>) {
        if failure.is_some() {
            self.case("runs to its end", failure);
        }
        self.current = None;
        self.done += 1;
    }

    /// The guest has ended: a test that was still running has failed. If it died between two tests,
    /// the next one has failed.
    fn finish(&mut self, ended: Result<()>, tests: &[Test]) {
        let why = match ended {
            Ok(()) if self.done == tests.len() => return,
            Ok(()) => "the guest ended early".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        if self.current.is_none() {
            let Some(next) = tests.get(self.done) else { return };
            self.line(&format!("lab-begin {}", next.name));
        }
        let lines = self.current.as_ref().map_or(String::new(), |c| shown(&c.lines));
        self.end(Some(why + &lines));
    }

    /// The verdict on a test's regions, after the guest has ended.
    fn counted(&mut self, test: &str, failure: Option<String>) {
        let (machine, what) = (self.machine.clone(), "regions of interest are the command's");
        (self.cases)(Case { machine, test: test.to_owned(), what: what.to_owned(), failure });
    }

    fn case(&mut self, what: &str, failure: Option<String>) {
        let test = self.current.as_ref().map_or("", |c| c.test.as_str()).to_owned();
        (self.cases)(Case { machine: self.machine.clone(), test, what: what.to_owned(), failure });
    }
}

impl Write for Reader<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        while let Some(end) = self.pending.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            let text = String::from_utf8_lossy(&line);
            self.line(text.trim_end());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn shown(lines: &[String]) -> String {
    let last = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
    last.iter().map(|line| format!("\n    | {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(name: &str) -> Test {
        let script = "#!/bin/sh\n# what: x\n# machines: m\n".to_owned();
        Test::parse(name.to_owned(), script).expect("valid")
    }

    /// Feeds `text` in pieces of 3 bytes; returns verdicts as `test/what[: why]`.
    fn check(text: &str, ended: Result<()>, tests: &[Test], expect: &[&str], done: usize) {
        let mut got = Vec::new();
        let mut sink = |case: Case| {
            let why = case.failure.map_or(String::new(), |why| format!(": {why}"));
            got.push(format!("{}/{}{why}", case.test, case.what));
        };
        let mut reader = Reader::new("m", &mut sink);
        for piece in text.as_bytes().chunks(3) {
            reader.write_all(piece).expect("never fails");
        }
        reader.finish(ended, tests);
        let seen = reader.done;
        assert_eq!(got, expect);
        assert_eq!(seen, done);
    }

    #[test]
    fn failures_include_the_lines_before_them() {
        check(
            "lab-begin a\nok one\nsaid\nnot ok two: 3 is not 4\nlab-end 0\n\
             lab-begin b\nok x\nlab-end 0\n",
            Ok(()),
            &[test("a"), test("b")],
            &["a/one", "a/two: 3 is not 4\n    | said", "b/x"],
            2,
        );
    }

    #[test]
    fn a_test_that_checks_nothing_or_ends_badly_has_failed() {
        check(
            "lab-begin a\nlab-end 0\nlab-begin b\nok x\nlab-end 2\nlab-begin c\nlab-end 137\n",
            Ok(()),
            &[test("a"), test("b"), test("c")],
            &[
                "a/runs to its end: it checked nothing",
                "b/x",
                "b/runs to its end: it ended with status 2",
                "c/runs to its end: it took too long and was killed",
            ],
            3,
        );
    }

    #[test]
    fn a_dead_guest_fails_only_the_running_test() {
        check(
            "lab-begin a\nok one\nhm\n",
            Err(anyhow::anyhow!("panic")),
            &[test("a"), test("b")],
            &["a/one", "a/runs to its end: panic\n    | hm"],
            1,
        );
        check(
            "",
            Err(anyhow::anyhow!("no boot")),
            &[test("a"), test("b")],
            &["a/runs to its end: no boot"],
            1,
        );
    }

    #[test]
    fn headers_are_checked() {
        let parse = |text: &str| Test::parse("t".to_owned(), format!("#!/bin/sh\n{text}"));
        let full = "# what: it works\n# machines: a b\n# programs: p\n# trees: /etc/c\n# limit: 5\n\
                    # short: yes\n\n";
        let test = parse(full).expect("valid");
        assert_eq!(test.machines, ["a", "b"]);
        assert_eq!(test.trees, ["/etc/c"]);
        assert_eq!((test.limit, test.short), (Duration::from_secs(5), true));
        for bad in ["", "# what: x\n", "# machines: m\n", "# wat: x\n", "# what: x\n# limit: y\n"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
