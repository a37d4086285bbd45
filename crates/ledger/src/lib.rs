//! Folds records and samples into objects, extents, heat and cost.
//! In: [`tiercel_wire::Record`]s, [`tiercel_wire::Sample`]s, outcomes of moves, the time. Out:
//! [`Extent`]s. Knows nothing of files, clocks, processes or how anything is moved.
//!
//! An object is a run of *rows*, one per extent, in one slab; each process has an index from
//! address to row. Averages are kept so that closing an interval touches no row: a tick costs what
//! was born in it, however many extents there are.

#![forbid(unsafe_code)]

mod belief;
mod config;
mod counts;
mod extent;
mod forecast;
mod grain;
mod index;
mod ledger;
pub mod movement;
mod news;
mod objects;
mod placement;
mod prior;
mod process;
mod records;
mod resync;
mod row;
mod samples;
mod served;

pub use belief::Beliefs;
pub use config::{Config, ConfigError, EXTENT_BYTES_MAX, OBJECT_BYTES_MAX, OBJECT_EXTENTS_MAX};
pub use counts::{Characteristics, Counts, TickSummary};
pub use extent::{Extent, ExtentId, Range, Residency};
pub use forecast::{Forecast, WITNESSES_MAX, came};
pub use grain::{BUDGET_EXTENTS, DETAILS_MAX, JOINS_MAX, SWEEP_ROWS};
pub use ledger::{Ledger, LedgerError, PROCESSES_MAX};
pub use news::{Event, News};
pub use placement::UNLOCATED_MAX;
pub use prior::SITES_MAX;
pub use process::{CUTS_MAX, TOMBSTONES_MAX};
pub use samples::Hit;
