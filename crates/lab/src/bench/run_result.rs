//! The specification of a run, which goes into the guest, and its measurements, which come out. In:
//! nothing. Out: [`Spec`], [`Event`], [`Measured`], [`RunResult`], plain data. Knows nothing of who
//! fills or reads them. The guest writes JSON lines: one [`Event`] per line.

use std::collections::BTreeMap;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::bound::Best;
use super::experiment::{Half, Huge, Metric};
use super::share::Share;
use crate::timing::Times;

/// The specification of one run for the guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// Key of the run.
    pub key: String,
    /// Program and arguments, in the guest.
    pub command: Vec<String>,
    /// What decides where memory is.
    pub method: Method,
    /// The guest's nodes of the best tier.
    pub fast_nodes: Vec<u16>,
    /// All other nodes with memory.
    pub slow_nodes: Vec<u16>,
    /// Bytes of fast memory left to the program; `None`: all of it.
    pub fast_bytes: Option<u64>,
    /// Whether the kernel may use huge OS pages.
    pub huge: Huge,
    /// Kernel settings in order: path, text. The previous values are restored.
    pub knobs: Vec<(String, String)>,
    /// What counts as the run's time.
    pub metric: Metric,
    /// Further arguments of `tiercel run`.
    pub run: Vec<String>,
    /// Runs before the measured one from which Tiercel learns.
    #[serde(default)]
    pub learned: u32,
}

/// What decides where memory is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// The kernel alone, with the run's knobs.
    Kernel,
    /// All memory strictly from these nodes.
    Bind(Vec<u16>),
    /// All nodes in turn, with the weights in the knobs.
    WeightedInterleave,
    /// The kernel's DAMON.
    Damon,
    /// `tiercel run` with this configuration, TOML, to which the budget is appended.
    Tiercel(String),
    /// The same with a plan, which is made from a recorded run with these arguments of `tiercel
    /// plan`.
    Planned {
        /// Configuration of the run, TOML.
        config: String,
        /// Configuration of the recording, the same for all plans of an experiment: a run may
        /// sample less to save time.
        recorded: String,
        /// Words.
        plan: Vec<String>,
    },
}

impl Method {
    /// Tiercel's configuration; `None` without Tiercel.
    pub fn config(&self) -> Option<&str> {
        match self {
            Method::Tiercel(config) | Method::Planned { config, .. } => Some(config),
            _ => None,
        }
    }
}

/// What the guest reports, one line each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// The run begins.
    Begin(String),
    /// It ended, and was measured.
    Done(Box<Measured>),
    /// It failed or is invalid; the reason.
    Failed(String),
}

/// Measurements of one run from inside the guest. Times are the guest's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The time by the workload's metric, nanoseconds.
    pub time_ns: u64,
    /// From the program's start to its end, nanoseconds.
    pub wall_ns: u64,
    /// Most memory that its control group was charged with, bytes.
    pub peak_bytes: u64,
    /// Free fast memory at its start, bytes; 0 without a limit.
    pub free_bytes: u64,
    /// Residency of its memory.
    pub resident: Resident,
    /// The kernel's counters while it ran.
    pub moved: Moved,
    /// How long its first thread waited for its CPU and for memory; `None`: the kernel did not
    /// count it.
    #[serde(default)]
    pub waits: Option<Waits>,
    /// The summary of `tiercel run`; `null` for baselines.
    #[serde(default)]
    pub tiercel: serde_json::Value,
    /// The last line it printed.
    pub last_line: String,
    /// Remarks on anything unusual about the run.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Of runs with all fast or all slow memory, how little fast memory could serve how much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
}

