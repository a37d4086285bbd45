// SPDX-License-Identifier: GPL-2.0-or-later
//! One virtual CPU's misses, told to the sampler in the guest: some with their addresses, all
//! of them as counts of the process that had them.
//! In: user-mode misses, changes of the address space, who runs. Out: records in the shared area.
//! Knows nothing of QEMU.
//!
//! ```text
//!   CR3 write        whose addresses are these now? nobody knows
//!   first miss       the task is asked: from here on all counts are its process's
//!   every 3/4 to 5/4 of a period, at random
//!                    a record with the access, its thread, and the counts since the last record
//!   CR3 write, or a millisecond without a record
//!                    a record with the counts alone
//! ```

use tiercel_wire::AccessKind;
use tiercel_wire::emulator::{Area, Miss, Observation};
use tiercel_wire::ring::{Pen, push};

/// Counts are told at least so often while somebody runs, nanoseconds: finer than any tick.
const COUNTS_NS: u64 = 1_000_000;
/// A span with fewer instructions and no miss is not worth a record.
const INSTRUCTIONS_LEAST: u64 = 1000;

/// Who runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
}

/// Where a virtual CPU stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The guest's clock, nanoseconds.
    pub now_ns: u64,
    /// Instructions it has executed in user mode.
    pub instructions: u64,
}

/// One virtual CPU's side of the export.
#[derive(Debug)]
pub struct Export {
    vcpu: usize,
    pen: Pen,
    /// Misses per sample; `None`: nobody samples.
    period: Option<u64>,
    /// Misses until the next sample, and since the last.
    until: u64,
    since: u64,
    /// xorshift64's state. Chance keeps the period from walking in step with a loop, and is the
    /// same in every run.
    chance: u64,
    owner: Option<u32>,
    /// The owner's, not told yet.
    misses: u64,
    instructions: u64,
    /// Instructions at the latest look.
    seen: u64,
    told_ns: u64,
}

impl Export {
    /// Nobody samples yet.
    pub fn new(vcpu: usize) -> Export {
        Export {
            vcpu,
            pen: Pen::default(),
            period: None,
            until: 0,
            since: 0,
            chance: vcpu as u64 + 1,
            owner: None,
            misses: 0,
            instructions: 0,
            seen: 0,
            told_ns: 0,
        }
    }

    /// Whether the next access in user mode should say who runs.
    #[inline]
    pub fn asks(&self) -> bool {
        self.owner.is_none() && self.period.is_some()
    }

    /// This process runs until the address space changes.
    pub fn meet(&mut self, pid: u32, at: Now) {
        self.owner = Some(pid);
        self.told_ns = at.now_ns;
    }

    /// Once a quantum: hears what the sampler wants, tells counts that are old.
    pub fn look(&mut self, area: &Area, at: Now) {
        let period = area.period();
        if period != self.period {
            (self.period, self.owner, self.since) = (period, None, 0);
            self.arm();
        }
        self.count(at);
        if at.now_ns.saturating_sub(self.told_ns) >= COUNTS_NS {
            self.tell_counts(area, at);
        }
    }

    /// The address space changes.
    pub fn leave(&mut self, area: &Area, at: Now) {
        self.count(at);
        self.tell_counts(area, at);
        self.owner = None;
    }

    /// Memory served an access in user mode. `task` is asked when it is to be sampled. True when
    /// it was: that takes time on hardware.
    pub fn miss(
        &mut self,
        area: &Area,
        at: Now,
        miss: Miss,
        task: impl FnOnce() -> Option<Task>,
    ) -> bool {
        if self.period.is_none() {
            return false;
        }
        self.misses += 1;
        self.since += 1;
        if self.since < self.until {
            return false;
        }
        let Some(Task { pid, tid }) = task() else { return false };
        self.count(at);
        // Counts of one process never go out under another's name.
        let (misses, instructions) = match self.owner {
            Some(owner) if owner == pid => self.take_counts(),
            _ => (0, 0),
        };
        let weight = u32::try_from(self.since).unwrap_or(u32::MAX);
        let access = Some(Miss { weight, ..miss });
        let time_ns = at.now_ns;
        let one = Observation { time_ns, pid, tid, misses, instructions, access };
        self.since = 0;
        self.arm();
        self.tell(area, &one);
        true
    }

    fn count(&mut self, at: Now) {
        let ran = at.instructions.saturating_sub(self.seen);
        self.seen = at.instructions;
        if self.period.is_some() {
            self.instructions += ran;
        }
    }

    fn tell_counts(&mut self, area: &Area, at: Now) {
        let worth = self.misses > 0 || self.instructions >= INSTRUCTIONS_LEAST;
        let (misses, instructions) = self.take_counts();
        let Some(pid) = self.owner.filter(|_| worth) else { return };
        let time_ns = at.now_ns;
        self.tell(area, &Observation { time_ns, pid, tid: 0, misses, instructions, access: None });
    }

    fn take_counts(&mut self) -> (u32, u32) {
        let all = (std::mem::take(&mut self.misses), std::mem::take(&mut self.instructions));
        let fit = |count| u32::try_from(count).unwrap_or(u32::MAX);
        (fit(all.0), fit(all.1))
    }

    fn tell(&mut self, area: &Area, one: &Observation) {
        self.told_ns = one.time_ns;
        // A full ring counts what it loses.
        push(&area.ring(self.vcpu), &mut self.pen, &one.encode());
    }

    /// Chooses how many misses the next sample is away.
    fn arm(&mut self) {
        let period = self.period.unwrap_or(0);
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        let around = period / 4;
        self.until = period - around + self.chance % (2 * around + 1);
    }
}

