//! What the model must reproduce (latency, bandwidth, parallelism), and what its counters say.

use proptest::prelude::*;
use tiercel_machine::{Machine, NodeId, loaded_latency_ns};
use tiercel_memsim::{
    Access, CacheShape, HierarchyShape, Memory, ModelError, Simulator, SimulatorShape, Window,
    WindowShape,
};

const FAST: NodeId = NodeId(0);
const SLOW: NodeId = NodeId(1);

fn machine(name: &str) -> Machine {
    Machine::builtin(name).unwrap().unwrap()
}

fn shape(cores: usize) -> SimulatorShape {
    SimulatorShape {
        caches: HierarchyShape {
            cores,
            private: vec![CacheShape { bytes: 32 << 10, ways: 8 }],
            shared: Some(CacheShape { bytes: 1 << 20, ways: 16 }),
        },
        latency_ns: vec![1.0, 10.0],
        window: WindowShape { instructions: 224, registers: 16 },
        instruction_ps: 100,
    }
}

/// Line numbers in an order without reuse, spread over 4 GiB.
fn scattered(i: u64) -> u64 {
    i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32 & !63
}

/// Mean time of a dependent load, nanoseconds.
fn chase_ns(name: &str, node: NodeId) -> f64 {
    const LOADS: u64 = 2000;
    let mut simulator = Simulator::new(&machine(name), shape(1)).unwrap();
    for i in 0..LOADS {
        let access =
            Access { instructions: 1, addr: scattered(i), write: false, depends: true, node };
        simulator.access(0, &access, |_| node);
    }
    simulator.drain(0) as f64 / LOADS as f64 / 1000.0
}

/// Bandwidth of many cores that read independently, GB/s.
fn stream_gb_s(name: &str, node: NodeId, cores: usize) -> f64 {
    const LINES: u64 = 200_000;
    let mut simulator = Simulator::new(&machine(name), shape(cores)).unwrap();
    for i in 0..LINES {
        let behind = (0..cores).min_by_key(|&core| simulator.now_ps(core)).unwrap();
        let access = Access { instructions: 4, addr: i * 64, write: false, depends: false, node };
        simulator.access(behind, &access, |_| node);
    }
    let end_ps = (0..cores).map(|core| simulator.drain(core)).max().unwrap();
    (LINES * 64) as f64 * 1000.0 / end_ps as f64
}

#[test]
fn an_idle_chase_takes_the_idle_latency_within_3_percent() {
    for (name, node, ns) in [
        ("spr-cxl", FAST, 112.0),
        ("spr-cxl", SLOW, 216.0),
        ("two-socket-optane", NodeId(2), 305.0),
        ("xeonmax-9480", SLOW, 129.0),
    ] {
        let measured = chase_ns(name, node);
        assert!((measured / ns - 1.0).abs() < 0.03, "{name} node {node}: {measured} ns for {ns}");
    }
}

#[test]
fn many_cores_saturate_at_the_peak_within_5_percent() {
    for (name, node, gb_s) in [("spr-cxl", SLOW, 51.9), ("spr-cxl", FAST, 248.0)] {
        // 96 x 16 lines in flight: enough for 248 GB/s at the 292 ns that the curve has there.
        let measured = stream_gb_s(name, node, 96);
        assert!((measured / gb_s - 1.0).abs() < 0.05, "{name} {node}: {measured} for {gb_s}");
    }
}

#[test]
fn few_cores_are_limited_by_their_misses_in_flight() {
    let machine = machine("spr-cxl");
    let curve = &machine.node(FAST).unwrap().curve;
    for cores in [1, 4, 16] {
        let measured = stream_gb_s("spr-cxl", FAST, cores);
        // 16 lines of each core every so many nanoseconds, as long as they take at this load.
        let latency_ns = loaded_latency_ns(curve, 1.0, measured).unwrap();
        let expected = cores as f64 * 16.0 * 64.0 / latency_ns;
        let off = (measured / expected - 1.0).abs();
        assert!(off < 0.05, "{cores} cores: {measured} GB/s for {expected}");
    }
}

#[test]
fn whole_blocks_move_where_the_device_has_them() {
    let mut memory = Memory::new(&machine("optane-oam")).unwrap();
    for line in 0..64 {
        memory.read(SLOW, line * 64, 0);
    }
    assert_eq!(memory.used(SLOW).device_read_bytes, 64 * 64, "in a row: every block once");
    for i in 0..64 {
        memory.write(SLOW, scattered(i), 0);
    }
    let used = memory.used(SLOW);
    assert_eq!((used.writes, used.device_written_bytes), (64, 64 * 256), "scattered: a block each");
}

