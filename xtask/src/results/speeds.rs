//! Times and ratios of times over workloads. In: results. Out: means and extremes.
//! Knows nothing of tables.

use std::collections::BTreeMap;

use tiercel_lab::bench::RunResult;

/// One machine at one share of fast memory.
#[derive(Clone, Copy)]
pub struct Case<'a> {
    pub machine: &'a str,
    pub share: &'a str,
}

impl<'a> Case<'a> {
    pub fn new(machine: &'a str, share: &'a str) -> Case<'a> {
        Case { machine, share }
    }

    /// The runs of a policy: at this share, or of a policy for which there is no share.
    pub fn runs<'r>(
        self,
        results: &'r [RunResult],
        policy: &str,
    ) -> impl Iterator<Item = &'r RunResult> {
        results.iter().filter(move |result| {
            let cell = &result.cell;
            let here = cell.share.is_none_or(|share| share.to_string() == self.share);
            here && cell.machine == self.machine && cell.policy == policy
        })
    }
}

/// Mean time of a policy, by workload, nanoseconds.
pub fn times<'r>(results: &'r [RunResult], case: Case<'_>, policy: &str) -> BTreeMap<&'r str, f64> {
    let mut sums: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for result in case.runs(results, policy) {
        let sum = sums.entry(&result.cell.workload).or_default();
        *sum = (sum.0 + result.measured.time_ns as f64, sum.1 + 1.0);
    }
    sums.into_iter().map(|(workload, (sum, count))| (workload, sum / count)).collect()
}

/// How many times as fast a policy is as another, by workload that both ran.
pub struct Speeds<'r>(pub BTreeMap<&'r str, f64>);

impl<'r> Speeds<'r> {
    pub fn of(results: &'r [RunResult], case: Case<'_>, policy: &str, peer: &str) -> Speeds<'r> {
        let peers = times(results, case, peer);
        let speed = |(name, time): (&'r str, f64)| Some((name, peers.get(name)? / time));
        Speeds(times(results, case, policy).into_iter().filter_map(speed).collect())
    }

    /// The workloads that `keep` is true of.
    pub fn only(mut self, keep: impl Fn(&str) -> bool) -> Speeds<'r> {
        self.0.retain(|name, _| keep(name));
        self
    }

    /// Geometric mean.
    pub fn mean(&self) -> Option<f64> {
        let logarithms: f64 = self.0.values().map(|speed| speed.ln()).sum();
        (!self.0.is_empty()).then(|| (logarithms / self.0.len() as f64).exp())
    }

    fn least(&self) -> Option<(&&'r str, &f64)> {
        self.0.iter().min_by(|a, b| a.1.total_cmp(b.1))
    }

    /// `1.26`; empty without workloads.
    pub fn short(&self) -> String {
        self.mean().map_or(String::new(), |mean| format!("{mean:.2}"))
    }

    /// `1.26 (0.86 phases)`: the mean and the worst.
    pub fn with_worst(&self) -> String {
        let Some((workload, worst)) = self.least() else { return String::new() };
        format!("{} ({worst:.2} {workload})", self.short())
    }

    /// `1.26 (0.86 to 2.90)`: the mean and the spread over the workloads.
    pub fn with_spread(&self) -> String {
        let most = self.0.values().copied().fold(f64::NEG_INFINITY, f64::max);
        let Some((_, least)) = self.least() else { return String::new() };
        format!("{} ({least:.2} to {most:.2})", self.short())
    }

    /// `phases 0.86, kv 0.92`: the workloads below a limit, the worst first.
    pub fn below(&self, limit: f64) -> String {
        let mut found: Vec<_> = self.0.iter().filter(|(_, speed)| **speed < limit).collect();
        found.sort_by(|a, b| a.1.total_cmp(b.1));
        let texts: Vec<String> =
            found.into_iter().map(|(name, speed)| format!("{name} {speed:.2}")).collect();
        if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_geometric_and_the_extremes_are_named() {
        let speeds = Speeds(BTreeMap::from([("a", 2.0), ("b", 0.5)]));
        assert_eq!(speeds.with_worst(), "1.00 (0.50 b)");
        assert_eq!(speeds.with_spread(), "1.00 (0.50 to 2.00)");
        assert_eq!(speeds.below(0.97), "b 0.50");
        assert_eq!(speeds.below(0.1), "none");
        assert_eq!(speeds.only(|name| name == "a").short(), "2.00");
        assert_eq!(Speeds(BTreeMap::new()).with_worst(), "");
    }
}
