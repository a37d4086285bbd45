//! Any processor and any accesses: the simulator and the slow obvious model of its tests agree on
//! levels, times, clocks and traffic.
#![no_main]

#[path = "../../crates/memsim/tests/slow/mod.rs"]
#[allow(dead_code)]
mod slow;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tiercel_machine::{Machine, NodeId};
use tiercel_memsim::{
    Access, CacheShape, CoreShape, LINE_BYTES, LevelShape, PrefetchShape, Simulator,
    SimulatorShape, WindowShape,
};

/// Bytes that describe the processor; each access takes three more.
const SHAPE_BYTES: usize = 12;
/// Lines of the small footprint; the others are strided in a few regions.
const SMALL_LINES: u64 = 96;

static MACHINE: LazyLock<Machine> =
    LazyLock::new(|| Machine::builtin("emr-two-socket").expect("built in").expect("valid"));

fn node_of(addr: u64) -> NodeId {
    NodeId(u16::from(addr / LINE_BYTES % 2 == 1))
}

fn shape(bytes: &[u8]) -> SimulatorShape {
    let level = |at: usize, latency_ps| {
        let (sets, ways) = (u64::from(bytes[at] % 6) + 1, u32::from(bytes[at + 1] % 32) + 1);
        LevelShape { cache: CacheShape { bytes: sets * u64::from(ways) * 64, ways }, latency_ps }
    };
    let number = |at: usize, most: u8| bytes[at] % most + 1;
    let core = CoreShape {
        levels: vec![level(0, 1000), level(2, 9000)],
        window: WindowShape {
            instructions: number(6, 255).into(),
            mshrs: number(7, 20).into(),
            stores: number(8, 20).into(),
        },
        prefetch: (bytes[9] % 2 == 1).then_some(PrefetchShape {
            degree: number(10, 5).into(),
            ahead: number(11, 20).into(),
            lines: number(10, 7).into(),
        }),
        instruction_ps: 100,
        home: None,
    };
    let cores = [0, 1].map(|home| CoreShape { home: Some(NodeId(home)), ..core.clone() });
    let shared = (bytes[9] % 4 < 2).then(|| level(4, 30_000));
    SimulatorShape { cores: cores.to_vec(), shared }
}

fuzz_target!(|data: &[u8]| {
    let Some((head, rest)) = data.split_at_checked(SHAPE_BYTES) else { return };
    let shape = shape(head);
    let mut fast = Simulator::new(&MACHINE, &shape).expect("a possible processor");
    let mut slow = slow::Slow::new(&MACHINE, &shape, node_of);
    let mut done_ps = 0;
    for bytes in rest.chunks_exact(3) {
        let (what, place) = (bytes[0], u64::from(bytes[1]));
        let strided = (1 << 20) | ((place / 22) << 6) | (place % 22 * 3);
        let line = if what & 8 == 0 { place % SMALL_LINES } else { strided };
        let access = Access {
            instructions: u64::from(bytes[2]) + 1,
            addr: line * LINE_BYTES,
            write: what & 1 != 0,
            after_ps: if what & 2 != 0 { done_ps } else { 0 },
        };
        let core = usize::from(what >> 2 & 1);
        let served = fast.access(core, &access, node_of);
        assert_eq!((served.level, served.done_ps), slow.access(core, &access));
        assert_eq!(fast.now_ps(core), slow.now_ps(core));
        done_ps = served.done_ps;
    }
    for core in 0..2 {
        assert_eq!(fast.drain(core), slow.drain(core));
    }
    for node in [NodeId(0), NodeId(1)] {
        assert_eq!(fast.memory().used(node), slow.memory.used(node));
    }
});