/// Memory of the control group's programs by node, as the kernel accounts for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Resident {
    /// How often residency was observed.
    pub observations: u64,
    /// Share of it on fast nodes, 0 to 1: the mean over the observations that found any memory.
    pub fast_share: f64,
    /// Most bytes on fast nodes at one observation.
    pub fast_bytes_max: u64,
    /// Bytes on fast nodes at the last observation that found most of the memory.
    pub fast_bytes: u64,
    /// Bytes on other nodes at the same observation.
    pub slow_bytes: u64,
    /// Bytes on each node at the same observation.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_bytes: BTreeMap<u16, u64>,
}

/// Differences of `/proc/vmstat`; counts of OS pages in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Migrated between nodes, by the kernel or by Tiercel.
    pub migrated_bytes: u64,
    /// Could not be migrated.
    pub failed_bytes: u64,
    /// Promoted by the kernel's tiering.
    pub promoted_bytes: u64,
    /// Demoted by reclaim.
    pub demoted_bytes: u64,
    /// Hint faults.
    pub hint_faults: u64,
}

/// How long a thread waited, by the kernel's account, nanoseconds: in total, and the longest single
/// wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// For its CPU, while other threads ran on it.
    pub for_cpu_ns: u64,
    /// The longest of these waits, or a bound of it.
    pub for_cpu_ns_max: u64,
    /// For memory, locks and other processes; sleeping counts here as well.
    pub for_memory_ns: u64,
    /// The longest of these waits, or a bound of it.
    pub for_memory_ns_max: u64,
}

/// One finished run: a line of the results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// Hash of everything that determines the run.
    pub key: String,
    /// Which run.
    pub cell: Cell,
    /// Whether its times are modelled.
    pub timed: bool,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// The run's limit of fast memory, bytes; `None`: no limit.
    pub fast_bytes: Option<u64>,
    /// What was measured.
    pub measured: Measured,
    /// Seconds on the host from its beginning to its end.
    pub host_s: f64,
}

/// A run's place in the experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The machine.
    pub machine: String,
    /// The workload.
    pub workload: String,
    /// Its half.
    pub half: Half,
    /// The policy.
    pub policy: String,
    /// Fast memory as a share of the workload's peak; `None`: no limit.
    pub share: Option<Share>,
    /// Repeat, from 0.
    pub repeat: u32,
}

/// A run that failed at every attempt: a line of the results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// Hash of everything that determines the run.
    pub key: String,
    /// Which run.
    pub cell: Cell,
    /// Number of attempts.
    pub attempts: u32,
    /// Why the last attempt failed, with the console's last lines if the guest died.
    pub why: String,
}

impl Event {
    /// The same, with the time of the run's regions of interest from the plugin's statistics.
    pub(crate) fn timed_by_marks(self, stats: Option<&str>) -> Event {
        let Event::Done(mut measured) = self else { return self };
        let known = stats.context("regions of interest have a time only in timed guests");
        match known.and_then(Times::parse).and_then(|times| times.regions_ns()) {
            Ok(time_ns) => {
                measured.time_ns = time_ns;
                Event::Done(measured)
            }
            Err(error) => Event::Failed(format!("{error:#}")),
        }
    }
}

/// Gives runs what the timing plugin counted of each, by the metric of each. The last windows are
/// those of the runs; a run that failed may have none, and then it is not known which is whose.
pub(crate) fn count_by_plugin(done: &mut [&mut Measured], metrics: &[Metric], stats: &str) {
    let Ok(times) = Times::parse(stats) else { return };
    let first = times.windows.len().checked_sub(metrics.len());
    let Some(first) = first.filter(|_| done.len() == metrics.len()) else { return };
    for ((measured, metric), window) in done.iter_mut().zip(metrics).zip(&times.windows[first..]) {
        let span = match metric {
            Metric::Wall => Some(&window.whole),
            Metric::Reported | Metric::Regions => window.regions.as_ref(),
        };
        measured.best = span.and_then(Best::of);
    }
}

impl Cell {
    /// `workload/policy/25%`, with the repeat unless it is the first.
    pub fn label(&self) -> String {
        let share = self.share.map_or(String::new(), |share| format!("/{share}"));
        let repeat = if self.repeat > 0 { format!("#{}", self.repeat + 1) } else { String::new() };
        format!("{}/{}{share}{repeat}", self.workload, self.policy)
    }
}

