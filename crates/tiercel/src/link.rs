//! Talks to a running daemon over its control socket.
//! In: a request. Out: its answer as JSON. Knows nothing of what answers mean.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tiercel_daemon::protocol::{Request, VERSION, request_line};
use tiercel_daemon::socket_dir::{DAEMON_NAME, control_path, remove_stale, usual_directory};

/// A daemon answers within milliseconds; one that takes longer than this is stuck. Chosen, not
/// measured: a thousand times the usual.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest answer that is read, bytes: ROWS_MAX rows of 4 KiB.
const ANSWER_BYTES_MAX: u64 = 8 << 20;

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
    /// Connects to `socket`, or to the only daemon or run that is there.
    pub fn open(socket: Option<&Path>) -> Result<Link> {
        let path = socket.map_or_else(|| find(&usual_directory()), |path| Ok(path.to_owned()))?;
        let stream = connect(&path)?;
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

/// The machine-wide daemon's control socket, or that of the only run.
fn find(directory: &Path) -> Result<PathBuf> {
    remove_stale(directory);
    let daemon = control_path(directory, DAEMON_NAME);
    if connect(&daemon).is_ok() {
        return Ok(daemon);
    }
    let mut runs: Vec<PathBuf> = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "control"))
        .filter(|path| connect(path).is_ok())
        .collect();
    runs.sort();
    match runs.as_slice() {
        [only] => Ok(only.clone()),
        [] => bail!(
            "no daemon or run was found in {}; start one with `tiercel run` or `tiercel daemon`, \
             or name its control socket with --socket",
            directory.display()
        ),
        several => bail!(
            "several runs are active; choose one with --socket: {}",
            several.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
        ),
    }
}
