//! The nodes of a machine as timed servers, with what their use costs.
//! In: reads and writes of lines at a time. Out: latency under the present load; bytes, energy,
//! wear. Knows nothing of caches or cores.
//!
//! Latency has two parts: the node's curve at the load of the last interval (below the knee), and
//! the queue before a server that passes no more than the node's peak bandwidth (beyond it). Reads
//! and writes share the server; what it passes depends on their mix, so a half-duplex memory gets
//! slower by writes and a full-duplex link faster.

use serde::Serialize;
use tiercel_machine::{Machine, Node, NodeId, loaded_latency_ns, peak_gb_s};

use crate::{LINE_BYTES, ModelError, PS_PER_NS};

/// Length of the interval over which load is measured: long against a latency, short against any
/// phase of a program.
const INTERVAL_PS: u64 = 4_000_000;
/// Blocks in the buffer of a memory whose blocks are larger than a line: Optane has 16 KiB of 256
/// bytes (Izraelevitz 2019).
const BUFFER_BLOCKS: usize = 64;
/// Joules of a picojoule.
const J_PER_PJ: f64 = 1e-12;

/// All nodes.
#[derive(Clone, Debug)]
pub struct Memory {
    servers: Vec<Server>,
    /// Index into `servers` by node number; `usize::MAX` where there is none.
    index: Vec<usize>,
}

/// What has gone through a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct NodeUse {
    /// Lines read.
    pub reads: u64,
    /// Lines written.
    pub writes: u64,
    /// Bytes the device read, whole blocks.
    pub device_read_bytes: u64,
    /// Bytes the device wrote, whole blocks: its wear.
    pub device_written_bytes: u64,
    /// Energy of these accesses, joules; `None` where the machine does not give it.
    pub access_j: Option<f64>,
    /// Most time that an access waited in the queue, picoseconds.
    pub longest_queue_ps: u64,
}

#[derive(Clone, Debug)]
struct Server {
    node: Node,
    read_latency_ns: f64,
    write_latency_ns: f64,
    read_gb_s: f64,
    write_gb_s: f64,
    /// The server is busy until then.
    free_ps: u64,
    interval: Interval,
    /// What the last interval's load and mix make of an access: for reads, for writes.
    rates: [Rate; 2],
    /// Blocks read and blocks written last, where blocks are larger than a line.
    buffers: Option<Box<[[u64; BUFFER_BLOCKS]; 2]>>,
    used: NodeUse,
}

/// What an access costs until the interval ends.
#[derive(Clone, Copy, Debug)]
struct Rate {
    latency_ps: u64,
    service_ps_per_byte: f64,
}

/// Traffic of the interval that runs, and load and mix of the one before.
#[derive(Clone, Copy, Debug)]
struct Interval {
    start_ps: u64,
    read_bytes: u64,
    write_bytes: u64,
    load_gb_s: f64,
    read_share: f64,
}

impl Memory {
    /// All nodes with memory of a machine, idle. Each needs read latency and bandwidth; writes
    /// count as fast as reads where the machine does not say.
    pub fn new(machine: &Machine) -> Result<Memory, ModelError> {
        let servers = machine.memory_nodes().map(Server::new).collect::<Result<Vec<_>, _>>()?;
        let count = servers.last().map_or(0, |server| usize::from(server.node.id.0) + 1);
        let mut index = vec![usize::MAX; count];
        for (at, server) in servers.iter().enumerate() {
            index[usize::from(server.node.id.0)] = at;
        }
        Ok(Memory { servers, index })
    }

    /// A line is read; returns after how many picoseconds the data is there. Panics on a node
    /// without memory: placing something there is the caller's error.
    pub fn read(&mut self, node: NodeId, addr: u64, at_ps: u64) -> u64 {
        self.server(node).access(addr, at_ps, false)
    }

    /// A line is written; returns after how many picoseconds it is taken.
    pub fn write(&mut self, node: NodeId, addr: u64, at_ps: u64) -> u64 {
        self.server(node).access(addr, at_ps, true)
    }

    /// What went through a node so far.
    pub fn used(&self, node: NodeId) -> NodeUse {
        self.servers[self.index[usize::from(node.0)]].used
    }

    /// Energy of all nodes together over `elapsed_ps`, joules: accesses, and static power where
    /// known.
    pub fn energy_j(&self, elapsed_ps: u64) -> f64 {
        let seconds = elapsed_ps as f64 * 1e-12;
        let of = |server: &Server| {
            server.used.access_j.unwrap_or(0.0)
                + server.node.energy.static_w.unwrap_or(0.0) * seconds
        };
        self.servers.iter().map(of).sum()
    }

    fn server(&mut self, node: NodeId) -> &mut Server {
        &mut self.servers[self.index[usize::from(node.0)]]
    }
}

