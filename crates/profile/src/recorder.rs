//! Builds a profile from a ledger's events and a sampler's samples as they arrive. In:
//! [`LedgerEvent`], [`Sample`]s, births and ends of processes. Out: a [`Profile`]. Knows nothing of
//! files, clocks or where names come from.
//!
//! It complements the ledger, which forgets the dead. Memory is bounded: dead objects of a process
//! are kept individually while there are few ([`KEPT_MAX`] in all); then those of the sites and
//! size classes with most of them are merged, one object for each. Time slots double when there are
//! too many slots or too many cells. When a process ends, its objects go into the profile, which
//! has its own limit.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tiercel_ledger::{Event, LedgerEvent};
use tiercel_machine::{Machine, NodeId};
use tiercel_wire::{AccessKind, Sample};

use crate::check::THREAD_BITS;
use crate::keep::LIMIT_BYTES;
use crate::profile::{Access, AccessSite, Phase, Process, Profile, Run, SLOT_NS_MIN, Site};
use crate::tables::PROCESSES_MAX;
use crate::tracked::{Birth, Tracked};
use tiercel_machine::number::index_u32;

/// Dead objects that are kept individually by default, 150 bytes each.
pub const KEPT_MAX: usize = 1 << 17;

/// Cells of accesses that are kept by default, 104 bytes each.
pub const CELLS_MAX: usize = 1 << 20;

/// Most time slots of a run; each begins with a quarter of 1 ms, so they double after 4 s.
pub const SLOTS_MAX: u64 = 16384;

/// Slots are not doubled below this number when there are too many cells; objects are merged then.
const SLOTS_FEW: u64 = 64;

/// The profile of ended processes is merged again at this multiple of its limit.
const SLACK: u64 = 2;

/// Names for the numbers that a process uses.
pub trait Names {
    /// A site of the process.
    fn site(&mut self, number: u32) -> Site;
    /// A phase of the process.
    fn phase(&mut self, number: u64) -> Arc<str>;
}

/// How to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecorderConfig {
    /// Size limit of the profile, bytes before compression.
    pub limit_bytes: u64,
    /// The sampler reports only accesses that missed all caches.
    pub misses_only: bool,
    /// The sampler reports lines that become dirty.
    pub sees_dirtied: bool,
    /// Dead objects of all live processes that are kept individually.
    pub kept_max: usize,
    /// Cells of accesses of live processes.
    pub cells_max: usize,
}

impl Default for RecorderConfig {
    fn default() -> RecorderConfig {
        RecorderConfig {
            limit_bytes: LIMIT_BYTES,
            misses_only: false,
            sees_dirtied: false,
            kept_max: KEPT_MAX,
            cells_max: CELLS_MAX,
        }
    }
}

/// A profile under construction, of one run. Its clock is the daemon's.
pub struct Recorder {
    config: RecorderConfig,
    /// Processes that have ended.
    ended: Profile,
    /// Index of each site in `ended`.
    sites: HashMap<u64, u32>,
    live: HashMap<u32, Tracked>,
    /// Process and index in `ended` of those that are gone, the latest last, for children that come
    /// later.
    gone: VecDeque<(u32, u32)>,
    /// Index in `ended` that processes of a program share if there are too many.
    shared: HashMap<Arc<str>, u32>,
    slot_ns: u64,
    period: (f64, u64),
    phases_refused: u64,
    unplaced: u64,
    check_due: u32,
    /// Size of `ended` at which it is merged, bytes.
    compact_due: u64,
}

/// Samples and events between two checks of how much is kept.
const CHECK_EVERY: u32 = 4096;

/// Processes that are gone and may still be named as parents: the daemon names as many of a user.
const GONE_MAX: usize = 256;

/// Programs whose processes share an index if there are too many processes.
const SHARED_MAX: usize = 1024;