impl Measured {
    /// A figure of Tiercel's summary, by path; `None` for baselines.
    pub fn figure(&self, path: &[&str]) -> Option<f64> {
        let mut value = &self.tiercel;
        for key in path {
            value = value.get(key)?;
        }
        value.as_f64()
    }

    /// Bytes that Tiercel moved, by its own account: the kernel does not count what programs move.
    pub fn bytes_moved_by_us(&self) -> u64 {
        let objects = self.tiercel["moves"]["moved_bytes"].as_object();
        let objects = objects.into_iter().flatten().map(|(_, bytes)| bytes);
        let pages = ["promoted_bytes", "demoted_bytes"].map(|key| &self.tiercel["pages"][key]);
        objects.chain(pages).filter_map(serde_json::Value::as_u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_get_the_last_windows_by_their_metric() {
        let span = |stalled: u64| {
            serde_json::json!({"elapsed_ns": 1, "busy_ps": 10, "stalled_ps": stalled,
                "best": {"misses": 1, "bytes": [7], "shares": [0.5]}})
        };
        let window = |stalled: u64, regions: Option<u64>| {
            let regions = regions.map(span);
            serde_json::json!({"whole": span(stalled), "regions": regions})
        };
        let windows = [window(9, None), window(1, Some(2)), window(3, Some(4)), window(5, None)];
        let stats = serde_json::json!({"elapsed_ns": 9, "regions": [], "regions_left_out": 0,
            "windows": windows});
        let waits = |count: usize, metrics: &[Metric]| -> Vec<Option<f64>> {
            let mut runs = vec![Measured::default(); count];
            let mut done: Vec<&mut Measured> = runs.iter_mut().collect();
            count_by_plugin(&mut done, metrics, &stats.to_string());
            runs.into_iter().map(|run| run.best.map(|best| best.waits)).collect()
        };
        let metrics = [Metric::Wall, Metric::Reported, Metric::Regions];
        assert_eq!(waits(3, &metrics), [Some(0.1), Some(0.4), None]);
        assert_eq!(waits(2, &metrics), [None, None], "one of them failed");
    }

    #[test]
    fn what_tiercel_moved_is_objects_or_os_pages() {
        let of = |tiercel| Measured { tiercel, ..Measured::default() }.bytes_moved_by_us();
        let objects = serde_json::json!({"promote": 3, "demote": 4});
        assert_eq!(of(serde_json::json!({"moves": {"moved_bytes": objects}})), 7);
        let pages = serde_json::json!({"promoted_bytes": 5, "demoted_bytes": 6});
        assert_eq!(of(serde_json::json!({"pages": pages})), 11);
        assert_eq!(of(serde_json::Value::Null), 0);
    }

    #[test]
    fn a_run_timed_by_its_marks_needs_marks() {
        let done =
            || Event::Done(Box::new(Measured { time_ns: 9, wall_ns: 9, ..Measured::default() }));
        let stats = r#"{"elapsed_ns":9,"regions":[{"elapsed_ns":4}],"regions_left_out":0}"#;
        let Event::Done(measured) = done().timed_by_marks(Some(stats)) else { panic!("no time") };
        assert_eq!((measured.time_ns, measured.wall_ns), (4, 9));
        let none = r#"{"elapsed_ns":9,"regions":[],"regions_left_out":0}"#;
        let cases = [(Some(none), "marked no region"), (None, "only in timed guests")];
        for (stats, last_line) in cases {
            let Event::Failed(why) = done().timed_by_marks(stats) else { panic!("a time") };
            assert!(why.contains(last_line), "{why}");
        }
        let begin = Event::Begin("k".to_owned());
        assert_eq!(begin.clone().timed_by_marks(None), begin);
    }
}
