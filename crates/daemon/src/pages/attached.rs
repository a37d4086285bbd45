//! Tiers running processes by OS page until they end or the caller stops it.
//! In: an [`Attachment`]. Out: a [`PagesReport`]. Knows nothing of terminals.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tiercel_ledger::movement::{Failure, Outcome};
use tiercel_ledger::regions::{
    Demand, Evidence, GroupId, LEVEL_MAX, Regions, RegionsConfig, Unit, View,
};
use tiercel_machine::number::{index, signed, whole_ms};
use tiercel_machine::{Machine, MoveRoom, NodeId};
use tiercel_mover::{Kernel, Linux, Mover};
use tiercel_policy::Limit;
use tiercel_policy::pages::{
    Estimate, Mode, PageDecision, PagesConfig, Places, Reserve, Rooms, Situation, Tiering,
};
use tiercel_sampler::{Kind, Method, Sampler};
use tiercel_wire::{Now, Sample};

use super::budgets::{Budgets, CgroupBudget, Held};
use super::decided::Decided;
use super::error::AttachError;
use super::family::{Family, Target};
use super::questions::Questions;
use super::report::{GroupReport, PagesReport};
use super::reshape::Reshaper;
use super::room::{ZONEINFO, read_room};
use super::rounds::{Done, Job};
use super::why::{Known, PageWhy, WhyError, owner};
use super::worker::Worker;
use crate::net::protocol::{Request, answer_line, error_line};
use crate::net::socket_dir::ControlSocket;

/// Time between two drains: a ring of 256 KiB has 6,500 faults, which come in 20 ms at 325,000 a
/// second.
const POLL: Duration = Duration::from_millis(20);
/// New processes are looked for after this time, as the daemon does for children of its own.
const FAMILY_EVERY: Duration = Duration::from_millis(250);
/// Mappings are read again after this time (pages.md: each second).
const MAPS_EVERY: Duration = Duration::from_secs(1);
/// Huge OS pages are looked up after this time: the kernel walks all page tables for it.
const HUGE_EVERY: Duration = Duration::from_secs(10);
/// OS pages looked up in a poll: 0.25 ms at 0.24 us each (crates/mover/src/kernel.rs), 1.2% of a
/// CPU. What is accessed at an unknown place comes first.
const LOCATED_PER_POLL: usize = 1024;
/// The same until all were looked up once: 16 ms.
const LOCATED_AT_FIRST: usize = 65_536;
/// Decisions in a window.
const TICKS_PER_WINDOW: u64 = 4;
/// A window this many times too long is counted as slow.
const SLOW: u32 = 4;
/// Misses under way at once, for want of a measurement: the ledger's default.
const PARALLELISM: f64 = 4.0;
/// Accesses to memory that the first one to an OS page in a window stands for, where nothing counts
/// misses: one for each of its 64 lines. Assumed, not measured.
const ASSUMED_ACCESSES: u64 = 64;
/// Weight of the newest batch in the measured cost of moves. Chosen, not measured.
const COST_WEIGHT: f64 = 0.2;
/// Latency gap assumed between neighbouring tiers where the machine gives none, nanoseconds: about
/// one hop over a link.
const ASSUMED_GAP_NS: f64 = 100.0;
/// Cost of moving a byte until it is measured, nanoseconds: move_pages of 4 KiB at about 3 us each.
const MOVE_NS_PER_BYTE: f64 = 0.7;
/// Measured costs are believed between these, nanoseconds a byte: pages.md has 2 to 19, and huge OS
/// pages cost less.
const COST_NS: std::ops::RangeInclusive<f64> = 0.05..=100.0;

/// Why an OS page will not move in the next moment either.
const STAYS: [Failure; 2] = [Failure::Shared, Failure::Busy];

/// What to tier, and how.
pub struct Attachment {
    /// Which processes.
    pub target: Target,
    /// This machine.
    pub machine: Machine,
    /// The `[pages]` table.
    pub pages: PagesConfig,
    /// Budget of the best tier, of all processes whose control groups have none.
    pub fast: Limit,
    /// Budgets of control groups.
    pub budgets: Vec<CgroupBudget>,
    /// What observes.
    pub sampler: Box<dyn Sampler>,
    /// What moves.
    pub mover: Box<dyn Mover + Send>,
    /// Where `tiercel why ADDRESS` asks; `None`: nowhere.
    pub socket: Option<ControlSocket>,
}

/// The answer to a request; its name is the request's.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    Why(Box<PageWhy>),
}

