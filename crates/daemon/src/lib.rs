//! One loop over a closed `enum Event`: clients, records, samples, ticks, moves, requests.
//! In: a configuration, a listening socket. Out: moves executed, a summary, a control socket.
//! Knows nothing of terminals; it prints nothing.
//!
//! One thread owns all state ([`Daemon`]); the mover's thread fills a bounded queue.

#![forbid(unsafe_code)]

mod adapt;
mod answer;
mod choice;
mod client;
pub mod config;
pub mod control;
mod cpu;
mod cuts;
mod daemon;
mod decide;
mod desk;
mod early;
mod event;
mod fits;
mod greet;
mod hands;
mod insider;
mod matcher;
mod metrics;
mod moves;
pub mod place;
mod planned;
mod poller;
pub mod pools;
mod record;
mod sites;
mod speeds;
mod status;
mod summary;
pub mod symbols;
mod tick;
pub mod units;
mod watch;

pub use answer::Objects;
pub use choice::MachineChoice;
pub use config::{ConfigError, DaemonConfig, Settings};
pub use daemon::{Daemon, DaemonError, Handle, Parts};
pub use fits::Fits;
pub use moves::{LoggedMove, MoveTotals};
pub use planned::{PlanChoice, PlanSummary};
pub use record::{NAMED_MAX, name_sites};
pub use sites::{SITES_MAX, SiteRow, Use};
pub use speeds::measure;
pub use summary::{
    Benefit, BudgetState, ClientCounts, Farewell, ObjectCounts, RecordCounts, SampleCounts, Spent,
    Summary,
};
pub use tiercel_pool::Capacity;
pub use tiercel_profile::is_wrapper;
pub use tiercel_wire::Backing;
