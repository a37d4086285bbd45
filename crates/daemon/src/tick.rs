//! What the daemon does as time goes by: drain, close the interval, look, decide, move.
//! In: the daemon's state, the time. Out: a changed state, jobs for the mover, birth budgets.
//!
//! ```text
//! Drain (4..100 ms)   rings -> ledger; samples -> ledger; clock -> clients; resync after a loss
//! Tick  (2 s)         drain; ledger.tick; count what lives; Job::Look at what nobody knows
//!   Looked            residency -> ledger; policy.tick; Job::Execute
//!   Executed          outcomes -> ledger, log; birth budgets -> clients
//! ```

use crate::clients::client::{Client, LAST_TURNS_MAX};
use crate::cpu;
use crate::daemon::Daemon;
use crate::moves::queue::{Done, Job};
use std::collections::BTreeMap;
use std::time::Instant;
use tiercel_ledger::Range;
use tiercel_ledger::movement::{Move, Outcome};
use tiercel_mover as mover;
use tiercel_policy::Interval;
use tiercel_wire::AccessKind;
use tiercel_wire::layout::RING_RECORDS;

/// Extents looked up in one tick. The kernel's answer costs 0.1 to 0.3 us an OS page.
const LOOKS_MAX: usize = 4096;

/// The same for a mover that keeps books: half a microsecond each.
const BOOKED_MAX: usize = 1 << 18;

/// Extents whose residency is refreshed in one tick although something is known of it.
const REFRESHES_MAX: usize = 256;

/// Age at which it is, in ticks: memory is touched after its birth, and the kernel moves it too.
const REFRESH_TICKS: u64 = 5;

/// Looking again may cost this part of the time: half a percent.
const REFRESH_PAUSES: u64 = 200;

/// Looking at all extents may cost this part of the time: one percent.
const LOOK_PAUSES: f64 = 100.0;

/// Records in a ring at which the next drain comes sooner.
const RING_QUARTER: usize = RING_RECORDS / 4;

/// Draining records may cost this part of the time.
const DRAIN_PAUSES: u64 = 8;

/// Shortest time between two drains of the sampler, milliseconds.
const SAMPLE_MS: u64 = 50;

impl Daemon {
    /// Drains all rings and the sampler, and heals what lost records.
    pub(crate) fn drain(&mut self) {
        let now = self.now_ms();
        self.ledger.advance(now);
        let began_ns = cpu::thread_ns();
        let (mut most, mut more) = (0, false);
        let hands = &mut self.hands;
        for client in self.clients.values_mut() {
            client.session.set_clock_ms(now);
            let died = |pid, addr, bytes| hands.died(pid, mover::Range { addr, bytes });
            let drained = client.drain(&mut self.ledger, &mut self.records, now, died);
            most = most.max(drained.records);
            more |= drained.more;
            if !drained.more {
                client.heal(&mut self.ledger, now);
            }
            if let Some(recording) = &mut self.recording {
                recording.hear(&mut self.ledger);
            }
        }
        let took_ns = cpu::since_ns(began_ns);
        self.summary.spent.records_ns += took_ns;
        self.note_peak();
        self.match_by_name();
        self.follow_phases();
        let began_ns = cpu::thread_ns();
        self.observe(now);
        self.summary.spent.samples_ns += cpu::since_ns(began_ns);
        if now >= self.pace.sample_due_ms {
            self.drain_samples();
            self.note_untracked();
            self.pace.sample_due_ms = now + SAMPLE_MS;
        }
        self.set_pace(most, more, took_ns, now);
    }

    fn set_pace(&mut self, most: usize, more: bool, took_ns: u64, now_ms: u64) {
        let bounds = (self.config.poll_min_ms, self.config.poll_max_ms);
        let every_ms = pause_ms(self.pace.drain_every_ms, most, took_ns, bounds);
        self.pace.drain_every_ms = every_ms;
        self.pace.drain_due_ms = if more { now_ms } else { now_ms + every_ms };
    }

    /// Takes everything a leaving client left, bounded.
    pub(crate) fn drain_last(&mut self, number: u32) {
        let now = self.now_ms();
        self.ledger.advance(now);
        let Some(client) = self.clients.get_mut(&number) else { return };
        let hands = &mut self.hands;
        for _ in 0..LAST_TURNS_MAX {
            let died = |pid, addr, bytes| hands.died(pid, mover::Range { addr, bytes });
            let more = client.drain(&mut self.ledger, &mut self.records, now, died).more;
            if let Some(recording) = &mut self.recording {
                recording.hear(&mut self.ledger);
            }
            if !more {
                break;
            }
        }
        self.note_peak();
    }

