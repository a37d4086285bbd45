//! What runs learned of a program's sites, kept from run to run.
//! In: [`RunFigures`] of a run that ended. Out: [`Known`] of all runs, in a [`Store`] of the
//! user's; of it, births for the next run ([`place`]). Knows nothing of how figures are measured,
//! or of how births are carried out.
//!
//! ```text
//!   run ends    RunFigures --Known::absorb--> Known --Store::absorb--> file of the program's build
//!   run begins  file --Store::read--> Known --place (memories, room)--> Plan: births by site
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

mod births;
mod figures;
mod file;
mod merge;
mod store;

pub use births::{Births, Memory, place};
pub use figures::{
    FRAMES_MAX, Identity, Known, LearnedFrame, PARTS, RunFigures, SITES_MAX, SNAPSHOTS_MAX,
    SiteFigures, SiteUse,
};
pub use file::{FILE_BYTES_MAX, FileError, LEARNED_VERSION, decode, encode};
pub use store::{Entry, PROGRAMS_MAX, Store, StoreError, TOTAL_BYTES_MAX, usual_folder};
