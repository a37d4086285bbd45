//! One set-associative write-back cache with pseudo-LRU replacement.
//! In: line numbers. Out: hit or miss, and what had to leave.
//! Knows nothing of levels, cores or time.
//!
//! ```text
//!   tags    [set][way]  line number + 1, 0 = empty
//!   recent  [set]       one bit per way: used since the set's last reset
//!   dirty   [set]       one bit per way: written since it came in
//! ```
//!
//! Replacement is bit-PLRU: a use sets the way's bit; when all are set, all others are cleared; the
//! victim is the first way whose bit is clear. It works for any number of ways, where tree-PLRU
//! needs a power of two, and stays as close to LRU.

use crate::{LINE_BYTES, ModelError};

/// Most ways: the bits of a word.
pub const MAX_WAYS: u32 = 64;

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
    ways: usize,
    sets: u64,
    tags: Vec<u64>,
    recent: Vec<u64>,
    dirty: Vec<u64>,
    /// The bits of all ways.
    all: u64,
}

/// What an access met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The line was there.
    Hit,
    /// It was not, and is now; a line may have left for it.
    Miss(Option<Evicted>),
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
            return refuse("ways must be 1 to 64");
        }
        let set_bytes = u64::from(ways) * LINE_BYTES;
        if bytes == 0 || !bytes.is_multiple_of(set_bytes) {
            return refuse("the size must be a multiple of ways x 64 bytes");
        }
        let sets = bytes / set_bytes;
        let all = u64::MAX >> (MAX_WAYS - ways);
        Ok(Cache {
            ways: ways as usize,
            sets,
            tags: vec![0; (sets * u64::from(ways)) as usize],
            recent: vec![0; sets as usize],
            dirty: vec![0; sets as usize],
            all,
        })
    }

    /// Reads or writes a line, bringing it in if it is not there.
    pub fn access(&mut self, line: u64, write: bool) -> Outcome {
        let set = self.set_of(line);
        let (way, outcome) = match self.way_of(set, line) {
            Some(way) => (way, Outcome::Hit),
            None => {
                let way = self.victim(set);
                (way, Outcome::Miss(self.replace(set, way, line)))
            }
        };
        self.touch(set, way);
        self.dirty[set] |= u64::from(write) << way;
        outcome
    }

    /// Whether the line is here; changes nothing.
    pub fn holds(&self, line: u64) -> bool {
        self.way_of(self.set_of(line), line).is_some()
    }

    fn set_of(&self, line: u64) -> usize {
        let mask = self.sets - 1;
        let set = if self.sets & mask == 0 { line & mask } else { line % self.sets };
        set as usize
    }

    fn way_of(&self, set: usize, line: u64) -> Option<usize> {
        self.tags[set * self.ways..][..self.ways].iter().position(|&tag| tag == line + 1)
    }

    /// The first empty way, else the first not used recently. `touch` keeps one bit clear unless
    /// there is but one way.
    fn victim(&self, set: usize) -> usize {
        let empty = self.tags[set * self.ways..][..self.ways].iter().position(|&tag| tag == 0);
        let idle = (!self.recent[set] & self.all).trailing_zeros() as usize;
        empty.unwrap_or(if idle < self.ways { idle } else { 0 })
    }

    fn replace(&mut self, set: usize, way: usize, line: u64) -> Option<Evicted> {
        let tag = &mut self.tags[set * self.ways + way];
        let old = std::mem::replace(tag, line + 1);
        let dirty = self.dirty[set] >> way & 1 == 1;
        self.dirty[set] &= !(1 << way);
        (old != 0).then(|| Evicted { line: old - 1, dirty })
    }

    fn touch(&mut self, set: usize, way: usize) {
        let recent = self.recent[set] | 1 << way;
        self.recent[set] = if recent == self.all { 1 << way } else { recent };
    }
}
