//! Where births go: budgets of the fast arena, as the daemon writes them and the runtime spends
//! them (`runtime/track/birth.c`, `runtime/alloc/heap_split.c`).
//! In: records without arenas, birth plans. Out: records with arenas, memory bound to nodes. Knows
//! nothing of what is decided.
//!
//! ```text
//! the budget has room for all of it     the fast arena
//! for a part of it                      the slow arena, but for a head in whole steps
//! reused memory                         lies where it lies; no head is cut
//! ```

use std::collections::{BTreeMap, BTreeSet};
use tiercel_machine::NodeId;
use tiercel_machine::number::signed;
use tiercel_policy::BirthBudget;
use tiercel_wire::Record;
use tiercel_wire::layout::OS_PAGE_BYTES;

use crate::memory::{Memory, pages_of};

/// Numbers of the two arenas.
const FAST_ARENA: u8 = 0;
const SLOW_ARENA: u8 = 1;
/// The arena of sites that keep room for their births: memory of the fast node as well.
const NURSERY_ARENA: u8 = 2;

/// Heads of large objects are cut in steps of so many bytes: TCL_HEAD_STEP of the runtime, a huge
/// OS page.
const HEAD_STEP_BYTES: u64 = 2 << 20;

/// What is left for births, by process, and what each object took of it.
#[derive(Debug, Default)]
pub struct Births {
    left: BTreeMap<u32, i64>,
    taken: BTreeMap<u64, Taken>,
    nurseries: BTreeMap<u32, Nursery>,
}

/// Room that sites of a process keep.
#[derive(Debug, Default)]
struct Nursery {
    sites: BTreeSet<u32>,
    left: i64,
    live_bytes: u64,
}

/// What an object has of the budget.
#[derive(Clone, Copy, Debug)]
struct Taken {
    bytes: u64,
    arena: u8,
}

impl Births {
    /// Processes that come one after another share what the fast memory has, as the daemon welcomes
    /// them.
    pub fn welcome(&mut self, pids: &[u32], room_bytes: u64) {
        for (known, pid) in (1..).zip(pids) {
            self.left.insert(*pid, signed(room_bytes / known));
        }
    }

    /// Sets what births of a process may take.
    pub fn apply(&mut self, budget: &BirthBudget, fast: NodeId) {
        let of_fast = budget.tiers.iter().find(|(nodes, _)| nodes.contains(&fast));
        let bytes = of_fast.map_or(0, |(_, bytes)| *bytes);
        self.left.insert(budget.pid, signed(bytes));
        let nursery = self.nurseries.entry(budget.pid).or_default();
        nursery.sites = budget.nursery.sites.iter().copied().collect();
        nursery.left = signed(budget.nursery.left_bytes);
    }

    /// Bytes that live in nurseries, by process.
    pub fn nursed(&self) -> BTreeMap<u32, u64> {
        self.nurseries.iter().map(|(pid, nursery)| (*pid, nursery.live_bytes)).collect()
    }

    /// Takes room of the site's nursery; reused memory that lies elsewhere is given back first.
    fn born_in_nursery(&mut self, pid: u32, site: u32, bytes: u64) -> bool {
        let Some(nursery) = self.nurseries.get_mut(&pid) else { return false };
        let is_there = nursery.sites.contains(&site) && nursery.left >= signed(bytes);
        if is_there {
            nursery.left -= signed(bytes);
            nursery.live_bytes += bytes;
        }
        is_there
    }

    /// Binds the memory of a record; the record as the runtime writes it.
    pub fn follow(&mut self, pid: u32, record: Record, memory: &mut Memory) -> Record {
        match record {
            Record::Born { addr, bytes, site, version, flags, time_ns, .. } => {
                let pages = pages_of(addr, bytes);
                let arena = if self.born_in_nursery(pid, site, bytes) {
                    if memory.lies(pages.clone()).1 > 0 {
                        memory.release(pages.clone());
                    }
                    memory.bind(pages, false);
                    self.taken.insert(addr, Taken { bytes, arena: NURSERY_ARENA });
                    Some(NURSERY_ARENA)
                } else {
                    Some(self.born(pid, addr, bytes, memory))
                };
                Record::Born { addr, bytes, site, version, arena, flags, time_ns }
            }
            Record::Resized { addr, bytes, site, version, flags, time_ns, .. } => {
                let arena = Some(self.resized(pid, addr, bytes, memory));
                Record::Resized { addr, bytes, site, version, arena, flags, time_ns }
            }
            Record::Died { addr, .. } => {
                self.refund(pid, addr);
                record
            }
            other => other,
        }
    }

    fn born(&mut self, pid: u32, addr: u64, bytes: u64, memory: &mut Memory) -> u8 {
        let left = self.left.entry(pid).or_default();
        let room = u64::try_from(*left).unwrap_or(0);
        let pages = pages_of(addr, bytes);
        let (fast, slow) = memory.lies(pages.clone());
        let is_touched = fast + slow > 0;
        let (arena, head) = match () {
            () if room >= bytes => (FAST_ARENA, bytes),
            () if is_touched => (SLOW_ARENA, 0),
            () => (SLOW_ARENA, room.min(bytes - 1) / HEAD_STEP_BYTES * HEAD_STEP_BYTES),
        };
        *left -= signed(head);
        self.taken.insert(addr, Taken { bytes: head, arena });
        let head_end = pages.start + head / OS_PAGE_BYTES;
        memory.bind(pages.start..head_end, false);
        memory.bind(head_end..pages.end, true);
        arena
    }

