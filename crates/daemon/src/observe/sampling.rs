//! Which processes are sampled, from when on, where and how often.
//! In: clients by age and size, their ranges in the ledger. Out: instructions to the sampler, its
//! samples. Knows nothing of how a sampler sees.
//!
//! A process on probation is only counted, unless it is recorded.

use crate::clients::client::Client;
use crate::clients::table::Clients;
use crate::schedule::pause_of_long_work_ms;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::Instant;
use tiercel_ledger::Ledger;
use tiercel_policy::{PROBATION_BYTES, is_past_probation};
use tiercel_sampler::{Allowed, Counters, Drained, Method, Sampler, TargetHandle};
use tiercel_wire::layout::OS_PAGE_BYTES;
use tiercel_wire::{Now, ProbeTerms, Sample};

/// Before the next tick the sampler learns of new objects when they are a quarter of what it
/// watches in that process, and at least [`NEW_BYTES_MIN`].
const NEW_PART: u64 = 4;

/// Bytes of new objects that are worth a report before the next tick. Chosen, not measured: that
/// part of what ends a probation at once.
const NEW_BYTES_MIN: u64 = PROBATION_BYTES / NEW_PART;

/// Share of wall time that handing the sampler the ranges of one process may take.
const WATCH_TIME_SHARE: f64 = 0.01;

/// Ranges of one process that a sampler is given: 1 MiB of them.
const WATCHED_RANGES_MAX: usize = 65_536;

/// Samples of a tick that suffice for each extent, in the mean: their count has a relative standard
/// deviation of 1/sqrt(32) = 18%, enough to find the hot extents.
const SAMPLES_PER_EXTENT: u64 = 32;

/// Samples of a tick that suffice with few extents: those of 32 extents.
const SAMPLES_PER_TICK_MIN: u64 = 1024;

/// Shortest time between two drains of a sampler that does not mind when, milliseconds.
const DRAIN_MS_MIN: u64 = 50;

/// The same of one that does: at a millisecond or two each, a tenth of a CPU at most.
const DRAIN_MS_LEAST: u64 = 8;

/// Standard deviation of the logarithm of a rate that page-table scans state, beside chance: what
/// is hotter than a window shows, and what shares an area in turns. Chosen: for intervals that hold
/// the truth `plain` of `./x bench truth` needed 0.24 on an overloaded machine, `lives-1ms` 0.7.
const SYSTEMATIC: f64 = 0.5;

/// Sampling state of a client.
enum Watch {
    /// Not sampled yet; the userfaultfds that came with its hello.
    Probation(Vec<OwnedFd>),
    /// Sampled where it had this many bytes of live objects.
    Watched { live_bytes: u64 },
    /// It cannot be sampled.
    Refused,
}

struct Observed {
    watch: Watch,
    /// The sampler is given its ranges again no sooner than this.
    watch_due_ms: u64,
}

/// Why sampling may, or must, cost more than usual.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purpose {
    /// There is more than the best tier takes.
    pub(crate) is_scarce: bool,
    /// Moves are real, and there are several kinds of memory.
    pub(crate) is_real: bool,
    /// A profile is recorded: every process counts from its start.
    pub(crate) is_recording: bool,
}

impl Purpose {
    /// Where nothing can be gained, nothing is spent beyond the budget. Programs are disturbed
    /// beyond the time that sampling costs only for the sake of real moves.
    fn allowed(self) -> Allowed {
        let burst = self.is_scarce || self.is_recording;
        Allowed { huge_splits: self.is_real && self.is_scarce, burst }
    }
}

/// The sampler, and what it knows of each client.
pub(crate) struct Sampling {
    /// `None`: nothing samples here; objects are tracked nevertheless.
    sampler: Option<Box<dyn Sampler>>,
    samples: Vec<Sample>,
    drain_due_ms: u64,
    /// When the sampler wants the next drain.
    wanted_ms: Option<u64>,
    /// By session number.
    observed: HashMap<u32, Observed>,
}

impl Sampling {
    pub(crate) fn new(sampler: Option<Box<dyn Sampler>>) -> Sampling {
        Sampling {
            sampler,
            samples: Vec::new(),
            drain_due_ms: 0,
            wanted_ms: None,
            observed: HashMap::new(),
        }
    }

