//! Finds libtiercel.so and the parts of `tiercel cc`; builds the variables that bring the former
//! into a program.
//! In: where this executable lies, the user's LD_PRELOAD. Out: a path, or where was looked.
//! Knows nothing of what the library does.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Name of the runtime's file.
const NAME: &str = "libtiercel.so";

/// Where it may lie, seen from the folder of the executable: a build tree, an installation.
const PLACES: [&str; 5] = [".", "../runtime", "../compiler", "../lib/tiercel", "../lib"];

/// A part of Tiercel is nowhere.
#[derive(Debug, thiserror::Error)]
#[error(
    "{name} was not found in {}; build it with `{built_by}`, or install it there",
    .looked.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
)]
pub struct LibraryMissing {
    /// Its file's name.
    pub name: &'static str,
    /// The command that builds it.
    pub built_by: &'static str,
    /// Every folder that was looked into.
    pub looked: Vec<PathBuf>,
}

/// Path of the runtime that belongs to this executable.
pub fn find() -> Result<PathBuf, LibraryMissing> {
    find_part(NAME, "cargo xtask runtime")
}

/// Path of another part that belongs to this executable.
pub fn find_part(name: &'static str, built_by: &'static str) -> Result<PathBuf, LibraryMissing> {
    let exe = std::env::current_exe().unwrap_or_default();
    find_beside(exe.parent().unwrap_or(Path::new("/")), name, built_by)
}

/// `LD_PRELOAD` with the runtime in front of what the user has there.
pub fn preload(library: &Path, users: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(users) = users.filter(|users| !users.is_empty()) {
        value.push(":");
        value.push(users);
    }
    value
}

/// LD_PRELOAD is split at spaces and colons: a path with one of them cannot be preloaded.
pub fn can_be_preloaded(library: &Path) -> bool {
    !library.as_os_str().as_bytes().iter().any(|&byte| byte == b':' || byte.is_ascii_whitespace())
}

fn find_beside(
    folder: &Path,
    name: &'static str,
    built_by: &'static str,
) -> Result<PathBuf, LibraryMissing> {
    let mut looked = Vec::new();
    for place in PLACES {
        let candidate = folder.join(place).join(name);
        if let Ok(found) = candidate.canonicalize() {
            return Ok(found);
        }
        looked.push(folder.join(place));
    }
    Err(LibraryMissing { name, built_by, looked })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_in_a_build_tree_and_named_when_missing() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("debug");
        std::fs::create_dir(&folder).unwrap();
        let find = || find_beside(&folder, NAME, "cargo xtask runtime");
        let missing = find().unwrap_err().to_string();
        assert!(missing.contains("debug/../runtime") && missing.contains("xtask"), "{missing}");
        std::fs::create_dir(root.path().join("runtime")).unwrap();
        std::fs::write(root.path().join("runtime").join(NAME), "").unwrap();
        assert!(find().unwrap().ends_with("runtime/libtiercel.so"));
    }

    #[test]
    fn the_users_preload_is_kept_behind_ours() {
        let ours = Path::new("/x/libtiercel.so");
        assert_eq!(preload(ours, None), "/x/libtiercel.so");
        assert_eq!(preload(ours, Some(OsStr::new(""))), "/x/libtiercel.so");
        assert_eq!(preload(ours, Some(OsStr::new("a.so b.so"))), "/x/libtiercel.so:a.so b.so");
        assert!(!can_be_preloaded(Path::new("/my programs/libtiercel.so")));
    }
}
