//! How well what was said of a program agrees with what is true of it.
//! In: accesses and bytes of the parts of a program's memory, and what was said of them. Out:
//! scores. Pure.

/// A part of a program's memory: a site, or a range of one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part {
    pub name: String,
    /// True ones.
    pub accesses: f64,
    pub bytes: f64,
    /// Accesses that were said to be of it.
    pub said: f64,
}

/// What was said of the share of a site.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claim {
    /// True accesses and bytes of all its parts.
    pub accesses: f64,
    pub bytes: f64,
    /// Accesses per byte that were said, by which sites are ranked.
    pub density: f64,
    /// Ends of the 90% interval of its share.
    pub low: f64,
    pub high: f64,
    /// Its rank was called settled.
    pub is_settled: bool,
}

/// How well it agrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Half the sum of the differences of shares: the share of accesses that the wrong parts got; 1
    /// when nothing was said.
    pub error: f64,
    /// Accesses of the tenth, the quarter and the half of bytes that were said to have most of
    /// them, over those of the parts that have most.
    pub held: [f64; 3],
    /// Claims, and those whose interval holds the truth.
    pub claims: f64,
    pub covered: f64,
    /// The ranking was called settled.
    pub is_settled: bool,
    /// The first rank was called settled, and whether it is wrong nevertheless: another site has
    /// more accesses a byte, by a ninth at least.
    pub is_first_settled: bool,
    pub is_first_wrong: bool,
}

/// Shares of bytes of [`Score::held`].
const BEST: [f64; 3] = [0.1, 0.25, 0.5];
/// A first rank is wrong when the site has less than this of what the true first has: what comes
/// closer is not distinguished by shares within 5 points of 50. Chosen, not measured.
const FIRST: f64 = 0.9;

/// Scores what was said.
pub fn score(parts: &[Part], claims: &[Claim], is_settled: bool) -> Score {
    let said = parts.iter().map(|part| part.said).sum::<f64>();
    let held = |best: f64| {
        let held = held_by(parts, best, |part| part.said / part.bytes);
        let most = held_by(parts, best, |part| part.accesses / part.bytes);
        if most > 0.0 && said > 0.0 { held / most } else { 0.0 }
    };
    let all = claims.iter().map(|claim| claim.accesses).sum::<f64>().max(1.0);
    let holds = |claim: &&Claim| (claim.low..=claim.high).contains(&(claim.accesses / all));
    let first = claims.iter().max_by(|a, b| a.density.total_cmp(&b.density));
    let density = |claim: &Claim| claim.accesses / claim.bytes;
    let most = claims.iter().map(density).fold(0.0, f64::max);
    let is_wrong = |claim: &Claim| claim.density > 0.0 && density(claim) < FIRST * most;
    Score {
        error: if said > 0.0 { error(parts, said) } else { 1.0 },
        held: BEST.map(held),
        claims: claims.len() as f64,
        covered: claims.iter().filter(holds).count() as f64,
        is_settled,
        is_first_settled: first.is_some_and(|claim| claim.is_settled) && claims.len() > 1,
        is_first_wrong: first.is_some_and(is_wrong),
    }
}

fn error(parts: &[Part], said: f64) -> f64 {
    let all = parts.iter().map(|part| part.accesses).sum::<f64>();
    parts.iter().map(|part| (part.accesses / all - part.said / said).abs()).sum::<f64>() / 2.0
}

/// True accesses of the densest `best` of all bytes; of parts that are equally dense an even share.
fn held_by(parts: &[Part], best: f64, density: impl Fn(&Part) -> f64) -> f64 {
    let mut order: Vec<&Part> = parts.iter().collect();
    order.sort_by(|a, b| density(b).total_cmp(&density(a)));
    let mut room = best * parts.iter().map(|part| part.bytes).sum::<f64>();
    let mut held = 0.0;
    for equals in order.chunk_by(|a, b| density(a) == density(b)) {
        let bytes: f64 = equals.iter().map(|part| part.bytes).sum();
        let share = (room / bytes).clamp(0.0, 1.0);
        held += share * equals.iter().map(|part| part.accesses).sum::<f64>();
        room -= bytes;
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(figures: &[(f64, f64, f64)]) -> Vec<Part> {
        let part = |(accesses, bytes, said): &(f64, f64, f64)| Part {
            name: String::new(),
            accesses: *accesses,
            bytes: *bytes,
            said: *said,
        };
        figures.iter().map(part).collect()
    }

    fn scored(figures: &[(f64, f64, f64)]) -> (f64, f64) {
        let score = score(&parts(figures), &[], false);
        (score.error, score.held[1])
    }

    #[test]
    fn what_is_said_rightly_scores_full() {
        assert_eq!(scored(&[(90.0, 1.0, 9.0), (10.0, 3.0, 1.0)]), (0.0, 1.0));
    }

    #[test]
    fn what_is_said_of_the_wrong_one_is_wrong_and_silence_holds_nothing() {
        assert_eq!(scored(&[(100.0, 1.0, 0.0), (0.0, 3.0, 5.0)]), (1.0, 0.0));
        assert_eq!(scored(&[(100.0, 1.0, 0.0), (0.0, 3.0, 0.0)]), (1.0, 0.0));
    }

    #[test]
    fn equals_share_the_room() {
        // Half of each of two equal parts of 2 in a room of 2.
        let (_, held) = scored(&[(50.0, 2.0, 5.0), (45.0, 2.0, 5.0), (5.0, 4.0, 0.0)]);
        assert!((held - 47.5 / 50.0).abs() < 1e-9, "{held}");
    }

    #[test]
    fn claims_are_compared_with_the_truth() {
        let claim = |accesses, density, (low, high), is_settled| Claim {
            accesses,
            bytes: 1.0,
            density,
            low,
            high,
            is_settled,
        };
        let of = |claims: &[Claim]| {
            let score = score(&[], claims, true);
            (score.covered, score.is_first_settled, score.is_first_wrong)
        };
        let (right, close, wrong) = ((0.5, 0.7), (0.2, 0.41), (0.7, 0.9));
        assert_eq!(
            of(&[claim(60.0, 9.0, right, true), claim(40.0, 1.0, close, true)]),
            (2.0, true, false)
        );
        assert_eq!(
            of(&[claim(60.0, 1.0, wrong, false), claim(40.0, 9.0, close, true)]),
            (1.0, true, true)
        );
        assert_eq!(
            of(&[claim(50.0, 1.0, right, false), claim(46.0, 9.0, right, false)]),
            (1.0, false, false)
        );
        assert_eq!(of(&[claim(50.0, 1.0, right, true)]), (0.0, false, false), "one is no rank");
    }
}
