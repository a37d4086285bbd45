//! Streams with each size of fast memory, each contender and each seed: how fast, and how far from
//! what is possible.
//! In: streams, contenders, seeds. Out: [`Comparison`]s. Knows nothing of how they are shown.

use serde::Serialize;

use crate::bound::{EnergyItems, Items, Life, MoveCosts, Paid, lives};
use crate::drive::SettingError;
use crate::run::{Contender, Model, RunReport, replay, room_of};
use crate::speed::Speeds;
use crate::stream::{Half, Stream};

/// Bytes of a mebibyte.
const MIB: f64 = 1024.0 * 1024.0;

/// Share of the run time that the bound must gain before it is said how much of it was reached.
const GAIN_MIN: f64 = 0.01;

/// One-sided 95% quantiles of Student's t for 1 to 30 degrees of freedom.
const T_95: [f64; 30] = [
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771,
    1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706,
    1.703, 1.701, 1.699, 1.697,
];

/// What is compared.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The machine.
    pub speeds: Speeds,
    /// Beside first touch, with names.
    pub contenders: Vec<(String, Contender)>,
    /// Sizes of fast memory, thousandths of each stream's peak.
    pub per_mille: Vec<u64>,
    /// Seeds of the runs, from this one on.
    pub seed: u64,
    /// How many.
    pub seeds: u32,
    /// What Tiercel costs.
    pub model: Model,
}

/// A stream with one size of fast memory.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The stream.
    pub stream: String,
    /// Whether it is for tuning.
    pub half: Half,
    /// Fast memory, thousandths of the peak.
    pub per_mille: u64,
    /// The same in bytes.
    pub fast_bytes: u64,
    /// Time with everything in fast memory, nanoseconds.
    pub all_fast_ns: f64,
    /// Time with everything in slow memory, nanoseconds.
    pub all_slow_ns: f64,
    /// Time by first touch, nanoseconds.
    pub first_touch_ns: f64,
    /// Most bytes that live at once.
    pub peak_bytes: u64,
    /// OS pages in turns, with which energies are compared.
    pub interleave: RunReport,
    /// No run is faster; a placement with perfect knowledge that pays for its moves.
    pub paid: Paid,
    /// No run takes less for accesses and moves, joules; `None` where energies are unknown.
    pub bound_j: Option<f64>,
    /// Time of the best static placement, free, nanoseconds; `None`: too many parts.
    pub fixed_ns: Option<f64>,
    /// Speed of the bound over first touch.
    pub bound_speed: f64,
    /// Each contender.
    pub results: Vec<ContenderResult>,
}

/// How a contender did.
#[derive(Clone, Debug, Serialize)]
pub struct ContenderResult {
    /// Its name.
    pub name: String,
    /// Speed over first touch.
    pub speed: Spread,
    /// How much longer it takes than the bound, as a share of the bound.
    pub regret: Spread,
    /// Share of what the bound gains over first touch; `None` where that is little.
    pub gain_share: Option<f64>,
    /// MiB moved to fast memory.
    pub promoted_mib: Spread,
    /// MiB moved to slow memory.
    pub demoted_mib: Spread,
    /// Each run, in the order of the seeds.
    pub runs: Vec<RunReport>,
}

/// A mean over seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Standard deviation; `None` of one run.
    pub deviation: Option<f64>,
    /// The true mean is above this with 95% confidence, over seeds; `None` of one run.
    pub low_95: Option<f64>,
}

impl Spread {
    /// Of some values, at least one.
    pub fn of(values: &[f64]) -> Spread {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        if values.len() < 2 {
            return Spread { mean, deviation: None, low_95: None };
        }
        let square: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = (square / (count - 1.0)).sqrt();
        let quantile = T_95[(values.len() - 2).min(T_95.len() - 1)];
        let low_95 = Some(mean - quantile * deviation / count.sqrt());
        Spread { mean, deviation: Some(deviation), low_95 }
    }
}

