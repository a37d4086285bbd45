//! Nurseries: room in fast memory that sites keep for their next births.
//! In: short lives by site, as the ledger counts them, and what nurseries hold. Out: entries beside
//! those of extents, the nurseries that are to be kept. Knows nothing of how births find them.
//!
//! An object that dies before a decision could move it is placed by its birth alone. Where
//! long-lived data fills fast memory, such objects are born slow again and again. So a nursery
//! takes part in exchanges as an extent does: it has as many bytes as lived of its site at a time,
//! and its value is that of samples that hit those objects. Births cost no move; only what has to
//! leave for a nursery does.

use std::collections::{BTreeMap, BTreeSet};

use tiercel_ledger::{Ledger, ShortLives};
use tiercel_machine::NodeId;
use tiercel_machine::number::saturating_u64;

use super::follow::{Entry, Key};

/// What was seen of a site fades over so many units of the time scale: the longer of the time
/// constants of values.
const FADE_UNITS: f64 = tiercel_ledger::VALUE_TAU_UNITS[1];

/// A site has a nursery once its short lives together were so many times as large as what lives of
/// them at a time: it will be reborn. Chosen, not measured.
const TURNS_MIN: f64 = 2.0;

/// Room beyond the mean of what lived, where lives overlap: chosen, a quarter.
const SPARE: f64 = 1.25;

/// A nursery stays as large as it is while that is at least this part of what its site needs.
const ENOUGH: f64 = 0.8;

/// A nursery is as many parts as find room, each an entry of its own. Chosen: the smallest number
/// with which a nursery that is slightly too large for the room still gets most of it.
const PARTS: usize = 4;

/// What is remembered of a part.
#[derive(Clone, Copy, Debug, Default)]
struct PartMark {
    /// Its bytes are kept free for births.
    is_kept: bool,
    bits: u8,
    bits_before: u8,
    real: f64,
}

/// One site.
#[derive(Clone, Debug, Default)]
struct Nursery {
    since_ms: u64,
    /// Totals of the last tick: bytes of short lives, bytes times seconds of them, bytes of which
    /// it is known where they lay, and of these bytes in fast memory.
    seen: [f64; 4],
    /// The same of late.
    late: [f64; 4],
    /// Time for which these were counted, faded like them, seconds.
    over_s: f64,
    swing_bytes: f64,
    /// The most that lived at a time, long lives included.
    most_bytes: f64,
    /// Bytes that are dead now, of what comes and goes.
    dead_bytes: f64,
    /// Share of its births that found room in fast memory without a nursery; `None`: unknown.
    home: Option<f64>,
    /// Bytes of a part, while some are kept.
    part_bytes: u64,
    parts: Option<[PartMark; PARTS]>,
    /// At the end of the last tick some were.
    was_kept: bool,
    seen_ns: f64,
}

/// Nurseries by process and site.
#[derive(Debug, Default)]
pub(crate) struct Nurseries(BTreeMap<(u32, u32), Nursery>);

/// What a look at nurseries is given.
pub(crate) struct NurseryScope<'a> {
    /// Processes that have nurseries.
    pub(crate) pids: &'a [u32],
    /// Whether a node is above the boundary.
    pub(crate) is_fast: &'a dyn Fn(NodeId) -> bool,
    pub(crate) gap: f64,
    pub(crate) elapsed_s: f64,
    pub(crate) unit_s: f64,
}

impl Nurseries {
    /// The sites of a process that have a nursery, and the bytes of all of them.
    pub(crate) fn of(&self, pid: u32) -> (Vec<u32>, u64) {
        let sites = self.0.range((pid, 0)..=(pid, u32::MAX));
        let sites = sites.filter(|(_, one)| one.kept_bytes() > 0);
        let bytes = sites.clone().map(|(_, one)| one.kept_bytes()).sum();
        (sites.map(|((_, site), _)| *site).collect(), bytes)
    }

