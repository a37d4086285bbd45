//! From tiers to moves: demote first, then promote (MAT 3.4.4), through the gate.
//! In: candidates with the tier they should be in. Out: moves, and what was refused and why.
//! Knows nothing of how the tiers were assigned.

use std::collections::{BTreeMap, BTreeSet};
use tiercel_machine::number::{index_u8, saturating_u64};

use tiercel_ledger::movement::{Move, Outcome, Reason};
use tiercel_ledger::{CHEAP_IN_UNIT, Extent, ExtentId, Ledger, PIECE_UNITS, Pace, RateEstimates};
use tiercel_machine::NodeId;

use crate::assign::Candidate;
use crate::decision::{MoveRefusal, Refused, Summary};
use crate::order;
use crate::routine::{Benefit, Gate};
use crate::tiers::Tiers;
use crate::trial::{PromotionAllowance, RAMP};

/// Most moves of one decision; what is beyond waits for the next.
pub const MOVES_MAX: usize = 65_536;

/// Most moves remembered for the ping-pong detector; the oldest go first.
pub const RECENT_MAX: usize = 131_072;

/// After this many promotions in a row that do not pay, those of lower priority are not considered.
const REFUSED_IN_A_ROW_MAX: u32 = 1024;

/// Candidates that are compared with the tiers they are in, or listed as refused, in a piece.
const LISTED_AT_ONCE: usize = PIECE_UNITS * CHEAP_IN_UNIT;

/// Units of weighing a move: an extent is looked up, its rates are estimated, its nodes counted.
const WEIGHING_UNITS: usize = 2;

/// Samples in an interval by which a trial is judged: their count has a standard deviation of a
/// quarter.
const CANARY_SAMPLES: f64 = 16.0;

/// Ratio of benefit per byte above which a difference is significant.
const OUTWEIGHS: f64 = 4.0;

/// Weight of the initial estimate of the cost of a byte, in bytes moved: a few MiB of real moves
/// outweigh it.
const ASSUMED_BYTES: f64 = (1u64 << 20) as f64;
/// Bytes after which what was learned from earlier bytes fades.
const LEARNED_BYTES_MAX: f64 = (640u64 << 20) as f64;

/// A group's tiers, what may lie in them and what does. `room` is the share of `limits` that an
/// assignment fills, `placed` the part of `used` that a plan places; bytes.
pub(crate) struct TierUsage {
    pub(crate) tiers: Tiers,
    pub(crate) limits: Vec<u64>,
    pub(crate) room: Vec<u64>,
    pub(crate) used: Vec<u64>,
    pub(crate) placed: Vec<u64>,
}

impl TierUsage {
    /// Whether a tier but the last holds more than it may.
    pub(crate) fn holds_too_much(&self) -> bool {
        let mut tiers = self.used.iter().zip(&self.limits).take(usize::from(self.tiers.last()));
        tiers.any(|(used, limit)| used > limit)
    }

    /// The room that is left for candidates.
    pub(crate) fn fillable(&self) -> Vec<u64> {
        let each = self.room.iter().zip(&self.placed);
        each.map(|(room, placed)| room.saturating_sub(*placed)).collect()
    }

    /// Whether a tier has room for this many more bytes. The last one always has.
    fn fits(&self, rank: u8, bytes: u64) -> bool {
        let at = usize::from(rank);
        rank == self.tiers.last() || self.used[at] + bytes <= self.room[at]
    }
}

/// What moving a byte costs, by destination: slow memory is slower to write than to read.
#[derive(Debug)]
pub(crate) struct MoveCost {
    all: Cost,
    to: BTreeMap<NodeId, Cost>,
}

/// A mean over the latest bytes.
#[derive(Clone, Copy, Debug)]
struct Cost {
    ns_per_byte: f64,
    bytes: f64,
}

impl MoveCost {
    pub(crate) fn new(ns_per_byte: f64) -> MoveCost {
        MoveCost { all: Cost { ns_per_byte, bytes: ASSUMED_BYTES }, to: BTreeMap::new() }
    }

