//! The blocks used last of a memory that reads and writes more than a line at a time.
//! In: blocks, by number. Out: whether they are still there. Knows nothing of time.

use crate::place;

/// Optane has 16 KiB of 256 bytes (Izraelevitz 2019). Four ways, by hash, since streams that run
/// together often lie a power of two apart.
const SETS: usize = 16;
const WAYS: usize = 4;

/// Blocks by set, those used last in front.
#[derive(Clone, Debug)]
pub struct Blocks([[u64; WAYS]; SETS]);

impl Blocks {
    /// How many there are.
    pub const COUNT: usize = SETS * WAYS;

    /// Uses a block. Whether it was among those used last.
    #[inline]
    pub fn uses(&mut self, block: u64) -> bool {
        let set = &mut self.0[place(block, SETS as u64)];
        let found = set.iter().position(|&held| held == block);
        set[..=found.unwrap_or(WAYS - 1)].rotate_right(1);
        set[0] = block;
        found.is_some()
    }
}

impl Default for Blocks {
    /// None yet.
    fn default() -> Blocks {
        Blocks([[u64::MAX; WAYS]; SETS])
    }
}
