//! Discovery on recorded and invented machines: one table per fixture. The expected tables lie
//! beside the trees; `UPDATE_EXPECT=1 cargo test -p tiercel-machine` writes them anew.

mod tree;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use expect_test::expect_file;
use proptest::prelude::*;
use tiercel_machine::{Machine, MachineError, NodeId, Space, Tier, format_bytes};

const TREES: [&str; 13] = [
    "container-partial",
    "container-without-nodes",
    "cxl-expander",
    "garbage",
    "grace-hopper",
    "hbm-or-what",
    "holes",
    "lab-two-socket-optane",
    "one-node-vm",
    "two-socket-dram",
    "two-socket-optane",
    "xeonmax-snc4",
    "xeonmax-snc4-hmat",
];

#[test]
fn every_fixture_gives_its_table() {
    for name in TREES {
        let root = tree::unpack(name);
        let (machine, problems) = Machine::discover(root.path()).unwrap();
        let mut text = table(&machine);
        for problem in problems {
            writeln!(text, "problem {}: {}", problem.place, problem.what).unwrap();
            if !problem.remedy.is_empty() {
                writeln!(text, "        remedy: {}", problem.remedy).unwrap();
            }
        }
        expect_file![tree::fixtures().join(format!("{name}.txt"))].assert_eq(&text);
        let described = Machine::from_toml(&machine.to_toml()).unwrap();
        assert_eq!(described, machine, "{name}: a discovered machine is a valid description");
    }
}

#[test]
fn every_fixture_is_tested() {
    let trees: BTreeSet<String> = std::fs::read_dir(tree::fixtures())
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.strip_suffix(".tree").map(str::to_owned)
        })
        .collect();
    assert_eq!(trees, TREES.map(str::to_owned).into());
}

#[test]
fn the_machine_this_runs_on() {
    let (machine, _) = Machine::discover(Path::new("/")).unwrap();
    assert!(machine.capacity_bytes() > 0);
    let nodes: usize = machine.tiers().iter().map(|tier| tier.nodes.len()).sum();
    assert_eq!(nodes, machine.memory_nodes().count(), "every node has a rank");
    assert!(!machine.cpus().is_empty());
}

#[test]
fn a_cpu_that_two_nodes_claim_stays_with_the_first() {
    const NODE: &str = "sys/devices/system/node";
    let root = tree::unpack_text(&format!(
        "{NODE}/node0/meminfo: MemTotal: 7 kB\\n\n{NODE}/node0/cpulist: 0,7\n{NODE}/node1/cpulist: 7\n"
    ));
    let (machine, problems) = Machine::discover(root.path()).unwrap();
    assert_eq!(machine.cpus(), [(0, NodeId(0)), (7, NodeId(0))]);
    assert!(problems.iter().any(|problem| problem.what.starts_with("CPUs 7 are another")));
    assert_eq!(Machine::from_toml(&machine.to_toml()).unwrap(), machine);
}

#[test]
fn a_root_that_is_none_is_an_error_that_says_so() {
    let root = tree::unpack_text("etc/hostname: nowhere\n");
    let error = Machine::discover(root.path()).unwrap_err();
    assert!(matches!(error, MachineError::NoMemory { .. }));
    assert!(error.to_string().contains("proc/meminfo: no MemTotal"), "{error}");
}

proptest! {
    // Each case makes a tree of files: 64 take a second.
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any bytes in any of the files: no panic, and what comes out is a machine.
    #[test]
    fn garbage_never_breaks_it(
        files in proptest::collection::vec((0usize..12, "[0-9, \\-a-z]{0,12}"), 0..20)
    ) {
        const NODE: &str = "sys/devices/system/node";
        let mut text = "proc/meminfo: MemTotal: 1024 kB\n".to_owned();
        let mut seen = BTreeSet::new();
        for (file, content) in files {
            let path = match file {
                0 => format!("{NODE}/online"),
                1 | 2 => format!("{NODE}/node{file}/meminfo"),
                3 | 4 => format!("{NODE}/node{}/cpulist", file - 2),
                5 | 6 => format!("{NODE}/node{}/distance", file - 4),
                7 => format!("{NODE}/node1/access0/initiators/read_latency"),
                8 => format!("{NODE}/node2/access1/initiators/read_bandwidth"),
                9 => "sys/devices/virtual/memory_tiering/memory_tier3/nodelist".to_owned(),
                10 => "sys/bus/dax/devices/dax0.0/target_node".to_owned(),
                _ => "proc/cpuinfo".to_owned(),
            };
            if seen.insert(path.clone()) {
                let total = if path.ends_with("meminfo") { "MemTotal: 7 kB\\n" } else { "" };
                writeln!(text, "{path}: {total}{content}").unwrap();
            }
        }
        let root = tree::unpack_text(&text);
        let (machine, _) = Machine::discover(root.path()).unwrap();
        prop_assert!(machine.memory_nodes().next().is_some());
        prop_assert_eq!(&Machine::from_toml(&machine.to_toml()).unwrap(), &machine);
        machine.topo();
    }
}

fn table(machine: &Machine) -> String {
    let mut text = String::new();
    let or_dash = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.0}"));
    writeln!(text, "node kind    known-by    capacity     cpus      socket near ktier ns GB/s")
        .unwrap();
    for node in &machine.nodes {
        writeln!(
            text,
            "{:<4} {:<7} {:<11} {:<12} {:<9} {:<6} {:<4} {:<5} {} {}",
            node.id.0,
            node.kind,
            format!("{:?}", node.basis),
            format_bytes(node.capacity_bytes),
            node.cpus.to_string(),
            node.socket.map_or("-".to_owned(), |socket| socket.to_string()),
            list(&node.initiators),
            node.kernel_tier.map_or("-".to_owned(), |tier| tier.to_string()),
            or_dash(node.figures.read_latency_ns),
            or_dash(node.figures.read_gb_s),
        )
        .unwrap();
    }
    writeln!(text, "globally: {}", row(&machine.tiers())).unwrap();
    for node in machine.nodes.iter().filter(|node| node.has_cpus()) {
        writeln!(text, "from {}: {}", node.id, row(&machine.tiers_from(node.id))).unwrap();
    }
    for space in Space::ALL {
        writeln!(text, "{space:?}: {}", list(&machine.space(space, None))).unwrap();
    }
    text
}

fn row(tiers: &[Tier]) -> String {
    let tiers: Vec<String> = tiers.iter().map(|tier| list(&tier.nodes)).collect();
    tiers.join(" > ")
}

fn list(nodes: &[NodeId]) -> String {
    let nodes: Vec<String> = nodes.iter().map(NodeId::to_string).collect();
    nodes.join(",")
}
