//! What a plan costs to make, and what it is worth.
//! In: `--quick` for fewer rounds. Out: bench rows, one JSON line each.
//! Knows nothing of real programs: objects and accesses are made up, from a fixed seed.
//!
//! Peers, on the same program: first come first served, and greedy by score per byte (both place an
//! object once), and H2M's phase by phase (Eq. 6). Sizes and accesses are spread over four orders
//! of magnitude each, as in real programs; a third of the objects lives all the time.

use fastrand::Rng;
use tiercel_bench::{BenchResult, thread_cpu_ns};
use tiercel_planner::{
    Levels, Memory, Object, Options, Phase, Placements, Strategy, Use, Workload, plan,
};

/// A phase takes as long as the moves of a few objects.
const PHASE_NS: u64 = 1_000_000_000;

fn main() {
    let quick = std::env::args().any(|arg| arg == "--quick");
    large(if quick { 1 } else { 7 });
    h2m(if quick { 3 } else { 9 });
}

/// 10,000 objects, 100 phases, 3 memories.
fn large(rounds: usize) {
    let mut figures: [Vec<f64>; 7] = Default::default();
    for round in 0..rounds {
        let workload = workload(10_000, 100, round as u64 + 1);
        let memories = memories(&workload, 0.125, 0.25);
        let (ours, s) = timed(&workload, &memories, Strategy::Joint, Levels::Joint);
        let (_, one_by_one_s) = timed(&workload, &memories, Strategy::Joint, Levels::OneByOne);
        let (first_come, _) = timed(&workload, &memories, Strategy::FirstCome, Levels::Joint);
        let (greedy, _) = timed(&workload, &memories, Strategy::Greedy, Levels::Joint);
        let (phases, phases_s) =
            timed(&workload, &memories, Strategy::Phases { ahead: 1 }, Levels::Joint);
        let gap = ours.promise.gap.expect("a joint plan knows its bound");
        let time = |plan: &Placements| plan.promise.cost.time_ns / 1e9;
        let row = [s, gap * 100.0, time(&ours), time(&first_come), time(&greedy), time(&phases)];
        row.into_iter().zip(&mut figures).for_each(|(figure, all)| all.push(figure));
        figures[6].push(phases_s);
        eprintln!(
            "gap {:.4} %, {s:.2} s, in last {:.2} s, ours {:.2}, phases {:.2} ({phases_s:.2} s), \
             one by one {one_by_one_s:.2} s, moved {} MB, overflow {}",
            gap * 100.0,
            ours.promise.in_last.time_ns / 1e9,
            time(&ours),
            time(&phases),
            ours.promise.moved_bytes / 1_000_000,
            ours.overflow_bytes,
        );
    }
    let [s, gap, ours, first_come, greedy, phases, phases_s] = &figures;
    let size = "10,000 objects x 100 phases x 3 memories";
    print_result(&format!("joint plan, {size}"), s, None, Some(1.0), "s");
    print_result("gap to the bound of the linear program", gap, None, Some(0.5), "%");
    print_result("phase by phase, same program", phases_s, Some(("joint", s)), None, "s");
    print_result("program's access time", ours, Some(("first come", first_come)), Some(1.0), "s");
    print_result("program's access time", ours, Some(("greedy", greedy)), Some(1.0), "s");
    print_result("program's access time", ours, Some(("phase by phase", phases)), Some(1.0), "s");
}

/// H2M III-D2: under a second for 1000 objects, one knapsack, two memories.
fn h2m(rounds: usize) {
    let mut figures: [Vec<f64>; 4] = Default::default();
    for round in 0..rounds {
        let workload = workload(1000, 1, round as u64 + 1);
        let memories = memories(&workload, 0.25, 0.25);
        let two = [memories[0].clone(), memories[2].clone()];
        let (initial, s) = timed(&workload, &two, Strategy::Initial, Levels::Joint);
        let (intervals, intervals_s) = timed(&workload, &two, Strategy::Intervals, Levels::Joint);
        let (algorithm1, algorithm1_s) = timed(&workload, &two, Strategy::Lifetimes, Levels::Joint);
        let gap = initial.promise.gap.expect("a knapsack knows its bound");
        let row = [s * 1e3, gap * 100.0, intervals_s * 1e3, algorithm1_s * 1e3];
        row.into_iter().zip(&mut figures).for_each(|(figure, all)| all.push(figure));
        let time = |plan: &Placements| plan.promise.cost.time_ns / 1e6;
        eprintln!(
            "initial {:.1} ms proven {}, intervals {:.1} gap {:.4} % proven {}, alg. 1 {:.1}",
            time(&initial),
            initial.promise.proven,
            time(&intervals),
            intervals.promise.gap.unwrap_or(f64::NAN) * 100.0,
            intervals.promise.proven,
            time(&algorithm1),
        );
    }
    let [initial, gap, intervals, algorithm1] = &figures;
    print_result("knapsack, 1000 objects (H2M: under 1 s)", initial, None, Some(10.0), "ms");
    print_result("its gap to the bound of the linear program", gap, None, Some(0.5), "%");
    print_result("all lifetimes, 1000", intervals, Some(("algorithm 1", algorithm1)), None, "ms");
}

