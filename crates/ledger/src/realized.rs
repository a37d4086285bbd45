//! How estimates of the past compared with what was observed later.
//! In: expected and observed samples, by class of sample count. Out: their ratio. Knows nothing of
//! extents.

use tiercel_machine::number::saturating_usize;

/// Classes of sample counts: below a half, then one each time the count doubles.
pub(crate) const CLASSES: usize = 8;

/// Pseudo-samples that count as observed exactly as expected: with fewer real samples than these,
/// the ratio stays near 1. Chosen, not measured: half of the samples that split an extent.
const PRIOR_SAMPLES: f32 = 16.0;

/// Expected and observed samples of a class of extents.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Realized {
    pub(crate) expected: f32,
    pub(crate) observed: f32,
}

/// For each class of sample counts, what was observed over what had been expected.
#[derive(Clone, Copy, Debug)]
pub struct RealizedRatios(pub(crate) [f32; CLASSES]);

impl Default for RealizedRatios {
    /// Nothing was observed yet: estimates are taken as they are.
    fn default() -> RealizedRatios {
        RealizedRatios([1.0; CLASSES])
    }
}

impl Realized {
    /// Observed over expected, shrunk towards 1.
    pub(crate) fn realized_ratio(self) -> f32 {
        (PRIOR_SAMPLES + self.observed) / (PRIOR_SAMPLES + self.expected)
    }
}

/// The mean rate since an EWMA (MAT Eq. 1) was `before`, given that it is `now` and that `kept` of
/// the old value is left in it: the average is a weighted sum, and the rest of it is new.
pub fn realized_mean(now: impl Into<f64>, before: impl Into<f64>, kept: f64) -> f64 {
    (now.into() - kept * before.into()) / (1.0 - kept)
}

/// The class of an extent with so many samples.
pub(crate) fn class(samples: f32) -> usize {
    // Powers of two from a half on; negative values and NaN are class 0.
    saturating_usize(f64::from(samples.log2() + 2.0)).min(CLASSES - 1)
}
