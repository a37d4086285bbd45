//! The lab's private directory: packages, their unpacked files, and what is known about this host.
//! In: nothing, or a path. Out: paths below it, and a lock that serialises writers. Knows nothing
//! of what is stored.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A directory that all labs of a user share.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// Held while the cache is written; released on drop (the kernel drops it with the process).
pub(crate) struct CacheLock {
    _file: File,
}

impl Cache {
    /// `$XDG_CACHE_HOME/tiercel/lab`, else `$HOME/.cache/tiercel/lab`; created if it is missing.
    pub fn of_user() -> Result<Cache> {
        let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let base = match (absolute("XDG_CACHE_HOME"), absolute("HOME")) {
            (Some(cache), _) => cache,
            (None, Some(home)) => home.join(".cache"),
            (None, None) => bail!("neither XDG_CACHE_HOME nor HOME is set; set one of them"),
        };
        Cache::at(&base.join("tiercel/lab"))
    }

    /// At a given path; created if it is missing.
    pub fn at(root: &Path) -> Result<Cache> {
        fs::create_dir_all(root)
            .with_context(|| format!("cannot make the lab's cache {}", root.display()))?;
        Ok(Cache { root: root.to_owned() })
    }

    /// A path below it.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    /// Bytes the user may still write to its file system.
    pub(crate) fn free_bytes(&self) -> Result<u64> {
        free_bytes(&self.root)
    }

    /// Waits until no other process writes the cache.
    pub(crate) fn lock(&self) -> Result<CacheLock> {
        let path = self.path("lock");
        let file =
            File::create(&path).with_context(|| format!("cannot open {}", path.display()))?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)
            .with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(CacheLock { _file: file })
    }
}

/// Bytes that the user may still write to the file system of a folder.
pub fn free_bytes(folder: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(folder)
        .with_context(|| format!("cannot read the free space of {}", folder.display()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
