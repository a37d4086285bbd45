//! What compiled code of a process reported: its misses as samples.
//! In: records. Out: samples, counts of what was lost. Knows nothing of samplers.

use tiercel_wire::{AccessKind, Record, Sample};

/// Samples that wait to be taken; further ones are lost. A drain of all rings has as many records.
const FOUND_MAX: usize = 1 << 20;

/// See the module.
#[derive(Default)]
pub(crate) struct Misses {
    /// Not taken yet.
    pub(crate) found: Vec<Sample>,
    /// Of [`Misses::found`], what had no room since the last look.
    dropped: u64,
    /// What the process claimed to have lost, at the last look.
    lost_seen: u64,
}

impl Misses {
    /// Takes a record of misses; others are ignored.
    pub(crate) fn take(&mut self, pid: u32, record: &Record) {
        let Record::Misses { addr, reads, writes, dirtied, by, tid, time_ns } = *record else {
            return;
        };
        let kinds = [
            (AccessKind::Read, reads),
            (AccessKind::Write, writes),
            (AccessKind::Dirtied, dirtied),
        ];
        for (kind, weight) in kinds.into_iter().filter(|(_, weight)| *weight > 0) {
            if self.found.len() >= FOUND_MAX {
                self.dropped = self.dropped.saturating_add(weight.into());
                continue;
            }
            self.found.push(Sample {
                from_ns: time_ns,
                until_ns: time_ns,
                pid,
                tid,
                addr,
                kind,
                latency_ns: None,
                node: None,
                weight,
                around: None,
                cpu: None,
                by,
            });
        }
    }

    /// What was lost since the last call, given what the process claims to have lost ever.
    pub(crate) fn newly_lost(&mut self, claimed: u64) -> u64 {
        let claimed_now = claimed.saturating_sub(self.lost_seen).min(u32::MAX.into());
        self.lost_seen = claimed;
        std::mem::take(&mut self.dropped) + claimed_now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_becomes_a_sample_of_each_kind() {
        let mut misses = Misses::default();
        let (addr, reads, writes, dirtied, by) = (4096, 64, 0, 32, None);
        let record = Record::Misses { addr, reads, writes, dirtied, by, tid: 9, time_ns: 5 };
        misses.take(7, &record);
        misses.take(7, &Record::Exit { time_ns: 6 });
        let seen: Vec<_> = misses.found.iter().map(|one| (one.kind, one.weight, one.tid)).collect();
        assert_eq!(seen, [(AccessKind::Read, 64, 9), (AccessKind::Dirtied, 32, 9)]);
        assert_eq!(
            [misses.newly_lost(10), misses.newly_lost(10), misses.newly_lost(4)],
            [10, 0, 0]
        );
    }
}
