//! Folds records and samples into objects, extents, heat and cost.
//! In: [`tiercel_wire::Record`]s, [`tiercel_wire::Sample`]s, outcomes of moves, the time. Out:
//! [`Extent`]s. Knows nothing of files, clocks, processes or how anything is moved.
//!
//! An object is a run of *rows*, one per extent, in one slab; each process has an index from
//! address to row. Averages are kept so that closing an interval touches no row: a tick costs what
//! was born in it, however many extents there are.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

mod by_site;
pub mod confidence;
mod config;
mod counts;
mod delivery;
mod estimate;
mod event_buffer;
mod extent;
mod extent_size;
mod flows;
mod group;
mod index;
mod ledger;
mod lives;
pub mod movement;
mod node_latency;
mod node_sums;
mod objects;
mod pace;
mod process;
mod records;
pub mod regions;
mod residency;
mod resync;
mod row;
mod samples;
mod short_lives;
mod site_heat;
mod site_history;
mod sub_extent;
mod value;
mod valuing;

pub use by_site::SITES_MAX;
pub use config::{
    Bounds, Config, ConfigError, EXTENT_BYTES_MAX, OBJECT_BYTES_MAX, OBJECT_EXTENTS_MAX, UNITS_MAX,
};
pub use counts::{Characteristics, Counts, TickSummary};
pub use delivery::WAITING_MAX;
pub use estimate::RateEstimates;
pub use event_buffer::{Event, LedgerEvent};
pub use extent::{Extent, ExtentId, Range, Residency};
pub use extent_size::{BUDGET_EXTENTS, DETAILS_MAX, JOINS_MAX, SWEEP_ROWS};
pub use ledger::{Ledger, LedgerError, PROCESSES_MAX};
pub use lives::{ENDED_MAX, ENDED_TOTAL_MAX, SKEW_NS};
pub use pace::{AtOnce, CHEAP_IN_UNIT, PIECE_UNITS, Pace};
pub use process::{CUTS_MAX, TOMBSTONES_MAX};
pub use residency::UNLOCATED_MAX;
pub use resync::Slice;
pub use samples::{Attributed, Hit, SHARING_MAX};
pub use short_lives::ShortLives;
pub use value::{AccessValue, ExtentValue, TimeScale, VALUE_TAU_UNITS};
