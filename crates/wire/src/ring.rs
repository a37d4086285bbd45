//! The ring's protocol: one producer that never waits, one consumer; every loss is counted.
//! In: words of shared memory. Out: records, whole and in order, and how many were lost.
//! Knows nothing of what a record means. Generic over the word so that loom can check this code;
//! `runtime/track/ring.c` is its twin in C.
//!
//! ```text
//! producer                                   consumer
//! own head - tail seen == N ?                head(acquire) - own tail = n records to copy
//!   tail seen = tail(acquire), still N ?     copy slots
//!     lost = own lost + 1                    tail = own tail + n (release)
//! else slot[own head % N] = record
//!   head = own head + 1 (release)
//! ```

use crate::bits::index;
use std::sync::atomic::{AtomicU64, Ordering};

/// A word of shared memory.
pub trait Word {
    /// Atomic load.
    fn load(&self, order: Ordering) -> u64;
    /// Atomic store.
    fn store(&self, value: u64, order: Ordering);
}

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }
    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }
}

/// Borrowed words of one ring. `slots` has `N` words for each record; the number of records is a
/// power of two.
pub struct Words<'a, W, const N: usize = 4> {
    /// Records ever written.
    pub head: &'a W,
    /// Records ever lost.
    pub lost: &'a W,
    /// Records ever read.
    pub tail: &'a W,
    /// The records.
    pub slots: &'a [W],
}

impl<'a, W: Word, const N: usize> Words<'a, W, N> {
    fn capacity(&self) -> u64 {
        (self.slots.len() / N) as u64
    }

    fn slot(&self, count: u64) -> &'a [W] {
        let records = self.slots.len() / N;
        let nth = index(count % records as u64);
        &self.slots[nth * N..(nth + 1) * N]
    }
}

/// What the producer remembers of a ring. It never reads back what it wrote, and it reads the
/// consumer's line only when the ring looks full.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteCursor {
    head: u64,
    lost: u64,
    tail_seen: u64,
}

impl WriteCursor {
    /// Takes over a ring as its last owner left it.
    pub fn take<W: Word, const N: usize>(words: &Words<'_, W, N>) -> WriteCursor {
        let tail_seen = words.tail.load(Ordering::Acquire);
        let lost = words.lost.load(Ordering::Relaxed);
        WriteCursor { head: words.head.load(Ordering::Relaxed), lost, tail_seen }
    }
}

/// Appends a record; false when the ring was full and the record is counted as lost. Only the
/// ring's owner may call it.
pub fn push<W: Word, const N: usize>(
    words: &Words<'_, W, N>,
    writer: &mut WriteCursor,
    record: &[u64; N],
) -> bool {
    if writer.head.wrapping_sub(writer.tail_seen) >= words.capacity() {
        // Pairs with the release in `pull`: the slot about to be overwritten has been copied.
        writer.tail_seen = words.tail.load(Ordering::Acquire);
        if writer.head.wrapping_sub(writer.tail_seen) >= words.capacity() {
            writer.lost = writer.lost.wrapping_add(1);
            words.lost.store(writer.lost, Ordering::Relaxed);
            return false;
        }
    }
    for (slot, word) in words.slot(writer.head).iter().zip(record) {
        slot.store(*word, Ordering::Relaxed);
    }
    writer.head = writer.head.wrapping_add(1);
    words.head.store(writer.head, Ordering::Release);
    true
}

/// What the consumer remembers of a ring, so that the producer cannot falsify it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    tail: u64,
    lost: u64,
}

impl Cursor {
    /// Begins with what will be written from now on; what is in the ring is dropped.
    pub fn at_end<W: Word, const N: usize>(words: &Words<'_, W, N>) -> Cursor {
        let lost = words.lost.load(Ordering::Relaxed);
        let tail = words.head.load(Ordering::Acquire);
        words.tail.store(tail, Ordering::Release);
        Cursor { tail, lost }
    }

    /// Records up to `head` that were not read.
    pub(crate) fn waiting(&self, head: u64) -> u64 {
        head.wrapping_sub(self.tail)
    }
}

/// What one [`pull`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pulled {
    /// Records passed on.
    pub records: usize,
    /// Records known lost since the last call.
    pub lost: u64,
    /// Records still waiting when the call ended.
    pub left: u64,
}

/// Passes at most `max` records to `each`. A `head` that no correct producer could have written
/// empties the ring, and its records count as lost.
pub fn pull<W: Word, const N: usize>(
    words: &Words<'_, W, N>,
    cursor: &mut Cursor,
    max: usize,
    each: impl FnMut([u64; N]),
) -> Pulled {
    pull_present(words, cursor, max, |_| true, each)
}

