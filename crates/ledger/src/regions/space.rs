//! The pieces of one process.
//! In: its mappings, how many samples hit it. Out: pieces by address, the size of its units. Knows
//! nothing of histories.

use super::{GroupId, OS_PAGE_BYTES, PIECE_BYTES};

/// Samples that a unit must have in a history of eight windows, else units grow: its rate is then
/// known to a factor of two (4 +- 2).
const SAMPLES_WANTED: u64 = 4;
/// Windows of a history.
const WINDOWS: u64 = super::LEVEL_MAX as u64;
/// Of units that have half a sample a window, those that have one at all have 1.27: the mean of a
/// Poisson count that is not 0. In percent.
const SEEN_PERCENT: u64 = 127;
/// Samples of a window below which nothing is concluded. Chosen, not measured.
const SAMPLES_MIN: u64 = 64;
/// OS pages of a unit by size: 4 KiB, 64 KiB, 2 MiB.
const UNIT_PAGES: [usize; 3] = [1, 16, 512];

/// How a sampler sees accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Evidence {
    /// Every OS page that is accessed in a window is seen: units stay small.
    #[default]
    Complete,
    /// A few accesses are seen: units grow until they have enough.
    Sampled,
}

/// A mapping, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// First byte; a multiple of the OS page size.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
    /// A private mapping of a file.
    pub of_file: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Space {
    pub(crate) group: GroupId,
    /// Ascending, apart.
    pub(crate) areas: Vec<Area>,
    /// Pieces by address / 2 MiB, ascending.
    pub(crate) pieces: Vec<(u64, u32)>,
    /// Index into [`UNIT_PAGES`].
    size: usize,
    /// Samples of the open window, and units that had one.
    samples: u64,
    accessed: u64,
}

impl Space {
    /// The piece that has an address.
    pub(crate) fn find(&self, addr: u64) -> Option<u32> {
        let number = addr / PIECE_BYTES;
        let at = self.pieces.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        Some(self.pieces[at].1)
    }

    /// Whether an address is in a mapping.
    pub(crate) fn has(&self, addr: u64) -> bool {
        let after = self.areas.partition_point(|area| area.start <= addr);
        after > 0 && addr < self.areas[after - 1].end
    }

    /// OS pages of a unit that is in no huge one.
    pub(crate) fn unit_pages(&self) -> usize {
        UNIT_PAGES[self.size]
    }

    /// Counts a sample; `is_first` of its unit in this window.
    pub(crate) fn sampled(&mut self, is_first: bool) {
        self.samples += 1;
        self.accessed += u64::from(is_first);
    }

    /// Ends a window; true when units have grown and histories must follow.
    pub(crate) fn close(&mut self, evidence: Evidence) -> bool {
        let (samples, accessed) = (self.samples, self.accessed);
        (self.samples, self.accessed) = (0, 0);
        if evidence == Evidence::Complete || samples < SAMPLES_MIN {
            return false;
        }
        if samples * 100 < SEEN_PERCENT * accessed && self.size + 1 < UNIT_PAGES.len() {
            self.size += 1;
            return true;
        }
        // Units of the next smaller size have enough, even if all parts of a unit are accessed.
        if let Some(smaller) = self.size.checked_sub(1) {
            let parts = (UNIT_PAGES[self.size] / UNIT_PAGES[smaller]) as u64;
            let has_enough = samples * WINDOWS >= SAMPLES_WANTED * accessed * parts;
            self.size -= usize::from(has_enough);
        }
        false
    }
}

/// The numbers of the pieces that areas touch, ascending, each with whether all of it is of files.
pub(crate) fn numbers(areas: &[Area]) -> Vec<(u64, bool)> {
    let mut all: Vec<(u64, bool)> = Vec::new();
    for area in areas.iter().filter(|area| area.start < area.end) {
        for number in area.start / PIECE_BYTES..area.end.div_ceil(PIECE_BYTES) {
            match all.last_mut() {
                Some((last, of_file)) if *last == number => *of_file &= area.of_file,
                _ => all.push((number, area.of_file)),
            }
        }
    }
    all
}

/// The parts of areas within a piece.
pub(crate) fn clip(areas: &[Area], addr: u64) -> impl Iterator<Item = (u64, usize)> {
    let end = addr + PIECE_BYTES;
    let first = areas.partition_point(|area| area.end <= addr);
    areas[first..].iter().take_while(move |area| area.start < end).map(move |area| {
        let (start, end) = (area.start.max(addr), area.end.min(end));
        (start, tiercel_machine::number::index((end - start) / OS_PAGE_BYTES))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_grow_with_thin_evidence_and_shrink_with_much() {
        let mut space = Space::default();
        let mut window = |samples: u64, accessed: u64| {
            for nth in 0..samples {
                space.sampled(nth < accessed);
            }
            space.close(Evidence::Sampled);
            space.unit_pages()
        };
        assert_eq!(window(63, 63), 1, "too few to conclude anything");
        assert_eq!(window(127, 100), 1, "four each in eight windows");
        assert_eq!(window(126, 100), 16);
        assert_eq!(window(126, 100), 512);
        assert_eq!(window(126, 100), 512, "no larger ones");
        assert_eq!(window(1599, 100), 512);
        assert_eq!(window(1600, 100), 16);
    }

    #[test]
    fn complete_evidence_keeps_them_small() {
        let mut space = Space::default();
        (0..1000).for_each(|_| space.sampled(true));
        assert!(!space.close(Evidence::Complete));
        assert_eq!(space.unit_pages(), 1);
    }

    #[test]
    fn areas_are_cut_into_pieces() {
        let area = |start, end, of_file| Area { start, end, of_file };
        let areas = [
            area(0x1000, 0x3000, true),
            area(0x10_0000, 0x40_1000, false),
            area(0x60_0000, 0x60_1000, true),
        ];
        assert_eq!(numbers(&areas), [(0, false), (1, false), (2, false), (3, true)]);
        let clipped: Vec<_> = clip(&areas, 0).collect();
        assert_eq!(clipped, [(0x1000, 2), (0x10_0000, 256)]);
        assert_eq!(clip(&areas, 0x40_0000).collect::<Vec<_>>(), [(0x40_0000, 1)]);
        let space = Space { areas: areas.to_vec(), ..Space::default() };
        assert_eq!(
            [0xfff, 0x1000, 0x2fff, 0x3000].map(|addr| space.has(addr)),
            [false, true, true, false]
        );
    }
}
