//! Heat, cost and statistics, with numbers worked out by hand.
//! In: a script of births, deaths, samples and ticks. Out: what the ledger shows.
//! Knows nothing of the ledger's insides.

use expect_test::{Expect, expect};
use tiercel_ledger::movement::{Failure, Move, Outcome, Reason};
use tiercel_ledger::{Config, Ledger, Range};
use tiercel_machine::NodeId;
use tiercel_wire::{AccessKind, Flags, Record, Sample, Version};

const PID: u32 = 1;
const OS_PAGE: u64 = 4096;

/// A ledger and the versions of what was born in it.
struct World {
    ledger: Ledger,
    carve: u32,
    now_ms: u64,
}

impl World {
    fn new(config: Config) -> World {
        let mut ledger = Ledger::new(config, 0).expect("good");
        ledger.process_born(PID).expect("new");
        World { ledger, carve: 0, now_ms: 0 }
    }

    fn born(&mut self, page: u64, pages: u64, flags: Flags) -> Version {
        self.carve += 1;
        let version = Version { carve: self.carve, generation: 0 };
        let (addr, bytes) = (page * OS_PAGE, pages * OS_PAGE);
        let arena = None;
        let time_ns = self.now_ms * 1_000_000;
        self.ledger
            .apply(PID, &Record::Born { addr, bytes, site: 3, version, arena, flags, time_ns });
        version
    }

    fn died(&mut self, page: u64, pages: u64, version: Version) {
        let (addr, bytes, flags) = (page * OS_PAGE, pages * OS_PAGE, Flags(0));
        self.ledger.apply(
            PID,
            &Record::Died { addr, bytes, version, flags, time_ns: self.now_ms * 1_000_000 },
        );
    }

    fn sample(&mut self, page: u64, weight: u32, kind: AccessKind, latency_ns: Option<u32>) {
        let (addr, at_ns) = (page * OS_PAGE + 8, self.now_ms * 1_000_000);
        let sample = Sample {
            from_ns: at_ns,
            until_ns: at_ns,
            weight,
            latency_ns,
            ..plain_sample(addr, kind)
        };
        self.ledger.sample(&sample);
    }

    fn tick(&mut self) -> tiercel_ledger::TickSummary {
        self.now_ms += 2000;
        self.ledger.tick(self.now_ms)
    }

    /// `page+pages reads/writes cost` per extent; rates per interval of 2 s, as Eq. 1 has them.
    fn shown(&self) -> String {
        let line = |extent: tiercel_ledger::Extent| {
            let (page, pages) = (extent.addr / OS_PAGE, extent.bytes / OS_PAGE);
            let (reads, writes) = (extent.reads_per_s * 2.0, extent.writes_per_s * 2.0);
            let cost = extent.cost_ns_per_s * 2.0;
            format!("{page}+{pages} {reads:.3}/{writes:.3} {cost:.1}")
        };
        self.ledger.extents_of(PID).map(line).collect::<Vec<_>>().join("\n")
    }
}

/// One access at the beginning of time.
fn plain_sample(addr: u64, kind: AccessKind) -> Sample {
    Sample {
        from_ns: 0,
        until_ns: 0,
        pid: PID,
        tid: 0,
        addr,
        kind,
        latency_ns: None,
        node: None,
        weight: 1,
        around: None,
        cpu: None,
        by: None,
    }
}

fn small() -> Config {
    Config { extent_bytes: 4 * OS_PAGE, ..Config::default() }
}

/// Samples per interval of one object, one word each. Shows the average after each tick.
fn check_average(alpha: f32, samples: &str, want: Expect) {
    let mut world = World::new(Config { alpha, ..small() });
    world.born(16, 1, Flags(0));
    world.tick();
    let averages = samples.split_whitespace().map(|accesses| {
        if let Ok(weight @ 1..) = accesses.parse::<u32>() {
            world.sample(16, weight, AccessKind::Read, None);
        }
        world.tick();
        world.shown().split([' ', '/']).nth(1).expect("reads").to_owned()
    });
    want.assert_eq(&averages.collect::<Vec<_>>().join(" "));
}

#[test]
fn averages_follow_mat_equation_1() {
    // 0.1 x 1000; 0.9 x 100; 0.9 x 90 + 0.1 x 500; 0.9 x 131; 0.9 x 117.9.
    let want = expect!["100.000 90.000 131.000 117.900 106.110"];
    check_average(0.1, "1000 0 500 0 0", want);
    check_average(1.0, "1000 0 500", expect!["1000.000 0.000 500.000"]);
    check_average(0.5, "8 8 8 0", expect!["4.000 6.000 7.000 3.500"]);
}

