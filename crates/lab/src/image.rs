//! The guest's root file system, made in memory. In: busybox and the programs that a run needs.
//! Out: archives for the kernel's initramfs. Knows nothing of QEMU. One archive is the same for
//! every run; the other is specific to the run.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::closure;
use crate::cpio::Archive;
use crate::fetch::Packages;
use crate::mark;

const INIT: &str = include_str!("../guest/init");

/// The kernel unpacks the archive into memory; larger payloads belong on a disk.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// Default directories of the loader.
const DEFAULT_LIBRARY_DIRS: [&str; 4] =
    ["usr/lib/x86_64-linux-gnu", "usr/lib", "usr/lib64", "usr/local/lib"];

/// Directories that are links into /usr, as on every current distribution.
const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

/// The files that a run needs in the guest.
#[derive(Debug, Default)]
pub struct Payload {
    archive: Archive,
    library_dirs: BTreeSet<String>,
}

impl Payload {
    /// Adds a program or library with every shared library that it needs at start, or a script with
    /// its interpreter.
    pub fn program(&mut self, host: &Path, guest: &str) -> Result<()> {
        let data = read(host)?;
        if let Some(interpreter) = interpreter(&data) {
            let target = interpreter.to_string_lossy().into_owned();
            let in_base = target.ends_with("/sh") || self.archive.contains(&merged(&target));
            if !in_base {
                self.program(&interpreter, &target)?;
            }
        }
        self.archive.file(&merged(guest), 0o755, &data);
        for library in closure::libraries(host)? {
            self.library(&library)?;
        }
        Ok(())
    }

    /// Adds a file or a whole directory, including symbolic links and permissions. Programs in it
    /// get no libraries; add those with [`Payload::program`].
    pub fn tree(&mut self, host: &Path, guest: &str) -> Result<()> {
        let mut pending: Vec<(PathBuf, String)> = vec![(host.to_owned(), merged(guest))];
        while let Some((path, target)) = pending.pop() {
            let about = || format!("cannot read {}", path.display());
            let meta = fs::symlink_metadata(&path).with_context(about)?;
            if meta.is_symlink() && path != host {
                let link = fs::read_link(&path).with_context(about)?;
                self.archive.symlink(&target, &link.to_string_lossy());
            } else if path.is_dir() {
                self.archive.directory(&target);
                for entry in fs::read_dir(&path).with_context(about)? {
                    let entry = entry.with_context(about)?;
                    let name = entry.file_name().to_string_lossy().into_owned();
                    pending.push((entry.path(), format!("{target}/{name}")));
                }
            } else {
                let mode = fs::metadata(&path).with_context(about)?.permissions().mode();
                self.archive.file(&target, mode, &read(&path)?);
            }
        }
        Ok(())
    }

    /// Adds a file with the given contents.
    pub fn text(&mut self, guest: &str, mode: u32, text: &str) {
        self.archive.file(&merged(guest), mode, text.as_bytes());
    }

    /// The same for any bytes.
    pub(crate) fn bytes(&mut self, guest: &str, mode: u32, bytes: &[u8]) {
        self.archive.file(&merged(guest), mode, bytes);
    }

    /// The run's archive; `environment` is set for the command.
    pub(crate) fn finish(mut self, environment: &[(String, String)]) -> Vec<u8> {
        let mut env = String::new();
        let dirs: Vec<&String> = self.library_dirs.iter().collect();
        if !dirs.is_empty() {
            let joined = dirs.iter().map(|d| format!("/{d}")).collect::<Vec<_>>().join(":");
            env += &format!("export LD_LIBRARY_PATH={}\n", quote(&joined));
        }
        for (name, value) in environment {
            env += &format!("export {name}={}\n", quote(value));
        }
        self.text("lab/env", 0o644, &env);
        self.archive.finish()
    }

    fn library(&mut self, host: &Path) -> Result<()> {
        let target = merged(&host.to_string_lossy());
        if self.archive.contains(&target) {
            return Ok(());
        }
        self.archive.file(&target, 0o755, &read(host)?);
        let dir = target.rsplit_once('/').map_or("", |(dir, _)| dir);
        if !DEFAULT_LIBRARY_DIRS.contains(&dir) {
            self.library_dirs.insert(dir.to_owned());
        }
        Ok(())
    }
}

