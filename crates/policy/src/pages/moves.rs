//! A tick's moves, in the order in which they find room.
//! In: units and where they go. Out: [`PageDecision`]. Knows nothing of why.
//!
//! An exchange has no system call. It goes through free bytes of the better node: units are
//! promoted as long as there are any, then their partners are demoted, then the next are promoted.

use serde::Serialize;
use tiercel_ledger::movement::{Move, Reason};
use tiercel_ledger::regions::Unit;
use tiercel_machine::NodeId;

use super::benefit::Estimate;
use super::places::Places;
use super::rooms::Rooms;

/// Most moves of a tick: 64 MiB of single OS pages, which at 2 to 19 ns a byte take a mover 0.1 to
/// 1.3 s.
pub(crate) const MOVES_MAX: usize = 16_384;

/// What to do after a tick.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PageDecision {
    /// To be executed in this order.
    pub moves: Vec<Move>,
    /// Pairs among them that change places.
    pub exchanges: u64,
    /// Units that asked to move.
    pub asked: u64,
    /// Of those, the ones that stay where they are: no room, no victim, no gain.
    pub stayed: u64,
    /// Of those, the ones that moved too often lately.
    pub locked: u64,
    /// Nothing moves, because too many units moved back and forth.
    pub is_stopped: bool,
}

pub(crate) struct Moves<'a> {
    places: &'a Places,
    estimate: &'a Estimate,
    out: Vec<Move>,
    /// Partners that are still to be demoted, and where to.
    waiting: Vec<(Unit, NodeId)>,
    pub(crate) exchanges: u64,
}

impl<'a> Moves<'a> {
    pub(crate) fn new(places: &'a Places, estimate: &'a Estimate) -> Moves<'a> {
        Moves { places, estimate, out: Vec::new(), waiting: Vec::new(), exchanges: 0 }
    }

    /// Whether there may be no more.
    pub(crate) fn is_full(&self) -> bool {
        self.out.len() + self.waiting.len() >= MOVES_MAX
    }

    /// A move for which there is room now; `rooms` has it already.
    pub(crate) fn push(&mut self, unit: &Unit, to: NodeId) {
        let rank = |node| self.places.rank(unit.accessor, node);
        let reason = if rank(to) < rank(unit.node) { Reason::Promote } else { Reason::Demote };
        let here = self.estimate.stall_ns_per_s(self.places, unit, unit.node);
        let there = self.estimate.stall_ns_per_s(self.places, unit, to);
        self.out.push(Move {
            pid: unit.pid,
            addr: unit.addr,
            bytes: unit.bytes,
            from: Some(unit.node),
            to,
            reason,
            gain_ns_per_s: here - there,
            cost_ns: self.estimate.cost_ns(unit.bytes),
        });
    }

    /// Lets `unit` and `partner` change places, or `partner` go elsewhere, if the free bytes of
    /// `partner`'s node suffice for the time in between; false, and nothing done, if they do not.
    pub(crate) fn exchange(
        &mut self,
        unit: &Unit,
        partner: &Unit,
        to: NodeId,
        rooms: &mut Rooms,
    ) -> bool {
        let node = partner.node;
        if !rooms.fits_exchange(unit, partner) {
            self.finish(rooms);
            if !rooms.fits_exchange(unit, partner) {
                return false;
            }
        }
        rooms.exchanged(unit, partner, to);
        self.push(unit, node);
        self.waiting.push((*partner, to));
        self.exchanges += u64::from(to == unit.node);
        true
    }

    /// Demotes the partners that wait.
    pub(crate) fn finish(&mut self, rooms: &mut Rooms) {
        for (partner, to) in std::mem::take(&mut self.waiting) {
            rooms.give(partner.node, partner.bytes);
            self.push(&partner, to);
        }
    }

    pub(crate) fn done(mut self, rooms: &mut Rooms) -> PageDecision {
        self.finish(rooms);
        PageDecision { moves: self.out, exchanges: self.exchanges, ..PageDecision::default() }
    }
}
