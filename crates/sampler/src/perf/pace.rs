//! Keeps the cost of sampling within a share of one CPU, and samples to as many as are of use, by
//! choosing the period.
//! In: samples and time since the last look. Out: a factor on every event's period.
//! Knows nothing of events or the kernel.

use std::time::Duration;
use tiercel_machine::number::saturating_u64;

/// CPU time one sample takes from the observed program: interrupt, record, ring. MAT 4.5.1: tens
/// of thousands of samples a second cost under 1%; that is 0.3 to 1 us each.
pub const SAMPLE_COST: Duration = Duration::from_nanos(1000);
/// Least time between two looks: shorter ones see noise.
const LOOK: Duration = Duration::from_millis(500);
/// The period is never more than this many times the configured one.
const FACTOR_MAX: u64 = 1 << 16;
/// Cheaper than this share of the budget: the period may come down again. A quarter leaves room
/// for the halving without at once being over budget again.
const CHEAP: f64 = 0.25;

/// The controller. For the budget it multiplies at once when over, and halves one step at a time
/// when cheap: an ebb may be short. For what is of use it follows what comes.
#[derive(Clone, Debug)]
pub struct Pace {
    cpu_budget: f64,
    enough_per_s: f64,
    /// For the budget.
    budget_factor: u64,
    /// For what is of use; the larger one counts.
    use_factor: u64,
    elapsed: Duration,
    spent: Duration,
    samples: u64,
    throttled: bool,
}

impl Pace {
    /// Begins at the configured period. `cpu_budget` is a share of one CPU.
    pub fn new(cpu_budget: f64) -> Pace {
        Pace {
            cpu_budget,
            enough_per_s: f64::INFINITY,
            budget_factor: 1,
            use_factor: 1,
            elapsed: Duration::ZERO,
            spent: Duration::ZERO,
            samples: 0,
            throttled: false,
        }
    }

    /// More samples than these are of no use from now on.
    pub fn set_useful_rate(&mut self, samples_per_s: f64) {
        self.enough_per_s = samples_per_s;
    }

    /// What the configured period is to be multiplied by.
    pub fn factor(&self) -> u64 {
        self.budget_factor.max(self.use_factor)
    }

    /// Takes in what happened during `elapsed`; true when the factor changed.
    pub fn look(
        &mut self,
        elapsed: Duration,
        spent: Duration,
        samples: u64,
        throttled: u64,
    ) -> bool {
        self.elapsed += elapsed;
        self.spent += spent;
        self.samples += samples;
        self.throttled |= throttled > 0;
        if self.elapsed < LOOK {
            return false;
        }
        let before = self.factor();
        self.keep_budget(before);
        self.follow_use(before);
        (self.elapsed, self.spent) = (Duration::ZERO, Duration::ZERO);
        (self.samples, self.throttled) = (0, false);
        self.factor() != before
    }

    /// `factor` is the one that this was spent with.
    fn keep_budget(&mut self, factor: u64) {
        let share = self.spent.as_secs_f64() / self.elapsed.as_secs_f64() / self.cpu_budget;
        if share > 1.0 || self.throttled {
            let times = saturating_u64(share.ceil()).next_power_of_two().clamp(2, 64);
            self.budget_factor = (factor * times).min(FACTOR_MAX);
        } else if share < CHEAP && self.budget_factor > 1 {
            self.budget_factor /= 2;
        }
    }

    /// `factor` is the one that these samples came with.
    fn follow_use(&mut self, factor: u64) {
        let unpaced_per_s = self.samples as f64 * factor as f64 / self.elapsed.as_secs_f64();
        let times = saturating_u64((unpaced_per_s / self.enough_per_s).ceil());
        let needed = times.clamp(1, FACTOR_MAX).next_power_of_two();
        // One step more than is needed stays, lest it changes back and forth.
        if needed > self.use_factor || needed * 2 < self.use_factor {
            self.use_factor = needed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_flood_is_dammed_in_one_step_and_an_ebb_released_slowly() {
        let mut pace = Pace::new(0.01);
        assert!(!pace.look(SECOND, Duration::from_millis(9), 0, 0), "within budget");
        assert!(pace.look(SECOND, Duration::from_millis(100), 0, 0), "ten times over");
        assert_eq!(pace.factor(), 16);
        assert!(!pace.look(SECOND, Duration::from_millis(6), 0, 0), "dear enough to stay");
        assert!(pace.look(SECOND, Duration::from_millis(1), 0, 0));
        assert_eq!(pace.factor(), 8);
    }

    #[test]
    fn no_more_is_sampled_than_is_of_use() {
        let mut pace = Pace::new(0.01);
        assert!(!pace.look(SECOND, Duration::ZERO, 10_000, 0), "no loss was reported");
        pace.set_useful_rate(3000.0);
        assert!(pace.look(SECOND, Duration::ZERO, 10_000, 0));
        assert_eq!(pace.factor(), 4);
        assert!(!pace.look(SECOND, Duration::ZERO, 2500, 0), "enough");
        assert!(!pace.look(SECOND, Duration::ZERO, 1200, 0), "half of it");
        pace.set_useful_rate(30_000.0);
        assert!(pace.look(SECOND, Duration::ZERO, 2500, 0), "more are of use");
        assert_eq!(pace.factor(), 1);
    }

    #[test]
    fn over_budget_it_goes_on_from_where_it_is() {
        let mut pace = Pace::new(0.01);
        pace.set_useful_rate(1000.0);
        assert!(pace.look(SECOND, Duration::ZERO, 8000, 0));
        assert!(pace.look(SECOND, Duration::from_millis(20), 900, 0), "twice over");
        assert_eq!(pace.factor(), 16);
    }

    #[test]
    fn throttling_counts_as_over_budget() {
        let mut pace = Pace::new(0.01);
        assert!(pace.look(SECOND, Duration::ZERO, 0, 1));
        assert_eq!(pace.factor(), 2);
    }

    #[test]
    fn short_looks_add_up_and_the_factor_is_bounded() {
        let mut pace = Pace::new(0.01);
        assert!(!pace.look(LOOK / 2, SECOND, 0, 0));
        assert!(pace.look(LOOK / 2, SECOND, 0, 0));
        for _ in 0..10 {
            pace.look(SECOND, SECOND, 0, 0);
        }
        assert_eq!(pace.factor(), FACTOR_MAX);
    }
}
