//! Which processes are hosted, and whether there is a place for one more.
//! In: processes that came and left. Out: yes or no, on any thread. Knows nothing of what they do.
//!
//! The loop decides who is hosted. What is said here spares the broker, and with it the processes
//! of other users, those for whom there is no place; it is older by what waits for the loop.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tiercel_wire::peer::Credentials;

/// The places of all users.
pub struct Places {
    max: usize,
    of_user_max: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    /// Users, by process number.
    users: HashMap<u32, u32>,
    /// How many are of a user.
    of_user: HashMap<u32, usize>,
}

impl Places {
    /// So many in all, and so many for each user.
    pub fn new(max: usize, of_user_max: usize) -> Places {
        Places { max, of_user_max, taken: Mutex::default() }
    }

    /// Whether a process may have one, or has one and attaches again.
    pub(super) fn has_one(&self, process: Credentials) -> bool {
        let taken = self.taken();
        let of_user = taken.of_user.get(&process.uid).copied().unwrap_or(0);
        taken.users.len() < self.max && of_user < self.of_user_max
            || taken.users.contains_key(&process.pid)
    }

    /// A process is hosted.
    pub(super) fn take(&self, pid: u32, uid: u32) {
        self.give_back(pid);
        let mut taken = self.taken();
        taken.users.insert(pid, uid);
        *taken.of_user.entry(uid).or_default() += 1;
    }

    /// It is hosted no longer.
    pub(super) fn give_back(&self, pid: u32) {
        let mut taken = self.taken();
        let Some(uid) = taken.users.remove(&pid) else { return };
        match taken.of_user.get(&uid).copied() {
            Some(count) if count > 1 => drop(taken.of_user.insert(uid, count - 1)),
            _ => drop(taken.of_user.remove(&uid)),
        }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_place_keeps_it_and_one_user_does_not_take_all() {
        let places = Places::new(3, 2);
        let has = |pid, uid| places.has_one(Credentials { pid, uid });
        places.take(1, 100);
        places.take(2, 100);
        assert!(!has(3, 100) && has(2, 100) && has(3, 200));
        places.take(2, 100);
        places.take(4, 200);
        assert!(!has(3, 200) && has(4, 200), "all are taken");
        places.give_back(1);
        places.give_back(1);
        assert!(has(3, 100));
        places.give_back(2);
        places.give_back(4);
        let taken = places.taken();
        assert!(taken.users.is_empty() && taken.of_user.is_empty());
    }
}
