//! Objects as runs of rows: placing, removing, cutting, growing, splitting into extents.
//! In: ranges with versions. Out: rows in the slab and the index that keep `Row`'s invariants.
//! Knows nothing of the order records arrive in, beyond comparing versions.

use crate::config::OBJECT_EXTENTS_MAX;
use crate::counts::add;
use crate::event_buffer::Event;
use crate::ledger::Ledger;
use crate::lives::{ENDED_MAX, ENDED_TOTAL_MAX, EndedLife};
use crate::row::{FRESH, HEAD, LAST, PAGE_SHIFT, QUEUED, Row, SPILLED, Stamp, VAGUE, VALUED};
use tiercel_machine::number::{clamped_u32, index_u32, nearest_f32, signed};

impl Ledger {
    /// The uppermost row that overlaps a range.
    pub(crate) fn overlapping(&self, slot: u16, addr: u64, end: u64) -> Option<u32> {
        let number = self.process(slot).index.at_or_below(end - 1)?;
        (self.rows[number].end() > addr).then_some(number)
    }

    /// Removes every object that overlaps the range, whole.
    pub(crate) fn remove_overlapping(&mut self, slot: u16, addr: u64, end: u64) {
        while let Some(number) = self.overlapping(slot, addr, end) {
            let head = self.head_of(number);
            self.remove_object(head);
        }
    }

    pub(crate) fn head_of(&self, mut number: u32) -> u32 {
        while !self.rows[number].has(HEAD) {
            let row = &self.rows[number];
            let below = self.process(row.process).index.at_or_below(row.addr - 1);
            number = below.expect("a row that is no head follows another");
        }
        number
    }

    /// The next row of the same object.
    pub(crate) fn next_of(&self, number: u32) -> Option<u32> {
        let row = &self.rows[number];
        if row.has(LAST) {
            return None;
        }
        let above = self.process(row.process).index.above(row.addr);
        Some(above.expect("a row that is not the last precedes another"))
    }

    /// End of the object whose head this is, and its last row.
    pub(crate) fn last_of(&self, head: u32) -> u32 {
        let mut last = head;
        while let Some(next) = self.next_of(last) {
            last = next;
        }
        last
    }

    pub(crate) fn remove_object(&mut self, head: u32) {
        let row = &self.rows[head];
        debug_assert!(row.has(HEAD));
        if row.has(FRESH) {
            self.counts.objects_ephemeral += 1;
        } else {
            self.counts.objects_died += 1;
        }
        let mut number = Some(head);
        while let Some(this) = number {
            number = self.next_of(this);
            let addr = self.rows[this].addr;
            self.end_life(this, addr, self.rows[this].end());
            self.remove_row(this);
        }
    }

    /// The life of a range of a row is over, at the time of the event at hand.
    pub(crate) fn end_life(&mut self, number: u32, addr: u64, end: u64) {
        let row = &self.rows[number];
        let (slot, born_ns, site) = (row.process, row.born_ns(), row.site());
        let died_ns = self.event_ns.max(born_ns);
        let sure_ns = died_ns.min(self.seen_alive_ns.max(born_ns));
        self.count_short_life(number, end - addr, died_ns);
        let life = self.keep_life(slot, EndedLife { addr, end, born_ns, died_ns, sure_ns, site });
        self.emit(slot, Event::Gone { addr, bytes: end - addr, life });
    }

    fn keep_life(&mut self, slot: u16, life: EndedLife) -> u64 {
        let is_full = self.ended_total >= ENDED_TOTAL_MAX;
        let ended = &mut self.process_mut(slot).ended;
        if (is_full || ended.len() >= ENDED_MAX) && ended.forget_one() {
            self.ended_total -= 1;
            self.counts.ended_forgotten += 1;
        }
        let ended = &mut self.process_mut(slot).ended;
        let before = ended.len();
        let number = ended.push(life);
        self.ended_total += ended.len() - before;
        number
    }

    /// Takes a row out of slab, index, sums and lists.
    pub(crate) fn remove_row(&mut self, number: u32) {
        let row = self.rows[number];
        let bytes = row.bytes();
        if row.has(FRESH) {
            self.forget_fresh(row.clock);
            add(&mut self.counts.ephemeral_bytes, bytes);
            self.counts.samples_ephemeral += u64::from(row.hits);
        } else {
            let born_ms = row.born_ms();
            self.counts.extents_died += 1;
            let age_ms = self.now_ms.saturating_sub(born_ms);
            self.counts.lifetime_ms += age_ms;
            self.count_death(row.process, row.site(), age_ms);
            self.live.extents -= 1;
            self.live.bytes -= bytes;
            self.live.born_ms -= born_ms;
        }
        self.clear_residency(number);
        if row.has(VALUED) {
            self.forget_value(number);
        }
        let process = self.process_mut(row.process);
        process.live_bytes -= bytes;
        process.index.remove(row.addr);
        let group = process.group;
        self.groups.remove_extent(group);
        self.rows.remove(number);
        self.count_live(row.process, row.site(), -signed(bytes));
    }

