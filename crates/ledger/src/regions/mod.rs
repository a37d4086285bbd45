//! OS pages that no object names: what each was accessed by, how often lately, and where it is.
//! In: mappings, accesses, residency, the ends of windows. Out: [`Unit`]s. Knows nothing of who
//! moves them.
//!
//! ```text
//!   process --(address / 2 MiB)--> piece          block = 64 pieces, with a summary
//!
//!   a piece: 512 OS pages, a bit of each in
//!     history   8 planes of 64 bytes, a ring: the open window, and those before it
//!     node      one number, or 4 planes where its OS pages differ
//!     accessor  likewise
//!   level = bits set in the history: the planes are added bit by bit, for 512 OS pages at once
//!
//!   a summary: for each node, the levels that the block has there; it may name too many, never too
//!   few. A clock hand for each group and node looks for a level where summaries name it.
//! ```

mod block;
mod codes;
mod config;
mod early;
mod hand;
mod huge;
mod planes;
mod space;
mod store;
mod tally;
mod unit;

pub use config::{Demand, RegionsConfig, RegionsError, View};
pub use early::Early;
pub use space::{Area, Evidence};
pub use store::{DEMAND_MAX, PIECES_MAX, Regions, Window};
pub use unit::{Accessor, GroupId, LEVEL_MAX, Unit, UnitKey};

/// An OS page.
pub(crate) const OS_PAGE_BYTES: u64 = 4096;
/// OS pages of a piece: a huge OS page, and the largest unit.
pub(crate) const PIECE_PAGES: usize = 512;
/// Bytes of a piece.
pub(crate) const PIECE_BYTES: u64 = 2 << 20;
