//! A clock hand over all pieces, which looks for the lowest level of a group on a node.
//! In: blocks. Out: places of OS pages, each once in a tick. Knows nothing of units.

use super::block::{BLOCK_PIECES, Block};
use super::codes::Tables;
use super::{GroupId, LEVEL_MAX, PIECE_PAGES, planes};

/// OS pages of a block.
const BLOCK_PAGES: usize = BLOCK_PIECES * PIECE_PAGES;

/// Where a hand is. It goes on there at the next tick, so that victims take turns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hand {
    /// The victim level it looks for.
    level: u8,
    /// An OS page, counted over all blocks.
    at: usize,
    /// OS pages that it has still to pass at this level.
    left: usize,
    /// The tick in which it was used last.
    tick: u64,
}

/// What a hand looks for.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) group: GroupId,
    pub(crate) node: u8,
    /// Victim levels that may occur on the node, as a set of bits.
    pub(crate) levels: u16,
    pub(crate) tick: u64,
}

impl Hand {
    /// The next OS page of the lowest level there is: its place, counted over all blocks.
    pub(crate) fn next(
        &mut self,
        blocks: &mut [Block],
        tables: &Tables,
        wanted: Wanted,
    ) -> Option<usize> {
        let total = blocks.len() * BLOCK_PAGES;
        if self.tick != wanted.tick || self.at >= total {
            *self = Hand { level: 0, left: total, tick: wanted.tick, at: self.at % total.max(1) };
        }
        while self.level <= LEVEL_MAX {
            if wanted.levels >> self.level & 1 == 1
                && let Some(found) = self.pass(blocks, tables, wanted)
            {
                return Some(found);
            }
            (self.level, self.left) = (self.level + 1, total);
        }
        None
    }

    /// Passes what is left of the revolution, up to an OS page of this level.
    fn pass(&mut self, blocks: &mut [Block], tables: &Tables, wanted: Wanted) -> Option<usize> {
        while self.left > 0 {
            let (number, from) = (self.at / BLOCK_PAGES, self.at % BLOCK_PAGES);
            let block = &mut blocks[number];
            if block.may_have(wanted.group, wanted.node, self.level) {
                if let Some(found) = find(block, tables, wanted, self.level, from) {
                    self.advance(found - from, blocks.len());
                    return Some(number * BLOCK_PAGES + found);
                }
                let is_lone = from == 0 && !has_others(&blocks[number], wanted.group);
                if is_lone && self.left >= BLOCK_PAGES {
                    blocks[number].has_none(wanted.node, self.level);
                }
            }
            self.advance(BLOCK_PAGES - from, blocks.len());
        }
        None
    }

    /// Goes past a unit that begins at the last result and has so many OS pages.
    pub(crate) fn go_past(&mut self, pages: usize, blocks: usize) {
        self.advance(pages - self.at % pages, blocks);
    }

    fn advance(&mut self, pages: usize, blocks: usize) {
        self.at = (self.at + pages) % (blocks * BLOCK_PAGES);
        self.left = self.left.saturating_sub(pages);
    }
}

/// The first OS page from `from` on that is wanted.
fn find(block: &Block, tables: &Tables, wanted: Wanted, level: u8, from: usize) -> Option<usize> {
    for number in from / PIECE_PAGES..BLOCK_PIECES {
        let piece = &block.pieces[number];
        if piece.pid == 0 || piece.group != wanted.group {
            continue;
        }
        let plane = block.having(tables, number, wanted.node, level);
        let first = from.saturating_sub(number * PIECE_PAGES);
        if let Some(page) = planes::first_from(&plane, first) {
            return Some(number * PIECE_PAGES + page);
        }
    }
    None
}

fn has_others(block: &Block, group: GroupId) -> bool {
    block.pieces.iter().any(|piece| piece.pid != 0 && piece.group != group)
}
