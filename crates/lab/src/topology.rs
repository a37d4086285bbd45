//! A machine shrunk to a guest: nodes, virtual CPUs, distances, firmware figures.
//! In: [`Machine`] and a [`Size`]. Out: [`Topology`], and QEMU's arguments for it.
//! Knows nothing of processes or files.

use anyhow::{Result, ensure};
use tiercel_machine::number;
use tiercel_machine::{Figures, Kind, Machine, Node, NodeId};

/// Linux on x86 hands memory to nodes in blocks of 128 MiB.
const BLOCK_BYTES: u64 = 128 << 20;

/// Least memory of the first node, which holds the kernel, the unpacked root file system and the
/// per-node tables.
const FIRST_NODE_BYTES: u64 = 3 * BLOCK_BYTES;

/// 65535 means "unreachable"; one less allows for rounding up.
const HMAT_MAX_ENTRY: u64 = 65_533;

/// QEMU's own limit (MAX_NODES).
const MAX_NODES: usize = 128;

/// Size of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Memory of all nodes together, divided in the machine's proportions in steps of 128 MiB.
    /// Grows if the smallest nodes need it.
    pub memory_bytes: u64,
    /// Virtual CPUs; at least one for each node with CPUs.
    pub cpus: u32,
}

/// What the guest's firmware describes.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// The machine's name.
    pub machine: String,
    /// In the machine's order; the guest numbers them 0, 1, 2, ...
    pub nodes: Vec<GuestNode>,
    /// `distances[i][j]` from node i to node j, 10 = local.
    pub distances: Vec<Vec<u16>>,
    /// Figures for each (node with CPUs, node with memory).
    pub links: Vec<GuestLink>,
}

/// One node of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestNode {
    /// Its number on the machine.
    pub origin: NodeId,
    /// Its memory; 0 for CPUs without memory.
    pub memory_bytes: u64,
    /// Its virtual CPUs; 0 for memory-only nodes.
    pub cpus: u32,
    /// The node (of the guest) whose CPUs reach it best; itself when it has CPUs.
    pub initiator: usize,
}

/// Latency and bandwidth from the CPUs of one node to the memory of another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GuestLink {
    /// Node with the CPUs.
    pub from: usize,
    /// Node with the memory.
    pub to: usize,
    /// All four present.
    pub figures: Figures,
}

impl Default for Size {
    /// Fits any laptop, and workloads of a few hundred MiB.
    fn default() -> Size {
        Size { memory_bytes: 2 << 30, cpus: 2 }
    }
}

impl Topology {
    /// The machine, shrunk. Latencies and bandwidths stay the same.
    pub fn of(machine: &Machine, size: Size) -> Result<Topology> {
        let count = machine.nodes.len();
        ensure!((1..=MAX_NODES).contains(&count), "{count} nodes; QEMU takes 1 to {MAX_NODES}");
        let with_cpus: Vec<usize> = (0..count).filter(|&i| machine.nodes[i].has_cpus()).collect();
        ensure!(!with_cpus.is_empty(), "machine {}: no node has CPUs", machine.name);
        ensure!(machine.nodes[0].has_memory(), "machine {}: node 0 needs memory", machine.name);
        let memory = share_memory(machine, size.memory_bytes);
        let cpus = share_cpus(size.cpus, with_cpus.len());
        let nodes = (0..count)
            .map(|i| GuestNode {
                origin: machine.nodes[i].id,
                memory_bytes: memory[i],
                cpus: with_cpus.iter().position(|&n| n == i).map_or(0, |n| cpus[n]),
                initiator: nearest(machine, &with_cpus, i),
            })
            .collect();
        Ok(Topology {
            machine: machine.name.clone(),
            nodes,
            distances: distances(machine),
            links: links(machine, &with_cpus),
        })
    }

    /// Virtual CPUs of all nodes.
    pub fn cpus(&self) -> u32 {
        self.nodes.iter().map(|node| node.cpus).sum()
    }

