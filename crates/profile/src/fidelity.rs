//! How true one profile of a run is to another. In: the [`Diff`] of a profile that is taken for
//! exact and one that sampled. Out: measures over sites. Knows nothing of how either was recorded.

use serde::Serialize;

use crate::overview::{Diff, SiteDiff, SiteSums};

/// Share of the accesses from which on a site's own error counts: the project's target names it.
pub const LARGE_SHARE: f64 = 0.01;

/// What the second profile of a [`Diff`] says wrongly of the first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fidelity {
    /// Accesses of the first profile.
    pub accesses: u64,
    /// Share of the accesses that are at another site, 0 to 1: half the sum of the differences of
    /// shares.
    pub misplaced: f64,
    /// How far off the accesses of a site are that has at least [`LARGE_SHARE`] of them, as a
    /// fraction of them; the worst.
    pub worst_error: f64,
    /// The label of that site; `None`: no site has so many.
    pub worst_site: Option<String>,
    /// Spearman's rank correlation of the sites' accesses, -1 to 1; `None` where they have no
    /// order: below two sites, or all alike.
    pub rank_correlation: Option<f64>,
    /// Share of the writes that are missing at their sites, 0 to 1, when both profiles have as many
    /// accesses; `None`: the first has no writes.
    pub missed_writes: Option<f64>,
}

impl Diff {
    /// Compares by site.
    pub fn fidelity(&self) -> Fidelity {
        let pairs: Vec<(f64, f64)> = self.sites.iter().map(accesses).collect();
        let [all, of_second] = totals(&pairs);
        let share = |(first, second): &(f64, f64)| first / all - second / of_second;
        let worst = self.worst(&pairs, all);
        Fidelity {
            accesses: self.sites.iter().filter_map(|one| one.before.as_ref()).map(sum).sum(),
            misplaced: pairs.iter().map(|pair| share(pair).abs()).sum::<f64>() / 2.0,
            worst_error: worst.map_or(0.0, |(error, _)| error),
            worst_site: worst.map(|(_, label)| label.to_owned()),
            rank_correlation: rank_correlation(&pairs),
            missed_writes: self.missed_writes(all, of_second),
        }
    }

    fn worst(&self, pairs: &[(f64, f64)], all: f64) -> Option<(f64, &str)> {
        let large = self.sites.iter().zip(pairs).filter(|(_, pair)| pair.0 >= LARGE_SHARE * all);
        // Without any access no site is large, though each has all of them.
        let errors = large.filter(|(_, pair)| pair.0 > 0.0);
        let errors = errors.map(|(one, pair)| ((pair.1 / pair.0 - 1.0).abs(), one.label.as_str()));
        errors.max_by(|a, b| a.0.total_cmp(&b.0))
    }

    fn missed_writes(&self, all: f64, of_second: f64) -> Option<f64> {
        let writes = |sums: &Option<SiteSums>| sums.as_ref().map_or(0.0, |sums| sums.writes as f64);
        let shares = self.sites.iter().map(|one| {
            let [first, second] = [&one.before, &one.after].map(writes);
            (first / all, second / of_second)
        });
        let (written, missed) = shares.fold((0.0, 0.0), |(written, missed), (first, second)| {
            (written + first, missed + f64::max(first - second, 0.0))
        });
        (written > 0.0).then(|| missed / written)
    }
}

fn sum(sums: &SiteSums) -> u64 {
    sums.reads.saturating_add(sums.writes)
}

fn accesses(one: &SiteDiff) -> (f64, f64) {
    let side = |sums: &Option<SiteSums>| sums.as_ref().map_or(0, sum) as f64;
    (side(&one.before), side(&one.after))
}

/// Of both sides; at least 1, to divide by.
fn totals(pairs: &[(f64, f64)]) -> [f64; 2] {
    let first = pairs.iter().map(|pair| pair.0).sum::<f64>();
    let second = pairs.iter().map(|pair| pair.1).sum::<f64>();
    [first.max(1.0), second.max(1.0)]
}

