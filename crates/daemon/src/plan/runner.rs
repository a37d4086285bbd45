//! A plan in a run: told to every client, and carried out when the program enters a phase.
//! In: a [`Plan`], phases that programs enter. Out: rows in sessions, moves, answers to whoever
//! waits for them, [`PlanSummary`]. Knows nothing of how a plan was made.
//!
//! ```text
//! hello          rows, stops, spaces -> session
//! phase entered  what lives and belongs elsewhere now -> Job::Execute -> done: phase_done
//! tick           what is left of the budget -> session (the policy decides only with `adapt`)
//! ```

use crate::clients::client::Client;
use crate::daemon::Daemon;
use crate::plan::drift::Promise;
use crate::plan::prefetch::Ahead;
use crate::plan::rematch::Matcher;
use crate::plan::split::{move_of, parts_of};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use tiercel_ledger::movement::Move;
use tiercel_ledger::{Extent, Ledger};
use tiercel_machine::{Machine, NodeId, Space};
use tiercel_plan::{Fit, Plan, PlannedSite, fit};
use tiercel_symbolize::{SiteFrame, hex};
use tiercel_wire::layout::{
    NODE_MODELLED, NODE_NONE, PHASE_START, PLAN_CLASS_ANY, PLAN_SHARE_ALL, SPACES,
};
use tiercel_wire::{PlanRow, Session, phase_hash};

/// Longest an entry into a phase waits for its moves: 4 GiB at 1 GB/s. What takes longer goes on
/// while the program runs.
const PHASE_WAIT_MS: u32 = 4_000;

/// Large objects of one site that a profile and a plan tell apart: H2M's multi-phase benchmark has
/// thirty, hotcold of `movers` 96.
const NUMBERED_BIRTHS: u32 = 128;

/// Jobs that may be under way when a phase is entered: the mover's queue has two places.
const JOBS_AHEAD: usize = 1;

/// Row of no site: a plan without rows is a plan nevertheless.
const NOBODY: PlanRow = PlanRow {
    site: u64::MAX,
    size_class: PLAN_CLASS_ANY,
    phase: u64::MAX,
    arena: 0,
    other: 0,
    share: PLAN_SHARE_ALL,
};

/// A plan and how it is used.
#[derive(Clone, Debug)]
pub struct PlanChoice {
    /// What to do. Shared: a large plan takes milliseconds to copy, and to give back.
    pub plan: Arc<Plan>,
    /// The policy decides about what it does not know, and takes over when it is not kept.
    pub adapt: bool,
}

/// What became of a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlanSummary {
    /// Sites it knows.
    pub sites: u64,
    /// Of those, sites at which the programs allocated.
    pub matched: u64,
    /// Of those, found again by function and line, in another build.
    pub by_name: u64,
    /// Places of sites that nobody came by, those with most room first; at most sixteen.
    pub unmatched: Vec<String>,
    /// Bytes born at sites it knows.
    pub planned_bytes: u64,
    /// Bytes born elsewhere; blocks of small slots are not counted.
    pub unplanned_bytes: u64,
    /// Entries into phases.
    pub phases_entered: u64,
    /// Entries at which something had to be moved.
    pub phases_moved: u64,
    /// Entries that were not told: too many names, or several threads at once.
    pub phases_lost: u64,
    /// Bytes given to the mover during the phase before the one they were for.
    #[serde(default)]
    pub early_bytes: u64,
    /// What of it does not match the machine.
    pub remarks: Vec<String>,
    /// The policy decides about what it does not know, and about all once it is given up.
    pub adapt: bool,
}

/// Unmatched sites that are named.
const UNMATCHED_MAX: usize = 16;

/// The plan at work.
pub(crate) struct Planned {
    pub(crate) choice: PlanChoice,
    fit: Fit,
    /// Rows as clients have them, by key.
    rows: HashMap<(u64, u8, u64), PlanRow>,
    /// Sites under the hashes they have in this build: the plan's, and those found by name.
    hashes: HashMap<u64, usize>,
    by_name: HashSet<u64>,
    /// Jobs given to the mover, oldest first: whose phase entry they belong to.
    jobs: VecDeque<Option<(u32, u32)>>,
    matcher: Matcher,
    phases_entered: u64,
    phases_moved: u64,
    /// Moves for next phases, by client.
    pub(crate) ahead: Vec<Ahead>,
    pub(crate) early_bytes: u64,
    pub(crate) promise: Promise,
    /// It holds no longer; its remarks say why.
    given_up: bool,
}

