//! What the model must reproduce (latency, bandwidth, parallelism, prefetching), and what its
//! counters say.

use proptest::prelude::*;
use tiercel_machine::{Machine, NodeId, loaded_latency_ns, peak_gb_s};
use tiercel_memsim::{
    Access, CacheShape, CoreShape, LevelShape, Memory, ModelError, PrefetchShape, Prefetcher,
    Progress, Simulator, SimulatorShape, Window, WindowShape,
};

const FAST: NodeId = NodeId(0);
const SLOW: NodeId = NodeId(1);
const FIRST_NS: f64 = 1.25;

fn machine(name: &str) -> Machine {
    Machine::builtin(name).unwrap().unwrap()
}

fn core() -> CoreShape {
    let level =
        |bytes, ways, latency_ps| LevelShape { cache: CacheShape { bytes, ways }, latency_ps };
    CoreShape {
        levels: vec![level(32 << 10, 8, (FIRST_NS * 1000.0) as u64), level(256 << 10, 8, 4000)],
        window: WindowShape { instructions: 224, mshrs: 16, stores: 48 },
        prefetch: None,
        instruction_ps: 100,
        home: None,
    }
}

fn simulator(name: &str, cores: usize, core: &CoreShape) -> Simulator {
    let shared = LevelShape { cache: CacheShape { bytes: 1 << 20, ways: 16 }, latency_ps: 20_000 };
    let shape = SimulatorShape { cores: vec![core.clone(); cores], shared: Some(shared) };
    Simulator::new(&machine(name), &shape).unwrap()
}

/// Line addresses in an order without reuse, spread over 4 GiB.
fn scattered(i: u64) -> u64 {
    i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32 & !63
}

/// Mean time of a load of each of some independent chains over a footprint, nanoseconds.
fn chase_ns(name: &str, core: &CoreShape, node: NodeId, lines: u64, chains: u64) -> f64 {
    const LOADS: u64 = 6000;
    let mut simulator = simulator(name, 1, core);
    let mut done_ps = vec![0; chains as usize];
    let mut began_ps = 0;
    for i in 0..2 * LOADS {
        if i == LOADS {
            began_ps = simulator.drain(0);
        }
        let chain = &mut done_ps[(i % chains) as usize];
        let addr = scattered(i % lines);
        let access = Access { instructions: 2, addr, write: false, after_ps: *chain };
        *chain = simulator.access(0, &access, |_| node).done_ps;
    }
    (simulator.drain(0) - began_ps) as f64 / LOADS as f64 / 1000.0
}

/// Bandwidth of cores that read, and write a share of the lines they read, GB/s; and the latency
/// of a chase beside them, nanoseconds.
fn load(name: &str, node: NodeId, cores: usize, instructions: u64, written: u64) -> (f64, f64) {
    const LINES: u64 = 300_000;
    let window = WindowShape { instructions: 224, mshrs: 32, stores: 48 };
    let mut simulator = simulator(name, cores + 1, &CoreShape { window, ..core() });
    let (mut done_ps, mut waited_ps, mut loads) = (0, 0, 0u64);
    let mut lines = 0;
    let bytes = |s: &Simulator| {
        let used = s.memory().used(node);
        (used.reads + used.writes) * 64
    };
    let (mut began_ps, mut before) = (0, 0);
    while lines < 2 * LINES {
        if lines == LINES && began_ps == 0 {
            (began_ps, before) = (simulator.now_ps(0), bytes(&simulator));
        }
        let behind = (0..=cores).min_by_key(|&core| simulator.now_ps(core)).unwrap();
        if behind == cores {
            let addr = 1 << 40 | scattered(loads);
            let access = Access { instructions: 100, addr, write: false, after_ps: done_ps };
            let served = simulator.access(cores, &access, |_| node);
            done_ps = served.done_ps;
            if began_ps > 0 {
                (waited_ps, loads) = (waited_ps + served.latency_ps, loads + 1);
            }
            continue;
        }
        let write = written > 0 && lines % written == 0;
        let access = Access { instructions, addr: lines * 64, write, after_ps: 0 };
        simulator.access(behind, &access, |_| node);
        lines += 1;
    }
    let took_ps = (0..cores).map(|core| simulator.now_ps(core)).min().unwrap() - began_ps;
    let gb_s = (bytes(&simulator) - before) as f64 * 1000.0 / took_ps as f64;
    (gb_s, waited_ps as f64 / loads as f64 / 1000.0)
}

