//! The recorder: builds a profile from events of a ledger and samples, within bounds.

use std::sync::Arc;

use tiercel_ledger::{Config, Event, Ledger, LedgerEvent};
use tiercel_machine::{Machine, NodeId};
use tiercel_profile::{
    Frame, Names, Object, Profile, Recorder, RecorderConfig, Run, ServedBy, Site, check,
};
use tiercel_wire::{AccessKind, AccessedBy, Around, Flags, Pattern, Record, Sample, Version};

const PID: u32 = 7;
const OS_PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
const MS_NS: u64 = 1_000_000;
const KEPT_MAX: usize = 1 << 13;
const CELLS_MAX: usize = 1 << 14;

/// Sites and phases by their number.
struct Numbers;

impl Names for Numbers {
    fn site(&mut self, number: u32) -> Site {
        if number == 0 {
            return Site::default();
        }
        let frame = Frame { module: "/bin/p".into(), address: number.into(), ..Frame::default() };
        Site { hash: number.into(), frames: vec![frame] }
    }

    fn phase(&mut self, number: u64) -> Arc<str> {
        format!("phase {number}").into()
    }
}

fn recorder() -> Recorder {
    recorder_that(false)
}

fn recorder_that(sees_dirtied: bool) -> Recorder {
    let mut recorder = Recorder::new(RecorderConfig {
        misses_only: true,
        sees_dirtied,
        kept_max: KEPT_MAX,
        cells_max: CELLS_MAX,
        ..Default::default()
    });
    recorder.process_born(PID, None, "p", 0);
    recorder
}

fn end(mut recorder: Recorder, now_ms: u64) -> Profile {
    recorder.process_gone(PID, now_ms, &mut Numbers);
    let machine = Machine::builtin("spr-cxl").expect("built in").expect("right");
    let run = Run { duration_ns: now_ms * 1_000_000, ..Run::default() };
    let profile = recorder.finish(machine, run);
    assert_eq!(check(&profile), Ok(()));
    profile
}

fn born(recorder: &mut Recorder, addr: u64, bytes: u64, site: u32, at_ms: u64) {
    let event =
        Event::Born { addr, bytes, site, is_block: false, is_mapped: false, is_fresh: false };
    recorder.consume(&LedgerEvent { pid: PID, at_ns: at_ms * MS_NS, event });
}

/// The number of the life that ended is that of the millisecond.
fn gone(recorder: &mut Recorder, addr: u64, bytes: u64, at_ms: u64) {
    let event = Event::Gone { addr, bytes, life: at_ms };
    recorder.consume(&LedgerEvent { pid: PID, at_ns: at_ms * MS_NS, event });
}

/// A sample of what lives, or of a life that has ended.
fn accessed(recorder: &mut Recorder, sample: Sample, life: Option<u64>) {
    recorder.sampled(&sample);
    let event = Event::Accessed { sample, life };
    recorder.consume(&LedgerEvent { pid: PID, at_ns: sample.until_ns, event });
}

fn sample(time_ms: u64, addr: u64, kind: AccessKind) -> Sample {
    let latency_ns = Some(100);
    Sample {
        from_ns: time_ms * MS_NS,
        until_ns: time_ms * MS_NS,
        pid: PID,
        tid: PID,
        addr,
        kind,
        latency_ns,
        node: None,
        weight: 10,
        around: None,
        cpu: None,
        by: None,
    }
}

#[test]
fn bytes_that_came_unused_from_the_kernel_are_summed() {
    let mut recorder = recorder();
    for (at, is_fresh) in (1..=6).zip([true, false, true, false, false, true]) {
        let (addr, bytes, site) = (at * MIB, 8192 * at, 1);
        let event = Event::Born { addr, bytes, site, is_block: false, is_mapped: false, is_fresh };
        recorder.consume(&LedgerEvent { pid: PID, at_ns: 10 * at * MS_NS, event });
    }
    let profile = end(recorder, 100);
    let fresh_bytes: u64 = profile.objects.iter().map(|one| one.fresh_bytes).sum();
    assert_eq!(fresh_bytes, 8192 * (1 + 3 + 6));
}

