//! The experiment file: which policies are compared, on which machines. In: TOML. Out: a checked
//! [`Experiment`]. Reads no file itself. Knows nothing of guests, or of what a policy's
//! configuration means.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::share::Share;

/// Longest experiment file, bytes.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// Most policies after the grids are expanded.
const POLICIES_MAX: usize = 256;

/// Most runs from which a policy learns: of earlier ones a millionth is left.
const LEARNED_MAX: u32 = 20;

/// Routines of a policy that a grid may vary.
const GRID_KEYS: [&str; 5] = ["aggregate", "prioritise", "trigger", "enforce", "gate"];

/// Arguments of `tiercel plan` and `tiercel run` that an experiment may not set.
const PLAN_OWN: [&str; 3] = ["--fast", "-o", "--output"];
const RUN_OWN: [&str; 8] =
    ["--config", "--fast", "--json", "--no-learn", "-o", "--output", "--plan", "--sampler"];

/// Which policies are compared, on which machines. Unknown keys are refused with line and column.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Name of its folder of results.
    pub name: String,
    /// Its purpose, for readers.
    #[serde(default)]
    pub what: String,
    /// Names in `lab/machines`, built-in names, or paths.
    pub machines: Vec<String>,
    /// By machine, the only nodes of it that are used, as if there were no others: one socket, for
    /// example.
    #[serde(default)]
    pub nodes: BTreeMap<String, Vec<u16>>,
    /// Memory of the guest, divided among the nodes as on the machine; bytes, or `"3 GiB"`.
    #[serde(default = "memory", with = "tiercel_machine::bytes")]
    pub memory: u64,
    /// Virtual CPUs.
    #[serde(default = "one")]
    pub vcpus: u32,
    /// Whether every access is timed as on the machine.
    #[serde(default = "yes")]
    pub timed: bool,
    /// Whether the modelled CPUs prefetch streams.
    #[serde(default)]
    pub prefetch: bool,
    /// Whether the guest's CPUs have only their share of the machine's bandwidths, as if its other
    /// CPUs had the same load.
    #[serde(default)]
    pub share: bool,
    /// Whether only the workloads' regions of interest are timed in detail; set-up then takes time
    /// for instructions, but none for memory.
    #[serde(default)]
    pub regions_only: bool,
    /// Number of repeats of each run.
    #[serde(default = "one")]
    pub repeats: u32,
    /// Fast memory, as shares of each workload's peak.
    pub capacities: Vec<Share>,
    /// Whether the kernel may use huge OS pages.
    #[serde(default)]
    pub huge: Huge,
    /// Seconds on the host after which a run counts as hung.
    #[serde(default = "limit_s")]
    pub limit_s: u64,
    /// Most runs that share one boot.
    #[serde(default = "boot_runs")]
    pub boot_runs: usize,
    /// Configuration that all policies of Tiercel begin with, as in `tiercel run --config`.
    #[serde(default)]
    pub config: Table,
    /// The programs that run.
    #[serde(rename = "workload")]
    pub workloads: Vec<Workload>,
    /// The policies that place memory.
    #[serde(rename = "policy")]
    pub policies: Vec<Policy>,
}

/// One program with its arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// For people, and unique.
    pub name: String,
    /// Program and arguments. A program without `/` is one of the workloads, or found in `PATH`.
    pub command: Command,
    /// Its half.
    #[serde(default)]
    pub half: Half,
    /// What is measured as its time.
    #[serde(default)]
    pub metric: Metric,
}

/// A command line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Command {
    /// Split at blanks.
    Line(String),
    /// Word by word.
    Words(Vec<String>),
}

/// Policies are tuned on one half of the workloads; the other is held out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Half {
    /// Observed while policies were developed.
    #[default]
    Tuning,
    /// Not observed.
    Report,
}

/// What is measured as a run's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// The region of interest, from the last line that a workload prints (`workloads/workload.h`).
    #[default]
    Reported,
    /// From the program's start to its end, by the guest's clock.
    Wall,
    /// The regions of interest that the program marks (`workloads/roi.h`), as the timing plugin
    /// measures them. Such a run has a boot of its own.
    Regions,
}

