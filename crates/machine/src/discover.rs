//! Finds out what machine this is by reading /sys and /proc below a root.
//! In: a directory that looks like the root of a Linux file system. Out: a [`Machine`] and what was
//! odd. Knows nothing of privileges: it reads only files that everybody may read, and a missing,
//! cut or garbled file costs one figure and one [`Problem`], never the machine.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::kind;
use crate::machine::{Figures, MAX_NODES, Machine, Node, NodeId};
use crate::units::CpuList;
use crate::{MachineError, Problem};

/// Most bytes read of one file; the largest (cpuinfo of 1000 CPUs, of which the first is enough) is
/// far above any of the others.
const MAX_FILE_BYTES: u64 = 64 * 1024;
/// Most entries looked at in one directory: node directories hold one entry per memory block.
const MAX_DIR_ENTRIES: usize = 1 << 20;
/// Linux's access classes, the CPU-only one first: class 0 also counts accelerators as initiators.
const ACCESS_CLASSES: [&str; 2] = ["access1", "access0"];
/// The kernel gives bandwidth in MiB/s (Documentation/admin-guide/mm/numaperf.rst).
const MIB_PER_GB: f64 = 1e9 / (1024.0 * 1024.0);

pub(crate) const NODE_DIR: &str = "sys/devices/system/node";
const CPU_DIR: &str = "sys/devices/system/cpu";
const TIER_DIR: &str = "sys/devices/virtual/memory_tiering";
const DAX_DIR: &str = "sys/bus/dax/devices";

impl Machine {
    /// Reads the machine below `root` (`/` for this one). Problems are oddities that were worked
    /// around. Fails only where no memory at all can be found.
    pub fn discover(root: &Path) -> Result<(Machine, Vec<Problem>), MachineError> {
        let mut tree = Tree { root, problems: Vec::new() };
        let mut machine = Machine { name: "this-machine".to_owned(), ..Machine::default() };
        machine.nodes = tree.nodes();
        if machine.nodes.len() > MAX_NODES {
            return Err(MachineError::TooManyNodes {
                count: machine.nodes.len(),
                limit: MAX_NODES,
            });
        }
        if machine.memory_nodes().next().is_none() {
            tree.place_all_memory(&mut machine)?;
        }
        machine.distances = tree.distances(&machine.nodes);
        tree.sockets(&mut machine.nodes);
        tree.kernel_tiers(&mut machine.nodes);
        machine.fill_initiators();
        inherit_sockets(&mut machine.nodes);
        let evidence = tree.evidence(&machine);
        tree.problems.extend(kind::infer_kinds(&mut machine.nodes, &evidence));
        Ok((machine, tree.problems))
    }
}

/// A root and what was odd below it.
struct Tree<'a> {
    root: &'a Path,
    problems: Vec<Problem>,
}

