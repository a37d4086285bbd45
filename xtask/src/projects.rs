//! `cargo xtask compiler --real`: whether real projects can be built by `tiercel cc` and then pass
//! their own tests. In: their names. Out: a line for each, the output in a log; an error when one
//! failed. Knows nothing of how they are built: scripts in `compiler/projects` do.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::exec;
use crate::sources::Sources;

/// Projects: the name of the script, and of Debian's source package.
const PROJECTS: &[(&str, &str)] =
    &[("zstd", "libzstd"), ("sqlite3", "sqlite3"), ("redis", "redis"), ("liblinear", "liblinear")];
/// All of them.
const ALL: &str = "all";
/// CPU time that one may use. Chosen, not measured: tests take minutes.
const CPU_LIMIT: Duration = Duration::from_secs(7200);

/// Builds and tests the projects of these names, or all.
pub fn main(names: &[String]) -> Result<()> {
    let chosen = chosen(names)?;
    let mut failed = 0;
    for (name, source) in &chosen {
        let log = folder().join(format!("{name}.log"));
        match build_and_test(name, source, &log) {
            Ok(()) => println!("{name}: built, and its tests pass (log: {})", log.display()),
            Err(error) => {
                failed += 1;
                println!("{name}: FAILED: {error:#} (log: {})", log.display());
            }
        }
    }
    println!("{} passed, {failed} failed", chosen.len() - failed);
    if failed > 0 {
        bail!("{failed} projects failed");
    }
    Ok(())
}

fn chosen(names: &[String]) -> Result<Vec<(&'static str, &'static str)>> {
    if names.iter().any(|name| name == ALL) {
        return Ok(PROJECTS.to_vec());
    }
    let one = |name: &String| {
        let found = PROJECTS.iter().find(|(known, _)| known == name).copied();
        let known: Vec<&str> = PROJECTS.iter().map(|(known, _)| *known).collect();
        found
            .with_context(|| format!("no project {name}; there are {}, or {ALL}", known.join(", ")))
    };
    names.iter().map(one).collect()
}

fn build_and_test(name: &str, source: &str, log: &Path) -> Result<()> {
    let source = Sources::below(folder()).original(source)?;
    let build = folder().join(name);
    if build.exists() {
        std::fs::remove_dir_all(&build)?;
    }
    exec::output(exec::command("cp").args(["-R", "-p"]).args([&source, &build]))?;
    println!("{name}: building and testing");
    exec::run_logged(&mut script(name, &build), log, CPU_LIMIT)
}

/// The script, to be run in a copy of the sources.
fn script(name: &str, build: &Path) -> Command {
    let tiercel = exec::target().join("debug/tiercel").display().to_string();
    let jobs = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut script = Command::new("bash");
    script.arg(exec::root().join("compiler/projects").join(format!("{name}.sh")));
    script.current_dir(build).env("JOBS", jobs.to_string());
    script.env("CC", format!("{tiercel} cc")).env("CXX", format!("{tiercel} c++"));
    script.env("TIERCEL", tiercel);
    script
}

fn folder() -> PathBuf {
    exec::target().join("projects")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn projects_are_chosen_by_name() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(chosen(&names(&["all"])).unwrap().len(), PROJECTS.len());
        assert_eq!(chosen(&names(&["zstd"])).unwrap(), [("zstd", "libzstd")]);
        let refused = chosen(&names(&["zlib"])).unwrap_err().to_string();
        assert_eq!(refused, "no project zlib; there are zstd, sqlite3, redis, liblinear, or all");
    }

    #[test]
    fn each_project_has_a_script() {
        for (name, _) in PROJECTS {
            let script = exec::root().join("compiler/projects").join(format!("{name}.sh"));
            assert!(script.exists(), "{}", script.display());
        }
    }
}