/// Whether the kernel may use huge OS pages, as in `transparent_hugepage/enabled`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Huge {
    /// Wherever they fit.
    Always,
    /// Where the program requests them.
    Madvise,
    /// Nowhere. With a hundredth of the papers' footprints, a huge OS page would be a hundred times
    /// too large for its object.
    #[default]
    Never,
}

/// A policy as the file has it: a baseline, a configuration of Tiercel, or a grid of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// For people, and unique.
    pub name: String,
    /// A policy other than Tiercel's.
    #[serde(default)]
    pub baseline: Option<Baseline>,
    /// Kernel settings that a baseline needs besides its own: path below `/` to text.
    #[serde(default)]
    pub knobs: BTreeMap<String, String>,
    /// Tiercel's configuration, on top of the experiment's.
    #[serde(default)]
    pub config: Table,
    /// The program is recorded first; the run then follows a plan that is made with these arguments
    /// of `tiercel plan`.
    #[serde(default)]
    pub plan: Option<Vec<String>>,
    /// Further arguments of `tiercel run`.
    #[serde(default)]
    pub run: Vec<String>,
    /// Runs before the measured one, with the same memory, from which Tiercel learns; 0: it neither
    /// learns nor begins with anything.
    #[serde(default)]
    pub learned: u32,
    /// Routines to vary; every combination becomes a policy of its own.
    #[serde(default)]
    pub grid: BTreeMap<String, Vec<Value>>,
}

/// Policies to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Baseline {
    /// Fast memory until it is full, then slow memory.
    FirstTouch,
    /// Everything in fast memory, whatever the capacity.
    AllFast,
    /// Everything in slow memory.
    AllSlow,
    /// The kernel's: `numa_balancing=2` and demotion.
    KernelTiering,
    /// `MPOL_WEIGHTED_INTERLEAVE` with weights by read bandwidth.
    WeightedInterleave,
    /// With equal weights.
    Interleave,
    /// The kernel's DAMON with migrate_hot and migrate_cold.
    Damon,
}

/// One policy, with grids expanded.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// For people, and unique.
    pub name: String,
    /// `None`: Tiercel.
    pub baseline: Option<Baseline>,
    /// Kernel settings.
    pub knobs: BTreeMap<String, String>,
    /// Tiercel's configuration.
    pub config: Table,
    /// Arguments of `tiercel plan`; `None`: nothing is planned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<Vec<String>>,
    /// Further arguments of `tiercel run`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub run: Vec<String>,
    /// Runs before the measured one from which Tiercel learns.
    #[serde(skip_serializing_if = "is_zero")]
    pub learned: u32,
}

impl Command {
    /// Its words.
    pub fn words(&self) -> Vec<String> {
        match self {
            Command::Line(line) => line.split_whitespace().map(str::to_owned).collect(),
            Command::Words(words) => words.clone(),
        }
    }
}

impl Baseline {
    /// Whether it uses fast memory without a limit.
    pub fn ignores_capacity(self) -> bool {
        matches!(self, Baseline::AllFast | Baseline::AllSlow)
    }
}

impl Experiment {
    /// Reads a file's text. `check` judges a policy's configuration, TOML.
    pub fn parse(text: &str, check: &dyn Fn(&str) -> Result<()>) -> Result<Experiment> {
        ensure!(text.len() <= TEXT_BYTES_MAX, "longer than {TEXT_BYTES_MAX} bytes");
        let experiment: Experiment = toml::from_str(text)?;
        experiment.check(check)?;
        Ok(experiment)
    }

    /// All policies, with grids expanded, all-fast first: it measures each workload's peak.
    pub fn choices(&self) -> Result<Vec<Choice>> {
        let mut choices = Vec::new();
        let common = self.common();
        for policy in &self.policies {
            choices.extend(policy.unfold(&common)?);
            ensure!(choices.len() <= POLICIES_MAX, "more than {POLICIES_MAX} policies");
        }
        let all_fast = |choice: &Choice| choice.baseline == Some(Baseline::AllFast);
        let first = match choices.iter().position(all_fast) {
            Some(at) => choices.remove(at),
            None => Choice::plain("all-fast", Baseline::AllFast),
        };
        choices.insert(0, first);
        Ok(choices)
    }

