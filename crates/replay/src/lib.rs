//! Replays streams of births, deaths and accesses through placement policies, in a model.
//! In: streams, made from a seed or of a recorded profile, a machine, policies. Out: how long each
//! run takes, beside first touch, other policies, and bounds. Knows nothing of files, clocks or
//! processes: the same seed gives the same figures everywhere.
//!
//! ```text
//!  Stream --+--> replay: World (clock, memory, mover) <--> Tiercel's real ledger and policy,
//!           |                                              real planner, baselines of OS pages
//!           +--> bound: prices of room, exact static choice
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

mod bench;
mod births;
mod bound;
mod chance;
mod drive;
mod energy;
mod generate;
mod heap;
mod memory;
mod mover;
mod pages;
mod planned;
mod presets;
mod recorded;
mod run;
mod sampler;
mod speed;
mod stream;
mod world;

pub use bench::{Bench, Comparison, ContenderResult, Spread};
pub use bound::{EnergyItems, Items, Life, MoveCosts, Paid, lives};
pub use chance::Chance;
pub use drive::{Setting, SettingError};
pub use energy::{Joules, NodeEnergy, Traffic};
pub use generate::{Recipe, SETS, recipes};
pub use heap::Freed;
pub use planned::PlanSetting;
pub use presets::{PRESETS, configured, preset};
pub use recorded::{RecordedError, recorded};
pub use run::{Contender, Model, RunReport, replay, room_of};
pub use speed::{SpeedError, Speeds};
pub use stream::{
    Accesses, BASE, EVENTS_MAX, Event, Half, OS_PAGES_MAX, Piece, Stream, StreamError, What,
};
pub use world::Spent;
