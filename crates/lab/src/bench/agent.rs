//! The bench's part inside the guest: executes one run after another, each from a clean state. In:
//! [`Spec`]s. Out: [`Event`]s, one line of JSON each. Knows nothing of experiments.
//!
//! A run has a control group of its own. Before it, caches are dropped and memory is made
//! contiguous; after it, the group is killed and every setting is as it was. Accesses are timed in
//! detail only while the program runs.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tiercel_machine::number;

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::experiment::{Huge, Metric};
use super::hog::{Hog, physical_range};
use super::residency::{Counters, ResidencyTracker};
use super::run_result::{Event, Measured, Method, Resident, Spec, Waits};
use super::waits::WaitTracker;

/// Between two observations of residency, guest time.
const OBSERVATION_INTERVAL: Duration = Duration::from_millis(50);

/// Most bytes of a failed program's output that are shown.
const SHOWN_LINES: usize = 20;

/// How long a killed group may take to empty: it is empty at once unless a process is stuck in the
/// kernel.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// Share of a run's memory that must be on the nodes it was bound to.
const BOUND_SHARE: f64 = 0.99;

/// Excess over its limit that a run may hold in fast memory at an observation: memory that the
/// system freed there meanwhile.
const FAST_SLACK_BYTES: u64 = 1 << 20;

/// The root of the file system; a directory other than `/` in tests.
#[derive(Clone, Debug)]
pub struct Agent {
    pub(super) root: PathBuf,
    /// Emptied before each run.
    pub(super) scratch: PathBuf,
    group: PathBuf,
}

impl Agent {
    /// For the file system below `root`.
    pub fn new(root: &Path) -> Agent {
        let group = root.join("sys/fs/cgroup/lab-run");
        Agent { root: root.to_owned(), scratch: root.join("tmp/lab-run"), group }
    }

    /// Executes all runs; an error concerns the agent, never a run.
    pub fn serve(&self, specs: &[Spec], out: &mut dyn Write) -> Result<()> {
        self.mark("end");
        self.write_all(&[("/sys/fs/cgroup/cgroup.subtree_control", "+memory")]);
        for spec in specs {
            send(out, &Event::Begin(spec.key.clone()))?;
            let event = match self.run(spec) {
                Ok(measured) => Event::Done(Box::new(measured)),
                Err(error) => Event::Failed(format!("{error:#}")),
            };
            send(out, &event)?;
        }
        Ok(())
    }

    fn run(&self, spec: &Spec) -> Result<Measured> {
        self.clean(spec)?;
        let mut undo = Undo { agent: self, settings: Vec::new() };
        for (path, text) in &spec.knobs {
            undo.set(path, text).with_context(|| format!("cannot set {path} to {text}"))?;
        }
        if spec.method == Method::Damon {
            self.damon(spec, &mut undo)?;
        }
        // Before fast memory is filled, since a program is recorded with all of it.
        self.prepare(spec)?;
        let hog = match spec.fast_bytes {
            Some(bytes) => Some(Hog::fill(&self.root, &spec.fast_nodes, bytes)?),
            None => None,
        };
        (0..spec.learned).try_for_each(|_| self.learn(spec))?;
        let ended = self.start(spec);
        self.kill()?;
        let mut measured = ended?;
        measured.free_bytes = hog.as_ref().map_or(0, |hog| hog.free_bytes);
        measured.warnings = warnings(spec, &measured);
        Ok(measured)
    }

