//! The daemon: one thread, one loop, which passes events to the components that own the state.
//! In: a [`DaemonConfig`] and its [`Parts`]. Out: a [`FinalReport`]. Prints nothing.
//!
//! ```text
//! sockets, pidfds, eventfds --> Sockets --+
//!                                clock ---+--> EventQueue --> dispatch --> Tracking, Sampling,
//!                    completed moves -----+                   Decisions, Moving
//! ```
//!
//! Handlers never dispatch. Work that they start completes as an event, queued ahead of all others.
//! Long, because it is the one place where the components meet.

mod adopt;
#[cfg(feature = "forge")]
pub mod forge;
mod pieces;

use self::pieces::Pauses;
use crate::answer::{Answer, SiteRows};
use crate::births::{self, Early};
use crate::clients::children::Children;
use crate::clients::client::Client;
use crate::clients::heads::Heads;
use crate::clients::misses::Misses;
use crate::clients::turns::TURN_UNITS;
use crate::config::DaemonConfig;
use crate::cpu;
use crate::decisions::Decisions;
use crate::event::{Event, EventQueue};
use crate::metrics::prometheus;
use crate::moves::queue::{Completion, MoveQueue};
use crate::moves::self_moves::{Hosted, Users};
use crate::moving::{Context, Moving};
use crate::net::arrival::Arrival;
use crate::net::protocol::{Request, answer_line, error_line};
use crate::net::socket_dir::Access;
use crate::observe::learning::Learning;
use crate::observe::recording::Recording;
use crate::observe::sampling::{Purpose, Sampling};
use crate::own_memory::OwnMemory;
use crate::parts::{DaemonError, Handle, Parts};
use crate::plan::runner::PlanRunner;
use crate::pools::Pools;
use crate::quota::Quota;
use crate::schedule::Schedule;
use crate::sockets::Sockets;
use crate::summary::{BudgetState, FinalReport, Summary};
use crate::tiers::{Tiers, Treatment};
use crate::tracking::Tracking;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tiercel_ledger::movement::Outcome;
use tiercel_ledger::{AccessValue, Ledger, Range};
use tiercel_machine::NodeId;
use tiercel_wire::clock::monotonic_ns;
use tiercel_wire::{ClockSource, Now, Offer, Session, Timeline};

/// Large objects of one site that a profile and a plan distinguish: H2M's multi-phase benchmark has
/// 30, and `hotcold` of the experiment `movers` has 96.
const NUMBERED_BIRTHS: u32 = 128;

/// The answer to a request of the other loop, `daemon::pages`.
const NOT_BY_PAGE: &str = "this tiers objects: only what is tiered by OS page explains an address";

/// Processes that are hosted before anything else has its turn: 2 ms, at 0.2 ms each.
const GREETED_AT_ONCE: usize = 8;

/// Clients that have left and are forgotten in a turn: 2 ms, at 0.2 ms each.
const FORGOTTEN_AT_ONCE: usize = 8;

/// Until the next of those that wait are hosted: at 8 in a millisecond they are hosted as fast as
/// threads read their hellos.
const ARRIVALS_LOOK: Duration = Duration::from_millis(1);

/// How long a child waits for its parent's hello. Chosen, not measured: a thread that was given the
/// CPU reads one in some 0.1 ms.
const PARENT_WAIT: Duration = Duration::from_millis(50);

/// Turns in which a tick waits for what users have to do: 0.25 s, at 0.8 ms for their work, 0.3 ms
/// for what processes left behind, and as long for everything else.
const TICK_TURNS_MAX: u32 = 128;

/// A daemon that is ready to run.
pub struct Daemon {
    config: DaemonConfig,
    tiers: Tiers,
    tracking: Tracking,
    /// Children that do not attach.
    children: Children,
    /// A tick has begun, and ends after so many turns at most.
    turns_to_tick: Option<u32>,
    /// Whether users' processes answer when they are asked to move memory.
    remote_users: Users,
    sampling: Sampling,
    /// `None` while they are made.
    decisions: Option<Decisions>,
    pauses: Pauses,
    moving: Moving,
    schedule: Schedule,
    /// `None` while it is renewed.
    offer: Option<Offer>,
    events: EventQueue,
    is_stopping: bool,
    summary: Summary,
    /// `None`: there is one tier, or memory is modelled.
    own_memory: Option<OwnMemory>,
    /// `None`: this daemon has no pools.
    pools: Option<Pools>,
    /// Its clock, as of the last drain of the rings.
    timeline: Timeline,
    clock_source: ClockSource,
    // Last: its files are removed after everything else is closed.
    sockets: Sockets,
}

