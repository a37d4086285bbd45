//! One loop over a closed `enum Event`: clients, records, samples, ticks, moves, requests.
//! In: a configuration, a listening socket. Out: moves executed, a summary, a control socket.
//! Knows nothing of terminals; it prints nothing.
//!
//! One thread owns all state ([`Daemon`]); the mover's thread fills a bounded queue.

#![forbid(unsafe_code)]

mod answer;
mod clients;
pub mod config;
mod cpu;
mod daemon;
mod decide;
mod event;
mod metrics;
mod moves;
mod net;
mod observe;
mod plan;
pub mod pools;
mod status;
mod summary;
mod tick;

pub use answer::Objects;
pub use clients::fit::Fits;
pub use clients::sites::{SITES_MAX, SiteRow, Use};
pub use config::{ConfigError, DaemonConfig, Settings};
pub use daemon::{Daemon, DaemonError, Handle, Parts};
pub use moves::log::{LoggedMove, MoveTotals};
pub use net::{protocol, socket_dir};
pub use observe::recording::{NAMED_MAX, name_sites};
pub use plan::runner::{PlanChoice, PlanSummary};
pub use summary::{
    Benefit, BudgetState, ClientCounts, Farewell, ObjectCounts, RecordCounts, SampleCounts, Spent,
    Summary,
};
pub use tiercel_pool::Capacity;
pub use tiercel_wire::Backing;
