//! What a trial concluded: expected against measured benefit.
//! In: nothing. Out: plain data. Knows nothing of how it was measured.

use serde::{Deserialize, Serialize};

/// What became of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Saved more than it cost within the horizon.
    Paid,
    /// Saved too little for that; it is not reverted, and nothing is promoted for a while.
    NotPaid,
    /// Saved too little, but with so few samples that it may be chance; as much again is tried.
    Unclear,
    /// Did harm; it was reverted, and nothing is promoted for a while.
    TakenBack,
    /// Neither latencies nor instructions are measured, or there were too few samples.
    Unmeasured,
}

/// Moves of one assignment, expected against measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialResult {
    /// When they were requested, daemon's clock, milliseconds.
    pub asked_ms: u64,
    /// When they were judged.
    pub judged_ms: u64,
    /// It was only a share, to measure whether moving pays.
    pub canary: bool,
    /// Moves.
    pub moves: u64,
    /// Bytes moved.
    pub moved_bytes: u64,
    /// Stall time they were expected to save, nanoseconds per second.
    pub expected_ns_per_s: f64,
    /// The factor by which this was discounted, as earlier gains came true.
    #[serde(default = "whole")]
    pub believed: f64,
    /// What they saved, by the latencies of what was moved; `None` where latencies are not
    /// measured.
    pub measured_ns_per_s: Option<f64>,
    /// Samples on which this is based.
    #[serde(default)]
    pub samples: f64,
    /// What moving took, nanoseconds.
    pub cost_ns: f64,
    /// What was concluded.
    pub verdict: Verdict,
}

fn whole() -> f64 {
    1.0
}

impl TrialResult {
    /// Whether a canary paid, so that the rest may follow.
    pub(crate) fn opens(&self) -> bool {
        self.canary && self.verdict == Verdict::Paid
    }
}
