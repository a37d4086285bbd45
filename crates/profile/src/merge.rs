//! Merges profiles: of several runs of a program, or of parts of one run. In: profiles. Out: one.
//! Knows nothing of files.
//!
//! Sites are equal if their hashes are. A hash is over build-ids and offsets, so only sites of the
//! same builds match. Everything else stays separate; [`Profile::keep`] merges what is too much.

use std::collections::HashMap;

use crate::profile::{Coarsening, Observed, Profile, Run};
use tiercel_machine::number::index_u32;

/// Why profiles cannot be merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// Nothing to merge.
    #[error("no profile to merge")]
    Nothing,
    /// Different programs, or different builds of one.
    #[error(
        "profile {index} is of {program} (build {build_id}), the first of {first_program} (build \
         {first_build_id}); only profiles of one build merge"
    )]
    OtherProgram {
        /// Index of the profile, from 0.
        index: usize,
        /// Its program,
        program: String,
        /// and build.
        build_id: String,
        /// Of the first profile.
        first_program: String,
        /// Of the first profile.
        first_build_id: String,
    },
    /// Different machines.
    #[error("profile {index} is of machine {machine}, the first of {first}")]
    OtherMachine {
        /// Index of the profile, from 0.
        index: usize,
        /// Its machine.
        machine: String,
        /// Of the first.
        first: String,
    },
    /// Parts of one run must begin together.
    #[error(
        "profile {index} began {apart_s} s after or before another; parts of one run begin within \
         {PARTS_APART_S_MAX} s of each other"
    )]
    Apart {
        /// Index of the profile, from 0.
        index: usize,
        /// Seconds.
        apart_s: u64,
    },
    /// A part of a run has several runs itself.
    #[error("profile {0} has several runs; parts of one run have one each")]
    ManyRuns(usize),
}

/// Largest difference between the starts of parts of a run, seconds: batch systems start ranks
/// within minutes.
pub const PARTS_APART_S_MAX: u64 = 3600;

/// How profiles are related.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// Runs of the same program, one after another.
    Runs,
    /// Concurrent parts of one run: MPI ranks, each recorded separately. Their clocks are assumed
    /// to agree.
    Parts,
}

/// Merges several profiles, in their order.
///
/// # Errors
/// [`MergeError`] if they differ in program, build or machine.
pub fn merge(profiles: Vec<Profile>, relation: Relation) -> Result<Profile, MergeError> {
    check(&profiles, relation)?;
    let slot_ns = profiles.iter().map(|profile| profile.slot_ns).max().unwrap_or(0);
    let starts = profiles.iter().map(|profile| profile.runs[0].start_unix_ns);
    let start_unix_ns = starts.min().unwrap_or(0);
    let mut profiles = profiles.into_iter();
    let mut all = profiles.next().ok_or(MergeError::Nothing)?;
    all.lengthen_slots(slot_ns);
    if relation == Relation::Parts {
        all.shift(start_unix_ns);
    }
    for mut next in profiles {
        next.lengthen_slots(slot_ns);
        if relation == Relation::Parts {
            next.shift(start_unix_ns);
        }
        all.append(next, relation);
    }
    if relation == Relation::Parts {
        // Phases that were detected in each part alone are detected again in all of them together.
        all.detect_phases();
    }
    all.settle();
    all.settle_access_sites();
    Ok(all)
}

fn check(profiles: &[Profile], relation: Relation) -> Result<(), MergeError> {
    let first = profiles.first().ok_or(MergeError::Nothing)?;
    for (index, profile) in profiles.iter().enumerate() {
        let (Some(run), Some(one)) = (profile.runs.first(), first.runs.first()) else {
            return Err(MergeError::Nothing);
        };
        let is_same = if one.build_id.is_empty() {
            (&run.program, &run.build_id) == (&one.program, &one.build_id)
        } else {
            run.build_id == one.build_id
        };
        if !is_same {
            return Err(MergeError::OtherProgram {
                index,
                program: run.program.clone(),
                build_id: run.build_id.clone(),
                first_program: one.program.clone(),
                first_build_id: one.build_id.clone(),
            });
        }
        if profile.machine.name != first.machine.name {
            return Err(MergeError::OtherMachine {
                index,
                machine: profile.machine.name.clone(),
                first: first.machine.name.clone(),
            });
        }
        if relation == Relation::Parts && profile.runs.len() > 1 {
            return Err(MergeError::ManyRuns(index));
        }
        let apart_s = run.start_unix_ns.abs_diff(one.start_unix_ns) / 1_000_000_000;
        if relation == Relation::Parts && apart_s > PARTS_APART_S_MAX {
            return Err(MergeError::Apart { index, apart_s });
        }
    }
    Ok(())
}

