//! Users of one daemon beside each other: a hostile one and an honest one, kills at random
//! instants, thousands of short processes.
//!
//! `cargo xtask attack` runs these tests for longer, by the variables below, and judges delays.
//! Only root can start a daemon for all users: for other users those tests do nothing.

mod common;

use common::{Daemon, Process, compile, compile_file, runtime, tiercel, wait};
use fastrand::Rng;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How long the attacks go on, seconds.
const SECONDS: (&str, u64) = ("TIERCEL_ATTACK_SECONDS", 20);
/// How many programs, runs and daemons are killed.
const KILLS: (&str, u64) = ("TIERCEL_ATTACK_KILLS", 24);
/// How many short processes one daemon hosts, in thousands.
const PROCESSES: (&str, u64) = ("TIERCEL_ATTACK_THOUSANDS", 1);
/// 1: delays are judged, beyond those of a server that does nothing.
const JUDGED: (&str, u64) = ("TIERCEL_ATTACK_JUDGED", 0);
/// What decides when something is killed.
const SEED: (&str, u64) = ("TIERCEL_ATTACK_SEED", 1);

/// Users who own nothing.
const HOSTILE: u32 = 12_347;
const HONEST: u32 = 12_348;

/// The longest that 99 of 100 attaches of an honest user may take beyond what they take at a server
/// that does nothing, microseconds.
const ATTACH_US_P99_MAX: u64 = 10_000;
/// The longest that a tick may be late beyond what such a server is, milliseconds: a tick.
const TICK_DELAY_MS_MAX: u64 = 2000;
/// As dist/tiercel.service starts it.
const NICE: [&str; 3] = ["nice", "-n", "-5"];
/// The most memory of a daemon with 512 MiB of pools, KiB. A hostile process may have 132 MiB of it
/// read in (docs/security.md, what is not promised), and the daemon keeps sites.
const DAEMON_KIB_MAX: u64 = 1 << 20;

fn number((name, usual): (&str, u64)) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().expect(name))
}

/// Keeps two areas, one of the heap and one of a pool, and writes and checks each byte. In: turns,
/// 0 for as many as it takes until its input ends. Out: a line each turn, at last `intact`; 6.
const KEEPER: &str = r#"
#include "tiercel.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#define BYTES (24u << 20)
static int is_intact(const unsigned char *at, unsigned char expected) {
    for (unsigned i = 0; i < BYTES; i++)
        if (at[i] != (unsigned char)(expected + i / 4096))
            return 0;
    return 1;
}
int main(int argc, char **argv) {
    int turns = atoi(argv[1]);
    unsigned char *kept[2] = {malloc(BYTES)};
    kept[1] = tiercel_vregion_register(0, BYTES, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!kept[0] || kept[1] == MAP_FAILED)
        return 1;
    for (int turn = 0; turns == 0 || turn < turns; turn++) {
        for (int k = 0; k < 2; k++) {
            if (turn > 0 && !is_intact(kept[k], (unsigned char)(turn - 1)))
                return 2;
            for (unsigned i = 0; i < BYTES; i++)
                kept[k][i] = (unsigned char)(turn + i / 4096);
        }
        printf("turn %d\n", turn);
        fflush(stdout);
        struct pollfd in = {0, POLLIN, 0};
        if (turns == 0 && poll(&in, 1, 0))
            break;
    }
    puts("intact");
    return 6;
}
"#;

/// Processes that attach, allocate, fork and die, four at a time. In: how many.
const CHURNER: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static void use(size_t bytes) {
    for (int i = 0; i < 8; i++) {
        char *at = malloc(bytes);
        memset(at, i, bytes);
        if (i % 2)
            free(at);
    }
}
int main(int argc, char **argv) {
    int count = atoi(argv[1]), running = 0;
    for (int i = 0; i < count; i += 2) {
        for (; running >= 4; running--)
            wait(0);
        running++;
        if (fork() == 0) {
            use(100000 + i % 50000);
            if (fork() == 0) {
                use(50000);
                abort();
            }
            wait(0);
            _exit(0);
        }
    }
    while (wait(0) > 0)
        ;
    return 0;
}
"#;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn tree(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn daemon_for_all(args: &[&str]) -> Daemon {
    let args = [&["--all-users", "--sampler", "probe"], args].concat();
    let daemon = Daemon::start_under(&NICE, &args);
    fs::set_permissions(daemon.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    daemon
}