    /// Restores the state in which every run begins.
    fn clean(&self, spec: &Spec) -> Result<()> {
        self.kill()?;
        // It may be missing; if it is left over, creating it fails below.
        let _ = fs::remove_dir_all(&self.scratch);
        for dir in [&self.scratch, &self.group] {
            fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        let huge = match spec.huge {
            Huge::Always => "always",
            Huge::Madvise => "madvise",
            Huge::Never => "never",
        };
        self.write_all(&[
            ("/sys/kernel/mm/transparent_hugepage/enabled", huge),
            ("/proc/sys/kernel/numa_balancing", "0"),
            // Makes the kernel account for the time that threads wait.
            ("/proc/sys/kernel/sched_schedstats", "1"),
            ("/sys/kernel/mm/numa/demotion_enabled", "false"),
            // Short per-CPU lists of free memory: they are part of the memory left to a run.
            ("/proc/sys/vm/percpu_pagelist_high_fraction", "1000000"),
            // Memory of a nearly full node fragments, and each time its watermarks rise by up to 2
            // MiB until memory is reclaimed: nothing for a machine's node, but a tenth of the
            // memory left to a run.
            ("/proc/sys/vm/watermark_boost_factor", "0"),
            ("/proc/sys/vm/drop_caches", "3"),
            ("/proc/sys/vm/compact_memory", "1"),
        ]);
        Ok(())
    }

    /// Runs the program once, with what it will have at the measured run, so that Tiercel learns.
    fn learn(&self, spec: &Spec) -> Result<()> {
        let mut command = self.in_group(spec)?;
        self.mark("begin");
        let status = command.status().context("cannot start sh");
        self.mark("end");
        let status = status?;
        ensure!(status.success(), "a run to learn from ended with {status}{}", self.shown());
        Ok(())
    }

    /// The run's command, within its control group.
    fn in_group(&self, spec: &Spec) -> Result<Command> {
        let words = self.command(spec)?;
        let into = |name: &str| {
            let path = self.scratch.join(name);
            File::create(&path).with_context(|| format!("cannot make {}", path.display()))
        };
        let mut command = Command::new("sh");
        // `$0` is the group's `cgroup.procs`; writing 0 moves the writer itself.
        command.args(["-c", r#"echo 0 > "$0" && exec "$@""#]);
        command.arg(self.group.join("cgroup.procs")).args(&words);
        // Emptied before each run: it begins with what its own runs learned.
        command.env("XDG_DATA_HOME", self.scratch.join("data"));
        command.stdin(Stdio::null()).stdout(into("out")?).stderr(into("err")?);
        Ok(command)
    }

    /// Runs the program to its end and observes at intervals where its memory is.
    fn start(&self, spec: &Spec) -> Result<Measured> {
        let mut command = self.in_group(spec)?;
        self.mark("begin");
        let counters = Counters::read(&self.root);
        let began = Instant::now();
        let child = command.spawn().context("cannot start sh")?;
        let (status, residency, waits) = self.wait(child, spec)?;
        let wall_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let moved = Counters::read(&self.root).since(&counters);
        self.mark("end");
        ensure!(status.success(), "it ended with {status}{}", self.shown());
        let last_line = last_line(&self.scratch.join("out"))?;
        let time_ns = match spec.metric {
            // The host gets the time of the regions when the guest has ended.
            Metric::Wall | Metric::Regions => wall_ns,
            Metric::Reported => reported_ns(&last_line).with_context(|| {
                format!("it reported no time; its last line: {last_line:?}{}", self.shown())
            })?,
        };
        let peak = fs::read_to_string(self.group.join("memory.peak")).unwrap_or_default();
        Ok(Measured {
            time_ns,
            wall_ns,
            peak_bytes: peak.trim().parse().unwrap_or(0),
            resident: residency.resident(),
            moved,
            waits,
            tiercel: self.summary(spec)?,
            last_line,
            ..Measured::default()
        })
    }

    fn wait(
        &self,
        mut child: Child,
        spec: &Spec,
    ) -> Result<(ExitStatus, ResidencyTracker, Option<Waits>)> {
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .context("cannot watch the program")?;
        let step = Timespec::try_from(OBSERVATION_INTERVAL).expect("a short time");
        let mut residency = ResidencyTracker::default();
        let mut waits = WaitTracker::of(spec.command.first().map_or("", String::as_str));
        loop {
            residency.observe(&self.group, &spec.fast_nodes);
            waits.observe(&self.root, &self.group);
            match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&step)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for the program"),
            }
            if let Some(status) = child.try_wait().context("cannot wait for the program")? {
                return Ok((status, residency, waits.waits()));
            }
        }
    }

    /// The program, preceded by the words of the method.
    fn command(&self, spec: &Spec) -> Result<Vec<String>> {
        let mut words: Vec<String> = match &spec.method {
            Method::Kernel | Method::Damon => Vec::new(),
            Method::Bind(nodes) => {
                let nodes: Vec<String> = nodes.iter().map(u16::to_string).collect();
                vec!["numactl".to_owned(), format!("--membind={}", nodes.join(","))]
            }
            Method::WeightedInterleave => vec!["/lab/interleave".to_owned()],
            Method::Tiercel(_) | Method::Planned { .. } => self.tiercel_words(spec)?,
        };
        words.extend(spec.command.iter().cloned());
        Ok(words)
    }

    /// Promotes memory that DAMON finds hot on slow nodes and demotes memory that it finds cold on
    /// fast ones, within the run's control group; its other settings are the kernel's defaults.
    fn damon(&self, spec: &Spec, undo: &mut Undo<'_>) -> Result<()> {
        const BASE: &str = "/sys/kernel/mm/damon/admin/kdamonds";
        let (Some(fast), Some(slow)) = (spec.fast_nodes.first(), spec.slow_nodes.first()) else {
            bail!("DAMON needs a fast node and a slow one");
        };
        ensure!(self.at(BASE).exists(), "this kernel has no DAMON in sysfs");
        undo.set(&format!("{BASE}/nr_kdamonds"), "2")?;
        // (from, to, action, fewest and most accesses in the ten samples of an aggregation)
        let both = [
            (slow, fast, "migrate_hot", "1", "4294967295"),
            (fast, slow, "migrate_cold", "0", "0"),
        ];
        for (which, (from, to, action, least, most)) in both.into_iter().enumerate() {
            let kdamond = format!("{BASE}/{which}");
            let context = format!("{kdamond}/contexts/0");
            let region = format!("{context}/targets/0/regions/0");
            let scheme = format!("{context}/schemes/0");
            let (start, end) = physical_range(&self.root, *from)?;
            let settings = [
                (format!("{kdamond}/contexts/nr_contexts"), "1".to_owned()),
                (format!("{context}/operations"), "paddr".to_owned()),
                (format!("{context}/targets/nr_targets"), "1".to_owned()),
                (format!("{context}/targets/0/regions/nr_regions"), "1".to_owned()),
                (format!("{region}/start"), start.to_string()),
                (format!("{region}/end"), end.to_string()),
                (format!("{context}/schemes/nr_schemes"), "1".to_owned()),
                (format!("{scheme}/action"), action.to_owned()),
                (format!("{scheme}/target_nid"), to.to_string()),
                (format!("{scheme}/access_pattern/sz/min"), "4096".to_owned()),
                (format!("{scheme}/access_pattern/sz/max"), u64::MAX.to_string()),
                (format!("{scheme}/access_pattern/nr_accesses/min"), least.to_owned()),
                (format!("{scheme}/access_pattern/nr_accesses/max"), most.to_owned()),
                (format!("{scheme}/access_pattern/age/max"), u32::MAX.to_string()),
                (format!("{scheme}/filters/nr_filters"), "1".to_owned()),
                (format!("{scheme}/filters/0/type"), "memcg".to_owned()),
                (format!("{scheme}/filters/0/memcg_path"), "/lab-run".to_owned()),
                (format!("{scheme}/filters/0/matching"), "N".to_owned()),
            ];
            for (path, text) in settings {
                self.write(&path, &text)
                    .with_context(|| format!("DAMON: cannot set {path} to {text}"))?;
            }
            undo.settings.push((format!("{kdamond}/state"), "off".to_owned()));
            self.write(&format!("{kdamond}/state"), "on").context("DAMON does not start")?;
        }
        Ok(())
    }

    /// Kills the processes in the group, and removes the group.
    fn kill(&self) -> Result<()> {
        if !self.group.exists() {
            return Ok(());
        }
        let _ = fs::write(self.group.join("cgroup.kill"), "1");
        let began = Instant::now();
        let procs = self.group.join("cgroup.procs");
        // The kernel changes cgroup.events when the group becomes empty.
        while self.root == Path::new("/")
            && fs::read_to_string(&procs).is_ok_and(|text| !text.trim().is_empty())
        {
            ensure!(began.elapsed() < KILL_LIMIT, "the run's processes do not die");
            let events = File::open(self.group.join("cgroup.events"));
            let events = events.context("cannot watch the run's group")?;
            let step = Timespec::try_from(OBSERVATION_INTERVAL).expect("a short time");
            let _ = poll(&mut [PollFd::new(&events, PollFlags::PRI)], Some(&step));
        }
        // In tests the group is a plain directory and keeps its files.
        let _ = fs::remove_dir(&self.group);
        Ok(())
    }

    /// Switches detailed timing on or off; does nothing in guests that are not timed.
    pub(super) fn mark(&self, which: &str) {
        let _ = Command::new(self.at(&format!("/lab/{which}"))).status();
    }

    /// Settings that some kernels lack.
    fn write_all(&self, settings: &[(&str, &str)]) {
        for (path, text) in settings {
            let _ = self.write(path, text);
        }
    }

    fn write(&self, path: &str, text: &str) -> std::io::Result<()> {
        // Never creates the file: a missing file is a setting that this kernel does not have.
        File::options().write(true).open(self.at(path))?.write_all(text.as_bytes())
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The program's output, for failures.
    pub(super) fn shown(&self) -> String {
        let read = |name: &str| fs::read(self.scratch.join(name)).unwrap_or_default();
        let bytes = [read("out"), read("err")].concat();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
        last.iter().map(|line| format!("\n    | {line}")).collect()
    }
}

/// Restores settings in reverse order.
struct Undo<'a> {
    agent: &'a Agent,
    settings: Vec<(String, String)>,
}

impl Undo<'_> {
    fn set(&mut self, path: &str, text: &str) -> Result<()> {
        let old = fs::read_to_string(self.agent.at(path))?;
        self.agent.write(path, text)?;
        // `always [madvise] never`: the kernel brackets the current value.
        let chosen = old.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
        let old = chosen.map_or(old.trim(), |(word, _)| word).to_owned();
        self.settings.push((path.to_owned(), old));
        Ok(())
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        for (path, text) in self.settings.iter().rev() {
            // A setting that cannot be restored was never set.
            let _ = self.agent.write(path, text);
        }
    }
}