/// Refuses what cannot work, whichever processes are tiered.
///
/// # Errors
/// [`AttachError::Places`], [`AttachError::Config`], [`AttachError::Regions`],
/// [`AttachError::Blind`], [`AttachError::Room`].
pub fn check(
    machine: &Machine,
    pages: &PagesConfig,
    sampler: &dyn Sampler,
) -> Result<(), AttachError> {
    new_regions(machine, pages, sampler)?;
    read_room(Path::new(ZONEINFO), Linux::default().os_page_bytes())?;
    Ok(())
}

/// Tiers processes until they end or `stop` is set. Nothing in them changes but where their memory
/// is.
///
/// # Errors
/// Before anything is moved, all of [`AttachError`]; later [`AttachError::Mover`].
pub fn attach(config: Attachment, stop: &AtomicBool) -> Result<PagesReport, AttachError> {
    let mut attached = Attached::new(config)?;
    let is_done = |attached: &Attached| {
        stop.load(Ordering::Acquire) || attached.family.has_ended() || attached.worker.has_failed()
    };
    while !is_done(&attached) {
        attached.poll();
        std::thread::sleep(POLL);
    }
    let has_failed = attached.worker.has_failed();
    let report = attached.end();
    if has_failed { Err(AttachError::Mover(report.target)) } else { Ok(report) }
}

struct Attached {
    family: Family,
    os_page_bytes: u64,
    regions: Regions,
    tiering: Tiering,
    reshaper: Reshaper,
    estimate: Estimate,
    sampler: Box<dyn Sampler>,
    worker: Worker,
    machine: Machine,
    reserve: Reserve,
    window: Duration,
    began: Instant,
    clocks: Clocks,
    samples: Vec<Sample>,
    /// OS pages that were looked up.
    located: usize,
    /// Samples were lost in the open window.
    is_lossy: bool,
    seen: Seen,
    report: PagesReport,
    decided: Decided,
    questions: Option<Questions>,
}

/// What the open window had: one sample stands for so many accesses.
#[derive(Default)]
struct Seen {
    samples: u64,
    accesses: u64,
}

/// When each thing was done last.
struct Clocks {
    family: Instant,
    maps: Instant,
    huge: Instant,
    window: Instant,
    tick: Instant,
}

impl Attached {
    fn new(config: Attachment) -> Result<Attached, AttachError> {
        let Attachment { target, machine, pages, fast, budgets, mut sampler, mover, socket } =
            config;
        let budgets = Budgets::new(&budgets, fast)?;
        let (places, mut regions) = new_regions(&machine, &pages, &*sampler)?;
        let report_target = target.to_string();
        let family = Family::new(target, budgets, &mut regions, &mut *sampler)?;
        let os_page_bytes = Linux::default().os_page_bytes();
        let room = read_room(Path::new(ZONEINFO), os_page_bytes)?;
        let fast_nodes = places.nodes().filter(|node| places.is_fast(*node));
        let bands = fast_nodes.map(|node| room.granted(node).to_high_bytes);
        let band_bytes = bands.max().unwrap_or(0);
        let now = Instant::now();
        let report = PagesReport {
            target: report_target,
            mode: pages.mode,
            sampler: format!("{}: {}", sampler.name(), sampler.capabilities().source),
            ..PagesReport::default()
        };
        Ok(Attached {
            estimate: estimate(&pages),
            reserve: reserve(&pages, &machine, band_bytes),
            tiering: Tiering::new(pages.mode, places),
            reshaper: Reshaper::new(pages.mode),
            worker: Worker::start(mover, move || {
                read_room(Path::new(ZONEINFO), os_page_bytes).ok()
            })?,
            window: Duration::from_millis(pages.window_ms),
            clocks: Clocks { family: now, maps: now, huge: now, window: now, tick: now },
            began: now,
            samples: Vec::new(),
            located: 0,
            is_lossy: false,
            seen: Seen::default(),
            decided: Decided::default(),
            questions: socket.map(Questions::open).transpose()?,
            family,
            os_page_bytes,
            regions,
            sampler,
            machine,
            report,
        })
    }

    /// One turn of the loop.
    fn poll(&mut self) {
        self.observe();
        self.refresh();
        if let Some(done) = self.worker.done() {
            self.learn(&done);
        }
        let tick = self.window / u32::try_from(TICKS_PER_WINDOW).unwrap_or(1);
        if self.clocks.tick.elapsed() >= tick && !self.worker.is_busy() {
            self.clocks.tick = Instant::now();
            self.decide();
        }
        if let Some(mut questions) = self.questions.take() {
            questions.poll(&mut |request| self.answer(request));
            self.questions = Some(questions);
        }
    }

