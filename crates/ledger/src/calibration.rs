//! How much of what was estimated comes true: the next interval shows it.
//! In: extents with their estimates; one interval later, the ledger. Out: [`RealizedRatios`] by
//! sample count. Knows nothing of tiers, and moves nothing.
//!
//! Accesses follow Zipf's law, and heat drifts: a few extents in a thousand take most accesses, and
//! most extents with one sample get none in the next interval. Mean and variance do not show that,
//! but it can be counted without moving anything:
//!
//! ```text
//! observed, k intervals later (MAT Eq. 1) = (average now - keep^k x average then) / (1 - keep^k)
//! ratio of a class of sample counts       = sum observed / sum expected
//! ```

use crate::estimate::RateEstimates;
use crate::extent::Extent;
use crate::ledger::Ledger;
use crate::realized::{CLASSES, Realized, RealizedRatios, class, realized_mean};
use tiercel_machine::number::nearest_f32;

/// Extents whose estimates are compared with the next interval. 56 bytes each.
pub const CALIBRATION_SAMPLES_MAX: usize = 512;

/// Weight that earlier comparisons keep at each new one: about four intervals count. Chosen, not
/// measured.
const KEPT: f32 = 0.75;

/// Estimates that are yet to be compared, and the comparisons so far.
#[derive(Clone, Debug, Default)]
pub struct Calibration {
    samples: Vec<CalibrationSample>,
    realized: [Realized; CLASSES],
}

#[derive(Clone, Copy, Debug)]
struct CalibrationSample {
    pid: u32,
    addr: u64,
    bytes: u64,
    born_ms: u64,
    class: usize,
    expected_per_s: f32,
    /// Its EWMA, and the time of that on the daemon's clock.
    accesses_per_s: f32,
    as_of_ms: u64,
}

impl Calibration {
    /// Keeps the uncalibrated estimates of some extents, up to [`CALIBRATION_SAMPLES_MAX`]. Extents
    /// with samples of their own come first: they are few, and they are the ones a policy moves.
    pub fn note<'a>(
        &mut self,
        extents: impl Iterator<Item = Extent<'a>>,
        estimates: &RateEstimates,
    ) {
        let mut cold = Vec::new();
        for extent in extents {
            let sample = CalibrationSample::of(&extent, estimates);
            let samples = if sample.class > 0 { &mut self.samples } else { &mut cold };
            if samples.len() < CALIBRATION_SAMPLES_MAX {
                samples.push(sample);
            }
        }
        cold.truncate(CALIBRATION_SAMPLES_MAX - self.samples.len());
        self.samples.append(&mut cold);
    }

    /// Compares the kept estimates with what was observed since, once an interval has passed.
    pub fn observe(&mut self, ledger: &Ledger) {
        let tick_ms = ledger.config().tick_ms.max(1);
        let is_due = |first: &CalibrationSample| ledger.now_ms() >= first.as_of_ms + tick_ms;
        if !self.samples.first().is_some_and(is_due) {
            return;
        }
        for realized in &mut self.realized {
            *realized =
                Realized { expected: realized.expected * KEPT, observed: realized.observed * KEPT };
        }
        for sample in std::mem::take(&mut self.samples) {
            let Some(extent) = ledger.find(sample.pid, sample.addr) else { continue };
            let here = (extent.addr, extent.bytes, extent.born_ms);
            if here != (sample.addr, sample.bytes, sample.born_ms) {
                continue; // It was split or joined, or its address was used again.
            }
            let elapsed_ms = extent.as_of_ms.saturating_sub(sample.as_of_ms);
            if elapsed_ms < tick_ms {
                continue;
            }
            let intervals = elapsed_ms as f32 / tick_ms as f32;
            let kept = ledger.kept(f64::from(intervals));
            let observed =
                nearest_f32(realized_mean(extent.accesses_per_s(), sample.accesses_per_s, kept));
            let samples = ledger.samples_per_rate() * intervals;
            let realized = &mut self.realized[sample.class];
            realized.expected += sample.expected_per_s * samples;
            realized.observed += observed.max(0.0) * samples;
        }
    }

    /// What was observed over what had been expected.
    pub fn ratios(&self) -> RealizedRatios {
        RealizedRatios(self.realized.map(Realized::realized_ratio))
    }
}

impl CalibrationSample {
    fn of(extent: &Extent, estimates: &RateEstimates) -> CalibrationSample {
        let (estimated, samples) = estimates.uncalibrated(extent);
        CalibrationSample {
            pid: extent.pid,
            addr: extent.addr,
            bytes: extent.bytes,
            born_ms: extent.born_ms,
            class: class(samples),
            expected_per_s: estimated.accesses_per_s(),
            accesses_per_s: extent.accesses_per_s(),
            as_of_ms: extent.as_of_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_double() {
        let classes = [0.0, 0.4, 0.5, 1.0, 1.9, 2.0, 16.0, 32.0, 1e9].map(class);
        assert_eq!(classes, [0, 0, 1, 2, 2, 3, 6, 7, 7]);
    }
}
