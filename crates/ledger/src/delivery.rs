//! Records and samples in the order of their time, in whatever order they are delivered.
//! In: records and samples as rings and samplers give them; promises that all up to a time are
//! there. Out: records applied, samples attributed. Knows nothing of rings.
//!
//! ```text
//! rings --deliver--> inbox of the process --settle(T): those up to T, ascending--> apply
//! sampler --observe--> waiting --attribute: those that end before their process is settled--> heat
//!                                    forget_before(T): no sample of before T will come
//! ```
//!
//! A daemon settles a process up to the time at which it began to read its rings, once it has read
//! all of them: what was written before is in them. A thread that is interrupted between reading
//! the clock and writing its record breaks that promise; then versions keep what lives right, and
//! the record counts as late.

use tiercel_wire::{AccessKind, Flags, Record, Sample};

use crate::event_buffer::Event;
use crate::ledger::Ledger;
use crate::process::Delivered;
use crate::samples::Attributed;

/// Samples that wait for their process's records: four full drains of a sampler, of 2^16 each. With
/// more, those that wait are attributed by what is known.
pub const WAITING_MAX: usize = 1 << 18;

/// Records of one process that wait for their time: those of 3 ms, at 5 million
/// a second. With more, none waits: a program may write any time into them.
const INBOX_MAX: usize = 16_384;

/// Records for which an inbox keeps room when it was emptied: a full ring, 300 KiB.
const INBOX_KEPT: usize = 4096;

impl Ledger {
    /// Takes a record of a process, to be applied by [`Ledger::settle`]. Those of one thread are
    /// delivered in their order; those of several in any.
    pub fn deliver(&mut self, pid: u32, record: Record) {
        let Some(slot) = self.slot(pid) else {
            self.counts.records_of_unknown_processes += 1;
            return;
        };
        let delivered = self.with_heir(slot, record);
        self.process_mut(slot).inbox.push(delivered);
    }

    /// Applies all records of a process of times up to `until_ns`, in the order of time; the caller
    /// has delivered all of them.
    pub fn settle(&mut self, pid: u32, until_ns: u64) {
        let Some(slot) = self.slot(pid) else { return };
        if self.apply_until(slot, until_ns) > INBOX_MAX {
            return self.settle_delivered(pid);
        }
        let process = self.process_mut(slot);
        process.settled_ns = process.settled_ns.max(until_ns);
        if !process.has_loss {
            process.sound_ns = process.settled_ns;
        }
    }

    /// Applies all records that wait for their time, before an object table is read.
    pub(crate) fn apply_waiting(&mut self, slot: u16) {
        self.apply_until(slot, u64::MAX);
    }

    /// Applies records of times up to this one; how many are left.
    fn apply_until(&mut self, slot: u16, until_ns: u64) -> usize {
        let mut inbox = std::mem::take(&mut self.process_mut(slot).inbox);
        // Stable: records of one thread keep their order at equal times. Rings are ascending runs,
        // which the sort merges.
        inbox.sort_by_key(|one| one.record.time_ns());
        let ready = inbox.partition_point(|one| one.record.time_ns() <= until_ns);
        let settled_ns = self.process(slot).settled_ns;
        for one in inbox.drain(..ready) {
            self.counts.records_late += u64::from(one.record.time_ns() < settled_ns);
            self.apply_delivered(slot, &one);
        }
        inbox.shrink_to(INBOX_KEPT);
        let left = inbox.len();
        self.process_mut(slot).inbox = inbox;
        left
    }

    /// Like [`Self::settle`], up to the newest record that was delivered, although older ones may
    /// follow: there are too many to wait for them.
    pub fn settle_delivered(&mut self, pid: u32) {
        let Some(slot) = self.slot(pid) else { return };
        let newest = self.process(slot).inbox.iter().map(|one| one.record.time_ns()).max();
        if let Some(newest) = newest {
            self.settle(pid, newest);
        }
    }

    /// Like [`Self::settle`], of all records of a process, which is about to end. Its samples need
    /// not wait for those that were lost.
    pub fn settle_last(&mut self, pid: u32) {
        let Some(slot) = self.slot(pid) else { return };
        self.process_mut(slot).has_loss = false;
        self.settle(pid, u64::MAX);
    }

    /// Some records of a process since it was settled last did not arrive. Its samples wait for the
    /// end of a scan of its object table that begins later.
    pub fn records_lost(&mut self, pid: u32) {
        if let Some(slot) = self.slot(pid) {
            self.process_mut(slot).lost();
        }
    }

    /// Takes a sample, to be attributed when its process is settled past its end.
    pub fn observe(&mut self, sample: Sample) {
        self.waiting.push(sample);
    }

    /// Attributes the samples that need not wait any longer, and appends what they hit to `out`.
    pub fn attribute(&mut self, out: &mut Vec<Attributed>) {
        let is_full = self.waiting.len() > WAITING_MAX;
        let mut ready = std::mem::take(&mut self.waiting);
        let (mut waiting, mut unsettled) = (Vec::new(), 0);
        ready.retain(|sample| {
            let is_settled = self
                .slot(sample.pid)
                .is_none_or(|slot| sample.until_ns <= self.process(slot).sound_ns);
            if !is_settled && !is_full {
                waiting.push(*sample);
            }
            unsettled += u64::from(!is_settled && is_full);
            is_settled || is_full
        });
        self.waiting = waiting;
        self.counts.samples_unsettled += unsettled;
        for sample in ready.iter().filter(|one| one.kind != AccessKind::Dirtied) {
            self.count_sample(sample);
        }
        self.attribute_all(&ready, out);
    }

    /// Forgets lives that ended before `ns`: every sample that is still to come, or waits, is of a
    /// later time.
    pub fn forget_before(&mut self, ns: u64) {
        let waiting = self.waiting.iter().map(|sample| sample.from_ns).min();
        let ns = waiting.map_or(ns, |from_ns| from_ns.min(ns));
        for slot in 0..self.processes.len() {
            let Some(process) = &mut self.processes[slot] else { continue };
            let forgotten = process.ended.forget_before(ns);
            self.ended_total -= forgotten;
            let before = process.ended.first();
            if forgotten > 0
                && let Ok(slot) = u16::try_from(slot)
            {
                self.emit(slot, Event::Forgotten { before });
            }
        }
    }

    /// A record as it follows the one before.
    pub(crate) fn with_heir(&mut self, slot: u16, record: Record) -> Delivered {
        let process = self.process_mut(slot);
        let continued = process.continued.take();
        let heir = continued.filter(|_| matches!(record, Record::Died { .. }));
        if let Record::Born { addr, flags, .. } = record
            && flags.has(Flags::CONTINUED)
        {
            process.continued = Some(addr);
        }
        Delivered { record, heir }
    }
}
