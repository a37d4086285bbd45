// SPDX-License-Identifier: GPL-2.0-or-later
//! The plugin's configuration: the machine, the guest's layout, the processor's figures.
//! In: a JSON file. Out: [`Config`]. Knows nothing of QEMU.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tiercel_machine::{Machine, MachineError, NodeId};
use tiercel_memsim::ModelError;

/// Why the plugin does not load.
#[derive(Debug, thiserror::Error)]
pub enum EmulatorError {
    /// Text that is not the configuration's JSON.
    #[error("its configuration: {0}")]
    Syntax(#[from] serde_json::Error),
    /// A machine that cannot be.
    #[error("its configuration: {0}")]
    Machine(#[from] MachineError),
    /// A machine that cannot be timed.
    #[error("its configuration: {0}")]
    Model(#[from] ModelError),
    /// Something that does not fit together.
    #[error("{0}")]
    Invalid(&'static str),
    /// The configuration's file.
    #[error("cannot read {path}: {source}")]
    File {
        /// Its path.
        path: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The file that the guest's sampler reads.
    #[error("cannot use the sample area {path}: {source}")]
    Area {
        /// Its path.
        path: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The file of the trace.
    #[error("cannot create the trace {path}: {source}")]
    Trace {
        /// Its path.
        path: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The thread that warps time.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// Physical addresses of one node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhysicalRange {
    /// First byte.
    pub start: u64,
    /// Behind the last byte.
    pub end: u64,
    /// The machine's number of the node.
    pub node: NodeId,
}

/// Sampled misses for the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Samples {
    /// The file behind the guest's device, as `include/tiercel_emulator.h` describes it.
    pub area: PathBuf,
    /// The machine's nodes in the order of the guest kernel's numbers.
    pub nodes: Vec<NodeId>,
    /// How long a sample holds up its virtual CPU, picoseconds.
    #[serde(default = "sample_ps")]
    pub sample_ps: u64,
}

/// A trace of all misses, for the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceFile {
    /// Where it goes.
    pub path: PathBuf,
    /// Most bytes of it.
    pub bytes_max: u64,
}

/// The file's content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The machine's description, TOML.
    pub machine: String,
    /// Where each node's memory is, ascending.
    pub ranges: Vec<PhysicalRange>,
    /// The node each virtual CPU sits beside.
    pub cpu_nodes: Vec<NodeId>,
    /// Where statistics go at exit.
    pub stats: PathBuf,
    /// Where sampled misses go; absent: nowhere.
    #[serde(default)]
    pub samples: Option<Samples>,
    /// Where a trace of all misses goes; absent: nowhere.
    #[serde(default)]
    pub trace: Option<TraceFile>,
    /// Whether accesses are timed in programs' marked regions only.
    #[serde(default)]
    pub regions_only: bool,
    /// Modelled walks of the page table after which QEMU's own translation buffer is dropped, at
    /// the latest after a tick of the kernel, so that accessed bits are set as on hardware; 0:
    /// never.
    #[serde(default = "walks_per_flush")]
    pub walks_per_flush: u64,
    /// Picoseconds of an instruction that waits for nothing.
    #[serde(default = "instruction_ps")]
    pub instruction_ps: u64,
    /// Bytes of each virtual CPU's second-level cache, 16 ways.
    #[serde(default = "l2_bytes")]
    pub l2_bytes: u64,
    /// Bytes of the cache all share, 16 ways.
    #[serde(default = "llc_bytes")]
    pub llc_bytes: u64,
    /// Latency of the second level, picoseconds.
    #[serde(default = "l2_ps")]
    pub l2_ps: u64,
    /// Latency of the shared level, picoseconds.
    #[serde(default = "llc_ps")]
    pub llc_ps: u64,
    /// Instructions between the oldest outstanding miss and the newest instruction.
    #[serde(default = "window")]
    pub window: u64,
    /// Misses outstanding at once.
    #[serde(default = "mshrs")]
    pub mshrs: usize,
    /// Stores outstanding at once.
    #[serde(default = "store_buffer")]
    pub store_buffer: usize,
    /// Whether streams are fetched ahead of need.
    #[serde(default)]
    pub prefetch: bool,
    /// Whether the virtual CPUs have only their share of the machine's bandwidths, as if its other
    /// CPUs did what they do; otherwise they have the machine for themselves.
    #[serde(default)]
    pub share: bool,
}

impl Config {
    /// Reads and checks the file's text.
    pub fn parse(text: &str) -> Result<(Config, Machine), EmulatorError> {
        let config: Config = serde_json::from_str(text)?;
        let machine = Machine::from_toml(&config.machine)?;
        demand(!config.cpu_nodes.is_empty(), "no virtual CPU is given a node")?;
        demand(!config.ranges.is_empty(), "no memory is given a node")?;
        for range in &config.ranges {
            demand(range.start < range.end, "a physical range is empty")?;
            demand(machine.node(range.node).is_some(), "a physical range names no node")?;
        }
        let apart = config.ranges.windows(2).all(|pair| pair[0].end <= pair[1].start);
        demand(apart, "physical ranges must ascend and not overlap")?;
        Ok((config, machine))
    }

    /// The node of a physical address; `None` for what is no memory of the machine.
    pub fn node_of(&self, physical: u64) -> Option<NodeId> {
        let after = self.ranges.partition_point(|range| range.end <= physical);
        self.ranges.get(after).filter(|range| range.start <= physical).map(|range| range.node)
    }
}

/// An error with this reason, unless it holds.
pub(crate) fn demand(holds: bool, reason: &'static str) -> Result<(), EmulatorError> {
    if holds { Ok(()) } else { Err(EmulatorError::Invalid(reason)) }
}

/// MAT 4.5.1: tens of thousands of samples a second cost under 1%; that is 0.3 to 1 us each, which
/// is also what the samplers assume.
fn sample_ps() -> u64 {
    1_000_000
}

/// As many walks as a second-level translation buffer has entries: by then hardware has replaced
/// what it held.
fn walks_per_flush() -> u64 {
    2048
}

/// 4 GHz at one instruction a cycle, or 2 GHz at two.
fn instruction_ps() -> u64 {
    250
}

fn l2_bytes() -> u64 {
    1 << 20
}

/// Small, so that workloads of a few hundred MiB exceed it as large ones exceed real caches.
fn llc_bytes() -> u64 {
    4 << 20
}

/// 14 cycles at 3.5 GHz.
fn l2_ps() -> u64 {
    4_000
}

/// 70 cycles at 3.5 GHz.
fn llc_ps() -> u64 {
    20_000
}

/// Skylake's reorder buffer.
fn window() -> u64 {
    224
}

/// Golden Cove's line fill buffers; Skylake and Sunny Cove have 12.
fn mshrs() -> usize {
    16
}

/// Skylake's store buffer has 56; 48 is what the model was validated with.
fn store_buffer() -> usize {
    48
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const TOML: &str = "name = \"t\"\n\
        [[node]]\nid = 0\ncapacity = \"1 GiB\"\ncpus = \"0-1\"\n\
        figures = { read_latency_ns = 80.0, read_gb_s = 100.0 }\n\
        [[node]]\nid = 1\ncapacity = \"1 GiB\"\ninitiators = [0]\n\
        figures = { read_latency_ns = 250.0, read_gb_s = 40.0 }\n";

    pub(crate) fn config() -> (Config, Machine) {
        let text = serde_json::json!({
            "machine": TOML,
            "ranges": [
                { "start": 0, "end": 0x4000_0000u64, "node": 0 },
                { "start": 0x1_0000_0000u64, "end": 0x1_4000_0000u64, "node": 1 },
            ],
            "cpu_nodes": [0, 0],
            "stats": "/dev/null",
        });
        Config::parse(&text.to_string()).expect("valid")
    }

    #[test]
    fn addresses_have_nodes_and_holes_have_none() {
        let (config, _) = config();
        assert_eq!(config.node_of(0), Some(NodeId(0)));
        assert_eq!(config.node_of(0x3fff_ffff), Some(NodeId(0)));
        assert_eq!(config.node_of(0x4000_0000), None);
        assert_eq!(config.node_of(0x1_3fff_ffff), Some(NodeId(1)));
        assert_eq!(config.node_of(u64::MAX), None);
    }

    #[test]
    fn nonsense_is_refused() {
        let (config, _) = config();
        let mut overlapping = config.clone();
        overlapping.ranges[1].start = 0;
        let mut nowhere = config;
        nowhere.ranges[0].node = NodeId(7);
        for bad in [overlapping, nowhere] {
            let text = serde_json::to_string(&bad).expect("serialises");
            assert!(Config::parse(&text).is_err(), "{text}");
        }
    }
}
