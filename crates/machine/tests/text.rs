//! Descriptions and overrides: what is refused and how the message reads, and what an override
//! changes.

use expect_test::{Expect, expect};
use tiercel_machine::{Kind, Machine, NodeId, Overrides};

/// Two nodes, the second memory-only, with something replaced or added.
fn machine_text(change: &str) -> String {
    format!(
        r#"name = "toy"
distances = [[10, 20], [20, 10]]
{change}
[[node]]
id = 0
kind = "dram"
capacity = "1 GiB"
cpus = "0-3"
[[node]]
id = 1
capacity = 1073741824
"#
    )
}

fn refused(text: &str, expected: &Expect) {
    expected.assert_eq(&format!("{}\n", Machine::from_toml(text).unwrap_err()));
}

#[test]
fn unknown_keys_and_wrong_types_are_refused_with_the_place() {
    refused(
        &machine_text("[[nodes]]"),
        &expect![[r#"
        machine description: TOML parse error at line 3, column 3
          |
        3 | [[nodes]]
          |   ^^^^^
        unknown field `nodes`, expected one of `name`, `description`, `distances`, `node`, `link`

    "#]],
    );
    refused(
        &machine_text("").replace("kind = \"dram\"", "kind = \"ddr\""),
        &expect![[r#"
        machine description: TOML parse error at line 6, column 8
          |
        6 | kind = "ddr"
          |        ^^^^^
        unknown variant `ddr`, expected one of `dram`, `hbm`, `cxl`, `nvm`, `unknown`

    "#]],
    );
    refused(
        &machine_text("").replace("1 GiB", "1 GB"),
        &expect![[r#"
        machine description: TOML parse error at line 7, column 12
          |
        7 | capacity = "1 GB"
          |            ^^^^^^
        "1 GB" is not a size; write for example "64 MiB", "16 GiB" or a number of bytes

    "#]],
    );
    let energy = "energy = { read = 80.0 }";
    refused(
        &format!("{}{energy}\n", machine_text("")),
        &expect![[r#"
            machine description: TOML parse error at line 12, column 12
               |
            12 | energy = { read = 80.0 }
               |            ^^^^
            unknown field `read`, expected one of `read_pj_per_bit`, `write_pj_per_bit`, `static_w`

        "#]],
    );
}

/// The toy machine with more lines at the end of its last node.
fn with(more: &str) -> String {
    format!("{}{more}\n", machine_text(""))
}

#[test]
fn impossible_nodes_are_refused_by_name() {
    let bare = "name = \"x\"\nnode = []\n";
    refused(bare, &expect!["machine description: machine: no node has memory\n"]);
    refused(
        &machine_text("").replace("id = 1", "id = 0"),
        &expect![[r#"
        machine description: node 0: appears twice
    "#]],
    );
    refused(
        &with("cpus = \"3\""),
        &expect![[r#"
        machine description: cpu 3: is on nodes 0 and 1
    "#]],
    );
    refused(
        &with("figures = { read_gb_s = 0.0 }"),
        &expect![[r#"
            machine description: node 1: latency and bandwidth must exceed 0; leave unknown ones out
        "#]],
    );
    refused(
        &with("figures = { read_latency_ns = nan }"),
        &expect![[r#"
            machine description: node 1: latency and bandwidth must exceed 0; leave unknown ones out
        "#]],
    );
    refused(
        &with("energy = { static_w = -1.0 }"),
        &expect![[r#"
        machine description: node 1: an energy is negative or not a number
    "#]],
    );
}

#[test]
fn impossible_relations_and_curves_are_refused_by_name() {
    refused(
        &with("granularity_bytes = 100"),
        &expect![[r#"
        machine description: node 1: granularity_bytes must be a power of two
    "#]],
    );
    refused(
        &with("initiators = [1]"),
        &expect![[r#"
        machine description: node 1: initiator 1 is not a node with CPUs
    "#]],
    );
    refused(
        &machine_text("").replace("[20, 10]", "[20]"),
        &expect![[r#"
        machine description: distances: must be 2 rows of 2 numbers above 0
    "#]],
    );
    refused(
        &with("curve = [{ read_share = 2.0, idle_ns = 1.0, peak_gb_s = 1.0, peak_ns = 1.0 }]"),
        &expect![[r#"
            machine description: node 1: curve: read_share and slope 0 to 1, idle_ns above 0, peak_ns from idle_ns, peak_gb_s above 0, bend above 1
        "#]],
    );
    let line = "{ read_share = 1.0, idle_ns = 1.0, peak_gb_s = 5.0, peak_ns = 1.0 }";
    refused(
        &with(&format!("curve = [{line}, {line}]")),
        &expect![[r#"
        machine description: node 1: curve: lines must ascend by read_share
    "#]],
    );
    refused(
        &with("[[link]]\nfrom = 0\nto = 1"),
        &expect![[r#"
        machine description: link 0 -> 1: is the nearest initiator: put its figures on the node
    "#]],
    );
    refused(
        &with("[[link]]\nfrom = 1\nto = 0"),
        &expect![[r#"
        machine description: link 1 -> 0: node 1 has no CPUs
    "#]],
    );
    refused(
        &with("[[link]]\nfrom = 0\nto = 7"),
        &expect![[r#"
        machine description: link 0 -> 7: there is no node 7
    "#]],
    );
}

#[test]
fn an_override_changes_kind_rank_and_single_figures() {
    let mut machine = Machine::from_toml(&machine_text("")).unwrap();
    let ranks = |machine: &Machine| -> Vec<u16> {
        machine.tiers().iter().flat_map(|tier| tier.nodes.iter().map(|node| node.0)).collect()
    };
    assert_eq!(ranks(&machine), [0, 1], "memory without CPUs ranks below");
    let overrides = |text: &str| Overrides::from_toml(text).unwrap();
    machine.apply(&overrides("[[node]]\nid = 1\nkind = \"hbm\"")).unwrap();
    assert_eq!(ranks(&machine), [1, 0], "HBM ranks above");
    machine.apply(&overrides("[[node]]\nid = 1\ntier = 5\nname = \"far\"")).unwrap();
    assert_eq!(ranks(&machine), [0, 1], "the user's tier wins over the kind");
    machine.apply(&overrides("[[node]]\nid = 0\ntier = 5")).unwrap();
    assert_eq!(machine.tiers().len(), 1, "the same number is the same rank");
    machine.apply(&overrides("[[node]]\nid = 1\nfigures = { read_latency_ns = 300 }")).unwrap();
    let node = machine.node(NodeId(1)).unwrap();
    assert_eq!(node.figures.read_latency_ns, Some(300.0));
    assert_eq!((node.kind, node.label()), (Kind::Hbm, "far".to_owned()), "earlier words stand");
}

#[test]
fn a_wrong_override_changes_nothing() {
    let mut machine = Machine::from_toml(&machine_text("")).unwrap();
    let before = machine.clone();
    let mut apply = |text: &str| machine.apply(&Overrides::from_toml(text).unwrap()).unwrap_err();
    expect!["machine description: override of node 9: there is no such node; the machine has 0, 1"]
        .assert_eq(&apply("[[node]]\nid = 9").to_string());
    expect!["machine description: machine: no node has memory"].assert_eq(
        &apply("[[node]]\nid = 0\ncapacity = 0\n[[node]]\nid = 1\ncapacity = 0").to_string(),
    );
    assert_eq!(machine, before);
    assert!(Overrides::from_toml("[[node]]\nid = 0\nspeed = 3").is_err());
}

#[test]
fn figures_are_those_of_the_nearest_or_of_the_link() {
    let machine = Machine::builtin("emr-two-socket").unwrap().unwrap();
    let latency =
        |from: Option<u16>, to: u16| machine.figures(from.map(NodeId), NodeId(to)).read_latency_ns;
    assert_eq!(latency(None, 0), Some(112.0));
    assert_eq!(latency(Some(0), 0), Some(112.0));
    assert_eq!(latency(Some(1), 0), Some(200.0));
    assert_eq!(latency(Some(0), 2), Some(216.0));
    assert_eq!(latency(Some(1), 2), None, "it was not measured");
    assert_eq!(latency(None, 9), None);
    assert_eq!(machine.distance(NodeId(0), NodeId(1)), Some(21));
    assert_eq!(machine.distance(NodeId(0), NodeId(9)), None);
    assert_eq!(machine.node_of_cpu(40), Some(NodeId(1)));
    assert_eq!(machine.node_of_cpu(400), None);
}

#[test]
fn a_modelled_machine_has_a_fast_and_a_slow_node_and_says_so() {
    let real =
        Machine::from_toml("name = \"r\"\n[[node]]\nid = 0\ncapacity = \"8 GiB\"\ncpus = \"0-1\"");
    let like = Machine::builtin("spr-cxl").unwrap().unwrap();
    let machine = real.unwrap().modelled(&like);
    assert!(machine.nodes.iter().all(|node| node.modelled && node.capacity_bytes == 8 << 30));
    let tiers: Vec<_> = machine.tiers().into_iter().map(|tier| tier.nodes).collect();
    assert_eq!(tiers, [[NodeId(0)], [NodeId(1)]]);
    assert_eq!(machine.node(NodeId(1)).unwrap().figures.read_latency_ns, Some(216.0));
    assert_eq!(Machine::from_toml(&machine.to_toml()).unwrap(), machine);
}
