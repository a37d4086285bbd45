//! `tiercel record --sampler compiled`: what compiled code reports is in the profile. The programs
//! here call the runtime as compiled code does, so that no clang is needed; compiler/tests has
//! those that `tiercel cc` compiles.

mod common;

use common::{compile, stderr, tiercel};
use std::path::Path;
use std::process::{Command, Output};
use tiercel_profile::{Profile, read, site_label};

/// Accesses memory as compiled code does: each line is checked against the limit.
const PROBE: &str = r#"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tiercel_probe.h"
#define MIB (1u << 20)
#define READS 0
#define WRITES (TIERCEL_PROBE_WRITES | TIERCEL_PROBE_DIRTIES)
__attribute__((weak)) void tiercel_probe_join(const struct tiercel_probe_module *);
__attribute__((weak)) void tiercel_probe_leave(const struct tiercel_probe_module *);
static uint32_t limit;
static void (*access_hook)(uintptr_t, uint32_t, uintptr_t);
static void (*range_hook)(uintptr_t, uintptr_t, uint32_t, uintptr_t);
static struct tiercel_probe_module module = {VERSION, 0, &limit, &access_hook, &range_hook};
__attribute__((constructor)) static void join(void) {
    if (tiercel_probe_join)
        tiercel_probe_join(&module);
}
__attribute__((destructor)) static void leave(void) {
    if (tiercel_probe_leave)
        tiercel_probe_leave(&module);
}
static void touch_by(void (*code)(void), char *memory, size_t bytes, uint32_t what) {
    for (size_t at = 0; at < bytes; at += 64) {
        uint32_t hash = ((uint32_t)(uintptr_t)(memory + at) & -64u) * TIERCEL_PROBE_HASH;
        if (hash < limit)
            access_hook((uintptr_t)(memory + at), what | 8u << TIERCEL_PROBE_SPAN_SHIFT,
                        (uintptr_t)code + 1);
    }
}
__attribute__((noinline)) void reader(void) { __asm__ volatile("nop; nop"); }
__attribute__((noinline)) void writer(void) { __asm__ volatile("nop; nop; nop"); }
static void touch(char *memory, size_t bytes, uint32_t what) {
    touch_by(reader, memory, bytes, what);
}
__attribute__((noinline)) char *table(size_t bytes) { return malloc(bytes); }
__attribute__((noinline)) char *other(size_t bytes) { return malloc(bytes); }
"#;

fn program(folder: &Path, name: &str, main: &str, version: &str) -> String {
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../../include");
    let source = format!("{PROBE}{main}");
    let flags = [include, &format!("-DVERSION={version}"), "-pthread", "-Wno-unused"];
    compile(folder, name, &source, &flags).display().to_string()
}

fn record_command(output: &Path, options: &[&str], program: &str) -> Command {
    let mut command = tiercel();
    command.args(["record", "--sampler", "compiled", "-o"]).arg(output).args(options);
    command.args(["--", program]);
    command
}

fn record(output: &Path, options: &[&str], program: &str) -> Output {
    record_command(output, options, program).output().unwrap()
}

/// Reads, writes and lines made dirty, of objects of a site.
fn counts(profile: &Profile, begins: &str) -> (u64, u64, u64) {
    let of_it = |at: u32| {
        let object = &profile.objects[at as usize];
        site_label(profile.site_of(object)).starts_with(begins)
    };
    let accesses = profile.accesses.iter().filter(|access| of_it(access.object));
    accesses.fold((0, 0, 0), |(reads, writes, dirtied), one| {
        (reads + one.reads, writes + one.writes, dirtied + one.dirtied.unwrap_or(0))
    })
}

const MIB_LINES: u64 = (1 << 20) / 64;
const EXACT: [&str; 4] = ["--rate", "1", "--caches", "32K/8,64K/8,256K/16"];