fn keeper_in(folder: &Path) -> PathBuf {
    let include = format!("-I{}", tree("include").display());
    compile(folder, "keeper", KEEPER, &[&include])
}

/// A command of a user in the daemon's folder, with pipes.
fn as_user(program: &Path, user: u32) -> Command {
    let mut command = Command::new(program);
    command.uid(user).gid(user).current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// The same, hosted. The tree may be where other users may not go.
fn hosted_as(daemon: &Daemon, program: &Path, user: u32) -> Command {
    let library = daemon.folder.path().join("libtiercel.so");
    if !library.exists() {
        fs::copy(runtime(), &library).unwrap();
    }
    let mut command = as_user(program, user);
    command.env("LD_PRELOAD", library).env("TIERCEL_SOCKET", daemon.dir().join("daemon.sock"));
    command
}

// ---- What is measured ---------------------------------------------------------------------------

/// Memory and descriptors of a daemon, its broker included.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    kib: u64,
    descriptors: usize,
}

fn children(pid: i32) -> Vec<i32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn size(daemon: &Daemon) -> Size {
    let pid = daemon.process.pid().as_raw_nonzero().get();
    let mut size = Size::default();
    for pid in [vec![pid], children(pid)].concat() {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        size.kib += kib.unwrap_or(0);
        size.descriptors += fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    }
    size
}

/// A server that does nothing but pass an answer on, of the daemon's priority.
fn control(folder: &Path) -> Process {
    let mut command = Command::new(NICE[0]);
    command.args(&NICE[1..]).arg(folder.join("attaches")).arg("serve");
    let mut server = Process::start(command.arg(folder.join("control")).stdout(Stdio::piped()));
    assert_eq!(server.line(), "serves\n");
    server
}

/// What `attaches` prints of the daemon and of the server that does nothing: count, refused,
/// without an answer, microseconds of the median, of 99 of 100 and of the longest.
fn attaches(folder: &Path, socket: &Path, seconds: u64) -> [[u64; 6]; 2] {
    let mut command = as_user(&folder.join("attaches"), HONEST);
    command.arg(socket).arg(seconds.to_string()).arg(folder.join("control"));
    let printed = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let figures = |line: &str| -> [u64; 6] {
        let words = line.split(' ').skip(1).map(|word| word.parse().unwrap());
        words.collect::<Vec<u64>>().try_into().unwrap()
    };
    printed.lines().map(figures).collect::<Vec<_>>().try_into().unwrap()
}

