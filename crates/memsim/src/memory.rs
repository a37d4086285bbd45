//! The nodes of a machine as timed servers, with what their use costs.
//! In: reads and writes of lines at a time. Out: latency under the present load; bytes, energy,
//! wear. Knows nothing of caches or cores.
//!
//! Latency has two parts: the node's curve at its present load (up to the peak), and the work that
//! waits before a server that passes no more than the node's peak (beyond it). Reads and writes
//! share the server; what it passes depends on their mix, so a half-duplex memory gets slower by
//! writes and a full-duplex link faster. Where there is no curve, reads and writes each take the
//! time of their own bandwidth.
//!
//! Several cores and misses of the near future bring their accesses out of order: in the emulator
//! by some 20 us, and more when the host is busy. So load is measured for each core by its own
//! clock, and a node's load is the sum of what its cores did last; a core that is behind counts as
//! if it went on like this. A server has no next free time but a backlog of work, which shrinks as
//! its clock advances. A core whose clock was behind brings its accesses all at once; they would
//! queue for that reason alone, so as much backlog as came late delays no access.
//!
//! Few modelled cores may stand for many ([`Memory::for_cpus`]): they then have their share of
//! every bandwidth, as if the machine's other CPUs did what they do. A share of a server is not a
//! slow server: a few lines at once pass as fast as the whole machine passes them, because the
//! other CPUs' lines do not come at the same moment. So work waits only beyond a slack, and a share
//! limits what flows in the long run.

use serde::Serialize;
use tiercel_machine::number::{index_u32, saturating_u64};
use tiercel_machine::{Energy, Figures, Machine, Node, NodeId, loaded_latency_ns, peak_gb_s};

use crate::wear::{Counters, Wear};
use crate::{Blocks, LINE_BYTES, ModelError, PS_PER_NS};

/// Length of the interval over which load is measured: some hundred lines at full bandwidth.
const INTERVAL_PS: u64 = 1_000_000;
/// Share of an interval in the smoothed load. A curve that rises steeply answers less load with
/// much less latency, which makes more load: the steepest fitted one (its peak latency 0.6 of
/// which is rise, at a slope of 50) would swing if an interval counted for 2 / (0.6 x 50) or more.
const SMOOTH: f64 = 1.0 / 16.0;
/// After so many empty intervals nothing is left of the load: (1 - 1/16)^128 is 0.03%.
const FORGET_INTERVALS: u64 = 128;
/// A core that was silent for up to this many intervals may merely lag: the emulator's clocks
/// differ by a quantum of 20 us and what a block adds. After that its load is forgotten.
const APART_INTERVALS: u64 = 32;
/// Lateness decays over this many times its own length.
const FORGET_LATE: u64 = 64;
/// Work is kept in parts of a picosecond: a byte at 833 GB/s takes 1.2 ps.
const WORK_PER_PS: u64 = 1 << 10;
/// Joules of a picojoule.
const J_PER_PJ: f64 = 1e-12;
/// No path or node.
const NONE: u32 = u32::MAX;

/// All nodes.
#[derive(Clone, Debug)]
pub struct Memory {
    servers: Vec<Server>,
    paths: Vec<Path>,
    /// Into `paths`, `[from + 1][to]` by node number, 0 for the nearest; `NONE` where no memory is.
    index: Vec<u32>,
    stride: usize,
}

/// A core's way to memory. Its accesses come in the order of their times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    number: u32,
    /// Into `Memory::index`.
    row: u32,
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
    /// Bytes the device wrote, whole blocks.
    pub device_written_bytes: u64,
    /// Energy of these accesses, joules; `None` where the machine does not give it.
    pub access_j: Option<f64>,
    /// Most time that an access waited before the server, picoseconds.
    pub longest_queue_ps: u64,
}

/// How the CPUs of a node reach the memory of another one.
#[derive(Clone, Debug)]
struct Path {
    server: u32,
    /// Beyond the latency from nearby, picoseconds: reads, writes.
    remote_extra_ps: [u64; 2],
    /// What the link passes, where it is not the node's own way.
    link: Option<(Work, [u64; 2])>,
    /// Work of the link that no access waits for.
    slack: u64,
}

