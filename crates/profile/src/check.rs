//! Invariants of a profile, whatever wrote it. In: a [`Profile`]. Out: the first violation. Knows
//! nothing of files.

use std::collections::HashSet;

use crate::profile::{Access, AccessSite, Object, Profile, SERVED_MAX, SLOT_NS_MIN};
use crate::table::TEXT_BYTES_MAX;
use crate::tables::{
    ACCESS_SITES_MAX, ACCESSES_MAX, FRAMES_MAX, NAMES_MAX, OBJECTS_MAX, PHASES_MAX, PROCESSES_MAX,
    SITES_MAX,
};
use tiercel_machine::number::index_u32;
use tiercel_wire::Pattern;

/// Most runs of one profile. One after another they still end below 2^64 ns.
pub const RUNS_MAX: usize = 1024;

/// Bits of [`Access::threads`].
pub(crate) const THREAD_BITS: usize = 64;

/// Latest plausible time, nanoseconds: 104 days.
pub(crate) const NS_MAX: u64 = 1 << 53;

/// Checks all invariants of a profile's parts; the error is the first violation.
pub fn check(profile: &Profile) -> Result<(), String> {
    check_sizes(profile)?;
    check_runs(profile)?;
    check_sites(profile)?;
    check_phases(profile)?;
    for (index, object) in profile.objects.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| profile.objects[before].process);
        let wrong = wrong_with_object(profile, object, before.unwrap_or(0));
        if let Some(what) = wrong {
            return Err(format!("object {index}: {what}"));
        }
    }
    let mut before = None;
    for (index, access) in profile.accesses.iter().enumerate() {
        if before.is_some_and(|before| before >= access.key()) {
            return Err(format!("access {index} is out of order"));
        }
        before = Some(access.key());
        if let Some(what) = wrong_with_access(profile, access) {
            return Err(format!("access {index}: {what}"));
        }
    }
    check_access_sites(profile)
}

fn check_access_sites(profile: &Profile) -> Result<(), String> {
    let mut before = None;
    for (index, one) in profile.access_sites.iter().enumerate() {
        let exists = |site: u32| (site as usize) < profile.sites.len();
        let AccessSite { code, site, .. } = *one;
        let wrong = if before.is_some_and(|before| before >= one.key()) {
            "it is out of order"
        } else if !exists(code) || !exists(site) {
            "its code or its site does not exist"
        } else if Pattern::named(&one.pattern).is_none() {
            "no pattern has that name"
        } else {
            before = Some(one.key());
            continue;
        };
        return Err(format!("access site {index}: {wrong}"));
    }
    Ok(())
}

/// Longest time slot, nanoseconds.
const SLOT_NS_MAX: u64 = 1 << 60;

fn check_sizes(profile: &Profile) -> Result<(), String> {
    let sizes = [
        ("runs", profile.runs.len(), RUNS_MAX),
        ("processes", profile.processes.len(), PROCESSES_MAX),
        ("sites", profile.sites.len(), SITES_MAX),
        ("phases", profile.phases.len(), PHASES_MAX),
        ("objects", profile.objects.len(), OBJECTS_MAX),
        ("accesses", profile.accesses.len(), ACCESSES_MAX),
        ("access sites", profile.access_sites.len(), ACCESS_SITES_MAX),
    ];
    match sizes.iter().find(|(_, count, max)| count > max) {
        Some((what, count, max)) => Err(format!("{count} {what}; at most {max}")),
        None => Ok(()),
    }
}

fn check_runs(profile: &Profile) -> Result<(), String> {
    let slots = profile.slot_ns / SLOT_NS_MIN;
    let is_whole = slots * SLOT_NS_MIN == profile.slot_ns && slots.is_power_of_two();
    if !is_whole || profile.slot_ns > SLOT_NS_MAX {
        return Err(format!("time slots of {} ns", profile.slot_ns));
    }
    for (index, run) in profile.runs.iter().enumerate() {
        if !(run.sample_period.is_finite() && run.sample_period >= 0.0) || run.duration_ns > NS_MAX
        {
            return Err(format!("run {index}: an impossible figure"));
        }
        let ascends = run.served.windows(2).all(|two| two[0].node < two[1].node);
        if !ascends || run.served.len() > SERVED_MAX {
            return Err(format!("run {index}: nodes that served are out of order"));
        }
        if let Some(what) = run.mixed.defect(TEXT_BYTES_MAX) {
            return Err(format!("run {index}: {what}"));
        }
        if !run.speeds.is_sound() {
            return Err(format!("run {index}: an impossible speed"));
        }
    }
    let mut run = 0;
    for (index, process) in profile.processes.iter().enumerate() {
        let wrong = if process.run < run || process.run as usize >= profile.runs.len() {
            "its run does not exist, or it is out of order"
        } else if process.start_ns > process.end_ns || process.end_ns > NS_MAX {
            "it ends before it starts"
        } else if process.threads.len() > THREAD_BITS || process.program.len() > TEXT_BYTES_MAX {
            "too many threads, or a name that is too long"
        } else if process.parent.is_some_and(|parent| parent as usize >= index) {
            "its parent does not exist"
        } else {
            run = process.run;
            continue;
        };
        return Err(format!("process {index}: {wrong}"));
    }
    Ok(())
}

