//! What the ledger of OS pages costs.
//! In: `--quick` for a tenth of the OS pages. Out: bench rows, one JSON line each.
//! Knows nothing of real programs: accesses and places are made up, from a fixed seed.
//!
//! The worst case: neighbouring OS pages are on different nodes, were accessed by different CPUs,
//! and have different histories, so that nothing in a piece is uniform and nothing is skipped.

use fastrand::Rng;
use tiercel_bench::{BenchResult, resident_bytes, thread_cpu_ns};
use tiercel_ledger::regions::{Area, Demand, Evidence, GroupId, Regions, RegionsConfig, View};
use tiercel_machine::NodeId;

/// As many processes as a busy node runs. Chosen, not measured.
const PROCESSES: u64 = 100;
const OS_PAGE: u64 = 4096;
const BASE: u64 = 0x7000_0000_0000;
/// Windows before the measured ones: a history, and one more.
const WARM_UP: u64 = 9;
const ROUNDS: u64 = 9;
/// Victims of a tick.
const VICTIMS: usize = 16;
/// One OS page in so many has no access in the last case.
const RARE: u64 = 1_000_000;

fn main() {
    let quick = std::env::args().any(|arg| arg == "--quick");
    let pages: u64 = if quick { 10_000_000 } else { 100_000_000 };
    let mut world = World::new(pages);
    let mut close_ms = Vec::new();
    let (mut victims_us, mut touch_ns) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP + ROUNDS {
        let touch = world.access(4);
        let ms = world.close();
        if round >= WARM_UP {
            touch_ns.push(touch);
            close_ms.push(ms);
            victims_us.push(world.victims());
        }
    }
    let size = format!("{} M OS pages", pages / 1_000_000);
    let bytes = world.regions.bytes() as f64 / pages as f64;
    let held = (resident_bytes() - world.before) as f64 / pages as f64;
    print_result(&format!("ledger, {size}"), &[bytes], Some(2.5), "bytes/OS page");
    // What the process holds beside its ledger is too much for few OS pages.
    let limit = (!quick).then_some(2.5);
    print_result(&format!("resident memory, {size}"), &[held], limit, "bytes/OS page");
    print_result(&format!("window closed, {size}"), &close_ms, Some(50.0), "ms");
    print_result(&format!("16 victims, {size}"), &victims_us, Some(20.0), "us");
    print_result("access noted", &touch_ns, None, "ns");
    // All but one in a million are accessed: the hand must find the few.
    world.access_all_but_few();
    let rare: Vec<f64> = (0..ROUNDS).map(|_| world.victims()).collect();
    print_result("16 victims, one OS page in 1 M has the level", &rare, None, "us");
}

struct World {
    regions: Regions,
    per_process: u64,
    random: Rng,
    before: u64,
}

impl World {
    fn new(pages: u64) -> World {
        let before = resident_bytes();
        let view = |node: u16| View { node: NodeId(node), best: vec![NodeId(node)] };
        let config = RegionsConfig {
            history: 8,
            evidence: Evidence::Complete,
            demand: Demand::Running,
            nodes: (0..4).map(NodeId).collect(),
            views: vec![view(0), view(1)],
            fast: vec![NodeId(0), NodeId(1)],
        };
        let mut regions = Regions::new(config).expect("valid");
        let per_process = pages / PROCESSES;
        let mut random = Rng::with_seed(1);
        let area = Area { start: BASE, end: BASE + per_process * OS_PAGE, of_file: false };
        for pid in 1..=PROCESSES as u32 {
            regions.set_mappings(pid, GroupId(0), &[area]);
            let nodes: Vec<_> =
                (0..per_process).map(|_| Some(NodeId(random.u64(..4) as u16))).collect();
            regions.set_residency(pid, BASE, &nodes);
        }
        World { regions, per_process, random, before }
    }

    /// Accesses one OS page in `one_in`, at random; nanoseconds each.
    fn access(&mut self, one_in: u64) -> f64 {
        let (mut count, began) = (0u64, thread_cpu_ns());
        for pid in 1..=PROCESSES as u32 {
            let mut page = self.random.u64(..one_in * 2);
            while page < self.per_process {
                let node = NodeId(self.random.u64(..2) as u16);
                self.regions.touch(pid, BASE + page * OS_PAGE, Some(node));
                page += 1 + self.random.u64(..one_in * 2 - 1);
                count += 1;
            }
        }
        (thread_cpu_ns() - began) / count as f64
    }

    fn access_all_but_few(&mut self) {
        for _ in 0..8 {
            self.regions.close_window();
        }
        for pid in 1..=PROCESSES as u32 {
            for page in (0..self.per_process).filter(|page| page % RARE != RARE / 2) {
                self.regions.touch(pid, BASE + page * OS_PAGE, Some(NodeId(0)));
            }
        }
        self.regions.close_window();
        self.regions.take_demand();
    }

    fn close(&mut self) -> f64 {
        let began = thread_cpu_ns();
        self.regions.close_window();
        (thread_cpu_ns() - began) / 1e6
    }

    fn victims(&mut self) -> f64 {
        self.regions.take_demand();
        let began = thread_cpu_ns();
        let found =
            (0..VICTIMS).filter_map(|_| self.regions.next_victim(GroupId(0), NodeId(0))).count();
        let us = (thread_cpu_ns() - began) / 1e3;
        assert_eq!(found, VICTIMS, "a quarter of all OS pages is on this node");
        us
    }
}

fn print_result(name: &str, ours: &[f64], limit: Option<f64>, unit: &str) {
    println!("{}", BenchResult::of_values(name.into(), ours, limit, unit));
}
