//! Plans of ranges within objects, and of objects that take turns in one memory.

mod common;

use common::{MIB, SECOND, profile, request, site};
use proptest::prelude::*;
use std::sync::Arc;
use tiercel_advisor::{advise, predict};
use tiercel_ledger::{Config, Ledger};
use tiercel_machine::{Machine, NodeId};
use tiercel_plan::{Plan, PlannedRange, check_plan};
use tiercel_planner::Strategy;
use tiercel_profile::{
    Access, Names, Object, Phase, Process, Profile, Recorder, RecorderConfig, Run, Site,
};
use tiercel_wire::{AccessKind, Flags, Record, Sample, Version};

/// One object of 64 MiB in extents of a MiB, with so many samples of 4096 misses in each.
fn large(samples: impl Fn(u64) -> u64) -> Profile {
    let object = Object {
        count: 1,
        bytes: 64 * MIB,
        peak_bytes: 64 * MIB,
        born_bytes: 64 * MIB,
        address: 1 << 32,
        death_ns: 20 * SECOND,
        extent_bytes: MIB,
        ..Object::default()
    };
    let access = |extent: u64| Access {
        extent: u32::try_from(extent).unwrap(),
        reads: samples(extent) * 4096,
        samples: samples(extent),
        dirtied: Some(0),
        mlp_known: samples(extent) * 4096,
        serialized: samples(extent) * 4096,
        isolated: samples(extent) * 4096,
        ..Access::default()
    };
    let accesses = (0..64).map(access).filter(|access| access.samples > 0);
    let made = Profile {
        objects: vec![object],
        accesses: accesses.collect(),
        phases: vec![Phase { name: "A".into(), end_ns: 20 * SECOND, ..Phase::default() }],
        sites: vec![site(5, "make")],
        processes: vec![Process { end_ns: 20 * SECOND, ..Process::default() }],
        ..profile(1, 1)
    };
    tiercel_profile::check(&made).unwrap();
    made
}

fn planned(profile: &Profile, fast_bytes: u64) -> Plan {
    let plan = advise(profile, &profile.machine, &request(Strategy::Joint, fast_bytes)).unwrap();
    check_plan(&plan.plan).unwrap();
    plan.plan
}

/// The only placement of the only site.
fn ranges(plan: &Plan) -> &[PlannedRange] {
    &plan.sites[0].classes[0].placements[0].ranges
}

#[test]
fn the_hot_middle_of_an_object_is_fast_and_gains_all() {
    let hot = |extent: u64| if (24..32).contains(&extent) { 500 } else { 0 };
    let profile = large(hot);
    let plan = planned(&profile, 19 * MIB);
    let covered: f64 = ranges(&plan).iter().map(|range| range.overlap(0.375, 0.5)).sum();
    assert!((covered - 0.125).abs() < 1e-4, "{:?}", ranges(&plan));
    let time = plan.expected.time.unwrap();
    assert!(time.slowdown < 1.001 && time.all_slow > 1.02, "{time:?}");
    assert!(time.fast_share.unwrap() > 0.999, "{time:?}");
    // A head of the same size, as plans had it, gains nothing here.
    let mut head = plan.clone();
    head.sites[0].classes[0].placements[0].ranges = vec![PlannedRange { from: 0.0, to: 0.25 }];
    let time = predict(&profile, &profile.machine, &head);
    assert!((time.slowdown - time.all_slow).abs() < 1e-9, "{time:?}");
}

#[test]
fn what_is_hot_at_both_ends_is_two_ranges() {
    let plan = planned(&large(|extent| if !(4..60).contains(&extent) { 300 } else { 1 }), 9 * MIB);
    let both = [(0.0, 0.0625), (0.9375, 1.0)];
    for (from, to) in both {
        let covered: f64 = ranges(&plan).iter().map(|range| range.overlap(from, to)).sum();
        assert!((covered - 0.0625).abs() < 1e-4, "{:?}", ranges(&plan));
    }
}

