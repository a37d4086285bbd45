//! What lives: the hosted processes, their objects in the ledger, and where those are.
//! In: arrivals, records, samples, answers of the mover. Out: clients, rows, intervals.
//! Knows nothing of how a decision is made, or of sockets.

use crate::clients::client::Client;
use crate::clients::fit::FitScan;
use crate::clients::processes::ProcessRow;
use crate::clients::sites::{SiteRow, judge};
use crate::clients::table::{Clients, Consumers, Turn};
use crate::moves::queue::{Answer, MoveQueue};
use crate::observe::coverage::{Asked, Looking, ranges};
use crate::observe::learning::Learning;
use crate::observe::recording::Recording;
use crate::observe::residency::{Counting, ResidencyScan, count_live};
use crate::observe::unnamed::Adopted;
use crate::plan::runner::PlanRunner;
use crate::quota::Quota;
use crate::summary::Summary;
use crate::tiers::Tiers;
use std::time::Duration;
use tiercel_ledger::confidence::Ranking;
use tiercel_ledger::{Attributed, Ledger, LedgerError, Range};
use tiercel_policy::Interval;
use tiercel_symbolize::Reader;
use tiercel_wire::{AccessKind, Sample, Timeline};

/// Extents of processes that have ended that are forgotten in a turn: 0.3 ms, at 70 ns each.
const FORGOTTEN_IN_A_TURN: usize = 4096;

/// Extents of a process that are counted once more when it ends: 0.8 ms, at 50 ns each. What a
/// larger one had was counted at the last scan.
const COUNTED_AT_EXIT_MAX: usize = 16_384;

/// Objects of a parent that a child is known to have, those with the lowest addresses: 5 ms, at 0.3
/// us each. The others are not seen, as the coverage states.
const INHERITED_MAX: usize = 16_384;

/// Samples that wait for symbols, in the few milliseconds that reading those takes; further ones
/// count as the whole segment's. 1.5 MiB.
const HELD_MAX: usize = 16_384;

/// When a process is first compared with its rows, milliseconds after it attached: what it has is
/// mapped by then. Chosen, not measured.
const FIRST_LOOK_MS: u64 = 100;

/// How long the end of a daemon waits for the last comparison.
const LAST_LOOK: Duration = Duration::from_millis(200);

/// The hosted processes and what is known of their memory.
pub(crate) struct Tracking {
    pub(crate) clients: Clients,
    pub(crate) ledger: Ledger,
    /// `None`: nothing is recorded.
    pub(crate) recording: Option<Recording>,
    /// `None`: nothing is learned for the next run.
    pub(crate) learning: Option<Learning>,
    residency: ResidencyScan,
    looking: Looking,
    /// Memory that no object names; `None`: it is left to the kernel.
    adopted: Option<Adopted>,
    fit: FitScan,
    /// What passed since the last decision.
    undecided: Interval,
    /// Samples on their way from the ledger to what else counts them.
    attributed: Vec<Attributed>,
    /// Samples in static data whose symbols are being read.
    held: Vec<Sample>,
    live_bytes: u64,
    peak_bytes: u64,
}

impl Tracking {
    pub(crate) fn new(
        ledger: Ledger,
        (recording, learning): (Option<Recording>, Option<Learning>),
        quota: Quota,
        symbols: &Reader,
    ) -> Tracking {
        Tracking {
            clients: Clients::new(quota, symbols),
            ledger,
            recording,
            learning,
            residency: ResidencyScan::default(),
            looking: Looking::default(),
            adopted: None,
            fit: FitScan::default(),
            undecided: Interval::default(),
            attributed: Vec::new(),
            held: Vec::new(),
            live_bytes: 0,
            peak_bytes: 0,
        }
    }

    /// From now on memory that no object names is placed as well.
    pub(crate) fn place_all_memory(&mut self) {
        self.adopted = Some(Adopted::default());
    }

    /// Bytes of live objects over all processes, at the last drain.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Most bytes of live objects over all processes.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    // ---- Processes -----------------------------------------------------------------------------

