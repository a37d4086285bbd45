//! Bench `mover`: what batching is worth, against plain `move_pages` calls of one OS page each.
//! In: `--quick` for fewer rounds. Out: rows as JSON lines (`./x bench mover` draws the table).
//! Knows nothing of policies. On one node nothing moves: the rows then time looking at memory and
//! moving it where it is, which is all of a mover's own cost; on several it really moves.

use std::time::Instant;

use tiercel_bench::BenchResult;
use tiercel_ledger::movement::{Move, Reason};
use tiercel_machine::{Machine, NodeId};
use tiercel_mover::{Kernel, KernelMover, Linux, Mover, Range};

/// One extent.
const BYTES: u64 = 64 << 20;
/// What moves one by one: a sixteenth, or it takes minutes.
const BYTES_PLAIN: u64 = BYTES / 16;
const ROUNDS: usize = 21;
const ROUNDS_QUICK: usize = 7;
/// A huge page.
const HUGE_BYTES: u64 = 2 << 20;
/// Batches that are compared; the mover's own is 4096.
const BATCHES: [usize; 4] = [64, 512, 4096, 16384];

fn main() {
    let rounds = if std::env::args().any(|arg| arg == "--quick") { ROUNDS_QUICK } else { ROUNDS };
    let work = Work::new(BYTES);
    let plain_work = Work::new(BYTES_PLAIN);
    for batch in BATCHES {
        let name = format!("locate-in-batches-of-{batch}");
        row(&name, None, rounds, || work.call(batch, None), || work.call(1, None));
    }
    // Several times as fast as one call per OS page, or batching is broken.
    row("residency", Some(0.5), rounds, || work.residency(), || work.call(1, None));
    let nodes = nodes();
    // One by one, every call drains the lists of every CPU.
    let mut turn = nodes.iter().cycle();
    let mut next = || *turn.next().expect("a machine has memory");
    let mut execute = || work.execute(next());
    let name = if nodes.len() > 1 { "move-between-nodes" } else { "move-in-place" };
    let mut plain_turn = nodes.iter().cycle();
    let mut plain = || {
        let next = *plain_turn.next().expect("a machine has memory");
        plain_work.call(1, Some(next))
    };
    row(name, Some(0.5), rounds, &mut execute, &mut plain);
}

struct Work {
    pid: u32,
    range: Range,
    os_page: u64,
}

impl Work {
    /// Memory of this process, touched and never freed.
    fn new(bytes: u64) -> Work {
        let memory = vec![1u8; bytes as usize + HUGE_BYTES as usize].leak();
        let addr = (memory.as_ptr() as u64).next_multiple_of(HUGE_BYTES);
        let os_page = Linux::default().os_page_bytes();
        Work { pid: std::process::id(), range: Range { addr, bytes }, os_page }
    }

    /// Time of `move_pages` over the whole range with so many OS pages per call, nanoseconds per OS
    /// page.
    fn call(&self, batch: usize, target: Option<NodeId>) -> f64 {
        let count = self.range.bytes / self.os_page;
        let addrs: Vec<u64> = (0..count).map(|i| self.range.addr + i * self.os_page).collect();
        let mut status = vec![0; addrs.len()];
        let mut kernel = Linux::default();
        let started = Instant::now();
        for (addrs, status) in addrs.chunks(batch).zip(status.chunks_mut(batch)) {
            kernel.move_pages(self.pid, addrs, target, status).expect("our own memory");
        }
        started.elapsed().as_nanos() as f64 / count as f64
    }

    fn residency(&self) -> f64 {
        let started = Instant::now();
        let answer = KernelMover::new().residency(self.pid, &[self.range]).remove(0);
        let took = started.elapsed().as_nanos() as f64;
        assert_eq!(answer.expect("our own memory").absent_bytes, 0);
        took / (self.range.bytes / self.os_page) as f64
    }

    fn execute(&self, to: NodeId) -> f64 {
        let asked = Move {
            pid: self.pid,
            addr: self.range.addr,
            bytes: self.range.bytes,
            from: None,
            to,
            reason: Reason::Asked,
            gain_ns_per_s: 0.0,
            cost_ns: 0.0,
        };
        let started = Instant::now();
        let outcome = KernelMover::new().execute(&[asked]).remove(0);
        let took = started.elapsed().as_nanos() as f64;
        assert_eq!(outcome.resident_bytes, self.range.bytes, "{:?}", outcome.failed);
        took / (self.range.bytes / self.os_page) as f64
    }
}

/// The first two nodes with memory, or the only one.
fn nodes() -> Vec<NodeId> {
    let machine = Machine::discover(std::path::Path::new("/"));
    let (machine, _) = machine.expect("a machine with memory");
    machine.memory_nodes().map(|node| node.id).take(2).collect()
}

/// Both in turn, medians, the spread of the paired ratios.
fn row(
    name: &str,
    limit: Option<f64>,
    rounds: usize,
    mut ours: impl FnMut() -> f64,
    mut peer: impl FnMut() -> f64,
) {
    let (ours, peers): (Vec<f64>, Vec<f64>) = (0..rounds).map(|_| (ours(), peer())).unzip();
    let by = "move_pages one by one";
    println!("{}", BenchResult::of_pairs(name.into(), by, &ours, &peers, limit, "ns/OS page"));
}
