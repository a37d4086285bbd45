//! The runs of an experiment, and their keys. In: an [`Experiment`], hashes of its programs. Out:
//! [`Run`]s in order, each with its key. Knows nothing of guests or files.

use anyhow::{Context, Result};
use serde::Serialize;
use tiercel_machine::{Energy, Machine, NodeId, number};
use toml::{Table, Value};

use super::experiment::{Baseline, Choice, Experiment, Workload};
use super::run_result::{Cell, Method, Spec};
use super::share::Share;
use crate::topology::{GuestNode, Topology};

/// Version of the guest's agent; raised when it measures differently, so that older results are
/// repeated.
const PROTOCOL: u32 = 2;

/// The largest weight of weighted interleave; the kernel takes 1 to 255 (`weighted_interleave` in
/// sysfs). Chosen, not measured: larger ratios of bandwidth are clamped.
const WEIGHT_MAX: f64 = 16.0;

/// One run. It cannot be sized before the peak of its workload is known.
#[derive(Clone, Debug)]
pub struct Run {
    /// Hash of everything that determines the run.
    pub key: String,
    /// Its place in the experiment.
    pub cell: Cell,
    /// Index of its machine.
    pub machine: usize,
    /// The workload.
    pub workload: Workload,
    /// The policy.
    pub choice: Choice,
    /// The run whose peak its capacity refers to; `None`: it has no limit.
    pub sized_by: Option<String>,
}

/// What a run depends on besides the experiment's text, as hashes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Fingerprints {
    /// The guest: kernel and init.
    pub guest: String,
    /// The timing plugin; empty if there is none.
    pub plugin: String,
    /// The `tiercel` command and the runtime.
    pub tiercel: String,
    /// The workloads' programs, in the experiment's order.
    pub programs: Vec<String>,
}

/// A machine of the experiment, and its guest.
pub struct Target {
    /// As named in the experiment.
    pub name: String,
    /// The machine.
    pub machine: Machine,
    /// Its guest.
    pub topology: Topology,
}

#[derive(Serialize)]
struct Determines<'a> {
    protocol: u32,
    machine: &'a str,
    memory: u64,
    vcpus: u32,
    huge: String,
    model: [bool; 3],
    guest: &'a str,
    plugin: &'a str,
    tiercel: Option<&'a str>,
    program: &'a str,
    command: Vec<String>,
    metric: String,
    choice: &'a Choice,
    share: Option<Share>,
    repeat: u32,
}

/// Every run, all-fast ones first for each machine: they measure the peaks.
pub fn expand(
    experiment: &Experiment,
    targets: &[Target],
    prints: &Fingerprints,
) -> Result<Vec<Run>> {
    let choices = experiment.choices()?;
    let mut runs = Vec::new();
    for machine in 0..targets.len() {
        for repeat in 0..experiment.repeats {
            for choice in &choices {
                for workload in 0..experiment.workloads.len() {
                    for share in shares(experiment, choice) {
                        let at = At { machine, workload, repeat, share };
                        runs.push(at.run(experiment, targets, prints, choice));
                    }
                }
            }
        }
    }
    let is_first = |run: &Run| run.choice.baseline == Some(Baseline::AllFast);
    runs.sort_by_key(|run| (run.machine, !is_first(run)));
    for at in 0..runs.len() {
        if runs[at].cell.share.is_some() {
            let same = |other: &&Run| {
                is_first(other)
                    && other.machine == runs[at].machine
                    && other.workload == runs[at].workload
            };
            let peak = runs.iter().find(same).context("a workload has no all-fast run")?;
            runs[at].sized_by = Some(peak.key.clone());
        }
    }
    Ok(runs)
}

fn shares(experiment: &Experiment, choice: &Choice) -> Vec<Option<Share>> {
    if choice.baseline.is_some_and(Baseline::ignores_capacity) {
        return vec![None];
    }
    experiment.capacities.iter().copied().map(Some).collect()
}

struct At {
    machine: usize,
    workload: usize,
    repeat: u32,
    share: Option<Share>,
}

