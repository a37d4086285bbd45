//! Every description in lab/machines: it parses, reads back as itself, and ranks its memory as
//! expected.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use expect_test::expect_file;
use tiercel_machine::{BUILTIN_NAMES, Machine, NodeId, Space, Tier, loaded_latency_ns, peak_gb_s};

#[test]
fn every_file_is_built_in_and_bears_its_name() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/machines");
    let files: BTreeSet<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let names: BTreeSet<String> = BUILTIN_NAMES.iter().map(|name| format!("{name}.toml")).collect();
    assert_eq!(files, names);
    for name in BUILTIN_NAMES {
        assert_eq!(Machine::builtin(name).unwrap().unwrap().name, *name);
    }
    assert!(Machine::builtin("no-such-machine").is_none());
}

#[test]
fn descriptions_read_back_as_themselves() {
    for name in BUILTIN_NAMES {
        let machine = Machine::builtin(name).unwrap().unwrap();
        assert_eq!(Machine::from_toml(&machine.to_toml()).unwrap(), machine, "{name}");
    }
}

#[test]
fn tiers_and_spaces() {
    let mut text = String::new();
    for name in BUILTIN_NAMES {
        let machine = Machine::builtin(name).unwrap().unwrap();
        let label = |ids: &[NodeId]| {
            let labels: Vec<String> =
                ids.iter().map(|&id| machine.node(id).unwrap().label()).collect();
            labels.join(" ")
        };
        let row = |tiers: Vec<Tier>| {
            let tiers: Vec<String> = tiers.iter().map(|tier| label(&tier.nodes)).collect();
            tiers.join(" > ")
        };
        let first = machine.cpus()[0].1;
        writeln!(text, "{name}").unwrap();
        writeln!(text, "  globally       {}", row(machine.tiers())).unwrap();
        writeln!(text, "  from cpu 0     {}", row(machine.tiers_from(first))).unwrap();
        for space in Space::ALL {
            let nodes = label(&machine.space(space, Some(first)));
            writeln!(text, "  {:<14} {nodes}", format!("{space:?}")).unwrap();
        }
    }
    expect_file!["../../../fixtures/machines/builtin.txt"].assert_eq(&text);
}

