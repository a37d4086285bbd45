//! Chooses the period so that sampling stays within a share of one CPU and yields no more samples
//! than are useful. In: samples and time since the last update. Out: a factor on every event's
//! period. Knows nothing of events or the kernel.

use std::time::Duration;
use tiercel_machine::number::saturating_u64;

/// CPU time that one sample takes from the observed program: interrupt, record, ring. MAT 4.5.1:
/// tens of thousands of samples a second cost under 1%; that is 0.3 to 1 us each.
pub const SAMPLE_COST: Duration = Duration::from_nanos(1000);
/// Shortest time between two updates: shorter ones measure noise.
const LOOK: Duration = Duration::from_millis(500);
/// Largest factor on the configured period.
const FACTOR_MAX: u64 = 1 << 16;
/// Below this share of the budget the period may decrease again. At a quarter, halving the period
/// doubles the cost and still leaves half of the budget.
const CHEAP: f64 = 0.25;

/// The controller. Over budget, it multiplies the factor at once; well below, it halves it one step
/// at a time, since a lull may be short. For the useful rate, it follows the measured rate.
#[derive(Clone, Debug)]
pub struct Pace {
    cpu_budget: f64,
    enough_per_s: f64,
    /// For the budget.
    budget_factor: u64,
    /// For the useful rate; the larger factor applies.
    use_factor: u64,
    elapsed: Duration,
    spent: Duration,
    samples: u64,
    throttled: bool,
}

impl Pace {
    /// Starts at the configured period. `cpu_budget` is a share of one CPU.
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

    /// Sets the rate beyond which samples are of no use.
    pub fn set_useful_rate(&mut self, samples_per_s: f64) {
        self.enough_per_s = samples_per_s;
    }

    /// The factor on the configured period.
    pub fn factor(&self) -> u64 {
        self.budget_factor.max(self.use_factor)
    }

    /// Updates the factor after `elapsed`; true when it changed.
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

    /// `factor`: the factor during this time.
    fn keep_budget(&mut self, factor: u64) {
        let share = self.spent.as_secs_f64() / self.elapsed.as_secs_f64() / self.cpu_budget;
        if share > 1.0 || self.throttled {
            let times = saturating_u64(share.ceil()).next_power_of_two().clamp(2, 64);
            self.budget_factor = (factor * times).min(FACTOR_MAX);
        } else if share < CHEAP && self.budget_factor > 1 {
            self.budget_factor /= 2;
        }
    }

    /// `factor`: the factor during these samples.
    fn follow_use(&mut self, factor: u64) {
        let unpaced_per_s = self.samples as f64 * factor as f64 / self.elapsed.as_secs_f64();
        let times = saturating_u64((unpaced_per_s / self.enough_per_s).ceil());
        let needed = times.clamp(1, FACTOR_MAX).next_power_of_two();
        // Stays one step above the needed factor (hysteresis).
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
    fn the_period_rises_in_one_step_and_falls_slowly() {
        let mut pace = Pace::new(0.01);
        assert!(!pace.look(SECOND, Duration::from_millis(9), 0, 0), "within budget");
        assert!(pace.look(SECOND, Duration::from_millis(100), 0, 0), "ten times over");
        assert_eq!(pace.factor(), 16);
        assert!(!pace.look(SECOND, Duration::from_millis(6), 0, 0), "costly enough to stay");
        assert!(pace.look(SECOND, Duration::from_millis(1), 0, 0));
        assert_eq!(pace.factor(), 8);
    }

    #[test]
    fn no_more_samples_are_taken_than_are_useful() {
        let mut pace = Pace::new(0.01);
        assert!(!pace.look(SECOND, Duration::ZERO, 10_000, 0), "no loss was reported");
        pace.set_useful_rate(3000.0);
        assert!(pace.look(SECOND, Duration::ZERO, 10_000, 0));
        assert_eq!(pace.factor(), 4);
        assert!(!pace.look(SECOND, Duration::ZERO, 2500, 0), "enough");
        assert!(!pace.look(SECOND, Duration::ZERO, 1200, 0), "half of it");
        pace.set_useful_rate(30_000.0);
        assert!(pace.look(SECOND, Duration::ZERO, 2500, 0), "more are useful");
        assert_eq!(pace.factor(), 1);
    }

    #[test]
    fn over_budget_the_factor_grows_from_its_current_value() {
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
    fn short_updates_add_up_and_the_factor_is_bounded() {
        let mut pace = Pace::new(0.01);
        assert!(!pace.look(LOOK / 2, SECOND, 0, 0));
        assert!(pace.look(LOOK / 2, SECOND, 0, 0));
        for _ in 0..10 {
            pace.look(SECOND, SECOND, 0, 0);
        }
        assert_eq!(pace.factor(), FACTOR_MAX);
    }
}
