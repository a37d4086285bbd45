//! The papers' formulas against numbers worked out by hand.

mod made;

use made::{memory, object, reads, with_energy, workload};
use tiercel_machine::{Machine, NodeId};
use tiercel_planner::{
    Levels, Memory, MoveSpeed, Objective, Options, Placements, PlanError, Scaling, Strategy, Use,
    Workload, access_ns, energy_pj, move_cost_per_byte, object_cost, plan, score_ns,
};

fn near(is: f64, should: f64) {
    assert!((is - should).abs() <= should.abs() * 1e-9, "{is} is not {should}");
}

/// 100 ns and 300 ns; with 16 lines under way, one thread is limited by 10 and 4 GB/s.
fn two(fast_bytes: u64) -> [Memory; 2] {
    [memory("fast", fast_bytes, 100.0, 10.0), memory("slow", 1000, 300.0, 3.2)]
}

fn planned(workload: &Workload, memories: &[Memory], strategy: Strategy) -> Placements {
    plan(workload, memories, &Options { strategy, ..Options::default() }).expect("a plan")
}

fn births(plan: &Placements) -> Vec<u8> {
    plan.placements.iter().map(|placement| placement.birth).collect()
}

#[test]
fn h2m_equation_1() {
    let [fast, slow] = two(10);
    let one = Use { hit_ratio: 0.25, ..reads(0, 800.0) };
    // 800 x 100 / 8 x 0.75 + 800 x 64 / 10 x 0.25 = 7500 + 1280
    near(access_ns(&one, &fast), 8780.0);
    // 800 x 300 / 8 x 0.75 + 800 x 64 / 3.2 x 0.25 = 22500 + 4000
    near(access_ns(&one, &slow), 26500.0);
    let writes = Memory { write_latency_ns: 400.0, write_gb_s: 2.0, ..slow };
    let both = Use { writes: 80.0, ..one };
    // 80 x 400 / 8 x 0.75 + 80 x 64 / 2 x 0.25 = 3000 + 640
    near(access_ns(&both, &writes), 26500.0 + 3640.0);
    // Dependent accesses pay the whole latency, not an eighth.
    let chased = Use { latency_weight: 8.0, hit_ratio: 0.0, ..one };
    near(access_ns(&chased, &fast), 800.0 * 100.0);
}

#[test]
fn no_access_is_served_sooner_than_its_bytes_come() {
    let [_, slow] = two(10);
    // Sixteen bytes each at 3.2 GB/s are 5 ns: less than an eighth of 300 ns.
    let few = Use { drawn_bytes: 16.0, ..reads(0, 800.0) };
    near(access_ns(&few, &slow), 800.0 * 300.0 / 8.0);
    // A line of 64 is 20 ns at 3.2 GB/s, and 160 ns where one thread has an eighth of that.
    let line = Use { drawn_bytes: 64.0, ..few };
    near(access_ns(&line, &slow), 800.0 * 300.0 / 8.0);
    let point = |threads, gb_s| Scaling { threads, read_gb_s: gb_s, write_gb_s: gb_s };
    let shared = Memory { scaling: vec![point(1, 0.4), point(8, 3.2)], ..slow };
    near(access_ns(&line, &shared), 800.0 * 160.0);
    // What caches served costs what it costs in the paper.
    near(access_ns(&Use { hit_ratio: 0.5, ..line }, &shared), 800.0 * 160.0);
}

