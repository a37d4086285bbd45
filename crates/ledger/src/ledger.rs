//! The [`Ledger`]: processes, time, and what readers see.
//! In: processes that come and go, the time. Out: extents, summaries, characteristics.
//! Knows nothing of records and samples; those are applied in `records` and `samples`. Long,
//! because all that readers see of the ledger is in one place.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use tiercel_machine::number::{clamped_u32, index_u16};

use tiercel_machine::NodeId;
use tiercel_wire::Sample;

use crate::config::{AT_ONCE, Config, ConfigError, UNITS_MAX};
use crate::counts::{Characteristics, Counts, TickSummary};
use crate::event_buffer::{Event, EventBuffer, LedgerEvent};
use crate::extent::{Extent, ExtentId, Residency};
use crate::group::{GroupSlot, Groups};
use crate::node_sums::LatencyByNode;
use crate::process::Process;
use crate::row::{BLOCK, FRESH, HEAD, LAST, MAPPED, Row, Rows, SPILLED, WARM};
use crate::sub_extent::ExtentSizing;
use crate::value::Values;

/// Most processes at a time; a row names its process in 16 bits.
pub const PROCESSES_MAX: usize = 65_535;

/// Extents that are forgotten at once when a process ends: 0.3 ms at 70 ns each.
const FORGOTTEN_AT_EXIT: usize = 4096;

/// Powers of 1 - alpha kept at hand. With alpha = 0.1 the last is 2e-12: nothing is left.
const DECAYS: usize = 256;

/// Why the ledger refused.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum LedgerError {
    /// A setting makes no sense.
    #[error("ledger: {0}")]
    Config(#[from] ConfigError),
    /// The process is known already.
    #[error("process {0} is tracked already")]
    ProcessKnown(u32),
    /// More than [`PROCESSES_MAX`].
    #[error("process {0} is not tracked: {PROCESSES_MAX} processes are tracked already")]
    TooManyProcesses(u32),
}

/// Folds records and samples into extents. All times are on one clock, the daemon's: those of
/// records and samples in nanoseconds, all others in milliseconds.
pub struct Ledger {
    pub(crate) config: Config,
    pub(crate) rows: Rows,
    /// A free place is `None`; rows name processes by place.
    pub(crate) processes: Vec<Option<Process>>,
    pids: BTreeMap<u32, u16>,
    pub(crate) groups: Groups,
    /// Places of processes that are gone and still have extents.
    exited: Vec<u16>,
    /// The process looked up last: records and samples come in bunches.
    latest: Option<(u32, u16)>,
    /// When the open interval began, in units: [`Config::units`] of `tick_ms`.
    pub(crate) interval: u32,
    /// When the last closed one began, or an interval of the usual length that ended with it.
    closed: u32,
    /// Ticks so far.
    ticks: u32,
    /// What a sampled access adds to an average: alpha, if the open interval has its usual length.
    pub(crate) share: f32,
    pub(crate) now_ms: u64,
    pub(crate) tick_began_ms: u64,
    start_ms: u64,
    /// `decays[k]` = (1 - alpha)^k.
    decays: [f32; DECAYS],
    /// The same for `k` units.
    unit_decays: [f32; UNITS_MAX as usize],
    /// Rows born in the open interval; `row.clock` is the position here.
    pub(crate) fresh: Vec<u32>,
    /// Bytes per node of rows on more than two nodes, the third node on.
    pub(crate) spill: BTreeMap<u32, Vec<(NodeId, u64)>>,
    /// Rows of unknown residency; address and number must still agree.
    pub(crate) unlocated: VecDeque<(u32, u64)>,
    /// Node of each arena.
    pub(crate) arenas: Vec<Option<NodeId>>,
    pub(crate) counts: Counts,
    totals: Counts,
    pub(crate) live: Live,
    pub(crate) sizing: ExtentSizing,
    pub(crate) latencies: LatencyByNode,
    pub(crate) values: Values,
    /// How long the open interval is expected to be.
    pub(crate) present_tick_ms: u64,
    /// `None` before [`Ledger::listen`].
    pub(crate) events: Option<EventBuffer>,
    /// Time of the record that is being applied, nanoseconds.
    pub(crate) event_ns: u64,
    /// What dies now was alive at this time; earlier than the event only after a loss of records.
    pub(crate) seen_alive_ns: u64,
    /// Samples whose processes are not settled past their end.
    pub(crate) waiting: Vec<Sample>,
    /// Ended lives that are kept of all processes.
    pub(crate) ended_total: usize,
    /// See [`Ledger::extents_shown`].
    shown: Cell<u64>,
}