impl Daemon {
    /// Claims its sockets and opens everything it needs. It serves no client before
    /// [`Daemon::run`].
    pub fn new(config: DaemonConfig, parts: Parts) -> Result<Daemon, DaemonError> {
        let own_memory = OwnMemory::of(&parts.machine).filter(|_| !parts.mover.is_modelled());
        let preferred = own_memory.as_ref().map(OwnMemory::prefer_for_now);
        let moved = own_memory.as_ref().map(OwnMemory::move_away);
        let mut daemon = Daemon::open(config, parts)?;
        daemon.summary.problems(moved.and_then(Result::err));
        daemon.own_memory = own_memory;
        daemon.tiers.choose_placer(0, 0);
        daemon.renew_offer();
        daemon.summary.problems(preferred.and_then(Result::err));
        Ok(daemon)
    }

    fn open(mut config: DaemonConfig, parts: Parts) -> Result<Daemon, DaemonError> {
        let io = DaemonError::io;
        let sockets = Sockets::open(&config, parts.identity)?;
        let summary = Summary::of(&parts.machine, parts.sampler.as_deref(), parts.mover.as_ref());
        let queue = MoveQueue::new(parts.mover).map_err(io("cannot start the mover's thread"))?;
        if let Some(eventfd) = queue.eventfd() {
            sockets.watch_mover(eventfd)?;
        }
        let treatment = Treatment {
            is_modelled: queue.is_modelled(),
            has_plan: config.plan.is_some(),
            is_recorded: config.record.is_some(),
        };
        let name = parts.machine.name.clone();
        let tiers =
            Tiers::new(parts.machine, config.fast, treatment).ok_or(DaemonError::NoTier(name))?;
        let quota = Quota::new(config.access, config.clients_max);
        let (of_group, of_all) = quota.of_ledger(config.ledger.extents_max);
        let bounded = tiercel_ledger::Config { of_group, of_all, ..config.ledger.clone() };
        let mut ledger = Ledger::new(bounded, 0)?;
        if !treatment.is_modelled {
            // The modelled mover learns of births one by one; real memory is assumed to be on the
            // node of its arena.
            ledger.set_arenas(&tiers.arenas.iter().copied().map(Some).collect::<Vec<_>>());
        }
        if config.policy.gate.shadow().is_some()
            && let Some(value) = AccessValue::of(&tiers.machine)
        {
            ledger.set_values(value);
        }
        let sampler = parts.sampler.as_deref();
        let offer = sockets.make_offer(&config.terms(sampler))?;
        let recording = config.record.map(|config| Recording::new(config, sampler, &mut ledger));
        let plan = config.plan.clone().map(|plan| PlanRunner::new(plan, &tiers, &config.symbols));
        if plan.as_ref().is_some_and(PlanRunner::has_stops) {
            // Programs wait at phase entries: their rings are drained as often as may be.
            config.poll_max_ms = config.poll_min_ms;
        }
        let sampling_is_there = parts.sampler.is_some();
        let sampling = Sampling::new(parts.sampler);
        let learns = config.learn && recording.is_none() && sampling_is_there;
        let learning = learns.then(|| Learning::of(&tiers.machine)).flatten();
        let mut tracking = Tracking::new(ledger, (recording, learning), quota, &config.symbols);
        tracking.clients.set_systematic(sampling.systematic());
        if config.all_memory {
            tracking.place_all_memory();
        }
        Ok(Daemon {
            decisions: Some(Decisions::new(config.policy.clone())?),
            pauses: Pauses::default(),
            pools: Pools::new(&config.pools, config.access).map_err(io("cannot make the pools"))?,
            schedule: Schedule::new(&config),
            sampling,
            tracking,
            moving: Moving::new(queue, plan, config.backing),
            children: Children::default(),
            turns_to_tick: None,
            remote_users: Users::default(),
            events: EventQueue::default(),
            is_stopping: false,
            offer: Some(offer),
            own_memory: None,
            timeline: Timeline::begin(),
            clock_source: ClockSource::of_this_machine(),
            config,
            tiers,
            summary,
            sockets,
        })
    }

