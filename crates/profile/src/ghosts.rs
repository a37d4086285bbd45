//! Lives that ended, whose last accesses may still come.
//! In: the ledger's numbers of lives. Out: where their accesses are kept. Knows nothing of times:
//! the ledger says when no access can come any more.

use std::collections::VecDeque;

use tiercel_ledger::ENDED_MAX;

/// A life that ended: 40 bytes, as many as the ledger keeps.
#[derive(Clone, Copy)]
pub(crate) struct Ghost {
    /// The ledger's number of it.
    pub(crate) life: u64,
    /// First byte of the object.
    pub(crate) addr: u64,
    /// Index of its group.
    pub(crate) group: u32,
    /// As of the object.
    pub(crate) extent_bytes: u64,
    pub(crate) place: Place,
}

/// Where the accesses of such a life are kept.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// With the object of this number in the list of the dead; in its group, if that is merged.
    Dead(u32),
    /// It was a part of the object that lives on here.
    Live(u64),
}

/// The latest, by ascending number.
#[derive(Default)]
pub(crate) struct Ghosts(VecDeque<Ghost>);

impl Ghosts {
    /// Keeps one. Several objects that lose a range at once have one number where they are as old:
    /// the first counts.
    pub(crate) fn keep(&mut self, ghost: Ghost) {
        if self.0.back().is_some_and(|last| last.life >= ghost.life) {
            return;
        }
        if self.0.len() >= ENDED_MAX {
            self.0.pop_front();
        }
        self.0.push_back(ghost);
    }

    pub(crate) fn find(&self, life: u64) -> Option<Ghost> {
        let at = self.0.binary_search_by_key(&life, |ghost| ghost.life).ok()?;
        Some(self.0[at])
    }

    /// Lives with lower numbers get no access any more.
    pub(crate) fn forget(&mut self, before: u64) {
        while self.0.front().is_some_and(|ghost| ghost.life < before) {
            self.0.pop_front();
        }
    }

    /// Some of the dead were taken out of their list: which ones were kept, by their place. The
    /// groups of the others are merged, so that their places are not looked at.
    pub(crate) fn renumber(&mut self, kept: &[bool]) {
        let before = |next: &mut u32, is_kept: &bool| {
            let place = *next;
            *next += u32::from(*is_kept);
            Some(place)
        };
        let places: Vec<u32> = kept.iter().scan(0, before).collect();
        for ghost in &mut self.0 {
            if let Place::Dead(dead) = &mut ghost.place {
                *dead = places.get(*dead as usize).copied().unwrap_or(*dead);
            }
        }
    }
}