/// Rates an average shows after 10 s of `per_s` accesses in each second, with ticks of `tick_ms`.
fn rate_with_ticks_of(tick_ms: u64, units: u16, per_s: u32) -> f32 {
    let mut world = World::new(Config { units, ..small() });
    world.born(16, 1, Flags(0));
    world.ledger.tick(1);
    for now_ms in (0..10_000).step_by(tick_ms as usize) {
        world.ledger.expect_tick_in(tick_ms);
        let accesses = u64::from(per_s) * tick_ms / 1000;
        world.sample(16, accesses as u32, AccessKind::Read, None);
        world.ledger.tick(now_ms + tick_ms);
    }
    world.ledger.extents_of(PID).map(|one| one.reads_per_s).sum()
}

#[test]
fn an_average_does_not_depend_on_the_length_of_ticks() {
    // Five intervals from zero on: 1 - 0.9^5 of 1000 a second.
    let expect = 1000.0 * (1.0 - 0.9f32.powi(5));
    for (tick_ms, units) in [(2000, 1), (2000, 64), (1000, 64), (250, 64), (125, 16), (31, 64)] {
        let rate = rate_with_ticks_of(tick_ms, units, 1000);
        let error = (rate / expect - 1.0).abs();
        assert!(error < 0.02, "ticks of {tick_ms} ms: {rate} instead of {expect}");
    }
    assert_eq!(rate_with_ticks_of(2000, 1, 1000), rate_with_ticks_of(2000, 64, 1000));
}

#[test]
fn an_average_between_two_ticks_holds_as_of_the_last() {
    let mut world = World::new(small());
    world.born(16, 1, Flags(0));
    world.tick();
    world.sample(16, 1000, AccessKind::Read, None);
    world.tick();
    let before = world.ledger.find(PID, 16 * OS_PAGE).expect("lives").as_of_ms;
    assert_eq!(before, 4000);
    assert_eq!(world.ledger.find(PID, 16 * OS_PAGE).expect("lives").last_access_ms, Some(2000));
}

#[test]
fn a_late_tick_closes_several_intervals() {
    let mut world = World::new(small());
    world.born(16, 1, Flags(0));
    world.tick();
    world.sample(16, 1000, AccessKind::Read, None);
    world.now_ms += 4000;
    // 6 s are three intervals: 100, then twice x 0.9.
    world.tick();
    assert_eq!(world.shown(), "16+1 81.000/0.000 2025.0");
}

#[test]
fn reads_and_writes_are_kept_apart_and_cost_is_stall_time() {
    let mut world = World::new(small());
    world.born(16, 1, Flags(0));
    world.tick();
    world.sample(16, 100, AccessKind::Read, Some(400));
    world.sample(16, 10, AccessKind::Write, None);
    world.sample(16, 10, AccessKind::Unknown, Some(100));
    world.tick();
    // alpha x (100 x 400 + 10 x 100 (assumed) + 10 x 100) ns / parallelism 4.
    assert_eq!(world.shown(), "16+1 11.000/1.000 1050.0");
    // (100 x 400 + 20 x 100) / 120.
    let latency_ns = world.ledger.find(PID, 16 * OS_PAGE).expect("lives").latency_ns;
    assert!((latency_ns - 350.0).abs() < 0.01, "{latency_ns}");
}

#[test]
fn large_objects_are_split_and_small_ones_are_not() {
    let mut world = World::new(small());
    world.born(16, 10, Flags(0));
    world.born(40, 4, Flags(0));
    assert_eq!(world.shown(), "", "no record before the tick");
    let summary = world.tick();
    assert_eq!(
        world.shown(),
        "16+4 0.000/0.000 0.0\n20+4 0.000/0.000 0.0\n24+2 0.000/0.000 0.0\n40+4 0.000/0.000 0.0"
    );
    assert_eq!((summary.extents, summary.extent_bytes), (4, 14 * OS_PAGE));
    assert_eq!(summary.counts.recorded_bytes, 14 * OS_PAGE);
    assert_eq!(summary.counts.extents_recorded, 4);
}

#[test]
fn a_sample_on_a_new_large_object_finds_its_extent() {
    let mut world = World::new(small());
    world.born(16, 10, Flags(0));
    world.sample(25, 1000, AccessKind::Read, None);
    let summary = world.tick();
    assert_eq!(
        world.shown(),
        "16+4 0.000/0.000 0.0\n20+4 0.000/0.000 0.0\n24+2 100.000/0.000 2500.0"
    );
    assert_eq!(summary.counts.samples_attributed, 1);
    assert_eq!(summary.counts.extents_recorded, 3);
}

