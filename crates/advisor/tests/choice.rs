//! The choice among plans by predicted run time: a margin, where it is left and what it may cost;
//! which of several streams is fast.

#[path = "../../profile/tests/common/mod.rs"]
mod common;

use common::profiles;
use proptest::prelude::*;
use tiercel_advisor::{Assembly, PlanRequest, PlanResult, Throughput, advise, assemble, predict};
use tiercel_machine::{Machine, StreamSpeed};
use tiercel_plan::{Basis, Prediction, Unplanned};
use tiercel_planner::{Memory, MoveSpeed, Objective, Options, Strategy as Finds, plan};
use tiercel_profile::{Access, Object, Phase, Process, Profile, Run, Site};

const MIB: u64 = 1 << 20;

fn request(strategy: Finds, fast_bytes: u64) -> PlanRequest {
    PlanRequest {
        strategy,
        objective: Objective::Time,
        slowdown_max: None,
        fast_bytes,
        fast: String::new(),
        unplanned: Unplanned::Slowest,
        prefetch: true,
    }
}

/// Objects of a MiB, each of a place of its own, accessed so often.
fn of_heats(heats: &[u64]) -> Profile {
    let mut profile = Profile {
        machine: Machine::builtin("spr-cxl").unwrap().unwrap(),
        slot_ns: 1 << 30,
        runs: vec![Run { duration_ns: 1 << 30, misses_only: true, ..Run::default() }],
        processes: vec![Process { end_ns: 1 << 30, ..Process::default() }],
        phases: vec![Phase { end_ns: 1 << 30, ..Phase::default() }],
        ..Profile::default()
    };
    for (index, reads) in (0..).zip(heats) {
        profile.sites.push(Site { hash: u64::from(index) + 1, frames: Vec::new() });
        profile.objects.push(Object {
            site: index,
            count: 1,
            bytes: MIB,
            peak_bytes: MIB,
            born_bytes: MIB,
            address: u64::from(index + 1) << 32,
            death_ns: 1 << 30,
            ..Object::default()
        });
        let access = Access { object: index, reads: *reads, samples: 100, ..Access::default() };
        profile.accesses.push(access);
    }
    tiercel_profile::check(&profile).unwrap();
    profile
}

fn result(heats: &[u64], strategy: Finds, fast_bytes: u64) -> PlanResult {
    let profile = of_heats(heats);
    advise(&profile, &profile.machine, &request(strategy, fast_bytes)).unwrap()
}

#[test]
fn a_margin_is_left_of_what_gains_little() {
    let held_back = |heats: &[u64], strategy| {
        let plan = result(heats, strategy, 16 * MIB).plan;
        (plan.machine.held_back_bytes / MIB, plan.fast_bytes() / MIB)
    };
    // Twelve hot ones of 24, which have room, and others that gain a hundredth.
    let lukewarm: Vec<u64> = (0..24).map(|at| if at < 12 { 1_000_000 } else { 10_000 }).collect();
    assert_eq!(held_back(&lukewarm, Finds::Intervals), (1, 15));
    assert_eq!(held_back(&lukewarm, Finds::Lifetimes), (0, 16), "H2M's strategies fill the room");
    // Fifteen hot ones have the last that is no margin, a sixteenth one has the margin.
    let hot = |count| (0..24).map(move |at| if at < count { 1_000_000 } else { 10_000 });
    assert_eq!(held_back(&hot(15).collect::<Vec<_>>(), Finds::Intervals), (1, 15));
    assert_eq!(held_back(&hot(16).collect::<Vec<_>>(), Finds::Intervals), (0, 16));
    // What all fits is not made slow for nothing, and what is never accessed needs no margin.
    assert_eq!(held_back(&lukewarm[..15], Finds::Intervals), (0, 16));
    assert_eq!(held_back(&[0; 24], Finds::Intervals), (0, 16));
}

/// Two objects that are gone through side by side, one of twice the other's size.
fn side_by_side() -> Profile {
    let slot_ns = 1 << 26;
    let mut profile = of_heats(&[0, 0]);
    profile.slot_ns = slot_ns;
    profile.accesses.clear();
    let slow = profile.machine.tiers().last().unwrap().nodes[0];
    // Slow memory takes 64 ns for a line, and the core three fifths of what both together take.
    let lines = slot_ns * 5 / 3 / 64;
    profile.runs[0].speeds.streams = vec![StreamSpeed {
        node: slow,
        read_ns_per_byte: 1.0,
        write_ns_per_byte: 1.0,
        read_line_ns: 64.0,
        write_line_ns: 64.0,
    }];
    for (object, mib, reads) in [(0, 16, lines * 68 / 100), (1, 8, lines * 32 / 100)] {
        let seen = &mut profile.objects[object as usize];
        (seen.bytes, seen.peak_bytes, seen.born_bytes) = (mib * MIB, mib * MIB, mib * MIB);
        seen.extent_bytes = mib * MIB / 16;
        for slot in 0..16 {
            profile.accesses.push(Access {
                object,
                slot,
                extent: slot,
                reads,
                samples: 100,
                mlp_known: reads,
                serialized: reads / 16,
                isolated: reads / 4,
                ..Access::default()
            });
        }
    }
    tiercel_profile::check(&profile).unwrap();
    profile
}

