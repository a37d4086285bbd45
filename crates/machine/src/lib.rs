//! A machine as data: nodes, CPUs, distances, tier order.
//! In: a sysfs tree below a given root, or a TOML description. Out: [`Machine`].
//! Knows nothing of objects, policies or how anything is moved.

#![forbid(unsafe_code)]

mod finding;

pub use finding::{Finding, Standing};

use serde::{Deserialize, Serialize};

/// The kernel's number of a node (or an emulated pool's number after them).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u16);
