//! Where in an object its accesses fall.
//! In: accesses by extent of one object. Out: ranges of the object that differ in their density of
//! accesses, and shares of the accesses in any part of it. Knows nothing of memories or plans.
//!
//! Neighbouring extents become one range, those first whose difference is lost least: the loss is
//! by how much less likely the samples are if both have one density (a likelihood ratio, in nats).
//! Phases of one name count apart, so that what is hot in one of them only has a range of its own.

use std::collections::BTreeMap;

use tiercel_machine::number::index_u32;
use tiercel_plan::PlannedRange;
use tiercel_profile::Access;

/// Most ranges of an object that differ in density: a row of a plan places four apart, with what is
/// between them.
const RANGES_MAX: usize = 8;

/// Most extents that are compared with each other; neighbours of more are taken together first.
const CELLS_MAX: u64 = 1024;

/// Nats that a boundary must be worth, and how many more for each phase in which its neighbours
/// have samples. Twice the loss has the chi-squared distribution with a degree of freedom for each
/// phase: of one phase, chance exceeds 4 nats at one boundary in 200.
const LOSS_MIN: f64 = 3.0;
const LOSS_OF_PHASE: f64 = 1.0;

/// Accesses to one extent in one phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cell {
    /// Number of the extent.
    pub extent: u32,
    /// Index of the phase in the workload.
    pub phase: u32,
    /// Loads and stores.
    pub accesses: f64,
    /// Lines that became dirty; where that is unknown, stores.
    pub written: f64,
    /// Samples behind them.
    pub samples: f64,
}

/// The accesses to one object by extent; nothing where they are known only as a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Spread {
    /// Bytes of the object, and of an extent.
    bytes: u64,
    extent_bytes: u64,
    cells: Vec<Cell>,
}

/// Neighbouring extents under comparison.
struct Run {
    /// The first extent, and the one behind the last.
    extents: (u64, u64),
    bytes: f64,
    /// Samples by phase name.
    samples: BTreeMap<usize, f64>,
}

impl Spread {
    /// Of an object with extents of `extent_bytes`; `accesses` are all of the object's, each with
    /// its phase in the workload.
    pub(crate) fn of<'a>(
        (bytes, extent_bytes): (u64, u64),
        accesses: impl Iterator<Item = (&'a Access, u32)>,
    ) -> Spread {
        let mut cells: BTreeMap<(u32, u32), Cell> = BTreeMap::new();
        for (access, phase) in accesses {
            let empty =
                Cell { extent: access.extent, phase, accesses: 0.0, written: 0.0, samples: 0.0 };
            let cell = cells.entry((access.extent, phase)).or_insert(empty);
            cell.accesses += access.accesses() as f64;
            cell.written += access.dirtied.unwrap_or(access.writes) as f64;
            cell.samples += access.samples as f64;
        }
        Spread { bytes, extent_bytes, cells: cells.into_values().collect() }
    }

    /// Ranges of different density, ascending, without gaps and together the whole object; one
    /// where the samples show no difference. `names` has the name, as a number, of each phase.
    pub(crate) fn ranges(&self, names: &[usize]) -> Vec<PlannedRange> {
        let mut runs = self.runs(names);
        let mut losses: Vec<f64> = runs.windows(2).map(|two| loss(&two[0], &two[1])).collect();
        while let Some(at) = least(&losses) {
            let phases = union(&runs[at], &runs[at + 1]);
            if runs.len() <= RANGES_MAX && losses[at] >= LOSS_MIN + LOSS_OF_PHASE * phases as f64 {
                break;
            }
            let next = runs.remove(at + 1);
            runs[at].absorb(next);
            losses.remove(at);
            for near in [at.checked_sub(1), (at < losses.len()).then_some(at)].into_iter().flatten()
            {
                losses[near] = loss(&runs[near], &runs[near + 1]);
            }
        }
        let at = |extent: u64| self.share_at(extent);
        let range = |run: &Run| PlannedRange { from: at(run.extents.0), to: at(run.extents.1) };
        runs.iter().map(range).collect()
    }

    /// Shares of the accesses and of the writes in a phase that fall in a part of the object; its
    /// share of the bytes where nothing is known.
    pub(crate) fn shares(&self, phase: u32, part: &PlannedRange) -> (f64, f64) {
        let (mut accesses, mut written) = ((0.0, 0.0), (0.0, 0.0));
        for cell in self.cells.iter().filter(|cell| cell.phase == phase) {
            let inside = self.inside(u64::from(cell.extent), part);
            accesses = (accesses.0 + cell.accesses * inside, accesses.1 + cell.accesses);
            written = (written.0 + cell.written * inside, written.1 + cell.written);
        }
        let share = |(inside, all): (f64, f64)| (all > 0.0).then(|| inside / all);
        let accesses = share(accesses).unwrap_or(part.share());
        (accesses, share(written).unwrap_or(accesses))
    }

    /// Which share of an extent a part of the object covers.
    fn inside(&self, extent: u64, part: &PlannedRange) -> f64 {
        let (from, to) = (self.share_at(extent), self.share_at(extent + 1));
        if to > from { part.overlap(from, to) / (to - from) } else { 0.0 }
    }

    /// Where an extent begins, as a share of the object.
    fn share_at(&self, extent: u64) -> f64 {
        let start = extent.saturating_mul(self.extent_bytes).min(self.bytes);
        if self.extent_bytes == 0 && extent > 0 { 1.0 } else { start as f64 / self.bytes as f64 }
    }