    /// Memory of all nodes, bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.nodes.iter().map(|node| node.memory_bytes).sum()
    }

    /// QEMU's arguments for memory, CPUs, nodes, distances and the HMAT.
    pub(crate) fn qemu_args(&self) -> Vec<String> {
        let mut args = vec!["-m".to_owned(), format!("{}M", self.memory_bytes() >> 20)];
        args.extend(self.cpu_args());
        for (i, node) in self.nodes.iter().enumerate() {
            let mut text = format!("node,nodeid={i},initiator={}", node.initiator);
            if node.memory_bytes > 0 {
                let size = node.memory_bytes >> 20;
                args.push("-object".to_owned());
                args.push(format!("memory-backend-ram,id=memory{i},size={size}M"));
                text += &format!(",memdev=memory{i}");
            }
            args.extend(["-numa".to_owned(), text]);
        }
        let sockets = self.nodes.iter().enumerate().filter(|(_, node)| node.cpus > 0);
        for (socket, (i, _)) in sockets.enumerate() {
            args.extend(["-numa".to_owned(), format!("cpu,node-id={i},socket-id={socket}")]);
        }
        for (i, row) in self.distances.iter().enumerate() {
            for (j, distance) in row.iter().enumerate().filter(|(j, _)| *j != i) {
                args.push("-numa".to_owned());
                args.push(format!("dist,src={i},dst={j},val={distance}"));
            }
        }
        let unit = self.bandwidth_unit_mib_s();
        args.extend(self.links.iter().flat_map(|link| hmat_args(link, unit)));
        args
    }

    /// The firmware table has 16-bit multiples of one unit: the smallest power of two, in MiB/s,
    /// with which the largest bandwidth fits.
    fn bandwidth_unit_mib_s(&self) -> u64 {
        let figures =
            self.links.iter().flat_map(|link| [link.figures.read_gb_s, link.figures.write_gb_s]);
        let largest = figures.map(mib_per_s).fold(1.0, f64::max);
        let largest = number::saturating_u64(largest);
        largest.div_ceil(HMAT_MAX_ENTRY).next_power_of_two()
    }

    /// One socket per node with CPUs. QEMU requires sockets of equal size, so the smaller ones are
    /// padded with CPUs that stay unplugged.
    fn cpu_args(&self) -> [String; 2] {
        let sockets: u32 = self.nodes.iter().map(|node| u32::from(node.cpus > 0)).sum();
        let cores = self.nodes.iter().map(|node| node.cpus).max().unwrap_or(1);
        let cpus = sockets * cores;
        ["-smp".to_owned(), format!("{cpus},sockets={sockets},cores={cores},threads=1")]
    }
}

/// Whole blocks in the machine's proportions, at least one for each node with memory.
fn share_memory(machine: &Machine, memory_bytes: u64) -> Vec<u64> {
    let total = machine.capacity_bytes() as f64;
    let share = |(i, node): (usize, &Node)| {
        let bytes = node.capacity_bytes as f64 / total * memory_bytes as f64;
        let least = match (node.has_memory(), i) {
            (false, _) => 0,
            (true, 0) => FIRST_NODE_BYTES / BLOCK_BYTES,
            (true, _) => 1,
        };
        number::saturating_u64((bytes / BLOCK_BYTES as f64).round()).max(least) * BLOCK_BYTES
    };
    machine.nodes.iter().enumerate().map(share).collect()
}

/// As many CPUs for each node: at least one, all equal, because QEMU's sockets are.
fn share_cpus(cpus: u32, nodes: usize) -> Vec<u32> {
    vec![cpus.div_ceil(u32::try_from(nodes).unwrap_or(u32::MAX)).max(1); nodes]
}

/// The node with CPUs that reaches node `i` best: itself, or a stated initiator, or the one with
/// the least distance, the least latency, or the first.
fn nearest(machine: &Machine, with_cpus: &[usize], i: usize) -> usize {
    let node = &machine.nodes[i];
    if node.has_cpus() {
        return i;
    }
    let id = |n: usize| machine.nodes[n].id;
    let stated = with_cpus.iter().copied().find(|&n| node.initiators.contains(&id(n)));
    let cost = |n: usize| {
        let latency = machine.figures(Some(id(n)), node.id).read_latency_ns;
        (machine.distance(id(n), node.id).unwrap_or(u16::MAX), latency.unwrap_or(f64::MAX))
    };
    let order = |a: &(u16, f64), b: &(u16, f64)| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1));
    stated.unwrap_or_else(|| {
        let best = with_cpus.iter().copied().min_by(|&a, &b| order(&cost(a), &cost(b)));
        best.expect("with_cpus is not empty")
    })
}

/// The machine's distances, or default ones that distinguish local, remote and memory-only nodes.
fn distances(machine: &Machine) -> Vec<Vec<u16>> {
    let nodes = &machine.nodes;
    let made_up = |i: usize, j: usize| match (i == j, nodes[i].has_cpus() && nodes[j].has_cpus()) {
        (true, _) => 10,
        (false, true) => 20,
        (false, false) if nodes[j].is_near(nodes[i].id) || nodes[i].is_near(nodes[j].id) => 30,
        (false, false) => 40,
    };
    (0..nodes.len())
        .map(|i| {
            (0..nodes.len())
                .map(|j| {
                    let given = machine.distances.get(i).and_then(|row| row.get(j)).copied();
                    given.unwrap_or_else(|| made_up(i, j))
                })
                .collect()
        })
        .collect()
}