/// The common archive of all runs: init, busybox and its applets, numactl.
pub(crate) fn base(packages: &Packages) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    archive.character("dev/console", 5, 1);
    for dir in ["proc", "sys", "usr/bin", "usr/sbin", "usr/lib64", "usr/lib/x86_64-linux-gnu"] {
        archive.directory(dir);
    }
    for dir in MERGED {
        archive.symlink(dir, &format!("usr/{dir}"));
    }
    archive.file("init", 0o755, INIT.as_bytes());
    archive.file(
        "etc/passwd",
        0o644,
        b"root::0:0:root:/root:/bin/sh\nguest::1000:1000::/tmp:/bin/sh\n",
    );
    archive.file("etc/group", 0o644, b"root:x:0:\nguest:x:1000:\n");
    archive.file("etc/hosts", 0o644, b"127.0.0.1 localhost\n");
    archive.file("lab/begin", 0o755, &mark::program(mark::BEGIN));
    archive.file("lab/end", 0o755, &mark::program(mark::END));
    let busybox = packages.busybox()?;
    archive.file("usr/bin/busybox", 0o755, &read(&busybox)?);
    let [numactl, libnuma] = packages.numactl()?;
    archive.file("usr/bin/numactl", 0o755, &read(&numactl)?);
    archive.file("usr/lib/x86_64-linux-gnu/libnuma.so.1", 0o755, &read(&libnuma)?);
    let applets = Command::new(&busybox)
        .arg("--list")
        .output()
        .with_context(|| format!("cannot start {}", busybox.display()))?;
    ensure!(applets.status.success(), "{} --list: {}", busybox.display(), applets.status);
    for applet in String::from_utf8_lossy(&applets.stdout).lines() {
        archive.symlink(&format!("usr/bin/{applet}"), "busybox");
    }
    Ok(archive.finish())
}

/// A word for the shell, quoted.
pub(crate) fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let about = || format!("cannot read {}", path.display());
    let meta = fs::metadata(path).with_context(about)?;
    if !meta.is_file() {
        bail!("{} is not a regular file; the guest cannot take it", path.display());
    }
    let limit = MAX_FILE_BYTES >> 20;
    ensure!(meta.len() <= MAX_FILE_BYTES, "{} is larger than {limit} MiB", path.display());
    fs::read(path).with_context(about)
}

/// The interpreter in a script's first line, if there is one.
fn interpreter(data: &[u8]) -> Option<PathBuf> {
    let line = data.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split_whitespace();
    let first = PathBuf::from(words.next()?);
    if !first.ends_with("env") {
        return Some(first);
    }
    let name = words.find(|word| !word.starts_with('-'))?;
    in_path(name).or(Some(first))
}

/// The file that a bare command name refers to.
pub(crate) fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|candidate| {
        fs::metadata(candidate).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    })
}

/// The same path without the links of [`MERGED`]: the kernel would replace such a link by a
/// directory entry of the same name.
fn merged(path: &str) -> String {
    let path = path.trim_start_matches('/');
    match path.split_once('/') {
        Some((first, _)) if MERGED.contains(&first) => format!("usr/{path}"),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_avoid_the_links_into_usr() {
        assert_eq!(merged("/lib/x/liba.so"), "usr/lib/x/liba.so");
        assert_eq!(merged("/usr/lib/x"), "usr/lib/x");
        assert_eq!(merged("/library/x"), "library/x");
    }

    #[test]
    fn quoted_words_pass_through_the_shell_unchanged() {
        let word = "it's $HOME `x` \"y\" \\ z";
        let script = format!("printf %s {}", quote(word));
        let output = Command::new("sh").args(["-c", &script]).output().expect("a shell");
        assert_eq!(String::from_utf8_lossy(&output.stdout), word);
    }

    #[test]
    fn scripts_name_their_interpreter() {
        assert_eq!(interpreter(b"#!/bin/sh -e\n"), Some(PathBuf::from("/bin/sh")));
        assert_eq!(interpreter(b"\x7fELF"), None);
        let through_env = interpreter(b"#!/usr/bin/env -S sh\n").expect("found");
        assert!(through_env.ends_with("sh"), "{through_env:?}");
    }

    #[test]
    fn a_directory_is_not_a_program() {
        let error = Payload::default().program(Path::new("/proc"), "p").expect_err("refused");
        assert!(error.to_string().contains("/proc is not a regular file"), "{error}");
    }

    #[test]
    fn libraries_in_unusual_folders_are_found_through_the_environment() {
        let dir = tempfile::tempdir().expect("a directory");
        let library = dir.path().join("libx.so");
        fs::write(&library, "x").expect("written");
        let mut payload = Payload::default();
        payload.library(&library).expect("taken");
        let bytes = payload.finish(&[("A".to_owned(), "b c".to_owned())]);
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains(&format!("LD_LIBRARY_PATH='{}'", dir.path().display())), "{text}");
        assert!(text.contains("export A='b c'"));
    }
}