    /// Offers processes to begin as a session would that is made now.
    fn renew_offer(&mut self) {
        let Some(mut offer) = self.offer.take() else { return };
        self.prepare(offer.session(), &Default::default());
        if let Err(error) = offer.publish() {
            self.summary.problem(format!("the offer to processes cannot be written: {error}"));
        }
        self.offer = Some(offer);
    }

    /// A handle that ends it.
    pub fn handle(&self) -> Handle {
        self.sockets.handle.clone()
    }

    /// What TIERCEL_SOCKET must hold for a program to attach.
    pub fn clients_path(&self) -> &Path {
        self.sockets.directory.clients_path()
    }

    /// Where requests go.
    pub fn control_path(&self) -> PathBuf {
        self.sockets.directory.control_path().to_owned()
    }

    /// The files of its sockets, and the lock that protects them from other daemons: for the
    /// broker, which removes them when this process has given up the right to.
    pub fn socket_files(&self) -> (Vec<PathBuf>, BorrowedFd<'_>) {
        self.sockets.directory.files()
    }

    /// Serves until it is requested to end; then reports.
    pub fn run(mut self) -> Result<FinalReport, DaemonError> {
        if let Some(pools) = &mut self.pools {
            let what = "cannot start the pools' thread";
            pools.start().map_err(DaemonError::io(what))?;
        }
        let preferred = self.own_memory.as_ref().map(OwnMemory::prefer);
        self.summary.problems(preferred.and_then(Result::err));
        while !self.is_stopping {
            let ready = self.sockets.wait(self.poll_timeout())?;
            self.summary.spent.wakeups += 1;
            for token in ready {
                let now_ms = self.now_ms();
                let events = self.sockets.take(token, self.pools.as_ref(), now_ms);
                events.into_iter().for_each(|event| self.events.push(event));
                self.handle_events();
            }
            self.on_time();
            self.handle_events();
        }
        Ok(self.finish())
    }

    /// How long the loop may sleep if nothing happens.
    fn poll_timeout(&self) -> Duration {
        if !self.sockets.arrivals.is_empty() {
            return ARRIVALS_LOOK;
        }
        let is_ticking = self.turns_to_tick.is_some();
        self.schedule.poll_timeout(self.now_ms(), self.has_work(), is_ticking)
    }

    /// Whether turns may have something to do.
    fn has_work(&self) -> bool {
        self.tracking.has_work() || self.turns_to_tick.is_some()
    }

    /// Milliseconds since the daemon began.
    fn now_ms(&self) -> u64 {
        self.timeline.elapsed_ns() / 1_000_000
    }

    /// This moment, on its clock and on the kernel's.
    fn now(&self) -> Now {
        let monotonic_ns = monotonic_ns();
        Now { ns: self.timeline.now().when(monotonic_ns), monotonic_ns }
    }

    /// Whether long work has waited for others so often that records wait for it now.
    fn goes_first(&self, now_ms: u64) -> bool {
        self.pauses.is_working() && self.schedule.is_tick_overdue(now_ms)
    }

    /// Turns what is due into events, and bounds connections.
    fn on_time(&mut self) {
        let now_ms = self.now_ms();
        if !self.sockets.arrivals.is_empty() {
            self.events.push(Event::Greet);
        }
        if self.has_work() && self.schedule.is_drain_due(now_ms) && !self.goes_first(now_ms) {
            if !self.pauses.is_working() {
                self.events.push(Event::Sample { is_forced: false });
            }
            self.events.push(Event::Drain);
        }
        let may_tick = self.turns_to_tick.is_none() && !self.pauses.is_working();
        if may_tick && self.schedule.is_tick_due(now_ms) {
            self.events.push(Event::Tick);
        }
        self.sockets.drop_idle(now_ms);
    }

    /// Handles what waits. What a handler completed comes first.
    fn handle_events(&mut self) {
        loop {
            let located = self.moving.take_located_births();
            let completed = self.moving.queue.collect().into_iter().map(Event::Completed);
            let completed: Vec<Event> =
                completed.chain(located.then_some(Event::BirthsLocated)).collect();
            self.events.push_first(completed.into_iter());
            if self.sockets.take_greeted(self.pools.as_ref()) {
                self.events.greet_next();
            }
            let Some(event) = self.events.take() else { return };
            self.dispatch(event);
            self.pauses.note_shown(&self.tracking.ledger, &mut self.summary.spent);
            self.events.handled();
        }
    }