    /// How many there are, and the bytes of all.
    pub(crate) fn all(&self) -> (u64, u64) {
        let kept = self.0.values().map(Nursery::kept_bytes).filter(|bytes| *bytes > 0);
        kept.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes))
    }

    /// Processes and sites that have one, or may have: what they bear is expected to die soon.
    pub(crate) fn sites(&self) -> BTreeSet<(u32, u32)> {
        let known = self.0.iter().filter(|(_, one)| one.parts.is_some());
        known.map(|(key, _)| *key).collect()
    }

    /// Takes in what the ledger counted since the last tick, and adds entries for each site whose
    /// objects live shortly. Bytes that births will take again, without a nursery, of what is dead.
    pub(crate) fn add_entries(
        &mut self,
        ledger: &Ledger,
        scope: &NurseryScope,
        entries: &mut Vec<Entry>,
    ) -> u64 {
        self.0.retain(|(pid, _), _| scope.pids.binary_search(pid).is_ok());
        let mut expected_bytes = 0;
        for pid in scope.pids {
            for lives in ledger.short_lives(*pid) {
                let new = || Nursery { since_ms: ledger.now_ms(), ..Nursery::default() };
                let nursery = self.0.entry((*pid, lives.site)).or_insert_with(new);
                nursery.see(&lives, scope);
                expected_bytes += nursery.add_entries(*pid, &lives, scope, entries);
            }
        }
        expected_bytes
    }

    /// Remembers entries of nurseries. `changed`: those of which the real placement changes.
    pub(crate) fn keep(&mut self, entries: &[Entry], changed: impl Fn(usize) -> bool) {
        for (at, entry) in entries.iter().enumerate() {
            let Key::Nursery { part, is_inside, is_kept } = entry.key else { continue };
            let Some(nursery) = self.0.get_mut(&(entry.pid, entry.site)) else { continue };
            let comes = changed(at) && !is_inside;
            // What needs more than it has, and finds no room for it, keeps what it has.
            let is_kept = comes || is_kept && !changed(at);
            nursery.remember(part, is_kept, entry);
            if comes {
                nursery.part_bytes = entry.footprint;
            }
        }
        self.0.values_mut().for_each(Nursery::end_tick);
    }
}

impl Nursery {
    fn see(&mut self, lives: &ShortLives, scope: &NurseryScope) {
        let kept = (-scope.elapsed_s / (FADE_UNITS * scope.unit_s)).exp();
        let known: u64 = lives.ended_on.iter().map(|(_, bytes)| bytes).sum();
        let fast = lives.ended_on.iter().filter(|(node, _)| (scope.is_fast)(*node));
        let fast: u64 = fast.map(|(_, bytes)| bytes).sum();
        let now = [lives.ended_bytes as f64, lives.byte_s, known as f64, fast as f64];
        for ((late, now), seen) in self.late.iter_mut().zip(now).zip(self.seen) {
            *late = *late * kept + (now - seen).max(0.0);
        }
        self.seen = now;
        self.over_s = self.over_s * kept + scope.elapsed_s;
        self.swing_bytes = (self.swing_bytes * kept).max(lives.swing_bytes as f64);
        self.most_bytes = (self.most_bytes * kept).max(lives.most_bytes as f64);
        self.dead_bytes = lives.swing_bytes.saturating_sub(lives.live_bytes) as f64;
    }

    /// Bytes that it takes: what comes and goes within an interval, or what lives on average.
    fn needed_bytes(&self) -> u64 {
        let mean = self.late[1] / self.over_s.max(f64::MIN_POSITIVE) * SPARE;
        saturating_u64(self.swing_bytes.max(mean).min(self.most_bytes))
    }

    fn kept_bytes(&self) -> u64 {
        let kept = self.parts.iter().flatten().filter(|part| part.is_kept).count();
        kept as u64 * self.part_bytes
    }

