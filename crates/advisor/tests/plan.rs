//! Plans: made from what a profile saw, written and read as the same, refused when spoilt. Long,
//! because all of it stands on one profile made by hand.

use proptest::prelude::*;
use std::path::Path;
use tiercel_advisor::{
    Assembly, PlanRequest, PlanResult, Throughput, advise, assemble, peak_bytes, predict,
};
use tiercel_machine::{CopySpeed, Machine, NodeId, Speeds, StreamSpeed};
use tiercel_plan::{
    Basis, Expected, PLAN_VERSION, Plan, PlanFileError, PlanOptions, PlannedClass, PlannedFrame,
    PlannedMachine, PlannedMemory, PlannedModule, PlannedPhase, PlannedPlacement, PlannedProgram,
    PlannedSite, Prediction, StackKeys, Unplanned, check_plan, fit,
};
use tiercel_planner::{MoveSpeed, Objective, Placement, Strategy};
use tiercel_profile::{Access, Frame, Name, Object, Phase, Process, Profile, Run, ServedBy, Site};
use tiercel_wire::layout::{PLAN_CLASS_ANY, PLAN_SHARE_ALL};
use tiercel_wire::{PlanRow, phase_hash};

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1 << 30;

fn site(hash: u64, function: &str) -> Site {
    let name = Name {
        function: function.into(),
        file: "/src/app.c".into(),
        line: u32::try_from(hash).unwrap(),
    };
    let frame = Frame {
        module: "/bin/app".into(),
        build_id: "ab12".into(),
        address: 0x1000 + hash,
        names: vec![name],
    };
    Site { hash, frames: vec![frame] }
}

/// Two sites of two objects of 8 MiB each, used in phases of their names, which take turns.
fn profile(turns: u32, accesses: u64) -> Profile {
    let mut profile = Profile {
        machine: Machine::builtin("spr-cxl").unwrap().unwrap(),
        slot_ns: SECOND,
        runs: vec![Run { duration_ns: 20 * SECOND, misses_only: true, ..Run::default() }],
        processes: vec![Process { end_ns: 20 * SECOND, ..Process::default() }],
        sites: vec![site(5, "make_hot"), site(6, "make_cold")],
        ..Profile::default()
    };
    for index in 0..4 {
        profile.objects.push(Object {
            site: index % 2,
            count: 1,
            bytes: 8 * MIB,
            peak_bytes: 8 * MIB,
            born_bytes: 8 * MIB,
            address: u64::from(index + 1) << 32,
            death_ns: 20 * SECOND,
            ..Object::default()
        });
    }
    let phases = 2 * turns;
    for phase in 0..phases {
        let name = if phase % 2 == 0 { "hot" } else { "cold" };
        profile.phases.push(Phase {
            process: Some(0),
            name: name.into(),
            start_ns: u64::from(phase) * SECOND,
            end_ns: u64::from(phase + 1) * SECOND,
            ..Phase::default()
        });
    }
    for object in 0..4 {
        for phase in (0..phases).filter(|phase| phase % 2 == object % 2) {
            let (slot, samples) = (phase, 100);
            profile.accesses.push(Access {
                object,
                phase,
                slot,
                reads: accesses,
                samples,
                dirtied: Some(0),
                mlp_known: accesses,
                serialized: accesses / 4,
                isolated: accesses / 4,
                ..Access::default()
            });
        }
    }
    profile
}

fn request(strategy: Strategy, fast_bytes: u64) -> PlanRequest {
    PlanRequest {
        strategy,
        objective: Objective::Time,
        slowdown_max: None,
        fast_bytes,
        fast: "16 MiB".to_owned(),
        unplanned: Unplanned::Slowest,
        prefetch: true,
    }
}

fn result(strategy: Strategy, accesses: u64) -> PlanResult {
    let profile = profile(3, accesses);
    tiercel_profile::check(&profile).unwrap();
    advise(&profile, &profile.machine, &request(strategy, 16 * MIB)).unwrap()
}

