//! The policy: at every tick, trigger, prioritise, assign, gate.
//! In: ledger, machine, budgets, the interval's counters. Out: a [`Decision`].
//! Knows nothing of clocks (the ledger carries the time) or of how anything is moved.

use std::collections::{BTreeMap, BTreeSet};
use tiercel_machine::number::{index, saturating_u64, share_of};

use tiercel_ledger::movement::{Failure, Outcome};
use tiercel_ledger::{
    AtOnce, CALIBRATION_SAMPLES_MAX, CHEAP_IN_UNIT, Calibration, Extent, ExtentId, Ledger,
    PIECE_UNITS, Pace, RateEstimates,
};
use tiercel_machine::{Machine, NodeId};

use crate::assign::{Candidate, assign};
use crate::audit::Audit;
use crate::budget::{Budgets, Group};
use crate::config::{Config, ConfigError};
use crate::decision::{BirthPlan, Decision, Problem, Summary};
use crate::interval::Interval;
use crate::move_builder::{Canary, MoveBuilder, MoveCost, Recent, TierUsage};
use crate::prioritise;
use crate::routine::{Benefit, Enforce, Gate, Prioritise};
use crate::tiers::Tiers;
use crate::trial::{PromotionAllowance, Trials};
use crate::trial_result::TrialResult;
use crate::trigger::TriggerState;

/// At least an eighth of the reserve for births is kept, also when there were none lately: bursts
/// come without warning.
const RESERVE_MIN_DIVISOR: u64 = 8;

