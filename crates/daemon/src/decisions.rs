//! The policy, with the budgets and counters that it needs.
//! In: the ledger after its residency was refreshed. Out: a [`Decision`].
//! Knows nothing of how moves are executed, or of clients.

use crate::tiers::Tiers;
use std::collections::HashSet;
use tiercel_ledger::movement::Outcome;
use tiercel_ledger::{CHEAP_IN_UNIT, ExtentId, PIECE_UNITS, Pace};
use tiercel_machine::Machine;
use tiercel_policy::{Budgets, Config, ConfigError, Decision, Interval, Policy};
use tiercel_sampler::Counters;

/// The policy.
pub(crate) struct Decisions {
    policy: Policy,
}

impl Decisions {
    pub(crate) fn new(config: Config) -> Result<Decisions, ConfigError> {
        Ok(Decisions { policy: Policy::new(config)? })
    }

    /// The interval since the last decision, as the policy sees it.
    pub(crate) fn interval(
        tiers: &Tiers,
        passed: Interval,
        counters: Option<Counters>,
    ) -> Interval {
        Interval {
            llc_misses: counters.map(|counters| counters.llc_misses),
            instructions: counters.map(|counters| counters.instructions),
            is_modelled: tiers.treatment.is_modelled,
            ..passed
        }
    }

    /// What tiers may hold. `placed`: sites that a plan places, which the policy leaves to it;
    /// `promised_bytes`: what was born in the best tier and is not touched yet.
    pub(crate) fn budgets(
        tiers: &Tiers,
        placed: HashSet<(u32, u32)>,
        promised_bytes: u64,
    ) -> Budgets {
        let mut left_bytes = tiers.available_bytes();
        let mut promised = promised_bytes;
        for node in &tiers.fast {
            let Some(left) = left_bytes.get_mut(node) else { continue };
            let taken = promised.min(*left);
            *left -= taken;
            promised -= taken;
        }
        let mut budgets = Budgets { left_bytes, placed, ..Budgets::fast(tiers.budget) };
        for group in &mut budgets.groups {
            group.outside_bytes = vec![promised_bytes];
        }
        budgets
    }

    /// Decides what to move, and where births go.
    pub(crate) fn decide(
        &mut self,
        pace: &mut dyn Pace,
        machine: &Machine,
        budgets: &Budgets,
        interval: &Interval,
    ) -> Decision {
        self.policy.tick_in_pieces(pace, machine, budgets, interval)
    }

    /// What became of a move; moves that the policy did not request count as well.
    pub(crate) fn outcome(&mut self, outcome: &Outcome) {
        self.policy.outcome(outcome);
    }

    /// The extents that an assignment made now would put in the best tier.
    pub(crate) fn best_extents(
        &mut self,
        pace: &mut dyn Pace,
        machine: &Machine,
        budgets: &Budgets,
    ) -> ExtentSet {
        let mut set = ExtentSet::of_places(pace.ledger().extent_places());
        let best = self.policy.best_in_pieces(pace, machine, budgets);
        for piece in best.chunks(PIECE_UNITS * CHEAP_IN_UNIT) {
            piece.iter().for_each(|id| set.insert(*id));
            pace.compared(piece.len());
        }
        set
    }
}

/// A bit for each extent.
#[derive(Debug, Default)]
pub(crate) struct ExtentSet(Vec<u64>);

impl ExtentSet {
    /// For extents whose numbers are below `places`.
    fn of_places(places: usize) -> ExtentSet {
        ExtentSet(vec![0; places.div_ceil(64)])
    }

    /// Numbers beyond those places were given in a pause: they are left out.
    fn insert(&mut self, id: ExtentId) {
        if let Some(bits) = self.0.get_mut(id.0 as usize / 64) {
            *bits |= 1 << (id.0 % 64);
        }
    }

    pub(crate) fn contains(&self, id: ExtentId) -> bool {
        self.0.get(id.0 as usize / 64).is_some_and(|bits| bits >> (id.0 % 64) & 1 == 1)
    }
}
