//! The policy: at every tick, trigger, prioritise, assign, gate.
//! In: ledger, machine, budgets, the interval's counters. Out: a [`Decision`].
//! Knows nothing of clocks (the ledger carries the time) or of how anything is moved.

use std::collections::{BTreeMap, BTreeSet};
use tiercel_machine::number::{index, saturating_u64, share_of};

use tiercel_ledger::movement::{Failure, Move, Outcome, Reason};
use tiercel_ledger::{
    AtOnce, CHEAP_IN_UNIT, Extent, ExtentId, Ledger, PIECE_UNITS, Pace, RateEstimates,
};
use tiercel_machine::{Machine, NodeId};

use crate::assign::{Candidate, assign};
use crate::budget::{Budgets, Group};
use crate::config::{Config, ConfigError};
use crate::decision::{BirthBudget, Decision, NurseryBudget, Problem, Summary};
use crate::held::Held;
use crate::interval::Interval;
use crate::move_builder::MoveBuilder;
use crate::move_cost::MoveCost;
use crate::prioritise;
use crate::routine::{Enforce, Prioritise, Trigger};
use crate::shadows::{DecisionInput, Shadows};
use crate::tiers::{ASSUMED_GAP_NS, Tiers};
use crate::trigger::TriggerState;
use crate::usage::TierUsage;

/// At least an eighth of the reserve for births is kept, also when there were none lately: bursts
/// come without warning.
const RESERVE_MIN_DIVISOR: u64 = 8;

/// At most a quarter of a limit is written off after moves failed for lack of memory.
const SHORTFALL_MAX_DIVISOR: u64 = 4;
/// The shortfall decays by a sixteenth at each assignment: the process that held the memory may
/// have exited.
const SHORTFALL_DECAY_DIVISOR: u64 = 16;

/// What is kept of the bytes born lately, at each tick. Chosen, not measured.
const BIRTHS_KEPT: f64 = 0.75;

/// Samples in objects with which a first assignment need not wait for a whole tick: as many as
/// judge a trial. The share of a site that half of them hit is known to 10 points.
const FIRST_SAMPLES: u64 = 64;

/// A policy and what it remembers.
#[derive(Debug)]
pub struct Policy {
    config: Config,
    trigger: TriggerState,
    /// Most bytes each group's objects had at a tick.
    peaks: BTreeMap<String, u64>,
    cost: MoveCost,
    shadows: Shadows,
    held: Held,
    /// Time since the last assignment.
    since_ms: u64,
    /// Nodes on which moves lately failed for lack of memory.
    full: BTreeSet<NodeId>,
    /// Bytes of a node's limit that other users hold, as moves that failed for lack of memory show.
    shortfall_bytes: BTreeMap<NodeId, u64>,
    /// Bytes allocated lately; each interval weighs three quarters of the next.
    recent_birth_bytes: u64,
}