fn timed(
    workload: &Workload,
    memories: &[Memory],
    strategy: Strategy,
    levels: Levels,
) -> (Placements, f64) {
    let options = Options { strategy, levels, ..Options::default() };
    let began = thread_cpu_ns();
    let plan = plan(workload, memories, &options).expect("all fits");
    (plan, (thread_cpu_ns() - began) / 1e9)
}

fn workload(objects: usize, phases: usize, seed: u64) -> Workload {
    let mut random = Rng::with_seed(seed);
    let end_ns = phases as u64 * PHASE_NS;
    let objects = (0..objects)
        .map(|index| {
            let length = if random.u64(..3) == 0 {
                end_ns
            } else {
                floor((random.f64() * random.f64()) * end_ns as f64) + PHASE_NS / 10
            };
            let birth_ns = random.u64(..(end_ns - length.min(end_ns)).max(1));
            let mut object = Object {
                name: format!("object {index}"),
                bytes: 4096 << floor(random.f64() * 14.0),
                birth_ns,
                death_ns: (birth_ns + length).min(end_ns),
                uses: Vec::new(),
            };
            uses(&mut object, phases, &mut random);
            object
        })
        .collect();
    let phase = |index: u64| Phase {
        name: format!("phase {index}"),
        start_ns: index * PHASE_NS,
        compute_ns: 0.0,
    };
    let phases = (0..phases as u64).map(phase).collect();
    Workload { objects, phases, end_ns, sample_period: 1.0 }
}

/// An object is hot in every n-th phase and ten times colder in the others.
fn uses(object: &mut Object, phases: usize, random: &mut Rng) {
    // Together they take about as long as the phases do; moves pay for some.
    let rate = 10f64.powf(random.f64() * 4.0 - 2.0) * object.bytes as f64 / 600.0;
    let (every, writes) = (1 + random.u64(..8), random.f64() * 0.5);
    let hit_ratio = random.f64();
    let first = (object.birth_ns / PHASE_NS) as usize;
    let last = ((object.death_ns - 1) / PHASE_NS) as usize;
    for phase in first..=last.min(phases - 1) {
        let hot = (phase as u64 / 3).is_multiple_of(every);
        let count = rate * if hot { 1.0 } else { 0.1 } * (0.5 + random.f64());
        object.uses.push(Use {
            phase: u32::try_from(phase).unwrap(),
            reads: count * (1.0 - writes),
            writes: count * writes,
            hit_ratio,
            latency_weight: 1.0,
            drawn_bytes: 8.0,
            isolated: None,
            threads: 16,
        });
    }
}

/// DRAM, CXL, Optane: idle latencies and bandwidths of one socket. Room for shares of the peak.
fn memories(workload: &Workload, first: f64, second: f64) -> [Memory; 3] {
    let mut events: Vec<(u64, i64)> = Vec::new();
    for object in &workload.objects {
        events.push((object.birth_ns, object.bytes.cast_signed()));
        events.push((object.death_ns, -object.bytes.cast_signed()));
    }
    events.sort_unstable();
    let (mut now, mut peak) = (0, 0);
    for (_, bytes) in events {
        now += bytes;
        peak = peak.max(now);
    }
    let memory = |name: &str, share: f64, latency: (f64, f64), gb_s: (f64, f64)| Memory {
        name: name.into(),
        nodes: Vec::new(),
        capacity_bytes: floor(peak as f64 * share),
        read_latency_ns: latency.0,
        write_latency_ns: latency.1,
        read_gb_s: gb_s.0,
        write_gb_s: gb_s.1,
        isolated_read_factor: 1.0,
        isolated_write_factor: 1.0,
        scaling: Vec::new(),
        energy: None,
    };
    [
        memory("dram", first, (76.0, 76.0), (160.5, 160.5)),
        memory("cxl", second, (216.0, 216.0), (51.9, 51.9)),
        memory("optane", 100.0, (305.0, 94.0), (39.4, 13.9)),
    ]
}

/// Medians; with a peer, of paired ratios.
fn print_result(
    name: &str,
    ours: &[f64],
    peer: Option<(&str, &[f64])>,
    limit: Option<f64>,
    unit: &str,
) {
    let row = match peer {
        Some((by, peer)) => BenchResult::of_pairs(name.into(), by, ours, peer, limit, unit),
        None => BenchResult::of_values(name.into(), ours, limit, unit),
    };
    println!("{row}");
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sizes and times of the bench are positive and below 2^53"
)]
fn floor(value: f64) -> u64 {
    value as u64
}