#[derive(Clone, Debug)]
struct Server {
    node: Node,
    /// Part of the bandwidth that is ours, above 0 and at most 1.
    share: f64,
    /// Idle, nanoseconds: reads, writes.
    latency_ns: [f64; 2],
    /// Alone, of the whole node, GB/s: reads, writes.
    gb_s: [f64; 2],
    work: Work,
    /// By port.
    intervals: Vec<TrafficInterval>,
    /// What the present load and mix make of an access: of reads, of writes.
    rates: [Rate; 2],
    /// Blocks read and blocks written last, where blocks are larger than a line.
    buffers: Option<Box<[Blocks; 2]>>,
    wear: Counters,
    used: NodeUse,
}

/// Where and when a line is asked for: `ahead_ps` after the time of the core.
#[derive(Clone, Copy, Debug)]
struct When {
    addr: u64,
    at_ps: u64,
    ahead_ps: u64,
}

/// What waits to be done.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    clock_ps: u64,
    /// In parts of a picosecond.
    waiting: u64,
    /// By how much accesses came late, lately.
    late_ps: u64,
}

/// What an access costs at present.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    latency_ps: u64,
    work_per_byte: u64,
    slack: u64,
}

/// A core's traffic of the interval that runs, and its smoothed load and mix before it.
#[derive(Clone, Copy, Debug, Default)]
struct TrafficInterval {
    start_ps: u64,
    /// Reads, writes.
    bytes: [u64; 2],
    /// GB/s: reads, writes.
    load_gb_s: [f64; 2],
}

impl Memory {
    /// All nodes with memory of a machine, idle. Each needs read latency and bandwidth; writes
    /// count as fast as reads where the machine does not say. A node seen from CPUs that are not
    /// its nearest is as its nearest see it unless a link says more.
    pub fn new(machine: &Machine) -> Result<Memory, ModelError> {
        Memory::shared_out(machine, &|_| 1.0)
    }

    /// The same for a few of the machine's CPUs, given by the nodes they sit beside, while all
    /// others do what these do: a node's bandwidth is divided by the number of the CPUs it is
    /// nearest to, a link's by those behind it, and each CPU here has one part. Where none of them
    /// is near, it has as much as all CPUs here are of all there are. Latencies stay.
    pub fn for_cpus(machine: &Machine, cpus: &[NodeId]) -> Result<Memory, ModelError> {
        Memory::shared_out(machine, &|node| share_of(machine, cpus, node))
    }

    fn shared_out(machine: &Machine, share: &dyn Fn(NodeId) -> f64) -> Result<Memory, ModelError> {
        let server = |node: &Node| Server::new(node, share(node.id));
        let servers = machine.memory_nodes().map(server).collect::<Result<Vec<_>, _>>()?;
        let stride = machine.nodes.last().map_or(0, |node| usize::from(node.id.0) + 1);
        let mut near = vec![NONE; stride];
        for (at, server) in servers.iter().enumerate() {
            near[usize::from(server.node.id.0)] = index_u32(at);
        }
        let mut paths: Vec<Path> = (0..index_u32(servers.len())).map(Path::near).collect();
        let mut index = near.repeat(stride + 1);
        for link in &machine.links {
            let server = near[usize::from(link.to.0)];
            if server != NONE {
                index[(usize::from(link.from.0) + 1) * stride + usize::from(link.to.0)] =
                    index_u32(paths.len());
                let near = &servers[server as usize];
                paths.push(Path::far(server, near, link.figures, share(link.from)));
            }
        }
        Ok(Memory { servers, paths, index, stride })
    }

