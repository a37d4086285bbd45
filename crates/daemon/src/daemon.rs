//! The daemon: one thread, one loop, all state.
//! In: a [`DaemonConfig`] and its [`Parts`]. Out: a [`Farewell`]. Prints nothing.
//!
//! ```text
//! sockets, pidfds, eventfds --> Poller --> Event --> dispatch() --> ledger, policy, hands, desk
//!                                clock --^             (tick.rs, decide.rs, answer.rs)
//! ```

use crate::clients::client::Client;
use crate::clients::sites::Sites;
use crate::config::DaemonConfig;
use crate::event::Event;
use crate::moves::log::MoveLog;
use crate::moves::queue::Hands;
use crate::moves::remote::Hosted;
use crate::net::control::Desk;
use crate::net::handshake::{Arrival, Greeter, Guests};
use crate::net::poller::{Interest, Poller, Token};
use crate::net::socket_dir::{Access, Place, PlaceError};
use crate::observe::recording::Recording;
use crate::observe::sampling::Watch;
use crate::plan::runner::Planned;
use crate::pools::{self, Pools};
use crate::summary::{Farewell, Summary};
use rustix::event::{EventfdFlags, eventfd};
use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tiercel_ledger::{Ledger, Range};
use tiercel_machine::{Machine, NodeId, Room};
use tiercel_mover::{Errno, Mover};
use tiercel_policy::{Interval, Policy};
use tiercel_sampler::Sampler;
use tiercel_wire::{Record, Sample};

/// Longest the loop sleeps when there is nothing to do, milliseconds.
const IDLE_MS: u64 = 500;

/// The parts a daemon works with; tests bring their own.
pub struct Parts {
    /// The machine, real or on paper.
    pub machine: Machine,
    /// What sees accesses; `None`: nothing works here, objects are still tracked.
    pub sampler: Option<Box<dyn Sampler>>,
    /// What executes moves.
    pub mover: Box<dyn Mover + Send>,
}

/// Why a daemon did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// No place for its sockets.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The ledger refuses its settings.
    #[error(transparent)]
    Ledger(#[from] tiercel_ledger::LedgerError),
    /// The policy refuses its settings.
    #[error("policy: {0}")]
    Policy(String),
    /// The machine has no memory to place anything in.
    #[error("the machine {0} has no tier with memory; check it with `tiercel topo`")]
    NoTier(String),
    /// The kernel refused something elementary.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        error: std::io::Error,
    },
}

/// Ends a running daemon from another thread.
#[derive(Clone)]
pub struct Handle {
    stop: Arc<AtomicBool>,
    wake: Arc<OwnedFd>,
}

impl Handle {
    /// Asks the daemon to end: it drains once more and leaves in an orderly way.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        // Fails only when the counter is full, and then it is readable.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

/// A daemon that is ready to run.
pub struct Daemon {
    pub(crate) config: DaemonConfig,
    pub(crate) machine: Machine,
    /// Nodes of the best tier.
    pub(crate) fast: Vec<NodeId>,
    /// Nodes of the arenas that programs allocate in, best tier first; empty: one kind of memory.
    pub(crate) arenas: Vec<NodeId>,
    pub(crate) ledger: Ledger,
    pub(crate) policy: Policy,
    pub(crate) hands: Hands,
    /// What the mover is at, by job, the oldest first.
    pub(crate) moving: VecDeque<Vec<Range>>,
    pub(crate) sampler: Option<Box<dyn Sampler>>,
    /// By session number.
    pub(crate) clients: BTreeMap<u32, Client>,
    /// Session number of each process.
    pub(crate) numbers: HashMap<u32, u32>,
    pub(crate) sites: Sites,
    pub(crate) moves: MoveLog,
    pub(crate) planned: Option<Planned>,
    /// Phase entries that were not told, of clients that have left.
    pub(crate) phases_lost: u64,
    pub(crate) summary: Summary,
    /// Looked at where a decision needs it.
    pub(crate) room: OnceCell<Room>,
    pub(crate) poller: Poller,
    pub(crate) greeter: Greeter,
    pub(crate) desk: Desk,
    /// `None`: this daemon has no pools.
    pub(crate) pools: Option<Pools>,
    pub(crate) pace: Pace,
    pub(crate) records: Vec<Record>,
    pub(crate) samples: Vec<Sample>,
    /// `None`: nothing is recorded.
    pub(crate) recording: Option<Recording>,
    handle: Handle,
    next_number: u32,
    began: Instant,
    // Last: its files go away after everything else is closed.
    place: Place,
}

/// When things are due, milliseconds on the daemon's clock.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    pub(crate) drain_due_ms: u64,
    pub(crate) drain_every_ms: u64,
    pub(crate) tick_due_ms: u64,
    /// What lives is counted again no sooner than this: counting may cost 1% of the time.
    pub(crate) look_due_ms: u64,
    /// Where memory is that was looked at before is looked at again no sooner than this.
    pub(crate) refresh_due_ms: u64,
    pub(crate) sample_due_ms: u64,
    /// What fits is found out again no sooner than this.
    pub(crate) fits_due_ms: u64,
    /// What passed since the last decision.
    pub(crate) undecided: Interval,
    pub(crate) stopping: bool,
}

