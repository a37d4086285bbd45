//! The greeting: takes connections, hellos and memfds; hostile or slow peers are bounded.
//! In: the client socket, readiness. Out: [`Arrival`]s, each with a checked session and a pidfd,
//! and questions to the pools.
//! Knows nothing of what a session is used for.
//!
//! ```text
//! accept -> uid checked -> waits for its hello (bounded) -> memfd checked -> Arrival
//!                 |                     |                                            |
//!              refused               dropped                                      refused
//! ```

use crate::net::poller::{Interest, Poller, Token};
use crate::pools::Question;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketFlags, sockopt,
};
use rustix::process::PidfdFlags;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use tiercel_wire::{GreetingError, Hello, PoolAsk, Session, Status, Welcome};

/// Connections that may owe their hello at once. A runtime sends its hello right after connecting.
pub const GREETINGS_MAX: usize = 64;

/// A connection that owes its hello for longer is closed, milliseconds.
pub const GREETING_MS_MAX: u64 = 2_000;

/// Connections accepted for one readiness, so that a flood cannot keep the loop.
const ACCEPTS_PER_TURN: usize = 32;

/// Descriptors taken from one hello, the memfd and two userfaultfds; the kernel closes what does
/// not fit.
const FDS_MAX: usize = 3;

/// Whose processes are let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guests {
    /// This user's.
    User(u32),
    /// Everybody's.
    Everybody,
}

/// A process that greeted well. It waits for [`Arrival::welcome`].
pub struct Arrival {
    /// Its process id in our namespace, by the kernel's word.
    pub pid: u32,
    /// Session number of the process that forked it, by its own word; 0 = none.
    pub parent_session: u32,
    /// Its checked shared memory.
    pub session: Session,
    /// Becomes readable when it dies.
    pub pidfd: OwnedFd,
    /// Userfaultfds by which it lets its writes be tracked; unchecked, may be anything.
    pub lent: Vec<OwnedFd>,
    socket: OwnedFd,
}

impl Arrival {
    /// Lets it go on, as session `number`.
    pub fn welcome(&self, number: u32) {
        answer(self.socket.as_fd(), Status::Ok, number);
    }

    /// Turns it away: there are too many already.
    pub fn refuse_full(self) {
        answer(self.socket.as_fd(), Status::RefusedFull, 0);
    }
}

/// Peers turned away so far, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// Another user's.
    pub user: u64,
    /// Another version's.
    pub version: u64,
    /// Not a hello at all.
    pub garbage: u64,
    /// No memfd, not sealed, wrong shape.
    pub memfd: u64,
    /// Said nothing in time.
    pub silent: u64,
    /// Too many at once.
    pub full: u64,
}

struct Waiting {
    socket: OwnedFd,
    pid: u32,
    since_ms: u64,
}

/// All connections that owe their hello.
pub struct Greeter {
    listener: OwnedFd,
    guests: Guests,
    waiting: BTreeMap<u32, Waiting>,
    next: u32,
    /// Questions to the pools that came instead of a hello.
    pub questions: Vec<Question>,
    /// Counts of those turned away.
    pub refused: Refused,
    /// Why the last one was, for the user.
    pub last_refusal: Option<String>,
}

impl Greeter {
    /// Greets on `listener`.
    pub fn new(listener: OwnedFd, guests: Guests, poller: &Poller) -> std::io::Result<Greeter> {
        poller.add(&listener, Token::Clients, Interest::Read)?;
        let (waiting, refused) = (BTreeMap::new(), Refused::default());
        let questions = Vec::new();
        Ok(Greeter { listener, guests, waiting, next: 1, questions, refused, last_refusal: None })
    }