#[test]
fn accesses_are_summed_by_code_and_by_the_site_of_the_object() {
    let mut recorder = recorder();
    born(&mut recorder, MIB, MIB, 1, 10);
    born(&mut recorder, 4 * MIB, MIB, 2, 10);
    let by = |number, pattern| Some(AccessedBy { number, pattern });
    let read = |addr| sample(30, addr, AccessKind::Read);
    let chased = by(7, Pattern::Chased);
    accessed(&mut recorder, Sample { by: chased, ..read(MIB) }, None);
    gone(&mut recorder, MIB, MIB, 40);
    // To what has died, it counts as well.
    let write = sample(50, MIB, AccessKind::Write);
    accessed(&mut recorder, Sample { by: chased, ..write }, Some(40));
    accessed(&mut recorder, Sample { by: by(8, Pattern::Strided), ..read(4 * MIB) }, None);
    accessed(&mut recorder, read(4 * MIB), None);
    let profile = end(recorder, 100);
    let hash = |site: u32| profile.sites[site as usize].hash;
    let mut found: Vec<_> = profile.access_sites.iter().collect();
    found.sort_by_key(|one| hash(one.code));
    let found = found.iter().map(|one| (hash(one.code), hash(one.site), &*one.pattern));
    assert_eq!(found.collect::<Vec<_>>(), [(7, 1, "chased"), (8, 2, "strided")]);
    let counts = profile.access_sites.iter().map(|one| (one.reads, one.writes));
    assert_eq!(counts.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1)), (20, 10));
}

#[test]
fn concurrency_and_dirtied_lines_are_summed() {
    let mut recorder = recorder_that(true);
    born(&mut recorder, MIB, MIB, 1, 10);
    let around = |at_once, apart| Some(Around { at_once, apart });
    let read = sample(30, MIB, AccessKind::Read);
    accessed(&mut recorder, Sample { around: around(2.0, true), ..read }, None);
    accessed(&mut recorder, Sample { around: around(4.0, false), node: Some(2), ..read }, None);
    accessed(&mut recorder, read, None);
    let dirtied = Sample { kind: AccessKind::Dirtied, weight: 7, latency_ns: None, ..read };
    accessed(&mut recorder, dirtied, None);
    let profile = end(recorder, 100);
    let [seen] = profile.accesses[..] else { panic!("{:?}", profile.accesses) };
    // Ten accesses with two outstanding misses and ten with four: 5 + 2.5, rounded up.
    assert_eq!((seen.reads, seen.mlp_known, seen.serialized, seen.isolated), (30, 20, 8, 10));
    assert_eq!((seen.writes, seen.samples, seen.dirtied), (0, 3, Some(7)));
    assert_eq!(profile.runs[0].sample_period, 10.0);
    let served = ServedBy { node: NodeId(2), accesses: 10 };
    assert_eq!(profile.runs[0].served, [served]);
}

#[test]
fn dirtied_lines_are_unknown_without_a_sampler_that_reports_them() {
    let mut recorder = recorder();
    born(&mut recorder, MIB, MIB, 1, 10);
    accessed(&mut recorder, sample(30, MIB, AccessKind::Read), None);
    accessed(&mut recorder, sample(30, MIB, AccessKind::Write), None);
    let profile = end(recorder, 100);
    let [seen] = profile.accesses[..] else { panic!("{:?}", profile.accesses) };
    assert_eq!((seen.dirtied, seen.mlp_known), (None, 0));
}

/// `site: bytes birth-death reads/writes`, times in milliseconds.
fn shown(profile: &Profile) -> Vec<String> {
    let line = |(index, object): (usize, &Object)| {
        let of_it = || profile.accesses.iter().filter(|access| access.object as usize == index);
        let (reads, writes) = of_it().fold((0, 0), |(r, w), one| (r + one.reads, w + one.writes));
        let site = profile.site_of(object).hash;
        let times = (object.birth_ns / 1_000_000, object.death_ns / 1_000_000);
        format!("{site}: {} {}-{} {reads}/{writes}", object.peak_bytes, times.0, times.1)
    };
    profile.objects.iter().enumerate().map(line).collect()
}