    /// Makes a process of a user known to the ledger, as a child of `parent` if that attached as
    /// well.
    pub(crate) fn add_process(
        &mut self,
        pid: u32,
        parent: Option<u32>,
        user: u32,
    ) -> Result<(), LedgerError> {
        match parent {
            Some(parent) => self.ledger.process_forked(parent, pid, user),
            None => self.ledger.process_born_in(pid, user),
        }
    }

    /// Takes in a client; its process is known. What lived before it attached is read in turns.
    pub(crate) fn insert(&mut self, client: Client, parent: Option<u32>, now_ms: u64) {
        self.ledger.advance(now_ms);
        if let Some(recording) = &mut self.recording {
            recording.client_came(&client, parent, now_ms);
        }
        self.clients.insert(client);
    }

    /// Takes in a process that does not attach, of such an age: it has what its parent had then.
    /// `None`: there is no room for it.
    pub(crate) fn insert_forked(
        &mut self,
        mut client: Client,
        parent: u32,
        age: Duration,
        now_ns: u64,
    ) -> Option<()> {
        let (pid, now_ms) = (client.pid, now_ns / 1_000_000);
        let parent = self.clients.get_mut(parent)?;
        let parent_pid = parent.pid;
        client.inherit(parent);
        self.ledger.process_forked(parent_pid, pid, client.user).ok()?;
        let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let forked_ms = now_ms.saturating_sub(age_ms);
        let mut objects = self.ledger.objects_before(parent_pid, forked_ms, INHERITED_MAX);
        self.clients.forked(parent_pid, pid, &mut objects);
        self.insert(client, Some(parent_pid), now_ms);
        self.ledger.adopt_objects(pid, &objects, now_ns, |_| {});
        Some(())
    }

    /// Takes what a leaving client left in its rings, about `units`.
    pub(crate) fn drain_last(
        &mut self,
        number: u32,
        queue: &mut MoveQueue,
        timeline: &Timeline,
        units: usize,
    ) {
        self.ledger.advance(timeline.elapsed_ns() / 1_000_000);
        let (clients, mut consumers) = self.consumers(queue);
        clients.drain_last(number, &mut consumers, timeline, units);
        self.count_peak();
    }

    /// Keeps what a client's sites did. Its objects stay in the ledger until its process is
    /// forgotten.
    pub(crate) fn remove(&mut self, number: u32, now_ms: u64) -> Option<Client> {
        let mut client = self.clients.remove(number)?;
        if self.ledger.extents_of_process(client.pid) <= COUNTED_AT_EXIT_MAX {
            count_live(&mut client, &self.ledger, now_ms);
        }
        self.clients.keep_sites(&mut client, &self.ledger);
        if let Some(learning) = &mut self.learning {
            learning.client_left(&client, now_ms);
        }
        if let Some(recording) = &mut self.recording {
            recording.client_left(&client, &mut self.ledger, now_ms);
        }
        self.clients.forget_shares(client.pid, &mut self.ledger);
        if let Some(adopted) = &mut self.adopted {
            adopted.gone(client.pid);
        }
        Some(client)
    }

    // ---- Records and samples -------------------------------------------------------------------

    /// One turn of all users, up to the moment of the timeline. What processes left behind in the
    /// ledger is forgotten as well.
    pub(crate) fn turn(&mut self, queue: &mut MoveQueue, timeline: &Timeline) -> Turn {
        self.ledger.advance(timeline.now().ms());
        let (clients, mut consumers) = self.consumers(queue);
        let mut turn = clients.turn(&mut consumers, timeline);
        turn.has_more |= self.ledger.forget_exited(FORGOTTEN_IN_A_TURN) > 0;
        self.count_peak();
        turn
    }

    /// Whether turns may have something to do.
    pub(crate) fn has_work(&self) -> bool {
        !self.clients.is_empty() || self.ledger.has_exited()
    }

    /// A tick ends: the ledger learns which processes are behind.
    pub(crate) fn tick(&mut self) {
        self.clients.tick(&mut self.ledger);
    }

