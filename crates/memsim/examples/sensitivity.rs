//! How much the ranking of placements depends on the model's constants.
//! In: names of built-in machines. Out: a JSON line for each machine, workload and changed
//! constant: the time an access takes under each placement. Knows nothing of rankings.
//!
//! One core with its share of the machine, so that bandwidth counts; four made-up workloads of two
//! or three objects; a fast memory that holds part of them. One constant at a time is a quarter
//! larger or smaller.

use std::collections::BTreeMap;

use serde_json::json;
use tiercel_machine::{Machine, NodeId};
use tiercel_memsim::{
    Access, CacheShape, CoreShape, LevelShape, Memory, PrefetchShape, Simulator, SimulatorShape,
    WindowShape,
};

/// Accesses of a trace, some 10 ms. Chosen, not measured.
const ACCESSES: usize = 200_000;
/// Of these, the first ones only fill the caches.
const WARM: usize = 60_000;
const MIB: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4096;
/// Objects begin so far apart.
const OBJECT_SHIFT: u32 = 32;
/// Changes of a constant.
const CHANGES: [f64; 2] = [0.75, 1.25];

fn main() {
    let names: Vec<String> = std::env::args().skip(1).collect();
    for name in &names {
        let machine = Machine::builtin(name).expect("a built-in machine").expect("valid");
        for workload in WORKLOADS {
            let stream: Vec<Step> = workload.steps();
            for (constant, change) in changes() {
                let setting = Setting::new(&machine, constant, change);
                let times: BTreeMap<String, f64> = workload
                    .placements()
                    .into_iter()
                    .map(|(name, placement)| (name, setting.ns(&stream, &placement)))
                    .collect();
                let line = json!({
                    "machine": name, "workload": workload.name, "constant": constant,
                    "change": change, "ns": times,
                });
                println!("{line}");
            }
        }
    }
}

/// Every constant with its changes; first nothing changed.
fn changes() -> Vec<(&'static str, f64)> {
    let changed = CONSTANTS.iter().flat_map(|&name| CHANGES.map(|change| (name, change)));
    std::iter::once(("nothing", 1.0)).chain(changed).collect()
}

const CONSTANTS: [&str; 21] = [
    "fast latency",
    "fast bandwidth",
    "fast rise under load",
    "slow latency",
    "slow bandwidth",
    "slow write bandwidth",
    "slow rise under load",
    "slow block",
    "slope of curves",
    "share of the machine",
    "instruction",
    "second level latency",
    "second level size",
    "shared level latency",
    "shared level size",
    "window",
    "MSHRs",
    "store buffer",
    "prefetch distance",
    "prefetch lines",
    "first level size",
];

/// A machine and a processor, one constant of which is changed.
struct Setting {
    machine: Machine,
    shape: SimulatorShape,
    cpus: Vec<NodeId>,
    fast: NodeId,
    slow: NodeId,
}

