//! Starts the program, stays out of its way, and ends the way it ended.
//! In: a command line, variables to add. Out: how it ended. Knows nothing of memory.
//!
//! The program shares our terminal, process group and standard streams. What the terminal sends
//! (^C, ^\, ^Z) reaches it directly, so we must neither die of it nor repeat it; a signal
//! that another process sends to us alone (`kill`) is passed on. Signals we inherited as ignored
//! stay ignored.

use crate::exit;
use crate::program::find;
use anyhow::{Context, Result};
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions, WaitStatus};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::exfiltrator::origin::Origin;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};

/// Runs scripts without an interpreter (POSIX, `execvp`).
const SHELL: &str = "/bin/sh";

/// Bytes of a file in which bash looks for a zero to distinguish programs from scripts.
const SCRIPT_HEAD_BYTES: u64 = 80;

/// Signals that are caught, and passed on unless the program has them already.
const PASSED_ON: [i32; 6] = [SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By itself, with this status.
    Exited(u8),
    /// By this signal.
    Killed(i32),
}

impl Ending {
    /// As a shell would show it.
    pub fn shell_status(self) -> i32 {
        match self {
            Ending::Exited(status) => i32::from(status),
            Ending::Killed(signal) => 128 + signal,
        }
    }
}

/// A running program.
pub struct Hosted {
    pid: Pid,
    signals: SignalsInfo<WithOrigin>,
}

/// Why a program did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The program cannot be executed; carries the exit status that says so.
    #[error("cannot run {program}: {error}")]
    Program {
        /// As the user wrote it.
        program: String,
        /// What the kernel said.
        error: std::io::Error,
    },
    /// We cannot host anything.
    #[error("cannot catch signals: {0}")]
    Signals(std::io::Error),
}

impl StartError {
    /// The exit status shells and wrappers use for it.
    pub fn status(&self) -> u8 {
        match self {
            StartError::Program { error, .. } if error.kind() == std::io::ErrorKind::NotFound => {
                exit::NOT_FOUND
            }
            StartError::Program { .. } => exit::NOT_EXECUTABLE,
            StartError::Signals(_) => exit::REFUSED,
        }
    }
}

impl Hosted {
    /// Starts `program` with the variables `added`.
    pub fn start(
        program: &[OsString],
        added: &[(&str, OsString)],
    ) -> std::result::Result<Hosted, StartError> {
        let ignored = ignored_signals();
        let caught = PASSED_ON.into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0);
        // Before the program starts: its death must not be missed. Handlers end at exec, so the
        // program begins with default ones; what was ignored is not caught and stays ignored.
        let signals =
            SignalsInfo::<WithOrigin>::new(caught.chain([SIGCHLD])).map_err(StartError::Signals)?;
        let name = program.first().expect("clap requires a program");
        let child = spawn(program, added).or_else(|error| match script(&error, name) {
            Some(script) => {
                let words: Vec<OsString> = [SHELL.into(), script.into()]
                    .into_iter()
                    .chain(program[1..].to_vec())
                    .collect();
                spawn(&words, added)
            }
            None => Err(error),
        });
        let child = child.map_err(|error| StartError::Program {
            program: name.to_string_lossy().into_owned(),
            error,
        })?;
        Ok(Hosted { pid: Pid::from_child(&child), signals })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Waits for the program's end; passes signals on and stops together with it meanwhile.
    pub fn wait(&mut self) -> Result<Ending> {
        loop {
            if let Some(ending) = self.look()? {
                return Ok(ending);
            }
            let pending: Vec<Origin> = self.signals.wait().collect();
            for origin in pending {
                self.pass_on(&origin);
            }
        }
    }

    /// The ending, when there is one.
    fn look(&self) -> Result<Option<Ending>> {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        loop {
            let changed = match rustix::process::waitpid(Some(self.pid), options) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other.context("cannot wait for the program")?,
            };
            let Some((_, status)) = changed else { return Ok(None) };
            if let Some(ending) = ending(status) {
                return Ok(Some(ending));
            }
            self.stop_along();
        }
    }

    /// The program was stopped: so are we, that the shell gets its terminal back. Continued, we
    /// continue it. Without a terminal no shell waits for us to stop, and none would continue us.
    fn stop_along(&self) {
        if rustix::termios::tcgetpgrp(std::io::stdin()).is_err() {
            return;
        }
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
        let _ = rustix::process::kill_process(self.pid, Signal::CONT);
    }

    fn pass_on(&self, origin: &Origin) {
        // Without a sending process it came from the terminal's driver: the program has it too. And
        // what the program itself sends to its group, it did not mean us to send back.
        let sender = origin.process.map(|process| process.pid);
        let theirs = sender.is_none_or(|pid| pid == self.pid.as_raw_nonzero().get());
        if origin.signal == SIGCHLD || theirs {
            return;
        }
        if let Some(signal) = Signal::from_named_raw(origin.signal) {
            // Fails only when the program is gone, which `look` finds out.
            let _ = rustix::process::kill_process(self.pid, signal);
        }
    }
}

fn spawn(program: &[OsString], added: &[(&str, OsString)]) -> std::io::Result<Child> {
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).envs(added.iter().map(|(name, value)| (name, value)));
    command.spawn()
}

/// The file of a script that the kernel refused, because it names no interpreter: shells and
/// `execvp` run it with `sh`. `None`: the kernel refused something else.
fn script(error: &std::io::Error, name: &OsStr) -> Option<PathBuf> {
    if error.raw_os_error() != Some(rustix::io::Errno::NOEXEC.raw_os_error()) {
        return None;
    }
    let file = find(name, std::env::var_os("PATH").as_deref())?;
    let mut head = Vec::new();
    std::fs::File::open(&file).ok()?.take(SCRIPT_HEAD_BYTES).read_to_end(&mut head).ok()?;
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    (!line.contains(&0)).then_some(file)
}

/// Ends this process the way the program ended.
pub fn end_like(ending: Ending) -> ExitCode {
    match ending {
        Ending::Exited(status) => ExitCode::from(status),
        Ending::Killed(signal) => {
            die_by(signal);
            // Reached for signals without a name (real-time ones).
            ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX))
        }
    }
}

fn die_by(signal: i32) {
    // The program left its core, if any; ours would overwrite it.
    let limit = Rlimit { current: Some(0), ..rustix::process::getrlimit(Resource::Core) };
    let _ = rustix::process::setrlimit(Resource::Core, limit);
    let _ = signal_hook::low_level::emulate_default_handler(signal);
}

fn ending(status: WaitStatus) -> Option<Ending> {
    if let Some(code) = status.exit_status() {
        // The kernel keeps eight bits of it.
        return Some(Ending::Exited(u8::try_from(code).unwrap_or(u8::MAX)));
    }
    status.terminating_signal().map(Ending::Killed)
}

/// Bit s - 1 is set when signal s was ignored by the process that started us (nohup).
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}
