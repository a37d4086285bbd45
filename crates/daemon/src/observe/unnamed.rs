//! Memory of hosted processes that no object names, as objects of its own: private mappings that no
//! allocation of the program made.
//! In: which mappings have nothing in rows. Out: births and deaths in the ledger. Knows nothing of
//! /proc.
//!
//! So it competes with objects in one order. What the program's runtime reports is always newer.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use tiercel_ledger::Ledger;
use tiercel_wire::{Flags, ObjectSnapshot, Record, Version};

/// What summaries call it.
pub(crate) const NAME: &str = "memory of no allocation";
/// Mappings of a process that are taken in: more are left to the kernel. Chosen, not measured.
const MAPPINGS_MAX: usize = 4096;
/// Older than every version of a runtime, whose carves count from 0 upwards: versions wrap around.
const CARVE: u32 = u32::MAX;

/// Mappings of one process that have nothing in rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unnamed {
    pub(crate) pid: u32,
    /// Ascending, apart.
    pub(crate) ranges: Vec<Range<u64>>,
}

/// A mapping that was taken in, by its first byte.
#[derive(Clone, Copy, Debug)]
struct Known {
    end: u64,
    version: Version,
    /// Looks since then; from the second on it is a row, unless the ledger has dropped it: at an
    /// exec, or when it healed a loss by the object table, which does not have it.
    looks: u32,
}

/// What of such memory is in the ledger.
#[derive(Debug, Default)]
pub(crate) struct Adopted {
    known: HashMap<u32, BTreeMap<u64, Known>>,
    generation: u16,
}

impl Adopted {
    /// What of a process was taken in: ascending.
    pub(crate) fn of(&self, pid: u32) -> impl Iterator<Item = Range<u64>> {
        let known = self.known.get(&pid).into_iter().flatten();
        known.map(|(addr, known)| *addr..known.end)
    }

    /// Makes what the ledger has of a process what is there now, at a site. Returns what is new:
    /// mappings and bytes.
    pub(crate) fn update(
        &mut self,
        ledger: &mut Ledger,
        now: &Unnamed,
        site: u32,
        time_ns: u64,
    ) -> (u64, u64) {
        let wanted: BTreeMap<u64, u64> =
            now.ranges.iter().take(MAPPINGS_MAX).map(|range| (range.start, range.end)).collect();
        let known = self.known.entry(now.pid).or_default();
        known.retain(|addr, one| {
            let addr = *addr;
            one.looks += 1;
            // One that has another end is another one.
            let stays = wanted.get(&addr) == Some(&one.end);
            if !stays {
                let (bytes, version, flags) = (one.end - addr, one.version, Flags::MAPPED);
                ledger.apply(now.pid, &Record::Died { addr, bytes, version, flags, time_ns });
            }
            stays && (one.looks < 2 || ledger.find(now.pid, addr).is_some())
        });
        let (mut count, mut new_bytes) = (0, 0);
        for (addr, end) in wanted {
            if known.contains_key(&addr) {
                continue;
            }
            self.generation = self.generation.wrapping_add(1);
            let version = Version { carve: CARVE, generation: self.generation };
            let (bytes, arena, flags) = (end - addr, None, Flags::MAPPED);
            let object = ObjectSnapshot { addr, bytes, site, version, arena, flags };
            ledger.inherit_object(now.pid, &object);
            known.insert(addr, Known { end, version, looks: 0 });
            (count, new_bytes) = (count + 1, new_bytes + bytes);
        }
        (count, new_bytes)
    }

    /// A process is gone.
    pub(crate) fn gone(&mut self, pid: u32) {
        self.known.remove(&pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_ledger::Config;

    const PID: u32 = 7;

    fn now(ranges: &[Range<u64>]) -> Unnamed {
        Unnamed { pid: PID, ranges: ranges.to_vec() }
    }

    fn rows(ledger: &mut Ledger, ms: u64) -> Vec<Range<u64>> {
        ledger.tick(ms);
        ledger.ranges_of(PID).collect()
    }

    #[test]
    fn rows_follow_what_is_mapped() {
        let mut ledger = Ledger::new(Config::default(), 0).unwrap();
        ledger.process_born(PID).unwrap();
        let mut adopted = Adopted::default();
        let (heap, other) = (0x10_0000..0x20_0000, 0x4000_0000..0x4010_0000);
        let both = now(&[heap.clone(), other.clone()]);
        assert_eq!(adopted.update(&mut ledger, &both, 9, 1), (2, 2 << 20));
        assert_eq!(adopted.update(&mut ledger, &both, 9, 2), (0, 0));
        assert_eq!(rows(&mut ledger, 1), [heap.clone(), other.clone()]);
        assert_eq!(adopted.of(PID).collect::<Vec<_>>(), [heap.clone(), other.clone()]);
        let grown = heap.start..0x28_0000;
        assert_eq!(
            adopted.update(&mut ledger, &now(std::slice::from_ref(&grown)), 9, 3),
            (1, 0x18_0000)
        );
        assert_eq!(rows(&mut ledger, 2), [grown]);
        assert_eq!(
            adopted.update(&mut ledger, &now(std::slice::from_ref(&heap)), 9, 4),
            (1, 1 << 20)
        );
        assert_eq!(rows(&mut ledger, 3), std::slice::from_ref(&heap), "the same address again");
        ledger.process_exec(PID);
        assert_eq!(rows(&mut ledger, 4), []);
        adopted.update(&mut ledger, &now(std::slice::from_ref(&heap)), 9, 5);
        adopted.update(&mut ledger, &now(std::slice::from_ref(&heap)), 9, 6);
        assert_eq!(rows(&mut ledger, 5), [heap], "what the ledger dropped comes back");
        adopted.gone(PID);
        assert_eq!(adopted.of(PID).count(), 0);
    }

    #[test]
    fn what_a_runtime_reports_is_newer() {
        let mut ledger = Ledger::new(Config::default(), 0).unwrap();
        ledger.process_born(PID).unwrap();
        let mut adopted = Adopted::default();
        adopted.update(&mut ledger, &now(std::slice::from_ref(&(0x10_0000..0x20_0000))), 9, 1);
        ledger.apply(
            PID,
            &Record::Born {
                addr: 0x10_0000,
                bytes: 0x1000,
                site: 3,
                version: Version::default(),
                arena: None,
                flags: Flags::MAPPED,
                time_ns: 2,
            },
        );
        let born = 0x10_0000..0x10_1000;
        assert!(rows(&mut ledger, 1).contains(&born), "an allocation is what it says");
    }
}
