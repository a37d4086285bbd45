//! One replay: a stream, a machine, and who places its memory.
//! In: a [`Stream`], [`Speeds`], a [`Contender`], a seed. Out: a [`RunReport`]. Knows nothing of
//! other runs.

use std::time::Duration;

use tiercel_machine::number::{saturating_u64, share_of};
use tiercel_policy::pages::baseline::{
    ClockDwf, ClockRules, Interleave, KnownObject, PageBaseline, TwoPhase,
};
use tiercel_policy::{TickSchedule, is_past_probation};
use tiercel_wire::layout::OS_PAGE_BYTES;
use tiercel_wire::{Record, Sample};

use crate::births::Births;
use crate::bound::Life;
use crate::drive::{Counted, Driver, Setting, SettingError};
use crate::energy::{Joules, Traffic, Usage};
use crate::heap::{Freed, Heap};
use crate::memory::{Memory, pages_of};
use crate::mover::Done;
use crate::pages::PageDriver;
use crate::planned::{PlanDriver, PlanSetting};
use crate::sampler::Sampler;
use crate::speed::Speeds;
use crate::stream::{Accesses, Event, Stream, What, range_of};
use crate::world::{Spent, World};

/// Who places memory.
#[derive(Clone, Debug, PartialEq)]
pub enum Contender {
    /// The kernel: first touch.
    FirstTouch,
    /// Fast memory for everything, all of it provisioned.
    AllFast,
    /// The kernel: in turns.
    Interleave,
    /// CLOCK-DWF.
    ClockDwf(ClockRules),
    /// 2PP, with the stream itself as its profile.
    TwoPhase,
    /// A plan, with the stream itself as its profile.
    Planned(PlanSetting),
    /// Tiercel with this policy.
    Tiercel(Box<Setting>),
}

/// What Tiercel and the sampler cost, and how they see.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Accesses for each sample: the period of lab/experiments/mat.toml.
    pub period: u32,
    /// How many times too large the gap between the memories is seen: 1.
    pub scale: f64,
    /// A sample, nanoseconds: an interrupt of the counters and its record take 1 us.
    pub sample_ns: f64,
    /// A tick, nanoseconds: in the lab the daemon took 33 ms in the 48 ticks of `phases`, of which
    /// the first look-up was 6 to 20.
    pub tick_ns: f64,
    /// Looking up an OS page, nanoseconds: 0.1 to 0.3 us (the daemon's `LOOKUPS_MAX`).
    pub look_ns_per_os_page: f64,
    /// Tiercel's own memory in the fast node, bytes. Measured in the lab: 0.4 MiB of the daemon's
    /// heap and stacks, 0.2 of sessions, 0.15 of the runtime, 0.1 of page tables.
    pub own_bytes: u64,
    /// Time between two drains of the rings, nanoseconds: `poll_max` of that experiment.
    pub drain_ns: u64,
    /// What becomes of freed memory.
    pub freed: Freed,
}

impl Default for Model {
    fn default() -> Model {
        Model {
            period: 4096,
            scale: 1.0,
            sample_ns: 1000.0,
            tick_ns: 400_000.0,
            look_ns_per_os_page: 250.0,
            own_bytes: 870 << 10,
            drain_ns: 50_000_000,
            freed: Freed::AsGlibc,
        }
    }
}

/// Instructions in a nanosecond of work: of 3 GHz, each second one. Policies compare them with
/// themselves alone.
const INSTRUCTIONS_PER_NS: f64 = 1.5;

/// OS pages of an extent that a look-up queries at most, as in the kernel's mover.
const QUERIED_MAX: u64 = 64;

/// 10^9 / 10^3.
const NS_PER_MS: u64 = 1_000_000;

/// What came of a replay.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct RunReport {
    /// How long it took, nanoseconds.
    pub time_ns: f64,
    /// What it was spent on, beside the mover.
    pub spent: Spent,
    /// CPU time of the mover, nanoseconds.
    pub mover_ns: f64,
    /// Bytes moved to fast memory.
    pub promoted_bytes: u64,
    /// Bytes moved to slow memory.
    pub demoted_bytes: u64,
    /// Bytes through fast and slow memory, by accesses.
    pub traffic: [Traffic; 2],
    /// Bytes of fast memory that the run had.
    pub provisioned_bytes: u64,
    /// Energy; `None` where the machine's description does not have it.
    pub joules: Option<Joules>,
    /// Samples taken.
    pub samples: u64,
    /// Ticks, those at which a decision was made, and those at which the mover was busy.
    pub ticks: u64,
    /// Of those.
    pub decisions: u64,
    /// Of those.
    pub ticks_busy: u64,
}

