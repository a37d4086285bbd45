//! Large births that got room of the best tier: what of it is not touched yet is taken, too.
//! In: births and heads of objects, what lives and where it lies. Out: bytes that are still to be
//! touched. Knows nothing of budgets.
//!
//! ```text
//! |<-- touched -->|<-- to be touched -->|<--- rest of the object, in another memory --->|
//!  resident        promised: it would be granted a second time, and then both be used
//! ```
//! A program that allocates much and touches little keeps room from others for [`GRACE_MS`].

use std::collections::BTreeMap;
use std::ops::Range;
use tiercel_ledger::{Extent, Ledger};
use tiercel_machine::NodeId;
use tiercel_wire::Version;

/// How long memory is promised. Chosen, not measured: what a program fills at all it fills within
/// seconds; the kernel hands out a GiB in 0.3 s.
const GRACE_MS: u64 = 30_000;

/// How long a birth may be unknown to the ledger, which takes records in the order of time. Chosen:
/// a tick.
const UNSETTLED_MS: u64 = 2000;

/// Births of one process that are promised room, the youngest: as many as the runtime gives heads.
/// 40 bytes each.
const HEADS_MAX: usize = 256;

/// The smallest that counts: what threads keep for their next births, `TCL_HEADS_FROM_BYTES`
/// without its OS page. Smaller ones are touched at once.
const LARGE_BYTES: u64 = 256 << 10;

/// The heads of one process, by first byte.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    heads: BTreeMap<u64, Head>,
    /// Arenas of the best tier, which are the first ones.
    fast_arenas: u8,
    /// What of them is still to be touched, as of the last count.
    pub(crate) promised_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    bytes: u64,
    version: Version,
    since_ms: u64,
    /// The ledger has known it.
    is_settled: bool,
}

impl Heads {
    /// Of a process whose first arenas are memory of the best tier.
    pub(crate) fn of(fast_arenas: usize) -> Heads {
        let fast_arenas = u8::try_from(fast_arenas).unwrap_or(u8::MAX);
        Heads { fast_arenas, ..Heads::default() }
    }

    /// The first bytes of an object, or all, were born in an arena.
    pub(crate) fn born(&mut self, at: (u64, Version), bytes: u64, arena: Option<u8>, now_ms: u64) {
        let (addr, version) = at;
        if bytes < LARGE_BYTES || arena.is_none_or(|arena| arena >= self.fast_arenas) {
            return;
        }
        if self.heads.len() >= HEADS_MAX {
            let oldest = self.heads.iter().min_by_key(|(_, head)| head.since_ms);
            let oldest = oldest.map(|(addr, _)| *addr);
            oldest.and_then(|addr| self.heads.remove(&addr));
        }
        let head = Head { bytes, version, since_ms: now_ms, is_settled: false };
        self.heads.insert(addr, head);
    }

    /// An object has another size from now on.
    pub(crate) fn resized(&mut self, addr: u64, bytes: u64, version: Version) {
        if let Some(head) = self.heads.get_mut(&addr) {
            *head = Head { bytes: head.bytes.min(bytes), version, ..*head };
        }
    }

    /// Memory is gone.
    pub(crate) fn gone(&mut self, range: Range<u64>) {
        if self.heads.is_empty() || range.is_empty() {
            return;
        }
        while let Some((&addr, _)) = self.heads.range(range.clone()).next() {
            self.heads.remove(&addr);
        }
        if let Some((addr, head)) = self.heads.range_mut(..range.start).next_back() {
            head.bytes = head.bytes.min(range.start - addr);
        }
    }

    /// Counts what is still to be touched; how many extents were looked at.
    pub(crate) fn count(
        &mut self,
        (ledger, pid): (&Ledger, u32),
        is_fast: impl Fn(NodeId) -> bool,
        now_ms: u64,
    ) -> usize {
        let (mut looked_at, mut promised_bytes) = (0, 0u64);
        self.heads.retain(|addr, head| {
            let age_ms = now_ms.saturating_sub(head.since_ms);
            let (left_bytes, extents) = head.untouched(*addr, (ledger, pid), &is_fast);
            looked_at += 1 + extents;
            head.is_settled |= extents > 0;
            let is_new = !head.is_settled && age_ms < UNSETTLED_MS;
            let is_kept = is_new || extents > 0 && age_ms < GRACE_MS;
            promised_bytes += if is_kept { left_bytes } else { 0 };
            is_kept
        });
        self.promised_bytes = promised_bytes;
        looked_at
    }
}

