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

/// How well it agrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Half the sum of the differences of shares: the share of accesses that the wrong parts got; 1
    /// when nothing was said.
    pub error: f64,
    /// Accesses of the quarter of bytes that was said to have most of them, over those of the
    /// quarter that has most.
    pub held: f64,
    /// A part was said to have most accesses that has less than nine tenths of what another has.
    pub is_first_wrong: bool,
}

/// Share of bytes of [`Score::held`].
const BEST: f64 = 0.25;
/// A first rank is wrong when the part has less than this of what the true first has: what comes
/// closer is not distinguished by shares within 5 points of 50. Chosen, not measured.
const FIRST: f64 = 0.9;

/// Scores what was said.
pub fn score(parts: &[Part]) -> Score {
    let said = parts.iter().map(|part| part.said).sum::<f64>();
    let held = held_by(parts, |part| part.said / part.bytes);
    let best = held_by(parts, |part| part.accesses / part.bytes);
    Score {
        error: if said > 0.0 { error(parts, said) } else { 1.0 },
        held: if best > 0.0 && said > 0.0 { held / best } else { 0.0 },
        is_first_wrong: said > 0.0 && first(parts, |one| one.said) < FIRST * most(parts),
    }
}

fn error(parts: &[Part], said: f64) -> f64 {
    let all = parts.iter().map(|part| part.accesses).sum::<f64>();
    parts.iter().map(|part| (part.accesses / all - part.said / said).abs()).sum::<f64>() / 2.0
}

/// True accesses of the densest [`BEST`] of all bytes; of parts that are equally dense an even
/// share.
fn held_by(parts: &[Part], density: impl Fn(&Part) -> f64) -> f64 {
    let mut order: Vec<&Part> = parts.iter().collect();
    order.sort_by(|a, b| density(b).total_cmp(&density(a)));
    let mut room = BEST * parts.iter().map(|part| part.bytes).sum::<f64>();
    let mut held = 0.0;
    for equals in order.chunk_by(|a, b| density(a) == density(b)) {
        let bytes: f64 = equals.iter().map(|part| part.bytes).sum();
        let share = (room / bytes).clamp(0.0, 1.0);
        held += share * equals.iter().map(|part| part.accesses).sum::<f64>();
        room -= bytes;
    }
    held
}

/// True accesses of the part that `by` puts first.
fn first(parts: &[Part], by: impl Fn(&Part) -> f64) -> f64 {
    let first = parts.iter().max_by(|a, b| by(a).total_cmp(&by(b)));
    first.map_or(0.0, |part| part.accesses)
}

fn most(parts: &[Part]) -> f64 {
    first(parts, |part| part.accesses)
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

    #[test]
    fn what_is_said_rightly_scores_full() {
        let score = score(&parts(&[(90.0, 1.0, 9.0), (10.0, 3.0, 1.0)]));
        assert_eq!(score, Score { error: 0.0, held: 1.0, is_first_wrong: false });
    }

    #[test]
    fn what_is_said_of_the_wrong_one_is_wrong() {
        let score = score(&parts(&[(100.0, 1.0, 0.0), (0.0, 3.0, 5.0)]));
        assert_eq!(score, Score { error: 1.0, held: 0.0, is_first_wrong: true });
    }

    #[test]
    fn silence_is_no_wrong_rank_but_holds_nothing() {
        let score = score(&parts(&[(100.0, 1.0, 0.0), (0.0, 3.0, 0.0)]));
        assert_eq!(score, Score { error: 1.0, held: 0.0, is_first_wrong: false });
    }

    #[test]
    fn equals_share_the_room_and_a_close_first_is_right() {
        // Half of each of two equal parts of 2 in a room of 2.
        let score = score(&parts(&[(50.0, 2.0, 5.0), (45.0, 2.0, 5.0), (5.0, 4.0, 0.0)]));
        assert!((score.held - 47.5 / 50.0).abs() < 1e-9 && !score.is_first_wrong, "{score:?}");
    }
}