    /// One more core, of the CPUs of `home` (`None`: near to all memory).
    pub fn port(&mut self, home: Option<NodeId>) -> Port {
        let number = self.servers.first().map_or(0, |server| server.intervals.len());
        for server in &mut self.servers {
            server.intervals.push(TrafficInterval::default());
        }
        let row = home.map_or(0, |home| (usize::from(home.0) + 1) * self.stride);
        Port { number: index_u32(number), row: index_u32(row) }
    }

    /// A core reads a line; returns after how many picoseconds the data is there. `at_ps` is the
    /// core's time; the access comes `ahead_ps` later, because its address is known only then.
    /// Panics on a node without memory: placing something there is the caller's error.
    #[inline]
    pub fn read(&mut self, port: Port, node: NodeId, addr: u64, at_ps: u64, ahead_ps: u64) -> u64 {
        self.access(port, node, When { addr, at_ps, ahead_ps }, false)
    }

    /// A line is written; returns after how many picoseconds it is taken.
    #[inline]
    pub fn write(&mut self, port: Port, node: NodeId, addr: u64, at_ps: u64) -> u64 {
        self.access(port, node, When { addr, at_ps, ahead_ps: 0 }, true)
    }

    /// What went through a node so far.
    pub fn used(&self, node: NodeId) -> NodeUse {
        let server = self.server(node);
        NodeUse { access_j: server.access_j(), ..server.used }
    }

    /// How often the blocks of a node were written so far.
    pub fn wear(&self, node: NodeId) -> Wear {
        self.server(node).wear.summary()
    }

    /// Energy of all nodes together over `elapsed_ps`, joules: accesses, and static power where
    /// known.
    pub fn energy_j(&self, elapsed_ps: u64) -> f64 {
        let seconds = elapsed_ps as f64 * 1e-12;
        let of = |server: &Server| {
            server.access_j().unwrap_or(0.0) + server.node.energy.static_w.unwrap_or(0.0) * seconds
        };
        self.servers.iter().map(of).sum()
    }

    #[inline]
    fn access(&mut self, port: Port, node: NodeId, when: When, write: bool) -> u64 {
        let at = port.row as usize + usize::from(node.0);
        let path = &mut self.paths[self.index[at] as usize];
        let server = &mut self.servers[path.server as usize];
        let mut latency_ps =
            server.access(port, when, write) + path.remote_extra_ps[usize::from(write)];
        if let Some((work, per_byte)) = &mut path.link {
            let work_added = LINE_BYTES * per_byte[usize::from(write)];
            latency_ps += work.add(when, work_added, path.slack);
        }
        latency_ps
    }

    fn server(&self, node: NodeId) -> &Server {
        let path = &self.paths[self.index[usize::from(node.0)] as usize];
        &self.servers[path.server as usize]
    }
}

impl Path {
    fn near(server: u32) -> Path {
        Path { server, remote_extra_ps: [0; 2], link: None, slack: 0 }
    }

    fn far(server: u32, near: &Server, figures: Figures, share: f64) -> Path {
        let remote_extra_ps = |far: Option<f64>, near_ns: f64| {
            far.map_or(0, |far_ns| saturating_u64((far_ns - near_ns).max(0.0) * PS_PER_NS))
        };
        let write_ns = figures.write_latency_ns.or(figures.read_latency_ns);
        let link = figures.read_gb_s.map(|read_gb_s| {
            let write_gb_s = figures.write_gb_s.unwrap_or(read_gb_s);
            (Work::default(), [read_gb_s, write_gb_s].map(|gb_s| work_per_byte(gb_s * share)))
        });
        Path {
            server,
            slack: link.map_or(0, |(_, per_byte)| slack(per_byte[0] * LINE_BYTES, share)),
            remote_extra_ps: [
                remote_extra_ps(figures.read_latency_ns, near.latency_ns[0]),
                remote_extra_ps(write_ns, near.latency_ns[1]),
            ],
            link,
        }
    }
}