/// Pearson's correlation of the ranks.
fn rank_correlation(pairs: &[(f64, f64)]) -> Option<f64> {
    let first = ranks(&pairs.iter().map(|pair| pair.0).collect::<Vec<_>>());
    let second = ranks(&pairs.iter().map(|pair| pair.1).collect::<Vec<_>>());
    // Ranks are 1 to n.
    let mean = (pairs.len() as f64 + 1.0) / 2.0;
    let product = |a: &[f64], b: &[f64]| -> f64 {
        a.iter().zip(b).map(|(a, b)| (a - mean) * (b - mean)).sum()
    };
    let spread = product(&first, &first) * product(&second, &second);
    (spread > 0.0).then(|| product(&first, &second) / spread.sqrt())
}

/// The rank of each value; equal ones share the mean of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut below = 0.0;
    for equal in order.chunk_by(|a, b| values[*a] == values[*b]) {
        let count = equal.len() as f64;
        equal.iter().for_each(|&at| ranks[at] = below + (count + 1.0) / 2.0);
        below += count;
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(label: &str, (reads, writes): (u64, u64)) -> SiteSums {
        SiteSums { label: label.into(), hash: label.into(), reads, writes, ..SiteSums::default() }
    }

    type Counts = Option<(u64, u64)>;

    fn fidelity(sites: &[(&str, Counts, Counts)]) -> Fidelity {
        let one = |(label, before, after): &(&str, Counts, Counts)| SiteDiff {
            label: (*label).to_owned(),
            matched_by_label: false,
            before: before.map(|counts| sums(label, counts)),
            after: after.map(|counts| sums(label, counts)),
        };
        Diff { sites: sites.iter().map(one).collect(), phases: Vec::new() }.fidelity()
    }

    #[test]
    fn a_profile_is_true_to_itself() {
        let [a, b] = [Some((500, 100)), Some((395, 0))];
        let same = fidelity(&[("a", a, a), ("b", b, b)]);
        assert_eq!((same.accesses, same.misplaced, same.worst_error), (995, 0.0, 0.0));
        assert_eq!((same.rank_correlation, same.missed_writes), (Some(1.0), Some(0.0)));
    }

    #[test]
    fn what_is_at_another_site_is_misplaced() {
        let found = fidelity(&[
            ("a", Some((600, 0)), Some((540, 0))),
            ("b", Some((395, 0)), Some((455, 0))),
            ("c", Some((5, 0)), None),
            ("d", None, Some((5, 0))),
        ]);
        assert!((found.misplaced - 0.065).abs() < 1e-9, "{found:?}");
        // c has less than 1%.
        assert!((found.worst_error - 60.0 / 395.0).abs() < 1e-9, "{found:?}");
        assert_eq!(found.worst_site.as_deref(), Some("b"));
        // Ranks 4, 3, 2, 1 against 4, 3, 1, 2.
        assert!((found.rank_correlation.unwrap() - 0.8).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn shares_ignore_how_many_accesses_there_are_and_errors_of_sites_do_not() {
        let found =
            fidelity(&[("a", Some((50, 50)), Some((5, 5))), ("b", Some((300, 0)), Some((30, 0)))]);
        assert!(found.misplaced < 1e-9 && found.missed_writes.unwrap() < 1e-9, "{found:?}");
        assert!((found.worst_error - 0.9).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn writes_taken_for_reads_are_missed() {
        let found = fidelity(&[("a", Some((10, 30)), Some((30, 10))), ("b", None, Some((0, 0)))]);
        assert!((found.missed_writes.unwrap() - 2.0 / 3.0).abs() < 1e-9, "{found:?}");
        assert_eq!(found.misplaced, 0.0);
    }

    #[test]
    fn without_accesses_nothing_is_wrong() {
        let found = fidelity(&[("a", Some((0, 0)), Some((0, 0)))]);
        assert_eq!((found.misplaced, found.worst_error, found.worst_site), (0.0, 0.0, None));
        assert_eq!((found.rank_correlation, found.missed_writes), (None, None));
    }
}
