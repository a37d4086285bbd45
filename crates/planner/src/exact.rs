//! Searches small problems completely: branch and bound over segments, with the dual's prices.
//! In: a problem, prices, a known choice, a number of steps. Out: the best choice, if the steps
//! sufficed. Knows nothing of how prices were found; any are valid, good ones make it fast.
//!
//! Items are decided one after the other, segment by segment. The rest of a path is bounded by the
//! cheapest way on at the given prices, and the other items by their cheapest paths. Both are known
//! in advance, so a step is a few additions.

use crate::dual::Sums;
use crate::memory::MEMORIES_MAX;
use crate::problem::Problem;
use crate::room::Room;
use tiercel_machine::number::{index_u8, index_u32};

/// Segments above which nothing is searched: the tables grow with them, and success becomes
/// unlikely.
pub const SEGMENTS_MAX: usize = 1 << 16;
/// Choices whose costs differ by less count as equal: sums of doubles in another order.
pub const ALIKE: f64 = 1e-9;

/// The result of a search.
pub struct Searched {
    /// The best choice, if better than the known one.
    pub choice: Option<Vec<u8>>,
    /// Whether nothing better exists.
    pub proven: bool,
}

/// Looks for a choice below `known`, with at most this many steps. `order`: which items decide
/// first.
pub fn search(
    problem: &Problem,
    prices: &[f64],
    order: &[u32],
    known: f64,
    steps: u64,
) -> Searched {
    if problem.spans.len() > SEGMENTS_MAX {
        return Searched { choice: None, proven: false };
    }
    let mut search = Search::new(problem, prices, order, known);
    let proven = search.run(steps);
    Searched { choice: search.found, proven }
}

struct Search<'a> {
    problem: &'a Problem,
    /// Segments in the order of decision, with their item.
    sequence: Vec<(u32, u32)>,
    /// Cost with prices of each segment in each memory.
    priced: Vec<f64>,
    /// The same plus the cheapest way on to the item's end.
    onward: Vec<f64>,
    /// Least cost of all items that are decided later than the segment's, minus the price of all
    /// room.
    rest: Vec<f64>,
    frames: Vec<Frame>,
    room: Room,
    choice: Vec<u8>,
    best: f64,
    found: Option<Vec<u8>>,
}

/// Memories that are still to be tried for one segment, cheapest first.
#[derive(Clone, Copy, Default)]
struct Frame {
    to: [u8; MEMORIES_MAX],
    bounds: [f64; MEMORIES_MAX],
    count: u8,
    next: u8,
    /// Cost so far, with prices and without.
    priced: f64,
    value: f64,
}