#[test]
fn a_small_hot_range_of_a_fiftieth_is_not_taken_for_chance() {
    let plan = planned(&large(|extent| if extent == 40 { 900 } else { 0 }), 4 * MIB);
    let covered: f64 = ranges(&plan).iter().map(|range| range.overlap(0.625, 0.640_625)).sum();
    assert!(covered > 0.0156, "{:?}", ranges(&plan));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever is hot: the fast memory has room for what the plan places there.
    #[test]
    fn ranges_stay_within_the_room(
        samples in prop::collection::vec(prop_oneof![Just(0u64), 0u64..9, 50u64..400], 64),
        mib in 2u64..60,
    ) {
        let profile = large(|extent| samples[usize::try_from(extent).unwrap()]);
        let plan = planned(&profile, mib * MIB);
        let place = &plan.sites[0].classes[0].placements[0];
        if place.node == NodeId(0) {
            let bytes = place.share() * 64.0 * MIB as f64;
            // A range's ends are those of the nearest OS page.
            prop_assert!(bytes <= (mib * MIB + 4096 * 4) as f64, "{} of {}", bytes, mib * MIB);
        }
    }
}

const PID: u32 = 7;
const MS: u64 = 1_000_000;

/// Sites by number: each birth of one place has one, as large objects have in a recorded run.
struct Numbered;

impl Names for Numbered {
    fn site(&mut self, number: u32) -> Site {
        site(u64::from(number), "make_array")
    }

    fn phase(&mut self, _: u64) -> Arc<str> {
        unreachable!("no phase is marked")
    }
}

/// A run as the daemon records it: twelve arrays of 16 MiB that live for 10 ms each, at one address
/// one after the other, each sampled 23 times; samples are learned of when all is over.
fn twelve_arrays() -> Profile {
    let mut ledger = Ledger::new(Config::default(), 0).unwrap();
    ledger.process_born(PID).unwrap();
    ledger.listen();
    for number in 0..12 {
        let version = Version { carve: 1, generation: u16::try_from(number).unwrap() };
        let (addr, bytes, flags) = (1 << 32, 16 * MIB, Flags(0));
        let (born_ns, died_ns) = ((10 + 10 * number) * MS, (20 + 10 * number) * MS - 1);
        let site = u32::try_from(number + 1).unwrap();
        let born =
            Record::Born { addr, bytes, site, version, arena: None, flags, time_ns: born_ns };
        ledger.deliver(PID, born);
        ledger.deliver(PID, Record::Died { addr, bytes, version, flags, time_ns: died_ns });
        for hit in 0..23 {
            let time_ns = born_ns + (hit + 1) * MS / 3;
            ledger.observe(Sample {
                from_ns: time_ns,
                until_ns: time_ns,
                pid: PID,
                tid: PID,
                addr: addr + hit * 700_000,
                kind: AccessKind::Read,
                latency_ns: Some(250),
                node: None,
                weight: 4096,
                around: None,
                cpu: None,
                by: None,
            });
        }
    }
    ledger.settle(PID, 200 * MS);
    ledger.attribute(&mut Vec::new());
    ledger.tick(200);
    let config = RecorderConfig { misses_only: true, ..RecorderConfig::default() };
    let (mut recorder, mut events) = (Recorder::new(config), Vec::new());
    recorder.process_born(PID, None, "app", 0);
    ledger.take_events(&mut events);
    events.iter().for_each(|one| recorder.consume(one));
    recorder.process_gone(PID, 200, &mut Numbered);
    let machine = Machine::builtin("spr-cxl").unwrap().unwrap();
    recorder.finish(machine, Run { duration_ns: 200 * MS, ..Run::default() })
}

#[test]
fn twelve_equal_arrays_that_never_live_at_once_are_all_fast() {
    let profile = twelve_arrays();
    tiercel_profile::check(&profile).unwrap();
    let samples = |object: u32| {
        let of_object = profile.accesses.iter().filter(|access| access.object == object);
        of_object.map(|access| access.samples).sum::<u64>()
    };
    let seen: Vec<u64> = (0..12).map(samples).collect();
    assert_eq!(seen, [23; 12], "each array has the accesses of its own life");
    for strategy in [Strategy::Joint, Strategy::Lifetimes] {
        let made = advise(&profile, &profile.machine, &request(strategy, 19 * MIB)).unwrap().plan;
        let places: Vec<(NodeId, f64)> =
            made.placements().map(|place| (place.node, place.share())).collect();
        assert_eq!(places, [(NodeId(0), 1.0); 12], "{strategy:?}");
    }
}
