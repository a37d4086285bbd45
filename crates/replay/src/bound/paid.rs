//! The bound on runs that pay for their moves: room has a price at each step, and each item takes
//! the cheapest way through the run on its own.
//! In: items, costs of moves, room. Out: a bound, and the time of a placement that is possible.
//! Knows nothing of streams.
//!
//! ```text
//!            fast   hold: price x bytes a step      \  leave: demotion     f ---- f ---- f
//!            slow   each access costs its value     /  enter: promotion     \  x      \
//!                                                                             s ---- s ---- s
//! bound(prices) = sum over items of its cheapest way - room x sum of prices
//! ```
//! For *any* prices that are not negative this is at most the cost of any placement within the
//! room, whole or in parts (Lagrange): a placement within the room pays for at most the room. The
//! prices are improved by subgradients; what they leave open is the gap to the placement found.

use crate::bound::{Item, Items};

/// Rounds in which prices are improved. The gap shrinks slowly beyond.
const ROUNDS: usize = 160;

/// Rounds between two placements that are made of the ways.
const PLACE_EVERY: usize = 16;

/// Rounds without a better bound after which steps are halved.
const STALLED_MAX: usize = 8;

/// Part of the last direction that a step keeps: what goes back and forth between two rounds
/// cancels out (Camerini, Fratta, Maffioli 1975).
const KEPT: f64 = 0.6;

/// Steps of all stays together beyond which no placement is made of them: a quarter of a second at
/// 1 ns each, ten times in a search.
const PLACED_STEPS_MAX: usize = 1 << 28;

/// A gap to the placement found that is not worth closing, as a share of its cost.
const CLOSE: f64 = 1e-4;

/// Prices that are tried first, as shares of what the items' values would pay for all the room.
const FIRST_PRICES: i32 = 14;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Paid {
    /// No run is faster than this, nanoseconds.
    pub bound_ns: f64,
    /// A placement with perfect knowledge takes this long, nanoseconds.
    pub found_ns: f64,
}

/// What a byte costs to move.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoveCosts {
    /// To fast memory, nanoseconds.
    pub promote_ns: f64,
    /// To slow memory, nanoseconds.
    pub demote_ns: f64,
}

/// A stay of an item in fast memory.
#[derive(Clone, Copy, Debug)]
struct Stay {
    item: usize,
    /// The step of its first access, and the one after its last, or that of its death.
    from: usize,
    until: usize,
    /// What it saves, less its moves, nanoseconds for a byte.
    gain_ns: f64,
}

/// Where an item lies at an access.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Slow,
    /// In fast memory since the access before.
    Held,
    /// It came to fast memory for this access.
    Entered,
}

/// How the cheapest way to each memory came there.
#[derive(Clone, Copy, Debug)]
struct Came {
    fast: Mode,
    /// It came from slow memory, where `fast` is [`Mode::Entered`].
    fast_from_slow: bool,
    slow_from_fast: bool,
}

struct Search<'a> {
    items: &'a Items,
    costs: MoveCosts,
    room: f64,
    /// For a byte and step, nanoseconds.
    prices: Vec<f64>,
    /// Sums of the prices before each step.
    sums: Vec<f64>,
    /// Bytes in fast memory at each step.
    used: Vec<f64>,
    stays: Vec<Stay>,
    came: Vec<Came>,
    modes: Vec<Mode>,
    /// Whether the way, if it ends in fast memory, stays there until the item's death.
    ends_held: bool,
}

