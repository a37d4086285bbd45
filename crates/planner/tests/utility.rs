//! OAM's utility, phases of objects and DyMalloc against numbers worked out by hand, and on random
//! programs.

mod made;

use made::{keeps_capacities, memory, object, reads, with_energy, workload};
use proptest::prelude::*;
use tiercel_machine::Machine;
use tiercel_planner::{
    Memory, Object, Objective, Options, Placements, PlanError, Strategy as Chosen, Use,
    UtilityRules, Workload, delay_ns, plan, utilities, utility,
};

fn near(is: f64, should: f64) {
    assert!((is - should).abs() <= should.abs() * 1e-9, "{is} is not {should}");
}

/// Table 2 of OAM.
fn pcm() -> Vec<Memory> {
    Memory::of_machine(&Machine::builtin("pcm").unwrap().unwrap(), None).0
}

fn rules(epsilon: f64, phi: f64) -> UtilityRules {
    UtilityRules { epsilon, phi, moves: true }
}

fn planned(
    workload: &Workload,
    memories: &[Memory],
    objective: Objective,
    rules: UtilityRules,
) -> Result<Placements, PlanError> {
    let strategy = Chosen::Utility(rules);
    plan(workload, memories, &Options { strategy, objective, ..Options::default() })
}

fn births(plan: &Placements) -> Vec<u8> {
    plan.placements.iter().map(|placement| placement.birth).collect()
}

/// 1 ns and 10 ns: an object that is read has a utility of 10, any other one of 1.
fn two(fast_bytes: u64) -> [Memory; 2] {
    [memory("fast", fast_bytes, 1.0, 64.0), memory("slow", 1000, 10.0, 64.0)]
}

/// Utilities from 1 to 10 by the share of writes, which are as fast in both memories.
fn of_utility(slow_reads: f64, fast_writes: f64, bytes: u64, lives: (u64, u64)) -> Object {
    let one = Use { writes: fast_writes, ..reads(0, slow_reads - fast_writes) };
    object(bytes, lives, vec![one])
}

#[test]
fn oam_equations_1_to_3_on_table_2() {
    let memories = pcm();
    let one = Use { writes: 10.0, ..reads(0, 90.0) };
    // A hundred lines are read, ten of them go back.
    near(delay_ns(&one, &memories[0]), 100.0 * 27.0 + 10.0 * 57.0);
    near(delay_ns(&one, &memories[1]), 100.0 * 39.0 + 10.0 * 342.0);
    near(delay_ns(&Use { hit_ratio: 0.68, ..one }, &memories[0]), 0.32 * 3270.0);
    // 4 KiB for 100 ns at 0.329 W / 32 GiB: 0.329 / 2^35 x 4096 x 100 ns = 3.92e-3 pJ.
    let static_pj = 0.329 / (1u64 << 35) as f64 * 4096.0 * 100.0 * 1000.0;
    let energies = |read: f64, write: f64| 512.0 * (100.0 * read + 10.0 * write);
    let program = workload(1, vec![object(4096, (0, 100), vec![one])]);
    let found = utility(&program, &program.objects[0], &memories);
    near(found.delay, 7320.0 / 3270.0);
    near(found.energy, energies(2.47, 16.82) / (energies(1.17, 0.39) + static_pj));
    near(found.of(Objective::EnergyDelay), found.delay * found.energy);
    near(found.of(Objective::Time), found.delay);
    near(found.of(Objective::Energy), found.energy);
}

#[test]
fn what_is_never_accessed_is_cold_for_its_static_energy() {
    let memories = pcm();
    let program = workload(2, vec![object(4096, (0, 200), vec![reads(1, 10.0)])]);
    let by_phase = utilities(&program, &program.objects[0], &memories);
    assert_eq!((by_phase[0].delay, by_phase[0].energy), (1.0, 0.0));
    assert!(by_phase[1].of(Objective::EnergyDelay) > 3.0);
}

