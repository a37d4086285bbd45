//! Experts: a placement each, what it would have saved, and what its moves would have cost.
//! In: entries, what moves cost, room. Out: entries with new bits, the best expert and its lead.
//! Knows nothing of the real placement.
//!
//! ```text
//! served(k) = sum of value x bit(k)      paid(k) = cost of its moves      stay = value x home
//! lead      = served(best) - stay - paid(best)
//! ```
//! All fade, so that the experts that were right of late lead. A move counts half in the interval
//! in which it is made: a mover takes its time.

use tiercel_ledger::VALUE_TAU_UNITS;

use super::exchange::{Exchanged, Item, Terms, evict, exchange};
use super::follow::Entry;

/// Horizons of the experts, in units of the time scale: from bursts to programs that stay as they
/// are.
const HORIZON_UNITS: [f64; 4] = [4.0, 8.0, 16.0, 64.0];

/// One expert for each time constant and horizon; a bit each in a byte.
pub(super) const EXPERTS: usize = VALUE_TAU_UNITS.len() * HORIZON_UNITS.len();
const _: () = assert!(EXPERTS == u8::BITS as usize);

/// No horizon is longer than so many units and the age of the run together: nothing is expected to
/// last longer than it did. Chosen, not measured: 5 to 40 make no difference in replay.
const PRIOR_UNITS: f64 = 20.0;

/// Scores fade over so many units, or half of the run's age if that is more: what a program's start
/// cost is soon forgotten. 4 to 16 gain 1 to 2 points of the bound's gain over 40 in replay.
const FADE_UNITS: f64 = 8.0;
const FADE_OF_AGE: f64 = 0.5;

/// Standard deviations that the rate of what comes in is taken lower: of many extents those come
/// first that look hottest by chance.
const DEVIATIONS: f64 = 1.0;

/// Which rates an expert goes by, and for how long it believes them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Expert {
    number: usize,
}

/// The scores.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Experts {
    served: [f64; EXPERTS],
    paid: [f64; EXPERTS],
    stay: f64,
    age_s: f64,
}

impl Expert {
    /// Which of the time constants.
    pub(crate) fn tau(self) -> usize {
        self.number / HORIZON_UNITS.len()
    }

    /// In units.
    fn horizon_units(self) -> f64 {
        HORIZON_UNITS[self.number % HORIZON_UNITS.len()]
    }

    fn bit(self) -> u8 {
        1 << self.number
    }

    /// An extent as this expert sees it, in its own placement.
    fn item(self, entry: &Entry) -> Item {
        let is_inside = entry.bits & self.bit() != 0;
        let there = if is_inside { entry.footprint } else { 0 };
        let (rate, bytes, is_free) =
            (self.rate(entry, is_inside), entry.footprint, entry.is_nursery());
        Item { rate, bytes, there, is_inside, is_free }
    }

    /// An extent as this expert sees it, in the real placement.
    pub(crate) fn real_item(self, entry: &Entry) -> Item {
        let is_inside = entry.is_fast();
        let (bytes, there, is_free) = (entry.footprint, entry.there, entry.is_nursery());
        Item { rate: self.rate(entry, is_inside), bytes, there, is_inside, is_free }
    }

    fn rate(self, entry: &Entry, is_inside: bool) -> f64 {
        let lower = if is_inside { 0.0 } else { DEVIATIONS * entry.deviation[self.tau()] };
        entry.rate[self.tau()] - lower
    }
}

impl Experts {
    /// An interval ended.
    pub(crate) fn score(&mut self, entries: &[Entry], elapsed_s: f64, unit_s: f64) {
        self.age_s += elapsed_s;
        let over_s = (FADE_UNITS * unit_s).max(self.age_s * FADE_OF_AGE);
        let fade = (-elapsed_s / over_s).exp();
        self.served.iter_mut().chain(&mut self.paid).for_each(|sum| *sum *= fade);
        self.stay *= fade;
        for entry in entries.iter().filter(|entry| entry.new_ns != 0.0) {
            for (number, served) in self.served.iter_mut().enumerate() {
                let has = |bits: u8| f64::from(bits >> number & 1);
                *served += entry.new_ns * (has(entry.bits) + has(entry.bits_before)) / 2.0;
            }
            self.stay += entry.new_ns * entry.home;
        }
    }

    /// For how long the expert's rates are believed, seconds.
    pub(crate) fn horizon_s(&self, expert: Expert, unit_s: f64) -> f64 {
        (expert.horizon_units() * unit_s).min(PRIOR_UNITS * unit_s + self.age_s)
    }

    /// The expert makes the exchanges that pay by its own rates. `terms`: of the real placement,
    /// with the expert's horizon.
    pub(crate) fn exchange(&mut self, expert: Expert, entries: &mut [Entry], terms: &Terms) {
        let items: Vec<Item> = entries.iter().map(|entry| expert.item(entry)).collect();
        let order = by_density(&items);
        let differs = |used: u64, (entry, item): (&Entry, &Item)| {
            (used + item.there).saturating_sub(entry.there)
        };
        let used = entries.iter().zip(&items).fold(terms.used, differs);
        let terms = Terms { used, bank: f64::INFINITY, bytes_left: u64::MAX, ..*terms };
        let mut done: Exchanged = evict(&items, &order, &terms);
        if done.chosen.is_empty() {
            done = exchange(&items, &order, &terms);
        }
        self.paid[expert.number] += done.cost_ns;
        done.chosen.into_iter().for_each(|at| entries[at].bits ^= expert.bit());
    }

    /// The experts.
    pub(crate) fn all() -> impl Iterator<Item = Expert> {
        (0..EXPERTS).map(|number| Expert { number })
    }

    /// The one whose placement would have saved most, and how much more than staying, nanoseconds.
    pub(crate) fn best(&self) -> (Expert, f64) {
        let lead =
            |expert: &Expert| self.served[expert.number] - self.stay - self.paid[expert.number];
        let best = Experts::all().max_by(|a, b| lead(a).total_cmp(&lead(b)));
        let best = best.expect("there are some");
        (best, lead(&best))
    }
}

/// Items by what they save by byte, the most first.
pub(crate) fn by_density(items: &[Item]) -> Vec<usize> {
    let density: Vec<f64> = items.iter().map(|item| item.rate / item.bytes.max(1) as f64).collect();
    let mut order: Vec<usize> = (0..items.len()).collect();
    // Stable: of extents that are equally dense those that were swept first leave last.
    order.sort_by(|a, b| density[*b].total_cmp(&density[*a]));
    order
}
