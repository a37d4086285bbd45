//! Why a shadow placement moves, or does not: its account.
//! In: nothing. Out: plain data. Knows nothing of how it came about.

use serde::{Deserialize, Serialize};

/// The account of one group's placement at one boundary between tiers, as of the last tick.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShadowReport {
    /// The group of processes.
    pub group: String,
    /// The last tier above the boundary; 0 is the fastest.
    pub tier: u8,
    /// Extents that samples hit of late, or that some expert would have elsewhere.
    pub extents: u64,
    /// Of the expert that leads: seconds over which its rates are averages.
    pub average_s: f64,
    /// Of the same: seconds for which it believes them.
    pub horizon_s: f64,
    /// What its placement would have saved over staying, of late, moves paid; nanoseconds.
    pub lead_ns: f64,
    /// What the real placement saved so far over where objects were born, nanoseconds.
    pub saved_ns: f64,
    /// What moves have cost so far, nanoseconds.
    pub spent_ns: f64,
    /// What moves may cost now, nanoseconds.
    pub bank_ns: f64,
    /// Sites with a nursery in the tier above the boundary.
    #[serde(default)]
    pub nurseries: u64,
    /// Bytes of those nurseries.
    #[serde(default)]
    pub nursery_bytes: u64,
}
