//! Peaks of running sums.
//! In: changes with their times. Out: the largest sum. Knows nothing of what is summed.

/// The peak of the running sum of `changes`, each a time and a signed amount.
pub(crate) fn peak_of(mut changes: Vec<(u64, i128)>) -> u64 {
    // What dies makes room for what is born at the same time.
    changes.sort_unstable();
    let (mut live, mut peak) = (0, 0);
    for (_, change) in changes {
        live += change;
        peak = peak.max(live);
    }
    u64::try_from(peak).unwrap_or(u64::MAX)
}