    /// The configuration that all policies of Tiercel start from, and that recordings for plans
    /// use. Timed runs are sampled by the emulator unless the experiment names a sampler: a guest
    /// without the emulator fails, rather than silently using another sampler.
    pub fn common(&self) -> Table {
        let mut common = self.config.clone();
        if self.timed {
            common.entry("sampler").or_insert_with(|| "emulator".into());
        }
        common
    }

    /// Refuses what cannot work; `check` judges a policy's configuration, TOML.
    pub fn check(&self, check: &dyn Fn(&str) -> Result<()>) -> Result<()> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let named = !self.name.is_empty() && self.name.chars().all(plain);
        ensure!(named, "name {:?}: letters, digits, `-`, `_` and `.` only", self.name);
        ensure!(!self.machines.is_empty(), "machines: name one at least");
        for name in self.nodes.keys() {
            ensure!(self.machines.contains(name), "nodes: {name:?} is none of the machines");
        }
        ensure!(!self.capacities.is_empty(), "capacities: name one at least, as \"25%\"");
        ensure!((1..=64).contains(&self.vcpus), "vcpus = {}: from 1 to 64", self.vcpus);
        ensure!((1..=100).contains(&self.repeats), "repeats = {}: from 1 to 100", self.repeats);
        ensure!(self.boot_runs >= 1, "boot_runs must be at least 1");
        ensure!(self.limit_s >= 1, "limit_s must be at least 1");
        unique("workload", self.workloads.iter().map(|workload| &workload.name))?;
        for workload in &self.workloads {
            let name = &workload.name;
            ensure!(!workload.command.words().is_empty(), "workload {name:?}: no command");
        }
        let choices = self.choices()?;
        unique("policy", choices.iter().map(|choice| &choice.name))?;
        for choice in choices.iter().filter(|choice| choice.baseline.is_none()) {
            check(&choice.config_text()).with_context(|| format!("policy {:?}", choice.name))?;
        }
        Ok(())
    }
}

fn is_zero(runs: &u32) -> bool {
    *runs == 0
}

impl Choice {
    /// A baseline without settings of its own.
    pub fn plain(name: &str, baseline: Baseline) -> Choice {
        Choice {
            name: name.to_owned(),
            baseline: Some(baseline),
            knobs: BTreeMap::new(),
            config: Table::new(),
            plan: None,
            run: Vec::new(),
            learned: 0,
        }
    }

    /// The configuration file for Tiercel.
    pub fn config_text(&self) -> String {
        toml::to_string(&self.config).expect("a table from TOML is TOML")
    }
}

impl Policy {
    /// A baseline, or Tiercel with its defaults.
    pub fn new(name: &str, baseline: Option<Baseline>) -> Policy {
        let (knobs, config, grid) = (BTreeMap::new(), Table::new(), BTreeMap::new());
        let (name, run, learned) = (name.to_owned(), Vec::new(), 0);
        Policy { name, baseline, knobs, config, plan: None, run, learned, grid }
    }

