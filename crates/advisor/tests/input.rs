//! The planner's input, made from profiles.

#[path = "../../profile/tests/common/mod.rs"]
mod common;

use common::{profiles, totals};
use proptest::prelude::*;
use tiercel_advisor::{MISS_WEIGHT, PlannerInput};
use tiercel_profile::{Access, Object, Phase, Process, Profile, Run, Site};

/// A profile of cache misses with one object, accessed as stated, in phases of the names given.
fn profile(access: Access, phases: &[&str]) -> Profile {
    const PHASE_NS: u64 = 1 << 20;
    let phases: Vec<Phase> = (0..)
        .zip(phases)
        .map(|(index, name)| Phase {
            name: (*name).into(),
            start_ns: index * PHASE_NS,
            end_ns: (index + 1) * PHASE_NS,
            ..Phase::default()
        })
        .collect();
    Profile {
        slot_ns: PHASE_NS,
        runs: vec![Run { duration_ns: 1 << 30, misses_only: true, ..Run::default() }],
        processes: vec![Process { end_ns: 1 << 30, ..Process::default() }],
        sites: vec![Site { hash: 1, frames: Vec::new() }],
        objects: vec![Object {
            count: 1,
            bytes: 1 << 20,
            peak_bytes: 1 << 20,
            death_ns: 1 << 30,
            ..Object::default()
        }],
        phases,
        accesses: vec![access],
        ..Profile::default()
    }
}

#[test]
fn write_backs_count_as_writes_and_latency_by_observed_overlap() {
    let access = Access {
        reads: 30,
        samples: 3,
        dirtied: Some(7),
        mlp_known: 20,
        serialized: 8,
        isolated: 10,
        ..Access::default()
    };
    let used = PlannerInput::of(&profile(access, &["start"])).workload.objects[0].uses[0];
    assert_eq!((used.reads, used.writes, used.latency_weight), (23.0, 7.0, 8.0 * 8.0 / 20.0));
    assert_eq!(used.isolated, Some(0.5));
}

#[test]
fn without_observed_write_backs_and_overlap_defaults_apply() {
    let access = Access { reads: 10, writes: 10, samples: 2, dirtied: None, ..Access::default() };
    let used = PlannerInput::of(&profile(access, &["start"])).workload.objects[0].uses[0];
    assert_eq!((used.reads, used.writes), (10.0, 10.0));
    assert_eq!((used.latency_weight, used.isolated), (MISS_WEIGHT, None));
}

#[test]
fn phases_keep_their_names_and_order() {
    let names = ["start", "phase 1", "phase 3", "phase 1"];
    let input = PlannerInput::of(&profile(Access { reads: 1, ..Access::default() }, &names));
    let found: Vec<_> = input.workload.phases.iter().map(|phase| &*phase.name).collect();
    assert_eq!(found, names);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_profile_yields_a_valid_workload_with_all_accesses(profile in profiles(3)) {
        let input = PlannerInput::of(&profile);
        prop_assert_eq!(input.workload.check(), Ok(()));
        prop_assert_eq!(input.objects.len(), profile.objects.len());
        prop_assert_eq!(input.phases.len(), input.workload.phases.len());
        let uses = input.workload.objects.iter().flat_map(|object| &object.uses);
        let accesses: f64 = uses.map(|one| one.reads + one.writes).sum();
        let expect = (totals(&profile)[4] + totals(&profile)[5]) as f64;
        prop_assert!((accesses - expect).abs() <= 1e-9 * expect, "{} for {}", accesses, expect);
    }
}
