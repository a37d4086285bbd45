//! Processes that were greeted and wait to be hosted, user by user: one that starts many does not
//! delay the others'.
//! In: arrivals. Out: the same, one of each user in turn. Knows nothing of clients.
//!
//! There are as many as threads that greet, at most: each of those waits for its answer.

use crate::net::arrival::Arrival;
use std::collections::{BTreeMap, VecDeque};

/// Arrivals by user, in the order in which they came.
pub(crate) struct Arrivals<T = Box<Arrival>> {
    waiting: BTreeMap<u32, VecDeque<T>>,
    /// The user whose turn is next.
    next: u32,
}

impl<T> Default for Arrivals<T> {
    fn default() -> Self {
        Arrivals { waiting: BTreeMap::new(), next: 0 }
    }
}

impl<T> Arrivals<T> {
    pub(crate) fn push(&mut self, uid: u32, arrival: T) {
        self.waiting.entry(uid).or_default().push_back(arrival);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The next one: of the user after the one whose was taken last.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let mut later = self.waiting.range(self.next..).chain(self.waiting.range(..self.next));
        let uid = *later.next()?.0;
        self.next = uid.wrapping_add(1);
        let of_user = self.waiting.get_mut(&uid)?;
        let first = of_user.pop_front();
        if of_user.is_empty() {
            self.waiting.remove(&uid);
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_user_delays_no_other() {
        let mut arrivals = Arrivals::default();
        (0..100).for_each(|nth| arrivals.push(7, (7, nth)));
        arrivals.push(8, (8, 0));
        arrivals.push(6, (6, 0));
        let order: Vec<_> = std::iter::from_fn(|| arrivals.pop()).collect();
        assert_eq!(order[..4], [(6, 0), (7, 0), (8, 0), (7, 1)]);
        assert_eq!((order.len(), order[101]), (102, (7, 99)));
        assert!(arrivals.is_empty());
    }
}
