//! `tiercel daemon` with real programs under the runtime: hosts them, loses them, dies on them.

mod common;

use common::{Daemon, Process, compile, stderr, stdout, tiercel, wait};
use rustix::process::Signal;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

/// Says ready, then allocates and frees until its standard input ends.
const BUSY: &str = r#"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void) {
    struct pollfd in = {.fd = 0, .events = POLLIN};
    char *kept = malloc(4 << 20);
    memset(kept, 1, 4 << 20);
    puts("ready");
    fflush(stdout);
    unsigned long rounds = 0;
    while (poll(&in, 1, 0) == 0) {
        for (int i = 0; i < 64; i++) {
            char *some = malloc(16384 + i * 4096);
            memset(some, 1, 4096);
            kept[(rounds++ * 4096) % (4 << 20)] = some[7];
            free(some);
        }
    }
    puts("done");
    return 6;
}
"#;

fn busy(daemon: &Daemon) -> Process {
    let program = compile(daemon.folder.path(), "busy", BUSY, &[]);
    let mut command = daemon.hosted(program.to_str().unwrap());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Process::start(&mut command);
    assert_eq!(process.line(), "ready\n");
    process
}

fn ends_well(process: &mut Process) {
    assert_eq!(process.end().code(), Some(6));
    assert_eq!(process.rest(), "done\n");
}

#[test]
fn a_second_daemon_is_refused() {
    let daemon = Daemon::start(&[]);
    let second = tiercel().args(["daemon", "--dir"]).arg(daemon.dir()).output().unwrap();
    assert!(!second.status.success());
    assert!(stderr(&second).contains("another tiercel daemon"), "{}", stderr(&second));
    daemon.status();
}

#[test]
fn a_killed_client_is_reaped() {
    let daemon = Daemon::start(&[]);
    let process = busy(&daemon);
    daemon.until("it is hosted", |s| s["clients"]["now"] == 1);
    process.signal(Signal::KILL);
    daemon.until("it is reaped", |s| s["clients"]["now"] == 0);
    daemon.until("its objects are gone", |s| s["objects"]["live_bytes"] == 0);
}

#[test]
fn programs_survive_a_killed_daemon_and_attach_to_the_next() {
    let mut daemon = Daemon::start(&[]);
    let mut process = busy(&daemon);
    daemon.until("it is hosted", |s| s["clients"]["now"] == 1);
    daemon.process.signal(Signal::KILL);
    daemon.process.end();
    assert!(process.child.try_wait().unwrap().is_none(), "the program goes on");
    daemon.restart();
    daemon.until("it is back", |s| s["clients"]["now"] == 1);
    daemon.until("with its object", |s| s["objects"]["live_bytes"].as_u64() >= Some(4 << 20));
    ends_well(&mut process);
}

#[test]
fn a_daemon_that_is_stopped_leaves_in_an_orderly_way() {
    let mut daemon = Daemon::start(&["--json"]);
    let mut process = busy(&daemon);
    daemon.until("it is hosted", |s| s["clients"]["now"] == 1);
    let stop = tiercel().args(["daemon", "--stop", "--dir"]).arg(daemon.dir()).output().unwrap();
    assert!(stop.status.success(), "{}", stderr(&stop));
    assert!(daemon.process.end().success());
    let farewell: serde_json::Value = serde_json::from_str(&daemon.process.rest()).unwrap();
    assert_eq!(farewell["summary"]["clients"]["attached"], 1);
    assert!(!daemon.control().exists());
    ends_well(&mut process);
}

#[test]
fn a_full_house_turns_programs_away_unharmed() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("one.toml");
    std::fs::write(&config, "[daemon]\nclients_max = 1\n").unwrap();
    let daemon = Daemon::start(&["--config", config.to_str().unwrap()]);
    let mut first = busy(&daemon);
    daemon.until("the first is hosted", |s| s["clients"]["now"] == 1);
    let mut second = busy(&daemon);
    daemon.until("the second is refused", |s| s["clients"]["refused"]["too many"] == 1);
    ends_well(&mut second);
    ends_well(&mut first);
}

#[test]
fn the_daemon_survives_garbage_on_its_control_socket() {
    let daemon = Daemon::start(&[]);
    let mut process = busy(&daemon);
    for garbage in [&b"\0\xff\n\n{}\n"[..], b"GET / HTTP/1.1\r\n\r\n", &[b'['; 100_000]] {
        let mut stream = UnixStream::connect(daemon.control()).unwrap();
        // The daemon may hang up before it has read all of it.
        let _ = stream.write_all(garbage);
    }
    daemon.until("it is hosted still", |s| s["clients"]["now"] == 1);
    ends_well(&mut process);
}

