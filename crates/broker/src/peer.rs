//! The identity of a process at the other end of a connection: the one place where it is checked.
//! In: a connected socket. Out: a [`Peer`], which no other means can make, and whether the process
//! is still what it was. Knows nothing of what the process says.
//!
//! A connection outlives its process: a child inherits it, and the process's number may be given to
//! another program of another user, or the process may exec a program with more privileges. The
//! daemon acts on processes by number, so that each of these would direct it at a stranger.
//!
//! ```text
//! connect --> Peer::of: pidfd alive, owner, start time, executable, auxiliary vector
//! message --> Peer::sent: the kernel's sender is the process that connected, and nothing changed
//! attach, residency look, batch of moves --> Peer::check
//! ```
//! What a broker found holds for 10 ms.
//!
//! Looking at a process of another user takes privilege. Where the daemon has none, its broker
//! looks, and a [`Peer`] holds the broker's [`Guard`] instead of its own.
//!
//! Where the kernel has no SO_PEERPIDFD (before Linux 6.5) the pidfd is opened by number after the
//! accept. A number that was given to another process of the same user between connect and accept
//! is then not noticed; one of another user is.

use crate::protocol::{Identified, PeerError, PeerId};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::{ClockId, clock_gettime};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{fmt, io};
use tiercel_wire::peer::{Credentials, credentials, pidfd};
use tiercel_wire::stat;

/// `AT_SECURE` of include/uapi/linux/auxvec.h: the program runs with more rights than its caller.
const AT_SECURE: u64 = 23;
/// `AT_RANDOM` of the same: where the kernel put 16 random bytes, near the top of the stack.
const AT_RANDOM: u64 = 25;

/// A process that connected to us.
#[derive(Debug)]
pub struct Peer {
    pid: u32,
    /// Its effective user. Root may become another user, and is that user from then on.
    uid: AtomicU32,
    start_ticks: u64,
    /// Of the program that it ran when it connected, as in its hello; 0: unknown.
    image: u64,
    pidfd: OwnedFd,
    guard: Box<dyn Guard>,
}

/// Finds out whether a process is still what it was.
pub(crate) trait Guard: Send + Sync + fmt::Debug {
    /// Its effective user now.
    fn check(&self, peer: &Peer) -> Result<u32, PeerError>;

    /// The same while it is greeted.
    fn check_in_greeting(&self, peer: &Peer) -> Result<u32, PeerError> {
        self.check(peer)
    }

    /// Its name, by which a broker must be asked; `None`: no broker needs to be asked now.
    fn stale_id(&self) -> Option<PeerId> {
        None
    }

    /// Notes what the broker found.
    fn note(&self, user: Result<u32, PeerError>) {
        let _ = user;
    }

    /// Where it looks; `None`: not from here.
    fn proc(&self) -> Option<&Path> {
        None
    }
}

/// What `/proc` showed of a process when it connected.
#[derive(Debug)]
struct Seen {
    /// The process's folder in `/proc`, or in a fixture.
    folder: PathBuf,
    image: Image,
}

/// What identifies a program in execution. `None`: the kernel does not let us look at it, and then
/// it does not let us move its memory either.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Image {
    /// Device and inode of its executable.
    executable: Option<(u64, u64)>,
    /// Its auxiliary vector: addresses chosen at random at each exec, and whether it is privileged.
    auxv: Option<Vec<u8>>,
}

impl Peer {
    /// The process that connected to `socket`.
    pub fn of(socket: BorrowedFd<'_>) -> Result<Peer, PeerError> {
        let connected = credentials(socket).map_err(|_| PeerError::Gone)?;
        let raw = number(connected)?;
        let pidfd = match pidfd(socket) {
            Err(Errno::NOPROTOOPT) => pidfd_open(raw, PidfdFlags::empty()),
            other => other,
        };
        Peer::read(Path::new("/proc"), connected, pidfd.map_err(|_| PeerError::Gone)?)
    }