#[test]
fn lifetimes_and_accesses_are_recorded() {
    let mut recorder = recorder();
    born(&mut recorder, MIB, MIB, 1, 10);
    born(&mut recorder, 4 * MIB, 2 * MIB, 2, 20);
    accessed(&mut recorder, sample(30, MIB + 5, AccessKind::Read), None);
    accessed(&mut recorder, sample(30, MIB + 5, AccessKind::Write), None);
    accessed(&mut recorder, sample(30, 9 * MIB, AccessKind::Read), None);
    gone(&mut recorder, MIB, MIB, 40);
    // The same address, used again.
    born(&mut recorder, MIB, MIB, 1, 50);
    accessed(&mut recorder, sample(60, 2 * MIB - 1, AccessKind::Read), None);
    let profile = end(recorder, 100);
    let expect = ["1: 1048576 10-40 10/10", "2: 2097152 20-100 0/0", "1: 1048576 50-100 10/0"];
    assert_eq!(shown(&profile), expect);
    assert_eq!(profile.objects.iter().map(|o| o.freed).collect::<Vec<_>>(), [1, 0, 0]);
    // A MiB has 16 extents of 64 KiB; a slot is 2^18 ns.
    let seen = profile.accesses.last().unwrap();
    assert_eq!((seen.extent, seen.slot, seen.samples, seen.threads), (15, 228, 1, 1));
    assert_eq!((seen.timed_reads, seen.read_ns, seen.cached), (10, 1000, Some(0)));
    assert_eq!((profile.processes[0].peak_bytes, profile.runs[0].sample_period), (3 * MIB, 10.0));
}

#[test]
fn births_and_deaths_of_one_millisecond_keep_their_order() {
    let mut recorder = recorder();
    born(&mut recorder, 8 * MIB, MIB, 1, 10);
    born(&mut recorder, MIB, MIB, 2, 10);
    gone(&mut recorder, 8 * MIB, MIB, 10);
    born(&mut recorder, 4 * MIB, MIB, 3, 10);
    let profile = end(recorder, 10);
    let sites: Vec<u64> = profile.objects.iter().map(|o| profile.site_of(o).hash).collect();
    assert_eq!(sites, [1, 2, 3]);
    let [first, second, third] = &profile.objects[..] else { panic!("three") };
    assert!(second.birth_ns < first.death_ns && first.death_ns < third.birth_ns);
}

#[test]
fn accesses_that_come_late_belong_to_the_dead() {
    let mut recorder = recorder();
    born(&mut recorder, MIB, MIB, 1, 10);
    gone(&mut recorder, MIB, MIB, 140);
    accessed(&mut recorder, sample(130, MIB + 9, AccessKind::Read), Some(140));
    // Its memory belongs to another one now.
    born(&mut recorder, MIB, MIB, 2, 150);
    accessed(&mut recorder, sample(120, MIB + 9, AccessKind::Write), Some(140));
    accessed(&mut recorder, sample(500, MIB + 9, AccessKind::Write), None);
    gone(&mut recorder, MIB, MIB, 600);
    recorder.consume(&LedgerEvent {
        pid: PID,
        at_ns: 700 * MS_NS,
        event: Event::Forgotten { before: 600 },
    });
    accessed(&mut recorder, sample(590, MIB + 9, AccessKind::Read), Some(600));
    // It was forgotten, and the ledger names it no more; if it did, the access would count as lost.
    accessed(&mut recorder, sample(130, MIB + 9, AccessKind::Read), Some(140));
    let profile = end(recorder, 1000);
    assert_eq!(shown(&profile), ["1: 1048576 10-140 10/10", "2: 1048576 150-600 10/10"]);
    assert_eq!(profile.runs[0].observed.samples_outside, 1);
}

#[test]
fn late_accesses_stay_with_the_dead_when_some_of_them_are_put_together() {
    let mut recorder = recorder();
    born(&mut recorder, MIB, MIB, 9, 0);
    for number in 1..=2 * KEPT_MAX as u64 {
        born(&mut recorder, 4 * MIB, OS_PAGE, 1, number);
        gone(&mut recorder, 4 * MIB, OS_PAGE, number);
    }
    gone(&mut recorder, MIB, MIB, 1_000_000);
    for number in 1..=2 * KEPT_MAX as u64 {
        born(&mut recorder, 4 * MIB, OS_PAGE, 1, 1_000_000 + number);
        gone(&mut recorder, 4 * MIB, OS_PAGE, 1_000_000 + number);
    }
    accessed(&mut recorder, sample(999_999, MIB, AccessKind::Read), Some(1_000_000));
    let profile = end(recorder, 2_000_000);
    let of_site = |hash| shown(&profile).into_iter().find(|line| line.starts_with(hash));
    assert_eq!(of_site("9:").as_deref(), Some("9: 1048576 0-1000000 10/0"));
}