#[test]
fn lines_that_come_by_themselves_take_as_long_as_they_do_in_a_memory() {
    let [fast, slow] = two(10);
    let blocks = Memory {
        scaling: vec![Scaling { threads: 1, read_gb_s: 0.4, write_gb_s: 0.1 }],
        isolated_read_factor: 4.0,
        isolated_write_factor: 2.0,
        ..slow
    };
    let of = |isolated| Use { drawn_bytes: 64.0, writes: 100.0, isolated, ..reads(0, 800.0) };
    // One of four lines that are its block's first: as in a stream.
    near(access_ns(&of(Some(0.25)), &blocks), 800.0 * 160.0 + 100.0 * 640.0);
    near(access_ns(&of(None), &blocks), access_ns(&of(Some(0.25)), &blocks));
    near(access_ns(&of(Some(0.0)), &blocks), access_ns(&of(Some(0.25)), &blocks));
    // All are.
    near(access_ns(&of(Some(1.0)), &blocks), 800.0 * 4.0 * 160.0 + 100.0 * 2.0 * 640.0);
    // Half way.
    near(access_ns(&of(Some(0.625)), &blocks), 800.0 * 2.5 * 160.0 + 100.0 * 1.5 * 640.0);
    // No matter where lines are all there is.
    near(access_ns(&of(Some(1.0)), &fast), access_ns(&of(None), &fast));
    let wrong = Memory { isolated_read_factor: 0.5, ..fast };
    let refused = plan(&workload(1, Vec::new()), &[wrong], &Options::default());
    assert!(matches!(refused, Err(PlanError::Options(_))), "{refused:?}");
}

#[test]
fn measured_moves_cost_what_was_measured() {
    let memories = two(10);
    let mut copy = MoveSpeed::default();
    near(move_cost_per_byte(&memories, 0, 1, &copy).time_ns, 1.0 / 3.2);
    copy.measured_ns[0][1] = 7.5;
    near(move_cost_per_byte(&memories, 0, 1, &copy).time_ns, 7.5);
    near(move_cost_per_byte(&memories, 1, 0, &copy).time_ns, 1.0 / 3.2);
    copy.measured_ns[1][0] = f64::NAN;
    let options = Options { copy, ..Options::default() };
    let refused = plan(&workload(1, Vec::new()), &memories, &options);
    assert!(matches!(refused, Err(PlanError::Options(_))), "{refused:?}");
}

#[test]
fn h2m_equation_2() {
    let [fast, slow] = two(10);
    let one = Use { hit_ratio: 0.25, ..reads(0, 800.0) };
    near(score_ns(&one, &slow, &fast, 4096.0), (26500.0 - 8780.0) * 4096.0);
}

#[test]
fn bandwidth_depends_on_threads() {
    let plain = memory("m", 1, 100.0, 50.0);
    // 16 lines of 64 bytes in 100 ns.
    near(plain.read_gb_s_with(1), 10.24);
    near(plain.read_gb_s_with(4), 40.96);
    near(plain.read_gb_s_with(5), 50.0);
    let point = |threads, read_gb_s, write_gb_s| Scaling { threads, read_gb_s, write_gb_s };
    let measured =
        Memory { scaling: vec![point(2, 8.0, 4.0), point(6, 16.0, 5.0)], ..plain.clone() };
    near(measured.read_gb_s_with(1), 4.0);
    near(measured.read_gb_s_with(4), 12.0);
    near(measured.write_gb_s_with(4), 4.5);
    near(measured.read_gb_s_with(64), 16.0);
}

#[test]
fn h2m_equations_3_to_5() {
    // Scores 25 ns a read: 10 bytes take 5 + 5 (2000), not 6 alone (1500), which has more a byte.
    let always = |bytes, count| object(bytes, (0, 100), vec![reads(0, count)]);
    let workload = workload(1, vec![always(6, 60.0), always(5, 40.0), always(5, 40.0)]);
    let best = planned(&workload, &two(10), Strategy::Initial);
    assert_eq!(births(&best), [1, 0, 0]);
    assert!(best.promise.proven);
    near(best.promise.in_last.time_ns - best.promise.cost.time_ns, 2000.0);
    assert_eq!(births(&planned(&workload, &two(10), Strategy::Greedy)), [0, 1, 1]);
    assert_eq!(births(&planned(&workload, &two(10), Strategy::FirstCome)), [0, 1, 1]);
}