    fn read(proc: &Path, connected: Credentials, pidfd: OwnedFd) -> Result<Peer, PeerError> {
        let Credentials { pid, uid } = connected;
        let folder = proc.join(pid.to_string());
        let start_ticks = start_ticks(&folder).map_err(|_| PeerError::Gone)?;
        let image = Image::read(&folder, uid);
        if image.is_beginning() {
            return Err(PeerError::Program);
        }
        if image.is_privileged() {
            return Err(PeerError::Privileged);
        }
        let identified = Identified { id: 0, pid, uid, start_ticks, image: image.random() };
        let peer = Peer::guarded(identified, pidfd, Box::new(Seen { folder, image }));
        peer.check()?;
        Ok(peer)
    }

    /// A process that was identified, and that `guard` looks at from now on.
    pub(crate) fn guarded(known: Identified, pidfd: OwnedFd, guard: Box<dyn Guard>) -> Peer {
        let Identified { pid, uid, start_ticks, image, .. } = known;
        Peer { pid, uid: AtomicU32::new(uid), start_ticks, image, pidfd, guard }
    }

    /// A process that connected to `socket` and is over: it has ended, or runs another program. No
    /// check of it succeeds, so that nothing acts on it; what it left can be read.
    pub fn ended(socket: BorrowedFd<'_>) -> Result<Peer, PeerError> {
        let Credentials { pid, uid } = credentials(socket).map_err(|_| PeerError::Gone)?;
        // Readable, as the pidfd of a process that ended.
        let pidfd = eventfd(1, EventfdFlags::CLOEXEC).map_err(|_| PeerError::Gone)?;
        let known = Identified { id: 0, pid, uid, start_ticks: 0, image: 0 };
        Ok(Peer::guarded(known, pidfd, Box::new(Ended)))
    }

    /// A process that this one forked, of the same user and running the same program, and its age.
    /// [`PeerError::Program`]: it has executed another. Where a broker looks at processes none is
    /// found.
    pub fn child(&self, pid: u32) -> Result<(Peer, Duration), PeerError> {
        let proc = self.guard.proc().ok_or(PeerError::Gone)?;
        let folder = proc.join(pid.to_string());
        let raw = Pid::from_raw(pid.cast_signed()).ok_or(PeerError::Gone)?;
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).map_err(|_| PeerError::Gone)?;
        let uid = effective_uid(&folder).map_err(|_| PeerError::Gone)?;
        let child = Peer::read(proc, Credentials { pid, uid }, pidfd)?;
        self.check()?;
        let parent: u32 = stat_field(&folder, PARENT).map_err(|_| PeerError::Gone)?;
        match () {
            () if parent != self.pid => Err(PeerError::Gone),
            () if uid != self.uid() => Err(PeerError::User),
            () if child.image != self.image || child.image == 0 => Err(PeerError::Program),
            () => {
                let age = age(child.start_ticks);
                Ok((child, age))
            }
        }
    }

    /// Whether it still ran the program of its hello when it was identified.
    pub fn runs(&self, image: u64) -> bool {
        image == 0 || self.image == 0 || image == self.image
    }

    /// Its identity, under a name.
    pub(crate) fn identified(&self, id: PeerId) -> Identified {
        Identified {
            id,
            pid: self.pid,
            uid: self.uid(),
            start_ticks: self.start_ticks,
            image: self.image,
        }
    }

    /// Its number in our pid namespace.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whose process it is.
    pub fn uid(&self) -> u32 {
        self.uid.load(Ordering::Relaxed)
    }

    /// Becomes readable when it ends.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// False once it ended.
    pub fn is_alive(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())) == Ok(0)
    }

    /// True when `other` is the same process, whatever it runs.
    pub fn is_same_process(&self, other: &Peer) -> bool {
        (self.pid, self.start_ticks) == (other.pid, other.start_ticks)
    }

    /// Whether it is still the process, the user and the program that connected.
    pub fn check(&self) -> Result<(), PeerError> {
        self.is_of(self.guard.check(self))
    }

    /// Whether `uid`, its effective user now, is the user it was.
    fn is_of(&self, uid: Result<u32, PeerError>) -> Result<(), PeerError> {
        let uid = uid?;
        match self.uid() {
            known if known == uid => Ok(()),
            0 => {
                self.uid.store(uid, Ordering::Relaxed);
                Ok(())
            }
            _ => Err(PeerError::User),
        }
    }

    /// Whether it sent a message with these credentials, and still is what it was.
    pub fn sent(&self, sender: Option<Credentials>) -> Result<(), PeerError> {
        let own = Credentials { pid: self.pid, uid: self.uid() };
        if sender != Some(own) {
            return Err(PeerError::Sender);
        }
        self.is_of(self.guard.check_in_greeting(self))
    }

    /// Its name, by which a broker must be asked.
    pub(crate) fn stale_id(&self) -> Option<PeerId> {
        self.guard.stale_id()
    }

    /// [`Peer::check`], where the broker was asked with others.
    pub(crate) fn found(&self, user: Result<u32, PeerError>) -> Result<(), PeerError> {
        self.guard.note(user);
        self.is_of(user)
    }
}

