//! Whole replays: by hand, repeated, and what policies must do on two objects.

use tiercel_machine::Machine;
use tiercel_policy::{Config, Gate, Trigger};
use tiercel_replay::{
    Accesses, BASE, Contender, Event, Half, Model, PRESETS, RunReport, Setting, Speeds, Stream,
    What, lives, preset, recipes, replay,
};
use tiercel_wire::{Flags, Record, Version};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

fn speeds() -> Speeds {
    Speeds::new(&Machine::builtin("cascadelake-optane").unwrap().unwrap()).unwrap()
}

/// Objects born and filled one after another, then read in steps of 5 ms.
fn stream(objects: &[(u64, u64)], steps: u64) -> Stream {
    let mut events = Vec::new();
    let (mut addr, mut places) = (BASE, Vec::new());
    for (nth, (bytes, _)) in (1..).zip(objects) {
        let (bytes, version) = (*bytes, Version { carve: nth, generation: 0 });
        let (arena, flags) = (None, Flags::default());
        let record = Record::Born { addr, bytes, site: nth, version, arena, flags, time_ns: 0 };
        events.push(Event { at_ns: 0, pid: 1, what: What::Record(record) });
        let filled = reads(addr, bytes, 1);
        events.push(Event { at_ns: 0, pid: 1, what: What::Accesses(filled) });
        places.push(addr);
        addr += bytes;
    }
    for step in 0..steps {
        for (addr, (bytes, misses)) in places.iter().zip(objects) {
            if *misses > 0 {
                let what = What::Accesses(reads(*addr, *bytes, *misses));
                events.push(Event { at_ns: (step + 1) * 5_000_000, pid: 1, what });
            }
        }
    }
    Stream {
        name: "test".to_owned(),
        what: String::new(),
        half: Half::Tuned,
        pids: vec![1],
        events,
        work_ns: (steps + 1) * 5_000_000,
        os_pages: (addr - BASE) / PAGE,
        lost: Vec::new(),
    }
}

fn reads(addr: u64, bytes: u64, reads: u64) -> Accesses {
    Accesses { addr, bytes, reads, at_once: 1.0, ..Accesses::default() }
}

fn run(stream: &Stream, room_bytes: u64, contender: &Contender, seed: u64) -> RunReport {
    run_on(&speeds(), stream, room_bytes, contender, seed)
}

fn run_on(
    speeds: &Speeds,
    stream: &Stream,
    room_bytes: u64,
    contender: &Contender,
    seed: u64,
) -> RunReport {
    stream.check().unwrap();
    let lives = lives(stream, speeds);
    let model = Model::default();
    replay((stream, &lives), (speeds, room_bytes), contender, (&model, seed)).unwrap()
}

fn named(name: &str) -> Contender {
    preset(name).unwrap().remove(0).1
}

fn enforced() -> Contender {
    let trigger: Trigger = "time:ticks=2".parse().unwrap();
    let policy = Config { tick_ms: 50, trigger, gate: Gate::None, ..Config::default() };
    let (extent_bytes, finest_bytes) = (2 * MIB, 256 << 10);
    Contender::Tiercel(Box::new(Setting {
        name: "enforced".to_owned(),
        policy,
        extent_bytes,
        finest_bytes,
    }))
}

#[test]
fn first_touch_by_hand() {
    // 10 OS pages, of which 4 are fast: 6 tenths of the accesses wait 120 ns longer.
    let stream = stream(&[(10 * PAGE, 1000)], 20);
    let report = run(&stream, 4 * PAGE, &Contender::FirstTouch, 1);
    let want = 21.0 * 5e6 + (20.0 * 1000.0 + 1.0) * 0.6 * 120.0;
    assert!((report.time_ns - want).abs() < 1.0, "{} {want}", report.time_ns);
    assert_eq!((report.promoted_bytes, report.samples, report.ticks), (0, 0, 0));
    let fast = report.spent.fast_misses / report.spent.misses;
    assert!((fast - 0.4).abs() < 1e-9);
    // In turns: 5 of each while there is room.
    let report = run(&stream, 9 * PAGE, &Contender::Interleave, 1);
    assert!((report.spent.fast_misses / report.spent.misses - 0.5).abs() < 1e-9);
}