impl Server {
    fn new(node: &Node, share: f64) -> Result<Server, ModelError> {
        let unknown = |figure| ModelError::Unknown { node: node.id, figure };
        let figures = node.figures;
        let read_latency_ns = figures.read_latency_ns.ok_or(unknown("read_latency_ns"))?;
        let read_gb_s = figures.read_gb_s.ok_or(unknown("read_gb_s"))?;
        let blocks = node.granularity_bytes.is_some_and(|bytes| u64::from(bytes) > LINE_BYTES);
        let mut server = Server {
            share,
            latency_ns: [read_latency_ns, figures.write_latency_ns.unwrap_or(read_latency_ns)],
            gb_s: [read_gb_s, figures.write_gb_s.unwrap_or(read_gb_s)],
            work: Work::default(),
            intervals: Vec::new(),
            rates: [Rate::default(); 2],
            buffers: blocks.then(Box::default),
            wear: Counters::new(node.capacity_bytes),
            used: NodeUse::default(),
            node: node.clone(),
        };
        server.rate(0);
        Ok(server)
    }

    #[inline]
    fn access(&mut self, port: Port, when: When, write: bool) -> u64 {
        let When { addr, at_ps, .. } = when;
        let interval = &mut self.intervals[port.number as usize];
        if at_ps >= interval.start_ps + INTERVAL_PS {
            interval.close(at_ps);
            self.rate(at_ps);
        }
        let bytes = self.device_bytes(addr, write);
        self.intervals[port.number as usize].bytes[usize::from(write)] += bytes;
        if write {
            self.used.writes += 1;
            self.used.device_written_bytes += bytes;
            if bytes > 0 {
                self.wear.add(addr);
            }
        } else {
            self.used.reads += 1;
            self.used.device_read_bytes += bytes;
        }
        let rate = self.rates[usize::from(write)];
        let queue_ps = self.work.add(when, bytes * rate.work_per_byte, rate.slack);
        self.used.longest_queue_ps = self.used.longest_queue_ps.max(queue_ps);
        queue_ps + rate.latency_ps
    }

    /// Looks the curve up once an interval, not once an access.
    fn rate(&mut self, now_ps: u64) {
        let loads = self.intervals.iter().map(|interval| interval.load_gb_s_at(now_ps));
        let [read_gb_s, write_gb_s] =
            loads.fold([0.0, 0.0], |sum, load| [sum[0] + load[0], sum[1] + load[1]]);
        // What the whole node would see.
        let load_gb_s = (read_gb_s + write_gb_s) / self.share;
        let read_share = if load_gb_s > 0.0 { read_gb_s / self.share / load_gb_s } else { 1.0 };
        let curve = &self.node.curve;
        let at = |load| loaded_latency_ns(curve, read_share, load).unwrap_or(0.0);
        // The curve's idle end and the idle figure may come from different tools: its rise counts.
        let rise_ns = (at(load_gb_s) - at(0.0)).max(0.0);
        let peak_gb_s = peak_gb_s(curve, read_share);
        let block_bytes = self.node.granularity_bytes.map_or(LINE_BYTES, u64::from).max(LINE_BYTES);
        self.rates = [0, 1].map(|kind| {
            let work_per_byte = work_per_byte(peak_gb_s.unwrap_or(self.gb_s[kind]) * self.share);
            Rate {
                latency_ps: saturating_u64((self.latency_ns[kind] + rise_ns) * PS_PER_NS),
                work_per_byte,
                slack: slack(work_per_byte * block_bytes, self.share),
            }
        });
    }

    /// Bytes the device moves for a line: itself, or its block unless the buffer has it.
    #[inline]
    fn device_bytes(&mut self, addr: u64, write: bool) -> u64 {
        let Some(buffers) = &mut self.buffers else { return LINE_BYTES };
        let block_bytes = u64::from(self.node.granularity_bytes.unwrap_or(0));
        let is_there = buffers[usize::from(write)].uses(addr / block_bytes);
        if is_there { 0 } else { block_bytes }
    }

