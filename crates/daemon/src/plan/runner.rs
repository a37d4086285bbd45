//! A plan in a run: published to every client, and carried out when programs enter phases.
//! In: a plan, phases that programs enter, samples. Out: rows in sessions, moves, answers to
//! programs that wait for them, a [`PlanSummary`]. Knows nothing of how a plan was made, and gives
//! no job to the mover itself.
//!
//! ```text
//! hello          rows, stops -> session
//! phase entered  live objects that belong elsewhere now -> moves -> executed: phase done
//! tick           what the budget leaves -> session (the policy decides only with `adapt`)
//! ```

use super::choice::{PlanChoice, PlanRole};
use super::drift::Drift;
use super::objects::{objects, phase_hash_of, size_class};
use super::prefetch::Prefetch;
use super::rematch::Rematch;
use super::rows::PlanRows;
use super::split::{demoted, move_of, parts_of, ranges_of};
use crate::clients::client::Client;
use crate::clients::table::Clients;
use crate::moves::queue::PhaseEntry;
use crate::summary::PlanSummary;
use crate::tiers::Tiers;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use tiercel_ledger::movement::Move;
use tiercel_ledger::{Extent, Hit, Ledger, Range};
use tiercel_machine::NodeId;
use tiercel_machine::number::saturating_u64;
use tiercel_symbolize::Reader;
use tiercel_wire::layout::PHASE_START;
use tiercel_wire::{PlanError, Sample, Session, phase_hash};

/// Longest that an entry into a phase waits for its moves: 4 GiB at 1 GB/s. What takes longer
/// continues while the program runs.
const PHASE_WAIT_MS: u32 = 4_000;

/// Executions that may be in flight when a phase is entered: the mover's queue has two slots.
const EXECUTIONS_MAX: usize = 1;

/// The plan at work.
pub(crate) struct PlanRunner {
    rows: PlanRows,
    adapt: bool,
    /// It places births alone, and leaves all else to the policy.
    is_prior: bool,
    is_abandoned: bool,
    rematch: Rematch,
    prefetch: Prefetch,
    drift: Drift,
    /// By session number.
    followed: HashMap<u32, Followed>,
    phases_entered: u64,
    phases_moved: u64,
    /// Phase entries that were not published, of clients that have left.
    phases_lost: u64,
}

/// How far one client was followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Followed {
    /// Entries into phases.
    entries: u32,
    /// Hash of the phase it was in then.
    phase: u64,
    /// Sites it had, and sites it had used, when they were last compared with the plan.
    sites: (u32, usize),
    /// Stacks of it that were compared.
    stacks: usize,
}

/// A client entered a phase.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entered {
    pub(crate) entry: PhaseEntry,
    /// Hash of the phase, and of the one before.
    pub(crate) phase: u64,
    pub(crate) before: u64,
    /// Its program waits until its objects were moved.
    pub(crate) waits: bool,
}

impl PlanRunner {
    pub(crate) fn new(choice: PlanChoice, tiers: &Tiers, symbols: &Reader) -> PlanRunner {
        let planned = choice.plan.expected.time.and_then(|time| time.fast_share);
        let (adapt, is_prior, predicted) = match choice.role {
            PlanRole::Binding { adapt } => (adapt, false, planned),
            PlanRole::Prior { fast_share } => (true, true, Some(fast_share)),
        };
        PlanRunner {
            rows: PlanRows::new(&choice, &tiers.machine, &tiers.arenas),
            adapt,
            is_prior,
            is_abandoned: false,
            rematch: Rematch::new(symbols.clone()),
            prefetch: Prefetch::default(),
            drift: Drift::new(predicted),
            followed: HashMap::new(),
            phases_entered: 0,
            phases_moved: 0,
            phases_lost: 0,
        }
    }

    /// Whether it decides how much room births have: not once it was abandoned.
    pub(crate) fn divides_room(&self) -> bool {
        !self.is_abandoned && !self.is_prior
    }

    /// Whether it places births alone.
    pub(crate) fn is_prior(&self) -> bool {
        self.is_prior
    }

    /// Where a policy that knows nothing of it would begin blocks of small allocations, they begin
    /// where it has them.
    pub(crate) fn place_small(&self, clients: &Clients) {
        let small = self.rows.small_arena().filter(|_| self.is_prior && !self.is_abandoned);
        if let Some(small) = small {
            clients.iter().for_each(|client| client.session.set_small_arena(usize::from(small)));
        }
    }

    /// Whether the policy decides about what the plan does not place.
    pub(crate) fn adapts(&self) -> bool {
        self.adapt
    }

    /// True when programs wait at phase entries, which must be answered quickly.
    pub(crate) fn has_stops(&self) -> bool {
        !self.rows.stops().is_empty()
    }

