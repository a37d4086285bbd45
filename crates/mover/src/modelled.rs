//! A mover for machines with one kind of memory: it accounts for moves and copies nothing.
//! In: births, deaths, moves. Out: the outcomes a machine with these nodes would have given.
//! Knows nothing of the kernel: what was never touched counts as present, nothing is ever busy.

use std::collections::BTreeMap;
use tiercel_machine::number::saturating_u64;

use tiercel_ledger::movement::{Failure, Move, Outcome};
use tiercel_machine::{Machine, NodeId};

use crate::{Mover, Range, Residency, ResidencyError};

/// Most intervals that are kept, about 64 bytes each, so half a gibibyte. Neighbours on the same
/// node are one interval; beyond the limit a birth or a move is dropped and counted in
/// [`ModelledMover::uncounted`].
pub const MAX_INTERVALS: usize = 8 << 20;

/// What the kernel spends per OS page beside copying, nanoseconds: `move_pages` took 2.4 to 4.5 us
/// an OS page in a guest with several nodes, less 4 KiB at 10 GB/s.
const OVERHEAD_NS_PER_OS_PAGE: f64 = 2000.0;
/// Bytes of an OS page for that overhead. The modelled machine is x86-64's.
const OS_PAGE_BYTES: u64 = 4096;
/// Copying speed where the machine gives no figure, GB/s (bytes per nanosecond).
const DEFAULT_GB_S: f64 = 10.0;

/// Keeps which range is on which node of the modelled machine.
#[derive(Debug)]
pub struct ModelledMover {
    machine: Machine,
    /// Nodes in order of first touch, and how much of each first touch may fill, bytes.
    first_touch: Vec<(NodeId, u64)>,
    ranges_of: BTreeMap<u32, Ranges>,
    used: BTreeMap<NodeId, u64>,
    intervals: usize,
    max_intervals: usize,
    uncounted: u64,
}

/// Disjoint intervals of one process: start -> (end, node). Touching neighbours differ in node.
type Ranges = BTreeMap<u64, (u64, NodeId)>;

impl ModelledMover {
    /// Accounts for `machine`. Objects without an arena go to the first node of `first_touch` that
    /// still has room within its bytes (and its capacity), the last one taking what is left over.
    pub fn new(machine: Machine, first_touch: Vec<(NodeId, u64)>) -> ModelledMover {
        assert!(!first_touch.is_empty(), "objects must be born somewhere");
        ModelledMover {
            machine,
            first_touch,
            ranges_of: BTreeMap::new(),
            used: BTreeMap::new(),
            intervals: 0,
            max_intervals: MAX_INTERVALS,
            uncounted: 0,
        }
    }

    /// Bytes on a node of the modelled machine.
    pub fn used_bytes(&self, node: NodeId) -> u64 {
        self.used.get(&node).copied().unwrap_or(0)
    }

    /// Births and moves that were dropped at [`MAX_INTERVALS`].
    pub fn uncounted(&self) -> u64 {
        self.uncounted
    }

    /// Where first touch puts so many bytes.
    fn first_fit(&self, bytes: u64) -> NodeId {
        let fits = |(node, limit): &&(NodeId, u64)| {
            let room = (*limit).min(self.capacity_bytes(*node));
            self.used_bytes(*node).saturating_add(bytes) <= room
        };
        let last = self.first_touch[self.first_touch.len() - 1];
        self.first_touch.iter().find(fits).unwrap_or(&last).0
    }

    fn capacity_bytes(&self, node: NodeId) -> u64 {
        self.machine.node(node).map_or(0, |node| node.capacity_bytes)
    }

    /// Pieces of `range` with their node, and gaps with `None`, in order, covering it exactly.
    fn pieces(&self, pid: u32, range: Range) -> Vec<(Range, Option<NodeId>)> {
        let end = range.addr.saturating_add(range.bytes);
        let mut pieces = Vec::new();
        let mut at = range.addr;
        let piece = |from: u64, to: u64| Range { addr: from, bytes: to - from };
        for (start, (stop, node)) in
            self.ranges_of.get(&pid).into_iter().flat_map(|r| overlap(r, range))
        {
            let (start, stop) = (start.max(range.addr), stop.min(end));
            if start > at {
                pieces.push((piece(at, start), None));
            }
            pieces.push((piece(start, stop), Some(node)));
            at = stop;
        }
        if at < end {
            pieces.push((piece(at, end), None));
        }
        pieces
    }

    /// Forgets `range`.
    fn erase(&mut self, pid: u32, range: Range) {
        let Some(ranges) = self.ranges_of.get_mut(&pid) else { return };
        let end = range.addr.saturating_add(range.bytes);
        let hit: Vec<_> = overlap(ranges, range).collect();
        for (start, (stop, node)) in hit {
            ranges.remove(&start);
            self.intervals -= 1;
            for (start, stop) in [(start, stop.min(range.addr)), (start.max(end), stop)] {
                if start < stop {
                    ranges.insert(start, (stop, node));
                    self.intervals += 1;
                }
            }
            let gone = stop.min(end) - start.max(range.addr);
            *self.used.entry(node).or_default() -= gone;
        }
        if ranges.is_empty() {
            self.ranges_of.remove(&pid);
        }
    }