    fn answer(&mut self, request: &Request) -> Vec<u8> {
        let Request::Why { pid, address } = request else {
            return error_line("this tiers by OS page, and answers `tiercel why ADDRESS` alone");
        };
        match self.why(*pid, *address) {
            Ok(why) => answer_line(&Answer::Why(Box::new(why))),
            Err(error) => error_line(&error.to_string()),
        }
    }

    fn why(&mut self, pid: Option<u32>, addr: u64) -> Result<PageWhy, WhyError> {
        let pid = owner(&self.regions, pid, addr)?;
        // Where it is now, and not where it was when its turn came last.
        let addr = addr - addr % self.os_page_bytes;
        self.family.locate_range(&mut self.regions, pid, addr, 1);
        let (regions, estimate) = (&self.regions, &self.estimate);
        let (places, decided) = (self.tiering.places(), &self.decided);
        Known { regions, places, estimate, decided }.explain((pid, addr))
    }

    /// Takes what the sampler saw; ends the window if it is over.
    fn observe(&mut self) {
        let now = Now::at_ms(whole_ms(self.began.elapsed()));
        let drained = self.sampler.drain(now, &mut self.samples);
        self.report.samples += drained.samples;
        self.report.lost += drained.lost;
        self.is_lossy |= drained.lost > 0;
        let is_over = match self.sampler.kind() {
            Kind::Hint => drained.passes > 0,
            _ => self.clocks.window.elapsed() >= self.window,
        };
        let weights: u64 = self.samples.iter().map(|sample| u64::from(sample.weight)).sum();
        self.seen.samples += drained.samples;
        self.seen.accesses += match self.sampler.counters() {
            _ if self.sampler.kind() != Kind::Hint => weights,
            Some(counters) => counters.llc_misses,
            None => drained.samples * ASSUMED_ACCESSES,
        };
        for sample in self.samples.drain(..) {
            let from = sample.cpu.and_then(|cpu| self.machine.node_of_cpu(u32::from(cpu)));
            self.regions.touch(sample.pid, sample.addr, from);
        }
        if is_over {
            self.end_window();
        }
    }

    fn end_window(&mut self) {
        let took = self.clocks.window.elapsed();
        self.clocks.window = Instant::now();
        if std::mem::take(&mut self.is_lossy) {
            self.report.unknown_windows += 1;
            return;
        }
        let seen = std::mem::take(&mut self.seen);
        if seen.samples > 0 {
            self.estimate.weight = (seen.accesses as f64 / seen.samples as f64).max(1.0);
        }
        self.report.slow_windows += u64::from(took > self.window * SLOW);
        let window = self.regions.close_window();
        self.report.windows += 1;
        if self.report.windows.is_multiple_of(u64::from(LEVEL_MAX)) {
            self.report.note_levels(&self.regions, self.tiering.places().nodes());
        }
        self.report.elsewhere += window.strange;
        self.report.dropped += window.dropped;
    }

    /// Looks at mappings and places again.
    fn refresh(&mut self) {
        if self.clocks.family.elapsed() >= FAMILY_EVERY {
            self.clocks.family = Instant::now();
            self.family.look(&mut self.regions, &mut *self.sampler);
        }
        if self.clocks.maps.elapsed() >= MAPS_EVERY {
            self.clocks.maps = Instant::now();
            self.family.read_maps(&mut self.regions);
        }
        if self.clocks.huge.elapsed() >= HUGE_EVERY {
            self.clocks.huge = Instant::now();
            self.family.read_huge(&mut self.regions);
        }
        let all = index(self.regions.mapped_bytes() / self.os_page_bytes);
        let pages = if self.located < all { LOCATED_AT_FIRST } else { LOCATED_PER_POLL };
        self.located = self.located.saturating_add(self.family.locate(&mut self.regions, pages));
    }

    fn decide(&mut self) {
        let demand = self.regions.take_demand();
        if self.family.has_ended() {
            return;
        }
        let decision = match demand.is_empty() {
            true => PageDecision::default(),
            false => match self.decision(demand) {
                Some(decision) => decision,
                None => return,
            },
        };
        let (regions, places) = (&mut self.regions, self.tiering.places());
        let reshapes = self.reshaper.choose(&decision, regions, places, &self.estimate);
        if !decision.moves.is_empty() || !reshapes.is_empty() {
            let PageDecision { moves, needs, .. } = decision;
            self.worker.execute(Job { moves, needs, reshapes });
        }
    }

