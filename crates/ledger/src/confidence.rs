//! How sure shares of accesses are, and a ranking by accesses per byte.
//! In: what samples said of each part, round by round. Out: 90% confidence intervals, which ranks
//! are settled. Knows nothing of sites: a part is whatever is counted apart. Pure.
//!
//! Samples that a sampler brings at one time (a *round*) are not independent: a page-table scan
//! sees which of four threads runs just then. So rounds are compared, not samples. With X of a part
//! and T of all in a round, the share is p = sum X / sum T, and with e = X - p T in each round (0
//! before the first one and after the last one)
//!
//! ```text
//! variance of p = sum over rounds (e now - e before)^2 / 2 / (sum T)^2 x R / (R - 1)
//! R             = (sum T)^2 / sum T^2, rounds as far as they weigh alike
//! ```
//! the variance of a ratio estimated from clusters by successive differences (Wolter, Introduction
//! to Variance Estimation, 8.2). Where samples are independent it is that of a binomial share; all
//! overdispersion between rounds is in it, and slow change of the program is not. Since
//! e = X - p T is linear, sums of dX^2, dX dT and dT^2 suffice.
//!
//! A sampler may err the same way in every round (a window that is full hides what is hotter), and
//! what was seen of an area that two sites had in turns may all be of one of them. What is known of
//! that is a standard deviation d of the logarithm of each part's rate. Shares add up to 1, so that
//! what is wrong with one part is wrong with the shares of all:
//!
//! ```text
//! variance of p of part i that no round makes smaller
//!                         = p^2 ((1 - 2 p) d^2 + sum over parts j of (p_j d_j)^2)
//! ```
//!
//! The interval is Wilson's for a binomial share of as many samples as have the variance between
//! rounds, so that a part with few or no accesses has one as well. Few rounds: Student's t. What no
//! round makes smaller is added to both of its sides as deviations are: what is seen of a part may
//! all be of others, and then the interval begins at 0.

use serde::{Deserialize, Serialize};

/// What rounds said of one part. Sums of weights: accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// All rounds.
    pub weight: f64,
    /// Squares of the differences between successive rounds.
    pub dxx: f64,
    /// The same times those of all parts.
    pub dxt: f64,
    /// By how many accesses the weight may be off whatever the number of rounds: a standard
    /// deviation.
    #[serde(default)]
    pub doubt: f64,
    /// In the open round, and in the one before.
    #[serde(skip)]
    now: f64,
    #[serde(skip)]
    before: f64,
}

/// What rounds said of all parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvidenceOfAll {
    /// All rounds.
    pub weight: f64,
    /// Squares of rounds.
    pub squares: f64,
    /// Squares of the differences between successive rounds.
    pub dtt: f64,
    /// Samples.
    pub samples: u64,
    #[serde(skip)]
    now: f64,
    #[serde(skip)]
    before: f64,
}

/// A share and its variances: between rounds, and what no round makes smaller.
#[derive(Clone, Copy, Default)]
struct Share {
    p: f64,
    by_chance: f64,
    lasting: f64,
}

/// An estimate with its 90% confidence interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The estimate.
    pub of: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// A part that is ranked.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ranked {
    /// Share of all accesses.
    pub share: Estimate,
    /// No other part that matters may have its rank: they differ beyond chance.
    pub is_settled: bool,
}

/// How sure a ranking by accesses per byte is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ranking {
    /// There are samples enough, and no other choice of fast memory may hold much more.
    pub settled: bool,
    /// Samples that it rests on.
    pub samples: u64,
    /// Samples with which a ranking begins to mean anything.
    pub samples_wanted: u64,
    /// Share of accesses that the best choice may hold beyond the present one, at 90% confidence.
    pub at_stake: f64,
}

/// Fewer samples rank nothing: with 200 the share of a part that half of them hit is known to 6
/// points.
pub const SAMPLES_WANTED: u64 = 200;

/// A ranking is settled if at most this share of accesses is at stake.
const AT_STAKE_MAX: f64 = 0.1;

/// Shares of all bytes that a choice is judged at.
const CHOICES: [f64; 3] = [0.1, 0.25, 0.5];

/// Standard deviations of a normal variable within which 90% are.
const DEVIATIONS: f64 = 1.645;

/// One rank of a hundred may be wrong where it is called settled: 2.33 deviations.
const SURE: f64 = 2.33 / DEVIATIONS;

