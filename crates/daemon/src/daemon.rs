//! The daemon: one thread, one loop, which passes events to the components that own the state.
//! In: a [`DaemonConfig`] and its [`Parts`]. Out: a [`FinalReport`]. Prints nothing.
//!
//! ```text
//! sockets, pidfds, eventfds --> Poller --+
//!                               clock ---+--> EventQueue --> dispatch --> Clients, Sampling,
//!                   completed moves -----+                   Decisions, MoveQueue, PlanRunner
//! ```
//!
//! Handlers never dispatch. Work that they start completes as an event, queued ahead of all others.
//! Long, because it is the one place where the components meet.

use crate::answer::{Answer, Objects};
use crate::births;
use crate::clients::client::Client;
use crate::clients::fit::FitScan;
use crate::clients::table::{Clients, Consumers};
use crate::config::DaemonConfig;
use crate::cpu;
use crate::decisions::Decisions;
use crate::event::{Event, EventQueue};
use crate::metrics::prometheus;
use crate::moves::queue::{Answer as Located, Completion, MoveQueue, PhaseEntry};
use crate::moves::remote::Hosted;
use crate::net::arrival::{Admission, Arrival, Greeted, PoolRequest};
use crate::net::control::Control;
use crate::net::handshake::Handshake;
use crate::net::poller::{Interest, Poller, Token};
use crate::net::protocol::{Request, answer_line};
use crate::net::socket_dir::{Access, SocketDir};
use crate::observe::recording::Recording;
use crate::observe::residency::{ResidencyScan, count_live, take_unlocated};
use crate::observe::sampling::{Purpose, Sampling};
use crate::parts::{DaemonError, Handle, Parts};
use crate::plan::objects::current_phase;
use crate::plan::runner::{Entered, PlanRunner};
use crate::pools::{self, Pools};
use crate::quota::Quota;
use crate::schedule::Schedule;
use crate::summary::{BudgetState, FinalReport, Summary, refused};
use crate::tiers::{Tiers, Treatment};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tiercel_ledger::movement::{Move, Outcome};
use tiercel_ledger::{Ledger, Range};
use tiercel_mover::Errno;
use tiercel_wire::{AccessKind, Backing, Session};

/// Large objects of one site that a profile and a plan distinguish: H2M's multi-phase benchmark has
/// 30, and `hotcold` of the experiment `movers` has 96.
const NUMBERED_BIRTHS: u32 = 128;

/// A daemon that is ready to run.
pub struct Daemon {
    config: DaemonConfig,
    tiers: Tiers,
    ledger: Ledger,
    clients: Clients,
    sampling: Sampling,
    queue: MoveQueue,
    decisions: Decisions,
    plan: Option<PlanRunner>,
    /// `None`: nothing is recorded.
    recording: Option<Recording>,
    residency: ResidencyScan,
    fit: FitScan,
    schedule: Schedule,
    events: EventQueue,
    /// The modelled mover located new objects while a handler ran: a decision follows it.
    has_located_births: bool,
    is_stopping: bool,
    summary: Summary,
    poller: Poller,
    handshake: Handshake,
    control: Control,
    /// `None`: this daemon has no pools.
    pools: Option<Pools>,
    handle: Handle,
    began: Instant,
    // Last: its files are removed after everything else is closed.
    socket_dir: SocketDir,
}

