//! What leaves a full node: the units there with the lowest levels, of the own group first.
//! In: [`Residents`]. Out: victims, the lowest first. Knows nothing of where they go.

use std::collections::{BTreeMap, HashSet, VecDeque};

use tiercel_ledger::regions::{GroupId, Regions, Unit, UnitKey};
use tiercel_machine::NodeId;

use super::history::Immovable;

/// Units of a group on a node that a tick knows the cost of: 2 MiB of single OS pages. More than
/// that leave in later ticks.
const POOL: usize = 512;

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
    /// Of a group on a node, the dearest first.
    pools: BTreeMap<(GroupId, NodeId), Vec<Unit>>,
    /// Units that move in this tick: none of them is a victim as well.
    moving: HashSet<UnitKey>,
    immovable: &'a Immovable,
    window: u64,
}

impl<'a> Victims<'a> {
    pub(crate) fn new(
        residents: &'a mut dyn Residents,
        immovable: &'a Immovable,
        window: u64,
    ) -> Victims<'a> {
        let (queues, pools, moving) = (BTreeMap::new(), BTreeMap::new(), HashSet::new());
        Victims { residents, queues, pools, moving, immovable, window }
    }

    /// The `nth` victim of a group on a node, from 0, the lowest level first. It stays in the
    /// queue.
    pub(crate) fn peek(&mut self, group: GroupId, node: NodeId, nth: usize) -> Option<Unit> {
        let moving = &self.moving;
        let queue = self.queues.entry((group, node)).or_default();
        queue.retain(|unit| !moving.contains(&unit.key()));
        while queue.len() <= nth {
            let unit = self.residents.next_victim(group, node)?;
            if !moving.contains(&unit.key()) && !self.immovable.has(unit.key(), self.window) {
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

    /// The unit of a group on a node, of so many bytes, that costs least, of the [`POOL`] that
    /// have the lowest levels and may leave. It stays.
    pub(crate) fn cheapest(
        &mut self,
        (group, node): (GroupId, NodeId),
        bytes: u64,
        may_leave: &dyn Fn(&Unit) -> bool,
        cost: &dyn Fn(&Unit) -> f64,
    ) -> Option<Unit> {
        let (residents, moving) = (&mut *self.residents, &self.moving);
        let (immovable, window) = (self.immovable, self.window);
        let pool = self.pools.entry((group, node)).or_insert_with(|| {
            let next = (0..POOL).map_while(|_| residents.next_victim(group, node));
            let next = next.filter(|unit| !immovable.has(unit.key(), window));
            let mut pool: Vec<Unit> = next.filter(may_leave).collect();
            pool.sort_by(|a, b| cost(b).total_cmp(&cost(a)));
            pool
        });
        let is_left = |unit: &&Unit| !moving.contains(&unit.key());
        while pool.last().is_some_and(|unit| !is_left(&unit)) {
            pool.pop();
        }
        pool.iter().rev().filter(is_left).find(|unit| unit.bytes == bytes).copied()
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
