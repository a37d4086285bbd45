//! What merging and a size limit must preserve.

mod common;

use common::{profiles, totals};
use proptest::prelude::*;
use tiercel_profile::{LIMIT_BYTES_MIN, MergeError, Object, Profile, Relation, check, merge};

fn same_program(mut profiles: Vec<Profile>) -> Vec<Profile> {
    // Hashes represent stacks: those of one program are the same.
    let sites = profiles.iter().max_by_key(|one| one.sites.len()).unwrap().sites.clone();
    for profile in &mut profiles {
        profile.sites = sites[..profile.sites.len()].to_vec();
    }
    profiles
}

fn sum(all: &[Profile]) -> [u64; 10] {
    let mut sums = [0; 10];
    for one in all {
        sums.iter_mut().zip(totals(one)).for_each(|(sum, more)| *sum += more);
    }
    sums
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn merged_runs_keep_all_sums_in_any_order(
        three in proptest::collection::vec(profiles(2), 3).prop_map(same_program),
    ) {
        let [a, b, c] = <[Profile; 3]>::try_from(three.clone()).unwrap();
        let runs = |all: Vec<Profile>| merge(all, Relation::Runs).unwrap();
        let all = runs(three.clone());
        prop_assert_eq!(check(&all), Ok(()));
        prop_assert_eq!(totals(&all), sum(&three));
        prop_assert_eq!(&runs(vec![runs(vec![a.clone(), b.clone()]), c.clone()]), &all);
        prop_assert_eq!(&runs(vec![a.clone(), runs(vec![b, c])]), &all);
        prop_assert_eq!(&runs(vec![a.clone()]), &a);
    }

    #[test]
    fn parts_of_a_run_are_one_run(
        parts in proptest::collection::vec(profiles(1), 2..4).prop_map(same_program),
    ) {
        let all = merge(parts.clone(), Relation::Parts).unwrap();
        prop_assert_eq!(check(&all), Ok(()));
        prop_assert_eq!(all.runs.len(), 1);
        prop_assert_eq!(totals(&all), sum(&parts));
        let first = parts.iter().map(|part| part.runs[0].start_unix_ns).min().unwrap();
        prop_assert_eq!(all.runs[0].start_unix_ns, first);
        let births = parts.iter().flat_map(|part| {
            let late_ns = part.runs[0].start_unix_ns - first;
            part.objects.iter().map(move |object| object.birth_ns + late_ns)
        });
        let mut births: Vec<u64> = births.collect();
        let mut merged: Vec<u64> = all.objects.iter().map(|object| object.birth_ns).collect();
        births.sort_unstable();
        merged.sort_unstable();
        prop_assert_eq!(merged, births);
    }

    #[test]
    fn phase_detection_keeps_every_access(profile in profiles(2)) {
        let mut again = profile.clone();
        again.detect_phases();
        prop_assert_eq!(check(&again), Ok(()));
        prop_assert_eq!(totals(&again), totals(&profile));
        let is_marked = |phase: &&tiercel_profile::Phase| phase.process.is_some();
        let marked = |profile: &Profile| profile.phases.iter().filter(is_marked).count();
        prop_assert_eq!(marked(&again), marked(&profile));
        let mut twice = again.clone();
        twice.detect_phases();
        prop_assert_eq!(twice, again);
    }
}

/// Many objects and accesses, so that a limit has an effect.
fn large(objects: u32, slots: u32) -> Profile {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut profile = profiles(1).new_tree(&mut runner).unwrap().current();
    let sites = u32::try_from(profile.sites.len()).unwrap();
    let phase =
        u32::try_from(profile.phases.iter().position(|p| p.process.is_none()).unwrap()).unwrap();
    profile.objects.clear();
    profile.accesses.clear();
    for number in 0..objects {
        profile.objects.push(Object {
            site: number % sites,
            count: 1,
            bytes: 1 << 20,
            peak_bytes: 1 << 20,
            born_bytes: 1 << 20,
            birth_ns: u64::from(number),
            death_ns: u64::from(number) + 1000,
            lifetime_ns: 1000,
            extent_bytes: 1 << 16,
            ..Object::default()
        });
        for slot in 0..slots {
            let (extent, reads) = ((slot + number) % 16, 1);
            let access = tiercel_profile::Access {
                object: number,
                phase,
                slot,
                extent,
                reads,
                ..Default::default()
            };
            profile.accesses.push(access);
        }
    }
    assert_eq!(check(&profile), Ok(()));
    profile
}

#[test]
fn a_profile_stays_within_its_limit_and_loses_nothing() {
    for (objects, slots) in [(9_000, 1), (20, 3000), (1000, 20)] {
        let whole = large(objects, slots);
        for limit in [64 << 20, 4 << 20, LIMIT_BYTES_MIN, 0] {
            let mut kept = whole.clone();
            kept.keep(limit);
            assert!(kept.bytes() <= limit.max(LIMIT_BYTES_MIN), "{} for {limit}", kept.bytes());
            assert_eq!(check(&kept), Ok(()));
            assert_eq!(totals(&kept), totals(&whole));
            let is_coarser = kept.coarsening != whole.coarsening;
            assert_eq!(
                is_coarser,
                whole.bytes() > limit.max(LIMIT_BYTES_MIN),
                "and it reports that"
            );
        }
    }
}

#[test]
fn merged_objects_keep_their_peak_bytes() {
    // A thousand objects of 1 MiB, each born 1 ns after the previous one and alive for 1000 ns: all
    // live at once.
    let mut kept = large(1000, 40);
    let site = kept.objects[0].site;
    let members = kept.objects.iter().filter(|object| object.site == site).count() as u64;
    kept.keep(LIMIT_BYTES_MIN);
    let one = kept.objects.iter().find(|object| object.site == site).unwrap();
    assert_eq!((one.count, one.peak_bytes), (members, members << 20));
}

#[test]
fn profiles_of_different_programs_do_not_merge() {
    let (a, mut b) = (large(1, 1), large(1, 1));
    b.runs[0].build_id = "beef".into();
    let refused = merge(vec![a.clone(), b], Relation::Runs).unwrap_err();
    assert!(refused.to_string().contains("build beef"), "{refused}");
    let mut c = large(1, 1);
    c.machine.name = "elsewhere".into();
    let refused = merge(vec![a.clone(), c], Relation::Runs).unwrap_err();
    assert!(matches!(refused, MergeError::OtherMachine { index: 1, .. }), "{refused}");
    assert_eq!(merge(vec![], Relation::Runs), Err(MergeError::Nothing));
    let two = merge(vec![a.clone(), a.clone()], Relation::Runs).unwrap();
    assert_eq!(merge(vec![a, two], Relation::Parts), Err(MergeError::ManyRuns(1)));
}