impl Daemon {
    /// Claims its sockets and opens everything it needs. It serves no client before
    /// [`Daemon::run`].
    pub fn new(mut config: DaemonConfig, parts: Parts) -> Result<Daemon, DaemonError> {
        let io = DaemonError::io;
        let socket_dir = SocketDir::claim(&config.directory, &config.name, config.access)?;
        let poller = Poller::new().map_err(io("cannot make an epoll instance"))?;
        let uid = rustix::process::geteuid().as_raw();
        let dup = |fd: &OwnedFd| fd.try_clone().map_err(io("cannot duplicate a socket"));
        let admission = admission(config.access, uid);
        let handshake =
            Handshake::new(dup(&socket_dir.clients)?, admission, parts.identity, &poller)
                .map_err(io("cannot wait for clients"))?;
        let control = Control::new(dup(&socket_dir.control)?, uid, &poller)
            .map_err(io("cannot wait for requests"))?;
        let handle = Handle::new().map_err(io("cannot make an eventfd"))?;
        poller
            .add(handle.eventfd(), Token::Wake, Interest::Read)
            .map_err(io("cannot wait for a wake-up"))?;
        let summary = Summary::of(&parts.machine, parts.sampler.as_deref(), parts.mover.as_ref());
        let queue = MoveQueue::new(parts.mover).map_err(io("cannot start the mover's thread"))?;
        if let Some(fd) = queue.eventfd() {
            poller.add(fd, Token::Wake, Interest::Read).map_err(io("cannot wait for the mover"))?;
        }
        let treatment = Treatment {
            is_modelled: queue.is_modelled(),
            has_plan: config.plan.is_some(),
            is_recorded: config.record.is_some(),
        };
        let name = parts.machine.name.clone();
        let tiers =
            Tiers::new(parts.machine, config.fast, treatment).ok_or(DaemonError::NoTier(name))?;
        let mut ledger = Ledger::new(config.ledger.clone(), 0)?;
        if !treatment.is_modelled {
            // The modelled mover learns of births one by one; real memory is assumed to be on the
            // node of its arena.
            ledger.set_arenas(&tiers.arenas.iter().copied().map(Some).collect::<Vec<_>>());
        }
        let sampler = parts.sampler.as_deref();
        let recording = config.record.map(|config| Recording::new(config, sampler, &mut ledger));
        let plan = config.plan.clone().map(|plan| PlanRunner::new(plan, &tiers, &config.symbols));
        if plan.as_ref().is_some_and(PlanRunner::has_stops) {
            // Programs wait at phase entries: their rings are drained as often as may be.
            config.poll_max_ms = config.poll_min_ms;
        }
        Ok(Daemon {
            decisions: Decisions::new(config.policy.clone())?,
            pools: Pools::start(&config.pools).map_err(io("cannot start the pools' thread"))?,
            schedule: Schedule::new(&config),
            sampling: Sampling::new(parts.sampler),
            clients: Clients::new(),
            residency: ResidencyScan::default(),
            fit: FitScan::default(),
            events: EventQueue::default(),
            has_located_births: false,
            is_stopping: false,
            began: Instant::now(),
            config,
            tiers,
            ledger,
            queue,
            plan,
            recording,
            summary,
            poller,
            handshake,
            control,
            handle,
            socket_dir,
        })
    }

    /// A handle that ends it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// What TIERCEL_SOCKET must hold for a program to attach.
    pub fn clients_path(&self) -> &Path {
        self.socket_dir.clients_path()
    }

    /// Where requests go.
    pub fn control_path(&self) -> PathBuf {
        self.socket_dir.control_path().to_owned()
    }

    /// The files of its sockets, and the lock that protects them from other daemons: for the
    /// broker, which removes them when this process has given up the right to.
    pub fn socket_files(&self) -> (Vec<PathBuf>, BorrowedFd<'_>) {
        self.socket_dir.files()
    }

    /// Serves until it is requested to end; then reports.
    pub fn run(mut self) -> Result<FinalReport, DaemonError> {
        self.bind_self_to_slowest_tier();
        while !self.is_stopping {
            let timeout = self.schedule.poll_timeout(self.now_ms(), !self.clients.is_empty());
            let tokens = self
                .poller
                .wait(timeout)
                .map_err(|error| DaemonError::Io { what: "cannot wait for events", error })?;
            self.summary.spent.wakeups += 1;
            for token in tokens {
                self.on_ready(token);
                self.handle_events();
            }
            self.on_time();
            self.handle_events();
        }
        Ok(self.finish())
    }

    /// Keeps the daemon's own memory out of the tiers it manages.
    fn bind_self_to_slowest_tier(&mut self) {
        let Some(node) = self.tiers.slowest().filter(|_| !self.queue.is_modelled()) else { return };
        match tiercel_mover::prefer_for_this_thread(node) {
            // The kernel does not have the node: the machine is a description of another one.
            Ok(()) | Err(Errno(libc::EINVAL)) => {}
            Err(errno) => self.summary.problem(format!(
                "cannot keep the daemon's own memory out of the best tier: set_mempolicy: {errno}"
            )),
        }
    }