    /// Takes what waits on the listening socket. A runtime says its hello as it connects, so most
    /// arrive at once; the others stay in the poller.
    pub fn accept(&mut self, poller: &Poller, now_ms: u64) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        for _ in 0..ACCEPTS_PER_TURN {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(socket) = rustix::net::accept_with(&self.listener, flags) else { break };
            let Ok(peer) = sockopt::socket_peercred(&socket) else { continue };
            let (pid, uid) = (peer.pid.as_raw_nonzero().get().unsigned_abs(), peer.uid.as_raw());
            if !self.is_guest(uid) {
                self.refused.user += 1;
                answer(socket.as_fd(), Status::RefusedUser, 0);
            } else if self.waiting.len() >= GREETINGS_MAX {
                self.refused.full += 1;
                answer(socket.as_fd(), Status::RefusedFull, 0);
            } else if poller.add(&socket, Token::Greeting(self.next), Interest::Read).is_ok() {
                let id = self.next;
                self.next = self.next.wrapping_add(1);
                self.waiting.insert(id, Waiting { socket, pid, since_ms: now_ms });
                arrivals.extend(self.read(id));
            }
        }
        arrivals
    }

    /// Reads the hello of connection `id`.
    pub fn read(&mut self, id: u32) -> Option<Arrival> {
        let waiting = self.waiting.remove(&id)?;
        let (said, fds) = match receive(waiting.socket.as_fd()) {
            Ok(received) => received,
            // A peer that left without a word needs no answer; neither does a spurious wake-up.
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                self.waiting.insert(id, waiting);
                return None;
            }
            Err(_) => return None,
        };
        let hello = match said {
            Said::Hello(hello) => hello,
            Said::Question(Ok(ask)) => {
                self.questions.push(Question { ask, pid: waiting.pid, socket: waiting.socket });
                return None;
            }
            Said::Question(Err(error)) => Err(error),
        };
        match arrival(waiting, hello, fds) {
            Ok(arrival) => Some(arrival),
            Err((socket, refusal)) => {
                self.refuse(socket.as_fd(), &refusal);
                None
            }
        }
    }

    /// Closes connections that owe their hello for too long.
    pub fn drop_silent(&mut self, now_ms: u64) {
        let before = self.waiting.len();
        self.waiting.retain(|_, w| now_ms.saturating_sub(w.since_ms) < GREETING_MS_MAX);
        self.refused.silent += (before - self.waiting.len()) as u64;
    }

    fn is_guest(&self, uid: u32) -> bool {
        match self.guests {
            Guests::Everybody => true,
            Guests::User(user) => uid == user,
        }
    }

    fn refuse(&mut self, socket: BorrowedFd<'_>, refusal: &Refusal) {
        let status = match refusal {
            Refusal::Greeting(GreetingError::Version(_)) => {
                self.refused.version += 1;
                Status::RefusedVersion
            }
            Refusal::Greeting(_) => {
                self.refused.garbage += 1;
                Status::RefusedMemfd
            }
            Refusal::NoMemfd | Refusal::Session(_) => {
                self.refused.memfd += 1;
                Status::RefusedMemfd
            }
            Refusal::Process(_) => Status::RefusedMemfd,
        };
        self.last_refusal = Some(refusal.to_string());
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
    #[error("the process cannot be watched: {0}")]
    Process(rustix::io::Errno),
}

/// What a process says first.
enum Said {
    Hello(Result<Hello, GreetingError>),
    Question(Result<PoolAsk, GreetingError>),
}

/// One datagram with at most [`FDS_MAX`] descriptors. A longer datagram fails the check of lengths.
fn receive(socket: BorrowedFd<'_>) -> Result<(Said, Vec<OwnedFd>), rustix::io::Errno> {
    let mut bytes = [0u8; PoolAsk::BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got =
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags)?;
    let fds: Vec<OwnedFd> = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    if got.bytes == 0 && fds.is_empty() {
        return Err(rustix::io::Errno::NOTCONN);
    }
    let bytes = &bytes[..got.bytes];
    if PoolAsk::is_one(bytes) {
        return Ok((Said::Question(PoolAsk::decode(bytes)), fds));
    }
    Ok((Said::Hello(Hello::decode(bytes)), fds))
}