    fn resized(&mut self, pid: u32, addr: u64, bytes: u64, memory: &mut Memory) -> u8 {
        let left = self.left.entry(pid).or_default();
        let taken = self.taken.entry(addr).or_insert(Taken { bytes: 0, arena: SLOW_ARENA });
        let pages = pages_of(addr, bytes);
        let more = signed(bytes) - signed(taken.bytes);
        let stays = taken.arena == FAST_ARENA && more <= (*left).max(0);
        let fits = if stays { bytes } else { taken.bytes.min(bytes) };
        *left -= signed(fits) - signed(taken.bytes);
        taken.bytes = fits;
        memory.bind(pages.start + fits / OS_PAGE_BYTES..pages.end, true);
        taken.arena
    }

    fn refund(&mut self, pid: u32, addr: u64) {
        if let Some(taken) = self.taken.remove(&addr) {
            if let (NURSERY_ARENA, Some(nursery)) = (taken.arena, self.nurseries.get_mut(&pid)) {
                nursery.left += signed(taken.bytes);
                nursery.live_bytes = nursery.live_bytes.saturating_sub(taken.bytes);
                return;
            }
            *self.left.entry(pid).or_default() += signed(taken.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::BASE;
    use tiercel_policy::NurseryBudget;
    use tiercel_wire::{Flags, Version};

    const MIB: u64 = 1 << 20;

    fn born(addr: u64, bytes: u64) -> Record {
        let (version, flags) = (Version::default(), Flags::default());
        Record::Born { addr, bytes, site: 0, version, arena: None, flags, time_ns: 0 }
    }

    fn arena_of(record: &Record) -> Option<u8> {
        match record {
            Record::Born { arena, .. } => *arena,
            _ => None,
        }
    }

    #[test]
    fn what_fits_is_fast_and_a_head_of_the_rest() {
        let (mut births, mut memory) = (Births::default(), Memory::new(1 << 14, 1 << 14));
        births.welcome(&[1], 7 * MIB);
        let one = births.follow(1, born(BASE, 2 * MIB), &mut memory);
        let two = births.follow(1, born(BASE + 2 * MIB, 10 * MIB), &mut memory);
        assert_eq!([arena_of(&one), arena_of(&two)], [Some(FAST_ARENA), Some(SLOW_ARENA)]);
        memory.touch(0..12 * 256);
        assert_eq!(memory.lies(0..12 * 256), (6 * 256, 6 * 256), "5 MiB are left: a head of 4");
        let (version, flags) = (Version::default(), Flags::default());
        let died = Record::Died { addr: BASE, bytes: 2 * MIB, version, flags, time_ns: 0 };
        births.follow(1, died, &mut memory);
        let three = births.follow(1, born(BASE + 12 * MIB, 3 * MIB), &mut memory);
        assert_eq!(arena_of(&three), Some(FAST_ARENA), "what died gave its budget back");
    }

    #[test]
    fn a_plan_replaces_what_is_left_for_its_process() {
        let (mut births, mut memory) = (Births::default(), Memory::new(1 << 14, 1 << 14));
        births.welcome(&[1, 2], 8 * MIB);
        let tiers = vec![(vec![NodeId(0)], 0), (vec![NodeId(1)], u64::MAX)];
        births.apply(
            &BirthBudget { pid: 2, tiers, small_tier: 1, nursery: Default::default() },
            NodeId(0),
        );
        let one = births.follow(1, born(BASE, 4 * MIB), &mut memory);
        let two = births.follow(2, born(BASE + 4 * MIB, MIB), &mut memory);
        assert_eq!([arena_of(&one), arena_of(&two)], [Some(FAST_ARENA), Some(SLOW_ARENA)]);
    }

    #[test]
    fn a_nursery_is_for_its_sites_alone() {
        let (mut births, mut memory) = (Births::default(), Memory::new(1 << 14, 1 << 14));
        let tiers = vec![(vec![NodeId(0)], 0), (vec![NodeId(1)], u64::MAX)];
        let nursery = NurseryBudget { sites: vec![0], bytes: 4 * MIB, left_bytes: 4 * MIB };
        births.apply(&BirthBudget { pid: 1, tiers, small_tier: 1, nursery }, NodeId(0));
        // Of another site: without budget.
        let mut other = born(BASE, 2 * MIB);
        if let Record::Born { site, .. } = &mut other {
            *site = 3;
        }
        let other = births.follow(1, other, &mut memory);
        memory.touch(0..512);
        assert_eq!(arena_of(&other), Some(SLOW_ARENA));
        let (version, flags) = (Version::default(), Flags::default());
        let died = Record::Died { addr: BASE, bytes: 2 * MIB, version, flags, time_ns: 0 };
        births.follow(1, died, &mut memory);
        // Slow memory that is reused does not stay where it is.
        let ours = births.follow(1, born(BASE, 2 * MIB), &mut memory);
        memory.touch(0..512);
        assert_eq!((arena_of(&ours), memory.lies(0..512)), (Some(NURSERY_ARENA), (512, 0)));
        assert_eq!(births.nursed()[&1], 2 * MIB);
        let full = births.follow(1, born(BASE + 2 * MIB, 3 * MIB), &mut memory);
        assert_eq!(arena_of(&full), Some(SLOW_ARENA), "2 MiB are left");
        births.follow(1, died, &mut memory);
        assert_eq!(births.nursed()[&1], 0);
    }
}
