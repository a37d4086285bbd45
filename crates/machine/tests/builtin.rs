//! Every description in lab/machines: it parses, reads back as itself, and ranks its memory as
//! expected.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use expect_test::expect_file;
use tiercel_machine::{BUILTIN_NAMES, Machine, NodeId, Space, Tier};

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
