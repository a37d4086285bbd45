//! Prices for room, and the bound that follows from them.
//! In: a problem. Out: a price per byte for every slot and memory; no choice costs less than
//! `bound`. Knows nothing of how a choice is made that keeps the capacities.
//!
//! With a price p for the room in each slot, every item takes its cheapest path independently, and
//! sum(paths) - sum(p x capacity) is at most the cost of any choice that keeps the capacities. A
//! single item is a shortest path, whose linear program is integral, so the best prices give
//! exactly the bound of the linear program. Prices rise where more room is taken than exists, and
//! fall where less is: first by subgradients with Polyak's step, which finds their magnitude from
//! nothing, then each by a share of itself. The second method is fast with many objects, where the
//! demand for room is nearly a power of its price: on 10,000 objects x 100 phases it needs a third
//! of the rounds.

use crate::memory::MEMORIES_MAX;
use crate::problem::{Item, Problem};
use tiercel_machine::number::{index_u8, index_u32};

/// Segments above which a sample finds the first prices.
const SAMPLED_SEGMENTS: usize = 50_000;
/// Fewest items of a sample.
const ITEMS_LEAST: usize = 100;
/// Rounds without a better bound after which steps are halved.
const NARROWING_ROUNDS: usize = 4;
/// Rounds that must close at least this share of the gap, or the climb ends.
const STALL_ROUNDS: usize = 15;
const STALL_LEAST: f64 = 0.002;
/// Share of the new direction; the rest keeps the old one (Camerini, Fratta and Maffioli 1975).
const FRESH: f64 = 0.6;
/// Rounds with Polyak's step, starting without prices; then each price is scaled by what its slot
/// lacks.
const ADDING_ROUNDS: usize = 15;
/// First exponent of scaling: a slot that is a tenth too full raises its price by a tenth.
const STEP_SCALING: f64 = 1.0;
/// Change of the exponent after a better bound, up to the largest that was found to help.
const GROWTH: f64 = 1.15;
const STEP_MOST: f64 = 3.0;
/// Initial price of a price that must rise, as a share of the mean price.
const FLOOR: f64 = 0.01;
/// Steps below this share of Polyak's change nothing.
const STEP_LEAST: f64 = 1e-4;

/// Prices, and the bound they give.
#[derive(Clone, Debug)]
pub struct Prices {
    /// `slot * memories + memory`, cost per byte.
    pub per_byte: Vec<f64>,
    /// No choice that keeps the capacities costs less.
    pub bound: f64,
}

/// Sums of prices up to each slot, so that a span's is a difference.
pub struct Sums(Vec<f64>);

/// Shortest paths, with the memory they need.
#[derive(Default)]
pub struct Paths {
    /// Least cost up to each segment and memory.
    ahead: Vec<f64>,
}

/// How many items one item of a sample represents; `None` if there are few enough without one.
pub fn stride(problem: &Problem) -> Option<usize> {
    let stride = problem.spans.len().div_ceil(SAMPLED_SEGMENTS);
    (stride > 1 && problem.items.len() > ITEMS_LEAST * stride).then_some(stride)
}

/// Prices from zero.
pub fn no_prices(problem: &Problem) -> Vec<f64> {
    vec![0.0; problem.slots * problem.memories]
}

/// Climbs from `start` for at most this many rounds. `upper` is the cost of a known choice,
/// infinite if none is known.
pub fn climb(problem: &Problem, start: Vec<f64>, upper: f64, rounds: usize) -> Prices {
    let mut climber = Climber::new(problem, start);
    let mut before = f64::NEG_INFINITY;
    for round in 0..rounds {
        if !climber.round(upper) {
            break;
        }
        if round % STALL_ROUNDS == STALL_ROUNDS - 1 {
            let bound = climber.best.bound;
            if climber.scaling && bound - before < (upper - bound) * STALL_LEAST {
                break;
            }
            before = bound;
        }
    }
    climber.best
}

struct Climber<'a> {
    problem: &'a Problem,
    /// Whether a memory can be too small in a slot; elsewhere its price is 0.
    scarce: Vec<bool>,
    prices: Vec<f64>,
    direction: Vec<f64>,
    best: Prices,
    step: f64,
    waited: usize,
    rounds: usize,
    /// Whether prices change by shares of themselves.
    scaling: bool,
    paths: Paths,
    choice: Vec<u8>,
}

/// What a set of prices leads to.
struct Evaluation {
    bound: f64,
    /// The square of the direction's length, where prices can change.
    length: f64,
    /// Whether more room is taken than exists, or less where it has a price.
    is_off: bool,
}

