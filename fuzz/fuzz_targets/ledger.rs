//! Any history of a program, drained in any order, against the slow obvious model of the ledger's
//! tests: the live objects agree after each part of it, also when records were lost and a resync
//! healed that.
//!
//! ```text
//! parts: steps u8 (of 6 bytes each), most u8, budget u8, losses u8
//! ```

#![no_main]

#[path = "../../crates/ledger/tests/program/mod.rs"]
mod program;

use libfuzzer_sys::fuzz_target;
use program::{PID, Program, THREADS, announced, drain, new_ledger, objects, resize_extents};

/// Thread and kind, a byte each; two numbers of two.
const STEP_BYTES: usize = 6;
/// A ledger's tick, milliseconds.
const TICK_MS: u64 = 2000;

/// Chooses rings by the bytes of a part.
fn picks(bytes: &[u8]) -> Vec<usize> {
    let picks: Vec<usize> = bytes.iter().map(|byte| usize::from(*byte) % THREADS).collect();
    if picks.is_empty() { vec![0] } else { picks }
}

fn step(program: &mut Program, bytes: &[u8]) {
    let word = |at: usize| u64::from(bytes[at]) << 8 | u64::from(bytes[at + 1]);
    program.step((usize::from(bytes[0]) % THREADS, bytes[1], word(2), word(4)));
}

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let (mut program, mut ledger, mut now_ms) = (Program::default(), new_ledger(), 0);
    while let Some(([steps, most, budget, losses], rest)) = data.split_first_chunk() {
        let (steps, rest) = rest.split_at((usize::from(*steps) * STEP_BYTES).min(rest.len()));
        data = rest;
        let picks = picks(steps);
        // What was written before the last tick is read before the next: one sweep of all rings.
        drain(&mut program, &mut ledger, &picks, usize::MAX, &[]);
        steps.chunks_exact(STEP_BYTES).for_each(|bytes| step(&mut program, bytes));
        let is_lossy = losses & 1 == 1;
        if is_lossy {
            let keep: Vec<bool> = (1..8).map(|bit| losses >> bit & 1 == 1).collect();
            drain(&mut program, &mut ledger, &picks, usize::MAX, &keep);
            program.scan(&mut ledger);
        } else {
            drain(&mut program, &mut ledger, &picks, (*most).into(), &[]);
        }
        resize_extents(&mut ledger, (*budget).into(), (*budget).into());
        now_ms += TICK_MS;
        ledger.tick(now_ms);
    }
    drain(&mut program, &mut ledger, &[0], usize::MAX, &[]);
    ledger.tick(now_ms + TICK_MS);
    assert_eq!(objects(&ledger), program.ranges(), "{}", program.log);
    assert_eq!(announced(&mut ledger), program.ranges(), "{}", program.log);
    let (extents, bytes) = ledger.extent_totals();
    assert_eq!(extents, ledger.extents().count() as u64);
    assert_eq!(ledger.tracked_bytes(PID).map(|(live, _)| live), Some(bytes));
});
