//! Where what is known is kept: a folder of the user's, a file for each build.
//! In: identities, [`RunFigures`]. Out: [`Known`]. Knows nothing of what figures mean.
//!
//! ```text
//!   $XDG_DATA_HOME/tiercel/learned/   mode 0700, the user's own
//!     lock                            held while a file is replaced or removed
//!     build-0123abcd.learned          mode 0600
//!     .new                            written, then renamed; left over only by who was killed
//! ```
//!
//! All is opened relative to the folder, which was checked, and without following symbolic links.
//! Files are not synchronised with the disk: after a crash of the system one may be damaged, which
//! its checksum shows, and then it counts as if it were not there.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::figures::{Identity, Known, RunFigures};
use crate::file::{FILE_BYTES_MAX, FileError, decode, encode};

/// Programs that are kept; of more, those that were not run for longest are forgotten.
pub const PROGRAMS_MAX: usize = 256;
/// Bytes of all files; beyond, the same. A quarter of what the largest ones could take.
pub const TOTAL_BYTES_MAX: u64 = (FILE_BYTES_MAX * PROGRAMS_MAX) as u64 / 4;
/// Entries of the folder that are looked at: others put them there. It bounds the end of a run.
const ENTRIES_MAX: usize = 4 * PROGRAMS_MAX;
/// Times that a run tries to get the lock, and between two: 0.5 s, hundreds of times what replacing
/// a file takes. A run does not wait longer for one that was stopped meanwhile.
const LOCK_TRIES: usize = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

const LOCK: &str = "lock";
const NEW: &str = ".new";
const ENDING: &str = ".learned";

/// Why nothing can be kept, or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The system refused an operation.
    #[error("cannot {what} {path}: {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// Something that is not the user's own, or that others may change.
    #[error("{path} {what}; remove it, or set XDG_DATA_HOME")]
    Unsafe {
        /// The folder or file.
        path: PathBuf,
        /// What it is.
        what: String,
    },
    /// A file that is no file of this version.
    #[error("{path} is not used: {error}; `tiercel learned forget` removes it")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: FileError,
    },
    /// Another run holds the lock for long.
    #[error("another run holds {path}: what this one learned is not kept")]
    Locked {
        /// The lock.
        path: PathBuf,
    },
}

/// The folder, checked.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    folder: OwnedFd,
}

/// A file of the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The build that it is of.
    pub identity: Identity,
    /// Its size, bytes.
    pub bytes: u64,
    /// When it was written, nanoseconds since 1970.
    written_ns: i128,
}

/// `$XDG_DATA_HOME/tiercel/learned`, else `$HOME/.local/share/tiercel/learned`, of these values of
/// the variables; `None` where neither is an absolute path.
pub fn usual_folder(data_home: Option<&OsStr>, home: Option<&OsStr>) -> Option<PathBuf> {
    let absolute = |text: Option<&OsStr>| Some(PathBuf::from(text?)).filter(|p| p.is_absolute());
    let base = absolute(data_home).or_else(|| Some(absolute(home)?.join(".local/share")));
    Some(base?.join("tiercel/learned"))
}

