// SPDX-License-Identifier: GPL-2.0-or-later
//! One virtual CPU's misses, reported to the sampler in the guest: some with their addresses, all
//! of them as counts of the process that had them; and lines that become dirty, if it wants.
//! In: user-mode accesses, changes of the address space, who runs. Out: records in the shared area.
//! Knows nothing of QEMU.
//!
//! ```text
//!   CR3 write        whose addresses are these now? not yet known
//!   first miss       the task is asked: from here on all counts are its process's
//!   every 3/4 to 5/4 of a period, at random
//!                    a record with the access, its thread, and the counts since the last record;
//!                    of dirtied lines likewise, by a count of their own
//!   CR3 write, or a millisecond without a record
//!                    a record with the counts alone
//! ```

use std::fs::File;

use tiercel_memsim::{Blocks, Pending};
use tiercel_wire::AccessKind;
use tiercel_wire::emulator::{AREA_BYTES, Area, BLOCK_BYTES, BLOCKS, Miss, Observation};
use tiercel_wire::ring::{WriteCursor, push};

use crate::config::{EmulatorError, Samples};

/// Counts are reported at least so often while a process runs, nanoseconds: finer than any tick.
const COUNTS_NS: u64 = 1_000_000;
/// A span with fewer instructions and no miss is not worth a record.
const INSTRUCTIONS_LEAST: u64 = 1000;
/// Misses before a sample over which its MLP is measured: few enough to belong to one loop, and
/// more than can be outstanding.
const BURST: u64 = 64;
const _: () = assert!(BLOCKS == Blocks::COUNT, "as samples say");

/// How far the next sample is.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    /// Events until then, and since the last one.
    until: u64,
    since: u64,
}

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
    /// What was on its way from memory.
    pub pending: Pending,
}

/// One virtual CPU's side of the export.
#[derive(Debug)]
pub struct Export {
    vcpu: usize,
    writer: WriteCursor,
    /// Misses per sample; `None`: no process samples.
    period: Option<u64>,
    misses_turn: Turn,
    /// The same of dirtied lines; `None`: they are not wanted.
    dirtied_turn: Option<Turn>,
    /// [`BURST`] misses before the next sample, or at the latest one.
    pending: Pending,
    /// By physical address: as a memory of blocks buffers them.
    blocks: Blocks,
    /// xorshift64's state. Chance keeps the period from walking in step with a loop, and is the
    /// same in every run.
    chance: u64,
    owner: Option<u32>,
    /// The owner's, not reported yet.
    misses: u64,
    instructions: u64,
    /// Instructions at the latest look.
    seen: u64,
    reported_ns: u64,
}

