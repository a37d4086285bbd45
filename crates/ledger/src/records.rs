//! Records applied in whatever order the rings gave them.
//! In: [`Record`]s of one process. Out: objects that live exactly when the program has them.
//! Knows nothing of rings.
//!
//! The rules, from `tiercel_wire.h`: every use of an address has a version; of two live records
//! over the same bytes the newer is true; a death names the use it ends and may come before its
//! birth.

use tiercel_machine::number::clamped_u32;
use tiercel_wire::{Flags, Record, Version};

use crate::config::OBJECT_BYTES_MAX;
use crate::counts::add;
use crate::event_buffer::Event;
use crate::ledger::Ledger;
use crate::process::{Delivered, End};
use crate::row::{ADOPTED, BLOCK, FRESH, HEAD, LAST, MAPPED, PAGE_SHIFT, Row, VAGUE};

/// A birth, from a record or an object table.
#[derive(Clone, Copy)]
pub(crate) struct Birth {
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    pub(crate) site: u32,
    pub(crate) version: Version,
    pub(crate) arena: Option<u8>,
    pub(crate) flags: Flags,
    pub(crate) born_ns: u64,
}

impl Birth {
    fn end(&self) -> u64 {
        self.addr + self.bytes
    }
}

impl Ledger {
    /// Applies one record of one process at once. [`Ledger::deliver`] and [`Ledger::settle`] do so
    /// in the order of time.
    pub fn apply(&mut self, pid: u32, record: &Record) {
        let Some(slot) = self.slot(pid) else {
            self.counts.records_of_unknown_processes += 1;
            return;
        };
        let delivered = self.with_heir(slot, *record);
        self.apply_delivered(slot, &delivered);
    }

    pub(crate) fn apply_delivered(&mut self, slot: u16, delivered: &Delivered) {
        self.counts.records += 1;
        // A time before the process was settled is not believed: lives of then are over.
        let time_ns = delivered.record.time_ns().max(self.process(slot).settled_ns);
        self.event_ns = time_ns;
        match delivered.record {
            Record::Born { addr, bytes, site, version, arena, flags, .. } => {
                let born_ns = time_ns;
                self.born(slot, Birth { addr, bytes, site, version, arena, flags, born_ns });
            }
            Record::Died { addr, bytes, version, flags, .. } => {
                if let Some(heir) = delivered.heir {
                    self.inherit(slot, addr, version, heir);
                }
                self.died(slot, addr, version);
                if flags.has(Flags::MAPPED) {
                    // What a cut left of it goes by the same version and is not found by its
                    // address.
                    self.cut(slot, addr, addr + bytes, |row| row.version() == version);
                }
            }
            Record::Resized { addr, bytes, site, version, arena, flags, .. } => {
                let born_ns = time_ns;
                self.resized(slot, Birth { addr, bytes, site, version, arena, flags, born_ns });
            }
            Record::Cut { addr, bytes, version, .. } => {
                self.cut_mapped(slot, addr, bytes, version);
            }
            Record::Phase { number, .. } => {
                self.process_mut(slot).phase = number;
                self.emit(slot, Event::Phase { number });
            }
            // The daemon sees what really became of the process, and knows what is shared.
            Record::Exec { .. }
            | Record::Exit { .. }
            | Record::Share { .. }
            | Record::Head { .. }
            | Record::Misses { .. } => {}
        }
    }

    pub(crate) fn born(&mut self, slot: u16, mut birth: Birth) {
        birth.site = self.admit_site(slot, birth.site);
        if birth.bytes > OBJECT_BYTES_MAX || !self.has_room(slot, 1) {
            self.counts.births_refused += 1;
            add(&mut self.counts.births_refused_bytes, birth.bytes);
            return;
        }
        let (addr, end, version) = (birth.addr, birth.end(), birth.version);
        let process = self.process(slot);
        let is_over = process.tombstones.covers(addr, version);
        if !birth.flags.has(Flags::MAPPED) || !process.cuts.hit(addr, end, version) || is_over {
            self.place(slot, birth);
            return;
        }
        for (addr, end) in process.cuts.remains(addr, end, version) {
            self.place(slot, Birth { addr, bytes: end - addr, ..birth });
        }
    }

    /// Records a birth, unless a newer record has ended it already. What it overlaps and is older
    /// is dead, or no longer what it was: no byte is given out twice, and what is left of an object
    /// that gave some away is reported again.
    fn place(&mut self, slot: u16, birth: Birth) {
        let mut is_over = self.process(slot).tombstones.covers(birth.addr, birth.version);
        if let Some(number) = self.overlapping(slot, birth.addr, birth.end()) {
            let row = &self.rows[number];
            let is_known = row.addr == birth.addr && row.version() == birth.version;
            is_over |= is_known || self.is_newer_within(slot, &birth);
            if !is_over {
                self.remove_overlapping(slot, birth.addr, birth.end());
            }
        }
        if is_over {
            self.counts.births_overtaken += 1;
        } else {
            self.insert_fresh(slot, &birth);
        }
    }