impl<'a> Climber<'a> {
    fn new(problem: &'a Problem, start: Vec<f64>) -> Climber<'a> {
        let scaling = start.iter().any(|price| *price > 0.0);
        let alive = problem.alive();
        let scarce = alive
            .iter()
            .flat_map(|alive| problem.capacity.iter().map(move |room| alive > room && *room > 0))
            .collect();
        Climber {
            problem,
            scarce,
            direction: vec![0.0; start.len()],
            best: Prices { per_byte: start.clone(), bound: f64::NEG_INFINITY },
            prices: start,
            step: if scaling { STEP_SCALING } else { 1.0 },
            waited: 0,
            rounds: 0,
            scaling,
            paths: Paths::default(),
            choice: vec![0; problem.spans.len()],
        }
    }

    /// One bound and one step; false when no step leads upwards.
    fn round(&mut self, upper: f64) -> bool {
        let Evaluation { bound, length, is_off } = self.evaluate();
        self.note(bound);
        let gap = if upper.is_finite() { upper - bound } else { bound.abs() * 0.1 };
        if !is_off || length <= 0.0 || gap <= 0.0 || self.step < STEP_LEAST {
            return false;
        }
        if self.scaling {
            self.scale_prices();
        } else {
            self.add_to_prices(self.step * gap / length);
        }
        self.rounds += 1;
        if self.rounds == ADDING_ROUNDS && !self.scaling {
            self.begin_scaling();
        }
        true
    }

    fn begin_scaling(&mut self) {
        self.scaling = true;
        self.step = STEP_SCALING;
        self.waited = 0;
        self.back_to_best();
    }

    /// The bound under the present prices, and the direction in which they should change.
    fn evaluate(&mut self) -> Evaluation {
        let problem = self.problem;
        let mut bound = self.all_paths();
        let taken = taken(problem, &self.choice);
        let (mut length, mut is_off) = (0.0, false);
        for (at, direction) in self.direction.iter_mut().enumerate() {
            if !self.scarce[at] {
                continue;
            }
            let price = self.prices[at];
            let room = room(problem, at);
            bound -= price * room;
            // In shares of the capacity, so that memories of all sizes climb at the same rate.
            let over = (taken[at] - room) / room;
            is_off |= over > 0.0 || price > 0.0 && over < 0.0;
            *direction = FRESH * over + (1.0 - FRESH) * *direction;
            if price > 0.0 || *direction > 0.0 {
                length += *direction * *direction;
            }
        }
        Evaluation { bound, length, is_off }
    }

    /// Polyak's step.
    fn add_to_prices(&mut self, step: f64) {
        for (at, price) in self.prices.iter_mut().enumerate().filter(|(at, _)| self.scarce[*at]) {
            *price = (*price + step * self.direction[at] / room(self.problem, at)).max(0.0);
        }
    }

    /// Each price by a share of itself.
    fn scale_prices(&mut self) {
        let memories = self.problem.memories;
        let mut floors = vec![0.0; memories];
        for (at, price) in self.prices.iter().enumerate() {
            floors[at % memories] += price / self.problem.slots as f64 * FLOOR;
        }
        for (at, price) in self.prices.iter_mut().enumerate().filter(|(at, _)| self.scarce[*at]) {
            let change = (self.step * self.direction[at]).clamp(-1.0, 1.0).exp();
            let floor = floors[at % memories];
            *price = if *price < floor && change > 1.0 { floor } else { *price * change };
        }
    }

    fn note(&mut self, bound: f64) {
        if bound > self.best.bound {
            self.best.bound = bound;
            self.best.per_byte.copy_from_slice(&self.prices);
            self.waited = 0;
            if self.scaling {
                self.step = (self.step * GROWTH).min(STEP_MOST);
            }
            return;
        }
        self.waited += 1;
        if self.waited >= NARROWING_ROUNDS {
            self.waited = 0;
            self.step /= 2.0;
            self.back_to_best();
        }
    }

    fn back_to_best(&mut self) {
        self.prices.copy_from_slice(&self.best.per_byte);
        self.direction.fill(0.0);
    }

    fn all_paths(&mut self) -> f64 {
        let sums = Sums::of(&self.prices, self.problem.memories);
        let mut sum = 0.0;
        for item in &self.problem.items {
            sum += self.paths.shortest(self.problem, item, &sums, &mut self.choice);
        }
        sum
    }
}

/// Bytes for which a price stands.
fn room(problem: &Problem, at: usize) -> f64 {
    problem.capacity[at % problem.memories] as f64
}

/// Every `stride`-th item by size, with as large a share of the capacities.
pub fn sample(problem: &Problem, stride: usize) -> Problem {
    let mut order: Vec<usize> = (0..problem.items.len()).collect();
    order.sort_by_key(|item| (problem.items[*item].bytes, *item));
    let mut picked: Vec<usize> = order.chunks(stride).map(|chunk| chunk[chunk.len() / 2]).collect();
    picked.sort_unstable();
    let mut sample = Problem {
        memories: problem.memories,
        slots: problem.slots,
        capacity: Vec::new(),
        items: Vec::with_capacity(picked.len()),
        spans: Vec::new(),
        costs: Vec::new(),
        moving: problem.moving.clone(),
        ties_to: problem.ties_to,
    };
    for item in picked.iter().map(|item| &problem.items[*item]) {
        let first = index_u32(sample.spans.len());
        let segments = item.segments();
        sample.spans.extend(&problem.spans[segments.clone()]);
        let costs = segments.start * problem.memories..segments.end * problem.memories;
        sample.costs.extend(&problem.costs[costs]);
        sample.items.push(Item { first, ..*item });
    }
    let weigh = |of: &Problem| of.alive().iter().map(|bytes| *bytes as f64).sum::<f64>();
    let share = weigh(&sample) / weigh(problem);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a capacity is no larger than the capacity; NaN becomes 0"
    )]
    let scaled = |bytes: &u64| (*bytes as f64 * share) as u64;
    sample.capacity = problem.capacity.iter().map(scaled).collect();
    sample
}

