//! What a trial concluded: expected against measured benefit.
//! In: nothing. Out: plain data. Knows nothing of how it was measured.

use serde::{Deserialize, Serialize};

/// What became of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Saved more than it cost, as far as the horizon goes.
    Paid,
    /// Saved too little for that; it stays, and nothing is promoted for a while.
    NotPaid,
    /// Saved too little, but by so few samples that it may be chance; as much again is tried.
    Unclear,
    /// Did harm; it was taken back, and nothing is promoted for a while.
    TakenBack,
    /// Neither latencies nor instructions are measured, or there were too few samples.
    Unmeasured,
}

/// Moves of one assignment, expected against measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialResult {
    /// When they were asked for, daemon's clock, milliseconds.
    pub asked_ms: u64,
    /// When they were judged.
    pub judged_ms: u64,
    /// It was a share only, to see whether moving pays.
    pub canary: bool,
    /// Moves.
    pub moves: u64,
    /// Bytes moved.
    pub moved_bytes: u64,
    /// Stall time they were expected to save, nanoseconds per second.
    pub expected_ns_per_s: f64,
    /// What of that was believed, as earlier gains came true: a factor.
    #[serde(default = "whole")]
    pub believed: f64,
    /// What they saved, by the latencies of what was moved; `None` where latencies are not
    /// measured.
    pub measured_ns_per_s: Option<f64>,
    /// Samples of what was moved that this goes by.
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