    fn insert_fresh(&mut self, slot: u16, birth: &Birth) {
        self.counts.objects_born += 1;
        add(&mut self.counts.born_bytes, birth.bytes);
        add(&mut self.process_mut(slot).born_bytes.0, birth.bytes);
        let Birth { addr, bytes, site, .. } = *birth;
        let is_block = birth.flags.has(Flags::BLOCK);
        let is_mapped = birth.flags.has(Flags::MAPPED);
        let is_fresh = is_mapped || birth.flags.has(Flags::FRESH);
        self.emit(slot, Event::Born { addr, bytes, site, is_block, is_mapped, is_fresh });
        let flag = |wire: Flags, ours: u16| if birth.flags.has(wire) { ours } else { 0 };
        let kinds = flag(Flags::BLOCK, BLOCK) | flag(Flags::MAPPED, MAPPED);
        self.insert_row(Row {
            carve: birth.version.carve,
            generation: birth.version.generation,
            process: slot,
            flags: HEAD | LAST | FRESH | kinds | Row::arena_flags(birth.arena),
            ..Row::new(addr, clamped_u32(bytes >> PAGE_SHIFT), site, birth.born_ns)
        });
    }

    /// A range leaves the mapped objects of versions up to `version`, born or still to come.
    fn cut_mapped(&mut self, slot: u16, addr: u64, bytes: u64, version: Version) {
        let is_older = |row: &Row| row.has(MAPPED) && !row.version().is_newer_than(version);
        self.cut(slot, addr, addr + bytes, is_older);
        if !self.process_mut(slot).cuts.add(addr, addr + bytes, version) {
            self.counts.early_forgotten += 1;
        }
    }

    pub(crate) fn died(&mut self, slot: u16, addr: u64, version: Version) {
        let head = self.head_at(slot, addr).filter(|n| !self.is_newer(*n, version));
        let exact = head.map(|number| self.rows[number]).filter(|row| row.version() == version);
        if let Some(number) = head {
            self.remove_object(number);
        }
        if exact.is_none() {
            self.counts.deaths_early += 1;
        }
        if exact.is_none_or(|row| row.has(ADOPTED)) {
            self.bury(slot, addr, End::With(version));
        }
    }

    /// Remembers that the uses of an address up to `end` are over.
    fn bury(&mut self, slot: u16, addr: u64, end: End) {
        let Ledger { processes, groups, config, .. } = self;
        let process = processes[usize::from(slot)].as_mut().expect("the caller found it");
        let group = process.group;
        if !process.tombstones.bury(addr, end, || groups.add_early(group, config)) {
            self.counts.early_forgotten += 1;
        }
    }

    pub(crate) fn resized(&mut self, slot: u16, new: Birth) {
        let head = self.head_at(slot, new.addr);
        let is_over = self.process(slot).tombstones.covers(new.addr, new.version)
            || head.is_some_and(|head| self.is_newer(head, new.version))
            || new.bytes > OBJECT_BYTES_MAX;
        if is_over {
            self.counts.births_overtaken += 1;
            return;
        }
        // An object keeps its site.
        let site = self.admit_site(slot, new.site);
        match head.filter(|head| self.rows[*head].site() == site) {
            Some(head) => self.resize(slot, head, &new),
            // Its birth is late, or was lost: this record says as much.
            None => self.born(slot, new),
        }
        // Uses between the one we knew and this one may still be reported as born.
        self.bury(slot, new.addr, End::Before(new.version));
    }

    fn resize(&mut self, slot: u16, head: u32, new: &Birth) {
        let last = self.last_of(head);
        let old_end = self.rows[last].end();
        if new.end() < old_end {
            self.cut(slot, new.end(), old_end, |_| true);
        } else if new.end() > old_end {
            let bytes = new.end() - old_end;
            let more = Birth { addr: old_end, bytes, ..*new };
            if self.is_newer_within(slot, &more) {
                // It has shrunk again since, and that record is late.
                return;
            }
            self.remove_overlapping(slot, old_end, new.end());
            self.extend(last, clamped_u32(bytes >> PAGE_SHIFT), new.bytes >> PAGE_SHIFT);
        }
        let mut number = Some(head);
        while let Some(this) = number {
            let row = &mut self.rows[this];
            (row.carve, row.generation) = (new.version.carve, new.version.generation);
            number = self.next_of(this);
        }
    }

    /// A realloc moved: the new object takes over what is known of the old one, extent by extent.
    fn inherit(&mut self, slot: u16, old: u64, version: Version, new: u64) {
        let (Some(old), Some(new)) = (self.head_at(slot, old), self.head_at(slot, new)) else {
            return;
        };
        let (from, to) = (&self.rows[old], &self.rows[new]);
        if from.version() != version || from.has(FRESH) || !to.has(FRESH) || !to.has(LAST) {
            return;
        }
        self.make_row(new);
        let (mut from, mut to) = (Some(old), Some(new));
        while let (Some(a), Some(b)) = (from, to) {
            let old = self.rows[a];
            let row = &mut self.rows[b];
            row.reads = old.reads;
            row.writes = old.writes;
            row.stall_ns = old.stall_ns;
            row.clock = old.clock;
            row.hits = old.hits;
            row.last_access = old.last_access;
            self.live.born_ms -= row.born_ms();
            row.set_born_ns(old.born_ns());
            row.flags |= VAGUE;
            self.live.born_ms += row.born_ms();
            self.move_value(a, b);
            (from, to) = (self.next_of(a), self.next_of(b));
        }
    }

    pub(crate) fn head_at(&self, slot: u16, addr: u64) -> Option<u32> {
        let number = self.process(slot).index.get(addr)?;
        self.rows[number].has(HEAD).then_some(number)
    }

    fn is_newer_within(&self, slot: u16, birth: &Birth) -> bool {
        let mut below = birth.end();
        while below > birth.addr {
            let Some(number) = self.overlapping(slot, birth.addr, below) else { return false };
            if self.is_newer(number, birth.version) {
                return true;
            }
            below = self.rows[number].addr;
        }
        false
    }

    fn is_newer(&self, number: u32, version: Version) -> bool {
        self.rows[number].version().is_newer_than(version)
    }
}
