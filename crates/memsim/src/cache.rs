//! One set-associative write-back cache with pseudo-LRU replacement.
//! In: line numbers. Out: hit or miss, and what had to leave.
//! Knows nothing of levels, cores or time.
//!
//! ```text
//!   sets    [set]       recent (32 bits) | dirty (32 bits), then a byte of hash per way, 8 a word
//!   tags    [set][way]  32 bits, 0 = empty; ways filled up to a multiple of 8
//! ```
//!
//! A look-up compares eight ways at once: the bytes of a word that equal the line's hash are found
//! by arithmetic, and mostly only the right way's tag is read. So a miss in a cache that is larger
//! than the host's own touches one line of the host's memory, not one for every few ways. Of a
//! line's number (its set left out) the tag has the upper 32 bits; the hash has the lower 8,
//! stirred with the tag, so that both together are the line, in five bytes.
//!
//! Replacement is bit-PLRU: a use sets the way's bit; when all are set, all others are cleared; the
//! victim is the first way whose bit is clear. It works for any number of ways, where tree-PLRU
//! needs a power of two, and stays as close to LRU. No line leaves but for another, so until a set
//! is full its first clear bit is its first empty way.

use crate::{LINE_BYTES, ModelError};
use tiercel_machine::number::index;

/// Most ways: `recent` and `dirty` share a word.
pub const MAX_WAYS: u32 = 32;

/// Ways whose hashes are compared at once.
const LANES: usize = 8;
/// One in every byte.
const ONES: u64 = 0x0101_0101_0101_0101;
/// All but the highest bit of every byte.
const LOW: u64 = 0x7F7F_7F7F_7F7F_7F7F;
/// Bits of a line's number, above its set, that the hash keeps; the tag has 32 more. With 64 sets
/// that is every address below 2^52.
const HASH_BITS: u32 = 8;

/// Size of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Capacity in bytes.
    pub bytes: u64,
    /// Ways of a set.
    pub ways: u32,
}

/// A cache.
#[derive(Clone, Debug)]
pub struct Cache {
    ways: u32,
    sets: u64,
    /// `sets - 1` if that is a mask.
    mask: Option<u64>,
    /// Bits of it.
    shift: u32,
    /// Words of hashes in a set.
    words: usize,
    state: Vec<u64>,
    tags: Vec<u32>,
    /// The `recent` bits of all ways.
    all: u64,
}

/// A line's number without its set: all of it, in 32 bits (0 is no line) and 8.
#[derive(Clone, Copy)]
struct Name {
    tag: u32,
    hash: u64,
}

/// A line that left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// Which.
    pub line: u64,
    /// Whether it was written while it was here.
    pub dirty: bool,
}

impl Cache {
    /// An empty cache.
    pub fn new(shape: CacheShape) -> Result<Cache, ModelError> {
        let CacheShape { bytes, ways } = shape;
        let refuse = |what| Err(ModelError::Cache { bytes, ways, what });
        if ways == 0 || ways > MAX_WAYS {
            return refuse("ways must be 1 to 32");
        }
        let set_bytes = u64::from(ways) * LINE_BYTES;
        if bytes == 0 || !bytes.is_multiple_of(set_bytes) {
            return refuse("the size must be a multiple of ways x 64 bytes");
        }
        let sets = bytes / set_bytes;
        let words = (ways as usize).div_ceil(LANES);
        Ok(Cache {
            ways,
            sets,
            mask: sets.is_power_of_two().then_some(sets - 1),
            shift: sets.ilog2(),
            words,
            state: vec![0; index(sets) * (1 + words)],
            tags: vec![0; index(sets) * words * LANES],
            all: u64::from(u32::MAX >> (MAX_WAYS - ways)),
        })
    }

    /// Reads or writes a line if it is here; whether it is. A miss changes nothing.
    #[inline]
    pub fn hit(&mut self, line: u64, write: bool) -> bool {
        let (set, name) = self.place_of(line);
        let Some(way) = self.way_of(set, name) else { return false };
        self.touch(set, way, write);
        true
    }

