//! A run of OS pages that is tiered as one, as the policy sees it.
//! In: nothing. Out: plain data. Knows nothing of how it is kept.

use serde::{Deserialize, Serialize};
use tiercel_machine::NodeId;

use super::early::Early;

/// Highest level: windows that a history has (AutoTiering 4.2.1).
pub const LEVEL_MAX: u8 = 8;

/// The number of a group of processes that share a budget, in the daemon's list of groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u16);

/// A unit's process and first byte.
pub type UnitKey = (u32, u64);

/// A run of OS pages of one process that moves as one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unit {
    /// Its process.
    pub pid: u32,
    /// First byte; a multiple of `bytes`.
    pub addr: u64,
    /// 4 KiB, 64 KiB or 2 MiB.
    pub bytes: u64,
    /// Whose budget it counts to.
    pub group: GroupId,
    /// The node that has most of it.
    pub node: NodeId,
    /// In how many of the last windows it was accessed: 0 to [`LEVEL_MAX`].
    pub level: u8,
    /// What was really seen, as long as its history is not complete.
    pub early: Option<Early>,
    /// Samples of it a window, in the mean of the last windows, where samples are counted.
    pub samples: Option<f64>,
    /// Which node's CPUs accessed it.
    pub accessor: Accessor,
    /// It is of a file.
    pub of_file: bool,
}

/// Which node's CPUs accessed a unit.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Accessor {
    /// No access was seen whose CPU is known.
    #[default]
    Unknown,
    /// Those of this node alone, in the last windows.
    Node(NodeId),
    /// Those of several nodes.
    Several,
}

impl Unit {
    /// What names it.
    pub fn key(&self) -> UnitKey {
        (self.pid, self.addr)
    }

    /// The level that orders victims: an OS page of a file can be read again, so it counts one
    /// less.
    pub fn victim_level(&self) -> u8 {
        self.level.saturating_sub(u8::from(self.of_file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_counts_one_level_less() {
        let unit = |level, of_file| Unit {
            pid: 1,
            addr: 0,
            bytes: 4096,
            group: GroupId(0),
            node: NodeId(0),
            level,
            early: None,
            samples: None,
            accessor: Accessor::Unknown,
            of_file,
        };
        let levels = [(0, true), (3, true), (3, false)];
        assert_eq!(levels.map(|(level, file)| unit(level, file).victim_level()), [0, 2, 3]);
    }
}
