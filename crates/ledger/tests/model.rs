//! Random true histories against a slow obvious model.
//! In: random operations of several threads, in the versions the runtime would give them. Out:
//! whether the ledger's live set is the program's. Knows nothing of the ledger's insides.
//!
//! Each thread's records keep their order; threads are drained in any order, and a tick may find
//! them half drained. That is the promise of the rings, and all the ledger may rely on.

mod program;

use program::{
    OS_PAGE, PID, Program, Step, THREADS, TICK_NS, announced, drain, new_ledger, objects, read,
    resize_extents,
};
use proptest::prelude::*;
use tiercel_ledger::Ledger;
use tiercel_wire::{Flags, Record, Timeline, Version};

fn steps() -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec((0..THREADS, any::<u8>(), any::<u64>(), any::<u64>()), 1..60)
}

fn raw_records() -> impl Strategy<Value = Vec<([u64; 4], u8, u64, u64)>> {
    proptest::collection::vec((any::<[u64; 4]>(), 0u8..8, 0u64..40, 1u64..20), 0..100)
}

fn picks() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(0..THREADS, 1..40)
}

proptest! {
    // More with PROPTEST_CASES.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(2000)))]

    #[test]
    fn any_interleaving_ends_in_the_programs_objects(
        epochs in proptest::collection::vec((steps(), picks(), 0usize..60, 0u64..80), 1..5),
    ) {
        let mut program = Program::default();
        let mut ledger = new_ledger();
        let mut now_ms = 0;
        for (steps, picks, most, budget) in &epochs {
            // What was written before the last tick is read before the next: one sweep of all
            // rings.
            drain(&mut program, &mut ledger, picks, usize::MAX, &[]);
            steps.iter().for_each(|step| program.step(*step));
            drain(&mut program, &mut ledger, picks, *most, &[]);
            resize_extents(&mut ledger, *budget, *budget);
            now_ms += 2000;
            ledger.tick(now_ms);
        }
        drain(&mut program, &mut ledger, &[0], usize::MAX, &[]);
        ledger.tick(now_ms + 2000);
        prop_assert_eq!(objects(&ledger), program.ranges(), "{}", program.log);
        prop_assert_eq!(announced(&mut ledger), program.ranges(), "{}", program.log);
        let (extents, bytes) = ledger.extent_totals();
        prop_assert_eq!(extents, ledger.extents().count() as u64);
        prop_assert_eq!(bytes, ledger.extents().map(|extent| extent.bytes).sum::<u64>());
        prop_assert_eq!(ledger.tracked_bytes(PID).map(|(live, _)| live), Some(bytes));
        // The ledger asserts that nothing of its group is left.
        ledger.process_exited(PID);
        prop_assert_eq!(ledger.extents().count(), 0);
    }

    #[test]
    fn a_resync_heals_any_loss(
        before in steps(),
        after in steps(),
        picks in picks(),
        keep in proptest::collection::vec(any::<bool>(), 1..20),
    ) {
        let mut program = Program::default();
        let mut ledger = new_ledger();
        before.iter().for_each(|step| program.step(*step));
        drain(&mut program, &mut ledger, &picks, usize::MAX, &keep);
        ledger.tick(2000);
        program.scan(&mut ledger);
        ledger.tick(4000);
        prop_assert_eq!(objects(&ledger), program.ranges(), "{}", program.log);
        // And the accounting goes on from there.
        after.iter().for_each(|step| program.step(*step));
        drain(&mut program, &mut ledger, &picks, usize::MAX, &[]);
        ledger.tick(6000);
        prop_assert_eq!(objects(&ledger), program.ranges(), "{}", program.log);
        prop_assert_eq!(announced(&mut ledger), program.ranges(), "{}", program.log);
        let (extents, bytes) = ledger.extent_totals();
        prop_assert_eq!(extents, ledger.extents().count() as u64);
        prop_assert_eq!(bytes, ledger.extents().map(|extent| extent.bytes).sum::<u64>());
    }

    #[test]
    fn records_after_a_snapshot_are_sorted_out(
        first in steps(),
        during in steps(),
        picks in picks(),
    ) {
        // The daemon drains, then reads the table; what is written in between is in both.
        let mut program = Program::default();
        let mut ledger = new_ledger();
        first.iter().for_each(|step| program.step(*step));
        drain(&mut program, &mut ledger, &picks, usize::MAX, &[]);
        during.iter().for_each(|step| program.step(*step));
        program.scan(&mut ledger);
        drain(&mut program, &mut ledger, &picks, usize::MAX, &[]);
        ledger.tick(2000);
        prop_assert_eq!(objects(&ledger), program.ranges(), "{}", program.log);
    }

    #[test]
    fn a_sliced_scan_heals_any_loss_while_the_program_goes_on(
        before in steps(),
        picks in picks(),
        keep in proptest::collection::vec(any::<bool>(), 1..20),
        slices in proptest::collection::vec(
            (steps(), 0usize..60, 1usize..6, 1usize..8, any::<bool>(), 0u64..40), 1..40),
        is_ordered in any::<bool>(),
        held in 0u64..40,
    ) {
        let mut program = Program::default();
        let mut ledger = new_ledger();
        before.iter().for_each(|step| program.step(*step));
        let take = |program: &mut Program, ledger: &mut Ledger, most, keep: &[bool], held: u64| {
            if !is_ordered {
                return drain(program, ledger, &picks, most, keep);
            }
            // Some are held back, although all of before may have been drained.
            read(program, &picks, most, keep, |record| ledger.deliver(PID, record));
            ledger.settle(PID, program.now_ns.saturating_sub(held * TICK_NS));
        };
        // Some records are lost, and all others are drained; then the scan begins.
        take(&mut program, &mut ledger, usize::MAX, &keep, held);
        ledger.records_lost(PID);
        let (mut from, mut now_ms) = (0, 0);
        for (steps, most, objects, work, is_tick, held) in &slices {
            if from < u64::MAX {
                program.log += &format!("scan from {}\n", from / OS_PAGE);
                from = program.scan_slice(&mut ledger, from, *objects, *work);
            }
            steps.iter().take(8).for_each(|step| program.step(*step));
            take(&mut program, &mut ledger, *most, &[], *held);
            if *is_tick {
                // Records of before it may come after it.
                ledger.process_behind(PID);
                now_ms += 2000;
                ledger.tick(now_ms);
            }
        }
        while from < u64::MAX {
            from = program.scan_slice(&mut ledger, from, 3, 4);
        }
        take(&mut program, &mut ledger, usize::MAX, &[], 0);
        ledger.tick(now_ms + 2000);
        prop_assert_eq!(objects(&ledger), program.ranges(), "{}", program.log);
        prop_assert_eq!(announced(&mut ledger), program.ranges(), "{}", program.log);
    }

    #[test]
    fn no_records_make_it_panic(
        records in raw_records(),
    ) {
        let mut ledger = new_ledger();
        for ([a, b, c, d], kind, page, pages) in records {
            // Addresses collide, everything else is random.
            let kind = u64::from(kind) << 48 | d & !(0xff << 48);
            let raw = [page * OS_PAGE, (pages * OS_PAGE) | (a << 56), b ^ c, kind];
            if let Some(record) = Record::decode(&raw, &Timeline::at(0)) {
                ledger.apply(PID, &record);
            }
        }
        ledger.tick(2000);
        let found = objects(&ledger);
        prop_assert_eq!(announced(&mut ledger), found);
        ledger.process_exec(PID);
        ledger.tick(4000);
        prop_assert_eq!(ledger.extent_totals(), (0, 0));
        prop_assert_eq!(ledger.tracked_bytes(PID).map(|(now, _)| now), Some(0));
    }
}

/// Records state sizes of up to 2^56 bytes: 256 of them are more than a number holds.
#[test]
fn sizes_beyond_all_memory_are_counted_to_the_largest_number() {
    let mut ledger = new_ledger();
    let bytes = (1 << 56) - OS_PAGE;
    for carve in 0..300 {
        let version = Version { carve, generation: 0 };
        let (site, arena, flags) = (1, None, Flags(0));
        let (addr, time_ns) = (1 << 30, 0);
        ledger.apply(PID, &Record::Born { addr, bytes, site, version, arena, flags, time_ns });
    }
    ledger.tick(2000);
    ledger.tick(4000);
    assert_eq!(ledger.totals().births_refused_bytes, u64::MAX);
}
