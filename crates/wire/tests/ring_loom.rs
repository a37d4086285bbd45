//! Every interleaving and every weak-memory outcome of the ring protocol, by loom, over the very
//! code that the daemon runs: records arrive whole, in order, once; what did not fit is counted.

use std::sync::atomic::Ordering;

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use tiercel_wire::ring::{Cursor, Word, Words, pull, push};

struct LoomWord(AtomicU64);

impl Word for LoomWord {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
}

struct Ring {
    head: LoomWord,
    lost: LoomWord,
    tail: LoomWord,
    slots: Vec<LoomWord>,
}

impl Ring {
    fn new(records: usize) -> Ring {
        let zero = || LoomWord(AtomicU64::new(0));
        let slots = (0..records * 4).map(|_| zero()).collect();
        Ring { head: zero(), lost: zero(), tail: zero(), slots }
    }
    fn words(&self) -> Words<'_, LoomWord> {
        Words { head: &self.head, lost: &self.lost, tail: &self.tail, slots: &self.slots }
    }
}

fn explore(capacity: usize, sends: u64, pulls: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let ring = Arc::new(Ring::new(capacity));
        let producer = {
            let ring = ring.clone();
            loom::thread::spawn(move || {
                (1..=sends).filter(|n| push(&ring.words(), &[*n; 4])).collect::<Vec<_>>()
            })
        };
        let (mut cursor, mut got, mut lost) = (Cursor::default(), vec![], 0);
        for _ in 0..pulls {
            let pulled = pull(&ring.words(), &mut cursor, capacity, |record| got.push(record));
            lost += pulled.lost;
        }
        let sent = producer.join().expect("the producer ends");
        lost += pull(&ring.words(), &mut cursor, capacity, |record| got.push(record)).lost;
        let whole: Vec<_> = sent.iter().map(|n| [*n; 4]).collect();
        assert_eq!(got, whole, "whole, in order, once");
        assert_eq!(sent.len() as u64 + lost, sends, "every loss is counted");
    });
}

#[test]
fn a_ring_of_one_record() {
    explore(1, 2, 1);
}

#[test]
fn a_ring_of_two_records_that_wraps() {
    explore(2, 3, 1);
}