impl<'a> Search<'a> {
    fn new(problem: &'a Problem, prices: &[f64], order: &[u32], known: f64) -> Search<'a> {
        let sums = Sums::of(prices, problem.memories);
        let mut search = Search {
            problem,
            sequence: Vec::with_capacity(problem.spans.len()),
            priced: problem.costs.clone(),
            onward: Vec::new(),
            rest: vec![0.0; problem.spans.len()],
            frames: vec![Frame::default(); problem.spans.len()],
            room: Room::empty(problem.memories, problem.slots),
            choice: vec![0; problem.spans.len()],
            best: known,
            found: None,
        };
        for item in order {
            let segments = problem.items[*item as usize].segments();
            search.sequence.extend(segments.map(|segment| (index_u32(segment), *item)));
        }
        search.look_ahead(&sums);
        let all: f64 = prices
            .iter()
            .enumerate()
            .filter(|(_, price)| **price > 0.0)
            .map(|(at, price)| price * problem.capacity[at % problem.memories] as f64)
            .sum();
        let mut rest = -all;
        for item in order.iter().rev() {
            let item = &problem.items[*item as usize];
            item.segments().for_each(|segment| search.rest[segment] = rest);
            let first = item.segments().start;
            let ways = (0..problem.memories).map(|to| {
                problem.move_cost(item, item.at, to) + search.onward[first * problem.memories + to]
            });
            rest += ways.fold(f64::INFINITY, f64::min);
        }
        search
    }

    fn look_ahead(&mut self, sums: &Sums) {
        let (problem, memories) = (self.problem, self.problem.memories);
        for item in &problem.items {
            for segment in item.segments() {
                for to in 0..memories {
                    let price = item.bytes as f64 * sums.price(problem, segment, to);
                    self.priced[segment * memories + to] += price;
                }
            }
        }
        self.onward = self.priced.clone();
        for item in &problem.items {
            for segment in item.segments().rev().skip(1) {
                for from in 0..memories {
                    let ways = (0..memories).map(|to| {
                        problem.move_cost(item, Some(index_u8(from)), to)
                            + self.onward[(segment + 1) * memories + to]
                    });
                    let least = ways.fold(f64::INFINITY, f64::min);
                    self.onward[segment * memories + from] += least;
                }
            }
        }
    }

    /// True when nothing is left to try.
    fn run(&mut self, steps: u64) -> bool {
        if self.sequence.is_empty() {
            return true;
        }
        let mut depth = 0;
        self.open(depth, 0.0, 0.0);
        for _ in 0..steps {
            let frame = &mut self.frames[depth];
            let tried = frame.next as usize;
            // Lower levels no longer count.
            if tried > 0 {
                self.undo(depth);
            }
            let frame = &mut self.frames[depth];
            if tried == frame.count as usize || frame.bounds[tried] >= self.limit() {
                if depth == 0 {
                    return true;
                }
                depth -= 1;
                continue;
            }
            self.frames[depth].next += 1;
            let (priced, value) = self.decide(depth, self.frames[depth].to[tried] as usize);
            if depth + 1 == self.sequence.len() {
                if value < self.best {
                    self.best = value;
                    self.found = Some(self.choice.clone());
                }
            } else {
                depth += 1;
                self.open(depth, priced, value);
            }
        }
        false
    }

    fn limit(&self) -> f64 {
        // Infinity minus infinity is not a number.
        if self.best.is_finite() { self.best - self.best.abs() * ALIKE } else { self.best }
    }

    /// Lists the memories that a segment may go to, by the least cost of the whole.
    fn open(&mut self, depth: usize, priced: f64, value: f64) {
        let (segment, item) = (self.sequence[depth].0 as usize, self.sequence[depth].1);
        let (problem, item) = (self.problem, &self.problem.items[item as usize]);
        let from = self.from(segment, item);
        let mut frame = Frame { priced, value, ..Frame::default() };
        for to in 0..problem.memories {
            let onward = self.onward[segment * problem.memories + to];
            let bound = priced + problem.move_cost(item, from, to) + onward + self.rest[segment];
            let span = problem.spans[segment];
            if bound >= self.limit() || !self.room.fits(span, to, item.bytes, problem.capacity[to])
            {
                continue;
            }
            let count = frame.count as usize;
            let at = frame.bounds[..count].partition_point(|other| *other <= bound);
            frame.bounds[at..=count].rotate_right(1);
            frame.to[at..=count].rotate_right(1);
            (frame.bounds[at], frame.to[at]) = (bound, index_u8(to));
            frame.count += 1;
        }
        self.frames[depth] = frame;
    }

    fn decide(&mut self, depth: usize, to: usize) -> (f64, f64) {
        let (segment, item) = (self.sequence[depth].0 as usize, self.sequence[depth].1);
        let item = &self.problem.items[item as usize];
        let moved = self.problem.move_cost(item, self.from(segment, item), to);
        let frame = &self.frames[depth];
        let priced = frame.priced + moved + self.priced[segment * self.problem.memories + to];
        let value = frame.value + moved + self.problem.cost(segment, to);
        self.choice[segment] = index_u8(to);
        self.room.take(self.problem.spans[segment], to, item.bytes);
        (priced, value)
    }

    fn undo(&mut self, depth: usize) {
        let (segment, item) = (self.sequence[depth].0 as usize, self.sequence[depth].1);
        let bytes = self.problem.items[item as usize].bytes;
        let memory = self.choice[segment] as usize;
        self.room.give_back(self.problem.spans[segment], memory, bytes);
    }

    fn from(&self, segment: usize, item: &crate::problem::Item) -> Option<u8> {
        if segment == item.segments().start { item.at } else { Some(self.choice[segment - 1]) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::problem::Item;
    use crate::span::Span;

    /// Items of two segments in two slots, as far as `costs` reach; three memories.
    fn problem(sizes: &[u64], costs: &[f64], first: u64, second: u64) -> Problem {
        let mut problem = Problem {
            memories: 3,
            slots: 2,
            capacity: vec![first, second, 40],
            items: Vec::new(),
            spans: Vec::new(),
            costs: costs[..sizes.len() * 6].to_vec(),
            moving: vec![0.0, 0.1, 0.3, 0.2, 0.0, 0.4, 0.5, 0.1, 0.0],
            ties_to: 2,
        };
        for (at, bytes) in sizes.iter().enumerate() {
            let first = index_u32(problem.spans.len());
            problem.spans.extend([Span { first: 0, last: 0 }, Span { first: 1, last: 1 }]);
            let before = (at % 2 == 0).then_some(1);
            problem.items.push(Item { bytes: *bytes, first, count: 2, at: before });
        }
        problem
    }

    /// The least value of all choices.
    fn by_trying_all(problem: &Problem) -> f64 {
        let segments = index_u32(problem.spans.len());
        let choices = (0..3u32.pow(segments)).map(|number| {
            (0..segments).map(|at| (number / 3u32.pow(at) % 3) as u8).collect::<Vec<u8>>()
        });
        choices
            .filter(|choice| Room::of(problem, choice).keeps(&problem.capacity))
            .map(|choice| problem.value(&choice))
            .fold(f64::INFINITY, f64::min)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn finds_the_least_from_any_prices(
            sizes in prop::collection::vec(1u64..10, 1..4),
            costs in prop::collection::vec(-5.0..5.0f64, 18),
            prices in prop::collection::vec(0.0..0.5f64, 6),
            scale in prop::sample::select(vec![0.0, 0.05, 1.0]),
            room in (0u64..15, 0u64..15),
        ) {
            // Prices near the best make tight bounds, which expose a wrong one.
            let prices: Vec<f64> = prices.iter().map(|price| price * scale).collect();
            let problem = problem(&sizes, &costs, room.0, room.1);
            let order: Vec<u32> = (0..index_u32(sizes.len())).rev().collect();
            let found = search(&problem, &prices, &order, f64::INFINITY, 1_000_000);
            prop_assert!(found.proven);
            let choice = found.choice.expect("the last memory has room");
            prop_assert!(Room::of(&problem, &choice).keeps(&problem.capacity));
            let (value, least) = (problem.value(&choice), by_trying_all(&problem));
            prop_assert!((value - least).abs() < 1e-6, "{value} {least}");
        }
    }
}
