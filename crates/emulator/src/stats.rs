// SPDX-License-Identifier: GPL-2.0-or-later
//! What the plugin counted, for the host.
//! In: nothing. Out: plain data that serialises. Knows nothing of how it was counted.

use serde::{Deserialize, Serialize};
use tiercel_machine::NodeId;

/// Everything, from power-on to exit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// The guest's clock at the end, nanoseconds.
    pub elapsed_ns: i64,
    /// By virtual CPU.
    pub vcpus: Vec<VcpuStats>,
    /// By node, ascending.
    pub nodes: Vec<NodeStats>,
    /// What programs marked as regions of interest, in their order.
    #[serde(default)]
    pub regions: Vec<RegionStats>,
    /// Regions beyond those that are kept.
    #[serde(default)]
    pub regions_left_out: u64,
    /// Commands, from the lab's mark before each to the one after it, in their order; the latest
    /// that are kept.
    #[serde(default)]
    pub windows: Vec<WindowStats>,
    /// The trace of all misses; absent: none was wanted.
    #[serde(default)]
    pub trace: Option<TraceStats>,
}

/// A trace of misses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceStats {
    /// Misses, and dirtied lines, in the file.
    pub misses: u64,
    /// Those that are not, because it or the disk was full.
    pub lost: u64,
    /// Nanoseconds of the guest's clock at which the sampler's clock was 0; absent: no sampler
    /// stated it.
    pub origin_ns: Option<u64>,
}

/// A command, between the lab's marks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WindowStats {
    /// From mark to mark.
    pub whole: SpanStats,
    /// In the regions of interest that it marked; none: it marked none, or more than are kept.
    pub regions: Option<SpanStats>,
}

/// A part of a run, all virtual CPUs together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpanStats {
    /// The guest's time, nanoseconds.
    pub elapsed_ns: i64,
    /// Time the virtual CPUs ran, computing and waiting for memory, picoseconds.
    pub busy_ps: u64,
    /// Of that, waiting for memory.
    pub stalled_ps: u64,
    /// What memory served to user code, and how much of it could have been fast.
    pub best: BestStats,
}

/// What a placement with perfect knowledge, whose moves cost nothing, could serve from fast memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BestStats {
    /// Misses.
    pub misses: u64,
    /// Sizes of fast memory, ascending.
    pub bytes: Vec<u64>,
    /// The largest share that each could serve, 0 to 1.
    pub shares: Vec<f64>,
}

/// One region of interest, from mark to mark. Other virtual CPUs than the one that executed the
/// mark are counted up to their latest quantum.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RegionStats {
    /// The guest's clock at the first mark, nanoseconds.
    pub began_ns: i64,
    /// From there to the second mark.
    pub elapsed_ns: i64,
    /// By virtual CPU.
    pub vcpus: Vec<VcpuStats>,
    /// By node, ascending.
    pub nodes: Vec<NodeStats>,
}

/// One virtual CPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VcpuStats {
    /// Instructions it executed.
    pub instructions: u64,
    /// Time it ran, computing and waiting for memory, picoseconds.
    pub busy_ps: u64,
    /// Of that, waiting for memory.
    pub stalled_ps: u64,
    /// Accesses that its first level did not have, by who had them: second level, shared level,
    /// memory.
    pub served: [u64; 3],
}

impl VcpuStats {
    /// Nothing yet.
    pub const fn new() -> VcpuStats {
        VcpuStats { instructions: 0, busy_ps: 0, stalled_ps: 0, served: [0; 3] }
    }
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStats {
    /// Its number on the machine.
    pub node: NodeId,
    /// Lines read from it.
    pub reads: u64,
    /// Lines written to it.
    pub writes: u64,
    /// Bytes the device read for these: whole blocks, where its blocks are larger than a line.
    #[serde(default)]
    pub device_read_bytes: u64,
    /// Bytes the device wrote, likewise.
    #[serde(default)]
    pub device_written_bytes: u64,
    /// Joules of these, where the machine says what they cost.
    pub access_j: Option<f64>,
}
