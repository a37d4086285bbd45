//! Greets processes off the loop: whatever they sent is received, checked and closed on threads.
//! In: a listening socket. Out: [`Greeted`], whose descriptors can be used and closed without
//! waiting. Knows nothing of sessions in use, nor of the pools.
//!
//! Closing a descriptor of another process may take for as long as that process likes, and a
//! connection that is closed closes what is still queued on it. So each connection has a thread,
//! which alone receives from it and closes it; docs/decisions/0004 compares the alternatives.
//!
//! ```text
//! acceptor: accept all, then of each user one in turn
//!                       |
//!             its user has fewer than THREADS_PER_USER ----> thread of the connection
//!                       | no                         ^           admission, peer, hello, gate
//!                       v                            |                | refused     | Greeted
//!                     waits, WAITING_PER_USER -- a thread ends        v             v
//!                       | too many                           answer, close     loop answered
//!                       v                                                         -> close
//!                     refuser: answer, close
//! ```
//! Of a burst of one user's processes some wait: what they sent is in their connections, and they
//! do not wait for an answer. Of a user whose places are taken none is asked who it is.

use super::arrival::{
    Admission, Arrival, Connection, Greeted, PoolRequest, Refused, answer, is_over,
};
use super::places::Places;
use super::turnstile::Turnstile;
use crate::clients::arrivals::Arrivals;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::net::SocketFlags;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tiercel_broker::{Identity, Peer, PeerError};
use tiercel_wire::interrupt::ThreadId;
use tiercel_wire::peer::{Datagram, credentials, receive};
use tiercel_wire::{GreetingError, Hello, PoolAsk, Session, SessionError, Status};

/// Connections of one user that are greeted at once. Chosen, not measured: a parallel build starts
/// as many processes as there are CPUs, and a greeting takes less than a millisecond.
pub const THREADS_PER_USER: usize = 64;

/// Connections that are greeted at once: four users at their bound. A thread takes 16 KiB of
/// memory.
pub const THREADS_MAX: usize = 256;

/// The stack of a thread that greets: it has buffers of some 10 KiB, and 128 KiB are at least twice
/// what a debug build uses. libc keeps 40 MiB of stacks for the next threads, as many as there are;
/// of the usual 2 MiB it would unmap most, and the loop would wait for that at each page fault.
const STACK_BYTES: usize = 128 << 10;

/// Connections that wait for a thread, of one user and of all: a burst of processes four times as
/// large as is greeted at once. A descriptor each.
pub const WAITING_PER_USER: usize = 192;
const WAITING_MAX: usize = 4 * WAITING_PER_USER;

/// Connections that are accepted and wait for the acceptor: several bursts of the largest that wait
/// in the kernel (128). A descriptor each.
const ACCEPTED_MAX: usize = 1024;

/// Connections that wait for the refuser. When it is full the listening socket's own queue fills,
/// and connecting processes wait.
const REFUSALS_MAX: usize = 256;

/// A connection without a hello for this long is closed. A runtime takes microseconds; one that is
/// stopped in between attaches again or runs without the daemon.
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_millis(2_000);

/// How long a thread may be at work on a connection: then its waits are ended by a signal. Chosen,
/// not measured: a thousand times what an honest process causes.
const WORK_MAX: Duration = Duration::from_millis(200);

/// Between two looks at threads that may be overdue, while there are any; also how long no
/// connection is accepted when descriptors are used up.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// What `/proc/self/fd` calls a userfaultfd.
const USERFAULTFD: &str = "anon_inode:[userfaultfd]";

/// What the threads share.
pub(super) struct Shared {
    admission: Admission,
    pub(super) identity: Identity,
    /// Whose greeting asks the broker.
    turnstile: Turnstile,
    /// Who is hosted.
    pub(super) places: Places,
    hello_timeout: Duration,
    /// Readable while greetings wait for the loop.
    pub(super) greeted: OwnedFd,
    /// Readable when it is time to end.
    stop: OwnedFd,
    is_stopping: AtomicBool,
    /// The acceptor takes no more connections.
    has_stopped: AtomicBool,
    refused: Mutex<Refused>,
    threads: Mutex<Threads>,
}