    /// Puts a row into slab, index, sums and lists. `row.flags` says whether it is fresh.
    pub(crate) fn insert_row(&mut self, mut row: Row) -> u32 {
        let bytes = row.bytes();
        let is_fresh = row.has(FRESH);
        if is_fresh {
            row.clock = index_u32(self.fresh.len());
        }
        let number = self.rows.insert(row);
        if is_fresh {
            self.fresh.push(number);
        } else {
            self.note_record(&row);
        }
        let process = self.process_mut(row.process);
        process.grow(bytes);
        process.index.insert(row.addr, number);
        let group = process.group;
        self.groups.add_extent(group);
        self.count_live(row.process, row.site(), signed(bytes));
        number
    }

    /// Whether there is room for `more` rows of this process.
    pub(crate) fn has_room(&self, slot: u16, more: u64) -> bool {
        let process = self.process(slot);
        process.index.len() as u64 + more <= u64::from(self.config.process_extents_max)
            && self.groups.has_room(process.group, more, &self.config)
    }

    /// OS pages per extent of an object of this many.
    pub(crate) fn extent_pages(&self, object_pages: u64) -> u32 {
        let mut pages = u64::from(self.extent_pages_now());
        while object_pages > pages * OBJECT_EXTENTS_MAX {
            pages *= 2;
        }
        clamped_u32(pages)
    }

    /// Splits a row into extents of the configured size (MAT 3.2.2); what it has seen stays with
    /// the first. Without room it stays whole. Returns the last row.
    pub(crate) fn split(&mut self, number: u32) -> u32 {
        let row = self.rows[number];
        let extent_pages = self.extent_pages(u64::from(row.pages));
        let pieces = u64::from(row.pages.div_ceil(extent_pages));
        if pieces == 1 || !self.has_room(row.process, pieces - 1) {
            return number;
        }
        self.shrink_row(number, extent_pages);
        self.rows[number].flags &= !LAST;
        let mut last = number;
        let mut at = extent_pages;
        while at < row.pages {
            let pages = extent_pages.min(row.pages - at);
            let mut piece = Row { pages, ..Self::untouched(&row) };
            piece.addr = row.addr + (u64::from(at) << PAGE_SHIFT);
            piece.flags &= !(HEAD | LAST);
            last = self.insert_row(piece);
            at += pages;
        }
        self.rows[last].flags |= row.flags & LAST;
        last
    }

    /// Takes a range out of some of the objects it overlaps. What is left above the range is an
    /// object of its own.
    pub(crate) fn cut(&mut self, slot: u16, addr: u64, end: u64, which: impl Fn(&Row) -> bool) {
        let mut below = end;
        while below > addr {
            let Some(number) = self.overlapping(slot, addr, below) else { break };
            let row = self.rows[number];
            below = row.addr;
            if which(&row) {
                self.cut_row(slot, number, row.addr.max(addr), row.end().min(end));
            }
        }
    }

    fn cut_row(&mut self, slot: u16, number: u32, lo: u64, hi: u64) {
        let row = self.rows[number];
        self.end_life(number, lo, hi);
        if hi == row.end() && !row.has(LAST) {
            // The row above, if it is this object's: another object's first row is a head already.
            let above = self.process(slot).index.above(row.addr);
            if let Some(above) = above {
                self.rows[above].flags |= HEAD;
            }
        }
        if lo == row.addr && !row.has(HEAD) {
            let below = self.process(slot).index.at_or_below(row.addr - 1);
            let below = below.expect("a row that is no head follows another");
            self.rows[below].flags |= LAST;
        }
        if lo > row.addr {
            self.shrink_row(number, clamped_u32((lo - row.addr) >> PAGE_SHIFT));
            self.rows[number].flags |= LAST;
        } else {
            if row.has(HEAD) && row.has(LAST) && hi == row.end() {
                let fresh = row.has(FRESH);
                self.counts.objects_ephemeral += u64::from(fresh);
                self.counts.objects_died += u64::from(!fresh);
            }
            self.remove_row(number);
        }
        if hi < row.end() {
            self.keep_above(slot, &row, hi);
        }
    }

    /// What is left of a row above a cut, unless it is known to be dead.
    fn keep_above(&mut self, slot: u16, row: &Row, addr: u64) {
        let pages = clamped_u32((row.end() - addr) >> PAGE_SHIFT);
        let share = pages as f32 / row.pages as f32;
        let mut rest = Row { addr, pages, ..Self::untouched(row) };
        rest.flags |= HEAD;
        rest.reads = row.reads * share;
        rest.writes = row.writes * share;
        rest.stall_ns = row.stall_ns * share;
        rest.last_access = row.last_access;
        let number = self.insert_row(rest);
        if self.process(slot).tombstones.covers(addr, row.version()) {
            self.remove_object(number);
        }
    }

