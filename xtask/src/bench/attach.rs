//! `./x bench attach`: what starting programs and forking cost more when they are hosted.
//! In: whether to be quick. Out: rows of time in rounds of pairs, with an idle daemon and with one
//! that is stopped, and counts of system calls. Knows nothing of how a process attaches.
//!
//! Other load adds to single times, so each round gives a median, and a row the median of rounds.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::vmem::{figures, value};
use crate::{build, exec};
use tiercel_bench::{BenchResult, median, spread};

/// Rounds of a full run, and of a quick one.
const ROUNDS: [usize; 2] = [15, 5];
/// Programs started, or forks, in a round.
const COUNT: &str = "100";
/// Microseconds that hosting may add to a program that stays small, and attaching to one that does
/// not.
const LIMIT_US: f64 = 100.0;
/// A daemon serves in milliseconds.
const START_MAX: Duration = Duration::from_secs(30);

const PLAIN: &str = "plain";
const PRELOADED: &str = "preloaded";
const IDLE: &str = "idle daemon";
const STOPPED: &str = "stopped daemon";

/// What is measured, and the peer beyond which the limit holds: starting and forking small programs
/// over plain; attaching over the same program with the same heap and no daemon.
const WORK: &[(&str, &str)] = &[("spawn", PLAIN), ("fork", PLAIN), ("large", PRELOADED)];

/// Measures and returns the rows of the bench.
pub fn rows(quick: bool) -> Result<Vec<BenchResult>> {
    build::runtime(&[])?;
    let program = build::program("bench-attach", &["-Werror", "-D_GNU_SOURCE"])?;
    let server = Server::start(&build::tiercel()?)?;
    let mut rows = Vec::new();
    for (what, peer) in WORK {
        let rounds: Result<Vec<Round>> = (0..ROUNDS[usize::from(quick)])
            .map(|_| Round::measure(&server, &program, what))
            .collect();
        rows.extend(compare(what, peer, &rounds?));
    }
    rows.extend(calls(&server, &program)?);
    Ok(rows)
}

/// Microseconds of one start or fork, in every way.
struct Round {
    plain: f64,
    preloaded: f64,
    idle: f64,
    stopped: f64,
}

impl Round {
    fn measure(server: &Server, program: &Path, what: &str) -> Result<Round> {
        let of = |command: Command| timed(command, what);
        let (plain, preloaded) = (of(Command::new(program))?, of(server.preloaded(program))?);
        let idle = of(server.hosted(program))?;
        server.signal(Signal::STOP)?;
        let stopped = of(server.hosted(program));
        server.signal(Signal::CONT)?;
        Ok(Round { plain, preloaded, idle, stopped: stopped? })
    }
}

fn timed(mut command: Command, what: &str) -> Result<f64> {
    let output = command.args([what, COUNT]).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && errors.is_empty(), "bench-attach {what}: {errors}");
    value(&figures(&String::from_utf8_lossy(&output.stdout)), "us")
}

fn compare(what: &str, peer: &str, rounds: &[Round]) -> Vec<BenchResult> {
    let column = |of: fn(&Round) -> f64| rounds.iter().map(of).collect::<Vec<f64>>();
    let (plain, preloaded) = (column(|round| round.plain), column(|round| round.preloaded));
    let theirs = if peer == PLAIN { &plain } else { &preloaded };
    let mut rows = vec![BenchResult::of_pairs(
        format!("{what}, {PRELOADED}"),
        PLAIN,
        &preloaded,
        &plain,
        None,
        "us",
    )];
    for (way, ours) in [(IDLE, column(|round| round.idle)), (STOPPED, column(|one| one.stopped))] {
        rows.push(BenchResult::of_pairs(
            format!("{what}, {way}"),
            PLAIN,
            &ours,
            &plain,
            None,
            "us",
        ));
        let more: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours - theirs).collect();
        let name = format!("{what}, {way}, beyond {peer}");
        let row = BenchResult::alone(name, median(&more), Some(LIMIT_US), "us");
        rows.push(BenchResult { spread: Some(spread(&more)), ..row });
    }
    rows
}

/// System calls of a small program and of one that attaches; nothing without strace.
fn calls(server: &Server, program: &Path) -> Result<Vec<BenchResult>> {
    let mut rows = Vec::new();
    for (what, path, argument) in
        [("small", Path::new("/bin/true"), "x"), ("large", program, "allocate")]
    {
        let count = |command: Command| counted(command, argument);
        let Some(plain) = count(Command::new(path))? else { return Ok(rows) };
        for (way, command) in [(PRELOADED, server.preloaded(path)), ("hosted", server.hosted(path))]
        {
            let more = count(command)?.unwrap_or(plain) - plain;
            let name = format!("{what} program, {way}, system calls beyond {PLAIN}");
            rows.push(BenchResult::alone(name, more, None, "calls"));
        }
    }
    Ok(rows)
}

/// The system calls that strace sees; `None`: there is no strace.
fn counted(command: Command, argument: &str) -> Result<Option<f64>> {
    let log = tempfile::NamedTempFile::new()?;
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-o"]).arg(log.path());
    // The variables are the program's alone.
    for (name, value) in command.get_envs() {
        let value = value.unwrap_or_default().to_string_lossy();
        strace.arg("-E").arg(format!("{}={value}", name.to_string_lossy()));
    }
    strace.arg(command.get_program()).arg(argument);
    match strace.status() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        ended => {
            ensure!(ended?.success(), "strace failed");
            Ok(Some(std::fs::read_to_string(log.path())?.lines().count() as f64))
        }
    }
}

/// A daemon without a sampler, in a folder of its own.
struct Server {
    folder: tempfile::TempDir,
    process: Child,
}

impl Server {
    fn start(tiercel: &Path) -> Result<Server> {
        let folder = tempfile::tempdir()?;
        let mut command = Command::new(tiercel);
        command.args(["daemon", "--sampler", "none", "--dir"]).arg(folder.path().join("t"));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().with_context(|| tiercel.display().to_string())?;
        let server = Server { folder, process };
        let offer = server.socket().with_extension("sock.offer");
        let end = Instant::now() + START_MAX;
        while std::fs::metadata(&offer).map_or(0, |meta| meta.len()) == 0 {
            ensure!(Instant::now() < end, "the daemon does not start");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(server)
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("t/daemon.sock")
    }

    fn preloaded(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", exec::target().join("runtime/libtiercel.so"));
        command
    }

    fn hosted(&self, program: &Path) -> Command {
        let mut command = self.preloaded(program);
        command.env("TIERCEL_SOCKET", self.socket());
        command
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.process), signal)?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.signal(Signal::CONT);
        let _ = self.signal(Signal::TERM);
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(plain: f64, idle: f64) -> Round {
        Round { plain, preloaded: plain + 50.0, idle, stopped: idle + 10.0 }
    }

    #[test]
    fn the_limit_is_on_what_hosting_adds() {
        let rounds = [round(800.0, 890.0), round(1000.0, 1099.0), round(900.0, 995.0)];
        let rows = compare("spawn", PLAIN, &rounds);
        let limited: Vec<(f64, bool)> = rows
            .iter()
            .filter(|row| row.limit.is_some())
            .map(|row| (row.ours, row.holds))
            .collect();
        assert_eq!(limited, [(95.0, true), (105.0, false)]);
        let rows = compare("large", PRELOADED, &rounds);
        assert_eq!(rows[2].ours, 45.0);
    }
}
