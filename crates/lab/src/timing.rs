//! The configuration of the timing plugin for a guest, and the times that the plugin reports. In:
//! the machine, the guest's topology; the plugin's statistics. Out: the plugin's configuration,
//! JSON; times. Knows nothing of how accesses are timed: the plugin has another licence, and files
//! are the only interface to it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use tiercel_machine::{Machine, NodeId};

use crate::topology::Topology;

/// How a guest's memory is timed.
#[derive(Clone, Copy, Debug)]
pub struct Timing<'a> {
    /// The plugin, `libtiercel_emulator.so`.
    pub plugin: &'a Path,
    /// The machine with the latencies and bandwidths.
    pub machine: &'a Machine,
    /// Deviations from the default model.
    pub model: Model,
    /// Where a trace of all misses goes; `None`: nowhere. With one virtual CPU.
    pub trace: Option<&'a Trace>,
}

/// A trace of all misses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trace {
    /// Its file.
    pub path: PathBuf,
    /// Most bytes of it.
    pub bytes_max: u64,
}

/// Options of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Model {
    /// Whether streams are prefetched.
    pub prefetch: bool,
    /// Whether the guest's CPUs have only their share of the machine's bandwidths, as if its other
    /// CPUs had the same load.
    pub share: bool,
    /// Whether only programs' regions of interest (`workloads/roi.h`) are timed in detail. Set-up
    /// then takes time for instructions, but none for memory, and runs five times faster.
    pub regions_only: bool,
}

/// The times in the plugin's statistics.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Times {
    /// From power-on to power-off, nanoseconds of the guest's clock.
    pub elapsed_ns: u64,
    /// The regions of interest that programs marked, in order.
    pub regions: Vec<Region>,
    /// How many further regions were not kept.
    pub regions_left_out: u64,
    /// Commands between the lab's marks, in order.
    #[serde(default)]
    pub windows: Vec<Window>,
    /// The trace of all misses.
    #[serde(default)]
    pub trace: Option<Traced>,
}

/// What became of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Traced {
    /// Misses and dirtied lines in the file.
    pub misses: u64,
    /// Those that are not.
    pub lost: u64,
    /// Nanoseconds of the guest's clock when the sampler's was 0.
    pub origin_ns: Option<u64>,
}

/// What the plugin counted of a command.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Window {
    /// From its beginning to its end.
    pub whole: Span,
    /// In its regions of interest; `None`: it marked none, or more than are kept.
    pub regions: Option<Span>,
}

/// What the plugin counted in a part of a run.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Span {
    /// Time the virtual CPUs ran, picoseconds.
    pub busy_ps: u64,
    /// Of that, waiting for memory.
    pub stalled_ps: u64,
    /// Misses, and how many of them fast memory could have served.
    pub best: Counted,
}

/// Misses of user code, and the largest share of them that fast memory of each size could serve.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Counted {
    /// Misses.
    pub misses: u64,
    /// Sizes, ascending.
    pub bytes: Vec<u64>,
    /// Shares, 0 to 1.
    pub shares: Vec<f64>,
}

/// A region of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Region {
    /// From mark to mark, nanoseconds of the guest's clock.
    pub elapsed_ns: u64,
}

impl Times {
    /// Reads the plugin's statistics, JSON.
    pub fn parse(stats: &str) -> Result<Times> {
        serde_json::from_str(stats).context("the timing plugin's statistics have no times")
    }

    /// The total time of all regions, nanoseconds; an error states why there is none.
    pub fn regions_ns(&self) -> Result<u64> {
        let kept = self.regions.len();
        let left_out = self.regions_left_out;
        ensure!(
            left_out == 0,
            "it marked {} regions of interest, of which {kept} were kept",
            kept as u64 + left_out
        );
        ensure!(kept > 0, "it marked no region of interest (docs/lab.md says how)");
        Ok(self.regions.iter().map(|region| region.elapsed_ns).sum())
    }
}

/// In the format of `crates/emulator`; omitted fields have their defaults.
#[derive(Serialize)]
struct Config<'a> {
    machine: String,
    ranges: Vec<PhysicalRange>,
    cpu_nodes: Vec<NodeId>,
    stats: &'a Path,
    samples: Samples<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<&'a Trace>,
    #[serde(flatten)]
    model: Model,
}

/// Sampled misses, for a sampler in the guest.
#[derive(Serialize)]
struct Samples<'a> {
    /// The file that the guest sees as a device's memory.
    area: &'a Path,
    /// The machine's nodes, by their numbers in the guest.
    nodes: Vec<NodeId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct PhysicalRange {
    start: u64,
    end: u64,
    node: NodeId,
}