fn prediction_of(profile: &Profile, request: &PlanRequest) -> Prediction {
    advise(profile, &profile.machine, request).unwrap().plan.expected.time.unwrap()
}

/// `site: phase=node` of every place.
fn places(plan: &Plan) -> Vec<String> {
    let mut all = Vec::new();
    for site in &plan.sites {
        for place in site.classes.iter().flat_map(|class| &class.placements) {
            let phase = place.phase.as_deref().unwrap_or("usual");
            all.push(format!("{}: {phase}={}", site.label, place.node));
        }
    }
    all
}

#[test]
fn phases_that_are_worth_it_turn_places_round() {
    let turned = result(Strategy::Joint, 100_000_000).plan;
    let slow = slow(&profile(1, 1).machine);
    let in_phase = |place: &str, phase: &str| {
        let site = turned.sites.iter().find(|site| site.label.starts_with(place)).unwrap();
        let class = &site.classes[0].placements;
        let own = class.iter().find(|place| place.phase.as_deref() == Some(phase));
        own.unwrap_or(&class[0]).node
    };
    assert_eq!((in_phase("make_hot", "hot"), in_phase("make_hot", "cold")), (NodeId(0), slow));
    assert_eq!((in_phase("make_cold", "cold"), in_phase("make_cold", "hot")), (NodeId(0), slow));
    assert!(turned.phases.iter().all(|phase| phase.moves), "{:?}", turned.phases);
    assert!(turned.expected.moved_bytes >= 4 * 16 * MIB, "{:?}", turned.expected);
    // Few accesses do not pay for moving: everything stays where it was born.
    let still = result(Strategy::Joint, 1_000).plan;
    assert_eq!(still.expected.moved_bytes, 0, "{:?}", places(&still));
    let born = result(Strategy::Lifetimes, 100_000_000).plan;
    assert!(born.phases.is_empty() && places(&born).len() == 2, "{:?}", places(&born));
    // What is expected is between all slow and all fast, and phases promise more than births.
    for plan in [&turned, &still, &born] {
        let Expected { access_ns, in_slowest_ns, in_fastest_ns, .. } = plan.expected;
        assert!(in_fastest_ns <= access_ns && access_ns <= in_slowest_ns, "{:?}", plan.expected);
    }
    assert!(turned.expected.access_ns < born.expected.access_ns);
}

/// The profile with what one thread was measured to do, on its own machine.
fn with_speeds(accesses: u64, stream_ns: f64, move_ns: f64) -> Profile {
    let mut profile = profile(3, accesses);
    let slow = slow(&profile.machine);
    let moved = |from, to| CopySpeed { from, to, ns_per_byte: move_ns };
    profile.runs[0].speeds = Speeds {
        streams: vec![StreamSpeed {
            node: slow,
            read_ns_per_byte: stream_ns,
            write_ns_per_byte: stream_ns,
            read_line_ns: 64.0 * stream_ns,
            write_line_ns: 64.0 * stream_ns,
        }],
        moves: vec![moved(NodeId(0), slow), moved(slow, NodeId(0))],
    };
    tiercel_profile::check(&profile).unwrap();
    profile
}

#[test]
fn moves_cost_what_was_measured_where_the_profile_was_made() {
    let cost = |profile: &Profile, machine: &Machine| {
        let made = advise(profile, machine, &request(Strategy::Joint, 16 * MIB)).unwrap().plan;
        let one = made.machine.moves[0];
        (one.ns_per_byte, one.basis, made.expected.moved_bytes > 0)
    };
    let described = profile(3, 100_000_000);
    let here = described.machine.clone();
    let (usual_ns, basis, moves) = cost(&described, &here);
    assert_eq!((basis, moves), (Basis::Described, true));
    assert_eq!(cost(&with_speeds(100_000_000, 0.1, 4.0), &here), (4.0, Basis::Measured, true));
    // What does not pay any more is not moved.
    let dear = with_speeds(100_000_000, 0.1, 1e4);
    assert_eq!(cost(&dear, &here), (1e4, Basis::Measured, false));
    // Another machine is slower than described by the same factor.
    let other = Machine::builtin("icelake-optane").unwrap().unwrap();
    let (other_ns, _, _) = cost(&described, &other);
    let (scaled_ns, basis, _) = cost(&with_speeds(100_000_000, 1e-3, 3.0 * usual_ns), &other);
    assert_eq!(basis, Basis::Scaled);
    assert!((scaled_ns / other_ns - 3.0).abs() < 1e-9, "{scaled_ns} is not 3 x {other_ns}");
}