fn links(machine: &Machine, with_cpus: &[usize]) -> Vec<GuestLink> {
    let targets = (0..machine.nodes.len()).filter(|&i| machine.nodes[i].has_memory());
    targets
        .flat_map(|to| with_cpus.iter().map(move |&from| (from, to)))
        .map(|(from, to)| GuestLink { from, to, figures: complete(machine, from, to) })
        .collect()
}

/// Fills in missing figures: writes are like reads, remote is local times the distance's factor,
/// and a node without any figure gets those typical of its kind.
fn complete(machine: &Machine, from: usize, to: usize) -> Figures {
    let (from, node) = (machine.nodes[from].id, &machine.nodes[to]);
    let seen = machine.figures(Some(from), node.id);
    let local = typical(node.kind, &node.figures);
    let factor = if node.is_near(from) { 1.0 } else { REMOTE_FACTOR };
    let scaled = Figures {
        read_latency_ns: local.read_latency_ns.map(|v| v * factor),
        write_latency_ns: local.write_latency_ns.map(|v| v * factor),
        read_gb_s: local.read_gb_s.map(|v| v / factor),
        write_gb_s: local.write_gb_s.map(|v| v / factor),
    };
    Figures {
        read_latency_ns: seen.read_latency_ns.or(scaled.read_latency_ns),
        write_latency_ns: seen
            .write_latency_ns
            .or(seen.read_latency_ns)
            .or(scaled.write_latency_ns),
        read_gb_s: seen.read_gb_s.or(scaled.read_gb_s),
        write_gb_s: seen.write_gb_s.or(seen.read_gb_s).or(scaled.write_gb_s),
    }
}

/// DDR5 over UPI against local, measured on Emerald Rapids: 200 ns against 112 (Mess).
const REMOTE_FACTOR: f64 = 1.7;

fn mib_per_s(gb_s: Option<f64>) -> f64 {
    gb_s.unwrap_or_default() * 1e9 / f64::from(1 << 20)
}

fn typical(kind: Kind, given: &Figures) -> Figures {
    // Idle latency and read bandwidth of one socket: Mess's measured curves; Optane: Izraelevitz
    // 2019.
    let (latency_ns, gb_s) = match kind {
        Kind::Dram | Kind::Unknown => (112.0, 248.0),
        Kind::Hbm => (129.0, 638.0),
        Kind::Cxl => (216.0, 51.9),
        Kind::Nvm => (305.0, 39.4),
    };
    let read_latency_ns = given.read_latency_ns.unwrap_or(latency_ns);
    let read_gb_s = given.read_gb_s.unwrap_or(gb_s);
    Figures {
        read_latency_ns: Some(read_latency_ns),
        write_latency_ns: Some(given.write_latency_ns.unwrap_or(read_latency_ns)),
        read_gb_s: Some(read_gb_s),
        write_gb_s: Some(given.write_gb_s.unwrap_or(read_gb_s)),
    }
}

