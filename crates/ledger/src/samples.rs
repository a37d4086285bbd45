//! Samples folded into extents.
//! In: [`Sample`]s. Out: averages per extent (MAT Eq. 1), and counts of what hit nothing.
//! Knows nothing of where samples come from.

use tiercel_machine::NodeId;
use tiercel_wire::{AccessKind, Sample};

use crate::ledger::Ledger;
use crate::row::{FRESH, Stamp};

/// What a sampled access hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Index into the process's site table, 0 = unknown.
    pub site: u32,
    /// The node its extent lies on; `None` when it is on several, or its residency is unknown.
    pub home: Option<NodeId>,
}

impl Ledger {
    /// Adds one observed access to the extent it hit. It counts in the open interval whatever its
    /// own time says: a sampler's buffer is drained at every tick. [`AccessKind::Dirtied`] is no
    /// access and does not count. Returns what it hit.
    pub fn sample(&mut self, sample: &Sample) -> Option<Hit> {
        self.counts.samples += 1;
        self.counts.sampled_accesses += u64::from(sample.weight);
        self.counts.samples_with_latency += u64::from(sample.latency_ns.is_some());
        let Some(slot) = self.slot(sample.pid) else {
            self.counts.samples_of_unknown_processes += 1;
            return None;
        };
        let found = self.process(slot).index.at_or_below(sample.addr);
        let Some(mut number) = found.filter(|n| sample.addr < self.rows[*n].end()) else {
            self.counts.samples_outside += 1;
            return None;
        };
        if self.rows[number].has(FRESH) {
            number = self.hit_fresh(slot, number, sample.addr);
        } else {
            self.counts.samples_attributed += 1;
        }
        self.count_latency(number, sample);
        self.add(number, sample);
        Some(Hit { site: self.rows[number].site, home: self.home(number) })
    }

    /// A fresh object is one row: a large one is split now, so that its extents differ from the
    /// start.
    fn hit_fresh(&mut self, slot: u16, number: u32, addr: u64) -> u32 {
        self.split(number);
        let found = self.process(slot).index.at_or_below(addr);
        let number = found.expect("a split row's extents cover what it covered");
        let row = &mut self.rows[number];
        if row.hits == u16::MAX {
            self.counts.samples_attributed += 1;
        } else {
            row.hits += 1;
        }
        number
    }

    fn add(&mut self, number: u32, sample: &Sample) {
        let latency_ns = sample.latency_ns.map_or(self.config.assumed_latency_ns, |ns| ns as f32);
        let share = self.config.alpha * sample.weight as f32;
        let is_fresh = self.rows[number].has(FRESH);
        let interval = self.interval;
        let decay = if is_fresh { 1.0 } else { self.decay(interval - self.rows[number].clock) };
        let row = &mut self.rows[number];
        if !is_fresh {
            row.clock = interval;
        }
        row.reads *= decay;
        row.writes *= decay;
        row.stall_ns = row.stall_ns * decay + share * latency_ns / self.config.parallelism;
        let is_write = sample.kind == AccessKind::Write;
        *(if is_write { &mut row.writes } else { &mut row.reads }) += share;
        row.last_access = row.last_access.max(Stamp::at((sample.time_us / 1000).min(self.now_ms)));
        let (slot, site) = (row.process, row.site);
        let weight = sample.weight as f32;
        let accesses = if is_write { (0.0, weight) } else { (weight, 0.0) };
        let stall_ns = weight * latency_ns / self.config.parallelism;
        self.count_heat(slot, site, accesses, stall_ns);
        if !is_fresh {
            self.count_within(number, sample.addr, share);
        }
    }
}
