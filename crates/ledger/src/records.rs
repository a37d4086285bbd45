//! Records applied in whatever order the rings gave them.
//! In: [`Record`]s of one process. Out: objects that live exactly when the program has them.
//! Knows nothing of rings.
//!
//! The rules, from `tiercel_wire.h`: every use of an address has a version; of two live records over
//! the same bytes the newer is true; a death names the use it ends and may come before its birth.

use tiercel_wire::{Flags, Record, Version};

use crate::config::OBJECT_BYTES_MAX;
use crate::ledger::Ledger;
use crate::process::{End, without};
use crate::row::{BLOCK, FRESH, HEAD, LAST, MAPPED, NO_ARENA, PAGE_SHIFT, Row, Stamp};

/// A birth, from a record or an object table.
#[derive(Clone, Copy)]
pub(crate) struct Birth {
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    pub(crate) site: u32,
    pub(crate) version: Version,
    pub(crate) arena: Option<u8>,
    pub(crate) flags: Flags,
    pub(crate) born: Stamp,
}

impl Birth {
    fn end(&self) -> u64 {
        self.addr + self.bytes
    }
}

impl Ledger {
    /// Applies one record of one process.
    pub fn apply(&mut self, pid: u32, record: &Record) {
        let Some(slot) = self.slot(pid) else {
            self.counts.records_of_unknown_processes += 1;
            return;
        };
        self.counts.records += 1;
        let continued = self.process_mut(slot).continued.take();
        match *record {
            Record::Born { addr, bytes, site, version, arena, flags, time_ms } => {
                let born = self.event_stamp(time_ms);
                self.born(slot, Birth { addr, bytes, site, version, arena, flags, born });
                if flags.has(Flags::CONTINUED) {
                    self.process_mut(slot).continued = Some(addr);
                }
            }
            Record::Died { addr, bytes, version, flags, .. } => {
                if let Some(heir) = continued {
                    self.inherit(slot, addr, version, heir);
                }
                if flags.has(Flags::MAPPED) {
                    self.unmapped(slot, addr, bytes, version);
                } else {
                    self.died(slot, addr, version);
                }
            }
            Record::Resized { addr, bytes, site, version, arena, flags, time_ms } => {
                let born = self.event_stamp(time_ms);
                self.resized(slot, Birth { addr, bytes, site, version, arena, flags, born });
            }
            Record::Cut { addr, bytes, version, .. } => {
                self.cut_mapped(slot, addr, bytes, version);
            }
            Record::Phase { number, .. } => self.process_mut(slot).phase = number,
            // The daemon sees what really became of the process.
            Record::Exec { .. } | Record::Exit { .. } => {}
        }
    }

    pub(crate) fn born(&mut self, slot: u16, birth: Birth) {
        if birth.bytes > OBJECT_BYTES_MAX || !self.has_room(slot, 1) {
            self.counts.births_refused += 1;
            self.counts.births_refused_bytes += birth.bytes;
            return;
        }
        self.counts.objects_born += 1;
        self.counts.born_bytes += birth.bytes;
        self.process_mut(slot).born_bytes.0 += birth.bytes;
        if birth.flags.has(Flags::MAPPED) {
            self.place_mapped(slot, birth);
        } else {
            self.place(slot, birth);
        }
    }