    /// What moves for units that ask to; `None`: it is not known what fits where.
    fn decision(&mut self, demand: Vec<Unit>) -> Option<PageDecision> {
        let Ok(room) = read_room(Path::new(ZONEINFO), self.os_page_bytes) else {
            self.report.blind_ticks += 1;
            return None;
        };
        let held = self.held();
        let rooms = self.rooms(&room, &held);
        self.report.groups = self.groups(&held);
        let window = self.regions.window();
        let (residents, estimate) = (&mut self.regions, &self.estimate);
        let decision = self.tiering.tick(Situation { demand, residents, rooms, estimate, window });
        self.report.decided(&decision);
        self.decided.note(&decision, window);
        Some(decision)
    }

    /// Bytes that each group holds, where that is limited or reported; outside the best tier as
    /// well only where limits or entitlements are parts of it.
    fn held(&self) -> BTreeMap<GroupId, Held> {
        let (budgets, places) = (&self.family.budgets, self.tiering.places());
        let has_any = |is_it: fn(&Limit) -> bool| budgets.groups().any(|(_, one, _)| is_it(&one));
        let is_limited = has_any(|limit| *limit != Limit::Capacity);
        if !is_limited && !budgets.is_by_group() {
            return BTreeMap::new();
        }
        let is_by_share = has_any(|limit| matches!(limit, Limit::ShareOfPeak(_)));
        let needs_all = is_by_share || budgets.is_by_group();
        let fast = self.regions.held(|node| places.is_fast(node));
        let all = if needs_all { self.regions.held(|_| true) } else { fast.clone() };
        let of = |(group, pages): (GroupId, u64)| {
            let fast = fast.get(&group).copied().unwrap_or(0) * self.os_page_bytes;
            (group, Held { fast, all: pages * self.os_page_bytes })
        };
        all.into_iter().map(of).collect()
    }

    fn rooms(&self, room: &MoveRoom, held: &BTreeMap<GroupId, Held>) -> Rooms {
        let places = self.tiering.places();
        let free = free_bytes(places, room);
        let mut rooms = Rooms::new(places, &free, self.reserve);
        // What programs leave free: to take it would start the kernel's reclaim.
        let kept: Vec<(NodeId, u64)> =
            places.nodes().map(|node| (node, room.granted(node).to_low_bytes)).collect();
        rooms.keep_slow(&kept);
        let budgets = &self.family.budgets;
        let of = |group| held.get(&group).copied().unwrap_or_default();
        for (group, limit, _) in budgets.groups() {
            if let Some(limit) = of(group).limit(limit) {
                rooms.limit(group, signed(limit) - signed(of(group).fast));
            }
        }
        if budgets.is_by_group() {
            let free = free.iter().filter(|(node, _)| places.is_fast(*node));
            let fast_bytes = free.map(|(_, bytes)| bytes).sum::<u64>()
                + held.values().map(|held| held.fast).sum::<u64>();
            for (group, bytes) in budgets.entitled(held, fast_bytes) {
                rooms.entitle(group, signed(bytes) - signed(of(group).fast));
            }
        }
        rooms
    }

    /// What groups hold, where control groups have budgets.
    fn groups(&self, held: &BTreeMap<GroupId, Held>) -> Vec<GroupReport> {
        let budgets = &self.family.budgets;
        let report = |(group, limit, cgroup): (GroupId, Limit, Option<&Path>)| GroupReport {
            cgroup: cgroup.map(Path::to_owned),
            fast: limit.to_string(),
            fast_bytes: held.get(&group).map_or(0, |held| held.fast),
        };
        let all = budgets.is_by_group().then(|| budgets.groups().map(report));
        all.into_iter().flatten().collect()
    }

    /// Notes where moves have brought memory.
    fn learn(&mut self, done: &Done) {
        self.report.done(done);
        self.reshaper.learn(&done.reshaped, &mut self.regions);
        done.outcomes.iter().for_each(|outcome| self.decided.learn(outcome));
        let window = self.regions.window();
        let (mut took_ns, mut bytes) = (0, 0);
        for outcome in done.outcomes.iter().filter(|outcome| was_tried(outcome)) {
            (took_ns, bytes) = (took_ns + outcome.took_ns, bytes + outcome.moved_bytes);
            let asked = &outcome.asked;
            if outcome.moved_bytes > 0 {
                self.tiering.moved((asked.pid, asked.addr), window);
            }
            if outcome.failed.iter().any(|(why, _)| STAYS.contains(why)) {
                self.tiering.could_not_move((asked.pid, asked.addr), window);
            }
            let pages = index(asked.bytes / self.os_page_bytes);
            if outcome.resident_bytes == asked.bytes {
                self.regions.set_residency(asked.pid, asked.addr, &vec![Some(asked.to); pages]);
            } else {
                self.family.locate_range(&mut self.regions, asked.pid, asked.addr, pages);
            }
        }
        if bytes > 0 {
            let newest = (took_ns as f64 / bytes as f64).clamp(*COST_NS.start(), *COST_NS.end());
            let known = &mut self.estimate.move_ns_per_byte;
            *known += (newest - *known) * COST_WEIGHT;
        }
    }

