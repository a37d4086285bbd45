//! Rebuilds a process's objects from its object table, after records were lost or at an attach.
//! In: the live objects of one process, in slices by address. Out: the same objects in the ledger;
//! those that were known keep their heat. Knows nothing of shared memory.
//!
//! ```text
//! all rings drained | slice | records | slice | records | slice ... last slice
//! ```
//! Each slice is applied as soon as it was read, before any other record: then the table is at
//! least as new as all that the ledger knows of those addresses, because a runtime writes the table
//! first and the record after it. So a known object that a slice lacks is dead, and one that is not
//! known is alive; records of before the slice find something newer, and later ones are newer.
//! What lies in other slices does not matter: of two uses that overlap, the newer version is true.
//!
//! Only what was lost before the first slice is healed, since its neighbours in the rings were
//! drained by then. What is lost later requires another scan.
//!
//! Records that wait for their time ([`Ledger::deliver`]) were drained, so they are applied before
//! a slice is: of an object whose death was lost the birth could still wait, come after the slice
//! that lacks it, and never end. Other threads' records of the same time may come later, as if the
//! waiting ones had been drained in another order, which versions allow. The process counts as
//! settled no further for that: no sample is attributed before all records of its time are there.
//!
//! The table has no times. What a slice lacks was alive when the process was sound last, and was
//! dead when the slice was read. What it adds was born in between; an earlier life at the same
//! address goes first ([`VAGUE`]). Samples of after the loss wait until the last slice, since any
//! of them may be of a life that only a later slice ends or begins. Were records lost during the
//! scan, samples of before that loss are attributed then, and the others wait for the next scan.

use std::ops::Range;

use tiercel_wire::{Flags, ObjectSnapshot, Version};

use crate::ledger::Ledger;
use crate::records::Birth;
use crate::row::{ADOPTED, BLOCK, FRESH, HEAD, MAPPED, Row, VAGUE};

/// What became of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The table is to be read again from here on. The slice's end, unless that were too much.
    pub next: u64,
    /// Extents and objects that were looked at.
    pub work: usize,
}

impl Ledger {
    /// Makes the objects of a process that begin in `range` those of its object table there,
    /// ascending by address, as read just before `read_ns`. Looks at about `work_max` extents, and
    /// stops short of the end if there are more. Begin with all rings drained. An unknown process
    /// is no error.
    pub fn resync_slice(
        &mut self,
        pid: u32,
        range: Range<u64>,
        objects: &[ObjectSnapshot],
        work_max: usize,
        read_ns: u64,
    ) -> Slice {
        let Some(slot) = self.slot(pid) else { return Slice { next: range.end, work: 0 } };
        if range.start == 0 {
            self.counts.resyncs += 1;
            self.process_mut(slot).lost_again_ns = None;
        }
        self.apply_waiting(slot);
        let (dead, next, looked_at) = self.dead_heads(slot, &range, objects, work_max);
        self.counts.healed_deaths += dead.len() as u64;
        let known = objects.partition_point(|object| object.addr < next);
        self.with_slice(slot, read_ns, |ledger| {
            dead.into_iter().for_each(|head| ledger.remove_object(head));
            objects[..known].iter().for_each(|object| _ = ledger.adopt(slot, object));
        });
        if next == u64::MAX {
            self.process_mut(slot).scanned();
        }
        Slice { next, work: looked_at + known }
    }

    /// Takes objects from the object table, as read just before `read_ns`, of a process of which
    /// all that is known came from records; `found` is called with each that was not known.
    pub fn adopt_objects(
        &mut self,
        pid: u32,
        objects: &[ObjectSnapshot],
        read_ns: u64,
        mut found: impl FnMut(&ObjectSnapshot),
    ) {
        let Some(slot) = self.slot(pid) else { return };
        self.apply_waiting(slot);
        self.with_slice(slot, read_ns, |ledger| {
            objects.iter().filter(|object| ledger.adopt(slot, object)).for_each(&mut found);
        });
    }

    /// Does what follows from a slice, at the time when it was read.
    fn with_slice(&mut self, slot: u16, read_ns: u64, work: impl FnOnce(&mut Ledger)) {
        let process = self.process(slot);
        (self.event_ns, self.seen_alive_ns) = (process.settled_ns.max(read_ns), process.sound_ns);
        work(self);
        self.seen_alive_ns = u64::MAX;
    }

    /// A process has an object from now on that another one had.
    pub fn inherit_object(&mut self, pid: u32, object: &ObjectSnapshot) {
        let Some(slot) = self.slot(pid) else { return };
        self.apply_waiting(slot);
        self.event_ns = self.process(slot).settled_ns;
        self.adopt(slot, object);
    }

    /// Objects of a process that live and were born before a time, ascending by address, at most
    /// `max`; those that were born in the open interval included.
    pub fn objects_before(&self, pid: u32, before_ms: u64, max: usize) -> Vec<ObjectSnapshot> {
        let Some(slot) = self.slot_of(pid) else { return Vec::new() };
        let rows = self.process(slot).index.iter().map(|number| &self.rows[number]);
        let mut objects: Vec<ObjectSnapshot> = Vec::new();
        for row in rows.filter(|row| row.born_ms() <= before_ms) {
            let is_full = objects.len() == max;
            match objects.last_mut().filter(|_| !row.has(HEAD)) {
                Some(object) => object.bytes += row.bytes(),
                None if is_full => break,
                None => objects.push(snapshot(row)),
            }
        }
        objects
    }