#[test]
fn an_idle_chase_takes_the_idle_latency_within_3_percent() {
    for (name, node, ns) in [
        ("spr-cxl", FAST, 112.0),
        ("spr-cxl", SLOW, 216.0),
        ("icelake-optane", NodeId(2), 247.0),
        ("xeonmax-hbm", NodeId(8), 121.0),
        ("two-socket-optane", NodeId(2), 305.0),
        ("xeonmax-9480", SLOW, 129.0),
    ] {
        let measured = chase_ns(name, &core(), node, u64::MAX, 1);
        assert!((measured / ns - 1.0).abs() < 0.03, "{name} node {node}: {measured} ns for {ns}");
    }
}

#[test]
fn a_chase_takes_the_latency_of_the_level_it_fits() {
    for (lines, ns) in [(64, FIRST_NS), (1500, 4.0), (5500, 20.0)] {
        let measured = chase_ns("spr-cxl", &core(), FAST, lines, 1);
        let off = measured / ns - 1.0;
        // Some lines of a footprint are in a closer level.
        assert!((-0.35..0.03).contains(&off), "{lines} lines: {measured} ns for {ns}");
    }
}

#[test]
fn remote_memory_is_as_far_as_its_link_says() {
    for (home, ns) in [(0, 81.0), (1, 145.0)] {
        let core = CoreShape { home: Some(NodeId(home)), ..core() };
        let measured = chase_ns("two-socket-optane", &core, FAST, u64::MAX, 1);
        assert!((measured / ns - 1.0).abs() < 0.03, "from node {home}: {measured} ns for {ns}");
    }
}

#[test]
fn chains_scale_until_the_bandwidth_or_the_mshrs_end() {
    let one = chase_ns("spr-cxl", &core(), FAST, u64::MAX, 1);
    for chains in [2, 4, 8, 16] {
        let each = chase_ns("spr-cxl", &core(), FAST, u64::MAX, chains);
        let gain = one / each;
        assert!((gain / chains as f64 - 1.0).abs() < 0.05, "{chains} chains gain {gain}");
    }
    let gain = one / chase_ns("spr-cxl", &core(), FAST, u64::MAX, 32);
    assert!((gain / 16.0 - 1.0).abs() < 0.05, "sixteen mshrs, a gain of {gain}");
    // One DIMM of Optane passes 7.6 GB/s in blocks of 256 bytes.
    let each = chase_ns("two-socket-optane", &core(), NodeId(2), u64::MAX, 16);
    assert!((256.0 / each / 7.6 - 1.0).abs() < 0.05, "{each} ns a load");
}

#[test]
fn many_cores_saturate_at_the_peak_of_their_mix_within_5_percent() {
    for (name, node, written) in [
        ("spr-cxl", FAST, 0),
        ("spr-cxl", SLOW, 0),
        ("spr-cxl", SLOW, 2),
        ("spr-cxl", SLOW, 1),
        ("spr-cxl", FAST, 4),
        ("xeonmax-hbm", NodeId(8), 0),
    ] {
        let read_share = if written == 0 { 1.0 } else { written as f64 / (written as f64 + 1.0) };
        let machine = machine(name);
        let node_data = machine.node(node).unwrap();
        let peak = peak_gb_s(&node_data.curve, read_share).or(node_data.figures.read_gb_s).unwrap();
        let (gb_s, latency_ns) = load(name, node, 48, 4, written);
        assert!((gb_s / peak - 1.0).abs() < 0.05, "{name} {node} {read_share}: {gb_s} for {peak}");
        let least = loaded_latency_ns(&node_data.curve, read_share, 0.95 * peak).unwrap_or(0.0);
        assert!(latency_ns > least, "{name} {node}: {latency_ns} ns, {least} just below the peak");
    }
}