impl Recorder {
    /// An empty recorder.
    pub fn new(config: RecorderConfig) -> Recorder {
        let whole = Phase { run: 0, process: None, name: "A".into(), start_ns: 0, end_ns: 1 };
        let ended = Profile {
            slot_ns: SLOT_NS_MIN,
            runs: vec![Run::default()],
            phases: vec![whole],
            ..Profile::default()
        };
        Recorder {
            config,
            ended,
            sites: HashMap::new(),
            live: HashMap::new(),
            gone: VecDeque::new(),
            shared: HashMap::new(),
            slot_ns: SLOT_NS_MIN,
            compact_due: config.limit_bytes.saturating_mul(SLACK),
            period: (0.0, 0),
            phases_refused: 0,
            unplaced: 0,
            check_due: CHECK_EVERY,
        }
    }

    /// A process is hosted from now on; `parent` forked it, if known: one that is hosted, or was.
    pub fn process_born(&mut self, pid: u32, parent: Option<u32>, program: &str, now_ms: u64) {
        let live = |parent| self.live.get(&parent).map(|parent| parent.index);
        let gone = |parent| self.gone.iter().rev().find(|(pid, _)| *pid == parent).map(|one| one.1);
        let parent = parent.and_then(|parent| live(parent).or_else(|| gone(parent)));
        self.gone.retain(|(gone, _)| *gone != pid);
        let process = Process {
            run: 0,
            pid,
            parent,
            program: program.into(),
            start_ns: ns(now_ms),
            end_ns: ns(now_ms),
            ..Process::default()
        };
        let (index, is_shared) = self.place(process);
        let mut tracked = Tracked::new(index, ns(now_ms), self.slot_ns);
        tracked.set_has_phases(!is_shared);
        self.live.insert(pid, tracked);
    }

    /// Takes an event of the ledger. Events of processes that are not hosted are ignored.
    pub fn consume(&mut self, event: &LedgerEvent) {
        let Some(tracked) = self.live.get_mut(&event.pid) else { return };
        let at_ns = event.at_ns;
        match event.event {
            Event::Born { addr, bytes, site, is_block, is_mapped, is_fresh } => {
                tracked.born(addr, bytes, site, Birth { is_block, is_mapped, is_fresh }, at_ns);
            }
            Event::Grown { addr, bytes } => tracked.grown(addr, bytes),
            Event::Gone { addr, bytes, life } => tracked.gone(addr, bytes, life, at_ns),
            Event::Phase { number } => {
                self.phases_refused += u64::from(!tracked.enter_phase(number, at_ns));
            }
            Event::Accessed { sample, life } => self.accessed(&sample, life),
            Event::Forgotten { before } => tracked.forget(before),
        }
        self.look_after();
    }

    /// A sampler reported an access, whatever the ledger makes of it.
    pub fn sampled(&mut self, sample: &Sample) {
        if sample.kind == AccessKind::Dirtied {
            return;
        }
        self.period.0 += f64::from(sample.weight);
        self.period.1 += 1;
        if let Some(node) = sample.node {
            self.ended.runs[0].count_served(NodeId(node), u64::from(sample.weight));
        }
    }

    fn accessed(&mut self, sample: &Sample, life: Option<u64>) {
        let Some(tracked) = self.live.get_mut(&sample.pid) else { return };
        while sample.until_ns / self.slot_ns >= SLOTS_MAX {
            self.slot_ns *= 2;
        }
        let mut access = access_of(sample);
        access.cached = self.config.misses_only.then_some(0);
        access.dirtied = access.dirtied.or(self.config.sees_dirtied.then_some(0));
        let process = &mut self.ended.processes[tracked.index as usize];
        access.threads = thread_bit(&mut process.threads, sample.tid);
        let time = (sample.until_ns, self.slot_ns);
        match tracked.accessed(sample.addr, life, time, access) {
            Some(site) => sample.by.into_iter().for_each(|by| {
                tracked.located.count(by, site, &access);
            }),
            None => self.unplaced += 1,
        }
    }

