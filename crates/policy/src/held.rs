//! Memory that a mover could not move, which is not moved for a while.
//! In: outcomes of moves, the time. Out: which extents are held where they are. Knows nothing of
//! tiers.
//!
//! What another process maps too, and what a device has pinned, stays so for long: without a pause
//! the same move would be asked for at each tick, paid for, and counted on as if it made room.

use std::collections::BTreeMap;

use tiercel_ledger::Extent;
use tiercel_ledger::movement::{Failure, Outcome};

/// After a first failure an extent is not moved for so long, and
const PAUSE_MS: u64 = 1000;
/// twice as long after each further one, up to 64 s: a try a minute costs nothing.
const DOUBLINGS_MAX: u32 = 6;
/// After twice the longest pause without a try, its failures are forgotten.
const KEPT_MS: u64 = 2 * (PAUSE_MS << DOUBLINGS_MAX);
/// Ranges that are remembered at most: 1 MB. What fails beyond that is asked for again.
const HELD_MAX: usize = 1 << 14;

/// Ranges that lately failed to move, by process and address.
#[derive(Debug, Default)]
pub(crate) struct Held {
    ranges: BTreeMap<(u32, u64), Hold>,
    now_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct Hold {
    /// When the last move failed.
    since_ms: u64,
    /// Failures in a row before that one.
    before: u32,
}

impl Hold {
    fn until_ms(&self) -> u64 {
        self.since_ms + (PAUSE_MS << self.before.min(DOUBLINGS_MAX))
    }
}

impl Held {
    /// The time goes on.
    pub(crate) fn tick(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.ranges.retain(|_, hold| now_ms < hold.since_ms + KEPT_MS);
    }

    /// What became of a move, since the last tick.
    pub(crate) fn outcome(&mut self, outcome: &Outcome) {
        let place = (outcome.asked.pid, outcome.asked.addr);
        let kept: u64 = outcome.failed.iter().filter(|(why, _)| is_lasting(*why)).map(bytes).sum();
        if kept * 2 <= outcome.asked.bytes.saturating_sub(outcome.absent_bytes) {
            self.ranges.remove(&place);
            return;
        }
        let before = self.ranges.get(&place).map_or(0, |hold| hold.before + 1);
        if before == 0 && self.ranges.len() >= HELD_MAX {
            return;
        }
        self.ranges.insert(place, Hold { since_ms: self.now_ms, before });
    }

    /// Whether an extent has to stay where it is for now. What was born there since is another.
    pub(crate) fn holds(&self, extent: &Extent) -> bool {
        let hold = self.ranges.get(&(extent.pid, extent.addr));
        hold.is_some_and(|hold| extent.born_ms <= hold.since_ms && self.now_ms < hold.until_ms())
    }
}

fn bytes((_, bytes): &(Failure, u64)) -> u64 {
    *bytes
}

/// Whether the memory itself was the reason, and not its target or its process.
fn is_lasting(failure: Failure) -> bool {
    match failure {
        Failure::Busy
        | Failure::Shared
        | Failure::Permission
        | Failure::Misplaced
        | Failure::Other => true,
        Failure::NoMemory
        | Failure::NoRoom
        | Failure::Unpaired
        | Failure::NoNode
        | Failure::Vanished => false,
    }
}