/// Bytes taken per slot and memory: differences first, then their sums.
fn taken(problem: &Problem, choice: &[u8]) -> Vec<f64> {
    let memories = problem.memories;
    let mut bytes = vec![0.0; (problem.slots + 1) * memories];
    for item in &problem.items {
        for segment in item.segments() {
            let (span, memory) = (problem.spans[segment], choice[segment] as usize);
            bytes[span.first as usize * memories + memory] += item.bytes as f64;
            bytes[(span.last as usize + 1) * memories + memory] -= item.bytes as f64;
        }
    }
    for at in memories..bytes.len() {
        bytes[at] += bytes[at - memories];
    }
    bytes.truncate(problem.slots * memories);
    bytes
}

impl Sums {
    pub fn of(prices: &[f64], memories: usize) -> Sums {
        let mut sums = vec![0.0; prices.len() + memories];
        for at in 0..prices.len() {
            sums[at + memories] = sums[at] + prices[at];
        }
        Sums(sums)
    }

    /// Price of a byte for all of a segment's slots.
    pub fn price(&self, problem: &Problem, segment: usize, memory: usize) -> f64 {
        let (span, memories) = (problem.spans[segment], problem.memories);
        self.0[(span.last as usize + 1) * memories + memory]
            - self.0[span.first as usize * memories + memory]
    }
}

impl Paths {
    /// The cheapest path of an item at these prices; writes it to `choice`, and returns its cost
    /// with prices.
    pub fn shortest(
        &mut self,
        problem: &Problem,
        item: &Item,
        sums: &Sums,
        choice: &mut [u8],
    ) -> f64 {
        let bytes = item.bytes as f64;
        self.cheapest(problem, item, choice, |segment, memory| {
            bytes * sums.price(problem, segment, memory)
        })
    }

    /// The same with any extra cost per segment and memory; infinite: not allowed.
    pub fn cheapest(
        &mut self,
        problem: &Problem,
        item: &Item,
        choice: &mut [u8],
        extra: impl Fn(usize, usize) -> f64,
    ) -> f64 {
        match problem.memories {
            1 => self.run::<1>(problem, item, choice, extra),
            2 => self.run::<2>(problem, item, choice, extra),
            3 => self.run::<3>(problem, item, choice, extra),
            4 => self.run::<4>(problem, item, choice, extra),
            5 => self.run::<5>(problem, item, choice, extra),
            6 => self.run::<6>(problem, item, choice, extra),
            7 => self.run::<7>(problem, item, choice, extra),
            _ => self.run::<MEMORIES_MAX>(problem, item, choice, extra),
        }
    }

    fn run<const K: usize>(
        &mut self,
        problem: &Problem,
        item: &Item,
        choice: &mut [u8],
        extra: impl Fn(usize, usize) -> f64,
    ) -> f64 {
        debug_assert_eq!(K, problem.memories);
        let segments = item.segments();
        let mut moving = [[0.0; K]; K];
        for (from, row) in moving.iter_mut().enumerate() {
            for (to, cost) in row.iter_mut().enumerate() {
                *cost = problem.moving[from * K + to] * item.bytes as f64;
            }
        }
        let mut best = [0.0; K];
        for (to, best) in best.iter_mut().enumerate() {
            *best = problem.move_cost(item, item.at, to)
                + problem.cost(segments.start, to)
                + extra(segments.start, to);
        }
        // Only values on the way forward, which needs no branch; the path is found on the way back.
        self.ahead.clear();
        self.ahead.extend(best);
        for segment in segments.start + 1..segments.end {
            let before = best;
            let costs = &problem.costs[segment * K..segment * K + K];
            for to in 0..K {
                let mut least = before[to];
                for from in 0..K {
                    let cost = before[from] + moving[from][to];
                    least = if cost < least { cost } else { least };
                }
                best[to] = least + costs[to] + extra(segment, to);
            }
            self.ahead.extend(best);
        }
        let at_least = |ahead: &[f64], mut at: usize, moving: &dyn Fn(usize) -> f64| {
            for other in 0..K {
                // Staying wins ties, so that nothing moves without a benefit.
                if ahead[other] + moving(other) < ahead[at] + moving(at) {
                    at = other;
                }
            }
            at
        };
        let mut at = at_least(&best, usize::from(problem.ties_to), &|_| 0.0);
        let value = best[at];
        choice[segments.end - 1] = index_u8(at);
        for segment in (segments.start..segments.end - 1).rev() {
            let ahead = &self.ahead[(segment - segments.start) * K..][..K];
            at = at_least(ahead, at, &|from| moving[from][at]);
            choice[segment] = index_u8(at);
        }
        value
    }
}