/// The threads of connections.
#[derive(Default)]
struct Threads {
    /// How many, by user.
    of_user: HashMap<u32, usize>,
    count: usize,
    /// Connections that wait until a thread ends, by user; no user has none.
    waiting: HashMap<u32, VecDeque<OwnedFd>>,
    waiting_count: usize,
    /// Connections given to the refuser.
    refusals: usize,
    /// Those at work, rather than waiting for the process or the loop, and since when.
    at_work: HashMap<ThreadId, Instant>,
}

impl Shared {
    pub(super) fn new(
        admission: Admission,
        identity: Identity,
        places: Places,
        hello_timeout: Duration,
    ) -> std::io::Result<Shared> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Shared {
            admission,
            identity,
            turnstile: Turnstile::default(),
            places,
            hello_timeout,
            greeted: eventfd(0, flags)?,
            stop: eventfd(0, flags)?,
            is_stopping: AtomicBool::new(false),
            has_stopped: AtomicBool::new(false),
            refused: Mutex::default(),
            threads: Mutex::default(),
        })
    }

    /// Ends the acceptor. Threads of connections end by themselves; no thread waits for them.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        signal(&self.stop);
    }

    /// True when all that connected before the stop is greeted.
    pub(super) fn has_finished(&self) -> bool {
        self.has_stopped.load(Ordering::Acquire) && self.is_idle()
    }

    pub(super) fn refused(&self) -> MutexGuard<'_, Refused> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True while no connection is being greeted or refused.
    pub(super) fn is_idle(&self) -> bool {
        let threads = self.threads();
        threads.count == 0 && threads.refusals == 0
    }

    fn threads(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connections that wait for a thread.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.threads().waiting_count
    }

    /// Asks who a process is; where a broker answers, when it is the user's turn.
    fn ask<T>(&self, uid: u32, question: impl FnOnce() -> T) -> T {
        let _turn = self.identity.is_brokered().then(|| self.turnstile.pass(uid));
        question()
    }

    /// Does what foreign descriptors may delay, for a bounded time.
    fn work<T>(&self, work: impl FnOnce() -> T) -> T {
        let thread = ThreadId::current();
        self.threads().at_work.insert(thread, Instant::now());
        let result = work();
        self.threads().at_work.remove(&thread);
        result
    }

    /// Ends the waits of threads that have been at work for too long.
    fn interrupt_overdue(&self) {
        // Under the lock, so that no thread ends meanwhile.
        for (thread, since) in &self.threads().at_work {
            if since.elapsed() >= WORK_MAX {
                let _ = thread.interrupt();
            }
        }
    }

    /// Counts one more thread for a connection, or has it wait for one, within the bounds.
    fn admit(&self, uid: u32, connection: OwnedFd) -> Place {
        let mut threads = self.threads();
        if threads.count < THREADS_MAX && threads.has_room(uid) {
            threads.count += 1;
            threads.begin(uid);
            return Place::Thread(connection);
        }
        let of_user = threads.waiting.get(&uid).map_or(0, VecDeque::len);
        // Without a thread there is none whose end it could wait for.
        let may_wait = threads.count > 0 && threads.waiting_count < WAITING_MAX;
        if of_user >= WAITING_PER_USER || !may_wait {
            return Place::None(connection);
        }
        threads.waiting_count += 1;
        threads.waiting.entry(uid).or_default().push_back(connection);
        Place::Waits
    }

    /// A thread has greeted a connection of a user: the next that waits, of that user or of another
    /// one that has room. Without one the thread ends.
    fn next(&self, uid: u32) -> Option<(u32, OwnedFd)> {
        let mut threads = self.threads();
        threads.end(uid);
        let next = threads.take_waiting(uid);
        match &next {
            Some((uid, _)) => threads.begin(*uid),
            None => threads.count -= 1,
        }
        next
    }
}

/// Where a connection is greeted.
enum Place {
    /// On a thread of its own.
    Thread(OwnedFd),
    /// Later, on the thread of another.
    Waits,
    /// Nowhere.
    None(OwnedFd),
}

impl Threads {
    fn has_room(&self, uid: u32) -> bool {
        self.of_user.get(&uid).copied().unwrap_or(0) < THREADS_PER_USER
    }

