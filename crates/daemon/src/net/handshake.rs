//! The handshake, as the loop sees it: greeted processes and requests for pool memory come out.
//! In: the client socket. Out: [`Greeted`]: arrivals, each with a checked session and an identified
//! process, and requests for pool memory. Knows nothing of what a session is used for.
//!
//! Receiving, checking and closing what processes send happens on the threads of `greeter`.

use super::arrival::{Admission, Greeted, Refused};
use super::greeter::{self, HELLO_TIMEOUT, Shared, THREADS_MAX, signal};
use super::places::Places;
use super::poller::{Interest, Poller, Token};
use rustix::net::sockopt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;
use tiercel_broker::{Identity, Peer, PeerError};

/// The client socket.
pub struct Handshake {
    shared: Arc<Shared>,
    inbox: Receiver<Greeted>,
}

impl Handshake {
    /// Greets connections of `listener`.
    pub fn new(
        listener: OwnedFd,
        admission: Admission,
        (identity, places): (Identity, Places),
        poller: &Poller,
    ) -> std::io::Result<Handshake> {
        Handshake::with_timeout(listener, admission, (identity, places), poller, HELLO_TIMEOUT)
    }

    fn with_timeout(
        listener: OwnedFd,
        admission: Admission,
        (identity, places): (Identity, Places),
        poller: &Poller,
        hello_timeout: Duration,
    ) -> std::io::Result<Handshake> {
        // Connections inherit it: every message names its sender, also one sent before the accept.
        sockopt::set_socket_passcred(&listener, true)?;
        let shared = Arc::new(Shared::new(admission, identity, places, hello_timeout)?);
        poller.add(&shared.greeted, Token::Clients, Interest::Read)?;
        Ok(Handshake { inbox: greeter::start(listener, &shared)?, shared })
    }

    /// Takes what was greeted, one of each thread at most.
    pub fn take(&self) -> Vec<Greeted> {
        let _ = rustix::io::read(&self.shared.greeted, &mut [0u8; 8]);
        let greeted: Vec<Greeted> = self.inbox.try_iter().take(THREADS_MAX).collect();
        if greeted.len() == THREADS_MAX {
            signal(&self.shared.greeted);
        }
        greeted
    }

    /// A process is hosted.
    pub fn came(&self, pid: u32, uid: u32) {
        self.shared.places.take(pid, uid);
    }

    /// A process is hosted no longer.
    pub fn left(&self, pid: u32) {
        self.shared.places.give_back(pid);
    }

    /// Whether processes are still what they were; a broker is asked once for all.
    pub fn check(&self, peers: &[&Peer]) -> Vec<Result<(), PeerError>> {
        self.shared.identity.check(peers)
    }

    /// Accepts no more than what has connected by now.
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// After [`Handshake::stop`]: true when all that connected is greeted and taken.
    pub fn has_finished(&self) -> bool {
        self.shared.has_finished()
    }

    /// Greets one connection on the caller's thread, which waits for nothing. For fuzzers.
    #[cfg(feature = "forge")]
    pub fn greet_here(&self, connection: OwnedFd) -> Option<Greeted> {
        greeter::greet_here(connection, &self.shared)
    }

    /// Counts of refused connections.
    pub fn refused(&self) -> Refused {
        *self.shared.refused()
    }

    /// Counts a process that was refused because there are too many.
    pub fn count_full(&self) {
        self.shared.refused().full += 1;
    }

    /// Counts a process that is no longer what connected.
    pub fn count_lost(&self, error: &PeerError) {
        self.shared.refused().lost(error);
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::greeter::{THREADS_PER_USER, WAITING_PER_USER};
    use crate::net::socket_dir::{Access, SocketDir};
    use rustix::net::{
        AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        SocketAddrUnix, SocketFlags, SocketType,
    };
    use std::io::IoSlice;
    use std::mem::MaybeUninit;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsFd, BorrowedFd};
    use tiercel_wire::client::SessionBuilder;
    use tiercel_wire::{Hello, Status, Welcome};

    fn connect(sockets: &SocketDir) -> OwnedFd {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        let address = SocketAddrUnix::new(sockets.clients_path()).unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        socket
    }

    /// The answer; `None` when the connection was closed without one.
    fn answered(socket: &OwnedFd) -> Option<Status> {
        let mut bytes = [0u8; 64];
        let (_, got) = rustix::net::recv(socket, &mut bytes[..], RecvFlags::empty()).unwrap();
        Some(Welcome::decode(&bytes[..got]).ok()?.status)
    }

    fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        let slices = [IoSlice::new(bytes)];
        rustix::net::sendmsg(socket, &slices, &mut ancillary, SendFlags::empty()).unwrap();
    }

    fn hello() -> [u8; Hello::BYTES] {
        Hello { pid: 1, parent_pid: 0, total_bytes: 0, image: 0 }.encode()
    }

    /// More than any test has processes.
    const PLACES: usize = 1000;

    struct Fixture {
        _root: tempfile::TempDir,
        sockets: SocketDir,
        poller: Poller,
        handshake: Handshake,
    }

    fn fixture(admission: Admission) -> Fixture {
        fixture_with(admission, HELLO_TIMEOUT)
    }

    fn fixture_with(admission: Admission, hello_timeout: Duration) -> Fixture {
        fixture_after(admission, hello_timeout, |_| {})
    }

    /// What `before` sends waits when the first connection is accepted.
    fn fixture_after(
        admission: Admission,
        hello_timeout: Duration,
        before: impl FnOnce(&SocketDir),
    ) -> Fixture {
        let root = tempfile::tempdir().unwrap();
        let sockets = SocketDir::claim(&root.path().join("t"), "x", Access::Owner).unwrap();
        sockopt::set_socket_passcred(&sockets.clients, true).unwrap();
        before(&sockets);
        let poller = Poller::new().unwrap();
        let listener = sockets.clients.try_clone().unwrap();
        let who = (Identity::default(), Places::new(PLACES, PLACES));
        let handshake = Handshake::with_timeout(listener, admission, who, &poller, hello_timeout);
        let handshake = handshake.unwrap();
        Fixture { _root: root, sockets, poller, handshake }
    }

    impl Fixture {
        fn take(&self) -> Vec<Greeted> {
            while self.poller.wait(Duration::from_secs(60)).unwrap() != [Token::Clients] {}
            self.handshake.take()
        }

        /// Until every connection is closed.
        fn until_idle(&self) {
            while !self.handshake.shared.is_idle() {
                std::thread::yield_now();
            }
        }
    }

    /// A TCP socket whose close lasts an hour, and the two ends that make it so.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        sender.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut &sender, &[0; 65536]).is_ok() {}
        sockopt::set_socket_linger(&sender, Some(Duration::from_secs(3600))).unwrap();
        (sender, receiver)
    }

    #[test]
    fn another_user_is_refused_before_its_hello() {
        let stranger = rustix::process::geteuid().as_raw() + 1;
        let fixture = fixture(Admission::User(stranger));
        let socket = connect(&fixture.sockets);
        assert_eq!(answered(&socket), Some(Status::RefusedUser));
        assert_eq!(fixture.handshake.refused(), Refused { user: 1, ..Refused::default() });
    }

    #[test]
    fn without_a_place_a_process_is_refused_before_its_hello() {
        let fixture = fixture(Admission::AllUsers);
        let user = rustix::process::geteuid().as_raw();
        (1..=PLACES as u32).for_each(|pid| fixture.handshake.came(u32::MAX - pid, user));
        let refused = connect(&fixture.sockets);
        assert_eq!(answered(&refused), Some(Status::RefusedFull));
        fixture.handshake.left(u32::MAX - 1);
        fixture.handshake.came(std::process::id(), user);
        let has_one = connect(&fixture.sockets);
        send(&has_one, b"?", &[]);
        assert_eq!(answered(&has_one), Some(Status::RefusedMemfd), "its hello was read");
    }

    #[test]
    fn silent_connections_of_a_user_are_bounded_in_number() {
        let fixture = fixture_with(Admission::AllUsers, Duration::from_secs(3600));
        let connect = |_| connect(&fixture.sockets);
        let most = THREADS_PER_USER + WAITING_PER_USER;
        let sockets: Vec<OwnedFd> = (0..=most).map(connect).collect();
        assert_eq!(answered(&sockets[most]), Some(Status::RefusedFull));
        drop(sockets);
        fixture.until_idle();
        assert_eq!(fixture.handshake.refused(), Refused { full: 1, ..Refused::default() });
    }

    #[test]
    fn of_a_burst_some_wait_and_are_greeted_when_others_are_done() {
        let fixture = fixture_with(Admission::AllUsers, Duration::from_secs(3600));
        let silent: Vec<OwnedFd> =
            (0..THREADS_PER_USER).map(|_| connect(&fixture.sockets)).collect();
        let waiting: Vec<OwnedFd> = (0..3).map(|_| connect(&fixture.sockets)).collect();
        for socket in &waiting {
            let session = SessionBuilder::new().build().unwrap();
            send(socket, &hello(), &[session.fd().unwrap().as_fd()]);
        }
        while fixture.handshake.shared.waiting() < waiting.len() {
            std::thread::yield_now();
        }
        drop(silent);
        let mut greeted = 0;
        while greeted < waiting.len() {
            assert_eq!(fixture.handshake.refused(), Refused::default());
            greeted += fixture.take().len();
        }
        fixture.until_idle();
        assert_eq!(fixture.handshake.refused(), Refused::default());
    }

    #[test]
    fn silent_connections_are_bounded_in_time() {
        let fixture = fixture_with(Admission::AllUsers, Duration::ZERO);
        assert_eq!(answered(&connect(&fixture.sockets)), None);
        assert_eq!(fixture.handshake.refused(), Refused { silent: 1, ..Refused::default() });
    }

    #[test]
    fn malformed_hello_is_counted_and_refused() {
        let fixture = fixture(Admission::AllUsers);
        let good = hello();
        let mut foreign = good;
        foreign[4] = 99;
        let long = [0u8; 4096];
        for (bytes, status) in [
            (&good[..], Status::RefusedMemfd),
            (&foreign[..], Status::RefusedVersion),
            (&good[..7], Status::RefusedMemfd),
            (&long[..], Status::RefusedMemfd),
        ] {
            let socket = connect(&fixture.sockets);
            send(&socket, bytes, &[]);
            assert_eq!(answered(&socket), Some(status), "{} bytes", bytes.len());
        }
        let expect = Refused { memfd: 1, version: 1, malformed: 2, ..Refused::default() };
        assert_eq!(fixture.handshake.refused(), expect);
    }

    #[test]
    fn only_a_memfd_and_userfaultfds_pass_the_gate() {
        let fixture = fixture(Admission::AllUsers);
        let session = SessionBuilder::new().build().unwrap();
        let (memfd, other) = (session.fd().unwrap(), std::fs::File::open("/dev/null").unwrap());
        let socket = connect(&fixture.sockets);
        send(&socket, &hello(), &[memfd.as_fd(), other.as_fd(), memfd.as_fd()]);
        let [Greeted::Hello(arrival)] = &fixture.take()[..] else { panic!("not greeted") };
        assert!(arrival.userfaultfds.is_empty());
        assert_eq!(arrival.peer.pid(), std::process::id());
        let socket = connect(&fixture.sockets);
        send(&socket, &hello(), &[other.as_fd(), memfd.as_fd()]);
        assert_eq!(answered(&socket), Some(Status::RefusedMemfd));
    }

    #[test]
    fn what_connected_before_the_stop_is_greeted() {
        let fixture = fixture(Admission::AllUsers);
        // Without waiting for an answer, as a runtime does.
        for _ in 0..3 {
            let session = SessionBuilder::new().build().unwrap();
            let socket = connect(&fixture.sockets);
            send(&socket, &hello(), &[session.fd().unwrap().as_fd()]);
        }
        fixture.handshake.stop();
        let mut greeted = 0;
        while !fixture.handshake.has_finished() {
            greeted += fixture.handshake.take().len();
            std::thread::yield_now();
        }
        assert_eq!(greeted + fixture.handshake.take().len(), 3);
    }

    #[test]
    fn a_process_that_runs_another_program_by_now_is_taken_in_as_over() {
        let fixture = fixture(Admission::AllUsers);
        for (image, is_over) in [(0, false), (8, true)] {
            let session = SessionBuilder::new().build().unwrap();
            let socket = connect(&fixture.sockets);
            let hello = Hello { pid: 1, parent_pid: 0, total_bytes: 0, image }.encode();
            send(&socket, &hello, &[session.fd().unwrap().as_fd()]);
            let [Greeted::Hello(arrival)] = &fixture.take()[..] else { panic!("not greeted") };
            assert_eq!(arrival.peer.check().is_err(), is_over, "image {image}");
            assert_eq!(arrival.peer.pid(), std::process::id());
        }
    }

    #[test]
    fn descriptors_that_take_an_hour_to_close_delay_no_other_process() {
        let (mut receivers, mut sockets) = (Vec::new(), Vec::new());
        let null = std::fs::File::open("/dev/null").unwrap();
        // Sent and closed here before any is received: the last close is the greeter's.
        let fixture = fixture_after(Admission::AllUsers, HELLO_TIMEOUT, |dir| {
            // As the memfd, as one that is too many, and queued on a connection that is refused.
            for is_extra in [false, true] {
                let (sender, receiver) = lingering();
                let (memfd, null) = (sender.as_fd(), null.as_fd());
                let extra = [null, null, null, memfd];
                sockets.push(connect(dir));
                let socket = &sockets[sockets.len() - 1];
                send(socket, &hello(), if is_extra { &extra } else { &extra[3..] });
                receivers.push(receiver);
            }
            let (sender, receiver) = lingering();
            sockets.push(connect(dir));
            send(&sockets[2], b"no hello", &[]);
            send(&sockets[2], &hello(), &[sender.as_fd()]);
            receivers.push(receiver);
        });
        let session = SessionBuilder::new().build().unwrap();
        let honest = connect(&fixture.sockets);
        send(&honest, &hello(), &[session.fd().unwrap().as_fd()]);
        let greeted = fixture.take();
        let [Greeted::Hello(_)] = &greeted[..] else { panic!("not greeted") };
        drop(greeted);
        // The waits are ended although nothing is ever read from the receivers.
        fixture.until_idle();
    }
}
