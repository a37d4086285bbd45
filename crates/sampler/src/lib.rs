//! Observes the memory accesses of tracked processes by the best means that this machine has. In:
//! process ids, address ranges to watch. Out: [`tiercel_wire::Sample`]s, counters, losses. Knows
//! nothing of objects or heat: it never interprets what it sees.
//!
//! One trait for all samplers: [`open`] opens one; [`support`] lists those that work here.
//!
//! ```text
//! Kind::Emulator  misses of the model behind a timed guest -> with latency and node
//! Kind::Perf      precise memory events of the CPU   -> every miss has an address, period 4096
//! Kind::Bpf       the same events through one BPF program, machine-wide, root only
//! Kind::Probe     page-table bits                    -> no counters, no root, OS pages in use
//! Kind::Compiled  programs' own reports              -> misses of a model, of tiercel cc's code
//! Kind::Hint      the kernel's NUMA hint faults      -> with CPU, each OS page once in a pass
//! Kind::Auto      the best of the first four, in that order
//! ```

#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tiercel_wire::{Now, ProbeTerms, Sample};

#[cfg(feature = "bpf")]
mod bpf;
mod clock;
mod compiled;
mod descriptor;
mod emulator;
mod error;
mod hint;
mod perf;
mod probe;
mod support;
#[cfg(test)]
mod testing;

pub use compiled::{Caches, Rate, TermsError};
pub use emulator::in_detail;
pub use error::SamplerError;
pub use probe::huge_runs;
pub use support::{open, support};

/// Observes accesses. One sampler serves many processes; the daemon's one thread calls it.
pub trait Sampler: Send {
    /// Which sampler this is.
    fn kind(&self) -> Kind;

    /// How it observes; the daemon treats it accordingly.
    fn method(&self) -> Method;

    /// Its name as the user types it.
    fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// Begins to observe a process and all its threads, present and future. Forked processes are
    /// attached separately. Attaching twice is the same as once.
    ///
    /// # Errors
    /// [`SamplerError::Vanished`] when the process is gone, [`SamplerError::Permission`] and
    /// [`SamplerError::Limit`] as they are described; after an error nothing stays attached.
    fn attach(&mut self, pid: u32) -> Result<(), SamplerError>;

    /// Takes a descriptor that the hosted process passes for its own observation. Samplers that
    /// have no use for it close it.
    fn accept(&mut self, pid: u32, handle: TargetHandle) {
        let _ = (pid, handle);
    }

    /// Stops observing a process; unknown processes are ignored.
    fn detach(&mut self, pid: u32);

    /// Where the probe sampler may split mappings of a process at the borders of watched ranges:
    /// the reserved range of the runtime's heap. Elsewhere the program may call `mremap`, which
    /// refuses split mappings, so adjacent ranges are watched as one. Others ignore it.
    fn may_split(&mut self, pid: u32, within: Range<u64>) {
        let _ = (pid, within);
    }

    /// What the probe sampler may do to a process beyond its share of CPU time; nothing unless this
    /// is called. Others ignore it.
    fn allow(&mut self, pid: u32, allowed: Allowed) {
        let _ = (pid, allowed);
    }

    /// Sets which addresses of a process matter from now on, replacing the last call. Samplers that
    /// scan ranges scan only these; those that get addresses from the hardware ignore it. Ranges
    /// are in bytes, aligned to OS pages, ascending and apart; best one per extent. Outside
    /// [`Sampler::may_split`] they must cover whole objects, with no gap inside one.
    fn watch(&mut self, pid: u32, ranges: &[Range<u64>]);

    /// Sets which memory of a process must not be registered from now on, because it is being
    /// moved; replaces the ranges of the last call. The probe sampler unregisters these ranges, and
    /// does not see them until a later call omits them. Others ignore it.
    fn release(&mut self, pid: u32, ranges: &[Range<u64>]) {
        let _ = (pid, ranges);
    }

    /// Sets how many samples a second are useful from now on. Samplers that can lower their rate,
    /// and thereby their cost to programs, do so. Others ignore it.
    fn set_useful_rate(&mut self, samples_per_s: f64) {
        let _ = samples_per_s;
    }