/// An access as the area names it; the weight is filled in when it is sampled.
pub fn miss(write: bool, addr: u64, physical: u64, ip: u64, latency_ps: u64, node: u16) -> Miss {
    let kind = if write { AccessKind::Write } else { AccessKind::Read };
    let latency_ns = u32::try_from(latency_ps / 1000).unwrap_or(u32::MAX);
    Miss { kind, addr, physical, instruction: ip, latency_ns, node, weight: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_wire::emulator::AREA_BYTES;
    use tiercel_wire::ring::{Cursor, pull};

    struct Rig {
        area: Area,
        export: Export,
        cursor: Cursor,
        at: Now,
    }

    impl Rig {
        fn new(period: Option<u64>) -> Rig {
            let file = tempfile::tempfile().expect("a file");
            file.set_len(AREA_BYTES as u64).expect("sized");
            let area = Area::map(&file).expect("mapped");
            area.publish(1);
            area.set_period(period);
            let at = Now { now_ns: 0, instructions: 0 };
            let (export, cursor) = (Export::new(0), Cursor::default());
            let mut rig = Rig { area, export, cursor, at };
            rig.export.look(&rig.area, rig.at);
            rig
        }

        /// `misses` misses of 10 instructions and 100 ns each.
        fn run(&mut self, task: Task, misses: u64) {
            for n in 0..misses {
                self.at.instructions += 10;
                self.at.now_ns += 100;
                if self.export.asks() {
                    self.export.meet(task.pid, self.at);
                }
                let miss = miss(n % 2 == 1, n * 64, n * 64, 7, 250_900, 2);
                self.export.miss(&self.area, self.at, miss, || Some(task));
            }
        }

        fn leave(&mut self) {
            self.export.leave(&self.area, self.at);
        }

        fn seen(&mut self) -> Vec<Observation> {
            let mut out = Vec::new();
            let ring = self.area.ring(0);
            pull(&ring, &mut self.cursor, usize::MAX, |raw| {
                out.push(Observation::decode(&raw).expect("well formed"));
            });
            out
        }
    }

    const ONE: Task = Task { pid: 10, tid: 11 };
    const TWO: Task = Task { pid: 20, tid: 20 };

    #[test]
    fn nothing_is_told_to_nobody() {
        let mut rig = Rig::new(None);
        rig.run(ONE, 1000);
        rig.leave();
        assert_eq!(rig.seen(), []);
    }

    #[test]
    fn weights_and_counts_add_up_by_process() {
        let mut rig = Rig::new(Some(100));
        for _ in 0..10 {
            rig.run(ONE, 3000);
            rig.leave();
            rig.run(TWO, 1000);
            rig.leave();
        }
        let seen = rig.seen();
        for (task, misses) in [(ONE, 30_000), (TWO, 10_000u64)] {
            let own: Vec<_> = seen.iter().filter(|one| one.pid == task.pid).collect();
            let counted: u64 = own.iter().map(|one| u64::from(one.misses)).sum();
            let instructions: u64 = own.iter().map(|one| u64::from(one.instructions)).sum();
            assert_eq!((counted, instructions), (misses, misses * 10));
            let accesses: Vec<_> = own.iter().filter_map(|one| one.access).collect();
            let weight: u64 = accesses.iter().map(|miss| u64::from(miss.weight)).sum();
            assert!(weight.abs_diff(misses) < misses / 50, "{weight} of {misses}");
            assert!(own.iter().filter(|o| o.access.is_some()).all(|one| one.tid == task.tid));
            let writes = accesses.iter().filter(|miss| miss.kind == AccessKind::Write).count();
            assert!(writes * 3 > accesses.len() && writes * 3 < accesses.len() * 2, "{writes}");
            assert!(accesses.iter().all(|miss| (miss.latency_ns, miss.node) == (250, 2)));
            assert!(accesses.iter().all(|miss| (75..=125).contains(&miss.weight)));
        }
    }

    #[test]
    fn a_period_of_one_samples_everything_and_a_new_one_counts_at_once() {
        let mut rig = Rig::new(Some(1));
        rig.run(ONE, 50);
        let seen = rig.seen();
        assert_eq!(seen.len(), 50);
        assert!(seen.iter().all(|one| one.access.is_some_and(|miss| miss.weight == 1)));
        rig.area.set_period(None);
        rig.export.look(&rig.area, rig.at);
        rig.run(ONE, 50);
        assert_eq!(rig.seen(), []);
        rig.area.set_period(Some(10));
        rig.export.look(&rig.area, rig.at);
        rig.run(ONE, 100);
        assert!((7..=14).contains(&rig.seen().len()));
    }

    #[test]
    fn a_full_ring_counts_its_losses() {
        let mut rig = Rig::new(Some(1));
        let room = tiercel_wire::emulator::RING_RECORDS as u64;
        rig.run(ONE, room + 7);
        let mut lost = 0;
        let ring = rig.area.ring(0);
        let pulled = pull(&ring, &mut rig.cursor, usize::MAX, |_| lost += 1);
        assert_eq!((lost, pulled.lost), (room, 7));
    }

    #[test]
    fn who_runs_without_missing_is_counted_all_the_same() {
        let mut rig = Rig::new(Some(4096));
        rig.export.meet(ONE.pid, rig.at);
        rig.at = Now { now_ns: 2 * COUNTS_NS, instructions: 5000 };
        rig.export.look(&rig.area, rig.at);
        let seen = rig.seen();
        assert_eq!(seen.len(), 1);
        assert_eq!((seen[0].pid, seen[0].instructions, seen[0].misses), (10, 5000, 0));
    }
}
