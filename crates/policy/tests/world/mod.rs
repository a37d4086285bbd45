//! Objects in words, decisions in words: what tests of whole decisions share.
//! In: a policy as on the command line, a budget, objects. Out: what would be moved and what not.
//! Knows nothing of how it is decided.
#![allow(dead_code)] // Each test file uses its part.

use expect_test::Expect;
use tiercel_ledger::movement::{Outcome, Reason};
use tiercel_ledger::{AccessValue, Config as LedgerConfig, Ledger, Range};
use tiercel_machine::{Machine, Node, NodeId};
use tiercel_policy::{Budgets, Config, Decision, Interval, Limit, Policy};
use tiercel_wire::{AccessKind, Flags, Record, Sample, Version};

pub const MIB: u64 = 1 << 20;
pub const PID: u32 = 1;

/// Nodes 0, 1, 2 of this many MiB and this read and write latency; each a tier.
pub fn machine(nodes: &[(u64, f64)]) -> Machine {
    let node = |(id, (mib, latency_ns)): (usize, &(u64, f64))| {
        let mut node = Node::new(NodeId(id as u16), mib * MIB);
        node.tier = Some(id as u16);
        if *latency_ns > 0.0 {
            node.figures.read_latency_ns = Some(*latency_ns);
            node.figures.write_latency_ns = Some(*latency_ns);
        }
        node
    };
    let nodes = nodes.iter().enumerate().map(node).collect();
    Machine { name: "test".to_owned(), nodes, ..Machine::default() }
}

/// A ledger of objects `name MiB@node accesses`, one per word: `a:4@0:100`. Accesses are samples of
/// weight 1000 in one interval; `@?` is nowhere known; objects are born one interval after another.
pub struct World {
    pub ledger: Ledger,
    names: Vec<String>,
    pub now_ms: u64,
    pub last: Interval,
}

impl World {
    pub fn new(objects: &str) -> World {
        // Extents are whole objects, whatever part of them is hot.
        let config = LedgerConfig { finest_bytes: 64 * MIB, ..LedgerConfig::default() };
        let mut ledger = Ledger::new(config, 0).expect("good");
        let two = machine(&[(1000, 100.0), (1000, 300.0)]);
        ledger.set_values(AccessValue::of(&two).expect("two tiers"));
        ledger.process_born(PID).expect("new");
        let names = Vec::new();
        let mut world = World { ledger, names, now_ms: 0, last: Interval::default() };
        let mut accessed = Vec::new();
        for word in objects.split_whitespace() {
            let mut parts = word.split([':', '@']);
            let mut next = || parts.next().expect("name:MiB@node:accesses");
            let (name, mib, node, accesses) = (next(), next(), next(), next());
            let bytes = mib.parse::<u64>().expect("MiB") * MIB;
            world.born(name, bytes);
            world.tick();
            if let Ok(node) = node.parse() {
                let range = Range { pid: PID, addr: world.addr(name), bytes };
                world.ledger.set_residency(range, &[(NodeId(node), bytes)], world.now_ms);
            }
            accessed.push((world.addr(name), accesses.parse::<u32>().expect("accesses")));
        }
        accessed.iter().for_each(|(addr, accesses)| world.access(*addr, *accesses));
        world.tick();
        world
    }

    pub fn addr(&self, name: &str) -> u64 {
        let nth = self.names.iter().position(|known| known == name).expect("born");
        0x1000_0000 + nth as u64 * 128 * MIB
    }

    pub fn born(&mut self, name: &str, bytes: u64) {
        self.names.push(name.to_owned());
        let version = Version { carve: self.names.len() as u32, generation: 0 };
        let record = Record::Born {
            addr: self.addr(name),
            bytes,
            site: 0,
            version,
            arena: None,
            flags: Flags(0),
            time_ns: self.now_ms * 1_000_000,
        };
        self.ledger.apply(PID, &record);
    }

    pub fn access(&mut self, addr: u64, accesses: u32) {
        for _ in 0..accesses {
            let (kind, at_ns) = (AccessKind::Read, self.now_ms * 1_000_000);
            let (latency_ns, node) = (None, None);
            let sample = Sample {
                from_ns: at_ns,
                until_ns: at_ns,
                pid: PID,
                tid: 0,
                addr,
                kind,
                latency_ns,
                node,
                weight: 1000,
                around: None,
                cpu: None,
                by: None,
            };
            self.ledger.sample(&sample);
        }
    }

    pub fn tick(&mut self) {
        self.now_ms += 2000;
        self.last = Interval::of(&self.ledger.tick(self.now_ms));
    }

    /// Executes a decision's moves as a perfect mover would.
    pub fn execute(&mut self, decision: &Decision) {
        for asked in &decision.moves {
            let outcome = Outcome {
                moved_bytes: asked.bytes,
                resident_bytes: asked.bytes,
                ..Outcome::of(asked.clone())
            };
            self.ledger.outcome(&outcome);
        }
    }

    pub fn on_node(&self, node: u16) -> u64 {
        self.ledger.extents().map(|extent| extent.residency.bytes_on(NodeId(node))).sum()
    }

    pub fn name_at(&self, addr: u64) -> &str {
        self.names.iter().find(|name| self.addr(name) == addr).expect("an object's first byte")
    }

    pub fn shown(&self, decision: &Decision) -> String {
        let mut lines = Vec::new();
        for asked in &decision.moves {
            let word = if asked.reason == Reason::Demote { "demote" } else { "promote" };
            let from = asked.from.map_or("?".to_owned(), |node| node.to_string());
            lines.push(format!("{word} {} {from} -> {}", self.name_at(asked.addr), asked.to));
        }
        for refused in decision.summary.iter().flat_map(|summary| &summary.refused) {
            let mib = refused.bytes / MIB;
            lines.push(format!("left {} ({mib} MiB): {:?}", refused.extents, refused.why));
        }
        lines.extend(decision.problems.iter().map(|problem| format!("problem: {problem}")));
        wrapped(&lines.join("\n"))
    }
}

/// Lines of at most 80 columns, for long messages.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for (nth, line) in text.split('\n').enumerate() {
        if nth > 0 {
            lines.push(String::new());
        }
        let words = if line.len() <= 80 { vec![line] } else { line.split(' ').collect() };
        for word in words {
            let last = lines.last_mut().expect("one at least");
            if !last.is_empty() && last.len() + word.len() >= 80 {
                lines.push(word.to_owned());
            } else {
                *last += if last.is_empty() { "" } else { " " };
                *last += word;
            }
        }
    }
    lines.join("\n")
}

pub fn policy(prioritise: &str, gate: &str) -> Policy {
    let config = Config {
        prioritise: prioritise.parse().expect("a routine"),
        trigger: "time:ticks=1".parse().expect("a routine"),
        gate: gate.parse().expect("a routine"),
        // As in MAT: figures below are of 90%.
        enforce: "fill:follow_births=false".parse().expect("a routine"),
        ..Config::default()
    };
    Policy::new(config).expect("good")
}

pub fn decide(world: &World, policy: &mut Policy, machine: &Machine, fast_mib: u64) -> Decision {
    let budgets = Budgets::fast(Limit::Bytes(fast_mib * MIB));
    policy.tick(&world.ledger, machine, &budgets, &world.last)
}

pub fn check(prioritise: &str, gate: &str, fast_mib: u64, objects: &str, want: Expect) {
    let world = World::new(objects);
    let machine = machine(&[(1000, 100.0), (10_000, 300.0)]);
    let decision = decide(&world, &mut policy(prioritise, gate), &machine, fast_mib);
    want.assert_eq(&world.shown(&decision));
}
