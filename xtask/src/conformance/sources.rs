//! Fetches source packages of the distribution. In: a package's name. Out: the folder of its
//! unpacked sources below target/conformance. Knows nothing of what is in them.
//!
//! apt checks the signature of the index, each file against the index; dpkg-source checks each file
//! against the .dsc. The configuration is private: the system's own lists are only read.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::exec;

/// One source line for each index of binary packages that the system has of its distribution.
const LINE: &str = "deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)";

/// Where all that this verb fetches and builds is.
pub fn folder() -> PathBuf {
    exec::target().join("conformance")
}

/// The sources of the installed `package`, at the version that is installed.
pub fn of_installed(source: &str, package: &str) -> Result<PathBuf> {
    let mut query = exec::command("dpkg-query");
    let version = exec::output(query.args(["-W", "-f", "${source:Version}", package]))
        .with_context(|| format!("which version of {package} is installed"))?;
    unpacked(source, &format!("{source}={version}"), &format!("{source}-{version}"))
}

/// The newest sources of that name.
pub fn newest(source: &str) -> Result<PathBuf> {
    unpacked(source, source, source)
}

fn unpacked(source: &str, wanted: &str, name: &str) -> Result<PathBuf> {
    let folder = folder().join(name);
    if folder.exists() {
        return Ok(folder);
    }
    let downloads = self::folder().join("downloads");
    std::fs::create_dir_all(&downloads)?;
    println!("fetching the sources {wanted}");
    update()?;
    let mut get = apt();
    get.current_dir(&downloads).args(["source", "--download-only", wanted]);
    exec::output(&mut get)?;
    unpack(&dsc(&downloads, source)?, &folder)?;
    Ok(folder)
}

/// Into another name first: a folder of the final name is complete.
fn unpack(dsc: &Path, folder: &Path) -> Result<()> {
    let partial = folder.with_extension("partial");
    if partial.exists() {
        std::fs::remove_dir_all(&partial)?;
    }
    let mut unpack = exec::command("dpkg-source");
    exec::output(unpack.args(["--no-copy", "-x"]).arg(dsc).arg(&partial))?;
    Ok(std::fs::rename(partial, folder)?)
}

/// The description of the source package in the folder.
fn dsc(folder: &Path, source: &str) -> Result<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with(&format!("{source}_")) && name.ends_with(".dsc") {
            found.push((path.metadata()?.modified()?, path));
        }
    }
    // Those of other versions are older: each is fetched when it is wanted.
    let (_, newest) = found.into_iter().max().context("apt-get fetched no description")?;
    Ok(newest)
}

/// Fetches the indices of source packages.
fn update() -> Result<()> {
    let mut targets = exec::command("apt-get");
    targets.args(["indextargets", "--format", LINE, "Created-By: Packages", "Origin: Debian"]);
    let lines = exec::output(&mut targets)?;
    if lines.trim().is_empty() {
        bail!("this system has no package lists of Debian: run apt-get update");
    }
    let folder = private();
    std::fs::create_dir_all(folder.join("lists/partial"))?;
    std::fs::create_dir_all(folder.join("archives/partial"))?;
    std::fs::write(folder.join("sources.list"), lines)?;
    exec::output(apt().args(["-qq", "update"]))?;
    Ok(())
}

fn private() -> PathBuf {
    folder().join("apt")
}

/// apt-get, with lists and downloads of our own. It writes them itself: its usual sandbox user has
/// no right to.
fn apt() -> Command {
    let folder = private();
    let mut apt = exec::command("apt-get");
    for (name, value) in [
        ("Dir::Etc::sourcelist", folder.join("sources.list")),
        ("Dir::Etc::sourceparts", "-".into()),
        ("Dir::State::lists", folder.join("lists")),
        ("Dir::Cache", folder),
        ("APT::Sandbox::User", "root".into()),
    ] {
        apt.arg("-o").arg(format!("{name}={}", value.display()));
    }
    apt
}
