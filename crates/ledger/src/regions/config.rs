//! What the ledger of OS pages must know of the machine, and what it refuses.
//! In: nodes. Out: plain data. Knows nothing of accesses.

use tiercel_machine::NodeId;

use super::space::Evidence;

/// Nodes with CPUs that an accessor code can name, beside the mark of several.
pub(crate) const ACCESSORS: usize = 7;

/// What the ledger must know of the machine.
#[derive(Clone, Debug, Default)]
pub struct RegionsConfig {
    /// Windows of a history, 1 to 8.
    pub history: u8,
    /// How accesses are seen.
    pub evidence: Evidence,
    /// Which units ask to move.
    pub demand: Demand,
    /// Nodes with memory, at most 15.
    pub nodes: Vec<NodeId>,
    /// Nodes with CPUs, at most 7, and where memory is best for each.
    pub views: Vec<View>,
    /// Nodes of the best tier.
    pub fast: Vec<NodeId>,
}

/// Which units ask to move, of those that lie elsewhere than their accessor wants them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Demand {
    /// Those that were accessed in two windows running (pages.md 2).
    #[default]
    Running,
    /// Those that were accessed in two windows of a history: what takes several windows to stream
    /// through its memory accesses nothing in two windows running.
    Repeated,
}

/// A node with CPUs.
#[derive(Clone, Debug)]
pub struct View {
    /// Which.
    pub node: NodeId,
    /// The nodes that are best for its CPUs.
    pub best: Vec<NodeId>,
}

/// Why there can be no ledger of OS pages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionsError {
    /// A history has 1 to 8 windows.
    #[error("pages.history = {0}: must be from 1 to 8")]
    History(u8),
    /// Too many nodes.
    #[error("{what} of this machine are {count}, and OS-page tiering knows at most {limit}")]
    Nodes {
        /// Which kind of nodes.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        limit: usize,
    },
}