    /// Brings in a line that is not here; what left for it.
    #[inline]
    pub fn fill(&mut self, line: u64, write: bool) -> Option<Evicted> {
        let (set, name) = self.place_of(line);
        let at = set * (1 + self.words);
        let idle = !self.state[at] & self.all;
        // One way alone has no other to prefer.
        let way = if idle == 0 { 0 } else { idle.trailing_zeros() as usize };
        let dirty_bit = 1 << (MAX_WAYS as usize + way);
        let dirty = self.state[at] & dirty_bit != 0;
        self.state[at] &= !dirty_bit;
        let hashes = &mut self.state[at + 1 + way / LANES];
        let shift = way % LANES * 8;
        let old_hash = *hashes >> shift & 0xFF;
        *hashes = *hashes & !(0xFF << shift) | name.hash << shift;
        let tag = &mut self.tags[set * self.words * LANES + way];
        let old = Name { tag: std::mem::replace(tag, name.tag), hash: old_hash };
        self.touch(set, way, write);
        (old.tag != 0).then(|| Evicted { line: old.number() * self.sets + set as u64, dirty })
    }

    /// Whether the line is here; changes nothing.
    pub fn holds(&self, line: u64) -> bool {
        let (set, name) = self.place_of(line);
        self.way_of(set, name).is_some()
    }

    /// Whether the line is here and was written while it was; changes nothing.
    pub fn holds_dirty(&self, line: u64) -> bool {
        let (set, name) = self.place_of(line);
        let bit = |way: usize| 1 << (MAX_WAYS as usize + way);
        let state = self.state[set * (1 + self.words)];
        self.way_of(set, name).is_some_and(|way| state & bit(way) != 0)
    }

    /// The set a line belongs to.
    #[inline]
    pub fn set_of(&self, line: u64) -> usize {
        self.place_of(line).0
    }

    /// Its set, and its name there.
    #[inline]
    fn place_of(&self, line: u64) -> (usize, Name) {
        match self.mask {
            Some(mask) => (index(line & mask), Name::new(line >> self.shift)),
            None => (index(line % self.sets), Name::new(line / self.sets)),
        }
    }

    #[inline]
    fn way_of(&self, set: usize, name: Name) -> Option<usize> {
        let at = set * (1 + self.words) + 1;
        let wanted = name.hash * ONES;
        let tags = &self.tags[set * self.words * LANES..][..self.words * LANES];
        for (word, &hashes) in self.state[at..at + self.words].iter().enumerate() {
            let mut equal = zero_bytes(hashes ^ wanted);
            while equal != 0 {
                let way = word * LANES + equal.trailing_zeros() as usize / 8;
                if tags[way] == name.tag {
                    return Some(way);
                }
                equal &= equal - 1;
            }
        }
        None
    }

    #[inline]
    fn touch(&mut self, set: usize, way: usize, write: bool) {
        debug_assert!(way < self.ways as usize);
        let state = &mut self.state[set * (1 + self.words)];
        *state |= 1 << way | u64::from(write) << (MAX_WAYS as usize + way);
        if *state & self.all == self.all {
            *state = *state & !self.all | 1 << way;
        }
    }
}

impl Name {
    #[inline]
    fn new(number: u64) -> Name {
        let upper = number >> HASH_BITS;
        debug_assert!(upper < u64::from(u32::MAX), "line {number:#x} is beyond any memory");
        let tag = (upper & 0xFFFF_FFFF) as u32 + 1;
        Name { tag, hash: (number ^ Name::stir(tag)) & 0xFF }
    }

    #[inline]
    fn number(self) -> u64 {
        u64::from(self.tag - 1) << HASH_BITS | self.hash ^ Name::stir(self.tag)
    }

    /// A byte of the tag, so that lines a power of two apart have different hashes.
    #[inline]
    fn stir(tag: u32) -> u64 {
        u64::from(tag.wrapping_mul(0x9E37_79B9) >> 24)
    }
}

/// The highest bit of every byte that is zero, and no other bit.
#[inline]
fn zero_bytes(word: u64) -> u64 {
    !(((word & LOW) + LOW) | word | LOW)
}
