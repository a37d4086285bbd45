//! Huge OS pages: where a process has them, which of them are accessed in few places, and what
//! could be one.
//! In: runs of addresses, accesses as the ledger has them. Out: units. Knows nothing of what a
//! translation costs.

use std::ops::Range;

use tiercel_machine::number::{index, index_u32};

use super::block::{BLOCK_PIECES, NOWHERE};
use super::planes::{ALL, History};
use super::store::{Regions, place};
use super::tally::{TALLY_PAGES, Tally};
use super::unit::{LEVEL_MAX, Unit, UnitKey};
use super::{PIECE_BYTES, PIECE_PAGES};

/// Samples a window of 64 KiB that are level 2 of 8 if they come at random: -ln(1 - 2/8). Below
/// that it counts as level 1 or less.
const LEVEL_2: f64 = 0.288;
/// Pieces that a call of [`Regions::to_collapse`] looks at: 8 GiB, some 0.1 ms.
const LOOKED_AT: usize = 4096;
/// Parts of a piece whose samples are counted.
const PARTS: usize = PIECE_PAGES / TALLY_PAGES;

impl Regions {
    /// Says where a process has huge OS pages: ascending, apart. Each is a unit, since it moves as
    /// a whole.
    pub fn set_huge(&mut self, pid: u32, huge: &[Range<u64>]) {
        for (number, id) in self.pieces_of(pid) {
            let (start, end) = (number * PIECE_BYTES, (number + 1) * PIECE_BYTES);
            let after = huge.partition_point(|run| run.start <= start);
            self.set_piece_huge(id, after > 0 && huge[after - 1].end >= end);
        }
    }

    /// The huge OS page at an address was broken up, or what was there was made one.
    pub fn set_huge_at(&mut self, (pid, addr): UnitKey, is_huge: bool) {
        if let Some(id) = self.piece_at(pid, addr) {
            self.set_piece_huge(id, is_huge);
        }
    }

    fn set_piece_huge(&mut self, id: u32, is_huge: bool) {
        let (block, at) = place(id);
        let was = std::mem::replace(&mut self.blocks[block].pieces[at].is_huge, is_huge);
        if is_huge && !was {
            self.spread_piece(id, PIECE_PAGES);
        }
    }

    /// OS pages of a huge one that are accessed more than once in a history, to within 64 KiB.
    /// `None`: it is no huge one, samples are not counted, or they are so few that units would be
    /// as large without it.
    pub fn warm_pages(&self, (pid, addr): UnitKey) -> Option<usize> {
        let (block, at) = place(self.piece_at(pid, addr)?);
        if self.small_unit_pages(pid) == PIECE_PAGES {
            return None;
        }
        let block = &self.blocks[block];
        let tally = block.tallies.get(at).filter(|_| block.pieces[at].is_huge)?;
        Some(warm_parts(tally) * TALLY_PAGES)
    }

    /// Pieces of small OS pages that could as well be one: all were accessed in all windows of a
    /// history, or each 64 KiB more than once in one where samples are counted; by the same
    /// accessor, and all are on one node. At most `max`; all have their turn.
    pub fn to_collapse(&mut self, max: usize) -> Vec<Unit> {
        let all = self.blocks.len() * BLOCK_PIECES;
        let mut found = Vec::new();
        for _ in 0..all.min(LOOKED_AT) {
            if found.len() == max {
                break;
            }
            self.collapsed = (self.collapsed + 1) % index_u32(all);
            found.extend(self.as_one(self.collapsed));
        }
        found
    }

    fn as_one(&self, id: u32) -> Option<Unit> {
        let (number, at) = place(id);
        let block = &self.blocks[number];
        let piece = &block.pieces[at];
        let is_small = piece.pid != 0 && !piece.is_huge && !piece.of_file;
        let same = |codes| self.tables.present(codes).count_ones() == 1;
        // What no sample has hit yet has no accessor.
        let has_one_accessor =
            || (self.tables.present(piece.accessor) & !(1 << NOWHERE)).count_ones() == 1;
        let is_somewhere = || self.tables.get(piece.node, 0) != NOWHERE;
        if !is_small || !same(piece.node) || !is_somewhere() || !has_one_accessor() {
            return None;
        }
        let is_old = self.window() >= piece.since + u64::from(LEVEL_MAX);
        let tally = block.tallies.get(at);
        let is_hot = match tally {
            // Of a few samples a window, each OS page has its bit in some windows alone.
            Some(tally) => warm_parts(tally) == PARTS,
            None => self.has_all_bits(&block.histories[at]),
        };
        let samples = tally.map(|tally| tally.mean(0, PIECE_PAGES));
        // The open window has not had its access yet.
        let level = self.config.history;
        let one = || Unit { bytes: PIECE_BYTES, level, samples, ..self.unit(id, 0) };
        (is_hot && is_old).then(one)
    }

