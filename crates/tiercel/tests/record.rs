//! `tiercel record` and `tiercel profile`: what a program did is written, and read back.

mod common;

use common::{compile, stderr, stdout, tiercel};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Output;
use tiercel_profile::{Profile, read, site_label};

/// A table that lives, and ten temporaries that do not, from another line; forks once.
const PROGRAM: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <unistd.h>
#include <sys/wait.h>
__attribute__((noinline)) char *table(size_t bytes) { return malloc(bytes); }
__attribute__((noinline)) char *temporary(size_t bytes) { return malloc(bytes); }
__attribute__((noinline)) char *childs(size_t bytes) { return malloc(bytes); }
int main(int argc, char **argv) {
    char *kept = table(8 << 20);
    memset(kept, 1, 8 << 20);
    for (int i = 0; i < 10; i++) {
        char *t = temporary(64 << 10);
        memset(t, i, 64 << 10);
        free(t);
    }
    pid_t child = fork();
    if (child == 0) {
        memset(childs(3 << 20), 1, 3 << 20);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    if (argc > 1)
        raise(SIGKILL);
    return kept[5] + 2;
}
"#;

fn record(output: &Path, program: &[&str]) -> Output {
    let mut command = tiercel();
    command.args(["record", "--sampler", "none", "-o"]).arg(output).arg("--").args(program);
    command.output().unwrap()
}

/// Allocations of sites whose place begins so, and how many of them were freed.
fn of_site(profile: &Profile, begins: &str) -> (u64, u64) {
    let of_it =
        |object: &&tiercel_profile::Object| site_label(profile.site_of(object)).starts_with(begins);
    let found = profile.objects.iter().filter(of_it);
    found.fold((0, 0), |(count, freed), one| (count + one.count, freed + one.freed))
}

#[test]
fn a_program_is_recorded_with_its_child() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "tables", PROGRAM, &[]);
    let output = folder.path().join("t.profile");
    let done = record(&output, &[program.to_str().unwrap()]);
    assert_eq!(done.status.code(), Some(3), "{}", stderr(&done));
    assert!(stderr(&done).contains("t.profile: "), "{}", stderr(&done));
    let profile = read(&output).unwrap();
    let run = &profile.runs[0];
    assert!(run.program.ends_with("/tables") && !run.build_id.is_empty(), "{run:?}");
    assert_eq!((&*run.ending, &*run.sampler), ("exited 3", "none"));
    // The child has the table too, as its own.
    assert_eq!(of_site(&profile, "table tables.c:7"), (2, 0));
    assert_eq!(of_site(&profile, "temporary tables.c:8"), (10, 10));
    assert_eq!(of_site(&profile, "childs tables.c:9"), (1, 0));
    assert_eq!(profile.processes.len(), 2);
    // On a busy machine its hello may be read long before the parent's.
    assert!(matches!(profile.processes[1].parent, None | Some(0)));
    assert!(profile.processes[1].peak_bytes >= 11 << 20);
    let one = profile.objects.iter().find(|object| object.bytes == 8 << 20).unwrap();
    assert!(one.lifetime_ns > 0 && one.address != 0 && one.peak_bytes == 8 << 20);
}

/// With lines, with functions only, and with neither.
#[test]
fn summaries_and_profiles_name_a_site_alike() {
    let folder = tempfile::tempdir().unwrap();
    for (name, flags) in [("lines", &[][..]), ("functions", &["-g0"]), ("stripped", &["-g0", "-s"])]
    {
        let source = folder.path().join(name).with_extension("c");
        std::fs::write(&source, PROGRAM).unwrap();
        let program = common::compile_file(folder.path(), &source, flags);
        let program = program.to_str().unwrap();
        let summary = folder.path().join("summary");
        let mut run = tiercel();
        run.args(["run", "--json", "--output"]).arg(&summary).args(["--", program]);
        assert_eq!(run.status().unwrap().code(), Some(3));
        let text = std::fs::read_to_string(&summary).unwrap();
        let summary: serde_json::Value = serde_json::from_str(&text).unwrap();
        let sites = summary["sites"].as_array().unwrap();
        let born = |site: &&serde_json::Value| site["used"]["born_bytes"].as_u64();
        let named = sites.iter().max_by_key(born).unwrap()["name"].as_str().unwrap();
        let output = folder.path().join("names.profile");
        assert_eq!(record(&output, &[program]).status.code(), Some(3));
        let profile = read(&output).unwrap();
        let table = profile.objects.iter().find(|object| object.bytes == 8 << 20).unwrap();
        // In front is the program's name, unless it had ended before that was read.
        let (_, site) = named.split_once(": ").unwrap();
        assert_eq!(site, site_label(profile.site_of(table)), "{name}");
    }
}