impl Items {
    /// The bound on runs that pay for their moves, and a placement.
    pub fn paid(&self, room_bytes: u64, costs: MoveCosts) -> Paid {
        let mut search = Search::new(self, room_bytes as f64, costs);
        let best = search.first_prices();
        let (mut best, mut best_prices) = (best, search.prices.clone());
        let mut found = search.place();
        let mut direction = vec![0.0; self.steps];
        let (mut scale, mut since_better) = (1.0, 0);
        for round in 0..ROUNDS {
            search.step(&mut direction, |gap| scale * (found - best).max(0.0) / gap);
            let bound = search.evaluate();
            if round % PLACE_EVERY == 0 {
                found = found.min(search.place());
            }
            since_better += 1;
            if bound > best {
                (best, since_better) = (bound, 0);
                best_prices.clone_from(&search.prices);
            }
            if found - best <= CLOSE * found.abs() {
                break;
            }
            if since_better > STALLED_MAX {
                (scale, since_better) = (scale / 2.0, 0);
                search.prices.clone_from(&best_prices);
                search.evaluate();
                direction.fill(0.0);
            }
        }
        Paid { bound_ns: self.work_ns + best, found_ns: self.work_ns + found }
    }
}

impl<'a> Search<'a> {
    fn new(items: &'a Items, room: f64, costs: MoveCosts) -> Search<'a> {
        let steps = items.steps;
        Search {
            items,
            costs,
            room,
            prices: vec![0.0; steps],
            sums: vec![0.0; steps + 1],
            used: vec![0.0; steps + 1],
            stays: Vec::new(),
            came: Vec::new(),
            modes: Vec::new(),
            ends_held: true,
        }
    }

    /// Begins with the best of some prices that are proportional to what is accessed.
    fn first_prices(&mut self) -> f64 {
        let (mut best, mut best_prices) = (self.evaluate(), self.prices.clone());
        for power in 0..FIRST_PRICES {
            let share = 0.6f64.powi(power) / self.room.max(1.0);
            self.prices = self.items.weights.iter().map(|weight| weight * share).collect();
            let bound = self.evaluate();
            if bound > best {
                best = bound;
                best_prices.clone_from(&self.prices);
            }
        }
        self.prices = best_prices;
        self.evaluate()
    }

    /// The bound of the present prices, and the ways that lead to it.
    fn evaluate(&mut self) -> f64 {
        let mut sum = 0.0;
        for (step, price) in self.prices.iter().enumerate() {
            self.sums[step] = sum;
            sum += price;
        }
        self.sums[self.items.steps] = sum;
        self.used.fill(0.0);
        self.stays.clear();
        let mut all = -self.room * sum;
        for at in 0..self.items.items.len() {
            all += self.way(at);
            self.keep_way(at);
        }
        let mut used = 0.0;
        for one in &mut self.used {
            // They were differences.
            used += *one;
            *one = used;
        }
        all
    }

    /// The cheapest way of an item at the present prices: its cost, and its modes, last first.
    fn way(&mut self, at: usize) -> f64 {
        let item = &self.items.items[at];
        let enter = self.costs.promote_ns * item.bytes;
        let leave = self.costs.demote_ns * item.bytes;
        self.came.clear();
        let (mut fast, mut slow, mut until) = (0.0, 0.0, None);
        for (step, value) in &item.accesses {
            let held = fast + self.hold(item, until.unwrap_or(*step), *step);
            let (from_slow, left) = (slow, fast + leave);
            // At birth both memories are free.
            let is_birth = until.is_none();
            let entered = f64::min(from_slow, left) + enter;
            let is_held = is_birth || held <= entered;
            let slow_from_fast = !is_birth && left < from_slow;
            self.came.push(Came {
                fast: if is_held { Mode::Held } else { Mode::Entered },
                fast_from_slow: from_slow <= left,
                slow_from_fast,
            });
            let hold = self.hold(item, *step, step + 1);
            fast = if is_held { held } else { entered } + hold;
            slow = if slow_from_fast { left } else { from_slow } + value;
            until = Some(step + 1);
        }
        // It stays until it dies, unless it leaves.
        let stays = self.hold(item, until.unwrap_or(item.died), item.died);
        self.ends_held = stays <= leave;
        fast += stays.min(leave);
        self.follow_back(fast <= slow);
        fast.min(slow)
    }

    fn hold(&self, item: &Item, from: usize, until: usize) -> f64 {
        (self.sums[until] - self.sums[from]) * item.bytes
    }

    fn follow_back(&mut self, ends_fast: bool) {
        self.modes.clear();
        let mut is_fast = ends_fast;
        for came in self.came.iter().rev() {
            self.modes.push(if is_fast { came.fast } else { Mode::Slow });
            is_fast = match (is_fast, came.fast) {
                (true, Mode::Held) => true,
                (true, _) => !came.fast_from_slow,
                (false, _) => came.slow_from_fast,
            };
        }
    }

    /// Adds the stays of an item's way.
    fn keep_way(&mut self, at: usize) {
        let item = &self.items.items[at];
        let MoveCosts { promote_ns, demote_ns } = self.costs;
        let mut stay: Option<Stay> = None;
        for ((step, value), mode) in item.accesses.iter().zip(self.modes.iter().rev()) {
            if *mode != Mode::Held
                && let Some(mut over) = stay.take()
            {
                over.gain_ns -= demote_ns;
                self.stays.push(over);
            }
            if *mode == Mode::Slow {
                continue;
            }
            let begin = if *mode == Mode::Entered { -promote_ns } else { 0.0 };
            let new = Stay { item: at, from: *step, until: *step, gain_ns: begin };
            let current = stay.get_or_insert(new);
            current.until = step + 1;
            current.gain_ns += value / item.bytes;
        }
        if let Some(mut last) = stay {
            if self.ends_held {
                last.until = item.died;
            } else {
                last.gain_ns -= demote_ns;
            }
            self.stays.push(last);
        }
        for stay in self.stays.iter().rev().take_while(|stay| stay.item == at) {
            self.used[stay.from] += item.bytes;
            self.used[stay.until] -= item.bytes;
        }
    }

    /// A placement: stays by what they save for what their room is worth, while there is room; then
    /// whole lives of items that have none.
    fn place(&mut self) -> f64 {
        let mut stays = self.stays.clone();
        let worth = |stay: &Stay| {
            let price = self.sums[stay.until] - self.sums[stay.from];
            stay.gain_ns / (price + f64::MIN_POSITIVE)
        };
        stays.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
        let mut has_stay = vec![false; self.items.items.len()];
        stays.iter().for_each(|stay| has_stay[stay.item] = true);
        let others = self.items.items.iter().enumerate().filter(|(at, _)| !has_stay[*at]);
        let mut lives: Vec<Stay> = others.map(|(at, item)| whole_life(at, item)).collect();
        lives.sort_by(|a, b| b.gain_ns.total_cmp(&a.gain_ns));
        let mut left = vec![self.room; self.items.steps];
        let mut ns: f64 = self.items.items.iter().map(Item::value_ns).sum();
        let steps = |stay: &Stay| stay.until - stay.from;
        if stays.iter().chain(&lives).map(steps).sum::<usize>() > PLACED_STEPS_MAX {
            // Everything in slow memory is a placement, too.
            return ns;
        }
        for stay in stays.iter().chain(&lives).filter(|stay| stay.gain_ns > 0.0) {
            let steps = stay.from..stay.until;
            let most = self.items.items[stay.item].bytes;
            let bytes = left[steps.clone()].iter().copied().fold(most, f64::min);
            left[steps].iter_mut().for_each(|one| *one -= bytes);
            ns -= bytes * stay.gain_ns;
        }
        ns
    }

    /// Raises the prices of steps that are too full, and lowers those of the others. `size`: of the
    /// step, by the square of the direction's length.
    fn step(&mut self, direction: &mut [f64], size: impl Fn(f64) -> f64) {
        let mut square = 0.0;
        for (one, used) in direction.iter_mut().zip(&self.used) {
            *one = KEPT * *one + (used - self.room);
            square += *one * *one;
        }
        if square <= 0.0 {
            return;
        }
        let size = size(square);
        for (price, one) in self.prices.iter_mut().zip(direction.iter()) {
            *price = (*price + size * one).max(0.0);
        }
    }
}

fn whole_life(at: usize, item: &Item) -> Stay {
    let first = item.accesses.first().map_or(0, |(step, _)| *step);
    Stay { item: at, from: first, until: item.died, gain_ns: item.value_ns() / item.bytes }
}
