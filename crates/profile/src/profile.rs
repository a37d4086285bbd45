//! The data: [`Profile`] and its parts, as they are in memory.
//! In: nothing. Out: plain data, and plain look-ups on it. Knows nothing of files.
//!
//! ```text
//!   Run 1--* Process 1--* Object *--1 Site 1--* Frame 1--* Name
//!    |                      |
//!    1--* Phase 1--* Access *--1
//! ```
//!
//! Parts name each other by index into the profile's lists. All times are nanoseconds since the
//! start of the run they belong to; all sizes are bytes. [`crate::check`] says what must hold.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tiercel_machine::{Machine, NodeId, Speeds};

/// Shortest time slot, nanoseconds, and what every slot length is a power of two of. Loops over a
/// few megabytes follow one another within a millisecond.
pub const SLOT_NS_MIN: u64 = 1 << 18;

/// Most nodes of [`Run::served`]: of Linux.
pub(crate) const SERVED_MAX: usize = 1024;

/// What was seen of a program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// The machine it ran on, or that was modelled.
    pub machine: Machine,
    /// Length of a time slot, nanoseconds: [`SLOT_NS_MIN`] times a power of two.
    pub slot_ns: u64,
    /// Times the program was run. Those of a merged profile follow one another.
    pub runs: Vec<Run>,
    /// Processes of all runs, those of a run together, in the order in which they came.
    pub processes: Vec<Process>,
    /// Where objects were allocated; by hash, each once.
    pub sites: Vec<Site>,
    /// Stretches of execution: those of a run together, ascending by start within a process.
    pub phases: Vec<Phase>,
    /// Objects, those of a process together, ascending by birth.
    pub objects: Vec<Object>,
    /// Accesses, ascending by [`Access::key`], each key once.
    pub accesses: Vec<Access>,
    /// What is coarser than it was seen.
    pub coarsening: Coarsening,
}

/// The program run once, on all its processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Path of the program's file.
    pub program: String,
    /// Its GNU build-id, hexadecimal; empty when it has none.
    pub build_id: String,
    /// Its arguments, the program's name first.
    pub arguments: Vec<String>,
    /// When it began, nanoseconds since 1970 UTC.
    pub start_unix_ns: u64,
    /// How long it was observed, nanoseconds.
    pub duration_ns: u64,
    /// How it ended: `exited 0`, `killed by signal 9`, `unknown`.
    pub ending: String,
    /// What observed its accesses: `perf`, `probe`, `none`, ...
    pub sampler: String,
    /// What that cannot see, a sentence or two.
    pub sampler_note: String,
    /// Accesses a sample stood for, on average; 0 without samples. Counts of accesses are of
    /// accesses, not of samples: they are multiplied already.
    pub sample_period: f64,
    /// Only accesses that missed all caches were counted.
    pub misses_only: bool,
    /// What was seen, and what was not.
    pub observed: Observed,
    /// Accesses by the node that served them, ascending, where the sampler reports it.
    #[serde(default)]
    pub served: Vec<ServedBy>,
    /// What one thread was measured to do on the machine, before the program ran.
    #[serde(default)]
    pub speeds: Speeds,
}

/// Accesses that a node served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServedBy {
    /// The node.
    pub node: NodeId,
    /// As many as the samples stand for.
    pub accesses: u64,
}

/// What a run's daemon saw, and what it had to leave out. Nothing is lost that is not counted here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observed {
    /// Objects born, blocks of small slots included.
    pub births: u64,
    /// Bytes of them.
    pub born_bytes: u64,
    /// Records of births and deaths that were read.
    pub records: u64,
    /// Records lost; lives of objects around them were found again by looking, with later births.
    pub records_lost: u64,
    /// Births refused, because the ledger was full or they could not be true.
    pub births_refused: u64,
    /// Samples seen.
    pub samples: u64,
    /// Samples that hit no object: stacks, globals, freed memory.
    pub samples_outside: u64,
    /// Samples lost.
    pub samples_lost: u64,
    /// Times the kernel slowed the sampler down.
    pub throttled: u64,
    /// Looks the sampler did not take.
    pub scans_skipped: u64,
    /// Phase entries beyond the limit; the phase before them lasts longer.
    pub phases_refused: u64,
    /// How much more memory the processes had at most than objects at most, bytes: stacks, data of
    /// modules, the runtime's own. Where objects are not touched this is too little.
    #[serde(default)]
    pub untracked_bytes: u64,
    /// Time that sampling took from the programs, nanoseconds, as the sampler reckons; of all
    /// threads together. On a machine of one CPU what the daemon did besides.
    #[serde(default)]
    pub sampling_ns: u64,
}