    /// Records that `range` is on `node`, whatever was there before. False when the intervals are
    /// full.
    fn write(&mut self, pid: u32, range: Range, node: NodeId) -> bool {
        if range.bytes == 0 {
            return true;
        }
        if self.intervals + 2 > self.max_intervals {
            self.uncounted += 1;
            return false;
        }
        self.erase(pid, range);
        *self.used.entry(node).or_default() += range.bytes;
        let ranges = self.ranges_of.entry(pid).or_default();
        let (mut start, mut stop) = (range.addr, range.addr.saturating_add(range.bytes));
        if let Some((&left, &(end, its))) = ranges.range(..start).next_back()
            && (end, its) == (start, node)
        {
            ranges.remove(&left);
            self.intervals -= 1;
            start = left;
        }
        if let Some(&(end, its)) = ranges.get(&stop)
            && its == node
        {
            ranges.remove(&stop);
            self.intervals -= 1;
            stop = end;
        }
        ranges.insert(start, (stop, node));
        self.intervals += 1;
        true
    }

    fn execute_one(&mut self, asked: &Move) -> Outcome {
        let mut outcome = Outcome::of(asked.clone());
        if self.machine.node(asked.to).is_none() {
            outcome.failed.push((Failure::NoNode, asked.bytes));
            return outcome;
        }
        let mut failed = BTreeMap::<Failure, u64>::new();
        let mut took_ns = 0.0;
        for (piece, node) in self.pieces(asked.pid, Range::of(asked)) {
            let node = node.unwrap_or_else(|| {
                let node = self.first_fit(piece.bytes);
                self.write(asked.pid, piece, node);
                node
            });
            let room = self.capacity_bytes(asked.to).saturating_sub(self.used_bytes(asked.to));
            if node == asked.to {
                outcome.resident_bytes += piece.bytes;
            } else if piece.bytes > room {
                *failed.entry(Failure::NoMemory).or_default() += piece.bytes;
            } else if self.write(asked.pid, piece, asked.to) {
                outcome.moved_bytes += piece.bytes;
                outcome.resident_bytes += piece.bytes;
                took_ns += self.cost_ns(node, asked.to, piece.bytes);
            } else {
                *failed.entry(Failure::Other).or_default() += piece.bytes;
            }
        }
        outcome.failed = failed.into_iter().collect();
        outcome.failed.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        outcome.took_ns = saturating_u64(took_ns);
        outcome
    }

    /// Bytes over the slower of reading there and writing here, plus the kernel's work per OS page.
    fn cost_ns(&self, from: NodeId, to: NodeId, bytes: u64) -> f64 {
        let read = self.machine.node(from).and_then(|node| node.figures.read_gb_s);
        let to = self.machine.node(to).map(|node| node.figures).unwrap_or_default();
        let write = to.write_gb_s.or(to.read_gb_s);
        let gb_s = read.unwrap_or(DEFAULT_GB_S).min(write.unwrap_or(DEFAULT_GB_S));
        bytes as f64 / gb_s + bytes.div_ceil(OS_PAGE_BYTES) as f64 * OVERHEAD_NS_PER_OS_PAGE
    }
}

impl Mover for ModelledMover {
    fn execute(&mut self, moves: &[Move]) -> Vec<Outcome> {
        moves.iter().map(|asked| self.execute_one(asked)).collect()
    }

    fn residency(&mut self, pid: u32, ranges: &[Range]) -> Vec<Result<Residency, ResidencyError>> {
        ranges.iter().map(|&range| Ok(self.residency_of(pid, range))).collect()
    }

    fn is_modelled(&self) -> bool {
        true
    }

    fn note(&self) -> String {
        format!(
            "this machine has one memory tier, so nothing gets faster; placements, bytes and times \
             are those of the modelled machine {}",
            self.machine.name
        )
    }

    fn born(&mut self, pid: u32, range: Range, node: Option<NodeId>) {
        let node = node.unwrap_or_else(|| self.first_fit(range.bytes));
        self.write(pid, range, node);
    }

    fn died(&mut self, pid: u32, range: Range) {
        self.erase(pid, range);
    }

    fn gone(&mut self, pid: u32) {
        let ranges = self.ranges_of.remove(&pid).unwrap_or_default();
        self.intervals -= ranges.len();
        for (start, (stop, node)) in ranges {
            *self.used.entry(node).or_default() -= stop - start;
        }
    }
}

impl ModelledMover {
    fn residency_of(&self, pid: u32, range: Range) -> Residency {
        let mut nodes = BTreeMap::<NodeId, u64>::new();
        let mut absent_bytes = 0;
        for (piece, node) in self.pieces(pid, range) {
            match node {
                Some(node) => *nodes.entry(node).or_default() += piece.bytes,
                None => absent_bytes += piece.bytes,
            }
        }
        Residency { nodes: nodes.into_iter().collect(), absent_bytes, queried_bytes: range.bytes }
    }
}

/// The intervals that share a byte with `range`, ascending.
fn overlap(ranges: &Ranges, range: Range) -> impl Iterator<Item = (u64, (u64, NodeId))> + '_ {
    let end = range.addr.saturating_add(range.bytes);
    let before =
        ranges.range(..range.addr).next_back().filter(move |(_, (stop, _))| *stop > range.addr);
    let inside = ranges.range(range.addr..end);
    before.into_iter().chain(inside).map(|(start, interval)| (*start, *interval))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn births_beyond_the_limit_are_dropped_and_counted() {
        let machine = Machine::builtin("spr-cxl").unwrap().unwrap();
        let mut mover = ModelledMover::new(machine, vec![(NodeId(0), 1 << 30)]);
        mover.max_intervals = 4;
        for index in 0..5 {
            mover.born(1, Range { addr: index * 8192, bytes: 4096 }, Some(NodeId(0)));
        }
        assert_eq!((mover.uncounted(), mover.used_bytes(NodeId(0))), (2, 3 * 4096));
        mover.gone(1);
        mover.born(1, Range { addr: 0, bytes: 4096 }, None);
        assert_eq!((mover.uncounted(), mover.intervals), (2, 1), "room again");
    }
}