    fn remember(&mut self, part: usize, is_kept: bool, entry: &Entry) {
        let (bits, bits_before, real) = (entry.bits, entry.bits_before, entry.real());
        let mark = PartMark { is_kept, bits, bits_before, real };
        self.parts.get_or_insert_default()[part] = mark;
        self.part_bytes = self.part_bytes.min(entry.footprint);
    }

    /// A nursery that is not kept any more says nothing of what births find without it.
    fn end_tick(&mut self) {
        let is_kept = self.kept_bytes() > 0;
        if std::mem::replace(&mut self.was_kept, is_kept) && !is_kept {
            (self.late[2], self.late[3], self.home) = (0.0, 0.0, None);
        }
    }

    /// An entry for each part. Bytes of what is dead that births will take again.
    fn add_entries(
        &mut self,
        pid: u32,
        lives: &ShortLives,
        scope: &NurseryScope,
        entries: &mut Vec<Entry>,
    ) -> u64 {
        let (needed_bytes, is_kept) = (self.needed_bytes(), self.kept_bytes() > 0);
        let total_ns = lives.total_ns * scope.gap;
        let new_ns = total_ns - std::mem::replace(&mut self.seen_ns, total_ns);
        if !is_kept {
            let known = self.late[2] > 0.0;
            self.home = known.then(|| (self.late[3] / self.late[2]).min(1.0));
        }
        let is_reborn = self.late[0] >= TURNS_MIN * needed_bytes as f64;
        let Some(home) = self.home.filter(|_| needed_bytes > 0 && (is_reborn || is_kept)) else {
            self.parts = None;
            return 0;
        };
        let footprint = needed_bytes.div_ceil(PARTS as u64);
        let (mut expected, dead_share) = (0.0, self.dead_bytes / needed_bytes as f64);
        for part in 0..PARTS {
            let part_home = (home * PARTS as f64 - part as f64).clamp(0.0, 1.0);
            let mut entry = self.part(part, part_home, footprint);
            (entry.pid, entry.site) = (pid, lives.site);
            entry.rate = lives.ns_per_s.map(|rate| rate / PARTS as f64 * scope.gap);
            entry.deviation = lives.deviation.map(|rate| rate / PARTS as f64 * scope.gap);
            (entry.new_ns, entry.total_ns) = (new_ns / PARTS as f64, total_ns / PARTS as f64);
            if matches!(entry.key, Key::Nursery { is_kept: false, .. }) {
                expected += entry.there as f64 * dead_share.min(1.0);
            }
            entries.push(entry);
        }
        saturating_u64(expected)
    }

