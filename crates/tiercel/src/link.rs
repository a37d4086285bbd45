//! Talks to a running daemon over its control socket.
//! In: a request. Out: its answer as JSON. Knows nothing of what answers mean.

use crate::args::PeerArgs;
use crate::terminal::printable;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tiercel_daemon::protocol::{Request, VERSION, request_line};
use tiercel_daemon::socket_dir::{
    DAEMON_NAME, PAGES_PREFIX, control_path, remove_stale, usual_directory,
};

/// A daemon answers within milliseconds; one that takes longer than this is stuck. Chosen, not
/// measured: a thousand times the usual.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest answer that is read, bytes: ROWS_MAX rows of 4 KiB.
const ANSWER_BYTES_MAX: u64 = 8 << 20;

/// Names of the control sockets of runs, before and after the number of the process that hosts.
const RUN: &str = "run-";
const CONTROL: &str = ".control";

/// Generations between a process and its host that are followed; a build has some ten.
const ANCESTORS_MAX: usize = 64;

/// A connection to a daemon.
pub struct Link {
    stream: BufReader<UnixStream>,
}

#[derive(Deserialize)]
struct Reply {
    version: u32,
    answer: Option<Value>,
    error: Option<String>,
}

impl Link {
    /// Connects to the daemon or run that the user names, or to the only one that is there.
    pub fn of(peer: &PeerArgs) -> Result<Link> {
        match (&peer.socket, peer.pid) {
            (Some(path), _) => Link::open(path),
            (None, Some(pid)) => Link::open(&find_pid(&usual_directory(), pid)?),
            (None, None) => Link::open(&find(&usual_directory())?),
        }
    }

    /// Connects to what the user names, or to the only one that tiers by OS page: the process that
    /// is named there is whose memory is meant.
    pub fn of_pages(peer: &PeerArgs) -> Result<Link> {
        match &peer.socket {
            Some(path) => Link::open(path),
            None => Link::open(&only_pages(&usual_directory())?),
        }
    }

    /// Connects to a control socket.
    pub fn open(path: &Path) -> Result<Link> {
        let stream = connect(path)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Link { stream: BufReader::new(stream) })
    }

    /// Asks; `name` is the name of the answer that belongs to the request.
    pub fn ask(&mut self, request: &Request, name: &str) -> Result<Value> {
        self.stream.get_mut().write_all(&request_line(request)).context("the daemon is gone")?;
        let mut line = String::new();
        let read = self.stream.by_ref().take(ANSWER_BYTES_MAX).read_line(&mut line);
        if read.context("the daemon does not answer")? == 0 {
            bail!("the daemon closed the connection");
        }
        let reply: Reply =
            serde_json::from_str(&line).context("cannot parse the daemon's answer")?;
        if reply.version != VERSION {
            bail!("the daemon speaks version {}, this is {VERSION}", reply.version);
        }
        if let Some(error) = reply.error {
            bail!("the daemon refused: {error}");
        }
        // A request without figures is answered by its name alone.
        let answer = reply.answer.unwrap_or(Value::Null);
        Ok(answer.get(name).cloned().unwrap_or(Value::Null))
    }
}

/// Connects to a daemon of this user or of root. Any user may create a socket under a predictable
/// name in `/tmp`, and its answers would reach the user's terminal as Tiercel's.
fn connect(path: &Path) -> Result<UnixStream> {
    let stream = UnixStream::connect(path)
        .with_context(|| format!("no daemon answers at {}", path.display()))?;
    let peer = rustix::net::sockopt::socket_peercred(&stream)
        .with_context(|| format!("cannot find out who serves {}", path.display()))?;
    if !(peer.uid.is_root() || peer.uid == rustix::process::geteuid()) {
        bail!(
            "{} is served by user {}, not by you or root; its answers are not used",
            path.display(),
            peer.uid.as_raw()
        );
    }
    Ok(stream)
}

/// A run whose control socket answers.
struct RunningRun {
    socket: PathBuf,
    /// The process that hosts.
    pid: u32,
}

/// The machine-wide daemon's control socket, or that of the only run.
fn find(directory: &Path) -> Result<PathBuf> {
    remove_stale(directory);
    let daemon = control_path(directory, DAEMON_NAME);
    if connect(&daemon).is_ok() {
        return Ok(daemon);
    }
    match sockets(directory, RUN).as_slice() {
        [only] => Ok(only.socket.clone()),
        [] => bail!(
            "no daemon or run was found in {}; start one with `tiercel run` or `tiercel daemon`, \
             or name its control socket with --socket",
            directory.display()
        ),
        several => {
            let lines = several.iter().map(|run| format!("\n  {:>7}  {}", run.pid, words(run.pid)));
            let lines: String = lines.collect();
            bail!("several runs are active; choose one with --pid:{lines}")
        }
    }
}

/// The control socket of the run that is this process, or that hosts it.
fn find_pid(directory: &Path, pid: u32) -> Result<PathBuf> {
    remove_stale(directory);
    let runs = sockets(directory, RUN);
    // A process is the descendant of its host, unless it was handed to another parent.
    let mut of = Some(pid);
    for _ in 0..ANCESTORS_MAX {
        let Some(ancestor) = of else { break };
        if let Some(run) = runs.iter().find(|run| run.pid == ancestor) {
            return Ok(run.socket.clone());
        }
        of = parent(ancestor);
    }
    let daemon = control_path(directory, DAEMON_NAME);
    if connect(&daemon).is_ok() {
        return Ok(daemon);
    }
    bail!("no run in {} hosts process {pid}", directory.display())
}

/// The control socket of the only command that tiers by OS page.
fn only_pages(directory: &Path) -> Result<PathBuf> {
    remove_stale(directory);
    match sockets(directory, PAGES_PREFIX).as_slice() {
        [only] => Ok(only.socket.clone()),
        [] => bail!(
            "nothing is tiered by OS page now ({} has no socket of it): an address is explained \
             while `tiercel attach` or `tiercel run --by pages` runs",
            directory.display()
        ),
        several => {
            let lines = several.iter().map(|one| format!("\n  {}", one.socket.display()));
            let lines: String = lines.collect();
            bail!("several commands tier by OS page; choose one with --socket:{lines}")
        }
    }
}

/// Those that answer, of the sockets whose names begin so.
fn sockets(directory: &Path, prefix: &str) -> Vec<RunningRun> {
    let run = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.strip_prefix(prefix)?.strip_suffix(CONTROL)?;
        let pid = name.parse().ok()?;
        connect(&path).is_ok().then_some(RunningRun { socket: path, pid })
    };
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut runs: Vec<RunningRun> = entries.filter_map(|entry| run(entry.path())).collect();
    runs.sort_by_key(|run| run.pid);
    runs
}

/// The command line of a process.
fn words(pid: u32) -> String {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = String::from_utf8_lossy(&words);
    printable(words.trim_end_matches('\0').replace('\0', " ").as_str())
}

fn parent(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok().filter(|pid| *pid != 0)
}
