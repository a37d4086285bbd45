//! Fetches source packages of the distribution. In: a package's name. Out: the folder of its
//! unpacked sources below the caller's. Knows nothing of what is in them.
//!
//! apt checks the signature of the index, each file against the index; dpkg-source checks each file
//! against the .dsc. The configuration is private: the system's own lists are only read.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::exec;

/// One source line for each index of binary packages that the system has of its distribution.
const LINE: &str = "deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)";

/// Where sources are fetched to, each once.
pub struct Sources {
    folder: PathBuf,
}

impl Sources {
    /// Below that folder, which need not exist.
    pub fn below(folder: PathBuf) -> Sources {
        Sources { folder }
    }

    /// The sources of the installed `package`, at the version that is installed.
    pub fn of_installed(&self, source: &str, package: &str) -> Result<PathBuf> {
        let mut query = exec::command("dpkg-query");
        let version = exec::output(query.args(["-W", "-f", "${source:Version}", package]))
            .with_context(|| format!("which version of {package} is installed"))?;
        self.patched(source, &format!("{source}={version}"), &format!("{source}-{version}"))
    }

    /// The newest sources of that name.
    pub fn newest(&self, source: &str) -> Result<PathBuf> {
        self.patched(source, source, source)
    }

    /// The newest sources of that name as their authors published them, without the distribution's
    /// changes.
    pub fn original(&self, source: &str) -> Result<PathBuf> {
        let name = format!("{source}-original");
        self.once(&name, |partial| {
            let downloads = self.fetch(&name, source, "--tar-only")?;
            std::fs::create_dir(partial)?;
            let mut unpack = exec::command("tar");
            unpack.args(["-x", "--strip-components=1", "-C"]).arg(partial).arg("-f");
            exec::output(unpack.arg(newest_file(&downloads, |name| is_original(name, source))?))?;
            Ok(())
        })
    }

    fn patched(&self, source: &str, wanted: &str, name: &str) -> Result<PathBuf> {
        self.once(name, |partial| {
            let downloads = self.fetch("", wanted, "--download-only")?;
            let is_dsc =
                |name: &str| name.starts_with(&format!("{source}_")) && name.ends_with(".dsc");
            let dsc = newest_file(&downloads, is_dsc)?;
            let mut unpack = exec::command("dpkg-source");
            exec::output(unpack.args(["--no-copy", "-x"]).arg(dsc).arg(partial))?;
            Ok(())
        })
    }

    /// Fills a folder under another name first: one of the final name is complete.
    fn once(&self, name: &str, fill: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let folder = self.folder.join(name);
        if folder.exists() {
            return Ok(folder);
        }
        let partial = folder.with_extension("partial");
        if partial.exists() {
            std::fs::remove_dir_all(&partial)?;
        }
        fill(&partial)?;
        std::fs::rename(partial, &folder)?;
        Ok(folder)
    }

    /// Downloads into a folder of that name below the others'; where that is.
    fn fetch(&self, name: &str, wanted: &str, what: &str) -> Result<PathBuf> {
        let downloads = self.folder.join("downloads").join(name);
        std::fs::create_dir_all(&downloads)?;
        println!("fetching the sources {wanted}");
        self.update()?;
        exec::output(self.apt().current_dir(&downloads).args(["source", what, wanted]))?;
        Ok(downloads)
    }

    /// Fetches the indices of source packages.
    fn update(&self) -> Result<()> {
        let mut targets = exec::command("apt-get");
        targets.args(["indextargets", "--format", LINE, "Created-By: Packages", "Origin: Debian"]);
        let lines = exec::output(&mut targets)?;
        if lines.trim().is_empty() {
            bail!("this system has no package lists of Debian: run apt-get update");
        }
        let folder = self.private();
        std::fs::create_dir_all(folder.join("lists/partial"))?;
        std::fs::create_dir_all(folder.join("archives/partial"))?;
        std::fs::write(folder.join("sources.list"), lines)?;
        exec::output(self.apt().args(["-qq", "update"]))?;
        Ok(())
    }

    fn private(&self) -> PathBuf {
        self.folder.join("apt")
    }

    /// apt-get, with lists and downloads of our own. It writes them itself: its usual sandbox user
    /// has no right to.
    fn apt(&self) -> Command {
        let folder = self.private();
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
}

/// `NAME_VERSION.orig.tar.xz`, neither a signature nor a further component of the package.
fn is_original(name: &str, source: &str) -> bool {
    name.starts_with(&format!("{source}_"))
        && name.contains(".orig.tar.")
        && !name.ends_with(".asc")
}

/// The newest file of such a name: those of other versions are older, as each is fetched when it is
/// wanted.
fn newest_file(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if is_wanted(&path.file_name().unwrap_or_default().to_string_lossy()) {
            found.push((path.metadata()?.modified()?, path));
        }
    }
    let (_, newest) = found.into_iter().max().context("apt-get fetched no such file")?;
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_original_archive_is_neither_a_signature_nor_a_component() {
        assert!(is_original("sqlite3_3.40.1.orig.tar.xz", "sqlite3"));
        assert!(!is_original("sqlite3_3.40.1.orig-www.tar.xz", "sqlite3"));
        assert!(!is_original("libzstd_1.5.4.orig.tar.xz.asc", "libzstd"));
        assert!(!is_original("redis_7.0.debian.tar.xz", "redis"));
    }

    #[test]
    fn what_was_not_filled_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let sources = Sources::below(folder.path().to_path_buf());
        let fill = |partial: &Path| Ok(std::fs::create_dir(partial)?);
        let fails = |partial: &Path| {
            fill(partial)?;
            bail!("no archive")
        };
        assert!(sources.once("a", fails).is_err());
        assert!(!folder.path().join("a").exists());
        assert_eq!(sources.once("a", fill).unwrap(), folder.path().join("a"));
        assert!(sources.once("a", |_| bail!("filled twice")).is_ok());
    }
}
