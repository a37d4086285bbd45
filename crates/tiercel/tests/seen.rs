//! Everything that a program has is in rows: static data by symbol, stacks, shared memory once for
//! all processes, and children that only fork; and the summary says how much that is.

mod common;

use common::{Daemon, Process, compile, run, stderr, stdout, wait};
use serde_json::Value;
use std::process::{Command, Stdio};

const MIB: u64 = 1 << 20;

/// Allocates nothing; has static data, a memfd and, in a library, more static data. With `forks` a
/// child that allocates nothing lives as long as it does. Ends with its standard input.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
char table[8 << 20];
static char zeros[5 << 20];
static int small[100];
int main(int argc, char **argv) {
    memset(table, 1, sizeof(table));
    memset(zeros, 1, sizeof(zeros));
    int fd = memfd_create("shared", 0);
    if (ftruncate(fd, 12 << 20))
        return 1;
    memset(mmap(NULL, 12 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), 1, 12 << 20);
    char word[8];
    if (write(1, "ready\n", 6) != 6)
        return 1;
    if (argc > 2)
        usleep(50000); /* when it forks is known to 10 ms, and only what is older is the child's */
    pid_t child = argc > 2 ? fork() : 0;
    if (argc > 2 && !child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    void *library = NULL;
    while (read(0, word, 1) == 1) {
        if (*word == 'o')
            library = dlopen(argv[1], RTLD_NOW);
        else if (*word == 'c')
            dlclose(library);
        mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (child)
        kill(child, SIGKILL), waitpid(child, NULL, 0);
    return table[5] + zeros[7] + small[3];
}
"#;

const LIBRARY: &str = "char plugin[3 << 20] = {1}; int f(int i) { return plugin[i]; }\n";

/// A daemon that ticks fast.
fn daemon() -> Daemon {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("fast.toml");
    std::fs::write(&config, "[policy]\ntick_ms = 100\n").unwrap();
    Daemon::start(&["--sampler", "none", "--config", config.to_str().unwrap()])
}

fn start(daemon: &Daemon, args: &[&str]) -> Process {
    let folder = daemon.folder.path();
    let program = compile(folder, "statics", PROGRAM, &["-ldl", "-Wl,--build-id"]);
    let library = compile(folder, "plugin", LIBRARY, &["-shared", "-fPIC", "-Wl,--build-id"]);
    let mut command = daemon.hosted(program.to_str().unwrap());
    command.arg(library).args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Process::start(&mut command);
    assert_eq!(process.line(), "ready\n");
    process
}

fn rows(daemon: &Daemon) -> Vec<Value> {
    let output = daemon.ask(&["top", "--json", "--limit", "200"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let answer: Value = serde_json::from_str(&stdout(&output)).unwrap();
    answer["rows"].as_array().unwrap_or_else(|| panic!("{answer}")).clone()
}

/// Live MiB of the row with this name.
fn live_mib(rows: &[Value], name: &str) -> Option<u64> {
    let row = rows.iter().find(|row| row["origin"]["data"] == name)?;
    row["used"]["live_bytes"].as_u64().map(|bytes| bytes / MIB)
}

/// Live MiB of what was mapped as shared memory.
fn shared_mib(rows: &[Value]) -> u64 {
    let shared = rows.iter().filter(|row| row["origin"] == "shared");
    shared.filter_map(|row| row["used"]["live_bytes"].as_u64()).sum::<u64>() / MIB
}

fn say(process: &mut Process, word: &[u8]) {
    use std::io::Write;
    process.child.stdin.as_mut().unwrap().write_all(word).unwrap();
}

#[test]
fn static_data_has_rows_by_symbol_as_long_as_its_module_is_loaded() {
    let daemon = daemon();
    let mut process = start(&daemon, &[]);
    let await_row = |name: &str, mib: Option<u64>| {
        wait(name, || {
            let found = live_mib(&rows(&daemon), name).filter(|found| *found > 0);
            (found == mib).then_some(())
        });
    };
    await_row("static: table in statics", Some(8));
    await_row("static: zeros in statics", Some(5));
    let all = rows(&daemon);
    assert!(live_mib(&all, "stack of main thread").is_some(), "{all:#?}");
    assert!(live_mib(&all, "other static data of statics").is_some(), "{all:#?}");
    wait("the shared memory", || (shared_mib(&rows(&daemon)) == 12).then_some(()));
    say(&mut process, b"o");
    await_row("static: plugin in plugin", Some(3));
    say(&mut process, b"c");
    await_row("static: plugin in plugin", None);
    assert_eq!(process.end().code(), Some(2));
}

#[test]
fn a_child_that_allocates_nothing_is_seen_and_what_it_shares_counts_once() {
    let daemon = daemon();
    let mut process = start(&daemon, &["forks"]);
    daemon.until("the child is hosted", |s| s["clients"]["adopted"] == 1);
    wait("the table of both", || {
        let all = rows(&daemon);
        (live_mib(&all, "static: table in statics") == Some(16)).then_some(())
    });
    assert_eq!(shared_mib(&rows(&daemon)), 12);
    daemon.until("its memory is looked at", |s| {
        let coverage = &s["coverage"];
        let (rss, least) = (&coverage["rss_bytes"], &coverage["tracked_bytes"][0]);
        // The memfd counts once.
        let (rss, least) = (rss.as_u64().unwrap() / MIB, least.as_u64().unwrap() / MIB);
        (38..50).contains(&rss) && least >= 38
    });
    assert_eq!(process.end().code(), Some(2));
    daemon.until("both are gone", |s| s["clients"]["now"] == 0);
    daemon.until("and what they had", |s| s["objects"]["live_bytes"] == 0);
}

#[test]
fn the_summary_of_a_run_states_its_coverage() {
    let folder = tempfile::tempdir().unwrap();
    let source = "#include <stdlib.h>\n#include <string.h>\n#include <time.h>\n\
        char table[24 << 20];\nint main(void) {\n    struct timespec begin, now;\n\
        clock_gettime(CLOCK_MONOTONIC, &begin);\n    do {\n\
        memset(table, 1, sizeof(table));\n    clock_gettime(CLOCK_MONOTONIC, &now);\n\
        } while (now.tv_sec - begin.tv_sec < 3);\n    return table[7] - 1;\n}\n";
    let program = compile(folder.path(), "covered", source, &[]);
    let output = run(&["-v", "--sampler", "none", "--", program.to_str().unwrap()]);
    let text = stderr(&output);
    assert!(output.status.success(), "{text}");
    let line =
        text.lines().find(|line| line.contains("coverage ")).unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains("tracked ") && line.contains("of RSS (9"), "{line}");
    assert!(line.contains("largest untracked: "), "{line}");
    assert!(text.contains("static: table in covered"), "{text}");
}

/// 128 MiB that is written once beside 32 MiB that is hit at random for some seconds: with so few
/// samples the cold one came first in five of eight runs.
const SHORT: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <time.h>
__attribute__((noinline)) char *make_cold(size_t n) { return malloc(n); }
__attribute__((noinline)) char *make_hot(size_t n) { return malloc(n); }
int main(int count, char **words) {
    char *cold = make_cold(128 << 20), *hot = make_hot(32 << 20);
    memset(cold, 1, 128 << 20);
    unsigned long x = 88172645463325252ul;
    for (time_t end = time(NULL) + (count > 1 ? atoi(words[1]) : 0); time(NULL) <= end;)
        for (int i = 0; i < 100000; i++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            hot[x & ((32 << 20) - 1)]++;
        }
    return cold[7] - 1;
}
"#;

/// Seconds of the runs, without and with other programs on every CPU. More of them, as
/// `TIERCEL_SHORT_RUNS="1 2 4 8 16 30"`, are for a machine with time.
const SHORT_RUNS: &str = "1 2";

/// Its summary.
fn short_run(program: &str, seconds: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let summary = folder.path().join("summary");
    let to = summary.to_str().unwrap();
    let words = ["--json", "--machine", "spr-cxl", "--output", to, "--", program, seconds];
    let output = run(&words);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&std::fs::read(summary).unwrap()).unwrap()
}

/// A ranking is right, or says that it is not settled, and why.
fn check_ranking(run: &Value) {
    let ranking = &run["summary"]["ranking"];
    let (samples, wanted) = (ranking["samples"].as_u64(), ranking["samples_wanted"].as_u64());
    if ranking["settled"] != true {
        assert!(samples < wanted || ranking["at_stake"].as_f64().unwrap() > 0.0, "{ranking}");
        return;
    }
    assert!(samples >= wanted, "{ranking}");
    let share =
        |site: &&Value| site["used"]["share"]["of"].as_f64().map(|share| (share * 1e6) as u64);
    let first = run["sites"].as_array().unwrap().iter().max_by_key(share).unwrap();
    assert!(first["name"].as_str().unwrap().contains("make_hot"), "{first}");
}

#[test]
fn short_runs_rank_right_or_not_at_all_under_load_too() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "short", SHORT, &[]);
    let program = program.to_str().unwrap();
    let wanted = std::env::var("TIERCEL_SHORT_RUNS");
    let wanted = wanted.as_deref().unwrap_or(SHORT_RUNS);
    for seconds in wanted.split_whitespace() {
        check_ranking(&short_run(program, seconds));
    }
    let cpus = std::thread::available_parallelism().unwrap().get();
    let busy = || Process::start(Command::new("sh").args(["-c", "while :; do :; done"]));
    let _load: Vec<Process> = (0..2 * cpus).map(|_| busy()).collect();
    for seconds in wanted.split_whitespace() {
        check_ranking(&short_run(program, seconds));
    }
}