    /// CPU time that sampling took from programs, nanoseconds, as the sampler estimates it.
    pub(crate) fn program_ns(&self) -> u64 {
        let cost = self.sampler.as_ref().map(|sampler| sampler.cost().program_cpu.as_nanos());
        u64::try_from(cost.unwrap_or_default()).unwrap_or(u64::MAX)
    }

    /// How far rates may be off whatever the number of samples: see [`SYSTEMATIC`].
    pub(crate) fn systematic(&self) -> f64 {
        if self.touches_processes() { SYSTEMATIC } else { 0.0 }
    }

    /// Whether the sampler acts on the memory of processes.
    pub(crate) fn touches_processes(&self) -> bool {
        self.sampler.as_ref().is_some_and(|sampler| sampler.method() == Method::PageTables)
    }

    /// Counts of the CPUs' events, where the sampler has them.
    pub(crate) fn counters(&mut self) -> Option<Counters> {
        self.sampler.as_mut()?.counters()
    }

    /// A client came, with userfaultfds through which its writes can be tracked.
    pub(crate) fn client_came(&mut self, number: u32, userfaultfds: Vec<OwnedFd>) {
        let watch = Watch::Probation(userfaultfds);
        self.observed.insert(number, Observed { watch, watch_due_ms: 0 });
    }

    /// What compiled code of processes is to report.
    pub(crate) fn probe(&self) -> Option<ProbeTerms> {
        self.sampler.as_ref()?.probe()
    }

    /// Compiled code reported these, and could not report so many more.
    pub(crate) fn reported(&mut self, samples: &[Sample], lost: u64) {
        if let Some(sampler) = &mut self.sampler {
            sampler.reported(samples, lost);
        }
    }

    /// Whether a client is sampled.
    pub(crate) fn is_watched(&self, number: u32) -> bool {
        let observed = self.observed.get(&number);
        observed.is_some_and(|observed| matches!(observed.watch, Watch::Watched { .. }))
    }

    /// A client has left.
    pub(crate) fn client_left(&mut self, client: &Client) {
        let is_watched = self.is_watched(client.number);
        self.observed.remove(&client.number);
        if let Some(sampler) = self.sampler.as_mut().filter(|_| is_watched) {
            sampler.detach(client.pid);
        }
    }

    /// Begins to sample clients whose probation is over, and lets a sampler that watches ranges
    /// know of many new objects. Returns what did not work, for the user.
    pub(crate) fn attach_due(
        &mut self,
        clients: &Clients,
        ledger: &Ledger,
        purpose: Purpose,
        now_ms: u64,
    ) -> Vec<String> {
        let Some(sampler) = self.sampler.as_deref_mut() else { return Vec::new() };
        let mut problems = Vec::new();
        for client in clients.iter().filter(|client| !client.has_left()) {
            let Some(observed) = self.observed.get_mut(&client.number) else { continue };
            let live_bytes = client.live_bytes(ledger);
            let age_ms = now_ms.saturating_sub(client.since_ms);
            if purpose.is_recording || is_past_probation(age_ms, live_bytes) {
                problems.extend(observed.end_probation(sampler, client));
            }
            if sampler.method() == Method::PageTables && observed.has_grown_to(live_bytes) {
                observed.watch(sampler, ledger, (client, clients), purpose, now_ms);
            }
        }
        problems
    }

    /// Gives a sampler that watches ranges everything that lives.
    pub(crate) fn watch_all(
        &mut self,
        clients: &Clients,
        ledger: &Ledger,
        purpose: Purpose,
        now_ms: u64,
    ) {
        let Some(sampler) = self.sampler.as_deref_mut() else { return };
        if sampler.method() != Method::PageTables {
            return;
        }
        for client in clients.iter().filter(|client| !client.has_left()) {
            let observed = self.observed.get_mut(&client.number);
            if let Some(observed) =
                observed.filter(|one| matches!(one.watch, Watch::Watched { .. }))
            {
                observed.watch(sampler, ledger, (client, clients), purpose, now_ms);
            }
        }
    }

    /// Sets how many samples suffice: enough to distinguish the extents.
    pub(crate) fn set_sufficient_rate(&mut self, extents: u64, tick_ms: u64) {
        let per_tick = SAMPLES_PER_TICK_MIN.max(extents.saturating_mul(SAMPLES_PER_EXTENT));
        if let Some(sampler) = &mut self.sampler {
            sampler.set_useful_rate(per_tick as f64 * 1e3 / tick_ms as f64);
        }
    }