/// With more parts that matter none has a rank of its own: no 256 of them are far enough apart.
const MATTER_MAX: usize = 256;

/// Ranks of parts that cannot have more than this share do not matter.
const MATTERS: f64 = 0.02;

/// The variance of fewer rounds is not believed where it is small. Chosen, not measured.
const ROUNDS_ENOUGH: f64 = 8.0;

/// Student's t for 90% in the middle, by degrees of freedom from 1 on.
const STUDENT: [f64; 8] = [6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86];

impl Evidence {
    /// A sample hit the part, and stands for so many accesses, more or less by `doubt`, in all
    /// rounds the same way. Whether this is its first in the open round, and it had none in the
    /// round before: then the caller ends rounds of it from now on.
    pub fn add(&mut self, weight: f64, doubt: f64) -> bool {
        let is_first = self.now == 0.0 && self.before == 0.0;
        self.now += weight;
        self.weight += weight;
        self.doubt += doubt;
        is_first && weight > 0.0
    }

    /// The open round ends, in which and before which all parts had so much. Whether there is
    /// something to end in the next round.
    pub fn end_round(&mut self, of_all: &EvidenceOfAll) -> bool {
        let (dx, dt) = (self.now - self.before, of_all.now - of_all.before);
        self.dxx += dx * dx;
        self.dxt += dx * dt;
        (self.before, self.now) = (self.now, 0.0);
        self.before > 0.0
    }

    /// No round follows: the next one of this part would have nothing.
    pub fn end(&mut self) {
        let (now, before) = (std::mem::take(&mut self.now), std::mem::take(&mut self.before));
        self.dxx += (now - before) * (now - before) + now * now;
    }

    /// Adds the evidence of a part that becomes one with this.
    pub fn absorb(&mut self, other: &Evidence) {
        self.weight += other.weight;
        self.dxx += other.dxx;
        self.dxt += other.dxt;
        self.doubt += other.doubt;
        self.now += other.now;
        self.before += other.before;
    }

    /// As if the rounds so far were all.
    fn ended(mut self, of_all: &EvidenceOfAll) -> Evidence {
        for now in [of_all.now, 0.0] {
            let (dx, dt) = (self.now - self.before, now - of_all.before);
            self.dxx += dx * dx;
            self.dxt += dx * dt;
            (self.before, self.now) = (self.now, 0.0);
        }
        self
    }

    /// The share of all; `doubts` is the sum of the squares of all parts' doubts.
    fn share(&self, all: &EvidenceOfAll, doubts: f64) -> Share {
        if all.weight <= 0.0 {
            return Share::default();
        }
        let p = (self.weight / all.weight).min(1.0);
        let squares = self.dxx - 2.0 * p * self.dxt + p * p * all.dtt;
        let rounds = all.rounds();
        let few = if rounds > 1.5 { rounds / (rounds - 1.0) } else { 3.0 };
        let by_chance = (squares / 2.0).max(0.0) / (all.weight * all.weight) * few;
        let (of_own, of_all) = (self.relative_doubt(), doubts / (all.weight * all.weight));
        let lasting = p * p * ((1.0 - 2.0 * p) * of_own * of_own + of_all).max(0.0);
        Share { p, by_chance, lasting }
    }

    /// The standard deviation of the logarithm of its rate that no further round makes smaller.
    fn relative_doubt(&self) -> f64 {
        if self.weight > 0.0 { self.doubt / self.weight } else { 0.0 }
    }
}

impl EvidenceOfAll {
    /// A sample hit some part.
    pub fn add(&mut self, weight: f64) {
        self.now += weight;
        self.weight += weight;
        self.samples += 1;
    }

    /// Whether the open round has samples; one that has none is not ended.
    pub fn has_round(&self) -> bool {
        self.now > 0.0
    }

    /// The open round ends; the parts ended theirs before.
    pub fn end_round(&mut self) {
        let dt = self.now - self.before;
        self.dtt += dt * dt;
        self.squares += self.now * self.now;
        (self.before, self.now) = (self.now, 0.0);
    }

    /// Rounds, as far as they weigh alike.
    pub fn rounds(&self) -> f64 {
        if self.squares > 0.0 { self.weight * self.weight / self.squares } else { 0.0 }
    }

    fn ended(mut self) -> EvidenceOfAll {
        self.end_round();
        self.end_round();
        self
    }
}