    /// Puts an object of the heap into the books unless it is known to be over. What it overlaps is dead:
    /// the heap gives no byte out twice.
    fn place(&mut self, slot: u16, birth: Birth) {
        let mut is_over = self.process(slot).tombstones.covers(birth.addr, birth.version);
        if let Some(number) = self.overlapping(slot, birth.addr, birth.end()) {
            let row = &self.rows[number];
            let is_known = row.addr == birth.addr && row.version() == birth.version;
            let newer = self.newer_within(slot, birth.addr, birth.end(), birth.version);
            is_over |= is_known || newer.is_some();
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

    /// Puts a mapping into the books, as far as neither cuts nor newer mappings have taken it. It takes what
    /// it overlaps from older ones: the rest of those may live.
    fn place_mapped(&mut self, slot: u16, birth: Birth) {
        let mut pieces = vec![(birth.addr, birth.end())];
        if self.process(slot).cuts.hit(birth.addr, birth.end(), birth.version) {
            pieces = self.process(slot).cuts.remains(birth.addr, birth.end(), birth.version);
        }
        let mut below = birth.end();
        while let Some(number) = self.overlapping(slot, birth.addr, below) {
            let row = &self.rows[number];
            if !birth.version.is_newer_than(row.version()) {
                pieces = without(&pieces, row.addr, row.end());
            }
            below = row.addr;
            if below <= birth.addr {
                break;
            }
        }
        if pieces != [(birth.addr, birth.end())] {
            self.counts.births_overtaken += 1;
        }
        for (addr, end) in pieces {
            self.cut(slot, addr, end, Some(birth.version));
            // Heap is never under a mapping, whatever a client says.
            self.remove_overlapping(slot, addr, end);
            self.insert_fresh(slot, &Birth { addr, bytes: end - addr, ..birth });
        }
    }

    fn insert_fresh(&mut self, slot: u16, birth: &Birth) {
        let flag = |wire: Flags, ours: u8| if birth.flags.has(wire) { ours } else { 0 };
        self.insert_row(Row {
            addr: birth.addr,
            pages: (birth.bytes >> PAGE_SHIFT) as u32,
            site: birth.site,
            carve: birth.version.carve,
            generation: birth.version.generation,
            process: slot,
            flags: HEAD | LAST | FRESH | flag(Flags::BLOCK, BLOCK) | flag(Flags::MAPPED, MAPPED),
            arena: birth.arena.unwrap_or(NO_ARENA),
            hits: 0,
            born: birth.born,
            last_access: Stamp::NEVER,
            reads: 0.0,
            writes: 0.0,
            stall_ns: 0.0,
            clock: 0,
            homes: Default::default(),
            homes_as_of: Stamp::NEVER,
        });
    }

    /// A mapped object died. What a cut left of one goes by the version of the whole, so the death speaks
    /// of its range only.
    fn unmapped(&mut self, slot: u16, addr: u64, bytes: u64, version: Version) {
        if let Some(head) = self.head_at(slot, addr)
            && self.rows[head].version() == version
            && self.rows[self.last_of(head)].end() == addr + bytes
        {
            self.remove_object(head);
            return;
        }
        self.counts.deaths_early += 1;
        self.cut_mapped(slot, addr, bytes, version);
    }

    /// A range leaves the mapped objects of versions up to `version`, born or still to come.
    fn cut_mapped(&mut self, slot: u16, addr: u64, bytes: u64, version: Version) {
        self.cut(slot, addr, addr + bytes, Some(version));
        if !self.process_mut(slot).cuts.add(addr, addr + bytes, End::With(version)) {
            self.counts.early_forgotten += 1;
        }
    }

    pub(crate) fn died(&mut self, slot: u16, addr: u64, version: Version) {
        let head = self.head_at(slot, addr).filter(|n| !self.is_newer(*n, version));
        let is_exact = head.is_some_and(|number| self.rows[number].version() == version);
        if let Some(number) = head {
            self.remove_object(number);
        }
        if !is_exact {
            self.counts.deaths_early += 1;
            self.bury(slot, addr, End::With(version));
        }
    }

    /// Remembers that the uses of an address up to `end` are over.
    fn bury(&mut self, slot: u16, addr: u64, end: End) {
        if !self.process_mut(slot).tombstones.bury(addr, end) {
            self.counts.early_forgotten += 1;
        }
    }

    pub(crate) fn resized(&mut self, slot: u16, new: Birth) {
        let head = self.head_at(slot, new.addr);
        let is_mapped = new.flags.has(Flags::MAPPED);
        let is_cut = is_mapped
            && (self.process(slot).cuts.hit(new.addr, new.end(), new.version)
                || self.newer_within(slot, new.addr, new.end(), new.version).is_some());
        let is_over = self.process(slot).tombstones.covers(new.addr, new.version)
            || head.is_some_and(|head| self.is_newer(head, new.version))
            || new.bytes > OBJECT_BYTES_MAX;
        if is_over && !is_cut {
            self.counts.births_overtaken += 1;
            return;
        }
        match head {
            Some(head) if !is_cut => self.resize(slot, head, &new),
            // Its birth is late, or was lost, or a later cut came first: this record says as much.
            _ => {
                self.cut(slot, new.addr, new.end(), Some(new.version));
                self.born(slot, new);
            }
        }
        // Uses older than this one may still be reported as born.
        let over = End::Before(new.version);
        if !is_mapped {
            self.bury(slot, new.addr, over);
        } else if !self.process_mut(slot).cuts.add(new.addr, new.end(), over) {
            self.counts.early_forgotten += 1;
        }
    }

    fn resize(&mut self, slot: u16, head: u32, new: &Birth) {
        let last = self.last_of(head);
        let old_end = self.rows[last].end();
        if new.end() < old_end {
            self.cut(slot, new.end(), old_end, None);
        } else if new.end() > old_end {
            let newer = self.newer_within(slot, old_end, new.end(), new.version);
            let end = newer.unwrap_or(new.end());
            if end > old_end {
                if new.flags.has(Flags::MAPPED) {
                    self.cut(slot, old_end, end, Some(new.version));
                }
                self.remove_overlapping(slot, old_end, end);
                let pages = ((end - old_end) >> PAGE_SHIFT) as u32;
                self.extend(last, pages, new.bytes >> PAGE_SHIFT);
            }
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
        self.record_row(new);
        let (mut from, mut to) = (Some(old), Some(new));
        while let (Some(a), Some(b)) = (from, to) {
            let old = self.rows[a];
            let row = &mut self.rows[b];
            row.reads = old.reads;
            row.writes = old.writes;
            row.stall_ns = old.stall_ns;
            row.clock = old.clock;
            row.last_access = old.last_access;
            self.live.born_ms -= row.born.ms().unwrap_or(0);
            row.born = old.born;
            self.live.born_ms += row.born.ms().unwrap_or(0);
            (from, to) = (self.next_of(a), self.next_of(b));
        }
    }

    pub(crate) fn head_at(&self, slot: u16, addr: u64) -> Option<u32> {
        let number = self.process(slot).index.get(addr)?;
        self.rows[number].has(HEAD).then_some(number)
    }

    fn is_newer(&self, number: u32, version: Version) -> bool {
        self.rows[number].version().is_newer_than(version)
    }
}
