//! Objects that fall into parts after they were born. In: one object, its parts. Out: what lives,
//! and who gets which samples. Knows nothing of the ledger's insides.

use tiercel_ledger::{Config, Ledger};
use tiercel_wire::{AccessKind, Flags, ObjectSnapshot, Record, Sample, Version};

const OS_PAGE: u64 = 4096;
const VERSION: Version = Version { carve: 5, generation: 0 };
const ADDR: u64 = 64 * OS_PAGE;
const PARTS: [(u64, u64, u32); 3] = [
    (ADDR, OS_PAGE, 7),
    (ADDR + OS_PAGE, 4 * OS_PAGE, 61_440),
    (ADDR + 5 * OS_PAGE, 3 * OS_PAGE, 7),
];

fn born() -> Record {
    let (bytes, site, version) = (8 * OS_PAGE, 7, VERSION);
    Record::Born { addr: ADDR, bytes, site, version, arena: None, flags: Flags::MAPPED, time_ns: 5 }
}

fn died() -> Record {
    let (bytes, version) = (8 * OS_PAGE, VERSION);
    Record::Died { addr: ADDR, bytes, version, flags: Flags::MAPPED, time_ns: 50 }
}

fn ledger() -> Ledger {
    let mut ledger = Ledger::new(Config::default(), 0).expect("a good config");
    ledger.process_born(1).expect("new");
    ledger
}

fn sites(ledger: &Ledger) -> Vec<(u64, u32)> {
    let all = ledger.ranges_of(1);
    all.map(|range| (range.end - range.start, ledger.site_at(1, range.start).unwrap())).collect()
}

fn sample(page: u64) -> Sample {
    Sample {
        from_ns: 1 << 40,
        until_ns: 1 << 40,
        pid: 1,
        tid: 1,
        addr: ADDR + page * OS_PAGE,
        kind: AccessKind::Read,
        latency_ns: None,
        node: None,
        weight: 1,
        around: None,
        cpu: None,
        by: None,
    }
}

#[test]
fn the_parts_live_and_die_as_the_whole() {
    let mut ledger = ledger();
    ledger.apply(1, &born());
    ledger.tick(10);
    ledger.divide_object(1, ADDR, VERSION, &PARTS);
    let expect = [(OS_PAGE, 7), (4 * OS_PAGE, 61_440), (3 * OS_PAGE, 7)];
    assert_eq!(sites(&ledger), expect);
    assert_eq!(ledger.sample(&sample(3)).map(|hit| hit.site), Some(61_440));
    assert_eq!(ledger.sample(&sample(6)).map(|hit| hit.site), Some(7));
    ledger.tick(20);
    let totals = ledger.totals();
    assert_eq!((totals.objects_born, totals.born_bytes), (3, 8 * OS_PAGE));
    // A table that has the parts changes nothing; one that has the whole is never passed on.
    let part = |&(addr, bytes, site): &(u64, u64, u32)| {
        let (version, flags) = (VERSION, Flags::MAPPED);
        ObjectSnapshot { addr, bytes, site, version, arena: None, flags }
    };
    let table: Vec<_> = PARTS.iter().map(part).collect();
    ledger.resync_slice(1, 0..u64::MAX, &table, usize::MAX, 30);
    assert_eq!(sites(&ledger), expect);
    ledger.apply(1, &died());
    assert!(sites(&ledger).is_empty(), "{:?}", sites(&ledger));
}

#[test]
fn an_access_of_before_belongs_to_its_part() {
    let mut ledger = ledger();
    ledger.apply(1, &born());
    ledger.tick(10);
    ledger.divide_object(1, ADDR, VERSION, &PARTS);
    // Seen between a time before the birth and now, or at an instant since.
    for from_ns in [0, 6] {
        let early = Sample { from_ns, until_ns: 9_000_000, ..sample(3) };
        assert_eq!(ledger.sample(&early).map(|hit| hit.site), Some(61_440), "{from_ns}");
    }
    assert_eq!(ledger.totals().objects_ephemeral, 0);
}

#[test]
fn a_child_has_what_was_born_before_it() {
    let mut ledger = ledger();
    ledger.apply(1, &born());
    ledger.divide_object(1, ADDR, VERSION, &PARTS);
    let found = ledger.objects_before(1, 1, 9);
    let found: Vec<_> = found.iter().map(|one| (one.addr, one.bytes, one.site)).collect();
    assert_eq!(found, PARTS);
    assert_eq!(ledger.objects_before(1, 1, 2).len(), 2);
    assert!(ledger.objects_before(7, 1, 2).is_empty());
    let late = Record::Born {
        addr: ADDR * 9,
        bytes: OS_PAGE,
        site: 1,
        version: VERSION,
        arena: None,
        flags: Flags(0),
        time_ns: 900_000_000,
    };
    ledger.apply(1, &late);
    assert_eq!([800, 1000].map(|ms| ledger.objects_before(1, ms, 9).len()), [3, 4]);
}

#[test]
fn what_is_gone_or_another_object_is_not_divided() {
    let mut ledger = ledger();
    ledger.divide_object(1, ADDR, VERSION, &PARTS);
    ledger.divide_object(2, ADDR, VERSION, &PARTS);
    ledger.apply(1, &born());
    ledger.divide_object(1, ADDR, Version { carve: 6, generation: 0 }, &PARTS);
    assert_eq!(sites(&ledger), [(8 * OS_PAGE, 7)]);
    // Parts that reach beyond it are none of it.
    ledger.divide_object(1, ADDR, VERSION, &[(ADDR, OS_PAGE, 9), (ADDR, 9 * OS_PAGE, 10)]);
    assert_eq!(sites(&ledger), [(OS_PAGE, 9)]);
}