impl Daemon {
    /// Takes its place and opens everything it needs; nobody is served before [`Daemon::run`].
    pub fn new(config: DaemonConfig, parts: Parts) -> Result<Daemon, DaemonError> {
        let io = |what| move |error| DaemonError::Io { what, error };
        let place = Place::take(&config.directory, &config.name, config.access)?;
        let poller = Poller::new().map_err(io("cannot make an epoll instance"))?;
        let uid = rustix::process::geteuid().as_raw();
        let dup = |fd: &OwnedFd| fd.try_clone().map_err(io("cannot duplicate a socket"));
        let greeter = Greeter::new(dup(&place.clients)?, guests(config.access, uid), &poller)
            .map_err(io("cannot wait for clients"))?;
        let desk = Desk::new(dup(&place.control)?, uid, &poller)
            .map_err(io("cannot wait for requests"))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = Arc::new(wake.map_err(|e| io("cannot make an eventfd")(e.into()))?);
        poller.add(&*wake, Token::Wake, Interest::Read).map_err(io("cannot wait for a wake-up"))?;
        let (modelled, mover_note) = (parts.mover.is_modelled(), parts.mover.note());
        let hands = Hands::new(parts.mover).map_err(io("cannot start the mover's thread"))?;
        if let Some(fd) = hands.wake() {
            poller.add(fd, Token::Wake, Interest::Read).map_err(io("cannot wait for the mover"))?;
        }
        let pools = Pools::start(&config.pools).map_err(io("cannot start the pools' thread"))?;
        let tiers = parts.machine.tiers();
        let no_tier = || DaemonError::NoTier(parts.machine.name.clone());
        let fast = tiers.first().ok_or_else(no_tier)?.nodes.clone();
        // Where births are seen as they are without us, nothing is steered.
        let arenas = if config.record.is_some() { Vec::new() } else { arenas(&tiers) };
        let mut ledger = Ledger::new(config.ledger.clone(), 0)?;
        if !hands.keeps_books() {
            // Books hear of births one by one; else what is born in an arena is believed to be
            // there.
            ledger.set_arenas(&arenas.iter().copied().map(Some).collect::<Vec<_>>());
        }
        let sampler = parts.sampler.as_deref();
        let recording = config.record.map(|config| Recording::new(config, sampler, &mut ledger));
        let policy = Policy::new(config.policy.clone())
            .map_err(|error| DaemonError::Policy(error.to_string()))?;
        let planned = config.plan.clone().map(|plan| Planned::new(plan, &parts.machine, &arenas));
        let mut config = config;
        if planned.as_ref().is_some_and(Planned::has_stops) {
            // Whoever enters a phase may wait for us.
            config.poll_max_ms = config.poll_min_ms;
        }
        let mut daemon = Daemon {
            machine: parts.machine,
            fast,
            arenas,
            ledger,
            policy,
            hands,
            moving: VecDeque::new(),
            sampler: parts.sampler,
            clients: BTreeMap::new(),
            numbers: HashMap::new(),
            sites: Sites::default(),
            moves: MoveLog::default(),
            planned,
            phases_lost: 0,
            summary: Summary { modelled, mover_note, ..Summary::default() },
            room: OnceCell::new(),
            poller,
            greeter,
            desk,
            pools,
            pace: Pace::default(),
            records: Vec::new(),
            samples: Vec::new(),
            recording,
            handle: Handle { stop: Arc::new(AtomicBool::new(false)), wake },
            next_number: 1,
            began: Instant::now(),
            place,
            config,
        };
        daemon.introduce();
        Ok(daemon)
    }