#[test]
fn holes_and_growth_change_objects() {
    let mut recorder = recorder();
    born(&mut recorder, MIB, 4 * MIB, 1, 10);
    accessed(&mut recorder, sample(11, MIB, AccessKind::Read), None);
    // A hole in the middle, then the lower part goes, then the upper part grows.
    gone(&mut recorder, 2 * MIB, MIB, 20);
    gone(&mut recorder, MIB, MIB, 30);
    recorder.consume(&LedgerEvent {
        pid: PID,
        at_ns: 35 * MS_NS,
        event: Event::Grown { addr: 5 * MIB, bytes: MIB },
    });
    accessed(&mut recorder, sample(36, 5 * MIB + 9, AccessKind::Write), None);
    // From below, a piece at a time: it stays one object.
    gone(&mut recorder, 3 * MIB, MIB, 40);
    let profile = end(recorder, 50);
    assert_eq!(shown(&profile), ["1: 4194304 10-30 10/0", "1: 3145728 10-50 0/10"]);
}

#[test]
fn marked_phases_are_recorded() {
    let mut recorder = recorder();
    let enter = |recorder: &mut Recorder, number, at_ms| {
        recorder.consume(&LedgerEvent {
            pid: PID,
            at_ns: at_ms * MS_NS,
            event: Event::Phase { number },
        });
    };
    born(&mut recorder, MIB, MIB, 1, 0);
    enter(&mut recorder, 1, 100);
    accessed(&mut recorder, sample(90, MIB, AccessKind::Read), None);
    accessed(&mut recorder, sample(100, MIB, AccessKind::Read), None);
    // Two within the clock's resolution: the later one counts, and it is said.
    enter(&mut recorder, 2, 200);
    enter(&mut recorder, 3, 200);
    accessed(&mut recorder, sample(201, MIB, AccessKind::Read), None);
    enter(&mut recorder, 1, 300);
    accessed(&mut recorder, sample(301, MIB, AccessKind::Read), None);
    let profile = end(recorder, 400);
    let marked = profile.phases.iter().filter(|phase| phase.process == Some(0));
    let marked: Vec<_> = marked.map(|phase| (&*phase.name, phase.start_ns / 1_000_000)).collect();
    assert_eq!(marked, [("start", 0), ("phase 1", 100), ("phase 3", 200), ("phase 1", 300)]);
    let of_accesses = profile.accesses.iter().map(|one| &*profile.phases[one.phase as usize].name);
    assert_eq!(of_accesses.collect::<Vec<_>>(), ["start", "phase 1", "phase 3", "phase 1"]);
    assert_eq!(profile.runs[0].observed.phases_refused, 1);
}

#[test]
fn unmarked_phases_are_detected() {
    let mut recorder = recorder();
    (0..4).for_each(|n| born(&mut recorder, (n + 1) * MIB, MIB, 1, 0));
    for time_ms in 0..1200 {
        // Two hot objects alternate, 300 ms each.
        let hot = time_ms / 300 % 2 * 2 + time_ms % 2;
        accessed(&mut recorder, sample(time_ms, (hot + 1) * MIB, AccessKind::Read), None);
    }
    let profile = end(recorder, 1200);
    // A window has 64 samples, one per slot: each change is detected within one window.
    let phases = profile.phases.iter().map(|p| format!("{} {}", p.name, p.start_ns / 1_000_000));
    assert_eq!(phases.collect::<Vec<_>>(), ["A 0", "B 319", "A 575", "B 895"]);
}

