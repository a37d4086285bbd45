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

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStats {
    /// Its number on the machine.
    pub node: NodeId,
    /// Lines read from it.
    pub reads: u64,
    /// Lines written to it.
    pub writes: u64,
    /// Joules of these, where the machine says what they cost.
    pub access_j: Option<f64>,
}
