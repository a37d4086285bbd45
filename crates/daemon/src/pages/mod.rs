//! OS-page tiering of running processes, without anything in them.
//! In: processes, a machine, a sampler. Out: moves executed, a report. Knows nothing of sessions
//! and objects.
//!
//! ```text
//!   /proc/PID/maps --areas--> Regions <--accesses-- sampler        one thread
//!   move_pages without target --places--^  |
//!                        demand, victims --+--> Tiering --moves--> worker: mover's thread
//! ```

mod attached;
mod budgets;
mod decided;
mod error;
mod family;
#[cfg(test)]
mod fixture;
mod maps;
mod questions;
mod report;
mod reshape;
mod room;
mod rounds;
mod watched;
mod why;
mod worker;

pub use attached::{Attachment, attach, check};
pub use budgets::{BUDGETS_MAX, CgroupBudget, WEIGHT_MAX, directory};
pub use decided::{Decision, LastDecision, MoveResult};
pub use error::AttachError;
pub use family::Target;
pub use report::{GroupReport, PagesReport};
pub use room::support;
pub use why::PageWhy;