    fn dispatch(&mut self, event: Event) {
        match event {
            Event::Greet => self.greet(),
            Event::ClientGone(number) => self.client_gone(number),
            Event::Drain => self.drain(),
            Event::Sample { is_forced } => self.sample(is_forced),
            Event::Tick => self.tick(),
            Event::IntervalEnd => self.end_interval(),
            Event::LookUp(stale) => self.look_up(stale),
            Event::Completed(Completion::Located { answers, took_ns }) => {
                self.moving().1.located(answers, took_ns);
                self.decide();
            }
            Event::Completed(Completion::Executed { outcomes, took_ns }) => {
                self.executed(outcomes, took_ns);
            }
            Event::BirthsLocated => self.decide(),
            Event::Request(peer, request) => {
                let line = self.reply(&request);
                self.sockets.send(peer, &line);
            }
            Event::Shutdown => self.is_stopping = true,
        }
    }

    /// The component that moves data, and the others as it needs them.
    fn moving(&mut self) -> (&mut Moving, Context<'_>) {
        let now_ms = self.now_ms();
        let Daemon { moving, tracking, sampling, tiers, summary, .. } = self;
        (moving, Context { tracking, sampling, tiers, summary, now_ms })
    }

    // ---- Clients -------------------------------------------------------------------------------

    /// Hosts some of the processes that wait, of each user one in turn.
    fn greet(&mut self) {
        for _ in 0..GREETED_AT_ONCE {
            let Some(arrival) = self.sockets.arrivals.pop() else { return };
            if self.awaits_parent(&arrival) {
                self.sockets.arrivals.push(arrival.peer.uid(), arrival);
            } else {
                self.client_hello(*arrival);
            }
        }
    }

    /// Threads read hellos, so that one of a child may come before its parent's, which was sent
    /// first.
    fn awaits_parent(&self, child: &Arrival) -> bool {
        let is_forked = child.parent_pid != 0 && child.parent_pid != child.stated_pid;
        is_forked
            && child.since.elapsed() < PARENT_WAIT
            && self.tracking.clients.parent_of(child).is_none()
    }

    /// Whether there is a place for a process. One that attaches again has the place that it had.
    fn has_place(&self, arrival: &Arrival) -> bool {
        let clients = &self.tracking.clients;
        clients.number_of(arrival.peer.pid()).is_some() || self.has_room_for(arrival.peer.uid())
    }

    /// Whether one more process of a user fits.
    fn has_room_for(&self, uid: u32) -> bool {
        let quota = Quota::new(self.config.access, self.config.clients_max);
        let clients = &self.tracking.clients;
        clients.len() < self.config.clients_max && clients.of_user(uid) < quota.clients
    }

    fn client_hello(&mut self, mut arrival: Arrival) {
        let clients = &self.tracking.clients;
        if !self.has_place(&arrival) {
            self.sockets.handshake.count_full();
            arrival.refuse_full();
            return;
        }
        if let Err(error) = arrival.check(|pid| clients.number_of(pid).is_some()) {
            self.sockets.handshake.count_lost(&error);
            arrival.refuse_changed();
            return;
        }
        if let Some(old) = self.tracking.clients.number_of(arrival.peer.pid()) {
            // The same process attaches again: after an exec, or because it gave up on a stalled
            // daemon.
            self.detach(old, self.last_units());
            self.summary.clients.replaced += 1;
        }
        let user = arrival.peer.uid();
        let parent = self.tracking.clients.parent_of(&arrival);
        let (number, pid) = (self.tracking.clients.take_number(), arrival.peer.pid());
        let born = self.tracking.add_process(pid, parent, user);
        let watched = self.sockets.watch_client(number, arrival.peer.pidfd());
        let ready = born.map_err(|error| error.to_string());
        if let Err(problem) = ready.and(watched.map_err(|error| error.to_string())) {
            self.summary.problem(problem);
            self.tracking.ledger.process_exited(pid);
            arrival.refuse_full();
            return;
        }
        let now_ms = self.now_ms();
        let offered = self.offer.as_mut().map(|offer| &*offer.session());
        let early = births::early(&arrival.session, offered);
        // Nodes may have filled up since the last decision, which needs a client.
        self.choose_placer();
        self.prepare(&mut arrival.session, &early);
        let queue = &self.moving.queue;
        if let Some(self_movers) = queue.self_movers() {
            let line = arrival.session.move_line();
            let known = self.remote_users.of(user, Instant::now());
            self_movers.came(pid, Hosted::new(pid, line, known, queue.refusals.clone()));
        }
        arrival.welcome(number);
        let Tracking { clients, ledger, .. } = &self.tracking;
        births::make_room(&self.tiers, clients, ledger, self.tracking.peak_bytes());
        self.attach(arrival, number, parent, now_ms);
    }

