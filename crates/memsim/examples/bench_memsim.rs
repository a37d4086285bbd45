//! Bench `memsim`: accesses a second through caches, window and memories, on one core of the host.
//! In: `--quick` for fewer rounds. Out: rows as JSON lines. Knows nothing of real programs: the
//! three streams are what the first level serves, what the caches serve, and what memory serves.

use serde_json::json;
use tiercel_machine::{Machine, NodeId};
use tiercel_memsim::{Access, CacheShape, HierarchyShape, Simulator, SimulatorShape, WindowShape};

const ACCESSES: u64 = 2_000_000;
const ROUNDS: usize = 15;
const ROUNDS_QUICK: usize = 5;
/// CPU nanoseconds an access may take where traces spend their time: 20 million a second.
const LIMIT_NS: f64 = 50.0;

fn main() {
    let rounds = if std::env::args().any(|arg| arg == "--quick") { ROUNDS_QUICK } else { ROUNDS };
    row("first-level", 16 << 10, Some(LIMIT_NS), rounds);
    row("caches", 512 << 10, None, rounds);
    row("memory", 1 << 30, None, rounds);
}

fn row(name: &str, footprint_bytes: u64, limit: Option<f64>, rounds: usize) {
    let mut took: Vec<f64> = (0..rounds).map(|_| access_ns(footprint_bytes)).collect();
    took.sort_by(f64::total_cmp);
    let (median, quartiles) = (took[rounds / 2], took[rounds * 3 / 4] - took[rounds / 4]);
    let line = json!({
        "name": name,
        "ours": median,
        "peer": null,
        "peer_name": null,
        "ratio": null,
        "limit": limit,
        "holds": limit.is_none_or(|limit| median <= limit),
        "spread": quartiles / median,
        "unit": "ns/access",
    });
    println!("{line}");
}

/// Mean time of an access of a stream over so many bytes (a power of two), nanoseconds.
fn access_ns(footprint_bytes: u64) -> f64 {
    let machine = Machine::builtin("spr-cxl").expect("built in").expect("valid");
    let shape = SimulatorShape {
        caches: HierarchyShape {
            cores: 1,
            private: vec![
                CacheShape { bytes: 32 << 10, ways: 8 },
                CacheShape { bytes: 1 << 20, ways: 16 },
            ],
            shared: Some(CacheShape { bytes: 4 << 20, ways: 16 }),
        },
        latency_ns: vec![1.0, 4.0, 20.0],
        window: WindowShape { instructions: 224, registers: 16 },
        instruction_ps: 100,
    };
    let mut simulator = Simulator::new(&machine, shape).expect("valid");
    let mut state = 1u64;
    let started = cpu_ns();
    for i in 0..ACCESSES {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let addr = (state >> 20) & (footprint_bytes - 1);
        let access = Access {
            instructions: 4,
            addr,
            write: i % 4 == 0,
            depends: false,
            node: NodeId((addr >> 29 & 1) as u16),
        };
        simulator.access(0, &access, |addr| NodeId((addr >> 29 & 1) as u16));
    }
    let took = cpu_ns() - started;
    assert!(simulator.drain(0) > 0);
    took as f64 / ACCESSES as f64
}

/// What this thread has run so far, so that a busy host does not count.
fn cpu_ns() -> u64 {
    let text =
        std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux with schedstat");
    text.split(' ').next().and_then(|number| number.parse().ok()).expect("a number")
}