#[test]
fn a_share_of_a_memory_makes_what_lies_there_slower() {
    let slow_ns = |stream_ns| {
        let profile = with_speeds(1_000_000, stream_ns, 1.0);
        let result = advise(&profile, &profile.machine, &request(Strategy::Lifetimes, 16 * MIB));
        result.unwrap().plan.expected.in_slowest_ns
    };
    // 12 (object, phase) pairs of a million lines; 10 ns a byte are 640 ns a line.
    assert!((slow_ns(10.0) / (12.0 * 1e6 * 640.0) - 1.0).abs() < 0.01, "{}", slow_ns(10.0));
    // What is faster than the description is not believed.
    assert_eq!(slow_ns(1e-3), slow_ns(1e-6));
}

#[test]
fn room_is_held_back_for_what_is_no_object() {
    let room = |untracked_bytes, fast_bytes| {
        let mut profile = profile(1, 1000);
        profile.runs[0].observed.untracked_bytes = untracked_bytes;
        let plan =
            advise(&profile, &profile.machine, &request(Strategy::Joint, fast_bytes)).unwrap();
        let peak = peak_bytes(&profile);
        (plan.plan.fast_bytes() / MIB, plan.plan.machine.held_back_bytes / MIB, peak / MIB)
    };
    assert_eq!(room(0, 16 * MIB), (16, 0, 32));
    assert_eq!(room(3 * MIB, 16 * MIB), (13, 3, 35));
    // Never more than half of it.
    assert_eq!(room(30 * MIB, 16 * MIB), (8, 8, 62));
    let (all, held_back, _) = room(3 * MIB, u64::MAX);
    let capacity = profile(1, 1).machine.tiers()[0].capacity_bytes / MIB;
    assert_eq!((all, held_back), (capacity - 3, 3));
}

/// The same with a phase after each of the others in which nothing is accessed.
fn with_rests(turns: u32) -> Profile {
    let mut profile = profile(turns, 100_000_000);
    let rest = |phase: &Phase| {
        let middle_ns = phase.start_ns + SECOND / 2;
        let first = Phase { end_ns: middle_ns, ..phase.clone() };
        [first, Phase { name: "rest".into(), start_ns: middle_ns, ..phase.clone() }]
    };
    profile.phases = profile.phases.iter().flat_map(rest).collect();
    profile.accesses.iter_mut().for_each(|access| access.phase *= 2);
    // PlannerInput apart, or what follows a rest is unknown.
    for (at, phase) in profile.phases.iter_mut().enumerate().filter(|(_, p)| &*p.name == "rest") {
        phase.name = if at % 4 == 1 { "before cold" } else { "before hot" }.into();
    }
    tiercel_profile::check(&profile).unwrap();
    profile
}

