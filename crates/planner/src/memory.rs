//! The memories objects can be placed in, fastest first: tiers of a machine with their figures.
//! In: a [`Machine`], seen from one of its nodes. Out: [`Memory`]s, and tiers left out because
//! their
//! figures are unknown. Knows nothing of objects.

use tiercel_machine::{Machine, NodeId, Tier};

/// Most memories of one plan. Machines have two to four.
pub const MEMORIES_MAX: usize = 8;
/// Lines that one thread has in flight at once where bandwidth by threads was not measured: with
/// 16, one thread reads 13.5 GB/s at 76 ns. First-level caches have 10 to 16 MSHRs; prefetchers add
/// to them.
pub const LINES_PER_THREAD: f64 = 16.0;

/// A tier as the planner sees it (M of H2M Eq. 1).
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// The name that users see.
    pub name: String,
    /// Its nodes; none if the memory is made up.
    pub nodes: Vec<NodeId>,
    /// Bytes that may be placed there; lower it to plan for a part.
    pub capacity_bytes: u64,
    /// Idle latency of reads, nanoseconds.
    pub read_latency_ns: f64,
    /// Idle latency of writes, nanoseconds.
    pub write_latency_ns: f64,
    /// Peak bandwidth of reads with all threads, GB/s (10^9 bytes).
    pub read_gb_s: f64,
    /// Peak bandwidth of writes with all threads, GB/s.
    pub write_gb_s: f64,
    /// How many times as long an isolated line takes to be read as a line of a stream; at least 1.
    /// More where the memory reads blocks larger than a line.
    pub isolated_read_factor: f64,
    /// The same for a line that is read, modified and written.
    pub isolated_write_factor: f64,
    /// Measured bandwidth, ascending by threads. Empty: a thread has [`LINES_PER_THREAD`] lines in
    /// flight, up to the limits above.
    pub scaling: Vec<Scaling>,
    /// Its energy; `None` if unknown.
    pub energy: Option<Energy>,
}

/// Bandwidth with this many threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// At least 1.
    pub threads: u32,
    /// GB/s.
    pub read_gb_s: f64,
    /// GB/s.
    pub write_gb_s: f64,
}

/// Energy of a memory (OAM Eq. 3).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Energy {
    /// Picojoules per bit read.
    pub read_pj_per_bit: f64,
    /// Picojoules per bit written.
    pub write_pj_per_bit: f64,
    /// Watts a byte while idle: the node's over its capacity.
    pub static_w_per_byte: f64,
}

/// A tier that cannot be planned with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Its nodes.
    pub nodes: Vec<NodeId>,
    /// The figure that is unknown: give it in the machine description.
    pub figure: &'static str,
}

impl Memory {
    /// Tiers of a machine, best first, as the CPUs of `from` see them (`None`: as their nearest
    /// CPUs do). A tier is as fast as its first node, because an object is on a single one. Unknown
    /// write figures are those of reads. At most [`MEMORIES_MAX`]; further tiers are left out.
    pub fn of_machine(machine: &Machine, from: Option<NodeId>) -> (Vec<Memory>, Vec<Left>) {
        let tiers = from.map_or_else(|| machine.tiers(), |from| machine.tiers_from(from));
        let (mut memories, mut left) = (Vec::new(), Vec::new());
        for tier in tiers {
            match of_tier(machine, from, &tier) {
                Ok(memory) if memories.len() < MEMORIES_MAX => memories.push(memory),
                Ok(_) => {
                    left.push(Left { nodes: tier.nodes, figure: "more memories than planned" })
                }
                Err(figure) => left.push(Left { nodes: tier.nodes, figure }),
            }
        }
        (memories, left)
    }

    /// Read bandwidth that this many threads reach, GB/s.
    pub fn read_gb_s_with(&self, threads: u32) -> f64 {
        self.with(threads, self.read_gb_s, self.read_latency_ns, |point| point.read_gb_s)
    }

    /// Write bandwidth that this many threads reach, GB/s.
    pub fn write_gb_s_with(&self, threads: u32) -> f64 {
        self.with(threads, self.write_gb_s, self.write_latency_ns, |point| point.write_gb_s)
    }

    /// Whether all figures are valid numbers.
    pub(crate) fn is_sound(&self) -> bool {
        let above = |figure: f64| figure.is_finite() && figure > 0.0;
        let figures =
            [self.read_latency_ns, self.write_latency_ns, self.read_gb_s, self.write_gb_s];
        let energy = self.energy.is_none_or(|energy| {
            let all = [energy.read_pj_per_bit, energy.write_pj_per_bit, energy.static_w_per_byte];
            all.iter().all(|figure| figure.is_finite() && *figure >= 0.0)
        });
        let ascends = self.scaling.windows(2).all(|two| two[0].threads < two[1].threads);
        let scaling = self
            .scaling
            .iter()
            .all(|point| point.threads > 0 && above(point.read_gb_s) && above(point.write_gb_s));
        let apart = [self.isolated_read_factor, self.isolated_write_factor];
        let apart = apart.iter().all(|times| times.is_finite() && *times >= 1.0);
        figures.into_iter().all(above) && energy && ascends && scaling && apart
    }

    fn with(&self, threads: u32, most: f64, latency_ns: f64, figure: fn(&Scaling) -> f64) -> f64 {
        let right = self.scaling.partition_point(|point| point.threads < threads);
        let Some(last) = self.scaling.last() else {
            let one = LINES_PER_THREAD * LINE_BYTES / latency_ns;
            return most.min(one * f64::from(threads));
        };
        let Some(above) = self.scaling.get(right) else { return figure(last) };
        let (low, low_gb_s) = match right {
            0 => (0, 0.0),
            right => (self.scaling[right - 1].threads, figure(&self.scaling[right - 1])),
        };
        let share = f64::from(threads - low) / f64::from(above.threads - low);
        low_gb_s + (figure(above) - low_gb_s) * share
    }
}

fn of_tier(machine: &Machine, from: Option<NodeId>, tier: &Tier) -> Result<Memory, &'static str> {
    let id = *tier.nodes.first().ok_or("nodes")?;
    let node = machine.node(id).ok_or("nodes")?;
    let figures = machine.figures(from, id);
    let read_latency_ns = figures.read_latency_ns.ok_or("read_latency_ns")?;
    let read_gb_s = figures.read_gb_s.ok_or("read_gb_s")?;
    let energy = (|| {
        Some(Energy {
            read_pj_per_bit: node.energy.read_pj_per_bit?,
            write_pj_per_bit: node.energy.write_pj_per_bit.or(node.energy.read_pj_per_bit)?,
            static_w_per_byte: node.energy.static_w.unwrap_or(0.0) / node.capacity_bytes as f64,
        })
    })();
    let apart_times = node.granularity_bytes.map_or(1.0, |bytes| f64::from(bytes) / LINE_BYTES);
    let apart_times = apart_times.max(1.0);
    Ok(Memory {
        name: node.label(),
        nodes: tier.nodes.clone(),
        capacity_bytes: tier.capacity_bytes,
        read_latency_ns,
        write_latency_ns: figures.write_latency_ns.unwrap_or(read_latency_ns),
        read_gb_s,
        write_gb_s: figures.write_gb_s.unwrap_or(read_gb_s),
        isolated_read_factor: apart_times,
        isolated_write_factor: apart_times,
        scaling: Vec::new(),
        energy,
    })
}

/// CL of H2M Eq. 1: bytes of a cache line.
pub const LINE_BYTES: f64 = 64.0;