    /// Publishes the plan to a new client. Its arenas are set.
    pub(crate) fn welcome(&self, session: &mut Session) -> Result<(), PlanError> {
        self.rows.publish(session, &[])?;
        if let Some(small) = self.rows.small_arena() {
            session.set_small_arena(usize::from(small));
        }
        session.set_stops(self.rows.stops(), PHASE_WAIT_MS);
        Ok(())
    }

    /// Publishes the rows to all clients again. Returns what did not work, for the user.
    pub(crate) fn publish(&self, clients: &mut Clients) -> Vec<String> {
        let published = clients.iter_mut().map(|client| self.publish_to(client));
        published.filter_map(|done| Some(done.err()?.to_string())).collect()
    }

    /// The same to one.
    pub(crate) fn publish_to(&self, client: &mut Client) -> Result<(), PlanError> {
        self.rows.publish(&mut client.session, &client.nursery_rows)
    }

    /// Phases that were entered since the last call. None while the mover is busy with earlier
    /// moves: then they are found at the next call.
    pub(crate) fn take_entered(&mut self, clients: &Clients, executions: usize) -> Vec<Entered> {
        if executions >= EXECUTIONS_MAX {
            return Vec::new();
        }
        clients.iter().filter_map(|client| self.entered(client)).collect()
    }

    fn entered(&mut self, client: &Client) -> Option<Entered> {
        let (entries, phase) = client.session.phase_entered();
        let followed = self.followed.entry(client.number).or_default();
        if entries == followed.entries {
            return None;
        }
        self.phases_entered += u64::from(entries.wrapping_sub(followed.entries));
        followed.entries = entries;
        let phase = phase_hash_of(&client.session, phase);
        let before = std::mem::replace(&mut followed.phase, phase);
        let before = if before == 0 { phase_hash(PHASE_START) } else { before };
        let waits = self.rows.stops().contains(&phase);
        Some(Entered { entry: (client.number, entries), phase, before, waits })
    }

    /// Moves of a phase entry were submitted.
    pub(crate) fn phase_moves(&mut self) {
        self.phases_moved += 1;
    }

    /// The phase that is predicted to follow one.
    pub(crate) fn next_phase(&self, phase: u64) -> Option<u64> {
        self.rows.next_phase(phase)
    }

    /// Moves that wait, during the phase that was entered, for the next one.
    pub(crate) fn prefetch(&mut self) -> &mut Prefetch {
        &mut self.prefetch
    }

