//! The ledger of OS pages.
//! In: mappings, accesses, residency, the ends of windows. Out: units in demand, victims. Knows
//! nothing of who moves them.

use std::collections::BTreeMap;

use tiercel_machine::NodeId;
use tiercel_machine::number::{index, index_u8, index_u16, index_u32};

use super::block::{BLOCK_PIECES, Block, FREE, NODES, NOWHERE, Piece};
use super::codes::{Codes, Tables};
use super::config::{ACCESSORS, Demand, RegionsConfig, RegionsError};
use super::early::Early;
use super::hand::{Hand, Wanted};
use super::planes::{self, ALL, NONE, Plane};
use super::space::{self, Area, Evidence, Space};
use super::tally::{NO_SAMPLES, Tally};
use super::unit::{Accessor, GroupId, LEVEL_MAX, Unit, UnitKey};
use super::{OS_PAGE_BYTES, PIECE_BYTES, PIECE_PAGES};

/// Pieces of all processes: 2 TiB of memory, for which the ledger takes 1.1 GB.
pub const PIECES_MAX: usize = 1 << 20;
/// Units in demand between two calls of [`Regions::take_demand`]: 8 MB.
pub const DEMAND_MAX: usize = 1 << 20;
/// The bit of an accessor's code that says that others access as well.
const SEVERAL: u8 = 8;

/// A window that ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Its number, from 1.
    pub number: u64,
    /// Units that were accessed in it.
    pub accessed: u64,
    /// Accesses to memory that is not tracked.
    pub strange: u64,
    /// Units whose demand was dropped, because there was too much.
    pub dropped: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Regions {
    pub(super) config: RegionsConfig,
    /// Code by node number.
    codes: BTreeMap<NodeId, u8>,
    pub(super) blocks: Vec<Block>,
    pub(super) tables: Tables,
    free: Vec<u32>,
    spaces: BTreeMap<u32, Space>,
    /// Levels that may occur by node: all blocks' together.
    levels: [u16; NODES],
    clocks: BTreeMap<(GroupId, u8), Hand>,
    demand: Vec<(u32, u16)>,
    /// Pieces with accesses to OS pages of which it is not known where they are.
    unlocated: Vec<u32>,
    looked_at: u32,
    /// The piece that was asked last whether it could be a huge OS page.
    pub(super) collapsed: u32,
    tick: u64,
    window: Window,
}

impl Regions {
    /// Empty.
    pub fn new(config: RegionsConfig) -> Result<Regions, RegionsError> {
        if !(1..=LEVEL_MAX).contains(&config.history) {
            return Err(RegionsError::History(config.history));
        }
        let few = |what, count, limit| {
            if count <= limit { Ok(()) } else { Err(RegionsError::Nodes { what, count, limit }) }
        };
        few("nodes with memory", config.nodes.len(), NODES)?;
        few("nodes with CPUs", config.views.len(), ACCESSORS)?;
        let codes = config.nodes.iter().enumerate().map(|(at, node)| (*node, index_u8(at)));
        Ok(Regions {
            codes: codes.collect(),
            config,
            blocks: Vec::new(),
            tables: Tables::default(),
            free: Vec::new(),
            spaces: BTreeMap::new(),
            levels: [0; NODES],
            clocks: BTreeMap::new(),
            demand: Vec::new(),
            unlocated: Vec::new(),
            looked_at: 0,
            collapsed: 0,
            tick: 1,
            window: Window { number: 1, ..Window::default() },
        })
    }

    /// Sets what is mapped of a process, in a group: ascending, apart. What is new counts as
    /// accessed in all windows when it is first located. Returns how many pieces found no place.
    pub fn set_mappings(&mut self, pid: u32, group: GroupId, areas: &[Area]) -> usize {
        let wanted = space::numbers(areas);
        let mut space = self.spaces.remove(&pid).unwrap_or_default();
        let mut kept = Vec::with_capacity(wanted.len());
        let mut old = std::mem::take(&mut space.pieces).into_iter().peekable();
        let mut refused = 0;
        for (number, of_file) in wanted {
            while let Some((_, id)) = old.next_if(|(other, _)| *other < number) {
                self.release(id);
            }
            let known = old.next_if(|(other, _)| *other == number).map(|(_, id)| id);
            let Some(id) = known.or_else(|| self.allocate(pid, number * PIECE_BYTES, group)) else {
                refused += 1;
                continue;
            };
            if known.is_some() {
                self.unmap(id, areas);
            }
            self.regroup(id, group, of_file);
            kept.push((number, id));
        }
        old.for_each(|(_, id)| self.release(id));
        (space.group, space.areas, space.pieces) = (group, areas.to_vec(), kept);
        self.spaces.insert(pid, space);
        refused
    }

