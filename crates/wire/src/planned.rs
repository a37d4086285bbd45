//! What a planned run adds to a session: named phases, the table of the plan, waits for moves.
//! In: rows and stops from the daemon; names and entries from the client. Out: the same, across the
//! shared memory. Knows nothing of what a plan is for.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::thread::futex;

use crate::bits::{high32, index, low32};
use crate::layout::{
    ARENA_UNKNOWN, ARENAS_MAX, HEAD_STEP, HEAD_WHOLE, OS_PAGE_BYTES, PHASE_BYTES, PHASE_NAME,
    PHASE_NAME_BYTES, PHASE_NAME_MAX, PHASE_PUBLISHED, PHASE_WAIT_MS_MAX, PHASES_AT, PHASES_MAX,
    PLAN_AT, PLAN_PARTS, PLAN_RANGES, PLAN_ROW_BYTES, PLAN_ROWS_MAX, SPACES, STOPS_MAX, control,
    header,
};
use crate::session::Session;
use crate::site::{half, word};

/// A phase as the program named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseName {
    /// [`phase_hash`] of the whole name.
    pub hash: u64,
    /// The name, at most [`PHASE_NAME_MAX`] bytes of it; invalid UTF-8 is replaced.
    pub name: String,
}

/// Where objects of one site are born. The first of these rows that exists decides: (site, class,
/// phase), (site, class, any), (site, any, phase), (site, any, any).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlanRow {
    /// Hash of the site; 0 is the unknown one.
    pub site: u64,
    /// ceil(log2(bytes in whole OS pages)), or [`crate::layout::PLAN_CLASS_ANY`].
    pub size_class: u8,
    /// [`phase_hash`] of the phase; 0: any.
    pub phase: u64,
    /// For `share` of [`crate::layout::PLAN_SHARE_ALL`] births, evenly spread; for these ranges of
    /// each object of at least [`crate::layout::CUT_BYTES`].
    pub arena: u8,
    /// For the rest.
    pub other: u8,
    /// How much of it goes to `arena`.
    pub share: u8,
    /// Ascending and disjoint; those that are not in use are last.
    pub ranges: [PlanRange; PLAN_RANGES],
}

/// Part of an object, from one of its [`PLAN_PARTS`] parts on up to another; both 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlanRange {
    /// The first.
    pub from: u16,
    /// Behind the last.
    pub to: u16,
}

impl PlanRow {
    /// The bytes in `arena` of an object that lies in two, ascending and disjoint, as the runtime
    /// computes them.
    pub fn ranges_of(&self, bytes: u64) -> impl Iterator<Item = std::ops::Range<u64>> {
        let mut end = 0;
        self.ranges.into_iter().filter_map(move |range| {
            let (from, to) = (part_at(bytes, range.from).max(end), part_at(bytes, range.to));
            let step =
                if to.saturating_sub(from) >= HEAD_WHOLE { HEAD_STEP } else { OS_PAGE_BYTES };
            let (from, to) = ((from / step * step).max(end), to / step * step);
            (from < to).then(|| {
                end = to;
                from..to
            })
        })
    }
}

/// Where a part of an object begins, in whole OS pages: the nearest.
fn part_at(bytes: u64, part: u16) -> u64 {
    let (pages, parts, part) = (bytes / OS_PAGE_BYTES, u64::from(PLAN_PARTS), u64::from(part));
    (pages / parts * part + (pages % parts * part + parts / 2) / parts) * OS_PAGE_BYTES
}

/// A plan that does not fit the session.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// More than the table holds.
    #[error("a plan of {0} rows is too large for a session, which has room for {PLAN_ROWS_MAX}")]
    TooLarge(usize),
    /// The session's memory took no more.
    #[error("the plan cannot be written into a session: {0}")]
    Write(Errno),
}

/// FNV-1a of a phase's name, as the runtime computes it; never 0.
#[must_use]
pub fn phase_hash(name: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, step).max(1)
}

impl Session {
    /// Replaces the plan. `rows` may be in any order; of several with one key the first counts.
    /// `unplanned` is the arena of births without a row; `None`: as without a plan.
    pub fn set_plan(&mut self, rows: &[PlanRow], unplanned: Option<u8>) -> Result<(), PlanError> {
        if rows.len() > PLAN_ROWS_MAX {
            return Err(PlanError::TooLarge(rows.len()));
        }
        let mut rows = rows.to_vec();
        rows.sort();
        let bytes: Vec<u8> = rows.iter().flat_map(encode).collect();
        let generation = self.next_plan_generation();
        let second = index(u64::from(generation % 2)) * PLAN_ROWS_MAX * PLAN_ROW_BYTES;
        let table = index(PLAN_AT) + second;
        // A full memory is then an error and not a SIGBUS.
        self.front().provide(table, bytes.len()).map_err(PlanError::Write)?;
        self.front().write(table, &bytes);
        self.set_byte(control::UNPLANNED_ARENA, unplanned);
        let word = u64::from(generation) << 32 | rows.len() as u64;
        // Pairs with the runtime's acquire load of the word.
        self.control_word(control::PLAN).store(word, Ordering::Release);
        Ok(())
    }

    /// Names the arena of each space: high-bandwidth, low-latency, large-capacity.
    pub fn set_spaces(&self, arenas: [Option<u8>; SPACES]) {
        for (space, arena) in arenas.into_iter().enumerate() {
            self.set_byte(control::SPACE_ARENA + space, arena);
        }
    }

