//! What the ledger keeps per process: its rows by address, and what arrived before its time.
//! In: deaths and cuts without their birth. Out: whether a late birth is dead already.
//! Knows nothing of rows.
//!
//! Rings of different threads are drained in any order, so a death may come before its birth. The
//! daemon drains all rings of a process between two ticks, or says that it has not: what came
//! before a tick has its partner before the next but one, and two generations of memory suffice.

use std::collections::{BTreeMap, VecDeque};

use tiercel_machine::NodeId;
use tiercel_wire::{Record, Version};

use crate::by_site::BySite;
use crate::flows::Flows;
use crate::group::GroupSlot;
use crate::index::Index;
use crate::lives::EndedLives;
use crate::site_history::SiteHistory;

/// Early deaths remembered per process and generation; more are dropped and counted. A dropped one
/// can leave a dead object in the ledger until something newer lies there or a resync.
pub const TOMBSTONES_MAX: usize = 65_536;

/// Cuts remembered per process. Births of mapped objects look at all of them, so they are few.
pub const CUTS_MAX: usize = 512;

/// A record that was delivered and is not applied yet.
pub(crate) struct Delivered {
    pub(crate) record: Record,
    /// Of a death: the object that the same realloc made.
    pub(crate) heir: Option<u64>,
}

pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) index: Index,
    pub(crate) tombstones: Tombstones,
    pub(crate) cuts: Cuts,
    /// Bytes of its live objects, records and fresh ones.
    pub(crate) live_bytes: u64,
    pub(crate) peak_bytes: u64,
    /// Bytes born in the open interval, and in the last closed one.
    pub(crate) born_bytes: (u64, u64),
    /// Bytes of its extents on each node, as far as residency is known.
    pub(crate) on_nodes: BTreeMap<NodeId, u64>,
    /// By site number.
    pub(crate) sites: BySite<SiteHistory>,
    pub(crate) flows: Flows,
    pub(crate) phase: u64,
    /// Where a realloc moved to, if that was the last record delivered.
    pub(crate) continued: Option<u64>,
    pub(crate) group: GroupSlot,
    /// Records from before the next tick may come after it.
    pub(crate) is_behind: bool,
    /// Records that were delivered and are not applied yet.
    pub(crate) inbox: Vec<Delivered>,
    /// All records of times up to this one are applied.
    pub(crate) settled_ns: u64,
    /// None of these records was lost up to this time: the same, unless a resync is due.
    pub(crate) sound_ns: u64,
    /// Records were lost since then.
    pub(crate) has_loss: bool,
    /// Some of them after the scan of the object table began that is under way: none up to this
    /// time.
    pub(crate) lost_again_ns: Option<u64>,
    pub(crate) ended: EndedLives,
}

impl Process {
    pub(crate) fn new(pid: u32, group: GroupSlot) -> Process {
        Process {
            pid,
            group,
            is_behind: false,
            index: Index::default(),
            tombstones: Tombstones::default(),
            cuts: Cuts::default(),
            live_bytes: 0,
            peak_bytes: 0,
            born_bytes: (0, 0),
            on_nodes: BTreeMap::new(),
            sites: BySite::default(),
            flows: Flows::default(),
            phase: 0,
            continued: None,
            inbox: Vec::new(),
            settled_ns: 0,
            sound_ns: 0,
            has_loss: false,
            lost_again_ns: None,
            ended: EndedLives::default(),
        }
    }

    /// Records were lost; those of before it was settled last were not.
    pub(crate) fn lost(&mut self) {
        self.has_loss = true;
        self.lost_again_ns.get_or_insert(self.settled_ns);
    }

    /// A scan of its object table is over: what was lost before that began is healed.
    pub(crate) fn scanned(&mut self) {
        self.has_loss = self.lost_again_ns.is_some();
        self.sound_ns = self.sound_ns.max(self.lost_again_ns.take().unwrap_or(self.settled_ns));
    }

    pub(crate) fn grow(&mut self, bytes: u64) {
        self.live_bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
    }
}

/// Up to which version the uses of an address are over.
#[derive(Default)]
pub(crate) struct Tombstones {
    young: BTreeMap<u64, End>,
    old: BTreeMap<u64, End>,
}

/// The first version that may live; or the last that may not.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Before(Version),
    With(Version),
}

impl End {
    fn covers(self, version: Version) -> bool {
        match self {
            End::Before(first) => first.is_newer_than(version),
            End::With(last) => !version.is_newer_than(last),
        }
    }

    fn version(self) -> Version {
        match self {
            End::Before(version) | End::With(version) => version,
        }
    }
}

impl Tombstones {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// `add` answers whether there is room for one more. False when there was none.
    pub(crate) fn bury(&mut self, addr: u64, end: End, add: impl FnOnce() -> bool) -> bool {
        let is_known = self.young.contains_key(&addr);
        if !is_known && (self.young.len() >= TOMBSTONES_MAX || !add()) {
            return false;
        }
        let latest = self.young.entry(addr).or_insert(end);
        let is_later = end.version().is_newer_than(latest.version());
        if is_later || end == End::With(latest.version()) {
            *latest = end;
        }
        true
    }

    /// Whether this use of the address is known to be over.
    pub(crate) fn covers(&self, addr: u64, version: Version) -> bool {
        let over = |map: &BTreeMap<u64, End>| map.get(&addr).is_some_and(|e| e.covers(version));
        (!self.young.is_empty() && over(&self.young)) || (!self.old.is_empty() && over(&self.old))
    }

    /// A tick has passed; how many are forgotten.
    pub(crate) fn age(&mut self) -> usize {
        let forgotten = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
        forgotten.len()
    }
}

/// A range that left the mapped objects it overlapped.
#[derive(Clone, Copy)]
struct Cut {
    addr: u64,
    end: u64,
    /// Objects of this version and older ones lost the range.
    version: Version,
    young: bool,
}

/// The latest cuts.
#[derive(Default)]
pub(crate) struct Cuts {
    cuts: VecDeque<Cut>,
}

impl Cuts {
    /// False when an older one had to go before its time.
    pub(crate) fn add(&mut self, addr: u64, end: u64, version: Version) -> bool {
        let full = self.cuts.len() >= CUTS_MAX;
        if full {
            self.cuts.pop_front();
        }
        self.cuts.push_back(Cut { addr, end, version, young: true });
        !full
    }

    /// What is left of a range of this version, ascending.
    pub(crate) fn remains(&self, addr: u64, end: u64, version: Version) -> Vec<(u64, u64)> {
        let mut pieces = vec![(addr, end)];
        for cut in self.cuts.iter().filter(|cut| !version.is_newer_than(cut.version)) {
            pieces = without(&pieces, cut.addr, cut.end);
        }
        pieces
    }

    /// Whether any cut takes something off a range of this version.
    pub(crate) fn hit(&self, addr: u64, end: u64, version: Version) -> bool {
        let takes =
            |cut: &Cut| cut.addr < end && addr < cut.end && !version.is_newer_than(cut.version);
        self.cuts.iter().any(takes)
    }

    pub(crate) fn age(&mut self) {
        self.cuts.retain(|cut| cut.young);
        self.cuts.iter_mut().for_each(|cut| cut.young = false);
    }
}

/// Ranges without the part of them that lies in another.
fn without(ranges: &[(u64, u64)], addr: u64, end: u64) -> Vec<(u64, u64)> {
    let split = |&(lo, hi): &(u64, u64)| [(lo, hi.min(addr)), (lo.max(end), hi)];
    ranges.iter().flat_map(split).filter(|(lo, hi)| lo < hi).collect()
}
