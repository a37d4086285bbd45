//! Private caches per core below one shared cache.
//! In: core, line, read or write. Out: the level that served it, and the lines memory must write.
//! Knows nothing of time. Not modelled: coherence between cores (two cores that write one line both
//! keep it) and back-invalidation (a line may outlive its copy in the shared cache).

use crate::cache::{Cache, CacheShape, Outcome};
use crate::{LINE_BYTES, ModelError};

/// Most levels, shared one included.
pub const MAX_LEVELS: usize = 4;

/// Sizes of all caches of a processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HierarchyShape {
    /// Cores, each with its own private caches.
    pub cores: usize,
    /// Private levels, the first closest to the core.
    pub private: Vec<CacheShape>,
    /// The last level, of all cores together.
    pub shared: Option<CacheShape>,
}

/// The caches.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    private: Vec<Vec<Cache>>,
    shared: Option<Cache>,
    levels: usize,
}

/// How an access was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// 0 is the level closest to the core; as many as there are levels: by memory.
    pub level: usize,
    /// Lines that memory must take, because a dirty one left the last level for each.
    pub written_back: Lines,
}

/// A few lines; one dirty line may leave the last level for each level that takes something in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    lines: [u64; MAX_LEVELS],
    length: usize,
}

impl Hierarchy {
    /// Empty caches.
    pub fn new(shape: &HierarchyShape) -> Result<Hierarchy, ModelError> {
        let levels = shape.private.len() + usize::from(shape.shared.is_some());
        if levels == 0 || levels > MAX_LEVELS || shape.cores == 0 {
            return Err(ModelError::Shape("1 to 4 cache levels and at least one core are needed"));
        }
        let of_core = || shape.private.iter().map(|&shape| Cache::new(shape)).collect();
        let private = (0..shape.cores).map(|_| of_core()).collect::<Result<_, _>>()?;
        let shared = shape.shared.map(Cache::new).transpose()?;
        Ok(Hierarchy { private, shared, levels })
    }

    /// How many levels there are; also the `level` of what memory serves.
    pub fn levels(&self) -> usize {
        self.levels
    }

    /// One access of a core to the line of `addr`. A line that misses comes into every level above
    /// the one that has it; only the first level learns that it was written, the others when it is
    /// evicted.
    pub fn access(&mut self, core: usize, addr: u64, write: bool) -> Served {
        let line = addr / LINE_BYTES;
        let mut served = Served { level: self.levels, written_back: Lines::default() };
        let mut left = [None; MAX_LEVELS];
        for (level, evicted) in left.iter_mut().enumerate().take(self.levels) {
            match self.cache(core, level).access(line, write && level == 0) {
                Outcome::Hit => {
                    served.level = level;
                    break;
                }
                Outcome::Miss(victim) => *evicted = victim,
            }
        }
        // From the last level up, so that what leaves a level finds the state after the fill below
        // it.
        for level in (0..self.levels).rev() {
            let mut leaving = left[level].filter(|evicted| evicted.dirty);
            for below in level + 1..self.levels {
                let Some(evicted) = leaving else { break };
                leaving = match self.cache(core, below).access(evicted.line, true) {
                    Outcome::Hit => None,
                    Outcome::Miss(victim) => victim.filter(|victim| victim.dirty),
                };
            }
            if let Some(evicted) = leaving {
                served.written_back.push(evicted.line);
            }
        }
        served
    }

    fn cache(&mut self, core: usize, level: usize) -> &mut Cache {
        let private = &mut self.private[core];
        match private.get_mut(level) {
            Some(cache) => cache,
            None => self.shared.as_mut().expect("levels counts the shared one only if it exists"),
        }
    }
}

impl Lines {
    /// The line numbers.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.lines[..self.length].iter().copied()
    }

    fn push(&mut self, line: u64) {
        self.lines[self.length] = line;
        self.length += 1;
    }
}
