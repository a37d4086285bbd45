//! What moves and streams cost on the machine of a plan, as measured when the profile was recorded.
//! In: a profile's [`Speeds`], a machine's memories. Out: the memories with one thread's share, a
//! [`MoveSpeed`], and what each figure rests on. Knows nothing of objects.
//!
//! A machine's description says what all of it can do. A program has a share, which only a
//! measurement shows: a thread beside 31 others draws a thirty-second of a memory. On another
//! machine the share is taken to be the same: its figures are scaled by how much less was measured
//! here than the description says.

use tiercel_machine::{Machine, NodeId, Speeds};
use tiercel_planner::{LINE_BYTES, MEMORIES_MAX, Memory, MoveSpeed, Scaling, move_cost_per_byte};

use tiercel_plan::{Basis, PlannedMove};
use tiercel_profile::Profile;

/// How fast objects move where nothing was measured, GB/s: `move_pages` took 2.4 to 4.5 us an OS
/// page in a guest with several nodes.
const COPY: MoveSpeed =
    MoveSpeed { threads: 1, gb_s_max: Some(1.2), measured_ns: [[0.0; MEMORIES_MAX]; MEMORIES_MAX] };

/// What is known of a machine's throughput.
#[derive(Clone, Copy, Debug)]
pub struct Throughput {
    /// How fast objects move.
    pub copy: MoveSpeed,
    /// What measured figures rest on; others rest on the description.
    pub basis: Basis,
}

/// How many times as long something takes as the description says; at least 1.
#[derive(Clone, Copy)]
struct Slowdown {
    read: f64,
    write: f64,
    /// A line by itself over a line of a stream; `None` for another machine, whose description has
    /// it.
    isolated: Option<[f64; 2]>,
}

/// Puts what was measured into `memories`, which are those of `machine`.
pub(crate) fn apply_measurements(
    profile: &Profile,
    machine: &Machine,
    memories: &mut [Memory],
) -> Throughput {
    let mut throughput = Throughput { copy: COPY, basis: Basis::Described };
    let measured = profile.runs.iter().rev().map(|run| &run.speeds).find(|one| !one.is_empty());
    let Some(speeds) = measured else { return throughput };
    let (recorded, _) = Memory::of_machine(&profile.machine, None);
    let streams = streams(speeds, &recorded);
    let moves = moves(speeds, &recorded);
    if profile.machine == *machine {
        throughput.basis = Basis::Measured;
        for (at, slower) in streams {
            limit_to_share(&mut memories[at], slower);
        }
        for (from, to, ns, _) in moves {
            throughput.copy.measured_ns[from][to] = ns;
        }
        return throughput;
    }
    throughput.basis = Basis::Scaled;
    let all = Slowdown {
        read: mean(streams.iter().map(|(_, slower)| slower.read)),
        write: mean(streams.iter().map(|(_, slower)| slower.write)),
        isolated: None,
    };
    memories.iter_mut().for_each(|memory| limit_to_share(memory, all));
    let times = mean(moves.iter().map(|(.., times)| *times));
    let pairs = (0..memories.len()).flat_map(|a| (0..memories.len()).map(move |b| (a, b)));
    for (from, to) in pairs.filter(|(from, to)| from != to && !moves.is_empty()) {
        let described = move_cost_per_byte(memories, from, to, &COPY).time_ns;
        throughput.copy.measured_ns[from][to] = described * times;
    }
    throughput
}

/// For a plan's file: what a byte costs from each memory to each other one.
pub(crate) fn planned_moves(
    memories: &[Memory],
    throughput: &Throughput,
    node: impl Fn(usize) -> NodeId,
) -> Vec<PlannedMove> {
    let pairs = (0..memories.len()).flat_map(|a| (0..memories.len()).map(move |b| (a, b)));
    let one = |(from, to): (usize, usize)| PlannedMove {
        from: node(from),
        to: node(to),
        ns_per_byte: move_cost_per_byte(memories, from, to, &throughput.copy).time_ns,
        basis: if throughput.copy.measured_ns[from][to] > 0.0 {
            throughput.basis
        } else {
            Basis::Described
        },
    };
    pairs.filter(|(from, to)| from != to).map(one).collect()
}

/// For each memory of the machine that recorded, how much slower one thread's streams are.
fn streams(speeds: &Speeds, recorded: &[Memory]) -> Vec<(usize, Slowdown)> {
    let known = speeds.streams.iter().filter_map(|stream| {
        let at = rank_of(recorded, stream.node)?;
        // Throughput above the description came from a cache.
        let read = (stream.read_ns_per_byte * recorded[at].read_gb_s_with(1)).max(1.0);
        let write = (stream.write_ns_per_byte * recorded[at].write_gb_s_with(1)).max(1.0);
        let times = |line_ns: f64, ns_per_byte: f64| (line_ns / ns_per_byte / LINE_BYTES).max(1.0);
        let apart = [
            times(stream.read_line_ns, read / recorded[at].read_gb_s_with(1)),
            times(stream.write_line_ns, write / recorded[at].write_gb_s_with(1)),
        ];
        Some((at, Slowdown { read, write, isolated: Some(apart) }))
    });
    known.collect()
}

/// From, to, nanoseconds a byte, and how many times the described cost that is.
fn moves(speeds: &Speeds, recorded: &[Memory]) -> Vec<(usize, usize, f64, f64)> {
    let known = speeds.moves.iter().filter_map(|one| {
        let (from, to) = (rank_of(recorded, one.from)?, rank_of(recorded, one.to)?);
        let described = move_cost_per_byte(recorded, from, to, &COPY).time_ns;
        (from != to).then_some((from, to, one.ns_per_byte, one.ns_per_byte / described))
    });
    known.collect()
}

/// The memory of a node.
pub(crate) fn rank_of(memories: &[Memory], node: NodeId) -> Option<usize> {
    memories.iter().position(|memory| memory.nodes.contains(&node))
}

/// Geometric; 1 of nothing.
fn mean(factors: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = factors.fold((0.0, 0), |(sum, count), one| (sum + one.ln(), count + 1));
    if count == 0 { 1.0 } else { (sum / f64::from(count)).exp() }
}

/// One thread gets what was measured; more threads get more, up to the described total.
fn limit_to_share(memory: &mut Memory, slower: Slowdown) {
    if let Some([read, write]) = slower.isolated {
        (memory.isolated_read_factor, memory.isolated_write_factor) = (read, write);
    }
    if slower.read <= 1.0 && slower.write <= 1.0 {
        return;
    }
    let read_gb_s = memory.read_gb_s_with(1) / slower.read;
    let write_gb_s = memory.write_gb_s_with(1) / slower.write;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a positive ratio; beyond 32 bits the largest number of threads"
    )]
    let threads = (memory.read_gb_s / read_gb_s).max(memory.write_gb_s / write_gb_s).ceil() as u32;
    memory.scaling = vec![Scaling { threads: 1, read_gb_s, write_gb_s }];
    if threads > 1 {
        let (read_gb_s, write_gb_s) = (memory.read_gb_s, memory.write_gb_s);
        memory.scaling.push(Scaling { threads, read_gb_s, write_gb_s });
    }
}
