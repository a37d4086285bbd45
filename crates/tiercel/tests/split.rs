//! A daemon for all users, split by privilege, with programs of another user. Only root can start
//! one: for other users nothing is tested here.

mod common;

use common::{Daemon, Process, compile, runtime, wait};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Users who own nothing.
const STRANGER: u32 = 12_345;
const OTHER: u32 = 12_346;

/// What is dropped from a capability's name in `setpriv`.
const PREFIX: &str = "CAP_";

/// Says ready, then reads and writes 64 MiB until its standard input ends.
const BUSY: &str = r#"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void) {
    struct pollfd in = {.fd = 0, .events = POLLIN};
    char *kept = malloc(64 << 20);
    memset(kept, 1, 64 << 20);
    puts("ready");
    fflush(stdout);
    while (poll(&in, 1, 0) == 0)
        for (int i = 0; i < 64 << 20; i += 64)
            kept[i]++;
    puts("done");
    return 6;
}
"#;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A daemon with the capabilities of the service's unit, and no other.
fn daemon() -> Daemon {
    daemon_with(&[])
}

fn daemon_with(args: &[&str]) -> Daemon {
    let unit = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(UNIT)).unwrap();
    let bounds = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let kept = bounds.unwrap().split(' ').map(|name| {
        let name = name.strip_prefix(PREFIX).unwrap();
        format!(",+{}", name.to_lowercase())
    });
    let kept = kept.collect::<String>();
    let daemon = Daemon::start_under(
        &["setpriv", "--no-new-privs", "--bounding-set", &format!("-all{kept}")],
        &[&["--all-users", "--sampler", "probe", "--json"], args].concat(),
    );
    fs::set_permissions(daemon.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    daemon
}

const UNIT: &str = "../../dist/tiercel.service";

/// A program of [`STRANGER`].
fn busy(daemon: &Daemon) -> Process {
    busy_of(daemon, STRANGER)
}

fn busy_of(daemon: &Daemon, user: u32) -> Process {
    // One for each user: a program that runs cannot be written again.
    let name = format!("busy{user}");
    compile(daemon.folder.path(), &name, BUSY, &[]);
    start_as(daemon, &name, user)
}

/// Starts a compiled program of a user, and waits until it is ready.
fn start_as(daemon: &Daemon, name: &str, user: u32) -> Process {
    let folder = daemon.folder.path();
    // The tree may be where other users may not go.
    let library = folder.join(format!("libtiercel{user}.so"));
    if !library.exists() {
        fs::copy(runtime(), &library).unwrap();
    }
    let mut command = daemon.hosted(folder.join(name).to_str().unwrap());
    command.env("LD_PRELOAD", library).uid(user).gid(user).current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Process::start(&mut command);
    assert_eq!(process.line(), "ready\n");
    process
}

fn status_line(pid: Pid, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.expect(name).trim().to_owned()
}

/// The only child of the daemon.
fn broker(daemon: &Daemon) -> Pid {
    let pid = daemon.process.pid().as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    Pid::from_raw(children.trim().parse().unwrap()).unwrap()
}

#[test]
fn the_front_has_no_privilege_and_the_broker_only_those_of_the_unit() {
    if !is_root() {
        return;
    }
    let daemon = daemon();
    let front = daemon.process.pid();
    daemon.status();
    for (name, value) in [
        ("CapPrm", "0000000000000000"),
        ("CapEff", "0000000000000000"),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
        ("Groups", ""),
    ] {
        assert_eq!(status_line(front, name), value, "{name} of the front");
    }
    let users: BTreeSet<String> =
        status_line(front, "Uid").split('\t').map(str::to_owned).collect();
    assert!(users.len() == 1 && !users.contains("0"), "{users:?}");
    let tasks = fs::read_dir(format!("/proc/{}/task", front.as_raw_nonzero())).unwrap();
    for task in tasks {
        let path = task.unwrap().path().join("status");
        let status = fs::read_to_string(&path).unwrap_or_default();
        // A thread that has ended since has no status.
        assert!(status.is_empty() || status.contains("Seccomp:\t2"), "{}", path.display());
    }
    let broker = broker(&daemon);
    // SETGID 6, SETUID 7, SYS_PTRACE 19, SYS_NICE 23, PERFMON 38, BPF 39.
    let kept: u64 = [6, 7, 19, 23, 38, 39].iter().map(|bit| 1 << bit).sum();
    for name in ["CapPrm", "CapEff", "CapBnd"] {
        assert_eq!(status_line(broker, name), format!("{kept:016x}"), "{name} of the broker");
    }
    assert_eq!(status_line(broker, "NoNewPrivs"), "1");
}