impl Server {
    fn new(node: &Node) -> Result<Server, ModelError> {
        let unknown = |figure| ModelError::Unknown { node: node.id, figure };
        let figures = node.figures;
        let read_latency_ns = figures.read_latency_ns.ok_or(unknown("read_latency_ns"))?;
        let read_gb_s = figures.read_gb_s.ok_or(unknown("read_gb_s"))?;
        let blocks = node.granularity_bytes.is_some_and(|bytes| u64::from(bytes) > LINE_BYTES);
        let energy = node.energy.read_pj_per_bit.and(node.energy.write_pj_per_bit);
        let idle = Rate { latency_ps: 0, service_ps_per_byte: 0.0 };
        let mut server = Server {
            read_latency_ns,
            write_latency_ns: figures.write_latency_ns.unwrap_or(read_latency_ns),
            read_gb_s,
            write_gb_s: figures.write_gb_s.unwrap_or(read_gb_s),
            free_ps: 0,
            interval: Interval::idle(),
            buffers: blocks.then(|| Box::new([[u64::MAX; BUFFER_BLOCKS]; 2])),
            used: NodeUse { access_j: energy.map(|_| 0.0), ..NodeUse::default() },
            rates: [idle, idle],
            node: node.clone(),
        };
        server.rate();
        Ok(server)
    }

    fn access(&mut self, addr: u64, at_ps: u64, write: bool) -> u64 {
        if self.interval.advance(at_ps) {
            self.rate();
        }
        let bytes = self.device_bytes(addr, write);
        self.interval.add(bytes, write);
        self.account(bytes, write);
        let queue_ps = self.free_ps.saturating_sub(at_ps);
        self.used.longest_queue_ps = self.used.longest_queue_ps.max(queue_ps);
        let rate = self.rates[usize::from(write)];
        let service_ps = (bytes as f64 * rate.service_ps_per_byte).round() as u64;
        self.free_ps = self.free_ps.max(at_ps) + service_ps;
        queue_ps + rate.latency_ps
    }

    /// Looks the curve up once an interval, not once an access.
    fn rate(&mut self) {
        self.rates = [false, true].map(|write| Rate {
            latency_ps: (self.latency_ns(write) * PS_PER_NS) as u64,
            service_ps_per_byte: PS_PER_NS / self.passes_gb_s(write),
        });
    }

    /// Bytes the device moves for a line: itself, or its block unless the buffer has it.
    fn device_bytes(&mut self, addr: u64, write: bool) -> u64 {
        let Some(buffers) = &mut self.buffers else { return LINE_BYTES };
        let block_bytes = u64::from(self.node.granularity_bytes.unwrap_or(0));
        let block = addr / block_bytes;
        let slot = &mut buffers[usize::from(write)][(block % BUFFER_BLOCKS as u64) as usize];
        if std::mem::replace(slot, block) == block { 0 } else { block_bytes }
    }

    fn account(&mut self, bytes: u64, write: bool) {
        let energy = self.node.energy;
        let (pj_per_bit, lines, device_bytes) = if write {
            let used = &mut self.used;
            (energy.write_pj_per_bit, &mut used.writes, &mut used.device_written_bytes)
        } else {
            let used = &mut self.used;
            (energy.read_pj_per_bit, &mut used.reads, &mut used.device_read_bytes)
        };
        *lines += 1;
        *device_bytes += bytes;
        if let (Some(sum), Some(pj)) = (&mut self.used.access_j, pj_per_bit) {
            *sum += (bytes * 8) as f64 * pj * J_PER_PJ;
        }
    }

    /// What the server passes at the present mix, GB/s.
    fn passes_gb_s(&self, write: bool) -> f64 {
        let own = if write { self.write_gb_s } else { self.read_gb_s };
        peak_gb_s(&self.node.curve, self.interval.read_share).unwrap_or(own)
    }

    fn latency_ns(&self, write: bool) -> f64 {
        let idle = if write { self.write_latency_ns } else { self.read_latency_ns };
        let Interval { load_gb_s, read_share, .. } = self.interval;
        let at = |load| loaded_latency_ns(&self.node.curve, read_share, load);
        match (at(load_gb_s), at(0.0)) {
            // The curve's idle end and the idle figure may come from different tools: its rise
            // counts.
            (Some(loaded), Some(unloaded)) => idle + (loaded - unloaded).max(0.0),
            _ => idle,
        }
    }
}

impl Interval {
    fn idle() -> Interval {
        Interval { start_ps: 0, read_bytes: 0, write_bytes: 0, load_gb_s: 0.0, read_share: 1.0 }
    }

    /// Ends intervals that are over at `at_ps`, says whether any is. Empty ones leave no load.
    fn advance(&mut self, at_ps: u64) -> bool {
        let elapsed_ps = at_ps.saturating_sub(self.start_ps);
        if elapsed_ps < INTERVAL_PS {
            return false;
        }
        let bytes = self.read_bytes + self.write_bytes;
        let just_over = elapsed_ps < 2 * INTERVAL_PS;
        self.load_gb_s =
            if just_over { bytes as f64 * PS_PER_NS / INTERVAL_PS as f64 } else { 0.0 };
        if bytes > 0 {
            self.read_share = self.read_bytes as f64 / bytes as f64;
        }
        (self.read_bytes, self.write_bytes) = (0, 0);
        self.start_ps = at_ps / INTERVAL_PS * INTERVAL_PS;
        true
    }

    fn add(&mut self, bytes: u64, write: bool) {
        if write {
            self.write_bytes += bytes;
        } else {
            self.read_bytes += bytes;
        }
    }
}
