//! The handshake: accepts connections, hellos and memfds; hostile or slow peers are bounded.
//! In: the client socket, readiness. Out: [`Arrival`]s, each with a checked session and a pidfd,
//! and requests for pool memory. Knows nothing of what a session is used for.
//!
//! ```text
//! accept -> uid checked -> waits for its hello (bounded) -> memfd checked -> Arrival
//!                 |                     |                        |               |
//!              refused               dropped                  refused     accepted or refused
//! ```

use super::peer::{Peer, PeerError};
use super::poller::{Interest, Poller, Token};
use crate::pools::PoolRequest;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::net::{SendFlags, SocketFlags, sockopt};
use serde::Serialize;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use tiercel_wire::peer::{Datagram, credentials, receive};
use tiercel_wire::{GreetingError, Hello, PoolAsk, Session, Status, Welcome};

/// Connections that may wait for their hello at once: twice what one readiness accepts. A runtime
/// sends its hello right after connecting.
pub const PENDING_MAX: usize = 64;

/// A connection without a hello for this long is closed, milliseconds. A runtime takes
/// microseconds; one that is stopped in between attaches again or runs without the daemon.
pub const HELLO_MS_MAX: u64 = 2_000;

/// Connections accepted for one readiness, so that a flood of them does not starve the loop.
const ACCEPTS_PER_TURN: usize = 32;

/// Whose processes are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// This user's.
    User(u32),
    /// Those of all users.
    AllUsers,
}

/// A process with a valid hello. It waits for [`Arrival::welcome`].
pub struct Arrival {
    /// The process, as the kernel reports it.
    pub peer: Peer,
    /// Session number of the process that forked it, as it claims; 0 = none.
    pub parent_session: u32,
    /// Its checked shared memory.
    pub session: Session,
    /// Userfaultfds through which its writes can be tracked; unchecked, they may be anything.
    pub userfaultfds: Vec<OwnedFd>,
    socket: OwnedFd,
}

impl Arrival {
    /// Accepts it as session `number`; the process continues.
    pub fn welcome(&self, number: u32) {
        answer(self.socket.as_fd(), Status::Ok, number);
    }

    /// Refuses it: there are too many clients.
    pub fn refuse_full(self) {
        answer(self.socket.as_fd(), Status::RefusedFull, 0);
    }

    /// Refuses it: it is no longer the process that connected.
    pub fn refuse_changed(self) {
        answer(self.socket.as_fd(), Status::RefusedUser, 0);
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
    /// The process that connected is gone, runs another program, or another one sent its hello.
    pub changed: u64,
}

struct Pending {
    socket: OwnedFd,
    peer: Peer,
    since_ms: u64,
}

/// All connections whose hello has not come yet.
pub struct Handshake {
    listener: OwnedFd,
    admission: Admission,
    pending: BTreeMap<u32, Pending>,
    next: u32,
    /// Requests for pool memory, which came instead of a hello.
    pub pool_requests: Vec<PoolRequest>,
    /// Counts of refused connections.
    pub refused: Refused,
}

impl Handshake {
    /// Accepts connections of `listener`.
    pub fn new(
        listener: OwnedFd,
        admission: Admission,
        poller: &Poller,
    ) -> std::io::Result<Handshake> {
        // Connections inherit it: every message names its sender, also one sent before the accept.
        sockopt::set_socket_passcred(&listener, true)?;
        poller.add(&listener, Token::Clients, Interest::Read)?;
        let (pending, refused) = (BTreeMap::new(), Refused::default());
        let pool_requests = Vec::new();
        Ok(Handshake { listener, admission, pending, next: 1, pool_requests, refused })
    }

    /// Accepts what waits on the listening socket. A runtime sends its hello as it connects, so
    /// that most arrive at once; the others stay in the poller.
    pub fn accept(&mut self, poller: &Poller, now_ms: u64) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        for _ in 0..ACCEPTS_PER_TURN {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(socket) = rustix::net::accept_with(&self.listener, flags) else { break };
            let Ok(connected) = credentials(socket.as_fd()) else { continue };
            if !self.is_admitted(connected.uid) {
                self.refused.user += 1;
                answer(socket.as_fd(), Status::RefusedUser, 0);
            } else if self.pending.len() >= PENDING_MAX {
                self.refused.full += 1;
                answer(socket.as_fd(), Status::RefusedFull, 0);
            } else {
                match Peer::of(socket.as_fd()) {
                    Ok(peer) => {
                        let pending = Pending { socket, peer, since_ms: now_ms };
                        arrivals.extend(self.wait_for_hello(pending, poller));
                    }
                    Err(error) => self.refuse(socket.as_fd(), &Refusal::Peer(error)),
                }
            }
        }
        arrivals
    }