    /// The process is gone, or runs another program: its objects become part of the profile.
    pub fn process_gone(&mut self, pid: u32, now_ms: u64, names: &mut dyn Names) {
        let Some(tracked) = self.live.remove(&pid) else { return };
        let now_ns = ns(now_ms).max(tracked.event_ns());
        let index = tracked.index;
        if self.gone.len() >= GONE_MAX {
            self.gone.pop_front();
        }
        self.gone.push_back((pid, index));
        let process = &mut self.ended.processes[index as usize];
        process.end_ns = process.end_ns.max(now_ns);
        process.peak_bytes = process.peak_bytes.max(tracked.peak_bytes());
        let start_ns = process.start_ns;
        self.ended.lengthen_slots(self.slot_ns);
        let left = tracked.end(now_ns, self.slot_ns);
        let first_phase = index_u32(self.ended.phases.len());
        let marks = left.phases;
        let ends = marks.iter().skip(1).map(|(start_ns, _)| *start_ns).chain([now_ns]);
        for ((at_ns, number), end_ns) in marks.iter().zip(ends) {
            let name = number.map_or_else(|| Arc::from("start"), |number| names.phase(number));
            self.ended.phases.push(Phase {
                run: 0,
                process: Some(index),
                name,
                start_ns: (*at_ns).max(start_ns),
                end_ns: end_ns.max(at_ns + 1),
            });
        }
        let mut known: HashMap<u32, u32> = HashMap::new();
        for (mut object, cells) in left.objects {
            let site = object.site;
            object.site = self.site_of(&mut known, site, names);
            object.process = index;
            let number = index_u32(self.ended.objects.len());
            self.ended.objects.push(object);
            self.ended.accesses.extend(cells.into_iter().map(|cell| Access {
                object: number,
                phase: if marks.is_empty() { 0 } else { first_phase + cell.phase },
                ..cell
            }));
        }
        for ((by, site), [reads, writes]) in left.located.into_sums() {
            let code = self.site_of(&mut known, by.number.into(), names);
            let site = self.site_of(&mut known, site, names);
            let pattern = by.pattern.name().into();
            self.ended.access_sites.push(AccessSite { code, site, pattern, reads, writes });
        }
        self.ended.settle_access_sites();
        self.ended.coarsening.objects_merged += left.objects_merged;
        if self.ended.rows_bytes() > self.compact_due {
            self.compact();
        }
    }

    /// The profile. Processes that have not ended are lost: end them first. `run` has what the
    /// recorder cannot know; its sample period is filled in.
    pub fn finish(mut self, machine: Machine, mut run: Run) -> Profile {
        if self.period.1 > 0 {
            run.sample_period = self.period.0 / self.period.1 as f64;
        }
        run.misses_only = self.config.misses_only;
        run.served = std::mem::take(&mut self.ended.runs[0].served);
        run.observed.phases_refused += self.phases_refused;
        run.observed.samples_outside += self.unplaced;
        self.ended.phases[0].end_ns = run.duration_ns.max(1);
        self.ended.runs[0] = run;
        self.ended.machine = machine;
        self.ended.lengthen_slots(self.slot_ns);
        self.order();
        self.ended.detect_phases();
        self.ended.keep(self.config.limit_bytes);
        self.ended.coarsening.slots_doubled = (self.ended.slot_ns / SLOT_NS_MIN).ilog2();
        self.ended
    }

    /// Merges what has ended. Live processes keep their indexes.
    fn compact(&mut self) {
        self.order();
        self.ended.keep_apart(self.config.limit_bytes);
        self.slot_ns = self.slot_ns.max(self.ended.slot_ns);
        let sites = (0..).zip(&self.ended.sites).map(|(at, site)| (site.hash, at));
        self.sites = sites.collect();
        // If it cannot get smaller, this is not tried at the end of every process.
        self.compact_due =
            self.config.limit_bytes.max(self.ended.rows_bytes()).saturating_mul(SLACK);
    }

    /// The index of a new process, and whether it shares the index.
    fn place(&mut self, process: Process) -> (u32, bool) {
        if self.ended.processes.len() < PROCESSES_MAX - SHARED_MAX {
            self.ended.processes.push(process);
            return (index_u32(self.ended.processes.len()) - 1, false);
        }
        self.ended.coarsening.processes_merged += 1;
        let program = if self.shared.len() + 1 < SHARED_MAX {
            Arc::clone(&process.program)
        } else {
            "".into()
        };
        let fresh = index_u32(self.ended.processes.len());
        let at = *self.shared.entry(program).or_insert(fresh);
        if at == fresh {
            self.ended.processes.push(process);
        }
        (at, true)
    }

