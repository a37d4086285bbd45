//! Whether values come true: how much faster a program gets when more of its value is served fast.
//! In: for each interval its length, instructions, and the value that slow memory served. Out: by
//! what factor to multiply values. Knows nothing of extents or moves.
//!
//! With T the time of an interval, W its instructions and S the value that slow memory served, a
//! program takes T = a W + b S. Values are right if b is 1. Per unit of time, p = W / T and
//! q = S / T, that is a line whose slope and intercept give b:
//!
//! ```text
//! p = 1 / a - b / a x q
//! slope = (covariance + prior) / (variance of q - that by sampling + prior)
//! ```
//! Sampling makes q vary although nothing changed, which would make b too small: that part of the
//! variance is known, and taken off; where little else is left, b is not believed.

/// Intervals over which observations fade: as long as the longest horizon of an expert.
const FADE_INTERVALS: f64 = 64.0;

/// Standard deviation of b before anything was seen: values were off by up to 3.6 times where
/// loaded lines go back dirty.
const PRIOR_DEVIATION: f64 = 1.0;

/// Values count no more than they are until so many changes were seen.
const CHANGES_MIN: u32 = 8;

/// A change: s differs by so many standard deviations of its sampling error from its mean.
const CHANGE_DEVIATIONS: f64 = 3.0;

/// Bounds of the factor: four times up, a little more than values were ever off, and ten down.
const SLOPE: [f64; 2] = [0.1, 4.0];

/// Intervals of which the mover took more than this share are not compared, as it may share the
/// program's CPU or not; nor are those in which more than this share of the value changed place,
/// as it is not known when.
const MOVED_SHARE_MAX: f64 = 0.1;

/// Fewer intervals than this say nothing of how much y varies by itself.
const INTERVALS_MIN: f64 = 4.0;

/// Part of p's variance that is never explained: chance agrees in few intervals.
const REST_MIN: f64 = 0.02;

/// How much more of q's variance than of its sampling error must be left to be believed by half.
const NOISE_WEIGHT: f64 = 2.0;

/// Least share of the time that a program is taken to work, and most that it is taken to wait for
/// slow memory: values that say more are too high.
const WORK_MIN: f64 = 0.2;
const STALL_MAX: f64 = 0.9;

/// What one interval brought.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) elapsed_ns: f64,
    pub(crate) mover_ns: f64,
    pub(crate) instructions: f64,
    pub(crate) value_ns: f64,
    /// Value of what changed place.
    pub(crate) moved_ns: f64,
    /// Value that slow memory served, and its variance by sampling.
    pub(crate) slow_ns: f64,
    pub(crate) variance: f64,
}

/// Sums over intervals, weighted by time, fading.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Guard {
    weight: f64,
    p: f64,
    q: f64,
    pp: f64,
    pq: f64,
    qq: f64,
    noise: f64,
    changes: u32,
    is_sampled: bool,
}

impl Guard {
    /// An interval ended.
    pub(crate) fn observe(&mut self, seen: &Progress) {
        let was_sampled = std::mem::replace(&mut self.is_sampled, seen.value_ns > 0.0);
        let is_sound = seen.instructions > 0.0 && seen.elapsed_ns > 0.0 && was_sampled;
        let has_moved = seen.mover_ns > MOVED_SHARE_MAX * seen.elapsed_ns
            || seen.moved_ns > MOVED_SHARE_MAX * seen.value_ns;
        if !is_sound || has_moved {
            return;
        }
        let p = seen.instructions / seen.elapsed_ns;
        let q = seen.slow_ns / seen.elapsed_ns;
        let noise = seen.variance / (seen.elapsed_ns * seen.elapsed_ns);
        if self.weight > 0.0 {
            let differs = q - self.q / self.weight;
            self.changes += u32::from(differs * differs > CHANGE_DEVIATIONS.powi(2) * noise);
        }
        let kept = 1.0 - 1.0 / FADE_INTERVALS;
        let sums = [
            (&mut self.weight, 1.0),
            (&mut self.p, p),
            (&mut self.q, q),
            (&mut self.pp, p * p),
            (&mut self.pq, p * q),
            (&mut self.qq, q * q),
            (&mut self.noise, noise),
        ];
        for (sum, new) in sums {
            *sum = *sum * kept + new;
        }
    }

    /// By what factor to multiply values.
    pub(crate) fn factor(&self) -> f64 {
        if self.weight < INTERVALS_MIN {
            return 1.0;
        }
        let mean = |sum: f64| sum / self.weight;
        let (p, q) = (mean(self.p), mean(self.q));
        let covariance = p * q - mean(self.pq);
        let of_q = (mean(self.qq) - q * q - mean(self.noise)).max(0.0);
        let of_p = (mean(self.pp) - p * p).max(0.0);
        let raw = if of_q > 0.0 { covariance / of_q } else { 0.0 };
        let rest = (of_p - raw * covariance).max(of_p * REST_MIN);
        // Of the slope, in p for q, if values are right.
        let right = p / (1.0 - q).max(WORK_MIN);
        let prior = rest / (self.weight * (PRIOR_DEVIATION * right).powi(2));
        if of_q + prior <= 0.0 {
            return 1.0;
        }
        let slope = (covariance + prior * right) / (of_q + prior);
        let b = slope.max(0.0) / (p + slope.max(0.0) * q);
        let trust = of_q / (of_q + mean(self.noise) * NOISE_WEIGHT);
        let b = 1.0 + (b - 1.0) * trust;
        let most = if self.changes >= CHANGES_MIN { SLOPE[1] } else { 1.0 };
        // No program waits for longer than it runs.
        let most = most.min(STALL_MAX / q.max(1e-3));
        b.clamp(SLOPE[0], most.max(SLOPE[0]))
    }
}