impl Profile {
    /// Makes time start at `start_unix_ns`, which is at or before the start of its only run.
    /// Accesses are shifted by whole time slots.
    fn shift(&mut self, start_unix_ns: u64) {
        let run = &mut self.runs[0];
        let late_ns = run.start_unix_ns - start_unix_ns;
        run.start_unix_ns = start_unix_ns;
        run.duration_ns = run.duration_ns.saturating_add(late_ns);
        for process in &mut self.processes {
            process.start_ns += late_ns;
            process.end_ns += late_ns;
        }
        for phase in &mut self.phases {
            phase.start_ns += late_ns;
            phase.end_ns += late_ns;
        }
        for object in &mut self.objects {
            object.birth_ns += late_ns;
            object.death_ns += late_ns;
        }
        let slots = u32::try_from(late_ns / self.slot_ns).unwrap_or(u32::MAX);
        for access in &mut self.accesses {
            access.slot = access.slot.saturating_add(slots);
        }
    }

    /// Appends another profile; phases of parts are sorted later.
    fn append(&mut self, next: Profile, relation: Relation) {
        let first_run = match relation {
            Relation::Runs => index_u32(self.runs.len()),
            Relation::Parts => 0,
        };
        let first_process = index_u32(self.processes.len());
        let first_phase = index_u32(self.phases.len());
        let first_object = index_u32(self.objects.len());
        let mut known: HashMap<u64, u32> =
            (0..).zip(&self.sites).map(|(index, site)| (site.hash, index)).collect();
        let mut site_at = Vec::with_capacity(next.sites.len());
        for site in next.sites {
            let fresh = index_u32(self.sites.len());
            let at = *known.entry(site.hash).or_insert(fresh);
            if at == fresh {
                self.sites.push(site);
            }
            site_at.push(at);
        }
        match relation {
            Relation::Runs => self.runs.extend(next.runs),
            Relation::Parts => next.runs.iter().for_each(|run| self.runs[0].join(run)),
        }
        self.processes.extend(next.processes.into_iter().map(|mut process| {
            process.run += first_run;
            process.parent = process.parent.map(|parent| parent + first_process);
            process
        }));
        self.phases.extend(next.phases.into_iter().map(|mut phase| {
            phase.run += first_run;
            phase.process = phase.process.map(|process| process + first_process);
            phase
        }));
        self.objects.extend(next.objects.into_iter().map(|mut object| {
            object.process += first_process;
            object.site = site_at[object.site as usize];
            object
        }));
        self.accesses.extend(next.accesses.into_iter().map(|mut access| {
            access.object += first_object;
            access.phase += first_phase;
            access
        }));
        self.access_sites.extend(next.access_sites.into_iter().map(|mut one| {
            (one.code, one.site) = (site_at[one.code as usize], site_at[one.site as usize]);
            one
        }));
        self.coarsening.absorb(&next.coarsening);
    }
}

impl Run {
    /// Adds another part of the same run.
    fn join(&mut self, part: &Run) {
        self.duration_ns = self.duration_ns.max(part.duration_ns);
        let samples = |run: &Run| run.observed.samples as f64;
        let all = samples(self) + samples(part);
        if all > 0.0 {
            let sum = self.sample_period * samples(self) + part.sample_period * samples(part);
            self.sample_period = sum / all;
        }
        self.misses_only &= part.misses_only;
        for (ours, theirs) in [
            (&mut self.ending, &part.ending),
            (&mut self.sampler, &part.sampler),
            (&mut self.sampler_note, &part.sampler_note),
        ] {
            if ours != theirs {
                *ours = "differs".to_owned();
            }
        }
        part.served.iter().for_each(|one| self.count_served(one.node, one.accesses));
        self.observed.absorb(&part.observed);
        self.speeds.absorb(&part.speeds);
        self.mixed.absorb(&part.mixed);
    }
}

impl Observed {
    /// Adds what another part observed.
    fn absorb(&mut self, other: &Observed) {
        let Observed {
            births,
            born_bytes,
            records,
            records_lost,
            births_refused,
            samples,
            samples_outside,
            samples_lost,
            throttled,
            scans_skipped,
            phases_refused,
            untracked_bytes,
            sampling_ns,
        } = other;
        for (sum, more) in [
            (&mut self.births, births),
            (&mut self.sampling_ns, sampling_ns),
            (&mut self.born_bytes, born_bytes),
            (&mut self.records, records),
            (&mut self.records_lost, records_lost),
            (&mut self.births_refused, births_refused),
            (&mut self.samples, samples),
            (&mut self.samples_outside, samples_outside),
            (&mut self.samples_lost, samples_lost),
            (&mut self.throttled, throttled),
            (&mut self.scans_skipped, scans_skipped),
            (&mut self.phases_refused, phases_refused),
            (&mut self.untracked_bytes, untracked_bytes),
        ] {
            *sum = sum.saturating_add(*more);
        }
    }
}

impl Coarsening {
    /// Adds the coarsening of another part.
    fn absorb(&mut self, other: &Coarsening) {
        self.objects_merged = self.objects_merged.saturating_add(other.objects_merged);
        self.sites_merged = self.sites_merged.saturating_add(other.sites_merged);
        self.extents_merged = self.extents_merged.saturating_add(other.extents_merged);
        self.processes_merged = self.processes_merged.saturating_add(other.processes_merged);
        self.slots_doubled = self.slots_doubled.max(other.slots_doubled);
    }
}