/// Its number, if it has one in our pid namespace: else it can be neither observed nor moved.
fn number(connected: Credentials) -> Result<Pid, PeerError> {
    Pid::from_raw(connected.pid.cast_signed()).ok_or(PeerError::Foreign)
}

impl Guard for Seen {
    fn check(&self, peer: &Peer) -> Result<u32, PeerError> {
        let start_ticks = start_ticks(&self.folder).map_err(|_| PeerError::Gone)?;
        let uid = effective_uid(&self.folder).map_err(|_| PeerError::Gone)?;
        let image = Image::read(&self.folder, uid);
        // While it lives its number is its own: all that was read above is of this process.
        if !peer.is_alive() || start_ticks != peer.start_ticks {
            return Err(PeerError::Gone);
        }
        if !self.image.is_same(&image) {
            return Err(PeerError::Program);
        }
        Ok(uid)
    }

    fn proc(&self) -> Option<&Path> {
        self.folder.parent()
    }
}

/// Of a process that is over.
#[derive(Debug)]
struct Ended;

impl Guard for Ended {
    fn check(&self, _peer: &Peer) -> Result<u32, PeerError> {
        Err(PeerError::Gone)
    }
}

impl Image {
    fn read(folder: &Path, owner: u32) -> Image {
        let meta = std::fs::metadata(folder.join("exe")).ok();
        let auxv = || std::fs::read(folder.join("auxv"));
        let auxv = auxv().or_else(|_| as_owner_of_files(owner, auxv)).ok();
        Image {
            executable: meta.map(|meta| (meta.dev(), meta.ino())),
            auxv: auxv.filter(|auxv| !auxv.is_empty()),
        }
    }

    /// What can no longer be read counts as unchanged.
    fn is_same(&self, now: &Image) -> bool {
        let is_kept = |changed: bool, is_readable: bool| !changed || !is_readable;
        is_kept(self.executable != now.executable, now.executable.is_some())
            && is_kept(self.auxv != now.auxv, now.auxv.is_some())
    }

    /// The value of `AT_RANDOM`; 0 when the vector cannot be read.
    fn random(&self) -> u64 {
        let pairs = self.auxv.iter().flat_map(|auxv| pairs(auxv));
        pairs.filter(|(key, _)| *key == AT_RANDOM).map(|(_, value)| value).next().unwrap_or(0)
    }

    /// True in the middle of an exec: the auxiliary vector can be read and is not written yet.
    fn is_beginning(&self) -> bool {
        let is_whole = |auxv: &[u8]| pairs(auxv).any(|(key, _)| key == AT_SECURE);
        self.auxv.as_ref().is_some_and(|auxv| !is_whole(auxv))
    }

    /// True when the auxiliary vector can be read, and does not say that the program is ordinary.
    fn is_privileged(&self) -> bool {
        let is_ordinary = |auxv: &[u8]| pairs(auxv).any(|pair| pair == (AT_SECURE, 0));
        self.auxv.as_ref().is_some_and(|auxv| !is_ordinary(auxv))
    }
}