/// Sums over the extents that are records.
#[derive(Clone, Copy, Default)]
pub(crate) struct Live {
    pub(crate) extents: u64,
    pub(crate) bytes: u64,
    pub(crate) born_ms: u64,
    pub(crate) peak_extents: u64,
}

impl Ledger {
    /// An empty ledger whose clock stands at `now_ms`.
    pub fn new(config: Config, now_ms: u64) -> Result<Ledger, LedgerError> {
        config.check()?;
        let keep = 1.0 - config.alpha;
        let unit = keep.powf(1.0 / f32::from(config.units));
        let powers = |base: f32, k| base.powi(i32::try_from(k).expect("tables are small"));
        Ok(Ledger {
            decays: std::array::from_fn(|k| powers(keep, k)),
            unit_decays: std::array::from_fn(|k| powers(unit, k)),
            share: config.alpha,
            present_tick_ms: config.tick_ms,
            config,
            rows: Rows::new(),
            processes: Vec::new(),
            pids: BTreeMap::new(),
            groups: Groups::default(),
            exited: Vec::new(),
            latest: None,
            interval: 0,
            closed: 0,
            ticks: 0,
            now_ms,
            tick_began_ms: now_ms,
            start_ms: now_ms,
            fresh: Vec::new(),
            spill: BTreeMap::new(),
            unlocated: VecDeque::new(),
            arenas: Vec::new(),
            counts: Counts::default(),
            totals: Counts::default(),
            live: Live::default(),
            sizing: ExtentSizing::default(),
            latencies: LatencyByNode::new(),
            values: Values::default(),
            events: None,
            event_ns: 0,
            seen_alive_ns: u64::MAX,
            waiting: Vec::new(),
            ended_total: 0,
            shown: Cell::new(0),
        })
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The clock, as last set.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// A process whose records will follow. Its objects come from records and object tables.
    pub fn process_born(&mut self, pid: u32) -> Result<(), LedgerError> {
        self.process_born_in(pid, 0)
    }

    /// The same, in a group: [`Config::of_group`] bounds what its processes have together.
    pub fn process_born_in(&mut self, pid: u32, group: u32) -> Result<(), LedgerError> {
        if self.pids.contains_key(&pid) {
            return Err(LedgerError::ProcessKnown(pid));
        }
        let free = self.processes.iter().position(Option::is_none);
        let slot = match free {
            Some(slot) => slot,
            None if self.processes.len() >= PROCESSES_MAX => {
                return Err(LedgerError::TooManyProcesses(pid));
            }
            None => {
                self.processes.push(None);
                self.processes.len() - 1
            }
        };
        self.processes[slot] = Some(Process::new(pid, self.groups.joined(group)));
        self.pids.insert(pid, index_u16(slot));
        Ok(())
    }

    /// A process that a tracked one forked, in a group. It starts empty: what it shares with its
    /// parent becomes its own in the object table it brings when it attaches, and the parent's heat
    /// says nothing about what the child will touch. A parent that is not known is no error.
    pub fn process_forked(
        &mut self,
        parent: u32,
        child: u32,
        group: u32,
    ) -> Result<(), LedgerError> {
        self.process_born_in(child, group)?;
        if let (Some(from), Some(to)) = (self.slot(parent), self.slot(child)) {
            self.process_mut(to).phase = self.process(from).phase;
        }
        Ok(())
    }

    /// The process runs another program: its objects are gone, it stays tracked.
    pub fn process_exec(&mut self, pid: u32) {
        if let Some(slot) = self.slot(pid) {
            let group = self.clear(slot);
            let settled_ns = self.process(slot).settled_ns;
            let process = Process { settled_ns, ..Process::new(pid, group) };
            self.processes[usize::from(slot)] = Some(process);
        }
    }

    /// The process is gone, and its objects with it: those of a large one bit by bit, by
    /// [`Ledger::forget_exited`].
    pub fn process_exited(&mut self, pid: u32) {
        let Some(slot) = self.slot(pid) else { return };
        self.pids.remove(&pid);
        self.latest = None;
        // No process has this number: nothing is decided for it any longer.
        self.process_mut(slot).pid = 0;
        self.forget_lives(slot);
        self.exited.push(slot);
        self.forget_exited(FORGOTTEN_AT_EXIT);
    }

    /// Whether [`Ledger::forget_exited`] has something to do.
    pub fn has_exited(&self) -> bool {
        !self.exited.is_empty()
    }

    /// Forgets extents of processes that are gone, about `extents_max`; how many it were. With 0
    /// nothing is left to forget.
    pub fn forget_exited(&mut self, extents_max: usize) -> usize {
        let mut forgotten = 0;
        while let Some(&slot) = self.exited.last() {
            let mut numbers = Vec::new();
            for number in self.process(slot).index.iter() {
                // Objects go whole.
                if forgotten + numbers.len() >= extents_max && self.rows[number].has(HEAD) {
                    break;
                }
                numbers.push(number);
            }
            forgotten += numbers.len();
            numbers.into_iter().for_each(|number| self.remove_row(number));
            if self.process(slot).index.len() > 0 {
                break;
            }
            let group = self.clear(slot);
            self.groups.left(group);
            self.processes[usize::from(slot)] = None;
            self.exited.pop();
        }
        forgotten
    }

    /// Tracked processes, ascending.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.pids.keys().copied()
    }