impl Store {
    /// Opens the folder; `None` where there is none.
    ///
    /// # Errors
    /// Where it is not the user's alone, or cannot be opened.
    pub fn open(path: &Path) -> Result<Option<Store>, StoreError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(folder) => folder,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::NOTDIR) => return Err(no_folder(path)),
            Err(error) => return Err(io("open", path)(error)),
        };
        let stat = rustix::fs::fstat(&folder).map_err(io("look at", path))?;
        check_ours(path, &stat)?;
        Ok(Some(Store { path: path.to_owned(), folder }))
    }

    /// Opens the folder, which is made if it is missing.
    ///
    /// # Errors
    /// As [`Store::open`], and where it cannot be made.
    pub fn make(path: &Path) -> Result<Store, StoreError> {
        if let Some(store) = Store::open(path)? {
            return Ok(store);
        }
        check_above(path)?;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(|error| StoreError::Io { what: "make", path: path.to_owned(), error })?;
        Store::open(path)?.ok_or_else(|| no_folder(path))
    }

    /// What is known of a build; `None`: nothing.
    ///
    /// # Errors
    /// Where there is a file that cannot be used.
    pub fn read(&self, identity: &Identity) -> Result<Option<Known>, StoreError> {
        let name = file_name(identity);
        let path = self.path.join(&name);
        // A FIFO in place of the file must not block us.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.folder, &name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(not_safe(&path, "is a symbolic link".into())),
            Err(error) => return Err(io("open", &path)(error)),
        };
        let stat = rustix::fs::fstat(&file).map_err(io("look at", &path))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(not_safe(&path, "is no regular file".into()));
        }
        check_ours(&path, &stat)?;
        let mut bytes = Vec::new();
        let read = File::from(file).take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|error| StoreError::Io { what: "read", path: path.clone(), error })?;
        let known = decode(&bytes).and_then(|known| match known.identity == *identity {
            true => Ok(known),
            false => Err(FileError::Damaged("it is of another program".to_owned())),
        });
        known.map(Some).map_err(|error| StoreError::File { path, error })
    }

    /// Adds what a run learned to what is known by now, and writes it. A damaged file, or one of an
    /// older version, is replaced. A run without samples writes nothing.
    ///
    /// # Errors
    /// Where nothing could be written; then the file is as it was. One of a newer version stays.
    pub fn absorb(
        &self,
        identity: &Identity,
        program: &str,
        run: RunFigures,
        now_s: u64,
    ) -> Result<(), StoreError> {
        if run.samples() <= 0.0 {
            return Ok(());
        }
        let lock = self.lock()?;
        let mut known = match self.read(identity) {
            Ok(known) => known.unwrap_or_else(|| Known::new(identity.clone(), program)),
            Err(error) if error.is_replaceable() => Known::new(identity.clone(), program),
            Err(error) => return Err(error),
        };
        known.program = program.to_owned();
        known.absorb(run, now_s);
        self.write(&known)?;
        self.bound(identity)?;
        drop(lock);
        Ok(())
    }

    /// The files, the latest first.
    ///
    /// # Errors
    /// Where the folder cannot be read.
    pub fn entries(&self) -> Result<Vec<Entry>, StoreError> {
        let mut entries = Vec::new();
        let folder = Dir::read_from(&self.folder).map_err(io("read", &self.path))?;
        for found in folder.take(ENTRIES_MAX) {
            let found = found.map_err(io("read", &self.path))?;
            let name = found.file_name().to_string_lossy().into_owned();
            let identity =
                name.strip_suffix(ENDING).map(|text| Identity::try_from(text.to_owned()));
            let Some(Ok(identity)) = identity else { continue };
            // It may have been forgotten meanwhile.
            let stat = rustix::fs::statat(&self.folder, &*name, AtFlags::SYMLINK_NOFOLLOW);
            let Ok(stat) = stat else { continue };
            let written_ns = i128::from(stat.st_mtime) * 1_000_000_000 + stat.st_mtime_nsec as i128;
            let bytes = u64::try_from(stat.st_size).unwrap_or(0);
            entries.push(Entry { identity, bytes, written_ns });
        }
        entries.sort_by(|a, b| {
            b.written_ns.cmp(&a.written_ns).then_with(|| a.identity.cmp(&b.identity))
        });
        Ok(entries)
    }

    /// Removes what is known of a build, whatever the file is; false where there is none.
    ///
    /// # Errors
    /// Where it cannot be removed.
    pub fn forget(&self, identity: &Identity) -> Result<bool, StoreError> {
        let _lock = self.lock()?;
        self.remove(&file_name(identity))
    }

    fn remove(&self, name: &str) -> Result<bool, StoreError> {
        match rustix::fs::unlinkat(&self.folder, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(io("remove", &self.path.join(name))(error)),
        }
    }

    fn write(&self, known: &Known) -> Result<(), StoreError> {
        let (path, name) = (self.path.join(NEW), file_name(&known.identity));
        let bytes =
            encode(known).map_err(|error| StoreError::File { path: path.clone(), error })?;
        self.remove(NEW)?; // who holds the lock is the only one that writes it
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(0o600);
        let file = rustix::fs::openat(&self.folder, NEW, flags | OFlags::CLOEXEC, mode);
        let file = file.map_err(io("make", &path))?;
        if let Err(error) = File::from(file).write_all(&bytes) {
            self.remove(NEW)?;
            return Err(StoreError::Io { what: "write", path, error });
        }
        let renamed = rustix::fs::renameat(&self.folder, NEW, &self.folder, &name);
        renamed.map_err(io("replace", &self.path.join(name)))
    }

    /// Forgets the oldest programs while there are too many, but not this one.
    fn bound(&self, keep: &Identity) -> Result<(), StoreError> {
        let (mut programs, mut bytes) = (0, 0_u64);
        for entry in self.entries()? {
            (programs, bytes) = (programs + 1, bytes.saturating_add(entry.bytes));
            let is_over = programs > PROGRAMS_MAX || bytes > TOTAL_BYTES_MAX;
            if is_over && entry.identity != *keep {
                self.remove(&file_name(&entry.identity))?;
                (programs, bytes) = (programs - 1, bytes - entry.bytes);
            }
        }
        Ok(())
    }

    /// Holds the lock until it is dropped.
    fn lock(&self) -> Result<OwnedFd, StoreError> {
        let path = self.path.join(LOCK);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let lock = rustix::fs::openat(&self.folder, LOCK, flags, mode);
        let lock = lock.map_err(io("open", &path))?;
        for _ in 0..LOCK_TRIES {
            match rustix::fs::flock(lock.as_fd(), FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(lock),
                Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(LOCK_PAUSE),
                Err(error) => return Err(io("lock", &path)(error)),
            }
        }
        Err(StoreError::Locked { path })
    }
}