    /// Milliseconds since the daemon began.
    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Turns a ready descriptor into events.
    fn on_ready(&mut self, token: Token) {
        let now_ms = self.now_ms();
        match token {
            Token::Clients => {
                for greeted in self.handshake.take() {
                    match greeted {
                        Greeted::Hello(arrival) => self.events.push(Event::ClientHello(arrival)),
                        Greeted::Pool(request) => self.ask_pools(request),
                    }
                }
            }
            Token::Control => self.control.accept(&self.poller, now_ms),
            Token::Client(number) => self.events.push(Event::ClientGone(number)),
            Token::Peer(id) => {
                self.control.flush(id, &self.poller);
                for request in self.control.read(id, &self.poller, now_ms) {
                    self.events.push(Event::Request(id, request));
                }
            }
            Token::Wake => {
                if self.handle.take_stop() {
                    self.events.push(Event::Shutdown);
                }
            }
        }
    }

    fn ask_pools(&self, request: PoolRequest) {
        match &self.pools {
            Some(pools) => pools.submit(request),
            None => pools::decline(&request),
        }
    }

    /// Turns what is due into events, and bounds connections.
    fn on_time(&mut self) {
        let now_ms = self.now_ms();
        if !self.clients.is_empty() && self.schedule.is_drain_due(now_ms) {
            self.events.push(Event::Drain);
            self.events.push(Event::Sample { is_forced: false });
        }
        if self.schedule.is_tick_due(now_ms) {
            self.events.push(Event::Tick);
        }
        self.control.drop_idle(now_ms);
    }

    /// Handles what waits. What a handler completed comes first.
    fn handle_events(&mut self) {
        loop {
            let located = std::mem::take(&mut self.has_located_births);
            let completed = self.queue.collect().into_iter().map(Event::MoverDone);
            let completed: Vec<Event> =
                completed.chain(located.then_some(Event::BirthsLocated)).collect();
            self.events.push_first(completed.into_iter());
            let Some(event) = self.events.take() else { return };
            self.dispatch(event);
            self.events.handled();
        }
    }

    fn dispatch(&mut self, event: Event) {
        match event {
            Event::ClientHello(arrival) => self.client_hello(*arrival),
            Event::ClientGone(number) => self.client_gone(number),
            Event::Drain => self.drain(),
            Event::Sample { is_forced } => self.sample(is_forced),
            Event::Tick => self.tick(),
            Event::IntervalEnd => self.end_interval(),
            Event::LookUp(stale) => self.look_up(stale),
            Event::MoverDone(Completion::Located { answers, took_ns }) => {
                self.located(answers, took_ns);
                self.decide();
            }
            Event::MoverDone(Completion::Executed { outcomes, took_ns }) => {
                self.executed(outcomes, took_ns);
            }
            Event::BirthsLocated => self.decide(),
            Event::Request(peer, request) => {
                let line = answer_line(&self.answer(&request));
                self.control.send(peer, &line, &self.poller);
            }
            Event::Shutdown => self.is_stopping = true,
        }
    }

    // ---- Clients -------------------------------------------------------------------------------

    fn client_hello(&mut self, mut arrival: Arrival) {
        if arrival.peer.check().is_err() {
            self.handshake.count_changed();
            arrival.refuse_changed();
            return;
        }
        if let Some(old) = self.clients.number_of(arrival.peer.pid()) {
            // The same process attaches again: after an exec, or because it gave up on a stalled
            // daemon.
            self.detach(old);
            self.summary.clients.replaced += 1;
        }
        let quota = Quota::new(self.config.access, self.config.clients_max);
        if self.clients.len() >= self.config.clients_max
            || self.clients.of_user(arrival.peer.uid()) >= quota.clients
        {
            self.handshake.count_full();
            arrival.refuse_full();
            return;
        }
        let parent = self.clients.get(arrival.parent_session).map(|parent| parent.pid);
        let (number, pid) = (self.clients.take_number(), arrival.peer.pid());
        let born = match parent {
            Some(parent) => self.ledger.process_forked(parent, pid),
            None => self.ledger.process_born(pid),
        };
        let watched = self.poller.add(arrival.peer.pidfd(), Token::Client(number), Interest::Read);
        let ready = born.map_err(|error| error.to_string());
        if let Err(problem) = ready.and(watched.map_err(|error| error.to_string())) {
            self.summary.problem(problem);
            self.ledger.process_exited(pid);
            arrival.refuse_full();
            return;
        }
        let now_ms = self.now_ms();
        self.prepare(&mut arrival.session, now_ms);
        if let Some(remote) = self.queue.remote() {
            match arrival.session.move_line() {
                Ok(line) => remote.came(pid, Hosted::new(pid, line, self.queue.refusals.clone())),
                Err(error) => self.summary.problem(format!("process {pid}: {error}")),
            }
        }
        arrival.welcome(number);
        self.attach(arrival, number, parent, now_ms);
    }