    /// What compiled code of hosted processes is to report; `None` where it is not asked.
    fn probe(&self) -> Option<ProbeTerms> {
        None
    }

    /// Takes what compiled code reported, and how many misses it could not. Others than `compiled`
    /// ignore it.
    fn reported(&mut self, samples: &[Sample], lost: u64) {
        let _ = (samples, lost);
    }

    /// Appends the samples since the last call. `now` is one moment on the daemon's clock and the
    /// kernel's, by which samples are dated. At most [`Config::drain_max`] samples; takes a few
    /// milliseconds at most, of which the probe sampler may sleep for two.
    fn drain(&mut self, now: Now, out: &mut Vec<Sample>) -> Drained;

    /// Counts since the last call over all attached processes; `None` where nothing counts them.
    fn counters(&mut self) -> Option<Counters>;

    /// What this sampler can see, as opened on this machine.
    fn capabilities(&self) -> SamplerCapabilities;

    /// The cost of sampling so far.
    fn cost(&self) -> Cost;
}

/// Samplers that can be requested by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The best sampler that works here.
    Auto,
    /// Misses of the model that times a guest.
    Emulator,
    /// CPU performance counters with data addresses.
    Perf,
    /// The same, filtered in the kernel by a BPF program.
    Bpf,
    /// Page-table bits.
    Probe,
    /// The kernel's NUMA hint faults.
    Hint,
    /// What programs compiled by `tiercel cc` report themselves.
    Compiled,
    /// Nothing is observed, but objects are tracked: it shows the cost of tracking alone.
    None,
}

impl Kind {
    /// As the user types it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Auto => "auto",
            Kind::Emulator => "emulator",
            Kind::Perf => "perf",
            Kind::Bpf => "bpf",
            Kind::Probe => "probe",
            Kind::Hint => "hint",
            Kind::Compiled => "compiled",
            Kind::None => "none",
        }
    }
}

/// How a sampler observes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Method {
    /// By hardware events, each with its address. They see only accesses that miss the caches.
    Misses,
    /// By scanning page tables in the ranges that [`Sampler::watch`] gives. They see accesses no
    /// matter which level served them, and the sampler changes page-table entries of the process.
    PageTables,
}

/// A descriptor that a hosted process passes to the sampler.
#[derive(Debug)]
pub enum TargetHandle {
    /// A userfaultfd that it opened (before or after UFFDIO_API), for write tracking by another
    /// process.
    Userfaultfd(OwnedFd),
}

/// The result of one call of [`Sampler::drain`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Drained {
    /// Samples appended.
    pub samples: u64,
    /// Samples that the kernel or the sampler dropped since the last call.
    pub lost: u64,
    /// Times that the kernel throttled the source since the last call.
    pub throttled: u64,
    /// Processes that were due for a scan but are too large for one (probe).
    pub blind: u64,
    /// No later call brings a sample of before this time, on the daemon's clock, nanoseconds.
    pub complete_ns: u64,
    /// When the next call is of use, on the daemon's clock, milliseconds; `None`: the sampler does
    /// not mind (those that fill buffers meanwhile).
    #[serde(default)]
    pub due_ms: Option<u64>,
    /// Passes over all memory that ended since the last call, of samplers that see each OS page
    /// once in a pass (hint).
    #[serde(default)]
    pub passes: u64,
}

/// Counts of user-mode events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counters {
    /// Accesses that missed the last-level cache.
    pub llc_misses: u64,
    /// Instructions retired.
    pub instructions: u64,
}

/// What a sampler can and cannot see.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SamplerCapabilities {
    /// Loads.
    pub reads: Granularity,
    /// Stores.
    pub writes: Granularity,
    /// Whether samples carry a load-to-use latency.
    pub latency: bool,
    /// Whether samples have the node that served them.
    pub node: bool,
    /// Whether samples have the accesses around them ([`tiercel_wire::Around`]).
    pub around: bool,
    /// Whether lines that stores make dirty are reported when [`Config::dirtied`] is set.
    pub dirtied: bool,
    /// Whether [`Sampler::counters`] returns counts.
    pub counters: bool,
    /// The source in use: an event's name, or the kernel interface.
    pub source: String,
    /// One or two sentences for the user: what the sampler does not see.
    pub text: String,
}

