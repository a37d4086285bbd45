//! What the planner knows of a program: objects with lifetimes, phases, accesses of each in each.
//! In: what a profile observed. Out: the same, checked. Knows nothing of how it was observed.

use crate::PlanError;

/// Most objects of one workload: H2M has hundreds; a profile that has more merges them by site.
pub const OBJECTS_MAX: usize = 1 << 20;
/// Most (object, phase it lives in) pairs: 24 bytes of costs each for three memories, 1.5 GiB.
pub const SEGMENTS_MAX: usize = 1 << 26;

/// Bytes of the blocks to which [`Use::isolated`] refers.
pub const BLOCK_BYTES: f64 = 256.0;

/// A program as a profile observed it.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// In any order; plans identify them by index.
    pub objects: Vec<Object>,
    /// Ascending by start, at least one. Time before the first belongs to it. A phase that recurs
    /// has one entry for each time it was entered.
    pub phases: Vec<Phase>,
    /// End of the last phase, nanoseconds on the axis of births and deaths.
    pub end_ns: u64,
    /// Accesses that each counted one represents (Freq_S of H2M Eq. 2); 1 where all were counted.
    pub sample_period: f64,
}

/// A stretch of execution.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// For people, and for the runtime to recognise it.
    pub name: String,
    /// When it was entered, nanoseconds; it lasts to the next phase's start.
    pub start_ns: u64,
    /// Nanoseconds in it that do not depend on where data is; 0 if unknown.
    pub compute_ns: f64,
}

/// An allocation, or all of a site and size class.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// The site's key, or any name.
    pub name: String,
    /// Room that it takes, in whole OS pages if the runtime places such; above 0.
    pub bytes: u64,
    /// When it was allocated, nanoseconds.
    pub birth_ns: u64,
    /// When it was freed, nanoseconds, after its birth; later than the end if it was never freed.
    pub death_ns: u64,
    /// Accesses, ascending by phase, only in phases it lives in.
    pub uses: Vec<Use>,
}

/// Accesses to one object in one phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Use {
    /// Index of the phase.
    pub phase: u32,
    /// Loads counted (N read of H2M Eq. 1).
    pub reads: f64,
    /// Stores counted.
    pub writes: f64,
    /// Share of them that hit a cache, 0 to 1 (R of H2M Eq. 1).
    pub hit_ratio: f64,
    /// How much of a latency an access costs, relative to H2M Eq. 1. 1: as there, an eighth of the
    /// latency each (as many doubles share a line). 8: all of it, dependent accesses.
    pub latency_weight: f64,
    /// Bytes that each access draws from memory at least: no access is served sooner than its bytes
    /// arrive. 0: only latencies count, as in H2M Eq. 1.
    pub drawn_bytes: f64,
    /// Share of the accesses, 0 to 1, whose block of [`BLOCK_BYTES`] no other access used recently:
    /// a quarter where all lines of a block follow one another, which is also assumed where it is
    /// unknown (`None`).
    pub isolated: Option<f64>,
    /// Threads that access it at once; at least 1.
    pub threads: u32,
}

impl Workload {
    /// Whether all invariants hold; the error is the first violation.
    pub fn check(&self) -> Result<(), PlanError> {
        if self.objects.len() > OBJECTS_MAX {
            let (count, limit) = (self.objects.len(), OBJECTS_MAX);
            return Err(PlanError::TooMany { what: "objects", count, limit });
        }
        self.check_phases()?;
        let mut segments = 0;
        for (index, object) in self.objects.iter().enumerate() {
            if let Some(what) = self.wrong_with(object) {
                let place = format!("object {index} ({})", object.name);
                return Err(PlanError::Workload { place, what });
            }
            let (first, last) = self.phases_of(object);
            segments += last - first + 1;
        }
        if segments > SEGMENTS_MAX {
            let (count, limit) = (segments, SEGMENTS_MAX);
            return Err(PlanError::TooMany { what: "objects x phases", count, limit });
        }
        Ok(())
    }

    /// First and last phase an object lives in.
    pub fn phases_of(&self, object: &Object) -> (usize, usize) {
        let first = self.phases.partition_point(|phase| phase.start_ns <= object.birth_ns);
        let last = self.phases.partition_point(|phase| phase.start_ns < object.death_ns);
        (first.saturating_sub(1), last.saturating_sub(1).max(first.saturating_sub(1)))
    }

    /// Nanoseconds of a phase in which an object lives.
    pub fn overlap_ns(&self, object: &Object, phase: usize) -> u64 {
        let end = self.phases.get(phase + 1).map_or(self.end_ns, |next| next.start_ns);
        // Objects born before the first phase count from its start.
        let birth = object.birth_ns.max(self.phases[phase].start_ns);
        object.death_ns.min(end).saturating_sub(birth)
    }

    fn check_phases(&self) -> Result<(), PlanError> {
        if self.phases.is_empty() {
            return Err(PlanError::Options("a workload has at least one phase"));
        }
        if !(self.sample_period.is_finite() && self.sample_period > 0.0) {
            return Err(PlanError::Options("the sample period is a number above 0"));
        }
        for (index, phase) in self.phases.iter().enumerate() {
            let next = self.phases.get(index + 1).map_or(self.end_ns, |next| next.start_ns);
            let what = if next <= phase.start_ns {
                "ends before it starts"
            } else if !(phase.compute_ns.is_finite() && phase.compute_ns >= 0.0) {
                "its compute time is not a time"
            } else {
                continue;
            };
            let place = format!("phase {index} ({})", phase.name);
            return Err(PlanError::Workload { place, what });
        }
        Ok(())
    }

    fn wrong_with(&self, object: &Object) -> Option<&'static str> {
        if object.bytes == 0 || object.bytes > i64::MAX as u64 {
            return Some("its size is 0 or beyond 2^63");
        }
        if object.death_ns <= object.birth_ns || object.birth_ns >= self.end_ns {
            return Some("it dies before its birth, or is born after the end");
        }
        if object.death_ns <= self.phases[0].start_ns {
            return Some("it dies before the first phase");
        }
        let (first, last) = self.phases_of(object);
        let mut earliest = first;
        for one in &object.uses {
            let phase = one.phase as usize;
            if phase < earliest || phase > last {
                return Some("used in a phase it does not live in, or phases out of order");
            }
            earliest = phase + 1;
            let apart = one.isolated.unwrap_or(0.0);
            let counts = [one.reads, one.writes, one.latency_weight, one.drawn_bytes, apart];
            if counts.iter().any(|count| !(count.is_finite() && *count >= 0.0)) {
                return Some("a count or weight is not a number from 0 on");
            }
            if !(0.0..=1.0).contains(&one.hit_ratio) || one.threads == 0 {
                return Some("a hit ratio beyond 0 to 1, or no thread");
            }
            if apart > 1.0 {
                return Some("more lines come by themselves than there are");
            }
        }
        None
    }
}