#[test]
fn static_energy_makes_rarely_read_objects_cold() {
    // U of reads alone: 39/27 x 2.47/1.17 = 3.05. With static energy E_dram doubles, and U halves.
    let memories = pcm();
    let read_pj = 512.0 * 1.17;
    let bytes = 1u64 << 20;
    let second = Workload { end_ns: 1_000_000_000, ..workload(1, Vec::new()) };
    let static_pj = 0.329 / (1u64 << 35) as f64 * bytes as f64 * 1e12;
    let with = |count: f64| Workload {
        objects: vec![object(bytes, (0, 1_000_000_000), vec![reads(0, count)])],
        ..second.clone()
    };
    let program = with(static_pj / read_pj);
    near(
        utility(&program, &program.objects[0], &memories).of(Objective::EnergyDelay),
        39.0 / 27.0 * 2.47 / 1.17 / 2.0,
    );
    let place = |program: &Workload| {
        births(&planned(program, &memories, Objective::EnergyDelay, rules(1.5, 0.8)).unwrap())
    };
    assert_eq!(place(&program), [0], "1.52 is above 1.5");
    assert_eq!(place(&with(static_pj / read_pj * 0.9)), [1]);
}

#[test]
fn dymalloc_fills_up_to_phi_and_then_takes_only_hotter_ones() {
    let slow = Memory { write_latency_ns: 1.0, ..two(0)[1].clone() };
    let fast = Memory { write_latency_ns: 1.0, ..two(100)[0].clone() };
    let memories = [fast, slow];
    // D = reads x 10 or 1, and a write costs 1 in both: U = (10 r + w) / (r + w).
    let hotter = |bytes, birth| of_utility(100.0, 0.0, bytes, (birth, 100));
    let hot = |bytes, birth| of_utility(100.0, 100.0, bytes, (birth, 100));
    let cold = |bytes, birth| object(bytes, (birth, 100), Vec::new());
    let place = |objects| {
        let program = workload(1, objects);
        births(&planned(&program, &memories, Objective::Time, rules(1.5, 0.8)).unwrap())
    };
    // Utilities 5.5; 80 of 100 bytes are phi.
    assert_eq!(place(vec![hot(40, 0), cold(10, 1), hot(40, 2)]), [0, 1, 0]);
    // At phi one as hot as the threshold epsilon enters, the next must be hotter than that one.
    assert_eq!(place(vec![hot(80, 0), hot(5, 1), hot(5, 2), hotter(5, 3)]), [0, 0, 1, 0]);
    // Deaths lead back below phi, where the threshold is epsilon again.
    let gone = of_utility(100.0, 100.0, 80, (0, 10));
    assert_eq!(place(vec![gone, hot(5, 1), hot(5, 20), hot(5, 21)]), [0, 0, 0, 0]);
    // What does not fit is in the slow memory, however hot.
    assert_eq!(place(vec![hot(70, 0), hotter(40, 1)]), [0, 1]);
}

#[test]
fn dymalloc_reserves_room_for_the_hottest_of_the_next_slot() {
    let memories = two(100);
    let filler = object(80, (0, 200), vec![reads(0, 10.0), reads(1, 10.0)]);
    let small = |birth| object(10, (birth, 200), vec![reads(0, 9.0), reads(1, 9.0)]);
    let coming = |bytes| object(bytes, (100, 200), vec![reads(1, 1000.0)]);
    let place = |objects| {
        let program = workload(2, objects);
        births(&planned(&program, &memories, Objective::Time, rules(1.5, 0.8)).unwrap())
    };
    assert_eq!(place(vec![filler.clone(), small(1)]), [0, 0], "nothing is to come");
    // 20 are free, 15 of them reserved: 10 do not fit. What they are kept for takes them.
    assert_eq!(place(vec![filler.clone(), small(1), coming(15)]), [0, 1, 0]);
    assert_eq!(place(vec![filler, small(1), coming(10)])[1], 0, "20 - 10 is enough");
}

#[test]
fn a_mutable_object_is_born_by_its_first_phase_and_moves_where_that_pays() {
    let memories = two(100);
    let rising = |count| object(10, (0, 200), vec![reads(1, count)]);
    let place = |objects: Vec<Object>, moves| {
        let program = workload(2, objects);
        let rules = UtilityRules { moves, ..UtilityRules::default() };
        planned(&program, &memories, Objective::Time, rules).unwrap().placements
    };
    let moved = place(vec![rising(1000.0)], true);
    assert_eq!((moved[0].birth, moved[0].moves.clone()), (1, vec![(1, 0)]));
    // Time: an access saves 9 / 8 ns, ten bytes cost 10 / 6.4 ns at what one thread writes.
    assert_eq!(place(vec![rising(0.1)], true)[0].moves, [], "that would cost more than it saves");
    assert_eq!(place(vec![rising(1000.0)], false)[0].moves, [], "without moves");
}

