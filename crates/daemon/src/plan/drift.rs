//! Whether a plan still does what it predicted, so that the policy can take over when it does not.
//! In: where sampled accesses went. Out: the share that the fastest memory served, once it is
//! significantly too small. Knows nothing of how the policy decides.
//!
//! Plans know phases that are still to come, which a policy does not, so the two would undo each
//! other's moves: what the plan places stays as planned while the prediction holds. A plan of
//! another input places by what was hot there; then the fast memory serves much less of the
//! accesses than it did in the recorded run.

use tiercel_ledger::Hit;
use tiercel_machine::NodeId;
use tiercel_wire::Sample;

/// A plan is abandoned when less than this part of the predicted share comes true. Chosen, not
/// measured: a policy that starts from nothing wins back at most what the plan misses, so the plan
/// must miss more than it delivers.
const DELIVERED_PART_MIN: f64 = 0.5;
/// A plan that predicts less than this share is not judged: it gains too little to be replaced.
/// Chosen, not measured.
const PREDICTED_SHARE_MIN: f64 = 0.1;
/// Samples before the first judgement: the usual least count for a normal approximation. Samplers
/// that see areas, not addresses, yield few a second.
const SAMPLES_MIN: u64 = 30;
/// Ticks before the first judgement, since a program's first phase is not like the others: 40 s at
/// the default tick. Chosen, not measured.
const TICKS_MIN: u32 = 20;
/// Standard deviations by which the share must fall short: chance alone does so in 0.13% of the
/// judgements (one-sided normal distribution).
const DEVIATIONS: f64 = 3.0;

/// What a plan predicted, and what came of it so far.
#[derive(Debug)]
pub(crate) struct Drift {
    /// Share of the accesses that the fastest memory is to serve; `None`: the plan does not say.
    predicted: Option<f64>,
    fast: f64,
    all: f64,
    samples: u64,
    ticks: u32,
}

/// A prediction that failed, as shares of all accesses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Failure {
    pub(crate) delivered: f64,
    pub(crate) predicted: f64,
}

impl Drift {
    pub(crate) fn new(predicted: Option<f64>) -> Drift {
        Drift { predicted, fast: 0.0, all: 0.0, samples: 0, ticks: 0 }
    }

    /// Counts where a sampled access went. On a modelled machine that is where the modelled mover
    /// has the memory.
    pub(crate) fn sampled(
        &mut self,
        sample: &Sample,
        hit: &Hit,
        fast: &[NodeId],
        is_modelled: bool,
    ) {
        let seen = sample.node.filter(|_| !is_modelled).map(NodeId);
        if let Some(node) = seen.or(hit.home) {
            self.count(fast.contains(&node), sample.weight);
        }
    }

    /// Counts a sample that stands for `weight` accesses.
    fn count(&mut self, is_fast: bool, weight: u32) {
        self.samples += 1;
        self.all += f64::from(weight);
        self.fast += if is_fast { f64::from(weight) } else { 0.0 };
    }

    /// Counts a tick, and judges.
    pub(crate) fn tick(&mut self) -> Option<Failure> {
        self.ticks = self.ticks.saturating_add(1);
        let predicted = self.predicted.filter(|share| *share >= PREDICTED_SHARE_MIN)?;
        if self.samples < SAMPLES_MIN || self.ticks < TICKS_MIN {
            return None;
        }
        let (delivered, least) = (self.fast / self.all, DELIVERED_PART_MIN * predicted);
        let chance = DEVIATIONS * (least * (1.0 - least) / self.samples as f64).sqrt();
        (delivered < least - chance).then_some(Failure { delivered, predicted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (delivered, predicted) of a prediction that failed.
    fn judged(predicted: Option<f64>, fast: u64, slow: u64, ticks: u32) -> Option<(f64, f64)> {
        let mut drift = Drift::new(predicted);
        (0..fast).for_each(|_| drift.count(true, 7));
        (0..slow).for_each(|_| drift.count(false, 7));
        let failure = (0..ticks).filter_map(|_| drift.tick()).last();
        failure.map(|failure| (failure.delivered, failure.predicted))
    }

    #[test]
    fn less_than_half_of_the_predicted_share_fails_beyond_chance() {
        assert_eq!(judged(Some(0.8), 300, 700, 20), Some((0.3, 0.8)));
        assert_eq!(judged(Some(0.8), 500, 500, 20), None, "more than half");
        assert_eq!(judged(Some(1.0), 0, 40, 20), Some((0.0, 1.0)), "few, and all of them");
        assert_eq!(judged(Some(0.8), 12, 28, 20), None, "chance explains it");
    }

    #[test]
    fn early_or_without_a_prediction_nothing_is_judged() {
        assert_eq!(judged(Some(0.8), 0, 29, 20), None, "few samples");
        assert_eq!(judged(Some(0.8), 0, 5000, 19), None, "few ticks");
        assert_eq!(judged(Some(0.05), 0, 5000, 40), None);
        assert_eq!(judged(None, 0, 5000, 40), None);
    }
}