    /// Bytes of live objects of a process, the ephemeral ones included: (now, most ever).
    pub fn tracked_bytes(&self, pid: u32) -> Option<(u64, u64)> {
        let slot = self.slot_of(pid)?;
        let process = self.process(slot);
        Some((process.live_bytes, process.peak_bytes))
    }

    /// Bytes of objects of a process born in the last closed interval, the ephemeral ones included.
    pub fn born_bytes(&self, pid: u32) -> Option<u64> {
        let slot = *self.pids.get(&pid)?;
        Some(self.process(slot).born_bytes.1)
    }

    /// Bytes of live objects of a process's site; 0 where that is not known.
    pub fn site_live_bytes(&self, pid: u32, site: u32) -> u64 {
        let process = self.pids.get(&pid).map(|slot| self.process(*slot));
        let history = process.and_then(|process| process.sites.get(site));
        history.map_or(0, |history| history.live_bytes)
    }

    /// Bytes of a process's extents on each node, ascending, as far as residency is known.
    pub fn resident_bytes(&self, pid: u32) -> impl Iterator<Item = (NodeId, u64)> {
        let slot = self.pids.get(&pid).copied();
        slot.into_iter().flat_map(|slot| self.process(slot).on_nodes.iter().map(|(n, b)| (*n, *b)))
    }

    /// The process in each slot; slots of processes that are gone are reused.
    pub fn places(&self) -> impl Iterator<Item = Option<u32>> {
        self.processes.iter().map(|process| process.as_ref().map(|process| process.pid))
    }

    /// The phase a process said it is in.
    pub fn phase(&self, pid: u32) -> Option<u64> {
        self.pids.get(&pid).map(|slot| self.process(*slot).phase)
    }

    /// Not all records of a process from before the next tick will have come by then: what came
    /// before its time is remembered for a tick more.
    pub fn process_behind(&mut self, pid: u32) {
        if let Some(slot) = self.slot(pid) {
            self.process_mut(slot).is_behind = true;
        }
    }

    /// Sets the clock between two ticks; it never goes back.
    pub fn advance(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
    }

    /// Objects born in the open interval that live.
    pub fn fresh_objects(&self) -> usize {
        self.fresh.len()
    }