#[test]
fn a_stream_is_fast_all_along_where_that_is_predicted_to_be_best() {
    let profile = side_by_side();
    let request = request(Finds::Intervals, 7 * MIB);
    let made = advise(&profile, &profile.machine, &request).unwrap();
    let fast_bytes = |site: u32| {
        let objects = made.input.workload.objects.iter().zip(&made.groups);
        let placed = objects.zip(&made.found.placements);
        let fast = placed.filter(|((_, group), one)| group.site == site && one.birth == 0);
        fast.map(|((object, _), _)| object.bytes).sum::<u64>() / MIB
    };
    // By the sums parts of the large one gain most, but then the core is what takes longest.
    assert_eq!((fast_bytes(0), fast_bytes(1)), (0, 7));
    assert!(most_fast_bytes(&made) <= made.memories[0].capacity_bytes);
    let by_sums = filled(&profile, &made, &made.memories).slowdown;
    let slowdown = made.plan.expected.time.unwrap().slowdown;
    assert!(slowdown < by_sums * 0.9, "{slowdown} {by_sums}");
}

/// What the plan would be if it filled the margin, too.
fn filled(profile: &Profile, result: &PlanResult, memories: &[Memory]) -> Prediction {
    let options = Options { strategy: Finds::Intervals, ..Options::default() };
    let workload = &result.input.workload;
    let found = plan(workload, memories, &options).unwrap();
    let plan = assemble(&Assembly {
        profile,
        workload,
        groups: &result.groups,
        machine: &profile.machine,
        memories,
        found: &found,
        throughput: Throughput { copy: MoveSpeed::default(), basis: Basis::Described },
        held_back_bytes: 0,
        options: result.plan.options.clone(),
        unplanned: Unplanned::Slowest,
    });
    predict(profile, &profile.machine, &plan)
}

/// Most bytes that live in the fastest memory at a time.
fn most_fast_bytes(result: &PlanResult) -> u64 {
    let placed = || result.input.workload.objects.iter().zip(&result.found.placements);
    let fast = || placed().filter(|(_, placement)| placement.birth == 0).map(|(one, _)| one);
    let at = |now_ns| fast().filter(move |o| o.birth_ns <= now_ns && now_ns < o.death_ns);
    fast().map(|one| at(one.birth_ns).map(|o| o.bytes).sum()).max().unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn no_plan_exceeds_its_room_or_loses_what_a_margin_holds(
        profile in profiles(1),
        part in 1u64..40,
    ) {
        prop_assume!(!profile.objects.is_empty());
        let live: u64 = profile.objects.iter().map(|object| object.peak_bytes).sum();
        let fast_bytes = live / part;
        let wanted = request(Finds::Intervals, fast_bytes);
        let made = advise(&profile, &profile.machine, &wanted).unwrap();
        let machine = &made.plan.machine;
        let room_bytes = made.plan.fast_bytes();
        prop_assert_eq!(room_bytes, made.memories[0].capacity_bytes);
        prop_assert!(room_bytes + machine.held_back_bytes <= fast_bytes);
        let most = most_fast_bytes(&made);
        prop_assert!(most <= room_bytes, "{} in {}", most, room_bytes);
        let untracked = profile.runs[0].observed.untracked_bytes.min(fast_bytes / 2);
        let margin_bytes = machine.held_back_bytes - untracked;
        let all_bytes = room_bytes + margin_bytes;
        prop_assert!(margin_bytes == 0 || margin_bytes == all_bytes / 16);
        if margin_bytes > 0 {
            let mut memories = made.memories.clone();
            memories[0].capacity_bytes += margin_bytes;
            let time = filled(&profile, &made, &memories);
            let less = made.plan.expected.time.unwrap();
            let (all, gain) = (time.all_slow - time.slowdown, less.all_slow - less.slowdown);
            prop_assert!(all - gain <= all.max(0.0) / 16.0 + 1e-9, "{} of {}", gain, all);
        }
    }
}