fn send(out: &mut dyn Write, event: &Event) -> Result<()> {
    let line = serde_json::to_string(event).expect("plain data serialises");
    writeln!(out, "{line}").and_then(|()| out.flush()).context("cannot report to the host")
}

fn last_line(path: &Path) -> Result<String> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let lines = BufReader::new(file).split(b'\n').map_while(|line| line.ok());
    let last = lines.filter(|line| !line.is_empty()).last().unwrap_or_default();
    Ok(String::from_utf8_lossy(&last).into_owned())
}

/// From a workload's last line (`workloads/workload.h`): JSON with `region_ns`, or
/// `NAME: right, N accesses, X ns each`.
fn reported_ns(line: &str) -> Option<u64> {
    if let Ok(value) = serde_json::from_str::<serde_json::Value>(line) {
        let right = value["right"].as_bool()?;
        return value["region_ns"].as_u64().filter(|ns| right && *ns > 0);
    }
    let (_, figures) = line.split_once(": right, ")?;
    let (count, rest) = figures.split_once(' ')?;
    let (each, _) = rest.split_once(", ")?.1.split_once(" ns each")?;
    let ns = count.parse::<u64>().ok()? as f64 * each.parse::<f64>().ok()?;
    (ns >= 1.0).then_some(number::saturating_u64(ns.round()))
}