#[test]
fn what_gains_nothing_leaves_the_room_unless_nothing_is_known() {
    let unused = || object(3, (0, 100), Vec::new());
    let used = object(3, (0, 100), vec![reads(0, 60.0)]);
    let some = workload(1, vec![unused(), used, unused()]);
    let none = workload(1, vec![unused(), unused(), unused()]);
    for strategy in [Strategy::Initial, Strategy::Lifetimes, Strategy::Joint] {
        assert_eq!(births(&planned(&some, &two(7), strategy)), [1, 0, 1]);
        assert_eq!(births(&planned(&none, &two(7), strategy)), [0, 0, 1]);
    }
}

#[test]
fn h2m_algorithm_1_uses_what_was_freed() {
    let lives = |lives, count| object(10, lives, vec![reads(0, count)]);
    let workload =
        workload(1, vec![lives((0, 40), 9.0), lives((40, 90), 8.0), lives((0, 90), 10.0)]);
    // Without lifetimes one of the three, with them the first two.
    assert_eq!(births(&planned(&workload, &two(10), Strategy::Initial)), [1, 1, 0]);
    // Longest first: that one overlaps both others, and no knapsack of 10 bytes holds those two.
    assert_eq!(births(&planned(&workload, &two(10), Strategy::Lifetimes)), [1, 1, 0]);
    // All lifetimes in one program see that 9 + 8 is more than 10.
    let exact = planned(&workload, &two(10), Strategy::Intervals);
    assert_eq!(births(&exact), [0, 0, 1]);
    assert!(exact.promise.proven);
    // Room is worth what the long-lived one would have saved, less than the two together.
    assert_eq!(exact.prices.len(), 2);
    assert!((25.0..=42.5).contains(&exact.prices[0]), "{:?}", exact.prices);
}

#[test]
fn costs_of_one_object() {
    let one = object(10, (0, 150), vec![reads(0, 9.0), reads(1, 1.0)]);
    let workload = workload(2, vec![one]);
    near(object_cost(&workload, &workload.objects[0], &two(10)[1]).time_ns, 10.0 * 300.0 / 8.0);
}

#[test]
fn h2m_algorithm_1_places_what_does_not_overlap() {
    let lives = |lives, count| object(10, lives, vec![reads(0, count)]);
    let workload = workload(1, vec![lives((0, 40), 9.0), lives((40, 90), 8.0), lives((5, 6), 1.0)]);
    assert_eq!(births(&planned(&workload, &two(10), Strategy::Lifetimes)), [0, 0, 1]);
    assert_eq!(births(&planned(&workload, &two(10), Strategy::FirstCome)), [0, 0, 1]);
}

#[test]
fn h2m_equation_6() {
    // `b` is used in the second phase only. Moving its 10 bytes up takes 10 / 3.2, `a`'s down as
    // long: 6.25 ns together; a read saves 25 ns.
    let pair = |late: f64| {
        let a = object(10, (0, 200), vec![reads(0, 1.0)]);
        let b = object(10, (0, 200), vec![reads(1, late)]);
        workload(2, vec![a, b])
    };
    for strategy in [Strategy::Phases { ahead: 1 }, Strategy::Joint] {
        let pays = planned(&pair(0.26), &two(10), strategy);
        assert_eq!(pays.placements[1].moves, [(1, 0)]);
        near(pays.promise.moves.time_ns, 6.25);
        near(pays.promise.cost.time_ns, 12.5 + 0.26 * 12.5 + 6.25);
        // Down first: there is no room for both.
        let order: Vec<_> = pays.moves.iter().map(|one| one.object).collect();
        assert_eq!(order, [0, 1]);
        let not = planned(&pair(0.24), &two(10), strategy);
        assert!(not.moves.is_empty());
    }
    // Seeing both phases, three reads later outweigh one now: no move at all.
    let ahead = planned(&pair(3.0), &two(10), Strategy::Phases { ahead: 2 });
    assert_eq!((births(&ahead), ahead.moves.len()), (vec![1, 0], 0));
}