#[test]
fn ephemeral_objects_never_become_records() {
    let mut world = World::new(small());
    let brief = world.born(16, 10, Flags(0));
    world.sample(20, 1, AccessKind::Read, None);
    assert_eq!(world.ledger.extents_of(PID).count(), 0);
    let ranges: Vec<_> = world.ledger.ranges_of(PID).collect();
    assert_eq!(
        ranges,
        [16 * OS_PAGE..20 * OS_PAGE, 20 * OS_PAGE..24 * OS_PAGE, 24 * OS_PAGE..26 * OS_PAGE]
    );
    world.died(16, 10, brief);
    world.now_ms += 1;
    world.sample(20, 1, AccessKind::Read, None);
    let outside = world.ledger.find(PID, 16 * OS_PAGE);
    assert_eq!(outside, None);
    let counts = world.tick().counts;
    assert_eq!((counts.objects_born, counts.objects_ephemeral), (1, 1));
    assert_eq!((counts.extents_recorded, counts.objects_died), (0, 0));
    assert_eq!((counts.samples_ephemeral, counts.samples_outside), (1, 1));
    assert_eq!(counts.ephemeral_bytes, 10 * OS_PAGE);
    assert_eq!(world.ledger.characteristics().attributed_share, Some(0.0));
}

#[test]
fn samples_are_accounted_for_to_the_last() {
    let mut world = World::new(small());
    world.born(16, 4, Flags(0));
    world.tick();
    for page in [16, 19, 20, 15] {
        world.sample(page, 1, AccessKind::Read, None);
    }
    let stranger = Sample { pid: 99, ..plain_sample(16 * OS_PAGE, AccessKind::Read) };
    world.ledger.sample(&stranger);
    let counts = world.tick().counts;
    assert_eq!(counts.samples, 5);
    assert_eq!(counts.samples_attributed, 2);
    assert_eq!(counts.samples_outside, 2);
    assert_eq!(counts.samples_of_unknown_processes, 1);
}

#[test]
fn what_two_sites_had_in_turns_is_in_doubt() {
    let mut ledger = World::new(small()).ledger;
    let (addr, bytes, arena, flags) = (16 * OS_PAGE, 4 * OS_PAGE, None, Flags(0));
    let lives = [(3, 0, 5), (4, 5, 15), (3, 15, 20)];
    for (carve, (site, born_ms, died_ms)) in (1..).zip(lives) {
        let version = Version { carve, generation: 0 };
        let time_ns = born_ms * 1_000_000;
        ledger.apply(PID, &Record::Born { addr, bytes, site, version, arena, flags, time_ns });
        let time_ns = died_ms * 1_000_000;
        ledger.apply(PID, &Record::Died { addr, bytes, version, flags, time_ns });
    }
    for (from_ms, until_ms) in [(0, 20), (6, 7)] {
        let (kind, weight) = (AccessKind::Write, 1000);
        let (from_ns, until_ns) = (from_ms * 1_000_000, until_ms * 1_000_000);
        ledger.observe(Sample { from_ns, until_ns, weight, ..plain_sample(addr, kind) });
    }
    ledger.settle(PID, 20_000_000);
    let mut given = Vec::new();
    ledger.attribute(&mut given);
    given.sort_by_key(|one| (one.sample.weight, one.doubt as u64, one.hit.site));
    let given: Vec<_> =
        given.iter().map(|one| (one.hit.site, one.sample.weight, one.doubt.round())).collect();
    // 1000 x sqrt(0.5 x 0.5 / 2), once for both lives of a site.
    assert_eq!(given, [(3, 250, 0.0), (3, 250, 354.0), (4, 500, 354.0), (4, 1000, 0.0)]);
}

#[test]
fn characteristics_are_those_of_mat_table_3() {
    let mut world = World::new(small());
    let a = world.born(16, 4, Flags(0));
    world.born(40, 8, Flags(0));
    world.tick();
    world.tick();
    world.died(16, 4, a);
    world.tick();
    let shown = world.ledger.characteristics();
    assert_eq!(shown.peak_extents, 3);
    // Three records and 12 x 4096 bytes in 6 s.
    assert!((shown.extents_per_s - 0.5).abs() < 1e-9);
    assert!((shown.mb_per_s - 0.008_192).abs() < 1e-9);
    // One lived 4 s, two are 6 s old; times are kept in steps of 16 ms.
    assert!((shown.lifetime_mean_s - 16.0 / 3.0).abs() < 0.05, "{}", shown.lifetime_mean_s);
    assert_eq!(shown.attributed_share, None);
}

