//! Plans made from what a profile observed.

mod common;

use common::{MIB, SECOND, profile, request, result, slow, with_speeds};
use tiercel_advisor::PlanRequest;
use tiercel_advisor::{Assembly, Throughput, advise, assemble, peak_bytes};
use tiercel_machine::{Machine, NodeId};
use tiercel_plan::{
    Basis, Expected, Plan, PlanOptions, PlannedPlacement, StackKeys, Unplanned, check_plan, fit,
};
use tiercel_planner::{MoveSpeed, Objective, Placement, Strategy, UtilityRules};
use tiercel_profile::{Phase, Profile, Run};
use tiercel_wire::layout::{PLAN_CLASS_ANY, PLAN_SHARE_ALL};
use tiercel_wire::{PlanRow, phase_hash};
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
fn phases_swap_placements_if_it_pays() {
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

/// OAM's plan of the two sites for a machine of OAM's table 2, on which everything is hot that is
/// accessed, for its delay and its energy.
fn by_utility(profile: &Profile, fast_bytes: u64, rules: UtilityRules) -> (Plan, Vec<String>) {
    let machine = Machine::builtin("pcm").unwrap().unwrap();
    let objective = Objective::EnergyDelay;
    let request = PlanRequest { objective, ..request(Strategy::Utility(rules), fast_bytes) };
    let result = advise(profile, &machine, &request).unwrap();
    (result.plan, result.remarks)
}

#[test]
fn objects_go_by_utility_and_move_where_it_changes() {
    let rules = UtilityRules::default();
    let (plan, remarks) = by_utility(&profile(1, 100_000_000), u64::MAX, rules);
    assert_eq!((plan.options.strategy.as_str(), remarks), ("oam", Vec::new()));
    let site = |name: &str| plan.sites.iter().find(|site| site.label.starts_with(name)).unwrap();
    let in_phase = |name: &str, phase: &str| {
        let places = &site(name).classes[0].placements;
        let own = places.iter().find(|place| place.phase.as_deref() == Some(phase));
        own.unwrap_or(&places[0]).node
    };
    assert_eq!(in_phase("make_hot", "hot"), NodeId(0));
    assert_eq!(
        (in_phase("make_cold", "hot"), in_phase("make_cold", "cold")),
        (NodeId(1), NodeId(0))
    );
    let (still, _) =
        by_utility(&profile(1, 100_000_000), u64::MAX, UtilityRules { moves: false, ..rules });
    assert_eq!((still.options.strategy.as_str(), still.expected.moved_bytes), ("oam-unmoved", 0));
    assert!(plan.expected.moved_bytes > 0);
    // A threshold that no utility reaches keeps all in the slow memory.
    let cold = UtilityRules { epsilon: 1e6, ..rules };
    let (cold, _) = by_utility(&profile(1, 100_000_000), u64::MAX, cold);
    let fast = places(&cold).into_iter().filter(|place| place.ends_with("=0"));
    assert_eq!(fast.collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn without_marks_oam_moves_nothing_and_the_plan_states_so() {
    let mut unmarked = profile(3, 100_000_000);
    unmarked.phases.iter_mut().for_each(|phase| phase.process = None);
    let (plan, remarks) = by_utility(&unmarked, u64::MAX, UtilityRules::default());
    assert_eq!(plan.expected.moved_bytes, 0);
    assert!(remarks.iter().any(|remark| remark.contains("marks no phases")), "{remarks:?}");
}

#[test]
fn moves_cost_what_was_measured_on_the_machine_of_the_profile() {
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
fn a_share_of_a_memory_slows_its_objects() {
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
fn memory_is_held_back_for_untracked_memory() {
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

/// The same, with a phase without accesses after each of the others.
fn with_rests(turns: u32) -> Profile {
    let mut profile = profile(turns, 100_000_000);
    let rest = |phase: &Phase| {
        let middle_ns = phase.start_ns + SECOND / 2;
        let first = Phase { end_ns: middle_ns, ..phase.clone() };
        [first, Phase { name: "rest".into(), start_ns: middle_ns, ..phase.clone() }]
    };
    profile.phases = profile.phases.iter().flat_map(rest).collect();
    profile.accesses.iter_mut().for_each(|access| access.phase *= 2);
    // Distinct names, or the phase after a rest would be unknown.
    for (at, phase) in profile.phases.iter_mut().enumerate().filter(|(_, p)| &*p.name == "rest") {
        phase.name = if at % 4 == 1 { "before cold" } else { "before hot" }.into();
    }
    tiercel_profile::check(&profile).unwrap();
    profile
}

/// A plan in which both sites swap memories at the entries of `hot` and `cold`, with this much fast
/// memory.
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
fn objects_that_a_phase_does_not_use_may_move_during_it() {
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
fn an_object_that_does_not_fit_is_split_and_its_head_is_fast() {
    let profile = profile(1, 50_000_000);
    let share = |strategy| {
        let plan = advise(&profile, &profile.machine, &request(strategy, 6 * MIB)).unwrap().plan;
        let split = plan.placements().find(|place| place.other.is_some());
        (split.map(PlannedPlacement::share), plan.expected.time.unwrap().slowdown)
    };
    let (_, whole) = share(Strategy::Lifetimes);
    let (head, cut) = share(Strategy::Intervals);
    // 6 of the 16 MiB of a class; parts are of a MiB.
    assert_eq!((share(Strategy::Lifetimes).0, head), (None, Some(0.375)));
    assert!(cut < whole - 0.001, "{cut} {whole}");
    // What moves between phases may be such heads.
    let profile = self::profile(3, 50_000_000);
    let plan = advise(&profile, &profile.machine, &request(Strategy::Joint, 6 * MIB)).unwrap().plan;
    assert!(plan.expected.moved_bytes > 0 && plan.phases.iter().any(|p| p.moves), "{plan:?}");
    assert!(plan.expected.moved_bytes <= 6 * 2 * 6 * MIB, "{}", plan.expected.moved_bytes);
}

#[test]
fn a_first_come_plan_has_no_sites() {
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
fn objects_of_a_site_are_split_if_not_all_fit() {
    let profile = profile(1, 1_000_000);
    let result =
        advise(&profile, &profile.machine, &request(Strategy::Intervals, 8 * MIB)).unwrap();
    let split: Vec<&PlannedPlacement> =
        result.plan.placements().filter(|p| p.other.is_some()).collect();
    assert_eq!(split.len(), 1, "{:?}", places(&result.plan));
    assert_eq!((split[0].node, split[0].share()), (NodeId(0), 0.5));
    let arenas = [NodeId(0), slow(&profile.machine)];
    let fit = fit(&result.plan, &profile.machine, &arenas);
    let row = fit.rows.iter().find(|row| row.share != PLAN_SHARE_ALL).unwrap();
    assert_eq!((row.arena, row.other, row.share), (0, 1, 128));
}

#[test]
fn empty_profiles_and_machines_with_one_memory_are_refused() {
    let empty = Profile { runs: vec![Run::default()], ..Profile::default() };
    let machine = profile(1, 1).machine;
    assert!(advise(&empty, &machine, &request(Strategy::Joint, MIB)).is_err());
    let mut alone = machine;
    alone.nodes.truncate(1);
    let message = advise(&profile(1, 1), &alone, &request(Strategy::Joint, MIB)).err().unwrap();
    assert!(message.to_string().contains("one kind"), "{message}");
}

#[test]
fn a_plan_compiles_into_rows_and_matches_rebuilt_sites() {
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
fn a_machine_with_other_memories_gets_the_placements_that_match() {
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
