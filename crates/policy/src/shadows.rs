//! The shadow placements of all groups, one for each boundary between two tiers of each.
//! In: the ledger, what groups may hold and do, outcomes of moves. Out: moves, and accounts.
//! Knows nothing of how a placement decides.

use std::collections::BTreeMap;

use tiercel_ledger::movement::{Move, Outcome, Reason};
use tiercel_ledger::{Extent, PIECE_UNITS, Pace};
use tiercel_machine::NodeId;

use crate::assign::Candidate;
use crate::budget::Budgets;
use crate::decision::{Decision, MoveRefusal, Problem, Refused, Summary};
use crate::held::Held;
use crate::interval::Interval;
use crate::move_builder::MoveBuilder;
use crate::move_cost::MoveCost;
use crate::routine::ShadowGate;
use crate::shadow::{Change, Scope, Shadow, ShadowReport, Step, TickInput};
use crate::tiers::Tiers;
use crate::usage::TierUsage;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Shadows {
    by_group: BTreeMap<(String, u8), Shadow>,
    /// Since the last decision.
    took: Vec<Took>,
}

/// Time that a move took.
#[derive(Debug)]
struct Took {
    pid: u32,
    to: NodeId,
    is_demotion: bool,
    ns: f64,
}

/// What all groups have in common at a decision.
pub(crate) struct DecisionInput<'a> {
    pub(crate) gate: &'a ShadowGate,
    pub(crate) cost: &'a MoveCost,
    pub(crate) interval: &'a Interval,
    /// Since moves were asked for last.
    pub(crate) since_ms: u64,
    /// Whether anything may move.
    pub(crate) acts: bool,
    pub(crate) budgets: &'a Budgets,
    pub(crate) members: &'a [Vec<u32>],
    pub(crate) held: &'a Held,
}

impl Shadows {
    /// What became of a move.
    pub(crate) fn outcome(&mut self, outcome: &Outcome) {
        let Move { pid, to, reason, .. } = outcome.asked;
        let is_demotion = reason == Reason::Demote;
        self.took.push(Took { pid, to, is_demotion, ns: outcome.took_ns as f64 });
    }

    /// Every placement goes on by an interval.
    pub(crate) fn decide(
        &mut self,
        pace: &mut dyn Pace,
        input: &DecisionInput,
        usage: &mut [TierUsage],
        decision: &mut Decision,
    ) {
        let took = std::mem::take(&mut self.took);
        let mut summary = Summary::default();
        for (at, usage) in usage.iter_mut().enumerate() {
            place(pace, input.budgets, &input.members[at], usage);
            for boundary in 0..usage.tiers.last() {
                let key = (input.budgets.groups[at].name.clone(), boundary);
                let shadow = self.by_group.entry(key).or_default();
                shadow.spent(spent_at(&took, &input.members[at], &usage.tiers, boundary));
                let (pids, rank) = (&input.members[at], usize::from(boundary));
                let used = usage.used[rank];
                usage.used[rank] = used + unfilled(shadow, pids, input.budgets);
                let step = tick(shadow, pace, (input, at, boundary), (usage, &summary));
                usage.used[rank] = used + unfilled(shadow, pids, input.budgets);
                if boundary == 0 {
                    usage.nurseries = nurseries(shadow, pids);
                }
                request(pace, &step, (input, boundary), (usage, &mut summary, decision));
                let group = input.budgets.groups[at].name.clone();
                decision.shadows.push(ShadowReport { group, tier: boundary, ..step.report });
            }
        }
        if pace.ledger().totals().samples_attributed == 0 {
            decision.problems.push(Problem::NoAccesses);
        }
        decision.moves.sort_by_key(|asked| asked.reason != Reason::Demote);
        decision.summary = input.acts.then_some(summary);
    }
}

/// One placement goes on.
fn tick(
    shadow: &mut Shadow,
    pace: &mut dyn Pace,
    (input, group, boundary): (&DecisionInput, usize, u8),
    (usage, summary): (&TierUsage, &Summary),
) -> Step {
    let DecisionInput { gate, cost, interval, .. } = *input;
    let pids = &input.members[group];
    let tiers = &usage.tiers;
    let ns_per_byte = |rank: u8| cost.ns_per_byte(tiers.tiers[usize::from(rank)].nodes[0]);
    let [room, used, budget] = usage.of(boundary);
    let moved_bytes = summary.promoted_bytes + summary.demoted_bytes;
    let has_nurseries = input.budgets.nursed_bytes.is_some() && boundary == 0;
    // Its site's nursery stands for what is expected to die before a move could pay.
    let (nursed, short_ms) = (shadow.nurseries.sites(), pace.ledger().short_ms());
    let now_ms = pace.ledger().now_ms();
    let is_nursed = |extent: &Extent| {
        let age_ms = now_ms.saturating_sub(extent.born_ms) as f64;
        age_ms <= short_ms && nursed.contains(&(extent.pid, extent.site))
    };
    let is_member = |extent: &Extent| {
        is_member(extent, input.budgets, pids) && !input.held.holds(extent) && !is_nursed(extent)
    };
    let tick_input = TickInput {
        scope: Scope { tiers, boundary, gap: tiers.gap_below(boundary), is_member: &is_member },
        up: ns_per_byte(boundary),
        down: ns_per_byte(boundary + 1),
        room,
        used,
        budget,
        loss: gate.loss,
        elapsed_s: interval.elapsed_ms as f64 / 1e3,
        bytes_left: limit_bytes(gate, input.since_ms).saturating_sub(moved_bytes),
        acts: input.acts,
        nurseries: has_nurseries.then_some(pids.as_slice()),
    };
    shadow.tick(pace, &tick_input)
}