    fn unfold(&self, common: &Table) -> Result<Vec<Choice>> {
        let Policy { name, baseline, knobs, config, plan, run, learned, grid } = self;
        if baseline.is_some() {
            ensure!(
                config.is_empty() && grid.is_empty() && plan.is_none() && run.is_empty(),
                "policy {name:?}: a baseline takes knobs, but no config, plan, run or grid"
            );
        }
        ensure!(
            *learned == 0 || baseline.is_none() && plan.is_none(),
            "policy {name:?}: neither a baseline nor a plan is learned from"
        );
        ensure!(
            *learned <= LEARNED_MAX,
            "policy {name:?}: learned = {learned}: at most {LEARNED_MAX}"
        );
        let planned = plan.iter().flatten().map(|word| ("plan", &PLAN_OWN[..], word));
        let words = planned.chain(run.iter().map(|word| ("run", &RUN_OWN[..], word)));
        for (key, owns, word) in words {
            ensure!(
                !owns.iter().any(|own| word.starts_with(own)),
                "policy {name:?}: {key} has {word:?}, which the bench gives by itself"
            );
        }
        for path in knobs.keys() {
            let inside = path.starts_with("/proc/sys/") || path.starts_with("/sys/");
            ensure!(
                inside && !path.contains(".."),
                "policy {name:?}: knob {path:?} is not below /sys or /proc/sys"
            );
        }
        let mut merged = if baseline.is_some() { Table::new() } else { common.clone() };
        merge(&mut merged, config);
        let mut choices = vec![Choice {
            name: name.clone(),
            baseline: *baseline,
            knobs: knobs.clone(),
            config: merged,
            plan: plan.clone(),
            run: run.clone(),
            learned: *learned,
        }];
        for (key, values) in grid {
            if !GRID_KEYS.contains(&key.as_str()) {
                bail!("policy {name:?}: grid has no {key:?}; it varies {}", GRID_KEYS.join(", "));
            }
            ensure!(!values.is_empty(), "policy {name:?}: grid.{key} is empty");
            let varied = |choice: &Choice| -> Vec<Choice> {
                values.iter().map(|value| choice.with(key, value)).collect()
            };
            choices = choices.iter().flat_map(varied).collect();
            ensure!(choices.len() <= POLICIES_MAX, "policy {name:?}: the grid is too large");
        }
        Ok(choices)
    }
}

impl Choice {
    /// The same policy with one routine set, which its name then includes.
    fn with(&self, key: &str, value: &Value) -> Choice {
        let mut choice = self.clone();
        let word = match value {
            Value::Table(table) => table.keys().next().cloned().unwrap_or_default(),
            other => other.as_str().map_or_else(|| other.to_string(), str::to_owned),
        };
        choice.name = format!("{} {word}", self.name);
        let mut policy = Table::new();
        policy.insert(key.to_owned(), value.clone());
        let mut over = Table::new();
        over.insert("policy".to_owned(), Value::Table(policy));
        merge(&mut choice.config, &over);
        choice
    }
}

/// Merges `over` into `into`. Routines are replaced as a whole: `trigger = { time = ... }` over
/// `trigger = { llcmpi = ... }` leaves one trigger, not two.
fn merge(into: &mut Table, over: &Table) {
    for (key, value) in over {
        match (into.get_mut(key), value) {
            (Some(Value::Table(below)), Value::Table(above))
                if !GRID_KEYS.contains(&key.as_str()) =>
            {
                merge(below, above);
            }
            _ => {
                into.insert(key.clone(), value.clone());
            }
        }
    }
}

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a String>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for name in names {
        ensure!(!name.is_empty(), "a {what} has no name");
        let odd = name.chars().any(|c| c.is_control() || "/\\".contains(c));
        ensure!(!odd, "{what} {name:?}: no slashes in a name");
        ensure!(seen.insert(name), "two of [[{what}]] are called {name:?}");
    }
    ensure!(!seen.is_empty(), "there is no [[{what}]]");
    Ok(())
}