    /// To a node. A node to which nothing was moved yet is assumed to cost the average.
    pub(crate) fn ns_per_byte(&self, to: NodeId) -> f64 {
        self.to.get(&to).unwrap_or(&self.all).ns_per_byte
    }

    /// Moves that moved nothing show nothing about bytes, and movers that take no time (modelled
    /// ones) do not make moving free.
    pub(crate) fn learn(&mut self, outcome: &Outcome) {
        if outcome.moved_bytes == 0 || outcome.took_ns == 0 {
            return;
        }
        let (bytes, ns) = (outcome.moved_bytes as f64, outcome.took_ns as f64);
        let unknown = Cost { bytes: ASSUMED_BYTES, ..self.all };
        self.to.entry(outcome.asked.to).or_insert(unknown).learn(bytes, ns);
        self.all.learn(bytes, ns);
    }
}

impl Cost {
    fn learn(&mut self, bytes: f64, ns: f64) {
        self.ns_per_byte += (ns / bytes - self.ns_per_byte) * bytes / (self.bytes + bytes);
        self.bytes = (self.bytes + bytes).min(LEARNED_BYTES_MAX);
    }
}

/// When extents moved last, for as long as they may not move again: (process, address, time) by
/// number.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    moved: BTreeMap<ExtentId, (u32, u64, u64)>,
    /// The same by time, the oldest first.
    by_time: BTreeSet<(u64, ExtentId)>,
}

impl Recent {
    pub(crate) fn forget(&mut self, now_ms: u64, settle_s: f64) {
        let settle_ms = saturating_u64(settle_s * 1e3);
        while let Some(&(moved_ms, id)) = self.by_time.first() {
            if moved_ms + settle_ms > now_ms {
                break;
            }
            self.by_time.pop_first();
            self.moved.remove(&id);
        }
    }

    /// Extent numbers are reused: process and address confirm a hit.
    fn has(&self, id: ExtentId, ledger: &Ledger) -> bool {
        let Some((pid, addr, _)) = self.moved.get(&id) else { return false };
        ledger.extent(id).is_some_and(|extent| (extent.pid, extent.addr) == (*pid, *addr))
    }

    pub(crate) fn note(&mut self, id: ExtentId, asked: &Move, now_ms: u64) {
        if self.moved.len() >= RECENT_MAX
            && let Some((_, oldest)) = self.by_time.pop_first()
        {
            self.moved.remove(&oldest);
        }
        if let Some((.., before_ms)) = self.moved.insert(id, (asked.pid, asked.addr, now_ms)) {
            self.by_time.remove(&(before_ms, id));
        }
        self.by_time.insert((now_ms, id));
    }
}

/// An extent in the wrong tier.
#[derive(Clone, Copy)]
struct Misplaced {
    candidate: Candidate,
    to: u8,
}

/// One move, weighed.
struct Weighed {
    asked: Move,
    to: u8,
    /// Bytes the move adds to `to`.
    adds: u64,
    /// Samples that it is expected to get in an interval.
    samples: f64,
    /// Bytes the move takes off each tier it leaves.
    leaves: Vec<(u8, u64)>,
}

impl Weighed {
    fn frees(&self, rank: u8) -> u64 {
        self.leaves.iter().filter(|(from, _)| *from == rank).map(|(_, bytes)| bytes).sum()
    }
}

/// Whether a promotion gains so much more per byte than its victim loses that the victim's
/// cool-down does not count: the first assignments rest on few samples.
fn outweighs(promotion: &Move, victim: &Move) -> bool {
    let by_byte = |asked: &Move| asked.gain_ns_per_s / asked.bytes.max(1) as f64;
    by_byte(promotion) > -by_byte(victim) * OUTWEIGHS
}

