//! The modes of the paper (AutoTiering 4), and mode `benefit`.
//! In: a unit that asks to move. Out: moves. Knows nothing of how they are executed.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use tiercel_ledger::regions::{GroupId, LEVEL_MAX, Unit};
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
        let targets = self.targets(unit).ok_or(Stay::Settled)?;
        let fitting = targets.iter().find(|target| self.rooms.fits(unit, **target));
        let is_placed = match fitting {
            Some(target) => self.move_to(unit, *target),
            None => targets.iter().any(|target| self.when_full(unit, *target)),
        };
        if is_placed || self.next_best(unit) { Ok(()) } else { Err(Stay::NoRoom) }
    }

    /// What a mode does when the target is full.
    fn when_full(&mut self, unit: &Unit, target: NodeId) -> bool {
        match self.mode {
            Mode::Cpm | Mode::Benefit => false,
            Mode::Cpmx => self.with_failed(unit, target),
            Mode::Opm => self.by_victims(unit, target),
            Mode::Opmx => self.by_exchange(unit, target) || self.by_victims(unit, target),
            Mode::OpmBd => self.by_reserve(unit, target),
        }
    }

    /// Where a unit should be, the node with most room first: the best memory for its accessor, and
    /// where several nodes access it any node of the best tier. `None`: it is there.
    fn targets(&self, unit: &Unit) -> Option<Vec<NodeId>> {
        let best = self.places.tiers(unit.accessor).first()?;
        if best.nodes.contains(&unit.node) {
            return None;
        }
        let mut nodes = best.nodes.clone();
        nodes.sort_by_key(|node| (Reverse(self.rooms.free_bytes(*node)), *node));
        Some(nodes)
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
        let groups = self.rooms.payers(unit.group, unit.bytes);
        let next = groups.iter().filter_map(|one| self.victims.peek(*one, target, of(*one)));
        let lowest = next.filter(|one| yields(one, unit)).min_by_key(Unit::victim_level)?;
        let to = self.slow_node(&lowest)?;
        Some((lowest, to))
    }

    /// The lowest unit of a node that yields to one.
    fn lowest(&mut self, unit: &Unit, node: NodeId) -> Option<Unit> {
        let groups = self.rooms.payers(unit.group, unit.bytes);
        let first = groups.iter().filter_map(|one| self.victims.peek(*one, node, 0));
        first.filter(|one| yields(one, unit)).min_by_key(Unit::victim_level)
    }

    /// Exchanges a unit with a colder one of its target whose next place is where the unit is.
    fn by_exchange(&mut self, unit: &Unit, target: NodeId) -> bool {
        let Some(victim) = self.lowest(unit, target) else { return false };
        let nearest = self.places.slower(&victim).next();
        let suits = nearest.is_some_and(|tier| tier.nodes.contains(&unit.node));
        suits && victim.bytes == unit.bytes && self.exchange(unit, &victim, unit.node)
    }

    /// Moves a unit into the reserve, which is refilled when little is left of it.
    fn by_reserve(&mut self, unit: &Unit, target: NodeId) -> bool {
        if self.lowest(unit, target).is_none() {
            return false;
        }
        if self.is_low(target) {
            self.refill(target, (unit.group, unit.bytes));
        }
        !self.is_low(target)
            && self.rooms.fits_keeping(unit, target, 0)
            && self.move_to(unit, target)
    }

    fn is_low(&self, node: NodeId) -> bool {
        self.rooms.reserve_left(node) < signed(self.rooms.reserve(node).threshold_bytes)
    }

    /// Demotes the lowest levels of a node until its reserve is full.
    fn refill(&mut self, node: NodeId, (group, bytes): (GroupId, u64)) {
        let full = signed(self.rooms.reserve(node).bytes);
        for _ in 0..REFILL_MAX {
            let groups = self.rooms.payers(group, bytes);
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
        let wanted = |unit: &Unit| {
            let (targets, asking) =
                (self.targets(unit).unwrap_or_default(), (unit.group, unit.bytes));
            targets.into_iter().map(move |target| (target, asking))
        };
        let used: BTreeSet<_> = demand.iter().flat_map(wanted).collect();
        for (node, asking) in used {
            if self.is_low(node) {
                self.refill(node, asking);
            }
        }
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
                self.one_by_one(unit, node, (victim, to)) || self.exchange(unit, &victim, to)
            }
        };
        if is_done { Ok(()) } else { Err(Stay::NoRoom) }
    }

    /// Demotes a victim, then moves the unit, where there is room to: all victims of a tick can
    /// leave in one round then. Exchanges go through the few bytes that a full node grants: 10,240
    /// took 36 rounds and 3.3 s (docs/pages.md).
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
        let victim = self.cheapest(unit, node)?;
        // To the slow memory near its accessor, or where the unit leaves: where it loses less.
        let to = [self.slow_node(&victim), Some(unit.node)];
        let net_ns = |to: &NodeId| self.estimate.net_ns(self.places, &victim, *to);
        let to = to.into_iter().flatten().max_by(|a, b| net_ns(a).total_cmp(&net_ns(b)))?;
        let lost_ns = self.lost_ns(unit, node, (&victim, to));
        Some(Choice { net_ns: own_ns - lost_ns, node, leaving: Some((victim, to)) })
    }

    /// What it costs that a victim leaves for a unit: its move, its loss, and the error of both
    /// rates. Of what another group owes its move alone.
    fn lost_ns(&self, unit: &Unit, node: NodeId, (victim, to): (&Unit, NodeId)) -> f64 {
        if victim.group != unit.group {
            return self.estimate.cost_ns(victim.bytes) * self.estimate.margin;
        }
        let error = |one, to| self.estimate.error_ns(self.places, one, to);
        error(unit, node).hypot(error(victim, to)) - self.estimate.net_ns(self.places, victim, to)
    }

    /// The victim that is missed least of those that did not move too often: what another group
    /// owes is not.
    fn cheapest(&mut self, unit: &Unit, node: NodeId) -> Option<Unit> {
        let (history, window, estimate) = (self.history, self.window, self.estimate);
        let may_leave = |one: &Unit| !history.is_locked(one.key(), window);
        let rate = |one: &Unit| estimate.rate_per_s(one) / one.bytes as f64;
        let mut each = Vec::new();
        for group in self.rooms.payers(unit.group, unit.bytes).into_iter().rev() {
            let pool = (group, node);
            each.extend(self.victims.cheapest(pool, unit.bytes, &may_leave, &rate));
        }
        let missed = |one: &Unit| if one.group == unit.group { rate(one) } else { 0.0 };
        each.into_iter().min_by(|a, b| missed(a).total_cmp(&missed(b)))
    }
}

/// Whether a victim may leave for a unit: it is colder, or its group owes it.
fn yields(victim: &Unit, unit: &Unit) -> bool {
    victim.group != unit.group || victim.victim_level() < unit.level
}

/// One way to serve a unit.
struct Choice {
    /// What it saves beyond all costs.
    net_ns: f64,
    node: NodeId,
    /// What must leave, and where to.
    leaving: Option<(Unit, NodeId)>,
}
