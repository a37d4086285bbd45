//! What perfect knowledge could do: the shortest time that any placement can reach.
//! In: a stream, what misses and moves cost, room. Out: bounds. Knows nothing of policies.
//!
//! - *Paid* ([`Items::paid`]): where each OS page lies at each access may be chosen freely; births
//!   go where they should for free, each byte that moves later is paid. A bound, by prices: no run
//!   of this model is faster, since a run *is* such a choice, and pays for its moves at least that.
//! - *Static* ([`Items::fixed`]): each part of an object has one memory for its whole life, for
//!   free. The best such choice exactly (an integral flow); no bound on runs that move.

mod energy;
mod fixed;
mod paid;

use std::collections::BTreeMap;

use tiercel_wire::Record;
use tiercel_wire::layout::OS_PAGE_BYTES;

use crate::speed::Speeds;
use crate::stream::{Accesses, Piece, Stream, What, range_of};

pub use energy::EnergyItems;
pub use paid::{MoveCosts, Paid};

/// An object from birth to death.
#[derive(Clone, Debug, PartialEq)]
pub struct Life {
    /// First byte.
    pub addr: u64,
    /// Most bytes it had.
    pub bytes: u64,
    /// How much longer its accesses take if all go to slow memory, nanoseconds.
    pub value_ns: f64,
    /// The step before which it died; the number of steps if it did not.
    died: usize,
    /// Its accesses: step, range, value.
    accesses: Vec<(usize, Piece, f64)>,
}

/// A part of a life whose OS pages are all accessed alike.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Item {
    /// Bytes.
    pub(crate) bytes: f64,
    /// Step and value of all of it in slow memory, nanoseconds; ascending by step.
    pub(crate) accesses: Vec<(usize, f64)>,
    /// The step before which it dies.
    pub(crate) died: usize,
}

/// A stream, cut into items.
#[derive(Clone, Debug)]
pub struct Items {
    pub(crate) items: Vec<Item>,
    /// Accesses of the stream: each is a step, since moves may end between any two.
    pub(crate) steps: usize,
    /// Their values, nanoseconds: a first guess at what room is worth at each.
    pub(crate) weights: Vec<f64>,
    pub(crate) work_ns: f64,
}

/// The lives of a stream, in the order of their births.
pub fn lives(stream: &Stream, speeds: &Speeds) -> Vec<Life> {
    lives_worth(stream, &|accesses| speeds.value_ns(accesses))
}

/// The same, by what it costs that accesses go to slow memory: nanoseconds, or another unit.
pub(crate) fn lives_worth(stream: &Stream, worth: &dyn Fn(&Accesses) -> f64) -> Vec<Life> {
    let (mut lives, mut living): (Vec<Life>, BTreeMap<u64, usize>) = (Vec::new(), BTreeMap::new());
    let mut steps = 0;
    for event in &stream.events {
        match &event.what {
            What::Accesses(accesses) => {
                let last = living.range(..=accesses.addr).next_back();
                if let Some((_, at)) = last {
                    lives[*at].add(steps, accesses, worth(accesses));
                }
                steps += 1;
            }
            What::Record(record) => follow(record, &mut lives, &mut living, steps),
        }
    }
    living.values().for_each(|at| lives[*at].died = steps);
    lives
}

fn follow(record: &Record, lives: &mut Vec<Life>, living: &mut BTreeMap<u64, usize>, next: usize) {
    let Some(Piece { addr, bytes }) = range_of(record) else { return };
    match record {
        Record::Born { .. } => {
            living.insert(addr, lives.len());
            lives.push(Life { addr, bytes, value_ns: 0.0, died: 0, accesses: Vec::new() });
        }
        Record::Resized { .. } => {
            if let Some(at) = living.get(&addr) {
                lives[*at].bytes = lives[*at].bytes.max(bytes);
            }
        }
        _ => {
            if let Some(at) = living.remove(&addr) {
                lives[at].died = next;
            }
        }
    }
}

impl Life {
    fn add(&mut self, step: usize, accesses: &Accesses, value_ns: f64) {
        self.value_ns += value_ns;
        let piece = Piece { addr: accesses.addr, bytes: accesses.bytes };
        self.accesses.push((step, piece, value_ns));
    }

    /// Its parts: between two neighbouring ends of accesses all OS pages are accessed alike.
    fn items(&self) -> Vec<Item> {
        let ends = |(_, piece, _): &(usize, Piece, f64)| [piece.addr, piece.addr + piece.bytes];
        let mut ends: Vec<u64> = self.accesses.iter().flat_map(ends).collect();
        ends.sort_unstable();
        ends.dedup();
        let item = |pair: &[u64]| {
            let bytes = (pair[1] - pair[0]) as f64;
            Item { bytes, accesses: Vec::new(), died: self.died }
        };
        let mut items: Vec<Item> = ends.windows(2).map(item).collect();
        for (step, piece, value_ns) in &self.accesses {
            let first = ends.partition_point(|end| *end < piece.addr);
            let last = ends.partition_point(|end| *end < piece.addr + piece.bytes);
            for item in &mut items[first..last] {
                item.add(*step, value_ns * item.bytes / piece.bytes as f64);
            }
        }
        items.retain(|item| !item.accesses.is_empty());
        items
    }
}

impl Item {
    fn add(&mut self, step: usize, value_ns: f64) {
        match self.accesses.last_mut() {
            Some((last, sum_ns)) if *last == step => *sum_ns += value_ns,
            _ => self.accesses.push((step, value_ns)),
        }
    }

    /// OS pages it has.
    pub(crate) fn os_pages(&self) -> f64 {
        self.bytes / OS_PAGE_BYTES as f64
    }

    /// All of its values, nanoseconds.
    pub(crate) fn value_ns(&self) -> f64 {
        self.accesses.iter().map(|(_, ns)| ns).sum()
    }

    /// The steps at which it has memory.
    pub(crate) fn living(&self) -> std::ops::Range<usize> {
        let first = self.accesses.first().map_or(self.died, |(step, _)| *step);
        first..self.died.max(first)
    }
}

impl Items {
    /// Of the lives of a stream.
    pub fn new(stream: &Stream, lives: &[Life]) -> Items {
        let mut items: Vec<Item> = lives.iter().flat_map(Life::items).collect();
        let steps = items.iter().map(|item| item.died).max().unwrap_or(0);
        let last = items.iter().filter_map(|item| item.accesses.last());
        let steps = steps.max(last.map(|(step, _)| step + 1).max().unwrap_or(0));
        let mut weights = vec![0.0; steps];
        for item in &items {
            for (step, ns) in &item.accesses {
                weights[*step] += ns.max(0.0);
            }
        }
        items.retain(|item| item.bytes > 0.0);
        Items { items, steps, weights, work_ns: stream.work_ns as f64 }
    }

    /// How long the run takes if everything is in slow memory, nanoseconds.
    pub fn all_slow_ns(&self) -> f64 {
        self.work_ns + self.items.iter().map(Item::value_ns).sum::<f64>()
    }

    /// How long it takes if everything is in fast memory, nanoseconds.
    pub fn all_fast_ns(&self) -> f64 {
        self.work_ns
    }
}