    /// A process is gone.
    pub fn gone(&mut self, pid: u32) {
        let space = self.spaces.remove(&pid).unwrap_or_default();
        space.pieces.iter().for_each(|(_, id)| self.release(*id));
    }

    /// Bytes that are mapped.
    pub fn mapped_bytes(&self) -> u64 {
        let areas = self.spaces.values().flat_map(|space| &space.areas);
        areas.map(|area| area.end - area.start).sum()
    }

    /// Processes that have mappings here.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.spaces.keys().copied()
    }

    /// Whether a process has an address mapped, as far as mappings were set.
    pub fn is_mapped(&self, (pid, addr): UnitKey) -> bool {
        self.spaces.get(&pid).is_some_and(|space| space.has(addr))
    }

    /// An access was seen, from a node's CPUs where that is known.
    pub fn touch(&mut self, pid: u32, addr: u64, from: Option<NodeId>) {
        let (open, last) = self.open_planes();
        let known = self.spaces.get_mut(&pid).filter(|space| space.has(addr));
        let Some((space, id)) = known.and_then(|space| space.find(addr).map(|id| (space, id)))
        else {
            self.window.strange += 1;
            return;
        };
        let pages = space.unit_pages();
        let (block, at) = place(id);
        let pages = if self.blocks[block].pieces[at].is_huge { PIECE_PAGES } else { pages };
        let exact = index(addr % PIECE_BYTES / OS_PAGE_BYTES);
        let page = exact / pages * pages;
        let block = &mut self.blocks[block];
        if let Some(tally) = block.tallies.get_mut(at) {
            tally.count(exact);
        }
        let history = &mut block.histories[at];
        let is_first = !planes::has(&history[open], page);
        let was = planes::has(&history[last], page) && last != open;
        let asks = match self.config.demand {
            Demand::Running => was,
            Demand::Repeated => planes::level(history, page) > 0,
        };
        space.sampled(is_first);
        self.window.accessed += u64::from(is_first);
        if is_first {
            history[open] = planes::or(&history[open], &planes::run(page, pages));
            block.accessed(at, &self.tables, page, open);
        }
        let node = self.tables.get(block.pieces[at].node, page);
        let is_same = self.note_accessor(id, page, pages, from, was || !is_first);
        if node == NOWHERE {
            self.unlocated.push(id);
        } else if is_first && asks && is_same && !self.is_settled(id, page) {
            self.demanded(id, page);
        }
        if let Some(levels) = self.levels.get_mut(usize::from(node)) {
            *levels |= self.blocks[place(id).0].levels(node);
        }
    }

    /// Where OS pages of a process are, from `addr` on, one after another; `None`: nowhere.
    pub fn set_residency(&mut self, pid: u32, addr: u64, nodes: &[Option<NodeId>]) {
        let (mut addr, mut nodes) = (addr, nodes);
        while !nodes.is_empty() {
            let first = index(addr % PIECE_BYTES / OS_PAGE_BYTES);
            let (these, rest) = nodes.split_at(nodes.len().min(PIECE_PAGES - first));
            if let Some(id) = self.piece_at(pid, addr) {
                self.locate_in(id, first, these);
            }
            (addr, nodes) = (addr + these.len() as u64 * OS_PAGE_BYTES, rest);
        }
    }

    /// Ends a window. Where accesses of a window were lost it must not end yet: it is then longer,
    /// and nothing counts as cold for it.
    pub fn close_window(&mut self) -> Window {
        let evidence = self.config.evidence;
        let closed = self.spaces.iter_mut().map(|(pid, space)| (*pid, space.close(evidence)));
        let grown: Vec<u32> = closed.filter(|(_, grew)| *grew).map(|(pid, _)| pid).collect();
        grown.into_iter().for_each(|pid| self.spread(pid));
        let ended = self.window;
        self.window = Window { number: ended.number + 1, ..Window::default() };
        let (open, _) = self.open_planes();
        let turn = index(ended.number) % usize::from(LEVEL_MAX);
        self.levels = [0; NODES];
        for (number, block) in self.blocks.iter_mut().enumerate() {
            block.close_tallies(ended.number);
            // A mark of several accessors lasts for up to a history.
            block.close(&mut self.tables, open, number % usize::from(LEVEL_MAX) == turn);
            for (node, levels) in self.levels.iter_mut().enumerate() {
                *levels |= block.levels(index_u8(node));
            }
        }
        ended
    }

    /// The number of the open window.
    pub fn window(&self) -> u64 {
        self.window.number
    }

    /// Begins a tick: victims can be returned anew. Returns the units that were accessed in two
    /// windows running by the same accessor and are not where they should be.
    pub fn take_demand(&mut self) -> Vec<Unit> {
        self.tick += 1;
        let mut demand = std::mem::take(&mut self.demand);
        demand.sort_unstable();
        demand.dedup();
        let is_live = |(id, page): &(u32, u16)| {
            let (block, at) = place(*id);
            let piece = &self.blocks[block].pieces[at];
            piece.pid != 0 && self.tables.get(piece.node, usize::from(*page)) != NOWHERE
        };
        let live = demand.into_iter().filter(is_live);
        live.map(|(id, page)| self.unit(id, usize::from(page))).collect()
    }

    /// A unit of a group on a node with the lowest victim level, each once in a tick.
    pub fn next_victim(&mut self, group: GroupId, node: NodeId) -> Option<Unit> {
        let code = *self.codes.get(&node)?;
        let (levels, tick) = (self.levels[usize::from(code)], self.tick);
        let wanted = Wanted { group, node: code, levels, tick };
        let blocks = self.blocks.len();
        if blocks == 0 {
            return None;
        }
        let hand = self.clocks.entry((group, code)).or_default();
        let found = hand.next(&mut self.blocks, &self.tables, wanted)?;
        let (id, page) = (index_u32(found / PIECE_PAGES), found % PIECE_PAGES);
        let unit = self.unit(id, page);
        let hand = self.clocks.entry((group, code)).or_default();
        hand.go_past(index(unit.bytes / OS_PAGE_BYTES), blocks);
        Some(unit)
    }

    /// The unit that has an address.
    pub fn find(&self, (pid, addr): UnitKey) -> Option<Unit> {
        let space = self.spaces.get(&pid).filter(|space| space.has(addr))?;
        let id = space.find(addr)?;
        let page = index(addr % PIECE_BYTES / OS_PAGE_BYTES);
        let (block, at) = place(id);
        let is_somewhere = self.tables.get(self.blocks[block].pieces[at].node, page) != NOWHERE;
        is_somewhere.then(|| self.unit(id, page))
    }

    /// Ranges whose residency should be looked up next, `pages` OS pages or a few more: first those
    /// that were accessed at unknown places, then all in turns. Process, first byte, OS pages.
    pub fn to_locate(&mut self, pages: usize) -> Vec<(u32, u64, usize)> {
        let mut ranges = Vec::new();
        let mut left = pages;
        self.unlocated.sort_unstable();
        self.unlocated.dedup();
        while left > 0
            && let Some(id) = self.unlocated.pop()
        {
            left = left.saturating_sub(self.ranges_of(id, &mut ranges));
        }
        let pieces = index_u32(self.blocks.len() * BLOCK_PIECES);
        for _ in 0..pieces {
            if left == 0 {
                break;
            }
            self.looked_at = (self.looked_at + 1) % pieces;
            left = left.saturating_sub(self.ranges_of(self.looked_at, &mut ranges));
        }
        ranges
    }

    /// OS pages of each level on a node.
    pub fn counts(&self, node: NodeId) -> [u64; LEVEL_MAX as usize + 1] {
        let mut counts = [0; LEVEL_MAX as usize + 1];
        let Some(code) = self.codes.get(&node) else { return counts };
        for block in &self.blocks {
            for (piece, history) in block.pieces.iter().zip(&block.histories) {
                let here = self.tables.having(piece.node, *code);
                for (count, plane) in counts.iter_mut().zip(&planes::by_level(history)) {
                    *count += u64::from(planes::count(&planes::and(plane, &here)));
                }
            }
        }
        counts
    }

    /// OS pages that each group has on some nodes.
    pub fn held(&self, is_meant: impl Fn(NodeId) -> bool) -> BTreeMap<GroupId, u64> {
        let meant = self.codes.iter().filter(|(node, _)| is_meant(**node));
        let meant: Vec<u8> = meant.map(|(_, code)| *code).collect();
        let mut held = BTreeMap::new();
        let pieces = self.blocks.iter().flat_map(|block| &block.pieces);
        for piece in pieces.filter(|piece| piece.pid != 0) {
            let on = |code: &u8| u64::from(planes::count(&self.tables.having(piece.node, *code)));
            *held.entry(piece.group).or_default() += meant.iter().map(on).sum::<u64>();
        }
        held
    }

    /// Bytes that the ledger takes.
    pub fn bytes(&self) -> usize {
        let tally = size_of::<Tally>() * usize::from(self.config.evidence == Evidence::Sampled);
        let of_piece = size_of::<Piece>() + size_of::<planes::History>() + tally;
        let block = size_of::<Block>() + BLOCK_PIECES * of_piece;
        let of_spaces = |space: &Space| {
            space.pieces.capacity() * size_of::<(u64, u32)>()
                + space.areas.capacity() * size_of::<Area>()
        };
        self.blocks.len() * block
            + self.tables.bytes()
            + self.free.capacity() * size_of::<u32>()
            + self.demand.capacity() * size_of::<(u32, u16)>()
            + self.unlocated.capacity() * size_of::<u32>()
            + self.spaces.values().map(of_spaces).sum::<usize>()
    }

    /// The planes of the open window and of the one before.
    fn open_planes(&self) -> (usize, usize) {
        let history = u64::from(self.config.history);
        let number = self.window.number;
        (index(number % history), index((number + history - 1) % history))
    }

    fn allocate(&mut self, pid: u32, addr: u64, group: GroupId) -> Option<u32> {
        if self.free.is_empty() {
            let first = self.blocks.len() * BLOCK_PIECES;
            if first >= PIECES_MAX {
                return None;
            }
            self.blocks.push(Block::new(self.config.evidence == Evidence::Sampled));
            self.free.extend((first..first + BLOCK_PIECES).rev().map(index_u32));
        }
        let id = self.free.pop()?;
        let (block, at) = place(id);
        let since = self.window.number;
        self.blocks[block].pieces[at] = Piece { pid, addr, group, since, ..FREE };
        self.blocks[block].histories[at] = [NONE; LEVEL_MAX as usize];
        if let Some(tally) = self.blocks[block].tallies.get_mut(at) {
            *tally = NO_SAMPLES;
        }
        Some(id)
    }

    fn release(&mut self, id: u32) {
        let (block, at) = place(id);
        let piece = std::mem::replace(&mut self.blocks[block].pieces[at], FREE);
        self.tables.release(piece.node);
        self.tables.release(piece.accessor);
        self.blocks[block].histories[at] = [NONE; LEVEL_MAX as usize];
        self.free.push(id);
    }

    fn regroup(&mut self, id: u32, group: GroupId, of_file: bool) {
        let (block, at) = place(id);
        let piece = &mut self.blocks[block].pieces[at];
        if (piece.group, piece.of_file) != (group, of_file) {
            (piece.group, piece.of_file) = (group, of_file);
            self.summarise(id);
        }
    }

    /// What is not in any area is nowhere.
    fn unmap(&mut self, id: u32, areas: &[Area]) {
        let (block, at) = place(id);
        let piece = &mut self.blocks[block].pieces[at];
        let mut mapped = NONE;
        for (start, pages) in space::clip(areas, piece.addr) {
            let first = index((start - piece.addr) / OS_PAGE_BYTES);
            mapped = planes::or(&mapped, &planes::between(first, first + pages));
        }
        let gone = planes::without(&ALL, &mapped);
        if !planes::is_none(&gone) {
            self.tables.set(&mut piece.node, &gone, NOWHERE);
        }
    }

    /// Where OS pages of a piece are, from `first` on.
    fn locate_in(&mut self, id: u32, first: usize, nodes: &[Option<NodeId>]) {
        let mut planes = [NONE; NODES + 1];
        let mut page = first;
        for run in nodes.chunk_by(|a, b| a == b) {
            let code = run[0].and_then(|node| self.codes.get(&node).copied()).unwrap_or(NOWHERE);
            let plane = &mut planes[usize::from(code)];
            *plane = planes::or(plane, &planes::between(page, page + run.len()));
            page += run.len();
        }
        for (code, plane) in planes.iter().enumerate() {
            if !planes::is_none(plane) {
                self.set_piece(id, plane, index_u8(code));
            }
        }
        self.summarise(id);
    }

    /// These OS pages of a piece are on a node. Those that were nowhere are new.
    fn set_piece(&mut self, id: u32, pages: &Plane, code: u8) {
        let (block, at) = place(id);
        let Block { pieces, histories, .. } = &mut self.blocks[block];
        let unknown = self.tables.having(pieces[at].node, NOWHERE);
        let new = planes::and(pages, &unknown);
        self.tables.set(&mut pieces[at].node, pages, code);
        if code != NOWHERE && !planes::is_none(&new) {
            let new = planes::spread(&new, unit_pages(&self.spaces, &pieces[at]));
            for plane in &mut histories[at][..usize::from(self.config.history)] {
                *plane = planes::or(plane, &new);
            }
        }
    }

    fn summarise(&mut self, id: u32) {
        let (block, at) = place(id);
        self.blocks[block].changed(at, &self.tables);
        for (node, levels) in self.levels.iter_mut().enumerate() {
            *levels |= self.blocks[block].levels(index_u8(node));
        }
    }

    /// Units of a process have grown: their OS pages get one history.
    fn spread(&mut self, pid: u32) {
        let Some(space) = self.spaces.get(&pid) else { return };
        let pages = space.unit_pages();
        let ids: Vec<u32> = space.pieces.iter().map(|(_, id)| *id).collect();
        ids.into_iter().for_each(|id| self.spread_piece(id, pages));
    }

    pub(super) fn spread_piece(&mut self, id: u32, pages: usize) {
        let (block, at) = place(id);
        for plane in &mut self.blocks[block].histories[at] {
            *plane = planes::spread(plane, pages);
        }
        self.summarise(id);
    }

    /// The pieces of a process: numbers and places.
    pub(super) fn pieces_of(&self, pid: u32) -> Vec<(u64, u32)> {
        self.spaces.get(&pid).map_or(Vec::new(), |space| space.pieces.clone())
    }

    /// OS pages of a process's units that are no huge ones.
    pub(super) fn small_unit_pages(&self, pid: u32) -> usize {
        self.spaces.get(&pid).map_or(1, Space::unit_pages)
    }

    /// The piece of a process that has an address.
    pub(super) fn piece_at(&self, pid: u32, addr: u64) -> Option<u32> {
        self.spaces.get(&pid).and_then(|space| space.find(addr))
    }

    /// Notes the accessor of a unit; whether it is the same as last time. `is_recent`: it was
    /// accessed in this window or the last one.
    fn note_accessor(
        &mut self,
        id: u32,
        page: usize,
        pages: usize,
        from: Option<NodeId>,
        is_recent: bool,
    ) -> bool {
        let number = |node| self.config.views.iter().position(|view| view.node == node);
        let Some(number) = from.and_then(number).map(index_u8) else { return true };
        let (block, at) = place(id);
        let codes = &mut self.blocks[block].pieces[at].accessor;
        let known = self.tables.get(*codes, page);
        let is_known = known != NOWHERE;
        let is_same = is_known && known & !SEVERAL == number;
        if !is_same {
            let mark = if is_known && is_recent { SEVERAL } else { 0 };
            self.tables.set(codes, &planes::run(page, pages), number | mark);
        }
        is_same
    }

    /// Whether a unit is where its accessors want it.
    fn is_settled(&self, id: u32, page: usize) -> bool {
        let unit = self.unit(id, page);
        let best = match unit.accessor {
            Accessor::Node(node) => self.config.views.iter().find(|view| view.node == node),
            _ => None,
        };
        best.map_or(&self.config.fast, |view| &view.best).contains(&unit.node)
    }

    fn demanded(&mut self, id: u32, page: usize) {
        if self.demand.len() < DEMAND_MAX {
            self.demand.push((id, index_u16(page)));
        } else {
            self.window.dropped += 1;
        }
    }

    /// The unit that has an OS page, which is somewhere.
    pub(super) fn unit(&self, id: u32, page: usize) -> Unit {
        let (block, at) = place(id);
        let block = &self.blocks[block];
        let piece = &block.pieces[at];
        let pages = unit_pages(&self.spaces, piece);
        let first = page / pages * pages;
        let level = planes::level(&block.histories[at], page);
        Unit {
            pid: piece.pid,
            addr: piece.addr + first as u64 * OS_PAGE_BYTES,
            bytes: pages as u64 * OS_PAGE_BYTES,
            group: piece.group,
            node: self.node_of(piece.node, page, first, pages),
            level,
            early: Early::of(piece.since, self.window.number, self.config.history, level),
            samples: block.tallies.get(at).map(|tally| tally.mean(first, pages)),
            accessor: self.accessor(self.tables.get(piece.accessor, page)),
            of_file: piece.of_file,
        }
    }

    /// The node with most of a unit; of equals the one with the lowest number.
    fn node_of(&self, codes: Codes, page: usize, first: usize, pages: usize) -> NodeId {
        if pages == 1 || matches!(codes, Codes::Same(_)) {
            return self.node(self.tables.get(codes, page));
        }
        let run = planes::run(first, pages);
        let on = |code: &u8| planes::count(&planes::and(&self.tables.having(codes, *code), &run));
        let all = 0..index_u8(self.config.nodes.len());
        let most = all.max_by_key(|code| (on(code), std::cmp::Reverse(*code)));
        self.node(most.unwrap_or(0))
    }

    fn node(&self, code: u8) -> NodeId {
        self.config.nodes.get(usize::from(code)).copied().unwrap_or(self.config.nodes[0])
    }

    fn accessor(&self, code: u8) -> Accessor {
        match code {
            NOWHERE => Accessor::Unknown,
            code if code & SEVERAL != 0 => Accessor::Several,
            code => Accessor::Node(self.config.views[usize::from(code)].node),
        }
    }

    /// Adds what is mapped of a piece; returns how many OS pages.
    fn ranges_of(&self, id: u32, ranges: &mut Vec<(u32, u64, usize)>) -> usize {
        let (block, at) = place(id);
        let Piece { pid, addr, .. } = self.blocks[block].pieces[at];
        let Some(space) = self.spaces.get(&pid) else { return 0 };
        let before = ranges.len();
        ranges.extend(space::clip(&space.areas, addr).map(|(start, pages)| (pid, start, pages)));
        ranges[before..].iter().map(|(_, _, pages)| pages).sum()
    }
}