    fn access_j(&self) -> Option<f64> {
        let Energy { read_pj_per_bit, write_pj_per_bit, .. } = self.node.energy;
        let joules = |bytes: u64, pj: f64| (bytes * 8) as f64 * pj * J_PER_PJ;
        let NodeUse { device_read_bytes, device_written_bytes, .. } = self.used;
        Some(joules(device_read_bytes, read_pj_per_bit?))
            .zip(write_pj_per_bit)
            .map(|(read_j, pj)| read_j + joules(device_written_bytes, pj))
    }
}

impl Work {
    /// More work; how long what is there already, but for the slack, still takes when this comes.
    #[inline]
    fn add(&mut self, when: When, work: u64, slack: u64) -> u64 {
        let passed_ps = when.at_ps.saturating_sub(self.clock_ps);
        let late_ps = self.clock_ps.saturating_sub(when.at_ps);
        self.late_ps = self.late_ps.saturating_sub(passed_ps / FORGET_LATE).max(late_ps);
        self.clock_ps += passed_ps;
        self.waiting = self.waiting.saturating_sub(passed_ps.saturating_mul(WORK_PER_PS));
        let slack = slack + self.late_ps * WORK_PER_PS;
        let queued_ps = self.waiting.saturating_sub(slack) / WORK_PER_PS;
        let queue_ps = queued_ps.saturating_sub(when.ahead_ps);
        self.waiting += work;
        queue_ps
    }
}

impl TrafficInterval {
    /// Ends the interval and the empty ones after it, as if their traffic had been even.
    fn close(&mut self, at_ps: u64) {
        let intervals = (at_ps - self.start_ps) / INTERVAL_PS;
        let elapsed_ps = (intervals * INTERVAL_PS) as f64;
        let keep = kept(intervals);
        for (load_gb_s, bytes) in self.load_gb_s.iter_mut().zip(&mut self.bytes) {
            let now_gb_s = std::mem::take(bytes) as f64 * PS_PER_NS / elapsed_ps;
            *load_gb_s = now_gb_s + (*load_gb_s - now_gb_s) * keep;
        }
        self.start_ps += intervals * INTERVAL_PS;
    }

    /// The load as others see it, by the clock of one of them.
    fn load_gb_s_at(&self, now_ps: u64) -> [f64; 2] {
        let silent = now_ps.saturating_sub(self.start_ps) / INTERVAL_PS;
        match silent.saturating_sub(APART_INTERVALS) {
            0 => self.load_gb_s,
            FORGET_INTERVALS.. => [0.0; 2],
            silent => self.load_gb_s.map(|load_gb_s| load_gb_s * kept(silent)),
        }
    }
}

/// What is left of a load after so many intervals.
fn kept(intervals: u64) -> f64 {
    (0..intervals.min(FORGET_INTERVALS)).fold(1.0, |kept, _| kept * (1.0 - SMOOTH))
}

/// Burst allowance of a share of a bandwidth: with a share of 1/n, n blocks pass before queueing
/// starts, since the other CPUs' part of a burst is absent.
fn slack(work_per_block: u64, share: f64) -> u64 {
    saturating_u64(work_per_block as f64 * (1.0 / share - 1.0))
}

/// The part of a node's CPUs that sits here; at most all.
fn share_of(machine: &Machine, cpus: &[NodeId], node: NodeId) -> f64 {
    let near = |from: NodeId| machine.node(node).is_some_and(|node| node.is_near(from));
    let count = |wanted: &dyn Fn(NodeId) -> bool| {
        let there = machine.nodes.iter().filter(|node| wanted(node.id));
        let here = cpus.iter().filter(|&&cpu| wanted(cpu)).count();
        (here, there.map(|node| node.cpus.len()).sum::<usize>())
    };
    let (here, there) = match count(&near) {
        (0, _) | (_, 0) => count(&|_| true),
        some => some,
    };
    if here == 0 { 1.0 } else { (here as f64 / there.max(1) as f64).min(1.0) }
}

fn work_per_byte(gb_s: f64) -> u64 {
    saturating_u64((PS_PER_NS * WORK_PER_PS as f64 / gb_s).round())
}
