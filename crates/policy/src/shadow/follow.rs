//! The extents that matter to shadow placements, from one decision to the next.
//! In: the ledger, marks of the last decision. Out: entries, and marks for the next one. Knows
//! nothing of what is done with them.
//!
//! Marks are by address range: extents are split and joined meanwhile, and what comes of them
//! inherits the bits. An extent without a mark lies where it was born, for all experts.

use std::collections::BTreeMap;

use tiercel_ledger::{Extent, ExtentId, ExtentValue, Ledger, PIECE_UNITS, Pace};

use crate::tiers::Tiers;

/// Extents that are remembered at most: 24 MB.
const MARKS_MAX: usize = 1 << 18;

/// What is remembered of an extent.
#[derive(Clone, Copy, Debug)]
struct Mark {
    bytes: u64,
    born_ms: u64,
    bits: u8,
    /// Share of it that lay in the faster memory when it was first seen.
    home: f64,
    /// Value that was counted.
    seen_ns: f64,
    /// Share of it in the faster memory, and bits before the last decision.
    real: f64,
    bits_before: u8,
}

/// What changes sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Key {
    /// An extent.
    Extent(ExtentId),
    /// The room that a site keeps for its births, and whether it keeps it now.
    Nursery {
        /// Which part of it.
        part: usize,
        /// Its births find room, kept for them or not.
        is_inside: bool,
        /// It is kept for them.
        is_kept: bool,
    },
}

/// An extent that samples hit of late, or that lies elsewhere for some expert; or a nursery.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) pid: u32,
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    pub(crate) key: Key,
    pub(crate) site: u32,
    pub(crate) born_ms: u64,
    /// Bytes it takes up, and those in the faster memory.
    pub(crate) footprint: u64,
    pub(crate) there: u64,
    pub(crate) rate: [f64; 2],
    /// Standard deviations of the rates by sampling.
    pub(crate) deviation: [f64; 2],
    /// Value since the last decision, and all of it, nanoseconds.
    pub(crate) new_ns: f64,
    pub(crate) total_ns: f64,
    /// For each expert, whether it lies in the faster memory.
    pub(crate) bits: u8,
    pub(crate) home: f64,
    /// Share of it in the faster memory, and bits, at the last decision.
    pub(crate) real_before: f64,
    pub(crate) bits_before: u8,
}

impl Entry {
    /// Share of it that lies in the faster memory.
    pub(crate) fn real(&self) -> f64 {
        self.there as f64 / self.footprint.max(1) as f64
    }

    /// Whether most of it does; of a nursery, whether it is kept.
    pub(crate) fn is_fast(&self) -> bool {
        match self.key {
            Key::Extent(_) => self.there * 2 > self.footprint,
            Key::Nursery { is_inside, .. } => is_inside,
        }
    }

    pub(crate) fn id(&self) -> Option<ExtentId> {
        match self.key {
            Key::Extent(id) => Some(id),
            Key::Nursery { .. } => None,
        }
    }

    pub(crate) fn is_nursery(&self) -> bool {
        matches!(self.key, Key::Nursery { .. })
    }
}

/// Marks by process and address.
#[derive(Debug, Default)]
pub(crate) struct Marks(BTreeMap<(u32, u64), Mark>);

/// Units of looking up an extent, with its value, by its address.
const LOOK_UNITS: usize = 4;

/// Which extents a placement is of, and where its faster memory ends.
pub(crate) struct Scope<'a> {
    pub(crate) tiers: &'a Tiers,
    /// The tier that is its faster memory; those below are its slower one.
    pub(crate) boundary: u8,
    /// What of the gap between the fastest and the slowest memory is between the two sides.
    pub(crate) gap: f64,
    pub(crate) is_member: &'a dyn Fn(&Extent) -> bool,
}

impl Scope<'_> {
    /// An extent without marks; `None` where it is not known where it lies, or has no memory, lies
    /// in a better tier, or belongs to others.
    pub(crate) fn entry(&self, extent: &Extent) -> Option<Entry> {
        let rank = self.tiers.rank(extent.residency.main_node()?);
        if rank < self.boundary || !(self.is_member)(extent) {
            return None;
        }
        let on_nodes = extent.residency.iter();
        let there = on_nodes.filter(|(node, _)| self.tiers.rank(*node) <= self.boundary);
        let there = there.map(|(_, bytes)| bytes).sum::<u64>();
        let footprint = extent.footprint_bytes();
        let is_fast = there * 2 > footprint;
        let bits = if is_fast { u8::MAX } else { 0 };
        let home = there as f64 / footprint.max(1) as f64;
        Some(Entry {
            pid: extent.pid,
            addr: extent.addr,
            bytes: extent.bytes,
            key: Key::Extent(extent.id),
            site: extent.site,
            born_ms: extent.born_ms,
            footprint,
            there,
            rate: [0.0; 2],
            deviation: [0.0; 2],
            new_ns: 0.0,
            total_ns: 0.0,
            bits,
            home,
            bits_before: bits,
            real_before: home,
        })
    }
}

impl Entry {
    fn set_value(&mut self, value: &ExtentValue, gap: f64) {
        self.rate = value.ns_per_s.map(|rate| rate * gap);
        self.deviation = value.deviation.map(|deviation| deviation * gap);
        self.total_ns = value.total_ns * gap;
    }
}