/// Contradictions between what was requested and what was measured.
fn warnings(spec: &Spec, measured: &Measured) -> Vec<String> {
    let Resident { observations, fast_bytes, slow_bytes, fast_bytes_max, .. } = measured.resident;
    let mut warnings = Vec::new();
    let all = fast_bytes + slow_bytes;
    if all == 0 {
        return vec![format!("its memory was not seen in {observations} observations")];
    }
    let fast_share = fast_bytes as f64 / all as f64;
    if let Method::Bind(nodes) = &spec.method {
        let bound = if *nodes == spec.fast_nodes { fast_share } else { 1.0 - fast_share };
        if bound < BOUND_SHARE {
            warnings.push(format!("only {:.1}% of it was where it was bound", 100.0 * bound));
        }
    }
    if let Some(limit) = spec.fast_bytes
        && fast_bytes_max > limit + FAST_SLACK_BYTES
    {
        let (had, limit) = (fast_bytes_max >> 10, limit >> 10);
        warnings.push(format!("the run held {had} KiB of fast memory, its limit was {limit} KiB"));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest's file system with a cgroup that is a plain directory.
    fn guest() -> (tempfile::TempDir, Agent) {
        let dir = tempfile::tempdir().expect("a directory");
        let group = dir.path().join("sys/fs/cgroup/lab-run");
        fs::create_dir_all(&group).expect("made");
        fs::create_dir_all(dir.path().join("tmp")).expect("made");
        fs::create_dir_all(dir.path().join("proc/sys/kernel")).expect("made");
        fs::write(group.join("memory.numa_stat"), "anon N0=300 N1=100\n").expect("written");
        fs::write(group.join("memory.peak"), "4096\n").expect("written");
        fs::write(dir.path().join("proc/sys/kernel/numa_balancing"), "0\n").expect("written");
        let agent = Agent::new(dir.path());
        (dir, agent)
    }

    fn spec(script: &str) -> Spec {
        Spec {
            key: "k".to_owned(),
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
            method: Method::Kernel,
            fast_nodes: vec![0],
            slow_nodes: vec![1],
            fast_bytes: None,
            huge: Huge::Never,
            knobs: Vec::new(),
            metric: Metric::Reported,
            run: Vec::new(),
            learned: 0,
        }
    }

    fn serve(agent: &Agent, specs: &[Spec]) -> Vec<Event> {
        let mut out = Vec::new();
        agent.serve(specs, &mut out).expect("the agent works");
        let text = String::from_utf8(out).expect("text");
        text.lines().map(|line| serde_json::from_str(line).expect("an event")).collect()
    }

    #[test]
    fn a_run_is_measured() {
        let (_dir, agent) = guest();
        let script = "echo begins; echo 'x: right, 1000 accesses, 2.50 ns each'";
        let events = serve(&agent, &[spec(script)]);
        assert_eq!(events[0], Event::Begin("k".to_owned()));
        let Event::Done(measured) = &events[1] else { panic!("{events:?}") };
        assert_eq!((measured.time_ns, measured.peak_bytes), (2500, 4096));
        assert!(measured.wall_ns > 0);
        assert_eq!((measured.resident.fast_bytes, measured.resident.slow_bytes), (300, 100));
        assert!(measured.warnings.is_empty(), "{:?}", measured.warnings);
    }

    #[test]
    fn a_failed_run_reports_the_reason_and_the_next_run_follows() {
        let (_dir, agent) = guest();
        let wrong = "echo 'x: WRONG, 1 accesses, 1 ns each'; echo oops >&2; exit 1";
        let silent = "echo hello";
        let mut wall = spec("true");
        wall.metric = Metric::Wall;
        let events = serve(&agent, &[spec(wrong), spec(silent), wall]);
        let Event::Failed(why) = &events[1] else { panic!("{events:?}") };
        assert!(why.contains("exit status: 1") && why.contains("| oops"), "{why}");
        let Event::Failed(why) = &events[3] else { panic!("{events:?}") };
        assert!(why.contains("reported no time") && why.contains("hello"), "{why}");
        assert!(matches!(events[5], Event::Done(_)), "{events:?}");
    }

    #[test]
    fn runs_to_learn_from_come_before_the_measured_one() {
        let (dir, agent) = guest();
        let runs = dir.path().join("runs");
        let script = format!(
            "echo $XDG_DATA_HOME >> {0}; wc -l < {0}; echo 'x: right, 1 accesses, 9 ns each'",
            runs.display()
        );
        let events = serve(&agent, &[Spec { learned: 2, ..spec(&script) }]);
        assert!(matches!(&events[1], Event::Done(measured) if measured.time_ns == 9), "{events:?}");
        let folders = fs::read_to_string(&runs).expect("it ran");
        let own = agent.scratch.join("data").display().to_string();
        assert_eq!(folders.lines().collect::<Vec<_>>(), [own.as_str(); 3]);
        let failing = Spec { learned: 1, ..spec("exit 3") };
        let events = serve(&agent, &[failing]);
        let Event::Failed(why) = &events[1] else { panic!("{events:?}") };
        assert!(why.contains("a run to learn from ended with exit status: 3"), "{why}");
    }

    #[test]
    fn settings_are_restored_and_missing_ones_fail_the_run() {
        let (dir, agent) = guest();
        let balancing = dir.path().join("proc/sys/kernel/numa_balancing");
        let mut one = spec("cat ../../../proc/sys/kernel/numa_balancing; exit 3");
        one.command[2] = format!("cat {}; exit 3", balancing.display());
        one.knobs = vec![("/proc/sys/kernel/numa_balancing".to_owned(), "2".to_owned())];
        let events = serve(&agent, &[one.clone()]);
        let Event::Failed(why) = &events[1] else { panic!("{events:?}") };
        assert!(why.contains("| 2"), "{why}");
        assert_eq!(fs::read_to_string(&balancing).expect("there").trim_end(), "0");
        one.knobs = vec![("/sys/kernel/mm/no_such_setting".to_owned(), "1".to_owned())];
        let events = serve(&agent, &[one]);
        let Event::Failed(why) = &events[1] else { panic!("{events:?}") };
        assert!(why.contains("cannot set /sys/kernel/mm/no_such_setting"), "{why}");
    }

    #[test]
    fn memory_in_the_wrong_place_is_a_warning() {
        let measured = Measured {
            resident: Resident {
                observations: 3,
                fast_bytes: 75,
                slow_bytes: 25,
                fast_bytes_max: 5 << 20,
                ..Resident::default()
            },
            ..Measured::default()
        };
        let mut spec = spec("true");
        spec.method = Method::Bind(vec![0]);
        assert_eq!(warnings(&spec, &measured), ["only 75.0% of it was where it was bound"]);
        spec.method = Method::Bind(vec![1]);
        assert_eq!(warnings(&spec, &measured), ["only 25.0% of it was where it was bound"]);
        spec.method = Method::Kernel;
        spec.fast_bytes = Some(1 << 20);
        assert!(warnings(&spec, &measured)[0].contains("held 5120 KiB"));
        assert_eq!(
            warnings(&spec, &Measured::default()),
            ["its memory was not seen in 0 observations"]
        );
    }

    #[test]
    fn reported_times_are_read_from_right_results_only() {
        assert_eq!(reported_ns("hotcold: right, 1000 accesses, 2.50 ns each"), Some(2500));
        assert_eq!(reported_ns("hotcold: WRONG, 1000 accesses, 2.50 ns each"), None);
        assert_eq!(reported_ns("hotcold: right, 0 accesses, 0.00 ns each"), None);
        assert_eq!(reported_ns("kv: right, 10 gets and puts, 5.00 ns each, 1 M/s"), Some(50));
        assert_eq!(reported_ns("hello"), None);
        let json = r#"{"workload":"kv","right":true,"operations":3,"region_ns":70}"#;
        assert_eq!(reported_ns(json), Some(70));
        assert_eq!(reported_ns(&json.replace("true", "false")), None);
    }
}