impl Tree<'_> {
    fn nodes(&mut self) -> Vec<Node> {
        let mut ids: Vec<u16> = self.numbered(NODE_DIR, "node");
        ids.sort_unstable();
        if let Some(online) = self.list(&format!("{NODE_DIR}/online")) {
            ids.retain(|&id| online.contains(u32::from(id)));
        }
        let mut nodes: Vec<Node> = ids.into_iter().map(|id| self.read_node(NodeId(id))).collect();
        self.one_node_a_cpu(&mut nodes);
        let with_cpus: Vec<NodeId> =
            nodes.iter().filter(|node| node.has_cpus()).map(|node| node.id).collect();
        nodes.iter_mut().for_each(|node| self.read_access(node, &with_cpus));
        nodes
    }

    fn read_node(&mut self, id: NodeId) -> Node {
        let dir = format!("{NODE_DIR}/node{id}");
        let meminfo = self.text(&format!("{dir}/meminfo"));
        let capacity = meminfo.as_deref().and_then(|text| meminfo_bytes(text, "MemTotal:"));
        if capacity.is_none() {
            self.odd(
                format!("{dir}/meminfo"),
                "no readable MemTotal: the node counts as one without memory",
                "",
            );
        }
        let mut node = Node::new(id, capacity.unwrap_or(0));
        node.free_bytes = meminfo.as_deref().and_then(|text| meminfo_bytes(text, "MemFree:"));
        node.cpus = self.list(&format!("{dir}/cpulist")).unwrap_or_default();
        node
    }

    /// A CPU that several nodes claim stays with the first of them.
    fn one_node_a_cpu(&mut self, nodes: &mut [Node]) {
        let mut taken = BTreeSet::new();
        for node in nodes {
            let (own, others): (Vec<u32>, Vec<u32>) =
                node.cpus.iter().partition(|&cpu| taken.insert(cpu));
            if !others.is_empty() {
                let what = format!("CPUs {} are another node's already", CpuList::new(others));
                self.odd(format!("{NODE_DIR}/node{}/cpulist", node.id), what, "");
                node.cpus = CpuList::new(own);
            }
        }
    }

    /// Initiators and figures of the first access class that has initiators with CPUs: what
    /// accelerators see is not what a program sees.
    fn read_access(&mut self, node: &mut Node, with_cpus: &[NodeId]) {
        for class in ACCESS_CLASSES {
            let dir = format!("{NODE_DIR}/node{}/{class}/initiators", node.id);
            node.initiators = self.numbered(&dir, "node").into_iter().map(NodeId).collect();
            node.initiators.retain(|id| with_cpus.contains(id));
            if !node.initiators.is_empty() {
                node.figures = self.figures(&dir);
                return;
            }
        }
    }

    /// Figures of one access class; 0 and nonsense count as unknown.
    fn figures(&mut self, dir: &str) -> Figures {
        let mut number = |name: &str, scale: f64| {
            let path = format!("{dir}/{name}");
            let text = self.text(&path)?;
            match text.trim().parse::<u32>() {
                Ok(0) => None,
                Ok(value) => Some(f64::from(value) / scale),
                Err(_) => {
                    self.odd(path, format!("{:?} is not a number", short(&text)), "");
                    None
                }
            }
        };
        Figures {
            read_latency_ns: number("read_latency", 1.0),
            write_latency_ns: number("write_latency", 1.0),
            read_gb_s: number("read_bandwidth", MIB_PER_GB),
            write_gb_s: number("write_bandwidth", MIB_PER_GB),
        }
    }

    /// No node with memory: one node (the first with CPUs, or a new one) gets all memory of the
    /// machine.
    fn place_all_memory(&mut self, machine: &mut Machine) -> Result<(), MachineError> {
        let text = self.text("proc/meminfo").unwrap_or_default();
        let Some(total) = meminfo_bytes(&text, "MemTotal:").filter(|bytes| *bytes > 0) else {
            let path = self.root.join("proc/meminfo").display().to_string();
            return Err(MachineError::NoMemory { path, what: "no MemTotal".to_owned() });
        };
        self.odd(
            NODE_DIR.to_owned(),
            "no node with memory is visible: one node holds the whole of /proc/meminfo",
            "mount sysfs, or give the machine as TOML",
        );
        if machine.nodes.is_empty() {
            let mut node = Node::new(NodeId(0), 0);
            node.cpus = self.list(&format!("{CPU_DIR}/online")).unwrap_or_default();
            if node.cpus.is_empty() {
                node.cpus = CpuList::new(vec![0]);
            }
            machine.nodes.push(node);
        }
        let index = machine.nodes.iter().position(Node::has_cpus).unwrap_or(0);
        machine.nodes[index].capacity_bytes = total;
        machine.nodes[index].free_bytes = meminfo_bytes(&text, "MemFree:");
        Ok(())
    }

    /// One row per node; empty unless every row is there and has one entry per node.
    fn distances(&mut self, nodes: &[Node]) -> Vec<Vec<u16>> {
        let mut rows = Vec::with_capacity(nodes.len());
        for node in nodes {
            let path = format!("{NODE_DIR}/node{}/distance", node.id);
            let Some(text) = self.text(&path) else { return Vec::new() };
            let row: Vec<u16> =
                text.split_whitespace().filter_map(|number| number.parse().ok()).collect();
            if row.len() != nodes.len() || row.contains(&0) {
                let what = format!(
                    "{:?} is not one distance for each of {} nodes: distances count as unknown",
                    short(&text),
                    nodes.len()
                );
                self.odd(path, what, "");
                return Vec::new();
            }
            rows.push(row);
        }
        rows
    }

    fn sockets(&mut self, nodes: &mut [Node]) {
        for node in nodes {
            let Some(cpu) = node.cpus.iter().next() else { continue };
            let path = format!("{CPU_DIR}/cpu{cpu}/topology/physical_package_id");
            // -1 (no package known) is as good as no file.
            node.socket = self.text(&path).and_then(|text| text.trim().parse().ok());
        }
    }

    fn kernel_tiers(&mut self, nodes: &mut [Node]) {
        for tier in self.numbered(TIER_DIR, "memory_tier") {
            let list = self.list(&format!("{TIER_DIR}/memory_tier{tier}/nodelist"));
            for id in list.iter().flat_map(CpuList::iter) {
                if let Some(node) = nodes.iter_mut().find(|node| u32::from(node.id.0) == id) {
                    node.kernel_tier = Some(tier);
                }
            }
        }
    }

    fn evidence(&mut self, machine: &Machine) -> kind::Evidence {
        let cpuinfo = self.text("proc/cpuinfo").unwrap_or_default();
        let mut model = cpuinfo.lines().filter(|line| line.starts_with("model name"));
        let processor = model.next().and_then(|line| line.split_once(':'));
        let mut devices = Vec::new();
        for name in self.names(DAX_DIR) {
            let target = self.text(&format!("{DAX_DIR}/{name}/target_node"));
            let Some(id) = target.and_then(|text| text.trim().parse().ok()).map(NodeId) else {
                continue;
            };
            if machine.node(id).is_some() {
                devices.push((id, self.device_path(&format!("{DAX_DIR}/{name}"))));
            }
        }
        let distances = machine.nodes.iter().map(|node| {
            let near = node.initiators.first();
            near.and_then(|&near| machine.distance(near, node.id))
        });
        kind::Evidence {
            processor: processor.map(|(_, name)| name.trim().to_owned()).unwrap_or_default(),
            devices,
            distances: distances.collect(),
        }
    }

    /// Where a link of /sys/bus leads: the path names the bus. The link itself where it leads
    /// nowhere.
    fn device_path(&self, path: &str) -> String {
        let link = self.root.join(path);
        let target = fs::canonicalize(&link).or_else(|_| fs::read_link(&link));
        target.unwrap_or(link).to_string_lossy().into_owned()
    }

    /// The content of a file; `None` if it does not exist. Anything else in the way is a problem.
    fn text(&mut self, path: &str) -> Option<String> {
        let full = self.root.join(path);
        let mut bytes = Vec::new();
        let read = fs::File::open(&full)
            .and_then(|file| file.take(MAX_FILE_BYTES).read_to_end(&mut bytes));
        match read {
            Ok(_) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => {
                self.odd(path.to_owned(), format!("cannot be read: {error}"), "");
                None
            }
        }
    }

    /// A file in list form; `None` if it does not exist or is garbled (which is a problem).
    fn list(&mut self, path: &str) -> Option<CpuList> {
        let text = self.text(path)?;
        match CpuList::parse(&text) {
            Ok(list) => Some(list),
            Err(_) => {
                self.odd(path.to_owned(), format!("{:?} is not a list", short(&text)), "");
                None
            }
        }
    }

    /// The numbers N of the entries `<prefix>N` of a directory.
    fn numbered(&self, dir: &str, prefix: &str) -> Vec<u16> {
        let names = self.names(dir);
        names.iter().filter_map(|name| name.strip_prefix(prefix)?.parse().ok()).collect()
    }

    /// Names in a directory, sorted; none if it does not exist.
    fn names(&self, dir: &str) -> Vec<String> {
        let path: PathBuf = self.root.join(dir);
        let entries = fs::read_dir(path).into_iter().flatten().take(MAX_DIR_ENTRIES);
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort_unstable();
        names
    }

    fn odd(&mut self, place: String, what: impl Into<String>, remedy: &str) {
        self.problems.push(Problem { place, what: what.into(), remedy: remedy.to_owned() });
    }
}

/// The value of a line `... MemTotal:  123 kB`, in bytes. Works for the per-node form too.
pub(crate) fn meminfo_bytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.split_once(key))?.1;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Memory-only nodes hang on the socket of their initiators, when that is one socket.
fn inherit_sockets(nodes: &mut [Node]) {
    for index in 0..nodes.len() {
        let socket_of = |id: &NodeId| nodes.iter().find(|n| n.id == *id).and_then(|n| n.socket);
        let mut sockets = nodes[index].initiators.iter().map(socket_of);
        let first = sockets.next().flatten();
        if nodes[index].socket.is_none() && sockets.all(|socket| socket == first) {
            nodes[index].socket = first;
        }
    }
}

/// The start of a file for a message.
fn short(text: &str) -> String {
    /// What fits beside a message in 80 columns.
    const SHOWN_CHARS: usize = 40;
    text.trim().chars().take(SHOWN_CHARS).collect()
}
