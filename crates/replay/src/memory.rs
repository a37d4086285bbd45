//! Which OS page lies where: the two nodes, as the kernel fills them.
//! In: touches, moves, releases. Out: where memory lies. Knows nothing of objects or of time.
//!
//! ```text
//! present   1 1 1 1 0 0 1 ...     it has physical memory
//! fast      1 1 0 0 . . 1 ...     on the fast node; the others are on the slow one
//! slow_first  . . . . 1 1 0       where it is to go when it is touched first
//! ```
//! Invariant: the fast node never holds more than its room.

use tiercel_machine::number::index;
use tiercel_wire::layout::OS_PAGE_BYTES;

use crate::stream::BASE;

/// OS pages in a word of a map.
const WORD: u64 = u64::BITS as u64;

/// A range of OS pages from the first of a stream's memory on.
pub type Pages = std::ops::Range<u64>;

/// The OS pages of a range of addresses.
pub fn pages_of(addr: u64, bytes: u64) -> Pages {
    let first = (addr - BASE) / OS_PAGE_BYTES;
    first..first + bytes / OS_PAGE_BYTES
}

/// The two nodes.
#[derive(Clone, Debug)]
pub struct Memory {
    room: u64,
    used_fast: u64,
    used_slow: u64,
    present: Bits,
    fast: Bits,
    slow_first: Bits,
}

impl Memory {
    /// Nothing is touched; the fast node has room for so many OS pages.
    pub fn new(os_pages: u64, room: u64) -> Memory {
        let bits = || Bits::new(os_pages);
        let (present, fast, slow_first) = (bits(), bits(), bits());
        Memory { room, used_fast: 0, used_slow: 0, present, fast, slow_first }
    }

    /// OS pages that the fast node could still take.
    pub fn left(&self) -> u64 {
        self.room - self.used_fast
    }

    /// Where OS pages are to go when they are touched first; those that are touched stay.
    pub fn bind(&mut self, pages: Pages, is_slow: bool) {
        self.slow_first.set(pages, is_slow);
    }

    /// Touches a range: what has no memory gets some, on the node it is bound to if that has room.
    pub fn touch(&mut self, pages: Pages) {
        if self.present.count(pages.clone()) == pages.end - pages.start {
            return;
        }
        for page in pages {
            if !self.present.get(page) {
                self.touch_one(page);
            }
        }
    }

    fn touch_one(&mut self, page: u64) {
        let is_fast = self.left() > 0 && !self.slow_first.get(page);
        self.present.set(page..page + 1, true);
        self.fast.set(page..page + 1, is_fast);
        *(if is_fast { &mut self.used_fast } else { &mut self.used_slow }) += 1;
    }

    /// OS pages of a range on (the fast, the slow) node.
    pub fn lies(&self, pages: Pages) -> (u64, u64) {
        let fast = self.fast.count(pages.clone());
        (fast, self.present.count(pages) - fast)
    }

    /// Whether an OS page is on the fast node.
    pub fn is_fast(&self, page: u64) -> bool {
        self.fast.get(page)
    }

    /// Moves up to `most` OS pages of a range that lie on the other node; how many. The fast node
    /// takes what it has room for.
    pub fn place(&mut self, pages: Pages, to_fast: bool, most: u64) -> u64 {
        let most = if to_fast { most.min(self.left()) } else { most };
        let mut moved = 0;
        for page in pages {
            if moved == most {
                break;
            }
            if self.present.get(page) && self.fast.get(page) != to_fast {
                self.fast.set(page..page + 1, to_fast);
                moved += 1;
            }
        }
        if to_fast {
            self.used_fast += moved;
            self.used_slow -= moved;
        } else {
            self.used_fast -= moved;
            self.used_slow += moved;
        }
        moved
    }

    /// Gives the memory of a range back.
    pub fn release(&mut self, pages: Pages) {
        let (fast, slow) = self.lies(pages.clone());
        self.used_fast -= fast;
        self.used_slow -= slow;
        self.present.set(pages.clone(), false);
        self.fast.set(pages.clone(), false);
        self.slow_first.set(pages, false);
    }

