//! Units that move back and forth: they are locked, and when they are many, all moves stop.
//! In: what moved in which window. Out: what may move. Knows nothing of why anything moved.

use std::collections::{BTreeMap, VecDeque};

use tiercel_ledger::regions::UnitKey;

/// A unit that moves twice in so many windows is locked: as many as a history has, so that the
/// second move contradicts evidence that the first one used.
pub const RECENT_WINDOWS: u64 = 8;
/// For so many windows: four histories. Chosen, not measured.
pub const LOCK_WINDOWS: u64 = 32;
/// Share of such units among the recent moves from which on all moves stop, for as long. Chosen,
/// not measured: a quarter moved for nothing cost what a third of the others must gain.
pub const REPEATED_SHARE_MAX: f64 = 0.25;
/// Moves below which the share says nothing. A share of 25% of 32 moves is above 10% with 99%.
const JUDGED_MOVES_MIN: u64 = 32;
/// Units that are remembered; beyond that nothing moves until old ones are forgotten. 32 MiB.
const REMEMBERED_MAX: usize = 1 << 19;

#[derive(Debug, Default)]
pub(crate) struct History {
    units: BTreeMap<UnitKey, Recent>,
    /// Moves of the recent windows, and how many of them were of units that had just moved.
    windows: VecDeque<(u64, u64, u64)>,
    stopped_until: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    moved: u64,
    locked_until: u64,
}

impl History {
    /// Forgets what is too long ago to matter in this window.
    pub(crate) fn begin(&mut self, window: u64) {
        let is_new = self.windows.back().is_none_or(|(last, _, _)| *last != window);
        if !is_new {
            return;
        }
        self.units.retain(|_, recent| {
            recent.moved + RECENT_WINDOWS > window || recent.locked_until > window
        });
        self.windows.retain(|(then, _, _)| then + RECENT_WINDOWS > window);
        self.windows.push_back((window, 0, 0));
    }

    /// Whether nothing may move in this window.
    pub(crate) fn is_stopped(&self, window: u64) -> bool {
        window < self.stopped_until || self.units.len() >= REMEMBERED_MAX
    }

    pub(crate) fn is_locked(&self, key: UnitKey, window: u64) -> bool {
        self.units.get(&key).is_some_and(|recent| recent.locked_until > window)
    }

    /// A unit moves in this window, for which [`History::begin`] was called.
    pub(crate) fn note(&mut self, key: UnitKey, window: u64) {
        let known = self.units.insert(key, Recent { moved: window, locked_until: 0 });
        let is_repeated = known.is_some_and(|known| known.moved + RECENT_WINDOWS > window);
        if is_repeated && let Some(recent) = self.units.get_mut(&key) {
            recent.locked_until = window + LOCK_WINDOWS;
        }
        if let Some((_, moves, repeated)) = self.windows.back_mut() {
            *moves += 1;
            *repeated += u64::from(is_repeated);
        }
        self.judge(window);
    }

    fn judge(&mut self, window: u64) {
        let moves: u64 = self.windows.iter().map(|(_, moves, _)| moves).sum();
        let repeated: u64 = self.windows.iter().map(|(_, _, repeated)| repeated).sum();
        if moves >= JUDGED_MOVES_MIN && repeated as f64 > REPEATED_SHARE_MAX * moves as f64 {
            self.stopped_until = window + LOCK_WINDOWS;
            self.windows.clear();
            self.windows.push_back((window, 0, 0));
        }
    }
}

/// Units that a mover found it cannot move: others map them, or something holds them. As victims
/// they would keep each unit that they should make room for from moving.
#[derive(Debug, Default)]
pub(crate) struct Immovable {
    until: BTreeMap<UnitKey, u64>,
}

impl Immovable {
    /// It could not be moved in this window: it is no victim for as long as what moves back and
    /// forth is locked.
    pub(crate) fn note(&mut self, key: UnitKey, window: u64) {
        self.until.retain(|_, until| *until > window);
        if self.until.len() < REMEMBERED_MAX {
            self.until.insert(key, window + LOCK_WINDOWS);
        }
    }

    pub(crate) fn has(&self, key: UnitKey, window: u64) -> bool {
        self.until.get(&key).is_some_and(|until| *until > window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(moves: &[(u64, u64)]) -> History {
        let mut history = History::default();
        for (window, addr) in moves {
            history.begin(*window);
            history.note((1, *addr), *window);
        }
        history
    }

    #[test]
    fn twice_in_eight_windows_locks_for_32() {
        let mut twice = history(&[(10, 7), (17, 7)]);
        assert!(twice.is_locked((1, 7), 17 + LOCK_WINDOWS - 1));
        assert!(!twice.is_locked((1, 7), 17 + LOCK_WINDOWS));
        twice.begin(17 + LOCK_WINDOWS);
        assert!(twice.units.is_empty());
        assert!(!history(&[(10, 7), (18, 7)]).is_locked((1, 7), 18), "eight windows later");
        assert!(!history(&[(10, 7), (11, 8)]).is_locked((1, 8), 11), "another unit");
    }

    #[test]
    fn a_quarter_back_and_forth_stops_all() {
        let once = |count: u64| (0..count).map(|addr| (1, addr)).collect::<Vec<_>>();
        let stopped = |again: u64| {
            let mut moves = once(90);
            moves.extend((0..again).map(|addr| (2, addr)));
            history(&moves)
        };
        assert!(!stopped(30).is_stopped(2), "30 of 120 are 25%, not more");
        assert!(stopped(31).is_stopped(2 + LOCK_WINDOWS - 1));
        assert!(!stopped(31).is_stopped(2 + LOCK_WINDOWS));
        assert!(!history(&[(1, 7), (2, 7), (3, 7)]).is_stopped(3), "too few to judge");
    }
}
