//! What the tiers of a group may hold and what they do.
//! In: limits, bytes. Out: [`TierUsage`]. Knows nothing of how moves are chosen.

use crate::tiers::Tiers;

/// A group's tiers, what may lie in them and what does. `room` is the share of `limits` that an
/// assignment fills, `placed` the part of `used` that a plan places; bytes.
pub(crate) struct TierUsage {
    pub(crate) tiers: Tiers,
    pub(crate) limits: Vec<u64>,
    /// What is beyond these leaves, whether that pays or not.
    pub(crate) budgets: Vec<u64>,
    pub(crate) room: Vec<u64>,
    pub(crate) used: Vec<u64>,
    pub(crate) placed: Vec<u64>,
    /// Sites with nurseries in the best tier and the bytes of these, by process.
    pub(crate) nurseries: Vec<(u32, Vec<u32>, u64)>,
}

impl TierUsage {
    /// The room that is left for candidates.
    pub(crate) fn fillable(&self) -> Vec<u64> {
        let each = self.room.iter().zip(&self.placed);
        each.map(|(room, placed)| room.saturating_sub(*placed)).collect()
    }

    /// Bytes that may lie in a tier, that do, and that the budget allows; without a plan's.
    pub(crate) fn of(&self, rank: u8) -> [u64; 3] {
        let at = usize::from(rank);
        let of = [&self.limits, &self.used, &self.budgets];
        of.map(|of| of[at].saturating_sub(self.placed[at]))
    }

    /// Whether a tier has room for this many more bytes. The last one always has.
    pub(crate) fn fits(&self, rank: u8, bytes: u64) -> bool {
        let at = usize::from(rank);
        rank == self.tiers.last() || self.used[at] + bytes <= self.room[at]
    }
}