impl Bench {
    /// Replays a stream with each size of fast memory.
    pub fn compare(&self, stream: &Stream) -> Result<Vec<Comparison>, SettingError> {
        let lives = lives(stream, &self.speeds);
        let items = Items::new(stream, &lives);
        let energies = EnergyItems::new(stream, &self.speeds);
        let peak = stream.peak_bytes();
        let of_size = |per_mille: &u64| {
            let size = (*per_mille, room_of(peak, *per_mille));
            let mut comparison = self.compare_size((stream, &lives, &items), size)?;
            comparison.bound_j = energies.as_ref().map(|items| items.bound_j(size.1));
            Ok(comparison)
        };
        self.per_mille.iter().map(of_size).collect()
    }

    fn compare_size(
        &self,
        (stream, lives, items): (&Stream, &[Life], &Items),
        (per_mille, fast_bytes): (u64, u64),
    ) -> Result<Comparison, SettingError> {
        let one = (stream, lives, fast_bytes);
        let first = self.run(one, &Contender::FirstTouch, self.seed)?;
        let costs = MoveCosts {
            promote_ns: self.speeds.promote_ns_per_byte(),
            demote_ns: self.speeds.demote_ns_per_byte(),
        };
        let fixed_ns = items.fixed(fast_bytes);
        let mut paid = items.paid(fast_bytes, costs);
        // It moves nothing, and so costs what a placement that pays would.
        paid.found_ns = paid.found_ns.min(fixed_ns.unwrap_or(f64::INFINITY));
        let mut comparison = Comparison {
            stream: stream.name.clone(),
            half: stream.half,
            per_mille,
            fast_bytes,
            all_fast_ns: items.all_fast_ns(),
            all_slow_ns: items.all_slow_ns(),
            first_touch_ns: first.time_ns,
            peak_bytes: stream.peak_bytes(),
            interleave: self.run(one, &Contender::Interleave, self.seed)?,
            paid,
            bound_j: None,
            fixed_ns,
            bound_speed: first.time_ns / paid.bound_ns,
            results: Vec::new(),
        };
        for (name, contender) in &self.contenders {
            let seeds = if contender.is_random() { self.seeds } else { 1 };
            let run = |nth: u32| self.run(one, contender, self.seed + u64::from(nth));
            let runs = (0..seeds).map(run).collect::<Result<Vec<_>, _>>()?;
            let result = comparison.result(name, runs);
            comparison.results.push(result);
        }
        Ok(comparison)
    }

    fn run(
        &self,
        (stream, lives, fast_bytes): (&Stream, &[Life], u64),
        contender: &Contender,
        seed: u64,
    ) -> Result<RunReport, SettingError> {
        let setup = (&self.speeds, fast_bytes);
        replay((stream, lives), setup, contender, (&self.model, seed))
    }
}

impl Comparison {
    fn result(&self, name: &str, runs: Vec<RunReport>) -> ContenderResult {
        let spread =
            |of: &dyn Fn(&RunReport) -> f64| Spread::of(&runs.iter().map(of).collect::<Vec<_>>());
        let time_ns = spread(&|run| run.time_ns).mean;
        let (bound_ns, first_ns) = (self.paid.bound_ns, self.first_touch_ns);
        let gain_ns = first_ns - bound_ns;
        let gain_share = (gain_ns > GAIN_MIN * first_ns).then_some((first_ns - time_ns) / gain_ns);
        ContenderResult {
            name: name.to_owned(),
            speed: spread(&|run| first_ns / run.time_ns),
            regret: spread(&|run| run.time_ns / bound_ns - 1.0),
            gain_share,
            promoted_mib: spread(&|run| run.promoted_bytes as f64 / MIB),
            demoted_mib: spread(&|run| run.demoted_bytes as f64 / MIB),
            runs,
        }
    }
}

impl Contender {
    /// Whether runs with different seeds differ.
    pub fn is_random(&self) -> bool {
        matches!(self, Contender::Tiercel(_) | Contender::ClockDwf(_) | Contender::TwoPhase)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_students() {
        let spread = Spread::of(&[1.0, 2.0, 3.0]);
        assert_eq!((spread.mean, spread.deviation), (2.0, Some(1.0)));
        assert!((spread.low_95.unwrap() - (2.0 - 2.92 / 3f64.sqrt())).abs() < 1e-9);
        assert_eq!(Spread::of(&[1.5]), Spread { mean: 1.5, deviation: None, low_95: None });
    }
}
