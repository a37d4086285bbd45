//! Predictions of plans: what changes them, by how much, and how certain they are.

mod common;

use common::{MIB, SECOND, prediction_of, profile, request, slow, with_speeds};
use tiercel_advisor::{advise, predict};
use tiercel_machine::{CpuList, NodeId};
use tiercel_plan::{Expected, PlannedRange, Prediction};
use tiercel_planner::Strategy;
use tiercel_profile::{Access, Profile, ServedBy};

#[test]
fn less_fast_memory_is_slower_and_more_samples_narrow_the_error() {
    let seen = profile(3, 50_000_000);
    let at = |profile: &Profile, bytes| {
        let result = advise(profile, &profile.machine, &request(Strategy::Joint, bytes)).unwrap();
        result.plan.expected.time.unwrap()
    };
    let points = [8, 16, 24, 32].map(|mib| at(&seen, mib * MIB));
    for two in points.windows(2) {
        assert!(two[0].slowdown >= two[1].slowdown, "{points:?}");
    }
    let [least, .., all] = points;
    assert!((all.slowdown - 1.0).abs() < 1e-9 && all.error < 1e-9, "{all:?}");
    assert!(1.0 < least.slowdown && least.slowdown < least.all_slow, "{least:?}");
    assert!(least.error > 0.0);
    let mut surer = seen;
    surer.accesses.iter_mut().for_each(|access| access.samples *= 100);
    assert!(at(&surer, 8 * MIB).error < least.error / 5.0);
    // What the sampler cannot see widens the error bar: outstanding misses and written-back lines.
    let blind = |change: fn(&mut Access)| {
        let mut seen = surer.clone();
        seen.accesses.iter_mut().for_each(change);
        at(&seen, 8 * MIB)
    };
    let lonely = blind(|access| (access.mlp_known, access.serialized, access.isolated) = (0, 0, 0));
    assert_eq!(lonely.slowdown, least.slowdown, "unknown concurrency is assumed as recorded");
    assert!(lonely.error > 4.0 * least.error, "{lonely:?}");
    // With few accesses to memory there is hardly any slowdown.
    let idle = profile(3, 1_000);
    assert!(at(&idle, 8 * MIB).slowdown < 1.001);
}

#[test]
fn written_back_lines_cost_more_and_are_uncertain_if_not_sampled() {
    let at = |dirtied: fn(u64) -> Option<u64>| {
        // A byte takes 10 ns to read and 30 ns to modify.
        let mut profile = with_speeds(10_000_000, 10.0, 1.0);
        profile.runs[0].speeds.streams[0].write_ns_per_byte = 30.0;
        profile.runs[0].speeds.streams[0].write_line_ns = 1920.0;
        profile.accesses.iter_mut().for_each(|access| access.dirtied = dirtied(access.reads));
        let request = request(Strategy::Lifetimes, 8 * MIB);
        prediction_of(&profile, &request)
    };
    let (clean, dirty, unknown) = (at(|_| Some(0)), at(Some), at(|_| None));
    let more = |one: &Prediction| one.all_slow - 1.0;
    assert!((more(&dirty) / more(&clean) - 3.0).abs() < 0.2, "{dirty:?} {clean:?}");
    assert_eq!(unknown.slowdown, clean.slowdown);
    // The error bar covers the case that all lines are written back.
    assert!(unknown.slowdown + unknown.error > 0.9 * dirty.slowdown, "{unknown:?} {dirty:?}");
    assert!(clean.error < unknown.error / 4.0, "{clean:?}");
}

#[test]
fn recorded_accesses_have_the_latency_of_the_node_that_served_them() {
    let rest_ns = |served: &[(NodeId, u64)]| {
        let mut profile = profile(3, 1_000_000);
        let served = served.iter().map(|&(node, accesses)| ServedBy { node, accesses });
        profile.runs[0].served = served.collect();
        tiercel_profile::check(&profile).unwrap();
        let request = request(Strategy::Lifetimes, 8 * MIB);
        let result = advise(&profile, &profile.machine, &request).unwrap();
        (result.plan.expected.time.unwrap().rest_ns, result.plan.expected)
    };
    let slow = slow(&profile(1, 1).machine);
    let (unknown, Expected { in_slowest_ns, in_fastest_ns, .. }) = rest_ns(&[]);
    assert_eq!(rest_ns(&[(NodeId(0), 7)]).0, unknown);
    let more_ns = in_slowest_ns - in_fastest_ns;
    let near = |ns: f64, expect: f64| assert!((ns - expect).abs() < 1e3, "{ns} {expect}");
    near(unknown - rest_ns(&[(slow, 7)]).0, more_ns);
    near(unknown - rest_ns(&[(NodeId(0), 30), (slow, 10)]).0, more_ns / 4.0);
}

