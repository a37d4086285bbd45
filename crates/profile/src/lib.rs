//! Profiles and plans as files: what was seen of a program, and what to do about it.
//! In: births, deaths, samples ([`Recorder`]); folders written before. Out: a [`Profile`], the
//! same as a folder of Parquet tables. Knows nothing of processes, clocks or how names are found.
//!
//! ```text
//!   ledger --News--> Recorder --> Profile <--read/write--> app.profile/
//!   sampler --Sample-->              |--> merge, diff, keep (a size), workload (the planner's)
//! ```

#![forbid(unsafe_code)]

mod check;
mod place;
mod profile;
mod store;
mod table;
mod tables;
mod wrappers;

pub use check::{RUNS_MAX, check};
pub use place::{deserving, place};
pub use profile::{
    Access, Coarse, Frame, Name, Object, Phase, Process, Profile, Run, SLOT_NS_MIN, Seen, Site,
};
pub use store::{FORMAT_VERSION, ProfileError, read, vacant, write};
pub use tables::{
    ACCESSES_MAX, FRAMES_MAX, NAMES_MAX, OBJECTS_MAX, PHASES_MAX, PROCESSES_MAX, SITES_MAX,
};
pub use wrappers::is_wrapper;
