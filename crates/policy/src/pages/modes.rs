//! The modes of the paper (AutoTiering 4), and mode `benefit`.
//! In: a unit that asks to move. Out: moves. Knows nothing of how they are executed.

use std::collections::BTreeSet;

use tiercel_ledger::regions::{Accessor, GroupId, LEVEL_MAX, Unit};
use tiercel_machine::NodeId;
use tiercel_machine::number::signed;

use super::config::Mode;
use super::stay::Stay;
use super::tiering::Turn;

/// Units that a node remembers because they could not leave it. Chosen, not measured: 64 times as
/// many as are looked at.
const FAILED_MAX: usize = 1024;
/// How many of them are looked at for a partner (AutoTiering's code).
const LOOKED_AT: usize = 16;
/// Victims that may make room for one unit: 2 MiB of single OS pages.
const VICTIMS_MAX: usize = 512;
/// Victims of one refill: 256 MiB of 64 KiB, far more than a reserve. It bounds the loop.
const REFILL_MAX: usize = 4096;

impl Turn<'_> {
    /// The modes of the paper.
    pub(crate) fn as_published(&mut self, unit: &Unit) -> Result<(), Stay> {
        let target = self.target(unit).ok_or(Stay::Settled)?;
        let has_room = self.rooms.fits(unit, target) && self.move_to(unit, target);
        let is_placed = has_room || self.when_full(unit, target) || self.next_best(unit);
        if is_placed { Ok(()) } else { Err(Stay::NoRoom) }
    }

    /// What a mode does when the target is full.
    fn when_full(&mut self, unit: &Unit, target: NodeId) -> bool {
        // Both sockets use it: no node of the best tier is better than another (pages.md 2).
        let is_shared = unit.accessor == Accessor::Several;
        match self.mode {
            _ if is_shared => false,
            Mode::Cpm | Mode::Benefit => false,
            Mode::Cpmx => self.with_failed(unit, target),
            Mode::Opm => self.by_victims(unit, target),
            Mode::Opmx => self.by_exchange(unit, target) || self.by_victims(unit, target),
            Mode::OpmBd => self.by_reserve(unit, target),
        }
    }

    /// Where a unit should be: the best memory for its accessor. `None`: it is there.
    fn target(&self, unit: &Unit) -> Option<NodeId> {
        let best = self.places.tiers(unit.accessor).first()?;
        if best.nodes.contains(&unit.node) {
            return None;
        }
        let roomiest = self.rooms.roomiest(unit, &best.nodes);
        roomiest.or(best.nodes.iter().copied().max_by_key(|node| self.rooms.free_bytes(*node)))
    }

    /// The best node with room that is better than where it is; access tier before locality.
    fn next_best(&mut self, unit: &Unit) -> bool {
        let here = self.places.rank(unit.accessor, unit.node);
        let better = &self.places.tiers(unit.accessor)[..here];
        let found = better.iter().find_map(|tier| self.rooms.roomiest(unit, &tier.nodes));
        found.is_some_and(|node| self.move_to(unit, node))
    }

    /// Exchanges a unit of another node of the best tier with one that failed to go the other way;
    /// if there is none, the unit waits for one.
    fn with_failed(&mut self, unit: &Unit, target: NodeId) -> bool {
        if !self.places.is_fast(unit.node) {
            return false;
        }
        let waiting = self.failed.get(&target).into_iter().flatten().take(LOOKED_AT);
        let partner = waiting.filter(|(_, wanted)| *wanted == unit.node).find_map(|(key, _)| {
            let found = self.victims.find(*key)?;
            (found.node == target && found.bytes == unit.bytes).then_some(found)
        });
        if let Some(partner) = partner
            && self.exchange(unit, &partner, unit.node)
        {
            self.failed.entry(target).or_default().retain(|(key, _)| *key != partner.key());
            return true;
        }
        self.wait_for_partner(unit, target);
        false
    }

    fn wait_for_partner(&mut self, unit: &Unit, target: NodeId) {
        let list = self.failed.entry(unit.node).or_default();
        list.retain(|(key, _)| *key != unit.key());
        if list.len() == FAILED_MAX {
            list.pop_front();
        }
        list.push_back((unit.key(), target));
    }

    /// Demotes what is colder than a unit until the unit fits, then moves it.
    fn by_victims(&mut self, unit: &Unit, target: NodeId) -> bool {
        // A reserve that is not full is not this unit's to fill.
        let kept = self.rooms.reserve_left(target);
        let mut leaving: Vec<(Unit, NodeId)> = Vec::new();
        while !self.rooms.fits_keeping(unit, target, kept) && leaving.len() < VICTIMS_MAX {
            let Some((victim, to)) = self.colder(unit, target, &leaving) else { break };
            self.rooms.moved(&victim, to);
            leaving.push((victim, to));
        }
        if !self.rooms.fits_keeping(unit, target, kept) {
            leaving.iter().for_each(|(victim, to)| self.rooms.unmoved(victim, *to));
            return false;
        }
        let chain = |needs, (victim, to): &(Unit, NodeId)| Some(self.record(victim, *to, needs));
        let last = leaving.iter().fold(None, chain);
        self.move_after(unit, target, last)
    }

    /// The next victim after those in `leaving` that is colder than a unit, and where it goes.
    fn colder(
        &mut self,
        unit: &Unit,
        target: NodeId,
        leaving: &[(Unit, NodeId)],
    ) -> Option<(Unit, NodeId)> {
        let of = |group| leaving.iter().filter(|(victim, _)| victim.group == group).count();
        let groups = self.payers(unit.group);
        let next = groups.iter().filter_map(|one| self.victims.peek(*one, target, of(*one)));
        let lowest = next.min_by_key(Unit::victim_level)?;
        let to = self.slow_node(&lowest)?;
        (lowest.victim_level() < unit.level).then_some((lowest, to))
    }

    /// Exchanges a unit with a colder one of its target whose next place is where the unit is.
    fn by_exchange(&mut self, unit: &Unit, target: NodeId) -> bool {
        let groups = self.payers(unit.group);
        let Some(victim) = self.victims.lowest(&groups, target) else { return false };
        let nearest = self.places.slower(&victim).next();
        let suits = nearest.is_some_and(|tier| tier.nodes.contains(&unit.node));
        let is_colder = victim.victim_level() < unit.level && victim.bytes == unit.bytes;
        suits && is_colder && self.exchange(unit, &victim, unit.node)
    }

    /// Moves a unit into the reserve, which is refilled when little is left of it.
    fn by_reserve(&mut self, unit: &Unit, target: NodeId) -> bool {
        let groups = self.payers(unit.group);
        let lowest = self.victims.lowest(&groups, target);
        if lowest.is_none_or(|lowest| unit.level <= lowest.victim_level()) {
            return false;
        }
        if self.is_low(target) {
            self.refill(target, unit.group);
        }
        !self.is_low(target)
            && self.rooms.fits_keeping(unit, target, 0)
            && self.move_to(unit, target)
    }

    fn is_low(&self, node: NodeId) -> bool {
        self.rooms.reserve_left(node) < signed(self.rooms.reserve(node).threshold_bytes)
    }

    /// Demotes the lowest levels of a node until its reserve is full.
    fn refill(&mut self, node: NodeId, group: GroupId) {
        let groups = self.payers(group);
        let full = signed(self.rooms.reserve(node).bytes);
        for _ in 0..REFILL_MAX {
            let lowest = self.victims.lowest(&groups, node);
            let victim = lowest.filter(|victim| victim.victim_level() < LEVEL_MAX);
            if self.rooms.free_bytes(node) >= full {
                return;
            }
            let Some((victim, to)) =
                victim.and_then(|victim| Some((victim, self.slow_node(&victim)?)))
            else {
                return;
            };
            self.move_to(&victim, to);
        }
    }

    /// Refills the reserves that the tick used, at the expense of the groups that use them.
    pub(crate) fn refill_all(&mut self, demand: &[Unit]) {
        if self.mode != Mode::OpmBd {
            return;
        }
        let wanted = |unit: &Unit| Some((self.target(unit)?, unit.group));
        let used: BTreeSet<_> = demand.iter().filter_map(wanted).collect();
        for (node, group) in used {
            if self.is_low(node) {
                self.refill(node, group);
            }
        }
    }

    /// The groups whose units may leave for one of `group`: those above their limits, and itself.
    fn payers(&self, group: GroupId) -> Vec<GroupId> {
        self.rooms.over_limit().filter(|over| *over != group).chain([group]).collect()
    }

    /// What gains most by estimate, if anything does.
    pub(crate) fn by_benefit(&mut self, unit: &Unit) -> Result<(), Stay> {
        // No window has ended since it was mapped: its rate is unknown.
        if unit.early.is_some_and(|early| early.windows == 0) {
            return Err(Stay::New);
        }
        let nodes: Vec<NodeId> = self.places.nodes().filter(|node| *node != unit.node).collect();
        let choices: Vec<Choice> =
            nodes.iter().filter_map(|node| self.choice(unit, *node)).collect();
        // A better node has nothing that may leave.
        let is_blocked = choices.len() < nodes.len();
        let best = choices.into_iter().max_by(|a, b| a.net_ns.total_cmp(&b.net_ns));
        match best {
            Some(best) if best.net_ns > 0.0 => self.follow(unit, best),
            Some(Choice { node, net_ns, .. }) if !is_blocked => Err(Stay::NoGain { node, net_ns }),
            _ => Err(Stay::NoRoom),
        }
    }

    fn follow(&mut self, unit: &Unit, Choice { node, leaving, .. }: Choice) -> Result<(), Stay> {
        let is_done = match leaving {
            None => self.move_to(unit, node),
            Some((victim, to)) => {
                self.exchange(unit, &victim, to) || self.one_by_one(unit, node, (victim, to))
            }
        };
        if is_done { Ok(()) } else { Err(Stay::NoRoom) }
    }

    /// Demotes a victim, then moves the unit: where an exchange has no free byte to begin with.
    fn one_by_one(&mut self, unit: &Unit, node: NodeId, leaving: (Unit, NodeId)) -> bool {
        let (victim, to) = leaving;
        if !self.rooms.fits(&victim, to) {
            return false;
        }
        self.rooms.moved(&victim, to);
        if !self.rooms.fits_keeping(unit, node, 0) {
            self.rooms.unmoved(&victim, to);
            return false;
        }
        let first = self.record(&victim, to, None);
        self.move_after(unit, node, Some(first))
    }

    /// What moving a unit to a node saves, and what must leave for it.
    fn choice(&mut self, unit: &Unit, node: NodeId) -> Option<Choice> {
        let own_ns = self.estimate.net_ns(self.places, unit, node);
        if own_ns <= 0.0 || self.rooms.fits(unit, node) {
            return Some(Choice { net_ns: own_ns, node, leaving: None });
        }
        let victim = self.unlocked(unit, node)?;
        let nearest = self.places.slower(&victim).next();
        let is_near = nearest.is_some_and(|tier| tier.nodes.contains(&unit.node));
        let to = if is_near { unit.node } else { self.slow_node(&victim)? };
        let net_ns = own_ns + self.estimate.net_ns(self.places, &victim, to);
        Some(Choice { net_ns, node, leaving: Some((victim, to)) })
    }

    /// The lowest victim that did not move too often, of those looked at.
    fn unlocked(&mut self, unit: &Unit, node: NodeId) -> Option<Unit> {
        let groups = self.payers(unit.group);
        let mut looked_at = Vec::new();
        for group in groups {
            let next = (0..LOOKED_AT).map_while(|nth| self.victims.peek(group, node, nth));
            looked_at.extend(next);
        }
        let history = &self.history;
        let free =
            |one: &Unit| one.bytes == unit.bytes && !history.is_locked(one.key(), self.window);
        looked_at.into_iter().filter(free).min_by_key(Unit::victim_level)
    }
}

/// One way to serve a unit.
struct Choice {
    /// What it saves beyond all costs.
    net_ns: f64,
    node: NodeId,
    /// What must leave, and where to.
    leaving: Option<(Unit, NodeId)>,
}