/// Latencies are in whole nanoseconds, bandwidths in whole units.
fn hmat_args(link: &GuestLink, unit_mib_s: u64) -> Vec<String> {
    let GuestLink { from, to, figures } = link;
    let whole = |value: f64| number::saturating_u64(value.round().max(1.0));
    let ns = |value: Option<f64>| whole(value.unwrap_or_default());
    let mib_s = |value| whole(mib_per_s(value) / unit_mib_s as f64) * unit_mib_s;
    let entries = [
        ("read-latency", format!("latency={}", ns(figures.read_latency_ns))),
        ("write-latency", format!("latency={}", ns(figures.write_latency_ns))),
        ("read-bandwidth", format!("bandwidth={}M", mib_s(figures.read_gb_s))),
        ("write-bandwidth", format!("bandwidth={}M", mib_s(figures.write_gb_s))),
    ];
    let argument = |(kind, value): (&str, String)| {
        let at = format!("hmat-lb,initiator={from},target={to},hierarchy=memory");
        ["-numa".to_owned(), format!("{at},data-type={kind},{value}")]
    };
    entries.into_iter().flat_map(argument).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_TIERS: &str = r#"
        name = "two-tiers"
        [[node]]
        id = 0
        kind = "dram"
        capacity = "64 GiB"
        cpus = "0-7"
        figures = { read_latency_ns = 80.0, read_gb_s = 100.0 }
        [[node]]
        id = 4
        kind = "cxl"
        capacity = "192 GiB"
    "#;

    fn topology(toml: &str, memory_mib: u64, cpus: u32) -> Result<Topology> {
        let machine = Machine::from_toml(toml).expect("a valid machine");
        Topology::of(&machine, Size { memory_bytes: memory_mib << 20, cpus })
    }

    #[test]
    fn a_machine_becomes_qemu_arguments() {
        let args = topology(TWO_TIERS, 2048, 2).expect("fits").qemu_args();
        let lines: Vec<String> = args.chunks(2).map(|pair| pair.join(" ")).collect();
        let hmat = "-numa hmat-lb,initiator=0,target";
        let expect = [
            "-m 2048M".to_owned(),
            "-smp 2,sockets=1,cores=2,threads=1".to_owned(),
            "-object memory-backend-ram,id=memory0,size=512M".to_owned(),
            "-numa node,nodeid=0,initiator=0,memdev=memory0".to_owned(),
            "-object memory-backend-ram,id=memory1,size=1536M".to_owned(),
            "-numa node,nodeid=1,initiator=0,memdev=memory1".to_owned(),
            "-numa cpu,node-id=0,socket-id=0".to_owned(),
            "-numa dist,src=0,dst=1,val=30".to_owned(),
            "-numa dist,src=1,dst=0,val=30".to_owned(),
            format!("{hmat}=0,hierarchy=memory,data-type=read-latency,latency=80"),
            format!("{hmat}=0,hierarchy=memory,data-type=write-latency,latency=80"),
            format!("{hmat}=0,hierarchy=memory,data-type=read-bandwidth,bandwidth=95368M"),
            format!("{hmat}=0,hierarchy=memory,data-type=write-bandwidth,bandwidth=95368M"),
            // A CXL node without figures: Mess's 216 ns and 51.9 GB/s.
            format!("{hmat}=1,hierarchy=memory,data-type=read-latency,latency=216"),
            format!("{hmat}=1,hierarchy=memory,data-type=write-latency,latency=216"),
            format!("{hmat}=1,hierarchy=memory,data-type=read-bandwidth,bandwidth=49496M"),
            format!("{hmat}=1,hierarchy=memory,data-type=write-bandwidth,bandwidth=49496M"),
        ];
        assert_eq!(lines, expect);
    }

    #[test]
    fn every_node_gets_a_block_and_every_socket_a_cpu() {
        let toml = r#"
            name = "four"
            distances = [[10, 20, 17, 28], [20, 10, 28, 17], [17, 28, 10, 28], [28, 17, 28, 10]]
            [[node]]
            id = 0
            capacity = "1 GiB"
            cpus = "0-3"
            [[node]]
            id = 1
            capacity = "1 GiB"
            cpus = "4-7"
            [[node]]
            id = 2
            capacity = "1 TiB"
            [[node]]
            id = 3
            capacity = "1 TiB"
        "#;
        let topology = topology(toml, 2048, 1).expect("fits");
        let mib: Vec<u64> = topology.nodes.iter().map(|node| node.memory_bytes >> 20).collect();
        assert_eq!(mib, [384, 128, 1024, 1024]);
        assert_eq!(topology.nodes.iter().map(|n| n.cpus).collect::<Vec<_>>(), [1, 1, 0, 0]);
        assert_eq!(topology.nodes.iter().map(|n| n.initiator).collect::<Vec<_>>(), [0, 1, 0, 1]);
        assert_eq!(topology.links.len(), 8);
        assert!(topology.links.iter().all(|link| link.figures.write_gb_s.is_some()));
    }

    #[test]
    fn the_largest_bandwidth_fits_into_16_bits() {
        let toml = TWO_TIERS.replace("100.0", "1329.0");
        let topology = topology(&toml, 2048, 2).expect("fits");
        let unit = topology.bandwidth_unit_mib_s();
        assert_eq!(unit, 32);
        let args = topology.qemu_args().join(" ");
        for field in args.split("bandwidth=").skip(1) {
            let digits = field.split('M').next().expect("a unit");
            let value: u64 = digits.parse().expect("a number");
            assert_eq!(value % unit, 0, "{value}");
            assert!(value / unit < 65_535, "{value}");
        }
    }

    #[test]
    fn machines_that_qemu_cannot_emulate_are_refused() {
        let no_cpus = TWO_TIERS.replace("cpus = \"0-7\"", "");
        let error = topology(&no_cpus, 2048, 2).expect_err("no CPU to run on");
        assert!(error.to_string().contains("no node has CPUs"), "{error}");
    }
}