    /// Writes all that a process finds in its control page when it is welcomed.
    fn prepare(&mut self, session: &mut Session, early: &Early) {
        session.set_clock(self.clock_source);
        let Tracking { clients, ledger, .. } = &self.tracking;
        let peak_bytes = self.tracking.peak_bytes();
        births::welcome(session, &self.tiers, clients, ledger, peak_bytes, early);
        session.set_spaces(self.tiers.arenas_of_spaces());
        let is_planned = self.moving.plan.as_ref().is_some_and(|plan| !plan.is_prior());
        if is_planned || self.tracking.recording.is_some() {
            session.set_numbered_births(NUMBERED_BIRTHS);
        }
        if let Some(Err(error)) = self.moving.plan.as_ref().map(|plan| plan.welcome(session)) {
            self.summary.problem(error.to_string());
        }
        session.set_backing(self.config.backing);
        if let Some(terms) = self.sampling.probe() {
            session.set_probe(&terms);
        }
    }

    fn attach(&mut self, mut arrival: Arrival, number: u32, parent: Option<u32>, now_ms: u64) {
        self.sampling.client_came(number, std::mem::take(&mut arrival.userfaultfds));
        let allowance = self.tracking.clients.site_allowance(arrival.peer.uid());
        let mut client = Client::new(arrival, number, allowance, now_ms);
        let fast = |node: &&NodeId| self.tiers.is_fast(**node);
        client.heads = Heads::of(self.tiers.arenas.iter().take_while(fast).count());
        client.misses = self.sampling.probe().map(|_| Misses::default());
        self.moving.queue.came(Arc::clone(&client.peer));
        self.sockets.handshake.came(client.pid, client.user);
        self.tracking.insert(client, parent, now_ms);
        self.summary.clients.attached += 1;
        self.schedule.drain_soon(now_ms);
        self.schedule.hasten(now_ms);
    }

    /// A client has ended: its last records are taken in its user's turns.
    fn client_gone(&mut self, number: u32) {
        if self.sampling.is_watched(number) {
            self.drain_samples();
        }
        if let Some(client) = self.tracking.clients.get(number) {
            self.sockets.forget_client(client.peer.pidfd());
        }
        self.tracking.clients.leave(number);
        self.schedule.drain_now(self.now_ms());
    }

    /// Units for the last records of a client that another process replaces: they cannot wait for
    /// its user's turn.
    fn last_units(&self) -> usize {
        match self.config.access {
            Access::Owner => usize::MAX,
            Access::AllUsers => TURN_UNITS,
        }
    }

    /// Detaches the clients that are no longer what attached, before anything looks at their
    /// memory.
    fn detach_changed(&mut self) {
        for number in pieces::changed(self) {
            self.detach(number, self.last_units());
        }
    }

    /// Takes what a client left in its rings, keeps what its sites did, and forgets it.
    fn detach(&mut self, number: u32, units: usize) {
        let now_ms = self.now_ms();
        let timeline = self.timeline;
        self.tracking.drain_last(number, &mut self.moving.queue, &timeline, units);
        if self.sampling.probe().is_some() {
            self.take_misses();
            self.drain_samples();
        }
        self.attribute();
        self.final_snapshot(number);
        let Some(client) = self.tracking.remove(number, now_ms) else { return };
        self.sockets.handshake.left(client.pid);
        // The broker holds its pidfd for a moment longer, which would be ready all that time.
        self.sockets.forget_client(client.peer.pidfd());
        self.summary.add_client(&client);
        if let Some(reason) = client.session.header().detached {
            self.summary.detached(reason);
        }
        if let Some(plan) = &mut self.moving.plan {
            plan.client_left(&client);
        }
        self.sampling.client_left(&client);
        self.tracking.ledger.process_exited(client.pid);
        self.moving.queue.gone(client.pid);
    }

    /// Scans what fits of a leaving client, if samples hit its objects.
    fn final_snapshot(&mut self, number: u32) {
        let clients = &self.tracking.clients;
        if !clients.get(number).is_some_and(|client| client.uses.were_sampled()) {
            return;
        }
        if clients.len() == 1 {
            // Objects born since the last tick have no rows yet. The interval of other clients must
            // not be cut short.
            let now_ms = self.now_ms();
            self.tracking.close_interval(now_ms);
        }
        pieces::scan_fit(self);
    }