    /// An object that lives falls into parts with sites of their own: (address, bytes, site),
    /// ascending and without gaps. They were born with it. What was attributed to it so far stays
    /// with its site.
    pub fn divide_object(
        &mut self,
        pid: u32,
        addr: u64,
        version: Version,
        parts: &[(u64, u64, u32)],
    ) {
        let Some(slot) = self.slot(pid) else { return };
        self.apply_waiting(slot);
        let Some(head) = self.head_at(slot, addr).filter(|n| self.rows[*n].version() == version)
        else {
            return;
        };
        let whole = self.rows[head];
        let end = self.rows[self.last_of(head)].end();
        self.event_ns = self.process(slot).settled_ns;
        self.remove_object(head);
        self.process_mut(slot).ended.void_last();
        let ended = match whole.has(FRESH) {
            true => &mut self.counts.objects_ephemeral,
            false => &mut self.counts.objects_died,
        };
        *ended = ended.saturating_sub(1);
        let ObjectSnapshot { arena, flags, .. } = snapshot(&whole);
        let born_ns = whole.born_ns();
        for &(addr, bytes, site) in parts.iter().filter(|part| part.0 + part.1 <= end) {
            self.born(slot, Birth { addr, bytes, site, version, arena, flags, born_ns });
            if let Some(head) = self.head_at(slot, addr) {
                self.rows[head].flags |= whole.flags & ADOPTED;
            }
        }
        // Its bytes were counted when it was born.
        self.counts.objects_born = self.counts.objects_born.saturating_sub(1);
        self.counts.born_bytes = self.counts.born_bytes.saturating_sub(end - addr);
    }

    /// Whether an object lives, and was found in the table: the record of its birth may be late.
    pub fn was_adopted(&self, pid: u32, addr: u64, version: Version) -> bool {
        let head = self.slot_of(pid).and_then(|slot| self.head_at(slot, addr));
        head.map(|head| self.rows[head])
            .is_some_and(|row| row.has(ADOPTED) && row.version() == version)
    }

    /// Heads in a range that are not in the table, where the look ended, and how many extents it
    /// took.
    fn dead_heads(
        &self,
        slot: u16,
        range: &Range<u64>,
        objects: &[ObjectSnapshot],
        work_max: usize,
    ) -> (Vec<u32>, u64, usize) {
        let mut table = objects.iter().peekable();
        let (mut dead, mut looked_at) = (Vec::new(), 0);
        for number in self.process(slot).index.iter_from(range.start) {
            let row = &self.rows[number];
            if row.addr >= range.end {
                break;
            }
            if row.has(HEAD) {
                if looked_at >= work_max {
                    return (dead, row.addr, looked_at);
                }
                while table.next_if(|object| object.addr < row.addr).is_some() {}
                let entry = table.peek().filter(|object| object.addr == row.addr);
                if entry.is_none_or(|object| object.version != row.version()) {
                    dead.push(number);
                }
            }
            looked_at += 1;
        }
        (dead, range.end, looked_at)
    }

    /// Whether what a slice adds may be older than it seems, and its birth: after a loss the
    /// earliest possible, otherwise now, since no sample of before waits for it.
    fn adopted_birth(&self, slot: u16) -> (bool, u64) {
        let process = self.process(slot);
        let now_ns = process.settled_ns.max(self.now_ms * 1_000_000);
        (process.has_loss, if process.has_loss { process.sound_ns } else { now_ns })
    }

    /// True when it was not known.
    fn adopt(&mut self, slot: u16, object: &ObjectSnapshot) -> bool {
        let (has_loss, born_ns) = self.adopted_birth(slot);
        let birth = Birth {
            addr: object.addr,
            bytes: object.bytes,
            site: object.site,
            version: object.version,
            arena: object.arena,
            flags: object.flags,
            born_ns,
        };
        match self.head_at(slot, object.addr) {
            Some(head) => {
                let last = self.last_of(head);
                if self.rows[last].end() != object.addr + object.bytes {
                    self.resized(slot, birth);
                }
                false
            }
            None => {
                self.born(slot, birth);
                if let Some(head) = self.head_at(slot, object.addr) {
                    let vague = if has_loss { VAGUE } else { 0 };
                    self.rows[head].flags |= ADOPTED | vague;
                    self.counts.healed_births += 1;
                }
                true
            }
        }
    }
}

/// A row as an object of the table.
fn snapshot(row: &Row) -> ObjectSnapshot {
    let flag = |bit: u16, wire: Flags| if row.has(bit) { wire.0 } else { 0 };
    ObjectSnapshot {
        addr: row.addr,
        bytes: row.bytes(),
        site: row.site(),
        version: row.version(),
        arena: row.arena(),
        flags: Flags(flag(BLOCK, Flags::BLOCK) | flag(MAPPED, Flags::MAPPED)),
    }
}
