//! What leaves a full node: the units there with the lowest levels, of the own group first.
//! In: [`Residents`]. Out: victims, the lowest first. Knows nothing of where they go.

use std::collections::{BTreeMap, HashSet, VecDeque};

use tiercel_ledger::regions::{GroupId, Regions, Unit, UnitKey};
use tiercel_machine::NodeId;

/// What lies where, as the ledger of OS pages knows it.
pub trait Residents {
    /// A unit of a group on a node, one of those with the lowest [`Unit::victim_level`]. Calls with
    /// the same arguments return each unit once until the next tick; `None` when there are no more.
    fn next_victim(&mut self, group: GroupId, node: NodeId) -> Option<Unit>;

    /// The unit at an address as it is now; `None` where nothing is tracked.
    fn find(&self, key: UnitKey) -> Option<Unit>;
}

impl Residents for Regions {
    fn next_victim(&mut self, group: GroupId, node: NodeId) -> Option<Unit> {
        Regions::next_victim(self, group, node)
    }

    fn find(&self, key: UnitKey) -> Option<Unit> {
        Regions::find(self, key)
    }
}

/// Victims of one tick: a queue for each group and node, filled on demand.
pub(crate) struct Victims<'a> {
    residents: &'a mut dyn Residents,
    queues: BTreeMap<(GroupId, NodeId), VecDeque<Unit>>,
    /// Units that move in this tick: none of them is a victim as well.
    moving: HashSet<UnitKey>,
}

impl<'a> Victims<'a> {
    pub(crate) fn new(residents: &'a mut dyn Residents) -> Victims<'a> {
        Victims { residents, queues: BTreeMap::new(), moving: HashSet::new() }
    }

    /// The `nth` victim of a group on a node, from 0, the lowest level first. It stays in the
    /// queue.
    pub(crate) fn peek(&mut self, group: GroupId, node: NodeId, nth: usize) -> Option<Unit> {
        let moving = &self.moving;
        let queue = self.queues.entry((group, node)).or_default();
        queue.retain(|unit| !moving.contains(&unit.key()));
        while queue.len() <= nth {
            let unit = self.residents.next_victim(group, node)?;
            if !moving.contains(&unit.key()) {
                queue.push_back(unit);
            }
        }
        queue.get(nth).copied()
    }

    /// The first victim of these groups, the lowest level first, of equals the first group's.
    pub(crate) fn lowest(&mut self, groups: &[GroupId], node: NodeId) -> Option<Unit> {
        let firsts = groups.iter().filter_map(|group| self.peek(*group, node, 0));
        firsts.collect::<Vec<_>>().into_iter().min_by_key(Unit::victim_level)
    }

    pub(crate) fn find(&self, key: UnitKey) -> Option<Unit> {
        self.residents.find(key).filter(|_| !self.moving.contains(&key))
    }

    /// Notes that a unit moves; false when it already does.
    pub(crate) fn moves(&mut self, unit: &Unit) -> bool {
        self.moving.insert(unit.key())
    }

    pub(crate) fn is_moving(&self, unit: &Unit) -> bool {
        self.moving.contains(&unit.key())
    }
}
