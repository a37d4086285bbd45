//! Which sites share blocks of small objects, by sampled births.
//! In: what sessions state of small objects. Out: [`Shared`]. Knows nothing of names, or of how
//! sure the shares are.

use std::cmp::Reverse;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tiercel_symbolize::SiteFrame;
use tiercel_wire::Small;

/// Sites that are kept.
const SHARERS_MAX: usize = tiercel_profile::MIXED_SITES_MAX;

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