    fn begin(&mut self, uid: u32) {
        *self.of_user.entry(uid).or_default() += 1;
    }

    fn end(&mut self, uid: u32) {
        match self.of_user.get(&uid).copied() {
            Some(count) if count > 1 => drop(self.of_user.insert(uid, count - 1)),
            _ => drop(self.of_user.remove(&uid)),
        }
    }

    fn take_waiting(&mut self, first: u32) -> Option<(u32, OwnedFd)> {
        let others = self.waiting.keys().copied().find(|uid| self.has_room(*uid));
        let uid = if self.waiting.contains_key(&first) { first } else { others? };
        let queue = self.waiting.get_mut(&uid)?;
        let connection = queue.pop_front()?;
        if queue.is_empty() {
            self.waiting.remove(&uid);
        }
        self.waiting_count -= 1;
        Some((uid, connection))
    }
}

/// Makes an eventfd readable. It fails only when the counter is full, and then it is readable.
pub(super) fn signal(eventfd: &OwnedFd) {
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

/// Starts the acceptor and the refuser for connections of `listener`.
pub(super) fn start(listener: OwnedFd, shared: &Arc<Shared>) -> std::io::Result<Receiver<Greeted>> {
    // One of each thread, so that none waits for the loop to take what others have greeted.
    let (outbox, inbox) = sync_channel(THREADS_MAX);
    let (refusals, refused) = sync_channel::<OwnedFd>(REFUSALS_MAX);
    let refuser = Arc::clone(shared);
    let refuse_all = move || {
        for connection in refused {
            refuser.refused().full += 1;
            answer(connection.as_fd(), Status::RefusedFull, 0);
            refuser.work(|| drop(connection));
            refuser.threads().refusals -= 1;
        }
    };
    std::thread::Builder::new().name("tiercel-refuser".into()).spawn(refuse_all)?;
    let acceptor = Acceptor { listener, shared: Arc::clone(shared), outbox, refusals };
    let accept = move || acceptor.accept_until_stopped();
    std::thread::Builder::new().name("tiercel-accept".into()).spawn(accept)?;
    Ok(inbox)
}

/// Connections, and whose they are if that is known.
type Accepted = Arrivals<(Option<u32>, OwnedFd)>;

/// Accepts. It never receives from a connection and never closes one.
///
/// All that have connected are accepted before one is given a thread, which takes ten times as
/// long, and then one of each user in turn: the kernel's queue is in the order of connections, and
/// a burst of one user's would be ahead of another one's.
struct Acceptor {
    listener: OwnedFd,
    shared: Arc<Shared>,
    outbox: SyncSender<Greeted>,
    refusals: SyncSender<OwnedFd>,
}

impl Acceptor {
    /// What has connected by the time of the stop is still accepted.
    fn accept_until_stopped(&self) {
        let (mut accepted, mut count, mut can_accept) = (Arrivals::default(), 0, true);
        loop {
            let is_stopping = self.shared.is_stopping.load(Ordering::Acquire);
            if !is_stopping && count == 0 {
                self.await_connection(can_accept);
            }
            self.shared.interrupt_overdue();
            can_accept = self.accept_all(&mut accepted, &mut count);
            match accepted.pop() {
                Some((uid, connection)) => {
                    count -= 1;
                    self.accepted(uid, connection);
                }
                None if is_stopping => break,
                None => {}
            }
        }
        self.shared.has_stopped.store(true, Ordering::Release);
    }

    /// Accepts what has connected. False: descriptors or memory are used up.
    fn accept_all(&self, accepted: &mut Accepted, count: &mut usize) -> bool {
        use rustix::io::Errno;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while *count < ACCEPTED_MAX {
            match rustix::net::accept_with(&self.listener, flags) {
                Ok(connection) => {
                    let uid = credentials(connection.as_fd()).map(|connected| connected.uid).ok();
                    accepted.push(uid.unwrap_or(u32::MAX), (uid, connection));
                    *count += 1;
                }
                // Nothing waits, or the process has left.
                Err(error) => {
                    return matches!(error, Errno::AGAIN | Errno::INTR | Errno::CONNABORTED);
                }
            }
        }
        true
    }

    fn await_connection(&self, can_accept: bool) {
        let is_idle = can_accept && self.shared.is_idle();
        let mut fds = vec![PollFd::new(&self.shared.stop, PollFlags::IN)];
        if can_accept {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        let _ = poll(&mut fds, (!is_idle).then_some(&LOOK));
    }

    /// Gives a connection a thread, or to the refuser.
    fn accepted(&self, uid: Option<u32>, connection: OwnedFd) {
        let Some(uid) = uid else { return self.refuse(connection) };
        let connection = match self.shared.admit(uid, connection) {
            Place::Thread(connection) => connection,
            Place::Waits => return,
            Place::None(connection) => return self.refuse(connection),
        };
        // The connection follows once there is a thread: one that fails to start would close it
        // here.
        let (give, take) = sync_channel::<OwnedFd>(1);
        let (shared, outbox) = (Arc::clone(&self.shared), self.outbox.clone());
        let greeting = move || {
            let mut greeted = uid;
            if let Ok(connection) = take.recv() {
                greet(connection, uid, &shared, &outbox);
            }
            while let Some((uid, connection)) = shared.next(greeted) {
                greet(connection, uid, &shared, &outbox);
                greeted = uid;
            }
        };
        let thread = std::thread::Builder::new().name("tiercel-greet".into());
        match thread.stack_size(STACK_BYTES).spawn(greeting) {
            Ok(_) => drop(give.send(connection)),
            Err(_) => {
                self.refuse(connection);
                // What waits may have waited for this thread.
                let mut of = uid;
                while let Some((uid, waiting)) = self.shared.next(of) {
                    self.refuse(waiting);
                    of = uid;
                }
            }
        }
    }

    fn refuse(&self, connection: OwnedFd) {
        self.shared.threads().refusals += 1;
        // The refuser lives as long as this does.
        let _ = self.refusals.send(connection);
    }
}

#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("{0}")]
    Greeting(#[from] GreetingError),
    #[error("the hello came without a memfd")]
    NoMemfd,
    #[error("the memfd belongs to another user")]
    ForeignMemfd,
    #[error("{0}")]
    Session(#[from] SessionError),
    #[error("{0}")]
    Peer(#[from] PeerError),
    #[error("another user's process")]
    User,
    #[error("no hello in time")]
    Silent,
    #[error("the process has left")]
    Left,
    #[error("the places of its user are taken")]
    Full,
}

/// Greets one process: a thread of its own.
fn greet(connection: OwnedFd, uid: u32, shared: &Shared, outbox: &SyncSender<Greeted>) {
    let socket = Arc::new(connection);
    let (answered, is_answered) = channel();
    let ours = Connection::new(&socket, answered);
    match greeting(ours, uid, shared) {
        Ok(greeted) => {
            if outbox.send(greeted).is_ok() {
                signal(&shared.greeted);
            }
        }
        Err(refusal) => refuse(&socket, &refusal, shared),
    }
    // Ends with an error, when the loop has dropped its part.
    let _ = is_answered.recv();
    shared.work(|| drop(socket));
}

fn refuse(socket: &OwnedFd, refusal: &Refusal, shared: &Shared) {
    if let Some(status) = count(refusal, &mut shared.refused()) {
        answer(socket.as_fd(), status, 0);
    }
}

/// The same on the caller's thread, which waits for no answer.
#[cfg(feature = "forge")]
pub(super) fn greet_here(connection: OwnedFd, shared: &Shared) -> Option<Greeted> {
    let uid = credentials(connection.as_fd()).ok()?.uid;
    let socket = Arc::new(connection);
    let (answered, _) = channel();
    let greeted = greeting(Connection::new(&socket, answered), uid, shared);
    greeted.inspect_err(|refusal| refuse(&socket, refusal, shared)).ok()
}

fn greeting(connection: Connection, uid: u32, shared: &Shared) -> Result<Greeted, Refusal> {
    if !shared.admission.admits(uid) {
        return Err(Refusal::User);
    }
    let connected = credentials(connection.as_fd()).map_err(|_| Refusal::Left)?;
    if !shared.places.has_one(connected) {
        return Err(Refusal::Full);
    }
    // One that is over may have left a hello: it did not wait.
    let identified = shared.ask(uid, || shared.identity.peer(connection.as_fd()));
    let peer = match identified {
        Err(PeerError::Gone) => Peer::ended(connection.as_fd()),
        identified => identified,
    }?;
    await_hello(connection.as_fd(), shared.hello_timeout)?;
    shared.work(|| {
        let mut buffer = [0u8; PoolAsk::BYTES + 1];
        let received = receive(connection.as_fd(), &mut buffer).map_err(|_| Refusal::Left)?;
        let Datagram { bytes, sender, fds } = received;
        if bytes == 0 && fds.is_empty() {
            return Err(Refusal::Left);
        }
        let bytes = &buffer[..bytes.min(buffer.len())];
        let is_same = shared.ask(uid, || peer.sent(sender));
        if PoolAsk::is_one(bytes) {
            is_same?;
            let ask = PoolAsk::decode(bytes)?;
            return Ok(Greeted::Pool(PoolRequest { ask, peer, connection }));
        }
        let Hello { pid, parent_pid, image, .. } = Hello::decode(bytes)?;
        let (session, userfaultfds) = pass_gate(fds, uid)?;
        let is_over = is_over(is_same)? || !peer.runs(image);
        let mut arrival = Arrival {
            peer,
            stated_pid: pid,
            parent_pid,
            since: Instant::now(),
            session,
            userfaultfds,
            connection,
        };
        if is_over {
            arrival.end()?;
        }
        Ok(Greeted::Hello(Box::new(arrival)))
    })
}

/// The gate that every foreign descriptor passes: a sealed memfd of the right size and of the
/// process's user, then userfaultfds. The others are closed here.
fn pass_gate(fds: Vec<OwnedFd>, uid: u32) -> Result<(Session, Vec<OwnedFd>), Refusal> {
    let mut fds = fds.into_iter();
    let memfd = fds.next().ok_or(Refusal::NoMemfd)?;
    // Seals first: they are of memory alone, whose answers and whose close take no time.
    let (session, owner) = Session::open_owned(memfd)?;
    if owner != uid {
        return Err(Refusal::ForeignMemfd);
    }
    Ok((session, fds.filter(is_userfaultfd).collect()))
}

fn is_userfaultfd(fd: &OwnedFd) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|name| name.as_os_str() == USERFAULTFD)
}

/// Waits until the process has said something, or has left.
fn await_hello(connection: BorrowedFd<'_>, timeout: Duration) -> Result<(), Refusal> {
    let end = Instant::now() + timeout;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).unwrap_or_default();
        match poll(&mut [PollFd::new(&connection, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Err(Refusal::Silent),
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) | Err(_) => return Ok(()),
        }
    }
}

/// Counts a refusal; the answer to it, if any.
fn count(refusal: &Refusal, refused: &mut Refused) -> Option<Status> {
    let (counter, status) = match refusal {
        Refusal::User => (&mut refused.user, Status::RefusedUser),
        Refusal::Greeting(GreetingError::Version(_)) => {
            (&mut refused.version, Status::RefusedVersion)
        }
        Refusal::Greeting(_) => (&mut refused.malformed, Status::RefusedMemfd),
        Refusal::NoMemfd | Refusal::ForeignMemfd | Refusal::Session(_) => {
            (&mut refused.memfd, Status::RefusedMemfd)
        }
        Refusal::Peer(PeerError::Foreign) => (&mut refused.foreign, Status::RefusedNamespace),
        Refusal::Peer(error) => {
            refused.lost(error);
            return Some(Status::RefusedUser);
        }
        Refusal::Silent => {
            refused.silent += 1;
            return None;
        }
        Refusal::Full => (&mut refused.full, Status::RefusedFull),
        Refusal::Left => return None,
    };
    *counter += 1;
    Some(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_we_cannot_name_learns_why() {
        let mut refused = Refused::default();
        let status = count(&Refusal::Peer(PeerError::Foreign), &mut refused);
        assert_eq!(status, Some(Status::RefusedNamespace));
        assert_eq!(refused, Refused { foreign: 1, ..Refused::default() });
    }
}
