//! Divides watched ranges into windows, picks the windows of a pass, distributes what was seen. In:
//! ranges in ascending order, random numbers. Out: [`Window`]s, shares. Pure.
//!
//! A window is registered and read as a unit. A range of at least 2 MiB is a window by itself;
//! smaller ones near one another share a window, so that mappings are not fragmented (huge OS pages
//! cannot cross a border, and a process may have 65,530 mappings in all).

use std::ops::Range;
use tiercel_machine::number::share_of;

/// With huge OS pages: ranges of this size and above are windows of their own, and a shared window
/// is at most one extent long (MAT 4.5.1).
const COARSE: WindowSize = WindowSize { own_bytes: 2 << 20, shared_bytes: 64 << 20 };
/// Without huge OS pages: the finest size that does not take more than [`FINE_WINDOWS`].
const FINE: [WindowSize; 3] = [
    WindowSize { own_bytes: 64 << 10, shared_bytes: 256 << 10 },
    WindowSize { own_bytes: 256 << 10, shared_bytes: 1 << 20 },
    WindowSize { own_bytes: 1 << 20, shared_bytes: 8 << 20 },
];
/// A window costs 2 us per read; this many cost as much as 32 MiB of OS pages.
const FINE_WINDOWS: usize = 512;
/// Most windows of a process: a sixteenth of the mappings that it may have. Ranges beyond are not
/// watched.
pub const WINDOWS_MAX: usize = 4096;

/// Ranges that are read together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// From the first byte of the first range to the last of the last.
    pub span: Range<u64>,
    /// The watched ranges in it, ascending, never empty.
    pub ranges: Vec<Range<u64>>,
}

/// How finely ranges are divided into windows.
#[derive(Clone, Copy)]
struct WindowSize {
    own_bytes: u64,
    shared_bytes: u64,
}

/// Divides ascending ranges into windows. Empty, overlapping and unordered ranges are skipped.
pub fn cut_finely(ranges: &[Range<u64>], has_huge: bool) -> Vec<Window> {
    let fine = FINE.iter().filter(|_| !has_huge).map(|size| cut(ranges, *size));
    fine.into_iter().find(|w| w.len() <= FINE_WINDOWS).unwrap_or_else(|| cut(ranges, COARSE))
}

fn cut(ranges: &[Range<u64>], size: WindowSize) -> Vec<Window> {
    let mut out: Vec<Window> = Vec::new();
    let mut end = 0;
    for range in ranges.iter().filter(|range| !range.is_empty()) {
        if range.start < end {
            continue;
        }
        end = range.end;
        let small = |bytes: &Range<u64>| bytes.end - bytes.start < size.own_bytes;
        let full = out.len() == WINDOWS_MAX;
        match out.last_mut() {
            Some(last)
                if small(range)
                    && small(&last.ranges[0])
                    && range.end - last.span.start <= size.shared_bytes =>
            {
                last.span.end = range.end;
                last.ranges.push(range.clone());
            }
            _ if full => break,
            _ => out.push(Window { span: range.clone(), ranges: vec![range.clone()] }),
        }
    }
    out
}

/// Joins adjacent ranges, unless they are in `splittable`: elsewhere a border between them could
/// fall inside a mapping that the program moves as one (`mremap` refuses a range of two mappings).
pub fn unsplit(ranges: &[Range<u64>], splittable: &Range<u64>) -> Vec<Range<u64>> {
    let inside = |r: &Range<u64>| splittable.start <= r.start && r.end <= splittable.end;
    let mut out: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match out.last_mut() {
            Some(last) if last.end == range.start && !(inside(last) && inside(range)) => {
                last.end = range.end;
            }
            _ => out.push(range.clone()),
        }
    }
    out
}

/// Whether a range overlaps one of `ranges`, which are ascending and disjoint.
pub fn touches(ranges: &[Range<u64>], span: &Range<u64>) -> bool {
    let at = ranges.partition_point(|range| range.end <= span.start);
    ranges.get(at).is_some_and(|range| range.start < span.end)
}

/// Distributes `bytes` seen somewhere in `seen` over the ranges that overlap it, in proportion.
/// `visit` gets the index of each range and its share in bytes.
pub fn spread(
    ranges: &[Range<u64>],
    seen: &Range<u64>,
    bytes: u64,
    mut visit: impl FnMut(usize, u64),
) {
    let whole = seen.end.saturating_sub(seen.start).max(1);
    let first = ranges.partition_point(|range| range.end <= seen.start);
    for (index, range) in ranges.iter().enumerate().skip(first) {
        if range.start >= seen.end {
            break;
        }
        let overlap = range.end.min(seen.end) - range.start.max(seen.start);
        let share = share_of(bytes, overlap, whole);
        if share > 0 {
            visit(index, share);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn spans(ranges: &[Range<u64>]) -> Vec<(Range<u64>, usize)> {
        cut(ranges, COARSE).into_iter().map(|w| (w.span, w.ranges.len())).collect()
    }

    #[test]
    fn small_ranges_share_a_window_and_large_ones_do_not() {
        let ranges = [0..4096, 8192..MIB, MIB..3 * MIB, 3 * MIB..4 * MIB, 70 * MIB..71 * MIB];
        let expect =
            [(0..MIB, 2), (MIB..3 * MIB, 1), (3 * MIB..4 * MIB, 1), (70 * MIB..71 * MIB, 1)];
        assert_eq!(spans(&ranges), expect);
    }

    #[test]
    fn invalid_ranges_are_skipped_and_windows_are_bounded() {
        assert_eq!(spans(&[10..10, 5..9, 3..7, 20..30]), [(5..30, 2)]);
        let many: Vec<_> = (0..5000).map(|i| i * 2 * MIB..(i + 1) * 2 * MIB).collect();
        assert_eq!(cut(&many, COARSE).len(), WINDOWS_MAX);
    }

    #[test]
    fn adjacent_ranges_stay_together_outside_the_heap() {
        let ranges = [0..10, 10..20, 30..40, 40..50, 50..60];
        assert_eq!(unsplit(&ranges, &(0..0)), [0..20, 30..60]);
        assert_eq!(unsplit(&ranges, &(30..50)), [0..20, 30..40, 40..60]);
        assert_eq!(unsplit(&ranges, &(0..100)), ranges);
    }

    #[test]
    fn windows_are_fine_if_no_huge_page_is_split_and_they_are_few() {
        let ranges =
            |count: u64| -> Vec<_> { (0..count).map(|i| i * MIB..(i + 1) * MIB).collect() };
        assert_eq!(cut_finely(&ranges(64), true).len(), 1);
        assert_eq!(cut_finely(&ranges(64), false).len(), 64);
        assert_eq!(cut_finely(&ranges(FINE_WINDOWS as u64), false).len(), FINE_WINDOWS);
        assert!(cut_finely(&ranges(4 * FINE_WINDOWS as u64), false).len() <= FINE_WINDOWS);
    }

    proptest! {
        #[test]
        fn shares_never_exceed_the_whole(
            cuts in prop::collection::btree_set(0u64..1000, 2..20),
            from in 0u64..900,
            long in 1u64..100,
            bytes in 0u64..1 << 40,
        ) {
            let cuts: Vec<_> = cuts.into_iter().collect();
            let ranges: Vec<_> = cuts.windows(2).map(|w| w[0]..w[1]).collect();
            let (mut sum, seen) = (0, from..from + long);
            spread(&ranges, &seen, bytes, |index, share| {
                assert!(ranges[index].start < seen.end && seen.start < ranges[index].end);
                sum += share;
            });
            prop_assert!(sum <= bytes);
        }
    }
}