/// A plan in which both places swap at the entries of `hot` and `cold`, with so much room.
fn swapped(profile: &Profile, room_bytes: u64, prefetch: bool) -> Plan {
    let mut result =
        advise(profile, &profile.machine, &request(Strategy::Joint, 16 * MIB)).unwrap();
    for (object, placement) in result.found.placements.iter_mut().enumerate() {
        let is_hot = result.groups[object].site == 0;
        let (birth, other) = if is_hot { (0, 1) } else { (1, 0) };
        let moves = [(2, other), (4, birth), (6, other), (8, birth), (10, other)].into();
        *placement = Placement { birth, moves };
    }
    result.memories[0].capacity_bytes = room_bytes;
    assemble(&Assembly {
        profile,
        workload: &result.input.workload,
        groups: &result.groups,
        machine: &profile.machine,
        memories: &result.memories,
        found: &result.found,
        throughput: Throughput { copy: MoveSpeed::default(), basis: Basis::Described },
        held_back_bytes: 0,
        options: PlanOptions { prefetch, ..result.plan.options.clone() },
        unplanned: Unplanned::Slowest,
    })
}

#[test]
fn what_a_phase_leaves_alone_may_move_during_it() {
    let profile = with_rests(3);
    let early = |plan: &Plan| -> Vec<String> {
        check_plan(plan).unwrap();
        let classes = plan.sites.iter().flat_map(|site| &site.classes);
        classes.map(|class| class.prefetch.join(", ")).collect()
    };
    let made = swapped(&profile, 16 * MIB, true);
    let next: Vec<_> = made.phases.iter().map(|p| (&*p.name, p.next.as_deref())).collect();
    let follows = [
        ("hot", Some("before cold")),
        ("before cold", Some("cold")),
        ("cold", Some("before hot")),
        ("before hot", Some("hot")),
    ];
    assert_eq!(next, follows);
    assert_eq!(early(&made), ["before cold, before hot", "before cold, before hot"]);
    // Without room for both only what goes down does so early: cold ones before `hot`.
    let narrow = swapped(&profile, 15 * MIB, true);
    assert_eq!(early(&narrow), ["before hot", "before cold"], "{:?}", places(&narrow));
    assert_eq!(early(&swapped(&profile, 16 * MIB, false)), ["", ""]);
    // Without a rest each place is accessed up to the moment when the other one is.
    assert!(early(&result(Strategy::Joint, 100_000_000).plan).concat().is_empty());
}

#[test]
fn an_object_that_is_larger_than_the_room_has_its_head_there() {
    let profile = profile(1, 50_000_000);
    let share = |strategy| {
        let plan = advise(&profile, &profile.machine, &request(strategy, 6 * MIB)).unwrap().plan;
        let split = plan.placements().find(|place| place.other.is_some());
        (split.map(|place| place.share), plan.expected.time.unwrap().slowdown)
    };
    let (_, whole) = share(Strategy::Lifetimes);
    let (head, cut) = share(Strategy::Intervals);
    // 6 of the 16 MiB of a class; parts are of a MiB.
    assert_eq!((share(Strategy::Lifetimes).0, head), (None, Some(0.38)));
    assert!(cut < whole - 0.001, "{cut} {whole}");
    // What moves between phases may be such heads.
    let profile = self::profile(3, 50_000_000);
    let plan = advise(&profile, &profile.machine, &request(Strategy::Joint, 6 * MIB)).unwrap().plan;
    assert!(plan.expected.moved_bytes > 0 && plan.phases.iter().any(|p| p.moves), "{plan:?}");
    assert!(plan.expected.moved_bytes <= 6 * 2 * 6 * MIB, "{}", plan.expected.moved_bytes);
}

#[test]
fn first_come_is_a_plan_that_knows_no_site() {
    let plan = result(Strategy::FirstCome, 1000).plan;
    assert_eq!((plan.unplanned, plan.sites.len()), (Unplanned::Budget, 0));
}

#[test]
fn unmarked_phases_cause_no_moves() {
    let mut profile = profile(3, 100_000_000);
    profile.phases.iter_mut().for_each(|phase| phase.process = None);
    let result = advise(&profile, &profile.machine, &request(Strategy::Joint, 16 * MIB)).unwrap();
    assert!(result.plan.phases.is_empty());
    assert!(result.remarks.iter().any(|remark| remark.contains("marks no phases")));
}

