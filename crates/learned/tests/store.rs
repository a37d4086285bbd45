//! The folder of what is known, and everything that it may hold instead.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use tiercel_learned::{
    Identity, Known, PROGRAMS_MAX, RunFigures, SiteFigures, Store, StoreError, usual_folder,
};

const PROGRAM: &str = "/usr/bin/app";

fn identity(number: u16) -> Identity {
    Identity::of_build_id(&number.to_be_bytes()).unwrap()
}

fn run(samples: f64) -> RunFigures {
    let site = SiteFigures { hash: 7, samples, value_ns: samples, ..SiteFigures::default() };
    RunFigures { elapsed_s: 1.0, peak_bytes: 4096, sites: vec![site] }
}

struct Place {
    root: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { root: tempfile::tempdir().unwrap() }
    }

    fn folder(&self) -> PathBuf {
        self.root.path().join("share/tiercel/learned")
    }

    fn store(&self) -> Store {
        Store::make(&self.folder()).unwrap()
    }

    fn file(&self, number: u16) -> PathBuf {
        self.folder().join(format!("{}.learned", identity(number)))
    }

    fn absorb(&self, number: u16, samples: f64) -> Result<(), StoreError> {
        self.store().absorb(&identity(number), PROGRAM, run(samples), 5)
    }

    fn known(&self, number: u16) -> Known {
        self.store().read(&identity(number)).unwrap().unwrap()
    }

    fn refusal(&self, number: u16) -> String {
        self.store().read(&identity(number)).unwrap_err().to_string()
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn runs_are_added_and_all_is_private() {
    let place = Place::new();
    assert!(Store::open(&place.folder()).unwrap().is_none());
    assert!(place.store().read(&identity(1)).unwrap().is_none());
    place.absorb(1, 100.0).unwrap();
    place.absorb(1, 100.0).unwrap();
    let known = place.known(1);
    assert_eq!((known.runs, known.samples(), known.program.as_str()), (2, 150.0, PROGRAM));
    assert_eq!(mode(&place.folder()), 0o700);
    for name in [place.file(1), place.folder().join("lock")] {
        assert_eq!(mode(&name), 0o600, "{}", name.display());
    }
    assert!(!place.folder().join(".new").exists());
}

#[test]
fn a_run_without_samples_leaves_no_trace() {
    let place = Place::new();
    place.absorb(1, 0.0).unwrap();
    assert_eq!(fs::read_dir(place.folder()).unwrap().count(), 0);
}

#[test]
fn what_is_forgotten_is_gone() {
    let place = Place::new();
    place.absorb(1, 1.0).unwrap();
    place.absorb(2, 1.0).unwrap();
    assert!(place.store().forget(&identity(1)).unwrap());
    assert!(!place.store().forget(&identity(1)).unwrap());
    let left: Vec<Identity> =
        place.store().entries().unwrap().into_iter().map(|entry| entry.identity).collect();
    assert_eq!(left, [identity(2)]);
}

#[test]
fn damaged_and_foreign_files_are_refused_and_replaced() {
    let place = Place::new();
    place.absorb(1, 4.0).unwrap();
    let whole = fs::read(place.file(1)).unwrap();
    for damaged in [&whole[..whole.len() / 2], b"", b"#!/bin/sh\n"] {
        fs::write(place.file(1), damaged).unwrap();
        assert!(place.refusal(1).contains("it is damaged"), "{}", place.refusal(1));
        place.absorb(1, 4.0).unwrap();
        assert_eq!(place.known(1).runs, 1);
    }
    fs::copy(place.file(1), place.file(2)).unwrap();
    assert!(place.refusal(2).contains("of another program"), "{}", place.refusal(2));
    place.absorb(2, 4.0).unwrap();
    assert_eq!(place.known(2).runs, 1);
}

#[test]
fn a_file_of_a_newer_version_stays_and_one_of_an_older_is_replaced() {
    let place = Place::new();
    place.absorb(1, 4.0).unwrap();
    let text = fs::read_to_string(place.file(1)).unwrap();
    let of = |version: &str| text.replacen("\"version\":1", &format!("\"version\":{version}"), 1);
    fs::write(place.file(1), of("2")).unwrap();
    let refused = place.absorb(1, 4.0).unwrap_err().to_string();
    assert!(refused.contains("its version is 2; this build reads 1"), "{refused}");
    assert_eq!(fs::read_to_string(place.file(1)).unwrap(), of("2"));
    fs::write(place.file(1), of("0")).unwrap();
    assert!(place.refusal(1).contains("its version is 0"));
    place.absorb(1, 4.0).unwrap();
    assert_eq!(place.known(1).runs, 1);
}

#[test]
fn links_pipes_and_what_others_may_read_are_not_used() {
    let place = Place::new();
    place.absorb(1, 4.0).unwrap();
    let outside = place.root.path().join("outside");
    fs::rename(place.file(1), &outside).unwrap();
    symlink(&outside, place.file(1)).unwrap();
    assert!(place.refusal(1).contains("is a symbolic link"), "{}", place.refusal(1));
    let before = fs::read(&outside).unwrap();
    let refused = place.absorb(1, 4.0).unwrap_err().to_string();
    assert!(refused.contains("is a symbolic link"), "{refused}");
    assert_eq!(fs::read(&outside).unwrap(), before, "nothing is written through it");
    assert!(place.store().forget(&identity(1)).unwrap());
    assert!(outside.exists(), "the link is forgotten, not what it leads to");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        place.file(2),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    assert!(place.refusal(2).contains("is no regular file"), "{}", place.refusal(2));
    place.absorb(3, 4.0).unwrap();
    fs::set_permissions(place.file(3), Permissions::from_mode(0o644)).unwrap();
    assert!(place.refusal(3).contains("not yours alone"), "{}", place.refusal(3));
}

#[test]
fn a_folder_that_is_not_ours_alone_is_refused() {
    let place = Place::new();
    place.store();
    fs::set_permissions(place.folder(), Permissions::from_mode(0o770)).unwrap();
    let refused = Store::open(&place.folder()).unwrap_err().to_string();
    assert!(refused.contains("mode 770") && refused.contains("XDG_DATA_HOME"), "{refused}");
    fs::remove_dir(place.folder()).unwrap();
    symlink("/tmp", place.folder()).unwrap();
    assert!(Store::make(&place.folder()).is_err(), "a symbolic link is not followed");
    fs::remove_file(place.folder()).unwrap();
    File::create(place.folder()).unwrap();
    assert!(Store::make(&place.folder()).unwrap_err().to_string().contains("is no folder"));
}

#[test]
fn a_folder_that_cannot_be_made_is_an_error() {
    let place = Place::new();
    // Of root as well: no file system makes a folder in a file.
    File::create(place.root.path().join("share")).unwrap();
    let refused = Store::make(&place.folder()).unwrap_err().to_string();
    assert!(refused.contains("learned"), "{refused}");
}

#[test]
fn a_read_only_home_is_an_error() {
    // Of root as well: no one makes folders there.
    let refused = Store::make(Path::new("/proc/self/tiercel/learned")).unwrap_err().to_string();
    assert!(refused.contains("cannot make /proc/self/tiercel/learned"), "{refused}");
}

/// Names the folder of the process that may write no byte to a file.
const FULL: &str = "TIERCEL_TEST_FULL";

#[test]
fn a_full_disk_leaves_what_was_known() {
    if let Some(folder) = std::env::var_os(FULL) {
        let store = Store::make(Path::new(&folder)).unwrap();
        let refused = store.absorb(&identity(1), PROGRAM, run(4.0), 6).unwrap_err().to_string();
        assert!(refused.contains("cannot write"), "{refused}");
        return;
    }
    let place = Place::new();
    place.absorb(1, 4.0).unwrap();
    let before = fs::read(place.file(1)).unwrap();
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$@\"", "sh"]);
    shell
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "a_full_disk_leaves_what_was_known"]);
    let output = shell.env(FULL, place.folder()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(fs::read(place.file(1)).unwrap(), before);
    assert!(!place.folder().join(".new").exists(), "half a file takes no room");
    place.absorb(1, 4.0).unwrap();
    assert_eq!(place.known(1).runs, 2);
}

