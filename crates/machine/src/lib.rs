//! A machine as data: nodes, CPUs, distances, tier order, spaces.
//! In: a sysfs tree below a given root, or a TOML description. Out: [`Machine`].
//! Knows nothing of objects, policies or how anything is moved; only [`discover`] and [`room`] read
//! files, and only below the root they are given.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

mod builtin;
mod choice;
mod curve;
mod discover;
mod finding;
mod kind;
mod machine;
mod miss;
mod move_room;
pub mod number;
mod room;
mod span;
mod speeds;
mod text;
mod tier;
mod topo;
mod units;
mod zones;

pub use builtin::BUILTIN_NAMES;
pub use choice::MachineChoice;
pub use curve::{CurveLine, loaded_latency_ns, peak_gb_s};
pub use finding::{Finding, Standing};
pub use machine::{Basis, Energy, Figures, Kind, Link, Machine, Node, NodeId};
pub use miss::MissCost;
pub use move_room::{Granted, MoveRoom};
pub use room::Room;
pub use span::{SpanError, TimeSpan};
pub use speeds::{CopySpeed, Speeds, StreamSpeed};
pub use text::{NodeOverride, Overrides};
pub use tier::{Space, Tier};
pub use topo::{Topo, TopoNode, TopoSpace, TopoTier};
pub use units::{CpuList, UnitError, bytes, format_bytes, parse_bytes, short_bytes};
pub use zones::Zone;

/// Something odd that was seen and worked around: the machine is usable, the user should know.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// Where: a path, or `node 3`.
    pub place: String,
    /// What is odd, and what was done instead.
    pub what: String,
    /// What the user can do; empty when there is nothing to do.
    pub remedy: String,
}

/// Why there is no machine at all.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The text is not TOML, has an unknown key, or a value of the wrong type.
    /// The message shows line and column.
    #[error("machine description: {0}")]
    Syntax(#[from] toml::de::Error),
    /// The text parses, and describes something impossible.
    #[error("machine description: {place}: {what}")]
    Invalid {
        /// Which part: `node 3`, `link 0 -> 1`.
        place: String,
        /// What is wrong with it.
        what: String,
    },
    /// Neither nodes nor a memory size below the root.
    #[error("{path}: {what}; is this the root of a Linux file system with /sys and /proc?")]
    NoMemory {
        /// What was read.
        path: String,
        /// What is missing in it.
        what: String,
    },
    /// More nodes than a machine can have.
    #[error("{count} nodes; at most {limit} are supported")]
    TooManyNodes {
        /// How many there are.
        count: usize,
        /// [`machine::MAX_NODES`].
        limit: usize,
    },
}