/// How well one kind of access is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Granularity {
    /// Each sampled access has its address.
    Exact,
    /// Which OS pages were accessed between two scans, but not how often.
    PerOsPage,
    /// How many bytes of a mapping (or of a watched extent that is one) were accessed between two
    /// scans, but not which bytes or how often.
    PerMapping,
    /// Only the first access to an OS page after it was mapped or moved.
    FirstTouch,
    /// Not seen.
    Blind,
}

/// The cost of sampling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Cost {
    /// CPU time of the daemon in this sampler.
    pub daemon_cpu: Duration,
    /// Estimated CPU time that the kernel took from hosted programs for sampling.
    pub program_cpu: Duration,
    /// Samples delivered.
    pub samples: u64,
    /// Passes over page tables (probe) or ring drains.
    pub passes: u64,
}

/// What a sampler may do to a process beyond its share of CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Allowed {
    /// Split busy huge OS pages, a few a second, to see what in them is hot. It costs the program
    /// TLB reach.
    pub huge_splits: bool,
    /// Spend more at once, for a first answer after 0.2 s.
    pub burst: bool,
}

/// How to sample. [`Config::default`] holds the documented defaults. Files of earlier versions have
/// hyphens in names.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Events per sample at the start (MAT 4.5.1).
    pub period: u64,
    /// Share of one CPU that sampling may cost; period and probe interval adapt to it.
    #[serde(alias = "cpu-budget")]
    pub cpu_budget: f64,
    /// Which events `perf` and `bpf` use.
    pub source: Source,
    /// Names of events to use instead of the processor's default set; empty: the default set.
    pub events: Vec<String>,
    /// Also sample stores that make a line dirty ([`tiercel_wire::AccessKind::Dirtied`]), if the
    /// source reports them (emulator).
    pub dirtied: bool,
    /// Bytes of one ring: perf has one per CPU, bpf a single one. Rounded up to a power of two.
    #[serde(alias = "ring-bytes")]
    pub ring_bytes: usize,
    /// Most samples one drain may append.
    #[serde(alias = "drain-max")]
    pub drain_max: usize,
    /// Also report first touches and releases of OS pages (MAT 3.3.1 saw up to 10% cost).
    #[serde(alias = "page-events")]
    pub page_events: bool,
    /// Probe: most spots of 32 KiB that are watched for writes at once; the budget may demand
    /// fewer.
    #[serde(alias = "probe-spots")]
    pub probe_spots: usize,
    /// Probe: shortest time between two passes, milliseconds; in the first 0.2 s of a process at
    /// most 8.
    #[serde(alias = "probe-interval-ms")]
    pub probe_interval_ms: u64,
    /// Probe: seed of the random choice of extents.
    pub seed: u64,
    /// Hint: how long a pass should take, milliseconds, where we may set it.
    #[serde(alias = "hint-window-ms")]
    pub hint_window_ms: u64,
    /// Compiled: the share of cache lines that are sampled, in [`CompiledSampler`]'s model.
    ///
    /// [`CompiledSampler`]: Kind::Compiled
    pub rate: Rate,
    /// Compiled: the caches that are modelled; `None`: this machine's.
    pub caches: Option<Caches>,
}

/// Where `perf` and `bpf` take their addresses from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The CPU's precise memory events; an error if there are none.
    Hardware,
    /// The kernel's page-fault event: first touches only, works on any machine.
    PageFaults,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            period: 4096,
            cpu_budget: 0.005,
            source: Source::Hardware,
            events: Vec::new(),
            dirtied: false,
            ring_bytes: 256 << 10,
            drain_max: 1 << 16,
            page_events: false,
            probe_spots: 1024,
            probe_interval_ms: 50,
            seed: 1,
            hint_window_ms: 1000,
            rate: Rate::default(),
            caches: None,
        }
    }
}