#[test]
fn objects_of_one_place_that_do_not_all_fit_are_split() {
    let profile = profile(1, 1_000_000);
    let result =
        advise(&profile, &profile.machine, &request(Strategy::Intervals, 8 * MIB)).unwrap();
    let split: Vec<&PlannedPlacement> =
        result.plan.placements().filter(|p| p.other.is_some()).collect();
    assert_eq!(split.len(), 1, "{:?}", places(&result.plan));
    assert_eq!((split[0].node, split[0].share), (NodeId(0), 0.5));
    let arenas = [NodeId(0), slow(&profile.machine)];
    let fit = fit(&result.plan, &profile.machine, &arenas);
    let row = fit.rows.iter().find(|row| row.share != PLAN_SHARE_ALL).unwrap();
    assert_eq!((row.arena, row.other, row.share), (0, 1, 128));
}

fn slow(machine: &Machine) -> NodeId {
    machine.tiers()[1].nodes[0]
}

#[test]
fn nothing_to_plan_and_nothing_to_choose_from_are_refused() {
    let empty = Profile { runs: vec![Run::default()], ..Profile::default() };
    let machine = profile(1, 1).machine;
    assert!(advise(&empty, &machine, &request(Strategy::Joint, MIB)).is_err());
    let mut alone = machine;
    alone.nodes.truncate(1);
    let message = advise(&profile(1, 1), &alone, &request(Strategy::Joint, MIB)).err().unwrap();
    assert!(message.to_string().contains("one kind"), "{message}");
}

#[test]
fn rows_and_keys_of_a_plan() {
    let result = result(Strategy::Joint, 100_000_000);
    let machine = profile(1, 1).machine;
    let fit = fit(&result.plan, &machine, &[NodeId(0), slow(&machine)]);
    assert!(fit.remarks.is_empty(), "{:?}", fit.remarks);
    assert_eq!((fit.unplanned, fit.rows.len()), (Some(1), 4));
    assert!(fit.rows.iter().all(|row| row.size_class == PLAN_CLASS_ANY));
    let phases = fit.rows.iter().filter(|row| row.phase != 0).map(|row| row.phase);
    assert!(phases.into_iter().all(|phase| ["hot", "cold"].map(phase_hash).contains(&phase)));
    assert_eq!(fit.stops.len(), 2);
    // Another build: the same function in another line, and a module of the plan's name.
    let keys = StackKeys::of([("/opt/app", "make_hot", "app.c", 99)]);
    let index = fit.site_of(&result.plan, &keys).unwrap();
    assert_eq!(result.plan.sites[index].hash, 5);
    let knows = |build| fit.builds_of("app").is_some_and(|builds| builds.contains(build));
    assert!(knows("ab12") && !knows("cd34"));
    assert!(fit.builds_of("libc.so.6").is_none());
    let rows: Vec<PlanRow> = fit.rows_of(&result.plan.sites[index], 77).collect();
    assert!(!rows.is_empty() && rows.iter().all(|row| row.site == 77));
}

#[test]
fn a_machine_with_other_memories_gets_what_matches() {
    let plan = result(Strategy::Intervals, 1_000_000).plan;
    let machine = Machine::builtin("xeonmax-hbm").unwrap().unwrap();
    let tiers = machine.tiers();
    let arenas: Vec<NodeId> = tiers.iter().flat_map(|tier| tier.nodes.clone()).collect();
    let fit = fit(&plan, &machine, &arenas);
    assert_eq!(fit.remarks.len(), 1, "{:?}", fit.remarks);
    let fastest =
        u8::try_from(arenas.iter().position(|id| *id == tiers[0].nodes[0]).unwrap()).unwrap();
    assert!(fit.rows.iter().any(|row| row.arena == fastest));
}

