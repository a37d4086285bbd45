//! The data: [`Profile`] and its parts, in memory. In: nothing. Out: plain data and look-ups in it.
//! Knows nothing of files.
//!
//! ```text
//!   Run 1--* Process 1--* Object *--1 Site 1--* Frame 1--* Name
//!    |                      |          |
//!    1--* Phase 1--* Access *--1       1--* AccessSite
//! ```
//!
//! Parts refer to each other by index into the profile's lists. All times are nanoseconds since the
//! start of their run; all sizes are bytes. [`crate::check`] has the invariants.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tiercel_machine::{Machine, NodeId, Speeds};

use crate::mixed::Mixed;

/// Shortest time slot, nanoseconds; every slot length is this times a power of two. Loops over a
/// few megabytes follow one another within a millisecond.
pub const SLOT_NS_MIN: u64 = 1 << 18;

/// Most nodes of [`Run::served`]: Linux's limit.
pub(crate) const SERVED_MAX: usize = 1024;

/// Observations of a program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// The machine that it ran on, or that was modelled.
    pub machine: Machine,
    /// Length of a time slot, nanoseconds: [`SLOT_NS_MIN`] times a power of two.
    pub slot_ns: u64,
    /// Runs of the program. Those of a merged profile follow one another.
    pub runs: Vec<Run>,
    /// Processes of all runs: those of a run together, in the order of their births.
    pub processes: Vec<Process>,
    /// Allocation sites, each hash once.
    pub sites: Vec<Site>,
    /// Phases: those of a run together, ascending by start within a process.
    pub phases: Vec<Phase>,
    /// Objects: those of a process together, ascending by birth.
    pub objects: Vec<Object>,
    /// Accesses, ascending by [`Access::key`], each key once.
    pub accesses: Vec<Access>,
    /// The code that accessed, ascending by [`AccessSite::key`], each key once; empty where no
    /// sampler reported it.
    pub access_sites: Vec<AccessSite>,
    /// What is coarser than it was seen.
    pub coarsening: Coarsening,
}

/// One run of the program, with all its processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Path of the program's file.
    pub program: String,
    /// Its GNU build-id, hexadecimal; empty if it has none.
    pub build_id: String,
    /// Its arguments, beginning with the program's name.
    pub arguments: Vec<String>,
    /// When it began, nanoseconds since 1970 UTC.
    pub start_unix_ns: u64,
    /// How long it was observed, nanoseconds.
    pub duration_ns: u64,
    /// How it ended: `exited 0`, `killed by signal 9`, `unknown`.
    pub ending: String,
    /// What observed its accesses: `perf`, `probe`, `none`, ...
    pub sampler: String,
    /// What the sampler cannot see, in a sentence or two.
    pub sampler_note: String,
    /// Mean number of accesses that a sample represents; 0 without samples. Counts of accesses are
    /// already multiplied by it.
    pub sample_period: f64,
    /// Only accesses that missed all caches were counted.
    pub misses_only: bool,
    /// What was observed, and what was lost.
    pub observed: Observed,
    /// Accesses by the node that served them, ascending, if the sampler reports it.
    #[serde(default)]
    pub served: Vec<ServedBy>,
    /// The speed of one thread on the machine, measured before the program ran.
    #[serde(default)]
    pub speeds: Speeds,
    /// Who shares its blocks of small objects whose site is unknown.
    pub mixed: Mixed,
}

/// Accesses that a node served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServedBy {
    /// The node.
    pub node: NodeId,
    /// How many, as the samples represent them.
    pub accesses: u64,
}