/// Replays a stream in so much fast memory. `lives`: those of the stream.
pub fn replay(
    (stream, lives): (&Stream, &[Life]),
    (speeds, room_bytes): (&Speeds, u64),
    contender: &Contender,
    (model, seed): (&Model, u64),
) -> Result<RunReport, SettingError> {
    let is_hosted = matches!(contender, Contender::Tiercel(_) | Contender::Planned(_));
    let own_bytes = if is_hosted { model.own_bytes } else { 0 };
    let is_all_fast = *contender == Contender::AllFast;
    let room_bytes = if is_all_fast { stream.os_pages * OS_PAGE_BYTES } else { room_bytes };
    // The budget does not know what Tiercel takes itself.
    let left_bytes = room_bytes.saturating_sub(own_bytes);
    let memory = Memory::new(stream.os_pages, left_bytes / OS_PAGE_BYTES);
    let mut placer =
        placer((stream, lives), (speeds, room_bytes, left_bytes), contender, (model, seed))?;
    let mut world = World::new(speeds, memory);
    let mut heap = Heap::new(model.freed);
    let mut done_ns = 0;
    for event in &stream.events {
        placer.work(&mut world, event.at_ns - done_ns);
        done_ns = event.at_ns;
        placer.happen(&mut world, &mut heap, event);
        debug_assert!(world.memory.is_sound(), "no node holds more than its room");
    }
    placer.work(&mut world, stream.work_ns - done_ns);
    let peak_bytes = stream.peak_bytes();
    let provisioned_bytes = if is_all_fast { peak_bytes } else { room_bytes };
    Ok(report(&world, &placer, [provisioned_bytes, peak_bytes]))
}

fn placer(
    (stream, lives): (&Stream, &[Life]),
    (speeds, room_bytes, left_bytes): (&Speeds, u64, u64),
    contender: &Contender,
    (model, seed): (&Model, u64),
) -> Result<Placer, SettingError> {
    let (os_pages, room) = (stream.os_pages, left_bytes / OS_PAGE_BYTES);
    let baseline: Box<dyn PageBaseline> = match contender {
        Contender::FirstTouch | Contender::AllFast => return Ok(Placer::Kernel),
        Contender::Interleave => Box::new(Interleave::new(os_pages, room)),
        Contender::ClockDwf(rules) => Box::new(ClockDwf::new(os_pages, room, *rules)),
        Contender::TwoPhase => Box::new(TwoPhase::new(&known(lives), os_pages, room)),
        Contender::Planned(setting) => {
            let driver = PlanDriver::new((stream, lives), (speeds, left_bytes), *setting)?;
            return Ok(Placer::Planned(Box::new(driver)));
        }
        Contender::Tiercel(setting) => {
            let host = Host::new(setting, (stream, speeds, room_bytes), (model, seed))?;
            return Ok(Placer::Tiercel(Box::new(host)));
        }
    };
    Ok(Placer::Pages(PageDriver::new(baseline, seed)))
}

/// What 2PP's profile has of a stream's lives.
fn known(lives: &[Life]) -> Vec<KnownObject> {
    let of = |life: &Life| KnownObject {
        os_pages: pages_of(life.addr, life.bytes),
        benefit: life.value_ns,
    };
    lives.iter().map(of).collect()
}

fn report(world: &World<'_>, placer: &Placer, provisioned_bytes: [u64; 2]) -> RunReport {
    let moved_bytes =
        [world.mover.promoted, world.mover.demoted].map(|count| count * OS_PAGE_BYTES);
    let (traffic, time_ns) = (world.traffic, world.clock_ns());
    let usage = Usage { traffic, moved_bytes, provisioned_bytes, time_ns };
    let mut report = RunReport {
        time_ns,
        traffic,
        provisioned_bytes: provisioned_bytes[0],
        joules: world.speeds.energies.map(|energies| Joules::of(&energies, &usage)),
        spent: world.spent,
        mover_ns: world.mover.spent_ns,
        promoted_bytes: moved_bytes[0],
        demoted_bytes: moved_bytes[1],
        ..RunReport::default()
    };
    if let Placer::Tiercel(host) = placer {
        (report.samples, report.ticks) = (host.samples_taken, host.ticks);
        (report.decisions, report.ticks_busy) = (host.decisions, host.ticks_busy);
    }
    report
}

enum Placer {
    Kernel,
    Pages(PageDriver),
    Planned(Box<PlanDriver>),
    Tiercel(Box<Host>),
}