/// Records a program whose `main` is this, with all lines, and returns the profile.
fn exact(main: &str) -> Profile {
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path(), "app", main, "TIERCEL_PROBE_VERSION");
    let output = folder.path().join("app.profile");
    let done = record(&output, &EXACT, &program);
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    read(&output).unwrap()
}

#[test]
fn misses_are_counted_exactly_by_object_and_kind() {
    let profile = exact(
        "int main(void) {
            char *a = table(2 * MIB), *b = other(4 * MIB);
            touch(a, 2 * MIB, READS);
            touch(a, 2 * MIB, READS);
            touch(b, 4 * MIB, WRITES);
            for (int i = 0; i < 100; i++)
                touch(a, 16 << 10, READS);
            touch(a, 4 << 10, TIERCEL_PROBE_DIRTIES);
            return 0;
        }",
    );
    // All but the first of the hundred passes hit, and what was read is made dirty in the cache.
    let first = (16 << 10) / 64;
    assert_eq!(counts(&profile, "table"), (4 * MIB_LINES + first, 0, 64));
    assert_eq!(counts(&profile, "other"), (0, 4 * MIB_LINES, 4 * MIB_LINES));
    let run = &profile.runs[0];
    assert!(run.misses_only && &*run.sampler == "compiled", "{run:?}");
    assert_eq!(run.observed.samples_outside, 0);
}

#[test]
fn misses_are_known_by_the_code_and_its_pattern() {
    let profile = exact(
        "#define PATTERN(name) (TIERCEL_PROBE_##name << TIERCEL_PROBE_PATTERN_SHIFT)
        int main(void) {
            char *a = table(2 * MIB), *b = other(1 * MIB);
            touch_by(reader, a, 2 * MIB, READS | PATTERN(SEQUENTIAL));
            touch_by(writer, b, 1 * MIB, WRITES | PATTERN(CHASED));
            return 0;
        }",
    );
    let sums = profile.overview().access_sites;
    let begins = |code: &str, site: &str, pattern: &str| {
        let found = sums.iter().filter(|one| {
            one.code.starts_with(code) && one.site.starts_with(site) && one.pattern == pattern
        });
        found.fold((0, 0), |(reads, writes), one| (reads + one.reads, writes + one.writes))
    };
    assert_eq!(begins("reader", "table", "sequential"), (2 * MIB_LINES, 0), "{sums:?}");
    assert_eq!(begins("writer", "other", "chased"), (0, MIB_LINES), "{sums:?}");
}

#[test]
fn threads_and_children_report_their_own() {
    let profile = exact(
        "static char *shared;
        static void *reads(void *unused) { touch(shared, 2 * MIB, READS); return unused; }
        int main(void) {
            shared = table(2 * MIB);
            char *b = other(2 * MIB);
            pthread_t thread;
            touch(b, 1 * MIB, READS);
            pthread_create(&thread, NULL, reads, NULL);
            pthread_join(thread, NULL);
            if (fork() == 0) {
                char *own = other(3 * MIB);
                touch(own, 3 * MIB, WRITES);
                exit(0);
            }
            int status;
            wait(&status);
            return status;
        }",
    );
    assert_eq!(counts(&profile, "table"), (2 * MIB_LINES, 0, 0));
    // The child begins with what its parent had in the cache, and reports nothing of its parent's.
    assert_eq!(counts(&profile, "other"), (MIB_LINES, 3 * MIB_LINES, 3 * MIB_LINES));
}

#[test]
fn memory_that_is_used_again_counts_for_what_lives_there() {
    let profile = exact(
        "int main(void) {
            for (int i = 0; i < 20; i++) {
                char *a = table(1 * MIB);
                touch(a, 1 * MIB, READS);
                free(a);
                char *b = other(1 * MIB);
                touch(b, 1 * MIB, WRITES);
                free(b);
            }
            return 0;
        }",
    );
    assert_eq!(counts(&profile, "table"), (20 * MIB_LINES, 0, 0));
    assert_eq!(counts(&profile, "other"), (0, 20 * MIB_LINES, 20 * MIB_LINES));
}