    /// A way to end it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// What TIERCEL_SOCKET must hold for a program to attach.
    pub fn clients_path(&self) -> &Path {
        self.place.clients_path()
    }

    /// Where requests go.
    pub fn control_path(&self) -> PathBuf {
        self.place.control_path().to_owned()
    }

    /// Serves until it is asked to end; then says what happened.
    pub fn run(mut self) -> Result<Farewell, DaemonError> {
        self.pace.drain_every_ms = self.config.poll_max_ms;
        self.pace.tick_due_ms = self.config.tick_ms;
        self.give_way();
        while !self.pace.stopping {
            let tokens = self
                .poller
                .wait(self.patience())
                .map_err(|error| DaemonError::Io { what: "cannot wait for events", error })?;
            self.summary.spent.wakeups += 1;
            for token in tokens {
                self.sense(token);
            }
            self.sense_time();
        }
        Ok(self.leave())
    }

    /// Its own memory is not to take the room it manages.
    fn give_way(&mut self) {
        let tiers = self.machine.tiers();
        if tiers.len() < 2 || self.hands.keeps_books() {
            return;
        }
        let last = tiers.last().and_then(|tier| tier.nodes.first());
        match last.map(|node| tiercel_mover::prefer_for_this_thread(*node)) {
            // A node the kernel does not have is one on paper.
            None | Some(Ok(()) | Err(Errno(libc::EINVAL))) => {}
            Some(Err(errno)) => {
                let what = "cannot keep the daemon's own memory out of the best tier";
                self.summary.problem(format!("{what}: set_mempolicy: {errno}"));
            }
        }
    }

    /// Milliseconds since the daemon began.
    pub(crate) fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// How long there is nothing to do unless something happens.
    fn patience(&self) -> Duration {
        let now = self.now_ms();
        let mut due = self.pace.tick_due_ms.min(now + IDLE_MS);
        if !self.clients.is_empty() {
            due = due.min(self.pace.drain_due_ms);
        }
        Duration::from_millis(due.saturating_sub(now))
    }

    /// What a ready descriptor means.
    fn sense(&mut self, token: Token) {
        let now = self.now_ms();
        match token {
            Token::Clients => {
                for arrival in self.greeter.accept(&self.poller, now) {
                    self.dispatch(Event::ClientHello(Box::new(arrival)));
                }
            }
            Token::Control => self.desk.accept(&self.poller, now),
            Token::Greeting(id) => {
                if let Some(arrival) = self.greeter.read(id) {
                    self.dispatch(Event::ClientHello(Box::new(arrival)));
                }
            }
            Token::Client(number) => self.dispatch(Event::ClientGone(number)),
            Token::Peer(id) => {
                self.desk.settle(id, &self.poller);
                for request in self.desk.read(id, &self.poller, now) {
                    self.dispatch(Event::Request(id, request));
                }
            }
            Token::Wake => {
                let _ = rustix::io::read(&*self.handle.wake, &mut [0u8; 8]);
                if self.handle.stop.load(Ordering::Acquire) {
                    self.dispatch(Event::Shutdown);
                }
                self.collect();
            }
        }
    }