    fn wait_for_hello(&mut self, pending: Pending, poller: &Poller) -> Option<Arrival> {
        let id = self.next;
        poller.add(&pending.socket, Token::Handshake(id), Interest::Read).ok()?;
        self.next = self.next.wrapping_add(1);
        self.pending.insert(id, pending);
        self.read(id)
    }

    /// Reads the hello of connection `id`.
    pub fn read(&mut self, id: u32) -> Option<Arrival> {
        let pending = self.pending.remove(&id)?;
        let (first, datagram) = match first_message(pending.socket.as_fd()) {
            Ok(received) => received,
            // Neither a peer that closed its socket nor a spurious wake-up needs an answer.
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                self.pending.insert(id, pending);
                return None;
            }
            Err(_) => return None,
        };
        if let Err(error) = pending.peer.sent(datagram.sender) {
            self.refuse(pending.socket.as_fd(), &Refusal::Peer(error));
            return None;
        }
        let hello = match first {
            First::Hello(hello) => hello,
            First::PoolRequest(Ok(ask)) => {
                self.pool_requests.push(PoolRequest {
                    ask,
                    peer: pending.peer,
                    socket: pending.socket,
                });
                return None;
            }
            First::PoolRequest(Err(error)) => Err(error),
        };
        match arrival(pending, hello, datagram.fds) {
            Ok(arrival) => Some(arrival),
            Err((socket, refusal)) => {
                self.refuse(socket.as_fd(), &refusal);
                None
            }
        }
    }

    /// Closes connections whose hello is overdue.
    pub fn drop_silent(&mut self, now_ms: u64) {
        let before = self.pending.len();
        self.pending.retain(|_, w| now_ms.saturating_sub(w.since_ms) < HELLO_MS_MAX);
        self.refused.silent += (before - self.pending.len()) as u64;
    }

    fn is_admitted(&self, uid: u32) -> bool {
        match self.admission {
            Admission::AllUsers => true,
            Admission::User(user) => uid == user,
        }
    }

    fn refuse(&mut self, socket: BorrowedFd<'_>, refusal: &Refusal) {
        let status = match refusal {
            Refusal::Greeting(GreetingError::Version(_)) => {
                self.refused.version += 1;
                Status::RefusedVersion
            }
            Refusal::Greeting(_) => {
                self.refused.malformed += 1;
                Status::RefusedMemfd
            }
            Refusal::NoMemfd | Refusal::Session(_) => {
                self.refused.memfd += 1;
                Status::RefusedMemfd
            }
            Refusal::Peer(_) => {
                self.refused.changed += 1;
                Status::RefusedUser
            }
        };
        answer(socket, status, 0);
    }
}