#[test]
fn topo_has_a_row_per_node_and_agrees_with_the_tiers() {
    let topo = Machine::builtin("two-socket-optane").unwrap().unwrap().topo();
    let rows: Vec<String> = topo
        .nodes
        .iter()
        .map(|row| format!("{} {} {:?} {:?}", row.label, row.kind, row.tier, row.distances))
        .collect();
    expect_test::expect![[r#"
        [
            "ddr0 dram Some(0) [10, 20, 17, 28]",
            "ddr1 dram Some(0) [20, 10, 28, 17]",
            "optane0 nvm Some(1) [17, 28, 10, 28]",
            "optane1 nvm Some(1) [28, 17, 28, 10]",
        ]
    "#]]
    .assert_debug_eq(&rows);
    assert_eq!((topo.tiers.len(), topo.seen_from.len(), topo.spaces.len()), (2, 2, 3));
    assert_eq!(topo.seen_from[1].tiers[0].nodes, [NodeId(1)]);
}

/// Published points (bsc-mem/Mess-Results): machine, node, read share, GB/s, ns. Where the traffic
/// is the most that was measured, the latency there is the peak's.
const PUBLISHED: &[(&str, u16, f64, f64, f64)] = &[
    ("spr-cxl", 0, 1.0, 0.0, 112.0),
    ("spr-cxl", 0, 1.0, 117.0, 127.0),
    ("spr-cxl", 0, 1.0, 221.0, 167.0),
    ("spr-cxl", 0, 1.0, 248.0, 292.0),
    ("spr-cxl", 0, 0.91, 150.0, 143.0),
    ("spr-cxl", 0, 0.91, 214.0, 216.0),
    ("spr-cxl", 0, 0.53, 104.0, 149.0),
    ("spr-cxl", 0, 0.53, 174.0, 263.0),
    ("spr-cxl", 0, 0.53, 200.0, 478.0),
    ("spr-cxl", 1, 1.0, 0.0, 216.0),
    ("spr-cxl", 1, 1.0, 36.0, 240.0),
    ("spr-cxl", 1, 1.0, 47.3, 286.0),
    ("spr-cxl", 1, 1.0, 51.9, 600.0),
    ("spr-cxl", 1, 0.5, 34.3, 259.0),
    ("spr-cxl", 1, 0.5, 53.9, 340.0),
    ("spr-cxl", 1, 0.5, 60.5, 580.0),
    ("cascadelake-optane", 0, 1.0, 0.0, 90.0),
    ("cascadelake-optane", 0, 1.0, 78.0, 126.0),
    ("cascadelake-optane", 0, 1.0, 106.0, 158.0),
    ("cascadelake-optane", 0, 0.5, 57.0, 112.0),
    ("cascadelake-optane", 0, 0.5, 86.5, 272.0),
    ("xeonmax-9462", 0, 1.0, 271.0, 260.0),
    ("xeonmax-9462", 0, 0.23, 188.0, 271.0),
    ("xeonmax-9462", 1, 1.0, 0.0, 139.0),
    ("xeonmax-9462", 1, 1.0, 425.0, 153.0),
    ("xeonmax-9462", 1, 0.25, 433.0, 168.0),
    ("xeonmax-9462", 1, 0.25, 537.0, 192.0),
    ("xeonmax-9480", 1, 0.82, 638.0, 197.0),
    ("xeonmax-9480", 1, 0.5, 833.0, 225.0),
    ("grace", 0, 1.0, 442.0, 308.0),
    ("grace", 0, 0.5, 368.0, 645.0),
];

#[test]
fn curves_go_through_what_was_published() {
    for &(name, node, read_share, gb_s, ns) in PUBLISHED {
        let machine = Machine::builtin(name).unwrap().unwrap();
        let curve = &machine.node(NodeId(node)).unwrap().curve;
        let limit = if gb_s == 0.0 { 0.03 } else { 0.05 };
        let off = loaded_latency_ns(curve, read_share, gb_s).unwrap() / ns - 1.0;
        assert!(off.abs() < limit, "{name} node {node}, {read_share} at {gb_s} GB/s: {off:+.3}");
        assert!(gb_s <= peak_gb_s(curve, read_share).unwrap(), "{name} node {node}");
    }
}

#[test]
fn writes_beside_reads_cost_ddr_bandwidth_and_give_cxl_some() {
    let machine = Machine::builtin("spr-cxl").unwrap().unwrap();
    let peak = |node: u16, read_share| {
        peak_gb_s(&machine.node(NodeId(node)).unwrap().curve, read_share).unwrap()
    };
    assert!(peak(0, 0.6) < 0.85 * peak(0, 1.0));
    assert!(peak(1, 0.6) > 1.1 * peak(1, 1.0));
}

#[test]
fn a_part_of_a_machine_is_a_machine() {
    let whole = Machine::builtin("icelake-optane").unwrap().unwrap();
    let socket = whole.part(&[NodeId(3), NodeId(1)]).expect("both are there");
    let ids: Vec<u16> = socket.nodes.iter().map(|node| node.id.0).collect();
    assert_eq!((ids.as_slice(), &socket.nodes[1].initiators), (&[0, 1][..], &vec![NodeId(0)]));
    assert_eq!(socket.distance(NodeId(0), NodeId(1)), whole.distance(NodeId(1), NodeId(3)));
    assert_eq!(socket.figures(None, NodeId(1)), whole.figures(None, NodeId(3)));
    assert_eq!(Machine::from_toml(&socket.to_toml()).expect("valid"), socket);
    assert_eq!(whole.part(&[NodeId(0), NodeId(9)]), Err(NodeId(9)));
}

#[test]
fn names_are_in_alphabetical_order() {
    assert!(BUILTIN_NAMES.is_sorted(), "{BUILTIN_NAMES:?}");
}