    /// What lives of a client and belongs elsewhere in a phase: demotions first, then promotions,
    /// largest gain per byte first. The phase is entered from `before`; with `is_early`, only what
    /// may move during that one. The ledger's interval was closed, so that all that lives has rows.
    pub(crate) fn moves_into(
        &self,
        client: &mut Client,
        ledger: &Ledger,
        tiers: &Tiers,
        (before, phase): (u64, u64),
        is_early: bool,
    ) -> Vec<Move> {
        client.uses.learn(&client.session);
        let mut moves: Vec<(u8, Reverse<u64>, Move)> = Vec::new();
        for object in objects(ledger, client.pid) {
            let bytes = object.iter().map(|extent| extent.bytes).sum::<u64>();
            let Some(hash) = client.uses.hash(object[0].site) else { continue };
            let size_class = size_class(bytes);
            if is_early && !self.rows.is_early(hash, size_class, before) {
                continue;
            }
            let Some(row) = self.rows.find(hash, size_class, phase) else { continue };
            let was = self.rows.find(hash, size_class, before);
            let mut was = was.map_or(Vec::new(), |row| parts_of(row, bytes));
            let parts = parts_of(row, bytes);
            if was.len().max(parts.len()) < 2 {
                was.clear();
            }
            for (part, arena) in parts {
                let Some(to) = tiers.node_of(arena) else { continue };
                // An extent of a divided object is where most of it is: of one that is there, what
                // was elsewhere by the row before leaves nevertheless.
                let down = demoted(&part, arena, &was);
                let of = |extent: &Extent<'_>| match is_on(extent, to, tiers) {
                    true => down.clone(),
                    false => vec![part.clone()],
                };
                moves.extend(object.iter().flat_map(|extent| {
                    let heat = extent.accesses_per_s() / extent.bytes as f32;
                    let request = |part| move_of(client.pid, extent, object[0].addr, &part, to);
                    // Arenas are in the order of their tiers: the slowest one's come first.
                    let key = (u8::MAX - arena, Reverse(whole_heat(heat)));
                    let requested: Vec<Move> = of(extent).into_iter().filter_map(request).collect();
                    requested.into_iter().map(move |one| (key.0, key.1, one))
                }));
            }
        }
        moves.sort_by_key(|(order, heat, _)| (*order, *heat));
        moves.into_iter().map(|(_, _, requested)| requested).collect()
    }

    /// For the modelled mover: of newborn objects in two memories, the ranges that are elsewhere.
    pub(crate) fn ranges_of(
        &self,
        clients: &mut Clients,
        ledger: &Ledger,
        tiers: &Tiers,
        born: &[Range],
    ) -> Vec<(Range, NodeId)> {
        let pids: HashSet<u32> = born.iter().map(|range| range.pid).collect();
        let mut ranges = Vec::new();
        for pid in pids {
            let Some(client) = clients.of_pid_mut(pid) else { continue };
            client.uses.learn(&client.session);
            ranges.extend(ranges_of(&self.rows, client, ledger, tiers, born));
        }
        ranges
    }

    /// Follows sites of modules that were rebuilt: those that the plan has by function and line get
    /// its rows. True when there are new ones, which must be published.
    pub(crate) fn rematch(&mut self, clients: &mut Clients) -> bool {
        if self.is_prior {
            return false; // another build learns anew
        }
        for client in clients.iter_mut() {
            self.compare_sites(client);
        }
        let mut has_new = false;
        for (hash, keys) in self.rematch.found() {
            has_new |= self.rows.rematch(hash, &keys);
        }
        has_new
    }

    /// Has new stacks of a client symbolized, if they may be sites of the plan.
    fn compare_sites(&mut self, client: &mut Client) {
        let followed = self.followed.entry(client.number).or_default();
        let sites = (client.session.header().site_count, client.uses.len());
        if followed.sites == sites {
            return;
        }
        client.uses.learn(&client.session);
        let new = client.uses.stacks(followed.stacks);
        let mut possible = new.filter(|(hash, frames)| self.rows.may_match(*hash, frames));
        // What does not fit the queue is requested again at the next drain.
        if possible.all(|(hash, frames)| self.rematch.request(hash, frames)) {
            followed.stacks = client.uses.known_len();
            followed.sites = sites;
        }
    }

    /// Sites, by process, whose objects the plan places; the policy leaves them to it.
    pub(crate) fn placed_sites(&self, clients: &Clients) -> HashSet<(u32, u32)> {
        if self.is_abandoned || self.is_prior {
            return HashSet::new();
        }
        let of_client = |client: &Client| {
            let pid = client.pid;
            let placed = client.uses.known().filter(|(_, hash)| self.rows.has_site(*hash));
            placed.map(move |(site, _)| (pid, site)).collect::<Vec<_>>()
        };
        clients.iter().flat_map(of_client).collect()
    }

    /// A sample hit an object.
    pub(crate) fn sampled(&mut self, sample: &Sample, hit: &Hit, tiers: &Tiers) {
        self.drift.sampled(sample, hit, &tiers.fast, tiers.treatment.is_modelled);
    }

    /// Abandons the plan when it does not deliver what it predicted. Returns what did not work
    /// then, for the user.
    pub(crate) fn judge(&mut self, clients: &mut Clients) -> Vec<String> {
        if self.is_abandoned {
            return Vec::new();
        }
        let Some(failure) = self.drift.tick() else { return Vec::new() };
        self.is_abandoned = true;
        let what = if self.is_prior { "what was learned" } else { "the plan" };
        let next = if self.is_prior { "" } else { "; record again with this input" };
        self.rows.abandon(format!(
            "{what} was abandoned: {:.0}% of the accesses went to the fastest memory, where it \
             predicted {:.0}%{next}",
            failure.delivered * 100.0,
            failure.predicted * 100.0
        ));
        self.prefetch.clear();
        clients.iter().for_each(|client| client.session.set_stops(&[], 0));
        self.publish(clients)
    }

    /// A client has left: its entries since the last drain are counted.
    pub(crate) fn client_left(&mut self, client: &Client) {
        let followed = self.followed.remove(&client.number).unwrap_or_default();
        let (entries, _) = client.session.phase_entered();
        self.phases_entered += u64::from(entries.wrapping_sub(followed.entries));
        self.phases_lost += u64::from(client.session.header().phase_overflows);
    }

    /// What became of the plan so far.
    pub(crate) fn summary(&self, clients: &Clients) -> PlanSummary {
        let lost = clients.iter().map(|one| u64::from(one.session.header().phase_overflows));
        PlanSummary {
            phases_entered: self.phases_entered,
            phases_moved: self.phases_moved,
            phases_lost: self.phases_lost + lost.sum::<u64>(),
            early_bytes: self.prefetch.bytes(),
            adapt: self.adapt,
            ..self.rows.summary(&clients.born_bytes())
        }
    }
}

/// Accesses per second and byte as an integer that sorts, in units of 1e-9.
fn whole_heat(heat: f32) -> u64 {
    saturating_u64(f64::from(heat * 1e9))
}

fn is_on(extent: &Extent<'_>, node: NodeId, tiers: &Tiers) -> bool {
    let born_on = || extent.arena.and_then(|arena| tiers.node_of(arena));
    extent.residency.main_node().or_else(born_on) == Some(node)
}