#[test]
fn a_file_that_was_left_over_is_replaced() {
    let place = Place::new();
    place.store();
    fs::write(place.folder().join(".new"), b"half a fi").unwrap();
    place.absorb(1, 4.0).unwrap();
    assert_eq!(place.known(1).runs, 1);
}

#[test]
fn runs_that_end_at_once_are_all_kept() {
    const RUNS: u64 = 8;
    let place = Place::new();
    place.store();
    std::thread::scope(|scope| {
        for _ in 0..RUNS {
            scope.spawn(|| place.absorb(1, 4.0).unwrap());
        }
    });
    assert_eq!(place.known(1).runs, RUNS);
}

#[test]
fn a_run_does_not_wait_for_one_that_was_stopped() {
    let place = Place::new();
    place.store();
    let held = File::create(place.folder().join("lock")).unwrap();
    fs::set_permissions(place.folder().join("lock"), Permissions::from_mode(0o600)).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let refused = place.absorb(1, 4.0).unwrap_err();
    assert!(matches!(refused, StoreError::Locked { .. }), "{refused}");
    drop(held);
    place.absorb(1, 4.0).unwrap();
}

#[test]
fn the_oldest_programs_are_forgotten() {
    let place = Place::new();
    let most = u16::try_from(PROGRAMS_MAX).unwrap();
    for number in 0..most + 3 {
        place.absorb(number, 1.0).unwrap();
        let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(u64::from(number) + 1);
        File::options().write(true).open(place.file(number)).unwrap().set_modified(old).unwrap();
    }
    let entries = place.store().entries().unwrap();
    assert_eq!(entries.len(), PROGRAMS_MAX);
    assert_eq!(entries[0].identity, identity(most + 2));
    assert!(!place.file(2).exists() && place.file(3).exists());
}

#[test]
fn the_folder_is_the_users() {
    let usual = |data: Option<&str>, home: Option<&str>| {
        let found = usual_folder(data.map(AsRef::as_ref), home.map(AsRef::as_ref));
        found.map(|path| path.display().to_string())
    };
    assert_eq!(usual(Some("/d"), Some("/h")).unwrap(), "/d/tiercel/learned");
    assert_eq!(usual(Some("d"), Some("/h")).unwrap(), "/h/.local/share/tiercel/learned");
    assert_eq!(usual(None, Some("")), None);
}
