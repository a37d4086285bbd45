//! Long work of the loop, in pieces: decisions over all extents, and scans of them.
//! In: the daemon while a handler works. Out: pauses, in which others are served. Knows nothing of
//! what is decided.
//!
//! ```text
//! handler: piece | pause | piece | pause | piece        a piece: 4096 extents, 0.3 to 1 ms
//!                  '-- processes are greeted, rings drained, requests answered
//! ```
//! When a tick is late by half of one, rings are no longer drained in pauses.
//! What ends an interval or decides does not run in a pause, and no work pauses within another: the
//! handler sees objects, processes and clients come and go, and nothing else. A pause serves every
//! component, so what works in pieces has the whole daemon, where other handlers name the
//! components that they need.

use super::Daemon;
use crate::births;
use crate::clients::client::Client;
use crate::clients::fit::Fitting;
use crate::clients::pass::Pass;
use crate::cpu;
use crate::decisions::Decisions;
use crate::observe::residency::MODELLED_LOOKUPS_MAX;
use crate::quota::Quota;
use crate::summary::Spent;
use crate::tracking::Tracking;
use std::collections::HashSet;
use std::time::Duration;
use tiercel_broker::Peer;
use tiercel_ledger::movement::Outcome;
use tiercel_ledger::{Ledger, PIECE_UNITS, Pace, Range};
use tiercel_policy::{Budgets, Decision};

/// Work on a client beside that on its extents: clearing and setting what is known of its sites.
const CLIENT_UNITS: usize = 16;

/// Processes that are checked at once, and units of a check: 60 us of reading `/proc`, and with a
/// broker two changes of threads for all of them.
const CHECKED_AT_ONCE: usize = 8;
const CHECK_UNITS: usize = 512;

/// The outcome of a move: two searches of the ledger, residency, a site of a session.
const OUTCOME_UNITS: usize = 16;

/// Times as many objects as were born in an interval that are made records at its end, before
/// those born meanwhile wait for the next.
const FRESH_TIMES: usize = 4;

/// What long work there is.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// A handler is at it: it alone may pause.
    is_working: bool,
    /// CPU time of all pauses, nanoseconds.
    paused_ns: u64,
    /// What the ledger had shown when others were served last.
    shown: u64,
}

impl Pauses {
    /// Whether a handler works and pauses.
    pub(super) fn is_working(&self) -> bool {
        self.is_working
    }

    /// Notes how many extents were looked at since others were served.
    pub(super) fn note_shown(&mut self, ledger: &Ledger, spent: &mut Spent) {
        let shown = ledger.extents_shown();
        let looked_at = shown - std::mem::replace(&mut self.shown, shown);
        spent.extents_at_once = spent.extents_at_once.max(looked_at);
    }

    /// CPU time of pauses beyond `before_ns`.
    pub(super) fn since_ns(&self, before_ns: u64) -> u64 {
        self.paused_ns - before_ns
    }
}

/// The daemon, between two pauses.
pub(super) struct Work<'a> {
    daemon: &'a mut Daemon,
    units_left: usize,
}

impl Pace for Work<'_> {
    fn ledger(&self) -> &Ledger {
        &self.daemon.tracking.ledger
    }

    fn worked(&mut self, units: usize) {
        self.units_left = self.units_left.saturating_sub(units);
        if self.units_left == 0 {
            self.pause();
            self.units_left = PIECE_UNITS;
        }
    }
}