    // ---- Records and samples -------------------------------------------------------------------

    /// One turn of all users, and what programs announced in their records.
    fn drain(&mut self) {
        let now_ms = self.timeline.look().ms();
        let (began_ns, timeline) = (cpu::thread_ns(), self.timeline);
        let turn = self.tracking.turn(&mut self.moving.queue, &timeline);
        self.take_misses();
        let took_ns = cpu::since_ns(began_ns);
        self.summary.spent.records_ns += took_ns;
        self.attribute();
        let has_more = turn.has_more || turn.gone.len() > FORGOTTEN_AT_ONCE;
        turn.gone.into_iter().take(FORGOTTEN_AT_ONCE).for_each(|number| self.detach(number, 0));
        let (moving, mut context) = self.moving();
        let has_new_rows = moving.rematch_plan(&mut context);
        moving.follow_phases(&mut context);
        if has_new_rows {
            self.renew_offer();
        }
        let (began_ns, purpose) = (cpu::thread_ns(), self.purpose());
        let Tracking { clients, ledger, .. } = &self.tracking;
        let problems = self.sampling.attach_due(clients, ledger, purpose, now_ms);
        self.summary.problems(problems);
        self.summary.spent.samples_ns += cpu::since_ns(began_ns);
        self.adopt_children();
        self.tracking.look_at_memory(false, now_ms);
        let (began_ms, now_ms) = (now_ms, self.now_ms());
        self.schedule.drained(turn.fullest, has_more, took_ns, (began_ms, now_ms));
        self.sampling.wanted_ms().into_iter().for_each(|due_ms| self.schedule.drain_by(due_ms));
        self.end_tick(has_more, now_ms);
    }

    /// Ends a tick that has begun when all is drained, or after so many turns: who floods the loop
    /// delays no decision for longer.
    fn end_tick(&mut self, has_more: bool, now_ms: u64) {
        match self.turns_to_tick {
            None => {}
            Some(turns) if has_more && turns > 1 && !self.schedule.is_tick_overdue(now_ms) => {
                self.turns_to_tick = Some(turns - 1);
            }
            Some(_) => {
                self.turns_to_tick = None;
                self.tracking.tick();
                self.events.push_first([Event::IntervalEnd].into_iter());
            }
        }
    }

    fn sample(&mut self, is_forced: bool) {
        let now_ms = self.now_ms();
        let is_due = self.sampling.is_drain_due(now_ms);
        if is_due && self.sampling.touches_processes() {
            self.detach_changed();
        }
        if is_due || is_forced {
            self.drain_samples();
        }
        if is_due {
            self.tracking.note_untracked();
            self.sampling.drained(now_ms);
        }
    }

    /// Takes what the sampler saw into the ledger. A sample waits there until its process's rings
    /// were drained past its time.
    fn drain_samples(&mut self) {
        let (now, began_ns) = (self.now(), cpu::thread_ns());
        let Some((drained, samples)) = self.sampling.drain(now) else {
            self.tracking.ledger.forget_before(now.ns);
            return;
        };
        self.summary.samples.lost += drained.lost;
        self.summary.samples.throttled += drained.throttled;
        self.summary.samples.blind += drained.blind;
        self.tracking.end_round();
        self.tracking.observe(samples);
        self.summary.spent.samples_ns += cpu::since_ns(began_ns);
        self.attribute();
        self.tracking.ledger.forget_before(drained.complete_ns);
    }

    /// The sampler learns of what compiled code reported, if that is asked.
    fn take_misses(&mut self) {
        if self.sampling.probe().is_none() {
            return;
        }
        let (misses, lost) = self.tracking.take_misses();
        self.sampling.reported(&misses, lost);
    }

    /// Attributes the samples whose time has come.
    fn attribute(&mut self) {
        let began_ns = cpu::thread_ns();
        self.tracking.attribute(self.moving.plan.as_mut(), &self.tiers);
        self.summary.spent.samples_ns += cpu::since_ns(began_ns);
    }

    fn purpose(&self) -> Purpose {
        let is_scarce = self.tracking.live_bytes() > self.fast_budget_bytes();
        let is_real = self.tiers.arenas.len() > 1 && !self.moving.queue.is_modelled();
        let is_recording = self.tracking.recording.is_some();
        Purpose { is_scarce, is_real, is_recording }
    }

