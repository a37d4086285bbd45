//! Which code accessed objects of which site, in one process. In: accesses as they are seen. Out:
//! sums. Knows nothing of what the numbers stand for.

use std::collections::HashMap;

use tiercel_wire::{AccessedBy, Pattern};

use crate::profile::Access;

/// Most different pairs of code and site of one process; in further ones the code is not known.
/// Chosen, not measured: a program of thousands of lines misses in some hundred.
const PAIRS_MAX: usize = 1 << 14;

/// Code that has no number.
const UNKNOWN: AccessedBy = AccessedBy { number: 0, pattern: Pattern::Random };

/// Loads and stores by code and by the site of what they were to.
#[derive(Default)]
pub(crate) struct Located(HashMap<(AccessedBy, u32), [u64; 2]>);

impl Located {
    /// Adds an access to an object of `site`.
    pub(crate) fn count(&mut self, by: AccessedBy, site: u32, access: &Access) {
        if access.accesses() == 0 {
            return;
        }
        let has_room = self.0.len() < PAIRS_MAX || self.0.contains_key(&(by, site));
        let [reads, writes] =
            self.0.entry((if has_room { by } else { UNKNOWN }, site)).or_default();
        *reads = reads.saturating_add(access.reads);
        *writes = writes.saturating_add(access.writes);
    }

    /// All of them, in no order.
    pub(crate) fn into_sums(self) -> impl Iterator<Item = ((AccessedBy, u32), [u64; 2])> {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_bound_nothing_is_lost_but_the_code() {
        let mut located = Located::default();
        let read = Access { reads: 3, ..Access::default() };
        let pairs = u16::try_from(PAIRS_MAX).unwrap();
        for number in 1..=pairs + 5 {
            let by = AccessedBy { number, pattern: Pattern::Chased };
            located.count(by, 1, &read);
            located.count(by, 1, &Access { dirtied: Some(1), ..Access::default() });
        }
        located.count(AccessedBy { number: 1, pattern: Pattern::Chased }, 1, &read);
        let sums: HashMap<_, _> = located.into_sums().collect();
        assert_eq!(sums[&(UNKNOWN, 1)], [5 * 3, 0]);
        assert_eq!(sums[&(AccessedBy { number: 1, pattern: Pattern::Chased }, 1)], [6, 0]);
        assert_eq!(sums.len(), PAIRS_MAX + 1);
    }
}
