//! How many bytes of each tier groups of processes may hold.
//! In: TOML or a word on the command line. Out: [`Budgets`]. Knows nothing of what is held.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::str::FromStr;
use tiercel_machine::number::saturating_u64;

use serde::{Deserialize, Serialize};
use tiercel_machine::{NodeId, format_bytes, parse_bytes};

/// The groups. A process belongs to the first group that has it; a process without a group does
/// not move.
#[derive(Clone, Debug, PartialEq)]
pub struct Budgets {
    /// First match wins.
    pub groups: Vec<Group>,
    /// Bytes available on nodes, where known: a limit never exceeds these plus what the group
    /// already holds there.
    pub left_bytes: BTreeMap<NodeId, u64>,
    /// Sites, by process and number, whose objects a plan places: they take room where they
    /// are, and are not moved.
    pub placed: HashSet<(u32, u32)>,
    /// Bytes that live in nurseries, by process; `None`: no site can have one.
    pub nursed_bytes: Option<BTreeMap<u32, u64>>,
}

/// Processes that share one budget.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Shown to users; it also identifies the group's history, so it must stay the same.
    pub name: String,
    /// Which processes.
    pub members: Members,
    /// Node whose CPUs they run on: tiers are then ordered as seen from there, local before remote.
    /// `None`: as the machine as a whole sees them.
    pub home: Option<NodeId>,
    /// Per tier, best first; a tier without an entry is limited by its capacity. The last tier
    /// takes whatever is left, whatever its limit.
    pub limits: Vec<Limit>,
    /// Bytes per tier that the members hold and no object names (code, stacks, page cache), where
    /// it was measured. Taken off the budget first.
    pub outside_bytes: Vec<u64>,
}

/// Which processes a group has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Members {
    /// Every tracked process.
    All,
    /// These.
    Pids(Vec<u32>),
}

/// A limit on one tier.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Limit {
    /// The tier's capacity.
    #[default]
    Capacity,
    /// So many bytes.
    Bytes(u64),
    /// A share of the most bytes the group's objects ever had at a tick, 0 to 1 (MAT 5.3).
    ShareOfPeak(f64),
}

/// A text that is not a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Neither a size nor a share.
    #[error("limit `{0}`: want bytes as `4GiB`, a share of peak as `25%`, or `all`")]
    Unknown(String),
    /// A bare number: `25` was taken for 25 bytes by those who meant percent.
    #[error("limit `{0}` has no unit: a share of the peak is `{0}%`, a size `{0}MiB`")]
    NoUnit(String),
}

impl Budgets {
    /// All tracked processes under one limit on the best tier.
    pub fn fast(limit: Limit) -> Budgets {
        Budgets {
            groups: vec![Group {
                name: "all".to_owned(),
                members: Members::All,
                home: None,
                limits: vec![limit],
                outside_bytes: Vec::new(),
            }],
            left_bytes: BTreeMap::new(),
            placed: HashSet::new(),
            nursed_bytes: None,
        }
    }
}

impl Group {
    pub(crate) fn has(&self, pid: u32) -> bool {
        match &self.members {
            Members::All => true,
            Members::Pids(pids) => pids.contains(&pid),
        }
    }

    /// Bytes the group's objects may hold in a tier, given their peak and the tier's capacity.
    pub(crate) fn bytes_in(&self, rank: usize, peak_bytes: u64, capacity_bytes: u64) -> u64 {
        let limit = self.limits.get(rank).copied().unwrap_or_default();
        let bytes = limit.bytes(peak_bytes, capacity_bytes);
        bytes.saturating_sub(self.outside_bytes.get(rank).copied().unwrap_or(0))
    }
}

impl Limit {
    /// What it leaves of a capacity, where so much lived at most; all in bytes.
    pub fn bytes(self, peak_bytes: u64, capacity_bytes: u64) -> u64 {
        match self {
            Limit::Capacity => capacity_bytes,
            Limit::Bytes(bytes) => bytes.min(capacity_bytes),
            Limit::ShareOfPeak(share) => {
                saturating_u64(share * peak_bytes as f64).min(capacity_bytes)
            }
        }
    }
}

impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Limit, LimitError> {
        let err = || LimitError::Unknown(text.to_owned());
        let word = text.trim();
        if word.parse::<f64>().is_ok_and(f64::is_finite) {
            return Err(LimitError::NoUnit(word.to_owned()));
        }
        if word == "all" {
            return Ok(Limit::Capacity);
        }
        let Some(percent) = word.strip_suffix('%') else {
            return parse_bytes(word).map(Limit::Bytes).map_err(|_| err());
        };
        let percent: f64 = percent.trim().parse().map_err(|_| err())?;
        let is_share = (0.0..=100.0).contains(&percent);
        if is_share { Ok(Limit::ShareOfPeak(percent / 100.0)) } else { Err(err()) }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Capacity => f.write_str("all"),
            Limit::Bytes(bytes) => f.write_str(&format_bytes(*bytes)),
            Limit::ShareOfPeak(share) => write!(f, "{}%", share * 100.0),
        }
    }
}

impl Serialize for Limit {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Limit, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
