//! What one thread achieves on a machine: how long a byte takes to read, to change and to move.
//! In: measurements. Out: [`Speeds`], plain data. Knows nothing of how they are measured (the
//! mover's calibration does that), or of plans.

use crate::machine::NodeId;
use serde::{Deserialize, Serialize};

/// Most figures of a kind: every node to every node of a large machine.
const FIGURES_MAX: usize = 4096;

/// Longest a byte may take, nanoseconds: a byte a millisecond is no memory.
const NS_PER_BYTE_MAX: f64 = 1e6;

/// What was measured; nothing where nothing was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Speeds {
    /// Going through memory once, by node.
    pub streams: Vec<StreamSpeed>,
    /// Moving memory.
    pub moves: Vec<CopySpeed>,
}

/// One thread going through memory of a node, whatever else the machine does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamSpeed {
    /// The node.
    pub node: NodeId,
    /// Reading a byte, nanoseconds.
    pub read_ns_per_byte: f64,
    /// Reading, changing and writing a byte, nanoseconds.
    pub write_ns_per_byte: f64,
    /// Reading a line whose neighbours are not wanted, and that waits for no other, nanoseconds.
    pub read_line_ns: f64,
    /// Reading, changing and writing such a line, nanoseconds.
    pub write_line_ns: f64,
}

impl StreamSpeed {
    /// All of them.
    pub fn figures(&self) -> [f64; 4] {
        [self.read_ns_per_byte, self.write_ns_per_byte, self.read_line_ns, self.write_line_ns]
    }
}

/// A mover's thread moving memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopySpeed {
    /// From this node.
    pub from: NodeId,
    /// To that one.
    pub to: NodeId,
    /// A byte, nanoseconds.
    pub ns_per_byte: f64,
}

impl Speeds {
    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty() && self.moves.is_empty()
    }

    /// Whether all figures can be.
    pub fn is_sound(&self) -> bool {
        let can_be = |ns: f64| ns > 0.0 && ns <= NS_PER_BYTE_MAX;
        self.streams.len() <= FIGURES_MAX
            && self.moves.len() <= FIGURES_MAX
            && self.streams.iter().all(|s| s.figures().into_iter().all(can_be))
            && self.moves.iter().all(|one| can_be(one.ns_per_byte))
    }

    /// Takes in what another part of the same run measured, where this one measured nothing.
    pub fn absorb(&mut self, other: &Speeds) {
        if self.is_empty() {
            self.clone_from(other);
        }
    }
}
