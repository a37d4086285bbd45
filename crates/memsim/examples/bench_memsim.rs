//! Bench `memsim`: accesses a second through caches, window and memories, on one core of the host.
//! In: `--quick` for fewer rounds. Out: rows as JSON lines. Knows nothing of real programs: the
//! streams are made up, from a fixed seed.
//!
//! The peer is what one writes first: a list of ways per set, searched and reordered at each access
//! (exact LRU), with the same levels and no timing at all. Both see the same accesses in turn.

use fastrand::Rng;
use tiercel_bench::BenchResult;
use tiercel_machine::{Machine, NodeId};
use tiercel_memsim::{
    Access, CacheShape, CoreShape, LevelShape, PrefetchShape, Simulator, SimulatorShape,
    WindowShape,
};

/// Accesses of a round, some 50 ms, and rounds of which the fastest counts. Chosen, not measured.
const ACCESSES: usize = 1_000_000;
const ROUNDS: usize = 15;
const ROUNDS_QUICK: usize = 5;
/// CPU nanoseconds an access may take where traces spend their time: 20 million a second.
const LIMIT_NS: f64 = 50.0;
/// First, second and shared level of a core: bytes, ways, latency.
const LEVELS: [(u64, u32, u64); 3] =
    [(32 << 10, 8, 1_250), (1 << 20, 16, 4_000), (4 << 20, 16, 20_000)];

fn main() {
    let rounds = if std::env::args().any(|arg| arg == "--quick") { ROUNDS_QUICK } else { ROUNDS };
    // Memory serves 1.5% and 9.8% of them: 5 and 33 misses per 1000 instructions, if every third
    // instruction accesses memory.
    row("replay mix", &mix(64), Some(LIMIT_NS), rounds, false);
    row("replay mix, prefetcher on", &mix(64), Some(LIMIT_NS), rounds, true);
    row("memory-bound mix", &mix(16), None, rounds, false);
    row("stream", &stream(), None, rounds, false);
    row("random in first level", &random(16 << 10), None, rounds, false);
    row("random in caches", &random(512 << 10), None, rounds, false);
    row("random in memory", &random(1 << 30), None, rounds, false);
}

/// What programs do, roughly: of every `period` accesses one anywhere in 256 MiB, one anywhere in
/// 2 MiB, an eighth along two arrays (one is written), the others in the stack and a few tables
/// (8 KiB).
fn mix(period: u64) -> Vec<(u64, bool)> {
    let mut random = Rng::with_seed(1);
    let mut element = 0;
    (0..ACCESSES as u64)
        .map(|i| match i % period {
            0 => (1 << 34 | random.u64(..256 << 20), false),
            8 => (1 << 33 | random.u64(..2 << 20), i % 32 == 8),
            k if k % 8 == 3 => {
                element += 4;
                (1 << 35 | (element & 4) << 30 | element & !7, element & 4 != 0)
            }
            _ => (random.u64(..8 << 10), i % 5 == 0),
        })
        .collect()
}

fn stream() -> Vec<(u64, bool)> {
    (0..ACCESSES as u64).map(|i| (i * 8, false)).collect()
}

fn random(footprint_bytes: u64) -> Vec<(u64, bool)> {
    let mut random = Rng::with_seed(1);
    (0..ACCESSES as u64).map(|i| (random.u64(..footprint_bytes), i % 4 == 0)).collect()
}

fn row(name: &str, stream: &[(u64, bool)], limit: Option<f64>, rounds: usize, prefetch: bool) {
    let mut simulator = simulator(prefetch);
    let mut plain = Plain::new();
    let (mut ours, mut peers) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        ours.push(timed(|| play(&mut simulator, stream)));
        peers.push(timed(|| stream.iter().map(|&(addr, write)| plain.access(addr, write)).sum()));
    }
    let (name, unit) = (name.into(), "ns/access");
    let row = match limit {
        None => BenchResult::of_pairs(name, "LRU lists", &ours, &peers, None, unit),
        Some(_) => BenchResult::of_values(name, &ours, limit, unit),
    };
    println!("{row}");
}

fn simulator(prefetch: bool) -> Simulator {
    let machine = Machine::builtin("spr-cxl").expect("built in").expect("valid");
    let [first, second, shared] = LEVELS.map(|(bytes, ways, latency_ps)| LevelShape {
        cache: CacheShape { bytes, ways },
        latency_ps,
    });
    let core = CoreShape {
        levels: vec![first, second],
        window: WindowShape { instructions: 224, mshrs: 16, stores: 48 },
        prefetch: prefetch.then_some(PrefetchShape { degree: 2, ahead: 20, lines: 48 }),
        instruction_ps: 100,
        home: None,
    };
    let shape = SimulatorShape { cores: vec![core], shared: Some(shared) };
    Simulator::new(&machine, &shape).expect("valid")
}

fn play(simulator: &mut Simulator, stream: &[(u64, bool)]) -> u64 {
    let node_of = |addr: u64| NodeId((addr >> 29 & 1) as u16);
    let mut levels = 0;
    for &(addr, write) in stream {
        let access = Access { instructions: 4, addr, write, after_ps: 0 };
        levels += simulator.access(0, &access, node_of).level as u64;
    }
    levels
}

/// The plain caches: a set is a list, the line used last in front.
struct Plain {
    levels: Vec<Vec<Vec<(u64, bool)>>>,
    ways: [usize; 3],
}

impl Plain {
    fn new() -> Plain {
        let sets = |(bytes, ways, _): (u64, u32, u64)| bytes / 64 / u64::from(ways);
        let level = |shape| vec![Vec::with_capacity(17); sets(shape) as usize];
        Plain { levels: LEVELS.map(level).to_vec(), ways: LEVELS.map(|(_, ways, _)| ways as usize) }
    }

    /// The level that has it.
    fn access(&mut self, addr: u64, write: bool) -> u64 {
        let line = addr / 64;
        for level in 0..LEVELS.len() {
            if self.touch(level, line, write && level == 0) {
                return level as u64;
            }
        }
        LEVELS.len() as u64
    }

    fn touch(&mut self, level: usize, line: u64, write: bool) -> bool {
        let ways = self.ways[level];
        let count = self.levels[level].len() as u64;
        let set = &mut self.levels[level][(line % count) as usize];
        let found = set.iter().position(|&(tag, _)| tag == line);
        let dirty = found.map(|at| set.remove(at).1).unwrap_or(false);
        set.insert(0, (line, dirty || write));
        let evicted = if set.len() > ways { set.pop() } else { None };
        if let Some((line, true)) = evicted
            && level + 1 < LEVELS.len()
        {
            self.touch(level + 1, line, true);
        }
        found.is_some()
    }
}

/// CPU nanoseconds an access took.
fn timed(play: impl FnOnce() -> u64) -> f64 {
    let started = cpu_ns();
    let levels = play();
    let took = cpu_ns() - started;
    assert!(levels < 4 * ACCESSES as u64, "and something was computed");
    took as f64 / ACCESSES as f64
}

/// What this thread has run so far, so that a busy host does not count.
fn cpu_ns() -> u64 {
    let text =
        std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux with schedstat");
    text.split(' ').next().and_then(|number| number.parse().ok()).expect("a number")
}