/// The entries of an auxiliary vector: keys and values.
fn pairs(auxv: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
    auxv.chunks_exact(16).map(move |pair| (word(&pair[..8]), word(&pair[8..])))
}

/// Opens files as their owner may: a broker has no capability for files of other users. Without the
/// right to do that nothing changes.
pub(crate) fn as_owner_of_files<T>(owner: u32, open: impl FnOnce() -> T) -> T {
    let own = nix::unistd::setfsuid(owner.into());
    let opened = open();
    nix::unistd::setfsuid(own);
    opened
}

/// Fields of `stat` (proc_pid_stat(5)): the parent's number; when it began, in clock ticks since
/// the machine did.
const PARENT: usize = 4;
const START: usize = 22;

fn start_ticks(folder: &Path) -> io::Result<u64> {
    stat_field(folder, START)
}

/// How long ago something began, to a clock tick.
fn age(start_ticks: u64) -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let now = Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0));
    let per_s = rustix::param::clock_ticks_per_second();
    let nanos = u128::from(start_ticks) * 1_000_000_000 / u128::from(per_s.max(1));
    now.saturating_sub(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
}

fn stat_field<T: std::str::FromStr>(folder: &Path, number: usize) -> io::Result<T> {
    let text = std::fs::read(folder.join("stat"))?;
    parsed(stat::field(&String::from_utf8_lossy(&text), number))
}

/// The second number of the line `Uid:` of `status`.
fn effective_uid(folder: &Path) -> io::Result<u32> {
    let status = std::fs::read(folder.join("status"))?;
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    parsed(line.and_then(|line| line.split_ascii_whitespace().nth(1)))
}