    /// Takes what the sampler saw into the ledger.
    pub(crate) fn drain_samples(&mut self) {
        let now = self.now_ms();
        let Some(sampler) = &mut self.sampler else { return };
        let began_ns = cpu::thread_ns();
        self.samples.clear();
        let drained = sampler.drain(now, &mut self.samples);
        self.summary.samples.lost += drained.lost;
        self.summary.samples.throttled += drained.throttled;
        self.summary.samples.blind += drained.blind;
        let on_paper = self.hands.keeps_books();
        for sample in &self.samples {
            if let Some(recording) = &mut self.recording {
                recording.sampled(sample);
            }
            // No access of its own: its line was read or written, and that was sampled.
            if sample.kind == AccessKind::Dirtied {
                continue;
            }
            let Some(hit) = self.ledger.sample(sample) else { continue };
            if let Some(number) = self.numbers.get(&sample.pid)
                && let Some(client) = self.clients.get_mut(number)
            {
                client.uses.sampled(hit.site, sample);
            }
            if let Some(planned) = &mut self.planned {
                planned.promise.hit(sample, &hit, &self.fast, on_paper);
            }
        }
        self.summary.spent.samples_ns += cpu::since_ns(began_ns);
    }

    /// Closes the interval; a decision follows when the mover has looked.
    pub(crate) fn tick(&mut self) {
        self.clients.values().for_each(|client| client.session.mark_births());
        self.drain();
        self.drain_samples();
        let now = self.now_ms();
        let began_ns = cpu::thread_ns();
        self.ledger.fit_extents(self.fast_budget_bytes());
        self.close_interval();
        self.summary.spent.ticks += 1;
        if !self.clients.is_empty() {
            self.summary.budget.used_bytes = self.fast_used_bytes();
        }
        self.forget_those_elsewhere();
        let stale = self.look_at_all(now);
        self.summary.spent.ledger_ns += cpu::since_ns(began_ns);
        // A late tick does not make the next ones early.
        self.pace.tick_due_ms = now.max(self.pace.tick_due_ms) + self.config.tick_ms;
        let began_ns = cpu::thread_ns();
        self.tell_sampler(now);
        self.tell_enough();
        self.summary.spent.samples_ns += cpu::since_ns(began_ns);
        if self.recording.is_some() {
            // Everything stays where the program and the kernel put it.
            return;
        }
        self.collect();
        if self.hands.has_failed() {
            self.summary.problem("the mover failed: nothing moves any longer".to_owned());
            return;
        }
        if self.hands.is_busy() {
            self.summary.spent.ticks_busy += 1;
            return;
        }
        let mut wanted = self.born_unlocated();
        wanted.extend(stale);
        if wanted.is_empty() || self.hands.give(Job::Look(by_process(wanted))).is_err() {
            self.decide();
        }
        self.collect();
    }

    /// What was born and still lives becomes records.
    pub(crate) fn close_interval(&mut self) {
        let closed = Interval::of(&self.ledger.tick(self.now_ms()));
        self.pace.undecided.elapsed_ms += closed.elapsed_ms;
        self.pace.undecided.allocated_bytes += closed.allocated_bytes;
    }

    /// Lets go of clients that run another program, one without the runtime.
    fn forget_those_elsewhere(&mut self) {
        let gone = self.clients.iter().filter(|(_, client)| client.has_exec_ed());
        let gone: Vec<u32> = gone.map(|(number, _)| *number).collect();
        for number in gone {
            self.forget(number);
        }
    }

    /// What the mover found or did.
    pub(crate) fn mover_done(&mut self, done: Done) {
        match done {
            Done::Looked { answers, took_ns } => {
                self.summary.spent.mover_ns += took_ns;
                let now = self.now_ms();
                self.pace.refresh_due_ms = now + took_ns * REFRESH_PAUSES / 1_000_000;
                for (pid, range, found) in answers {
                    match found {
                        Ok(at) => {
                            let range = Range { pid, addr: range.addr, bytes: range.bytes };
                            self.ledger.set_residency(range, &at.nodes, now);
                        }
                        Err(mover::ResidencyError::Vanished) => {}
                        Err(error) => self.summary.problem(format!("cannot look: {error}")),
                    }
                }
                self.decide();
                self.collect();
            }
            Done::Executed { outcomes, took_ns } => {
                self.summary.spent.mover_ns += took_ns;
                self.moving.pop_front();
                self.let_go();
                for outcome in outcomes {
                    self.note_outcome(outcome);
                }
                self.job_done();
            }
        }
    }

    fn note_outcome(&mut self, outcome: Outcome) {
        self.ledger.outcome(&outcome);
        self.policy.outcome(&outcome);
        let Move { pid, addr, .. } = outcome.asked;
        let site = self.ledger.site_at(pid, addr).filter(|site| *site != 0);
        let client = self.numbers.get(&pid).and_then(|number| self.clients.get(number));
        let site = client.zip(site).and_then(|(client, site)| client.session.site(site));
        self.moves.note(self.now_ms(), site.map_or(0, |site| site.hash), outcome);
    }