impl StoreError {
    /// Whether a file may be written in place of the one that is there: not where that is another
    /// installation's, which is newer.
    fn is_replaceable(&self) -> bool {
        match self {
            StoreError::File { error: FileError::Version { found }, .. } => {
                *found < u64::from(crate::file::LEARNED_VERSION)
            }
            StoreError::File { .. } => true,
            _ => false,
        }
    }
}

fn file_name(identity: &Identity) -> String {
    format!("{identity}{ENDING}")
}

fn io<E: Into<std::io::Error>>(
    what: &'static str,
    path: &Path,
) -> impl FnOnce(E) -> StoreError + use<E> {
    let path = path.to_owned();
    move |error| StoreError::Io { what, path, error: error.into() }
}

fn not_safe(path: &Path, what: String) -> StoreError {
    StoreError::Unsafe { path: path.to_owned(), what }
}

fn no_folder(path: &Path) -> StoreError {
    not_safe(path, "is no folder".to_owned())
}

/// The user's own, and nothing for others.
fn check_ours(path: &Path, stat: &Stat) -> Result<(), StoreError> {
    let mode = stat.st_mode & 0o7777;
    if stat.st_uid == rustix::process::geteuid().as_raw() && mode & 0o077 == 0 {
        return Ok(());
    }
    let what =
        format!("belongs to user {} with mode {mode:o}, and is not yours alone", stat.st_uid);
    Err(not_safe(path, what))
}

/// The folder in which ours is made must be the user's own or the system's: a run by sudo leaves no
/// folder of root's among those of a user.
fn check_above(path: &Path) -> Result<(), StoreError> {
    let above =
        path.ancestors().skip(1).find_map(|above| Some((above, rustix::fs::stat(above).ok()?)));
    let Some((above, stat)) = above else { return Ok(()) };
    let own = rustix::process::geteuid().as_raw();
    if [own, 0].contains(&stat.st_uid) {
        return Ok(());
    }
    Err(not_safe(above, format!("belongs to user {}", stat.st_uid)))
}
