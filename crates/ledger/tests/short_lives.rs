//! Lives that end before a decision could move them: their value by site, and the room they take.

use tiercel_ledger::{Attributed, Config, Ledger, ShortLives};
use tiercel_machine::NodeId;
use tiercel_wire::{Flags, Record, Version};

mod valued;
use valued::{ADDR, MIB, PID, sample};

const MS: u64 = 1_000_000;

/// Milliseconds of a tick, and of the unit in which lives are short.
const TICK_MS: u64 = 100;

fn ledger() -> Ledger {
    let mut ledger = valued::ledger(Config { tick_ms: TICK_MS, ..Config::default() });
    ledger.set_arenas(&[Some(NodeId(0)), Some(NodeId(1))]);
    ledger
}

fn born(ledger: &mut Ledger, (addr, bytes): (u64, u64), site: u32, arena: u8, at_ms: u64) {
    let version = Version { carve: u32::try_from(at_ms).expect("small") + 1, generation: 0 };
    let (arena, flags, time_ns) = (Some(arena), Flags(0), at_ms * MS);
    ledger.deliver(PID, Record::Born { addr, bytes, site, version, arena, flags, time_ns });
}

fn died(ledger: &mut Ledger, (addr, bytes): (u64, u64), born_ms: u64, at_ms: u64) {
    let version = Version { carve: u32::try_from(born_ms).expect("small") + 1, generation: 0 };
    let (flags, time_ns) = (Flags(0), at_ms * MS);
    ledger.deliver(PID, Record::Died { addr, bytes, version, flags, time_ns });
}

fn close(ledger: &mut Ledger, now_ms: u64) {
    let mut attributed: Vec<Attributed> = Vec::new();
    ledger.advance(now_ms);
    ledger.settle(PID, now_ms * MS);
    ledger.attribute(&mut attributed);
    ledger.forget_before(now_ms * MS);
    ledger.tick(now_ms);
}

fn of_site(ledger: &Ledger, site: u32) -> Option<ShortLives> {
    ledger.short_lives(PID).into_iter().find(|lives| lives.site == site)
}

/// Ten rounds a tick: an object of a MiB lives for 8 of 10 ms; two samples hit it.
fn churn(ledger: &mut Ledger, ticks: u64) {
    for round in 0..ticks * 10 {
        let at_ms = round * 10;
        born(ledger, (ADDR, MIB), 7, 1, at_ms);
        ledger.observe(sample(ADDR, at_ms + 2));
        ledger.observe(sample(ADDR + 4096, at_ms + 4));
        died(ledger, (ADDR, MIB), at_ms, at_ms + 8);
        if round % 10 == 9 {
            close(ledger, at_ms + 10);
        }
    }
}

#[test]
fn what_dies_between_ticks_counts_for_its_site() {
    let mut ledger = ledger();
    churn(&mut ledger, 20);
    let lives = of_site(&ledger, 7).expect("samples hit it");
    assert_eq!(lives.swing_bytes, MIB, "none or one at a time");
    // 20 ticks of 10 objects, but for those before the first sample was read.
    let all = 20 * 10 * MIB;
    assert!(lives.ended_bytes > all * 9 / 10 && lives.ended_bytes <= all);
    assert_eq!(lives.ended_on, [(NodeId(1), lives.ended_bytes)], "by the arena");
    assert_eq!(lives.live_bytes, 0, "at the end of the tick");
    let lived_s = lives.byte_s / lives.ended_bytes as f64;
    assert!((lived_s - 0.008).abs() < 1e-4, "{lived_s} s a byte");
    // 1000 accesses of 200 ns, four at once: 50 us a sample, 200 samples a second.
    let want = 200.0 * 50_000.0;
    assert!((lives.ns_per_s[1] / want - 1.0).abs() < 0.2, "{} ns/s", lives.ns_per_s[1]);
    assert!(lives.deviation[1] > 0.0 && lives.deviation[1] < lives.ns_per_s[1]);
}

#[test]
fn a_long_life_is_an_extent_and_no_part_of_this() {
    let mut ledger = ledger();
    let long = (ADDR + (64 << 20), 4 * MIB);
    born(&mut ledger, long, 7, 1, 1);
    for tick in 0..20 {
        ledger.observe(sample(long.0, tick * TICK_MS + 50));
        close(&mut ledger, (tick + 1) * TICK_MS);
    }
    died(&mut ledger, long, 1, 20 * TICK_MS + 1);
    close(&mut ledger, 21 * TICK_MS);
    assert_eq!(of_site(&ledger, 7), None, "it lived for two seconds");
}

#[test]
fn what_no_sample_hits_takes_no_room_here() {
    let mut ledger = ledger();
    for at_ms in (0..1000).step_by(10) {
        born(&mut ledger, (ADDR, MIB), 7, 1, at_ms);
        died(&mut ledger, (ADDR, MIB), at_ms, at_ms + 8);
    }
    close(&mut ledger, 1000);
    assert_eq!(ledger.short_lives(PID), Vec::new());
}
