//! From tiers to moves: demote first, then promote (MAT 3.4.4).
//! In: candidates with the tier they should be in. Out: moves, and what was refused and why.
//! Knows nothing of how the tiers were assigned.

use tiercel_machine::number::index_u8;

use tiercel_ledger::movement::{Move, Reason};
use tiercel_ledger::{CHEAP_IN_UNIT, Extent, PIECE_UNITS, Pace};

use crate::assign::Candidate;
use crate::decision::{MoveRefusal, Refused, Summary};
use crate::move_cost::MoveCost;
use crate::order;
use crate::usage::TierUsage;

/// Most moves of one decision; what is beyond waits for the next.
pub const MOVES_MAX: usize = 65_536;

/// Candidates that are compared with the tiers they are in, or listed as refused, in a piece.
const LISTED_AT_ONCE: usize = PIECE_UNITS * CHEAP_IN_UNIT;

/// Units of weighing a move: an extent is looked up, its rates are estimated, its nodes counted.
const WEIGHING_UNITS: usize = 2;

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
    /// Bytes the move takes off each tier it leaves.
    leaves: Vec<(u8, u64)>,
}

pub(crate) struct MoveBuilder<'a> {
    pub(crate) pace: &'a mut dyn Pace,
    /// When the decision began: no candidate refers to extents that were born later.
    pub(crate) began_ms: u64,
    pub(crate) usage: &'a mut TierUsage,
    pub(crate) summary: &'a mut Summary,
    pub(crate) moves: &'a mut Vec<Move>,
    pub(crate) cost: &'a MoveCost,
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
        order::sort(&mut demotions, |m| m.candidate.last(), self.pace);
        self.request_all(&demotions, &promotions);
    }

    /// Asks for one move that is decided already, and expected to save so much.
    pub(crate) fn move_to(&mut self, candidate: Candidate, to: u8, gain_ns_per_s: f64) {
        let Some(mut weighed) = self.weigh(&Misplaced { candidate, to }) else { return };
        weighed.asked.gain_ns_per_s = gain_ns_per_s;
        self.ask(weighed, &candidate);
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

    fn request_all(&mut self, demotions: &[Misplaced], promotions: &[Misplaced]) {
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

    /// The extent that a candidate stands for; `None` when it died in a pause.
    fn extent(&self, candidate: &Candidate) -> Option<Extent<'_>> {
        let extent = self.pace.ledger().extent(candidate.id());
        extent.filter(|extent| extent.born_ms <= self.began_ms)
    }

    /// What a move would bring; `None` when its extent is gone.
    fn weigh(&mut self, misplaced: &Misplaced) -> Option<Weighed> {
        self.pace.worked(WEIGHING_UNITS);
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
        let gain_ns_per_s = usage.tiers.gain_ns_per_s(&extent, from, to);
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
        Some(Weighed { asked, to, adds, leaves })
    }

    /// Emits a move, and updates usage as if it had completed.
    fn ask(&mut self, weighed: Weighed, candidate: &Candidate) {
        if self.moves.len() >= MOVES_MAX {
            self.refuse(MoveRefusal::TooManyMoves, candidate);
            return;
        }
        let Weighed { mut asked, to, adds, leaves } = weighed;
        asked.to = self.usage.tiers.take_node(to, adds);
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