#[test]
fn below_the_knee_latency_is_the_curves_within_5_percent() {
    for (node, written, cores, instructions) in
        [(FAST, 0, 8, 14), (FAST, 0, 16, 14), (FAST, 2, 8, 14), (SLOW, 0, 4, 14), (SLOW, 1, 4, 14)]
    {
        let (gb_s, measured) = load("spr-cxl", node, cores, instructions, written);
        let read_share = if written == 0 { 1.0 } else { written as f64 / (written as f64 + 1.0) };
        let machine = machine("spr-cxl");
        let curve = &machine.node(node).unwrap().curve;
        let ns = loaded_latency_ns(curve, read_share, gb_s).unwrap();
        let idle_ns = loaded_latency_ns(curve, read_share, 0.0).unwrap();
        assert!(ns > idle_ns * 1.02, "{node}: {gb_s} GB/s is a load");
        assert!((measured / ns - 1.0).abs() < 0.05, "{node} at {gb_s}: {measured} ns for {ns}");
    }
}

#[test]
fn whole_blocks_move_where_the_device_has_them() {
    let mut memory = Memory::new(&machine("optane-oam")).unwrap();
    let port = memory.port(None);
    for line in 0..64 {
        memory.read(port, SLOW, line * 64, 0, 0);
    }
    assert_eq!(memory.used(SLOW).device_read_bytes, 64 * 64, "in a row: every block once");
    let mut memory = Memory::new(&machine("optane-oam")).unwrap();
    let port = memory.port(None);
    for line in 0..256 {
        memory.read(port, SLOW, (line % 4) << 22 | (line / 4) << 6, 0, 0);
    }
    assert_eq!(memory.used(SLOW).device_read_bytes, 256 * 64, "four in a row, 4 MiB apart");
    for i in 0..64 {
        memory.write(port, SLOW, scattered(i), 0);
    }
    let used = memory.used(SLOW);
    assert_eq!((used.writes, used.device_written_bytes), (64, 64 * 256), "scattered: a block each");
}

#[test]
fn writes_take_the_time_of_their_own_bandwidth() {
    let machine = machine("optane-oam");
    let queue_ps = |write: bool| {
        let mut memory = Memory::new(&machine).unwrap();
        let port = memory.port(None);
        for i in 0..100 {
            match write {
                true => memory.write(port, SLOW, scattered(i), 0),
                false => memory.read(port, SLOW, scattered(i), 0, 0),
            };
        }
        memory.used(SLOW).longest_queue_ps as f64
    };
    let slower = queue_ps(true) / queue_ps(false);
    assert!((slower / (7.6 / 2.3) - 1.0).abs() < 0.01, "{slower}");
}

#[test]
fn a_share_limits_what_flows_and_lets_bursts_pass() {
    let machine = machine("spr-cxl");
    // One of 32 CPUs: 51.9 GB/s are 1.62, a line every 39.46 ns.
    let mut memory = Memory::for_cpus(&machine, &[FAST]).unwrap();
    let port = memory.port(Some(FAST));
    let latency_ns =
        |memory: &mut Memory, i: u64| memory.read(port, SLOW, scattered(i), 0, 0) as f64 / 1000.0;
    let burst: Vec<f64> = (0..32).map(|i| latency_ns(&mut memory, i)).collect();
    assert!(burst.iter().all(|&ns| ns == 216.0), "{burst:?}");
    let last = (32..1032).map(|i| latency_ns(&mut memory, i)).last().unwrap();
    let expected = 216.0 + 1000.0 * 64.0 / (51.9 / 32.0);
    assert!((last / expected - 1.0).abs() < 0.001, "{last} ns for {expected}");
    // All CPUs together have it all, and nothing passes at once but what the peak passes.
    let mut all = Memory::for_cpus(&machine, &[FAST; 32]).unwrap();
    let mut whole = Memory::new(&machine).unwrap();
    assert_eq!([all.port(Some(FAST)), whole.port(Some(FAST))], [port; 2]);
    for i in 0..200 {
        assert_eq!(latency_ns(&mut all, i), latency_ns(&mut whole, i));
    }
}

