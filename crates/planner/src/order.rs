//! The order of moves at a phase start, so that no memory overflows between two of them.
//! In: placements. Out: moves in order. Knows nothing of costs.
//!
//! At a phase start, dead objects are gone, and births come after the moves. A move whose target
//! has room goes first. When all moves wait for one another (two full memories that swap), one of
//! them takes a detour over the last memory, if that has room.

use crate::memory::Memory;
use crate::placement::{Move, Placement};
use crate::workload::Workload;
use tiercel_machine::number::{index_u8, index_u32};

/// Moves in order, and the largest overflow of a memory between two of them, bytes: 0 unless even
/// the last memory is full.
pub fn in_order(
    workload: &Workload,
    memories: &[Memory],
    placements: &[Placement],
) -> (Vec<Move>, u64) {
    let mut by_phase: Vec<Vec<Move>> = vec![Vec::new(); workload.phases.len()];
    // Bytes that live on from the phase before, in the memory where they were.
    let mut taken = vec![vec![0u64; memories.len()]; workload.phases.len()];
    for (object, placement) in placements.iter().enumerate() {
        let (first, last) = workload.phases_of(&workload.objects[object]);
        let (mut from, mut moves) = (placement.birth, placement.moves.iter().peekable());
        for phase in first + 1..=last {
            taken[phase][from as usize] += workload.objects[object].bytes;
            if let Some((_, to)) = moves.next_if(|(at, _)| *at as usize == phase) {
                by_phase[phase].push(Move { phase: index_u32(phase), object, from, to: *to });
                from = *to;
            }
        }
    }
    let (mut ordered, mut overflow) = (Vec::new(), 0);
    for (waiting, taken) in by_phase.into_iter().zip(taken) {
        let mut queue = Queue { workload, memories, taken, ordered: &mut ordered, overflow: 0 };
        queue.run(waiting);
        overflow = overflow.max(queue.overflow);
    }
    (ordered, overflow)
}

struct Queue<'a> {
    workload: &'a Workload,
    memories: &'a [Memory],
    taken: Vec<u64>,
    ordered: &'a mut Vec<Move>,
    overflow: u64,
}

impl Queue<'_> {
    fn run(&mut self, mut waiting: Vec<Move>) {
        // Demotions first: they make room above.
        waiting.sort_by_key(|one| (std::cmp::Reverse(one.to), one.object));
        while !waiting.is_empty() {
            let before = waiting.len();
            waiting.retain(|one| !self.try_move(*one));
            if waiting.len() == before {
                self.make_capacity(&mut waiting);
            }
        }
    }

    /// All wait: one takes a detour over the last memory, or, if that is full too, overflows.
    fn make_capacity(&mut self, waiting: &mut Vec<Move>) {
        let last = index_u8(self.memories.len() - 1);
        let detour = |one: &Move| Move { to: last, ..*one };
        let free = waiting.iter().position(|one| one.from != last && self.fits(detour(one)));
        if let Some(at) = free {
            self.go(detour(&waiting[at]));
            waiting[at].from = last;
        } else {
            let one = waiting.remove(0);
            self.go(one);
            let to = usize::from(one.to);
            let over = self.taken[to].saturating_sub(self.memories[to].capacity_bytes);
            self.overflow = self.overflow.max(over);
        }
    }

    fn try_move(&mut self, one: Move) -> bool {
        let fits = self.fits(one);
        if fits {
            self.go(one);
        }
        fits
    }

    fn fits(&self, one: Move) -> bool {
        let to = usize::from(one.to);
        let bytes = self.workload.objects[one.object].bytes;
        self.taken[to].saturating_add(bytes) <= self.memories[to].capacity_bytes
    }

    fn go(&mut self, one: Move) {
        let bytes = self.workload.objects[one.object].bytes;
        self.taken[usize::from(one.from)] -= bytes;
        self.taken[usize::from(one.to)] += bytes;
        self.ordered.push(one);
    }
}