#[test]
fn the_joint_program_sees_past_a_window() {
    // Each phase alone is not worth the move, ten are.
    let uses = |from| (from..10).map(|phase| reads(phase, 0.1)).collect();
    let early = object(10, (0, 1000), vec![reads(0, 1.0)]);
    let workload = workload(10, vec![early, object(10, (0, 1000), uses(1))]);
    assert!(planned(&workload, &two(10), Strategy::Phases { ahead: 1 }).moves.is_empty());
    let joint = planned(&workload, &two(10), Strategy::Joint);
    assert_eq!(joint.placements[1].moves, [(1, 0)]);
    assert!(joint.promise.proven);
}

#[test]
fn h2m_more_than_two_kinds() {
    // Recursion gives the fastest to whom it helps most against the second, not against the third.
    let memories = [
        memory("fast", 10, 100.0, 10.0),
        memory("middle", 10, 200.0, 10.0),
        memory("slow", 100, 800.0, 10.0),
    ];
    let always = |count| object(10, (0, 100), vec![reads(0, count)]);
    let workload = workload(1, vec![always(3.0), always(2.0), always(1.0)]);
    for levels in [Levels::Joint, Levels::OneByOne] {
        let options = Options { strategy: Strategy::Initial, levels, ..Options::default() };
        let plan = plan(&workload, &memories, &options).expect("a plan");
        assert_eq!(births(&plan), [0, 1, 2]);
        near(plan.promise.cost.time_ns, (300.0 + 400.0 + 800.0) / 8.0);
    }
}

#[test]
fn oam_equations_2_and_3() {
    let dram = with_energy(memory("dram", 10, 27.0, 64.0), 1.17, 0.39, 0.0);
    let one = Use { writes: 10.0, hit_ratio: 0.5, ..reads(0, 4.0) };
    // Half of the accesses reach memory, 512 bits each; what is written is read before.
    near(energy_pj(&one, &dram), 0.5 * 512.0 * (14.0 * 1.17 + 10.0 * 0.39));
    // A watt a byte for 100 ns: 10^5 pJ a byte.
    let idle = with_energy(memory("idle", 10, 27.0, 64.0), 0.0, 0.0, 1.0);
    let held = workload(1, vec![object(3, (0, 100), vec![])]);
    near(planned(&held, &[idle], Strategy::Initial).promise.cost.energy_pj, 3e5);
}

/// One that is faster and costs energy to hold data, one that is slower and does not.
fn hungry() -> [Memory; 2] {
    [
        with_energy(memory("hungry", 100, 100.0, 10.0), 1.0, 1.0, 1e-3),
        with_energy(memory("thrifty", 100, 200.0, 10.0), 1.0, 1.0, 0.0),
    ]
}

#[test]
fn objectives_differ() {
    let always = |count| object(10, (0, 100), vec![reads(0, count)]);
    let workload = workload(1, vec![always(10.0), always(1.0)]);
    let births_for = |objective, slowdown_max| {
        let options =
            Options { objective, slowdown_max, strategy: Strategy::Initial, ..Options::default() };
        births(&plan(&workload, &hungry(), &options).expect("a plan"))
    };
    assert_eq!(births_for(Objective::Time, None), [0, 0]);
    assert_eq!(births_for(Objective::Energy, None), [1, 1]);
    // Time 137.5 or 150 or 262.5 or 275 ns, energy 7632, 6632, 6632, 5632 pJ: the product is least
    // with the busy one up.
    assert_eq!(births_for(Objective::EnergyDelay, None), [0, 1]);
    // A tenth more than 137.5 ns is 151.25.
    assert_eq!(births_for(Objective::Energy, Some(0.1)), [0, 1]);
    assert_eq!(births_for(Objective::Energy, Some(0.0)), [0, 0]);
    assert_eq!(births_for(Objective::Energy, Some(1.0)), [1, 1]);
}

