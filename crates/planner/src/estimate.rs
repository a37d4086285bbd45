//! What accesses and copies cost: H2M Eq. 1 and 2, OAM Eq. 2 and 3.
//! In: accesses of an object, a memory. Out: nanoseconds and picojoules.
//! Knows nothing of where anything should be placed.

use std::ops::{Add, AddAssign, Mul};

use crate::memory::{LINE_BYTES, MEMORIES_MAX, Memory};
use crate::workload::{BLOCK_BYTES, Object, Use, Workload};

/// CL/sizeof(double) of H2M Eq. 1: accesses that share a line, and so its latency.
const ACCESSES_PER_LINE: f64 = LINE_BYTES / 8.0;
const BITS_PER_BYTE: f64 = 8.0;
/// One watt is 1000 picojoules per nanosecond.
const PJ_PER_W_NS: f64 = 1000.0;

/// Time and energy, of accesses or of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Nanoseconds.
    pub time_ns: f64,
    /// Picojoules; 0 where a memory's energy is unknown.
    pub energy_pj: f64,
}

/// How fast objects are copied from memory to memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoveSpeed {
    /// Threads of the mover; at least 1.
    pub threads: u32,
    /// Highest speed of the mover, GB/s; `None`: limited by the memories alone.
    pub gb_s_max: Option<f64>,
    /// Measured nanoseconds a byte, from a memory (row) to another (column); 0: not measured, the
    /// figures above hold.
    pub measured_ns: [[f64; MEMORIES_MAX]; MEMORIES_MAX],
}

impl Default for MoveSpeed {
    fn default() -> MoveSpeed {
        MoveSpeed { threads: 1, gb_s_max: None, measured_ns: [[0.0; MEMORIES_MAX]; MEMORIES_MAX] }
    }
}

/// TAcc of H2M Eq. 1: time the accesses take if the object lies in `memory`, nanoseconds, reads and
/// writes each with their own latency and bandwidth. Counts are taken as they are.
///
/// Two things are added to the paper's model. Misses take at least as long as the transfer of their
/// bytes: the misses of a stream overlap until the bandwidth is exhausted, and then their latency
/// does not matter. And isolated lines take longer by this memory's factor.
pub fn access_ns(one: &Use, memory: &Memory) -> f64 {
    let term = |count: f64, latency_ns: f64, gb_s: f64, apart_times: f64| {
        // GB/s is bytes per nanosecond.
        let drawn = count * drawn_bytes(one, apart_times) / gb_s;
        let missed = waited_ns(one, count, latency_ns).max(drawn);
        let streamed = count * LINE_BYTES / gb_s;
        missed * (1.0 - one.hit_ratio) + streamed * one.hit_ratio
    };
    let read_gb_s = memory.read_gb_s_with(one.threads);
    let write_gb_s = memory.write_gb_s_with(one.threads);
    term(one.reads, memory.read_latency_ns, read_gb_s, memory.isolated_read_factor)
        + term(one.writes, memory.write_latency_ns, write_gb_s, memory.isolated_write_factor)
}

/// What accesses demand of the core and of the memory. Each needs its own time: a core waits and
/// computes while the memory works, so the accesses take the longer of both.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demand {
    /// A core's time, nanoseconds: misses that are waited for, hits.
    pub core_ns: f64,
    /// The memory's time, nanoseconds: lines read and written back.
    pub memory_ns: f64,
}

/// The terms of [`access_ns`] separately. A line that is written back was read like any other, and
/// no access waits for the write-back.
pub fn demand(one: &Use, memory: &Memory) -> Demand {
    let read_gb_s = memory.read_gb_s_with(one.threads);
    let write_gb_s = memory.write_gb_s_with(one.threads);
    let waited_ns = waited_ns(one, one.reads + one.writes, memory.read_latency_ns);
    let streamed_ns = one.reads * LINE_BYTES / read_gb_s + one.writes * LINE_BYTES / write_gb_s;
    let drawn_ns = one.reads * drawn_bytes(one, memory.isolated_read_factor) / read_gb_s
        + one.writes * drawn_bytes(one, memory.isolated_write_factor) / write_gb_s;
    Demand {
        core_ns: waited_ns * (1.0 - one.hit_ratio) + streamed_ns * one.hit_ratio,
        memory_ns: drawn_ns * (1.0 - one.hit_ratio),
    }
}