impl At {
    fn run(
        &self,
        experiment: &Experiment,
        targets: &[Target],
        prints: &Fingerprints,
        choice: &Choice,
    ) -> Run {
        let (target, workload) = (&targets[self.machine], &experiment.workloads[self.workload]);
        let determines = Determines {
            protocol: PROTOCOL,
            machine: &target.machine.to_toml(),
            memory: experiment.memory,
            vcpus: experiment.vcpus,
            huge: format!("{:?}", experiment.huge),
            model: [experiment.prefetch, experiment.share, experiment.regions_only],
            guest: &prints.guest,
            plugin: &prints.plugin,
            tiercel: choice.baseline.is_none().then_some(prints.tiercel.as_str()),
            program: &prints.programs[self.workload],
            command: workload.command.words(),
            metric: format!("{:?}", workload.metric),
            choice,
            share: self.share,
            repeat: self.repeat,
        };
        let text = serde_json::to_string(&determines).expect("plain data serialises");
        let cell = Cell {
            machine: target.machine.name.clone(),
            workload: workload.name.clone(),
            half: workload.half,
            policy: choice.name.clone(),
            share: self.share,
            repeat: self.repeat,
        };
        Run {
            key: fingerprint(text.as_bytes()),
            cell,
            machine: self.machine,
            workload: workload.clone(),
            choice: choice.clone(),
            sized_by: None,
        }
    }
}

/// The number of the guest's node at this index.
fn node_number(at: usize) -> u16 {
    u16::try_from(at).expect("the kernel has at most 1024 nodes")
}

/// FNV-1a, 128 bits, in hexadecimal: identifies results, and does not protect against forgery.
pub fn fingerprint(bytes: &[u8]) -> String {
    // Offset basis and prime of the 128-bit FNV (draft-eastlake-fnv).
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let hash =
        bytes.iter().fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME));
    format!("{hash:032x}")
}

impl Target {
    /// The guest's nodes of the best tier, and all others with memory.
    pub fn tiers(&self) -> (Vec<u16>, Vec<u16>) {
        let best = self.machine.tiers().into_iter().next().map_or(Vec::new(), |tier| tier.nodes);
        let number = |id: NodeId| {
            self.topology.nodes.iter().position(|node| node.origin == id).map(node_number)
        };
        let fast: Vec<u16> = best.iter().filter_map(|id| number(*id)).collect();
        let with_memory = self.topology.nodes.iter().enumerate();
        let with_memory = with_memory.filter(|(_, node)| node.memory_bytes > 0);
        let slow =
            with_memory.map(|(at, _)| node_number(at)).filter(|at| !fast.contains(at)).collect();
        (fast, slow)
    }

    /// Read bandwidth of each of the guest's nodes, as a small whole weight.
    fn weights(&self) -> Vec<(usize, u32)> {
        let nodes = self.topology.nodes.iter().enumerate();
        let figures = |origin| self.machine.figures(None, origin).read_gb_s.unwrap_or(1.0);
        let speeds: Vec<(usize, f64)> = nodes
            .filter(|(_, node)| node.memory_bytes > 0)
            .map(|(at, node)| (at, figures(node.origin)))
            .collect();
        let least = speeds.iter().map(|(_, gb_s)| *gb_s).fold(f64::INFINITY, f64::min);
        let weight =
            |gb_s: f64| number::saturating_u32((gb_s / least).round().clamp(1.0, WEIGHT_MAX));
        speeds.into_iter().map(|(at, gb_s)| (at, weight(gb_s))).collect()
    }
}

impl Target {
    /// What the guest's firmware cannot say of its nodes: energies, with a node's static power for
    /// as much memory as the guest has of it.
    fn energies(&self) -> Vec<Value> {
        let of_node = |(at, node): (usize, &GuestNode)| {
            let whole = self.machine.node(node.origin)?;
            let share = node.memory_bytes as f64 / whole.capacity_bytes.max(1) as f64;
            let static_w = whole.energy.static_w.map(|w| w * share);
            let energy = Energy { static_w, ..whole.energy };
            let is_known = energy != Energy::default() && node.memory_bytes > 0;
            let energy = Value::try_from(energy).expect("plain data is TOML");
            let id = Value::from(i64::from(node_number(at)));
            is_known.then(|| table([("id", id), ("energy", energy)]))
        };
        self.topology.nodes.iter().enumerate().filter_map(of_node).collect()
    }