fn parsed<T: std::str::FromStr>(text: Option<&str>) -> io::Result<T> {
    text.and_then(|text| text.parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    const PID: u32 = 77;

    /// A process as `/proc` shows it.
    struct Fixture {
        root: tempfile::TempDir,
    }

    impl Fixture {
        fn new() -> Fixture {
            let fixture = Fixture { root: tempfile::tempdir().unwrap() };
            std::fs::create_dir(fixture.root.path().join(PID.to_string())).unwrap();
            fixture.start(5000);
            fixture.owner(1000);
            fixture.executable("/bin/sh");
            fixture.auxv(0, 1);
            fixture
        }

        fn path(&self, name: &str) -> PathBuf {
            self.root.path().join(PID.to_string()).join(name)
        }

        fn start(&self, ticks: u64) {
            let before = "1 2 ".repeat(9);
            std::fs::write(self.path("stat"), format!("77 (a ) b) S {before}{ticks} 0")).unwrap();
        }

        fn owner(&self, uid: u32) {
            let status = format!("Name:\tx\nUid:\t1000\t{uid}\t1000\t1000\n");
            std::fs::write(self.path("status"), status).unwrap();
        }

        fn executable(&self, of: &str) {
            let _ = std::fs::remove_file(self.path("exe"));
            std::os::unix::fs::symlink(of, self.path("exe")).unwrap();
        }

        fn auxv(&self, secure: u64, entry: u64) {
            let words = [9, entry, AT_SECURE, secure, 0, 0];
            let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
            std::fs::write(self.path("auxv"), bytes).unwrap();
        }

        fn peer(&self, uid: u32) -> Result<Peer, PeerError> {
            // The pidfd of a process that lives: the reads are what is tested.
            let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
            Peer::read(self.root.path(), Credentials { pid: PID, uid }, own)
        }
    }

    /// What a check says after a change.
    fn after(change: impl FnOnce(&Fixture)) -> Result<(), PeerError> {
        let fixture = Fixture::new();
        let peer = fixture.peer(1000).unwrap();
        assert_eq!(peer.check(), Ok(()));
        change(&fixture);
        peer.check()
    }

    #[test]
    fn what_makes_another_process_is_noticed() {
        let gone = |f: &Fixture| std::fs::remove_dir_all(f.root.path().join("77")).unwrap();
        assert_eq!(after(|_| {}), Ok(()));
        assert_eq!(after(|f| f.start(5001)), Err(PeerError::Gone));
        assert_eq!(after(gone), Err(PeerError::Gone));
        assert_eq!(after(|f| f.owner(0)), Err(PeerError::User));
        assert_eq!(after(|f| f.owner(1001)), Err(PeerError::User));
        assert_eq!(after(|f| f.executable("/bin/ls")), Err(PeerError::Program));
        assert_eq!(after(|f| f.auxv(0, 2)), Err(PeerError::Program));
        assert_eq!(after(|f| f.auxv(1, 1)), Err(PeerError::Program));
    }

    #[test]
    fn a_process_in_the_middle_of_an_exec_is_refused() {
        let fixture = Fixture::new();
        std::fs::write(fixture.path("auxv"), [0; 16]).unwrap();
        assert_eq!(fixture.peer(1000).unwrap_err(), PeerError::Program);
    }

    #[test]
    fn what_may_no_longer_be_read_counts_as_unchanged() {
        assert_eq!(after(|f| std::fs::remove_file(f.path("exe")).unwrap()), Ok(()));
        assert_eq!(after(|f| std::fs::remove_file(f.path("auxv")).unwrap()), Ok(()));
    }

    #[test]
    fn a_process_is_checked_when_it_connects() {
        let fixture = Fixture::new();
        assert_eq!(fixture.peer(1001).unwrap_err(), PeerError::User);
        fixture.auxv(1, 1);
        assert_eq!(fixture.peer(1000).unwrap_err(), PeerError::Privileged);
    }

    #[test]
    fn a_process_of_a_foreign_pid_namespace_is_refused() {
        let outside = Credentials { pid: 0, uid: 1000 };
        assert_eq!(number(outside), Err(PeerError::Foreign));
        assert_eq!(PeerError::Foreign.to_string(), "the process is in a foreign pid namespace");
    }

    #[test]
    fn root_may_become_another_user_once() {
        let fixture = Fixture::new();
        fixture.owner(0);
        let peer = fixture.peer(0).unwrap();
        fixture.owner(1001);
        assert_eq!(peer.check(), Ok(()));
        fixture.owner(0);
        assert_eq!(peer.check(), Err(PeerError::User));
    }

    #[test]
    fn a_process_that_is_over_is_known_by_its_user_and_fails_every_check() {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (ours, _theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        let ended = Peer::ended(ours.as_fd()).unwrap();
        assert_eq!((ended.pid(), ended.check()), (std::process::id(), Err(PeerError::Gone)));
        assert!(!ended.is_alive());
        let own = Peer::of(ours.as_fd()).unwrap();
        assert!(own.image != 0 && own.runs(own.image) && own.runs(0));
        assert!(!own.runs(own.image + 16), "another program's");
    }

    #[test]
    fn a_child_is_one_that_runs_the_same_program() {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (ours, _theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        let own = Peer::of(ours.as_fd()).unwrap();
        let mut other = std::process::Command::new("cat");
        let mut other = other.stdin(std::process::Stdio::piped()).spawn().unwrap();
        // Between fork and exec it is a child; the standard library returns after the exec.
        assert_eq!(own.child(other.id()).unwrap_err(), PeerError::Program);
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(own.child(other.id()).unwrap_err(), PeerError::Gone);
        assert_eq!(own.child(own.pid()).unwrap_err(), PeerError::Gone, "not its own child");
    }

    #[test]
    fn a_message_must_come_from_the_process_that_connected() {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (ours, _theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        let peer = Peer::of(ours.as_fd()).unwrap();
        let own = credentials(ours.as_fd()).unwrap();
        assert_eq!(peer.sent(Some(own)), Ok(()));
        let foreign = Credentials { pid: own.pid + 1, ..own };
        assert_eq!(peer.sent(Some(foreign)), Err(PeerError::Sender));
        let foreign = Credentials { uid: own.uid + 1, ..own };
        assert_eq!(peer.sent(Some(foreign)), Err(PeerError::Sender));
        assert_eq!(peer.sent(None), Err(PeerError::Sender));
    }
}