    fn consumers<'a>(&'a mut self, queue: &'a mut MoveQueue) -> (&'a mut Clients, Consumers<'a>) {
        let Tracking { clients, ledger, recording, .. } = self;
        (clients, Consumers { ledger, queue, recording: recording.as_mut() })
    }

    fn count_peak(&mut self) {
        self.live_bytes = self.clients.live_bytes(&self.ledger);
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
    }

    /// The sampler brings samples: those before were one round.
    pub(crate) fn end_round(&mut self) {
        self.clients.end_round();
    }

    /// Takes samples in. Each waits until its process's rings were drained past its time.
    pub(crate) fn observe(&mut self, samples: &[Sample]) {
        for sample in samples {
            if let Some(recording) = &mut self.recording {
                recording.sampled(sample);
            }
            let (pid, addr) = self.clients.shared.resolve(sample.pid, sample.addr);
            let sample = Sample { pid, addr, ..*sample };
            if self.held.len() < HELD_MAX && self.clients.awaits_symbols(pid, addr) {
                self.held.push(sample);
            } else {
                self.ledger.observe(sample);
            }
        }
    }

    /// What compiled code reported since the last call, and how many misses it could not report.
    pub(crate) fn take_misses(&mut self) -> (Vec<Sample>, u64) {
        let mut found = Vec::new();
        let lost = self.clients.iter_mut().map(|client| client.take_misses(&mut found)).sum();
        (found, lost)
    }

    /// Attributes the samples that need not wait any longer to objects and their sites; the plan
    /// learns of those that hit.
    pub(crate) fn attribute(&mut self, mut plan: Option<&mut PlanRunner>, tiers: &Tiers) {
        let Tracking { clients, ledger, recording, learning, attributed, held, .. } = self;
        held.retain(|sample| {
            let waits = clients.awaits_symbols(sample.pid, sample.addr);
            if !waits {
                ledger.observe(*sample);
            }
            waits
        });
        ledger.attribute(attributed);
        if let Some(recording) = recording {
            recording.consume(ledger);
        }
        if let Some(learning) = learning {
            attributed.iter().for_each(|one| learning.sampled(one));
        }
        // A dirtied line is no access of its own: the read or the write of it was sampled.
        let accesses = attributed.drain(..).filter(|one| one.sample.kind != AccessKind::Dirtied);
        for Attributed { sample, hit, doubt } in accesses {
            clients.sampled(hit.site, &sample, doubt);
            if let Some(plan) = &mut plan {
                plan.sampled(&sample, &hit, tiers);
            }
        }
    }

    /// Reads how much memory recorded processes have beside their objects.
    pub(crate) fn note_untracked(&mut self) {
        if let Some(recording) = &mut self.recording {
            recording.note_untracked(self.clients.iter(), &self.ledger);
        }
    }

    /// Has the memory of processes compared with their rows, at a tick, and once before the first.
    pub(crate) fn look_at_memory(&mut self, is_tick: bool, now_ms: u64) {
        let is_due = self.looking.is_due(now_ms);
        self.adopt(now_ms);
        let Tracking { looking, clients, ledger, adopted, .. } = self;
        if !is_due || !is_tick && !looking.is_first() {
            return;
        }
        let settled = clients.iter().filter(|client| {
            !client.has_left() && (is_tick || now_ms >= client.since_ms + FIRST_LOOK_MS)
        });
        let asked = settled.map(|client| {
            let (pid, views) = (client.pid, clients.shared.views_of(client.pid));
            let adopted = adopted.as_ref().map(|adopted| adopted.of(pid).collect());
            Asked { pid, ranges: ranges(ledger.ranges_of(pid), views), adopted }
        });
        looking.look(asked, now_ms);
    }

    /// Takes in memory that no object names, as the last look found it.
    fn adopt(&mut self, now_ms: u64) {
        let Some(adopted) = &mut self.adopted else { return };
        for found in self.looking.take_unnamed() {
            let Some(client) = self.clients.of_pid_mut(found.pid) else { continue };
            let Some(site) = client.unnamed_site() else { continue };
            let time_ns = now_ms * 1_000_000;
            let (count, bytes) = adopted.update(&mut self.ledger, &found, site, time_ns);
            client.uses.born(site, count, bytes, false);
        }
    }

    /// Nothing is looked at any longer.
    pub(crate) fn finish_looking(&mut self) {
        self.looking.finish(LAST_LOOK);
    }

    // ---- Intervals and scans -------------------------------------------------------------------

    /// Closes the ledger's interval: objects born within it that still live become rows.
    pub(crate) fn close_interval(&mut self, now_ms: u64) {
        let closed = Interval::of(&self.ledger.tick(now_ms));
        self.undecided.elapsed_ms += closed.elapsed_ms;
        self.undecided.allocated_bytes += closed.allocated_bytes;
    }

    /// What passed since the last decision, for the next one.
    pub(crate) fn take_interval(&mut self) -> Interval {
        std::mem::take(&mut self.undecided)
    }

    /// A pass that counts what lives and finds extents whose residency is stale; `None` while the
    /// last one is not paid off.
    pub(crate) fn counting(&self, now_ms: u64) -> Option<Counting> {
        self.residency
            .is_due(now_ms)
            .then(|| self.residency.counting(now_ms, self.learning.is_some()))
    }

    /// The pass is over: what lives is learned for the next run.
    pub(crate) fn learn_lives(&mut self, counting: &mut Counting, now_ms: u64) {
        if let Some(learning) = &mut self.learning {
            learning.counted(counting.take_lives().into_iter(), now_ms);
        }
    }

    /// The pass, and what went with it, took so long.
    pub(crate) fn counted(&mut self, took: Duration, now_ms: u64) {
        self.residency.scanned(took, now_ms);
    }

    /// Whether it may be found how much of each site the best tier has room for: not while the last
    /// scan is not paid off.
    pub(crate) fn is_fit_due(&self, now_ms: u64) -> bool {
        self.fit.is_due(now_ms)
    }

    /// It was found, within this time.
    pub(crate) fn fitted(&mut self, took: Duration, now_ms: u64) {
        self.fit.scanned(took, now_ms);
    }

    /// New extents whose residency is unknown, `most` at most; the modelled mover learns of their
    /// births.
    pub(crate) fn take_births(
        &mut self,
        most: usize,
        queue: &mut MoveQueue,
        plan: Option<&PlanRunner>,
        tiers: &Tiers,
    ) -> Vec<Range> {
        let born = self.ledger.take_unlocated(most);
        if queue.is_modelled() {
            for range in &born {
                let arena = self.ledger.find(range.pid, range.addr).and_then(|one| one.arena);
                queue.born(*range, arena.and_then(|arena| tiers.node_of(arena)));
            }
            let Tracking { clients, ledger, .. } = self;
            let ranges = plan.map(|plan| plan.ranges_of(clients, ledger, tiers, &born));
            for (range, node) in ranges.into_iter().flatten() {
                queue.born(range, Some(node));
            }
        }
        born
    }

    /// Takes in where the mover found extents. Returns what could not be looked up, for the user.
    pub(crate) fn located(
        &mut self,
        answers: Vec<Answer>,
        took_ns: u64,
        now_ms: u64,
    ) -> Vec<String> {
        self.residency.located(&mut self.ledger, answers, took_ns, now_ms)
    }

    // ---- Figures -------------------------------------------------------------------------------

    /// All sites; those that deserve the best tier's budget most are marked; how sure their order
    /// is.
    pub(crate) fn judged_rows(&mut self, tiers: &Tiers) -> (Vec<SiteRow>, Ranking) {
        let fast_bytes = tiers.fast_budget_bytes(self.peak_bytes);
        let mut rows = self.clients.site_rows(&self.ledger, fast_bytes);
        let ranking = judge(&mut rows, self.clients.evidence());
        (rows, ranking)
    }

    /// The largest of the hosted processes.
    pub(crate) fn process_rows(&self, limit: usize) -> Vec<ProcessRow> {
        self.clients.process_rows(&self.ledger, limit)
    }

    /// Adds the figures of present clients and of the ledger to those of departed clients.
    pub(crate) fn add_to(&self, summary: &mut Summary) {
        summary.clients.now = self.clients.len() as u64;
        self.clients.iter().for_each(|client| summary.add_client(client));
        summary.add_ledger(&self.ledger);
        summary.evidence = *self.clients.evidence();
        summary.objects.live_bytes = self.live_bytes;
        summary.objects.peak_bytes = self.peak_bytes;
        summary.coverage = self.looking.coverage();
    }
}