/// One process of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Index of its run.
    pub run: u32,
    /// Its number then.
    pub pid: u32,
    /// Index of the process that forked it, where that was observed.
    pub parent: Option<u32>,
    /// Name of its program, at most 15 bytes (`comm`).
    pub program: Arc<str>,
    /// When it was first seen, nanoseconds.
    pub start_ns: u64,
    /// When it was last seen, nanoseconds.
    pub end_ns: u64,
    /// Most bytes of live objects it had at a time.
    pub peak_bytes: u64,
    /// Numbers of the threads that bits of [`Access::threads`] mean, lowest bit first; at most
    /// 64. Later threads share bits.
    pub threads: Vec<u32>,
}

/// Where objects were allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Over (build-id, offset) of every frame: the same in every run of the same builds. 0: the
    /// site of all objects whose site is not known.
    pub hash: u64,
    /// The stack, innermost first.
    pub frames: Vec<Frame>,
}

/// One return address of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Path of the module; empty for generated code.
    pub module: Arc<str>,
    /// The module's GNU build-id, hexadecimal; empty when it has none.
    pub build_id: Arc<str>,
    /// ELF virtual address in the module; absolute where there is none.
    pub address: u64,
    /// What covers the address: inlined functions first, innermost first, the function that is
    /// really called last. Empty when nothing is known.
    pub names: Vec<Name>,
}

/// A function, and the line in it that calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name {
    /// Demangled; not empty.
    pub function: Arc<str>,
    /// Source file; empty when it is not known.
    pub file: Arc<str>,
    /// Line in it, from 1; 0 when it is not known.
    pub line: u32,
}

/// A stretch of execution. A phase that recurs is there as often as it was entered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Phase {
    /// Index of its run.
    pub run: u32,
    /// The process that marked it; `None`: detected, for all processes of the run that marked
    /// none.
    pub process: Option<u32>,
    /// The program's name of it; of a detected one `A`, `B`, ..., the same when it recurs.
    pub name: Arc<str>,
    /// When it was entered, nanoseconds.
    pub start_ns: u64,
    /// When it was left, nanoseconds, after its start.
    pub end_ns: u64,
}

/// One allocation; or several of the same process, site and size class that are kept as one, with
/// `count` above 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Object {
    /// Index of its process.
    pub process: u32,
    /// Index of its site.
    pub site: u32,
    /// How many allocations it is, at least 1.
    pub count: u64,
    /// Bytes of it when it was born; of several the largest.
    pub bytes: u64,
    /// Most bytes of them that lived at a time: the room they take.
    pub peak_bytes: u64,
    /// Bytes of all of them, what they grew by included.
    pub born_bytes: u64,
    /// Of these, what came from the kernel unused and is zeroed when it is touched.
    pub fresh_bytes: u64,
    /// First byte; of several 0.
    pub address: u64,
    /// When it was born; of several the first, nanoseconds.
    pub birth_ns: u64,
    /// When it died, or was last seen alive; of several the last, nanoseconds, after the birth.
    pub death_ns: u64,
    /// How many of them were freed while the process lived.
    pub freed: u64,
    /// Their lifetimes added up, nanoseconds.
    pub lifetime_ns: u64,
    /// Length of the pieces that [`Access::extent`] counts, a power of two; 0: it is one piece.
    pub extent_bytes: u64,
    /// A block of small slots, not one allocation.
    pub is_block: bool,
    /// Made by mmap, served by the kernel.
    pub is_mapped: bool,
}