#[test]
fn a_realloc_that_moves_takes_its_heat_along() {
    let mut world = World::new(small());
    let old = world.born(16, 6, Flags(0));
    world.tick();
    world.sample(21, 1000, AccessKind::Read, None);
    world.tick();
    world.born(40, 12, Flags::CONTINUED);
    world.died(16, 6, old);
    assert_eq!(
        world.shown(),
        "40+4 0.000/0.000 0.0\n44+4 100.000/0.000 2500.0\n48+4 0.000/0.000 0.0"
    );
    assert_eq!(world.ledger.find(PID, 40 * OS_PAGE).expect("lives").born_ms, 0, "as old as it was");
}

#[test]
fn a_resync_keeps_the_heat_of_what_is_the_same() {
    let mut world = World::new(small());
    let a = world.born(16, 4, Flags(0));
    let b = world.born(40, 4, Flags(0));
    world.tick();
    world.sample(16, 1000, AccessKind::Read, None);
    world.sample(40, 1000, AccessKind::Read, None);
    world.tick();
    let object = |page: u64, version: Version| tiercel_wire::ObjectSnapshot {
        addr: page * OS_PAGE,
        bytes: 4 * OS_PAGE,
        site: 3,
        version,
        arena: None,
        flags: Flags(0),
    };
    let reused = Version { generation: b.generation + 1, ..b };
    let objects = [object(16, a), object(40, reused), object(60, b)];
    world.ledger.resync_slice(PID, 0..u64::MAX, &objects, usize::MAX, 0);
    let counts = world.tick().counts;
    assert_eq!((counts.healed_deaths, counts.healed_births), (1, 2));
    assert_eq!(
        world.shown(),
        "16+4 90.000/0.000 2250.0\n40+4 0.000/0.000 0.0\n60+4 0.000/0.000 0.0"
    );
}

#[test]
fn residency_follows_looks_and_outcomes() {
    let mut world = World::new(small());
    world.born(16, 8, Flags(0));
    world.tick();
    let ranges = world.ledger.take_unlocated(10);
    assert_eq!(ranges.len(), 2, "both extents are to be located");
    assert_eq!(world.ledger.take_unlocated(10), [], "each once");
    let whole = Range { pid: PID, addr: 16 * OS_PAGE, bytes: 8 * OS_PAGE };
    let on = [(NodeId(2), 4 * OS_PAGE), (NodeId(0), 2 * OS_PAGE), (NodeId(1), 2 * OS_PAGE)];
    world.ledger.set_residency(whole, &on, 2000);
    let nodes = |world: &World| {
        let extent = world.ledger.find(PID, 16 * OS_PAGE).expect("lives");
        let pages = extent.residency.iter().map(|(node, bytes)| (node.0, bytes / OS_PAGE));
        (extent.residency.main_node(), pages.collect::<Vec<_>>())
    };
    assert_eq!(nodes(&world), (Some(NodeId(2)), vec![(2, 2), (0, 1), (1, 1)]), "half of each");
    let asked = Move {
        pid: PID,
        addr: 16 * OS_PAGE,
        bytes: 4 * OS_PAGE,
        from: Some(NodeId(2)),
        to: NodeId(0),
        reason: Reason::Promote,
        gain_ns_per_s: 0.0,
        cost_ns: 0.0,
    };
    let outcome = Outcome {
        moved_bytes: OS_PAGE,
        resident_bytes: 2 * OS_PAGE,
        absent_bytes: OS_PAGE,
        failed: vec![(Failure::Busy, OS_PAGE)],
        took_ns: 1,
        ..Outcome::of(asked)
    };
    world.ledger.outcome(&outcome);
    assert_eq!(nodes(&world), (Some(NodeId(0)), vec![(0, 2), (2, 1)]));
    let sums: Vec<_> = world.ledger.resident_bytes(PID).filter(|(_, bytes)| *bytes > 0).collect();
    assert_eq!(sums, [(NodeId(0), 3 * OS_PAGE), (NodeId(1), OS_PAGE), (NodeId(2), 3 * OS_PAGE)]);
    world.ledger.process_exec(PID);
    assert_eq!(world.ledger.resident_bytes(PID).count(), 0);
}