impl Export {
    /// No process samples yet.
    pub fn new(vcpu: usize) -> Export {
        Export {
            vcpu,
            writer: WriteCursor::default(),
            period: None,
            misses_turn: Turn::default(),
            dirtied_turn: None,
            pending: Pending::default(),
            blocks: Blocks::default(),
            chance: vcpu as u64 + 1,
            owner: None,
            misses: 0,
            instructions: 0,
            seen: 0,
            reported_ns: 0,
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
        self.reported_ns = at.now_ns;
    }

    /// Once a quantum: reads what the sampler wants, reports counts that are old.
    pub fn look(&mut self, area: &Area, at: Now) {
        let period = area.period();
        let wants = period.is_some() && area.wants_dirtied();
        if period != self.period || wants != self.dirtied_turn.is_some() {
            (self.period, self.owner, self.pending) = (period, None, at.pending);
            self.misses_turn = self.arm();
            self.dirtied_turn = wants.then(|| self.arm());
        }
        self.count(at);
        if at.now_ns.saturating_sub(self.reported_ns) >= COUNTS_NS {
            self.report_counts(area, at);
        }
    }

    /// The address space changes.
    pub fn leave(&mut self, area: &Area, at: Now) {
        self.count(at);
        self.report_counts(area, at);
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
        let apart = !self.blocks.uses(miss.physical / BLOCK_BYTES);
        self.misses += 1;
        let left = self.misses_turn.count();
        if left == BURST {
            self.pending = at.pending;
        }
        if left > 0 {
            return false;
        }
        let Some(task) = task() else { return false };
        let at_once = self.at_once(at.pending);
        let weight = self.misses_turn.weight();
        self.misses_turn = self.arm();
        self.sample(area, at, Miss { weight, at_once, apart, ..miss }, task);
        true
    }

    /// A store in user mode made a line dirty. As [`Export::miss`].
    pub fn dirtied(
        &mut self,
        area: &Area,
        at: Now,
        miss: Miss,
        task: impl FnOnce() -> Option<Task>,
    ) -> bool {
        let Some(turn) = &mut self.dirtied_turn else { return false };
        if turn.count() > 0 {
            return false;
        }
        let weight = turn.weight();
        let Some(task) = task() else { return false };
        self.dirtied_turn = Some(self.arm());
        self.sample(area, at, Miss { weight, ..miss }, task);
        true
    }

    fn sample(&mut self, area: &Area, at: Now, miss: Miss, Task { pid, tid }: Task) {
        self.count(at);
        // Counts of one process never go out under another's name.
        let (misses, instructions) = match self.owner {
            Some(owner) if owner == pid => self.take_counts(),
            _ => (0, 0),
        };
        let (access, time_ns) = (Some(miss), at.now_ns);
        self.report(area, &Observation { time_ns, pid, tid, misses, instructions, access });
    }

    /// Misses at once in the burst that ends here.
    fn at_once(&mut self, now: Pending) -> Option<f32> {
        let before = std::mem::replace(&mut self.pending, now);
        let lines_ps = now.lines_ps.saturating_sub(before.lines_ps) as f32;
        let any_ps = now.any_ps.saturating_sub(before.any_ps) as f32;
        (any_ps > 0.0).then(|| lines_ps / any_ps)
    }

    fn count(&mut self, at: Now) {
        let ran = at.instructions.saturating_sub(self.seen);
        self.seen = at.instructions;
        if self.period.is_some() {
            self.instructions += ran;
        }
    }

    fn report_counts(&mut self, area: &Area, at: Now) {
        let worth = self.misses > 0 || self.instructions >= INSTRUCTIONS_LEAST;
        let (misses, instructions) = self.take_counts();
        let Some(pid) = self.owner.filter(|_| worth) else { return };
        let time_ns = at.now_ns;
        self.report(
            area,
            &Observation { time_ns, pid, tid: 0, misses, instructions, access: None },
        );
    }

    fn take_counts(&mut self) -> (u32, u32) {
        let all = (std::mem::take(&mut self.misses), std::mem::take(&mut self.instructions));
        let fit = |count| u32::try_from(count).unwrap_or(u32::MAX);
        (fit(all.0), fit(all.1))
    }

    fn report(&mut self, area: &Area, one: &Observation) {
        self.reported_ns = one.time_ns;
        // A full ring counts what it loses.
        push(&area.ring(self.vcpu), &mut self.writer, &one.encode());
    }

    /// Chooses how many events the next sample is away.
    fn arm(&mut self) -> Turn {
        let period = self.period.unwrap_or(0);
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        let around = period / 4;
        Turn { until: period - around + self.chance % (2 * around + 1), since: 0 }
    }
}

impl Turn {
    /// One more event. Answers how many are left.
    fn count(&mut self) -> u64 {
        self.since += 1;
        self.until.saturating_sub(self.since)
    }