#[test]
fn energy_must_be_known() {
    let held = workload(1, vec![object(3, (0, 100), vec![])]);
    let options = Options { objective: Objective::Energy, ..Options::default() };
    let error = plan(&held, &two(10), &options).expect_err("no energy figures");
    assert_eq!(error, PlanError::NoEnergy("fast".into()));
}

#[test]
fn memories_of_the_papers_machines() {
    let machine = |name| Machine::builtin(name).expect("known").expect("sound");
    let (memories, left) = Memory::of_machine(&machine("icelake-optane"), Some(NodeId(0)));
    let names: Vec<_> = memories.iter().map(|memory| memory.name.as_str()).collect();
    assert_eq!(names, ["ddr0", "optane0"]);
    assert_eq!(left.len(), 2, "remote figures are not published: {left:?}");
    let (memories, _) = Memory::of_machine(&machine("xeonmax-hbm"), Some(NodeId(0)));
    let hbm = memories.iter().position(|memory| memory.name == "hbm0").expect("HBM");
    let ddr = memories.iter().position(|memory| memory.name == "ddr0").expect("DDR");
    // HBM idles slower than DDR: what chases pointers stays out, what streams goes in.
    let chase = Use { latency_weight: 8.0, ..reads(0, 1e6) };
    let stream = Use { hit_ratio: 1.0, threads: 10, ..reads(0, 1e6) };
    let workload = workload(
        1,
        vec![object(4096, (0, 100), vec![chase]), object(4096, (0, 100), vec![stream])],
    );
    let pair = [memories[hbm].clone(), memories[ddr].clone()];
    assert_eq!(births(&planned(&workload, &pair, Strategy::Joint)), [1, 0]);
}

#[test]
fn two_full_memories_swap_over_the_last() {
    let swap = |early, late| object(10, (0, 200), vec![reads(0, early), reads(1, late)]);
    let workload = workload(2, vec![swap(1000.0, 10.0), swap(10.0, 1000.0)]);
    let memories = [
        memory("fast", 10, 100.0, 10.0),
        memory("middle", 10, 200.0, 10.0),
        memory("slow", 10, 900.0, 10.0),
    ];
    let plan = planned(&workload, &memories, Strategy::Joint);
    assert_eq!(plan.moves.len(), 3, "one goes by the slow memory: {:?}", plan.moves);
    assert_eq!((made::worst_overflow(&workload, &memories, &plan), plan.overflow_bytes), (0, 0));
}

#[test]
fn what_cannot_be_planned_is_refused() {
    let good = workload(2, vec![object(4, (0, 150), vec![reads(0, 1.0), reads(1, 1.0)])]);
    let refused = |change: fn(&mut Workload)| {
        let mut bad = good.clone();
        change(&mut bad);
        plan(&bad, &two(10), &Options::default()).expect_err("refused").to_string()
    };
    assert!(refused(|w| w.objects[0].bytes = 0).contains("size"));
    assert!(refused(|w| w.objects[0].death_ns = 0).contains("dies before"));
    assert!(refused(|w| w.objects[0].death_ns = 100).contains("does not live in"));
    assert!(refused(|w| w.objects[0].uses[0].reads = f64::NAN).contains("not a number"));
    assert!(refused(|w| w.objects[0].uses[0].hit_ratio = 1.5).contains("hit ratio"));
    assert!(refused(|w| w.objects[0].uses[0].isolated = Some(1.5)).contains("by themselves"));
    assert!(refused(|w| w.phases[1].start_ns = 0).contains("ends before"));
    assert!(refused(|w| w.phases.clear()).contains("at least one phase"));
    assert!(refused(|w| w.objects[0].bytes = 2000).contains("finds no room"));
    let none: [Memory; 0] = [];
    assert!(plan(&good, &none, &Options::default()).is_err());
    assert!(plan(&good, &[memory("nan", 10, f64::NAN, 1.0)], &Options::default()).is_err());
}
