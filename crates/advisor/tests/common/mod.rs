//! One profile made by hand, and plans of it. In: sizes, counts. Out: profiles, plans, predictions.
//! Knows nothing of what is tested.

#![allow(dead_code, reason = "each test file uses its part")]

use tiercel_advisor::{PlanRequest, PlanResult, advise};
use tiercel_machine::{CopySpeed, Machine, NodeId, Speeds, StreamSpeed};
use tiercel_plan::{Prediction, Unplanned};
use tiercel_planner::{Objective, Strategy};
use tiercel_profile::{Access, Frame, Name, Object, Phase, Process, Profile, Run, Site};

pub const MIB: u64 = 1 << 20;
pub const SECOND: u64 = 1 << 30;

pub fn site(hash: u64, function: &str) -> Site {
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
pub fn profile(turns: u32, accesses: u64) -> Profile {
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

pub fn request(strategy: Strategy, fast_bytes: u64) -> PlanRequest {
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

pub fn result(strategy: Strategy, accesses: u64) -> PlanResult {
    let profile = profile(3, accesses);
    tiercel_profile::check(&profile).unwrap();
    advise(&profile, &profile.machine, &request(strategy, 16 * MIB)).unwrap()
}

pub fn prediction_of(profile: &Profile, request: &PlanRequest) -> Prediction {
    advise(profile, &profile.machine, request).unwrap().plan.expected.time.unwrap()
}

/// The profile with what one thread was measured to do, on its own machine.
pub fn with_speeds(accesses: u64, stream_ns: f64, move_ns: f64) -> Profile {
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

pub fn slow(machine: &Machine) -> NodeId {
    machine.tiers()[1].nodes[0]
}
