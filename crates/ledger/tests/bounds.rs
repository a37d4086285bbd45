//! What a process, a group of processes and a slice of an object table may take, whatever a
//! program says. In: records and tables of hostile programs. Out: what the ledger keeps of them.
//! Knows nothing of the ledger's insides.

use tiercel_ledger::{Bounds, Config, Ledger};
use tiercel_wire::{Flags, ObjectSnapshot, Record, Version};

const OS_PAGE: u64 = 4096;
const VERSION: Version = Version { carve: 1, generation: 0 };

fn born(page: u64, site: u32) -> Record {
    let (addr, bytes, version) = (page * OS_PAGE, OS_PAGE, VERSION);
    Record::Born { addr, bytes, site, version, arena: None, flags: Flags(0), time_ns: 0 }
}

fn died(page: u64) -> Record {
    let (addr, bytes, version) = (page * OS_PAGE, OS_PAGE, VERSION);
    Record::Died { addr, bytes, version, flags: Flags(0), time_ns: 0 }
}

fn object(page: u64) -> ObjectSnapshot {
    let (addr, bytes, version) = (page * OS_PAGE, OS_PAGE, VERSION);
    ObjectSnapshot { addr, bytes, site: 3, version, arena: None, flags: Flags(0) }
}

/// A ledger of processes, each in its group.
fn ledger(config: Config, processes: &[(u32, u32)]) -> Ledger {
    let mut ledger = Ledger::new(config, 0).expect("a good config");
    for (pid, group) in processes {
        ledger.process_born_in(*pid, *group).expect("new");
    }
    ledger
}

fn extents(ledger: &Ledger, pid: u32) -> usize {
    ledger.ranges_of(pid).count()
}

#[test]
fn a_resync_adopts_no_more_objects_than_a_process_may_have() {
    let config = Config { process_extents_max: 3, ..Config::default() };
    let mut ledger = ledger(config, &[(1, 0)]);
    ledger.apply(1, &born(16, 1));
    let objects: Vec<_> = (100..110).map(object).collect();
    ledger.resync_slice(1, 0..u64::MAX, &objects, usize::MAX, 0);
    assert_eq!(extents(&ledger, 1), 3);
    let counts = ledger.tick(2000).counts;
    assert_eq!((counts.healed_births, counts.births_refused), (3, 7));
}

#[test]
fn a_slice_is_bounded_by_what_the_ledger_knows_as_well() {
    let mut ledger = ledger(Config::default(), &[(1, 0)]);
    (0..10).for_each(|nth| ledger.apply(1, &born(16 + 8 * nth, 1)));
    let slice = ledger.resync_slice(1, 0..u64::MAX, &[], 4, 0);
    assert_eq!((slice.next, slice.work), ((16 + 8 * 4) * OS_PAGE, 4));
    assert_eq!(extents(&ledger, 1), 6);
    let slice = ledger.resync_slice(1, slice.next..u64::MAX, &[], 6, 0);
    assert_eq!((slice.next, slice.work), (u64::MAX, 6));
    assert_eq!(extents(&ledger, 1), 0);
}

#[test]
fn a_large_process_is_forgotten_bit_by_bit() {
    let mut ledger = ledger(Config::default(), &[(1, 0)]);
    (0..10_000).for_each(|nth| ledger.apply(1, &born(16 + nth, 1)));
    ledger.tick(2000);
    ledger.process_exited(1);
    let left = |ledger: &Ledger| ledger.extents().filter(|extent| extent.pid == 0).count();
    assert_eq!(left(&ledger), 10_000 - 4096);
    // Another process may get its number meanwhile.
    ledger.process_born_in(1, 0).expect("it is free");
    ledger.apply(1, &born(16, 1));
    assert_eq!([5000, 5000, 5000].map(|max| ledger.forget_exited(max)), [5000, 904, 0]);
    assert_eq!((left(&ledger), extents(&ledger, 1)), (0, 1));
}

#[test]
fn a_group_has_no_more_than_its_bounds() {
    let of_group = Bounds { extents: 3, sites: 4, early: 2 };
    let config = Config { of_group, ..Config::default() };
    let mut ledger = ledger(config, &[(1, 10), (2, 10), (3, 11)]);
    for pid in [1, 2, 3] {
        (16..18).for_each(|page| ledger.apply(pid, &born(page, 1)));
        // What was never born: it is remembered, for two ticks.
        (40..42).for_each(|page| ledger.apply(pid, &died(page)));
        ledger.apply(pid, &born(60, 3));
    }
    assert_eq!([1, 2, 3].map(|pid| extents(&ledger, pid)), [3, 0, 3]);
    assert_eq!(ledger.site_at(1, 60 * OS_PAGE), Some(3));
    let counts = ledger.tick(2000).counts;
    assert_eq!((counts.births_refused, counts.early_forgotten), (3, 2));
    assert_eq!(counts.sites_refused, 3, "the first process has all that the group may have");
    // What one gives back another may have.
    ledger.process_exited(1);
    ledger.tick(4000);
    ledger.apply(2, &born(16, 1));
    ledger.apply(2, &died(40));
    assert_eq!((extents(&ledger, 2), ledger.site_at(2, 16 * OS_PAGE)), (1, Some(1)));
    assert_eq!(ledger.tick(6000).counts.early_forgotten, 0);
}

#[test]
fn what_came_before_its_time_waits_for_a_process_that_is_behind() {
    let lives = |is_behind: bool| {
        let mut ledger = ledger(Config::default(), &[(1, 0)]);
        ledger.apply(1, &died(16));
        for tick in 1..4 {
            if is_behind {
                ledger.process_behind(1);
            }
            ledger.tick(tick * 2000);
        }
        ledger.apply(1, &born(16, 1));
        extents(&ledger, 1) == 1
    };
    assert!(!lives(true), "its death was forgotten");
    assert!(lives(false), "nothing is remembered for ever");
}
