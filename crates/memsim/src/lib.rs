//! Modelled hardware: caches, a miss window, memories with loaded latency, energy and wear.
//! In: a machine description and a stream of memory accesses. Out: when each is served, by what.
//! Knows nothing of programs, objects or policies; time is what the accesses make it.
//!
//! ```text
//!   access --> Core: first level --hit--> done
//!                |
//!                '--miss--> private levels --> Uncore: shared level --> Memory (its latency now)
//!                             Window: when may it go out, and how far may the core run ahead?
//!                             Prefetcher: what will be missed next?
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

mod blocks;
mod cache;
mod core;
mod memory;
mod prefetch;
mod simulator;
mod wear;
mod window;

pub use crate::core::{
    Access, Core, CoreShape, LevelShape, MAX_LEVELS, Pending, Prefetches, Served, Uncore,
};
pub use blocks::Blocks;
pub use cache::{Cache, CacheShape, Evicted, MAX_WAYS};
pub use memory::{Memory, NodeUse, Port};
pub use prefetch::{Ahead, PrefetchShape, Prefetcher, STREAMS};
pub use simulator::{Simulator, SimulatorShape};
pub use wear::{WEAR_BLOCK_BYTES, WEAR_BLOCKS_MAX, WEAR_CLASSES, Wear};
pub use window::{MAX_MSHRS, MAX_WINDOW, Mshr, Progress, Window, WindowShape};

use tiercel_machine::number::index;

/// Bytes of a cache line; the unit of all traffic.
pub const LINE_BYTES: u64 = 64;

/// 2^64 over the golden ratio: its products spread neighbours over the highest bits.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Picoseconds of a nanosecond. Time is whole picoseconds, so that runs repeat bit for bit.
pub const PS_PER_NS: f64 = 1000.0;

/// Where something with this number has its place in a table of a power of two places: neighbours
/// and numbers a power of two apart are spread.
#[inline]
fn place(number: u64, places: u64) -> usize {
    index(number.wrapping_mul(SPREAD) >> (u64::BITS - places.ilog2()))
}

/// Why a model cannot be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// A cache whose size is not ways x line x a whole number of sets, or with too many ways.
    #[error("cache of {bytes} bytes in {ways} ways: {what}")]
    Cache {
        /// Its size.
        bytes: u64,
        /// Its ways.
        ways: u32,
        /// What is wrong.
        what: &'static str,
    },
    /// More cache levels than there can be, or no core.
    #[error("{0}")]
    Shape(&'static str),
    /// A node without the figures that timing needs.
    #[error("node {node}: {figure} is unknown; give it in the machine description")]
    Unknown {
        /// Which node.
        node: tiercel_machine::NodeId,
        /// Which figure.
        figure: &'static str,
    },
}