/// Two cores that take turns of 20 us, each with a line every `gap_ps` but not before the memory
/// has the line some lines before it, and `written` lines for each that it reads; GB/s of both, and
/// their mean latency, nanoseconds.
fn in_turns(node: NodeId, gap_ps: u64, outstanding: usize, written: u64) -> (f64, f64) {
    const TURN_PS: u64 = 20_000_000;
    const TURNS: u64 = 100;
    let mut memory = Memory::new(&machine("spr-cxl")).unwrap();
    let ports = [memory.port(None), memory.port(None)];
    let mut clocks = [0u64; 2];
    let mut done = [vec![0u64; outstanding], vec![0; outstanding]];
    let (mut lines, mut waited_ps, mut counted) = (0, 0, 0u64);
    for turn in 1..=TURNS {
        for core in 0..2 {
            while clocks[core] < turn * TURN_PS {
                let slot = &mut done[core][lines % outstanding];
                clocks[core] = (clocks[core] + gap_ps).max(*slot);
                let latency_ps = memory.read(ports[core], node, lines as u64 * 64, clocks[core], 0);
                for i in 0..written {
                    memory.write(
                        ports[core],
                        node,
                        (1 << 36) + (lines as u64 + i) * 64,
                        clocks[core],
                    );
                }
                *slot = clocks[core] + latency_ps;
                lines += 1;
                if turn > TURNS / 2 {
                    (waited_ps, counted) = (waited_ps + latency_ps, counted + 1);
                }
            }
        }
    }
    let half_ps = TURN_PS * TURNS / 2;
    let gb_s = (counted * (1 + written)) as f64 * 64_000.0 / half_ps as f64;
    (gb_s, waited_ps as f64 / counted as f64 / 1000.0)
}

#[test]
fn cores_whose_clocks_differ_share_a_node_as_if_they_did_not() {
    let reads = [12_800, 6_400, 3_200].map(|gap_ps| (SLOW, gap_ps, 0, 1.0));
    let mixed = [2_560, 1_707, 1_524, 1_422].map(|gap_ps| (FAST, gap_ps, 1, 0.5));
    for (node, gap_ps, written, read_share) in reads.into_iter().chain(mixed) {
        let curve = &machine("spr-cxl").node(node).unwrap().curve.clone();
        let (gb_s, ns) = in_turns(node, gap_ps, 512, written);
        let expected = loaded_latency_ns(curve, read_share, gb_s).unwrap();
        assert!((ns / expected - 1.0).abs() < 0.01, "{ns} ns for {expected} at {gb_s} GB/s");
    }
    let (gb_s, _) = in_turns(SLOW, 100, 512, 0);
    assert!((gb_s / 51.9 - 1.0).abs() < 0.05, "{gb_s} GB/s");
}

#[test]
fn wear_is_counted_by_block() {
    let mut memory = Memory::new(&machine("pcm")).unwrap();
    let port = memory.port(None);
    for i in 0..9 {
        memory.write(port, SLOW, 5 * 4096 + i * 64, 0);
    }
    memory.write(port, SLOW, 8 * 4096, 0);
    memory.read(port, SLOW, 9 * 4096, 0, 0);
    let wear = memory.wear(SLOW);
    assert_eq!((wear.blocks[0], wear.blocks[3], wear.most), (1, 1, 9));
    assert_eq!(wear.blocks.iter().sum::<u64>(), 2);
    assert_eq!(memory.wear(FAST).most, 0);
}

#[test]
fn energy_is_bits_times_picojoules_and_static_power() {
    let mut memory = Memory::new(&machine("pcm")).unwrap();
    let port = memory.port(None);
    for line in 0..1000 {
        memory.read(port, SLOW, line * 64, 0, 0);
        memory.write(port, SLOW, line * 64, 0);
    }
    let access_j = 1000.0 * 512.0 * (2.47 + 16.82) * 1e-12;
    assert!((memory.used(SLOW).access_j.unwrap() / access_j - 1.0).abs() < 1e-9);
    let second = memory.energy_j(1_000_000_000_000);
    assert!((second - access_j - 0.329).abs() < 1e-9, "{second} J");
    assert_eq!(Memory::new(&machine("two-socket-optane")).unwrap().used(SLOW).access_j, Some(0.0));
    let optane = Memory::new(&machine("two-socket-optane")).unwrap().used(NodeId(2)).access_j;
    assert_eq!(optane, None, "Optane's is unknown");
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
        let at = |instruction: u64| Progress { instruction, now_ps };
        now_ps = window.reach(at(i.saturating_sub(1) * gap), at(i * gap));
        let known_ps = if depends { now_ps.max(done_ps) } else { now_ps };
        let mshr = window.mshr(now_ps, known_ps);
        done_ps = mshr.out_ps + 100_000;
        window.take(mshr, done_ps);
        now_ps = window.load(i * gap, now_ps, done_ps);
    }
    window.drain(now_ps)
}

