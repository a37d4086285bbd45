//! One row of a bench, and the statistics in it: what examples print and `cargo xtask bench` reads.
//! In: figures. Out: a row, as a line of JSON. Knows nothing of how figures are measured.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

use std::fmt;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// One line of a bench: our figure against a named peer's, measured in the same run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BenchResult {
    /// What was measured.
    pub name: String,
    /// Our figure, in `unit`.
    pub ours: f64,
    /// The peer's figure, in `unit`; `None` when the limit is absolute.
    pub peer: Option<f64>,
    /// The peer's name.
    pub peer_name: Option<String>,
    /// Ours over the peer's; lower is better.
    pub ratio: Option<f64>,
    /// What the ratio (or, without a peer, our figure) must not exceed; `None` when only reported.
    pub limit: Option<f64>,
    /// Whether it stays within the limit.
    pub holds: bool,
    /// Uncertainty of the ratio: the interquartile range of paired ratios over their median, or the
    /// difference between two halves of the rounds.
    pub spread: Option<f64>,
    /// The unit of `ours` and `peer`.
    pub unit: String,
}

impl BenchResult {
    /// A figure of our own, without a peer, that must not exceed `limit` if there is one.
    pub fn alone(name: String, ours: f64, limit: Option<f64>, unit: &str) -> BenchResult {
        BenchResult {
            name,
            ours,
            peer: None,
            peer_name: None,
            ratio: None,
            limit,
            holds: limit.is_none_or(|limit| ours <= limit),
            spread: None,
            unit: unit.into(),
        }
    }

    /// Repeated figures of our own, without a peer: their median.
    pub fn of_values(name: String, ours: &[f64], limit: Option<f64>, unit: &str) -> BenchResult {
        let spread = Some(spread(ours));
        BenchResult { spread, ..BenchResult::alone(name, median(ours), limit, unit) }
    }

    /// Ours against `peer`'s, pair by pair: the medians of the figures and of their ratios.
    pub fn of_pairs(
        name: String,
        peer: &str,
        ours: &[f64],
        theirs: &[f64],
        limit: Option<f64>,
        unit: &str,
    ) -> BenchResult {
        let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(one, other)| one / other).collect();
        let ratio = median(&ratios);
        BenchResult {
            name,
            ours: median(ours),
            peer: Some(median(theirs)),
            peer_name: Some(peer.into()),
            ratio: Some(ratio),
            limit,
            holds: limit.is_none_or(|limit| ratio <= limit),
            spread: Some(spread(&ratios)),
            unit: unit.into(),
        }
    }
}

/// A line of JSON.
impl fmt::Display for BenchResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

/// CPU time of the calling thread, nanoseconds: what else runs on the machine counts less than on a
/// clock on the wall.
pub fn thread_cpu_ns() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// Memory that this process holds, bytes.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).expect("a size in KiB");
    kib.parse::<u64>().expect("a number") << 10
}

/// The median; 0 when there are no values.
pub fn median(values: &[f64]) -> f64 {
    quartile(values, 2)
}

/// The interquartile range over the median; 0 with fewer than two values.
pub fn spread(values: &[f64]) -> f64 {
    let middle = median(values);
    if values.len() < 2 || middle == 0.0 {
        return 0.0;
    }
    (quartile(values, 3) - quartile(values, 1)) / middle
}

/// The first to third quartile, interpolated between the values around it.
fn quartile(values: &[f64], number: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let quarters = number * last;
    let (low, high) = (quarters / 4, quarters.div_ceil(4));
    sorted[low] + (sorted[high] - sorted[low]) * ((quarters % 4) as f64 / 4.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_interpolated() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[]), 0.0);
        assert_eq!(spread(&[1.0, 2.0, 3.0, 4.0, 5.0]), 2.0 / 3.0);
        assert_eq!(spread(&[1.0]), 0.0);
    }
}