#[test]
fn less_fast_memory_is_slower_and_more_samples_are_surer() {
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
    // What the sampler cannot see widens the bar: how many misses at once, what is written back.
    let blind = |change: fn(&mut Access)| {
        let mut seen = surer.clone();
        seen.accesses.iter_mut().for_each(change);
        at(&seen, 8 * MIB)
    };
    let lonely = blind(|access| (access.mlp_known, access.serialized, access.isolated) = (0, 0, 0));
    assert_eq!(lonely.slowdown, least.slowdown, "as many at once as there were");
    assert!(lonely.error > 4.0 * least.error, "{lonely:?}");
    // What never reached memory for long leaves its time to the rest: hardly any slowdown.
    let idle = profile(3, 1_000);
    assert!(at(&idle, 8 * MIB).slowdown < 1.001);
}

#[test]
fn written_back_lines_cost_more_and_are_uncertain_where_they_were_not_sampled() {
    let at = |dirtied: fn(u64) -> Option<u64>| {
        // A byte takes 10 ns to read, 30 to change.
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
    // The bar reaches as far as what it would be if all went back.
    assert!(unknown.slowdown + unknown.error > 0.9 * dirty.slowdown, "{unknown:?} {dirty:?}");
    assert!(clean.error < unknown.error / 4.0, "{clean:?}");
}

#[test]
fn accesses_took_as_long_as_the_memory_that_served_them() {
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
fn a_core_and_memories_work_at_the_same_time() {
    let slowest = |stream_ns| {
        let profile = with_speeds(1_000_000, stream_ns, 1.0);
        prediction_of(&profile, &request(Strategy::Lifetimes, 8 * MIB)).all_slow
    };
    // 0.13 and 0.26 s of the memory's in each of six phases of 1.07 s: the core takes longer.
    assert!((slowest(1.0) - slowest(2.0)).abs() < 1e-9);
    // 2.56 s: the core is done before.
    let expected = (6.0 * 2.0 * 64e6 * 20.0 + 14.0 * SECOND as f64) / (20.0 * SECOND as f64);
    let found = slowest(20.0);
    assert!((found - expected).abs() < 1e-3, "{found} {expected}");
}

#[test]
fn what_is_zeroed_is_written_where_it_is_born() {
    // What 32 MiB of zeroes cost where writing a byte takes so long in slow memory.
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
fn misses_at_once_are_waited_for_as_long_as_the_slowest() {
    let half_over_all = |apart_of: fn(u64) -> u64| {
        let mut profile = profile(3, 10_000_000);
        profile.accesses.iter_mut().for_each(|one| one.isolated = apart_of(one.reads));
        let request = request(Strategy::Lifetimes, 8 * MIB);
        let mut plan = advise(&profile, &profile.machine, &request).unwrap().plan;
        let nodes: Vec<NodeId> = plan.machine.memories.iter().map(|one| one.nodes[0]).collect();
        for class in plan.sites.iter_mut().flat_map(|site| &mut site.classes) {
            let place = &mut class.placements[0];
            (place.node, place.other, place.share) = (nodes[0], nodes.last().copied(), 0.5);
        }
        let found = predict(&profile, &profile.machine, &plan);
        (found.slowdown - 1.0) / (found.all_slow - 1.0)
    };
    // Four at once are one block, or four: so much rarer are waits with none from slow memory.
    let hit = |blocks: f64| 1.0 - (-blocks).exp();
    let (whole, apart) = (half_over_all(|reads| reads / 4), half_over_all(|reads| reads));
    assert!((whole - hit(0.5) / hit(1.0)).abs() < 1e-3, "{whole}");
    assert!((apart - hit(2.0) / hit(4.0)).abs() < 1e-3, "{apart}");
    // Fewer than one of four cannot be, but be sampled.
    assert_eq!(half_over_all(|_| 0), whole);
}

#[test]
fn waits_that_are_believed_longer_than_the_run_shrink_by_a_part_of_it() {
    let all_ns = 20.0 * SECOND as f64;
    // Recorded in slow memory: what the waits took, and what all takes in fast memory.
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
fn few_samples_of_an_object_do_not_make_its_lines_dearer() {
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
    // In the mean one line of four is the first of its block, and each other one is changed.
    assert_eq!(at([0, 4], [0, 8]), at([2, 2], [4, 4]));
    assert!(at([4, 4], [4, 4]) > 1.1 * at([2, 2], [4, 4]));
}

#[test]
fn what_recording_took_is_no_time_of_the_program() {
    let at = |sampling_ns, threads: &[u32]| {
        let mut profile = profile(3, 1_000_000);
        profile.runs[0].observed.sampling_ns = sampling_ns;
        profile.processes[0].threads = threads.to_vec();
        let request = request(Strategy::Lifetimes, 8 * MIB);
        prediction_of(&profile, &request).rest_ns
    };
    assert_eq!(at(0, &[1]) - at(SECOND, &[1]), SECOND as f64);
    assert_eq!(at(0, &[1]) - at(SECOND, &[1, 2, 3, 4]), SECOND as f64 / 4.0);
    // Where nothing was sampled nothing was taken.
    assert_eq!(at(u64::MAX, &[]), (14 * SECOND + 1) as f64);
}

fn any_place() -> impl Strategy2<Value = PlannedPlacement> {
    let share = prop_oneof![Just(1.0), (1u32..100).prop_map(|share| f64::from(share) / 100.0)];
    (0u16..2, share, -1e12..1e12, 0.0..1.0f64).prop_map(|(node, share, gain_ns, confidence)| {
        let other = (share != 1.0).then_some(NodeId(1 - node));
        PlannedPlacement { phase: None, node: NodeId(node), other, share, gain_ns, confidence }
    })
}

fn any_site() -> impl Strategy2<Value = PlannedSite> {
    let frame = ("\\PC{0,12}", "\\PC{0,12}", 0u32..3, 0u64..1 << 48).prop_map(
        |(function, file, line, offset)| PlannedFrame {
            module: (line < 2).then_some(line),
            offset,
            function,
            file,
            line,
        },
    );
    let class = (12u32..40, 0u64..9, any_place(), proptest::option::of(any_place()));
    let class = class.prop_map(|(class, objects, usual, in_phase)| {
        let mut places = vec![usual];
        let named = |place| PlannedPlacement { phase: Some("p".to_owned()), ..place };
        places.extend(in_phase.map(named));
        let (up_to_bytes, peak_bytes) = (1 << class, objects << 12);
        PlannedClass {
            up_to_bytes,
            objects,
            peak_bytes,
            placements: places,
            prefetch: vec!["p".to_owned()],
        }
    });
    let classes = proptest::collection::vec(class, 1..4).prop_map(|mut classes| {
        classes.sort_by_key(|class| class.up_to_bytes);
        classes.dedup_by_key(|class| class.up_to_bytes);
        classes
    });
    let stack = proptest::collection::vec(frame, 0..4);
    (any::<u64>(), "\\PC{0,12}", stack, classes)
        .prop_map(|(hash, label, stack, classes)| PlannedSite { hash, label, stack, classes })
}

use proptest::strategy::Strategy as Strategy2;

fn any_plan() -> impl Strategy2<Value = Plan> {
    proptest::collection::vec(any_site(), 0..5).prop_map(|mut sites| {
        sites.sort_by_key(|site| site.hash);
        sites.dedup_by_key(|site| site.hash);
        let memory = |node: u16| PlannedMemory {
            name: format!("m{node}"),
            nodes: vec![NodeId(node)],
            capacity_bytes: 7,
        };
        let module = |name: &str| PlannedModule { path: name.into(), build_id: "ab".into() };
        Plan {
            program: PlannedProgram { path: "/bin/app".into(), build_id: String::new() },
            machine: PlannedMachine {
                name: "m".into(),
                memories: vec![memory(0), memory(1)],
                held_back_bytes: 0,
                moves: Vec::new(),
            },
            options: PlanOptions::default(),
            expected: Expected { access_ns: 1.5, gap: Some(0.1), ..Expected::default() },
            unplanned: Unplanned::Budget,
            small_objects: Some(NodeId(1)),
            phases: vec![PlannedPhase { name: "p".into(), moves: true, next: Some("p".into()) }],
            modules: vec![module("/bin/app"), module("/lib/libc.so.6")],
            sites,
        }
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(plan in any_plan()) {
        let text = plan.to_json().unwrap();
        prop_assert_eq!(Plan::from_json(text.as_bytes(), Path::new("x")).unwrap(), plan);
    }

    #[test]
    fn what_is_cut_off_is_refused(plan in any_plan(), at: prop::sample::Index) {
        let text = plan.to_json().unwrap();
        let mut end = at.index(text.len() - 3);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        prop_assert!(Plan::from_json(&text.as_bytes()[..end], Path::new("x")).is_err());
    }

    /// Read as something sound, or refused in words: never a panic, never what check refuses.
    #[test]
    fn what_is_changed_is_sound_or_refused(
        plan in any_plan(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = plan.to_json().unwrap().into_bytes();
        for (at, byte) in changes {
            let index = at.index(bytes.len());
            bytes[index] = byte;
        }
        match Plan::from_json(&bytes, Path::new("x")) {
            Ok(read) => prop_assert_eq!(check_plan(&read), Ok(())),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}

#[test]
fn older_plan_versions_are_refused() {
    let own = format!("\"version\": {PLAN_VERSION}");
    let text = result(Strategy::Joint, 100_000_000).plan.to_json().unwrap();
    let error = Plan::from_json(text.replace(&own, "\"version\": 1").as_bytes(), Path::new("x"));
    let message = error.unwrap_err().to_string();
    let expect = format!("plan version 1; this build reads version {PLAN_VERSION}: plan again");
    assert!(message.contains(&expect), "{message}");
}

#[test]
fn hostile_plans_are_refused() {
    let deep = format!("{{\"format\": \"tiercel plan\", \"version\": {}", "[".repeat(100_000));
    let wide = "\u{0}".repeat(1 << 20);
    for text in [deep.as_str(), wide.as_str(), "[]", "\"tiercel plan\"", "{\"format\": 3}"] {
        let error = Plan::from_json(text.as_bytes(), Path::new("x")).unwrap_err();
        let fits = matches!(error, PlanFileError::NotAPlan { .. } | PlanFileError::Damaged { .. });
        assert!(fits && error.to_string().len() < 1000, "{error}");
    }
    let sound = result(Strategy::Joint, 100_000_000).plan;
    let refused = |what: &str, change: &dyn Fn(&mut Plan)| {
        let mut plan = sound.clone();
        change(&mut plan);
        let error = check_plan(&plan).unwrap_err();
        assert!(error.contains(what), "{error} has no {what}");
        assert!(plan.to_json().is_err(), "{what}: it was written");
    };
    refused("0 memories", &|plan| plan.machine.memories.clear());
    refused("two of hash", &|plan| plan.sites[1].hash = plan.sites[0].hash);
    refused("node 9", &|plan| plan.sites[0].classes[0].placements[0].node = NodeId(9));
    refused("share of 0", &|plan| plan.sites[0].classes[0].placements[0].share = 0.0);
    refused("gain", &|plan| plan.sites[0].classes[0].placements[0].gain_ns = f64::NAN);
    refused("without a phase", &|plan| plan.sites[0].classes[0].placements.clear());
    refused("no size class", &|plan| plan.sites[0].classes[0].up_to_bytes = 4097);
    refused("not in the list", &|plan| plan.phases.clear());
    refused("followed by one", &|plan| plan.phases[0].next = Some("absent".into()));
    refused("moves early", &|plan| plan.sites[0].classes[0].prefetch.push("absent".into()));
    refused("costs what nothing can", &|plan| plan.machine.moves[0].ns_per_byte = -1.0);
    refused("module that is not there", &|plan| plan.modules.clear());
    refused("phase is there twice", &|plan| plan.phases[0] = plan.phases[1].clone());
}
