//! Rust mirror of `include/`: every byte that crosses a process boundary.
//! In: a session's memfd, a datagram. Out: [`Record`]s, sites, modules, snapshots of the object
//! table. Knows nothing of heat, policies or the kernel's memory management.
//!
//! The client at the other end is not trusted: [`Session`] copies before it looks, bounds every
//! index, and does bounded work per call, whatever stands in the shared memory.

#![warn(unreachable_pub)]
#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

mod access;
mod bits;
pub mod client;
pub mod clock;
pub mod emulator;
mod greeting;
pub mod interrupt;
pub mod layout;
mod mapping;
pub mod maps;
mod moves;
mod offer;
pub mod peer;
mod planned;
mod pool;
mod probe;
mod record;
pub mod ring;
mod session;
mod site;
mod small;
mod snapshot;
pub mod stat;

pub use access::{AccessedBy, Pattern};
pub use clock::{ClockSource, Now, Timeline};
pub use greeting::{GreetingError, Hello, Status, Welcome};
pub use moves::{Backing, MoveLine, Moved};
pub use offer::{Counts, Offer, Terms};
pub use planned::{PhaseName, PlanError, PlanRange, PlanRow, phase_hash};
pub use pool::{GrantKey, PoolAnswer, PoolAsk, PoolStatus, PoolVerb};
pub use probe::{CacheShape, ProbeTerms, RATE_SHIFT_MAX, WAYS_MAX};
pub use record::{Flags, RawRecord, Record, Version};
pub use session::{Drained, Header, Session, SessionError};
pub use site::{Frame, Module, Site, SiteKind};
pub use small::Small;
pub use snapshot::{ObjectSnapshot, TableSlice};

/// One observed access to memory, as every sampler reports it.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Sample {
    /// When it happened, or the sampler looked first: nanoseconds of the daemon's clock.
    pub from_ns: u64,
    /// The same as `from_ns`, or when the sampler looked again: what it saw happened in between.
    pub until_ns: u64,
    /// Process (thread group) that accessed, in the daemon's pid namespace.
    pub pid: u32,
    /// Thread, 0 where the sampler does not know it.
    pub tid: u32,
    /// Virtual address, bytes.
    pub addr: u64,
    /// What the access did, where known.
    pub kind: AccessKind,
    /// Load-to-use latency where the source measures it.
    pub latency_ns: Option<u32>,
    /// Kernel number of the node that served it, where the source reports it.
    pub node: Option<u16>,
    /// Accesses this sample stands for (the sampling period, or bytes / line size for a probe).
    pub weight: u32,
    /// What else went on, where the source reports it.
    pub around: Option<Around>,
    /// The CPU that accessed, as the kernel numbers it, where the source reports it.
    #[serde(default)]
    pub cpu: Option<u16>,
    /// The code that accessed, where the source reports it.
    #[serde(default)]
    pub by: Option<AccessedBy>,
}

/// What a source saw around an access that missed the caches.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Around {
    /// Misses of its CPU that were under way at once lately, while there were any; at least 1.
    pub at_once: f32,
    /// Its block of [`emulator::BLOCK_BYTES`] had no other miss lately: a memory that reads such
    /// blocks read one for this line alone.
    pub apart: bool,
}

/// Read, write, or unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum AccessKind {
    /// A load.
    Read,
    /// A store.
    Write,
    /// The source does not distinguish.
    Unknown,
    /// A store, as far as it makes a line dirty that no cache had dirty: an event of its own beside
    /// reads and writes, reported by sources that are asked for it. It goes back to memory once.
    Dirtied,
}
