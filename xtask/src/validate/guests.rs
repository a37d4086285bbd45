//! Guests that measure. In: a machine, how many virtual CPUs, what is modelled. Out: what the probe
//! measured. Knows nothing of expected values.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use tiercel_lab::{Guest, Model, Payload, Request, Size, Streams, Timing, Topology};
use tiercel_machine::{Machine, NodeId};

use crate::exec;

/// A guest that takes longer hangs. The slowest takes some minutes on two idle cores, and many
/// times as long on busy ones, which modelled time knows nothing of.
const LIMIT: Duration = Duration::from_secs(5400);
/// Most virtual CPUs of a guest: of more, those that wait for one another keep a host of few busy.
const VCPUS_MAX: u32 = 8;
/// Memory of a guest: each node then holds the probe's 64 MiB and more.
const MEMORY_BYTES: u64 = 4 << 30;

/// The kind of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boot {
    /// Virtual CPUs beside each node that has CPUs.
    pub vcpus: u32,
    pub model: Model,
}

/// The node of the CPUs and the node of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    pub from: NodeId,
    pub to: NodeId,
}

/// One line of the probe: what it measured, its setting, nanoseconds a load, GB/s of all threads.
#[derive(Clone, Debug)]
pub struct Seen {
    pub path: Path,
    pub kind: String,
    pub setting: Vec<String>,
    pub ns: f64,
    pub gb_s: f64,
}

/// Programs that are built for the guests.
pub struct Tools {
    plugin: PathBuf,
    probe: PathBuf,
}

impl Boot {
    pub fn model_name(self) -> &'static str {
        match (self.model.share, self.model.prefetch) {
            (false, false) => "whole",
            (false, true) => "whole, prefetch",
            (true, false) => "share",
            (true, true) => "share, prefetch",
        }
    }

    pub fn label(self) -> String {
        format!("{} virtual CPU(s) a node, {}", self.vcpus, self.model_name())
    }
}

impl Tools {
    pub fn build(built: bool) -> Result<Tools> {
        if !built {
            let package = ["--package", "tiercel-emulator"];
            exec::run(exec::cargo().args(["build", "--release", "--quiet"]).args(package))?;
        }
        let out = exec::target().join("lab");
        std::fs::create_dir_all(&out)?;
        let probe = out.join("probe");
        // Loops stay loops: a copy is no call of memcpy.
        let flags = ["-std=gnu17", "-O3", "-fno-tree-loop-distribute-patterns", "-pthread"];
        let strict = ["-Wall", "-Wextra", "-Werror", "-o"];
        let source = exec::root().join("lab/validate/probe.c");
        exec::run(exec::command("cc").args(flags).args(strict).arg(&probe).arg(source))?;
        Ok(Tools { plugin: exec::target().join("release/libtiercel_emulator.so"), probe })
    }
}

/// Every node's memory from where it is nearest, then what links say about others.
pub fn paths(machine: &Machine) -> Vec<Path> {
    let nearest = |to: NodeId| {
        let near = machine.nodes.iter().find(|from| {
            from.has_cpus() && machine.node(to).is_some_and(|node| node.is_near(from.id))
        });
        near.or(machine.nodes.iter().find(|node| node.has_cpus())).map(|node| node.id)
    };
    let near = machine.memory_nodes().filter_map(|node| {
        let from = nearest(node.id)?;
        Some(Path { from, to: node.id })
    });
    let far = machine.links.iter().map(|link| Path { from: link.from, to: link.to });
    near.chain(far).collect()
}

/// The nodes nearest to the first CPUs: where everything is measured. Others differ in nothing but
/// their number.
pub fn is_main(machine: &Machine, path: Path) -> bool {
    let first = machine.nodes.iter().find(|node| node.has_cpus()).map(|node| node.id);
    Some(path.from) == first && machine.links.iter().all(|l| (l.from, l.to) != (path.from, path.to))
}

fn with_cpus(machine: &Machine) -> u32 {
    machine.nodes.iter().map(|node| u32::from(node.has_cpus())).sum()
}

/// The nodes that a boot has: all of them, or those of the main paths, where all were too many
/// virtual CPUs.
fn booted(machine: &Machine, boot: Boot) -> Vec<NodeId> {
    let nodes = machine.nodes.iter().map(|node| node.id);
    if boot.vcpus * with_cpus(machine) <= VCPUS_MAX {
        return nodes.collect();
    }
    let main: Vec<Path> = paths(machine).into_iter().filter(|p| is_main(machine, *p)).collect();
    nodes.filter(|id| main.iter().any(|path| path.from == *id || path.to == *id)).collect()
}