    /// Makes objects born in the open interval records before a tick does it, until they are at
    /// least `extents_max`; how many are left.
    pub fn make_rows(&mut self, extents_max: u64) -> usize {
        let before = self.live.extents;
        while self.live.extents - before < extents_max
            && let Some(&number) = self.fresh.last()
        {
            self.make_row(number);
        }
        self.fresh.len()
    }

    /// Closes the interval: what was born in it and still lives becomes rows.
    pub fn tick(&mut self, now_ms: u64) -> TickSummary {
        self.advance(now_ms);
        self.make_rows_of_fresh();
        self.resize_extents();
        self.forget_old_values();
        self.close_short_lives();
        for process in self.processes.iter_mut().flatten() {
            if !std::mem::take(&mut process.is_behind) {
                let forgotten = process.tombstones.age();
                self.groups.give_back(process.group, 0, forgotten);
                process.cuts.age();
            }
            process.born_bytes = (0, process.born_bytes.0);
        }
        self.live.peak_extents = self.live.peak_extents.max(self.live.extents);
        let elapsed_ms = self.now_ms - self.tick_began_ms;
        let summary = TickSummary {
            interval: self.ticks,
            now_ms: self.now_ms,
            elapsed_ms,
            counts: self.counts,
            extents: self.live.extents,
            extent_bytes: self.live.bytes,
        };
        self.totals += &self.counts;
        self.counts = Counts::default();
        let units = self.units(elapsed_ms);
        self.ticks = self.ticks.saturating_add(1);
        self.interval = self.interval.saturating_add(units);
        // A late tick closes several intervals; what came before it came in the first of them.
        self.closed = self.interval - units.min(u32::from(self.config.units)).min(self.interval);
        self.share = self.config.alpha;
        self.decay_latencies(units);
        self.tick_began_ms = self.now_ms;
        summary
    }

    /// How long the open interval will be, if it is not to have the usual length. An average over
    /// intervals of length L (1 is usual) at r accesses an interval is r again, if each adds
    /// (1 - keep^L) / L: that is alpha for L = 1 (MAT Eq. 1), and 5% more for a short one.
    pub fn expect_tick_in(&mut self, ms: u64) {
        self.present_tick_ms = ms;
        let units = self.units(ms);
        let length = units as f32 / f32::from(self.config.units);
        self.share = (1.0 - self.decay(units)) / length;
    }

    /// A time in units, at least one.
    fn units(&self, ms: u64) -> u32 {
        let (per_tick, tick_ms) = (u64::from(self.config.units), self.config.tick_ms);
        let units = (ms.saturating_mul(per_tick) + tick_ms / 2) / tick_ms;
        clamped_u32(units.clamp(1, DECAYS as u64 * per_tick))
    }

    /// A time in intervals of the usual length, as averages count it: at least one unit.
    pub fn intervals(&self, ms: u64) -> f32 {
        self.units(ms) as f32 / f32::from(self.config.units)
    }

    /// Everything counted up to the last tick.
    pub fn totals(&self) -> &Counts {
        &self.totals
    }

    /// The columns of MAT table 3, from the start to the last tick.
    pub fn characteristics(&self) -> Characteristics {
        let seconds = (self.tick_began_ms - self.start_ms) as f64 / 1e3;
        let rate = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        let totals = &self.totals;
        let ages_ms = (self.live.extents * self.tick_began_ms).saturating_sub(self.live.born_ms);
        let lives = totals.extents_recorded.max(1) as f64;
        let share = totals.samples_attributed as f64 / totals.samples as f64;
        Characteristics {
            peak_extents: self.live.peak_extents,
            extents_per_s: rate(totals.extents_recorded),
            mb_per_s: rate(totals.recorded_bytes) / 1e6,
            lifetime_mean_s: (totals.lifetime_ms + ages_ms) as f64 / 1e3 / lives,
            attributed_share: (totals.samples > 0).then_some(share),
        }
    }