    /// The index of the site that has this number in a process; `known` are those found before.
    fn site_of(
        &mut self,
        known: &mut HashMap<u32, u32>,
        number: u32,
        names: &mut dyn Names,
    ) -> u32 {
        if let Some(at) = known.get(&number) {
            return *at;
        }
        let at = self.site(names.site(number));
        known.insert(number, at);
        at
    }

    /// The index of a site, which is added if it is new.
    fn site(&mut self, site: Site) -> u32 {
        let fresh = index_u32(self.ended.sites.len());
        let at = *self.sites.entry(site.hash).or_insert(fresh);
        if at == fresh {
            self.ended.sites.push(site);
        }
        at
    }

    /// Objects of a process together, by birth; accesses in order.
    fn order(&mut self) {
        self.ended.merge_objects(|_| None::<()>);
    }

    /// Keeps the memory of live processes within its limits.
    fn look_after(&mut self) {
        self.check_due -= 1;
        if self.check_due > 0 {
            return;
        }
        self.check_due = CHECK_EVERY;
        let sum = |of: fn(&Tracked) -> usize, live: &HashMap<u32, Tracked>| -> usize {
            live.values().map(of).sum()
        };
        if sum(Tracked::kept, &self.live) > self.config.kept_max {
            self.live.values_mut().for_each(Tracked::merge_most);
        }
        while sum(Tracked::cells, &self.live) > self.config.cells_max {
            let longest = self.live.values().map(Tracked::last_ns).max().unwrap_or(0);
            if longest / self.slot_ns > SLOTS_FEW {
                self.slot_ns *= 2;
                self.live.values_mut().for_each(|tracked| tracked.reslot(self.slot_ns));
            } else {
                self.live.values_mut().for_each(Tracked::merge_all);
                break;
            }
        }
    }
}

/// The counts of a sample, without those that the sampler cannot observe.
fn access_of(sample: &Sample) -> Access {
    let weight = u64::from(sample.weight);
    if sample.kind == AccessKind::Dirtied {
        return Access { dirtied: Some(weight), ..Access::default() };
    }
    let mut access = Access { samples: 1, ..Access::default() };
    let latency_ns = sample.latency_ns.map(|ns| weight * u64::from(ns));
    let timed = if latency_ns.is_some() { weight } else { 0 };
    if sample.kind == AccessKind::Write {
        access.writes = weight;
        (access.timed_writes, access.write_ns) = (timed, latency_ns.unwrap_or(0));
    } else {
        access.reads = weight;
        (access.timed_reads, access.read_ns) = (timed, latency_ns.unwrap_or(0));
    }
    if let Some(around) = sample.around {
        let serialized = (f64::from(sample.weight) / f64::from(around.at_once.max(1.0))).round();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a weight, which has 32 bits, divided by at least 1"
        )]
        let serialized = serialized as u64;
        access.mlp_known = weight;
        access.serialized = serialized.clamp(weight.min(1), weight);
        access.isolated = if around.apart { weight } else { 0 };
    }
    access
}

/// A millisecond in nanoseconds.
const MS_NS: u64 = 1_000_000;

/// Nanoseconds of milliseconds.
fn ns(ms: u64) -> u64 {
    ms.saturating_mul(MS_NS)
}

/// The bit of a thread; threads beyond the last bit share bits. 0 if the thread is unknown.
fn thread_bit(threads: &mut Vec<u32>, tid: u32) -> u64 {
    if tid == 0 {
        return 0;
    }
    match threads.iter().position(|known| *known == tid) {
        Some(bit) => 1 << bit,
        None if threads.len() < THREAD_BITS => {
            threads.push(tid);
            1 << (threads.len() - 1)
        }
        None => 1 << (tid as usize % THREAD_BITS),
    }
}