#[test]
fn every_nanosecond_is_accounted_for() {
    let contenders: Vec<_> = PRESETS.iter().flat_map(|(name, _)| preset(name).unwrap()).collect();
    let wanted = ["moving/1", "churn/2", "tenants/0", "growing/3", "squeeze/1"];
    for recipe in recipes().iter().filter(|one| wanted.contains(&one.name.as_str())) {
        let stream = recipe.stream(1);
        let room = stream.peak_bytes() / 4;
        for (name, contender) in &contenders {
            let report = run(&stream, room, contender, 3);
            let spent = &report.spent;
            let sum = spent.work_ns + spent.stall_ns + spent.sampling_ns + spent.ticks_ns;
            let sum = sum + spent.faults_ns + report.mover_ns;
            let difference = (report.time_ns - sum).abs();
            assert!(difference < 1e-6 * sum, "{} {name}: {report:?}", stream.name);
            assert!((spent.work_ns - stream.work_ns as f64).abs() < 1.0, "{}", stream.name);
            let misses = stream.misses() as f64;
            assert!((spent.misses - misses).abs() < 0.5, "each access counts once: {name}");
        }
    }
}

#[test]
fn a_seed_repeats_a_run() {
    let stream = recipes()[8].stream(1);
    let room = stream.peak_bytes() / 4;
    for name in ["tiercel", "mat:apb:time", "clock-dwf"] {
        let contender = named(name);
        let (one, two) = (run(&stream, room, &contender, 7), run(&stream, room, &contender, 7));
        assert_eq!(one, two, "{name}");
        let is_sampled = one.samples > 0;
        assert!(!is_sampled || one != run(&stream, room, &contender, 8), "{name}");
    }
}

#[test]
fn a_hot_object_that_was_born_too_late_is_promoted() {
    // The cold one has all the room; the hot one is worth 120 ns x 20,000 every 5 ms.
    let stream = stream(&[(16 * MIB, 100), (8 * MIB, 20_000)], 400);
    let room = 12 * MIB;
    let first = run(&stream, room, &Contender::FirstTouch, 1);
    let never = run(&stream, room, &named("never"), 1);
    assert_eq!((never.promoted_bytes, never.demoted_bytes), (0, 0));
    assert!(never.time_ns < first.time_ns * 1.03, "{} {}", never.time_ns, first.time_ns);
    let moved = run(&stream, room, &enforced(), 1);
    assert!(moved.promoted_bytes >= 7 * MIB, "{moved:?}");
    assert!(moved.time_ns < 0.85 * first.time_ns, "{} {}", moved.time_ns, first.time_ns);
    let known = run(&stream, room, &Contender::TwoPhase, 1);
    assert!(known.time_ns < 0.85 * first.time_ns, "{} {}", known.time_ns, first.time_ns);
}

#[test]
fn where_all_fits_nothing_moves_and_little_is_lost() {
    let stream = stream(&[(8 * MIB, 20_000), (8 * MIB, 100)], 200);
    let first = run(&stream, 20 * MIB, &Contender::FirstTouch, 1);
    for contender in [named("tiercel"), named("never"), enforced()] {
        let report = run(&stream, 20 * MIB, &contender, 1);
        assert_eq!(report.demoted_bytes, 0, "{report:?}");
        assert!(report.time_ns < 1.03 * first.time_ns, "{report:?}");
    }
}

#[test]
fn what_is_written_goes_to_fast_memory_with_clock_dwf() {
    let mut stream = stream(&[(4 * MIB, 20_000), (4 * MIB, 20_000)], 50);
    let is_second = |one: &Accesses| one.addr > BASE;
    for event in &mut stream.events {
        if let What::Accesses(one) = &mut event.what
            && is_second(one)
        {
            (one.writes, one.dirtied, one.reads) = (one.reads, one.reads, 0);
        }
    }
    let report = run(&stream, 5 * MIB, &named("clock-dwf"), 1);
    // Its first access to most OS pages is a write, so that hardly any has to move.
    let fast = report.spent.fast_misses / report.spent.misses;
    assert!((0.45..0.6).contains(&fast), "{fast}: all of the written, none of the read one");
}

fn pcm() -> Speeds {
    Speeds::new(&Machine::builtin("pcm").unwrap().unwrap()).unwrap()
}

#[test]
fn joules_of_a_run_by_hand() {
    // 10 OS pages, of which 4 are fast, on OAM's table 2: 20,001 lines read.
    let stream = stream(&[(10 * PAGE, 1000)], 20);
    let report = run_on(&pcm(), &stream, 4 * PAGE, &Contender::FirstTouch, 1);
    let joules = report.joules.unwrap();
    let bits = 20_001.0 * 64.0 * 8.0;
    let want = bits * (0.4 * 1.17 + 0.6 * 2.47) * 1e-12;
    assert!((joules.accesses_j - want).abs() < want * 1e-9, "{joules:?} {want}");
    let held = 0.329 / (1u64 << 35) as f64 * 4.0 * 4096.0 * report.time_ns * 1e-9;
    assert!((joules.holding_j - held).abs() < held * 1e-9, "{joules:?} {held}");
    assert!(joules.moves_j == 0.0 && report.written_slow_bytes() == 0.0);
    assert!(run(&stream, 4 * PAGE, &Contender::FirstTouch, 1).joules.is_none(), "not known");
    let all = run_on(&pcm(), &stream, 4 * PAGE, &Contender::AllFast, 1);
    assert_eq!((all.provisioned_bytes, all.spent.stall_ns), (10 * PAGE, 0.0));
    let all = all.joules.unwrap();
    assert!((all.accesses_j - bits * 1.17e-12).abs() < 1e-9 * all.accesses_j);
}