    /// Whether all OS pages of a piece were accessed in all windows that have ended.
    fn has_all_bits(&self, history: &History) -> bool {
        let open = index(self.window() % u64::from(self.config.history));
        let mut planes = history[..usize::from(self.config.history)].iter().enumerate();
        planes.all(|(plane, bits)| plane == open || *bits == ALL)
    }
}

/// Parts of 64 KiB that were accessed more than once in a history.
fn warm_parts(tally: &Tally) -> usize {
    let parts = (0..PIECE_PAGES).step_by(TALLY_PAGES);
    parts.filter(|first| tally.mean(*first, TALLY_PAGES) >= LEVEL_2).count()
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::TALLY_PAGES;
    use tiercel_machine::NodeId;

    const HUGE: u64 = PIECE_BYTES;

    fn ledger(evidence: Evidence) -> Regions {
        let view = |node| View { node: NodeId(node), best: vec![NodeId(node)] };
        let config = RegionsConfig {
            history: 8,
            evidence,
            demand: Demand::Running,
            nodes: (0..4).map(NodeId).collect(),
            views: vec![view(0), view(1)],
            fast: vec![NodeId(0), NodeId(1)],
        };
        let mut regions = Regions::new(config).unwrap();
        let area = Area { start: HUGE, end: 3 * HUGE, of_file: false };
        regions.set_mappings(7, GroupId(0), &[area]);
        regions.set_residency(7, HUGE, &[Some(NodeId(2)); 2 * PIECE_PAGES]);
        regions
    }

    fn touch(regions: &mut Regions, pages: std::ops::Range<u64>, node: u16) {
        pages.for_each(|page| regions.touch(7, HUGE + page * OS_PAGE_BYTES, Some(NodeId(node))));
    }

    #[test]
    fn few_warm_places_of_a_huge_os_page_are_found() {
        let mut regions = ledger(Evidence::Sampled);
        regions.set_huge(7, std::slice::from_ref(&(HUGE..2 * HUGE)));
        for _ in 0..8 {
            touch(&mut regions, 20..30, 0);
            touch(&mut regions, 512..1024, 0);
            regions.close_window();
        }
        assert_eq!(regions.warm_pages((7, HUGE)), Some(16), "64 KiB");
        assert_eq!(regions.warm_pages((7, 2 * HUGE)), None, "no huge one");
        regions.set_huge_at((7, HUGE + 99), false);
        assert_eq!(regions.warm_pages((7, HUGE)), None);
        let mut hinted = ledger(Evidence::Complete);
        hinted.set_huge(7, std::slice::from_ref(&(HUGE..2 * HUGE)));
        assert_eq!(hinted.warm_pages((7, HUGE)), None, "not counted");
    }

    #[test]
    fn what_is_hot_all_over_could_be_one() {
        let mut regions = ledger(Evidence::Complete);
        for window in 0..8 {
            assert_eq!(regions.to_collapse(9), [], "window {window}");
            touch(&mut regions, 0..1023, 0);
            regions.close_window();
        }
        let found = regions.to_collapse(9);
        assert_eq!(
            found.iter().map(|unit| (unit.addr, unit.bytes)).collect::<Vec<_>>(),
            [(HUGE, HUGE)]
        );
        regions.set_huge_at((7, HUGE), true);
        assert_eq!(regions.to_collapse(9), [], "it is one");
        regions.set_huge_at((7, HUGE), false);
        touch(&mut regions, 5..6, 1);
        assert_eq!(regions.to_collapse(9), [], "two accessors");
    }

    #[test]
    fn of_few_samples_the_count_says_that_it_is_hot_all_over() {
        let found = |parts: u64| {
            let mut regions = ledger(Evidence::Sampled);
            for window in 0..8 {
                // Another OS page of each 64 KiB each time.
                (0..parts).for_each(|part| {
                    let page = part * TALLY_PAGES as u64 + window;
                    touch(&mut regions, page..page + 1, 0);
                });
                regions.close_window();
            }
            regions.to_collapse(9).len()
        };
        assert_eq!(found(32), 1);
        assert_eq!(found(31), 0, "a part is cold");
    }
}