/// Extents from which calibration samples are chosen.
const LOOKED_AT_MAX: usize = 8 * CALIBRATION_SAMPLES_MAX;

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
    recent: Recent,
    trials: Trials,
    audit: Audit,
    calibration: Calibration,
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
        let cost = match &config.gate {
            Gate::Benefit(benefit) => benefit.move_ns_per_byte,
            Gate::None => Benefit::default().move_ns_per_byte,
        };
        Ok(Policy {
            config,
            trigger: TriggerState::default(),
            peaks: BTreeMap::new(),
            cost: MoveCost::new(cost),
            recent: Recent::default(),
            trials: Trials::default(),
            audit: Audit::default(),
            calibration: Calibration::default(),
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

    /// Learns what moves really cost, and which nodes had less free memory than accounted.
    pub fn outcome(&mut self, outcome: &Outcome) {
        if outcome.failed.iter().any(|(failure, _)| *failure == Failure::NoMemory) {
            self.full.insert(outcome.asked.to);
        }
        self.cost.learn(outcome);
        self.trials.outcome(outcome);
        self.audit.outcome(outcome);
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
        self.since_ms += interval.elapsed_ms;
        let ticks = self.config.ticks(interval);
        let recent_bytes = self.recent_birth_bytes as f64 * BIRTHS_KEPT.powf(ticks);
        self.recent_birth_bytes =
            saturating_u64(recent_bytes).saturating_add(interval.allocated_bytes);
        self.note_peaks(ledger, budgets);
        let mut decision = Decision::default();
        self.trials.observe(ledger, interval, ticks);
        if let Some(benefit) = self.config.gate.benefit().filter(|_| !interval.is_modelled) {
            self.audit.observe(ledger, interval.elapsed_ms, benefit.horizon_s);
        }
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
        if !one_tier {
            self.judge(ledger, interval, &mut decision);
        }
        // After a trial that paid, more follows at once.
        let has_paid = decision.judged.as_ref().is_some_and(TrialResult::opens);
        if (verdict.fires || has_paid) && !one_tier && decision.moves.is_empty() {
            let (ledger, gate) = (pace.ledger(), self.config.gate.benefit());
            let allowance = self.trials.allowance(gate, interval, ledger.now_ms());
            // While nothing may be promoted, all extents are considered only if a tier holds too
            // much, or if no sample has hit any, which is then reported.
            let is_idle = allowance == PromotionAllowance::Nothing
                && ledger.totals().samples_attributed > 0
                && !usage.iter().any(TierUsage::holds_too_much);
            if !is_idle {
                self.enforce(pace, budgets, &members, &mut usage, allowance, &mut decision);
                let believed = self.audit.gains_believed();
                self.trials.begin(pace.ledger(), &decision.moves, allowance, believed);
            }
            self.since_ms = 0;
            self.shortfall_bytes
                .values_mut()
                .for_each(|short| *short -= short.div_ceil(SHORTFALL_DECAY_DIVISOR));
        }
        for (usage, pids) in usage.iter().zip(&members) {
            decision.births.extend(births(pace.ledger(), usage, pids));
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
        let (mut lists, _) = self.candidates(pace, budgets, &members, &mut usage, &mut seen);
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
        let gap_ns = self
            .config
            .gate
            .benefit()
            .map_or(Benefit::default().assumed_gap_ns, |b| b.assumed_gap_ns);
        let groups = budgets.groups.iter().zip(members);
        groups
            .map(|(group, pids)| {
                let mut tiers = Tiers::new(machine, group.home, gap_ns);
                tiers.observe(ledger);
                let used = usage(ledger, &tiers, pids);
                let mut limits = self.limits(group, &tiers);
                for (limit, (tier, used)) in limits.iter_mut().zip(tiers.tiers.iter().zip(&used)) {
                    let left = tier.nodes.iter().map(|node| budgets.left_bytes.get(node).copied());
                    let left: Option<u64> = left.sum();
                    *limit = left.map_or(*limit, |left| (*limit).min(used.saturating_add(left)));
                }
                let room = limits.iter().map(|limit| self.room(*limit)).collect();
                let placed = vec![0; used.len()];
                TierUsage { tiers, limits, room, used, placed }
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

    fn limits(&self, group: &Group, tiers: &Tiers) -> Vec<u64> {
        let peak = self.peaks.get(&group.name).copied().unwrap_or(0);
        let limit = |(rank, tier): (usize, &tiercel_machine::Tier)| {
            let bytes = group.bytes_in(rank, peak, tier.capacity_bytes);
            let short = tier.nodes.iter().filter_map(|node| self.shortfall_bytes.get(node)).sum();
            bytes - (bytes / SHORTFALL_MAX_DIVISOR).min(short)
        };
        tiers.tiers.iter().enumerate().map(limit).collect()
    }

    /// Evaluates trials that have ended, and reverts those that did harm.
    fn judge(&mut self, ledger: &Ledger, interval: &Interval, decision: &mut Decision) {
        let gate = self.config.gate.benefit();
        let Some((judged, mut back)) = self.trials.judge(ledger, gate, interval) else { return };
        for asked in &mut back {
            asked.cost_ns = asked.bytes as f64 * self.cost.ns_per_byte(asked.to);
            if let Some(extent) = ledger.find(asked.pid, asked.addr) {
                self.recent.note(extent.id, asked, ledger.now_ms());
            }
        }
        decision.moves = back;
        decision.judged = Some(judged);
    }

    fn enforce(
        &mut self,
        pace: &mut dyn Pace,
        budgets: &Budgets,
        members: &[Vec<u32>],
        usage: &mut [TierUsage],
        allowance: PromotionAllowance,
        decision: &mut Decision,
    ) {
        let mut seen = Seen::default();
        let ledger = pace.ledger();
        let began_ms = ledger.now_ms();
        self.calibration.observe(ledger);
        let (mut lists, estimates) = self.candidates(pace, budgets, members, usage, &mut seen);
        let ledger = pace.ledger();
        if allowance != PromotionAllowance::Nothing {
            self.note_estimates(ledger, &estimates, &lists);
        }
        self.report(ledger, seen, decision);
        self.recent.forget(
            ledger.now_ms(),
            self.config.gate.benefit().map_or(0.0, |benefit| benefit.settle_s),
        );
        let mut summary = Summary::default();
        let mut moves = Vec::new();
        for ((group, usage), list) in budgets.groups.iter().zip(usage).zip(&mut lists) {
            self.report_group(group, usage, decision);
            let room = usage.fillable();
            let ends = assign(list, &room, pace);
            let canary = Canary::new(allowance, &room);
            let mut builder = MoveBuilder {
                pace,
                began_ms,
                estimates: &estimates,
                gate: &self.config.gate,
                usage,
                summary: &mut summary,
                moves: &mut moves,
                recent: &mut self.recent,
                cost: &self.cost,
                gains_believed: self.audit.gains_believed(),
                bytes_left: rate_limit_bytes(&self.config.gate, self.since_ms),
                allowance,
                canary,
            };
            builder.build(list, &ends);
        }
        moves.sort_by_key(|m: &tiercel_ledger::movement::Move| {
            m.reason != tiercel_ledger::movement::Reason::Demote
        });
        decision.moves = moves;
        summary.refused.sort_by_key(|refused| refused.why);
        decision.summary = Some(summary);
    }

    /// Every extent of every group with its priority and its tier, and the estimates behind them.
    /// MAT's own routines use sampled rates, without a gate. What a plan places is no candidate,
    /// and its capacity must not be filled.
    fn candidates(
        &self,
        pace: &mut dyn Pace,
        budgets: &Budgets,
        members: &[Vec<u32>],
        usage: &mut [TierUsage],
        seen: &mut Seen,
    ) -> (Vec<Vec<Candidate>>, RateEstimates) {
        let mut estimates = match (&self.config.prioritise, &self.config.gate) {
            (Prioritise::Cpb, _) | (_, Gate::Benefit(_)) => RateEstimates::new(pace.ledger()),
            (_, Gate::None) => RateEstimates::default(),
        };
        // Only priorities by cost need all sites' sums before the first extent's.
        let counts_first = self.config.prioritise == Prioritise::Cpb;
        if counts_first {
            in_pieces(pace, |ledger, from| {
                ledger.extents_from(from, PIECE_UNITS).for_each(|extent| estimates.add(&extent));
            });
        }
        let counts = !counts_first && self.config.gate != Gate::None;
        let mut lists = vec![Vec::new(); usage.len()];
        if let [only] = lists.as_mut_slice() {
            only.reserve(index(pace.ledger().extent_totals().0));
        }
        estimates.set_calibration(self.calibration.ratios());
        in_pieces(pace, |ledger, from| {
            let group_of = |pid| members.iter().position(|pids| pids.binary_search(&pid).is_ok());
            let groups: Vec<_> = ledger.places().map(|pid| pid.and_then(group_of)).collect();
            for extent in ledger.extents_from(from, PIECE_UNITS) {
                let Some(group) = groups[usize::from(extent.place)] else { continue };
                if counts {
                    estimates.add(&extent);
                }
                let known = (ledger, &estimates);
                let candidate = self.candidate(&extent, budgets, &mut usage[group], seen, known);
                lists[group].extend(candidate);
            }
        });
        (lists, estimates)
    }

    /// The priority of an extent; `None` for what has no memory, and for what a plan places, which
    /// only takes room.
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
        if budgets.placed.contains(&(extent.pid, extent.site)) {
            usage.placed[usize::from(rank)] += bytes;
            return None;
        }
        let key = prioritise::key(&self.config.prioritise, extent, tiers, rank, known);
        seen.not_a_number += u64::from(key.is_none());
        Some(Candidate::new(key.unwrap_or(0), rank, extent.id, bytes))
    }

    /// Some of the candidates are looked at again at the next assignment.
    fn note_estimates(
        &mut self,
        ledger: &Ledger,
        estimates: &RateEstimates,
        lists: &[Vec<Candidate>],
    ) {
        if self.config.gate == Gate::None {
            return;
        }
        let step = lists.iter().map(Vec::len).sum::<usize>() / LOOKED_AT_MAX + 1;
        let ids = lists.iter().flatten().step_by(step).map(Candidate::id);
        self.calibration.note(ids.filter_map(|id| ledger.extent(id)), estimates);
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

    fn report_group(&self, group: &Group, usage: &TierUsage, decision: &mut Decision) {
        if usage.room[0] == 0 {
            let outside_bytes = group.outside_bytes.first().copied().unwrap_or(0);
            let limit_bytes = usage.limits[0] + outside_bytes;
            let group = group.name.clone();
            decision.problems.push(Problem::NoBudget { group, limit_bytes, outside_bytes });
        }
        if let Some(benefit) = self.config.gate.benefit()
            && !usage.tiers.latencies_known
        {
            let problem = Problem::LatenciesUnknown { assumed_gap_ns: benefit.assumed_gap_ns };
            if !decision.problems.contains(&problem) {
                decision.problems.push(problem);
            }
        }
    }
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

/// Bytes the gate lets through at this assignment.
fn rate_limit_bytes(gate: &Gate, since_ms: u64) -> u64 {
    match gate {
        Gate::Benefit(benefit) if benefit.bytes_per_s > 0 => {
            benefit.bytes_per_s.saturating_mul(since_ms) / 1000
        }
        _ => u64::MAX,
    }
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

/// The free bytes of each tier, divided among the members by what each allocated in the last
/// interval.
fn births(ledger: &Ledger, usage: &TierUsage, pids: &[u32]) -> Vec<BirthPlan> {
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
        BirthPlan { pid: *pid, tiers: tiers.collect(), small_tier }
    };
    pids.iter().enumerate().map(plan).collect()
}