    /// Whether its sums are those of its maps, and within the room.
    pub fn is_sound(&self) -> bool {
        let all = 0..self.present.bits;
        self.lies(all) == (self.used_fast, self.used_slow) && self.used_fast <= self.room
    }
}

/// A map with a bit for each OS page.
#[derive(Clone, Debug)]
struct Bits {
    bits: u64,
    words: Vec<u64>,
}

impl Bits {
    fn new(bits: u64) -> Bits {
        Bits { bits, words: vec![0; index(bits.div_ceil(WORD))] }
    }

    fn get(&self, bit: u64) -> bool {
        self.words[index(bit / WORD)] >> (bit % WORD) & 1 == 1
    }

    fn set(&mut self, range: Pages, value: bool) {
        for (word, mask) in masks(range) {
            let word = &mut self.words[word];
            *word = if value { *word | mask } else { *word & !mask };
        }
    }

    fn count(&self, range: Pages) -> u64 {
        masks(range).map(|(word, mask)| u64::from((self.words[word] & mask).count_ones())).sum()
    }
}

/// The words of a range, and its bits in each.
fn masks(range: Pages) -> impl Iterator<Item = (usize, u64)> {
    let Pages { start, end } = range;
    let last = end.div_ceil(WORD).max(start / WORD);
    (start / WORD..last).map(move |word| {
        let from = start.saturating_sub(word * WORD);
        let to = (end - word * WORD).min(WORD);
        let mask = if to == WORD { u64::MAX } else { (1 << to) - 1 };
        (index(word), mask & (u64::MAX << from))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn first_touch_fills_the_fast_node_then_the_slow_one() {
        let mut memory = Memory::new(200, 70);
        memory.touch(0..60);
        memory.touch(50..200);
        assert_eq!((memory.lies(0..200), memory.left()), ((70, 130), 0));
        assert!(memory.is_fast(69) && !memory.is_fast(70));
        memory.release(0..10);
        memory.touch(0..5);
        assert_eq!((memory.lies(0..10), memory.left()), ((5, 0), 5));
    }

    #[test]
    fn bound_memory_goes_where_it_is_bound_and_spills() {
        let mut memory = Memory::new(100, 10);
        memory.bind(0..50, true);
        memory.touch(0..100);
        assert_eq!((memory.lies(0..50), memory.lies(50..100)), ((0, 50), (10, 40)));
    }

    #[test]
    fn moves_take_the_room_there_is() {
        let mut memory = Memory::new(100, 30);
        memory.touch(0..100);
        assert_eq!(memory.place(50..60, true, 10), 0, "it is full");
        assert_eq!(memory.place(0..100, false, 5), 5);
        assert_eq!(memory.place(50..60, true, 10), 5);
        assert_eq!(memory.lies(50..60), (5, 5));
    }

    #[derive(Clone, Debug)]
    enum Act {
        Touch(Pages),
        Bind(Pages, bool),
        Place(Pages, bool, u64),
        Release(Pages),
    }

    fn any_act() -> impl Strategy<Value = Act> {
        let pages = (0u64..300, 0u64..300).prop_map(|(a, b)| a.min(b)..a.max(b));
        (pages, any::<bool>(), 0u64..300, 0..4).prop_map(|(pages, flag, most, kind)| match kind {
            0 => Act::Touch(pages),
            1 => Act::Bind(pages, flag),
            2 => Act::Place(pages, flag, most),
            _ => Act::Release(pages),
        })
    }

    proptest! {
        #[test]
        fn no_node_ever_holds_more_than_its_room(
            acts in prop::collection::vec(any_act(), 0..40), room in 0u64..300,
        ) {
            let mut memory = Memory::new(300, room);
            for act in acts {
                match act {
                    Act::Touch(pages) => memory.touch(pages),
                    Act::Bind(pages, is_slow) => memory.bind(pages, is_slow),
                    Act::Place(pages, to_fast, most) => {
                        prop_assert!(memory.place(pages, to_fast, most) <= most);
                    }
                    Act::Release(pages) => memory.release(pages),
                }
                prop_assert!(memory.is_sound());
            }
        }
    }
}
