//! Folders: written profiles are read back; damaged, foreign or hostile ones are refused.

mod common;

use std::path::Path;

use common::profiles;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use tiercel_profile::{FORMAT_VERSION, Profile, ProfileError, check, read, vacant, write};

/// A profile with something in every table.
fn example() -> Profile {
    let mut runner = TestRunner::deterministic();
    let rich = profiles(2).prop_filter("rich", |profile| {
        profile.objects.len() > 30
            && profile.accesses.len() > 30
            && profile.sites.len() > 1
            && profile.processes.iter().any(|p| p.threads.len() > 1)
    });
    rich.new_tree(&mut runner).expect("there are such").current()
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_written_profile_is_read_back(profile in profiles(2)) {
        prop_assert_eq!(check(&profile), Ok(()));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("app.profile");
        write(&profile, &path).unwrap();
        prop_assert_eq!(&read(&path).unwrap(), &profile);
        // Written again over itself, it leaves nothing next to it.
        write(&profile, &path).unwrap();
        prop_assert_eq!(&read(&path).unwrap(), &profile);
        prop_assert_eq!(files(folder.path()).len(), 1);
    }
}

#[test]
fn every_damage_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.profile");
    let profile = example();
    write(&profile, &path).unwrap();
    for file in files(&path) {
        let whole = std::fs::read(&file).unwrap();
        let flips = (0..whole.len()).step_by(whole.len() / 40 + 1).chain([whole.len() - 1]);
        for at in flips {
            for bit in [0x01, 0x20, 0x80] {
                let mut damaged = whole.clone();
                damaged[at] ^= bit;
                std::fs::write(&file, &damaged).unwrap();
                // White space in the manifest may change.
                match read(&path) {
                    Ok(got) => assert_eq!(got, profile, "{}: byte {at}", file.display()),
                    Err(error) => said(&error, &path),
                }
            }
        }
        for length in [0, 1, whole.len() / 2, whole.len() - 2] {
            std::fs::write(&file, &whole[..length]).unwrap();
            said(&read(&path).unwrap_err(), &path);
        }
        std::fs::remove_file(&file).unwrap();
        said(&read(&path).unwrap_err(), &path);
        std::fs::create_dir(&file).unwrap();
        said(&read(&path).unwrap_err(), &path);
        std::fs::remove_dir(&file).unwrap();
        std::fs::write(&file, &whole).unwrap();
    }
    assert_eq!(read(&path).unwrap(), profile);
}

/// Errors name the profile.
fn said(error: &ProfileError, path: &Path) {
    let text = error.to_string();
    assert!(text.contains(path.to_str().unwrap()), "{text}");
}

#[test]
fn a_folder_that_is_not_a_profile_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    assert!(matches!(read(&path), Err(ProfileError::Io { .. })));
    std::fs::create_dir(&path).unwrap();
    assert!(matches!(read(&path), Err(ProfileError::NotAProfile { .. })));
    let mine = path.join("mine");
    std::fs::write(&mine, "dear diary").unwrap();
    assert!(matches!(vacant(&path), Err(ProfileError::Occupied(_))));
    assert!(matches!(write(&example(), &path), Err(ProfileError::Occupied(_))));
    assert_eq!(std::fs::read_to_string(&mine).unwrap(), "dear diary");
    assert_eq!(files(folder.path()).len(), 1, "nothing is left next to it");
    std::fs::write(path.join("manifest.json"), r#"{"format": "recipe", "version": 1}"#).unwrap();
    assert!(matches!(write(&example(), &path), Err(ProfileError::Occupied(_))));
}

#[test]
fn other_versions_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.profile");
    write(&example(), &path).unwrap();
    let manifest = path.join("manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    let own = format!("\"version\": {FORMAT_VERSION}");
    std::fs::write(&manifest, text.replace(&own, "\"version\": 7")).unwrap();
    assert!(matches!(read(&path), Err(ProfileError::UnsupportedVersion { found: 7, .. })));
    std::fs::write(&manifest, text.replace(&own, "\"version\": 3")).unwrap();
    let message = read(&path).unwrap_err().to_string();
    let expect =
        format!("profile version 3; this build reads version {FORMAT_VERSION}: record again");
    assert!(message.contains(&expect), "{message}");
    // It is still a profile, and may be replaced.
    write(&example(), &path).unwrap();
    assert_eq!(read(&path).unwrap(), example());
}

#[test]
fn an_inconsistent_profile_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.profile");
    let breaks: [fn(&mut Profile); 9] = [
        |profile| profile.slot_ns = 12345,
        |profile| profile.objects[3].site = 99,
        |profile| profile.objects[3].death_ns = profile.objects[3].birth_ns,
        |profile| profile.objects.reverse(),
        |profile| profile.accesses.swap(0, 1),
        |profile| profile.accesses[2].timed_reads = u64::MAX,
        |profile| profile.accesses[2].phase = 12345,
        |profile| profile.processes[0].run = 9,
        |profile| profile.sites[1].hash = 0,
    ];
    for (index, breaks) in breaks.iter().enumerate() {
        let mut profile = example();
        breaks(&mut profile);
        let refused = write(&profile, &path);
        assert!(matches!(refused, Err(ProfileError::Inconsistent(_))), "{index}: {refused:?}");
        assert_eq!(files(folder.path()).len(), 0);
    }
}