    /// What the time means.
    fn sense_time(&mut self) {
        let now = self.now_ms();
        if !self.clients.is_empty() && now >= self.pace.drain_due_ms {
            self.dispatch(Event::Drain);
        }
        if now >= self.pace.tick_due_ms {
            self.dispatch(Event::Tick);
        }
        self.pass_questions();
        self.greeter.drop_silent(now);
        self.desk.drop_idle(now);
    }

    /// Questions to the pools go to their thread.
    fn pass_questions(&mut self) {
        for question in self.greeter.questions.drain(..) {
            match &self.pools {
                Some(pools) => pools.ask(question),
                None => pools::decline(&question),
            }
        }
    }

    /// Hands what the mover finished to the loop.
    pub(crate) fn collect(&mut self) {
        for done in self.hands.collect() {
            self.dispatch(Event::MoverDone(done));
        }
    }

    fn dispatch(&mut self, event: Event) {
        match event {
            Event::ClientHello(arrival) => self.client_hello(*arrival),
            Event::ClientGone(number) => self.client_gone(number),
            Event::Drain => self.drain(),
            Event::Tick => self.tick(),
            Event::MoverDone(done) => self.mover_done(done),
            Event::Request(peer, request) => {
                let line = self.answer(&request);
                self.desk.send(peer, &line, &self.poller);
            }
            Event::Shutdown => self.pace.stopping = true,
        }
    }

    fn client_hello(&mut self, mut arrival: Arrival) {
        if let Some(&old) = self.numbers.get(&arrival.pid) {
            // The same process again: it ran another program, or attached anew after a silence.
            self.forget(old);
            self.summary.clients.replaced += 1;
        }
        if self.clients.len() >= self.config.clients_max {
            self.greeter.refused.full += 1;
            arrival.refuse_full();
            return;
        }
        let (number, pid) = (self.next_number, arrival.pid);
        let parent = self.clients.get(&arrival.parent_session).map(|parent| parent.pid);
        let born = match parent {
            Some(parent) => self.ledger.process_forked(parent, pid),
            None => self.ledger.process_born(pid),
        };
        let watched = self.poller.add(&arrival.pidfd, Token::Client(number), Interest::Read);
        if let Err(error) = born.map_err(|e| e.to_string()).and(watched.map_err(|e| e.to_string()))
        {
            self.summary.problem(error);
            self.ledger.process_exited(pid);
            arrival.refuse_full();
            return;
        }
        self.next_number = self.next_number.checked_add(1).unwrap_or(1);
        // Everything it reads in its control page, before it goes on.
        let now = self.now_ms();
        arrival.session.set_clock_ms(now);
        self.give_arenas(&arrival.session);
        self.give_plan(&mut arrival.session);
        arrival.session.set_backing(self.config.backing);
        if let Some(insiders) = self.hands.insiders() {
            match arrival.session.move_line() {
                Ok(line) => insiders.came(pid, Hosted::new(pid, line)),
                Err(error) => self.summary.problem(format!("process {pid}: {error}")),
            }
        }
        arrival.welcome(number);
        let mut client = Client::new(arrival, now);
        self.ledger.advance(now);
        if let Some(recording) = &mut self.recording {
            recording.client_came(&client, parent, now);
        }
        client.first_look(&mut self.ledger);
        self.tell_recording();
        self.clients.insert(number, client);
        self.numbers.insert(pid, number);
        self.summary.clients.attached += 1;
        self.pace.drain_due_ms = self.pace.drain_due_ms.min(now + self.config.poll_min_ms);
    }

    fn client_gone(&mut self, number: u32) {
        let Some(client) = self.clients.get(&number) else { return };
        if matches!(client.watch, Watch::Watched { .. }) {
            self.drain_samples();
        }
        self.forget(number);
    }