    /// Lets entries into the phases with these hashes wait for [`Session::set_phase_done`], at most
    /// `wait_ms`. At most [`STOPS_MAX`] phases; others do not wait.
    pub fn set_stops(&self, stops: &[u64], wait_ms: u32) {
        let stops = stops.iter().copied().filter(|stop| *stop != 0).chain(std::iter::repeat(0));
        for (index, stop) in stops.take(STOPS_MAX).enumerate() {
            self.control_word(control::STOPS + index * 8).store(stop, Ordering::Relaxed);
        }
        let wait_ms = wait_ms.min(PHASE_WAIT_MS_MAX);
        self.control_half(control::PHASE_WAIT_MS).store(wait_ms, Ordering::Relaxed);
    }

    /// Gives the first `most` large objects of each site a site of their own, at most
    /// [`crate::layout::NUMBERED_MAX`].
    pub fn set_numbered_births(&self, most: u32) {
        self.control_half(control::NUMBERED_BIRTHS).store(most, Ordering::Relaxed);
    }

    /// How often the program entered a phase (modulo 2^32), and the number of the one it is in.
    #[must_use]
    pub fn phase_entered(&self) -> (u32, u32) {
        // Pairs with the runtime's release store.
        let word = self.header_atomic(header::PHASE_ENTERED).load(Ordering::Acquire);
        (high32(word), low32(word))
    }

    /// The moves of the first `entries` entries are done: threads that wait for them go on.
    pub fn set_phase_done(&self, entries: u32) {
        let word: &AtomicU32 = self.control_half(control::PHASE_DONE);
        word.store(entries, Ordering::Release);
        // Fails only for an address that is not mapped, and does nothing if no thread waits.
        let _ = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
    }

    /// A phase, once the client has published it.
    #[must_use]
    pub fn phase_name(&self, number: u32) -> Option<PhaseName> {
        let number = usize::try_from(number).ok().filter(|number| *number < PHASES_MAX)?;
        let entry = self.read_entry::<PHASE_BYTES>(PHASES_AT + (number * PHASE_BYTES) as u64)?;
        let bytes = usize::from(entry[PHASE_NAME_BYTES]);
        if half(&entry, PHASE_PUBLISHED) != 1 || bytes > PHASE_NAME_MAX {
            return None;
        }
        let name = String::from_utf8_lossy(&entry[PHASE_NAME..PHASE_NAME + bytes]);
        Some(PhaseName { hash: word(&entry, 0), name: name.into_owned() })
    }

    /// Sets one byte of a word of the control page that has no other writer.
    fn set_byte(&self, at: usize, arena: Option<u8>) {
        let arena = arena.filter(|arena| usize::from(*arena) < ARENAS_MAX);
        let value = u32::from(arena.unwrap_or(ARENA_UNKNOWN));
        let (word, shift) = (self.control_half(at & !3), (at & 3) * 8);
        let old = word.load(Ordering::Relaxed) & !(0xff << shift);
        word.store(old | value << shift, Ordering::Relaxed);
    }
}

fn encode(row: &PlanRow) -> [u8; PLAN_ROW_BYTES] {
    let mut bytes = [0; PLAN_ROW_BYTES];
    bytes[..8].copy_from_slice(&row.site.to_le_bytes());
    bytes[8..16].copy_from_slice(&row.phase.to_le_bytes());
    bytes[16..20].copy_from_slice(&[row.size_class, row.arena, row.other, row.share]);
    for (to, range) in bytes[24..].chunks_exact_mut(4).zip(&row.ranges) {
        to[..2].copy_from_slice(&range.from.to_le_bytes());
        to[2..].copy_from_slice(&range.to.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn row(ranges: &[(u16, u16)]) -> PlanRow {
        let mut row = PlanRow { share: 128, other: 1, ..PlanRow::default() };
        for (to, (from, end)) in row.ranges.iter_mut().zip(ranges) {
            *to = PlanRange { from: *from, to: *end };
        }
        row
    }

    #[test]
    fn eighths_of_an_object_are_exact_and_large_ranges_are_in_huge_os_pages() {
        const MIB: u64 = 1 << 20;
        let only = |row: PlanRow, bytes| row.ranges_of(bytes).next().expect("a range");
        assert_eq!(only(row(&[(24576, 32768)]), 64 * MIB), 24 * MIB..32 * MIB);
        assert_eq!(only(row(&[(0, 33000)]), 100 * MIB), 0..50 * MIB);
        assert_eq!(row(&[(0, 0)]).ranges_of(64 * MIB).count(), 0);
    }

    proptest! {
        /// Whatever a row says and however large the object: in order, apart, and inside it.
        #[test]
        fn ranges_are_ascending_disjoint_and_inside(
            ranges in proptest::collection::vec((any::<u16>(), any::<u16>()), 0..=PLAN_RANGES),
            bytes in prop_oneof![0u64..1 << 30, any::<u64>()],
        ) {
            let mut end = 0;
            for range in row(&ranges).ranges_of(bytes) {
                prop_assert!(end <= range.start && range.start < range.end);
                prop_assert!(range.end <= bytes && range.start % OS_PAGE_BYTES == 0);
                end = range.end;
            }
        }
    }
}
