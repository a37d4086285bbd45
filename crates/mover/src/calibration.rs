//! What moving and streaming cost here, measured before a program runs.
//! In: a mover, a machine. Out: [`Speeds`]. Knows nothing of programs, or of what figures are for.
//!
//! A block of our own memory goes from the fastest node to each other tier's first node and back;
//! on each it is read and changed from end to end, and line by line in no order. A thread gets
//! what it gets at this moment: the share of the machine that others leave.

use std::hint::black_box;
use std::time::{Duration, Instant};

use tiercel_ledger::movement::{Move, Reason};
use tiercel_machine::{CopySpeed, Machine, NodeId, Speeds, StreamSpeed};

use crate::Mover;

/// Bytes of the block: twice the lab's last cache, so that a second turn finds nothing of the first
/// in it. Where caches are larger streams look faster than memory is, which plans do not believe.
const BLOCK_BYTES: usize = 8 << 20;

/// Alignment of the block, bytes: the largest OS page there is, but huge ones.
const ALIGNMENT: usize = 64 << 10;

/// No measurement begins after this: a program waits to be started. Chosen, not measured.
const TIME_MAX: Duration = Duration::from_secs(1);

/// Share of a block that must have moved for its time to be used, percent. Chosen, not measured.
const MOVED_MIN: usize = 95;

/// Measures what one thread gets of the machine's tiers. Empty with one tier, or with a modelled
/// mover.
pub fn measure(mover: &mut dyn Mover, machine: &Machine) -> Speeds {
    let tiers = machine.tiers();
    let mut nodes = tiers.iter().filter_map(|tier| tier.nodes.first().copied());
    let mut speeds = Speeds::default();
    let (Some(fastest), false) = (nodes.next(), mover.is_modelled()) else { return speeds };
    let (began, mut block) = (Instant::now(), None);
    for node in nodes.take_while(|_| began.elapsed() < TIME_MAX) {
        let block = block.get_or_insert_with(Block::new);
        if block.go(mover, fastest).is_none() {
            break;
        }
        if speeds.streams.is_empty() {
            speeds.streams.push(block.stream(fastest));
        }
        let there = block.go(mover, node);
        if there.is_some() {
            speeds.streams.push(block.stream(node));
        }
        let back = there.and_then(|_| block.go(mover, fastest));
        let ways = [(fastest, node, there), (node, fastest, back)];
        let known = ways.into_iter().filter_map(|(from, to, ns)| {
            let ns_per_byte = ns.filter(|ns| *ns > 0.0)?;
            Some(CopySpeed { from, to, ns_per_byte })
        });
        speeds.moves.extend(known);
    }
    speeds
}

/// Memory that was touched, and the aligned part of it that moves.
struct Block {
    memory: Vec<u64>,
    first: usize,
}

const WORD_BYTES: usize = size_of::<u64>();
/// Words of a cache line, 64 bytes.
const LINE_WORDS: usize = 64 / WORD_BYTES;
/// Lines that lie together in a block of memories that have such: Optane's of 256 bytes.
const PER_GROUP: usize = 4;
/// Such groups in the block.
const GROUPS: usize = WORDS / LINE_WORDS / PER_GROUP;
/// 2^64 over the golden ratio, odd: neighbours come far apart.
const SPREAD: usize = 0x9E37_79B9_7F4A_7C15;
const WORDS: usize = BLOCK_BYTES / WORD_BYTES;

impl Block {
    fn new() -> Block {
        // Not zeros: those the kernel would not back with memory before they are written.
        let memory = vec![1u64; WORDS + ALIGNMENT / WORD_BYTES];
        let addr = memory.as_ptr() as usize;
        let first = (addr.next_multiple_of(ALIGNMENT) - addr) / WORD_BYTES;
        Block { memory, first }
    }

    fn words(&mut self) -> &mut [u64] {
        &mut self.memory[self.first..][..WORDS]
    }

    /// Nanoseconds a byte took to move; `None` where the block is not there now.
    fn go(&mut self, mover: &mut dyn Mover, to: NodeId) -> Option<f64> {
        let asked = Move {
            pid: std::process::id(),
            addr: self.words().as_ptr() as u64,
            bytes: BLOCK_BYTES as u64,
            from: None,
            to,
            reason: Reason::Asked,
            gain_ns_per_s: 0.0,
            cost_ns: 0.0,
        };
        let outcomes = mover.execute(&[asked]);
        let outcome = outcomes.first()?;
        if outcome.resident_bytes < (BLOCK_BYTES * MOVED_MIN / 100) as u64 {
            return None;
        }
        Some(outcome.took_ns as f64 / outcome.moved_bytes.max(1) as f64)
    }