impl Planned {
    pub(crate) fn new(choice: PlanChoice, machine: &Machine, arenas: &[NodeId]) -> Planned {
        let fit = fit(&choice.plan, machine, arenas);
        let hashes = choice.plan.sites.iter().enumerate().map(|(index, site)| (site.hash, index));
        let mut planned = Planned {
            rows: HashMap::new(),
            hashes: hashes.collect(),
            by_name: HashSet::new(),
            jobs: VecDeque::new(),
            matcher: Matcher::default(),
            phases_entered: 0,
            phases_moved: 0,
            ahead: Vec::new(),
            early_bytes: 0,
            promise: Promise::new(choice.plan.expected.time.and_then(|time| time.fast_share)),
            given_up: false,
            fit,
            choice,
        };
        planned.index_rows();
        planned
    }

    /// True when it places the objects of a site.
    pub(crate) fn knows(&self, site: u64) -> bool {
        self.hashes.contains_key(&site)
    }

    /// From now on it places nothing and moves nothing. What was met stays counted.
    pub(crate) fn give_up(&mut self, why: String) {
        self.given_up = true;
        self.rows.clear();
        let mut remarks = std::mem::take(&mut self.fit.remarks);
        remarks.push(why);
        self.fit = Fit::default();
        self.fit.remarks = remarks;
        self.ahead.clear();
    }

    /// The phase that is to follow one.
    pub(crate) fn next_of(&self, phase: u64) -> Option<u64> {
        self.fit.next.get(&phase).copied()
    }

    /// True when the mover has nothing to do for this plan.
    pub(crate) fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Whether the objects of a site and size may move during a phase for the next one.
    fn is_early(&self, site: u64, size_class: u8, phase: u64) -> bool {
        let name = self.fit.phases.get(&phase);
        let site = self.hashes.get(&site).and_then(|index| self.choice.plan.sites.get(*index));
        let (Some(name), Some(site)) = (name, site) else { return false };
        let mut classes = site.classes.iter().filter(|class| class.size_class() == size_class);
        classes.any(|class| class.prefetch.contains(name))
    }

    /// True when phase entries have to be answered quickly.
    pub(crate) fn has_stops(&self) -> bool {
        !self.fit.stops.is_empty()
    }

    fn index_rows(&mut self) {
        let rows = self.fit.rows.iter().rev();
        self.rows = rows.map(|row| ((row.site, row.size_class, row.phase), *row)).collect();
    }

    /// Adds the rows of a site that was found by name under another hash.
    fn add_site(&mut self, index: usize, hash: u64) {
        let Some(site) = self.choice.plan.sites.get(index) else { return };
        let rows: Vec<PlanRow> = self.fit.rows_of(site, hash).collect();
        self.fit.rows.extend(rows);
        self.hashes.insert(hash, index);
        self.by_name.insert(hash);
        self.index_rows();
    }

    /// The row that holds for an object, as the runtime finds it.
    pub(crate) fn row(&self, site: u64, size_class: u8, phase: u64) -> Option<&PlanRow> {
        let keys =
            [(size_class, phase), (size_class, 0), (PLAN_CLASS_ANY, phase), (PLAN_CLASS_ANY, 0)];
        keys.iter().find_map(|(class, phase)| self.rows.get(&(site, *class, *phase)))
    }

    fn tell(&self, session: &mut Session) -> Result<(), tiercel_wire::PlanError> {
        let mut rows = self.fit.rows.clone();
        rows.push(NOBODY);
        session.set_plan(&rows, self.fit.unplanned)
    }

