//! The one program that every strategy solves: items of segments, memories with room in every slot.
//! In: costs. Out: the cost of a choice, and the room it takes. Knows nothing of programs or time.

use crate::estimate::{MoveSpeed, Weights, move_cost_per_byte, phase_cost};
use crate::memory::{MEMORIES_MAX, Memory};
use crate::slots::Slots;
use crate::span::Span;
use crate::workload::Workload;
use tiercel_machine::number::{index_u8, index_u32};

/// What must be placed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Item {
    pub bytes: u64,
    /// Its segments are `first .. first + count` of the problem's.
    pub first: u32,
    pub count: u32,
    /// Memory in which it is at first (a and y of H2M Eq. 6).
    pub at: Option<u8>,
}

/// Choose a memory for each segment (a `Vec<u8>` in segment order), so that the sum of costs and of
/// moves between segments is least.
///
/// Invariants: segments lie in item order; spans of one item ascend without overlap; costs are
/// finite or infinite (not allowed), never NaN.
#[derive(Clone, Debug)]
pub struct Problem {
    /// At most [`MEMORIES_MAX`].
    pub memories: usize,
    pub slots: usize,
    /// Bytes that each memory may hold in any slot.
    pub capacity: Vec<u64>,
    pub items: Vec<Item>,
    pub spans: Vec<Span>,
    /// `memories` of each segment.
    pub costs: Vec<f64>,
    /// Cost per byte, `from * memories + to`.
    pub moving: Vec<f64>,
    /// Memory of objects that cost the same in all. The last, which leaves room for unknown objects
    /// (H2M III-D2 takes those with a positive V); where no accesses are known at all, the first.
    pub ties_to: u8,
}

impl Problem {
    /// A problem with nothing to place yet.
    pub fn new(
        workload: &Workload,
        memories: &[Memory],
        copy: &MoveSpeed,
        weights: Weights,
        slots: usize,
    ) -> Problem {
        let count = memories.len();
        let is_known = workload.objects.iter().any(|object| !object.uses.is_empty());
        let mut moving = vec![0.0; count * count];
        for from in 0..count {
            for to in (0..count).filter(|to| *to != from) {
                let cost = move_cost_per_byte(memories, from, to, copy);
                moving[from * count + to] = weights.of(cost);
            }
        }
        Problem {
            memories: count,
            slots,
            capacity: memories.iter().map(|memory| memory.capacity_bytes).collect(),
            items: Vec::new(),
            spans: Vec::new(),
            costs: Vec::new(),
            moving,
            ties_to: if is_known { index_u8(count) - 1 } else { 0 },
        }
    }

    /// All objects; one segment each, or one for each phase they live in.
    pub fn of(
        workload: &Workload,
        memories: &[Memory],
        copy: &MoveSpeed,
        weights: Weights,
        slots: &Slots,
        by_phase: bool,
    ) -> Problem {
        let mut problem = Problem::new(workload, memories, copy, weights, slots.count);
        for (index, object) in workload.objects.iter().enumerate() {
            let (first, last) = workload.phases_of(object);
            let mut uses = object.uses.iter().peekable();
            let mut item = problem.begin(object.bytes, None);
            let mut costs = [0.0; MEMORIES_MAX];
            for phase in first..=last {
                let one = uses.next_if(|one| one.phase as usize == phase);
                for (cost, memory) in costs.iter_mut().zip(memories) {
                    *cost += weights.of(phase_cost(workload, object, phase, one, memory));
                }
                if by_phase || phase == last {
                    let span = if by_phase {
                        slots.in_phase(index, phase)
                    } else {
                        slots.of_object[index]
                    };
                    problem.segment(&mut item, span, &costs);
                    costs = [0.0; MEMORIES_MAX];
                }
            }
            problem.items.push(item);
        }
        problem
    }

    /// All objects, one segment each, without costs: for callers that only check room.
    pub fn without_costs(workload: &Workload, memories: &[Memory], slots: &Slots) -> Problem {
        let mut problem =
            Problem::new(workload, memories, &MoveSpeed::default(), Weights::TIME, slots.count);
        for (object, span) in workload.objects.iter().zip(&slots.of_object) {
            let mut item = problem.begin(object.bytes, None);
            problem.segment(&mut item, *span, &[0.0; MEMORIES_MAX]);
            problem.items.push(item);
        }
        problem
    }

    /// An item without segments yet; to be pushed when it has them.
    pub fn begin(&self, bytes: u64, at: Option<u8>) -> Item {
        Item { bytes, first: index_u32(self.spans.len()), count: 0, at }
    }

    /// Adds a segment to an item. A memory that is too small for it is not allowed.
    pub fn segment(&mut self, item: &mut Item, span: Span, costs: &[f64; MEMORIES_MAX]) {
        item.count += 1;
        self.spans.push(span);
        let fits = |memory: usize| item.bytes <= self.capacity[memory];
        self.costs.extend(
            (0..self.memories).map(
                |memory| {
                    if fits(memory) { costs[memory] } else { f64::INFINITY }
                },
            ),
        );
    }

    /// Cost of a segment in a memory.
    pub fn cost(&self, segment: usize, memory: usize) -> f64 {
        self.costs[segment * self.memories + memory]
    }

    /// Cost of moving an item; 0 if it stays or had no memory.
    pub fn move_cost(&self, item: &Item, from: Option<u8>, to: usize) -> f64 {
        from.map_or(0.0, |from| self.moving[from as usize * self.memories + to] * item.bytes as f64)
    }

    /// The cost of a choice for one item.
    pub fn item_value(&self, item: &Item, choice: &[u8]) -> f64 {
        let (mut from, mut sum) = (item.at, 0.0);
        for segment in item.segments() {
            let to = choice[segment];
            sum += self.move_cost(item, from, to as usize) + self.cost(segment, to as usize);
            from = Some(to);
        }
        sum
    }

    /// The cost of a choice.
    pub fn value(&self, choice: &[u8]) -> f64 {
        self.items.iter().map(|item| self.item_value(item, choice)).sum()
    }

    /// Bytes alive in each slot.
    pub fn alive(&self) -> Vec<u64> {
        let mut change = vec![0i64; self.slots + 1];
        for item in &self.items {
            for segment in item.segments() {
                let span = self.spans[segment];
                change[span.first as usize] += item.bytes.cast_signed();
                change[span.last as usize + 1] -= item.bytes.cast_signed();
            }
        }
        let mut alive = 0;
        change.truncate(self.slots);
        change
            .into_iter()
            .map(|change| {
                alive += change;
                alive.cast_unsigned()
            })
            .collect()
    }
}

impl Item {
    /// Indices of its segments.
    pub fn segments(&self) -> std::ops::Range<usize> {
        self.first as usize..(self.first + self.count) as usize
    }
}
