//! Whose turn it is: deficit round robin over users, so that each has an equal share of the loop
//! however many processes it has and whatever they write.
//! In: clients by user, work done. Out: whom to serve, and how much. Knows nothing of the work.
//!
//! Work is counted in units, not timed: a unit is what taking one record costs, about 100 ns. What
//! one user was served beyond its quantum is taken off its next.

use std::collections::{BTreeMap, BTreeSet};

/// Units of one turn of all users: 0.8 ms. What else waits for the loop waits for one turn, and a
/// thread that works for less than the 3 ms that Linux gives at a time is not made to wait itself.
pub(crate) const TURN_UNITS: usize = 8192;

/// Least quantum of a user: with more than 32 users at work, some wait for the next turn.
const QUANTUM_MIN: usize = 256;

/// The clients of each user, by session number.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    users: BTreeMap<u32, User>,
    /// The user whose turn is next.
    next: u32,
}

#[derive(Debug, Default)]
struct User {
    clients: BTreeSet<u32>,
    /// The client that is served first.
    next: u32,
    /// Units it may use, below 0 what it used too much.
    credit: i64,
}

/// What serving a client took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Served {
    /// Units.
    pub(crate) work: usize,
    /// There is more to do.
    pub(crate) has_more: bool,
}

impl Turns {
    pub(crate) fn came(&mut self, uid: u32, number: u32) {
        self.users.entry(uid).or_default().clients.insert(number);
    }

    pub(crate) fn left(&mut self, uid: u32, number: u32) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.clients.remove(&number);
            if user.clients.is_empty() {
                self.users.remove(&uid);
            }
        }
    }

    /// How many clients a user has.
    pub(crate) fn of_user(&self, uid: u32) -> usize {
        self.users.get(&uid).map_or(0, |user| user.clients.len())
    }

    /// One turn: `serve` gets a client and the units it may use. True when there is more to do.
    pub(crate) fn turn(&mut self, mut serve: impl FnMut(u32, usize) -> Served) -> bool {
        let quantum = (TURN_UNITS / self.users.len().max(1)).max(QUANTUM_MIN);
        let (mut left, mut has_more) = (TURN_UNITS, false);
        let first = self.next;
        let later = self.users.range(first..).chain(self.users.range(..first));
        let uids: Vec<u32> = later.map(|(uid, _)| *uid).collect();
        for uid in uids {
            if left == 0 {
                self.next = uid;
                return true;
            }
            let Some(user) = self.users.get_mut(&uid) else { continue };
            let served = user.serve(quantum, &mut serve);
            left = left.saturating_sub(served.work);
            has_more |= served.has_more;
        }
        has_more
    }
}

impl User {
    fn serve(&mut self, quantum: usize, serve: &mut impl FnMut(u32, usize) -> Served) -> Served {
        let signed = |units: usize| i64::try_from(units).unwrap_or(i64::MAX);
        // What it did not use last time it does not keep.
        self.credit = (self.credit + signed(quantum)).min(signed(quantum));
        let mut all = Served::default();
        let later = self.clients.range(self.next..).chain(self.clients.range(..self.next));
        for &number in later {
            let Some(units) = usize::try_from(self.credit).ok().filter(|units| *units > 0) else {
                self.next = number;
                all.has_more = true;
                break;
            };
            let one = serve(number, units);
            self.credit -= signed(one.work);
            all.work += one.work;
            all.has_more |= one.has_more;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients with so much to do each; who was served how much in so many turns.
    fn run(todo: &mut BTreeMap<u32, usize>, users: &[(u32, u32)], turns: usize) -> Vec<usize> {
        let mut rotation = Turns::default();
        users.iter().for_each(|(uid, number)| rotation.came(*uid, *number));
        let mut done: BTreeMap<u32, usize> = BTreeMap::new();
        for _ in 0..turns {
            let mut sum = 0;
            rotation.turn(|number, units| {
                let left = todo.get_mut(&number).unwrap();
                let work = (*left).min(units);
                *left -= work;
                sum += work;
                *done.entry(number).or_default() += work;
                Served { work, has_more: *left > 0 }
            });
            assert!(sum <= TURN_UNITS + QUANTUM_MIN, "a turn of {sum} units");
        }
        users.iter().map(|(_, number)| done.get(number).copied().unwrap_or(0)).collect()
    }

    #[test]
    fn a_user_with_many_clients_gets_as_much_as_one_with_few() {
        let mut users: Vec<(u32, u32)> = (0..100).map(|number| (1000, number)).collect();
        users.push((1001, 100));
        let mut todo = users.iter().map(|(_, number)| (*number, usize::MAX / 2)).collect();
        let done = run(&mut todo, &users, 300);
        let flood: usize = done[..100].iter().sum();
        assert_eq!((flood, done[100]), (150 * TURN_UNITS, 150 * TURN_UNITS));
        let (least, most) = (done[..100].iter().min(), done[..100].iter().max());
        assert!(most.unwrap() - least.unwrap() <= TURN_UNITS / 2, "its clients take turns");
    }

    #[test]
    fn who_has_little_to_do_is_done_in_the_first_turn() {
        let users = [(1, 1), (2, 2), (3, 3)];
        let mut todo = [(1, usize::MAX / 2), (2, 500), (3, 0)].into();
        assert_eq!(run(&mut todo, &users, 1)[1..], [500, 0]);
    }

    #[test]
    fn of_very_many_users_each_has_its_turn() {
        let users: Vec<(u32, u32)> = (0..200).map(|number| (number, number)).collect();
        let mut todo = users.iter().map(|(_, number)| (*number, usize::MAX / 2)).collect();
        let done = run(&mut todo, &users, 25);
        assert!(done.iter().all(|work| *work == 4 * QUANTUM_MIN), "{done:?}");
    }

    #[test]
    fn what_was_too_much_is_taken_off() {
        let mut turns = Turns::default();
        turns.came(1, 1);
        let mut served = 0;
        for _ in 0..10 {
            turns.turn(|_, _| {
                served += 1;
                Served { work: 5 * TURN_UNITS, has_more: true }
            });
        }
        assert_eq!(served, 2);
    }

    #[test]
    fn who_left_is_forgotten() {
        let mut turns = Turns::default();
        turns.came(1, 1);
        turns.came(1, 2);
        assert_eq!(turns.of_user(1), 2);
        turns.left(1, 1);
        turns.left(1, 2);
        assert_eq!(turns.of_user(1), 0);
        assert!(!turns.turn(|_, _| panic!("no client is left")));
    }
}