    /// Writes all that a process reads in its control page before it continues.
    fn prepare(&mut self, session: &mut Session, now_ms: u64) {
        session.set_clock_ms(now_ms);
        let peak_bytes = self.summary.objects.peak_bytes;
        births::welcome(session, &self.tiers, &self.clients, &self.ledger, peak_bytes);
        session.set_spaces(self.tiers.arenas_of_spaces());
        if self.plan.is_some() || self.recording.is_some() {
            session.set_numbered_births(NUMBERED_BIRTHS);
        }
        if let Some(Err(error)) = self.plan.as_ref().map(|plan| plan.welcome(session)) {
            self.summary.problem(error.to_string());
        }
        session.set_backing(self.config.backing);
    }

    fn attach(&mut self, mut arrival: Arrival, number: u32, parent: Option<u32>, now_ms: u64) {
        self.sampling.client_came(number, std::mem::take(&mut arrival.userfaultfds));
        let mut client = Client::new(arrival, number, now_ms);
        self.ledger.advance(now_ms);
        if let Some(recording) = &mut self.recording {
            recording.client_came(&client, parent, now_ms);
        }
        client.read_first_objects(&mut self.ledger);
        if let Some(recording) = &mut self.recording {
            recording.consume(&mut self.ledger);
        }
        self.queue.came(Arc::clone(&client.peer));
        self.clients.insert(client);
        self.summary.clients.attached += 1;
        self.schedule.drain_soon(now_ms);
    }

    fn client_gone(&mut self, number: u32) {
        if self.sampling.is_watched(number) {
            self.drain_samples();
        }
        self.detach(number);
    }

    /// Detaches the clients that are no longer what attached, before anything looks at their
    /// memory.
    fn detach_changed(&mut self) {
        for number in self.clients.changed() {
            self.detach(number);
        }
    }

    /// Takes what a client left in its rings, keeps what its sites did, and forgets it.
    fn detach(&mut self, number: u32) {
        let now_ms = self.now_ms();
        self.ledger.advance(now_ms);
        let (clients, mut consumers) = self.consumers();
        clients.drain_last(number, &mut consumers, now_ms);
        self.count_peak();
        self.final_snapshot(number);
        let Some(mut client) = self.clients.remove(number) else { return };
        count_live(&mut client, &self.ledger);
        self.summary.records.drained += client.records;
        self.summary.records.lost += client.lost;
        self.summary.records.resyncs += client.resyncs;
        if let Some(reason) = client.session.header().detached {
            self.summary.detached(reason);
        }
        if let Some(plan) = &mut self.plan {
            plan.client_left(&client);
        }
        self.clients.keep_sites(&mut client, &self.ledger);
        if let Some(recording) = &mut self.recording {
            recording.client_left(&client, &mut self.ledger, now_ms);
        }
        self.sampling.client_left(&client);
        self.ledger.process_exited(client.pid);
        self.queue.gone(client.pid);
    }

    /// Scans what fits of a leaving client, if samples hit its objects.
    fn final_snapshot(&mut self, number: u32) {
        if !self.clients.get(number).is_some_and(|client| client.uses.were_sampled()) {
            return;
        }
        if self.clients.len() == 1 {
            // Objects born since the last tick have no rows yet. The interval of other clients must
            // not be cut short.
            let now_ms = self.now_ms();
            self.decisions.close_interval(&mut self.ledger, now_ms);
        }
        self.scan_fit();
    }

    fn consumers(&mut self) -> (&mut Clients, Consumers<'_>) {
        let Daemon { clients, ledger, queue, recording, .. } = self;
        (clients, Consumers { ledger, queue, recording: recording.as_mut() })
    }