impl Policy {
    /// A policy that has seen nothing yet.
    pub fn new(config: Config) -> Result<Policy, ConfigError> {
        config.check()?;
        let assumed = config.gate.shadow().cloned().unwrap_or_default();
        let cost = assumed.move_ns_per_byte;
        Ok(Policy {
            config,
            trigger: TriggerState::default(),
            peaks: BTreeMap::new(),
            cost: MoveCost::new(cost),
            shadows: Shadows::default(),
            held: Held::default(),
            since_ms: 0,
            full: BTreeSet::new(),
            shortfall_bytes: BTreeMap::new(),
            recent_birth_bytes: 0,
        })
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Learns what moves really cost, which nodes had less free memory than accounted, and what
    /// cannot be moved for now.
    pub fn outcome(&mut self, outcome: &Outcome) {
        if outcome.failed.iter().any(|(failure, _)| *failure == Failure::NoMemory) {
            self.full.insert(outcome.asked.to);
        }
        self.cost.learn(outcome);
        self.held.outcome(outcome);
        if self.config.gate.shadow().is_some() {
            self.shadows.outcome(outcome);
        }
    }

    /// Cost of moving a byte to a node, as far as learned, nanoseconds.
    pub fn move_ns_per_byte(&self, to: NodeId) -> f64 {
        self.cost.ns_per_byte(to)
    }

    /// Decides after the ledger's tick. Deterministic: the same history gives the same decision.
    pub fn tick(
        &mut self,
        ledger: &Ledger,
        machine: &Machine,
        budgets: &Budgets,
        interval: &Interval,
    ) -> Decision {
        self.tick_in_pieces(&mut AtOnce(ledger), machine, budgets, interval)
    }

    /// The same, with pauses. Processes may come and go meanwhile: extents that come are not
    /// considered, those that go are not moved.
    pub fn tick_in_pieces(
        &mut self,
        pace: &mut dyn Pace,
        machine: &Machine,
        budgets: &Budgets,
        interval: &Interval,
    ) -> Decision {
        let ledger = pace.ledger();
        self.held.tick(ledger.now_ms());
        self.since_ms += interval.elapsed_ms;
        let ticks = self.config.ticks(interval);
        let recent_bytes = self.recent_birth_bytes as f64 * BIRTHS_KEPT.powf(ticks);
        self.recent_birth_bytes =
            saturating_u64(recent_bytes).saturating_add(interval.allocated_bytes);
        self.note_peaks(ledger, budgets);
        let mut decision = Decision::default();
        let has_evidence = ledger.totals().samples_attributed >= FIRST_SAMPLES;
        let verdict = self.trigger.tick(&self.config.trigger, interval, (ticks, has_evidence));
        decision.trigger = verdict.why;
        decision.problems.extend(verdict.problem);
        if machine.tiers().is_empty() {
            decision.problems.push(Problem::OneTier);
            return decision;
        }
        let members = members(ledger, budgets);
        let mut usage = self.tier_usage(ledger, machine, budgets, &members);
        if self.note_missing_capacity(&usage) {
            usage = self.tier_usage(ledger, machine, budgets, &members);
        }
        // Seen from a home socket, one tier may be two: local and remote.
        let one_tier = usage.iter().all(|usage| usage.tiers.len() < 2);
        if one_tier {
            decision.problems.push(Problem::OneTier);
        }
        if let (false, Some(gate)) = (one_tier, self.config.gate.shadow()) {
            for (group, usage) in budgets.groups.iter().zip(&usage) {
                report_group(group, usage, &mut decision);
                report_latencies(usage, &mut decision);
                self.cost.assume(machine, &usage.tiers);
            }
            let may_act = verdict.fires && self.config.trigger != Trigger::Never;
            let input = DecisionInput {
                gate,
                cost: &self.cost,
                interval,
                since_ms: self.since_ms,
                acts: may_act,
                budgets,
                members: &members,
                held: &self.held,
            };
            self.shadows.decide(pace, &input, &mut usage, &mut decision);
        } else if verdict.fires && !one_tier {
            self.enforce(pace, budgets, &members, &mut usage, &mut decision);
        }
        if verdict.fires && !one_tier {
            self.since_ms = 0;
            self.shortfall_bytes
                .values_mut()
                .for_each(|short| *short -= short.div_ceil(SHORTFALL_DECAY_DIVISOR));
        }
        for (usage, pids) in usage.iter().zip(&members) {
            decision.births.extend(births(pace.ledger(), usage, (pids, budgets)));
        }
        decision
    }

    /// The extents that an assignment made now would put in the best tier, in no order. It ignores
    /// trigger and gate and requests no move: it reports which extents deserve the budget.
    pub fn best(&mut self, ledger: &Ledger, machine: &Machine, budgets: &Budgets) -> Vec<ExtentId> {
        self.best_in_pieces(&mut AtOnce(ledger), machine, budgets)
    }

    /// The same, with pauses.
    pub fn best_in_pieces(
        &mut self,
        pace: &mut dyn Pace,
        machine: &Machine,
        budgets: &Budgets,
    ) -> Vec<ExtentId> {
        if machine.tiers().is_empty() {
            return Vec::new();
        }
        let ledger = pace.ledger();
        self.note_peaks(ledger, budgets);
        let members = members(ledger, budgets);
        let mut usage = self.tier_usage(ledger, machine, budgets, &members);
        let mut seen = Seen::default();
        let mut lists = self.candidates(pace, budgets, &members, &mut usage, &mut seen);
        let mut best = Vec::new();
        for (usage, list) in usage.iter().zip(&mut lists) {
            let end = assign(list, &usage.fillable(), pace)[0];
            for piece in list[..end].chunks(PIECE_UNITS * CHEAP_IN_UNIT) {
                best.extend(piece.iter().map(Candidate::id));
                pace.compared(piece.len());
            }
        }
        best
    }

    fn note_peaks(&mut self, ledger: &Ledger, budgets: &Budgets) {
        for (group, pids) in budgets.groups.iter().zip(members(ledger, budgets)) {
            let live = pids.iter().filter_map(|pid| ledger.tracked_bytes(*pid));
            let bytes = live.map(|(now, _)| now).sum::<u64>();
            let peak = self.peaks.entry(group.name.clone()).or_default();
            *peak = bytes.max(*peak);
        }
    }

    /// Per group: its tiers, what it may hold and what it holds.
    fn tier_usage(
        &self,
        ledger: &Ledger,
        machine: &Machine,
        budgets: &Budgets,
        members: &[Vec<u32>],
    ) -> Vec<TierUsage> {
        let groups = budgets.groups.iter().zip(members);
        groups
            .map(|(group, pids)| {
                let mut tiers = Tiers::new(machine, group.home);
                tiers.observe(ledger);
                let used = usage(ledger, &tiers, pids);
                let allowed = self.allowed(group, &tiers);
                let mut limits = self.limits(&allowed, &tiers);
                for (limit, (tier, used)) in limits.iter_mut().zip(tiers.tiers.iter().zip(&used)) {
                    let left = tier.nodes.iter().map(|node| budgets.left_bytes.get(node).copied());
                    let left: Option<u64> = left.sum();
                    *limit = left.map_or(*limit, |left| (*limit).min(used.saturating_add(left)));
                }
                let room = limits.iter().map(|limit| self.room(*limit)).collect();
                let placed = vec![0; used.len()];
                let budgets = budgets_of(&allowed, &tiers);
                TierUsage { tiers, limits, budgets, room, used, placed, nurseries: Vec::new() }
            })
            .collect()
    }

    /// Where moves failed for lack of memory, the node's present usage becomes its limit: further
    /// promotions need an exchange. Returns whether limits have changed.
    fn note_missing_capacity(&mut self, usage: &[TierUsage]) -> bool {
        let failed = std::mem::take(&mut self.full);
        for node in &failed {
            let room_left = usage.iter().filter_map(|usage| {
                let rank = usize::from(usage.tiers.rank(*node));
                Some(usage.limits.get(rank)?.saturating_sub(usage.used[rank]))
            });
            let short = self.shortfall_bytes.entry(*node).or_default();
            *short = short.saturating_add(room_left.min().unwrap_or(0));
        }
        !failed.is_empty()
    }

    /// How much of a limit an assignment fills: births until the next one find the rest.
    fn room(&self, limit_bytes: u64) -> u64 {
        let Enforce::Fill(fill) = &self.config.enforce;
        let kept = share_of(limit_bytes, u64::from(100 - fill.percent), 100);
        let least = kept / RESERVE_MIN_DIVISOR;
        let needed = if fill.follow_births { self.recent_birth_bytes.max(least) } else { kept };
        limit_bytes - kept.min(needed)
    }

    /// What a group may hold in each tier.
    fn allowed(&self, group: &Group, tiers: &Tiers) -> Vec<u64> {
        let peak = self.peaks.get(&group.name).copied().unwrap_or(0);
        let ranked = tiers.tiers.iter().enumerate();
        ranked.map(|(rank, tier)| group.bytes_in(rank, peak, tier.capacity_bytes)).collect()
    }

    /// The same, less what others were found to hold.
    fn limits(&self, allowed: &[u64], tiers: &Tiers) -> Vec<u64> {
        let limit = |(bytes, tier): (&u64, &tiercel_machine::Tier)| {
            let short = tier.nodes.iter().filter_map(|node| self.shortfall_bytes.get(node)).sum();
            bytes - (bytes / SHORTFALL_MAX_DIVISOR).min(short)
        };
        allowed.iter().zip(&tiers.tiers).map(limit).collect()
    }

    /// Assigns all extents tiers, and moves what is elsewhere, as in MAT.
    fn enforce(
        &mut self,
        pace: &mut dyn Pace,
        budgets: &Budgets,
        members: &[Vec<u32>],
        usage: &mut [TierUsage],
        decision: &mut Decision,
    ) {
        let mut seen = Seen::default();
        let began_ms = pace.ledger().now_ms();
        let mut lists = self.candidates(pace, budgets, members, usage, &mut seen);
        self.report(pace.ledger(), seen, decision);
        let (mut summary, mut moves) = (Summary::default(), Vec::new());
        for ((group, usage), list) in budgets.groups.iter().zip(usage).zip(&mut lists) {
            report_group(group, usage, decision);
            let ends = assign(list, &usage.fillable(), pace);
            let mut builder = MoveBuilder {
                pace,
                began_ms,
                usage,
                summary: &mut summary,
                moves: &mut moves,
                cost: &self.cost,
            };
            builder.build(list, &ends);
        }
        moves.sort_by_key(|asked: &Move| asked.reason != Reason::Demote);
        decision.moves = moves;
        summary.refused.sort_by_key(|refused| refused.why);
        decision.summary = Some(summary);
    }

    /// Every extent of every group with its priority and its tier. What a plan places is no
    /// candidate, and its capacity must not be filled.
    fn candidates(
        &self,
        pace: &mut dyn Pace,
        budgets: &Budgets,
        members: &[Vec<u32>],
        usage: &mut [TierUsage],
        seen: &mut Seen,
    ) -> Vec<Vec<Candidate>> {
        let mut estimates = RateEstimates::default();
        // Priorities by cost need all sites' sums before the first extent's.
        if self.config.prioritise == Prioritise::Cpb {
            estimates = RateEstimates::new(pace.ledger());
            in_pieces(pace, |ledger, from| {
                ledger.extents_from(from, PIECE_UNITS).for_each(|extent| estimates.add(&extent));
            });
        }
        let mut lists = vec![Vec::new(); usage.len()];
        if let [only] = lists.as_mut_slice() {
            only.reserve(index(pace.ledger().extent_totals().0));
        }
        in_pieces(pace, |ledger, from| {
            let group_of = |pid| members.iter().position(|pids| pids.binary_search(&pid).is_ok());
            let groups: Vec<_> = ledger.places().map(|pid| pid.and_then(group_of)).collect();
            for extent in ledger.extents_from(from, PIECE_UNITS) {
                let Some(group) = groups[usize::from(extent.place)] else { continue };
                let known = (ledger, &estimates);
                let candidate = self.candidate(&extent, budgets, &mut usage[group], seen, known);
                lists[group].extend(candidate);
            }
        });
        lists
    }

    /// The priority of an extent; `None` for what has no memory, and for what a plan places or the
    /// mover cannot move, which only takes room.
    #[inline]
    fn candidate(
        &self,
        extent: &Extent,
        budgets: &Budgets,
        usage: &mut TierUsage,
        seen: &mut Seen,
        known: (&Ledger, &RateEstimates),
    ) -> Option<Candidate> {
        let bytes = extent.footprint_bytes();
        if bytes == 0 {
            return None;
        }
        let tiers = &usage.tiers;
        let rank = extent.residency.main_node().map(|node| tiers.rank(node));
        if rank.is_none() {
            seen.unlocated += 1;
            seen.unlocated_bytes += bytes;
        }
        let rank = rank.unwrap_or(tiers.last());
        if budgets.placed.contains(&(extent.pid, extent.site)) || self.held.holds(extent) {
            usage.placed[usize::from(rank)] += bytes;
            return None;
        }
        let key = prioritise::key(&self.config.prioritise, extent, tiers, rank, known);
        seen.not_a_number += u64::from(key.is_none());
        Some(Candidate::new(key.unwrap_or(0), rank, extent.id, bytes))
    }

    fn report(&self, ledger: &Ledger, seen: Seen, decision: &mut Decision) {
        let problems = &mut decision.problems;
        if seen.unlocated > 0 {
            let (extents, bytes) = (seen.unlocated, seen.unlocated_bytes);
            problems.push(Problem::Unlocated { extents, bytes });
        }
        if let Prioritise::Expression(expression) = &self.config.prioritise
            && seen.not_a_number > 0
        {
            let (expression, extents) = (expression.to_string(), seen.not_a_number);
            problems.push(Problem::NotANumber { expression, extents });
        }
        if ledger.totals().samples_attributed == 0 && self.config.prioritise.needs_accesses() {
            problems.push(Problem::NoAccesses);
        }
    }
}

fn report_group(group: &Group, usage: &TierUsage, decision: &mut Decision) {
    if usage.room[0] == 0 {
        let outside_bytes = group.outside_bytes.first().copied().unwrap_or(0);
        let limit_bytes = usage.limits[0] + outside_bytes;
        let group = group.name.clone();
        decision.problems.push(Problem::NoBudget { group, limit_bytes, outside_bytes });
    }
}

/// Values of accesses rest on latencies.
fn report_latencies(usage: &TierUsage, decision: &mut Decision) {
    let problem = Problem::LatenciesUnknown { assumed_gap_ns: ASSUMED_GAP_NS };
    if !usage.tiers.latencies_known && !decision.problems.contains(&problem) {
        decision.problems.push(problem);
    }
}

/// What has to leave a tier that holds more: a node never does, whatever residency that is not
/// looked up yet seems to say, so where its capacity is the limit there is none.
fn budgets_of(allowed: &[u64], tiers: &Tiers) -> Vec<u64> {
    let budget = |(bytes, tier): (&u64, &tiercel_machine::Tier)| {
        if *bytes < tier.capacity_bytes { *bytes } else { u64::MAX }
    };
    allowed.iter().zip(&tiers.tiers).map(budget).collect()
}

#[derive(Default)]
struct Seen {
    unlocated: u64,
    unlocated_bytes: u64,
    not_a_number: u64,
}

/// Passes the ledger, and the number of an extent from which on [`PIECE_UNITS`] are looked at.
fn in_pieces(pace: &mut dyn Pace, mut each: impl FnMut(&Ledger, usize)) {
    let mut from = 0;
    while from < pace.ledger().extent_places() {
        each(pace.ledger(), from);
        from += PIECE_UNITS;
        pace.worked(PIECE_UNITS);
    }
}

/// Tracked processes of each group, ascending; each in the first group that has it.
fn members(ledger: &Ledger, budgets: &Budgets) -> Vec<Vec<u32>> {
    let mut members = vec![Vec::new(); budgets.groups.len()];
    for pid in ledger.pids() {
        if let Some(group) = budgets.groups.iter().position(|group| group.has(pid)) {
            members[group].push(pid);
        }
    }
    members
}

/// Bytes that the objects of some processes hold in each tier. Extents of unknown residency count
/// in the last.
fn usage(ledger: &Ledger, tiers: &Tiers, pids: &[u32]) -> Vec<u64> {
    let mut used = vec![0; tiers.len()];
    for &pid in pids {
        for (node, bytes) in ledger.resident_bytes(pid) {
            used[usize::from(tiers.rank(node))] += bytes;
        }
    }
    used
}

/// Of the bytes that are left, the part that each process gets whether it allocates or not, all
/// together: an eighth. Chosen: a shell that waits for a program, and allocates nothing, then has a
/// sixteenth of its room.
const EVEN_SHARE: f64 = 0.125;

/// Divides `left_bytes` among processes that lately allocated so many bytes each: a small part
/// evenly, the rest by what each allocated. In their order.
pub fn divide(left_bytes: u64, born_bytes: &[u64]) -> Vec<u64> {
    let all_born = born_bytes.iter().fold(0.0, |all, born| all + *born as f64);
    let evenly = 1.0 / born_bytes.len() as f64;
    let share = |born: &u64| {
        let by_births = if all_born > 0.0 { *born as f64 / all_born } else { evenly };
        let share = EVEN_SHARE * evenly + (1.0 - EVEN_SHARE) * by_births;
        saturating_u64(left_bytes as f64 * share)
    };
    born_bytes.iter().map(share).collect()
}

/// What nurseries of a process have left.
fn nursery_of(pid: u32, usage: &TierUsage, budgets: &Budgets) -> NurseryBudget {
    let Some((_, sites, bytes)) = usage.nurseries.iter().find(|(of, ..)| *of == pid) else {
        return NurseryBudget::default();
    };
    let live = budgets.nursed_bytes.as_ref().and_then(|nursed| nursed.get(&pid));
    let left_bytes = bytes.saturating_sub(live.copied().unwrap_or(0));
    NurseryBudget { sites: sites.clone(), bytes: *bytes, left_bytes }
}

/// The free bytes of each tier, divided among the members by what each allocated in the last
/// interval.
fn births(
    ledger: &Ledger,
    usage: &TierUsage,
    (pids, budgets): (&[u32], &Budgets),
) -> Vec<BirthBudget> {
    let born: Vec<u64> = pids.iter().map(|pid| ledger.born_bytes(*pid).unwrap_or(0)).collect();
    let last = usage.tiers.len().saturating_sub(1);
    let free: Vec<u64> = usage
        .limits
        .iter()
        .zip(&usage.used)
        .map(|(limit, used)| limit.saturating_sub(*used))
        .collect();
    let small_tier = free.iter().take(last).position(|bytes| *bytes > 0).unwrap_or(last);
    let shares: Vec<_> = free.iter().map(|free| divide(*free, &born)).collect();
    let plan = |(member, pid): (usize, &u32)| {
        let tiers = usage.tiers.tiers.iter().enumerate();
        let tiers = tiers.map(|(rank, tier)| {
            let bytes = if rank == last { free[rank] } else { shares[rank][member] };
            (tier.nodes.clone(), bytes)
        });
        let nursery = nursery_of(*pid, usage, budgets);
        BirthBudget { pid: *pid, tiers: tiers.collect(), small_tier, nursery }
    };
    pids.iter().enumerate().map(plan).collect()
}
