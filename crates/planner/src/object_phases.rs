//! Phases of one object, from its utility over time: OAM 3.4.
//! In: slots of time with their utility, a threshold. Out: [`ObjectPhase`]s. Knows nothing of what
//! a utility is.
//!
//! ```text
//! hot    T1 -- T2    T3 -- T4    T5 -- T6          T7-T8          T9 -- T10
//! cold          T2-T3       T4-T5        T6 -- T7        T8 -- T9
//! =>     T1 ------------------------ T6  T6 ------------ T9       T9 -- T10
//! ```
//! Neighbouring slots on one side of the threshold are one run. A run shorter than 1/20 of the
//! object's life joins its neighbours, which are both on the other side; the shortest run first.

use std::collections::{BTreeMap, BTreeSet};

/// The share of a life below which a run is too short (OAM 3.4: one-twentieth), as its inverse.
const LIFE_PARTS: u64 = 20;

/// A slot of an object's life.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ObjectSlot {
    /// How long it is, nanoseconds.
    pub length_ns: u64,
    /// U in it.
    pub utility: f64,
}

/// Slots in which an object has one memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ObjectPhase {
    /// Index of the first slot.
    pub first: usize,
    /// Index of the slot after the last.
    pub end: usize,
    /// Mean U, weighted by length.
    pub utility: f64,
}

/// Runs by their first slot: the slot after the last, and whether the run is hot.
type Runs = BTreeMap<usize, (usize, bool)>;

/// The phases of an object with these slots, at least one: one of an immutable object.
pub fn object_phases(slots: &[ObjectSlot], epsilon: f64) -> Vec<ObjectPhase> {
    let mut sums: Vec<u64> = vec![0];
    sums.extend(slots.iter().scan(0u64, |sum, slot| {
        *sum = sum.saturating_add(slot.length_ns);
        Some(*sum)
    }));
    let mut runs = runs(slots, epsilon);
    let length = |first: usize, end: usize| sums[end] - sums[first];
    let key = |(first, (end, _)): (&usize, &(usize, bool))| (length(*first, *end), *first);
    let mut by_length: BTreeSet<(u64, usize)> = runs.iter().map(key).collect();
    while let Some((shortest_ns, first)) = by_length.pop_first() {
        if runs.len() == 1 || shortest_ns >= sums[slots.len()].div_ceil(LIFE_PARTS) {
            break;
        }
        let merged = join(&mut runs, first, |first, end| {
            by_length.remove(&(length(first, end), first));
        });
        by_length.insert((length(merged.0, merged.1), merged.0));
    }
    let phase = |(first, (end, _)): (usize, (usize, bool))| ObjectPhase {
        first,
        end,
        utility: mean(&slots[first..end]),
    };
    runs.into_iter().map(phase).collect()
}

/// Neighbouring slots on the same side of the threshold.
fn runs(slots: &[ObjectSlot], epsilon: f64) -> Runs {
    let mut first = 0;
    let chunks = slots.chunk_by(|a, b| (a.utility > epsilon) == (b.utility > epsilon));
    let run = |chunk: &[ObjectSlot]| {
        let begin = first;
        first += chunk.len();
        (begin, (first, chunk[0].utility > epsilon))
    };
    chunks.map(run).collect()
}

/// Joins a run with its neighbours, whose side it takes; reports each of those, and returns the
/// first slot of the merged run and the one after its last.
fn join(runs: &mut Runs, first: usize, mut gone: impl FnMut(usize, usize)) -> (usize, usize) {
    let Some((end, is_hot)) = runs.remove(&first) else { return (first, first) };
    let (mut from, mut to) = (first, end);
    if let Some((end, _)) = runs.remove(&end) {
        gone(to, end);
        to = end;
    }
    if let Some((before, (end, _))) = runs.range(..first).next_back().map(|(at, run)| (*at, *run)) {
        gone(before, end);
        from = before;
    }
    runs.insert(from, (to, !is_hot));
    (from, to)
}

fn mean(slots: &[ObjectSlot]) -> f64 {
    let length: f64 = slots.iter().map(|slot| slot.length_ns as f64).sum();
    let weighted: f64 = slots.iter().map(|slot| slot.length_ns as f64 * slot.utility).sum();
    let plain: f64 = slots.iter().map(|slot| slot.utility).sum();
    if length > 0.0 { weighted / length } else { plain / slots.len().max(1) as f64 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EPSILON: f64 = 1.5;

    fn slots(given: &[(u64, f64)]) -> Vec<ObjectSlot> {
        given
            .iter()
            .map(|(length_ns, utility)| ObjectSlot { length_ns: *length_ns, utility: *utility })
            .collect()
    }

    fn shown(given: &[(u64, f64)]) -> Vec<(usize, usize)> {
        let phases = object_phases(&slots(given), EPSILON);
        phases.iter().map(|phase| (phase.first, phase.end)).collect()
    }

    /// OAM Fig. 6: A is always above the threshold, B dips for a short time, C rises once.
    #[test]
    fn objects_a_b_and_c_of_figure_6() {
        assert_eq!(shown(&[(50, 3.0), (50, 2.0)]), [(0, 2)]);
        assert_eq!(shown(&[(50, 3.0), (4, 1.0), (46, 3.0)]), [(0, 3)]);
        assert_eq!(shown(&[(50, 1.0), (50, 3.0)]), [(0, 1), (1, 2)]);
    }

    /// OAM Fig. 6, object D: nine runs of which T2-T3, T4-T5 and T7-T8 are short.
    #[test]
    fn object_d_of_figure_6_has_three_phases() {
        let (hot, cold) = (2.0, 1.0);
        let lengths = [15, 2, 15, 3, 15, 12, 4, 12, 22];
        let given: Vec<(u64, f64)> =
            (0..).zip(lengths).map(|(at, ns)| (ns, if at % 2 == 0 { hot } else { cold })).collect();
        assert_eq!(shown(&given), [(0, 5), (5, 8), (8, 9)], "T1-T6, T6-T9, T9-T10");
        let phases = object_phases(&slots(&given), EPSILON);
        assert!((phases[0].utility - (45.0 * hot + 5.0 * cold) / 50.0).abs() < 1e-12);
        assert!((phases[1].utility - (24.0 * cold + 4.0 * hot) / 28.0).abs() < 1e-12);
    }

    #[test]
    fn exactly_a_twentieth_is_long_enough() {
        assert_eq!(shown(&[(95, 2.0), (5, 1.0)]), [(0, 1), (1, 2)]);
        assert_eq!(shown(&[(96, 2.0), (4, 1.0)]), [(0, 2)]);
    }

    proptest! {
        #[test]
        fn phases_cover_a_life_and_none_is_short(
            given in prop::collection::vec((1u64..100, 0.0f64..3.0), 1..60),
        ) {
            let phases = object_phases(&slots(&given), EPSILON);
            let life: u64 = given.iter().map(|slot| slot.0).sum();
            let mut next = 0;
            for phase in &phases {
                prop_assert_eq!(phase.first, next);
                next = phase.end;
                let length: u64 = given[phase.first..phase.end].iter().map(|slot| slot.0).sum();
                prop_assert!(phases.len() == 1 || length * 20 >= life, "{:?}", phases);
            }
            prop_assert_eq!(next, given.len());
            let scattered = given.windows(2).filter(|w| (w[0].1 > EPSILON) != (w[1].1 > EPSILON));
            prop_assert!(phases.len() <= scattered.count() + 1);
        }
    }
}