    /// Makes the sampler release what processes are moving themselves: they cannot move memory that
    /// is registered with another process's userfaultfd. `ranges`: those in flight, by process.
    pub(crate) fn release(
        &mut self,
        clients: &Clients,
        ranges: impl Fn(u32) -> Vec<std::ops::Range<u64>>,
    ) {
        let Some(sampler) = &mut self.sampler else { return };
        clients.iter().for_each(|client| sampler.release(client.pid, &ranges(client.pid)));
    }

    /// Whether a drain is due.
    pub(crate) fn is_drain_due(&self, now_ms: u64) -> bool {
        now_ms >= self.drain_due_ms
    }

    /// The next drain is due a while from now, or when the sampler wants it.
    pub(crate) fn drained(&mut self, now_ms: u64) {
        let wanted_ms = self.wanted_ms.map(|due_ms| due_ms.max(now_ms + DRAIN_MS_LEAST));
        self.drain_due_ms = wanted_ms.unwrap_or(now_ms + DRAIN_MS_MIN);
    }

    /// When the sampler wants the next drain, if it does not leave that to others.
    pub(crate) fn wanted_ms(&self) -> Option<u64> {
        self.wanted_ms.map(|_| self.drain_due_ms)
    }

    /// Takes the samples since the last drain; `None` without a sampler.
    pub(crate) fn drain(&mut self, now: Now) -> Option<(Drained, &[Sample])> {
        let sampler = self.sampler.as_mut()?;
        self.samples.clear();
        let drained = sampler.drain(now, &mut self.samples);
        self.wanted_ms = drained.due_ms;
        Some((drained, &self.samples))
    }
}

impl Observed {
    /// Attaches the sampler to a client on probation. Returns what did not work.
    fn end_probation(&mut self, sampler: &mut dyn Sampler, client: &Client) -> Option<String> {
        let Watch::Probation(userfaultfds) = &mut self.watch else { return None };
        let attached = attach(sampler, client, std::mem::take(userfaultfds));
        self.watch = match attached {
            Ok(()) => Watch::Watched { live_bytes: 0 },
            Err(_) => Watch::Refused,
        };
        attached.err()
    }

    /// True when much was born since the sampler learned of this client's ranges.
    fn has_grown_to(&self, live_bytes: u64) -> bool {
        let Watch::Watched { live_bytes: known } = self.watch else { return false };
        live_bytes.saturating_sub(known) > NEW_BYTES_MIN.max(known / NEW_PART)
    }

    /// Gives the sampler the client's ranges, unless it is too soon.
    fn watch(
        &mut self,
        sampler: &mut dyn Sampler,
        ledger: &Ledger,
        (client, clients): (&Client, &Clients),
        purpose: Purpose,
        now_ms: u64,
    ) {
        if now_ms < self.watch_due_ms {
            return;
        }
        sampler.allow(client.pid, purpose.allowed());
        let began = Instant::now();
        let ranges = ledger.ranges_of(client.pid).chain(clients.shared.views_of(client.pid));
        let mut ranges: Vec<_> = ranges.take(WATCHED_RANGES_MAX).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        sampler.watch(client.pid, &ranges);
        self.watch = Watch::Watched { live_bytes: client.live_bytes(ledger) };
        self.watch_due_ms = now_ms + pause_of_long_work_ms(began.elapsed(), WATCH_TIME_SHARE);
    }
}

fn attach(
    sampler: &mut dyn Sampler,
    client: &Client,
    userfaultfds: Vec<OwnedFd>,
) -> Result<(), String> {
    let pid = client.pid;
    if let Err(error) = sampler.attach(pid) {
        // One problem for all processes: texts with numbers in them are too many to count.
        return Err(format!("not sampled: {}", error.to_string().replace(&pid.to_string(), "N")));
    }
    userfaultfds.into_iter().for_each(|fd| sampler.accept(pid, TargetHandle::Userfaultfd(fd)));
    let header = client.session.header();
    let bytes = header.range_pages.saturating_mul(OS_PAGE_BYTES);
    sampler.may_split(pid, header.range_base..header.range_base.saturating_add(bytes));
    Ok(())
}