fn check_sites(profile: &Profile) -> Result<(), String> {
    let mut hashes = HashSet::new();
    for (index, site) in profile.sites.iter().enumerate() {
        let is_long = |text: &str| text.len() > TEXT_BYTES_MAX;
        let frames = || site.frames.iter();
        let names = || frames().flat_map(|frame| &frame.names);
        let wrong = if !hashes.insert(site.hash) {
            "another one has its hash"
        } else if site.frames.len() > FRAMES_MAX || frames().any(|f| f.names.len() > NAMES_MAX) {
            "its stack is too deep"
        } else if names().any(|name| name.function.is_empty()) {
            "a function without a name"
        } else if frames().any(|frame| is_long(&frame.module) || is_long(&frame.build_id))
            || names().any(|name| is_long(&name.function) || is_long(&name.file))
        {
            "a name is too long"
        } else {
            continue;
        };
        return Err(format!("site {index}: {wrong}"));
    }
    Ok(())
}

fn check_phases(profile: &Profile) -> Result<(), String> {
    let mut before: Option<(u32, Option<u32>, u64)> = None;
    for (index, phase) in profile.phases.iter().enumerate() {
        let run_of = |process: u32| profile.processes.get(process as usize).map(|one| one.run);
        let wrong = if phase.run as usize >= profile.runs.len() {
            "its run does not exist"
        } else if phase.process.is_some_and(|process| run_of(process) != Some(phase.run)) {
            "its process does not exist, or is of another run"
        } else if phase.start_ns >= phase.end_ns || phase.end_ns > NS_MAX {
            "it ends before it starts"
        } else if phase.name.len() > TEXT_BYTES_MAX {
            "its name is too long"
        } else if before.is_some_and(|(run, process, end_ns)| {
            (phase.run, phase.process) < (run, process)
                || (phase.run, phase.process) == (run, process) && phase.start_ns < end_ns
        }) {
            "it is out of order"
        } else {
            before = Some((phase.run, phase.process, phase.end_ns));
            continue;
        };
        return Err(format!("phase {index}: {wrong}"));
    }
    let runs = 0..index_u32(profile.runs.len());
    let have: HashSet<u32> = profile.phases.iter().map(|phase| phase.run).collect();
    match runs.into_iter().find(|run| !have.contains(run)) {
        Some(run) => Err(format!("run {run} has no phase")),
        None => Ok(()),
    }
}

fn wrong_with_object(profile: &Profile, object: &Object, before: u32) -> Option<&'static str> {
    let piece = object.extent_bytes;
    let wrong = [
        (
            object.process < before || object.process as usize >= profile.processes.len(),
            "its process does not exist, or it is out of order",
        ),
        (object.site as usize >= profile.sites.len(), "its site does not exist"),
        (
            object.count == 0 || object.freed > object.count,
            "its count is 0, or more were freed than allocated",
        ),
        (
            object.bytes == 0
                || object.bytes > object.peak_bytes
                || object.peak_bytes > object.born_bytes
                || object.fresh_bytes > object.born_bytes
                || object.born_bytes > i64::MAX as u64,
            "its sizes contradict each other",
        ),
        (
            object.birth_ns >= object.death_ns || object.death_ns > NS_MAX,
            "it dies before its birth",
        ),
        (
            piece != 0 && (piece < 4096 || !piece.is_power_of_two()),
            "its extents have an impossible size",
        ),
    ];
    wrong.iter().find(|(is_wrong, _)| *is_wrong).map(|(_, what)| *what)
}

fn wrong_with_access(profile: &Profile, access: &Access) -> Option<&'static str> {
    let Some(object) = profile.objects.get(access.object as usize) else {
        return Some("its object does not exist");
    };
    let Some(phase) = profile.phases.get(access.phase as usize) else {
        return Some("its phase does not exist");
    };
    let run = profile.run_of(object);
    let start = u64::from(access.extent).checked_mul(object.extent_bytes);
    let slot_start = u64::from(access.slot).checked_mul(profile.slot_ns);
    let wrong = [
        (slot_start.is_none_or(|start| start >= NS_MAX), "its time is implausible"),
        (
            phase.run != run || phase.process.is_some_and(|process| process != object.process),
            "its phase is of another process",
        ),
        (
            start.is_none_or(|start| start >= object.peak_bytes)
                || object.extent_bytes == 0 && access.extent > 0,
            "its extent is outside its object",
        ),
        (
            access.timed_reads > access.reads || access.timed_writes > access.writes,
            "more latencies than accesses",
        ),
        (
            access.cached.is_some_and(|cached| cached > access.accesses()),
            "more cache hits than accesses",
        ),
        (
            access.mlp_known > access.accesses()
                || access.serialized > access.mlp_known
                || access.isolated > access.mlp_known,
            "more accesses with known concurrency than accesses",
        ),
    ];
    wrong.iter().find(|(is_wrong, _)| *is_wrong).map(|(_, what)| *what)
}