    /// Takes what a client left in its rings, keeps what its sites did, and lets it go.
    pub(crate) fn forget(&mut self, number: u32) {
        self.drain_last(number);
        self.last_words(number);
        let Some(mut client) = self.clients.remove(&number) else { return };
        self.numbers.remove(&client.pid);
        self.look_at(&mut client);
        self.summary.records.drained += client.records;
        self.summary.records.lost += client.lost;
        self.summary.records.resyncs += client.resyncs;
        let header = client.session.header();
        self.phases_lost += u64::from(header.phase_overflows);
        self.note_phases(&client);
        if let Some(reason) = header.detached {
            self.stepped_aside(reason);
        }
        self.sites.keep(&client.present(&self.ledger));
        let now = self.now_ms();
        if let Some(recording) = &mut self.recording {
            recording.client_left(&client, &mut self.ledger, now);
        }
        if let Some(sampler) = &mut self.sampler
            && matches!(client.watch, Watch::Watched { .. })
        {
            sampler.detach(client.pid);
        }
        self.ledger.process_exited(client.pid);
        self.hands.gone(client.pid);
    }

    /// What fits of a leaving client that was seen to use anything.
    fn last_words(&mut self, number: u32) {
        if !self.clients.get(&number).is_some_and(|client| client.uses.were_sampled()) {
            return;
        }
        if self.clients.len() == 1 {
            // What was born since the last tick is no record before the next, and there will be
            // none while it lives. Nobody else's interval is cut short.
            self.close_interval();
        }
        self.note_fits();
    }

    fn stepped_aside(&mut self, reason: String) {
        /// Different reasons kept; a client chooses the text.
        const REASONS_MAX: usize = 32;
        let reasons = &mut self.summary.clients.stepped_aside;
        if reasons.len() < REASONS_MAX || reasons.contains_key(&reason) {
            *reasons.entry(reason).or_default() += 1;
        }
    }

    /// Drains once more, tells clients that nobody listens any longer, and sums up.
    fn leave(mut self) -> Farewell {
        self.drain_samples();
        let numbers: Vec<u32> = self.clients.keys().copied().collect();
        for number in numbers {
            if let Some(client) = self.clients.get(&number) {
                client.session.detach();
            }
            self.forget(number);
        }
        let now = self.now_ms();
        self.ledger.tick(now);
        let summary = self.status();
        let sites = self.sites.rows(std::iter::empty(), summary.budget.fast_bytes);
        let recorded = self.recording.map(|recording| recording.finish(self.machine, &summary));
        Farewell { summary, sites, profile: recorded.map(Box::new) }
    }
}

/// Who may attach to a daemon of user `uid`.
fn guests(access: Access, uid: u32) -> Guests {
    match access {
        Access::Owner => Guests::User(uid),
        Access::Everybody => Guests::Everybody,
    }
}

/// One arena per node, best tier first; none where there is one kind of memory. Where there are too
/// many nodes each tier has some, so that there is always a place for what has no room in the best.
fn arenas(tiers: &[tiercel_machine::Tier]) -> Vec<NodeId> {
    if tiers.len() < 2 {
        return Vec::new();
    }
    let of_tier = |(rank, tier): (usize, &tiercel_machine::Tier)| {
        let nodes = tier.nodes.clone().into_iter().enumerate();
        nodes.map(move |(nth, node)| (nth, rank, node)).collect::<Vec<_>>()
    };
    let mut nodes: Vec<_> = tiers.iter().enumerate().flat_map(of_tier).collect();
    nodes.sort_unstable(); // the first of each tier, then the second, ...
    nodes.truncate(tiercel_wire::layout::ARENAS_MAX);
    nodes.sort_unstable_by_key(|(nth, rank, _)| (*rank, *nth));
    nodes.into_iter().map(|(.., node)| node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tier_has_an_arena() {
        let arenas = |name: &str| -> Vec<u16> {
            let machine = Machine::builtin(name).unwrap().unwrap();
            arenas(&machine.tiers()).iter().map(|node| node.0).collect()
        };
        assert_eq!(arenas("spr-cxl"), [0, 1]);
        // Of eight and eight.
        assert_eq!(arenas("xeonmax-hbm"), [8, 9, 10, 11, 0, 1, 2, 3]);
    }
}
