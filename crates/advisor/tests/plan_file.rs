//! Plan files: written plans are read back; damaged, old or hostile ones are refused.

mod common;

use common::result;
use proptest::prelude::*;
use std::path::Path;
use tiercel_machine::NodeId;
use tiercel_plan::{
    Expected, PLAN_VERSION, Plan, PlanFileError, PlanOptions, PlannedClass, PlannedFrame,
    PlannedMachine, PlannedMemory, PlannedModule, PlannedPhase, PlannedPlacement, PlannedProgram,
    PlannedRange, PlannedSite, Unplanned, check_plan,
};
use tiercel_planner::Strategy;

fn any_place() -> impl Strategy2<Value = PlannedPlacement> {
    let ends = proptest::collection::btree_set(0u32..1000, 0..=8);
    (0u16..2, ends, -1e12..1e12, 0.0..1.0f64).prop_map(|(node, ends, gain_ns, confidence)| {
        let ends: Vec<f64> = ends.into_iter().map(|end| f64::from(end) / 1000.0).collect();
        let pairs = ends.chunks_exact(2);
        let ranges: Vec<_> = pairs.map(|two| PlannedRange { from: two[0], to: two[1] }).collect();
        let other = (!ranges.is_empty()).then_some(NodeId(1));
        let node = NodeId(if other.is_some() { 0 } else { node });
        PlannedPlacement { phase: None, node, other, ranges, gain_ns, confidence }
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
    fn a_written_plan_is_read_back(plan in any_plan()) {
        let text = plan.to_json().unwrap();
        prop_assert_eq!(Plan::from_json(text.as_bytes(), Path::new("x")).unwrap(), plan);
    }

    #[test]
    fn a_truncated_plan_is_refused(plan in any_plan(), at: prop::sample::Index) {
        let text = plan.to_json().unwrap();
        let mut end = at.index(text.len() - 3);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        prop_assert!(Plan::from_json(&text.as_bytes()[..end], Path::new("x")).is_err());
    }

    /// Read as a valid plan, or refused with a message; never a panic.
    #[test]
    fn a_modified_plan_is_valid_or_refused(
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
    let memories = &sound.machine.memories;
    let nodes = [memories[0].nodes[0], memories[memories.len() - 1].nodes[0]];
    let cut = |ranges: &[(f64, f64)]| {
        let ranges: Vec<_> = ranges.iter().map(|&(from, to)| PlannedRange { from, to }).collect();
        move |plan: &mut Plan| {
            let place = &mut plan.sites[0].classes[0].placements[0];
            (place.node, place.other) = (nodes[0], Some(nodes[1]));
            place.ranges.clone_from(&ranges);
        }
    };
    refused("0 ranges", &cut(&[]));
    refused("5 ranges", &cut(&[0.0, 0.2, 0.4, 0.6, 0.8].map(|at| (at, at + 0.1))));
    for ranges in [[(0.5, 0.5), (0.6, 0.7)], [(0.0, 0.5), (0.4, 0.7)], [(0.5, 0.6), (0.9, 1.1)]] {
        refused("do not ascend", &cut(&ranges));
    }
    refused("do not ascend", &cut(&[(f64::NAN, 0.5)]));
    refused("no slower memory", &|plan| {
        cut(&[(0.0, 0.5)])(plan);
        plan.sites[0].classes[0].placements[0].other = Some(nodes[0]);
    });
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