/// As [`pull`]. A slot that `is_there` denies, by its number in the ring, is not read: no record
/// was ever written there.
pub fn pull_present<W: Word, const N: usize>(
    words: &Words<'_, W, N>,
    cursor: &mut Cursor,
    max: usize,
    mut is_there: impl FnMut(usize) -> bool,
    mut each: impl FnMut([u64; N]),
) -> Pulled {
    // Read before `head`: a loss counted here is then reported no later than the records after it.
    let lost_now = words.lost.load(Ordering::Relaxed);
    // Pairs with the release in `push`: the records below `head` are whole.
    let head = words.head.load(Ordering::Acquire);
    let lost = lost_now.wrapping_sub(cursor.lost).min(u64::from(u32::MAX));
    let mut pulled = Pulled { lost, ..Pulled::default() };
    cursor.lost = lost_now;
    let waiting = head.wrapping_sub(cursor.tail);
    if waiting > words.capacity() {
        pulled.lost = pulled.lost.saturating_add(words.capacity());
        cursor.tail = head;
    } else {
        let take = waiting.min(max as u64);
        for count in 0..take {
            let at = cursor.tail.wrapping_add(count);
            if !is_there(index(at % words.capacity())) {
                pulled.lost = pulled.lost.saturating_add(waiting - count);
                cursor.tail = head;
                words.tail.store(cursor.tail, Ordering::Release);
                return Pulled { records: index(count), ..pulled };
            }
            let slot = words.slot(at);
            each(std::array::from_fn(|i| slot[i].load(Ordering::Relaxed)));
        }
        cursor.tail = cursor.tail.wrapping_add(take);
        pulled.records = index(take);
        pulled.left = waiting - take;
    }
    if waiting > 0 {
        // Pairs with the acquire in `push`.
        words.tail.store(cursor.tail, Ordering::Release);
    }
    pulled
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    use proptest::prelude::*;

    struct Plain {
        head: AtomicU64,
        lost: AtomicU64,
        tail: AtomicU64,
        slots: Vec<AtomicU64>,
    }

    impl Plain {
        fn new(records: usize) -> Plain {
            let zero = || AtomicU64::new(0);
            let slots = (0..records * 4).map(|_| zero()).collect();
            Plain { head: zero(), lost: zero(), tail: zero(), slots }
        }
        fn words(&self) -> Words<'_, AtomicU64> {
            Words { head: &self.head, lost: &self.lost, tail: &self.tail, slots: &self.slots }
        }
    }

    #[test]
    fn an_impossible_head_counts_as_a_loss_and_heals() {
        let ring = Plain::new(4);
        let mut cursor = Cursor::default();
        ring.head.store(1 << 40, Ordering::Release);
        let pulled = pull(&ring.words(), &mut cursor, 10, |_| panic!("no record is whole"));
        assert_eq!(pulled.lost, 4);
        let mut writer = WriteCursor::take(&ring.words());
        assert!(push(&ring.words(), &mut writer, &[7; 4]));
        let mut seen = vec![];
        let pulled = pull(&ring.words(), &mut cursor, 10, |r| seen.push(r));
        assert_eq!((seen, pulled.lost), (vec![[7; 4]], 0));
    }

    #[test]
    fn a_falsified_tail_does_not_move_the_consumer() {
        let ring = Plain::new(4);
        let (mut cursor, mut writer) = (Cursor::default(), WriteCursor::default());
        assert!(push(&ring.words(), &mut writer, &[1; 4]));
        ring.tail.store(77, Ordering::Relaxed);
        let mut seen = 0;
        pull(&ring.words(), &mut cursor, 10, |_| seen += 1);
        assert_eq!((seen, ring.tail.load(Ordering::Relaxed)), (1, 1));
    }

    proptest! {
        /// Compared with a queue that is obviously correct.
        #[test]
        fn a_ring_is_a_bounded_queue(steps in proptest::collection::vec(0usize..6, 0..200)) {
            let ring = Plain::new(4);
            let (mut cursor, mut writer) = (Cursor::default(), WriteCursor::default());
            let (mut queue, mut next, mut lost) = (VecDeque::new(), 0u64, 0u64);
            for step in steps {
                if step < 4 {
                    next += 1;
                    let fits = queue.len() < 4;
                    prop_assert_eq!(push(&ring.words(), &mut writer, &[next; 4]), fits);
                    if fits { queue.push_back([next; 4]) } else { lost += 1 }
                } else {
                    let mut got = vec![];
                    let pulled = pull(&ring.words(), &mut cursor, step - 3, |r| got.push(r));
                    let want: Vec<_> = queue.drain(..queue.len().min(step - 3)).collect();
                    prop_assert_eq!(&got, &want);
                    prop_assert_eq!(pulled.lost, lost);
                    prop_assert_eq!(pulled.left, queue.len() as u64);
                    lost = 0;
                }
            }
        }
    }
}