fn arrival(
    waiting: Waiting,
    hello: Result<Hello, GreetingError>,
    fds: Vec<OwnedFd>,
) -> Result<Arrival, (OwnedFd, Refusal)> {
    let Waiting { socket, pid, .. } = waiting;
    let mut fds = fds.into_iter();
    let memfd = fds.next();
    let checked = || -> Result<(Hello, Session, OwnedFd), Refusal> {
        let hello = hello?;
        let session = Session::open(memfd.ok_or(Refusal::NoMemfd)?)?;
        let raw = rustix::process::Pid::from_raw(pid.cast_signed())
            .ok_or(Refusal::Process(rustix::io::Errno::SRCH))?;
        // Not a reused number: the peer waits on its open connection for our answer.
        let pidfd = rustix::process::pidfd_open(raw, PidfdFlags::empty());
        Ok((hello, session, pidfd.map_err(Refusal::Process)?))
    };
    match checked() {
        Ok((hello, session, pidfd)) => {
            let parent_session = hello.parent_session;
            Ok(Arrival { pid, parent_session, session, pidfd, lent: fds.collect(), socket })
        }
        Err(refusal) => Err((socket, refusal)),
    }
}

/// One datagram; a peer that does not take it has left or never read, which is its affair.
fn answer(socket: BorrowedFd<'_>, status: Status, session: u32) {
    let welcome = Welcome { status, session }.encode();
    let _ = rustix::net::send(socket, &welcome, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::socket_dir::{Access, Place};
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
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

    fn greeter(guests: Guests) -> (tempfile::TempDir, Place, Poller, Greeter) {
        let root = tempfile::tempdir().unwrap();
        let place = Place::take(&root.path().join("t"), "x", Access::Owner).unwrap();
        let poller = Poller::new().unwrap();
        let greeter = Greeter::new(place.clients.try_clone().unwrap(), guests, &poller).unwrap();
        (root, place, poller, greeter)
    }

    #[test]
    fn another_user_is_turned_away_before_it_says_a_word() {
        let stranger = rustix::process::geteuid().as_raw() + 1;
        let (_root, place, poller, mut greeter) = greeter(Guests::User(stranger));
        let socket = connect(place.clients_path());
        greeter.accept(&poller, 0);
        assert_eq!(answered(&socket), Status::RefusedUser);
        assert_eq!(greeter.refused, Refused { user: 1, ..Refused::default() });
    }

    #[test]
    fn the_silent_and_the_many_are_bounded() {
        let (_root, place, poller, mut greeter) = greeter(Guests::Everybody);
        let mut sockets = Vec::new();
        for _ in 0..GREETINGS_MAX + 1 {
            sockets.push(connect(place.clients_path()));
            greeter.accept(&poller, 0);
        }
        assert_eq!(answered(&sockets[GREETINGS_MAX]), Status::RefusedFull);
        greeter.drop_silent(GREETING_MS_MAX - 1);
        assert_eq!(greeter.waiting.len(), GREETINGS_MAX);
        greeter.drop_silent(GREETING_MS_MAX);
        assert!(greeter.waiting.is_empty());
        let expect = Refused { full: 1, silent: GREETINGS_MAX as u64, ..Refused::default() };
        assert_eq!(greeter.refused, expect);
    }

    #[test]
    fn what_is_no_greeting_is_named() {
        let (_root, place, poller, mut greeter) = greeter(Guests::Everybody);
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
            let socket = connect(place.clients_path());
            rustix::net::send(&socket, bytes, SendFlags::empty()).unwrap();
            assert!(greeter.accept(&poller, 0).is_empty());
            assert_eq!(answered(&socket), status, "{} bytes", bytes.len());
        }
        let expect = Refused { memfd: 1, version: 1, garbage: 2, ..Refused::default() };
        assert_eq!(greeter.refused, expect);
    }
}
