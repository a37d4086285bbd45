//! The descriptors that the loop waits on, and the files of its sockets.
//! In: a directory, clients and requests that connect. Out: [`Event`]s.
//! Knows nothing of how an event is handled.

use crate::clients::arrivals::Arrivals;
use crate::config::DaemonConfig;
use crate::event::Event;
use crate::net::arrival::{Admission, Greeted};
use crate::net::control::Control;
use crate::net::handshake::Handshake;
use crate::net::places::Places;
use crate::net::poller::{Interest, PeerId, Poller, Token};
use crate::net::socket_dir::{Access, SocketDir};
use crate::parts::{DaemonError, Handle};
use crate::pools::{self, Pools};
use crate::quota::Quota;
use crate::summary::{RefusedCounts, refused};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use tiercel_broker::Identity;
use tiercel_wire::{Offer, Terms};

/// How long the end of a daemon waits for greetings that are under way, and between two looks
/// whether there are any. Chosen, not measured: a greeting takes less than a millisecond.
const LAST_HELLOS_MAX: Duration = Duration::from_millis(250);
const LAST_HELLOS_LOOK: Duration = Duration::from_millis(1);

/// Everything that can wake the loop.
pub(crate) struct Sockets {
    poller: Poller,
    pub(crate) handshake: Handshake,
    /// Processes that wait to be hosted.
    pub(crate) arrivals: Arrivals,
    control: Control,
    pub(crate) handle: Handle,
    /// When the daemon began to end.
    ending_since: Option<Instant>,
    // Last: its files are removed after everything else is closed.
    pub(crate) directory: SocketDir,
}

impl Sockets {
    /// Claims the directory, listens on its sockets, and waits for a stop.
    pub(crate) fn open(config: &DaemonConfig, identity: Identity) -> Result<Sockets, DaemonError> {
        let io = DaemonError::io;
        let directory = SocketDir::claim(&config.directory, &config.name, config.access)?;
        let poller = Poller::new().map_err(io("cannot make an epoll instance"))?;
        let uid = rustix::process::geteuid().as_raw();
        let dup = |fd: &OwnedFd| fd.try_clone().map_err(io("cannot duplicate a socket"));
        let admission = admission(config.access, uid);
        let of_user = Quota::new(config.access, config.clients_max).clients;
        let places = Places::new(config.clients_max, of_user);
        let who = (identity, places);
        let handshake = Handshake::new(dup(&directory.clients)?, admission, who, &poller)
            .map_err(io("cannot wait for clients"))?;
        let control = Control::new(dup(&directory.control)?, uid, &poller)
            .map_err(io("cannot wait for requests"))?;
        let handle = Handle::new().map_err(io("cannot make an eventfd"))?;
        poller
            .add(handle.eventfd(), Token::Wake, Interest::Read)
            .map_err(io("cannot wait for a wake-up"))?;
        let arrivals = Arrivals::default();
        Ok(Sockets { poller, handshake, arrivals, control, handle, ending_since: None, directory })
    }

    /// Wakes the loop when the mover has completed a job.
    pub(crate) fn watch_mover(&self, eventfd: BorrowedFd<'_>) -> Result<(), DaemonError> {
        let watched = self.poller.add(eventfd, Token::Wake, Interest::Read);
        watched.map_err(DaemonError::io("cannot wait for the mover"))
    }

    /// Wakes the loop when a client ends.
    pub(crate) fn watch_client(&self, number: u32, pidfd: BorrowedFd<'_>) -> std::io::Result<()> {
        self.poller.add(pidfd, Token::Client(number), Interest::Read)
    }

    /// The end of a client was noticed; it stays readable.
    pub(crate) fn forget_client(&self, pidfd: BorrowedFd<'_>) {
        self.poller.remove(pidfd);
    }

