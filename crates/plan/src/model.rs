//! The plan as a file: which memory the objects of each site are born in and go to, and why.
//! In: JSON. Out: a [`Plan`] that is valid, or a refusal. Knows nothing of how plans are found or
//! followed.
//!
//! ```text
//!   plan -- memories (fastest first) -- sites -- size classes -- places, one for each phase
//! ```
//!
//! It is made to be read and compared by people: the order of sites does not change with their
//! gain, and every placement states what is expected of it.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use tiercel_machine::NodeId;

/// Smallest size class of a plan: objects of one OS page, 2^12 bytes.
pub const CLASS_MIN: u32 = 12;

/// What to do in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The program whose profile it was made from.
    pub program: PlannedProgram,
    /// The machine that it was made for.
    pub machine: PlannedMachine,
    /// The options that it was requested with.
    pub options: PlanOptions,
    /// Its expected effect.
    pub expected: Expected,
    /// Where objects go that it does not know.
    pub unplanned: Unplanned,
    /// Where new blocks of small slots go, a node; absent: as for unknown objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub small_objects: Option<NodeId>,
    /// Phases that it knows by name, in the order in which they were first entered. Empty:
    /// placements do not depend on phases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PlannedPhase>,
    /// Files to which stacks refer by index.
    pub modules: Vec<PlannedModule>,
    /// What is planned, by site.
    pub sites: Vec<PlannedSite>,
}

/// A program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedProgram {
    /// Path of its executable file.
    pub path: String,
    /// Its GNU build-id, hexadecimal; empty when it has none.
    pub build_id: String,
}

/// A machine, as far as a plan needs it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedMachine {
    /// Its name.
    pub name: String,
    /// Its memories, fastest first.
    pub memories: Vec<PlannedMemory>,
    /// What the plan leaves free of the fastest, bytes: for memory that is no object (the program's
    /// stacks and data, the runtime's own), and a margin where what would fill it gains little.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub held_back_bytes: u64,
    /// The estimated migration cost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<PlannedMove>,
}

/// What moving a byte costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedMove {
    /// From this node.
    pub from: NodeId,
    /// To that one.
    pub to: NodeId,
    /// Nanoseconds.
    pub ns_per_byte: f64,
    /// What the figure is based on.
    pub basis: Basis,
}

/// What a figure is based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// Measured on this machine, before the recorded run.
    Measured,
    /// Described, and scaled by what was measured on another machine.
    Scaled,
    /// The machine's description.
    Described,
}

/// One kind of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedMemory {
    /// The name that users see.
    pub name: String,
    /// Its nodes; objects go to the first.
    pub nodes: Vec<NodeId>,
    /// Most bytes that the plan uses of it.
    pub capacity_bytes: u64,
}

/// The options of a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanOptions {
    /// `fcfs`, `idp`, `lifetimes`, `phased`, `joint`, `oam`, `oam-unmoved`.
    pub strategy: String,
    /// `time`, `energy`, `edp`.
    pub objective: String,
    /// Size of the fastest memory as the user typed it: `25%`, `8GiB`, `all`.
    pub fast: String,
    /// Objects may move before the phase that they move for.
    #[serde(default)]
    pub prefetch: bool,
}

/// What a plan is expected to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// Time of accesses and moves, nanoseconds.
    pub access_ns: f64,
    /// The same with everything in the slowest memory.
    pub in_slowest_ns: f64,
    /// The same with everything in the fastest memory, if that were large enough.
    pub in_fastest_ns: f64,
    /// Bytes moved between memories at phase entries.
    pub moved_bytes: u64,
    /// Share of the best possible gain that may be missing; absent where it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<f64>,
    /// The expected run time, relative to all memory being fast.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Prediction>,
}

/// The expected effect of a plan, relative to all memory being fast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prediction {
    /// Time over that with everything in the fastest memory; 1: as fast.
    pub slowdown: f64,
    /// Half an error bar: chance in the samples, and what the sampler could not see. The model's
    /// own error comes on top.
    pub error: f64,
    /// The same with everything in the slowest memory.
    pub all_slow: f64,
    /// Time no placement changes, nanoseconds.
    pub rest_ns: f64,
    /// Share of the accesses that the fastest memory should serve; absent where none were observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fast_share: Option<f64>,
    /// What is known instead where the sampler did not count misses: `slowdown` and `all_slow` are
    /// rough estimates then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<PredictionBounds>,
}

/// Bounds of a prediction from a sampler that cannot count misses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PredictionBounds {
    /// Of [`Prediction::slowdown`].
    pub slowdown: Bounds,
    /// Of [`Prediction::all_slow`].
    pub all_slow: Bounds,
}

/// The least and the most that a figure may be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

/// The default for objects of sites a plan does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unplanned {
    /// The fastest memory while there is room in it, as without a plan.
    Budget,
    /// The slowest memory: the fastest is kept for what is planned.
    #[default]
    Slowest,
}