#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("{0}")]
    Greeting(#[from] GreetingError),
    #[error("the hello came without a memfd")]
    NoMemfd,
    #[error("{0}")]
    Session(#[from] tiercel_wire::SessionError),
    #[error("{0}")]
    Peer(#[from] PeerError),
}

/// The first message of a process.
enum First {
    Hello(Result<Hello, GreetingError>),
    PoolRequest(Result<PoolAsk, GreetingError>),
}

/// Receives one datagram. A longer one fails the check of lengths.
fn first_message(socket: BorrowedFd<'_>) -> Result<(First, Datagram), rustix::io::Errno> {
    let mut buffer = [0u8; PoolAsk::BYTES + 1];
    let datagram = receive(socket, &mut buffer)?;
    if datagram.bytes == 0 && datagram.fds.is_empty() {
        return Err(rustix::io::Errno::NOTCONN);
    }
    let bytes = &buffer[..datagram.bytes.min(buffer.len())];
    if PoolAsk::is_one(bytes) {
        return Ok((First::PoolRequest(PoolAsk::decode(bytes)), datagram));
    }
    Ok((First::Hello(Hello::decode(bytes)), datagram))
}

fn arrival(
    pending: Pending,
    hello: Result<Hello, GreetingError>,
    fds: Vec<OwnedFd>,
) -> Result<Arrival, (OwnedFd, Refusal)> {
    let Pending { socket, peer, .. } = pending;
    let mut fds = fds.into_iter();
    let memfd = fds.next();
    let checked = || -> Result<(Hello, Session), Refusal> {
        let hello = hello?;
        Ok((hello, Session::open(memfd.ok_or(Refusal::NoMemfd)?)?))
    };
    match checked() {
        Ok((hello, session)) => {
            let parent_session = hello.parent_session;
            Ok(Arrival { peer, parent_session, session, userfaultfds: fds.collect(), socket })
        }
        Err(refusal) => Err((socket, refusal)),
    }
}

/// Sends one datagram. A peer that does not take it has left, or never reads: nothing is lost.
fn answer(socket: BorrowedFd<'_>, status: Status, session: u32) {
    let welcome = Welcome { status, session }.encode();
    let _ = rustix::net::send(socket, &welcome, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::socket_dir::{Access, SocketDir};
    use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketType};
    use std::path::Path;

    fn connect(path: &Path) -> OwnedFd {
        let kind = SocketType::SEQPACKET;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
        let socket = socket.unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        socket
    }

    fn answered(socket: &OwnedFd) -> Status {
        let mut bytes = [0u8; 64];
        let (_, got) = rustix::net::recv(socket, &mut bytes[..], RecvFlags::empty()).unwrap();
        Welcome::decode(&bytes[..got]).unwrap().status
    }

    fn handshake(admission: Admission) -> (tempfile::TempDir, SocketDir, Poller, Handshake) {
        let root = tempfile::tempdir().unwrap();
        let sockets = SocketDir::claim(&root.path().join("t"), "x", Access::Owner).unwrap();
        let poller = Poller::new().unwrap();
        let handshake =
            Handshake::new(sockets.clients.try_clone().unwrap(), admission, &poller).unwrap();
        (root, sockets, poller, handshake)
    }

    #[test]
    fn another_user_is_refused_before_its_hello() {
        let stranger = rustix::process::geteuid().as_raw() + 1;
        let (_root, sockets, poller, mut handshake) = handshake(Admission::User(stranger));
        let socket = connect(sockets.clients_path());
        handshake.accept(&poller, 0);
        assert_eq!(answered(&socket), Status::RefusedUser);
        assert_eq!(handshake.refused, Refused { user: 1, ..Refused::default() });
    }

    #[test]
    fn pending_connections_are_bounded_in_number_and_time() {
        let (_root, directory, poller, mut handshake) = handshake(Admission::AllUsers);
        let mut sockets = Vec::new();
        for _ in 0..PENDING_MAX + 1 {
            sockets.push(connect(directory.clients_path()));
            handshake.accept(&poller, 0);
        }
        assert_eq!(answered(&sockets[PENDING_MAX]), Status::RefusedFull);
        handshake.drop_silent(HELLO_MS_MAX - 1);
        assert_eq!(handshake.pending.len(), PENDING_MAX);
        handshake.drop_silent(HELLO_MS_MAX);
        assert!(handshake.pending.is_empty());
        let expect = Refused { full: 1, silent: PENDING_MAX as u64, ..Refused::default() };
        assert_eq!(handshake.refused, expect);
    }

    #[test]
    fn malformed_hello_is_counted_and_refused() {
        let (_root, sockets, poller, mut handshake) = handshake(Admission::AllUsers);
        let good = Hello { pid: 1, parent_session: 0, total_bytes: 0 }.encode();
        let mut foreign = good;
        foreign[4] = 99;
        let long = [0u8; 4096];
        for (bytes, status) in [
            (&good[..], Status::RefusedMemfd),
            (&foreign[..], Status::RefusedVersion),
            (&good[..7], Status::RefusedMemfd),
            (&long[..], Status::RefusedMemfd),
        ] {
            let socket = connect(sockets.clients_path());
            rustix::net::send(&socket, bytes, SendFlags::empty()).unwrap();
            assert!(handshake.accept(&poller, 0).is_empty());
            assert_eq!(answered(&socket), status, "{} bytes", bytes.len());
        }
        let expect = Refused { memfd: 1, version: 1, malformed: 2, ..Refused::default() };
        assert_eq!(handshake.refused, expect);
    }
}
