//! Where one object is: in one memory, or ranges of it in another than the rest.
//! In: memories, ranges. Out: a [`Place`], and which memory has a part of the object. Knows nothing
//! of plans or profiles.

use tiercel_plan::PlannedRange;
use tiercel_planner::MEMORIES_MAX;

/// Part of an object in each memory, 0 to 1; their sum is 1.
pub(crate) type Parts = [f64; MEMORIES_MAX];

/// Where an object is.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// What of it each memory has.
    pub(crate) parts: Parts,
    /// What of it is in `memory`; the rest is in `other`. None: all of it is in `memory`.
    pub(crate) ranges: Vec<PlannedRange>,
    pub(crate) memory: usize,
    pub(crate) other: usize,
}

impl Place {
    pub(crate) fn whole(memory: usize) -> Place {
        let mut parts = [0.0; MEMORIES_MAX];
        parts[memory] = 1.0;
        Place { parts, ranges: Vec::new(), memory, other: memory }
    }

    /// In two memories.
    pub(crate) fn cut(memory: usize, other: usize, ranges: Vec<PlannedRange>) -> Place {
        let share: f64 = ranges.iter().map(PlannedRange::share).sum();
        let mut parts = [0.0; MEMORIES_MAX];
        parts[memory] += share;
        parts[other] += 1.0 - share;
        Place { parts, ranges, memory, other }
    }

    /// Whether all of it is in the fastest memory.
    pub(crate) fn is_fast(&self) -> bool {
        self.parts[1..].iter().all(|part| *part <= 0.0)
    }

    /// The memory of the object, or of most of a part of it; `None`: the object is in two.
    pub(crate) fn memory_of(&self, part: Option<PlannedRange>) -> Option<usize> {
        let Some(part) = part else { return self.ranges.is_empty().then_some(self.memory) };
        let inside = self.ranges.is_empty() || self.share_of_part(part.from, part.to) > 0.5;
        Some(if inside { self.memory } else { self.other })
    }

    /// How much of a part of the object is in `memory`, 0 to 1.
    pub(crate) fn share_of_part(&self, from: f64, to: f64) -> f64 {
        let covered: f64 = self.ranges.iter().map(|range| range.overlap(from, to)).sum();
        if to > from { covered / (to - from) } else { 0.0 }
    }
}
