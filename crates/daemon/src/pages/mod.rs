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
mod error;
mod family;
mod maps;
mod report;
mod rounds;
mod watched;
mod worker;

pub use attached::{Attachment, attach};
pub use error::AttachError;
pub use family::Target;
pub use report::PagesReport;