    /// Every extent, or as many neighbours at a time as keep to the limit.
    fn runs(&self, names: &[usize]) -> Vec<Run> {
        if self.cells.is_empty() || self.extent_bytes == 0 {
            return vec![Run { extents: (0, self.all()), bytes: 1.0, samples: BTreeMap::new() }];
        }
        let (all, step) = (self.all(), self.all().div_ceil(CELLS_MAX));
        let run = |at: u64| {
            let extents = (at, (at + step).min(all));
            let bytes = (self.share_at(extents.1) - self.share_at(extents.0)) * self.bytes as f64;
            Run { extents, bytes, samples: BTreeMap::new() }
        };
        let mut runs: Vec<Run> = (0..all.div_ceil(step)).map(|at| run(at * step)).collect();
        for cell in &self.cells {
            let at = (u64::from(cell.extent) / step).min(runs.len() as u64 - 1);
            let run = &mut runs[usize::try_from(at).expect("below a length")];
            *run.samples.entry(names[cell.phase as usize]).or_default() += cell.samples;
        }
        runs
    }

    fn all(&self) -> u64 {
        self.bytes.div_ceil(self.extent_bytes.max(1)).min(u64::from(u32::MAX)).max(1)
    }
}

impl Run {
    fn absorb(&mut self, next: Run) {
        self.extents.1 = next.extents.1;
        self.bytes += next.bytes;
        for (name, samples) in next.samples {
            *self.samples.entry(name).or_default() += samples;
        }
    }
}

/// The index of the smallest.
fn least(losses: &[f64]) -> Option<usize> {
    let all = losses.iter().enumerate();
    all.min_by(|a, b| a.1.total_cmp(b.1)).map(|(at, _)| at)
}

/// Phases in which either has samples.
fn union(a: &Run, b: &Run) -> u32 {
    let more = b.samples.keys().filter(|name| !a.samples.contains_key(name)).count();
    index_u32(a.samples.len() + more)
}

/// How much less likely the samples are if both have one density, in nats.
fn loss(a: &Run, b: &Run) -> f64 {
    let part =
        |count: f64, bytes: f64| if count > 0.0 { count * (count / bytes).ln() } else { 0.0 };
    let of = |name: &usize| {
        let count = |run: &Run| run.samples.get(name).copied().unwrap_or(0.0);
        let (first, second) = (count(a), count(b));
        part(first, a.bytes) + part(second, b.bytes) - part(first + second, a.bytes + b.bytes)
    };
    let only = b.samples.keys().filter(|name| !a.samples.contains_key(name));
    a.samples.keys().chain(only).map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    /// Samples of (extent, phase, how many), extents of a MiB.
    fn spread(bytes: u64, samples: &[(u32, u32, u64)]) -> Spread {
        let access = |&(extent, phase, samples): &(u32, u32, u64)| {
            (Access { extent, reads: 7 * samples, samples, ..Access::default() }, phase)
        };
        let all: Vec<(Access, u32)> = samples.iter().map(access).collect();
        Spread::of((bytes, MIB), all.iter().map(|(access, phase)| (access, *phase)))
    }

    fn shown(ranges: &[PlannedRange], mib: f64) -> Vec<(f64, f64)> {
        ranges.iter().map(|range| (range.from * mib, range.to * mib)).collect()
    }

    #[test]
    fn a_hot_middle_is_a_range_and_chance_is_none() {
        let samples: Vec<_> = (0..64)
            .map(|at| (at, 0, if (24..32).contains(&at) { 60 } else { at as u64 % 3 }))
            .collect();
        let hot = spread(64 * MIB, &samples);
        assert_eq!(shown(&hot.ranges(&[0]), 64.0), [(0.0, 24.0), (24.0, 32.0), (32.0, 64.0)]);
        let (inside, _) = hot.shares(0, &PlannedRange { from: 0.375, to: 0.5 });
        assert!(inside > 0.88 && inside < 1.0, "{inside}");
        let even: Vec<_> = (0..64).map(|at| (at, 0, 7 + u64::from(at * 37 % 5))).collect();
        assert_eq!(spread(64 * MIB, &even).ranges(&[0]).len(), 1);
        assert_eq!(spread(64 * MIB, &[]).ranges(&[0]).len(), 1);
    }

    #[test]
    fn what_turns_hot_in_one_phase_only_has_a_range_of_its_own() {
        let half = |phase: u32| (0..8).map(move |at| (at + 8 * phase, phase, 40));
        let samples: Vec<_> = half(0).chain(half(1)).collect();
        let turns = spread(16 * MIB, &samples);
        assert_eq!(shown(&turns.ranges(&[0, 1]), 16.0), [(0.0, 8.0), (8.0, 16.0)]);
        assert_eq!(turns.ranges(&[0, 0]).len(), 1, "one name, equally hot over both");
    }

    proptest! {
        #[test]
        fn ranges_cover_the_object_once_and_have_all_accesses(
            bytes in 1u64..1 << 33,
            samples in prop::collection::vec((any::<u16>(), 0u32..3, 1u64..1000), 0..200),
        ) {
            let last = bytes.div_ceil(MIB);
            let samples: Vec<_> = samples
                .into_iter()
                .map(|(extent, phase, count)| ((u64::from(extent) % last) as u32, phase, count))
                .collect();
            let spread = spread(bytes, &samples);
            let ranges = spread.ranges(&[0, 1, 0]);
            prop_assert!(ranges.len() <= RANGES_MAX);
            prop_assert_eq!((ranges[0].from, ranges[ranges.len() - 1].to), (0.0, 1.0));
            prop_assert!(ranges.windows(2).all(|two| two[0].to == two[1].from));
            prop_assert!(ranges.iter().all(|range| range.from < range.to));
            for phase in 0..3 {
                let all: f64 = ranges.iter().map(|range| spread.shares(phase, range).0).sum();
                prop_assert!((all - 1.0).abs() < 1e-9, "{} of the accesses", all);
            }
        }
    }
}
