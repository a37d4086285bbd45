//! `tiercel topo`: the machine's memories.
//! In: [`TopoArgs`]. Out: a table, JSON, or a description to start from. Knows nothing of objects.

use super::{say, say_json};
use crate::args::TopoArgs;
use crate::engine::described;
use crate::table::{Align, Table};
use crate::terminal::note;
use anyhow::Result;
use tiercel_machine::{Machine, Topo, TopoNode, short_bytes};

/// `tiercel topo`.
pub fn topo(args: &TopoArgs) -> Result<()> {
    let machine = match &args.machine {
        Some(name) => described(name)?,
        None => {
            let (machine, problems) = Machine::discover(&args.root)?;
            for problem in problems {
                note(format_args!(
                    "tiercel: {}: {} {}",
                    problem.place, problem.what, problem.remedy
                ));
            }
            machine
        }
    };
    if args.toml {
        return say(&machine.to_toml());
    }
    let topo = machine.topo();
    if args.json {
        return say_json("topo", &topo);
    }
    say(&text(&topo))
}

fn text(topo: &Topo) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("node", Right),
        ("name", Left),
        ("kind", Left),
        ("tier", Right),
        ("size", Right),
        ("free", Right),
        ("CPUs", Left),
        ("read", Right),
        ("write", Right),
        ("latency", Right),
    ]);
    for node in &topo.nodes {
        table.row(node_row(node));
    }
    let mut out = format!("machine {}\n{}", topo.machine, table.text());
    for tier in &topo.tiers {
        let nodes: Vec<String> = tier.nodes.iter().map(|node| node.0.to_string()).collect();
        let size = short_bytes(tier.capacity_bytes);
        out.push_str(&format!("tier {}: nodes {} ({size})\n", tier.rank, nodes.join(", ")));
    }
    if topo.tiers.len() < 2 {
        out.push_str("one tier: no choice of memory; `tiercel run --machine NAME` models moves\n");
    }
    out
}

fn node_row(node: &TopoNode) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let figures = &node.figures;
    let kind = serde_json::to_value(node.kind).ok();
    vec![
        node.id.0.to_string(),
        format!("{}{}", node.label, if node.modelled { " (modelled)" } else { "" }),
        or_dash(kind.and_then(|kind| kind.as_str().map(str::to_owned))),
        or_dash(node.tier.map(|tier| tier.to_string())),
        short_bytes(node.capacity_bytes),
        or_dash(node.free_bytes.map(short_bytes)),
        if node.cpus.is_empty() { "none".to_owned() } else { node.cpus.clone() },
        or_dash(figures.read_gb_s.map(|gb_s| format!("{gb_s:.0}GB/s"))),
        or_dash(figures.write_gb_s.map(|gb_s| format!("{gb_s:.0}GB/s"))),
        or_dash(figures.read_latency_ns.map(|ns| format!("{ns:.0}ns"))),
    ]
}
