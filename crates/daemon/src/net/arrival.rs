//! What comes of a greeting: a process that wants to be hosted, or memory of the pools.
//! In: what a process sent, checked. Out: the same, and where the answer goes. Knows nothing of how
//! it was received.

use rustix::fd::{AsFd, BorrowedFd};
use rustix::net::SendFlags;
use serde::Serialize;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;
use tiercel_broker::{Peer, PeerError};
use tiercel_wire::{PoolAsk, Session, Status, Welcome};

/// Whose processes are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// This user's.
    User(u32),
    /// Those of all users.
    AllUsers,
}

impl Admission {
    /// Whether processes of a user are accepted.
    pub fn admits(self, uid: u32) -> bool {
        match self {
            Admission::AllUsers => true,
            Admission::User(user) => uid == user,
        }
    }
}

/// What a greeted process wants.
pub enum Greeted {
    /// To be hosted.
    Hello(Box<Arrival>),
    /// Something of the pools.
    Pool(PoolRequest),
}

/// A process with a valid hello. It waits for [`Arrival::welcome`].
pub struct Arrival {
    /// The process, as the kernel reports it.
    pub peer: Peer,
    /// Its number in its own pid namespace, as it claims.
    pub stated_pid: u32,
    /// That of the process that forked it, as it claims; 0 = none.
    pub parent_pid: u32,
    /// When its hello was read.
    pub since: Instant,
    /// Its checked shared memory.
    pub session: Session,
    /// Userfaultfds through which its writes can be tracked.
    pub userfaultfds: Vec<OwnedFd>,
    /// Where the answer goes.
    pub(super) connection: Connection,
}

impl Arrival {
    /// Checks who arrives. A process that is over is taken in with what it left, unless one of ours
    /// has its number by now.
    pub(crate) fn check(&mut self, is_ours: impl FnOnce(u32) -> bool) -> Result<(), PeerError> {
        match is_over(self.peer.check())? {
            false => Ok(()),
            true if is_ours(self.peer.pid()) => Err(PeerError::Gone),
            true => self.end(),
        }
    }

    /// Its process is over, but for what it left in its session: nothing may act on it.
    pub fn end(&mut self) -> Result<(), PeerError> {
        self.peer = Peer::ended(self.connection.as_fd())?;
        self.userfaultfds.clear();
        Ok(())
    }

    /// Accepts it as session `number`; the process continues.
    pub fn welcome(&self, number: u32) {
        self.session.answer(Status::Ok, number);
        answer(self.connection.as_fd(), Status::Ok, number);
    }

    /// Refuses it: there are too many clients.
    pub fn refuse_full(self) {
        self.session.answer(Status::RefusedFull, 0);
        answer(self.connection.as_fd(), Status::RefusedFull, 0);
    }

    /// Refuses it: it is no longer the process that connected.
    pub fn refuse_changed(self) {
        self.session.answer(Status::RefusedUser, 0);
        answer(self.connection.as_fd(), Status::RefusedUser, 0);
    }
}

/// Refused connections so far, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// Of another user.
    pub user: u64,
    /// Of another wire version.
    pub version: u64,
    /// Malformed hello.
    pub malformed: u64,
    /// No memfd, or one that is not sealed or has the wrong size.
    pub memfd: u64,
    /// No hello in time.
    pub silent: u64,
    /// Too many at once.
    pub full: u64,
    /// In a pid namespace that we do not see into: it has no number here.
    pub foreign: u64,
    /// The process ended before it was greeted.
    pub ended: u64,
    /// The process that connected runs another program, or another one sent its hello.
    pub changed: u64,
}

impl Refused {
    /// Counts a process that is not what connected.
    pub(super) fn lost(&mut self, error: &PeerError) {
        let counter =
            if matches!(error, PeerError::Gone) { &mut self.ended } else { &mut self.changed };
        *counter += 1;
    }
}

/// A request for pool memory, and the process that made it.
pub(crate) struct PoolRequest {
    /// The request.
    pub ask: PoolAsk,
    /// The process, as the kernel reports it.
    pub peer: Peer,
    /// Where the answer goes.
    pub connection: Connection,
}

/// A connection whose greeting is complete. Its thread closes it when this is dropped.
pub struct Connection {
    // Dropped first: the thread's is the last.
    socket: Arc<OwnedFd>,
    _answered: Sender<()>,
}

impl Connection {
    /// A share of `socket`; dropping it disconnects `answered`.
    pub(super) fn new(socket: &Arc<OwnedFd>, answered: Sender<()>) -> Connection {
        Connection { socket: Arc::clone(socket), _answered: answered }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Whether a process has ended or executed another program since it connected.
pub(super) fn is_over(check: Result<(), PeerError>) -> Result<bool, PeerError> {
    match check {
        Ok(()) => Ok(false),
        Err(PeerError::Gone | PeerError::Program) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Sends one datagram, for who waits for it: a question to the pools, a runtime of another version.
/// A peer that does not take it has left, or never reads: nothing is lost.
pub(super) fn answer(socket: BorrowedFd<'_>, status: Status, session: u32) {
    let welcome = Welcome { status, session }.encode();
    let _ = rustix::net::send(socket, &welcome, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}