/// User and system time of a run of the keeper, milliseconds.
fn cpu_ms_of_a_run(daemon: &Daemon, keeper: &Path) -> u64 {
    let mut command = hosted_as(daemon, keeper, HONEST);
    let child = command.arg("12").stdin(Stdio::null()).spawn().unwrap();
    let pid = child.id();
    // It is read before the process is reaped: /proc/PID/stat of a process that has ended is there.
    let stat = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = |stat: &str| -> Vec<String> {
        stat.rsplit_once(") ").unwrap().1.split(' ').map(str::to_owned).collect()
    };
    wait("the run to end", || (fields(&stat())[0] == "Z").then_some(()));
    let ended = fields(&stat());
    let ticks: u64 = ended[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    let status = Process { child }.end();
    assert_eq!(status.code(), Some(6), "its data are intact");
    ticks * 1000 / rustix::param::clock_ticks_per_second()
}

// ---- A hostile user -----------------------------------------------------------------------------

#[test]
fn a_hostile_user_harms_no_other() {
    if !is_root() {
        return;
    }
    let seconds = number(SECONDS);
    let config = tempfile::tempdir().unwrap();
    let config = config.path().join("config.toml");
    fs::write(&config, "[daemon]\nclients_max = 512\n").unwrap();
    let daemon = daemon_for_all(&["--pool", "0=512MiB", "--config", config.to_str().unwrap()]);
    let folder = daemon.folder.path();
    for program in ["attaches", "hostile"] {
        compile_file(folder, &tree("lab/tests").join(format!("{program}.c")), &["-pthread"]);
    }
    let _control = control(folder);
    let (keeper, socket) = (keeper_in(folder), daemon.dir().join("daemon.sock"));

    let [quiet, _] = attaches(folder, &socket, 2);
    let quiet_ms = cpu_ms_of_a_run(&daemon, &keeper);
    let before = size(&daemon);
    let mut kept = Process::start(hosted_as(&daemon, &keeper, HONEST).arg("0"));
    assert_eq!(kept.line(), "turn 0\n");
    let mut attack = as_user(&folder.join("hostile"), HOSTILE);
    let mut attack = Process::start(attack.arg(&socket).arg(seconds.to_string()));
    let [loaded, idle] = attaches(folder, &socket, seconds.saturating_sub(2));
    let (during, loaded_ms) = (size(&daemon), cpu_ms_of_a_run(&daemon, &keeper));
    let printed = attack.rest();
    assert!(attack.end().success());

    let spent = daemon.status()["spent"].clone();
    println!("attaches in us (count, refused, silent, p50, p99, max): {quiet:?}, {loaded:?}");
    println!("the same of a server that does nothing: {idle:?}");
    println!("CPU of an honest run: {quiet_ms} ms, {loaded_ms} ms under attack");
    println!("daemon: {before:?}, {during:?}, {:?}", size(&daemon));
    println!(
        "ticks: {} late, the longest by {} ms",
        spent["ticks_late"], spent["tick_delay_ms_max"]
    );
    println!("{printed}");
    let attacked = printed.lines().filter(|line| line.starts_with("attack ")).count();
    assert_eq!(attacked, 14, "each attack went on to the end, and none succeeded");
    drop(kept.child.stdin.take());
    let rest = kept.rest();
    assert!(rest.ends_with("intact\n"), "{rest}");
    assert_eq!(kept.end().code(), Some(6), "the honest data are intact");
    assert_eq!(loaded[1], 0, "no honest process is refused");
    assert!(during.kib <= DAEMON_KIB_MAX, "{during:?}");
    if number(JUDGED) == 1 {
        assert_eq!(loaded[2], 0, "every honest process is answered");
        assert!(loaded[4] <= idle[4] + ATTACH_US_P99_MAX, "{loaded:?}, {idle:?}");
        let delay_ms = spent["tick_delay_ms_max"].as_u64().unwrap();
        assert!(delay_ms < TICK_DELAY_MS_MAX + idle[5] / 1000, "{delay_ms} ms, {idle:?}");
    }
    daemon.until("all are gone", |s| s["clients"]["now"] == 0);
    let is_flat = || size(&daemon).descriptors <= before.descriptors + 2;
    wait("descriptors to be closed", || is_flat().then_some(()));
}

// ---- Kills --------------------------------------------------------------------------------------

/// Waits for a random turn of the program, and for a random part of the next one.
fn until_random_instant(random: &mut Rng, program: &mut Process, turns: u64) {
    // After the first one: a runner that is killed before has started nothing.
    for _ in 0..=random.u64(..turns - 2) {
        assert!(program.line().starts_with("turn "));
    }
    for _ in 0..random.u64(..200) {
        std::thread::yield_now();
    }
}

fn assert_intact(program: &mut Process) {
    let rest = program.rest();
    assert!(rest.ends_with("intact\nstatus 6\n"), "{rest:?}");
}

const TURNS: u64 = 6;

/// The program under a shell that prints its status, which outlives the command that started it.
fn steps(keeper: &Path) -> [String; 3] {
    let script = format!("{} {TURNS}; echo status $?", keeper.display());
    ["sh".into(), "-c".into(), script]
}

fn kill_a_daemon(daemon: &mut Daemon, keeper: &Path, random: &mut Rng) {
    let [shell, flag, script] = steps(keeper);
    let mut command = daemon.hosted(&shell);
    let mut program =
        Process::start(command.args([flag, script]).stdin(Stdio::null()).stdout(Stdio::piped()));
    until_random_instant(random, &mut program, TURNS);
    daemon.process.signal(Signal::KILL);
    daemon.process.end();
    daemon.restart();
    assert_intact(&mut program);
    assert!(program.end().success());
}

/// `tiercel run` of the program, with its files in `folder`.
fn a_run(folder: &Path, keeper: &Path) -> Process {
    let mut run = tiercel();
    run.args(["run", "--quiet", "--backing", "vmem", "--pool", "0=64MiB", "--"]);
    run.args(steps(keeper)).env("XDG_RUNTIME_DIR", folder).stdin(Stdio::null());
    Process::start(run.stdout(Stdio::piped()))
}

fn kill_a_runner(folder: &Path, keeper: &Path, random: &mut Rng) {
    let mut run = a_run(folder, keeper);
    until_random_instant(random, &mut run, TURNS);
    run.signal(Signal::KILL);
    assert_intact(&mut run);
    // It may have ended before.
    let status = run.end();
    assert!(status.signal() == Some(9) || status.success(), "{status}");
}

fn kill_a_program(folder: &Path, keeper: &Path, random: &mut Rng) {
    let mut run = a_run(folder, keeper);
    until_random_instant(random, &mut run, TURNS);
    let shell = children(run.pid().as_raw_nonzero().get());
    let program = shell.first().map(|shell| children(*shell)).unwrap_or_default();
    if let Some(pid) = program.first().and_then(|pid| Pid::from_raw(*pid)) {
        // It may have ended meanwhile.
        let _ = kill_process(pid, Signal::KILL);
    }
    let rest = run.rest();
    let is_killed = rest.ends_with("status 137\n");
    assert!(is_killed || rest.ends_with("intact\nstatus 6\n"), "{rest:?}");
    assert!(run.end().success(), "the shell's status");
}

#[test]
fn a_kill_at_any_instant_harms_no_program_and_leaves_nothing() {
    let seed = number(SEED);
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let keeper = keeper_in(folder.path());
    let mut daemon = Daemon::start(&["--pool", "0=64MiB"]);
    let runs = folder.path().join("runs");
    fs::create_dir(&runs).unwrap();
    for _ in 0..number(KILLS) {
        match random.u64(..3) {
            0 => kill_a_daemon(&mut daemon, &keeper, &mut random),
            1 => kill_a_runner(&runs, &keeper, &mut random),
            _ => kill_a_program(&runs, &keeper, &mut random),
        }
    }
    // The next run removes what killed ones could not.
    let mut last = a_run(&runs, &keeper);
    assert_intact(&mut last);
    assert!(last.end().success());
    let sockets = if is_root() { PathBuf::from("/run/tiercel") } else { runs.join("tiercel") };
    let left = fs::read_dir(sockets).into_iter().flatten().flatten();
    let left: Vec<_> = left.filter(|entry| is_of_a_dead_run(&entry.path())).collect();
    assert!(left.is_empty(), "{left:?}");
    daemon.process.signal(Signal::TERM);
    daemon.process.end();
    assert_eq!(fs::read_dir(daemon.dir()).unwrap().count(), 0);
    let is_ours = |command: &[u8]| contains(command, keeper.as_os_str().as_encoded_bytes());
    wait("all processes to end", || (!commands().iter().any(|one| is_ours(one))).then_some(()));
}

/// Files of other runs of this machine may come and go.
fn is_of_a_dead_run(path: &Path) -> bool {
    let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or("");
    let pid = name.strip_prefix("run-").unwrap_or("none");
    pid.parse::<u32>().is_ok_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

/// The command lines of all processes.
fn commands() -> Vec<Vec<u8>> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes.filter_map(|entry| read(&entry.path().join("cmdline"))).collect()
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

// ---- A day's processes --------------------------------------------------------------------------

#[test]
fn thousands_of_processes_leave_a_daemon_as_large_as_it_was() {
    let daemon = Daemon::start(&["--sampler", "probe"]);
    let churner = compile(daemon.folder.path(), "churner", CHURNER, &[]);
    let thousands = number(PROCESSES);
    let before = size(&daemon);
    let churn = |processes: u64| {
        let mut command = daemon.hosted(churner.to_str().unwrap());
        assert!(command.arg(processes.to_string()).status().unwrap().success());
        daemon.until("all are gone", |s| s["clients"]["now"] == 0);
        // Threads close what refused processes sent. The connection to the reader of this user's
        // symbols stays.
        let is_as_before = |size: &Size| size.descriptors <= before.descriptors + 1;
        wait("all descriptors to be closed", || Some(size(&daemon)).filter(is_as_before))
    };
    let tenth = churn(100 * thousands);
    let all = churn(900 * thousands);
    println!("daemon after a tenth: {tenth:?}; after {thousands} thousand: {all:?}");
    let clients = daemon.status()["clients"].clone();
    // Processes do not wait to be greeted: of those that come faster than a daemon greets, the rest
    // is refused and counted.
    let counts = [&clients["attached"], &clients["failed"], &clients["refused"]["too many"]];
    let [attached, failed, refused] = counts.map(|count| count.as_u64().unwrap_or(0));
    assert!(attached >= 100 * thousands, "{clients}");
    assert!(attached + failed + refused >= 900 * thousands, "{clients}");
    // The allocator of the daemon keeps some memory; 4 MiB are four bytes for each of a million.
    assert!(all.kib <= tenth.kib + tenth.kib / 20 + 4096, "{tenth:?}, {all:?}");
}