#[test]
fn phases_that_a_program_marks_have_their_names() {
    const PHASES: &str = r#"
#include <time.h>
void tiercel_phase(const char *name) __attribute__((weak));
static void spin(long ms) {
    struct timespec began, now;
    clock_gettime(CLOCK_MONOTONIC, &began);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - began.tv_sec) * 1000 + (now.tv_nsec - began.tv_nsec) / 1000000 < ms);
}
int main(void) {
    const char *names[] = {"load", "solve", "load"};
    for (int i = 0; i < 3; i++) {
        /* Longer than the clock is coarse, on a busy machine too. */
        spin(300);
        if (tiercel_phase)
            tiercel_phase(names[i]);
    }
    return 0;
}
"#;
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "phases", PHASES, &[]);
    let output = folder.path().join("p.profile");
    let done = record(&output, &[program.to_str().unwrap()]);
    assert!(done.status.success(), "{}", stderr(&done));
    let profile = read(&output).unwrap();
    let marked = profile.phases.iter().filter(|phase| phase.process.is_some());
    let names: Vec<&str> = marked.map(|phase| &*phase.name).collect();
    assert_eq!(names, ["start", "load", "solve", "load"]);
}

#[test]
fn what_a_killed_program_did_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "tables", PROGRAM, &[]);
    let output = folder.path().join("t.profile");
    let done = record(&output, &[program.to_str().unwrap(), "die"]);
    assert_eq!(done.status.signal(), Some(9));
    let profile = read(&output).unwrap();
    assert_eq!(profile.runs[0].ending, "killed by signal 9");
    assert_eq!(of_site(&profile, "temporary"), (10, 10));
}

#[test]
fn refusals_come_before_the_program_starts() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("started");
    let precious = folder.path().join("precious");
    std::fs::create_dir(&precious).unwrap();
    std::fs::write(precious.join("file"), "mine").unwrap();
    let missing = folder.path().join("no/such/folder");
    for (args, said) in [
        (vec!["-o", precious.to_str().unwrap()], "is not a profile"),
        (vec!["-o", missing.to_str().unwrap()], "no/such"),
        (vec!["--limit", "5KiB"], "at least 1MiB"),
        (vec!["--sampler", "psychic"], "psychic"),
    ] {
        let mut command = tiercel();
        command
            .current_dir(folder.path())
            .arg("record")
            .args(&args)
            .args(["--", "touch"])
            .arg(&mark);
        let done = command.output().unwrap();
        assert_eq!(done.status.code(), Some(125), "{args:?}");
        assert!(stderr(&done).contains(said), "{args:?}: {}", stderr(&done));
        assert!(!mark.exists(), "{args:?}: the program was started");
    }
}

#[test]
fn profiles_are_shown_compared_merged_and_exported() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "tables", PROGRAM, &[]);
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let [one, two, both] = ["one.profile", "two.profile", "both.profile"].map(at);
    for output in [&one, &two] {
        record(Path::new(output), &[program.to_str().unwrap()]);
    }
    let profile = |args: &[&str]| {
        let done = tiercel().arg("profile").args(args).output().unwrap();
        assert!(done.status.success(), "{args:?}: {}", stderr(&done));
        stdout(&done)
    };
    let shown = profile(&["show", &one]);
    assert!(shown.contains("temporary tables.c:8") && shown.contains("exited 3"), "{shown}");
    let overview: serde_json::Value =
        serde_json::from_str(&profile(&["show", &one, "--json"])).unwrap();
    assert_eq!(overview["runs"][0]["ending"], "exited 3");
    let diff = profile(&["diff", &one, &two]);
    assert!(diff.contains("10 > 10") && diff.contains("temporary"), "{diff}");
    let same = profile(&["diff", "--fidelity", &one, &one]);
    assert!(same.starts_with("misplaced         0.00% of"), "{same}");
    let found: serde_json::Value =
        serde_json::from_str(&profile(&["diff", "--fidelity", "--json", &one, &one])).unwrap();
    assert_eq!((&found["misplaced"], &found["worst_error"]), (&0.0.into(), &0.0.into()));
    profile(&["merge", "-o", &both, &one, &two]);
    let merged = read(Path::new(&both)).unwrap();
    assert_eq!((merged.runs.len(), of_site(&merged, "temporary")), (2, (20, 20)));
    let ranks: serde_json::Value =
        serde_json::from_str(&profile(&["merge", "--ranks", "--json", "-o", &both, &one, &two]))
            .unwrap();
    assert_eq!((ranks["runs"].as_array().unwrap().len(), &ranks["processes"]), (1, &4.into()));
    let csv = profile(&["export", &one, "--table", "sites"]);
    assert!(csv.starts_with("hash,label\n") && csv.contains("table tables.c:7"), "{csv}");
    profile(&["export", &one, "--json", "-o", &at("all")]);
    let objects = std::fs::read(folder.path().join("all/objects.json")).unwrap();
    let objects: serde_json::Value = serde_json::from_slice(&objects).unwrap();
    assert_eq!(objects.as_array().unwrap().len(), read(Path::new(&one)).unwrap().objects.len());
}

#[test]
fn what_is_no_profile_is_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let done = tiercel().args(["profile", "show", path]).output().unwrap();
    assert_eq!(done.status.code(), Some(1));
    assert!(stderr(&done).contains("is not a profile"), "{}", stderr(&done));
}