/// Ranks parts, given with their bytes, by accesses per byte; and how sure that is.
pub fn rank(parts: &[(Evidence, u64)], all: &EvidenceOfAll) -> (Vec<Ranked>, Ranking) {
    let ended = all.ended();
    let doubts = parts.iter().map(|(one, _)| one.doubt * one.doubt).sum();
    let shares: Vec<Share> =
        parts.iter().map(|(one, _)| one.ended(all).share(&ended, doubts)).collect();
    let n_of_all = independent(&shares, &ended);
    let rounds = ended.rounds();
    let estimates: Vec<Estimate> =
        shares.iter().map(|one| interval(*one, n_of_all, rounds)).collect();
    let bytes: Vec<f64> = parts.iter().map(|(_, bytes)| (*bytes).max(1) as f64).collect();
    let is_enough = all.samples >= SAMPLES_WANTED;
    let matter: Vec<usize> = (0..parts.len()).filter(|at| estimates[*at].high >= MATTERS).collect();
    let part = |at: usize| (&estimates[at], bytes[at]);
    let is_apart = |one: usize, other: usize| one == other || differ(part(one), part(other));
    let settled = |one: usize| {
        is_enough && matter.len() <= MATTER_MAX && matter.iter().all(|other| is_apart(one, *other))
    };
    let ranked = estimates.iter().enumerate();
    let ranked = ranked.map(|(at, share)| Ranked { share: *share, is_settled: settled(at) });
    let at_stake = if all.weight > 0.0 { at_stake(&estimates, &bytes) } else { 1.0 };
    let settled = is_enough && at_stake <= AT_STAKE_MAX;
    let (samples, samples_wanted) = (all.samples, SAMPLES_WANTED);
    (ranked.collect(), Ranking { settled, samples, samples_wanted, at_stake })
}

/// The relative 90% interval of a part's accesses: factors for the lower and the upper end.
pub fn relative(one: &Evidence, all: &EvidenceOfAll) -> (f64, f64) {
    let (evidence, ended) = (one.ended(all), all.ended());
    if evidence.weight <= 0.0 {
        return (0.0, 1.0);
    }
    let by_chance = (evidence.dxx / 2.0).sqrt() / evidence.weight;
    let deviation = by_chance.hypot(evidence.relative_doubt());
    let half = student(ended.rounds()) * deviation;
    ((1.0 - half).max(0.0), 1.0 + half)
}

/// Independent samples that have, over all parts, the variances seen.
fn independent(shares: &[Share], all: &EvidenceOfAll) -> f64 {
    let binomial: f64 = shares.iter().map(|share| share.p * (1.0 - share.p)).sum();
    let seen: f64 = shares.iter().map(|share| share.by_chance).sum();
    let samples = all.samples as f64;
    let n = if seen * samples > binomial { binomial / seen } else { samples };
    // Few rounds may agree by chance; one does with itself.
    (n * ((all.rounds() - 1.0) / ROUNDS_ENOUGH).min(1.0)).max(1.0)
}

/// Wilson's interval, and on both sides what is not by chance.
fn interval(share: Share, n_of_all: f64, rounds: f64) -> Estimate {
    let Share { p, by_chance, lasting } = share;
    // Of a part with few accesses the variance is not known: that of all parts is taken.
    let is_known = by_chance > 0.0 && p * n_of_all > 3.0 && (1.0 - p) * n_of_all > 3.0;
    let n = if is_known { p * (1.0 - p) / by_chance } else { n_of_all };
    let n = n.max(1.0);
    let z2_n = student(rounds).powi(2) / n;
    let middle = (p + z2_n / 2.0) / (1.0 + z2_n);
    let half = (z2_n * (p * (1.0 - p) + z2_n / 4.0)).sqrt() / (1.0 + z2_n);
    let lasting = DEVIATIONS * lasting.sqrt();
    let low = p - lasting.hypot((p - middle + half).max(0.0));
    let high = p + lasting.hypot((middle + half - p).max(0.0));
    Estimate { of: p, low: low.clamp(0.0, p), high: high.clamp(p, 1.0) }
}

/// Student's t with one degree of freedom less than rounds.
fn student(rounds: f64) -> f64 {
    let freedom = (rounds - 1.0).max(1.0);
    let at = tiercel_machine::number::saturating_usize(freedom) - 1;
    STUDENT.get(at).copied().unwrap_or(DEVIATIONS * (1.0 + 0.93 / freedom))
}

