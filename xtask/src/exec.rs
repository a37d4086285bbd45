//! Runs programs. In: a `Command`. Out: whether it succeeded, what it printed; a message that
//! names the command when it failed. Knows nothing of what is run.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::watch::{self, Ended, Limits};

/// The repository's top folder.
pub fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask is in the repository").to_path_buf()
}

/// Where built and fetched things go: `target` or `CARGO_TARGET_DIR`.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// A command that runs in the repository's top folder.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// The cargo that started us, or the one on `PATH`.
pub fn cargo() -> Command {
    command(&std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()))
}

/// Runs to the end with our own input and output; an unsuccessful status is an error.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {}", shown(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs a command without its standard output; an error where it fails.
pub fn quietly(command: &mut Command) -> Result<()> {
    run(command.stdout(Stdio::null()))
}

/// Runs to the end and returns what it printed on stdout; an unsuccessful status is an error that
/// carries the end of what it printed on stderr.
pub fn output(command: &mut Command) -> Result<String> {
    let out = command.output().with_context(|| format!("cannot run {}", shown(command)))?;
    if !out.status.success() {
        let printed = String::from_utf8_lossy(&out.stderr);
        bail!("{} ended with {}: {}", shown(command), out.status, printed.trim_end());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Runs to the end with all output in the file `log`; stopped when it hangs or has used
/// `cpu_limit`, which is an error.
pub fn run_logged(command: &mut Command, log: &Path, cpu_limit: Duration) -> Result<()> {
    let file = create_log(log)?;
    command.stdin(Stdio::null()).stderr(file.try_clone()?).stdout(file.try_clone()?);
    let status = run_watched(command, cpu_limit, Some(&file))?;
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs to the end; stopped when it hangs or has used `cpu_limit`, which is an error.
pub fn run_limited(command: &mut Command, cpu_limit: Duration) -> Result<ExitStatus> {
    run_watched(command, cpu_limit, None)
}

fn run_watched(
    command: &mut Command,
    cpu_limit: Duration,
    log: Option<&File>,
) -> Result<ExitStatus> {
    command.process_group(0);
    let child = command.spawn().with_context(|| format!("cannot run {}", shown(command)))?;
    match watch::wait(child, Limits::of_step(cpu_limit), log).with_context(|| shown(command))? {
        Ended::Itself(status) => Ok(status),
        Ended::Stopped { why, stacks } => {
            bail!("{}: stopped: {why}\n{stacks}", shown(command))
        }
    }
}

/// Runs `setsid` with a command, its output in `log`, and ends what remains of the session. What it
/// prints is no progress: a program that hangs may complain of it.
pub fn run_session(command: &mut Command, log: &Path, limits: Limits) -> Result<Ended> {
    let file = create_log(log)?;
    command.stdin(Stdio::null()).stderr(file.try_clone()?).stdout(file.try_clone()?);
    let child = command.spawn().with_context(|| format!("cannot run {}", shown(command)))?;
    let group = Pid::from_child(&child);
    let ended = watch::wait(child, limits, None).with_context(|| shown(command));
    // That nothing remains is no error.
    let _ = kill_process_group(group, Signal::KILL);
    ended
}

fn create_log(log: &Path) -> Result<File> {
    if let Some(parent) = log.parent() {
        std::fs::create_dir_all(parent)?;
    }
    File::create(log).with_context(|| format!("cannot write {}", log.display()))
}

/// The command as one would type it.
pub fn shown(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|arg| arg.to_string_lossy().into_owned()));
    words.join(" ")
}