    // ---- Ticks and decisions -------------------------------------------------------------------

    /// Begins a tick: everything is drained, within some turns, then the interval ends.
    fn tick(&mut self) {
        self.tracking.clients.iter().for_each(|client| client.session.mark_births());
        self.turns_to_tick = Some(TICK_TURNS_MAX);
        let first = [Event::Sample { is_forced: true }, Event::Drain];
        self.events.push_first(first.into_iter());
    }

    fn end_interval(&mut self) {
        let (now_ms, began_ns) = (self.now_ms(), cpu::thread_ns());
        let paused_ns = self.pauses.since_ns(0);
        self.work(|work| work.make_rows_of_fresh());
        self.tracking.ledger.fit_extents(self.fast_budget_bytes());
        self.tracking.close_interval(now_ms);
        let Tracking { clients, ledger, .. } = &self.tracking;
        if !clients.is_empty() {
            self.summary.budget.used_bytes = births::fast_used_bytes(&self.tiers, clients, ledger);
        }
        self.detach_changed();
        let stale = pieces::scan(self, now_ms);
        let paused_ns = self.pauses.since_ns(paused_ns);
        let took_ns = cpu::since_ns(began_ns).saturating_sub(paused_ns);
        self.summary.spent.ledger_ns += took_ns;
        self.pace(Duration::from_nanos(took_ns), now_ms);
        self.watch_all(now_ms);
        self.tracking.look_at_memory(true, now_ms);
        // A recorded program keeps all memory where it and the kernel put it.
        if self.tracking.recording.is_none() {
            self.events.push_first([Event::LookUp(stale)].into_iter());
        }
    }

    /// Ticks are short while nothing is known, and lengthen as time passes, or at once where there
    /// is nothing to decide.
    fn pace(&mut self, took: Duration, now_ms: u64) {
        let (varies, purpose) = (self.config.policy.ticks_vary(), self.purpose());
        let is_idle = varies && !purpose.is_scarce && !purpose.is_recording;
        let late_ms = self.schedule.ticked(took, is_idle, now_ms);
        if varies {
            self.tracking.ledger.expect_tick_in(self.schedule.tick_every_ms());
        }
        self.summary.spent.ticked(late_ms, self.config.tick_ms);
    }

    /// Gives the sampler what lives, and the rate that suffices for it.
    fn watch_all(&mut self, now_ms: u64) {
        let (began_ns, purpose) = (cpu::thread_ns(), self.purpose());
        let Tracking { clients, ledger, recording, .. } = &self.tracking;
        self.sampling.watch_all(clients, ledger, purpose, now_ms);
        if recording.is_none() && !self.moving.queue.is_modelled() {
            let (extents, _) = ledger.extent_totals();
            self.sampling.set_sufficient_rate(extents, self.schedule.tick_every_ms());
        }
        self.summary.spent.samples_ns += cpu::since_ns(began_ns);
    }

    /// Has the mover look up where new and stale extents are; a decision follows.
    fn look_up(&mut self, stale: Vec<Range>) {
        if self.moving.queue.is_modelled() {
            self.work(|work| work.locate_modelled());
        }
        let (moving, mut context) = self.moving();
        if moving.look_up(stale, &mut context) {
            self.decide();
        }
    }

    /// Decides what moves and where births go.
    fn decide(&mut self) {
        let (moving, context) = self.moving();
        if !moving.needs_policy() {
            moving.divide_budget(&context);
            return;
        }
        let (plan, clients) = (&mut self.moving.plan, &mut self.tracking.clients);
        let problems = plan.as_mut().map(|plan| plan.judge(clients));
        self.summary.problems(problems.into_iter().flatten());
        let placed = plan.as_ref().map(|plan| plan.placed_sites(clients)).unwrap_or_default();
        let Some(decision) = pieces::decision(self, placed) else { return };
        self.summary.add_decision(&decision);
        self.choose_placer();
        let (moving, mut context) = self.moving();
        if moving.has_active_plan() {
            moving.divide_budget(&context); // the plan places births, in the memory that is left
        } else {
            moving.apply_births(&decision.births, &mut context);
        }
        if !decision.moves.is_empty() {
            moving.submit(decision.moves, None, &mut context);
        }
    }

