//! Why a program will not, or did not, take the runtime: static, set-user-id, Go, a script of such.
//! In: the program's file. Out: [`Hindrance`]s. Knows nothing of running programs.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Interpreters of interpreters that are followed; the kernel follows four.
const SCRIPTS_MAX: usize = 4;

/// Program headers looked at. Ordinary files have about a dozen.
const HEADERS_MAX: usize = 512;

/// A reason why the runtime does not get into a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Hindrance {
    /// No dynamic loader, no preload.
    #[error("{0} is statically linked: there is no loader that could bring the runtime in")]
    Static(PathBuf),
    /// Static, and Go: brings its own memory management as well.
    #[error("{0} is a Go program with its own memory management and no loader")]
    Go(PathBuf),
    /// Runs with another identity: the loader ignores LD_PRELOAD.
    #[error(
        "{0} runs with another identity (set-user-id, set-group-id or file capabilities): \
         the loader ignores the runtime there"
    )]
    Privileged(PathBuf),
    /// 32 bits, or another architecture.
    #[error("{0} is not a program of this architecture")]
    Foreign(PathBuf),
}

/// The file that `name` means, as a shell would find it in `path` (the variable PATH).
pub fn find(name: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    let executable = |file: &Path| {
        std::fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    if name.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(|file| executable(file));
    }
    std::env::split_paths(path?).map(|dir| dir.join(name)).find(|file| executable(file))
}

/// What hinders the runtime in the program at `file`; `None` when nothing is seen to.
pub fn hindrance(file: &Path) -> Option<Hindrance> {
    let mut file = file.to_owned();
    for _ in 0..=SCRIPTS_MAX {
        if is_privileged(&file) {
            return Some(Hindrance::Privileged(file));
        }
        let mut head = Vec::new();
        // Headers of programs lie in the first OS pages; Go's build marker in the first 64 KiB or
        // later, where only the section table would locate it. Without it the error is vaguer.
        std::fs::File::open(&file).ok()?.take(256 << 10).read_to_end(&mut head).ok()?;
        match interpreter(&head) {
            Some(next) => file = next,
            None => return elf_hindrance(&head, file),
        }
    }
    None
}

fn is_privileged(file: &Path) -> bool {
    let Ok(meta) = std::fs::metadata(file) else { return false };
    let changes = |bit: u32, id: u32, ours: u32| meta.mode() & bit != 0 && id != ours;
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    changes(0o4000, meta.uid(), uid)
        || changes(0o2000, meta.gid(), gid)
        || rustix::fs::getxattr(file, "security.capability", &mut [0u8; 64]).is_ok()
}

/// `#!/usr/bin/env python3` and `#!/bin/sh -e`: the program that really runs.
fn interpreter(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let text = String::from_utf8_lossy(line);
    let mut words = text.split_whitespace();
    let first = words.next()?;
    if !first.ends_with("/env") {
        return Some(PathBuf::from(first));
    }
    let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
    find(OsStr::new(name), std::env::var_os("PATH").as_deref())
}

fn elf_hindrance(head: &[u8], file: PathBuf) -> Option<Hindrance> {
    // PT_INTERP and the start of e_ident (elf.h).
    const PT_INTERP: u32 = 3;
    const ELF64_LITTLE: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
    let machine: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    if !head.starts_with(b"\x7fELF") {
        return None;
    }
    if !head.starts_with(&ELF64_LITTLE) || half(head, 18)? != machine {
        return Some(Hindrance::Foreign(file));
    }
    let at = usize::try_from(u64::from_le_bytes(head.get(32..40)?.try_into().ok()?)).ok()?;
    let size = usize::from(half(head, 54)?);
    let count = usize::from(half(head, 56)?).min(HEADERS_MAX);
    let has_loader = (0..count).any(|i| {
        let entry = at.saturating_add(i * size);
        let kind = head.get(entry..entry.saturating_add(4));
        kind.is_some_and(|kind| kind == PT_INTERP.to_le_bytes())
    });
    if has_loader {
        return None;
    }
    let is_go = head.windows(8).any(|bytes| bytes == b"Go build" || bytes == b"Go\0\0go1.");
    Some(if is_go { Hindrance::Go(file) } else { Hindrance::Static(file) })
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn compile(dir: &Path, name: &str, flags: &[&str]) -> PathBuf {
        let source = dir.join("p.c");
        std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
        let out = dir.join(name);
        let mut cc = Command::new("cc");
        assert!(cc.args(flags).arg("-o").arg(&out).arg(&source).status().unwrap().success());
        out
    }

    #[test]
    fn static_and_dynamic_programs_are_distinguished() {
        let dir = tempfile::tempdir().unwrap();
        let fixed = compile(dir.path(), "fixed", &["-static"]);
        assert_eq!(hindrance(&fixed), Some(Hindrance::Static(fixed.clone())));
        let free = compile(dir.path(), "free", &[]);
        assert_eq!(hindrance(&free), None);
        let script = dir.path().join("script");
        std::fs::write(&script, format!("#!{} -x\n", fixed.display())).unwrap();
        assert_eq!(hindrance(&script), Some(Hindrance::Static(fixed)));
    }

    #[test]
    fn damaged_files_never_cause_a_panic() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x");
        let mut cut = b"\x7fELF\x02\x01".to_vec();
        for bytes in [&b""[..], b"#!", b"#!\n", b"\x7fELF", &cut.clone()] {
            std::fs::write(&file, bytes).unwrap();
            let _ = hindrance(&file);
        }
        cut.resize(64, 0xff);
        std::fs::write(&file, &cut).unwrap();
        assert!(matches!(hindrance(&file), Some(Hindrance::Foreign(_))));
        std::fs::write(&file, format!("#!{}\n", file.display())).unwrap();
        assert_eq!(hindrance(&file), None, "a script that interprets itself ends");
    }
}