/// A phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedPhase {
    /// As the program named it.
    pub name: String,
    /// Objects move when it is entered.
    pub moves: bool,
    /// The phase that always followed it; absent: none did, or several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A file that code is loaded from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedModule {
    /// Its path.
    pub path: String,
    /// Its GNU build-id, hexadecimal; empty when it has none.
    pub build_id: String,
}

/// The objects of one site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedSite {
    /// Over (build-id, offset) of every frame: matches in every run of the same builds.
    #[serde(with = "hash")]
    pub hash: u64,
    /// The frame that tables show.
    pub label: String,
    /// The stack, innermost first: matches after a rebuild, by function and line.
    pub stack: Vec<PlannedFrame>,
    /// Its objects by size, ascending.
    #[serde(deserialize_with = "exact_capacity")]
    pub classes: Vec<PlannedClass>,
}

/// A return address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedFrame {
    /// Index of its module; absent for generated code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<u32>,
    /// ELF virtual address in it.
    pub offset: u64,
    /// The function, empty when it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub function: String,
    /// Source file, empty when it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// Line in it, 0 when it is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub line: u32,
}

/// Objects of one site whose sizes differ by less than a factor of two.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedClass {
    /// Largest size in it, bytes: a power of two.
    pub up_to_bytes: u64,
    /// How many the profile has.
    pub objects: u64,
    /// Most bytes of them at a time.
    pub peak_bytes: u64,
    /// Where they are, ascending by phase; the one without a phase is for all phases without one
    /// of their own, and is always there.
    #[serde(deserialize_with = "exact_capacity")]
    pub placements: Vec<PlannedPlacement>,
    /// Phases that do not access them: during those they may already move to where the next phase
    /// has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefetch: Vec<String>,
}

/// Where objects are in a phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedPlacement {
    /// The phase's name; absent: all phases without a placement of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Node of these ranges of them.
    pub node: NodeId,
    /// Node of the rest, in a slower memory; absent: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<NodeId>,
    /// What of each object is on `node`, ascending and disjoint; of objects that lie in one memory
    /// so large a share of the births. Empty without `other`: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "exact_capacity")]
    pub ranges: Vec<PlannedRange>,
    /// Time saved over the slowest memory, in all of the phases it stands for, nanoseconds.
    pub gain_ns: f64,
    /// The confidence in that, 0 to 1: 1 - 1 / sqrt(samples that it is based on).
    pub confidence: f64,
}

/// Part of an object, from its first byte to behind its last: 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedRange {
    /// Where it begins.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
}

impl PlannedRange {
    /// Its size, 0 to 1.
    pub fn share(&self) -> f64 {
        self.to - self.from
    }

    /// How much of it another part of the object covers, as a share of the object.
    pub fn overlap(&self, from: f64, to: f64) -> f64 {
        (self.to.min(to) - self.from.max(from)).max(0.0)
    }
}

impl PlannedPlacement {
    /// The share of the objects' bytes that `node` has, above 0; 1 without another node.
    pub fn share(&self) -> f64 {
        match self.other {
            Some(_) => self.ranges.iter().map(PlannedRange::share).sum(),
            None => 1.0,
        }
    }
}

impl PlannedClass {
    /// ceil(log2) of the sizes in it, as the runtime counts them.
    pub fn size_class(&self) -> u8 {
        u8::try_from(self.up_to_bytes.trailing_zeros()).unwrap_or(u8::MAX)
    }
}

impl Plan {
    /// Places of all sites.
    pub fn placements(&self) -> impl Iterator<Item = &PlannedPlacement> {
        self.sites.iter().flat_map(|site| &site.classes).flat_map(|class| &class.placements)
    }

    /// Rank of the memory a node belongs to, 0 the fastest.
    pub fn rank_of(&self, node: NodeId) -> Option<usize> {
        self.machine.memories.iter().position(|memory| memory.nodes.contains(&node))
    }

    /// Room of the fastest memory for objects, bytes.
    pub fn fast_bytes(&self) -> u64 {
        self.machine.memories.first().map_or(0, |memory| memory.capacity_bytes)
    }

    /// The same with what is held back for everything else.
    pub fn fast_bytes_of_all(&self) -> u64 {
        self.fast_bytes().saturating_add(self.machine.held_back_bytes)
    }
}

fn is_zero<T: Default + PartialEq>(figure: &T) -> bool {
    *figure == T::default()
}

/// A list that most often has one member: room for four, as lists begin, is most of the memory of a
/// large plan.
fn exact_capacity<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Members<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
        type Value = Vec<T>;

        fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            out.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut members: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::with_capacity(1);
            while let Some(member) = members.next_element()? {
                list.push(member);
            }
            Ok(list)
        }
    }
    from.deserialize_seq(Members(PhantomData))
}

/// A hash as 16 hexadecimal digits: JSON's numbers do not hold 64 bits everywhere.
mod hash {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(hash: &u64, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&format!("{hash:016x}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let bad = || de::Error::custom("a hash of 16 hexadecimal digits expected");
        digits.then(|| u64::from_str_radix(&text, 16).ok()).flatten().ok_or_else(bad)
    }
}