#[test]
fn core_time_and_memory_time_overlap() {
    let slowest = |stream_ns| {
        let profile = with_speeds(1_000_000, stream_ns, 1.0);
        prediction_of(&profile, &request(Strategy::Lifetimes, 8 * MIB)).all_slow
    };
    // The memory takes 0.13 and 0.26 s in each of six phases of 1.07 s: the core takes longer.
    assert!((slowest(1.0) - slowest(2.0)).abs() < 1e-9);
    // The memory takes 2.56 s, longer than the core.
    let expected = (6.0 * 2.0 * 64e6 * 20.0 + 14.0 * SECOND as f64) / (20.0 * SECOND as f64);
    let found = slowest(20.0);
    assert!((found - expected).abs() < 1e-3, "{found} {expected}");
}

#[test]
fn zeroing_costs_writes_in_the_memory_of_birth() {
    // The cost of 32 MiB of zeroes if writing a byte takes `stream_ns` in slow memory.
    let zeroing = |stream_ns| {
        let time = |fresh_bytes| {
            let mut profile = with_speeds(1_000, stream_ns, 1.0);
            profile.objects.iter_mut().for_each(|one| one.fresh_bytes = fresh_bytes);
            tiercel_profile::check(&profile).unwrap();
            prediction_of(&profile, &request(Strategy::Lifetimes, 16 * MIB))
        };
        let (none, all) = (time(0), time(8 * MIB));
        assert_eq!(all.rest_ns, none.rest_ns);
        (all.slowdown - none.slowdown, all.all_slow - none.all_slow)
    };
    let ((half, slow), (half_of_more, slow_of_more)) = (zeroing(20.0), zeroing(40.0));
    let expected = 32.0 * MIB as f64 * 20.0 / (20.0 * SECOND as f64);
    let near =
        |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 0.01, "{found}");
    near(slow_of_more - slow, expected);
    // Two of four objects are planned to be born there.
    near(half_of_more - half, expected / 2.0);
}

#[test]
fn concurrent_misses_take_as_long_as_the_slowest() {
    let half_over_all = |apart_of: fn(u64) -> u64| {
        let mut profile = profile(3, 10_000_000);
        profile.accesses.iter_mut().for_each(|one| one.isolated = apart_of(one.reads));
        let request = request(Strategy::Lifetimes, 8 * MIB);
        let mut plan = advise(&profile, &profile.machine, &request).unwrap().plan;
        let nodes: Vec<NodeId> = plan.machine.memories.iter().map(|one| one.nodes[0]).collect();
        for class in plan.sites.iter_mut().flat_map(|site| &mut site.classes) {
            let place = &mut class.placements[0];
            (place.node, place.other) = (nodes[0], nodes.last().copied());
            place.ranges = vec![PlannedRange { from: 0.0, to: 0.5 }];
        }
        let found = predict(&profile, &profile.machine, &plan);
        (found.slowdown - 1.0) / (found.all_slow - 1.0)
    };
    // Four concurrent misses are in one block, or in four; then waits without slow memory are
    // rarer.
    let hit = |blocks: f64| 1.0 - (-blocks).exp();
    let (whole, apart) = (half_over_all(|reads| reads / 4), half_over_all(|reads| reads));
    assert!((whole - hit(0.5) / hit(1.0)).abs() < 1e-3, "{whole}");
    assert!((apart - hit(2.0) / hit(4.0)).abs() < 1e-3, "{apart}");
    // Fewer than one of four is impossible, but may be sampled.
    assert_eq!(half_over_all(|_| 0), whole);
}

#[test]
fn waits_that_exceed_the_run_are_limited_to_a_part_of_it() {
    let all_ns = 20.0 * SECOND as f64;
    // Recorded in slow memory: the time of the waits, and the run time with everything in fast
    // memory.
    let at = |accesses| {
        let mut profile = profile(3, accesses);
        let node = slow(&profile.machine);
        profile.runs[0].served = vec![ServedBy { node, accesses: 7 }];
        profile.accesses.iter_mut().for_each(|access| access.serialized = access.mlp_known);
        let time = prediction_of(&profile, &request(Strategy::Lifetimes, 8 * MIB));
        (all_ns - time.rest_ns, all_ns / time.all_slow)
    };
    let (waits_ns, fast_ns) = at(1_000_000);
    let shorter = (all_ns - fast_ns) / waits_ns;
    assert!(0.2 < shorter && shorter < 0.8, "{shorter}");
    // Ten times the waits would be 4 s of each second.
    let (waits_ns, fast_ns) = at(10_000_000);
    let near = |ns: f64, expect: f64| assert!((ns / expect - 1.0).abs() < 1e-6, "{ns} {expect}");
    near(waits_ns, 6.0 * SECOND as f64);
    near(all_ns - fast_ns, waits_ns * shorter);
}