    /// Counts what lives, by site, and finds extents whose residency is stale.
    fn look_at_all(&mut self, now_ms: u64) -> Vec<Range> {
        if now_ms < self.pace.look_due_ms {
            return Vec::new();
        }
        let began = Instant::now();
        let numbers: Vec<u32> = self.clients.keys().copied().collect();
        let mut stale = Vec::new();
        let old_ms = now_ms.saturating_sub(self.config.tick_ms * REFRESH_TICKS);
        let refreshes_max = if now_ms < self.pace.refresh_due_ms { 0 } else { REFRESHES_MAX };
        for number in numbers {
            let Some(mut client) = self.clients.remove(&number) else { continue };
            client.end_first_look();
            self.look_at(&mut client);
            for extent in self.ledger.extents_of(client.pid) {
                let as_of = extent.residency.as_of_ms;
                if stale.len() < refreshes_max && as_of.is_some_and(|at| at <= old_ms) {
                    stale.push(Range { pid: extent.pid, addr: extent.addr, bytes: extent.bytes });
                }
            }
            self.clients.insert(number, client);
        }
        self.note_fits();
        let took_ms = began.elapsed().as_secs_f64() * 1e3;
        self.pace.look_due_ms = now_ms + (took_ms * LOOK_PAUSES) as u64;
        stale
    }

    /// Counts what lives of one client, by site.
    pub(crate) fn look_at(&self, client: &mut Client) {
        client.uses.begin_look();
        for extent in self.ledger.extents_of(client.pid) {
            let used = client.uses.of(extent.site);
            used.live_bytes += extent.bytes;
            used.heat += f64::from(extent.accesses_per_s());
            for (node, bytes) in extent.residency.iter() {
                *used.nodes.entry(node).or_default() += bytes;
            }
        }
        client.uses.end_look();
    }

    /// What was born and nobody knows where it is; the books hear of it.
    fn born_unlocated(&mut self) -> Vec<Range> {
        let limit = if self.hands.keeps_books() { BOOKED_MAX } else { LOOKS_MAX };
        let born = self.ledger.take_unlocated(limit);
        self.book_births(&born);
        born
    }

    /// The books know all that lives: what they do not know they do not move.
    pub(crate) fn book(&mut self) {
        if !self.hands.keeps_books() {
            return;
        }
        let born = self.born_unlocated();
        if !born.is_empty() && self.hands.give(Job::Look(by_process(born))).is_ok() {
            self.collect();
        }
    }

    /// A mover that keeps books hears of the objects that became records.
    fn book_births(&mut self, born: &[Range]) {
        for &Range { pid, addr, bytes } in born {
            let arena = self.ledger.find(pid, addr).and_then(|extent| extent.arena);
            let node = arena.and_then(|arena| self.arenas.get(usize::from(arena)));
            self.hands.born(pid, mover::Range { addr, bytes }, node.copied());
        }
        for (pid, head, node) in self.heads_of(born) {
            let range = mover::Range { addr: head.start, bytes: head.end - head.start };
            self.hands.born(pid, range, Some(node));
        }
    }

    fn note_peak(&mut self) {
        let tracked = |client: &Client| self.ledger.tracked_bytes(client.pid).map_or(0, |b| b.0);
        let live: u64 = self.clients.values().map(tracked).sum();
        let objects = &mut self.summary.objects;
        objects.live_bytes = live;
        objects.peak_bytes = objects.peak_bytes.max(live);
    }
}

/// Time to the next drain: sooner when rings fill, later when they do not, at once in one step. A
/// ring must not fill between two drains, an idle daemon must cost nothing that can be measured,
/// and a flood of records (100 ns each) must not cost more than its part of a CPU: what is lost
/// then is healed.
fn pause_ms(every_ms: u64, most: usize, took_ns: u64, (shortest, longest): (u64, u64)) -> u64 {
    let every_ms = if most > RING_QUARTER {
        every_ms * RING_QUARTER as u64 / most as u64
    } else if most < RING_QUARTER / 4 {
        every_ms + every_ms / 4 + 1
    } else {
        every_ms
    };
    let earned_ms = took_ns * DRAIN_PAUSES / 1_000_000;
    every_ms.max(earned_ms).clamp(shortest, longest)
}

/// Ranges grouped by process, as movers want them.
fn by_process(ranges: Vec<Range>) -> Vec<(u32, Vec<mover::Range>)> {
    let mut grouped: BTreeMap<u32, Vec<mover::Range>> = BTreeMap::new();
    for Range { pid, addr, bytes } in ranges {
        grouped.entry(pid).or_default().push(mover::Range { addr, bytes });
    }
    grouped.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drains_follow_the_rings_within_their_part_of_the_time() {
        let check = |every_ms, most, took_us: u64, expect| {
            assert_eq!(pause_ms(every_ms, most, took_us * 1000, (4, 100)), expect);
        };
        check(100, 0, 10, 100);
        check(100, 4 * RING_QUARTER, 400, 25);
        check(100, 64 * RING_QUARTER, 400, 4);
        check(4, 4 * RING_QUARTER, 400, 4);
        check(4, 4 * RING_QUARTER, 3_000, 24);
        check(4, 4 * RING_QUARTER, 900_000, 100);
        check(40, RING_QUARTER / 2, 10, 40);
        check(40, 10, 10, 51);
    }
}