impl Work<'_> {
    fn pass(&mut self, pass: &mut dyn Pass) {
        for number in self.daemon.tracking.clients.numbers() {
            pass.forget();
            let mut from = 0;
            while let Some(next) = self.pass_on(pass, number, from) {
                from = next;
            }
        }
    }

    /// A piece of a client's extents; where the next one begins.
    fn pass_on(&mut self, pass: &mut dyn Pass, number: u32, from: u64) -> Option<u64> {
        let Tracking { clients, ledger, .. } = &mut self.daemon.tracking;
        // It may have left in a pause.
        let client = clients.get_mut(number)?;
        let (mut count, mut next) = (0, from);
        for extent in ledger.extents_of_from(client.pid, from).take(PIECE_UNITS) {
            pass.see(&extent);
            next = extent.addr + extent.bytes;
            count += 1;
        }
        let is_last = count < PIECE_UNITS;
        let sites = if is_last { CLIENT_UNITS + client.uses.len() } else { 0 };
        if is_last {
            pass.seen(client);
        }
        self.worked((count + sites).min(PIECE_UNITS));
        (!is_last).then_some(next)
    }

    /// Serves what others wait for. A daemon that ends only completes what it has begun, and one
    /// that is asked outside of its loop serves nothing else.
    fn pause(&mut self) {
        let daemon = &mut *self.daemon;
        daemon.pauses.note_shown(&daemon.tracking.ledger, &mut daemon.summary.spent);
        if daemon.is_stopping || !daemon.events.is_handling() {
            return;
        }
        let began_ns = cpu::thread_ns();
        // An error is met again by the loop, which ends with it.
        for token in daemon.sockets.wait(Duration::ZERO).unwrap_or_default() {
            let now_ms = daemon.now_ms();
            let events = daemon.sockets.take(token, daemon.pools.as_ref(), now_ms);
            events.into_iter().for_each(|event| daemon.events.push(event));
            serve_waiting(daemon);
        }
        daemon.on_time();
        serve_waiting(daemon);
        daemon.summary.spent.pauses += 1;
        daemon.pauses.paused_ns += cpu::since_ns(began_ns);
        daemon.pauses.shown = daemon.tracking.ledger.extents_shown();
    }

    /// Makes what was born in the interval records, so that its end finds few.
    pub(super) fn make_rows_of_fresh(&mut self) {
        let born = self.ledger().fresh_objects();
        // As much is born meanwhile as a flood brings: half of the time is its.
        for _ in 0..=FRESH_TIMES * born / PIECE_UNITS {
            if self.daemon.tracking.ledger.make_rows(PIECE_UNITS as u64) == 0 {
                break;
            }
            self.worked(PIECE_UNITS);
        }
    }

    /// Of some clients, those that are no longer what attached.
    fn changed_of(&mut self, numbers: &[u32]) -> Vec<u32> {
        let Daemon { tracking, sockets, .. } = &*self.daemon;
        let there: Vec<&Client> = tracking.clients.there(numbers).collect();
        let peers: Vec<&Peer> = there.iter().map(|client| &*client.peer).collect();
        let checked = sockets.handshake.check(&peers);
        let changed = there.iter().zip(checked).filter(|(_, check)| check.is_err());
        let changed = changed.map(|(client, _)| client.number).collect();
        self.worked(CHECK_UNITS * numbers.len());
        changed
    }

    fn count_promises_of(&mut self, number: u32, now_ms: u64) {
        let Daemon { tracking, tiers, .. } = &mut *self.daemon;
        let Tracking { clients, ledger, .. } = tracking;
        // It may have left in a pause.
        let Some(client) = clients.get_mut(number) else { return };
        let of = (&*ledger, client.pid);
        let looked_at = client.heads.count(of, |node| tiers.is_fast(node), now_ms);
        self.worked((looked_at + CLIENT_UNITS).min(PIECE_UNITS));
    }

    /// Has the modelled mover look up where new extents are. A real one does so on its thread.
    pub(super) fn locate_modelled(&mut self) {
        for _ in 0..MODELLED_LOOKUPS_MAX / PIECE_UNITS {
            let (moving, mut context) = self.daemon.moving();
            if moving.locate_some(PIECE_UNITS, &mut context) == 0 {
                break;
            }
            self.worked(PIECE_UNITS);
        }
    }

    /// Takes in what became of moves.
    pub(super) fn note_outcomes(&mut self, outcomes: Vec<Outcome>) {
        for outcome in outcomes {
            let (moving, mut context) = self.daemon.moving();
            moving.note(outcome, &mut context);
            self.worked(OUTCOME_UNITS);
        }
    }
}

