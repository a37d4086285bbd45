//! Time, energy, or their product: which of many plans is the best.
//! In: a function that plans for any weights of time and energy. Out: the best plan, and a bound.
//! Knows nothing of how a plan is made.
//!
//! A product of two sums is not a sum over objects. But its least value over the hull of all plans
//! is at a corner, and each corner is the best plan for some weights of time and energy; at the
//! best one the weights are the product's own gradient (energy, time). So the weights are set to
//! the gradient at the best plan so far until nothing improves. The bound of each solved program
//! cuts off a half plane; the least product outside of all cuts is the bound.

use crate::PlanError;
use crate::estimate::{Cost, Weights};
use crate::options::Objective;
use crate::placement::Placement;

/// Times that the gradient is followed.
const FOLLOWS_MAX: usize = 6;
/// Times that the weight of time is halved to keep a slowdown: down to a thousandth.
const HALVINGS: usize = 10;

/// A plan for some weights.
#[derive(Clone, Debug)]
pub struct Trial {
    pub placements: Vec<Placement>,
    /// Accesses and moves.
    pub cost: Cost,
    /// The moves' share of it.
    pub moves: Cost,
    /// No placement has a smaller weighted cost; `None` for strategies without a bound.
    pub bound: Option<f64>,
    pub proven: bool,
    pub weights: Weights,
    /// As [`crate::Placements::prices`].
    pub prices: Vec<f64>,
}

/// The best plan, with its value (nanoseconds, picojoules, or their product) and a bound on that.
pub struct Wanted {
    pub trial: Trial,
    pub value: f64,
    pub bound: Option<f64>,
    pub proven: bool,
}

/// Finds the best plan, if given within a slowdown: time may be longer by this share (0.1: a tenth)
/// than that of the plan for time alone. `compute_ns` is time that no placement changes.
pub fn best(
    objective: Objective,
    slowdown: Option<f64>,
    compute_ns: f64,
    mut run: impl FnMut(Weights) -> Result<Trial, PlanError>,
) -> Result<Wanted, PlanError> {
    let mut goal = Goal { objective, compute_ns, limit_ns: f64::INFINITY, cuts: Vec::new() };
    let fastest = match (objective, slowdown) {
        (Objective::Energy, None) => None,
        _ => Some(goal.note(run(Weights::TIME)?)),
    };
    if let (Some(fastest), Some(slowdown)) = (&fastest, slowdown) {
        goal.limit_ns = (fastest.cost.time_ns + compute_ns) * (1.0 + slowdown);
    }
    let free = match objective {
        Objective::Time => None,
        Objective::Energy => Some(goal.note(run(Weights::ENERGY)?)),
        Objective::EnergyDelay => {
            let thriftiest = goal.note(run(Weights::ENERGY)?);
            let start = goal.better(fastest.clone(), thriftiest, f64::INFINITY);
            Some(goal.follow(start, &mut run)?)
        }
    };
    let trial = match (free, fastest) {
        (Some(free), Some(fastest)) if goal.time(&free.cost) > goal.limit_ns => {
            goal.keep_slowdown(free.weights, fastest, &mut run)?
        }
        (Some(free), _) => free,
        (None, fastest) => fastest.ok_or(PlanError::Options("no objective"))?,
    };
    let value = goal.value(&trial.cost);
    let alone = slowdown.is_none() && objective != Objective::EnergyDelay;
    let proven = trial.proven && alone;
    let bound = if proven { Some(value) } else { goal.bound().map(|bound| bound.min(value)) };
    Ok(Wanted { value, bound, proven, trial })
}

impl Objective {
    /// What is minimized, of a plan in a program that computes so long.
    pub fn value(self, cost: &Cost, compute_ns: f64) -> f64 {
        match self {
            Objective::Time => cost.time_ns,
            Objective::Energy => cost.energy_pj,
            Objective::EnergyDelay => (cost.time_ns + compute_ns) * cost.energy_pj,
        }
    }
}

struct Goal {
    objective: Objective,
    compute_ns: f64,
    /// Longest time allowed, compute included.
    limit_ns: f64,
    /// What was solved: weights, and the least weighted cost, compute included.
    cuts: Vec<(Weights, f64)>,
}

impl Goal {
    fn note(&mut self, trial: Trial) -> Trial {
        if let Some(bound) = trial.bound {
            self.cuts.push((trial.weights, bound + trial.weights.time * self.compute_ns));
        }
        trial
    }