pub(crate) struct MoveBuilder<'a> {
    pub(crate) pace: &'a mut dyn Pace,
    /// When the decision began: what was born later is not meant by any candidate.
    pub(crate) began_ms: u64,
    pub(crate) estimates: &'a RateEstimates,
    pub(crate) gate: &'a Gate,
    pub(crate) usage: &'a mut TierUsage,
    pub(crate) summary: &'a mut Summary,
    pub(crate) moves: &'a mut Vec<Move>,
    pub(crate) recent: &'a mut Recent,
    pub(crate) cost: &'a MoveCost,
    /// The factor by which to multiply gains; see [`crate::audit`].
    pub(crate) gains_believed: f64,
    pub(crate) bytes_left: u64,
    pub(crate) allowance: PromotionAllowance,
    pub(crate) canary: Canary,
}

/// Remaining allowance of a trial, its demotions included: as much as its share and, where that is
/// too little for a measurement, up to [`RAMP`] times as much.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Canary {
    bytes_left: u64,
    bytes_left_for_samples: u64,
    samples_left: f64,
}

impl Canary {
    /// A share of the best tier's room.
    pub(crate) fn new(allowance: PromotionAllowance, room: &[u64]) -> Canary {
        let bytes_left = match allowance {
            PromotionAllowance::Share(share) => saturating_u64(room[0] as f64 * share),
            PromotionAllowance::All | PromotionAllowance::Nothing => u64::MAX,
        };
        let bytes_left_for_samples = bytes_left.saturating_mul(saturating_u64(RAMP));
        Canary { bytes_left, bytes_left_for_samples, samples_left: CANARY_SAMPLES }
    }

    fn is_spent(&self) -> bool {
        self.bytes_left == 0 && (self.samples_left <= 0.0 || self.bytes_left_for_samples == 0)
    }

    /// The last one may go beyond: a canary is at least one move.
    fn spend(&mut self, bytes: u64, samples: f64) {
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        self.bytes_left_for_samples = self.bytes_left_for_samples.saturating_sub(bytes);
        self.samples_left -= samples;
    }
}

