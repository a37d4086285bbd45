//! A tick's moves, in the order in which they find room.
//! In: units and where they go. Out: [`PageDecision`]. Knows nothing of why.
//!
//! An exchange has no system call. It goes through free bytes of the better node: units are
//! promoted as long as there are any, then their partners are demoted, then the next are promoted.
//! Where the better node has none, partners are demoted first through free bytes of the other.

use tiercel_ledger::movement::{Move, Reason};
use tiercel_ledger::regions::Unit;
use tiercel_machine::NodeId;
use tiercel_machine::number::signed;

use super::benefit::Estimate;
use super::places::Places;
use super::rooms::Rooms;
use super::stay::Stayed;

/// Most moves of a tick: 64 MiB of single OS pages, which at 2 to 19 ns a byte take a mover 0.1 to
/// 1.3 s.
pub(crate) const MOVES_MAX: usize = 16_384;

/// What to do after a tick.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PageDecision {
    /// In the order in which each finds room.
    pub moves: Vec<Move>,
    /// For each of them, the earlier one that must succeed first: a promotion names the demotion
    /// that makes room for it, or the demotion of an exchange the promotion that replaces it. If
    /// that one fails, both stay where they are.
    pub needs: Vec<Option<usize>>,
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
    /// Units that asked to move and do not, those with the highest levels first: as many as are
    /// worth remembering.
    pub stays: Vec<Stayed>,
}

pub(crate) struct Moves<'a> {
    places: &'a Places,
    estimate: &'a Estimate,
    out: Vec<Move>,
    needs: Vec<Option<usize>>,
    /// The second halves of exchanges: what moves, where to, and the first half.
    waiting: Vec<(Unit, NodeId, usize)>,
    pub(crate) exchanges: u64,
}

impl<'a> Moves<'a> {
    pub(crate) fn new(places: &'a Places, estimate: &'a Estimate) -> Moves<'a> {
        let (out, needs, waiting) = (Vec::new(), Vec::new(), Vec::new());
        Moves { places, estimate, out, needs, waiting, exchanges: 0 }
    }

    /// Whether there may be no more.
    pub(crate) fn is_full(&self) -> bool {
        self.out.len() + self.waiting.len() >= MOVES_MAX
    }

    /// A move for which there is room when the one that it needs is done; `rooms` has it already.
    /// Returns its number.
    pub(crate) fn push(&mut self, unit: &Unit, to: NodeId, needs: Option<usize>) -> usize {
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
        self.needs.push(needs);
        self.out.len() - 1
    }

    /// Lets `unit` and `partner` change places, or `partner` go elsewhere: through free bytes of
    /// `partner`'s node, else of `unit`'s. False, and nothing done, if there are none.
    pub(crate) fn exchange(
        &mut self,
        unit: &Unit,
        partner: &Unit,
        to: NodeId,
        rooms: &mut Rooms,
    ) -> bool {
        if !rooms.may_replace(unit, partner) {
            return false;
        }
        if rooms.free_bytes(partner.node) < signed(unit.bytes) {
            self.finish(rooms);
        }
        let is_pair = to == unit.node;
        if rooms.free_bytes(partner.node) >= signed(unit.bytes) {
            self.begin(unit, (partner, to), rooms);
        } else if is_pair && rooms.free_bytes(to) >= signed(partner.bytes) {
            self.begin(partner, (unit, partner.node), rooms);
        } else {
            return false;
        }
        self.exchanges += u64::from(is_pair);
        true
    }

    /// The first half of an exchange; the second follows when free bytes run out.
    fn begin(&mut self, first: &Unit, (second, to): (&Unit, NodeId), rooms: &mut Rooms) {
        rooms.exchanged(first, second, to);
        let first = self.push(first, second.node, None);
        self.waiting.push((*second, to, first));
    }

    /// Moves the second halves.
    pub(crate) fn finish(&mut self, rooms: &mut Rooms) {
        for (second, to, first) in std::mem::take(&mut self.waiting) {
            rooms.give(second.node, second.bytes);
            self.push(&second, to, Some(first));
        }
    }

    pub(crate) fn done(mut self, rooms: &mut Rooms) -> PageDecision {
        self.finish(rooms);
        let Moves { out: moves, needs, exchanges, .. } = self;
        PageDecision { moves, needs, exchanges, ..PageDecision::default() }
    }
}