#[test]
fn parallelism_is_the_smaller_of_mshrs_and_window() {
    let shape = |mshrs| WindowShape { instructions: 200, mshrs, stores: 1 };
    assert_eq!(misses_ps(shape(10), 1000, 1, true), 1000 * 100_000, "a chain has none");
    assert_eq!(misses_ps(shape(10), 1000, 1, false), 100 * 100_000, "ten mshrs");
    assert_eq!(misses_ps(shape(100), 1000, 50, false), 250 * 100_000, "four fit the window");
    assert_eq!(misses_ps(shape(100), 1000, 300, false), 1000 * 100_000, "one at a time");
}

#[test]
fn only_one_window_of_instructions_hides_a_load() {
    let mut window = Window::new(WindowShape { instructions: 200, mshrs: 9, stores: 1 }).unwrap();
    let at = |instruction, now_ps| Progress { instruction, now_ps };
    assert_eq!(window.load(10, 1_000, 101_000), 1_000);
    // 100 ps an instruction: the window ends at 210, 20,000 ps later; 80,000 ps are waited there.
    assert_eq!(window.reach(at(10, 1_000), at(209, 20_900)), 20_900);
    assert_eq!(window.reach(at(209, 20_900), at(10_010, 1_001_000)), 1_081_000);
    // Of two loads that wait for the same time, the second one waits for what is left.
    window.load(20_000, 2_000_000, 2_100_000);
    window.load(20_100, 2_010_000, 2_150_000);
    assert_eq!(window.reach(at(20_100, 2_010_000), at(30_000, 3_000_000)), 3_120_000);
}

#[test]
fn a_stream_is_found_among_arrays_a_power_of_two_apart() {
    let shape = PrefetchShape { degree: 2, ahead: 20, lines: 48 };
    let mut simulator = simulator("spr-cxl", 1, &CoreShape { prefetch: Some(shape), ..core() });
    for i in 0..8192 {
        let addr = (i % 4) << 22 | (i / 4) << 6;
        let access = Access { instructions: 40, addr, write: false, after_ps: 0 };
        simulator.access(0, &access, |_| FAST);
    }
    let issued = simulator.prefetches(0).issued;
    assert!(issued > 8192 * 8 / 10, "{issued} of 8192 lines");
}

#[test]
fn a_miss_that_waits_for_an_mshr_does_not_queue_as_well() {
    // One core with 16 MSHRs saturates its share of the CXL node, and no more.
    let machine = machine("spr-cxl");
    let memory = Memory::for_cpus(&machine, &[FAST]).unwrap();
    let shape = SimulatorShape { cores: vec![core()], shared: None };
    let mut simulator = Simulator::with_memory(memory, &shape).unwrap();
    let mut began_ps = 0;
    for i in 0..100_000 {
        if i == 50_000 {
            began_ps = simulator.now_ps(0);
        }
        let access = Access { instructions: 2, addr: i * 64, write: false, after_ps: 0 };
        simulator.access(0, &access, |_| SLOW);
    }
    let gb_s = 50_000.0 * 64_000.0 / (simulator.now_ps(0) - began_ps) as f64 * 32.0;
    assert!((gb_s / 51.9 - 1.0).abs() < 0.05, "{gb_s} GB/s");
}

#[test]
fn stores_do_not_wait_until_their_buffer_is_full() {
    let mut window = Window::new(WindowShape { instructions: 1, mshrs: 1, stores: 3 }).unwrap();
    let waits: Vec<u64> = (1..=5).map(|i| window.store(0, i * 100)).collect();
    assert_eq!(waits, [0, 0, 0, 100, 200]);
    assert_eq!(window.drain(0), 500);
}

#[test]
fn a_prefetcher_hides_latency_and_costs_nothing_but_traffic() {
    let eager = PrefetchShape { degree: 4, ahead: 16, lines: 48 };
    // One MSHR: without prefetching one line at a time.
    let window = WindowShape { instructions: 224, mshrs: 1, stores: 1 };
    let run = |prefetch| {
        let mut simulator = simulator("spr-cxl", 1, &CoreShape { prefetch, window, ..core() });
        for i in 0..4096 {
            let access = Access { instructions: 40, addr: i * 64, write: false, after_ps: 0 };
            simulator.access(0, &access, |_| FAST);
        }
        (simulator.drain(0), simulator.memory().used(FAST).reads, simulator.prefetches(0))
    };
    let (without_ps, plain_reads, off) = run(None);
    let (with_ps, reads, on) = run(Some(eager));
    assert_eq!((plain_reads, off.issued), (4096, 0));
    assert_eq!(reads, 4096, "a stream that ends where its region ends fetches nothing in vain");
    assert!(on.issued > 4096 * 9 / 10 && on.late > 0, "{on:?}");
    assert!(with_ps * 3 < without_ps, "{with_ps} against {without_ps} ps");
}

