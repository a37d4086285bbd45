//! What trials show about whether moving pays, and how certain that is. In: stall time that moves
//! saved and lost, and the number of samples. Out: paid, not paid beyond chance, or neither. Knows
//! nothing of extents and nodes.
//!
//! A sample represents thousands of accesses, so savings come in steps of g, the value of one
//! sample, and their number has a Poisson distribution. If moves save exactly what they cost, b a
//! second, b / g samples arrive, give or take the square root of that:
//!
//! ```text
//! variance = g x (b + 2 x lost)          what was lost is measured as well, and has to be made up
//! not paid = saved - lost + 1.64 x sqrt(variance) < b
//! paid     = saved - lost - sqrt(g x (saved + lost)) > b
//! ```
//! of sums over trials, so that several trials show what one cannot. Trials that paid weigh half at
//! the next one; unclear ones keep their weight, and at most a few in a row are allowed: a benefit
//! that cannot be distinguished from none counts as none.

/// Standard deviations that chance exceeds in one of twenty cases.
const DEVIATIONS: f64 = 1.64;

/// Continuing needs weaker evidence than stopping, because each further step is judged too.
const DEVIATIONS_TO_GO_ON: f64 = 1.0;

/// Weight of trials that paid at the next one.
const KEPT: f64 = 0.5;

/// Most unclear trials in a row.
const UNCLEAR_MAX: u32 = 4;

/// What trials show.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Finding {
    Paid,
    NotPaid,
    Unclear,
}

/// What the moves of a trial did, nanoseconds of stall per second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measured {
    saved_ns_per_s: f64,
    lost_ns_per_s: f64,
    /// The largest value of a single sample.
    pub(crate) sample_ns_per_s: f64,
    /// Samples of what was moved.
    pub(crate) samples: f64,
}

/// Sums over trials; a verdict of no benefit restarts them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Evidence {
    saved_ns_per_s: f64,
    needed_ns_per_s: f64,
    /// Variance of the savings of moves that exactly pay.
    variance_of_needed: f64,
    /// As measured.
    variance: f64,
    unclear: u32,
}

impl Measured {
    /// One move's part; negative where it lost.
    pub(crate) fn add(&mut self, saved_ns_per_s: f64) {
        if saved_ns_per_s < 0.0 {
            self.lost_ns_per_s -= saved_ns_per_s;
        } else {
            self.saved_ns_per_s += saved_ns_per_s;
        }
    }

    /// All of them.
    pub(crate) fn ns_per_s(&self) -> f64 {
        self.saved_ns_per_s - self.lost_ns_per_s
    }

    /// Whether reverting would pay, beyond chance.
    pub(crate) fn did_harm(&self, needed_ns_per_s: f64) -> bool {
        self.ns_per_s() + DEVIATIONS * self.variance().sqrt() < -needed_ns_per_s
    }

    fn variance(&self) -> f64 {
        self.sample_ns_per_s * (self.saved_ns_per_s + self.lost_ns_per_s)
    }
}

impl Evidence {
    /// Adds a trial, which had to save this much to pay.
    pub(crate) fn weigh(&mut self, measured: &Measured, needed_ns_per_s: f64) -> Finding {
        let lost = 2.0 * measured.lost_ns_per_s;
        self.saved_ns_per_s += measured.ns_per_s();
        self.needed_ns_per_s += needed_ns_per_s;
        self.variance_of_needed += measured.sample_ns_per_s * (needed_ns_per_s + lost);
        self.variance += measured.variance();
        let missing_ns_per_s = self.needed_ns_per_s - self.saved_ns_per_s;
        self.unclear += 1;
        match () {
            () if -missing_ns_per_s > DEVIATIONS_TO_GO_ON * self.variance.sqrt() => {
                self.saved_ns_per_s *= KEPT;
                self.needed_ns_per_s *= KEPT;
                self.variance_of_needed *= KEPT * KEPT;
                self.variance *= KEPT * KEPT;
                self.unclear = 0;
                Finding::Paid
            }
            () if missing_ns_per_s > DEVIATIONS * self.variance_of_needed.sqrt()
                || self.unclear >= UNCLEAR_MAX =>
            {
                Finding::NotPaid
            }
            () => Finding::Unclear,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(saved_ns_per_s: f64, lost_ns_per_s: f64) -> Measured {
        Measured { saved_ns_per_s, lost_ns_per_s, sample_ns_per_s: 1.0, samples: saved_ns_per_s }
    }

    fn after(trials: &[(f64, f64)]) -> Finding {
        let mut evidence = Evidence::default();
        let one = |(saved, needed): &(f64, f64)| evidence.weigh(&measured(*saved, 0.0), *needed);
        trials.iter().map(one).last().expect("a trial")
    }

    #[test]
    fn few_samples_are_not_evidence_and_many_are() {
        assert_eq!(after(&[(3.0, 4.0)]), Finding::Unclear);
        assert_eq!(after(&[(0.0, 2.0)]), Finding::Unclear);
        assert_eq!(after(&[(0.0, 3.0)]), Finding::NotPaid);
        assert_eq!(after(&[(75.0, 100.0)]), Finding::NotPaid);
        assert_eq!(after(&[(101.0, 100.0)]), Finding::Unclear);
        assert_eq!(after(&[(112.0, 100.0)]), Finding::Paid);
        assert_eq!(after(&[(1.0, 0.1)]), Finding::Unclear, "one sample is none");
    }

    #[test]
    fn what_single_trials_cannot_say_several_can() {
        assert_eq!(after(&[(2.0, 4.0)]), Finding::Unclear);
        assert_eq!(after(&[(2.0, 4.0), (2.0, 4.0), (2.0, 4.0)]), Finding::NotPaid);
        assert_eq!(after(&[(80.0, 20.0), (0.0, 20.0)]), Finding::Paid);
        assert_eq!(after(&[(80.0, 20.0), (0.0, 20.0), (0.0, 20.0)]), Finding::NotPaid);
    }

    #[test]
    fn what_stays_unclear_does_not_pay() {
        assert_eq!(after(&[(0.0, 0.01); 3]), Finding::Unclear);
        assert_eq!(after(&[(0.0, 0.01); 4]), Finding::NotPaid);
    }

    #[test]
    fn harm_is_taken_back_only_beyond_chance() {
        assert!(!measured(0.0, 4.0).did_harm(1.0));
        assert!(measured(0.0, 5.0).did_harm(1.0));
        assert!(!measured(40.0, 55.0).did_harm(1.0), "as much noise as harm");
    }
}