#[test]
fn few_samples_of_an_object_do_not_make_its_lines_costlier() {
    let at = |apart: [u64; 2], dirtied: [u64; 2]| {
        let mut profile = with_speeds(10_000_000, 10.0, 1.0);
        profile.runs[0].speeds.streams[0].read_line_ns = 2560.0;
        for one in &mut profile.accesses {
            // Two objects of each site.
            let which = (one.object / 2) as usize;
            one.isolated = one.reads / 8 * apart[which];
            one.dirtied = Some(one.reads / 8 * dirtied[which]);
        }
        prediction_of(&profile, &request(Strategy::Lifetimes, 8 * MIB)).all_slow
    };
    // On average one line of four is the first of its block, and every other line is modified.
    assert_eq!(at([0, 4], [0, 8]), at([2, 2], [4, 4]));
    assert!(at([4, 4], [4, 4]) > 1.1 * at([2, 2], [4, 4]));
}

#[test]
fn the_time_of_recording_is_subtracted() {
    let at = |sampling_ns, threads: &[u32]| {
        let mut profile = profile(3, 1_000_000);
        profile.runs[0].observed.sampling_ns = sampling_ns;
        profile.processes[0].threads = threads.to_vec();
        let request = request(Strategy::Lifetimes, 8 * MIB);
        prediction_of(&profile, &request).rest_ns
    };
    assert_eq!(at(0, &[1]) - at(SECOND, &[1]), SECOND as f64);
    assert_eq!(at(0, &[1]) - at(SECOND, &[1, 2, 3, 4]), SECOND as f64 / 4.0);
    // Without samples nothing is subtracted.
    assert_eq!(at(u64::MAX, &[]), (14 * SECOND + 1) as f64);
}

/// The profile as a sampler without sight of misses records it.
fn of_uses(accesses: u64) -> Profile {
    let mut profile = profile(3, accesses);
    (profile.runs[0].misses_only, profile.runs[0].sampler) = (false, "probe".to_owned());
    profile
}

#[test]
fn what_counts_no_misses_leaves_bounds_and_no_figure() {
    let at = |profile: &Profile, mib| prediction_of(profile, &request(Strategy::Joint, mib * MIB));
    assert_eq!(at(&profile(3, 1_000), 8).bounds, None, "misses were counted");
    // The accesses that were seen explain no slowdown. Those that were not may explain any.
    let few = at(&of_uses(1_000), 8);
    assert!(few.all_slow < 1.001, "{few:?}");
    let bounds = few.bounds.unwrap();
    // The machine's latencies are 112 and 216 ns, its bandwidths 248 and 52 GB/s.
    assert!(bounds.all_slow.least <= 1.0 && bounds.all_slow.most > 4.7, "{bounds:?}");
    let mut alone = of_uses(1_000);
    alone.machine.nodes.iter_mut().for_each(|node| node.cpus = CpuList::new(Vec::new()));
    alone.machine.nodes[0].cpus = CpuList::new(vec![0]);
    let most = at(&alone, 8).bounds.unwrap().all_slow.most;
    assert!((1.9..2.0).contains(&most), "one CPU cannot fill the link: {most}");
    assert!(bounds.slowdown.least <= 1.0 && bounds.slowdown.most > 1.1, "{bounds:?}");
    // The less is left in slow memory, the less is open; where nothing is, nothing is.
    let most = [8, 16, 24, 32].map(|mib| at(&of_uses(1_000), mib).bounds.unwrap().slowdown.most);
    assert!(most.windows(2).all(|two| two[1] <= two[0]), "{most:?}");
    assert!((most[3] - 1.0).abs() < 1e-9, "{most:?}");
    let mut unseen = of_uses(1_000);
    unseen.accesses.clear();
    let unseen = at(&unseen, 16).bounds.unwrap();
    assert_eq!(unseen.slowdown.most, unseen.all_slow.most, "anything may be in slow memory");
}

#[test]
fn a_plan_from_uses_says_that_it_predicts_no_times() {
    let remarks = |profile: &Profile| {
        advise(profile, &profile.machine, &request(Strategy::Joint, 16 * MIB)).unwrap().remarks
    };
    let says = |profile: &Profile| remarks(profile).iter().any(|one| one.contains("sampler probe"));
    assert!(says(&of_uses(1_000)) && !says(&profile(3, 1_000)));
}
