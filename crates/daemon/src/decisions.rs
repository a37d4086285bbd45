//! The policy, with the budgets and counters that it needs.
//! In: the ledger after its residency was refreshed. Out: a [`Decision`].
//! Knows nothing of how moves are executed, or of clients.

use crate::tiers::Tiers;
use std::collections::HashSet;
use tiercel_ledger::movement::Outcome;
use tiercel_ledger::{ExtentId, Ledger};
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

    /// Decides what to move, and where births go. `passed`: the interval since the last decision;
    /// `placed`: sites that a plan places, which the policy leaves to it.
    pub(crate) fn decide(
        &mut self,
        ledger: &Ledger,
        tiers: &Tiers,
        passed: Interval,
        counters: Option<Counters>,
        placed: HashSet<(u32, u32)>,
    ) -> Decision {
        let interval = Interval {
            llc_misses: counters.map(|counters| counters.llc_misses),
            instructions: counters.map(|counters| counters.instructions),
            is_modelled: tiers.treatment.is_modelled,
            ..passed
        };
        let left_bytes = tiers.available_bytes();
        let budgets = Budgets { left_bytes, placed, ..Budgets::fast(tiers.budget) };
        self.policy.tick(ledger, &tiers.machine, &budgets, &interval)
    }

    /// What became of a move; moves that the policy did not request count as well.
    pub(crate) fn outcome(&mut self, outcome: &Outcome) {
        self.policy.outcome(outcome);
    }

    /// The extents that an assignment made now would put in the best tier.
    pub(crate) fn best_extents(&mut self, ledger: &Ledger, tiers: &Tiers) -> HashSet<ExtentId> {
        let budgets = Budgets::fast(tiers.budget);
        self.policy.best(ledger, &tiers.machine, &budgets).into_iter().collect()
    }
}