#[test]
fn programs_run_without_a_reachable_socket() {
    let daemon = Daemon::start(&[]);
    let program = compile(daemon.folder.path(), "busy", BUSY, &[]);
    let shared = tempfile::tempdir().unwrap();
    // As root: another user, whom the private folder keeps out. Else: a path that leads nowhere.
    let mut command = if rustix::process::geteuid().is_root() {
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(shared.path(), open).unwrap();
        let (copy, library) = (shared.path().join("busy"), shared.path().join("libtiercel.so"));
        std::fs::copy(&program, &copy).unwrap();
        std::fs::copy(common::runtime(), &library).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "env"]);
        command.arg(format!("LD_PRELOAD={}", library.display()));
        command.arg(format!("TIERCEL_SOCKET={}", daemon.dir().join("daemon.sock").display()));
        command.arg(copy);
        command
    } else {
        let mut command = daemon.hosted(program.to_str().unwrap());
        command.env("TIERCEL_SOCKET", "/proc/1/root/daemon.sock");
        command
    };
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Process::start(&mut command);
    assert_eq!(process.line(), "ready\n");
    ends_well(&mut process);
    assert_eq!(daemon.status()["clients"]["attached"], 0);
}

#[test]
fn what_it_knows_can_be_asked() {
    let daemon = Daemon::start(&["--tick", "100ms", "--fast", "50%"]);
    let mut process = busy(&daemon);
    daemon.until("extents are recorded", |s| s["objects"]["extents"].as_u64() > Some(0));
    let top = daemon.ask(&["top", "--once", "--by", "size"]);
    assert!(stdout(&top).contains("busy: main busy.c:8"), "{}", stdout(&top));
    let top = daemon.ask(&["top", "--json", "--limit", "1"]);
    let top: serde_json::Value = serde_json::from_slice(&top.stdout).unwrap();
    assert_eq!(top["rows"].as_array().unwrap().len(), 1);
    assert!(stdout(&daemon.ask(&["status"])).contains("no memory was moved"));
    assert!(stdout(&daemon.ask(&["status", "--metrics"])).contains("tiercel_clients 1\n"));
    let set = daemon.ask(&["status", "--set-fast", "1MiB"]);
    assert!(stdout(&set).contains("1 MiB"), "{}", stdout(&set));
    assert_eq!(daemon.status()["budget"]["fast_bytes"], 1 << 20);
    assert!(daemon.ask(&["why"]).status.success());
    ends_well(&mut process);
}

#[test]
fn many_threads_and_a_flood_lose_nothing_for_good() {
    let daemon = Daemon::start(&[]);
    let source = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static void *flood(void *arg) {
    void *kept[64];
    for (int i = 0; i < 200000; i++) free(malloc(65536));
    for (int i = 0; i < 64; i++) kept[i] = malloc(65536);
    if (arg) *(void **)arg = kept[0];
    return 0;
}
int main(void) {
    pthread_t threads[4];
    void *one;
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, flood, &one);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    puts("ready");
    fflush(stdout);
    getchar();
    puts("done");
    return 6;
}
"#;
    let program = compile(daemon.folder.path(), "flood", source, &["-pthread"]);
    let mut command = daemon.hosted(program.to_str().unwrap());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Process::start(&mut command);
    assert_eq!(process.line(), "ready\n");
    let kept = 4 * 64 * 65536;
    // Beside what is kept there are small objects' blocks and the buffer of standard output.
    daemon.until("what is kept is known", |s| {
        let live = s["objects"]["live_bytes"].as_u64().unwrap();
        (kept..kept + (8 << 20)).contains(&live)
    });
    ends_well(&mut process);
}

#[test]
fn the_variables_make_a_program_attach() {
    let daemon = Daemon::start(&[]);
    let env = tiercel().args(["daemon", "--env", "--dir"]).arg(daemon.dir()).output().unwrap();
    let script = format!("{}\nexec /bin/ls / >/dev/null", stdout(&env));
    assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
    // `ls` ends before it is worth attaching, unless the machine is slow.
    let is_seen = |clients: &serde_json::Value| clients["small"] != 0 || clients["attached"] != 0;
    wait("it was seen", || is_seen(&daemon.status()["clients"]).then_some(()));
}

#[test]
fn a_daemon_of_objects_explains_no_address() {
    let daemon = Daemon::start(&["--sampler", "none"]);
    let output = daemon.ask(&["why", "0x7f0000001000"]);
    assert!(!output.status.success());
    let text = stderr(&output);
    assert!(text.contains("only what is tiered by OS page explains an address"), "{text}");
    let output = daemon.ask(&["why", "main"]);
    assert!(stderr(&output).contains("want it as 0x7f3a12c45000"));
}