impl MoveBuilder<'_> {
    /// `ends[k]` is the end of the run of candidates that belong in tier k.
    pub(crate) fn build(&mut self, candidates: &[Candidate], ends: &[usize]) {
        let (mut demotions, mut promotions) = (Vec::new(), Vec::new());
        let mut start = 0;
        for (to, &end) in ends.iter().enumerate() {
            for piece in candidates[start..end].chunks(LISTED_AT_ONCE) {
                self.find_misplaced(piece, index_u8(to), &mut demotions, &mut promotions);
            }
            start = end;
        }
        order::sort(&mut promotions, |m| m.candidate.first(), self.pace);
        match self.gate {
            Gate::None => {
                order::sort(&mut demotions, |m| m.candidate.last(), self.pace);
                self.plan_all(&demotions, &promotions);
            }
            Gate::Benefit(benefit) => {
                order::sort(&mut demotions, |m| m.candidate.first(), self.pace);
                self.plan_gated(benefit, &demotions, &promotions);
            }
        }
    }

    fn find_misplaced(
        &mut self,
        candidates: &[Candidate],
        to: u8,
        demotions: &mut Vec<Misplaced>,
        promotions: &mut Vec<Misplaced>,
    ) {
        for candidate in candidates {
            self.summary.extents += 1;
            self.summary.bytes += candidate.bytes();
            let misplaced = Misplaced { candidate: *candidate, to };
            match candidate.rank.cmp(&to) {
                std::cmp::Ordering::Less => demotions.push(misplaced),
                std::cmp::Ordering::Greater => promotions.push(misplaced),
                std::cmp::Ordering::Equal => self.summary.in_place_bytes += candidate.bytes(),
            }
        }
        self.pace.compared(candidates.len());
    }

    fn plan_all(&mut self, demotions: &[Misplaced], promotions: &[Misplaced]) {
        // Worse tiers make room first, so that better ones can use it.
        for from in (0..self.usage.tiers.last()).rev() {
            for piece in demotions.chunks(LISTED_AT_ONCE) {
                for demotion in piece.iter().filter(|m| m.candidate.rank == from) {
                    let Some(weighed) = self.weigh(demotion) else { continue };
                    self.ask(weighed, &demotion.candidate);
                }
                self.pace.compared(piece.len());
            }
        }
        for to in 0..self.usage.tiers.last() {
            for piece in promotions.chunks(LISTED_AT_ONCE) {
                piece.iter().filter(|m| m.to == to).for_each(|one| self.promote_if_it_fits(one));
                self.pace.compared(piece.len());
            }
        }
    }

    fn promote_if_it_fits(&mut self, promotion: &Misplaced) {
        let Some(weighed) = self.weigh(promotion) else { return };
        if self.usage.fits(promotion.to, weighed.adds) {
            self.ask(weighed, &promotion.candidate);
        } else {
            self.refuse(MoveRefusal::NoRoom, &promotion.candidate);
        }
    }

    /// `demotions`: the most deserving first.
    fn plan_gated(&mut self, gate: &Benefit, demotions: &[Misplaced], promotions: &[Misplaced]) {
        let last = self.usage.tiers.last();
        let mut victims: Vec<Vec<Misplaced>> = vec![Vec::new(); usize::from(last)];
        // Popped from the end: the least deserving first.
        for piece in demotions.chunks(LISTED_AT_ONCE) {
            piece.iter().for_each(|one| victims[usize::from(one.candidate.rank)].push(*one));
            self.pace.compared(piece.len());
        }
        let mut stuck = Vec::new();
        for from in (0..last).rev() {
            self.make_room(from, &mut victims[usize::from(from)]);
        }
        for to in 0..last {
            let victims = &mut victims[usize::from(to)];
            self.promote(gate, (to, promotions), victims, &mut stuck);
        }
        for piece in victims.iter().flat_map(|of_tier| of_tier.chunks(PIECE_UNITS)) {
            for victim in piece {
                let lately = !self.has_settled(victim);
                let why =
                    if lately { MoveRefusal::MovedRecently } else { MoveRefusal::RoomNotNeeded };
                self.refuse(why, &victim.candidate);
            }
            self.pace.worked(piece.len());
        }
        self.settle_stuck(&stuck);
    }

    /// Objects that are not promoted stay, unless their tier is too full: the room of a middle tier
    /// was assigned to others. The least deserving are demoted.
    fn settle_stuck(&mut self, stuck: &[(Misplaced, MoveRefusal)]) {
        for piece in stuck.rchunks(LISTED_AT_ONCE) {
            piece.iter().rev().for_each(|(misplaced, why)| self.settle(misplaced, *why));
            self.pace.compared(piece.len());
        }
    }

    fn settle(&mut self, misplaced: &Misplaced, why: MoveRefusal) {
        let candidate = &misplaced.candidate;
        let from = candidate.rank;
        let is_full = self.usage.used[usize::from(from)] > self.usage.room[usize::from(from)];
        if from < self.usage.tiers.last() && is_full {
            let Some(weighed) = self.weigh(&Misplaced { to: from + 1, ..*misplaced }) else {
                return;
            };
            self.ask(weighed, candidate);
        } else {
            self.refuse(why, candidate);
        }
    }

    /// Demotes until a tier holds no more than its limit, whether or not that pays. Nothing is
    /// demoted for births that may never happen.
    fn make_room(&mut self, from: u8, victims: &mut Vec<Misplaced>) {
        let at = usize::from(from);
        while self.usage.used[at] > self.usage.limits[at] {
            let Some(victim) = victims.pop() else { return };
            let Some(weighed) = self.weigh(&victim) else { continue };
            if weighed.adds > self.bytes_left {
                self.refuse(MoveRefusal::RateLimit, &victim.candidate);
                self.bytes_left = 0;
                return;
            }
            self.ask(weighed, &victim.candidate);
        }
    }

    /// Promotes into a tier what pays for itself and for the demotions that it needs. Others of the
    /// promotions that belong there are stuck.
    fn promote(
        &mut self,
        gate: &Benefit,
        (to, promotions): (u8, &[Misplaced]),
        victims: &mut Vec<Misplaced>,
        stuck: &mut Vec<(Misplaced, MoveRefusal)>,
    ) {
        let mut refused_in_a_row = 0;
        for piece in promotions.chunks(LISTED_AT_ONCE) {
            for misplaced in piece.iter().filter(|m| m.to == to) {
                let tried = if refused_in_a_row > REFUSED_IN_A_ROW_MAX {
                    Err(MoveRefusal::CostExceedsBenefit)
                } else {
                    self.try_promote(gate, misplaced, victims)
                };
                match tried {
                    Ok(()) => refused_in_a_row = 0,
                    Err(why) => {
                        refused_in_a_row += u32::from(why == MoveRefusal::CostExceedsBenefit);
                        stuck.push((*misplaced, why));
                    }
                }
            }
            self.pace.compared(piece.len());
        }
    }

    fn try_promote(
        &mut self,
        gate: &Benefit,
        misplaced: &Misplaced,
        victims: &mut Vec<Misplaced>,
    ) -> Result<(), MoveRefusal> {
        if !self.has_settled(misplaced) {
            return Err(MoveRefusal::MovedRecently);
        }
        match self.allowance {
            PromotionAllowance::Nothing => return Err(MoveRefusal::TrialRunning),
            PromotionAllowance::Share(_) if self.canary.is_spent() => {
                return Err(MoveRefusal::TrialPending);
            }
            PromotionAllowance::Share(_) | PromotionAllowance::All => {}
        }
        let at = usize::from(misplaced.to);
        let Some(promotion) = self.weigh(misplaced) else { return Ok(()) }; // it is gone
        let horizon_s = gate.horizon_s.min(self.age_s(&misplaced.candidate));
        let mut gain = promotion.asked.gain_ns_per_s;
        let mut cost = promotion.asked.cost_ns;
        let mut bytes = promotion.adds;
        let mut used = self.usage.used[at] + promotion.adds;
        // Room that births have filled beyond the target stays filled: for each extent that comes,
        // one leaves.
        let room = self.usage.room[at].max(self.usage.used[at]);
        let mut leaving = Vec::new();
        for victim in victims.iter().rev() {
            if used <= room || gain <= 0.0 {
                break;
            }
            // What is gone leaves nothing to move, and no room that is not counted.
            let weighed = self.weigh(victim);
            if let Some(weighed) = &weighed {
                if !self.has_settled(victim) && !outweighs(&promotion.asked, &weighed.asked) {
                    return Err(MoveRefusal::MovedRecently);
                }
                gain += weighed.asked.gain_ns_per_s;
                cost += weighed.asked.cost_ns;
                bytes += weighed.adds;
                used = used.saturating_sub(weighed.frees(misplaced.to));
            }
            leaving.push(weighed);
        }
        if gain * self.gains_believed * horizon_s <= cost * gate.margin {
            return Err(MoveRefusal::CostExceedsBenefit);
        }
        if used > room {
            return Err(MoveRefusal::NoRoom);
        }
        if bytes > self.bytes_left {
            return Err(MoveRefusal::RateLimit);
        }
        if self.moves.len() + leaving.len() >= MOVES_MAX {
            return Err(MoveRefusal::TooManyMoves);
        }
        let left = victims.split_off(victims.len() - leaving.len());
        for (victim, weighed) in left.iter().rev().zip(leaving) {
            weighed.into_iter().for_each(|weighed| self.ask(weighed, &victim.candidate));
        }
        self.canary.spend(bytes, promotion.samples);
        self.ask(promotion, &misplaced.candidate);
        Ok(())
    }

    fn has_settled(&self, misplaced: &Misplaced) -> bool {
        !self.recent.has(misplaced.candidate.id(), self.pace.ledger())
    }

    /// Age of the extent, which bounds the horizon of its benefit: it is not expected to live
    /// longer than it has lived.
    fn age_s(&self, candidate: &Candidate) -> f64 {
        let born_ms = self.extent(candidate).map_or(u64::MAX, |extent| extent.born_ms);
        self.pace.ledger().now_ms().saturating_sub(born_ms) as f64 / 1e3
    }

    /// The extent that a candidate stands for; `None` when it died in a pause.
    fn extent(&self, candidate: &Candidate) -> Option<Extent<'_>> {
        let extent = self.pace.ledger().extent(candidate.id());
        extent.filter(|extent| extent.born_ms <= self.began_ms)
    }

    /// What a move would bring; `None` when its extent is gone.
    fn weigh(&mut self, misplaced: &Misplaced) -> Option<Weighed> {
        self.pace.worked(WEIGHING_UNITS);
        let ledger = self.pace.ledger();
        let extent = self.extent(&misplaced.candidate)?;
        let from = misplaced.candidate.rank;
        let usage = &*self.usage;
        // A demotion that finds its tier full goes further down.
        let to = if misplaced.to > from {
            let mut lower = misplaced.to..usage.tiers.last();
            lower
                .find(|to| usage.fits(*to, misplaced.candidate.bytes()))
                .unwrap_or(usage.tiers.last())
        } else {
            misplaced.to
        };
        let mut leaves = Vec::new();
        let mut there = 0;
        for (node, bytes) in extent.residency.iter() {
            match usage.tiers.rank(node) {
                rank if rank == to => there += bytes,
                rank => leaves.push((rank, bytes)),
            }
        }
        let parallelism = f64::from(ledger.config().parallelism);
        let believed = self.estimates.estimate(&extent);
        let gain_ns_per_s = usage.tiers.gain_ns_per_s(&believed, from, to, parallelism);
        let samples = f64::from(believed.accesses_per_s() * ledger.samples_per_rate());
        let adds = extent.footprint_bytes().saturating_sub(there);
        // Chosen when the move is requested.
        let node = usage.tiers.tiers[usize::from(to)].nodes[0];
        let asked = Move {
            pid: extent.pid,
            addr: extent.addr,
            bytes: extent.bytes,
            from: extent.residency.main_node(),
            to: node,
            reason: if to > from { Reason::Demote } else { Reason::Promote },
            gain_ns_per_s,
            cost_ns: adds as f64 * self.cost.ns_per_byte(node),
        };
        Some(Weighed { asked, to, adds, samples, leaves })
    }

    /// Emits a move, and updates usage as if it had completed.
    fn ask(&mut self, weighed: Weighed, candidate: &Candidate) {
        if self.moves.len() >= MOVES_MAX {
            self.refuse(MoveRefusal::TooManyMoves, candidate);
            return;
        }
        let Weighed { mut asked, to, adds, leaves, .. } = weighed;
        asked.to = self.usage.tiers.take_node(to, adds);
        self.bytes_left = self.bytes_left.saturating_sub(adds);
        let used = &mut self.usage.used;
        for (rank, bytes) in leaves {
            used[usize::from(rank)] = used[usize::from(rank)].saturating_sub(bytes);
        }
        used[usize::from(to)] += adds;
        self.summary.gain_ns_per_s += asked.gain_ns_per_s;
        self.summary.cost_ns += asked.cost_ns;
        match asked.reason {
            Reason::Demote => self.summary.demoted_bytes += adds,
            _ => self.summary.promoted_bytes += adds,
        }
        // What was demoted before any access was observed may turn out to be hot, and return.
        if asked.reason != Reason::Demote || asked.gain_ns_per_s != 0.0 {
            let now_ms = self.pace.ledger().now_ms();
            self.recent.note(candidate.id(), &asked, now_ms);
        }
        self.moves.push(asked);
    }

    fn refuse(&mut self, why: MoveRefusal, candidate: &Candidate) {
        let refused = &mut self.summary.refused;
        let at = refused.iter().position(|refused| refused.why == why).unwrap_or_else(|| {
            refused.push(Refused { why, extents: 0, bytes: 0 });
            refused.len() - 1
        });
        refused[at].extents += 1;
        refused[at].bytes += candidate.bytes();
    }
}