/// Boots, runs the probe on every path, reads its output.
pub fn measure(guest: &Guest, tools: &Tools, machine: &Machine, boot: Boot) -> Result<Vec<Seen>> {
    let nodes = booted(machine, boot);
    let machine = &machine.part(&nodes).map_err(|id| anyhow!("the machine has no node {id}"))?;
    let size = Size { memory_bytes: MEMORY_BYTES, cpus: boot.vcpus * with_cpus(machine) };
    let topology = Topology::of(machine, size)?;
    let command = script(machine, &topology, boot)?;
    let mut payload = Payload::default();
    payload.program(&tools.probe, "usr/bin/probe")?;
    let (mut stdout, mut stderr) = (Vec::new(), io::stderr());
    let request = Request {
        topology: &topology,
        payload,
        command: &command,
        environment: &[],
        timeout: LIMIT,
        out: None,
        timing: Some(Timing { plugin: &tools.plugin, machine, model: boot.model, trace: None }),
    };
    let streams = Streams { stdout: &mut stdout, stderr: &mut stderr };
    let outcome = guest.run(request, streams)?;
    let text = String::from_utf8_lossy(&stdout);
    ensure!(outcome.status == 0, "the guest's probe ended with {}:\n{text}", outcome.status);
    let mut seen = parse(&text)?;
    for Seen { path, .. } in &mut seen {
        let whole = |id: NodeId| nodes.get(usize::from(id.0)).copied().context("an unknown node");
        *path = Path { from: whole(path.from)?, to: whole(path.to)? };
    }
    Ok(seen)
}

fn script(machine: &Machine, topology: &Topology, boot: Boot) -> Result<String> {
    let place = |id: NodeId| {
        let place = topology.nodes.iter().position(|node| node.origin == id);
        place.with_context(|| format!("node {id} is not in the guest"))
    };
    let Boot { vcpus, model } = boot;
    let mut script = "set -e\n".to_owned();
    for path in paths(machine) {
        let probes = match (is_main(machine, path), model.share, model.prefetch) {
            // The caches of one virtual CPU are those of any.
            (true, false, _) if vcpus == 1 => "levels 1,idle 1,chains 1".to_owned(),
            (true, false, _) => format!("idle {vcpus},chains {vcpus}"),
            (false, false, _) => format!("idle {vcpus}"),
            (true, true, true) => format!("loads {vcpus},stream {vcpus},idle 1"),
            (true, true, false) => format!("stream {vcpus},idle 1"),
            (false, true, _) => continue,
        };
        script += &format!("echo path {} {}\n", path.from, path.to);
        let (from, to) = (place(path.from)?, place(path.to)?);
        for probe in probes.split(',') {
            script += &format!("numactl --cpunodebind={from} --membind={to} probe {probe}\n");
        }
    }
    Ok(script)
}

fn parse(text: &str) -> Result<Vec<Seen>> {
    let mut path = None;
    let mut seen = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let about = || format!("the probe printed {line:?}");
        if let ["path", from, to] = words[..] {
            let id = |text: &str| text.parse().map(NodeId).with_context(about);
            path = Some(Path { from: id(from)?, to: id(to)? });
        } else if let [kind, setting @ .., ns, gb_s] = &words[..] {
            seen.push(Seen {
                path: path.with_context(about)?,
                kind: (*kind).to_owned(),
                setting: setting.iter().map(|word| (*word).to_owned()).collect(),
                ns: ns.parse().with_context(about)?,
                gb_s: gb_s.parse().with_context(about)?,
            });
        }
    }
    ensure!(!seen.is_empty(), "the probe printed nothing");
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probes_output_is_parsed() {
        let seen = parse("path 0 2\nlevel 64 4.0 0\nstream copy 1.5 12.25\n").expect("valid");
        assert_eq!(seen[1].path, Path { from: NodeId(0), to: NodeId(2) });
        assert_eq!((seen[0].kind.as_str(), seen[0].setting[0].as_str()), ("level", "64"));
        assert_eq!((seen[1].ns, seen[1].gb_s), (1.5, 12.25));
        assert!(parse("level 64 4.0 0\n").is_err(), "of no path");
        assert!(parse("path 0 1\nlevel 64 x 0\n").is_err());
        assert!(parse("").is_err());
    }

    #[test]
    fn of_machines_with_many_cpus_two_a_node_are_those_of_the_main_paths() {
        let nodes = |name: &str, vcpus: u32| {
            let machine = Machine::builtin(name).expect("known").expect("valid");
            let ids = booted(&machine, Boot { vcpus, model: Model::default() });
            ids.iter().map(|id| id.0).collect::<Vec<_>>()
        };
        assert_eq!(nodes("xeonmax-hbm", 1).len(), 16);
        assert_eq!(nodes("xeonmax-hbm", 2), [0, 8]);
        assert_eq!(nodes("two-socket-optane", 2), [0, 1, 2, 3]);
    }

    #[test]
    fn every_node_is_measured_locally_and_over_each_link() {
        let machine = Machine::builtin("two-socket-optane").expect("known").expect("valid");
        let pairs: Vec<(u16, u16)> = paths(&machine).iter().map(|p| (p.from.0, p.to.0)).collect();
        let expect = [(0, 0), (1, 1), (0, 2), (1, 3), (0, 1), (0, 3), (1, 0), (1, 2)];
        assert_eq!(pairs, expect);
        let main = |path: &Path| is_main(&machine, *path);
        assert_eq!(paths(&machine).iter().filter(|path| main(path)).count(), 2);
    }
}
