//! One loop over a closed `enum Event`: clients, records, samples, ticks, moves, requests.
//! In: a configuration, a listening socket. Out: moves executed, a summary, a control socket.
//! Knows nothing of terminals; it prints nothing.
//!
//! One thread owns all state ([`Daemon`]); the mover's thread fills a bounded queue.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

mod answer;
mod births;
mod clients;
pub mod config;
mod config_keys;
mod cpu;
mod daemon;
mod decisions;
mod event;
mod metrics;
mod moves;
mod moving;
mod net;
mod observe;
mod own_memory;
pub mod pages;
mod parts;
mod plan;
pub mod pools;
mod quota;
mod schedule;
mod sockets;
mod summary;
mod tiers;
mod tracking;

pub use answer::SiteRows;
pub use clients::origin::Origin;
pub use clients::processes::ProcessRow;
pub use clients::sharers::{Shared, Sharer};
pub use clients::site_use::{Fits, Use};
pub use clients::sites::{SiteRow, judge};
pub use config::{ConfigError, DaemonConfig, Settings};
pub use daemon::Daemon;
#[cfg(feature = "forge")]
pub use daemon::forge::Stepped;
pub use moves::log::{LoggedMove, MoveTotals};
#[cfg(feature = "forge")]
pub use net::control::UNREAD_BYTES_MAX;
pub use net::{protocol, socket_dir};
pub use observe::coverage::Coverage;
pub use observe::recording::{NAMED_MAX, name_sites};
pub use parts::{DaemonError, Handle, Parts};
pub use plan::choice::{PlanChoice, PlanRole};
pub use summary::{
    BudgetState, ClientCounts, FinalReport, ObjectCounts, PlanSummary, RecordCounts, SampleCounts,
    Spent, Summary,
};
pub use tiercel_pool::Capacity;
pub use tiercel_wire::Backing;