/// Room of nurseries in which nothing lives.
fn unfilled(shadow: &Shadow, pids: &[u32], budgets: &Budgets) -> u64 {
    let live_bytes = |pid: &u32| Some(*budgets.nursed_bytes.as_ref()?.get(pid)?);
    let of = |pid: &u32| shadow.nurseries.of(*pid).1.saturating_sub(live_bytes(pid).unwrap_or(0));
    pids.iter().map(of).sum()
}

/// Sites with nurseries and the bytes of these, by process.
fn nurseries(shadow: &Shadow, pids: &[u32]) -> Vec<(u32, Vec<u32>, u64)> {
    let of = |pid: &u32| {
        let (sites, bytes) = shadow.nurseries.of(*pid);
        (*pid, sites, bytes)
    };
    pids.iter().map(of).filter(|(_, sites, _)| !sites.is_empty()).collect()
}

/// Asks for the moves of what changes sides.
fn request(
    pace: &mut dyn Pace,
    step: &Step,
    (input, boundary): (&DecisionInput, u8),
    (usage, summary, decision): (&mut TierUsage, &mut Summary, &mut Decision),
) {
    note_left(step, summary);
    let began_ms = pace.ledger().now_ms();
    let (moves, cost) = (&mut decision.moves, input.cost);
    let mut builder = MoveBuilder { pace, began_ms, usage, summary, moves, cost };
    step.changes.iter().for_each(|change| follow(&mut builder, change, boundary));
}

/// Bytes that the gate lets through at this decision.
fn limit_bytes(gate: &ShadowGate, since_ms: u64) -> u64 {
    match gate.bytes_per_s {
        0 => u64::MAX,
        bytes_per_s => bytes_per_s.saturating_mul(since_ms) / 1000,
    }
}

/// Whether an extent is one of a group's that no plan places.
fn is_member(extent: &Extent, budgets: &Budgets, pids: &[u32]) -> bool {
    pids.binary_search(&extent.pid).is_ok() && !budgets.placed.contains(&(extent.pid, extent.site))
}

/// Counts what a plan places, which takes room.
fn place(pace: &mut dyn Pace, budgets: &Budgets, pids: &[u32], usage: &mut TierUsage) {
    if budgets.placed.is_empty() {
        return;
    }
    let mut from = 0;
    while from < pace.ledger().extent_places() {
        let extents = pace.ledger().extents_from(from, PIECE_UNITS);
        let theirs = extents.filter(|extent| pids.binary_search(&extent.pid).is_ok());
        for extent in theirs.filter(|extent| !is_member(extent, budgets, pids)) {
            for (node, bytes) in extent.residency.iter() {
                usage.placed[usize::from(usage.tiers.rank(node))] += bytes;
            }
        }
        from += PIECE_UNITS;
        pace.worked(PIECE_UNITS);
    }
}

/// Time of moves of some processes over a boundary, nanoseconds.
fn spent_at(took: &[Took], pids: &[u32], tiers: &Tiers, boundary: u8) -> f64 {
    let is_over = |one: &&Took| {
        let above = if one.is_demotion { boundary + 1 } else { boundary };
        pids.binary_search(&one.pid).is_ok() && tiers.rank(one.to) == above
    };
    took.iter().filter(is_over).map(|one| one.ns).sum()
}

/// Asks for the move of an extent that changes sides.
fn follow(builder: &mut MoveBuilder, change: &Change, boundary: u8) {
    let Some(extent) = builder.pace.ledger().extent(change.id) else { return };
    let is_asked = |asked: &Move| (asked.pid, asked.addr) == (extent.pid, extent.addr);
    // The boundary above has it already.
    if boundary > 0 && builder.moves.iter().any(is_asked) {
        return;
    }
    let tiers = &builder.usage.tiers;
    let rank = extent.residency.main_node().map_or(tiers.last(), |node| tiers.rank(node));
    let to = if change.is_promotion { boundary } else { boundary + 1 };
    let candidate = Candidate::new(0, rank, change.id, change.bytes);
    builder.move_to(candidate, to, change.gain_ns_per_s);
}

/// Adds what a placement considered and did not move.
fn note_left(step: &Step, summary: &mut Summary) {
    summary.extents += step.extents;
    summary.bytes += step.bytes;
    let whys = [MoveRefusal::CostExceedsBenefit, MoveRefusal::LossBudget, MoveRefusal::RateLimit];
    for (why, (extents, bytes)) in whys.into_iter().zip(step.left) {
        if extents > 0 {
            summary.refused.push(Refused { why, extents, bytes });
        }
    }
}
