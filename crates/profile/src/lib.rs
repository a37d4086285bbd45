//! Profiles: what was observed in runs of a program, in memory and as files. In: births, deaths,
//! samples ([`Recorder`]); folders of earlier profiles. Out: a [`Profile`], also as a folder of
//! Parquet tables. Knows nothing of processes, clocks or how names are found.
//!
//! ```text
//!   ledger --LedgerEvent--> Recorder --> Profile <--read/write--> app.profile/
//!   sampler --Sample-->                     |--> merge, diff, keep (within a size)
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

mod check;
mod export;
mod fidelity;
mod ghosts;
mod keep;
mod located;
mod memprof;
mod merge;
mod mixed;
mod overview;
mod phases;
mod profile;
mod recorder;
mod site_label;
mod store;
mod table;
mod tables;
mod tracked;

pub use check::{RUNS_MAX, check};
pub use export::{Format, TABLES};
pub use fidelity::{Fidelity, LARGE_SHARE};
pub use keep::{LIMIT_BYTES, LIMIT_BYTES_MIN};
pub use memprof::{
    Declaration, MemprofError, MemprofRun, memprof_declarations, memprof_profile, memprof_symbols,
};
pub use merge::{MergeError, PARTS_APART_S_MAX, Relation, merge};
pub use mixed::{MIXED_SITES_MAX, Mixed, MixedSite, share_interval};
pub use overview::{AccessSums, Diff, Overview, PhaseDiff, PhaseSums, SiteDiff, SiteSums, diff};
pub use phases::DETECTED_MAX;
pub use profile::{
    Access, AccessSite, Coarsening, Frame, Name, Object, Observed, Phase, Process, Profile, Run,
    SLOT_NS_MIN, ServedBy, Site,
};
pub use recorder::{CELLS_MAX, KEPT_MAX, Names, Recorder, RecorderConfig, SLOTS_MAX};
pub use site_label::{owning_frame, site_label};
pub use store::{FORMAT_VERSION, ProfileError, read, vacant, write};
#[cfg(feature = "forge")]
pub use store::{forge, read_forged};
pub use table::TEXT_BYTES_MAX;
pub use tables::{
    ACCESS_SITES_MAX, ACCESSES_MAX, FRAMES_MAX, NAMES_MAX, OBJECTS_MAX, PHASES_MAX, PROCESSES_MAX,
    SITES_MAX,
};
pub use tracked::PHASES_ENTERED_MAX;
