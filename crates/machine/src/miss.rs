//! What a miss costs in a memory, and a copied byte, as one CPU sees it.
//! In: a node's figures and curves. Out: nanoseconds. Knows nothing of where anything lies.
//!
//! ```text
//! a miss      the longer of latency / (misses under way at once) and bytes / bandwidth;
//!             a memory that reads blocks reads a whole one for a line without neighbours
//! a store     its line is read before, and goes back once dirtied: bytes / write bandwidth on top
//! a copy      reads one memory in order, writes the other line by line; some work an OS page
//! ```
//! For the workload `phases` of the lab this gives the difference of all data in slow memory and
//! all in fast memory within 2%, without a fit. A CPU has its share of each node's bandwidth.

use crate::curve::peak_gb_s;
use crate::machine::{Machine, Node};

/// Bytes of a line, which every miss moves at least.
const LINE_BYTES: f64 = 64.0;

/// Bytes beyond which a device reads no more for one line: Optane's block.
const BLOCK_BYTES: f64 = 256.0;

/// What the kernel does for a moved OS page beside copying, nanoseconds: `move_pages` takes 2.4 to
/// 4.5 us in a guest with several nodes, less 4 KiB at 10 GB/s.
const MOVE_NS_PER_OS_PAGE: f64 = 2000.0;

/// Bytes of an OS page.
const OS_PAGE_BYTES: f64 = 4096.0;

/// One memory, as one CPU sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MissCost {
    read_latency_ns: f64,
    write_latency_ns: f64,
    /// 0 where the bandwidth is unknown: then latency alone counts.
    read_ns_per_byte: f64,
    write_ns_per_byte: f64,
    block_bytes: f64,
}

impl MissCost {
    /// Of a node; `None` where its latency is unknown.
    pub fn of(machine: &Machine, node: &Node) -> Option<MissCost> {
        Some(MissCost::with_latency(machine, node, node.figures.read_latency_ns?))
    }

    /// The same, with a latency that is assumed where none is known.
    pub fn with_latency(machine: &Machine, node: &Node, assumed_ns: f64) -> MissCost {
        let figures = node.figures;
        let read_latency_ns = figures.read_latency_ns.unwrap_or(assumed_ns);
        let read_gb_s = peak_gb_s(&node.curve, 1.0).or(figures.read_gb_s);
        let write_gb_s = figures.write_gb_s.or(read_gb_s);
        let cpus = cpus_near(machine, node);
        let ns_per_byte = |gb_s: Option<f64>| gb_s.map_or(0.0, |gb_s| cpus / gb_s);
        MissCost {
            read_latency_ns,
            write_latency_ns: figures.write_latency_ns.unwrap_or(read_latency_ns),
            read_ns_per_byte: ns_per_byte(read_gb_s),
            write_ns_per_byte: ns_per_byte(write_gb_s),
            block_bytes: node.granularity_bytes.map_or(LINE_BYTES, f64::from).max(LINE_BYTES),
        }
    }

    /// A miss with so many under way at once. `is_apart`: no neighbour of its line is wanted.
    pub fn miss_ns(&self, at_once: f64, is_apart: bool, is_write: bool) -> f64 {
        let latency_ns = if is_write { self.write_latency_ns } else { self.read_latency_ns };
        (latency_ns / at_once).max(self.drawn_bytes(is_apart) * self.read_ns_per_byte)
    }

    /// A dirtied line that goes back.
    pub fn write_back_ns(&self, is_apart: bool) -> f64 {
        self.drawn_bytes(is_apart) * self.write_ns_per_byte
    }

    /// A byte that is copied from here to another memory, in OS pages. A copy's target is read
    /// before it is written, and its lines go back one by one.
    pub fn copy_ns_per_byte(&self, to: &MissCost) -> f64 {
        let written = to.read_ns_per_byte + to.block_bytes / LINE_BYTES * to.write_ns_per_byte;
        self.read_ns_per_byte + written + MOVE_NS_PER_OS_PAGE / OS_PAGE_BYTES
    }

    /// Whether bandwidths are known, without which copies cannot be estimated.
    pub fn has_bandwidth(&self) -> bool {
        self.read_ns_per_byte > 0.0
    }

    /// Bytes that a line draws: a whole block where the memory reads blocks and no neighbour is
    /// wanted.
    pub fn drawn_bytes(&self, is_apart: bool) -> f64 {
        if is_apart { self.block_bytes.min(BLOCK_BYTES) } else { LINE_BYTES }
    }
}

/// CPUs that share a node's bandwidth: those beside it or its initiators, else all.
fn cpus_near(machine: &Machine, node: &Node) -> f64 {
    let is_near = |other: &&Node| other.id == node.id || node.initiators.contains(&other.id);
    let near: usize = machine.nodes.iter().filter(is_near).map(|other| other.cpus.len()).sum();
    let all: usize = machine.nodes.iter().map(|other| other.cpus.len()).sum();
    let cpus = if near > 0 { near } else { all };
    cpus.max(1) as f64
}