    /// Waits until a descriptor is ready.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<Vec<Token>, DaemonError> {
        self.poller.wait(timeout).map_err(DaemonError::io("cannot wait for events"))
    }

    /// Takes what was greeted. True when there are processes that want to be hosted.
    pub(crate) fn take_greeted(&mut self, pools: Option<&Pools>) -> bool {
        let greeted = self.handshake.take();
        let has_hello = greeted.iter().any(|one| matches!(one, Greeted::Hello(_)));
        greeted.into_iter().for_each(|greeted| self.pass_on(greeted, pools));
        has_hello
    }

    /// What a ready descriptor brings. Arrivals wait here for their turn; requests for pool memory
    /// go to the pools' thread.
    pub(crate) fn take(&mut self, token: Token, pools: Option<&Pools>, now_ms: u64) -> Vec<Event> {
        match token {
            Token::Clients => {
                self.take_greeted(pools);
                Vec::new()
            }
            Token::Control => {
                self.control.accept(&self.poller, now_ms);
                Vec::new()
            }
            Token::Client(number) => vec![Event::ClientGone(number)],
            Token::Peer(id) => {
                self.control.flush(id, &self.poller);
                let requests = self.control.read(id, &self.poller, now_ms).into_iter();
                requests.map(|request| Event::Request(id, request)).collect()
            }
            Token::Wake => self.handle.take_stop().then_some(Event::Shutdown).into_iter().collect(),
        }
    }

    /// Greets one connection on the caller's thread. False when it is refused.
    #[cfg(feature = "forge")]
    pub(crate) fn greet_here(&mut self, connection: OwnedFd, pools: Option<&Pools>) -> bool {
        let greeted = self.handshake.greet_here(connection);
        let has_passed = greeted.is_some();
        greeted.into_iter().for_each(|greeted| self.pass_on(greeted, pools));
        has_passed
    }

    fn pass_on(&mut self, greeted: Greeted, pools: Option<&Pools>) {
        match (greeted, pools) {
            (Greeted::Hello(arrival), _) => self.arrivals.push(arrival.peer.uid(), arrival),
            (Greeted::Pool(request), Some(pools)) => pools.submit(request),
            (Greeted::Pool(request), None) => pools::decline(&request),
        }
    }

    /// Takes the next hellos of those that were sent before the daemon began to end, which is at
    /// the first call. False: all were taken and hosted, or it took too long.
    pub(crate) fn take_last(&mut self, pools: Option<&Pools>) -> bool {
        let since = match self.ending_since {
            Some(since) => {
                // Returns when another process is greeted; ends of processes come later.
                let _ = self.poller.wait(LAST_HELLOS_LOOK);
                since
            }
            None => {
                self.handshake.stop();
                *self.ending_since.insert(Instant::now())
            }
        };
        let has_finished = self.handshake.has_finished();
        self.take_greeted(pools);
        let is_over = has_finished || since.elapsed() >= LAST_HELLOS_MAX;
        !is_over || !self.arrivals.is_empty()
    }

    /// The offer to processes, in the file beside the client socket.
    pub(crate) fn make_offer(&self, terms: &Terms) -> Result<Offer, DaemonError> {
        let file = self.directory.offer.try_clone();
        let offer = file.and_then(|file| Offer::new(file, terms));
        offer.map_err(DaemonError::io("cannot make the offer to processes"))
    }

    /// Answers a request.
    pub(crate) fn send(&mut self, peer: PeerId, line: &[u8]) {
        self.control.send(peer, line, &self.poller);
    }

    /// Closes control connections that are idle.
    pub(crate) fn drop_idle(&mut self, now_ms: u64) {
        self.control.drop_idle(now_ms);
    }

    /// Connections that were refused so far.
    pub(crate) fn refused(&self) -> RefusedCounts {
        refused(&self.handshake.refused(), self.control.refused)
    }
}

/// Whose processes may attach to a daemon of user `uid`.
fn admission(access: Access, uid: u32) -> Admission {
    match access {
        Access::Owner => Admission::User(uid),
        Access::AllUsers => Admission::AllUsers,
    }
}
