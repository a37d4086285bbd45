//! Extents follow the budget and the heat; new objects begin as warm as their site's others.
//! In: births, samples, budgets in words. Out: the extents there are. Knows nothing of the ledger's
//! insides.

use expect_test::{Expect, expect};
use tiercel_ledger::{Config, Ledger, Range};
use tiercel_machine::NodeId;
use tiercel_wire::{AccessKind, Flags, Record, Sample, Version};

const PID: u32 = 1;
const MIB: u64 = 1 << 20;
const BASE: u64 = 1 << 30;

struct World {
    ledger: Ledger,
    carve: u32,
    now_ms: u64,
}

impl World {
    fn new() -> World {
        let mut ledger = Ledger::new(Config::default(), 0).expect("good");
        ledger.process_born(PID).expect("new");
        World { ledger, carve: 0, now_ms: 0 }
    }

    /// An object at so many MiB, on node 1.
    fn born(&mut self, at_mib: u64, mib: u64, site: u32) {
        self.carve += 1;
        let (addr, bytes) = (BASE + at_mib * MIB, mib * MIB);
        let version = Version { carve: self.carve, generation: 0 };
        let (arena, flags, time_ns) = (None, Flags(0), self.now_ms * 1_000_000);
        let record = Record::Born { addr, bytes, site, version, arena, flags, time_ns };
        self.ledger.apply(PID, &record);
        self.tick();
        let range = Range { pid: PID, addr, bytes };
        self.ledger.set_residency(range, &[(NodeId(1), bytes)], self.now_ms);
    }

    /// So many samples, each standing for 1000 reads, evenly over a range.
    fn read(&mut self, at_kib: u64, kib: u64, samples: u64) {
        for nth in 0..samples {
            self.ledger.sample(&Sample {
                from_ns: self.now_ms * 1_000_000,
                until_ns: self.now_ms * 1_000_000,
                pid: PID,
                tid: 0,
                addr: BASE + (at_kib << 10) + (kib << 10) * nth / samples,
                kind: AccessKind::Read,
                latency_ns: None,
                node: None,
                weight: 1000,
                around: None,
                cpu: None,
                by: None,
            });
        }
    }

    fn tick(&mut self) {
        self.now_ms += 2000;
        self.ledger.tick(self.now_ms);
    }

    /// `at+size heat@node` in KiB for each extent; heat in thousands of accesses a second.
    fn shown(&self) -> String {
        let line = |extent: tiercel_ledger::Extent| {
            let (at, kib) = ((extent.addr - BASE) >> 10, extent.bytes >> 10);
            let heat = extent.accesses_per_s() / 1e3;
            let node = extent.residency.main_node().map_or("?".to_owned(), |n| n.to_string());
            format!("{at}+{kib} {heat:.1}@{node}")
        };
        self.ledger.extents_of(PID).map(line).collect::<Vec<_>>().join("\n")
    }
}

/// Sizes in MiB of the extents of a 96 MiB object under these budgets in MiB, one after another.
fn check_sizes(budgets: &[u64], want: Expect) {
    let mut world = World::new();
    world.born(0, 96, 0);
    let sizes = budgets.iter().map(|budget| {
        world.ledger.fit_extents(budget * MIB);
        (0..4).for_each(|_| world.tick());
        let sizes = world.ledger.extents_of(PID).map(|e| e.bytes as f64 / MIB as f64);
        let (least, most) = sizes.fold((f64::MAX, 0f64), |(a, b), s| (a.min(s), b.max(s)));
        let (count, bytes) = world.ledger.extent_totals();
        assert_eq!(bytes, 96 * MIB);
        format!("{count} of {least} to {most}")
    });
    want.assert_eq(&sizes.collect::<Vec<_>>().join("; "));
}

#[test]
fn extents_have_at_most_a_sixteenth_of_the_budget() {
    check_sizes(&[4096], expect!["2 of 32 to 64"]);
    check_sizes(&[25, 1], expect!["96 of 1 to 1; 384 of 0.25 to 0.25"]);
    check_sizes(&[0, 100], expect!["384 of 0.25 to 0.25; 25 of 0.25 to 4"]);
    check_sizes(&[256, 25, 256], expect!["6 of 16 to 16; 96 of 1 to 1; 6 of 16 to 16"]);
}

