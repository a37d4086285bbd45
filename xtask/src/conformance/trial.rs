//! Runs one test in one way. In: a [`Test`] and a [`Host`]. Out: how it ended, and a log. Knows
//! nothing of what its endings mean to others.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Result;

use super::list::{Test, word};
use crate::exec;
use crate::watch::{Ended, Limits};

/// CPU time of one test. Chosen, not measured: the longest, a regular expression's, takes 12 s.
const CPU_LIMIT: Duration = Duration::from_secs(120);
/// A test hangs when it has used less than 1% of a CPU for this long. Some
/// sleep for 15 s.
const STALL: Duration = Duration::from_secs(40);
/// Beyond what a test takes on a machine that is 30 times too busy; the longest use 12 s.
const WALL: Duration = Duration::from_secs(360);
/// Memory of one test. Plainly the most is 1 GiB, a limit that a test sets itself.
const MEMORY: u64 = 3 << 30;
/// What tests see of our environment.
const PASSED_ON: &[&str] = &["PATH", "HOME", "USER"];

/// In what a test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// Nothing.
    Plain,
    /// `tiercel run`.
    Run,
    /// `tiercel run --backing vmem`.
    Vmem,
    /// Another replaced allocator, as evidence.
    Peer(Peer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    Mimalloc,
    Jemalloc,
}

impl Host {
    /// The ways that are compared with the plain one.
    pub const HOSTED: [Host; 2] = [Host::Run, Host::Vmem];
    /// The ways that are evidence.
    pub const PEERS: [Host; 2] = [Host::Peer(Peer::Mimalloc), Host::Peer(Peer::Jemalloc)];

    /// The words before the program's.
    fn words(self) -> Vec<String> {
        let tiercel = word(&exec::target().join("release/tiercel"));
        let options: &[&str] = match self {
            Host::Plain | Host::Peer(_) => return Vec::new(),
            Host::Run => &["run", "--"],
            Host::Vmem => &["run", "--backing", "vmem", "--"],
        };
        std::iter::once(tiercel).chain(options.iter().map(|word| word.to_string())).collect()
    }

    /// What it preloads beside what the test does.
    fn preload(self) -> Option<&'static str> {
        match self {
            Host::Peer(Peer::Mimalloc) => Some("libmimalloc.so.2"),
            Host::Peer(Peer::Jemalloc) => Some("libjemalloc.so.2"),
            _ => None,
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Host::Plain => "plain",
            Host::Run => "run",
            Host::Vmem => "vmem",
            Host::Peer(Peer::Mimalloc) => "mimalloc",
            Host::Peer(Peer::Jemalloc) => "jemalloc",
        })
    }
}

/// How a test ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    Passed,
    /// It says that it cannot run here, or has failed.
    Status(i32),
    Signal(i32),
    /// It ran into a limit.
    Stopped(String),
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Passed => f.write_str("passed"),
            Ending::Status(status) => write!(f, "status {status}"),
            Ending::Signal(signal) => write!(f, "signal {signal}"),
            Ending::Stopped(why) => f.write_str(why),
        }
    }
}

impl From<ExitStatus> for Ending {
    fn from(status: ExitStatus) -> Ending {
        match status.code() {
            Some(0) => Ending::Passed,
            Some(code) => Ending::Status(code),
            None => Ending::Signal(status.signal().unwrap_or_default()),
        }
    }
}

/// Where the output of that run is.
pub fn log(test: &Test, host: Host) -> PathBuf {
    let name = test.name.replace('/', "-");
    super::folder().join("logs").join(format!("{name}.{host}.log"))
}

/// Runs the test in an empty folder of its own, in a session of its own without a terminal.
pub fn run(test: &Test, host: Host) -> Result<Ending> {
    let folder = tempfile::Builder::new().prefix("tiercel-test-").tempdir()?;
    let dir = word(folder.path());
    let filled = |text: &String| text.replace("{dir}", &dir);
    let mut command = exec::command("setsid");
    command.args(host.words()).args(test.words.iter().map(filled)).current_dir(folder.path());
    command.env_clear();
    command.envs(PASSED_ON.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    command.env("TMPDIR", &dir).env("TIMEOUTFACTOR", "50");
    command.envs(variables(test, host).iter().map(|(name, value)| (name, filled(value))));
    let limits = Limits {
        cpu: CPU_LIMIT,
        stall: STALL,
        wall: Some(WALL),
        memory: Some(MEMORY),
        is_host: !host.words().is_empty(),
    };
    Ok(match exec::run_session(&mut command, &log(test, host), limits)? {
        Ended::Itself(status) => status.into(),
        Ended::Stopped { why, .. } => Ending::Stopped(why),
    })
}

fn variables(test: &Test, host: Host) -> BTreeMap<String, String> {
    let mut variables = test.variables.clone();
    if let Some(library) = host.preload() {
        let own = variables.remove("LD_PRELOAD");
        let all = own.map_or(library.into(), |own| format!("{library}:{own}"));
        variables.insert("LD_PRELOAD".into(), all);
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Test {
        let words = ["sh", "-c", script].map(String::from).to_vec();
        let name = format!("own/{}", script.len());
        Test { name, builds: Vec::new(), words, variables: BTreeMap::new() }
    }

    #[test]
    fn a_test_runs_in_a_folder_of_its_own_without_a_terminal() {
        let script = "test \"$(pwd)\" = \"$TMPDIR\" && ! (: </dev/tty) 2>/dev/null && echo {dir}";
        assert_eq!(run(&shell(script), Host::Plain).expect("it runs"), Ending::Passed);
        let printed = std::fs::read_to_string(log(&shell(script), Host::Plain)).expect("a log");
        assert!(printed.contains("tiercel-test-"), "{printed}");
    }

    #[test]
    fn an_ending_is_a_status_or_a_signal() {
        let ending = |script| run(&shell(script), Host::Plain).expect("it runs");
        assert_eq!(ending("exit 77"), Ending::Status(77));
        assert_eq!(ending("kill -9 $$; :"), Ending::Signal(9));
    }

    #[test]
    fn a_peer_is_preloaded_before_what_the_test_preloads() {
        let mut test = shell("");
        test.variables.insert("LD_PRELOAD".into(), "own.so".into());
        let of = |host| variables(&test, host)["LD_PRELOAD"].clone();
        assert_eq!(of(Host::Plain), "own.so");
        assert_eq!(of(Host::Peer(Peer::Jemalloc)), "libjemalloc.so.2:own.so");
    }
}