    // ---- Records and samples -------------------------------------------------------------------

    /// Drains all rings, and follows what programs announced in them.
    fn drain(&mut self) {
        let now_ms = self.now_ms();
        self.ledger.advance(now_ms);
        let began_ns = cpu::thread_ns();
        let (clients, mut consumers) = self.consumers();
        let drained = clients.drain(&mut consumers, now_ms);
        let took_ns = cpu::since_ns(began_ns);
        self.summary.spent.records_ns += took_ns;
        self.count_peak();
        self.rematch_plan();
        self.follow_phases();
        let (began_ns, purpose) = (cpu::thread_ns(), self.purpose());
        let problems = self.sampling.observe(&self.clients, &self.ledger, purpose, now_ms);
        self.summary.problems(problems);
        self.summary.spent.samples_ns += cpu::since_ns(began_ns);
        self.schedule.drained(drained.fullest, drained.has_more, took_ns, now_ms);
    }

    fn count_peak(&mut self) {
        let live_bytes = self.clients.live_bytes(&self.ledger);
        let objects = &mut self.summary.objects;
        objects.live_bytes = live_bytes;
        objects.peak_bytes = objects.peak_bytes.max(live_bytes);
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
            if let Some(recording) = &mut self.recording {
                recording.note_untracked(self.clients.iter(), &self.ledger);
            }
            self.sampling.drained(now_ms);
        }
    }

    /// Takes what the sampler saw into the ledger.
    fn drain_samples(&mut self) {
        let now_ms = self.now_ms();
        let Daemon { sampling, ledger, clients, plan, recording, tiers, summary, .. } = self;
        let began_ns = cpu::thread_ns();
        let Some((drained, samples)) = sampling.drain(now_ms) else { return };
        summary.samples.lost += drained.lost;
        summary.samples.throttled += drained.throttled;
        summary.samples.blind += drained.blind;
        for sample in samples {
            if let Some(recording) = recording {
                recording.sampled(sample);
            }
            // Not an access of its own: the read or the write of its line was sampled.
            if sample.kind == AccessKind::Dirtied {
                continue;
            }
            let Some(hit) = ledger.sample(sample) else { continue };
            if let Some(client) = clients.of_pid_mut(sample.pid) {
                client.uses.sampled(hit.site, sample);
            }
            if let Some(plan) = plan {
                plan.sampled(sample, &hit, tiers);
            }
        }
        summary.spent.samples_ns += cpu::since_ns(began_ns);
    }

    fn purpose(&self) -> Purpose {
        let exceeds = self.summary.objects.live_bytes > self.fast_budget_bytes();
        let is_real = self.tiers.arenas.len() > 1 && !self.queue.is_modelled();
        Purpose { has_choice: is_real && exceeds, is_recording: self.recording.is_some() }
    }

    // ---- Ticks and decisions -------------------------------------------------------------------

    /// Begins a tick: everything is drained, then the interval ends.
    fn tick(&mut self) {
        self.clients.iter().for_each(|client| client.session.mark_births());
        let drains = [Event::Drain, Event::Sample { is_forced: true }, Event::IntervalEnd];
        self.events.push_first(drains.into_iter());
    }

    fn end_interval(&mut self) {
        let (now_ms, began_ns) = (self.now_ms(), cpu::thread_ns());
        self.ledger.fit_extents(self.fast_budget_bytes());
        self.decisions.close_interval(&mut self.ledger, now_ms);
        self.summary.spent.ticks += 1;
        if !self.clients.is_empty() {
            self.summary.budget.used_bytes =
                births::fast_used_bytes(&self.tiers, &self.clients, &self.ledger);
        }
        self.detach_changed();
        let stale = self.scan_residency(now_ms);
        self.summary.spent.ledger_ns += cpu::since_ns(began_ns);
        self.schedule.ticked(now_ms);
        let (began_ns, purpose) = (cpu::thread_ns(), self.purpose());
        self.sampling.watch_all(&self.clients, &self.ledger, purpose, now_ms);
        if self.recording.is_none() && !self.queue.is_modelled() {
            let (extents, _) = self.ledger.extent_totals();
            self.sampling.set_sufficient_rate(extents, self.config.tick_ms);
        }
        self.summary.spent.samples_ns += cpu::since_ns(began_ns);
        // A recorded program keeps all memory where it and the kernel put it.
        if self.recording.is_none() {
            self.events.push_first([Event::LookUp(stale)].into_iter());
        }
    }

    /// Counts what lives, and finds extents whose residency is stale.
    fn scan_residency(&mut self, now_ms: u64) -> Vec<Range> {
        if !self.residency.is_due(now_ms) {
            return Vec::new();
        }
        let began = Instant::now();
        let tick_ms = self.config.tick_ms;
        let stale = self.residency.scan(&mut self.clients, &self.ledger, now_ms, tick_ms);
        self.scan_fit();
        self.residency.scanned(began.elapsed(), now_ms);
        stale
    }

    fn scan_fit(&mut self) {
        let now_ms = self.now_ms();
        if self.fit.is_due(now_ms) {
            let Daemon { fit, clients, ledger, decisions, tiers, .. } = self;
            fit.scan(clients, ledger, || decisions.best_extents(ledger, tiers), now_ms);
        }
    }

    /// Has the mover look up where new and stale extents are; a decision follows.
    fn look_up(&mut self, stale: Vec<Range>) {
        if self.queue.has_failed() {
            self.summary.problem("the mover failed: nothing moves any longer".to_owned());
            return;
        }
        if self.queue.is_busy() {
            self.summary.spent.ticks_busy += 1;
            return;
        }
        let mut wanted = self.take_births();
        wanted.extend(stale);
        if wanted.is_empty() || !self.queue.look_up(wanted) {
            self.decide();
        }
    }

    /// New extents whose residency is unknown; the modelled mover learns of them.
    fn take_births(&mut self) -> Vec<Range> {
        let born = take_unlocated(&mut self.ledger, self.queue.is_modelled());
        if self.queue.is_modelled() {
            for range in &born {
                let arena = self.ledger.find(range.pid, range.addr).and_then(|one| one.arena);
                self.queue.born(*range, arena.and_then(|arena| self.tiers.node_of(arena)));
            }
            let Daemon { plan, clients, ledger, tiers, .. } = self;
            let heads = plan.as_ref().map(|plan| plan.heads_of(clients, ledger, tiers, &born));
            for (range, node) in heads.into_iter().flatten() {
                self.queue.born(range, Some(node));
            }
        }
        born
    }

    fn located(&mut self, answers: Vec<Located>, took_ns: u64) {
        self.summary.spent.mover_ns += took_ns;
        let now_ms = self.now_ms();
        let problems = self.residency.located(&mut self.ledger, answers, took_ns, now_ms);
        self.summary.problems(problems);
    }

    /// Decides what moves and where births go.
    fn decide(&mut self) {
        if self.plan.as_ref().is_some_and(|plan| !plan.adapts()) {
            self.divide_budget();
            return;
        }
        let began_ns = cpu::thread_ns();
        let counters = self.sampling.counters();
        let Daemon { plan, clients, .. } = self;
        let problems = plan.as_mut().map(|plan| plan.judge(clients));
        self.summary.problems(problems.into_iter().flatten());
        let placed = self.plan.as_ref().map(|plan| plan.placed_sites(&self.clients));
        let placed = placed.unwrap_or_default();
        let decision = self.decisions.decide(&self.ledger, &self.tiers, counters, placed);
        self.summary.spent.policy_ns += cpu::since_ns(began_ns);
        self.summary.add_decision(&decision);
        if self.plan.as_ref().is_some_and(PlanRunner::is_active) {
            self.divide_budget(); // the plan places births, in the memory that is left
        } else {
            for births in &decision.births {
                births::apply(births, &self.tiers, &self.clients);
            }
        }
        if !decision.moves.is_empty() {
            self.submit_moves(decision.moves, None);
        }
    }

    /// Where an active plan places births, they share what the budget leaves.
    fn divide_budget(&self) {
        if self.plan.as_ref().is_some_and(PlanRunner::is_active) {
            let peak_bytes = self.summary.objects.peak_bytes;
            births::divide_budget(&self.tiers, &self.clients, &self.ledger, peak_bytes);
        }
    }

    fn fast_budget_bytes(&self) -> u64 {
        self.tiers.fast_budget_bytes(self.summary.objects.peak_bytes)
    }

    // ---- Moves ---------------------------------------------------------------------------------

    /// Submits moves, those of a phase entry or the policy's. False when the mover is busy.
    fn submit_moves(&mut self, moves: Vec<Move>, entry: Option<PhaseEntry>) -> bool {
        self.queue.announce(&moves, entry);
        self.release_moving();
        let is_taken = self.queue.submit_announced(moves);
        if !is_taken {
            self.release_moving();
            self.summary.spent.ticks_busy += 1;
        }
        is_taken
    }

    /// Processes that move their own memory need the sampler to release it.
    fn release_moving(&mut self) {
        if self.config.backing != Backing::Kernel {
            let Daemon { sampling, clients, queue, .. } = self;
            sampling.release(clients, |pid| queue.ranges_in_flight(pid));
        }
    }

    fn executed(&mut self, outcomes: Vec<Outcome>, took_ns: u64) {
        self.summary.spent.mover_ns += took_ns;
        let entry = self.queue.executed();
        self.release_moving();
        let now_ms = self.now_ms();
        for outcome in outcomes {
            self.ledger.outcome(&outcome);
            self.decisions.outcome(&outcome);
            let Move { pid, addr, .. } = outcome.asked;
            let site = self.ledger.site_at(pid, addr).filter(|site| *site != 0);
            let client = self.clients.of_pid(pid);
            let site = client.zip(site).and_then(|(client, site)| client.session.site(site));
            self.queue.log.add(now_ms, site.map_or(0, |site| site.hash), outcome);
        }
        if let Some(entry) = entry {
            self.divide_budget();
            self.complete_phase(entry);
        }
        self.submit_prefetch();
    }

    // ---- The plan ------------------------------------------------------------------------------

    /// Follows sites of rebuilt modules: what lives of those that the plan has goes where it
    /// belongs.
    fn rematch_plan(&mut self) {
        let Daemon { plan: Some(plan), clients, summary, .. } = self else { return };
        if !plan.rematch(clients) {
            return;
        }
        summary.problems(plan.publish(clients));
        for number in self.clients.numbers() {
            let Some(client) = self.clients.get(number) else { continue };
            let moves = self.moves_into(number, current_phase(&client.session), None);
            if !moves.is_empty() {
                self.submit_moves(moves, None);
            }
        }
    }

    /// Starts the moves of phases that programs entered.
    fn follow_phases(&mut self) {
        let executions = self.queue.executions();
        let Daemon { plan: Some(plan), clients, .. } = self else { return };
        for entered in plan.take_entered(clients, executions) {
            self.enter_phase(entered);
        }
    }

    fn enter_phase(&mut self, Entered { entry, phase, waits }: Entered) {
        let (number, entries) = entry;
        let moves = if waits { self.moves_into(number, phase, None) } else { Vec::new() };
        if moves.is_empty() || !self.submit_moves(moves, Some(entry)) {
            self.complete_phase(entry); // the program must not wait for moves that do not come
        } else if let Some(plan) = &mut self.plan {
            plan.phase_moves();
        }
        let next = self.plan.as_ref().and_then(|plan| plan.next_phase(phase));
        let ahead = next.map(|next| self.moves_into(number, next, Some(phase)));
        if let Some(plan) = &mut self.plan {
            plan.prefetch().plan(number, entries, ahead.unwrap_or_default());
        }
        self.submit_prefetch();
    }

    /// What of a client belongs elsewhere in a phase; with `during`, what may move during that one.
    fn moves_into(&mut self, number: u32, phase: u64, during: Option<u64>) -> Vec<Move> {
        // What was born since the last tick has rows from now on.
        let now_ms = self.now_ms();
        self.decisions.close_interval(&mut self.ledger, now_ms);
        self.locate_births();
        let Daemon { plan: Some(plan), clients, ledger, tiers, .. } = self else {
            return Vec::new();
        };
        let client = clients.get_mut(number);
        client.map_or(Vec::new(), |client| plan.moves_into(client, ledger, tiers, phase, during))
    }

    /// The modelled mover moves only what it knows: it learns of all that lives.
    fn locate_births(&mut self) {
        if !self.queue.is_modelled() {
            return;
        }
        let born = self.take_births();
        if born.is_empty() {
            return;
        }
        if let Some((answers, took_ns)) = self.queue.look_up_now(born) {
            self.located(answers, took_ns);
            self.has_located_births = true;
        }
    }

    /// Lets a program continue that waits at a phase entry.
    fn complete_phase(&self, (number, entries): PhaseEntry) {
        if let Some(client) = self.clients.get(number) {
            client.session.set_phase_done(entries);
        }
    }

    /// Submits one job of moves for the next phase when the mover has nothing to do.
    fn submit_prefetch(&mut self) {
        if self.queue.executions() > 0 {
            return;
        }
        let Daemon { plan: Some(plan), clients, .. } = self else { return };
        let Some(job) = plan.prefetch().take_job(clients) else { return };
        let bytes = job.iter().map(|one| one.bytes).sum();
        if self.submit_moves(job, None)
            && let Some(plan) = &mut self.plan
        {
            plan.prefetch().submitted(bytes);
        }
    }

    // ---- Answers -------------------------------------------------------------------------------

    fn answer(&mut self, request: &Request) -> Answer {
        match request {
            Request::Status => Answer::Status(Box::new(self.status())),
            Request::Objects { by, limit } => {
                self.scan_fit();
                let fast_bytes = self.fast_budget_bytes();
                let rows = self.clients.site_rows(&self.ledger, fast_bytes);
                Answer::Objects(Objects::of(rows, *by, *limit))
            }
            Request::Moves { limit } => Answer::Moves(self.queue.log.last(*limit)),
            Request::Budget { fast } => {
                self.tiers.budget = *fast;
                Answer::Budget(fast.to_string())
            }
            Request::Metrics => Answer::Metrics(prometheus(&self.status())),
            Request::Stop => {
                self.is_stopping = true;
                Answer::Stop
            }
        }
    }

    /// All figures now.
    fn status(&self) -> Summary {
        let mut summary = self.summary.clone();
        summary.elapsed_ms = self.now_ms();
        summary.clients.now = self.clients.len() as u64;
        summary.clients.refused = refused(&self.handshake.refused(), self.control.refused);
        for client in self.clients.iter() {
            summary.records.drained += client.records;
            summary.records.lost += client.lost;
            summary.records.resyncs += client.resyncs;
        }
        summary.add_ledger(&self.ledger);
        summary.moves = self.queue.log.totals.clone();
        summary.moves.own_refused_bytes = self.queue.refusals.bytes();
        summary.budget = BudgetState {
            fast: self.tiers.budget.to_string(),
            fast_bytes: self.fast_budget_bytes(),
            used_bytes: summary.budget.used_bytes,
        };
        summary.pools = self.pools.as_ref().map(Pools::state).unwrap_or_default();
        summary.plan = self.plan.as_ref().map(|plan| plan.summary(&self.clients));
        // The modelled mover works on this thread.
        let of_mover_ns = if self.queue.is_modelled() { 0 } else { summary.spent.mover_ns };
        summary.spent.cpu_ns = cpu::thread_ns() + of_mover_ns;
        if let Some(sampler) = self.sampling.sampler() {
            let theirs_ns = sampler.cost().program_cpu.as_nanos();
            summary.spent.theirs_ns = u64::try_from(theirs_ns).unwrap_or(u64::MAX);
        }
        summary
    }

    /// Drains once more, detaches all clients, and reports.
    fn finish(mut self) -> FinalReport {
        self.drain_samples();
        for number in self.clients.numbers() {
            if let Some(client) = self.clients.get(number) {
                client.session.detach();
            }
            self.detach(number);
        }
        let now_ms = self.now_ms();
        self.ledger.tick(now_ms);
        let summary = self.status();
        let sites = self.clients.site_rows(&self.ledger, summary.budget.fast_bytes);
        let machine = self.tiers.machine;
        let profile = self.recording.map(|recording| recording.finish(machine, &summary));
        FinalReport { summary, sites, profile: profile.map(Box::new) }
    }
}

/// Whose processes may attach to a daemon of user `uid`.
fn admission(access: Access, uid: u32) -> Admission {
    match access {
        Access::Owner => Admission::User(uid),
        Access::AllUsers => Admission::AllUsers,
    }
}
