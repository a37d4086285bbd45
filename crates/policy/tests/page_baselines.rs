//! CLOCK-DWF, 2PP and turns: examples worked out by hand, and any order of accesses, births and
//! deaths.

use proptest::prelude::*;
use std::collections::BTreeMap;
use tiercel_policy::pages::baseline::{
    ClockDwf, ClockRules, Interleave, KnownObject, MeanOf, OsPages, PageAccess, PageBaseline,
    PageStep, TwoPhase,
};

const MS: u64 = 1_000_000;

/// `+3` first in fast memory, `-3` in slow memory; `^3`, `v3`: moved up, down.
fn shown(steps: &[PageStep]) -> String {
    let one = |step: &PageStep| {
        let sign = match (step.is_first, step.is_fast) {
            (true, true) => '+',
            (true, false) => '-',
            (false, true) => '^',
            (false, false) => 'v',
        };
        format!("{sign}{}", step.os_page)
    };
    steps.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// Accesses like `r0 w1`; what was done.
fn driven(baseline: &mut dyn PageBaseline, accesses: &str) -> String {
    let mut steps = Vec::new();
    for one in accesses.split_whitespace() {
        let (kind, os_page) = one.split_at(1);
        let access = if kind == "w" { PageAccess::WriteBack } else { PageAccess::Read };
        baseline.access(os_page.parse().unwrap(), access, 1.0, &mut steps);
    }
    shown(&steps)
}

#[test]
fn interleave_takes_turns_while_there_is_room() {
    let mut turns = Interleave::new(10, 3);
    assert_eq!(driven(&mut turns, "r0 w1 r2 r0 r1 r3"), "+0 -1 +2 -3");
    assert_eq!(driven(&mut turns, "r4 r5 r6 r7"), "+4 -5 -6 -7");
    turns.died(0..1, false);
    assert_eq!(driven(&mut turns, "r0"), "", "the heap kept it");
    turns.died(0..1, true);
    assert_eq!(driven(&mut turns, "r8"), "+8");
}

#[test]
fn clock_dwf_places_by_the_first_access_and_moves_what_is_written() {
    let mut clock = ClockDwf::new(10, 2, ClockRules::default());
    assert_eq!(driven(&mut clock, "r0 w1 r0 r1 w1"), "-0 +1");
    assert_eq!(driven(&mut clock, "w0"), "^0");
    // Full: 0 is clean since it came, 1 was written afterwards and is passed over.
    assert_eq!(driven(&mut clock, "w2"), "v0 +2");
    assert_eq!(driven(&mut clock, "r3"), "-3", "a read demotes nothing");
}

#[test]
fn clock_dwf_cleans_counts_and_ages() {
    // Pages 0 and 1 are dirty, 2 is not: the hand cleans 0 and 1 and stops at 2.
    let mut clock = ClockDwf::new(10, 3, ClockRules::default());
    assert_eq!(driven(&mut clock, "w0 w1 w2 w0 w1"), "+0 +1 +2");
    assert_eq!(driven(&mut clock, "w3"), "v2 +3");
    // Looks so far: freq 0, 0, 0. Now at 0: freq 1 is above the mean 1/4, it ages; 1 likewise: mean
    // 2/5; 3 has 0, which is not above the mean.
    assert_eq!(driven(&mut clock, "w4"), "v3 +4");
    assert_eq!(driven(&mut clock, "w5 w6 w7 w8 w9"), "v4 +5 v5 +6 v6 +7 v7 +8 v8 +9");
    // Each of these aged 0 and 1 once more: 6 times so far. Two more, and the next takes 0.
    assert_eq!(driven(&mut clock, "w2 w3"), "v9 ^2 v2 ^3");
    assert_eq!(driven(&mut clock, "w4"), "v0 ^4");
}

#[test]
fn clock_dwf_as_configured() {
    let rules = ClockRules { age_max: 0, mean_of: MeanOf::Resident };
    let mut clock = ClockDwf::new(10, 2, rules);
    assert_eq!(driven(&mut clock, "w0 w1 w0 w1"), "+0 +1");
    // Cleaned in the first round; without ages the next look takes 0, though it was written more.
    assert_eq!(driven(&mut clock, "w2"), "v0 +2");
    let mut none = ClockDwf::new(10, 0, rules);
    assert_eq!(driven(&mut none, "w0 w0 r1"), "-0 -1", "no room at all");
}

fn known(os_pages: OsPages, benefit: f64) -> KnownObject {
    KnownObject { os_pages, benefit }
}

#[test]
fn two_phase_places_by_benefit_per_byte_and_moves_divergent_pages_when_room_is_free() {
    // 4 + 2 of 7 OS pages; the third gains less per byte and does not fit, the last gains nothing.
    let objects = [known(0..4, 40.0), known(4..8, 8.0), known(8..10, 18.0), known(10..12, 0.0)];
    let mut two = TwoPhase::new(&objects, 12, 7);
    for object in &objects {
        two.born(object.os_pages.clone());
    }
    assert_eq!(driven(&mut two, "r0 w4 r8 w10"), "+0 -4 +8 -10");
    assert_eq!(driven(&mut two, "r5 r5 w5 r6 r6 r6 r7"), "-5 -6 -7");
    let tick = |two: &mut TwoPhase, ms: u64| {
        let mut steps = Vec::new();
        two.tick(ms * MS, &mut steps);
        shown(&steps)
    };
    assert_eq!(tick(&mut two, 9), "");
    // One OS page is free beside what placed objects will touch: 5 and 4 were written once, 5 was
    // read as well.
    assert_eq!(tick(&mut two, 10), "^5");
    assert_eq!(tick(&mut two, 11), "", "every 10 ms");
    assert_eq!(tick(&mut two, 20), "", "the rest is kept for 1, 2, 3 and 9");
    // When the third goes, its room stays its own: it may be born again.
    two.died(8..10, true);
    assert_eq!(tick(&mut two, 30), "");
    assert_eq!(driven(&mut two, "r1 r2 r3 r8 r9"), "+1 +2 +3 +8 +9");
    // What dies is watched no more.
    two.died(4..8, true);
    assert_eq!(tick(&mut two, 40), "");
}

#[derive(Clone, Debug)]
enum Act {
    Access(u64, bool),
    Born(u64),
    Died(u64, bool),
    Tick,
}

/// Of six objects of eight OS pages.
fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (0u64..48, any::<bool>()).prop_map(|(page, write)| Act::Access(page, write)),
        1 => (0u64..6).prop_map(Act::Born),
        1 => (0u64..6, any::<bool>()).prop_map(|(object, back)| Act::Died(object, back)),
        1 => Just(Act::Tick),
    ]
}