    /// Detaches: processes keep their memory where it is.
    fn end(mut self) -> PagesReport {
        let ended = self.family.has_ended();
        self.family.detach(&mut *self.sampler);
        self.report.done(&self.worker.finish());
        PagesReport {
            process_ended: ended,
            processes: self.family.seen,
            seconds: self.began.elapsed().as_secs_f64(),
            move_ns_per_byte: self.estimate.move_ns_per_byte,
            ..self.report
        }
    }
}

/// What decisions can count on. Below the high watermark only exchanges move, for which what is
/// certain counts. If that is only so on slow nodes, they begin there.
fn free_bytes(places: &Places, room: &MoveRoom) -> Vec<(NodeId, u64)> {
    let granted = |node| room.granted(node);
    let mut slow = places.nodes().filter(|node| !places.is_fast(*node));
    let begins_slow = slow.any(|node| granted(node).certain_bytes > 0);
    let free = |node| match granted(node) {
        one if one.bytes > one.to_high_bytes => one.bytes,
        one if one.certain_bytes > 0 || begins_slow && places.is_fast(node) => one.certain_bytes,
        one => one.likely_bytes,
    };
    places.nodes().map(|node| (node, free(node))).collect()
}

/// Whether the kernel was asked for it.
fn was_tried(outcome: &Outcome) -> bool {
    let untried = [Failure::NoRoom, Failure::Unpaired];
    !outcome.failed.iter().any(|(why, _)| untried.contains(why))
}

/// A machine as units see it, and an empty ledger of its OS pages.
fn new_regions(
    machine: &Machine,
    pages: &PagesConfig,
    sampler: &dyn Sampler,
) -> Result<(Places, Regions), AttachError> {
    let places = Places::new(machine, ASSUMED_GAP_NS)?;
    pages.check()?;
    pages.check_reserve(smallest_fast(machine, &places))?;
    let evidence = match (sampler.kind(), sampler.method()) {
        (_, Method::PageTables) => return Err(AttachError::Blind(sampler.name())),
        (Kind::Hint, _) => Evidence::Complete,
        _ => Evidence::Sampled,
    };
    let regions = Regions::new(regions_config(machine, &places, pages, evidence))?;
    Ok((places, regions))
}

fn regions_config(
    machine: &Machine,
    places: &Places,
    pages: &PagesConfig,
    evidence: Evidence,
) -> RegionsConfig {
    let best = |node| machine.tiers_from(node).into_iter().next().map_or(vec![], |tier| tier.nodes);
    RegionsConfig {
        history: pages.history,
        evidence,
        demand: match pages.mode {
            Mode::Benefit => Demand::Repeated,
            _ => Demand::Running,
        },
        nodes: places.nodes().collect(),
        views: places.cpu_nodes().map(|node| View { node, best: best(node) }).collect(),
        fast: places.nodes().filter(|node| places.is_fast(*node)).collect(),
    }
}

fn estimate(pages: &PagesConfig) -> Estimate {
    Estimate {
        history: pages.history,
        window_s: Duration::from_millis(pages.window_ms).as_secs_f64(),
        weight: 1.0,
        horizon_s: pages.horizon_s(),
        margin: 1.0,
        parallelism: PARALLELISM,
        move_ns_per_byte: MOVE_NS_PER_BYTE,
    }
}

/// What moves leave free on nodes of the best tier: the kernel's band in any case (AutoTiering 4
/// counts a node as full from the high watermark on).
fn reserve(pages: &PagesConfig, machine: &Machine, band_bytes: u64) -> Reserve {
    match (pages.mode.has_reserve(), pages.reserve) {
        (false, _) => Reserve { bytes: band_bytes, threshold_bytes: 0 },
        (true, 0) => Reserve::for_batches(machine.cpus().len() as u64, band_bytes),
        (true, bytes) => Reserve::of_bytes(bytes.max(band_bytes)),
    }
}

fn smallest_fast(machine: &Machine, places: &Places) -> u64 {
    let fast = machine.nodes.iter().filter(|node| places.is_fast(node.id));
    fast.map(|node| node.capacity_bytes).min().unwrap_or(0)
}