fn memory() -> u64 {
    2 << 30
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

/// Fifteen minutes: the slowest workload in detail, several times over.
fn limit_s() -> u64 {
    900
}

/// A boot takes ten seconds and a run half a minute.
fn boot_runs() -> usize {
    24
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
name = "small"
machines = ["spr-cxl"]
capacities = ["12.5%", "50%"]
[config]
fast = "all"
[config.policy]
tick_ms = 50
trigger = { time = { ticks = 2 } }
[[workload]]
name = "hot"
command = "hotcold kib=64"
[[policy]]
name = "first-touch"
baseline = "first-touch"
[[policy]]
name = "mat"
grid = { prioritise = ["lru", "apb"], trigger = ["time", { allocation = { bytes = 5 } }] }
[policy.config.policy]
gate = "none"
"#;

    fn parse(text: &str) -> Result<Experiment> {
        Experiment::parse(text, &|_| Ok(()))
    }

    /// Parsing `SMALL` with `from` replaced fails with a message that contains `said`.
    fn refused(from: &str, to: &str, said: &str) {
        assert!(SMALL.contains(from), "{from}");
        let error = parse(&SMALL.replacen(from, to, 1)).expect_err(to);
        let text = format!("{error:#}");
        assert!(text.contains(said), "{text:?} does not contain {said:?}");
    }

    #[test]
    fn grids_expand_and_all_fast_comes_first() {
        let choices = parse(SMALL).expect("valid").choices().expect("unfolds");
        let names: Vec<&str> = choices.iter().map(|choice| choice.name.as_str()).collect();
        let expect = [
            "all-fast",
            "first-touch",
            "mat lru time",
            "mat lru allocation",
            "mat apb time",
            "mat apb allocation",
        ];
        assert_eq!(names, expect);
        let text = choices[3].config_text();
        let config: Table = toml::from_str(&text).expect("TOML");
        let policy = config["policy"].as_table().expect("a table");
        assert_eq!(policy["tick_ms"].as_integer(), Some(50), "{text}");
        assert_eq!(policy["gate"].as_str(), Some("none"), "{text}");
        // The common trigger is replaced, not merged.
        assert_eq!(policy["trigger"]["allocation"]["bytes"].as_integer(), Some(5), "{text}");
        assert!(policy["trigger"].get("time").is_none(), "{text}");
        assert!(choices[1].config.is_empty());
    }

    #[test]
    fn timed_runs_use_the_emulator_or_the_sampler_they_name() {
        let sampler = |from: &str, to: &str| {
            let experiment = parse(&SMALL.replacen(from, to, 1)).expect("valid");
            let choices = experiment.choices().expect("unfolds");
            choices[2].config.get("sampler").and_then(Value::as_str).map(str::to_owned)
        };
        assert_eq!(sampler("", "").as_deref(), Some("emulator"));
        assert_eq!(sampler("[config]", "[config]\nsampler = \"probe\"").as_deref(), Some("probe"));
        assert_eq!(sampler("[config]", "timed = false\n[config]"), None);
    }

    #[test]
    fn errors_name_the_place_in_the_file() {
        refused("machines =", "machine =", "line 3");
        refused("command =", "comand =", "unknown field `comand`");
        refused("\"12.5%\"", "\"12.5\"", "\"25%\"");
        refused("\"12.5%\"", "\"120%\"", "from 0.1% to 100%");
        refused("name = \"first-touch\"", "name = \"mat lru time\"", "two of [[policy]]");
        refused("baseline = \"first-touch\"", "baseline = \"best\"", "unknown variant `best`");
        refused("prioritise =", "priority =", "grid has no \"priority\"");
        refused("name = \"hot\"", "name = \"a/b\"", "no slashes");
        refused("[config]", "[nodes]\nspr = [0]\n[config]", "none of the machines");
        refused("command = \"hotcold kib=64\"", "command = \" \"", "no command");
        let knob = "baseline = \"first-touch\"\nknobs = { \"/etc/x\" = \"1\" }";
        refused("baseline = \"first-touch\"", knob, "not below /sys");
        let plan = "name = \"mat\"\nplan = [\"--fast=1GiB\"]";
        refused("name = \"mat\"", plan, "gives by itself");
        let run = "name = \"mat\"\nrun = [\"--sampler\", \"none\"]";
        refused("name = \"mat\"", run, "run has \"--sampler\"");
        let config = "baseline = \"first-touch\"\nconfig = { fast = \"all\" }";
        refused("baseline = \"first-touch\"", config, "takes knobs");
    }

    #[test]
    fn configurations_are_checked() {
        let judge = |text: &str| {
            ensure!(!text.contains("allocation"), "no such trigger");
            Ok(())
        };
        let error = Experiment::parse(SMALL, &judge).expect_err("refused");
        assert!(format!("{error:#}").contains("mat lru allocation"), "{error:#}");
    }

    #[test]
    fn shares_are_exact() {
        let share = Share::try_from("12.5%".to_owned()).expect("a share");
        assert_eq!((share.of(64 << 20), share.to_string().as_str()), (8 << 20, "12.5%"));
        assert_eq!(share.of(100_000), 12_288);
    }
}