#[test]
fn births_in_a_known_arena_are_located() {
    let mut world = World::new(small());
    world.ledger.set_arenas(&[Some(NodeId(0)), Some(NodeId(4))]);
    let version = Version { carve: 1, generation: 0 };
    let (addr, bytes, flags) = (16 * OS_PAGE, 6 * OS_PAGE, Flags(0));
    let born = Record::Born { addr, bytes, site: 0, version, arena: Some(1), flags, time_ns: 0 };
    world.ledger.apply(PID, &born);
    world.tick();
    let sums: Vec<_> = world.ledger.resident_bytes(PID).collect();
    assert_eq!(sums, [(NodeId(4), 6 * OS_PAGE)]);
    assert_eq!(world.ledger.take_unlocated(10), []);
}

#[test]
fn a_full_ledger_refuses_and_says_so() {
    let limits = Config { process_extents_max: 3, extents_max: 3, ..small() };
    let mut world = World::new(limits);
    world.born(16, 8, Flags(0));
    world.born(40, 4, Flags(0));
    world.born(60, 4, Flags(0));
    world.born(80, 4, Flags(0));
    let counts = world.tick().counts;
    assert_eq!(counts.births_refused, 1);
    assert_eq!(counts.births_refused_bytes, 4 * OS_PAGE);
    // No room to split the first: it stays whole rather than half known.
    assert_eq!(world.ledger.extent_totals().0, 3);
    assert_eq!(world.ledger.extents_of(PID).next().expect("lives").bytes, 8 * OS_PAGE);
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let refused = |config: Config| match Ledger::new(config, 0) {
        Ok(_) => "accepted".to_owned(),
        Err(error) => error.to_string(),
    };
    expect!["ledger: alpha = 0: must be above 0 and at most 1"]
        .assert_eq(&refused(Config { alpha: 0.0, ..small() }));
    expect!["ledger: extent_bytes = 5000: must be a multiple of 4096 from 4096 to 8 GiB"]
        .assert_eq(&refused(Config { extent_bytes: 5000, ..small() }));
    expect![
        "ledger: units = 65: must be from 1 to 64, and at most one for each millisecond of tick_ms"
    ]
    .assert_eq(&refused(Config { units: 65, ..small() }));
    expect!["ledger: tick_ms = 0: must be at least 1"]
        .assert_eq(&refused(Config { tick_ms: 0, ..small() }));
}

#[test]
fn processes_come_fork_exec_and_go() {
    let mut world = World::new(small());
    world.born(16, 4, Flags(0));
    world.tick();
    assert!(world.ledger.process_born(PID).is_err(), "known already");
    world.ledger.process_forked(PID, 2, 0).expect("new");
    assert_eq!(world.ledger.pids().collect::<Vec<_>>(), [1, 2]);
    assert_eq!(world.ledger.tracked_bytes(2), Some((0, 0)));
    world.ledger.process_exited(PID);
    assert_eq!(world.ledger.extent_totals(), (0, 0));
    assert_eq!(world.ledger.tracked_bytes(PID), None);
    let counts = world.tick().counts;
    assert_eq!(counts.extents_died, 1);
    // Its place is used again, and its number may be too.
    world.ledger.process_born(PID).expect("new again");
    assert_eq!(world.ledger.places().count(), 2);
}

fn cut(world: &mut World, page: u64, pages: u64) {
    world.carve += 1;
    let version = Version { carve: world.carve, generation: 0 };
    let (addr, bytes) = (page * OS_PAGE, pages * OS_PAGE);
    world.ledger.apply(PID, &Record::Cut { addr, bytes, version, time_ns: 0 });
}

#[test]
fn a_cut_takes_its_range_from_mapped_objects() {
    let mut world = World::new(small());
    world.born(16, 10, Flags::MAPPED);
    let heap = world.born(40, 4, Flags(0));
    world.tick();
    world.sample(18, 1000, AccessKind::Read, None);
    world.tick();
    cut(&mut world, 19, 2);
    cut(&mut world, 30, 20);
    // Three quarters of the first extent's heat stay with what is left of it.
    let want = "16+3 75.000/0.000 1875.0\n21+3 0.000/0.000 0.0\n\
        24+2 0.000/0.000 0.0\n40+4 0.000/0.000 0.0";
    assert_eq!(world.shown(), want);
    let heads = |world: &World| {
        world.ledger.extents_of(PID).map(|e| (e.is_head, e.is_last)).collect::<Vec<_>>()
    };
    assert_eq!(heads(&world), [(true, true), (true, false), (false, true), (true, true)]);
    world.died(40, 4, heap);
    assert_eq!(world.ledger.extent_totals(), (3, 8 * OS_PAGE));
}