/// Accesses to one extent of one object in one phase and time slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Index of the object.
    pub object: u32,
    /// Which piece of it, from 0.
    pub extent: u32,
    /// Index of the phase.
    pub phase: u32,
    /// Which time slot of the run, from 0.
    pub slot: u32,
    /// Loads, as many as the samples stand for; of unknown kind, loads.
    pub reads: u64,
    /// Stores likewise.
    pub writes: u64,
    /// Samples they come from.
    pub samples: u64,
    /// Of the loads, those whose latency was measured.
    pub timed_reads: u64,
    /// Latency of those added up, nanoseconds: H2M's weight of accesses.
    pub read_ns: u64,
    /// Of the stores, those whose latency was measured.
    pub timed_writes: u64,
    /// Latency of those added up, nanoseconds.
    pub write_ns: u64,
    /// Of loads and stores, those that a cache served; `None`: not known.
    pub cached: Option<u64>,
    /// Lines that stores made dirty, so that they go back to memory once more; `None`: not known.
    pub dirtied: Option<u64>,
    /// Of loads and stores, those with a known number of outstanding misses.
    pub mlp_known: u64,
    /// Of those, each over how many misses were under way at once: as many as a program that has
    /// one at a time would have to wait for to wait as long.
    pub serialized: u64,
    /// Of those, the ones whose block of 256 bytes ([`tiercel_wire::emulator::BLOCK_BYTES`]) was
    /// not used by others lately.
    pub isolated: u64,
    /// Who accessed: a bit for each of [`Process::threads`]; 0: not known.
    pub threads: u64,
}

/// What is coarser in a profile than it was seen, because of a limit. Nothing was left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coarsening {
    /// Allocations that are kept together with others of their site and size class.
    pub objects_merged: u64,
    /// Sites that were merged into the unknown one.
    pub sites_merged: u64,
    /// Allocations whose extents were merged: their accesses are known for the whole object only.
    pub extents_merged: u64,
    /// Times the time slots were doubled, from what they are at first.
    pub slots_doubled: u32,
    /// Processes that were merged with others of their run and program.
    pub processes_merged: u64,
}

impl Profile {
    /// The site of an object.
    pub fn site_of(&self, object: &Object) -> &Site {
        &self.sites[object.site as usize]
    }

    /// The run of an object.
    pub fn run_of(&self, object: &Object) -> u32 {
        self.processes[object.process as usize].run
    }

    /// Objects of a run, with their index.
    pub fn objects_of(&self, run: u32) -> impl Iterator<Item = (u32, &Object)> {
        let objects = (0..).zip(&self.objects);
        objects.filter(move |(_, object)| self.run_of(object) == run)
    }
}

impl Access {
    /// What it is of: object, phase, slot, extent.
    pub fn key(&self) -> (u32, u32, u32, u32) {
        (self.object, self.phase, self.slot, self.extent)
    }

    /// No accesses to an object, to take some in.
    pub fn none_of(object: u32) -> Access {
        Access { object, cached: Some(0), dirtied: Some(0), ..Access::default() }
    }

    /// Loads and stores.
    pub fn accesses(&self) -> u64 {
        self.reads.saturating_add(self.writes)
    }

    /// Takes in what was seen of the same key.
    pub fn absorb(&mut self, other: &Access) {
        let pairs = [
            (&mut self.reads, other.reads),
            (&mut self.writes, other.writes),
            (&mut self.samples, other.samples),
            (&mut self.timed_reads, other.timed_reads),
            (&mut self.read_ns, other.read_ns),
            (&mut self.timed_writes, other.timed_writes),
            (&mut self.write_ns, other.write_ns),
            (&mut self.mlp_known, other.mlp_known),
            (&mut self.serialized, other.serialized),
            (&mut self.isolated, other.isolated),
        ];
        for (sum, more) in pairs {
            *sum = sum.saturating_add(more);
        }
        let both = |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| a.saturating_add(b));
        self.cached = both(self.cached, other.cached);
        self.dirtied = both(self.dirtied, other.dirtied);
        self.threads |= other.threads;
    }
}

impl Run {
    /// Counts accesses of a node; of more nodes than machines have, nothing.
    pub(crate) fn count_served(&mut self, node: NodeId, accesses: u64) {
        match self.served.binary_search_by_key(&node, |one| one.node) {
            Ok(at) => {
                let sum = &mut self.served[at].accesses;
                *sum = sum.saturating_add(accesses);
            }
            Err(at) if self.served.len() < SERVED_MAX => {
                self.served.insert(at, ServedBy { node, accesses });
            }
            Err(_) => {}
        }
    }
}

impl Object {
    /// Its size class, as plans and the runtime count them: ceil(log2(bytes at birth)).
    pub fn size_class(&self) -> u32 {
        size_class(self.bytes)
    }
}

/// ceil(log2(bytes)).
pub(crate) fn size_class(bytes: u64) -> u32 {
    bytes.max(1).next_power_of_two().trailing_zeros()
}

impl Site {
    /// True for the site of all objects whose site is unknown.
    pub fn is_unknown(&self) -> bool {
        self.hash == 0
    }
}
