//! Lives that are over, kept until no sampler can still have seen an access to them.
//! In: ends of lives. Out: those that had an address at a time. Knows nothing of rows.
//!
//! Samples are read after the fact: what lives at an address then may not have lived there when it
//! was accessed. A life is one range of addresses of one object, from its birth to its end.

use std::collections::VecDeque;

/// Ended lives that are kept of one process, 48 bytes each: those of 50 ms, between two drains of a
/// sampler, at 1.3 million deaths a second. Of more, the oldest are forgotten and counted.
pub const ENDED_MAX: usize = 65_536;

/// Ended lives that are kept altogether: 48 MiB. A process whose lives end when there is no room
/// forgets its own oldest.
pub const ENDED_TOTAL_MAX: usize = 1 << 20;

/// How far the times of samples and of records may disagree: two readings of the clocks (0.1 us
/// each), and an access that a CPU reports some hundred cycles late.
pub const SKEW_NS: u64 = 2_000;

/// A range of addresses that an object had for a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedLife {
    pub(crate) addr: u64,
    pub(crate) end: u64,
    pub(crate) born_ns: u64,
    /// It was over at this time at the latest,
    pub(crate) died_ns: u64,
    /// and lived at this time at the earliest: the same, unless records were lost.
    pub(crate) sure_ns: u64,
    pub(crate) site: u32,
}

/// The latest ended lives of a process, in the order in which they ended.
#[derive(Default)]
pub(crate) struct EndedLives {
    lives: VecDeque<EndedLife>,
    /// Number of the first; they count up.
    first: u64,
}

impl EndedLives {
    pub(crate) fn len(&self) -> usize {
        self.lives.len()
    }

    /// Keeps a life; its number. One that ends together with the last, next to it and as old, is a
    /// part of the same object and shares its number.
    pub(crate) fn push(&mut self, life: EndedLife) -> u64 {
        let next = self.first + self.lives.len() as u64;
        if let Some(last) = self.lives.back_mut()
            && last.is_part_of(&life)
        {
            (last.addr, last.end) = (last.addr.min(life.addr), last.end.max(life.end));
            return next - 1;
        }
        self.lives.push_back(life);
        next
    }

    /// The life that ended last takes no accesses: its object goes on as several.
    pub(crate) fn void_last(&mut self) {
        if let Some(last) = self.lives.back_mut() {
            (last.died_ns, last.sure_ns) = (last.born_ns, last.born_ns);
        }
    }

    /// Forgets the oldest; false when there is none.
    pub(crate) fn forget_one(&mut self) -> bool {
        let is_there = self.lives.pop_front().is_some();
        self.first += u64::from(is_there);
        is_there
    }

    /// Forgets what was over at this time, and no later life with it; how many were forgotten.
    pub(crate) fn forget_before(&mut self, ns: u64) -> usize {
        let before = self.lives.len();
        while self.lives.front().is_some_and(|life| life.died_ns.saturating_add(SKEW_NS) < ns) {
            self.forget_one();
        }
        before - self.lives.len()
    }

    /// Number of the oldest that is kept; what has a lower one is forgotten.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// With their numbers, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &EndedLife)> {
        (self.first..).zip(&self.lives)
    }
}

impl EndedLife {
    fn is_part_of(&self, other: &EndedLife) -> bool {
        (self.born_ns, self.died_ns, self.sure_ns, self.site)
            == (other.born_ns, other.died_ns, other.sure_ns, other.site)
            && (self.end == other.addr || other.end == self.addr)
    }
}