fn object(at: u64) -> OsPages {
    at * 8..at * 8 + 8
}

/// Follows what a baseline does and checks it against an obvious model.
fn check(baseline: &mut dyn PageBaseline, acts: &[Act], room: u64) -> Result<(), TestCaseError> {
    let (mut lies, mut now_ns): (BTreeMap<u64, bool>, u64) = (BTreeMap::new(), 0);
    for act in acts {
        let mut steps = Vec::new();
        match act {
            Act::Access(page, is_write) => {
                let kind = if *is_write { PageAccess::WriteBack } else { PageAccess::Read };
                baseline.access(*page, kind, 1.0, &mut steps);
            }
            Act::Born(at) => baseline.born(object(*at)),
            Act::Died(at, goes_back) => {
                baseline.died(object(*at), *goes_back);
                lies.retain(|page, _| !(*goes_back && object(*at).contains(page)));
            }
            Act::Tick => {
                now_ns += 10 * MS;
                baseline.tick(now_ns, &mut steps);
            }
        }
        for step in steps {
            let before = lies.insert(step.os_page, step.is_fast);
            prop_assert_eq!(before.is_none(), step.is_first);
            prop_assert_ne!(before, Some(step.is_fast), "it was there");
            let fast = lies.values().filter(|is_fast| **is_fast).count() as u64;
            prop_assert!(fast <= room, "{} of {}", fast, room);
        }
        if let Act::Access(page, _) = act {
            prop_assert!(lies.contains_key(page), "what is touched lies somewhere");
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn none_exceeds_its_room_or_moves_what_is_not_there(
        acts in prop::collection::vec(any_act(), 0..300),
        room in 0u64..60,
        age_max in 0u8..10,
        forgets: bool,
        benefits in prop::collection::vec(-1.0f64..10.0, 6),
    ) {
        let mean_of = if forgets { MeanOf::Resident } else { MeanOf::Looks };
        check(&mut ClockDwf::new(48, room, ClockRules { age_max, mean_of }), &acts, room)?;
        check(&mut Interleave::new(48, room), &acts, room)?;
        let known: Vec<KnownObject> =
            (0..).zip(&benefits).map(|(at, benefit)| known(object(at), *benefit)).collect();
        check(&mut TwoPhase::new(&known, 48, room), &acts, room)?;
    }

    #[test]
    fn every_write_is_served_by_fast_memory_with_clock_dwf(
        acts in prop::collection::vec((0u64..48, any::<bool>()), 0..300), room in 1u64..60,
    ) {
        let mut clock = ClockDwf::new(48, room, ClockRules::default());
        let mut lies = BTreeMap::new();
        for (page, is_write) in acts {
            let kind = if is_write { PageAccess::WriteBack } else { PageAccess::Read };
            let mut steps = Vec::new();
            clock.access(page, kind, 1.0, &mut steps);
            lies.extend(steps.into_iter().map(|step| (step.os_page, step.is_fast)));
            prop_assert!(!is_write || lies[&page]);
        }
    }
}
