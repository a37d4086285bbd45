//! Who shares blocks of small objects, by sampled births: shares as intervals.
//! In: sampled births by site. Out: [`Mixed`], a line for people. Knows nothing of the accesses to
//! such blocks: they cannot be divided.

use std::cmp::Reverse;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Sites that are kept. Chosen: a line has room for three, and those of a merged run may be others.
pub const MIXED_SITES_MAX: usize = 8;

/// Sites that a line names.
const SHOWN: usize = 3;

/// 0.95 of a normal distribution lies below so many standard deviations: intervals of 90%.
const Z_95: f64 = 1.645;

/// The sites that share blocks with others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mixed {
    /// Sampled births of all of them. Each stands for as many bytes.
    pub samples: u64,
    /// Those with most, most first; at most [`MIXED_SITES_MAX`].
    pub sites: Vec<MixedSite>,
}

/// One of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixedSite {
    /// Stable from run to run.
    pub hash: u64,
    /// What people know it by.
    pub label: String,
    /// Its sampled births.
    pub samples: u64,
}

impl Mixed {
    /// Adds another part of the run.
    pub fn absorb(&mut self, other: &Mixed) {
        self.samples = self.samples.saturating_add(other.samples);
        for site in &other.sites {
            match self.sites.iter_mut().find(|one| one.hash == site.hash) {
                Some(one) => one.samples = one.samples.saturating_add(site.samples),
                None => self.sites.push(site.clone()),
            }
        }
        self.sites.sort_by_key(|one| (Reverse(one.samples), one.hash));
        self.sites.truncate(MIXED_SITES_MAX);
    }

    /// `mixed: one 61 to 70%, two 12 to 17%, others`; empty if no birth was sampled.
    pub fn text(&self) -> String {
        if self.samples == 0 {
            return String::new();
        }
        let shown = &self.sites[..self.sites.len().min(SHOWN)];
        let name = |site: &MixedSite| {
            let Range { start, end } = share_interval(site.samples, self.samples);
            let percent = |at: f64| (at * 100.0).round();
            format!("{} {} to {}%", site.label, percent(start), percent(end))
        };
        let mut names: Vec<String> = shown.iter().map(name).collect();
        if shown.iter().map(|site| site.samples).sum::<u64>() < self.samples {
            names.push("others".to_owned());
        }
        format!("mixed: {}", names.join(", "))
    }

    /// What no profile may have, or nothing.
    pub(crate) fn defect(&self, text_bytes_max: usize) -> Option<&'static str> {
        let sum = self.sites.iter().try_fold(0u64, |sum, site| sum.checked_add(site.samples));
        if self.sites.len() > MIXED_SITES_MAX {
            return Some("too many sites share blocks");
        }
        if sum.is_none_or(|sum| sum > self.samples) {
            return Some("more births of sites were sampled than in all");
        }
        let is_long = self.sites.iter().any(|site| site.label.len() > text_bytes_max);
        is_long.then_some("a label is too long")
    }
}

/// The share that `samples` of `all` are of, 0 to 1: the interval that holds the truth in 90% of
/// cases (Wilson 1927), as far as samples are independent.
pub fn share_interval(samples: u64, all: u64) -> Range<f64> {
    let count = all.max(samples).max(1) as f64;
    let (share, more) = (samples as f64 / count, Z_95 * Z_95 / count);
    let middle = share + more / 2.0;
    let half = Z_95 * (share * (1.0 - share) / count + more / 4.0 / count).sqrt();
    let bound = |at: f64| (at / (1.0 + more)).clamp(0.0, 1.0);
    bound(middle - half)..bound(middle + half)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixed(samples: u64, sites: &[(u64, u64)]) -> Mixed {
        let site = |&(hash, samples)| MixedSite { hash, label: format!("s{hash}"), samples };
        Mixed { samples, sites: sites.iter().map(site).collect() }
    }

    #[test]
    fn shares_are_as_certain_as_there_are_samples() {
        let check = |samples, all, from: f64, to: f64| {
            let share = share_interval(samples, all);
            let is_close = (share.start - from).abs() < 0.005 && (share.end - to).abs() < 0.005;
            assert!(is_close, "{share:?}");
        };
        check(50, 100, 0.42, 0.58);
        check(5000, 10_000, 0.49, 0.51);
        check(0, 20, 0.0, 0.12);
        check(1, 1, 0.27, 1.0);
        check(0, 0, 0.0, 0.73);
    }

    #[test]
    fn parts_are_added_up_and_named() {
        let mut all = mixed(6, &[(1, 5)]);
        all.absorb(&mixed(10, &[(2, 9), (1, 1)]));
        assert_eq!(all, mixed(16, &[(2, 9), (1, 6)]));
        assert_eq!(all.text(), "mixed: s2 36 to 74%, s1 21 to 58%, others");
        assert_eq!(Mixed::default().text(), "");
        let many: Vec<(u64, u64)> = (1..20).map(|hash| (hash, hash)).collect();
        all.absorb(&mixed(400, &many));
        assert_eq!(all.sites.len(), MIXED_SITES_MAX);
        assert_eq!(all.defect(8), None);
    }

    #[test]
    fn defects_are_found() {
        assert!(mixed(5, &[(1, 3), (2, 3)]).defect(8).is_some());
        assert!(mixed(5, &[(1, u64::MAX), (2, 3)]).defect(8).is_some());
        assert!(mixed(5, &[(1, 3)]).defect(1).is_some());
        assert!(mixed(100, &[(1, 1); MIXED_SITES_MAX + 1]).defect(8).is_some());
    }
}