#[test]
fn many_dead_objects_are_merged_and_few_are_not() {
    let mut recorder = recorder();
    let many = 3 * KEPT_MAX as u64;
    for number in 0..many {
        born(&mut recorder, MIB, OS_PAGE, 1, number / 100);
        if number % 64 == 0 {
            accessed(&mut recorder, sample(number / 100, MIB, AccessKind::Read), None);
        }
        if number % 1000 == 0 {
            born(&mut recorder, 2 * MIB, 64 * OS_PAGE, 2, number / 100);
            gone(&mut recorder, 2 * MIB, 64 * OS_PAGE, number / 100 + 5);
        }
        gone(&mut recorder, MIB, OS_PAGE, number / 100);
    }
    let profile = end(recorder, many / 100);
    let rows = |site: u64| {
        let of_site = profile.objects.iter().filter(|o| profile.site_of(o).hash == site);
        of_site.map(|object| (object.count, object.peak_bytes)).collect::<Vec<_>>()
    };
    assert_eq!(rows(1), [(many, OS_PAGE)]);
    assert_eq!(rows(2).len() as u64, many / 1000 + 1);
    assert_eq!(profile.coarsening.objects_merged, many);
    let reads: u64 = profile.accesses.iter().map(|access| access.reads).sum();
    assert_eq!(reads, (many / 64) * 10);
}

#[test]
fn the_number_of_cells_is_bounded() {
    let mut recorder = recorder();
    let objects = 1u64 << 10;
    (0..objects).for_each(|n| {
        born(&mut recorder, (n + 1) * MIB, OS_PAGE, u32::try_from(n).unwrap() % 50, 0)
    });
    // More cells than may be kept, over an hour.
    let samples = 10 * CELLS_MAX as u64;
    for number in 0..samples {
        let addr = (number * 7919 % objects + 1) * MIB;
        accessed(&mut recorder, sample(number * 3_600_000 / samples, addr, AccessKind::Read), None);
    }
    let profile = end(recorder, 3_600_000);
    let reads: u64 = profile.accesses.iter().map(|access| access.reads).sum();
    assert_eq!(reads, samples * 10);
    assert!(
        profile.accesses.len() <= CELLS_MAX + usize::try_from(objects).unwrap(),
        "{}",
        profile.accesses.len()
    );
    assert!(profile.slot_ns > 1 << 24 && profile.coarsening.slots_doubled > 0);
}

#[test]
fn the_events_of_a_ledger_are_recorded() {
    let mut ledger = Ledger::new(Config::default(), 0).unwrap();
    ledger.process_born(PID).unwrap();
    ledger.listen();
    let version = |generation| Version { carve: 1, generation };
    let born = |generation, time_ns| Record::Born {
        addr: MIB,
        bytes: MIB,
        site: 3,
        version: version(generation),
        arena: None,
        flags: Flags(0),
        time_ns: time_ns * MS_NS,
    };
    let died = |generation, time_ns| Record::Died {
        addr: MIB,
        bytes: MIB,
        version: version(generation),
        flags: Flags(0),
        time_ns: time_ns * MS_NS,
    };
    // Out of order, as rings are drained: the second use dies before it is born.
    for record in [born(1, 100), died(1, 200), died(2, 400), born(2, 300), born(3, 450)] {
        ledger.deliver(PID, record);
    }
    ledger.settle(PID, 500 * MS_NS);
    ledger.observe(sample(310, MIB, AccessKind::Read));
    ledger.observe(sample(460, MIB, AccessKind::Write));
    ledger.attribute(&mut Vec::new());
    ledger.tick(1000);
    let (mut recorder, mut news) = (recorder(), Vec::new());
    ledger.take_events(&mut news);
    news.iter().for_each(|one| recorder.consume(one));
    let profile = end(recorder, 1000);
    let expect = ["3: 1048576 100-200 0/0", "3: 1048576 300-400 10/0", "3: 1048576 450-1000 0/10"];
    assert_eq!(shown(&profile), expect);
}

#[test]
fn a_child_whose_parent_is_gone_is_still_its_child() {
    let mut recorder = recorder();
    recorder.process_gone(PID, 10, &mut Numbers);
    recorder.process_born(PID + 1, Some(PID), "p", 20);
    // Another program has the number by now.
    recorder.process_born(PID, None, "q", 30);
    recorder.process_gone(PID + 1, 40, &mut Numbers);
    let profile = end(recorder, 50);
    let parents: Vec<_> = profile.processes.iter().map(|process| process.parent).collect();
    assert_eq!(parents, [None, Some(0), None]);
}