proptest! {
    /// A stream is fetched from its third miss on, each line once, none beyond its region or off
    /// its stride.
    #[test]
    fn strides_are_found_and_followed(
        start in 0i64..64,
        stride in -9i64..10,
        degree in 1u32..6,
        ahead in 1u32..20,
        region in 0u64..1 << 40,
    ) {
        prop_assume!(stride != 0);
        let mut prefetcher = Prefetcher::new(PrefetchShape { degree, ahead, lines: 1 }).unwrap();
        let stream: Vec<u64> = (0..64)
            .map(|i| start + i * stride)
            .take_while(|at| (0..64).contains(at))
            .map(|at| region * 64 + at as u64)
            .collect();
        let mut fetched = Vec::new();
        for (i, &line) in stream.iter().enumerate() {
            let lines: Vec<u64> = prefetcher.miss(line).lines().collect();
            prop_assert!(lines.len() <= degree as usize && (i >= 2 || lines.is_empty()));
            fetched.extend(lines);
        }
        prop_assert_eq!(&fetched[..], stream.get(3..).unwrap_or_default());
    }

    /// Lines without a stride are not prefetched.
    #[test]
    fn no_stride_no_prefetch(lines in proptest::collection::vec(0u64..1 << 30, 1..300)) {
        let shape = PrefetchShape { degree: 4, ahead: 16, lines: 48 };
        let mut prefetcher = Prefetcher::new(shape).unwrap();
        // Each line in a region of its own.
        let fetched: usize = (0..).zip(lines)
            .map(|(i, line)| prefetcher.miss(i << 36 | line).lines().count())
            .sum();
        prop_assert_eq!(fetched, 0);
    }

    /// More MSHRs or a longer window never make anything slower, and no order beats the limits.
    #[test]
    fn wider_is_never_slower(
        mshrs in 1usize..20,
        instructions in 1u64..400,
        gap in 1u64..100,
        count in 1u64..300,
    ) {
        let narrow = WindowShape { instructions, mshrs, stores: 1 };
        let wide =
            WindowShape { instructions: instructions + 50, mshrs: mshrs + 3, stores: 1 };
        let took_ps = misses_ps(narrow, count, gap, false);
        prop_assert!(misses_ps(wide, count, gap, false) <= took_ps);
        prop_assert!(took_ps >= count.div_ceil(mshrs as u64) * 100_000);
        prop_assert!(took_ps <= count * 100_000);
    }

    /// The same accesses give the same clocks, clocks never go back, and every access is counted
    /// once.
    #[test]
    fn runs_repeat_bit_for_bit(
        accesses in proptest::collection::vec(
            (0usize..2, 0u64..50, 0u64..1 << 22, any::<bool>(), any::<bool>()),
            1..300,
        ),
        prefetch in any::<bool>(),
    ) {
        let run = || {
            let prefetch = prefetch.then_some(PrefetchShape { degree: 2, ahead: 8, lines: 16 });
            let mut simulator = simulator("spr-cxl", 2, &CoreShape { prefetch, ..core() });
            let place = |addr: u64| if addr < 1 << 21 { FAST } else { SLOW };
            let (mut clocks, mut done_ps) = (Vec::new(), 0);
            for &(core, instructions, addr, write, after) in &accesses {
                let before = simulator.now_ps(core);
                let after_ps = if after { done_ps } else { 0 };
                let access = Access { instructions, addr, write, after_ps };
                done_ps = simulator.access(core, &access, place).done_ps;
                assert!(simulator.now_ps(core) >= before);
                clocks.push((simulator.now_ps(core), done_ps));
            }
            let served: u64 = (0..2).flat_map(|core| simulator.served(core).to_vec()).sum();
            assert_eq!(served, accesses.len() as u64);
            clocks
        };
        prop_assert_eq!(run(), run());
    }
}
