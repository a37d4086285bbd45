//! How much memory a recorded program used in each window of time.
//! In: a [`Profile`], the length of a window. Out: [`WorkingSet`]s. Knows nothing of how they are
//! shown.
//!
//! A window's working set are the extents that a sample hit in it. Samples miss what is used
//! seldom, so it is a lower bound that grows with the window and with the number of samples; an
//! extent counts whole, which is an upper bound where only a part of it is used.

use std::collections::HashSet;

use tiercel_profile::{Access, Object, Profile};

/// One window of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkingSet {
    /// Start of the window, nanoseconds since the first run began; runs follow one another.
    pub start_ns: u64,
    /// Bytes of the extents that were accessed in it.
    pub used_bytes: u64,
    /// Most bytes that lived at its start or were born in it.
    pub live_bytes: u64,
    /// Samples in it.
    pub samples: u64,
}

/// The windows of all runs, at least `window_ns` long: whole time slots. Empty without runs.
pub fn working_sets(profile: &Profile, window_ns: u64) -> Vec<WorkingSet> {
    let slots = window_ns.div_ceil(profile.slot_ns.max(1)).max(1);
    let mut windows = Vec::new();
    let mut base_ns = 0;
    for (run, length_ns) in (0..).zip(profile.runs.iter().map(|run| run.duration_ns)) {
        windows.extend(of_run(profile, run, length_ns, (slots, base_ns)));
        base_ns += length_ns;
    }
    windows
}

fn of_run(
    profile: &Profile,
    run: u32,
    length_ns: u64,
    (slots, base_ns): (u64, u64),
) -> Vec<WorkingSet> {
    let window_ns = slots.saturating_mul(profile.slot_ns.max(1));
    let count = usize::try_from(length_ns.div_ceil(window_ns).max(1)).unwrap_or(usize::MAX);
    let start = |at: usize| base_ns + at as u64 * window_ns;
    let empty = |at| WorkingSet { start_ns: start(at), ..WorkingSet::default() };
    let mut windows: Vec<WorkingSet> = (0..count).map(empty).collect();
    let window_of = |slot: u64| usize::try_from(slot / slots).unwrap_or(usize::MAX).min(count - 1);
    let mut seen = HashSet::new();
    for access in &profile.accesses {
        let object = &profile.objects[access.object as usize];
        if profile.run_of(object) != run {
            continue;
        }
        let at = window_of(u64::from(access.slot));
        windows[at].samples += access.samples;
        if access.accesses() > 0 && seen.insert((at, access.object, access.extent)) {
            windows[at].used_bytes += extent_bytes(object, access);
        }
    }
    for (_, object) in profile.objects_of(run) {
        let at = |ns: u64| window_of(ns / profile.slot_ns.max(1));
        let (first, last) = (at(object.birth_ns), at(object.death_ns.saturating_sub(1)));
        windows[first..=last].iter_mut().for_each(|one| one.live_bytes += object.peak_bytes);
    }
    windows
}

/// Bytes of the extent of an access; the last one of an object may be shorter.
fn extent_bytes(object: &Object, access: &Access) -> u64 {
    match object.extent_bytes {
        0 => object.peak_bytes,
        bytes => {
            let before = u64::from(access.extent).saturating_mul(bytes);
            object.bytes.saturating_sub(before).min(bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_profile::{Process, Run, SLOT_NS_MIN, Site};

    const SLOT: u64 = SLOT_NS_MIN;

    #[test]
    fn windows_count_extents_once_and_lives_while_they_last() {
        let object = |bytes, extent_bytes, birth: u64, death: u64| Object {
            count: 1,
            bytes,
            peak_bytes: bytes,
            extent_bytes,
            birth_ns: birth * SLOT,
            death_ns: death * SLOT,
            ..Object::default()
        };
        let access = |object, extent, slot| Access {
            object,
            extent,
            slot,
            reads: 9,
            samples: 1,
            ..Access::default()
        };
        let profile = Profile {
            slot_ns: SLOT,
            runs: vec![Run { duration_ns: 6 * SLOT, ..Run::default() }],
            processes: vec![Process::default()],
            sites: vec![Site::default()],
            // 10 KiB in extents of 4 KiB, and 7 KiB in one.
            objects: vec![object(10 << 10, 4096, 0, 6), object(7 << 10, 0, 2, 4)],
            accesses: vec![access(0, 0, 0), access(0, 0, 1), access(0, 2, 1), access(1, 0, 3)],
            ..Profile::default()
        };
        let sets = working_sets(&profile, 2 * SLOT);
        let used: Vec<u64> = sets.iter().map(|one| one.used_bytes >> 10).collect();
        assert_eq!(used, [4 + 2, 7, 0]);
        let live: Vec<u64> = sets.iter().map(|one| one.live_bytes >> 10).collect();
        assert_eq!(live, [10, 17, 10]);
        assert_eq!(sets.iter().map(|one| one.samples).collect::<Vec<_>>(), [3, 1, 0]);
        assert_eq!(sets[1].start_ns, 2 * SLOT);
        assert!(working_sets(&Profile::default(), 1).is_empty());
    }

    #[test]
    fn runs_have_windows_of_their_own() {
        let run = || Run { duration_ns: 3 * SLOT, ..Run::default() };
        let profile = Profile { slot_ns: SLOT, runs: vec![run(), run()], ..Profile::default() };
        let starts: Vec<u64> =
            working_sets(&profile, 2 * SLOT).iter().map(|one| one.start_ns / SLOT).collect();
        assert_eq!(starts, [0, 2, 3, 5]);
    }
}
