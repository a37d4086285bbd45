//! Which sites share blocks of small objects, by sampled births.
//! In: what sessions state of small objects. Out: [`Shared`], with shares as intervals. Knows
//! nothing of the accesses to those blocks: they cannot be divided.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tiercel_symbolize::SiteFrame;
use tiercel_wire::Small;

/// Sites that are named. Chosen: a line has room for three, and the first of several processes may
/// be others.
const SHARERS_MAX: usize = 8;

/// 0.95 of a normal distribution lies below so many standard deviations: intervals of 90%.
const Z_95: f64 = 1.645;

/// A site that shares blocks with others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sharer {
    /// Stable from run to run.
    pub hash: u64,
    /// The stack, innermost first.
    pub frames: Arc<[SiteFrame]>,
    /// Its sampled births.
    pub samples: u64,
}

/// Those that share the mixed blocks of processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shared {
    /// The sites with the most sampled births, most first.
    pub sharers: Vec<Sharer>,
    /// Sampled births of all sites. Each stands for as many bytes.
    pub samples: u64,
}

impl Shared {
    /// True when no birth was sampled.
    pub fn is_empty(&self) -> bool {
        self.samples == 0
    }

    /// Adds another process's.
    pub fn absorb(&mut self, other: &Shared) {
        self.samples = self.samples.saturating_add(other.samples);
        for sharer in &other.sharers {
            match self.sharers.iter_mut().find(|one| one.hash == sharer.hash) {
                Some(one) => one.samples = one.samples.saturating_add(sharer.samples),
                None => self.sharers.push(sharer.clone()),
            }
        }
        self.sharers.sort_by_key(|one| (Reverse(one.samples), one.hash));
        self.sharers.truncate(SHARERS_MAX);
    }

    /// The share of the blocks' bytes that a sharer has, 0 to 1: the interval that holds the truth
    /// in 90% of cases (Wilson 1927), as far as sampled births are independent.
    pub fn share(&self, sharer: &Sharer) -> Range<f64> {
        let all = self.samples.max(sharer.samples).max(1) as f64;
        let (share, more) = (sharer.samples as f64 / all, Z_95 * Z_95 / all);
        let middle = share + more / 2.0;
        let half = Z_95 * (share * (1.0 - share) / all + more / 4.0 / all).sqrt();
        let bound = |at: f64| (at / (1.0 + more)).clamp(0.0, 1.0);
        bound(middle - half)..bound(middle + half)
    }
}

/// The sites with the most of the sampled births that live, or of all where none lives; and how
/// many those are. The unknown site has no name, but counts.
pub(crate) fn most_sharing(smalls: &[Small]) -> (Vec<(u32, u64)>, u64) {
    let lives = smalls.iter().any(|small| small.lives > 0);
    let samples = |small: &Small| u64::from(if lives { small.lives } else { small.births });
    let all = smalls.iter().map(samples).sum();
    let named = smalls.iter().filter(|small| small.site != 0);
    let mut sites: Vec<(u32, u64)> = named.map(|small| (small.site, samples(small))).collect();
    sites.retain(|(_, samples)| *samples > 0);
    sites.sort_by_key(|(site, samples)| (Reverse(*samples), *site));
    sites.truncate(SHARERS_MAX);
    (sites, all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sharer(hash: u64, samples: u64) -> Sharer {
        Sharer { hash, frames: [].into(), samples }
    }

    #[test]
    fn shares_are_as_certain_as_there_are_samples() {
        let check = |samples, all, from: f64, to: f64| {
            let shared = Shared { sharers: Vec::new(), samples: all };
            let share = shared.share(&sharer(1, samples));
            assert!(
                (share.start - from).abs() < 0.005 && (share.end - to).abs() < 0.005,
                "{share:?}"
            );
        };
        check(50, 100, 0.42, 0.58);
        check(5000, 10_000, 0.49, 0.51);
        check(0, 20, 0.0, 0.12);
        check(1, 1, 0.27, 1.0);
        check(0, 0, 0.0, 0.73);
    }

    #[test]
    fn what_lives_says_who_shares_and_else_what_was_born() {
        let small = |site, births, lives| Small { site, births, lives, ..Small::default() };
        let smalls = [small(0, 7, 2), small(3, 9, 1), small(5, 4, 4), small(6, 8, 0)];
        assert_eq!(most_sharing(&smalls), (vec![(5, 4), (3, 1)], 7));
        let ended = [small(0, 7, 0), small(3, 9, 0)];
        assert_eq!(most_sharing(&ended), (vec![(3, 9)], 16));
        assert_eq!(most_sharing(&[]), (Vec::new(), 0));
        let many: Vec<Small> = (1..100).map(|site| small(site, site, site)).collect();
        assert_eq!(most_sharing(&many).0.len(), SHARERS_MAX);
    }

    #[test]
    fn those_of_several_processes_are_added_up() {
        let mut all = Shared { sharers: vec![sharer(1, 5)], samples: 6 };
        all.absorb(&Shared { sharers: vec![sharer(2, 9), sharer(1, 1)], samples: 10 });
        assert_eq!(all, Shared { sharers: vec![sharer(2, 9), sharer(1, 6)], samples: 16 });
        assert!(!all.is_empty() && Shared::default().is_empty());
    }
}
