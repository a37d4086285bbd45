//! How much still fits where, while a tick's moves are put together.
//! In: free bytes of nodes, what groups may still take. Out: whether a unit fits. Knows nothing of
//! why it should.
//!
//! Invariant: a node's free bytes are those after all moves so far, in their order; they are never
//! negative because of a move.

use std::collections::BTreeMap;

use tiercel_ledger::regions::{GroupId, Unit};
use tiercel_machine::NodeId;
use tiercel_machine::number::signed;

use super::places::Places;
use super::reserve::Reserve;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Rooms {
    nodes: BTreeMap<NodeId, NodeRoom>,
    /// Bytes of the best tier that a group may still take; below 0: it is above its limit. A group
    /// that is not here has no limit.
    groups: BTreeMap<GroupId, i64>,
    /// Bytes of the best tier that a group lacks of what it is entitled to; below 0: it has more. A
    /// group that is not here neither gives nor takes for that.
    lacking: BTreeMap<GroupId, i64>,
}

#[derive(Clone, Copy, Debug)]
struct NodeRoom {
    free_bytes: i64,
    reserve: Reserve,
    is_fast: bool,
}

impl Rooms {
    /// `free`: bytes that each node can take. Every node of the best tier keeps `reserve`.
    pub fn new(places: &Places, free: &[(NodeId, u64)], reserve: Reserve) -> Rooms {
        let room = |(node, bytes): &(NodeId, u64)| {
            let is_fast = places.is_fast(*node);
            let reserve = if is_fast { reserve } else { Reserve::default() };
            (*node, NodeRoom { free_bytes: signed(*bytes), reserve, is_fast })
        };
        let (groups, lacking) = (BTreeMap::new(), BTreeMap::new());
        Rooms { nodes: free.iter().map(room).collect(), groups, lacking }
    }

    /// Every other node keeps so many bytes: its reserve is for exchanges alone.
    pub fn keep_slow(&mut self, kept: &[(NodeId, u64)]) {
        for (node, bytes) in kept {
            if let Some(room) = self.nodes.get_mut(node).filter(|room| !room.is_fast) {
                room.reserve = Reserve { bytes: *bytes, threshold_bytes: 0 };
            }
        }
    }

    /// Limits what a group may still take of the best tier; below 0 it holds too much.
    pub fn limit(&mut self, group: GroupId, left_bytes: i64) {
        self.groups.insert(group, left_bytes);
    }

    /// Says how much a group lacks of what it is entitled to of the best tier; below 0 it has more.
    pub fn entitle(&mut self, group: GroupId, lacking_bytes: i64) {
        self.lacking.insert(group, lacking_bytes);
    }

    /// Groups of which a unit may leave for one of `group`: those above their limit; if the group
    /// lacks so many bytes, those that have as many beyond what they are entitled to; at last the
    /// group itself.
    pub(crate) fn payers(&self, group: GroupId, bytes: u64) -> Vec<GroupId> {
        let of = |groups: &BTreeMap<GroupId, i64>, one: GroupId| *groups.get(&one).unwrap_or(&0);
        let bytes = signed(bytes);
        let lacks = of(&self.lacking, group) >= bytes;
        let gives = |one: &GroupId| {
            of(&self.groups, *one) < 0 || lacks && of(&self.lacking, *one) <= -bytes
        };
        let known = self.groups.keys().chain(self.lacking.keys());
        let mut payers: Vec<GroupId> =
            known.copied().filter(|one| *one != group && gives(one)).collect();
        payers.sort_unstable();
        payers.dedup();
        payers.push(group);
        payers
    }

    pub(crate) fn free_bytes(&self, node: NodeId) -> i64 {
        self.nodes.get(&node).map_or(0, |room| room.free_bytes)
    }

    pub(crate) fn reserve(&self, node: NodeId) -> Reserve {
        self.nodes.get(&node).map_or(Reserve::default(), |room| room.reserve)
    }

    /// What is left of a node's reserve.
    pub(crate) fn reserve_left(&self, node: NodeId) -> i64 {
        self.free_bytes(node).min(signed(self.reserve(node).bytes))
    }

    /// Whether a unit fits on a node, without its reserve.
    pub(crate) fn fits(&self, unit: &Unit, node: NodeId) -> bool {
        self.fits_keeping(unit, node, signed(self.reserve(node).bytes))
    }

    /// Whether it fits, and so many bytes stay free.
    pub(crate) fn fits_keeping(&self, unit: &Unit, node: NodeId, kept_bytes: i64) -> bool {
        let on_node = self.free_bytes(node) - kept_bytes >= signed(unit.bytes);
        let takes_fast = self.is_fast(node) && !self.is_fast(unit.node);
        on_node && (!takes_fast || self.left_bytes(unit.group) >= signed(unit.bytes))
    }

    /// Whether a group's limit allows a unit in the place of a partner that leaves.
    pub(crate) fn may_replace(&self, unit: &Unit, partner: &Unit) -> bool {
        let replaces_own = unit.group == partner.group || self.is_fast(unit.node);
        replaces_own || self.left_bytes(unit.group) >= signed(unit.bytes)
    }

    fn left_bytes(&self, group: GroupId) -> i64 {
        self.groups.get(&group).copied().unwrap_or(i64::MAX)
    }

    /// The node of these with most free bytes on which a unit fits.
    pub(crate) fn roomiest(&self, unit: &Unit, nodes: &[NodeId]) -> Option<NodeId> {
        let fitting = nodes.iter().copied().filter(|node| self.fits(unit, *node));
        fitting.max_by_key(|node| (self.free_bytes(*node), std::cmp::Reverse(*node)))
    }

    /// A unit moves to a node.
    pub(crate) fn moved(&mut self, unit: &Unit, to: NodeId) {
        self.charge(unit, unit.node, to);
        self.give(unit.node, unit.bytes);
        self.take(to, unit.bytes);
    }

    /// Takes the last call for this unit back.
    pub(crate) fn unmoved(&mut self, unit: &Unit, to: NodeId) {
        self.charge(unit, to, unit.node);
        self.give(to, unit.bytes);
        self.take(unit.node, unit.bytes);
    }

    /// The first half of an exchange takes free bytes of the second's node; the second leaves it
    /// later, when [`Rooms::give`] is called for it. The room that it goes to is its own from now
    /// on.
    pub(crate) fn exchanged(&mut self, first: &Unit, second: &Unit, to: NodeId) {
        self.charge(first, first.node, second.node);
        self.charge(second, second.node, to);
        self.take(second.node, first.bytes);
        self.give(first.node, first.bytes);
        self.take(to, second.bytes);
    }

    /// Bytes of a node are free.
    pub(crate) fn give(&mut self, node: NodeId, bytes: u64) {
        if let Some(room) = self.nodes.get_mut(&node) {
            room.free_bytes += signed(bytes);
        }
    }

    fn take(&mut self, node: NodeId, bytes: u64) {
        if let Some(room) = self.nodes.get_mut(&node) {
            room.free_bytes -= signed(bytes);
        }
    }

    /// What a group may still take of the best tier, and what it lacks, changes when a unit enters
    /// or leaves it.
    fn charge(&mut self, unit: &Unit, from: NodeId, to: NodeId) {
        let change =
            signed(unit.bytes) * (i64::from(self.is_fast(from)) - i64::from(self.is_fast(to)));
        for bytes in [&mut self.groups, &mut self.lacking] {
            if let Some(bytes) = bytes.get_mut(&unit.group) {
                *bytes += change;
            }
        }
    }

    fn is_fast(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|room| room.is_fast)
    }
}