    /// Leaves births to the kernel, or counts them against the budget, whichever limits them now.
    fn choose_placer(&mut self) {
        let Daemon { tiers, tracking, .. } = self;
        let used_bytes = births::fast_used_bytes(tiers, &tracking.clients, &tracking.ledger);
        if tiers.choose_placer(used_bytes, tracking.peak_bytes()) {
            tracking.clients.iter().for_each(|client| tiers.name_placer(&client.session));
            self.renew_offer();
        }
    }

    fn executed(&mut self, outcomes: Vec<Outcome>, took_ns: u64) {
        if let Some(decisions) = &mut self.decisions {
            outcomes.iter().for_each(|outcome| decisions.outcome(outcome));
        }
        self.work(|work| work.note_outcomes(outcomes));
        let (moving, mut context) = self.moving();
        moving.executed(took_ns, &mut context);
    }

    fn fast_budget_bytes(&self) -> u64 {
        self.tiers.fast_budget_bytes(self.tracking.peak_bytes())
    }

    // ---- Answers -------------------------------------------------------------------------------

    /// The line that answers a request.
    fn reply(&mut self, request: &Request) -> Vec<u8> {
        match self.answer(request) {
            Ok(answer) => answer_line(&answer),
            Err(refusal) => error_line(refusal),
        }
    }

    fn answer(&mut self, request: &Request) -> Result<Answer, &'static str> {
        Ok(match request {
            Request::Status => Answer::Status(Box::new(self.status())),
            Request::Sites { by, limit } => {
                pieces::scan_fit(self);
                let (rows, _) = self.tracking.judged_rows(&self.tiers);
                Answer::Sites(SiteRows::of(rows, *by, *limit))
            }
            Request::Processes { limit } => Answer::Processes(self.tracking.process_rows(*limit)),
            Request::Moves { limit } => Answer::Moves(self.moving.queue.log.last(*limit)),
            Request::Budget { fast } => {
                self.tiers.budget = *fast;
                self.choose_placer();
                self.renew_offer();
                Answer::Budget(fast.to_string())
            }
            Request::Why { .. } => return Err(NOT_BY_PAGE),
            Request::Metrics => Answer::Metrics(prometheus(&self.status())),
            Request::Stop => {
                self.is_stopping = true;
                Answer::Stop
            }
        })
    }

    /// All figures now.
    fn status(&self) -> Summary {
        let mut summary = self.summary.clone();
        summary.elapsed_ms = self.now_ms();
        summary.clients.refused = self.sockets.refused();
        self.tracking.add_to(&mut summary);
        if let Some(Ok(counts)) = self.offer.as_ref().map(Offer::counts) {
            summary.clients.counted(counts);
        }
        self.moving.add_to(&mut summary, &self.tracking);
        summary.budget = BudgetState {
            fast: self.tiers.budget.to_string(),
            fast_bytes: self.fast_budget_bytes(),
            ..summary.budget
        };
        summary.ranking = self.tracking.clients.ranking();
        summary.pools = self.pools.as_ref().map(Pools::state).unwrap_or_default();
        // The modelled mover works on this thread.
        let is_modelled = self.moving.queue.is_modelled();
        let of_mover_ns = if is_modelled { 0 } else { summary.spent.mover_ns };
        summary.spent.cpu_ns = cpu::thread_ns() + of_mover_ns;
        summary.spent.theirs_ns = self.sampling.program_ns();
        summary
    }

    /// Drains once more, detaches all clients, and reports.
    fn finish(mut self) -> FinalReport {
        // Programs said hello and did not wait.
        while self.sockets.take_last(self.pools.as_ref()) {
            self.events.push(Event::Greet);
            self.handle_events();
        }
        self.drain_samples();
        for number in self.tracking.clients.numbers() {
            if let Some(client) = self.tracking.clients.get(number) {
                client.session.detach();
            }
            self.detach(number, usize::MAX);
        }
        let now_ms = self.now_ms();
        self.tracking.ledger.tick(now_ms);
        self.tracking.finish_looking();
        if self.tracking.learning.as_ref().is_some_and(Learning::is_over) {
            self.summary.problem("more sites were used than are learned of".to_owned());
        }
        let (sites, ranking) = self.tracking.judged_rows(&self.tiers);
        let summary = Summary { ranking, ..self.status() };
        let machine = self.tiers.machine;
        let learned = self
            .tracking
            .learning
            .map(|learning| learning.finish(summary.elapsed_ms, summary.objects.peak_bytes));
        let profile = self.tracking.recording.map(|record| record.finish(machine, &summary));
        FinalReport { summary, sites, learned, profile: profile.map(Box::new) }
    }
}