/// The first of two objects is read in the first half, the second in the second half.
fn turned() -> Stream {
    let mut stream = stream(&[(8 * MIB, 40_000), (8 * MIB, 40_000)], 400);
    let half_ns = stream.work_ns / 2;
    stream.events.retain(|event| match &event.what {
        What::Accesses(one) if one.reads > 1 => (one.addr == BASE) == (event.at_ns < half_ns),
        _ => true,
    });
    stream
}

#[test]
fn plans_are_born_right_and_move_where_that_pays() {
    let stream = turned();
    let room = 12 * MIB;
    let report = |name: &str| run_on(&pcm(), &stream, room, &named(name), 1);
    let (oam, unmoved, joint) = (report("oam"), report("oam-unmoved"), report("joint"));
    // By utility: the second one is born slow, and moves up into the room that is left.
    assert!(oam.promoted_bytes >= 3 * MIB, "{oam:?}");
    assert_eq!(unmoved.promoted_bytes + unmoved.demoted_bytes, 0);
    assert!(oam.time_ns < unmoved.time_ns, "{oam:?} {unmoved:?}");
    // Both in turn: 3 of the second one's 8 MiB are born in the room that the first one leaves.
    assert!(joint.promoted_bytes >= 4 * MIB, "{joint:?}");
    assert!(joint.time_ns < oam.time_ns, "{joint:?} {oam:?}");
    let fast = joint.spent.fast_misses / joint.spent.misses;
    assert!(fast > 0.95, "{fast}");
}

#[test]
fn a_plan_that_the_planner_refuses_is_an_error() {
    let stream = stream(&[(8 * MIB, 100)], 2);
    let lives = lives(&stream, &pcm());
    let rules = tiercel_planner::UtilityRules { epsilon: 0.5, ..Default::default() };
    let setting = tiercel_replay::PlanSetting {
        strategy: tiercel_planner::Strategy::Utility(rules),
        objective: tiercel_planner::Objective::Time,
    };
    let contender = Contender::Planned(setting);
    let refused = replay((&stream, &lives), (&pcm(), MIB), &contender, (&Model::default(), 1));
    assert!(refused.unwrap_err().to_string().contains("epsilon"));
}

/// A large object that is read evenly, and one of 2 MiB that is born anew in each step, of which
/// all of the time comes.
fn reborn(steps: u64) -> Stream {
    let mut stream = stream(&[(32 * MIB, 20_000)], 1);
    stream.os_pages += 2 * MIB / PAGE;
    let addr = BASE + 32 * MIB;
    let at = |step: u64, part: u64| (step * 4 + part) * 5_000_000 / 4;
    let (flags, arena, bytes) = (Flags::default(), None, 2 * MIB);
    let large = reads(BASE, 32 * MIB, 2_000);
    for step in 4..steps {
        let version = Version { carve: 2 + u32::try_from(step).unwrap(), generation: 0 };
        let born = Record::Born { addr, bytes, site: 2, version, arena, flags, time_ns: 0 };
        let died = Record::Died { addr, bytes, version, flags, time_ns: 0 };
        let events = [
            (0, What::Record(born)),
            (1, What::Accesses(reads(addr, bytes, 20_000))),
            (2, What::Accesses(large)),
            (3, What::Record(died)),
        ];
        let event = |(part, what)| Event { at_ns: at(step, part), pid: 1, what };
        stream.events.extend(events.map(event));
    }
    stream.work_ns = at(steps, 0);
    stream
}

#[test]
fn what_is_reborn_all_the_time_gets_room_before_it_is_born() {
    let stream = reborn(800);
    stream.check().expect("sound");
    let [first, ours, all] =
        ["first-touch", "tiercel", "all-fast"].map(|name| run(&stream, 12 * MIB, &named(name), 1));
    let speed = first.time_ns / ours.time_ns;
    let most = first.time_ns / all.time_ns;
    assert!(speed > 1.0 + (most - 1.0) * 0.5, "{speed:.2} of {most:.2}");
    assert!(ours.promoted_bytes < 8 * MIB, "births cost no promotion: {}", ours.promoted_bytes);
}
