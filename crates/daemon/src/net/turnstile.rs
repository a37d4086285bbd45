//! Who may ask the broker next: one greeting at a time, of each user one in turn.
//! In: users whose greetings have a question. Out: turns. Knows nothing of what is asked.
//!
//! The broker answers one question after the other. Were they asked as threads come, a user who
//! connects all the time would have all the threads it may have ahead of another user's greeting.

use crate::clients::arrivals::Arrivals;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lets one pass at a time.
#[derive(Default)]
pub(super) struct Turnstile(Mutex<Passing>);

#[derive(Default)]
struct Passing {
    is_taken: bool,
    /// Those that wait, as many as there are threads at most.
    waiting: Arrivals<SyncSender<()>>,
}

/// A turn; it ends when this is dropped.
pub(super) struct Turn<'a>(&'a Turnstile);

impl Turnstile {
    /// Waits for a turn of a user.
    pub(super) fn pass(&self, uid: u32) -> Turn<'_> {
        if let Some(turn) = self.enter(uid) {
            // Each that leaves admits the next one, for as long as there are turns.
            let _ = turn.recv();
        }
        Turn(self)
    }

    /// What is readable when a turn has come; `None`: it has come.
    fn enter(&self, uid: u32) -> Option<Receiver<()>> {
        let mut passing = self.passing();
        if !std::mem::replace(&mut passing.is_taken, true) {
            return None;
        }
        let (admit, admitted) = sync_channel(1);
        passing.waiting.push(uid, admit);
        Some(admitted)
    }

    fn leave(&self) {
        let mut passing = self.passing();
        match passing.waiting.pop() {
            // It is admitted once, so that there is room for that.
            Some(next) => drop(next.send(())),
            None => passing.is_taken = false,
        }
    }

    fn passing(&self) -> MutexGuard<'_, Passing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_user_goes_ahead_of_another_one_once() {
        let turnstile = Turnstile::default();
        assert!(turnstile.enter(7).is_none());
        let flood: Vec<_> = (0..64).map(|_| turnstile.enter(7).unwrap()).collect();
        let other = turnstile.enter(8).unwrap();
        let passed = || flood.iter().filter(|turn| turn.try_recv().is_ok()).count();
        let mut ahead = 0;
        while other.try_recv().is_err() {
            turnstile.leave();
            ahead += passed();
            assert!(ahead <= 1, "{ahead} of the flood went first");
        }
        (ahead..flood.len() + 1).for_each(|_| turnstile.leave());
        assert!(turnstile.enter(9).is_none(), "all have passed");
    }

    #[test]
    fn one_passes_at_a_time() {
        let turnstile = Turnstile::default();
        let turn = turnstile.pass(1);
        let second = turnstile.enter(1).unwrap();
        assert!(second.try_recv().is_err());
        drop(turn);
        assert!(second.try_recv().is_ok());
        let third = turnstile.enter(2).unwrap();
        assert!(third.try_recv().is_err());
    }
}
