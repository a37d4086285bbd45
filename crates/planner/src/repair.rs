//! Makes choices that keep the capacities, and improves them.
//! In: a problem, prices. Out: a choice. Knows nothing of bounds.

use crate::dual::{Paths, Sums};
use crate::problem::Problem;
use crate::room::Room;
use tiercel_machine::number::index_u32;

/// Items in the order in which they choose.
pub type Order = Vec<u32>;

/// A choice with the room it takes.
pub struct Filled {
    pub choice: Vec<u8>,
    pub value: f64,
    room: Room,
}

/// Items one after the other take their cheapest path through the room that is left, at these
/// prices. The first one without a path is the error.
pub fn fill(problem: &Problem, order: &[u32], sums: &Sums) -> Result<Filled, usize> {
    let mut filled = Filled {
        choice: vec![0; problem.spans.len()],
        value: 0.0,
        room: Room::empty(problem.memories, problem.slots),
    };
    let mut paths = Paths::default();
    for index in order {
        if !filled.insert(problem, *index as usize, sums, &mut paths).is_finite() {
            return Err(*index as usize);
        }
    }
    filled.value = problem.value(&filled.choice);
    Ok(filled)
}

/// Items that lose most per byte in the last memory come first. `sums` are the prices that they
/// see.
pub fn by_urgency(problem: &Problem, sums: &Sums) -> Order {
    let last = problem.memories - 1;
    let mut paths = Paths::default();
    let mut choice = vec![0; problem.spans.len()];
    let urgency = |item: &crate::problem::Item, paths: &mut Paths, choice: &mut Vec<u8>| {
        let bytes = item.bytes as f64;
        let best = paths.shortest(problem, item, sums, choice);
        let in_last = |segment: usize| {
            problem.cost(segment, last) + bytes * sums.price(problem, segment, last)
        };
        let stay: f64 = item.segments().map(in_last).sum();
        // Per byte and slot: long-lived items keep others out for longer.
        let slots = problem.spans[item.segments().end - 1].last
            - problem.spans[item.segments().start].first
            + 1;
        let lost = stay + problem.move_cost(item, item.at, last) - best;
        if lost.is_nan() { f64::INFINITY } else { lost / (bytes * f64::from(slots)) }
    };
    let keys: Vec<f64> =
        problem.items.iter().map(|item| urgency(item, &mut paths, &mut choice)).collect();
    let mut order: Order = (0..index_u32(problem.items.len())).collect();
    order.sort_by(|a, b| keys[*b as usize].total_cmp(&keys[*a as usize]).then(a.cmp(b)));
    order
}

/// Large items first: a fallback when the other order leaves no room.
pub fn by_size(problem: &Problem) -> Order {
    let mut order: Order = (0..index_u32(problem.items.len())).collect();
    order.sort_by_key(|index| (std::cmp::Reverse(problem.items[*index as usize].bytes), *index));
    order
}

impl Filled {
    /// A choice that is known to keep the capacities.
    pub fn of(problem: &Problem, choice: Vec<u8>) -> Filled {
        let room = Room::of(problem, &choice);
        debug_assert!(room.keeps(&problem.capacity));
        Filled { value: problem.value(&choice), room, choice }
    }

    /// Each item in turn gives back its room and chooses again, without prices, so the cost can
    /// only fall. Returns by how much.
    pub fn improve(&mut self, problem: &Problem, order: &[u32], free: &Sums) -> f64 {
        let mut paths = Paths::default();
        let before = self.value;
        for index in order {
            let item = &problem.items[*index as usize];
            let worth = problem.item_value(item, &self.choice);
            for segment in item.segments() {
                let memory = self.choice[segment] as usize;
                self.room.give_back(problem.spans[segment], memory, item.bytes);
            }
            let now = self.insert(problem, *index as usize, free, &mut paths);
            debug_assert!(now <= worth + worth.abs() * 1e-9, "the old way is still there");
        }
        self.value = problem.value(&self.choice);
        before - self.value
    }

    fn insert(&mut self, problem: &Problem, index: usize, sums: &Sums, paths: &mut Paths) -> f64 {
        let item = &problem.items[index];
        let (room, bytes) = (&self.room, item.bytes as f64);
        let value = paths.cheapest(problem, item, &mut self.choice, |segment, memory| {
            let capacity = problem.capacity[memory];
            if room.fits(problem.spans[segment], memory, item.bytes, capacity) {
                bytes * sums.price(problem, segment, memory)
            } else {
                f64::INFINITY
            }
        });
        if value.is_finite() {
            for segment in item.segments() {
                self.room.take(problem.spans[segment], self.choice[segment] as usize, item.bytes);
            }
        }
        value
    }
}
