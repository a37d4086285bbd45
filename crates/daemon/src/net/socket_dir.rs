//! The directory of the sockets: one live daemon per name in it, stale files are replaced.
//! In: a directory and a name. Out: [`SocketDir`], which holds the lock for as long as it lives.
//! Knows nothing of what goes over the sockets.

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Connections that may wait for accept: Linux's old SOMAXCONN. A burst beyond it waits in connect,
/// it is not refused.
const BACKLOG: i32 = 128;

/// Entries of a directory that are looked at for stale files. Chosen, not measured: it bounds the
/// start of a command, and the next one goes on.
const ENTRIES_MAX: usize = 4096;

/// Name of a machine-wide daemon's sockets.
pub const DAEMON_NAME: &str = "daemon";

/// The owner of what belongs to a user without a number in our user namespace:
/// `DEFAULT_OVERFLOWUID` of include/linux/highuid.h.
const OVERFLOW_UID: u32 = 65_534;

/// How the names of the sockets begin of what tiers by OS page and hosts no program.
pub const PAGES_PREFIX: &str = "pages-";

/// Why the sockets could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketDirError {
    /// A system call on a path failed.
    #[error("cannot {what} {path}: {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the kernel said.
        error: std::io::Error,
    },
    /// A directory of another user, or one that others may write to.
    #[error(
        "{path} belongs to user {owner} with mode {mode:o}; \
         it must be yours with mode 0700. Remove it or set XDG_RUNTIME_DIR"
    )]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// A directory above it lets others replace it.
    #[error(
        "{path}, above the directory of the sockets, belongs to user {owner} with mode {mode:o}: \
         others could replace what is below it. It must be root's or yours, and not writable for \
         others unless it is sticky. Choose another --dir"
    )]
    UnsafeAbove {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// Another daemon runs there.
    #[error(
        "another tiercel daemon holds {path}; \
         stop it with `tiercel daemon --stop`, or choose another --dir"
    )]
    Taken {
        /// Its lock file.
        path: PathBuf,
    },
    /// The path does not fit a socket address.
    #[error(
        "the socket path {path} is too long ({bytes} bytes; 107 fit): \
         choose a shorter --dir or XDG_RUNTIME_DIR"
    )]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        bytes: usize,
    },
}

/// Who may connect to the client socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Processes of the daemon's user: directory 0700, socket 0600.
    Owner,
    /// Processes of all users: directory 0755, client socket 0666. The control socket stays 0600.
    AllUsers,
}

/// A daemon's lock and its two listening sockets. Dropping it removes their files.
#[derive(Debug)]
pub struct SocketDir {
    /// Where clients connect (SOCK_SEQPACKET).
    pub clients: OwnedFd,
    /// Where requests come in (SOCK_STREAM).
    pub control: OwnedFd,
    /// The file of the offer, empty.
    pub offer: File,
    /// Of clients, control, offer and lock.
    paths: [PathBuf; 4],
    lock: OwnedFd,
}

impl SocketDir {
    /// Claims `name` in `directory`, which is created if it is missing.
    pub fn claim(
        directory: &Path,
        name: &str,
        access: Access,
    ) -> Result<SocketDir, SocketDirError> {
        make_directory(directory, access)?;
        remove_stale(directory);
        let lock_path = directory.join(format!("{name}.lock"));
        let lock = lock(&lock_path, OFlags::CREATE)?;
        let clients_path = clients_path(directory, name);
        let control_path = control_path(directory, name);
        let mode = if access == Access::AllUsers { 0o666 } else { 0o600 };
        let clients = listen(&clients_path, SocketType::SEQPACKET, mode)?;
        let control = listen(&control_path, SocketType::STREAM, 0o600)?;
        let offer_path = offer_path(&clients_path);
        let offer =
            make_offer(&offer_path, if access == Access::AllUsers { 0o644 } else { 0o600 })?;
        let paths = [clients_path, control_path, offer_path, lock_path];
        Ok(SocketDir { clients, control, offer, paths, lock })
    }

    /// What TIERCEL_SOCKET must hold for a program to attach here.
    pub fn clients_path(&self) -> &Path {
        &self.paths[0]
    }

    /// Its files, and the lock that protects them from other daemons.
    pub fn files(&self) -> (Vec<PathBuf>, BorrowedFd<'_>) {
        (self.paths.to_vec(), self.lock.as_fd())
    }