#[test]
fn a_signal_handler_amid_a_report_does_no_harm() {
    let profile = exact(
        "static char *b;
        static void handler(int number) { (void)number; touch(b, 4 << 10, READS); }
        int main(void) {
            char *a = table(8 * MIB);
            b = other(1 * MIB);
            signal(SIGALRM, handler);
            ualarm(500, 500);
            for (int i = 0; i < 20; i++)
                touch(a, 8 * MIB, READS);
            ualarm(0, 0);
            return 0;
        }",
    );
    assert_eq!(counts(&profile, "table").0, 20 * 8 * MIB_LINES);
}

#[test]
fn what_more_os_pages_than_cells_lose_is_counted() {
    let profile = exact(
        "int main(void) {
            char *a = table(288 * MIB);
            for (int i = 0; i < 2; i++)
                for (size_t at = 0; at < 288 * (size_t)MIB; at += 4096) {
                    touch(a + at, 64, READS);
                    if (at % (64 << 12) == 0)
                        usleep(1);
                }
            return 0;
        }",
    );
    let pages = 2 * 288 * 256;
    let (seen, lost) = (counts(&profile, "table").0, profile.runs[0].observed.samples_lost);
    assert_eq!(seen + lost, pages);
    // How much is lost depends on how soon a busy machine lets the daemon follow.
    assert!(seen > 0, "{lost} of {pages}");
}

#[test]
fn a_share_of_the_lines_stands_for_all() {
    let folder = tempfile::tempdir().unwrap();
    let main = "int main(void) {
        char *a = table(32 * MIB), *b = other(8 * MIB);
        for (int i = 0; i < 4; i++)
            touch(a, 32 * MIB, READS);
        touch(b, 8 * MIB, WRITES);
        return 0;
    }";
    let program = program(folder.path(), "app", main, "TIERCEL_PROBE_VERSION");
    for rate in ["1/8", "1/32"] {
        let output = folder.path().join("app.profile");
        let done = record(&output, &["--rate", rate, "--caches", "oam"], &program);
        assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
        let profile = read(&output).unwrap();
        let near = |got: u64, want: u64| assert!(got.abs_diff(want) * 20 < want, "{got} {want}");
        near(counts(&profile, "table").0, 4 * 32 * MIB_LINES);
        near(counts(&profile, "other").1, 8 * MIB_LINES);
        near(counts(&profile, "other").2, 8 * MIB_LINES);
    }
}

#[test]
fn bad_rates_and_caches_are_refused_before_the_program_starts() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("app.profile");
    for (options, says) in
        [(["--rate", "1/3"], "must be 1, 1/2, 1/4"), (["--caches", "32K"], "must be BYTES/WAYS")]
    {
        let done = record(&output, &options, "/bin/echo");
        assert_eq!(done.status.code(), Some(125));
        assert!(stderr(&done).contains(says), "{}", stderr(&done));
        assert!(done.stdout.is_empty() && !output.exists());
    }
    let mut of_another = tiercel();
    of_another.args(["record", "--rate", "1", "--sampler", "none", "-o"]).arg(&output);
    let done = of_another.args(["--", "/bin/echo"]).output().unwrap();
    assert_eq!(done.status.code(), Some(125));
    assert!(stderr(&done).contains("are for --sampler compiled"), "{}", stderr(&done));
    assert!(done.stdout.is_empty());
}

#[test]
fn programs_without_checks_and_of_other_versions_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let main = "int main(void) { touch(table(MIB), MIB, READS); return (int)limit; }";
    let other = program(folder.path(), "other", main, "TIERCEL_PROBE_VERSION + 1");
    for program in [other.as_str(), "/bin/true"] {
        let output = folder.path().join("app.profile");
        let done = record(&output, &[], program);
        assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
        assert!(stderr(&done).contains("tiercel cc"), "{}", stderr(&done));
        assert!(read(&output).unwrap().accesses.is_empty());
    }
}