    /// Reading comes before changing, which leaves lines in the caches that must go back first; and
    /// at the end, lest the next move pays for them. Of two turns each the second one counts: the
    /// first leaves nothing of what was before in caches that the block is twice as large as.
    /// (Lines of one number in their groups may have but a part of a cache to themselves, so that
    /// turns over others do not push them out.)
    fn stream(&mut self, node: NodeId) -> StreamSpeed {
        let words = self.words();
        let read = |words: &[u64]| {
            black_box(words.iter().fold(0u64, |sum, word| sum.wrapping_add(*word)));
        };
        let read_ns_per_byte = second(BLOCK_BYTES, || read(words));
        let read_line_ns = second(GROUPS, || {
            black_box(each_apart().fold(0u64, |sum, at| sum.wrapping_add(words[at])));
        });
        let write_ns_per_byte = second(BLOCK_BYTES, || {
            words.iter_mut().for_each(|word| *word = word.wrapping_add(1));
            black_box(&mut *words);
        });
        let write_line_ns = second(GROUPS, || {
            each_apart().for_each(|at| words[at] = words[at].wrapping_add(1));
            black_box(&mut *words);
        });
        read(words);
        StreamSpeed { node, read_ns_per_byte, write_ns_per_byte, read_line_ns, write_line_ns }
    }
}

/// The first word of each group, groups in no order, which is the same every time.
fn each_apart() -> impl Iterator<Item = usize> {
    // An odd factor visits all of a power of two once.
    let group = |n: usize| n.wrapping_mul(SPREAD) % GROUPS;
    (0..GROUPS).map(move |n| group(n) * PER_GROUP * LINE_WORDS)
}

/// Nanoseconds of the second of two turns for each of so many; above 0, whatever the clock says.
fn second(count: usize, mut turn: impl FnMut()) -> f64 {
    turn();
    let began = Instant::now();
    turn();
    began.elapsed().as_nanos().max(1) as f64 / count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Range, Residency, ResidencyError};
    use tiercel_ledger::movement::Outcome;

    /// Moves at 3 ns a byte, but nothing to `full`.
    struct Pretending {
        full: Option<NodeId>,
        modelled: bool,
    }

    impl Mover for Pretending {
        fn execute(&mut self, moves: &[Move]) -> Vec<Outcome> {
            let outcome = |asked: &Move| {
                let done = if self.full == Some(asked.to) { 0 } else { asked.bytes };
                Outcome {
                    moved_bytes: done,
                    resident_bytes: done,
                    took_ns: 3 * asked.bytes,
                    ..Outcome::of(asked.clone())
                }
            };
            moves.iter().map(outcome).collect()
        }

        fn residency(&mut self, _: u32, _: &[Range]) -> Vec<Result<Residency, ResidencyError>> {
            Vec::new()
        }

        fn is_modelled(&self) -> bool {
            self.modelled
        }
    }

    fn speeds(full: Option<u16>, modelled: bool) -> Speeds {
        let machine = Machine::builtin("spr-cxl").expect("built in").expect("sound");
        measure(&mut Pretending { full: full.map(NodeId), modelled }, &machine)
    }

    #[test]
    fn every_group_is_visited_once_and_not_in_order() {
        let mut groups: Vec<usize> = each_apart().collect();
        let far = groups.windows(2).filter(|two| two[0].abs_diff(two[1]) > 64 * LINE_WORDS);
        assert!(far.count() * 100 > GROUPS * 99);
        groups.sort_unstable();
        let expected = (0..GROUPS).map(|group| group * PER_GROUP * LINE_WORDS);
        assert!(groups.into_iter().eq(expected));
    }

    #[test]
    fn every_tier_is_measured_there_and_back() {
        let speeds = speeds(None, false);
        let tiers = Machine::builtin("spr-cxl").unwrap().unwrap().tiers().len();
        assert_eq!(speeds.streams.len(), tiers);
        assert_eq!(speeds.moves.len(), 2 * (tiers - 1));
        assert!(speeds.moves.iter().all(|one| one.ns_per_byte == 3.0), "{speeds:?}");
        let above = |s: &StreamSpeed| s.figures().iter().all(|ns| *ns > 0.0);
        assert!(speeds.streams.iter().all(above), "{speeds:?}");
    }

    #[test]
    fn what_cannot_be_moved_is_not_measured() {
        // No room where the block should begin.
        let fastest = Machine::builtin("spr-cxl").unwrap().unwrap().tiers()[0].nodes[0];
        assert!(speeds(Some(fastest.0), false).is_empty());
        // Nor by a modelled mover.
        assert!(speeds(None, true).is_empty());
    }
}
