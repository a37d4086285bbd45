//! Selecting and sorting in pieces, between which others are served.
//! In: elements, a number for each by which they are ordered, no two alike. Out: the same in order.
//! Knows nothing of what an element is.
//!
//! Both are quicksort's: a partition is a loop, and can pause anywhere. What is left is small and
//! is ordered at once.

use tiercel_ledger::{CHEAP_IN_UNIT, PIECE_UNITS, Pace};
use tiercel_machine::number::index;

/// Elements that are ordered at once: at 14 comparisons each, 2^14 of them are a piece.
const AT_ONCE: usize = PIECE_UNITS;

/// Elements that are compared with one number in a piece.
const COMPARED_AT_ONCE: usize = PIECE_UNITS * CHEAP_IN_UNIT;

/// Elements of the sample whose median is the pivot: on average within 3% of the middle.
const PIVOTS: usize = 255;

/// Puts the element at `nth` that sorting would put there, and none above it before it.
pub(crate) fn select<T>(
    list: &mut [T],
    nth: usize,
    key: impl Fn(&T) -> u64 + Copy,
    pace: &mut dyn Pace,
) {
    let (mut from, mut to) = (0, list.len());
    while to - from > AT_ONCE {
        let middle = from + partition(&mut list[from..to], key, pace);
        match nth.cmp(&middle) {
            std::cmp::Ordering::Less => to = middle,
            std::cmp::Ordering::Equal => return,
            std::cmp::Ordering::Greater => from = middle + 1,
        }
    }
    list[from..to].select_nth_unstable_by_key(nth - from, key);
    pace.compared((to - from) * CHEAP_IN_UNIT);
}

/// Sorts, the lowest first.
pub(crate) fn sort<T>(list: &mut [T], key: impl Fn(&T) -> u64 + Copy, pace: &mut dyn Pace) {
    // The smaller part is sorted first, so that few wait.
    let mut waiting = vec![(0, list.len())];
    while let Some((from, to)) = waiting.pop() {
        if to - from <= AT_ONCE {
            list[from..to].sort_unstable_by_key(key);
            pace.compared((to - from) * CHEAP_IN_UNIT);
            continue;
        }
        let middle = from + partition(&mut list[from..to], key, pace);
        let mut parts = [(from, middle), (middle + 1, to)];
        parts.sort_unstable_by_key(|(from, to)| std::cmp::Reverse(to - from));
        waiting.extend(parts);
    }
}

/// Puts some element where sorting would put it, the lower ones before it; returns its place.
fn partition<T>(list: &mut [T], key: impl Fn(&T) -> u64, pace: &mut dyn Pace) -> usize {
    let last = list.len() - 1;
    list.swap(pivot(list, &key), last);
    let divides = key(&list[last]);
    let mut lower = 0;
    let mut at = 0;
    while at < last {
        let until = (at + COMPARED_AT_ONCE).min(last);
        for next in at..until {
            if key(&list[next]) < divides {
                list.swap(next, lower);
                lower += 1;
            }
        }
        pace.compared(until - at);
        at = until;
    }
    list.swap(lower, last);
    lower
}

/// The place of the middle one of some elements. They are chosen by the numbers themselves, which
/// samples decide: no program can arrange its objects so that they divide badly.
fn pivot<T>(list: &[T], key: impl Fn(&T) -> u64) -> usize {
    let mut random = key(&list[list.len() / 2]) | 1;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        index(random % list.len() as u64)
    };
    let mut places = [0; PIVOTS];
    places.iter_mut().for_each(|place| *place = next());
    places.sort_unstable_by_key(|place| key(&list[*place]));
    places[PIVOTS / 2]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tiercel_ledger::Ledger;

    /// Notes the longest piece.
    #[derive(Default)]
    struct Longest(usize);

    impl Pace for Longest {
        fn ledger(&self) -> &Ledger {
            unreachable!("ordering looks at no extent")
        }

        fn worked(&mut self, units: usize) {
            self.0 = self.0.max(units);
        }
    }

    /// Numbers in an order that depends on `seed` alone, each once.
    fn shuffled(count: u64, seed: u64) -> Vec<u64> {
        (0..count).map(|nth| (nth + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn select_and_sort_do_what_the_library_does(
            count in 1u64..120_000, seed in any::<u64>(), share in 0.0f64..1.0
        ) {
            let mut sorted = shuffled(count, seed);
            let mut selected = sorted.clone();
            let mut expected = sorted.clone();
            expected.sort_unstable();
            let mut longest = Longest::default();
            sort(&mut sorted, |number| *number, &mut longest);
            prop_assert!(sorted == expected);
            let nth = ((count as f64 * share) as usize).min(expected.len() - 1);
            select(&mut selected, nth, |number| *number, &mut longest);
            prop_assert_eq!(selected[nth], expected[nth]);
            prop_assert!(selected[..nth].iter().all(|number| *number < expected[nth]));
            prop_assert!(longest.0 <= PIECE_UNITS, "{} units at once", longest.0);
        }
    }

    #[test]
    fn orders_that_are_hard_for_quicksort_are_sorted_as_well() {
        let last = 200_000u64;
        let organ = (0..last).map(|nth| if nth % 2 == 0 { nth } else { 2 * last - nth });
        for mut list in [(0..last).collect(), (0..last).rev().collect(), organ.collect::<Vec<_>>()]
        {
            sort(&mut list, |number| *number, &mut Longest::default());
            assert!(list.is_sorted());
        }
    }
}
