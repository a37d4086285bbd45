//! The best static placement, exactly: each part of an object has one memory for its life.
//! In: items, room. Out: the time of the best choice. Knows nothing of moves.
//!
//! ```text
//! births and deaths, in order    o ---- idle, room OS pages, worth nothing ----> o ---> ... ---> o
//!                                 \ ------ an item, its OS pages, its value ----------->        /
//! ```
//! The room flows through time, and passes through the items that it holds. Capacities are whole
//! numbers, so that a flow of the most value has whole OS pages: it is the knapsack's optimum, not
//! a bound on it. Found by paths of the most value that are left.

use std::collections::VecDeque;
use tiercel_machine::number::saturating_i64;
use tiercel_wire::layout::OS_PAGE_BYTES;

use crate::bound::Items;

/// Parts of a nanosecond in which values of OS pages are counted: sums are exact.
const PARTS: f64 = 1024.0;

/// Items beyond which none is computed: the paths through 20,000 take a minute.
pub const FIXED_ITEMS_MAX: usize = 20_000;

#[derive(Clone, Copy, Debug)]
struct Arc {
    to: usize,
    left: u64,
    cost: i64,
}

#[derive(Debug)]
struct Net {
    arcs: Vec<Arc>,
    of: Vec<Vec<usize>>,
}

impl Items {
    /// How long the run takes with the best static placement in so much room, nanoseconds; `None`
    /// beyond [`FIXED_ITEMS_MAX`].
    pub fn fixed(&self, room_bytes: u64) -> Option<f64> {
        if self.items.len() > FIXED_ITEMS_MAX {
            return None;
        }
        let living = || self.items.iter().map(super::Item::living);
        let mut times: Vec<usize> = living().flat_map(|range| [range.start, range.end]).collect();
        times.sort_unstable();
        times.dedup();
        let room = room_bytes / OS_PAGE_BYTES;
        let mut net = Net { arcs: Vec::new(), of: vec![Vec::new(); times.len()] };
        (1..times.len()).for_each(|time| net.add(time - 1, time, room, 0));
        for item in &self.items {
            let at = |step: usize| times.partition_point(|time| *time < step);
            let (from, until) = (at(item.living().start), at(item.living().end));
            let cost = -saturating_i64(item.value_ns() / item.os_pages() * PARTS);
            if cost < 0 && from < until {
                let pages = tiercel_machine::number::saturating_u64(item.os_pages());
                net.add(from, until, pages, cost);
            }
        }
        let saved_ns = net.most(room) as f64 / PARTS;
        Some(self.all_slow_ns() - saved_ns)
    }
}

impl Net {
    fn add(&mut self, from: usize, to: usize, left: u64, cost: i64) {
        self.of[from].push(self.arcs.len());
        self.arcs.push(Arc { to, left, cost });
        self.of[to].push(self.arcs.len());
        self.arcs.push(Arc { to: from, left: 0, cost: -cost });
    }

    /// The most value that so much flow brings.
    fn most(&mut self, flow: u64) -> i128 {
        let (mut left, mut value) = (flow, 0);
        while left > 0 && self.of.len() > 1 {
            let (costs, by) = self.cheapest();
            let last = self.of.len() - 1;
            if costs[last] >= 0 {
                break;
            }
            let mut path = Vec::new();
            let mut at = last;
            while at != 0 {
                path.push(by[at]);
                at = self.arcs[by[at] ^ 1].to;
            }
            let room = path.iter().map(|arc| self.arcs[*arc].left).min().unwrap_or(0).min(left);
            for arc in path {
                self.arcs[arc].left -= room;
                self.arcs[arc ^ 1].left += room;
            }
            left -= room;
            value -= i128::from(costs[last]) * i128::from(room);
        }
        value
    }

    /// Costs of the cheapest ways from the first node, and the arcs by which they come. What is
    /// left of a flow of least cost has no circle of negative cost.
    fn cheapest(&self) -> (Vec<i64>, Vec<usize>) {
        let nodes = self.of.len();
        let (mut costs, mut by) = (vec![i64::MAX; nodes], vec![usize::MAX; nodes]);
        let (mut queue, mut is_queued) = (VecDeque::from([0]), vec![false; nodes]);
        costs[0] = 0;
        while let Some(node) = queue.pop_front() {
            is_queued[node] = false;
            for &number in &self.of[node] {
                let arc = self.arcs[number];
                let cost = costs[node].saturating_add(arc.cost);
                if arc.left > 0 && cost < costs[arc.to] {
                    (costs[arc.to], by[arc.to]) = (cost, number);
                    if !std::mem::replace(&mut is_queued[arc.to], true) {
                        queue.push_back(arc.to);
                    }
                }
            }
        }
        (costs, by)
    }
}
