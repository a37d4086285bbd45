//! Rebuilds a process's objects from its object table, after records were lost or at an attach.
//! In: all live objects of one process. Out: the same objects in the ledger; those that were known
//! keep their heat. Knows nothing of shared memory.

use std::collections::BTreeMap;

use tiercel_wire::ObjectSnapshot;

use crate::ledger::Ledger;
use crate::records::Birth;
use crate::row::{HEAD, Stamp};

impl Ledger {
    /// Makes the objects of a process those of its object table. Drain all its rings first: what
    /// was written after the table was read still comes as records, and versions sort it out. An
    /// unknown process is no error. Of a table with more objects than a process may have extents,
    /// the rest is not read: a program may write anything there, and each object takes memory.
    pub fn resync(&mut self, pid: u32, objects: impl IntoIterator<Item = ObjectSnapshot>) {
        let Some(slot) = self.slot(pid) else { return };
        self.counts.resyncs += 1;
        self.set_event_time(self.now_ms);
        let objects = objects.into_iter().take(self.config.process_extents_max as usize);
        let table: BTreeMap<u64, ObjectSnapshot> =
            objects.map(|object| (object.addr, object)).collect();
        let index = &self.process(slot).index;
        let heads: Vec<u32> = index.iter().filter(|number| self.rows[*number].has(HEAD)).collect();
        for head in heads {
            let row = &self.rows[head];
            let lives = table.get(&row.addr).is_some_and(|object| object.version == row.version());
            if !lives {
                self.remove_object(head);
                self.counts.healed_deaths += 1;
            }
        }
        for object in table.values() {
            self.adopt(slot, object);
        }
    }

    fn adopt(&mut self, slot: u16, object: &ObjectSnapshot) {
        let birth = Birth {
            addr: object.addr,
            bytes: object.bytes,
            site: object.site,
            version: object.version,
            arena: object.arena,
            flags: object.flags,
            born: Stamp::at(self.now_ms),
        };
        match self.head_at(slot, object.addr) {
            Some(head) => {
                let last = self.last_of(head);
                if self.rows[last].end() != object.addr + object.bytes {
                    self.resized(slot, birth);
                }
            }
            None => {
                self.born(slot, birth);
                self.counts.healed_births += u64::from(self.head_at(slot, object.addr).is_some());
            }
        }
    }
}