impl Placer {
    /// The program works, in parts that end where Tiercel has something to do.
    fn work(&mut self, world: &mut World<'_>, ns: u64) {
        let Placer::Tiercel(host) = self else { return world.work(ns as f64) };
        let mut left_ns = ns;
        while left_ns > 0 {
            let part_ns = left_ns.min(host.due_ns().saturating_sub(world.now_ns()).max(1));
            world.work(part_ns as f64);
            left_ns -= part_ns;
            host.on_time(world);
        }
    }

    fn happen(&mut self, world: &mut World<'_>, heap: &mut Heap, event: &Event) {
        if let Placer::Planned(driver) = self {
            driver.on_time(world, event.at_ns);
        }
        match &event.what {
            What::Record(record) => self.record(world, heap, event.pid, *record),
            What::Accesses(accesses) => self.access(world, event.pid, accesses),
        }
    }

    fn record(&mut self, world: &mut World<'_>, heap: &mut Heap, pid: u32, record: Record) {
        let range = range_of(&record);
        let pages = range.map(|piece| pages_of(piece.addr, piece.bytes));
        let is_birth = matches!(record, Record::Born { .. });
        if let (true, Some(piece), Some(pages)) = (is_birth, range, pages.clone()) {
            let (fast, slow) = world.memory.lies(pages);
            heap.born(piece.addr, piece.bytes, fast + slow > 0);
        }
        let goes_back = match record {
            Record::Died { addr, bytes, .. } => heap.died(addr, bytes),
            _ => false,
        };
        let is_death = matches!(record, Record::Died { .. });
        match (self, pages.clone()) {
            (Placer::Tiercel(host), _) => host.record(world, pid, record),
            (Placer::Planned(driver), _) => driver.record(world, &record),
            (Placer::Pages(driver), Some(pages)) if is_birth => driver.born(pages),
            (Placer::Pages(driver), Some(pages)) if is_death => driver.died(pages, goes_back),
            _ => {}
        }
        if let (true, Some(pages)) = (goes_back, pages) {
            world.memory.release(pages);
        }
    }

    fn access(&mut self, world: &mut World<'_>, pid: u32, accesses: &Accesses) {
        let pages = pages_of(accesses.addr, accesses.bytes);
        match self {
            Placer::Kernel | Placer::Planned(_) => world.access(accesses),
            Placer::Pages(driver) => {
                driver.access(world, pages, accesses);
                world.access(accesses);
            }
            Placer::Tiercel(host) => {
                world.access(accesses);
                host.accessed(world, pid, accesses);
                host.on_time(world);
            }
        }
    }
}

/// Tiercel beside the program.
struct Host {
    driver: Driver,
    births: Births,
    sampler: Sampler,
    samples: Vec<Sample>,
    model: Model,
    pids: Vec<u32>,
    live_bytes: u64,
    room_bytes: u64,
    ticks_due: TickSchedule,
    next_drain_ns: u64,
    misses: f64,
    work_ns: f64,
    samples_taken: u64,
    ticks: u64,
    decisions: u64,
    ticks_busy: u64,
}

impl Host {
    fn new(
        setting: &Setting,
        (stream, speeds, room_bytes): (&Stream, &Speeds, u64),
        (model, seed): (&Model, u64),
    ) -> Result<Host, SettingError> {
        let mut births = Births::default();
        births.welcome(&stream.pids, room_bytes);
        let mut ticks_due = TickSchedule::new(setting.policy.tick_ms, setting.policy.first_tick_ms);
        ticks_due.hasten(0);
        Ok(Host {
            driver: Driver::new(setting, speeds, room_bytes, &stream.pids)?,
            births,
            sampler: Sampler::new(model.period, model.scale, seed),
            samples: Vec::new(),
            model: model.clone(),
            pids: stream.pids.clone(),
            live_bytes: 0,
            room_bytes,
            ticks_due,
            next_drain_ns: model.drain_ns,
            misses: 0.0,
            work_ns: 0.0,
            samples_taken: 0,
            ticks: 0,
            decisions: 0,
            ticks_busy: 0,
        })
    }

    fn due_ns(&self) -> u64 {
        (self.ticks_due.due_ms() * NS_PER_MS).min(self.next_drain_ns)
    }

    fn record(&mut self, world: &mut World<'_>, pid: u32, record: Record) {
        let record = self.births.follow(pid, record, &mut world.memory);
        match record {
            Record::Born { bytes, .. } => self.live_bytes += bytes,
            Record::Died { bytes, .. } => self.live_bytes = self.live_bytes.saturating_sub(bytes),
            _ => {}
        }
        self.driver.deliver(pid, at_time(record, world.now_ns()));
    }

