//! OS-page tiering of a running process, without anything in it.
//! In: a process, a machine, a sampler. Out: moves executed, a report. Knows nothing of sessions
//! and objects.
//!
//! ```text
//!   /proc/PID/maps --areas--> Regions <--accesses-- sampler        one thread
//!   move_pages without target --places--^  |
//!                        demand, victims --+--> Tiering --moves--> worker: mover's thread
//! ```

mod attached;
mod maps;
mod report;
mod rounds;
mod watched;
mod worker;

pub use attached::{AttachError, Attachment, attach, check};
pub use report::PagesReport;