#[test]
fn energy_is_bits_times_picojoules_and_static_power() {
    let mut memory = Memory::new(&machine("pcm")).unwrap();
    for line in 0..1000 {
        memory.read(SLOW, line * 64, 0);
        memory.write(SLOW, line * 64, 0);
    }
    let access_j = 1000.0 * 512.0 * (2.47 + 16.82) * 1e-12;
    assert!((memory.used(SLOW).access_j.unwrap() / access_j - 1.0).abs() < 1e-9);
    let second = memory.energy_j(1_000_000_000_000);
    assert!((second - access_j - 0.329).abs() < 1e-9, "{second} J");
    assert_eq!(Memory::new(&machine("two-socket-optane")).unwrap().used(SLOW).access_j, Some(0.0));
    let optane = Memory::new(&machine("two-socket-optane")).unwrap().used(NodeId(2)).access_j;
    assert_eq!(optane, None, "nobody knows Optane's");
}

#[test]
fn a_machine_without_figures_is_refused_with_the_figure() {
    let text = "name = \"x\"\n[[node]]\nid = 3\ncapacity = \"1 GiB\"\ncpus = \"0\"";
    let error = Memory::new(&Machine::from_toml(text).unwrap()).unwrap_err();
    assert_eq!(error, ModelError::Unknown { node: NodeId(3), figure: "read_latency_ns" });
}

/// Time of `count` misses of 100 ns each, `gap` instructions apart, at 0 ps an instruction.
fn misses_ps(shape: WindowShape, count: u64, gap: u64, depends: bool) -> u64 {
    let mut window = Window::new(shape).unwrap();
    let (mut now_ps, mut done_ps) = (0, 0);
    for i in 0..count {
        now_ps = window.reach(i * gap, now_ps);
        let known_ps = if depends { done_ps } else { 0 };
        let miss = window.miss(i * gap, now_ps, known_ps, |_| 100_000);
        (now_ps, done_ps) = (miss.now_ps, miss.done_ps);
    }
    window.drain(now_ps)
}

#[test]
fn parallelism_is_the_smaller_of_registers_and_window() {
    let shape = |registers| WindowShape { instructions: 200, registers };
    assert_eq!(misses_ps(shape(10), 1000, 1, true), 1000 * 100_000, "a chain has none");
    assert_eq!(misses_ps(shape(10), 1000, 1, false), 100 * 100_000, "ten registers");
    assert_eq!(misses_ps(shape(100), 1000, 50, false), 250 * 100_000, "four fit the window");
    assert_eq!(misses_ps(shape(100), 1000, 300, false), 1000 * 100_000, "one at a time");
}

proptest! {
    /// More registers or a longer window never make anything slower, and no order beats the limits.
    #[test]
    fn wider_is_never_slower(
        registers in 1usize..20,
        instructions in 1u64..400,
        gap in 1u64..100,
        count in 1u64..300,
    ) {
        let narrow = WindowShape { instructions, registers };
        let wide = WindowShape { instructions: instructions + 50, registers: registers + 3 };
        let took_ps = misses_ps(narrow, count, gap, false);
        prop_assert!(misses_ps(wide, count, gap, false) <= took_ps);
        prop_assert!(took_ps >= count.div_ceil(registers as u64) * 100_000);
        prop_assert!(took_ps <= count * 100_000);
    }

    /// The same accesses give the same clocks, clocks never go back, and every access is counted
    /// once.
    #[test]
    fn runs_repeat_bit_for_bit(
        accesses in proptest::collection::vec(
            (0usize..2, 1u64..50, 0u64..1 << 22, any::<bool>(), any::<bool>(), any::<bool>()),
            1..300,
        ),
    ) {
        let run = || {
            let mut simulator = Simulator::new(&machine("spr-cxl"), shape(2)).unwrap();
            let place = |addr: u64| if addr < 1 << 21 { FAST } else { SLOW };
            let mut clocks = Vec::new();
            for &(core, instructions, addr, write, depends, _) in &accesses {
                let before = simulator.now_ps(core);
                let node = place(addr);
                simulator.access(core, &Access { instructions, addr, write, depends, node }, place);
                assert!(simulator.now_ps(core) >= before);
                clocks.push(simulator.now_ps(core));
            }
            let served: u64 = (0..2).flat_map(|core| simulator.served(core).to_vec()).sum();
            assert_eq!(served, accesses.len() as u64);
            clocks
        };
        prop_assert_eq!(run(), run());
    }
}