#[test]
fn programs_of_another_user_are_hosted_sampled_and_named() {
    if !is_root() {
        return;
    }
    let mut daemon = daemon();
    let mut process = busy(&daemon);
    daemon.until("it is hosted", |s| s["clients"]["now"] == 1);
    daemon.until("it is sampled", |s| s["samples"]["attributed"].as_u64() > Some(0));
    assert_eq!(process.end().code(), Some(6));
    assert_eq!(process.rest(), "done\n");
    daemon.until("it is gone", |s| s["clients"]["now"] == 0);
    daemon.process.signal(Signal::TERM);
    let stopped = daemon.process.end();
    let report = daemon.process.rest();
    assert!(stopped.success(), "{stopped}");
    assert!(report.contains("main"), "the broker's child names the site: {report}");
    wait("the broker to remove the sockets", || {
        fs::read_dir(daemon.dir()).unwrap().next().is_none().then_some(())
    });
}

#[test]
fn a_daemon_without_its_broker_stops_and_programs_run_on() {
    if !is_root() {
        return;
    }
    let mut daemon = daemon();
    let mut process = busy(&daemon);
    daemon.until("it is hosted", |s| s["clients"]["now"] == 1);
    kill_process(broker(&daemon), Signal::KILL).unwrap();
    assert_eq!(daemon.process.end().code(), Some(1), "the service manager starts it again");
    assert!(process.child.try_wait().unwrap().is_none());
    assert_eq!(process.end().code(), Some(6));
}

/// Takes segments of 64 MiB of a pool until there are no more; prints how many bytes it wrote.
const POOLED: &str = r#"
#include "tiercel.h"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
int main(void) {
    char *region = tiercel_vregion_register(0, 64 << 20, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (region == MAP_FAILED)
        return 1;
    memset(region, 1, 64 << 20);
    puts("ready");
    fflush(stdout);
    getchar();
    return region[(64 << 20) - 1] == 1 ? 6 : 1;
}
"#;

#[test]
fn pools_are_served_without_privilege() {
    if !is_root() {
        return;
    }
    let daemon = daemon_with(&["--pool", "0=192MiB"]);
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
    let include = format!("-I{}", include.display());
    compile(daemon.folder.path(), "pooled", POOLED, &[&include]);
    let (mut first, mut second) =
        (start_as(&daemon, "pooled", STRANGER), start_as(&daemon, "pooled", OTHER));
    let granted = |s: &serde_json::Value| s["pools"][0]["granted_bytes"] == 128 << 20;
    daemon.until("both have a segment of the pool", granted);
    assert_eq!(daemon.status()["pools"][0]["trouble"], "");
    for process in [&mut first, &mut second] {
        assert_eq!(process.end().code(), Some(6));
    }
    daemon.until("all of it is free", |s| s["pools"][0]["free_bytes"] == 192 << 20);
}

#[test]
fn one_user_cannot_take_the_places_of_all() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    fs::write(&config, "[daemon]\nclients_max = 8\n").unwrap();
    let daemon = daemon_with(&["--config", config.to_str().unwrap()]);
    // A user has a quarter of the places.
    let _kept = [busy(&daemon), busy(&daemon)];
    daemon.until("two are hosted", |s| s["clients"]["now"] == 2);
    let mut third = {
        let program = daemon.folder.path().join(format!("busy{STRANGER}"));
        let mut command = daemon.hosted(program.to_str().unwrap());
        let library = daemon.folder.path().join(format!("libtiercel{STRANGER}.so"));
        command.env("LD_PRELOAD", library).uid(STRANGER).gid(STRANGER).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Process::start(&mut command)
    };
    assert_eq!(third.line(), "ready\n", "it runs without the daemon");
    daemon.until("the third is refused", |s| s["clients"]["refused"]["too many"] == 1);
    let _other = busy_of(&daemon, OTHER);
    daemon.until("another user has room", |s| s["clients"]["now"] == 3);
    assert_eq!(third.end().code(), Some(6));
}

#[test]
fn a_broker_without_its_front_ends() {
    if !is_root() {
        return;
    }
    let mut daemon = daemon();
    daemon.status();
    let folder = format!("/proc/{}", broker(&daemon).as_raw_nonzero());
    daemon.process.signal(Signal::KILL);
    daemon.process.end();
    wait("the broker to end", || (!Path::new(&folder).exists()).then_some(()));
    assert_eq!(fs::read_dir(daemon.dir()).unwrap().count(), 0, "it removed the sockets");
}

#[test]
fn the_services_unit_is_as_closed_as_documented() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join(UNIT);
    let mut analyze = Command::new("systemd-analyze");
    analyze.args(["security", "--offline=true", "--threshold=20"]).arg(unit);
    // Not every machine has systemd.
    let Ok(output) = analyze.output() else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