/// OS pages of each unit of a piece.
fn unit_pages(spaces: &BTreeMap<u32, Space>, piece: &Piece) -> usize {
    let of_space = || spaces.get(&piece.pid).map_or(1, Space::unit_pages);
    if piece.is_huge { PIECE_PAGES } else { of_space() }
}

/// Block and place in it.
pub(super) fn place(id: u32) -> (usize, usize) {
    (id as usize / BLOCK_PIECES, id as usize % BLOCK_PIECES)
}

#[cfg(test)]
mod tests {
    use super::super::config::View;
    use super::*;

    #[test]
    fn what_it_cannot_describe_is_refused() {
        let nodes = |count| (0..count).map(NodeId).collect::<Vec<_>>();
        let config = RegionsConfig { history: 8, nodes: nodes(4), ..RegionsConfig::default() };
        assert!(Regions::new(config.clone()).is_ok());
        let none = RegionsConfig { history: 0, ..config.clone() };
        assert_eq!(Regions::new(none).err(), Some(RegionsError::History(0)));
        assert!(Regions::new(RegionsConfig { nodes: nodes(16), ..config.clone() }).is_err());
        let views = nodes(8).into_iter().map(|node| View { node, best: vec![node] }).collect();
        assert!(Regions::new(RegionsConfig { views, ..config }).is_err());
    }
}