impl Daemon {
    /// Works with pauses; the result, and the CPU time without them. Nothing is done in a pause of
    /// other work: `None`.
    pub(super) fn work<T>(
        &mut self,
        work: impl FnOnce(&mut Work<'_>) -> T,
    ) -> Option<(T, Duration)> {
        if std::mem::replace(&mut self.pauses.is_working, true) {
            return None;
        }
        let (began_ns, paused_ns) = (cpu::thread_ns(), self.pauses.paused_ns);
        let done = work(&mut Work { daemon: self, units_left: PIECE_UNITS });
        self.pauses.is_working = false;
        let paused_ns = self.pauses.paused_ns - paused_ns;
        let took_ns = cpu::since_ns(began_ns).saturating_sub(paused_ns);
        Some((done, Duration::from_nanos(took_ns)))
    }

    /// Works with the policy, unless it is at work.
    fn work_with_policy<T>(
        &mut self,
        work: impl FnOnce(&mut Work<'_>, &mut Decisions) -> T,
    ) -> Option<(T, Duration)> {
        let mut decisions = self.decisions.take()?;
        let done = self.work(|pace| work(pace, &mut decisions));
        self.decisions = Some(decisions);
        done
    }
}

fn serve_waiting(daemon: &mut Daemon) {
    while let Some(event) = daemon.events.take_in_pause() {
        daemon.dispatch(event);
    }
}

/// Clients that are no longer what attached: they are gone, have another owner, or run another
/// program that has not attached, so that their objects are gone. A failed exec changes nothing.
pub(super) fn changed(daemon: &mut Daemon) -> Vec<u32> {
    let numbers = daemon.tracking.clients.numbers();
    let batches = numbers.chunks(CHECKED_AT_ONCE);
    let changed = daemon.work(|work| batches.flat_map(|batch| work.changed_of(batch)).collect());
    let (changed, _) = changed.expect("what checks processes is no part of other work");
    changed
}

/// Counts what lives and finds extents whose residency is stale, unless the last scan is not paid
/// off.
pub(super) fn scan(daemon: &mut Daemon, now_ms: u64) -> Vec<Range> {
    let Some(mut counting) = daemon.tracking.counting(now_ms) else {
        return Vec::new();
    };
    let counted = daemon.work(|work| work.pass(&mut counting));
    daemon.tracking.learn_lives(&mut counting, now_ms);
    let fitted = scan_fit(daemon);
    let took = counted.map(|((), took)| took).into_iter().chain(fitted).sum();
    daemon.tracking.counted(took, now_ms);
    counting.stale()
}

/// Finds how much of each site the best tier has room for, unless the last scan is not paid off;
/// how long it took.
pub(super) fn scan_fit(daemon: &mut Daemon) -> Option<Duration> {
    let now_ms = daemon.now_ms();
    if !daemon.tracking.is_fit_due(now_ms) {
        return None;
    }
    let (machine, budgets) = (daemon.tiers.machine.clone(), Budgets::fast(daemon.tiers.budget));
    let ((), took) = daemon.work_with_policy(|work, decisions| {
        let mut fitting = Fitting::new(decisions.best_extents(work, &machine, &budgets));
        work.pass(&mut fitting);
    })?;
    daemon.tracking.fitted(took, now_ms);
    Some(took)
}

/// Counts what was born in the best tier and is still to be touched.
fn count_promises(daemon: &mut Daemon) {
    let now_ms = daemon.now_ms();
    daemon.work(|work| {
        for number in work.daemon.tracking.clients.numbers() {
            work.count_promises_of(number, now_ms);
        }
    });
    let quota = Quota::new(daemon.config.access, daemon.config.clients_max);
    let of_user_bytes = quota.promised_bytes(daemon.fast_budget_bytes());
    births::bound_promises(&mut daemon.tracking.clients, of_user_bytes);
}

/// What is to move, and where births go; `None` in a pause of other work. `placed`: sites that a
/// plan places.
pub(super) fn decision(daemon: &mut Daemon, placed: HashSet<(u32, u32)>) -> Option<Decision> {
    let counters = daemon.sampling.counters();
    let interval = Decisions::interval(&daemon.tiers, daemon.tracking.take_interval(), counters);
    count_promises(daemon);
    let promised_bytes = births::promised_bytes(&daemon.tracking.clients);
    daemon.summary.budget.promised_bytes = promised_bytes;
    let mut budgets = Decisions::budgets(&daemon.tiers, placed, promised_bytes);
    budgets.nursed_bytes = births::nursed_bytes(&daemon.tiers, &daemon.tracking.clients);
    let machine = daemon.tiers.machine.clone();
    let (decision, took) = daemon.work_with_policy(|work, decisions| {
        decisions.decide(work, &machine, &budgets, &interval)
    })?;
    daemon.summary.spent.policy_ns += u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    Some(decision)
}