    /// The entry of a part of which births found such a share in fast memory without a nursery.
    fn part(&self, part: usize, home: f64, footprint: u64) -> Entry {
        let at_home = saturating_u64(footprint as f64 * home);
        let is_fast = at_home * 2 > footprint;
        let born = PartMark {
            is_kept: false,
            bits: if is_fast { u8::MAX } else { 0 },
            bits_before: if is_fast { u8::MAX } else { 0 },
            real: home,
        };
        let mark = self.parts.map_or(born, |parts| parts[part]);
        let is_enough = self.part_bytes as f64 >= ENOUGH * footprint as f64;
        let is_inside = is_fast || mark.is_kept && is_enough;
        let kept_bytes = if mark.is_kept { self.part_bytes.min(footprint) } else { 0 };
        Entry {
            pid: 0,
            addr: 0,
            bytes: footprint,
            key: Key::Nursery { part, is_inside, is_kept: mark.is_kept },
            site: 0,
            born_ms: self.since_ms,
            footprint,
            there: kept_bytes.max(at_home),
            rate: [0.0; 2],
            deviation: [0.0; 2],
            new_ns: 0.0,
            total_ns: 0.0,
            bits: mark.bits,
            home,
            bits_before: mark.bits_before,
            real_before: mark.real,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// So many MiB were born in each of both arenas and died, each after 10 ms; 1 MiB at a time.
    fn lives(fast_mib: u64, slow_mib: u64, total_ns: f64) -> ShortLives {
        let bytes = (fast_mib + slow_mib) * MIB;
        ShortLives {
            site: 7,
            total_ns,
            ns_per_s: [1e6; 2],
            deviation: [1e5; 2],
            ended_bytes: bytes,
            ended_on: vec![(NodeId(0), fast_mib * MIB), (NodeId(1), slow_mib * MIB)],
            byte_s: bytes as f64 * 0.01,
            swing_bytes: MIB,
            live_bytes: 0,
            most_bytes: 2 * MIB,
        }
    }

    /// Entries after a tick of 100 ms.
    fn entries(nursery: &mut Nursery, lives: &ShortLives) -> Vec<Entry> {
        let scope = NurseryScope {
            pids: &[1],
            is_fast: &|node| node == NodeId(0),
            gap: 0.5,
            elapsed_s: 0.1,
            unit_s: 0.1,
        };
        let mut entries = Vec::new();
        nursery.see(lives, &scope);
        nursery.add_entries(1, lives, &scope, &mut entries);
        entries
    }

    #[test]
    fn a_site_that_is_reborn_may_keep_what_lives_of_it_at_a_time() {
        let mut nursery = Nursery::default();
        let first = entries(&mut nursery, &lives(0, 1, 10.0));
        assert_eq!(first.len(), 0, "born once is no habit");
        let all = entries(&mut nursery, &lives(1, 8, 30.0));
        assert_eq!(all.len(), PARTS);
        assert_eq!(all.iter().map(|one| one.footprint).sum::<u64>(), MIB);
        // What memories further apart would save, divided by the gap between these two.
        assert_eq!(all.iter().map(|one| one.rate[0]).sum::<f64>(), 5e5);
        assert_eq!(all.iter().map(|one| one.new_ns).sum::<f64>(), 10.0, "since the tick before");
        let home = all[0].home;
        assert!(home > 0.4 && home < 0.5, "a ninth of the births found room: {home}");
        assert!(all.iter().all(|one| one.is_nursery() && !one.is_fast()));
        assert!(all[1..].iter().all(|one| one.home == 0.0));
    }

    #[test]
    fn parts_are_kept_until_their_site_needs_more() {
        let mut nurseries = Nurseries::default();
        let nursery = nurseries.0.entry((1, 7)).or_default();
        entries(nursery, &lives(0, 1, 10.0));
        let all = entries(nursery, &lives(0, 9, 20.0));
        nurseries.keep(&all, |at| at < 3);
        assert_eq!(nurseries.of(1), (vec![7], 3 * MIB / 4));
        assert_eq!(nurseries.of(2), (Vec::new(), 0));
        let nursery = nurseries.0.get_mut(&(1, 7)).expect("kept");
        let all = entries(nursery, &lives(0, 18, 30.0));
        assert_eq!(all.iter().filter(|one| one.is_fast()).count(), 3);
        let larger = ShortLives { swing_bytes: 2 * MIB, ..lives(0, 40, 40.0) };
        let all = entries(nursery, &larger);
        assert!(all.iter().all(|one| !one.is_fast()), "half of what it needs is no nursery");
        assert_eq!(all[0].footprint - all[0].there, MIB / 4, "but what it has counts");
    }

    #[test]
    fn what_is_not_born_any_more_gives_its_room_back() {
        let mut nurseries = Nurseries::default();
        let nursery = nurseries.0.entry((1, 7)).or_default();
        entries(nursery, &lives(0, 1, 10.0));
        let all = entries(nursery, &lives(0, 9, 20.0));
        nurseries.keep(&all, |_| true);
        let over = ShortLives { swing_bytes: 0, ..lives(0, 9, 20.0) };
        for _ in 0..100 {
            let nursery = nurseries.0.get_mut(&(1, 7)).expect("kept");
            let all = entries(nursery, &over);
            nurseries.keep(&all, |_| false);
        }
        assert!(nurseries.of(1).1 < MIB / 64, "{} bytes", nurseries.of(1).1);
    }
}
