//! Infers what the memory of a node is made of, from what a machine exposes.
//! In: nodes with figures and kernel tiers, plus [`Evidence`]. Out: kind and basis of each node.
//! Knows nothing of files. Without evidence the kind stays unknown, and the user is asked.

use crate::Problem;
use crate::machine::{Basis, Kind, Node, NodeId};

/// What the machine says beside the nodes themselves.
#[derive(Debug, Default)]
pub struct Evidence {
    /// Marketing name of the processor; empty if unknown.
    pub processor: String,
    /// DAX devices whose memory is a node's: path in /sys/devices, which names the bus.
    pub devices: Vec<(NodeId, String)>,
    /// Distance of each node from its nearest initiator, in node order.
    pub distances: Vec<Option<u16>>,
}

/// Processors whose memory-only nodes are stacked memory unless a device says otherwise.
const HBM_PROCESSORS: [&str; 2] = ["Xeon(R) CPU Max", "Xeon Phi"];
/// Parts of a device path that give the bus away.
const BUSES: [(&str, Kind); 4] =
    [("/ndbus", Kind::Nvm), ("/ACPI0017", Kind::Cxl), ("/decoder", Kind::Cxl), ("/cxl", Kind::Cxl)];
/// Bandwidth over the DRAM's from which memory is stacked. The least of the known: HBM2e on Xeon
/// Max at 1.57 (425 against 271 GB/s, reads limited by the cores); DRAM nodes of one machine are
/// within 1.2.
const HBM_BANDWIDTH_RATIO: f64 = 1.4;
/// Read over write bandwidth from which memory is persistent: Optane 2.8 (39.4 against 13.9 GB/s),
/// CXL and DRAM at most 1.3.
const NVM_READ_WRITE_RATIO: f64 = 2.0;

/// Sets kind and basis of every node that has memory. A memory-only node that stays unknown is
/// reported, with what its shape suggests.
pub fn infer_kinds(nodes: &mut [Node], evidence: &Evidence) -> Vec<Problem> {
    let mut problems = Vec::new();
    for index in 0..nodes.len() {
        if !nodes[index].has_memory() {
            continue;
        }
        let (kind, basis) = infer(&nodes[index], reference(nodes, index), evidence);
        (nodes[index].kind, nodes[index].basis) = (kind, basis);
        if kind == Kind::Unknown {
            problems.push(ask(nodes, index, evidence.distances.get(index).copied().flatten()));
        }
    }
    problems
}

/// The node with CPUs and memory that `nodes[index]` is compared with: its initiator, else the
/// first.
fn reference(nodes: &[Node], index: usize) -> Option<&Node> {
    let comparable = || nodes.iter().filter(|n| n.has_cpus() && n.has_memory());
    comparable().find(|n| nodes[index].initiators.contains(&n.id)).or_else(|| comparable().next())
}

fn infer(node: &Node, reference: Option<&Node>, evidence: &Evidence) -> (Kind, Basis) {
    if node.has_cpus() {
        return (Kind::Dram, Basis::Cpus);
    }
    let device = evidence.devices.iter().find(|(id, _)| *id == node.id);
    let bus = device.and_then(|(_, path)| BUSES.iter().find(|(part, _)| path.contains(part)));
    if let Some((_, kind)) = bus {
        return (*kind, Basis::Device);
    }
    if HBM_PROCESSORS.iter().any(|name| evidence.processor.contains(name)) {
        return (Kind::Hbm, Basis::Processor);
    }
    let its = reference.map(|reference| reference.figures).unwrap_or_default();
    let ratio = |a: Option<f64>, b: Option<f64>| Some(a? / b?);
    let own = node.figures;
    if ratio(own.read_gb_s, its.read_gb_s).is_some_and(|r| r >= HBM_BANDWIDTH_RATIO) {
        return (Kind::Hbm, Basis::Figures);
    }
    if ratio(own.read_gb_s, own.write_gb_s).is_some_and(|r| r >= NVM_READ_WRITE_RATIO) {
        return (Kind::Nvm, Basis::Figures);
    }
    match (node.kernel_tier, reference.and_then(|reference| reference.kernel_tier)) {
        (Some(own), Some(its)) if own < its => (Kind::Hbm, Basis::KernelTier),
        _ => (Kind::Unknown, Basis::Nothing),
    }
}

fn ask(nodes: &[Node], index: usize, distance: Option<u16>) -> Problem {
    let node = &nodes[index];
    let beside = reference(nodes, index);
    let ranked = !node.figures.is_empty()
        || beside.is_some_and(|beside| node.kernel_tier > beside.kernel_tier);
    let smaller = beside.is_some_and(|beside| node.capacity_bytes < beside.capacity_bytes);
    let guess = match (ranked, smaller) {
        (true, _) => "it is ranked by its measured or published figures",
        (false, true) => {
            "smaller than the memory beside the CPUs, as HBM is; it ranks below until you say so"
        }
        (false, false) => "it ranks below the memory beside the CPUs",
    };
    let far = distance.map_or(String::new(), |distance| format!(" at distance {distance}"));
    Problem {
        place: format!("node {}", node.id),
        what: format!("memory without CPUs{far}, of unknown kind: {guess}"),
        remedy: format!(
            "state it in the configuration: [[machine.node]] id = {}, kind = \"hbm\", \"cxl\", \
             \"nvm\" or \"dram\"",
            node.id
        ),
    }
}
