//! Who is observed, from when on, where and how finely.
//! In: clients by age and size, their ranges in the ledger. Out: what the sampler is told.
//! Knows nothing of how a sampler sees.
//!
//! A process that is gone within [`PROBATION_MS`] is only counted: shells, compilers and version
//! control start thousands of them, observing one costs as much as hosting it, and nothing can be
//! learned from it in time to move anything.

use crate::clients::client::Client;
use crate::daemon::Daemon;
use std::os::fd::OwnedFd;
use std::time::Instant;
use tiercel_ledger::Ledger;
use tiercel_sampler::{Help, Kind, Sampler};
use tiercel_wire::Backing;

/// Age at which a process is observed, milliseconds: most compiler runs are over by then.
const PROBATION_MS: u64 = 250;

/// And the bytes of live objects at which it is observed sooner.
const PROBATION_BYTES: u64 = 64 << 20;

/// The sampler hears of what was born before the next tick when it is a quarter of what it knows,
const BORN_SHARE: u64 = 4;

/// and at least so much, bytes.
const BORN_BYTES: u64 = 16 << 20;

/// Telling may cost this part of the time.
const TELLING_PAUSES: u64 = 100;

/// Ranges of one process that a sampler is told to watch.
const WATCHED_MAX: usize = 65_536;

/// Samples of an interval that suffice for each extent, in the mean: as many as tell which part of
/// it is hot.
const SAMPLES_ENOUGH: u64 = 32;

/// And that suffice together, with few extents.
const SAMPLES_LEAST: u64 = 1024;

/// How far the sampler knows a client.
pub(crate) enum Watch {
    /// On probation; the userfaultfds it lent.
    Probation(Vec<OwnedFd>),
    /// Observed where it had this many bytes of live objects.
    Watched { live_bytes: u64 },
    /// It cannot be observed.
    Unseen,
}

impl Daemon {
    /// Begins to observe those who stayed, and tells of what was born since.
    pub(crate) fn observe(&mut self, now_ms: u64) {
        let has_choice = self.has_choice();
        let Some(sampler) = &mut self.sampler else { return };
        let tells = sampler.kind() == Kind::Probe;
        for client in self.clients.values_mut() {
            let live_bytes = self.ledger.tracked_bytes(client.pid).map_or(0, |(live, _)| live);
            let stayed = self.recording.is_some()
                || now_ms >= client.since_ms + PROBATION_MS
                || live_bytes >= PROBATION_BYTES;
            if stayed && matches!(client.watch, Watch::Probation(_)) {
                client.watch = match attach(sampler.as_mut(), client) {
                    Ok(()) => Watch::Watched { live_bytes: 0 },
                    Err(problem) => {
                        self.summary.problem(problem);
                        Watch::Unseen
                    }
                };
            }
            if let Watch::Watched { live_bytes: known } = client.watch
                && tells
                && live_bytes.saturating_sub(known) > BORN_BYTES.max(known / BORN_SHARE)
                && now_ms >= client.tell_due_ms
            {
                sampler.may_split_huge(client.pid, has_choice);
                tell(sampler.as_mut(), &self.ledger, client, live_bytes, now_ms);
            }
        }
    }

    /// Whether knowing what is hot would make a difference: there are several kinds of memory,
    /// moves are real, and not everything fits the best one. Only then may observing disturb
    /// programs more than it costs in time.
    fn has_choice(&self) -> bool {
        let live_bytes = self.summary.objects.live_bytes;
        self.arenas.len() > 1 && !self.hands.keeps_books() && live_bytes > self.fast_budget_bytes()
    }

    /// The sampler lets go of what programs move themselves now: they cannot move what is
    /// registered with somebody else's userfaultfd.
    pub(crate) fn let_go(&mut self) {
        let Some(sampler) = &mut self.sampler else { return };
        if self.config.backing == Backing::Kernel {
            return;
        }
        for client in self.clients.values() {
            let moves = self.moving.iter().flatten().filter(|moved| moved.pid == client.pid);
            let ranges = moves.map(|moved| moved.addr..moved.addr + moved.bytes);
            sampler.let_go(client.pid, &ranges.collect::<Vec<_>>());
        }
    }

    /// Tells how many samples are of use: enough to tell extents apart. A recorded run, or one on
    /// paper, is looked at as finely as it can be.
    pub(crate) fn tell_enough(&mut self) {
        if self.recording.is_some() || self.hands.keeps_books() {
            return;
        }
        let (extents, _) = self.ledger.extent_totals();
        let enough = SAMPLES_LEAST.max(extents.saturating_mul(SAMPLES_ENOUGH));
        if let Some(sampler) = &mut self.sampler {
            sampler.enough(enough as f64 * 1e3 / self.config.tick_ms as f64);
        }
    }

    /// Tells of everything that lives.
    pub(crate) fn tell_sampler(&mut self, now_ms: u64) {
        let has_choice = self.has_choice();
        let Some(sampler) = self.sampler.as_mut().filter(|s| s.kind() == Kind::Probe) else {
            return;
        };
        for client in self.clients.values_mut() {
            if matches!(client.watch, Watch::Watched { .. }) && now_ms >= client.tell_due_ms {
                let live_bytes = self.ledger.tracked_bytes(client.pid).map_or(0, |(live, _)| live);
                sampler.may_split_huge(client.pid, has_choice);
                tell(sampler.as_mut(), &self.ledger, client, live_bytes, now_ms);
            }
        }
    }
}

fn attach(sampler: &mut dyn Sampler, client: &mut Client) -> Result<(), String> {
    let pid = client.pid;
    if let Err(error) = sampler.attach(pid) {
        // Texts with numbers in them are too many to count.
        return Err(format!("not sampled: {}", error.to_string().replace(&pid.to_string(), "N")));
    }
    if let Watch::Probation(lent) = &mut client.watch {
        lent.drain(..).for_each(|fd| sampler.lend(pid, Help::Userfaultfd(fd)));
    }
    let header = client.session.header();
    let bytes = header.range_pages.saturating_mul(tiercel_wire::layout::OS_PAGE_BYTES);
    sampler.may_split(pid, header.range_base..header.range_base.saturating_add(bytes));
    Ok(())
}

fn tell(
    sampler: &mut dyn Sampler,
    ledger: &Ledger,
    client: &mut Client,
    live_bytes: u64,
    now_ms: u64,
) {
    let began = Instant::now();
    let ranges = ledger.ranges_of(client.pid).take(WATCHED_MAX);
    sampler.watch(client.pid, &ranges.collect::<Vec<_>>());
    client.watch = Watch::Watched { live_bytes };
    client.tell_due_ms = now_ms + began.elapsed().as_millis() as u64 * TELLING_PAUSES;
}