    /// `seen`: bytes born by hash of the site.
    fn summary(&self, seen: &HashMap<u64, u64>) -> PlanSummary {
        let mut matched: HashMap<usize, bool> = HashMap::new();
        let (mut planned_bytes, mut unplanned_bytes) = (0, 0);
        for (hash, bytes) in seen {
            match self.hashes.get(hash) {
                Some(site) => {
                    *matched.entry(*site).or_insert(true) &= self.by_name.contains(hash);
                    planned_bytes += bytes;
                }
                None => unplanned_bytes += bytes,
            }
        }
        let room =
            |site: &PlannedSite| site.classes.iter().map(|class| class.peak_bytes).sum::<u64>();
        let sites = &self.choice.plan.sites;
        let missed = sites.iter().enumerate().filter(|(index, _)| !matched.contains_key(index));
        let mut missed: Vec<&PlannedSite> = missed.map(|(_, site)| site).collect();
        missed.sort_by_key(|site| Reverse(room(site)));
        PlanSummary {
            sites: sites.len() as u64,
            matched: matched.len() as u64,
            by_name: matched.values().filter(|by_name| **by_name).count() as u64,
            unmatched: missed.iter().take(UNMATCHED_MAX).map(|site| site.label.clone()).collect(),
            planned_bytes,
            unplanned_bytes,
            phases_entered: self.phases_entered,
            phases_moved: self.phases_moved,
            phases_lost: 0,
            early_bytes: self.early_bytes,
            remarks: self.fit.remarks.clone(),
            adapt: self.choice.adapt,
        }
    }
}

impl Daemon {
    /// Tells a new client its spaces and the plan. Its arenas are set.
    pub(crate) fn give_plan(&mut self, session: &mut Session) {
        session.set_spaces(self.spaces());
        if self.planned.is_some() || self.recording.is_some() {
            session.set_numbered_births(NUMBERED_BIRTHS);
        }
        let Some(planned) = &self.planned else { return };
        if let Err(error) = planned.tell(session) {
            self.summary.problem(error.to_string());
            return;
        }
        if let Some(small) = planned.fit.small.or(planned.fit.unplanned) {
            session.set_small_arena(usize::from(small));
        }
        session.set_stops(&planned.fit.stops, PHASE_WAIT_MS);
    }

    /// The plan, unless there is none or it was given up.
    pub(crate) fn kept_plan(&self) -> Option<&Planned> {
        self.planned.as_ref().filter(|planned| !planned.given_up)
    }

    /// Tells every client that the plan has other rows.
    pub(crate) fn tell_plan(&mut self) {
        let Some(planned) = &self.planned else { return };
        for client in self.clients.values_mut() {
            if let Err(error) = planned.tell(&mut client.session) {
                self.summary.problem(error.to_string());
            }
        }
    }

    /// Kernel's number of an arena's node, as sessions are told it. On paper nothing may be bound;
    /// of planned births the arena is told nevertheless, for the books.
    pub(crate) fn node_of_arena(&self, id: NodeId) -> i32 {
        match (self.hands.keeps_books(), self.planned.is_some()) {
            (false, _) => i32::from(id.0),
            (true, true) => NODE_MODELLED,
            (true, false) => NODE_NONE,
        }
    }

    /// Looks whether programs entered phases, and starts what the plan wants moved then.
    pub(crate) fn follow_phases(&mut self) {
        self.collect(); // books have no bell that rings when a job is done
        let Some(planned) = &self.planned else { return };
        let entered = self.clients.iter().filter_map(|(number, client)| {
            let (entries, phase) = client.session.phase_entered();
            (entries != client.phase_entries).then_some((*number, entries, phase))
        });
        let entered: Vec<(u32, u32, u32)> = entered.collect();
        if entered.is_empty() || planned.jobs.len() >= JOBS_AHEAD {
            return; // what waits for a mover at work is looked at again at the next drain
        }
        for (number, entries, phase) in entered {
            self.enter_phase(number, entries, phase);
        }
        self.collect();
    }