/// Bytes of the sample area, as in `include/tiercel_emulator.h`.
pub(crate) const SAMPLE_AREA_BYTES: u64 = 8 << 20;

/// Where the memory above the hole below 4 GiB begins.
const ABOVE_4G: u64 = 1 << 32;

/// The configuration's text; statistics go to `stats`, samples to `area`.
pub(crate) fn config(
    timing: &Timing<'_>,
    topology: &Topology,
    stats: &Path,
    area: &Path,
) -> String {
    let cpu_nodes =
        topology.nodes.iter().flat_map(|node| (0..node.cpus).map(|_| node.origin)).collect();
    let machine = timing.machine.to_toml();
    let samples = Samples { area, nodes: topology.nodes.iter().map(|node| node.origin).collect() };
    let ranges = ranges(topology);
    let Timing { model, trace, .. } = *timing;
    let config = Config { machine, ranges, cpu_nodes, stats, samples, trace, model };
    serde_json::to_string_pretty(&config).expect("plain data serialises")
}

/// QEMU's q35 puts nodes one after another, up to the hole and then above it.
fn ranges(topology: &Topology) -> Vec<PhysicalRange> {
    let low = if topology.memory_bytes() >= 0xb000_0000 { 0x8000_0000 } else { 0xb000_0000 };
    let mut ranges = Vec::new();
    let mut at = 0;
    for node in topology.nodes.iter().filter(|node| node.memory_bytes > 0) {
        let end = at + node.memory_bytes;
        let origin = node.origin;
        if at < low {
            ranges.push(PhysicalRange { start: at, end: end.min(low), node: origin });
        }
        if end > low {
            let physical = |offset: u64| offset - low + ABOVE_4G;
            let start = physical(at.max(low));
            ranges.push(PhysicalRange { start, end: physical(end), node: origin });
        }
        at = end;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Size;

    #[test]
    fn nodes_are_placed_around_the_hole() {
        let toml = "name = \"m\"\n[[node]]\nid = 0\ncapacity = \"1 GiB\"\ncpus = \"0\"\n\
                    [[node]]\nid = 5\ncapacity = \"3 GiB\"\n";
        let machine = Machine::from_toml(toml).expect("valid");
        let size = |gib: u64| Size { memory_bytes: gib << 30, cpus: 1 };
        let topology = Topology::of(&machine, size(4)).expect("fits");
        let range = |start, end, node| PhysicalRange { start, end, node: NodeId(node) };
        let expect = [
            range(0, 0x4000_0000, 0),
            range(0x4000_0000, 0x8000_0000, 5),
            range(0x1_0000_0000, 0x1_8000_0000, 5),
        ];
        assert_eq!(ranges(&topology), expect);
        let small = Topology::of(&machine, size(2)).expect("fits");
        assert_eq!(ranges(&small), [range(0, 0x2000_0000, 0), range(0x2000_0000, 0x8000_0000, 5)]);
    }

    #[test]
    fn regions_have_a_time_if_all_were_kept() {
        let times = |regions: &str, left_out: u32| {
            let text = format!(
                "{{\"elapsed_ns\":9,\"vcpus\":[],\"regions\":[{regions}],\
                 \"regions_left_out\":{left_out}}}"
            );
            Times::parse(&text).expect("valid").regions_ns()
        };
        let both = "{\"began_ns\":1,\"elapsed_ns\":3},{\"began_ns\":5,\"elapsed_ns\":4}";
        assert_eq!(times(both, 0).expect("known"), 7);
        assert!(times(both, 1).expect_err("unknown").to_string().contains("3 regions"));
        assert!(times("", 0).expect_err("unknown").to_string().contains("no region"));
        assert!(Times::parse("{}").is_err());
    }

    #[test]
    fn each_virtual_cpu_has_its_node() {
        let machine = Machine::builtin("two-socket-optane").expect("known").expect("valid");
        let topology = Topology::of(&machine, Size::default()).expect("fits");
        let model = Model { share: true, ..Model::default() };
        let trace = Trace { path: "t".into(), bytes_max: 7 };
        let plugin = Path::new("p");
        let timing = Timing { plugin, machine: &machine, model, trace: Some(&trace) };
        let text = config(&timing, &topology, Path::new("s"), Path::new("a"));
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["cpu_nodes"], serde_json::json!([0, 1]));
        assert_eq!(value["stats"], "s");
        assert_eq!(value["trace"], serde_json::json!({ "path": "t", "bytes_max": 7 }));
        let samples = serde_json::json!({ "area": "a", "nodes": [0, 1, 2, 3] });
        assert_eq!(value["samples"], samples);
        assert_eq!((&value["share"], &value["prefetch"]), (&true.into(), &false.into()));
    }
}