#[test]
fn a_cut_that_comes_first_takes_its_range_from_the_late_birth() {
    let mut world = World::new(small());
    world.carve = 5;
    cut(&mut world, 18, 2);
    world.carve = 3;
    let late = world.born(16, 6, Flags::MAPPED);
    world.carve = 8;
    world.born(18, 1, Flags::MAPPED);
    world.tick();
    assert_eq!(world.shown(), "16+2 0.000/0.000 0.0\n18+1 0.000/0.000 0.0\n20+2 0.000/0.000 0.0");
    // The death of the whole takes both pieces, and not what was mapped between them.
    let (addr, bytes, flags) = (16 * OS_PAGE, 6 * OS_PAGE, Flags::MAPPED);
    world.ledger.apply(PID, &Record::Died { addr, bytes, version: late, flags, time_ns: 0 });
    assert_eq!(world.shown(), "18+1 0.000/0.000 0.0");
}

/// Eight objects of 1 MiB of one site, so many samples of each in one interval. Shows what is
/// believed of each in percent of what its own samples say; of those without, of the mean.
fn check_estimates(samples: &[u32], want: Expect) {
    let mut world = World::new(Config::default());
    let page = |nth: usize| 1024 * (nth as u64 + 1);
    for nth in 0..samples.len() {
        world.born(page(nth), 256, Flags(0));
    }
    world.tick();
    for (nth, count) in samples.iter().enumerate() {
        (0..*count).for_each(|_| world.sample(page(nth), 1000, AccessKind::Read, Some(100)));
    }
    world.tick();
    let estimates = world.ledger.rate_estimates();
    let mean = samples.iter().sum::<u32>() as f32 / samples.len() as f32;
    let shown = samples.iter().enumerate().map(|(nth, count)| {
        let extent = world.ledger.find(PID, page(nth) * OS_PAGE).expect("lives");
        let believed = estimates.estimate(&extent);
        let latency_ns = believed.cost_ns_per_s * 4.0 / believed.reads_per_s;
        assert!((latency_ns - 100.0).abs() < 1.0, "cost goes with accesses: {latency_ns}");
        // Averages begin with zero: after two intervals, the first without samples, 0.1 of 0.19.
        let sampled = believed.reads_per_s * 2.0 / 1000.0 * 0.19 / 0.1;
        let own = if *count > 0 { *count as f32 } else { mean };
        format!("{:.0}", 100.0 * sampled / own)
    });
    want.assert_eq(&shown.collect::<Vec<_>>().join(" "));
}

#[test]
fn equal_extents_get_the_mean_of_their_site() {
    // Their mean is 4: all of them are believed to have that.
    check_estimates(&[4, 6, 3, 2, 5, 4, 6, 2], expect!["100 67 133 200 80 100 67 200"]);
}

#[test]
fn unequal_extents_keep_their_own_rates_as_far_as_the_evidence_goes() {
    // Hot and cold ones: nearly their own, and what was never seen is not worth nothing.
    check_estimates(&[400, 1, 0, 0, 0, 0, 0, 1], expect!["99 111 0 0 0 0 0 111"]);
    check_estimates(&[12, 2, 1, 4, 0, 3, 1, 9], expect!["84 124 171 100 24 108 171 87"]);
    // Too few to estimate how much they differ.
    check_estimates(&[3, 1], expect!["89 132"]);
}

#[test]
fn an_extent_of_an_unknown_site_keeps_its_own_rate() {
    let mut world = World::new(small());
    let version = Version { carve: 1, generation: 0 };
    let (addr, bytes, flags) = (16 * OS_PAGE, 4 * OS_PAGE, Flags(0));
    let (site, arena, time_ns) = (0, None, 0);
    world.ledger.apply(PID, &Record::Born { addr, bytes, site, version, arena, flags, time_ns });
    world.tick();
    world.sample(16, 1000, AccessKind::Write, None);
    world.tick();
    let extent = world.ledger.find(PID, addr).expect("lives");
    let grown = extent.writes_per_s / (1.0 - 0.9 * 0.9);
    let believed = world.ledger.rate_estimates().estimate(&extent);
    assert!((believed.writes_per_s - grown).abs() < 1e-3 * grown, "{believed:?}");
    assert_eq!(believed.reads_per_s, 0.0);
}