impl Setting {
    fn new(machine: &Machine, constant: &str, change: f64) -> Setting {
        let by = |name: &str| if name == constant { change } else { 1.0 };
        let whole = |value: u64, name: &str| (value as f64 * by(name)).round() as u64;
        let mut machine = machine.clone();
        let fast = machine.nodes[0].id;
        let is_slow = |node: &&tiercel_machine::Node| !node.has_cpus() && node.is_near(fast);
        let slow = machine.nodes.iter().find(is_slow).expect("a slow node").id;
        for node in &mut machine.nodes {
            let name = if node.id == slow { "slow" } else { "fast" };
            let [latency, bandwidth, rise] = ["latency", "bandwidth", "rise under load"]
                .map(|what| by(&format!("{name} {what}")));
            let times = |value: &mut Option<f64>, by: f64| {
                *value = value.map(|value| value * by);
            };
            times(&mut node.figures.read_latency_ns, latency);
            times(&mut node.figures.write_latency_ns, latency);
            times(&mut node.figures.read_gb_s, bandwidth);
            times(&mut node.figures.write_gb_s, bandwidth * by("slow write bandwidth"));
            node.granularity_bytes =
                node.granularity_bytes.map(|bytes| whole(u64::from(bytes), "slow block") as u32);
            for line in &mut node.curve {
                line.peak_gb_s *= bandwidth;
                line.peak_ns = line.idle_ns + (line.peak_ns - line.idle_ns) * rise;
                line.slope = (line.slope * by("slope of curves")).min(1.0);
            }
        }
        let level = |bytes, ways, size: &str, ps, latency: &str| LevelShape {
            cache: CacheShape { bytes: whole(bytes, size), ways },
            latency_ps: whole(ps, latency),
        };
        let core = CoreShape {
            levels: vec![
                level(32 << 10, 8, "first level size", 0, ""),
                level(MIB, 16, "second level size", 4_000, "second level latency"),
            ],
            window: WindowShape {
                instructions: whole(224, "window"),
                mshrs: whole(16, "MSHRs") as usize,
                stores: whole(48, "store buffer") as usize,
            },
            prefetch: Some(PrefetchShape {
                degree: 2,
                ahead: whole(20, "prefetch distance") as u32,
                lines: whole(48, "prefetch lines") as u32,
            }),
            instruction_ps: whole(250, "instruction"),
            home: Some(fast),
        };
        let shared = level(4 * MIB, 16, "shared level size", 20_000, "shared level latency");
        let shape = SimulatorShape { cores: vec![core], shared: Some(shared) };
        // A share is a whole number of CPUs, so that one of four is a quarter.
        let cpus = vec![fast; whole(4, "share of the machine") as usize];
        Setting { machine, shape, cpus, fast, slow }
    }

    /// Time of an access.
    fn ns(&self, steps: &[Step], placement: &Layout) -> f64 {
        let memory = Memory::for_cpus(&self.machine, &self.cpus).expect("figures are known");
        let mut simulator = Simulator::with_memory(memory, &self.shape).expect("a processor");
        let node_of = |addr: u64| if placement.is_fast(addr) { self.fast } else { self.slow };
        let mut done_ps = [0; CHAINS];
        let mut began_ps = 0;
        for (i, step) in steps.iter().enumerate() {
            if i == WARM {
                began_ps = simulator.drain(0);
            }
            let after_ps = step.chain.map_or(0, |chain| done_ps[chain]);
            let Step { instructions, addr, write, .. } = *step;
            let access = Access { instructions, addr, write, after_ps };
            let served = simulator.access(0, &access, node_of);
            if let Some(chain) = step.chain {
                done_ps[chain] = served.done_ps;
            }
        }
        (simulator.drain(0) - began_ps) as f64 / 1000.0 / (steps.len() - WARM) as f64
    }
}

/// Chains of dependent loads that a workload has at most.
const CHAINS: usize = 4;

struct Step {
    instructions: u64,
    addr: u64,
    write: bool,
    /// Its address comes from the access before it in this chain.
    chain: Option<usize>,
}

/// How an object is used; each use is one turn of the workload's round.
#[derive(Clone, Copy)]
enum Use {
    /// One of this many chains goes on, to anywhere in the object.
    Chase(usize),
    /// A load from anywhere, that depends on nothing.
    Random,
    /// Eight words in a row are read.
    Read,
    /// Eight words in a row are written.
    Write,
}

struct Workload {
    name: &'static str,
    /// In the order of allocation: name, size, uses in a round.
    objects: &'static [(&'static str, u64, &'static [Use])],
    /// What the fast memory holds.
    fast_bytes: u64,
}