/// What a run's daemon observed, and what it missed. Every loss is counted here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observed {
    /// Objects born, blocks of small slots included.
    pub births: u64,
    /// Bytes of them.
    pub born_bytes: u64,
    /// Records of births and deaths that were read.
    pub records: u64,
    /// Records lost; a resync found the objects again, with later births.
    pub records_lost: u64,
    /// Births refused, because the ledger was full or they contradicted it.
    pub births_refused: u64,
    /// Samples seen.
    pub samples: u64,
    /// Samples that hit no object: stacks, globals, freed memory.
    pub samples_outside: u64,
    /// Samples lost.
    pub samples_lost: u64,
    /// How often the kernel throttled the sampler.
    pub throttled: u64,
    /// Scans that the sampler skipped.
    pub scans_skipped: u64,
    /// Phase entries beyond the limit; the phase before them lasts longer.
    pub phases_refused: u64,
    /// Peak memory of the processes minus the peak of objects, bytes: stacks, data of modules, the
    /// runtime's own. Too small if some objects are never touched.
    #[serde(default)]
    pub untracked_bytes: u64,
    /// Time that sampling took from all threads of the programs, nanoseconds, as the sampler
    /// estimates it. On a machine with one CPU it includes the daemon's own work.
    #[serde(default)]
    pub sampling_ns: u64,
}

/// One process of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Index of its run.
    pub run: u32,
    /// Its process id.
    pub pid: u32,
    /// Index of the process that forked it, if that was observed.
    pub parent: Option<u32>,
    /// Name of its program, at most 15 bytes (`comm`).
    pub program: Arc<str>,
    /// When it was first seen, nanoseconds.
    pub start_ns: u64,
    /// When it was last seen, nanoseconds.
    pub end_ns: u64,
    /// Its peak of live objects, bytes.
    pub peak_bytes: u64,
    /// Thread ids for the bits of [`Access::threads`], lowest bit first; at most
    /// 64. Later threads share bits.
    pub threads: Vec<u32>,
}

/// Where objects were allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Hash over (build-id, offset) of every frame: the same in every run of the same builds. 0:
    /// the site of all objects whose site is unknown.
    pub hash: u64,
    /// The stack, innermost first.
    pub frames: Vec<Frame>,
}

/// One return address of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Path of the module; empty for generated code.
    pub module: Arc<str>,
    /// The module's GNU build-id, hexadecimal; empty if it has none.
    pub build_id: Arc<str>,
    /// ELF virtual address in the module; absolute if there is no module.
    pub address: u64,
    /// The functions that cover the address: inlined ones first, innermost first, and last the
    /// function that was called. Empty if unknown.
    pub names: Vec<Name>,
}

/// A function, and the line of the call in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name {
    /// Demangled; not empty.
    pub function: Arc<str>,
    /// Source file; empty when it is not known.
    pub file: Arc<str>,
    /// Line in it, from 1; 0 when it is not known.
    pub line: u32,
}

/// One execution of a phase. A phase that recurs has one entry per execution.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Phase {
    /// Index of its run.
    pub run: u32,
    /// The process that marked it; `None`: detected, for all processes of the run that marked
    /// none.
    pub process: Option<u32>,
    /// Its name in the program; `A`, `B`, ... for a detected one, the same whenever it recurs.
    pub name: Arc<str>,
    /// When it was entered, nanoseconds.
    pub start_ns: u64,
    /// When it was left, nanoseconds, later than its start.
    pub end_ns: u64,
}

/// One allocation, or several of the same process, site and size class that were merged, with
/// `count` above 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Object {
    /// Index of its process.
    pub process: u32,
    /// Index of its site.
    pub site: u32,
    /// How many allocations it represents, at least 1.
    pub count: u64,
    /// Its size at birth, bytes; the largest of several.
    pub bytes: u64,
    /// Its peak of live bytes: the memory that it needs.
    pub peak_bytes: u64,
    /// Bytes of all of them, including growth.
    pub born_bytes: u64,
    /// The part of these that came from the kernel unused and is zeroed when touched.
    pub fresh_bytes: u64,
    /// First byte; 0 for several.
    pub address: u64,
    /// When it was born, nanoseconds; the first of several.
    pub birth_ns: u64,
    /// When it died or was last seen alive, nanoseconds, later than the birth; the last of several.
    pub death_ns: u64,
    /// How many were freed while the process lived.
    pub freed: u64,
    /// Sum of their lifetimes, nanoseconds.
    pub lifetime_ns: u64,
    /// Size of the extents that [`Access::extent`] counts, a power of two; 0: it is a single
    /// extent.
    pub extent_bytes: u64,
    /// A block of small slots, not one allocation.
    pub is_block: bool,
    /// Made by mmap and served by the kernel.
    pub is_mapped: bool,
}