impl Head {
    /// Bytes still to be touched, all where the ledger knows of none; how many extents it has.
    fn untouched(
        &self,
        addr: u64,
        (ledger, pid): (&Ledger, u32),
        is_fast: &impl Fn(NodeId) -> bool,
    ) -> (u64, usize) {
        let end = addr.saturating_add(self.bytes);
        let (mut touched_bytes, mut extents, mut next) = (0, 0, addr);
        for extent in ledger.extents_of_from(pid, addr) {
            if extent.addr != next || extent.version != self.version || next >= end {
                break;
            }
            next = extent.addr + extent.bytes;
            extents += 1;
            touched_bytes += touched(&extent, end, is_fast);
        }
        (self.bytes.saturating_sub(touched_bytes), extents)
    }
}

/// Bytes of an extent before `end` that are touched. Of one that goes beyond, what is in the best
/// tier is before it.
fn touched(extent: &Extent<'_>, end: u64, is_fast: &impl Fn(NodeId) -> bool) -> u64 {
    let inside_bytes = extent.bytes.min(end.saturating_sub(extent.addr));
    let is_whole = inside_bytes == extent.bytes;
    let resident = extent.residency.iter().filter(|(node, _)| is_whole || is_fast(*node));
    resident.map(|(_, bytes)| bytes).sum::<u64>().min(inside_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_ledger::{Config, Range as Extents};
    use tiercel_wire::{Flags, Record};

    const MIB: u64 = 1 << 20;
    const PID: u32 = 1;
    const BASE: u64 = 1 << 40;
    const ONCE: Version = Version { carve: 1, generation: 0 };

    fn ledger_with(bytes: u64) -> Ledger {
        let config = Config { finest_bytes: MIB, ..Config::default() };
        let mut ledger = Ledger::new(config, 0).unwrap();
        ledger.process_born(PID).unwrap();
        let (flags, arena) = (Flags::default(), None);
        let born =
            Record::Born { addr: BASE, site: 0, bytes, version: ONCE, arena, flags, time_ns: 1 };
        ledger.apply(PID, &born);
        ledger.tick(10);
        ledger
    }

    fn lies(ledger: &mut Ledger, at: Range<u64>, node: u16) {
        let range = Extents { pid: PID, addr: BASE + at.start, bytes: at.end - at.start };
        ledger.set_residency(range, &[(NodeId(node), range.bytes)], 10);
    }

    fn count(heads: &mut Heads, ledger: &Ledger, now_ms: u64) -> u64 {
        heads.count((ledger, PID), |node| node == NodeId(0), now_ms);
        heads.promised_bytes
    }

    #[test]
    fn what_is_not_touched_yet_is_taken_until_it_is_for_a_while() {
        let mut ledger = ledger_with(16 * MIB);
        let mut heads = Heads::of(1);
        heads.born((BASE, ONCE), 12 * MIB, Some(0), 0);
        assert_eq!(count(&mut heads, &ledger, 10), 12 * MIB);
        let extents: Vec<_> = ledger.extents_of_from(PID, BASE).map(|one| one.bytes).collect();
        let first = extents[0];
        lies(&mut ledger, 0..first, 0);
        assert_eq!(count(&mut heads, &ledger, 20), (12 * MIB).saturating_sub(first));
        assert_eq!(count(&mut heads, &ledger, GRACE_MS), 0, "others may have it");
    }

    #[test]
    fn what_dies_or_is_cut_off_is_not_taken() {
        let ledger = ledger_with(16 * MIB);
        let mut heads = Heads::of(1);
        heads.born((BASE, ONCE), 12 * MIB, Some(0), 0);
        heads.gone(BASE + 8 * MIB..BASE + 16 * MIB);
        assert_eq!(count(&mut heads, &ledger, 10), 8 * MIB);
        let next = Version { generation: 1, ..ONCE };
        heads.resized(BASE, 2 * MIB, next);
        assert_eq!(count(&mut heads, &ledger, 10), 0, "the ledger has another life");
        heads.born((BASE, next), 2 * MIB, Some(0), 20);
        assert_eq!(count(&mut heads, &ledger, 30), 2 * MIB, "it will know of it soon");
        assert_eq!(count(&mut heads, &ledger, 20 + UNSETTLED_MS), 0);
        heads.born((BASE, ONCE), 12 * MIB, Some(0), 3000);
        heads.gone(BASE..BASE + 16 * MIB);
        assert_eq!(count(&mut heads, &ledger, 3000), 0);
    }

    #[test]
    fn only_large_births_in_the_best_tier_count_and_not_too_many() {
        let mut heads = Heads::of(2);
        heads.born((BASE, ONCE), LARGE_BYTES, Some(2), 0);
        heads.born((BASE, ONCE), LARGE_BYTES, None, 0);
        heads.born((BASE, ONCE), LARGE_BYTES - 1, Some(0), 0);
        assert!(heads.heads.is_empty());
        for nth in 0..=HEADS_MAX as u64 {
            heads.born((BASE + nth * MIB, ONCE), MIB, Some(1), nth);
        }
        assert_eq!(heads.heads.len(), HEADS_MAX);
        assert!(!heads.heads.contains_key(&BASE), "the oldest is forgotten");
    }
}