#[cfg(test)]
impl Entry {
    /// Of a site of process 1, in slow memory, with these rates.
    pub(crate) fn sampled(site: u32, footprint: u64, rate: f64, deviation: f64) -> Entry {
        Entry {
            pid: 1,
            addr: 0,
            bytes: footprint,
            key: Key::Extent(ExtentId(0)),
            site,
            born_ms: 0,
            footprint,
            there: 0,
            rate: [rate; 2],
            deviation: [deviation; 2],
            new_ns: 0.0,
            total_ns: 0.0,
            bits: 0,
            home: 0.0,
            real_before: 0.0,
            bits_before: 0,
        }
    }
}

impl Marks {
    /// The entries of now, ascending by process and address.
    pub(crate) fn entries(&self, pace: &mut dyn Pace, scope: &Scope) -> Vec<Entry> {
        let mut places = valued_places(pace);
        self.marked_places(pace, &mut places);
        places.sort_unstable();
        places.dedup();
        let mut entries = Vec::new();
        for piece in places.chunks(PIECE_UNITS / LOOK_UNITS) {
            let ledger = pace.ledger();
            entries.extend(piece.iter().filter_map(|place| self.entry(ledger, scope, *place)));
            pace.worked(LOOK_UNITS * piece.len());
        }
        entries
    }

    /// Where extents lie that have marks, or that came of such.
    fn marked_places(&self, pace: &mut dyn Pace, places: &mut Vec<(u32, u64)>) {
        for (nth, (&(pid, addr), mark)) in self.0.iter().enumerate() {
            let ledger = pace.ledger();
            let at = ledger.find(pid, addr).map(|extent| extent.addr);
            let rest = ledger.extents_of_from(pid, addr + 1);
            let rest = rest.map(|extent| extent.addr).take_while(|at| *at < addr + mark.bytes);
            places.extend(at.into_iter().chain(rest).map(|addr| (pid, addr)));
            if nth % (PIECE_UNITS / LOOK_UNITS) == 0 {
                pace.worked(PIECE_UNITS);
            }
        }
    }

    fn entry(&self, ledger: &Ledger, scope: &Scope, (pid, addr): (u32, u64)) -> Option<Entry> {
        let extent = ledger.find(pid, addr)?;
        let mut entry = scope.entry(&extent)?;
        if let Some(value) = ledger.value(&extent) {
            entry.set_value(&value, scope.gap);
        }
        self.inherit(&mut entry);
        Some(entry)
    }

    /// What is known of the range that the entry has now.
    fn inherit(&self, entry: &mut Entry) {
        let (pid, end) = (entry.pid, entry.addr + entry.bytes);
        let before = self.0.range(..=(pid, entry.addr)).next_back();
        let after = self.0.range((pid, entry.addr + 1)..(pid, end));
        let (mut most, mut covered, mut home, mut seen_ns) = (0, 0, 0.0, 0.0);
        for (&(of, addr), mark) in before.into_iter().chain(after) {
            let both = (addr + mark.bytes).min(end).saturating_sub(addr.max(entry.addr));
            if of != pid || mark.born_ms != entry.born_ms || both == 0 {
                continue;
            }
            let share = both as f64 / mark.bytes as f64;
            seen_ns += mark.seen_ns * share;
            home += mark.home * both as f64;
            covered += both;
            if both > most {
                most = both;
                (entry.bits, entry.bits_before) = (mark.bits, mark.bits_before);
                entry.real_before = mark.real;
            }
        }
        if covered > 0 {
            entry.home = home / covered as f64;
        }
        entry.new_ns = entry.total_ns - seen_ns;
        // Forgotten and begun anew.
        if entry.total_ns.abs() < seen_ns.abs() {
            entry.new_ns = entry.total_ns;
        }
    }

    /// Remembers entries, but for those about which there is nothing to remember.
    pub(crate) fn keep(&mut self, entries: &[Entry]) {
        let matters = |entry: &&Entry| {
            let born = if entry.is_fast() { u8::MAX } else { 0 };
            entry.total_ns != 0.0 || entry.bits != born || entry.home != entry.real()
        };
        let kept = entries.iter().filter(|entry| !entry.is_nursery());
        let kept = kept.filter(matters).take(MARKS_MAX);
        self.0 = kept.map(|entry| ((entry.pid, entry.addr), Mark::of(entry))).collect();
    }
}

impl Mark {
    fn of(entry: &Entry) -> Mark {
        Mark {
            bytes: entry.bytes,
            born_ms: entry.born_ms,
            bits: entry.bits,
            bits_before: entry.bits_before,
            home: entry.home,
            real: entry.real(),
            seen_ns: entry.total_ns,
        }
    }
}

/// Where extents lie that samples hit of late.
fn valued_places(pace: &mut dyn Pace) -> Vec<(u32, u64)> {
    let (mut places, mut from) = (Vec::new(), 0);
    loop {
        let ledger = pace.ledger();
        let mut count = 0;
        for id in ledger.valued_from(from).take(PIECE_UNITS / LOOK_UNITS) {
            (from, count) = (id.0 + 1, count + 1);
            places.extend(ledger.extent(id).map(|extent| (extent.pid, extent.addr)));
        }
        pace.worked(LOOK_UNITS * count);
        if count == 0 {
            return places;
        }
    }
}