    /// A configuration that states these energies, unless it has a machine of its own.
    fn configured(&self, mut config: Table) -> String {
        let energies = self.energies();
        if !energies.is_empty() && !config.contains_key("machine") {
            config.insert("machine".to_owned(), table([("node", Value::Array(energies))]));
        }
        toml::to_string(&config).expect("a table from TOML is TOML")
    }
}

fn table<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Table::from_iter(entries.map(|(key, value)| (key.to_owned(), value))).into()
}

impl Run {
    /// The run's specification for the guest; `command` in the guest, `fast_bytes` if the run has a
    /// limit.
    pub fn spec(
        &self,
        experiment: &Experiment,
        target: &Target,
        command: Vec<String>,
        fast_bytes: Option<u64>,
    ) -> Spec {
        let (fast_nodes, slow_nodes) = target.tiers();
        let mut knobs: Vec<(String, String)> = Vec::new();
        let mut knob = |path: &str, value: String| knobs.push((path.to_owned(), value));
        let method = match self.choice.baseline {
            Some(Baseline::AllFast) => Method::Bind(fast_nodes.clone()),
            Some(Baseline::AllSlow) => Method::Bind(slow_nodes.clone()),
            Some(Baseline::FirstTouch) => Method::Kernel,
            Some(Baseline::KernelTiering) => {
                knob("/sys/kernel/mm/numa/demotion_enabled", "true".to_owned());
                knob("/proc/sys/kernel/numa_balancing", "2".to_owned());
                Method::Kernel
            }
            Some(which @ (Baseline::WeightedInterleave | Baseline::Interleave)) => {
                for (node, weight) in target.weights() {
                    let weight = if which == Baseline::Interleave { 1 } else { weight };
                    let path = format!("/sys/kernel/mm/mempolicy/weighted_interleave/node{node}");
                    knob(&path, weight.to_string());
                }
                Method::WeightedInterleave
            }
            Some(Baseline::Damon) => Method::Damon,
            None => {
                let config = target.configured(self.choice.config.clone());
                match self.choice.plan.clone() {
                    Some(plan) => {
                        let recorded = target.configured(experiment.common());
                        Method::Planned { config, recorded, plan }
                    }
                    None => Method::Tiercel(config),
                }
            }
        };
        knobs.extend(self.choice.knobs.clone());
        Spec {
            key: self.key.clone(),
            command,
            method,
            fast_nodes,
            slow_nodes,
            fast_bytes,
            huge: experiment.huge,
            knobs,
            metric: self.workload.metric,
            run: self.choice.run.clone(),
            learned: self.choice.learned,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Size;
    use serde::Deserialize as _;
    use tiercel_machine::MachineChoice;

    fn target(name: &str) -> Target {
        let machine = Machine::builtin(name).expect("reads").expect("is built in");
        let topology = Topology::of(&machine, Size::default()).expect("a guest");
        Target { name: name.to_owned(), machine, topology }
    }

    #[test]
    fn guests_know_energies_of_as_much_memory_as_they_have() {
        let target = target("pcm");
        let config: Table = toml::from_str("[policy]\ntick_ms = 50").expect("TOML");
        let text = target.configured(config.clone());
        let stated: Table = toml::from_str(&text).expect("TOML");
        assert_eq!(stated["policy"], config["policy"]);
        let choice = MachineChoice::deserialize(stated["machine"].clone()).expect("a choice");
        let energies: Vec<Energy> = choice.overrides.nodes.iter().map(|node| node.energy).collect();
        assert_eq!(energies[1], target.machine.nodes[1].energy);
        // 1 of 32 GiB.
        let share = energies[0].static_w.expect("known") / 0.329;
        assert!((share - 1.0 / 32.0).abs() < 1e-9, "{share}");
        let own: Table = toml::from_str("machine = \"spr-cxl\"").expect("TOML");
        assert_eq!(target.configured(own.clone()), toml::to_string(&own).expect("TOML"));
    }

    #[test]
    fn no_machine_is_stated_where_no_energy_is_known() {
        let mut target = target("pcm");
        target.machine.nodes.iter_mut().for_each(|node| node.energy = Energy::default());
        assert_eq!(target.configured(Table::new()), "");
    }
}
