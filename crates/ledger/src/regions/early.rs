//! Histories that are shorter than others, because their memory has not been known for as long.
//! In: when memory was mapped, a level. Out: what was really seen. Knows nothing of planes.
//!
//! New memory counts as accessed in all windows before, which protects it as a victim. A rate must
//! not believe that: for the first eight windows everything would seem hot.

use tiercel_machine::number::index_u8;

/// What was seen of memory in the windows that have ended since it was mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Early {
    /// Windows that ended; fewer than a history has.
    pub windows: u8,
    /// In how many of them it was accessed.
    pub accessed: u8,
}

impl Early {
    /// Of memory that was mapped in one window, as seen in another; `None` once its history is
    /// complete. `level`: bits of the history, with one for each window before and for the open
    /// one.
    pub(crate) fn of(since: u64, now: u64, history: u8, level: u8) -> Option<Early> {
        let observed = now.saturating_sub(since);
        if observed >= u64::from(history) {
            return None;
        }
        let observed = index_u8(tiercel_machine::number::index(observed));
        let windows = observed.saturating_sub(1);
        let accessed = level.saturating_sub(history - observed).min(windows);
        Some(Early { windows, accessed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_observed_counts() {
        let of = |now, level| Early::of(10, now, 8, level).map(|one| (one.windows, one.accessed));
        assert_eq!(of(10, 8), Some((0, 0)), "in the window in which it was mapped");
        assert_eq!(of(11, 8), Some((0, 0)), "no window has ended since");
        assert_eq!(of(13, 5), Some((2, 0)), "five bits are from before");
        assert_eq!(of(13, 7), Some((2, 2)));
        assert_eq!(of(13, 8), Some((2, 2)), "the open window does not count");
        assert_eq!(of(17, 3), Some((6, 2)));
        assert_eq!(of(18, 3), None, "complete");
        assert_eq!(Early::of(10, 11, 1, 1), None, "of one window");
    }
}
