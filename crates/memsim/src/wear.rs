//! How often each block of a node was written.
//! In: addresses of device writes. Out: blocks by the number of their writes.
//! Knows nothing of what wears out, or when.

use serde::Serialize;
use tiercel_machine::number::index;

/// Bytes whose writes are counted together: an OS page, which is what wear levelling and migration
/// move.
pub const WEAR_BLOCK_BYTES: u64 = 4096;
/// Most counters of a node: 4 GiB of memory, 4 MiB of counters. In a larger node blocks a multiple
/// of 4 GiB apart share a counter, so that the highest figures are upper bounds.
pub const WEAR_BLOCKS_MAX: u64 = 1 << 20;
/// Classes of blocks: written 1 time, 2 to 3, 4 to 7, ..., from 2^31.
pub const WEAR_CLASSES: usize = 32;

/// Counters of one node.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    writes: Vec<u32>,
    mask: u64,
}

/// Blocks of a node by how often the device wrote them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Wear {
    /// `blocks[i]` were written 2^i to 2^(i+1) - 1 times.
    pub blocks: [u64; WEAR_CLASSES],
    /// Writes of the block that was written most.
    pub most: u32,
}

impl Counters {
    pub(crate) fn new(capacity_bytes: u64) -> Counters {
        let wanted = capacity_bytes.div_ceil(WEAR_BLOCK_BYTES).clamp(1, WEAR_BLOCKS_MAX);
        let blocks = wanted.next_power_of_two();
        Counters { writes: vec![0; index(blocks)], mask: blocks - 1 }
    }

    #[inline]
    pub(crate) fn add(&mut self, addr: u64) {
        let block = (addr / WEAR_BLOCK_BYTES) & self.mask;
        let writes = &mut self.writes[block as usize];
        *writes = writes.saturating_add(1);
    }

    pub(crate) fn summary(&self) -> Wear {
        let mut wear = Wear::default();
        for &writes in self.writes.iter().filter(|&&writes| writes > 0) {
            wear.blocks[writes.ilog2() as usize] += 1;
            wear.most = wear.most.max(writes);
        }
        wear
    }
}