    /// All extents that are records, in no order that means anything; the same for the same
    /// history.
    pub fn extents(&self) -> impl Iterator<Item = Extent<'_>> {
        let rows = self.rows.iter().filter(|(_, row)| !row.has(FRESH));
        rows.map(|(number, row)| self.view(number, row))
    }

    /// The records among up to `count` places of extents from number `from` on, as
    /// [`Ledger::extents`] has them.
    pub fn extents_from(&self, from: usize, count: usize) -> impl Iterator<Item = Extent<'_>> {
        let rows = self.rows.iter_from(from, count).filter(|(_, row)| !row.has(FRESH));
        rows.map(|(number, row)| self.view(number, row))
    }

    /// How many extents were shown to readers so far: the work of who reads many.
    pub fn extents_shown(&self) -> u64 {
        self.shown.get()
    }

    /// One more than the highest number that an extent ever had.
    pub fn extent_places(&self) -> usize {
        self.rows.slots() as usize
    }

    /// The extents of one process by address.
    pub fn extents_of(&self, pid: u32) -> impl Iterator<Item = Extent<'_>> {
        let slot = self.pids.get(&pid).copied();
        let numbers = slot.into_iter().flat_map(|slot| self.process(slot).index.iter());
        let rows = numbers.map(|number| (number, &self.rows[number]));
        rows.filter(|(_, row)| !row.has(FRESH)).map(|(number, row)| self.view(number, row))
    }

    /// Those of them that begin at `addr` or above.
    pub fn extents_of_from(&self, pid: u32, addr: u64) -> impl Iterator<Item = Extent<'_>> {
        let slot = self.pids.get(&pid).copied();
        let numbers =
            slot.into_iter().flat_map(move |slot| self.process(slot).index.iter_from(addr));
        let rows = numbers.map(|number| (number, &self.rows[number]));
        rows.filter(|(_, row)| !row.has(FRESH)).map(|(number, row)| self.view(number, row))
    }

    /// Where the objects of one process lie, a range of addresses per extent, ascending; those born
    /// in the open interval included.
    pub fn ranges_of(&self, pid: u32) -> impl Iterator<Item = std::ops::Range<u64>> {
        let slot = self.pids.get(&pid).copied();
        let numbers = slot.into_iter().flat_map(|slot| self.process(slot).index.iter());
        numbers.map(|number| self.rows[number].addr..self.rows[number].end())
    }

    /// How many extents a process has, those born in the open interval included.
    pub fn extents_of_process(&self, pid: u32) -> usize {
        self.slot_of(pid).map_or(0, |slot| self.process(slot).index.len())
    }

    /// How many extents are records, and their bytes.
    pub fn extent_totals(&self) -> (u64, u64) {
        (self.live.extents, self.live.bytes)
    }

    /// The extent that holds an address, if it is a record.
    pub fn find(&self, pid: u32, addr: u64) -> Option<Extent<'_>> {
        let slot = *self.pids.get(&pid)?;
        let number = self.process(slot).index.at_or_below(addr)?;
        let row = &self.rows[number];
        (addr < row.end() && !row.has(FRESH)).then(|| self.view(number, row))
    }

    /// The site of the object that holds an address, one born in the open interval included.
    pub fn site_at(&self, pid: u32, addr: u64) -> Option<u32> {
        let slot = *self.pids.get(&pid)?;
        let row = &self.rows[self.process(slot).index.at_or_below(addr)?];
        (addr < row.end()).then_some(row.site())
    }

    /// The extent of this number, while it lives.
    pub fn extent(&self, id: ExtentId) -> Option<Extent<'_>> {
        let row = self.rows.get(id.0).filter(|row| !row.has(FRESH))?;
        Some(self.view(id.0, row))
    }

    /// Memory held for extents: (slab, indexes), bytes.
    pub fn bytes_held(&self) -> (usize, usize) {
        let indexes = self.processes.iter().flatten().map(|p| p.index.bytes_held()).sum();
        (self.rows.bytes_held(), indexes)
    }

    /// Starts to keep events until they are taken.
    pub fn listen(&mut self) {
        self.events.get_or_insert_default();
    }

    /// The events since the last call, oldest first; none before [`Ledger::listen`]. `buffer` is
    /// emptied and reused.
    pub fn take_events(&mut self, buffer: &mut Vec<LedgerEvent>) {
        buffer.clear();
        if let Some(kept) = &mut self.events {
            std::mem::swap(&mut kept.events, buffer);
        }
    }

    /// Keeps an event, if anyone listens.
    #[inline]
    pub(crate) fn emit(&mut self, slot: u16, event: Event) {
        if self.events.is_some() {
            let pid = self.process(slot).pid;
            let at_ns = self.event_ns;
            self.events.iter_mut().for_each(|kept| kept.consume(pid, at_ns, event));
        }
    }

    pub(crate) fn slot_of(&self, pid: u32) -> Option<u16> {
        self.pids.get(&pid).copied()
    }

    pub(crate) fn slot(&mut self, pid: u32) -> Option<u16> {
        if let Some((latest, slot)) = self.latest
            && latest == pid
        {
            return Some(slot);
        }
        let slot = *self.pids.get(&pid)?;
        self.latest = Some((pid, slot));
        Some(slot)
    }

    #[inline]
    pub(crate) fn process(&self, slot: u16) -> &Process {
        self.processes[usize::from(slot)].as_ref().expect("rows and pids name live processes")
    }

    pub(crate) fn process_mut(&mut self, slot: u16) -> &mut Process {
        self.processes[usize::from(slot)].as_mut().expect("rows and pids name live processes")
    }

    /// What is left of an average after so many units.
    #[inline]
    pub(crate) fn decay(&self, units: u32) -> f32 {
        let per_tick = u32::from(self.config.units);
        if per_tick == 1 {
            return self.decays.get(units as usize).copied().unwrap_or(0.0);
        }
        let whole = self.decays.get((units / per_tick) as usize).copied().unwrap_or(0.0);
        whole * self.unit_decays[(units % per_tick) as usize]
    }

    /// Takes all that a process has; its group.
    fn clear(&mut self, slot: u16) -> GroupSlot {
        let numbers: Vec<u32> = self.process(slot).index.iter().collect();
        for number in numbers {
            self.remove_row(number);
        }
        let process = self.process(slot);
        let (group, sites, early) = (process.group, process.sites.len(), process.tombstones.len());
        self.groups.give_back(group, sites, early);
        self.forget_lives(slot);
        group
    }

    /// No sample of a process is to come: its ended lives, and records that wait, are of no use.
    fn forget_lives(&mut self, slot: u16) {
        let process = self.process_mut(slot);
        process.inbox = Vec::new();
        let ended = std::mem::take(&mut process.ended);
        self.ended_total -= ended.len();
    }

    #[inline]
    fn view(&self, number: u32, row: &Row) -> Extent<'_> {
        self.shown.set(self.shown.get() + 1);
        let decay = self.decay(self.closed.saturating_sub(row.clock));
        let per_s = decay * 1e3 / self.config.tick_ms as f32;
        let accesses = row.reads + row.writes;
        let stall_ns = row.stall_ns * AT_ONCE;
        let more = if row.has(SPILLED) { self.spill[&number].as_slice() } else { &[] };
        Extent {
            id: ExtentId(number),
            pid: self.process(row.process).pid,
            place: row.process,
            addr: row.addr,
            bytes: row.bytes(),
            site: row.site(),
            version: row.version(),
            is_head: row.has(HEAD),
            is_last: row.has(LAST),
            is_block: row.has(BLOCK),
            is_mapped: row.has(MAPPED),
            arena: row.arena(),
            born_ms: row.born_ms(),
            is_warm: row.hits == WARM,
            last_access_ms: row.last_access.ms(),
            reads_per_s: row.reads * per_s,
            writes_per_s: row.writes * per_s,
            cost_ns_per_s: row.stall_ns * per_s,
            latency_ns: if accesses > 0.0 { stall_ns / accesses } else { 0.0 },
            as_of_ms: self.tick_began_ms,
            residency: Residency {
                as_of_ms: row.homes_as_of.ms(),
                first: row.homes.map(crate::row::Home::get),
                more,
            },
        }
    }
}
