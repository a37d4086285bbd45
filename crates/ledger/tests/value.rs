//! What accesses would save in fast memory: by hand, over time, and when extents change.

use tiercel_ledger::{AccessValue, Config, Ledger};
use tiercel_machine::Machine;
use tiercel_wire::{AccessKind, Around, Flags, Record, Sample, Version};

mod valued;
use valued::{ADDR, MIB, PID, machine, sample};

fn ledger(finest_bytes: u64) -> Ledger {
    let tick_ms = 100;
    valued::ledger(Config { tick_ms, finest_bytes, ..Config::default() })
}

fn record(addr: u64, bytes: u64) -> Record {
    let version = Version { carve: 1, generation: 0 };
    let (arena, flags) = (None, Flags(0));
    Record::Born { addr, bytes, site: 0, version, arena, flags, time_ns: 0 }
}

/// Samples every 10 ms for so many ticks of 100 ms.
fn access(ledger: &mut Ledger, addr: u64, ticks: u64) {
    for _ in 0..ticks {
        for nth in 1..=10 {
            ledger.sample(&sample(addr, ledger.now_ms() + nth * 10));
        }
        ledger.tick(ledger.now_ms() + 100);
    }
}

fn value(ledger: &Ledger, addr: u64) -> Option<(f64, [f64; 2])> {
    let extent = ledger.find(PID, addr).expect("lives");
    ledger.value(&extent).map(|value| (value.total_ns, value.ns_per_s))
}

fn is_near(is: f64, want: f64, by: f64) -> bool {
    (is - want).abs() <= want * by
}

#[test]
fn a_sample_is_worth_what_it_would_save() {
    let value = AccessValue::of(&machine()).expect("two tiers");
    let plain = sample(ADDR, 0);
    assert_eq!(value.ns(&plain, true), 1000.0 * 200.0 / 4.0);
    let chased = Sample { around: Some(Around { at_once: 1.0, apart: true }), ..plain };
    assert_eq!(value.ns(&chased, true), 1000.0 * 200.0);
    // Where bandwidths are known, lines without neighbours draw blocks, and stores go back.
    let optane = Machine::builtin("cascadelake-optane").expect("built in").expect("sound");
    let value = AccessValue::of(&optane).expect("two tiers");
    let stored = Sample { kind: AccessKind::Write, ..chased };
    let back = Sample { kind: AccessKind::Dirtied, ..chased };
    let apart = value.ns(&stored, true) - value.ns(&stored, false);
    assert!((apart - value.ns(&back, true)).abs() < 1e-6 && apart > 0.0, "{apart}");
    assert!(AccessValue::of(&Machine::default()).is_none());
}

#[test]
fn what_misses_take_corrects_the_figures() {
    let mut value = AccessValue::of(&machine()).expect("two tiers");
    let of = |node: u16, latency_ns: u32| {
        let around = Some(Around { at_once: 10.0, apart: true });
        Sample { node: Some(node), latency_ns: Some(latency_ns), around, ..sample(ADDR, 0) }
    };
    // The figures say 300 and 100 ns. Others take the bandwidth: what waits for it takes 2000.
    let usual = of(1, 300);
    assert!(is_near(value.ns(&usual, true), 1000.0 * 20.0, 1e-9));
    for _ in 0..10_000 {
        value.observe(&of(1, 2000));
        value.observe(&of(0, 100));
    }
    assert!(is_near(value.ns(&usual, true), 1000.0 * 190.0, 0.02), "{}", value.ns(&usual, true));
    // Lines with neighbours are others, and one sample says little.
    let around = Some(Around { at_once: 10.0, apart: false });
    let beside = Sample { around, ..of(1, 2000) };
    assert!(is_near(value.ns(&beside, true), 1000.0 * 20.0, 1e-9));
    value.observe(&beside);
    assert!(value.ns(&beside, true) < 1000.0 * 30.0, "{}", value.ns(&beside, true));
    // The load ends, and a latency that cannot be is bounded.
    (0..20_000).for_each(|_| value.observe(&usual));
    assert!(is_near(value.ns(&usual, true), 1000.0 * 20.0, 0.05), "{}", value.ns(&usual, true));
    (0..20_000).for_each(|_| value.observe(&of(1, u32::MAX)));
    assert!(value.ns(&usual, true) <= 1000.0 * (20.0 * 30.0));
}

#[test]
fn averages_reach_the_rate_at_once_and_follow_it() {
    let mut ledger = ledger(MIB);
    ledger.apply(PID, &record(ADDR, MIB));
    ledger.tick(100);
    assert_eq!(value(&ledger, ADDR), None);
    // 100 samples a second of 50 us: 5 ms/s.
    access(&mut ledger, ADDR, 4);
    let (total, [short, long]) = value(&ledger, ADDR).expect("hit");
    assert_eq!(total, 40.0 * 50_000.0);
    assert!(is_near(short, 5e6, 0.1) && is_near(long, 5e6, 0.1), "{short} {long}");
    access(&mut ledger, ADDR, 60);
    let (_, [short, long]) = value(&ledger, ADDR).expect("hit");
    assert!(is_near(short, 5e6, 0.1) && is_near(long, 5e6, 0.1), "{short} {long}");
    // Two ticks later the short average has e^-1 of it, the long one e^-(1/8).
    ledger.tick(ledger.now_ms() + 200);
    let (_, later) = value(&ledger, ADDR).expect("hit");
    assert!(is_near(later[0], short * (-1.0f64).exp(), 0.02), "{later:?}");
    assert!(is_near(later[1], long * (-0.125f64).exp(), 0.02), "{later:?}");
    // After eight of the long time constants it is forgotten.
    for _ in 0..140 {
        ledger.tick(ledger.now_ms() + 100);
    }
    assert_eq!(value(&ledger, ADDR), None);
    assert_eq!(ledger.valued_from(0).count(), 0);
}

#[test]
fn what_is_split_keeps_its_sum_and_what_dies_is_gone() {
    let mut ledger = ledger(8 * MIB);
    ledger.apply(PID, &record(ADDR, 64 * MIB));
    ledger.tick(100);
    access(&mut ledger, ADDR, 2);
    let (total, rates) = value(&ledger, ADDR).expect("hit");
    ledger.fit_extents(128 * MIB);
    ledger.tick(300);
    let ids: Vec<_> = ledger.valued_from(0).collect();
    assert_eq!(ids.len(), 8, "extents of 8 MiB");
    let values = ids.iter().map(|id| ledger.value(&ledger.extent(*id).expect("lives")));
    let values: Vec<_> = values.map(|value| value.expect("valued")).collect();
    let sum: f64 = values.iter().map(|value| value.total_ns).sum();
    assert!(is_near(sum, total, 1e-6), "{sum} {total}");
    let rate: f64 = values.iter().map(|value| value.ns_per_s[1]).sum();
    assert!(is_near(rate, rates[1], 0.01), "{rate} {rates:?}");
    let version = Version { carve: 1, generation: 0 };
    let (bytes, flags) = (64 * MIB, Flags(0));
    ledger.apply(PID, &Record::Died { addr: ADDR, bytes, version, flags, time_ns: 0 });
    assert_eq!(ledger.valued_from(0).count(), 0);
}
