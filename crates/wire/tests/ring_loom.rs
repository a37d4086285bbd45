//! Every interleaving and every weak-memory outcome of the ring protocol, by loom, over the very
//! code that the daemon runs: records arrive whole, in order, once; what did not fit is counted.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use tiercel_wire::ring::{Cursor, Word, Words, WriteCursor, pull, push};

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

/// Runs every case; which records were accepted, over all of them.
fn explore(capacity: usize, sends: u64, pulls: usize) -> BTreeSet<Vec<u64>> {
    let seen = std::sync::Arc::new(Mutex::new(BTreeSet::new()));
    let cases = seen.clone();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let ring = Arc::new(Ring::new(capacity));
        let producer = {
            let ring = ring.clone();
            loom::thread::spawn(move || {
                let mut writer = WriteCursor::default();
                (1..=sends)
                    .filter(|n| push(&ring.words(), &mut writer, &[*n; 4]))
                    .collect::<Vec<_>>()
            })
        };
        let (mut cursor, mut got, mut lost) = (Cursor::default(), vec![], 0);
        for _ in 0..pulls {
            let pulled = pull(&ring.words(), &mut cursor, capacity, |record| got.push(record));
            lost += pulled.lost;
        }
        let sent = producer.join().expect("the producer ends");
        lost += pull(&ring.words(), &mut cursor, capacity, |record| got.push(record)).lost;
        cases.lock().expect("no panic yet").insert(sent.clone());
        let whole: Vec<_> = sent.iter().map(|n| [*n; 4]).collect();
        assert_eq!(got, whole, "whole, in order, once");
        assert_eq!(sent.len() as u64 + lost, sends, "every loss is counted");
    });
    seen.lock().expect("no panic").clone()
}

#[test]
fn a_ring_of_one_record_drops_nothing_uncounted() {
    // Both outcomes of the race for the only slot were explored.
    assert_eq!(explore(1, 2, 1), [vec![1], vec![1, 2]].into());
}

#[test]
fn a_wrapping_ring_of_two_records_drops_nothing_uncounted() {
    assert_eq!(explore(2, 4, 1).len(), 4, "1 2, 1 2 3, 1 2 4, 1 2 3 4");
}
