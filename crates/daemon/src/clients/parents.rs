//! Processes that have left, for children that come later: a parent may end before its child has
//! attached, and before it was greeted itself.
//! In: processes that leave. Out: the one that a child names. Knows nothing of processes that are
//! there.
//!
//! A child names its parent by a number: a claim. Only processes of its own user can be it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Processes of one user that are kept, and of all: 40 bytes each.
const KEPT_OF_USER_MAX: usize = 256;
const KEPT_MAX: usize = 4096;

/// How long they are kept: a child says its hello again after 4 s, while it may be the parent's
/// only one.
const KEPT_FOR: Duration = Duration::from_secs(10);

/// Processes that have left, the earliest first.
#[derive(Debug, Default)]
pub(crate) struct Parents(VecDeque<Parent>);

#[derive(Clone, Copy, Debug)]
struct Parent {
    user: u32,
    /// Its number as it saw itself, and as we see it.
    stated_pid: u32,
    pid: u32,
    left: Instant,
}

impl Parents {
    /// A process leaves.
    pub(crate) fn left(&mut self, user: u32, stated_pid: u32, pid: u32, now: Instant) {
        self.0.retain(|one| now - one.left < KEPT_FOR && one.pid != pid);
        let of_user = self.0.iter().filter(|one| one.user == user).count();
        let has_its_share = of_user >= KEPT_OF_USER_MAX;
        if has_its_share || self.0.len() >= KEPT_MAX {
            let oldest = self.0.iter().position(|one| !has_its_share || one.user == user);
            oldest.map(|at| self.0.remove(at));
        }
        self.0.push_back(Parent { user, stated_pid, pid, left: now });
    }

    /// The process of a user that had a number as it saw itself; `None` if processes in different
    /// pid namespaces share that number. `is_there`: whether another one has a number by now.
    pub(crate) fn find(
        &self,
        user: u32,
        stated_pid: u32,
        now: Instant,
        is_there: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let kept = self.0.iter().filter(|one| now - one.left < KEPT_FOR && !is_there(one.pid));
        let mut found = kept.filter(|one| (one.user, one.stated_pid) == (user, stated_pid));
        let parent = found.next()?;
        found.next().is_none().then_some(parent.pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: fn(u32) -> bool = |_| false;

    #[test]
    fn a_child_finds_a_parent_of_its_own_user_for_a_while() {
        let (mut parents, now) = (Parents::default(), Instant::now());
        parents.left(1000, 7, 70, now);
        parents.left(1001, 8, 80, now);
        assert_eq!(parents.find(1000, 7, now, NONE), Some(70));
        assert_eq!(parents.find(1001, 7, now, NONE), None, "another user's");
        assert_eq!(parents.find(1000, 8, now, NONE), None, "another user's");
        assert_eq!(parents.find(1000, 7, now, |pid| pid == 70), None, "its number is used again");
        assert_eq!(parents.find(1000, 7, now + KEPT_FOR, NONE), None, "too late");
    }

    #[test]
    fn of_two_that_may_be_it_none_is() {
        let (mut parents, now) = (Parents::default(), Instant::now());
        parents.left(1000, 7, 70, now);
        parents.left(1000, 7, 71, now);
        assert_eq!(parents.find(1000, 7, now, NONE), None);
        // The same process twice, after an exec, is one.
        parents.left(1000, 8, 80, now);
        parents.left(1000, 8, 80, now);
        assert_eq!(parents.find(1000, 8, now, NONE), Some(80));
    }

    #[test]
    fn a_user_with_many_processes_costs_another_none_of_its_own() {
        let (mut parents, now) = (Parents::default(), Instant::now());
        parents.left(1001, 8, 80, now);
        (0..10_000).for_each(|pid| parents.left(1000, pid, 100_000 + pid, now));
        assert_eq!(parents.find(1001, 8, now, NONE), Some(80));
        assert_eq!(parents.find(1000, 9_999, now, NONE), Some(109_999));
        assert_eq!(parents.0.len(), KEPT_OF_USER_MAX + 1);
    }

    #[test]
    fn of_a_full_table_a_user_with_its_share_takes_no_more() {
        let (mut parents, now) = (Parents::default(), Instant::now());
        let of_each = u32::try_from(KEPT_OF_USER_MAX).unwrap();
        let users = u32::try_from(KEPT_MAX).unwrap() / of_each;
        for user in 0..users {
            let pids = (0..of_each).map(|nth| user * 1000 + nth);
            pids.for_each(|pid| parents.left(user, pid, pid, now));
        }
        assert_eq!(parents.0.len(), KEPT_MAX);
        (0..of_each).for_each(|nth| parents.left(users - 1, nth, 900_000 + nth, now));
        let of_first = parents.0.iter().filter(|one| one.user == 0).count();
        assert_eq!((of_first, parents.0.len()), (KEPT_OF_USER_MAX, KEPT_MAX));
    }
}