    fn enter_phase(&mut self, number: u32, entries: u32, phase: u32) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let hash = phase_hash_of(&client.session, phase);
        let entered = entries.wrapping_sub(client.phase_entries);
        client.phase_entries = entries;
        let moving = self.planned.as_mut().is_some_and(|planned| {
            planned.phases_entered += u64::from(entered);
            planned.fit.stops.contains(&hash)
        });
        let moves = if moving { self.moves_into(number, hash, None) } else { Vec::new() };
        if moves.is_empty() || !self.give_moves(moves, Some((number, entries))) {
            self.phase_moved(number, entries); // nobody waits for what does not come
        } else if let Some(planned) = &mut self.planned {
            planned.phases_moved += 1;
        }
        self.look_ahead(number, entries, hash);
        self.move_ahead();
    }

    /// The mover was given moves of a phase entry, or of the policy.
    pub(crate) fn job_given(&mut self, entry: Option<(u32, u32)>) {
        if let Some(planned) = &mut self.planned {
            planned.jobs.push_back(entry);
        }
    }

    /// The mover has executed the oldest job.
    pub(crate) fn job_done(&mut self) {
        let Some(planned) = &mut self.planned else { return };
        if let Some(Some((number, entries))) = planned.jobs.pop_front() {
            self.refill();
            self.phase_moved(number, entries);
        }
        self.move_ahead();
    }

    /// A client leaves: entries since the last look are counted, and nothing waits for them.
    pub(crate) fn note_phases(&mut self, client: &Client) {
        let (entries, _) = client.session.phase_entered();
        if let Some(planned) = &mut self.planned {
            planned.phases_entered += u64::from(entries.wrapping_sub(client.phase_entries));
        }
    }

    fn phase_moved(&self, number: u32, entries: u32) {
        if let Some(client) = self.clients.get(&number) {
            client.session.set_phase_done(entries);
        }
    }

    /// Sets what may still be born in the fast memory to what the budget leaves.
    pub(crate) fn refill(&self) {
        if self.kept_plan().is_none() {
            return;
        }
        let used: u64 = self.clients.values().map(|client| self.fast_bytes_of(client)).sum();
        let left = self.fast_budget_bytes().saturating_sub(used);
        let share = self.share_of_arena(left, self.clients.len());
        for client in self.clients.values() {
            self.grant_births(&client.session, share);
        }
    }

    /// Bytes of live objects that are in the fast memory or will be when they are touched.
    fn fast_bytes_of(&self, client: &Client) -> u64 {
        let is_fast = |extent: &Extent<'_>| match extent.residency.main_node() {
            Some(node) => self.fast.contains(&node),
            None => extent
                .arena
                .and_then(|arena| self.arenas.get(usize::from(arena)))
                .is_some_and(|id| self.fast.contains(id)),
        };
        let extents = self.ledger.extents_of(client.pid);
        extents
            .filter(|extent| !extent.is_block && is_fast(extent))
            .map(|extent| extent.bytes)
            .sum()
    }

    /// What lives of a client and belongs elsewhere in the phase with this hash: what leaves fast
    /// memory first, then what goes there, largest gain per byte first. With `during`, only what
    /// may move during that phase.
    pub(crate) fn moves_into(&mut self, number: u32, phase: u64, during: Option<u64>) -> Vec<Move> {
        self.close_interval(); // what was born since the last tick is a record from now on
        self.book();
        let Daemon { clients, ledger, planned, arenas, .. } = self;
        let (Some(client), Some(planned)) = (clients.get_mut(&number), planned) else {
            return Vec::new();
        };
        client.uses.learn(&client.session);
        let mut moves: Vec<(u8, Reverse<u64>, Move)> = Vec::new();
        for object in objects(ledger, client.pid) {
            let (bytes, site) = (object.iter().map(|e| e.bytes).sum::<u64>(), object[0].site);
            let Some(hash) = client.uses.hash(site) else { continue };
            if during.is_some_and(|now| !planned.is_early(hash, size_class(bytes), now)) {
                continue;
            }
            let Some(row) = planned.row(hash, size_class(bytes), phase) else { continue };
            for (part, arena) in parts_of(row, bytes) {
                let Some(to) = arenas.get(usize::from(arena)) else { continue };
                let away = object.iter().filter(|extent| !lies_on(extent, *to, arenas));
                moves.extend(away.filter_map(|extent| {
                    let heat = extent.accesses_per_s() / extent.bytes as f32;
                    let asked = move_of(client.pid, extent, object[0].addr, &part, *to)?;
                    Some((u8::MAX - arena, Reverse((heat * 1e9) as u64), asked))
                }));
            }
        }
        moves.sort_by_key(|(order, heat, _)| (*order, *heat));
        moves.into_iter().map(|(_, _, asked)| asked).collect()
    }

    /// Follows sites of modules that were built anew: those that are the plan's by function and
    /// line get its rows, and what lives of them goes where it belongs.
    pub(crate) fn match_by_name(&mut self) {
        let Daemon { clients, planned, .. } = self;
        let Some(planned) = planned else { return };
        for client in clients.values_mut() {
            let looked = (client.session.header().site_count, client.uses.len());
            if client.sites_looked == looked {
                continue;
            }
            client.uses.learn(&client.session);
            let Planned { hashes, fit, matcher, .. } = &mut *planned;
            let asked = client
                .uses
                .stacks(client.stacks_looked)
                .filter(|(hash, frames)| !hashes.contains_key(hash) && is_rebuilt(fit, frames));
            // A full queue is asked again at the next drain.
            if asked.fold(true, |all, (hash, frames)| all & matcher.ask(hash, frames)) {
                client.stacks_looked = client.uses.learned();
                client.sites_looked = looked;
            }
        }
        let mut found = false;
        for (hash, keys) in planned.matcher.answers() {
            if let Some(index) = planned.fit.site_of(&planned.choice.plan, &keys) {
                planned.add_site(index, hash);
                found = true;
            }
        }
        if found {
            self.tell_plan();
            self.settle();
        }
    }

    /// Moves what lives and was born before its place was known.
    fn settle(&mut self) {
        let numbers: Vec<u32> = self.clients.keys().copied().collect();
        for number in numbers {
            let Some(client) = self.clients.get(&number) else { continue };
            let (_, phase) = client.session.phase_entered();
            let hash = phase_hash_of(&client.session, phase);
            let moves = self.moves_into(number, hash, None);
            if !moves.is_empty() {
                self.give_moves(moves, None);
            }
        }
        self.collect();
    }

    /// Arenas of the spaces; nothing where there is one kind of memory.
    fn spaces(&self) -> [Option<u8>; SPACES] {
        Space::ALL.map(|space| {
            let nodes = self.machine.space(space, None);
            let arena = |id: &NodeId| self.arenas.iter().position(|arena| arena == id);
            nodes.iter().find_map(arena).map(|arena| arena as u8)
        })
    }

    /// What became of the plan so far.
    pub(crate) fn plan_summary(&self) -> Option<PlanSummary> {
        let planned = self.planned.as_ref()?;
        let mut seen: HashMap<u64, u64> = self.sites.born_bytes();
        let mut lost = self.phases_lost;
        for client in self.clients.values() {
            client.uses.add_born_bytes(&mut seen);
            lost += u64::from(client.session.header().phase_overflows);
        }
        Some(PlanSummary { phases_lost: lost, ..planned.summary(&seen) })
    }
}