    /// Where `tiercel top` and friends connect.
    pub fn control_path(&self) -> &Path {
        &self.paths[1]
    }
}

impl Drop for SocketDir {
    fn drop(&mut self) {
        // The lock is held until after this, so that no other daemon's files are removed. A file
        // that is gone already is what was wanted; a front that may not remove them has a broker.
        self.files().0.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

/// A lock and a control socket alone, of what hosts no program. Dropping it removes their files.
#[derive(Debug)]
pub struct ControlSocket {
    /// Where requests come in (SOCK_STREAM).
    pub listener: OwnedFd,
    /// Of socket and lock.
    paths: [PathBuf; 2],
    _lock: OwnedFd,
}

impl ControlSocket {
    /// Claims `name` in `directory`, which is created if it is missing.
    ///
    /// # Errors
    /// See [`SocketDirError`].
    pub fn claim(directory: &Path, name: &str) -> Result<ControlSocket, SocketDirError> {
        make_directory(directory, Access::Owner)?;
        remove_stale(directory);
        let lock_path = directory.join(format!("{name}.lock"));
        let lock = lock(&lock_path, OFlags::CREATE)?;
        let path = control_path(directory, name);
        let listener = listen(&path, SocketType::STREAM, 0o600)?;
        Ok(ControlSocket { listener, paths: [path, lock_path], _lock: lock })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // As those of a SocketDir, while the lock is held.
        self.paths.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

/// Path of the client socket of a daemon `name`.
pub fn clients_path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.sock"))
}

/// Path of the control socket of a daemon `name`.
pub fn control_path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.control"))
}

/// Path of the offer beside a client socket.
fn offer_path(clients_path: &Path) -> PathBuf {
    let mut path = clients_path.as_os_str().to_owned();
    path.push(tiercel_wire::layout::OFFER_SUFFIX);
    path.into()
}

/// Removes what killed daemons and runs of this user left in a directory: the files of every name
/// whose lock no process holds. What cannot be removed stays.
pub fn remove_stale(directory: &Path) {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    for lock_path in entries.map(|entry| entry.path()).take(ENTRIES_MAX) {
        if lock_path.extension().is_none_or(|extension| extension != "lock") {
            continue;
        }
        // An existing file alone: a leaving daemon removes its own.
        let Ok(_held) = lock(&lock_path, OFlags::empty()) else { continue };
        let Some(name) = lock_path.file_stem().and_then(OsStr::to_str) else { continue };
        let clients = clients_path(directory, name);
        let files = [offer_path(&clients), control_path(directory, name), clients, lock_path];
        files.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

/// The usual directory: `/run/tiercel` for root, `$XDG_RUNTIME_DIR/tiercel`, else
/// `/tmp/tiercel-UID`.
pub fn usual_directory() -> PathBuf {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return PathBuf::from("/run/tiercel");
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if Path::new(&dir).is_absolute() => Path::new(&dir).join("tiercel"),
        _ => PathBuf::from(format!("/tmp/tiercel-{}", uid.as_raw())),
    }
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> SocketDirError {
    let path = path.to_owned();
    move |error| SocketDirError::Io { what, path, error }
}

/// Creates the directory, or checks an existing one: it must be ours, and only we may write to it.
fn make_directory(directory: &Path, access: Access) -> Result<(), SocketDirError> {
    let wanted = if access == Access::AllUsers { 0o755 } else { 0o700 };
    let made = std::fs::DirBuilder::new().recursive(true).mode(wanted).create(directory);
    made.map_err(io("make", directory))?;
    check_above(directory, access)?;
    let meta = std::fs::symlink_metadata(directory).map_err(io("look at", directory))?;
    let mode = meta.mode() & 0o7777;
    let uid = rustix::process::geteuid().as_raw();
    if !meta.is_dir() || meta.uid() != uid || mode & 0o022 != 0 {
        let path = directory.to_owned();
        return Err(SocketDirError::Unsafe { path, owner: meta.uid(), mode });
    }
    // It only ever widens. The sockets of an Owner in a directory that all users may enter are
    // protected by their own mode, so that it can be shared with a daemon for all users.
    if mode & wanted != wanted {
        let widened = std::fs::Permissions::from_mode(mode | wanted);
        std::fs::set_permissions(directory, widened).map_err(io("set the mode of", directory))?;
    }
    Ok(())
}

/// Checks every directory above this one, on the way that is written and on the way that symbolic
/// links make of it: who may write to one of them could put another directory in our place.
fn check_above(directory: &Path, access: Access) -> Result<(), SocketDirError> {
    let written = std::path::absolute(directory).map_err(io("look at", directory))?;
    let real = std::fs::canonicalize(directory).map_err(io("look at", directory))?;
    let own = rustix::process::geteuid().as_raw();
    for above in written.ancestors().skip(1).chain(real.ancestors().skip(1)) {
        // A link is its directory's; what it leads to is on the other way.
        let meta = std::fs::symlink_metadata(above).map_err(io("look at", above))?;
        let (owner, mode) = (meta.uid(), meta.mode() & 0o7777);
        let is_sticky = mode & 0o1000 != 0;
        // In a sandbox root may have no number; a daemon for all users does not run in one.
        let is_root = owner == 0 || (owner == OVERFLOW_UID && access == Access::Owner);
        let is_ours = is_root || owner == own;
        if !is_ours || (meta.is_dir() && mode & 0o022 != 0 && !is_sticky) {
            return Err(SocketDirError::UnsafeAbove { path: above.to_owned(), owner, mode });
        }
    }
    Ok(())
}

/// Opens and locks the lock file. The file may be removed by a leaving daemon between our open and
/// our lock, so the locked file must still be the one at the path; a few attempts suffice.
fn lock(path: &Path, create: OFlags) -> Result<OwnedFd, SocketDirError> {
    /// Between two attempts: 16 of them take 80 ms. Who removes stale files holds a lock for as
    /// long as that takes.
    const WAIT: Duration = Duration::from_millis(5);
    lock_after(path, create, || std::thread::sleep(WAIT))
}

fn lock_after(
    path: &Path,
    create: OFlags,
    mut wait: impl FnMut(),
) -> Result<OwnedFd, SocketDirError> {
    /// Each failed attempt means that another daemon left in that moment, or that one that starts
    /// took the file for a stale one before it was locked.
    const ATTEMPTS_MAX: usize = 16;
    for _ in 0..ATTEMPTS_MAX {
        let flags = create | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))
            .map_err(|e| io("open", path)(e.into()))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) if create.is_empty() => break,
            Err(rustix::io::Errno::WOULDBLOCK) => {
                wait();
                continue;
            }
            Err(e) => return Err(io("lock", path)(e.into())),
        }
        let ours = rustix::fs::fstat(&file).map_err(|e| io("look at", path)(e.into()))?;
        match std::fs::symlink_metadata(path) {
            Ok(meta) if meta.ino() == ours.st_ino => return Ok(file),
            _ => continue,
        }
    }
    Err(SocketDirError::Taken { path: path.to_owned() })
}

