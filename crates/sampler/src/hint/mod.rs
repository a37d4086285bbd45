//! The `hint` sampler: the kernel's NUMA hint faults, without a PMU. In: processes, the kernel's
//! knobs. Out: a sample for the first access to an OS page after each pass of the kernel's scan,
//! with its CPU, and how many passes ended. Knows nothing of which faults are first touches.
//!
//! ```text
//!   kernel: task_numa_work --takes away access--> page tables     one pass: numa_scan_seq + 1
//!   program: accesses an OS page --> fault --> perf's page-fault event --> ring of that CPU
//! ```
//!
//! The page-fault event is software: it works in virtual machines, and for ordinary users where
//! `kernel.perf_event_paranoid` is at most 2. Only root can make the kernel scan faster than it
//! does by itself ([`knobs`]).

use std::path::Path;

use tiercel_wire::{Now, Sample};

use crate::perf::{PerfSampler, choose};
use crate::{
    Config, Cost, Counters, Drained, Granularity, Kind, Method, Sampler, SamplerCapabilities,
    SamplerError, Source,
};

mod guard;
mod knobs;
mod passes;

use knobs::{Knobs, Place};
use passes::{Passes, Progress};

/// Share of a CPU that makes the perf sampler never lower its rate: every fault counts, and the
/// kernel's scan bounds how many there are.
const EVERY_FAULT: f64 = 1e9;
/// Ring of each CPU where the kernel lets us lock so much: 100,000 faults, all OS pages of 400 MiB,
/// can come between two drains. A program that runs while this thread does not is why: on a virtual
/// machine whose host is busy that can take seconds.
const RING_BYTES: usize = 4 << 20;

/// See the module.
pub struct HintSampler {
    faults: PerfSampler,
    /// Undoes on drop what was changed.
    knobs: Knobs,
    passes: Passes,
}

impl HintSampler {
    /// Opens the rings, then sets the knobs.
    ///
    /// # Errors
    /// [`SamplerError::Unavailable`] where the kernel does not scan and we may not make it,
    /// [`SamplerError::Permission`] when `perf_event_paranoid` forbids.
    pub fn open(config: &Config) -> Result<HintSampler, SamplerError> {
        let faults = open_largest(config).map_err(|error| refusal(error, choose::paranoid()))?;
        let knobs = Knobs::set(&Place::default(), config.hint_window_ms)?;
        Ok(HintSampler { faults, knobs, passes: Passes::new(config.hint_window_ms) })
    }
}

impl Sampler for HintSampler {
    fn kind(&self) -> Kind {
        Kind::Hint
    }

    fn method(&self) -> Method {
        Method::Misses
    }

    fn attach(&mut self, pid: u32) -> Result<(), SamplerError> {
        self.faults.attach(pid)?;
        self.passes.add(pid, Progress::of(pid).unwrap_or_default());
        Ok(())
    }

    fn detach(&mut self, pid: u32) {
        self.faults.detach(pid);
        self.passes.remove(pid);
    }

    fn watch(&mut self, _pid: u32, _ranges: &[std::ops::Range<u64>]) {}

    fn drain(&mut self, now: Now, out: &mut Vec<Sample>) -> Drained {
        // The end first: accesses that it lets through belong to the next pass, not to this one.
        let passes = u64::from(self.passes.end(now.ms(), &Progress::of));
        Drained { passes, ..self.faults.drain(now, out) }
    }

    fn counters(&mut self) -> Option<Counters> {
        self.faults.counters()
    }

    fn capabilities(&self) -> SamplerCapabilities {
        SamplerCapabilities {
            reads: Granularity::PerOsPage,
            writes: Granularity::PerOsPage,
            source: format!("NUMA hint faults; {}", self.knobs.state()),
            text: "Of each OS page only the first access after each pass of the kernel's scan; \
                   none in memory that is bound to nodes, and the first touches of new memory."
                .to_owned(),
            ..self.faults.capabilities()
        }
    }

    fn cost(&self) -> Cost {
        self.faults.cost()
    }
}

/// Opens rings of the size that is configured; by default as large as the kernel lets us lock, from
/// [`RING_BYTES`] down. Ordinary users have `perf_event_mlock_kb` for each CPU and their
/// RLIMIT_MEMLOCK beyond.
fn open_largest(config: &Config) -> Result<PerfSampler, SamplerError> {
    let open = |ring_bytes| {
        PerfSampler::open(&Config {
            source: Source::PageFaults,
            cpu_budget: EVERY_FAULT,
            ring_bytes,
            ..config.clone()
        })
    };
    let is_configured = config.ring_bytes != Config::default().ring_bytes;
    let most = if is_configured { config.ring_bytes } else { RING_BYTES };
    largest(most, config.ring_bytes, open)
}

/// What opens with most bytes: `most`, or half of it, and so on down to `least`.
fn largest<T>(
    most: usize,
    least: usize,
    open: impl Fn(usize) -> Result<T, SamplerError>,
) -> Result<T, SamplerError> {
    let mut bytes = most;
    loop {
        match open(bytes) {
            Err(SamplerError::Limit { .. }) if bytes > least => bytes = (bytes / 2).max(least),
            opened => return opened,
        }
    }
}

/// Restores what a sampler that was killed had changed.
pub fn restore() {
    knobs::restore(&Place::default());
}

/// The perf sampler's refusal in terms of this one.
fn refusal(error: SamplerError, paranoid: Option<i32>) -> SamplerError {
    match error {
        SamplerError::Permission { .. } => SamplerError::Permission {
            what: format!(
                "seeing NUMA hint faults, with kernel.perf_event_paranoid = {},",
                paranoid.map_or("absent".to_owned(), |level| level.to_string())
            ),
            remedy: "as root: sysctl kernel.perf_event_paranoid=2, or give the command \
                     CAP_PERFMON; the probe sampler works without"
                .to_owned(),
        },
        other => other,
    }
}

/// Whether it would work here, without changing anything.
pub fn support() -> Result<String, SamplerError> {
    let config = Config { source: Source::PageFaults, ..Config::default() };
    PerfSampler::open(&config).map_err(|error| refusal(error, choose::paranoid()))?;
    Knobs::look(&Place::default())
}

/// Whether the kernel has what this needs at all.
pub fn is_built_in() -> bool {
    Path::new(knobs::SWITCH).exists()
}

#[cfg(test)]
mod tests;
