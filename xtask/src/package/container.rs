//! A bare Debian as a container. In: names of packages, a script and its files. Out: the archive of
//! such a system, made once, and what the script printed. Knows nothing of what is tried there.
//!
//! The system lies in a tmpfs within a mount namespace, so nothing of it is left when its first
//! process ends, however it does. It has no network. Who is not root is root in a user namespace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::exec;

/// Unpacks a system and runs a script in it.
const START: &str = include_str!("start.sh");

/// CPU time of making a system, and of a script: chosen, thirty times the 10 s of mmdebstrap
/// making a bare Debian 12.
const CPU_LIMIT: Duration = Duration::from_secs(300);

/// Where packages, and systems to try them in, are kept.
pub fn folder() -> Result<PathBuf> {
    let folder = exec::target().join("package");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// The archive of a system that has these packages beside those of every Debian; mmdebstrap makes
/// it where there is none yet. Its release and mirror are this system's.
pub fn bare(packages: &[&str]) -> Result<PathBuf> {
    let codename = codename()?;
    let name = [&["bare", codename.as_str()], packages].concat().join("-");
    let archive = folder()?.join(format!("{name}.tar"));
    if archive.exists() {
        return Ok(archive);
    }
    eprintln!("making {} with mmdebstrap: some minutes, once", archive.display());
    let (part, log) = (archive.with_extension("part.tar"), archive.with_extension("log"));
    let mut make = exec::command("mmdebstrap");
    make.arg("--variant=minbase").args(apt_options()?);
    make.args(packages.iter().map(|package| format!("--include={package}")));
    make.arg(&codename).arg(&part).args(mirrors(&codename)?);
    exec::run_logged(&mut make, &log, CPU_LIMIT)
        .with_context(|| format!("no bare system (package mmdebstrap; log: {})", log.display()))?;
    fs::rename(&part, &archive)?;
    Ok(archive)
}

/// Runs a shell script as root of the system in an archive, with copies of the files in `/given`.
/// Out: what it printed.
pub fn run(archive: &Path, script: &str, given: &[&Path]) -> Result<String> {
    started(start(archive, script, given))
}

/// As [`run`]; the system as the script left it is in another archive then.
pub fn change(archive: &Path, script: &str, given: &[&Path], changed: &Path) -> Result<String> {
    let mut start = start(archive, script, given);
    start.env("CHANGED", changed);
    started(start)
}

fn start(archive: &Path, script: &str, given: &[&Path]) -> Command {
    let mut start = as_root("unshare");
    start.args(["--mount", "--pid", "--fork", "--kill-child", "--ipc", "--net", "--uts"]);
    start.args(["sh", "-c", START, "start", script]).arg(archive).args(given);
    start
}

fn started(mut start: Command) -> Result<String> {
    let log = folder()?.join("container.log");
    let ended = exec::run_logged(&mut start, &log, CPU_LIMIT);
    let printed = fs::read_to_string(&log)?;
    match ended {
        Ok(()) => Ok(printed),
        Err(_) => bail!("failed in a bare Debian:\n{printed}"),
    }
}

/// A program with the rights of root, within a user namespace where we are not root.
pub fn as_root(program: &str) -> Command {
    let mut command = exec::command("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-auto", "--map-root-user"]);
    }
    command.arg("--").arg(program);
    command
}

/// The name of this system's release: what is built here runs there.
fn codename() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release")?;
    let found = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    found.map(str::to_owned).context("/etc/os-release has no VERSION_CODENAME: no Debian?")
}

/// Where apt has this release from, as mmdebstrap takes it.
fn mirrors(codename: &str) -> Result<Vec<String>> {
    let format = "$(REPO_URI) $(RELEASE) $(COMPONENT)";
    let words = ["indextargets", "--format", format, "Created-By: Packages", "Origin: Debian"];
    let printed = exec::output(Command::new("apt-get").args(words))?;
    let is_of = |release: &str| release.strip_prefix(codename).is_some_and(is_suffix);
    let lines = printed.lines().filter(|line| line.split(' ').nth(1).is_some_and(is_of));
    let all: Vec<String> = lines.map(|line| format!("deb {line}")).collect();
    match all.is_empty() {
        true => bail!("apt has no Debian {codename}: run apt-get update, or add it to its sources"),
        false => Ok(all),
    }
}

/// `bookworm`, `bookworm-updates`, but not `bookworm2`.
fn is_suffix(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('-')
}

/// Proxies and the like, with which apt reaches its mirrors here.
fn apt_options() -> Result<Vec<String>> {
    let names = ["Acquire::http", "Acquire::https"];
    let printed = exec::output(Command::new("apt-config").arg("dump").args(names))?;
    let set = |line: &&str| !line.ends_with(" \"\";");
    Ok(printed.lines().filter(set).map(|line| format!("--aptopt={line}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_releases_are_no_suites_of_this_one() {
        assert!(is_suffix("") && is_suffix("-updates"));
        assert!(!is_suffix("2"));
    }
}