/// Whether the accesses per byte of two parts differ beyond chance, or cannot matter.
fn differ(one: (&Estimate, f64), other: (&Estimate, f64)) -> bool {
    if one.0.high.max(other.0.high) < MATTERS {
        return true;
    }
    let density = |(share, bytes): (&Estimate, f64)| {
        (share.of / bytes, share.low / bytes, share.high / bytes)
    };
    let (a, b) = (density(one), density(other));
    let (more, less) = if a.0 >= b.0 { (a, b) } else { (b, a) };
    more.0 - less.0 > SURE * (more.0 - more.1).hypot(less.2 - less.0)
}

/// Share of all accesses that the best choice of bytes may hold beyond the one that seems best: of
/// what is chosen as little as it may be, and of the rest as much. The difference of two estimates
/// varies by the root of the sum of their squares, so ends are taken nearer by that.
fn at_stake(estimates: &[Estimate], bytes: &[f64]) -> f64 {
    let all: f64 = bytes.iter().sum();
    let density = |at: usize| estimates[at].of / bytes[at];
    let mut order: Vec<usize> = (0..estimates.len()).collect();
    order.sort_by(|a, b| density(*b).total_cmp(&density(*a)));
    let stake = |choice: f64| {
        let mut room = choice * all;
        let taken: Vec<(usize, f64)> = order
            .iter()
            .map(|at| {
                let taken = bytes[*at].min(room);
                room -= taken;
                (*at, taken)
            })
            .collect();
        let mut pieces = Vec::new();
        for &(at, taken) in &taken {
            let Estimate { of, low, high } = estimates[at];
            let near = |end: f64| (of + (end - of) / std::f64::consts::SQRT_2) / bytes[at];
            pieces.push((near(low), taken, true));
            pieces.push((near(high), bytes[at] - taken, false));
            // The same objects are on both sides: they are not compared with themselves.
            if taken > 0.0 && taken < bytes[at] {
                pieces.pop();
                pieces.push((near(low), bytes[at] - taken, false));
            }
        }
        let held: f64 = pieces.iter().filter(|one| one.2).map(|one| one.0 * one.1).sum();
        pieces.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut room = choice * all;
        let best: f64 = pieces
            .iter()
            .map(|(density, bytes, _)| {
                let taken = bytes.min(room);
                room -= taken;
                density * taken
            })
            .sum();
        best - held
    };
    CHOICES.into_iter().map(stake).fold(0.0, f64::max).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    /// Parts seen in rounds: `round` gives what each part had.
    fn seen(parts: usize, rounds: &[Vec<f64>]) -> (Vec<(Evidence, u64)>, EvidenceOfAll) {
        let mut evidence = vec![(Evidence::default(), 1 << 20); parts];
        let mut all = EvidenceOfAll::default();
        for round in rounds {
            for ((one, _), weight) in evidence.iter_mut().zip(round) {
                // Each weight is some samples.
                (0..20).for_each(|_| {
                    one.add(weight / 20.0, 0.0);
                    all.add(weight / 20.0);
                });
            }
            if all.has_round() {
                for (one, _) in &mut evidence {
                    one.end_round(&all);
                }
                all.end_round();
            }
        }
        (evidence, all)
    }

    /// How often intervals hold the truth, and a wrong first rank was called settled, over
    /// runs of a program of which rounds see one thread of four at a time.
    fn coverage(truth: &[f64; 4], rounds: usize, runs: u64) -> (f64, f64, f64) {
        let mut random = Rng::with_seed(7);
        let (mut held, mut wrong, mut sure) = (0.0, 0.0, 0.0);
        for _ in 0..runs {
            let round = |random: &mut Rng| -> Vec<f64> {
                let mut at = random.f64();
                let mut which = 0;
                while which < 3 && at > truth[which] {
                    at -= truth[which];
                    which += 1;
                }
                let mut weights = vec![0.0; 4];
                weights[which] = 50.0 * (0.5 + random.f64());
                weights
            };
            let rounds: Vec<_> = (0..rounds).map(|_| round(&mut random)).collect();
            let (evidence, all) = seen(4, &rounds);
            let (ranked, _) = rank(&evidence, &all);
            let holds =
                |(one, truth): (&Ranked, &f64)| one.share.low <= *truth && *truth <= one.share.high;
            held += ranked.iter().zip(truth).filter(|one| holds(*one)).count() as f64 / 4.0;
            let first =
                ranked.iter().enumerate().max_by(|a, b| a.1.share.of.total_cmp(&b.1.share.of));
            let (first, one) = first.expect("four parts");
            sure += f64::from(u8::from(one.is_settled));
            wrong += f64::from(u8::from(one.is_settled && first != 0));
        }
        (held / runs as f64, wrong / runs as f64, sure / runs as f64)
    }

    #[test]
    fn intervals_hold_the_truth_in_nine_of_ten_cases_whatever_rounds_see() {
        for rounds in [12, 50, 400] {
            let (held, wrong, sure) = coverage(&[0.53, 0.27, 0.13, 0.07], rounds, 400);
            assert!((0.85..=0.96).contains(&held), "{rounds} rounds: {held}");
            assert!(wrong <= 0.01, "{rounds} rounds: {wrong} wrong");
            assert!(rounds < 400 || sure > 0.9, "{rounds} rounds: {sure} sure");
        }
    }

    #[test]
    fn equal_parts_are_not_ranked_and_nothing_is_at_stake_once_they_are_known() {
        let rounds = vec![vec![10.0; 4]; 30];
        let (evidence, all) = seen(4, &rounds);
        let (ranked, ranking) = rank(&evidence, &all);
        assert!(ranked.iter().all(|one| !one.is_settled));
        assert!(ranking.settled && ranking.at_stake < 0.1, "{ranking:?}");
    }

    #[test]
    fn few_samples_rank_nothing() {
        let mut all = EvidenceOfAll::default();
        let mut hot = Evidence::default();
        assert!(hot.add(1000.0, 0.0) && !hot.add(1000.0, 0.0));
        (0..18).for_each(|_| all.add(111.1));
        let (ranked, ranking) = rank(&[(hot, 4096), (Evidence::default(), 4096)], &all);
        assert!(!ranking.settled && !ranked[0].is_settled && ranking.samples == 18);
        assert!(ranked[1].share.high > 0.3, "{ranked:?}");
        let (none, ranking) = rank(&[(Evidence::default(), 1)], &EvidenceOfAll::default());
        assert!(!ranking.settled && none[0].share.of == 0.0);
    }

    #[test]
    fn what_a_sampler_gets_wrong_each_time_no_number_of_rounds_mends() {
        let rounds = vec![vec![30.0, 20.0]; 1000];
        let (mut evidence, all) = seen(2, &rounds);
        let (ranked, _) = rank(&evidence, &all);
        assert!(ranked[0].is_settled && ranked[0].share.high < 0.62, "{ranked:?}");
        evidence.iter_mut().for_each(|(one, _)| one.doubt = 0.5 * one.weight);
        let (ranked, _) = rank(&evidence, &all);
        // 1.645 x 0.6 x 0.4 x 0.5 x sqrt(2) on either side: 3 to 2 may be 1 to 1.
        assert!(!ranked[0].is_settled, "{ranked:?}");
        assert!((ranked[0].share.low - 0.32).abs() < 0.02, "{ranked:?}");
        evidence[1].0.doubt = evidence[1].0.weight;
        assert_eq!(rank(&evidence, &all).0[1].share.low, 0.0, "it may all be the other's");
    }

    #[test]
    fn doubt_of_one_part_is_doubt_of_the_shares_of_others() {
        let (mut evidence, all) = seen(3, &vec![vec![40.0, 40.0, 20.0]; 1000]);
        evidence[0].0.doubt = evidence[0].0.weight;
        let (ranked, _) = rank(&evidence, &all);
        let width = |at: usize| ranked[at].share.high - ranked[at].share.low;
        // Deviations of 0.4 x 0.6 and 0.4 x 0.2.
        assert!(width(0) > 0.5 && width(2) > 0.2, "{ranked:?}");
        let (evidence, all) = seen(3, &vec![vec![40.0, 40.0, 20.0]; 1000]);
        assert!(rank(&evidence, &all).0[2].share.high < 0.22);
    }

    #[test]
    fn slow_change_of_a_program_is_no_uncertainty() {
        // One part for the first half of the run, the other for the second.
        let rounds = (0..100).map(|at| if at < 50 { vec![9.0, 0.0] } else { vec![0.0, 9.0] });
        let (evidence, all) = seen(2, &rounds.collect::<Vec<_>>());
        let (ranked, _) = rank(&evidence, &all);
        let width = ranked[0].share.high - ranked[0].share.low;
        assert!(width < 0.06, "{ranked:?}");
    }
}