const WORKLOADS: [Workload; 4] = [
    Workload {
        name: "chase beside stream",
        objects: &[("stream", 16 * MIB, &[Use::Read]), ("chase", 16 * MIB, &[Use::Chase(1)])],
        fast_bytes: 16 * MIB,
    },
    Workload {
        name: "hot and cold",
        objects: &[
            ("cold", 48 * MIB, &[Use::Random]),
            ("hot", 12 * MIB, &[Use::Random, Use::Random, Use::Random, Use::Random, Use::Random]),
        ],
        fast_bytes: 16 * MIB,
    },
    Workload {
        name: "lookups and streams",
        objects: &[
            ("log", 16 * MIB, &[Use::Write]),
            ("table", 24 * MIB, &[Use::Chase(4), Use::Chase(4)]),
            ("grid", 16 * MIB, &[Use::Read, Use::Read, Use::Write]),
        ],
        fast_bytes: 24 * MIB,
    },
    Workload {
        name: "two streams",
        objects: &[
            ("read", 24 * MIB, &[Use::Read, Use::Read]),
            ("written", 24 * MIB, &[Use::Write]),
        ],
        fast_bytes: 24 * MIB,
    },
];

/// For each object, which of its bytes are in fast memory: up to a limit, or one OS page in some.
struct Layout {
    up_to: Vec<u64>,
    interleave: Option<(u64, u64)>,
}

impl Layout {
    fn is_fast(&self, addr: u64) -> bool {
        let (object, offset) = (addr >> OBJECT_SHIFT, addr & ((1 << OBJECT_SHIFT) - 1));
        match self.interleave {
            // Of `all` OS pages in a row `of` are fast.
            Some((of, all)) => {
                let page = offset / PAGE_BYTES;
                (page + 1) * of / all > page * of / all
            }
            None => offset < self.up_to[object as usize],
        }
    }
}

impl Workload {
    fn steps(&self) -> Vec<Step> {
        let mut random = 1u64;
        let mut at = vec![0u64; self.objects.len()];
        let mut steps = Vec::with_capacity(ACCESSES + 8);
        let mut round = 0;
        while steps.len() < ACCESSES {
            round += 1;
            for (object, (_, bytes, uses)) in self.objects.iter().enumerate() {
                for (turn, of) in uses.iter().enumerate() {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let anywhere = (random >> 24) % (bytes / 64) * 64;
                    let addr = |offset: u64| (object as u64) << OBJECT_SHIFT | offset;
                    let step = |addr, write, chain| Step { instructions: 6, addr, write, chain };
                    match *of {
                        Use::Chase(chains) => {
                            let chain = (round * uses.len() + turn) % chains;
                            steps.push(step(addr(anywhere), false, Some(chain)));
                        }
                        Use::Random => steps.push(step(addr(anywhere), false, None)),
                        Use::Read | Use::Write => {
                            let begin = at[object];
                            at[object] = (begin + 64) % bytes;
                            let write = matches!(of, Use::Write);
                            let words =
                                (0..8).map(|word| step(addr(begin + word * 8), write, None));
                            steps.extend(words);
                        }
                    }
                }
            }
        }
        steps
    }

    /// All fast, all slow, interleaved by capacity, in order of allocation, each object first.
    fn placements(&self) -> Vec<(String, Layout)> {
        let sizes: Vec<u64> = self.objects.iter().map(|(_, bytes, _)| *bytes).collect();
        let up_to = |up_to: Vec<u64>| Layout { up_to, interleave: None };
        let all: u64 = sizes.iter().sum();
        let share = Some((self.fast_bytes / MIB, all / MIB));
        let mut placements = vec![
            ("all fast".to_owned(), up_to(sizes.clone())),
            ("all slow".to_owned(), up_to(vec![0; sizes.len()])),
            ("interleaved".to_owned(), Layout { up_to: Vec::new(), interleave: share }),
        ];
        for first in 0..sizes.len() {
            let order = std::iter::once(first).chain((0..sizes.len()).filter(|&i| i != first));
            let mut left = self.fast_bytes;
            let mut filled = vec![0; sizes.len()];
            for object in order {
                filled[object] = sizes[object].min(left);
                left -= filled[object];
            }
            let name = match first {
                0 => "first touch".to_owned(),
                _ => format!("{} first", self.objects[first].0),
            };
            placements.push((name, up_to(filled)));
        }
        placements
    }
}
