//! Keeps the cost of sampling within a share of one CPU by choosing the period.
//! In: samples and time since the last look. Out: a factor on every event's period.
//! Knows nothing of events or the kernel.

use std::time::Duration;

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

/// The controller: multiplies at once when over budget, halves one step at a time when cheap.
#[derive(Clone, Debug)]
pub struct Pace {
    cpu_budget: f64,
    factor: u64,
    elapsed: Duration,
    spent: Duration,
    throttled: bool,
}

impl Pace {
    /// Begins at the configured period. `cpu_budget` is a share of one CPU.
    pub fn new(cpu_budget: f64) -> Pace {
        let zero = Duration::ZERO;
        Pace { cpu_budget, factor: 1, elapsed: zero, spent: zero, throttled: false }
    }

    /// What the configured period is to be multiplied by.
    pub fn factor(&self) -> u64 {
        self.factor
    }

    /// Takes in what happened during `elapsed`; true when the factor changed.
    pub fn look(&mut self, elapsed: Duration, spent: Duration, throttled: u64) -> bool {
        self.elapsed += elapsed;
        self.spent += spent;
        self.throttled |= throttled > 0;
        if self.elapsed < LOOK {
            return false;
        }
        let share = self.spent.as_secs_f64() / self.elapsed.as_secs_f64() / self.cpu_budget;
        let before = self.factor;
        if share > 1.0 || self.throttled {
            let times = (share.ceil() as u64).next_power_of_two().clamp(2, 64);
            self.factor = (self.factor * times).min(FACTOR_MAX);
        } else if share < CHEAP && self.factor > 1 {
            self.factor /= 2;
        }
        (self.elapsed, self.spent, self.throttled) = (Duration::ZERO, Duration::ZERO, false);
        self.factor != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_flood_is_dammed_in_one_step_and_an_ebb_released_slowly() {
        let mut pace = Pace::new(0.01);
        assert!(!pace.look(SECOND, Duration::from_millis(9), 0), "within budget");
        assert!(pace.look(SECOND, Duration::from_millis(100), 0), "ten times over");
        assert_eq!(pace.factor(), 16);
        assert!(!pace.look(SECOND, Duration::from_millis(6), 0), "dear enough to stay");
        assert!(pace.look(SECOND, Duration::from_millis(1), 0));
        assert_eq!(pace.factor(), 8);
    }

    #[test]
    fn throttling_counts_as_over_budget() {
        let mut pace = Pace::new(0.01);
        assert!(pace.look(SECOND, Duration::ZERO, 1));
        assert_eq!(pace.factor(), 2);
    }

    #[test]
    fn short_looks_add_up_and_the_factor_is_bounded() {
        let mut pace = Pace::new(0.01);
        assert!(!pace.look(LOOK / 2, SECOND, 0));
        assert!(pace.look(LOOK / 2, SECOND, 0));
        for _ in 0..10 {
            pace.look(SECOND, SECOND, 0);
        }
        assert_eq!(pace.factor(), FACTOR_MAX);
    }
}