/// A new file, so that processes of an earlier daemon keep theirs. The lock is held.
fn make_offer(path: &Path, mode: u32) -> Result<File, SocketDirError> {
    remove(path)?;
    let made = File::options().read(true).write(true).create_new(true).mode(mode).open(path);
    let file = made.map_err(io("make", path))?;
    // Whatever the umask.
    file.set_permissions(Permissions::from_mode(mode)).map_err(io("set the mode of", path))?;
    Ok(file)
}

/// Removes a stale file, if there is one.
fn remove(path: &Path) -> Result<(), SocketDirError> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(io("remove the stale", path)(e)),
        _ => Ok(()),
    }
}

/// A listening socket at `path`. The lock is held: a file at this path is stale.
fn listen(path: &Path, kind: SocketType, mode: u32) -> Result<OwnedFd, SocketDirError> {
    let bytes = path.as_os_str().len();
    let address = SocketAddrUnix::new(path)
        .map_err(|_| SocketDirError::TooLong { path: path.to_owned(), bytes })?;
    remove(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)
        .map_err(|e| io("make a socket for", path)(e.into()))?;
    rustix::net::bind(&socket, &address).map_err(|e| io("bind", path)(e.into()))?;
    // No process can connect before `listen`, so there is no moment with a wider mode.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .map_err(io("set the mode of", path))?;
    rustix::net::listen(&socket, BACKLOG).map_err(|e| io("listen on", path)(e.into()))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn sockets_are_private_and_go_away() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("t");
        let sockets = SocketDir::claim(&dir, "x", Access::Owner).unwrap();
        assert_eq!(mode(&dir), 0o700);
        assert_eq!(mode(sockets.clients_path()), 0o600);
        assert_eq!(mode(sockets.control_path()), 0o600);
        drop(sockets);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    }

    #[test]
    fn a_lock_that_another_takes_for_stale_is_made_anew() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x.lock");
        let mut cleaner = Some(lock(&path, OFlags::CREATE).unwrap());
        let clean = || {
            std::fs::remove_file(&path).unwrap();
            drop(cleaner.take());
        };
        let ours = lock_after(&path, OFlags::CREATE, clean).unwrap();
        assert_eq!(path.metadata().unwrap().ino(), rustix::fs::fstat(&ours).unwrap().st_ino);
    }

    #[test]
    fn a_second_daemon_is_refused_until_the_first_leaves() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("t");
        let first = SocketDir::claim(&dir, "x", Access::Owner).unwrap();
        let second = SocketDir::claim(&dir, "x", Access::Owner);
        assert!(matches!(second, Err(SocketDirError::Taken { .. })), "{second:?}");
        assert!(first.clients_path().exists(), "the refused one must not remove our socket");
        drop(first);
        SocketDir::claim(&dir, "x", Access::Owner).unwrap();
    }

    #[test]
    fn stale_files_of_a_killed_daemon_are_replaced() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("t");
        std::fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
        for name in ["x.sock", "x.control", "x.lock"] {
            std::fs::write(dir.join(name), "stale").unwrap();
        }
        let sockets = SocketDir::claim(&dir, "x", Access::Owner).unwrap();
        std::os::unix::net::UnixStream::connect(sockets.control_path()).unwrap();
    }

    #[test]
    fn files_of_killed_runs_are_removed_and_those_of_live_ones_kept() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("t");
        let live = SocketDir::claim(&dir, "run-1", Access::Owner).unwrap();
        let killed = SocketDir::claim(&dir, "run-2", Access::Owner).unwrap();
        let left = killed.files().0;
        drop(killed);
        left.iter().for_each(|path| std::fs::write(path, "").unwrap());
        let next = SocketDir::claim(&dir, "run-3", Access::Owner).unwrap();
        assert!(left.iter().all(|path| !path.exists()), "{left:?}");
        assert!(live.files().0.iter().chain(&next.files().0).all(|path| path.exists()));
    }

    #[test]
    fn a_directory_others_may_write_to_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("t");
        std::fs::create_dir(&dir).unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
        let sockets = SocketDir::claim(&dir, "x", Access::Owner);
        assert!(matches!(sockets, Err(SocketDirError::Unsafe { .. })), "{sockets:?}");
    }

    #[test]
    fn a_directory_above_that_others_may_write_to_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let above = root.path().join("above");
        let dir = above.join("between").join("t");
        let claim = |mode| {
            std::fs::set_permissions(&above, std::fs::Permissions::from_mode(mode)).unwrap();
            SocketDir::claim(&dir, "x", Access::Owner).map(drop)
        };
        std::fs::create_dir(&above).unwrap();
        for mode in [0o777, 0o775] {
            let refused = claim(mode).unwrap_err();
            let is_it =
                matches!(&refused, SocketDirError::UnsafeAbove { path, .. } if *path == above);
            assert!(is_it, "{refused}");
        }
        claim(0o1777).unwrap();
        claim(0o755).unwrap();
        // Nor by a link that leads past it.
        std::os::unix::fs::symlink(above.join("between"), root.path().join("link")).unwrap();
        std::fs::set_permissions(&above, std::fs::Permissions::from_mode(0o777)).unwrap();
        let refused = SocketDir::claim(&root.path().join("link/t"), "x", Access::Owner);
        assert!(matches!(refused, Err(SocketDirError::UnsafeAbove { .. })), "{refused:?}");
    }

    #[test]
    fn a_path_that_is_too_long_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("d".repeat(120));
        let sockets = SocketDir::claim(&dir, "x", Access::Owner);
        assert!(matches!(sockets, Err(SocketDirError::TooLong { .. })), "{sockets:?}");
    }
}