/// True when a frame lies in a module of the plan that was built anew.
fn is_rebuilt(fit: &Fit, frames: &[SiteFrame]) -> bool {
    frames.iter().any(|frame| {
        let name = frame.path.file_name().unwrap_or_default().to_string_lossy();
        fit.builds_of(&name).is_some_and(|builds| !builds.contains(&hex::text(&frame.build_id)))
    })
}

/// A phase that was never published is none of the plan's.
pub(crate) fn phase_hash_of(session: &Session, phase: u32) -> u64 {
    match phase {
        0 => phase_hash(PHASE_START),
        _ => session.phase_name(phase).map_or(0, |name| name.hash),
    }
}

/// Objects of a process, with all their extents.
pub(crate) fn objects<'a>(ledger: &'a Ledger, pid: u32) -> Vec<Vec<Extent<'a>>> {
    let mut objects: Vec<Vec<Extent<'a>>> = Vec::new();
    // Extents come by address: those of one object follow each other.
    for extent in ledger.extents_of(pid).filter(|extent| !extent.is_block) {
        match objects.last_mut() {
            Some(object) if !extent.is_head => object.push(extent),
            _ => objects.push(vec![extent]),
        }
    }
    objects
}

fn lies_on(extent: &Extent<'_>, node: NodeId, arenas: &[NodeId]) -> bool {
    let born = || extent.arena.and_then(|arena| arenas.get(usize::from(arena))).copied();
    extent.residency.main_node().or_else(born) == Some(node)
}

/// ceil(log2) of an object's bytes, whole OS pages.
pub(crate) fn size_class(bytes: u64) -> u8 {
    bytes.max(1).next_power_of_two().trailing_zeros() as u8
}