/// Time in which a thread waits for this many misses.
fn waited_ns(one: &Use, count: f64, latency_ns: f64) -> f64 {
    count * latency_ns / ACCESSES_PER_LINE * one.latency_weight
}

/// Bytes that an access draws from a memory, or the bytes that would take as long.
fn drawn_bytes(one: &Use, apart_times: f64) -> f64 {
    one.drawn_bytes * (1.0 + apart(one) * (apart_times - 1.0))
}

/// Share of the lines that are the only ones of their block.
fn apart(one: &Use) -> f64 {
    let dense = LINE_BYTES / BLOCK_BYTES;
    one.isolated.map_or(0.0, |apart| ((apart - dense) / (1.0 - dense)).max(0.0))
}

/// V of H2M Eq. 2: time saved by lying in `fast` instead of `slow`, nanoseconds. `sample_period` is
/// its Freq_S.
pub fn score_ns(one: &Use, slow: &Memory, fast: &Memory, sample_period: f64) -> f64 {
    (access_ns(one, slow) - access_ns(one, fast)) * sample_period
}

/// The dynamic part of OAM Eq. 3, picojoules: a line is read for each access that misses the
/// caches, and written as well for each that writes. 0 if the memory's energy is unknown.
pub fn energy_pj(one: &Use, memory: &Memory) -> f64 {
    let Some(energy) = memory.energy else { return 0.0 };
    let bits = LINE_BYTES * BITS_PER_BYTE * (1.0 - one.hit_ratio);
    let read = (one.reads + one.writes) * energy.read_pj_per_bit;
    bits * (read + one.writes * energy.write_pj_per_bit)
}

/// What the accesses to an object in one phase cost. `one` is `None` where it has none.
pub(crate) fn phase_cost(
    workload: &Workload,
    object: &Object,
    phase: usize,
    one: Option<&Use>,
    memory: &Memory,
) -> Cost {
    let mut cost = one.map_or(Cost::default(), |one| {
        Cost { time_ns: access_ns(one, memory), energy_pj: energy_pj(one, memory) }
            * workload.sample_period
    });
    if let Some(energy) = memory.energy
        && energy.static_w_per_byte > 0.0
    {
        let byte_ns = object.bytes as f64 * workload.overlap_ns(object, phase) as f64;
        cost.energy_pj += energy.static_w_per_byte * PJ_PER_W_NS * byte_ns;
    }
    cost
}

/// Moving one byte between two of `memories`: as measured, or size over copy bandwidth (H2M
/// III-D4); and the energy of reading and writing it.
pub fn move_cost_per_byte(memories: &[Memory], from: usize, to: usize, copy: &MoveSpeed) -> Cost {
    let measured_ns = copy.measured_ns[from][to];
    let (from, to) = (&memories[from], &memories[to]);
    let both = from.read_gb_s_with(copy.threads).min(to.write_gb_s_with(copy.threads));
    let gb_s = copy.gb_s_max.map_or(both, |most| both.min(most));
    let time_ns = if measured_ns > 0.0 { measured_ns } else { 1.0 / gb_s };
    let energy = from.energy.map_or(0.0, |energy| energy.read_pj_per_bit)
        + to.energy.map_or(0.0, |energy| energy.write_pj_per_bit);
    Cost { time_ns, energy_pj: energy * BITS_PER_BYTE }
}

/// Objective = time x `time` + energy x `energy`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Weights {
    /// Per nanosecond.
    pub time: f64,
    /// Per picojoule.
    pub energy: f64,
}

impl Weights {
    pub const TIME: Weights = Weights { time: 1.0, energy: 0.0 };
    pub const ENERGY: Weights = Weights { time: 0.0, energy: 1.0 };

    pub fn of(&self, cost: Cost) -> f64 {
        self.time * cost.time_ns + self.energy * cost.energy_pj
    }
}

impl Add for Cost {
    type Output = Cost;
    fn add(self, other: Cost) -> Cost {
        Cost { time_ns: self.time_ns + other.time_ns, energy_pj: self.energy_pj + other.energy_pj }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        *self = *self + other;
    }
}

impl Mul<f64> for Cost {
    type Output = Cost;
    fn mul(self, factor: f64) -> Cost {
        Cost { time_ns: self.time_ns * factor, energy_pj: self.energy_pj * factor }
    }
}