    /// What a sample now stands for.
    fn weight(self) -> u32 {
        u32::try_from(self.since).unwrap_or(u32::MAX)
    }
}

/// An access as the area names it; what belongs to a sample is filled in when it is one.
pub fn miss(kind: AccessKind, [addr, physical, ip]: [u64; 3], latency_ps: u64, node: u16) -> Miss {
    let latency_ns = u32::try_from(latency_ps / 1000).unwrap_or(u32::MAX);
    Miss {
        kind,
        addr,
        physical,
        instruction: ip,
        latency_ns,
        node,
        weight: 0,
        at_once: None,
        apart: false,
    }
}

/// The area that the guest's sampler reads, published.
pub fn open(samples: &Samples, vcpus: usize) -> Result<Area, EmulatorError> {
    let path = &samples.area;
    let open = || {
        let file = File::options().read(true).write(true).open(path)?;
        if file.metadata()?.len() < AREA_BYTES as u64 {
            return Err(std::io::Error::other(format!("it has less than {AREA_BYTES} bytes")));
        }
        Area::map(&file)
    };
    let area = open()
        .map_err(|source| EmulatorError::Area { path: path.display().to_string(), source })?;
    area.publish(vcpus);
    Ok(area)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_wire::ring::{Cursor, pull};

    struct Rig {
        area: Area,
        export: Export,
        cursor: Cursor,
        at: Now,
        at_once: u64,
    }

    impl Rig {
        fn new(period: Option<u64>) -> Rig {
            let file = tempfile::tempfile().expect("a file");
            file.set_len(AREA_BYTES as u64).expect("sized");
            let area = Area::map(&file).expect("mapped");
            area.publish(1);
            area.set_period(period);
            let at = Now { now_ns: 0, instructions: 0, pending: Pending::default() };
            let (export, cursor) = (Export::new(0), Cursor::default());
            let mut rig = Rig { area, export, cursor, at, at_once: 2 };
            rig.export.look(&rig.area, rig.at);
            rig
        }

        /// `misses` misses of 10 instructions and 100 ns each, `at_once` under way at any time.
        fn run(&mut self, task: Task, misses: u64) {
            for n in 0..misses {
                self.at.instructions += 10;
                self.at.now_ns += 100;
                if self.export.asks() {
                    self.export.meet(task.pid, self.at);
                }
                self.at.pending.lines_ps += 100_000 * self.at_once;
                self.at.pending.any_ps += 100_000;
                let kind = if n % 2 == 1 { AccessKind::Write } else { AccessKind::Read };
                let stored = miss(AccessKind::Dirtied, [n * 64, n * 64, 7], 0, 2);
                let miss = miss(kind, [n * 64, n * 64, 7], 250_900, 2);
                self.export.miss(&self.area, self.at, miss, || Some(task));
                if kind == AccessKind::Write {
                    self.export.dirtied(&self.area, self.at, stored, || Some(task));
                }
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
    fn without_a_sampler_nothing_is_reported() {
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
            assert!(accesses.iter().all(|miss| miss.at_once == Some(2.0)));
            let apart = accesses.iter().filter(|miss| miss.apart).count();
            assert!(apart * 3 < accesses.len() && apart * 5 > accesses.len(), "one line of four");
        }
    }

    #[test]
    fn dirtied_lines_are_reported_where_they_are_wanted() {
        let mut rig = Rig::new(Some(10));
        rig.run(ONE, 2000);
        let kinds = |seen: &[Observation], wanted| -> u64 {
            let of = seen.iter().filter_map(|one| one.access).filter(|miss| miss.kind == wanted);
            of.map(|miss| u64::from(miss.weight)).sum()
        };
        let seen = rig.seen();
        assert_eq!(kinds(&seen, AccessKind::Dirtied), 0);
        rig.area.set_wants_dirtied(true);
        rig.export.look(&rig.area, rig.at);
        rig.run(ONE, 2000);
        let seen = rig.seen();
        assert!(kinds(&seen, AccessKind::Dirtied).abs_diff(1000) < 20);
        let misses = kinds(&seen, AccessKind::Read) + kinds(&seen, AccessKind::Write);
        assert!(misses.abs_diff(2000) < 40, "{misses}");
    }

    #[test]
    fn processes_that_take_turns_are_distinguished() {
        // Turns of 500 misses one at a time, and as many ten at a time.
        let mut rig = Rig::new(Some(1000));
        let (mut sums, mut counts) = ([0.0; 2], [0; 2]);
        for turn in 0..2000 {
            rig.at_once = if turn % 2 == 0 { 1 } else { 10 };
            rig.run(Task { tid: turn % 2, ..ONE }, 500);
            for one in rig.seen() {
                let Some(miss) = one.access else { continue };
                sums[one.tid as usize] += 1.0 / miss.at_once.expect("known");
                counts[one.tid as usize] += 1;
            }
        }
        assert!(counts.iter().all(|count| *count > 300), "{counts:?}");
        let at_once = [0, 1].map(|of| f64::from(counts[of]) / f64::from(sums[of]));
        assert!(at_once[0] < 1.2 && at_once[1] > 6.0, "{at_once:?}");
    }

    #[test]
    fn a_block_is_forgotten_after_many_others() {
        let mut blocks = Blocks::default();
        let mut is_apart = |physical| !blocks.uses(physical / BLOCK_BYTES);
        assert!(is_apart(0));
        assert!(!is_apart(255));
        assert!(is_apart(256));
        (1..100 * BLOCKS as u64).for_each(|block| _ = is_apart(block * BLOCK_BYTES));
        assert!(is_apart(0));
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
        rig.at = Now { now_ns: 2 * COUNTS_NS, instructions: 5000, ..rig.at };
        rig.export.look(&rig.area, rig.at);
        let seen = rig.seen();
        assert_eq!(seen.len(), 1);
        assert_eq!((seen[0].pid, seen[0].instructions, seen[0].misses), (10, 5000, 0));
    }
}