    fn accessed(&mut self, world: &mut World<'_>, pid: u32, accesses: &Accesses) {
        let now_ns = world.now_ns();
        if !is_past_probation(now_ns / NS_PER_MS, self.live_bytes) {
            return;
        }
        let (before, memory) = (self.samples.len(), (&world.memory, world.speeds));
        self.sampler.see((pid, accesses), memory, now_ns, &mut self.samples);
        let taken = self.samples.len() - before;
        self.samples_taken += taken as u64;
        world.sampled(taken as f64 * self.model.sample_ns);
    }

    /// Does what is due.
    fn on_time(&mut self, world: &mut World<'_>) {
        while let Some(done) = world.mover.collect() {
            self.complete(world, done);
        }
        if world.now_ns() >= self.next_drain_ns {
            self.drain(world);
            self.next_drain_ns = world.now_ns() + self.model.drain_ns;
        }
        if world.now_ns() >= self.ticks_due.due_ms() * NS_PER_MS {
            self.tick(world);
        }
    }

    fn drain(&mut self, world: &World<'_>) {
        self.driver.observe(&mut self.samples);
        self.driver.drain(&self.pids, world.now_ns());
    }

    fn tick(&mut self, world: &mut World<'_>) {
        self.ticks += 1;
        self.drain(world);
        let now_ms = world.now_ns() / NS_PER_MS;
        let is_busy = world.mover.is_busy();
        let wanted = self.driver.close(now_ms, self.room_bytes, is_busy);
        let took = Duration::from_secs_f64(self.model.tick_ns / 1e9);
        self.ticks_due.ticked(took, false, now_ms);
        self.driver.expect_tick_in(self.ticks_due.every_ms());
        world.ticked(self.model.tick_ns);
        if is_busy {
            self.ticks_busy += 1;
        } else if wanted.is_empty() {
            self.decide(world);
        } else {
            let queried = |bytes: u64| (bytes / OS_PAGE_BYTES).min(QUERIED_MAX);
            let os_pages: u64 = wanted.iter().map(|range| queried(range.bytes)).sum();
            world.mover.look_up(wanted, os_pages as f64 * self.model.look_ns_per_os_page);
        }
    }

    fn complete(&mut self, world: &mut World<'_>, done: Done) {
        match done {
            Done::Located(found, took_ns) => {
                self.driver.located(&found, took_ns, world.now_ns() / NS_PER_MS);
                self.decide(world);
            }
            Done::Executed(outcomes) => {
                outcomes.iter().for_each(|outcome| self.driver.outcome(outcome));
            }
        }
    }

    fn decide(&mut self, world: &mut World<'_>) {
        self.decisions += 1;
        let (misses, work_ns) = (world.spent.misses, world.spent.work_ns);
        let counted = Counted {
            llc_misses: saturating_u64(misses - self.misses),
            instructions: saturating_u64((work_ns - self.work_ns) * INSTRUCTIONS_PER_NS),
        };
        (self.misses, self.work_ns) = (misses, work_ns);
        let left_bytes = world.memory.left() * OS_PAGE_BYTES;
        let nursed_bytes = self.births.nursed();
        let decision = self.driver.decide(counted, left_bytes, nursed_bytes);
        for plan in &decision.births {
            self.births.apply(plan, world.speeds.fast);
        }
        if !decision.moves.is_empty() {
            world.mover.submit(decision.moves);
        }
    }
}

/// The record as of a time.
fn at_time(record: Record, now_ns: u64) -> Record {
    let mut record = record;
    match &mut record {
        Record::Born { time_ns, .. }
        | Record::Died { time_ns, .. }
        | Record::Resized { time_ns, .. }
        | Record::Cut { time_ns, .. }
        | Record::Phase { time_ns, .. }
        | Record::Share { time_ns, .. }
        | Record::Head { time_ns, .. }
        | Record::Misses { time_ns, .. }
        | Record::Exec { time_ns }
        | Record::Exit { time_ns } => *time_ns = now_ns,
    }
    record
}

impl RunReport {
    /// Time of moves, nanoseconds: those that the program waited for, and the mover's.
    pub fn moving_ns(&self) -> f64 {
        self.spent.faults_ns + self.mover_ns
    }

    /// Bytes written to slow memory: by accesses and by moves.
    pub fn written_slow_bytes(&self) -> f64 {
        self.traffic[1].written_bytes + self.demoted_bytes as f64
    }
}

/// Bytes of fast memory that a share of a stream's peak is, in whole OS pages.
pub fn room_of(peak_bytes: u64, per_mille: u64) -> u64 {
    share_of(peak_bytes, per_mille, 1000) / OS_PAGE_BYTES * OS_PAGE_BYTES
}
