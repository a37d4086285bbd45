//! What tests of installed files share: commands that must succeed, their output, files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs to the end, which must be a good one.
pub fn checked(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {said}");
    output
}

/// What it wrote.
pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// An installed `tiercel`, outside of any run.
pub fn installed(path: PathBuf) -> Command {
    let mut command = Command::new(path);
    command.env_remove("LD_PRELOAD");
    command
}

/// All files below a folder.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let below = |path: PathBuf| if path.is_dir() { files(&path) } else { vec![path] };
    entries.flat_map(below).collect()
}
