//! 64 pieces, and what they have.
//! In: pieces. Out: summaries by node. Knows nothing of processes.

use super::codes::{Codes, Tables};
use super::planes::{self, ALL, History, NONE, Plane};
use super::tally::{NO_SAMPLES, Tally};
use super::{GroupId, LEVEL_MAX};

/// Pieces of a block: 128 MiB of memory, whose histories are 32 KiB.
pub(crate) const BLOCK_PIECES: usize = 64;
/// Nodes that a code can name.
pub(crate) const NODES: usize = 15;
/// The code of an OS page that is nowhere, or whose accessor is unknown.
pub(crate) const NOWHERE: u8 = 15;

/// What is known of 512 OS pages beside their histories.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// 0: the place is free.
    pub(crate) pid: u32,
    pub(crate) addr: u64,
    pub(crate) group: GroupId,
    pub(crate) of_file: bool,
    /// It is a huge OS page, which moves as a whole.
    pub(crate) is_huge: bool,
    /// The window in which it was mapped.
    pub(crate) since: u64,
    pub(crate) node: Codes,
    pub(crate) accessor: Codes,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) pieces: Box<[Piece]>,
    pub(crate) histories: Box<[History]>,
    /// Empty where samples are not counted.
    pub(crate) tallies: Box<[Tally]>,
    /// By node: the victim levels that occur there, as a set of bits; too many rather than too few.
    levels: [u16; NODES],
    /// Groups that occur, by number modulo 64.
    groups: u64,
    /// Planes that have a bit.
    used_planes: u8,
    /// Something has changed since the last summary.
    is_dirty: bool,
}

pub(crate) const FREE: Piece = Piece {
    pid: 0,
    addr: 0,
    group: GroupId(0),
    of_file: false,
    is_huge: false,
    since: 0,
    node: Codes::Same(NOWHERE),
    accessor: Codes::Same(NOWHERE),
};

impl Block {
    pub(crate) fn new(is_counted: bool) -> Block {
        let tallies = if is_counted { BLOCK_PIECES } else { 0 };
        Block {
            pieces: vec![FREE; BLOCK_PIECES].into_boxed_slice(),
            histories: vec![[NONE; LEVEL_MAX as usize]; BLOCK_PIECES].into_boxed_slice(),
            tallies: vec![NO_SAMPLES; tallies].into_boxed_slice(),
            levels: [0; NODES],
            groups: 0,
            used_planes: 0,
            is_dirty: false,
        }
    }

    /// Whether it may have a group's OS pages of a victim level on a node.
    pub(crate) fn may_have(&self, group: GroupId, node: u8, level: u8) -> bool {
        self.groups >> (group.0 % 64) & 1 == 1 && self.levels[usize::from(node)] >> level & 1 == 1
    }

    /// The victim levels on a node.
    pub(crate) fn levels(&self, node: u8) -> u16 {
        self.levels[usize::from(node)]
    }

    /// It was looked through: no OS page of any group has this level on this node.
    pub(crate) fn has_none(&mut self, node: u8, level: u8) {
        self.levels[usize::from(node)] &= !(1 << level);
    }

    /// Something of a piece has changed that may add levels.
    pub(crate) fn changed(&mut self, piece: usize, tables: &Tables) {
        let (one, history) = (&self.pieces[piece], &self.histories[piece]);
        self.is_dirty = true;
        self.used_planes = u8::MAX;
        self.groups |= 1 << (one.group.0 % 64);
        summarise(one, history, tables, &mut self.levels);
    }

    /// A unit was accessed in the window of `plane`; `page` is one of its OS pages.
    pub(crate) fn accessed(&mut self, piece: usize, tables: &Tables, page: usize, plane: usize) {
        self.is_dirty = true;
        self.used_planes |= 1 << plane;
        let one = &self.pieces[piece];
        let node = tables.get(one.node, page);
        if let Some(levels) = self.levels.get_mut(usize::from(node)) {
            *levels |= victim_levels(1 << planes::level(&self.histories[piece], page), one.of_file);
        }
    }

    /// Ends the window of this number for what is counted.
    pub(crate) fn close_tallies(&mut self, number: u64) {
        for (piece, tally) in self.pieces.iter().zip(&mut self.tallies) {
            if piece.pid != 0 {
                tally.close(number + 1 - piece.since);
            }
        }
    }

    /// Ends a window: the oldest plane becomes the open one and is cleared.
    pub(crate) fn close(&mut self, tables: &mut Tables, plane: usize, forgets: bool) {
        if forgets {
            self.pieces.iter_mut().for_each(|piece| tables.clear_high(&mut piece.accessor));
        }
        let had = self.used_planes >> plane & 1 == 1;
        if !had && !self.is_dirty {
            return;
        }
        self.is_dirty = false;
        self.levels = [0; NODES];
        self.used_planes = 0;
        for (piece, history) in self.pieces.iter_mut().zip(&mut self.histories) {
            history[plane] = NONE;
            if piece.pid == 0 {
                continue;
            }
            tables.settle(&mut piece.node);
            tables.settle(&mut piece.accessor);
            for (bit, plane) in history.iter().enumerate() {
                self.used_planes |= u8::from(!planes::is_none(plane)) << bit;
            }
            summarise(piece, history, tables, &mut self.levels);
        }
        self.groups = groups(&self.pieces);
    }

    /// The OS pages of a piece with a victim level on a node.
    pub(crate) fn having(&self, tables: &Tables, piece: usize, node: u8, level: u8) -> Plane {
        let (one, history) = (&self.pieces[piece], &self.histories[piece]);
        let here = tables.having(one.node, node);
        if planes::is_none(&here) {
            return NONE;
        }
        let levels = planes::by_level(history);
        let at = usize::from(level);
        let of_level = match (one.of_file, at) {
            (false, _) => levels[at],
            (true, 0) => planes::or(&levels[0], &levels[1]),
            (true, _) => levels.get(at + 1).copied().unwrap_or(NONE),
        };
        planes::and(&here, &of_level)
    }
}

fn groups(pieces: &[Piece]) -> u64 {
    let used = pieces.iter().filter(|piece| piece.pid != 0);
    used.fold(0, |set, piece| set | 1 << (piece.group.0 % 64))
}

/// Adds the victim levels of a piece to those of its nodes.
fn summarise(piece: &Piece, history: &History, tables: &Tables, levels: &mut [u16; NODES]) {
    let by_level = planes::by_level(history);
    let mut nodes = tables.present(piece.node) & !(1 << NOWHERE);
    while nodes != 0 {
        let node = nodes.trailing_zeros();
        nodes &= nodes - 1;
        let here = match piece.node {
            Codes::Same(_) => ALL,
            table => tables.having(table, u8::try_from(node).unwrap_or(NOWHERE)),
        };
        let mut set = 0;
        for (level, plane) in by_level.iter().enumerate() {
            set |= u16::from(!planes::is_none(&planes::and(plane, &here))) << level;
        }
        levels[node as usize] |= victim_levels(set, piece.of_file);
    }
}

/// A file counts one level less as a victim.
fn victim_levels(levels: u16, of_file: bool) -> u16 {
    if of_file { levels >> 1 | levels & 1 } else { levels }
}