/// Accesses to one extent of one object in one phase and time slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Index of the object.
    pub object: u32,
    /// Which extent of it, from 0.
    pub extent: u32,
    /// Index of the phase.
    pub phase: u32,
    /// Which time slot of the run, from 0.
    pub slot: u32,
    /// Loads, as the samples represent them; accesses of unknown kind count as loads.
    pub reads: u64,
    /// Stores, likewise.
    pub writes: u64,
    /// The number of samples behind them.
    pub samples: u64,
    /// Loads whose latency was measured.
    pub timed_reads: u64,
    /// Latency of those added up, nanoseconds: H2M's weight of accesses.
    pub read_ns: u64,
    /// Stores whose latency was measured.
    pub timed_writes: u64,
    /// Latency of those added up, nanoseconds.
    pub write_ns: u64,
    /// Loads and stores that a cache served; `None`: unknown.
    pub cached: Option<u64>,
    /// Lines that stores made dirty, so that they are written back once more; `None`: unknown.
    pub dirtied: Option<u64>,
    /// Loads and stores with a known number of outstanding misses.
    pub mlp_known: u64,
    /// The sum of 1 / (outstanding misses) over those: the number of misses for which a program
    /// with one miss at a time would wait as long.
    pub serialized: u64,
    /// Those of them whose block of 256 bytes ([`tiercel_wire::emulator::BLOCK_BYTES`]) no other
    /// access used recently.
    pub isolated: u64,
    /// The threads that accessed it: a bit for each of [`Process::threads`]; 0: unknown.
    pub threads: u64,
}

/// Accesses by one place in the code to objects of one site, over all runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessSite {
    /// Index of the site whose only frame is the code; the unknown site: it is not known.
    pub code: u32,
    /// Index of the objects' site.
    pub site: u32,
    /// In what order it accesses: a name of [`tiercel_wire::Pattern`].
    pub pattern: Arc<str>,
    /// Loads, as the samples represent them.
    pub reads: u64,
    /// Stores, likewise.
    pub writes: u64,
}

/// What is coarser in a profile than it was observed, because of a limit. Nothing was dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coarsening {
    /// Allocations that were merged with others of their site and size class.
    pub objects_merged: u64,
    /// Sites that were merged into the unknown one.
    pub sites_merged: u64,
    /// Allocations whose extents were merged: their accesses are known only for the whole object.
    pub extents_merged: u64,
    /// How often the time slots were doubled.
    pub slots_doubled: u32,
    /// Processes that were merged with others of their run and program.
    pub processes_merged: u64,
}

impl Profile {
    /// True of a block that several sites share: its site is unknown.
    pub fn is_mixed(&self, object: &Object) -> bool {
        object.is_block && self.site_of(object).hash == 0
    }

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
    /// Its key: object, phase, slot, extent.
    pub fn key(&self) -> (u32, u32, u32, u32) {
        (self.object, self.phase, self.slot, self.extent)
    }

    /// No accesses to an object, to which some are added.
    pub fn none_of(object: u32) -> Access {
        Access { object, cached: Some(0), dirtied: Some(0), ..Access::default() }
    }

    /// Loads and stores.
    pub fn accesses(&self) -> u64 {
        self.reads.saturating_add(self.writes)
    }

    /// Adds accesses of the same key.
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

impl AccessSite {
    /// Its key: code, site, pattern.
    pub fn key(&self) -> (u32, u32, &str) {
        (self.code, self.site, &self.pattern)
    }

    /// Loads and stores.
    pub fn accesses(&self) -> u64 {
        self.reads.saturating_add(self.writes)
    }
}

impl Run {
    /// Counts accesses of a node; nodes beyond the limit are ignored.
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
    /// Its size class, as in plans and in the runtime: ceil(log2(bytes at birth)).
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