#[test]
fn nothing_is_split_where_the_finest_is_the_extent() {
    let config = Config { finest_bytes: 64 << 20, ..Config::default() };
    let mut world = World { ledger: Ledger::new(config, 0).expect("good"), carve: 0, now_ms: 0 };
    world.ledger.process_born(PID).expect("new");
    world.born(0, 64, 0);
    world.ledger.fit_extents(MIB);
    world.read(0, 64, 200);
    world.tick();
    assert_eq!(world.ledger.extent_totals().0, 1);
}

#[test]
fn an_extent_with_a_hot_corner_is_split_around_it() {
    let mut world = World::new();
    world.born(0, 64, 0);
    // 8 MiB at 24 MiB have 30 times the heat by byte of the rest.
    for _ in 0..4 {
        world.read(24 << 10, 8 << 10, 240);
        world.read(0, 64 << 10, 64);
        world.tick();
    }
    expect![[r#"
        0+24576 4.1@1
        24576+8192 42.6@1
        32768+32768 5.5@1"#]]
    .assert_eq(&world.shown());
}

#[test]
fn even_heat_splits_nothing() {
    let mut world = World::new();
    world.born(0, 64, 0);
    for _ in 0..8 {
        world.read(0, 64 << 10, 500);
        world.tick();
    }
    assert_eq!(world.ledger.extent_totals().0, 1);
}

#[test]
fn what_has_become_alike_is_joined_with_its_heat() {
    let mut world = World::new();
    world.born(0, 64, 0);
    world.read(24 << 10, 8 << 10, 240);
    world.tick();
    assert_eq!(world.ledger.extent_totals().0, 3);
    for _ in 0..60 {
        world.read(0, 64 << 10, 640);
        world.tick();
    }
    expect!["0+65536 319.4@1"].assert_eq(&world.shown());
}

#[test]
fn extents_on_different_nodes_are_not_joined() {
    let mut world = World::new();
    world.born(0, 64, 0);
    world.read(24 << 10, 8 << 10, 240);
    world.tick();
    let range = Range { pid: PID, addr: BASE + 24 * MIB, bytes: 8 * MIB };
    world.ledger.set_residency(range, &[(NodeId(0), 8 * MIB)], world.now_ms);
    (0..200).for_each(|_| world.tick());
    assert_eq!(world.ledger.extent_totals().0, 3);
}

#[test]
fn a_look_at_what_was_joined_since_is_asked_for_again() {
    let mut world = World::new();
    world.born(0, 64, 0);
    world.ledger.take_unlocated(10);
    let range = Range { pid: PID, addr: BASE, bytes: 8 * MIB };
    world.ledger.set_residency(range, &[(NodeId(0), 8 * MIB)], world.now_ms);
    let again = world.ledger.take_unlocated(10);
    assert_eq!(again, [Range { pid: PID, addr: BASE, bytes: 64 * MIB }]);
}

#[test]
fn a_new_object_begins_as_warm_as_its_site() {
    let mut world = World::new();
    world.born(0, 8, 7);
    for _ in 0..30 {
        world.read(0, 8 << 10, 100);
        world.tick();
    }
    world.born(8, 4, 7);
    world.born(16, 4, 8);
    let heat = |world: &World, mib: u64| {
        let extent = world.ledger.find(PID, BASE + mib * MIB).expect("lives");
        (extent.accesses_per_s(), extent.is_warm)
    };
    let (old, new, other) = (heat(&world, 0), heat(&world, 8), heat(&world, 16));
    // Half the size, half the heat but for one interval without samples; the other site is cold.
    assert!((new.0 / old.0 - 0.45).abs() < 0.06, "{old:?} {new:?}");
    assert_eq!((new.1, other), (true, (0.0, false)));
}

#[test]
fn a_site_that_has_cooled_down_warms_no_newborn() {
    let mut world = World::new();
    world.born(0, 8, 7);
    for _ in 0..30 {
        world.read(0, 8 << 10, 100);
        world.tick();
    }
    (0..60).for_each(|_| world.tick());
    world.born(8, 4, 7);
    let extent = world.ledger.find(PID, BASE + 8 * MIB).expect("lives");
    assert!(extent.accesses_per_s() < 200.0, "{}", extent.accesses_per_s());
}
