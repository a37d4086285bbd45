//! One tick of OS-page tiering.
//! In: a [`Situation`]. Out: a [`PageDecision`]. Knows nothing of what a mode does.

use std::collections::{BTreeMap, VecDeque};

use tiercel_ledger::regions::{Accessor, Unit, UnitKey};
use tiercel_machine::NodeId;

use super::benefit::Estimate;
use super::config::Mode;
use super::history::{History, Immovable};
use super::moves::{Moves, PageDecision};
use super::places::Places;
use super::rooms::Rooms;
use super::stay::{STAYS_MAX, Stay, Stayed};
use super::victims::{Residents, Victims};

/// Decides which units move. It remembers what failed and what has moved, nothing else.
#[derive(Debug)]
pub struct Tiering {
    mode: Mode,
    places: Places,
    history: History,
    immovable: Immovable,
    /// By node: units on it that wanted to move to another node of the best tier (`cpmx`).
    pub(crate) failed: BTreeMap<NodeId, VecDeque<(UnitKey, NodeId)>>,
    /// Counts demotions of units that several nodes access: they take turns.
    pub(crate) turns: usize,
}

/// What a tick decides by.
pub struct Situation<'a> {
    /// Units that ask to move: accessed in two windows running from the same node.
    pub demand: Vec<Unit>,
    /// What lies where.
    pub residents: &'a mut dyn Residents,
    /// What fits where.
    pub rooms: Rooms,
    /// Costs and rates.
    pub estimate: &'a Estimate,
    /// The number of the current window.
    pub window: u64,
}

/// A tick under way.
pub(crate) struct Turn<'a> {
    pub(crate) mode: Mode,
    pub(crate) places: &'a Places,
    pub(crate) estimate: &'a Estimate,
    pub(crate) history: &'a History,
    pub(crate) failed: &'a mut BTreeMap<NodeId, VecDeque<(UnitKey, NodeId)>>,
    pub(crate) turns: &'a mut usize,
    pub(crate) rooms: Rooms,
    pub(crate) victims: Victims<'a>,
    pub(crate) moves: Moves<'a>,
    pub(crate) window: u64,
}

impl Tiering {
    /// With a mode, on a machine.
    pub fn new(mode: Mode, places: Places) -> Tiering {
        let (history, immovable) = (History::default(), Immovable::default());
        Tiering { mode, places, history, immovable, failed: BTreeMap::new(), turns: 0 }
    }

    /// The machine as it sees it.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Decides. The same calls give the same decisions.
    pub fn tick(&mut self, now: Situation<'_>) -> PageDecision {
        let Situation { mut demand, residents, rooms, estimate, window } = now;
        self.history.begin(window);
        self.sort(&mut demand, estimate);
        let mut turn = Turn {
            mode: self.mode,
            places: &self.places,
            estimate,
            history: &self.history,
            failed: &mut self.failed,
            turns: &mut self.turns,
            rooms,
            victims: Victims::new(residents, &self.immovable, window),
            moves: Moves::new(&self.places, estimate),
            window,
        };
        let mut counts = PageDecision { asked: demand.len() as u64, ..PageDecision::default() };
        for unit in &demand {
            turn.serve(unit, &mut counts);
        }
        turn.refill_all(&demand);
        let PageDecision { moves, needs, exchanges, .. } = turn.moves.done(&mut turn.rooms);
        PageDecision { moves, needs, exchanges, ..counts }
    }

    /// The highest level first (AutoTiering has no order: it decides at each fault); in mode
    /// `benefit` what loses most a byte where it is.
    fn sort(&self, demand: &mut [Unit], estimate: &Estimate) {
        if self.mode != Mode::Benefit {
            demand.sort_by_key(|unit| (std::cmp::Reverse(unit.level), unit.key()));
            return;
        }
        let lost = |unit: &Unit| estimate.lost_ns_per_s(&self.places, unit) / unit.bytes as f64;
        demand.sort_by(|a, b| lost(b).total_cmp(&lost(a)).then(a.key().cmp(&b.key())));
    }

    /// A unit has moved, as its mover found in this window. What was refused did not move: it is
    /// neither locked nor counted.
    pub fn moved(&mut self, key: UnitKey, window: u64) {
        self.history.begin(window);
        self.history.note(key, window);
    }

    /// A unit could not be moved in this window, for a reason that will last.
    pub fn could_not_move(&mut self, key: UnitKey, window: u64) {
        self.immovable.note(key, window);
    }
}

impl Turn<'_> {
    fn serve(&mut self, unit: &Unit, counts: &mut PageDecision) {
        let Err(why) = self.try_to_place(unit) else { return };
        match why {
            Stay::Stopped => counts.is_stopped = true,
            Stay::Locked => counts.locked += 1,
            _ => counts.stayed += 1,
        }
        if counts.stays.len() < STAYS_MAX {
            counts.stays.push(Stayed { unit: *unit, why });
        }
    }

    fn try_to_place(&mut self, unit: &Unit) -> Result<(), Stay> {
        let is_guarded = self.mode == Mode::Benefit;
        if is_guarded && self.history.is_stopped(self.window) {
            Err(Stay::Stopped)
        } else if is_guarded && self.history.is_locked(unit.key(), self.window) {
            Err(Stay::Locked)
        } else if self.victims.is_moving(unit) {
            Err(Stay::Leaving)
        } else if self.moves.is_full() {
            Err(Stay::TooMany)
        } else if is_guarded {
            self.by_benefit(unit)
        } else {
            self.as_published(unit)
        }
    }

    /// A unit moves; there is room.
    pub(crate) fn move_to(&mut self, unit: &Unit, to: NodeId) -> bool {
        self.move_after(unit, to, None)
    }

    /// A unit moves; there is room when the move that it needs is done.
    pub(crate) fn move_after(&mut self, unit: &Unit, to: NodeId, needs: Option<usize>) -> bool {
        self.rooms.moved(unit, to);
        self.record(unit, to, needs);
        true
    }

    /// A move that `rooms` has already. Returns its number.
    pub(crate) fn record(&mut self, unit: &Unit, to: NodeId, needs: Option<usize>) -> usize {
        self.victims.moves(unit);
        self.moves.push(unit, to, needs)
    }

    /// Exchanges a unit with a partner, which goes to `to`; false, if there is no free byte to do
    /// it by.
    pub(crate) fn exchange(&mut self, unit: &Unit, partner: &Unit, to: NodeId) -> bool {
        let done = self.moves.exchange(unit, partner, to, &mut self.rooms);
        if done {
            self.victims.moves(unit);
            self.victims.moves(partner);
        }
        done
    }

    /// The slow node a victim goes to: the nearest to its accessor with room. Where several nodes
    /// access it, those of the tier take turns.
    pub(crate) fn slow_node(&mut self, victim: &Unit) -> Option<NodeId> {
        let places = self.places;
        let mut tiers = places.slower(victim);
        if victim.accessor != Accessor::Several {
            return tiers.find_map(|tier| self.rooms.roomiest(victim, &tier.nodes));
        }
        let fitting = |tier: &tiercel_machine::Tier| -> Vec<NodeId> {
            tier.nodes.iter().copied().filter(|node| self.rooms.fits(victim, *node)).collect()
        };
        let nodes = tiers.map(fitting).find(|nodes| !nodes.is_empty())?;
        *self.turns += 1;
        Some(nodes[*self.turns % nodes.len()])
    }
}
