//! Room taken in every slot of every memory.
//! In: spans of bytes taken and given back. Out: whether more bytes fit.
//! Knows nothing of costs.
//!
//! Long-lived objects span many slots (each birth can begin one), so slots are grouped in blocks:
//! bytes that span a whole block are counted once for it.
//!
//! ```text
//!   bytes of a slot = slots[slot] + whole[its block]       top[block] = most of slots[] in it
//! ```

use crate::problem::Problem;
use crate::span::Span;

/// Slots of a block: 10,000 slots are 157 blocks, so long spans touch about as many blocks as
/// slots.
const BLOCK: usize = 64;

/// Bytes taken, per slot and memory.
#[derive(Clone, Debug)]
pub struct Room {
    /// Of each memory, one row per slot.
    slots: Vec<Vec<u64>>,
    whole: Vec<Vec<u64>>,
    top: Vec<Vec<u64>>,
}

impl Room {
    /// Nothing taken.
    pub fn empty(memories: usize, slots: usize) -> Room {
        let blocks = vec![vec![0; slots.div_ceil(BLOCK)]; memories];
        Room { slots: vec![vec![0; slots]; memories], whole: blocks.clone(), top: blocks }
    }

    /// What a choice takes.
    pub fn of(problem: &Problem, choice: &[u8]) -> Room {
        let mut room = Room::empty(problem.memories, problem.slots);
        for item in &problem.items {
            for segment in item.segments() {
                room.take(problem.spans[segment], choice[segment] as usize, item.bytes);
            }
        }
        room
    }

    /// Whether this many bytes more fit in all slots of a span.
    pub fn fits(&self, span: Span, memory: usize, bytes: u64, capacity: u64) -> bool {
        let Some(most) = capacity.checked_sub(bytes) else { return false };
        let (slots, whole) = (&self.slots[memory], &self.whole[memory]);
        pieces(span).all(|(block, from, to)| {
            let full = to - from == BLOCK;
            let taken = if full {
                self.top[memory][block]
            } else {
                slots[from..to].iter().copied().max().unwrap_or(0)
            };
            taken + whole[block] <= most
        })
    }

    pub fn take(&mut self, span: Span, memory: usize, bytes: u64) {
        let (slots, top) = (&mut self.slots[memory], &mut self.top[memory]);
        for (block, from, to) in pieces(span) {
            if to - from == BLOCK {
                self.whole[memory][block] += bytes;
                continue;
            }
            for slot in &mut slots[from..to] {
                *slot += bytes;
                top[block] = top[block].max(*slot);
            }
        }
    }

    /// Gives back a span; the same span and bytes must have been taken.
    pub fn give_back(&mut self, span: Span, memory: usize, bytes: u64) {
        let (slots, top) = (&mut self.slots[memory], &mut self.top[memory]);
        for (block, from, to) in pieces(span) {
            if to - from == BLOCK {
                self.whole[memory][block] -= bytes;
                continue;
            }
            let mut was_top = false;
            for slot in &mut slots[from..to] {
                was_top |= *slot == top[block];
                *slot -= bytes;
            }
            if was_top {
                let end = slots.len().min((block + 1) * BLOCK);
                top[block] = slots[block * BLOCK..end].iter().copied().max().unwrap_or(0);
            }
        }
    }

    /// Whether no memory holds more than it has.
    pub fn keeps(&self, capacity: &[u64]) -> bool {
        let tops = self.top.iter().zip(&self.whole).zip(capacity);
        tops.into_iter().all(|((top, whole), most)| {
            top.iter().zip(whole).all(|(top, whole)| top + whole <= *most)
        })
    }
}

/// A span cut at blocks: block, first slot, slot after the last.
fn pieces(span: Span) -> impl Iterator<Item = (usize, usize, usize)> {
    let (first, end) = (span.first as usize, span.last as usize + 1);
    (first / BLOCK..end.div_ceil(BLOCK))
        .map(move |block| (block, first.max(block * BLOCK), end.min((block + 1) * BLOCK)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn is_as_a_plain_row_of_slots(
            takes in prop::collection::vec((0u32..300, 0u32..300, 1u64..50), 1..30),
            back in 0usize..30,
            ask in (0u32..300, 0u32..300, 0u64..50),
        ) {
            let span = |a: u32, b: u32| Span { first: a.min(b), last: a.max(b) };
            let (mut room, mut plain) = (Room::empty(1, 300), vec![0u64; 300]);
            for (index, (a, b, bytes)) in takes.iter().enumerate() {
                let of = span(*a, *b);
                room.take(of, 0, *bytes);
                if index < back {
                    room.give_back(of, 0, *bytes);
                } else {
                    let slots = of.first as usize..=of.last as usize;
                    plain[slots].iter_mut().for_each(|taken| *taken += bytes);
                }
            }
            let of = span(ask.0, ask.1);
            let most = plain[of.first as usize..=of.last as usize].iter().max().expect("a slot");
            prop_assert!(room.fits(of, 0, ask.2, most + ask.2));
            prop_assert!(most + ask.2 == 0 || !room.fits(of, 0, ask.2, most + ask.2 - 1));
            let most = *plain.iter().max().expect("slots");
            prop_assert!(room.keeps(&[most]));
            prop_assert!(most == 0 || !room.keeps(&[most - 1]));
        }
    }
}