    fn time(&self, cost: &Cost) -> f64 {
        cost.time_ns + self.compute_ns
    }

    fn value(&self, cost: &Cost) -> f64 {
        self.objective.value(cost, self.compute_ns)
    }

    /// The one with the smaller value within a time limit; the first if both exceed it.
    fn better(&self, first: Option<Trial>, other: Trial, limit_ns: f64) -> Trial {
        match first {
            Some(first)
                if self.time(&other.cost) > limit_ns
                    || self.value(&first.cost) <= self.value(&other.cost) =>
            {
                first
            }
            _ => other,
        }
    }

    fn follow(
        &mut self,
        mut best: Trial,
        run: &mut impl FnMut(Weights) -> Result<Trial, PlanError>,
    ) -> Result<Trial, PlanError> {
        for _ in 0..FOLLOWS_MAX {
            let weights =
                Weights { time: best.cost.energy_pj, energy: self.time(&best.cost) }.normal();
            let next = self.note(run(weights)?);
            let found = self.value(&next.cost) < self.value(&best.cost);
            best = self.better(Some(best), next, f64::INFINITY);
            if !found {
                break;
            }
        }
        Ok(best)
    }

    /// Gives time as much weight as it needs, but no more.
    fn keep_slowdown(
        &mut self,
        from: Weights,
        fastest: Trial,
        run: &mut impl FnMut(Weights) -> Result<Trial, PlanError>,
    ) -> Result<Trial, PlanError> {
        // Both terms are equal at the fastest plan, so that halves are halves.
        let (time, energy) = (self.time(&fastest.cost), fastest.cost.energy_pj);
        let per = |value: f64| if value > 0.0 { 1.0 / value } else { 1.0 };
        let own = from.time / (from.energy * energy * per(time) + from.time).max(f64::MIN_POSITIVE);
        let (mut low, mut high, mut best) = (own, 1.0, fastest);
        for _ in 0..HALVINGS {
            let share = (low + high) / 2.0;
            let weights =
                Weights { time: share * per(time), energy: (1.0 - share) * per(energy) }.normal();
            let next = self.note(run(weights)?);
            if self.time(&next.cost) <= self.limit_ns {
                high = share;
            } else {
                low = share;
            }
            best = self.better(Some(best), next, self.limit_ns);
        }
        Ok(best)
    }

    /// No plan within the limit has a smaller value.
    fn bound(&self) -> Option<f64> {
        match self.objective {
            Objective::Time => {
                let own = self.cuts.iter().filter(|(weights, _)| weights.energy == 0.0);
                own.map(|(weights, least)| least / weights.time - self.compute_ns).reduce(f64::max)
            }
            Objective::Energy => {
                let usable = |(weights, _): &&(Weights, f64)| {
                    weights.energy > 0.0 && (weights.time == 0.0 || self.limit_ns.is_finite())
                };
                let least = |(weights, least): &(Weights, f64)| {
                    let time = if weights.time > 0.0 { weights.time * self.limit_ns } else { 0.0 };
                    (least - time) / weights.energy
                };
                self.cuts.iter().filter(usable).map(least).reduce(f64::max)
            }
            Objective::EnergyDelay => self.least_product(),
        }
    }

    /// The product is quasi-concave: over the area that the cuts leave, it is least at a corner.
    fn least_product(&self) -> Option<f64> {
        let mut least: Option<f64> = None;
        for (index, (a, above_a)) in self.cuts.iter().enumerate() {
            for (b, above_b) in &self.cuts[index + 1..] {
                let across = a.time * b.energy - a.energy * b.time;
                if across == 0.0 {
                    continue;
                }
                let time = (above_a * b.energy - a.energy * above_b) / across;
                let energy = (a.time * above_b - above_a * b.time) / across;
                let inside = self.cuts.iter().all(|(weights, above)| {
                    let value = weights.time * time + weights.energy * energy;
                    value >= above - above.abs() * 1e-9
                });
                if inside && time >= 0.0 && energy >= 0.0 {
                    least = Some(least.map_or(time * energy, |least| least.min(time * energy)));
                }
            }
        }
        least
    }
}

impl Weights {
    /// The same direction, summing to 1.
    fn normal(self) -> Weights {
        let sum = self.time + self.energy;
        if sum > 0.0 {
            Weights { time: self.time / sum, energy: self.energy / sum }
        } else {
            Weights::TIME
        }
    }
}