    /// Takes pages off the end of a row; heat goes with them in proportion.
    fn shrink_row(&mut self, number: u32, pages: u32) {
        let row = &mut self.rows[number];
        let gone = u64::from(row.pages - pages) << PAGE_SHIFT;
        let share_gone = 1.0 - f64::from(pages) / f64::from(row.pages);
        let is_valued = row.has(VALUED);
        if !row.has(FRESH) || row.hits > 0 {
            let share = pages as f32 / row.pages as f32;
            row.reads *= share;
            row.writes *= share;
            row.stall_ns *= share;
        }
        row.pages = pages;
        let (slot, is_fresh) = (row.process, row.has(FRESH));
        self.process_mut(slot).live_bytes -= gone;
        let site = self.rows[number].site();
        self.count_live(slot, site, -signed(gone));
        if !is_fresh {
            self.live.bytes -= gone;
        }
        if is_valued {
            self.share_value(number, None, share_gone, nearest_f32(share_gone));
        }
        self.queue_for_scan(number);
    }

    /// Adds OS pages at the end of the object with this last row; they are free.
    pub(crate) fn extend(&mut self, last: u32, mut pages: u32, object_pages: u64) {
        let row = self.rows[last];
        let slot = row.process;
        let grown = Event::Grown { addr: row.end(), bytes: u64::from(pages) << PAGE_SHIFT };
        self.emit(slot, grown);
        let is_whole = row.has(FRESH) && row.has(HEAD);
        let room = self.extent_pages(object_pages).saturating_sub(row.pages);
        let first = if is_whole { pages } else { room.min(pages) };
        self.rows[last].pages += first;
        self.rows[last].flags |= VAGUE;
        let grown = u64::from(first) << PAGE_SHIFT;
        self.process_mut(slot).grow(grown);
        self.count_live(slot, row.site(), signed(grown));
        if !row.has(FRESH) {
            self.live.bytes += grown;
        }
        pages -= first;
        if pages == 0 {
            return;
        }
        if !self.has_room(slot, 1) {
            self.counts.births_refused += 1;
            let bytes = u64::from(pages) << PAGE_SHIFT;
            add(&mut self.counts.births_refused_bytes, bytes);
            let end = self.rows[last].end();
            self.end_life(last, end, end + bytes);
            return;
        }
        self.rows[last].flags &= !LAST;
        let addr = self.rows[last].end();
        let mut rest = Row { addr, pages, ..Self::untouched(&row) };
        rest.flags = rest.flags & !HEAD | LAST | VAGUE;
        let number = self.insert_row(rest);
        self.split(number);
    }

    /// A row of the same object about which nothing is known yet.
    pub(crate) fn untouched(row: &Row) -> Row {
        Row {
            flags: row.flags & !(SPILLED | QUEUED | VALUED),
            hits: 0,
            reads: 0.0,
            writes: 0.0,
            stall_ns: 0.0,
            last_access: Stamp::NEVER,
            homes: Default::default(),
            homes_as_of: Stamp::NEVER,
            ..*row
        }
    }

    fn forget_fresh(&mut self, position: u32) {
        self.fresh.swap_remove(position as usize);
        if let Some(&moved) = self.fresh.get(position as usize) {
            self.rows[moved].clock = position;
        }
    }

    fn note_record(&mut self, row: &Row) {
        self.counts.extents_recorded += 1;
        add(&mut self.counts.recorded_bytes, row.bytes());
        self.live.extents += 1;
        self.live.bytes += row.bytes();
        self.live.born_ms += row.born_ms();
    }

    /// Turns a fresh row into a record, in extents.
    pub(crate) fn make_row(&mut self, number: u32) {
        debug_assert!(self.rows[number].has(FRESH));
        self.forget_fresh(self.rows[number].clock);
        let row = &mut self.rows[number];
        row.flags &= !FRESH;
        row.clock = self.interval;
        self.counts.samples_attributed += u64::from(row.hits);
        row.hits = 0;
        let row = *row;
        self.note_record(&row);
        // The pieces count themselves as records, and the first one shrinks by them.
        let recorded_bytes = self.counts.recorded_bytes;
        let last = self.split(number);
        self.counts.recorded_bytes = recorded_bytes;
        self.locate_born(number, last);
        let mut piece = Some(number);
        while let Some(this) = piece {
            self.warm(this);
            piece = self.next_of(this).filter(|_| this != last);
        }
    }

    /// Turns every fresh row into a record.
    pub(crate) fn make_rows_of_fresh(&mut self) {
        while let Some(&number) = self.fresh.last() {
            self.make_row(number);
        }
    }
}