#[test]
fn what_cools_moves_down_for_its_static_energy_and_makes_room() {
    let hungry = with_energy(two(100)[0].clone(), 1.0, 1.0, 1e-3);
    let frugal = with_energy(two(0)[1].clone(), 2.0, 2.0, 0.0);
    let memories = [hungry, frugal];
    let falling = object(60, (0, 200), vec![reads(0, 1e6)]);
    let rising = object(60, (0, 200), vec![reads(1, 1e6)]);
    let program = workload(2, vec![falling, rising]);
    let found = planned(&program, &memories, Objective::Energy, rules(1.5, 0.8)).unwrap();
    assert_eq!((found.placements[0].birth, &found.placements[0].moves[..]), (0, &[(1, 1)][..]));
    assert_eq!((found.placements[1].birth, &found.placements[1].moves[..]), (1, &[(1, 0)][..]));
}

#[test]
fn thresholds_that_make_no_sense_are_refused() {
    let program = workload(1, vec![object(10, (0, 100), Vec::new())]);
    for (epsilon, phi) in [(1.0, 0.8), (f64::NAN, 0.8), (1.5, 1.1), (1.5, -0.1)] {
        let refused = planned(&program, &two(10), Objective::Time, rules(epsilon, phi));
        assert!(matches!(refused, Err(PlanError::Options(_))), "{epsilon} {phi}");
    }
    let energy = planned(&program, &two(10), Objective::EnergyDelay, rules(1.5, 0.8));
    assert!(matches!(energy, Err(PlanError::NoEnergy(_))));
    let options = Options {
        strategy: Chosen::Utility(UtilityRules::default()),
        slowdown_max: Some(0.1),
        ..Options::default()
    };
    assert!(matches!(plan(&program, &two(10), &options), Err(PlanError::Options(_))));
    let large = workload(1, vec![object(2000, (0, 100), Vec::new())]);
    let refused = planned(&large, &two(10), Objective::Time, rules(1.5, 0.8));
    assert!(matches!(refused, Err(PlanError::NoRoom { object: 0, bytes: 2000 })));
}

fn any_program() -> impl proptest::strategy::Strategy<Value = Workload> {
    let uses = prop::collection::vec((0u32..5, 0.0f64..1e5, 0.0f64..1e5), 0..5);
    let one = (1u64..400, 0u64..499, 1u64..500, uses);
    prop::collection::vec(one, 1..30).prop_map(|given| {
        let object = |(bytes, birth, length, uses): (u64, u64, u64, Vec<(u32, f64, f64)>)| {
            let death = birth + length;
            let lives = (birth / 100) as u32..=((death - 1) / 100).min(4) as u32;
            let uses: std::collections::BTreeMap<u32, Use> = uses
                .into_iter()
                .filter(|(phase, ..)| lives.contains(phase))
                .map(|(phase, reads, writes)| (phase, Use { writes, ..made::reads(phase, reads) }))
                .collect();
            made::object(bytes, (birth, death), uses.into_values().collect())
        };
        workload(5, given.into_iter().map(object).collect())
    })
}

proptest! {
    #[test]
    fn no_memory_ever_holds_more_than_it_has(
        program in any_program(), room in 0u64..3000, phi in 0.0f64..1.0, moves: bool,
    ) {
        let mut memories = pcm();
        memories[0].capacity_bytes = room;
        let rules = UtilityRules { phi, moves, ..UtilityRules::default() };
        let found = planned(&program, &memories, Objective::EnergyDelay, rules).unwrap();
        prop_assert!(keeps_capacities(&program, &memories, &found.placements));
        prop_assert!(moves || found.moves.is_empty());
        prop_assert_eq!(found.overflow_bytes, 0);
    }

    #[test]
    fn where_room_is_plenty_what_is_always_hot_is_fast_and_what_is_never_is_slow(
        program in any_program(),
    ) {
        let memories = pcm();
        let rules = UtilityRules::default();
        let found = planned(&program, &memories, Objective::EnergyDelay, rules).unwrap();
        for (object, placement) in program.objects.iter().zip(&found.placements) {
            let slots = utilities(&program, object, &memories);
            let hot = |slot: &tiercel_planner::Utility| slot.of(Objective::EnergyDelay) > 1.5;
            if slots.iter().all(hot) {
                prop_assert_eq!((placement.birth, placement.moves.len()), (0, 0));
            } else if !slots.iter().any(hot) {
                prop_assert_eq!((placement.birth, placement.moves.len()), (1, 0));
            }
        }
    }
}
