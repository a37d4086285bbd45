//! Serves the pools on a thread of its own: populating memory takes milliseconds, in which the loop
//! must not stop.
//! In: requests with their sockets. Out: segments, by `SCM_RIGHTS`. Knows nothing of sessions.
//!
//! An owner is a process: it gets a new number with its first request, and its pidfd shows when it
//! is gone. Every request is checked; the socket's credentials, not the request, identify the
//! process.

use crate::clients::arrivals::Arrivals;
use crate::net::arrival::{Connection, PoolRequest};
use crate::net::greeter::THREADS_MAX;
use crate::net::socket_dir::Access;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tiercel_broker::Peer;
use tiercel_machine::NodeId;
use tiercel_pool::{
    Capacity, Filled, Grant, Linux, Memory, Owner, PoolError, READY_BYTES, SegmentId, Server, Vpage,
};
use tiercel_wire::{GrantKey, PoolAnswer, PoolAsk, PoolStatus, PoolVerb};

/// Requests that may wait: one of each connection that is greeted, of all users. Further ones are
/// refused, and the process allocates by itself.
const REQUESTS_MAX: usize = THREADS_MAX;

/// Parts of a pool of which one user may hold one, where there are several users.
const USER_PARTS: u64 = 4;

/// How soon the death of an owner is noticed, while there are any. Five wake-ups a second cost
/// nothing that can be measured.
const OWNER_CHECK: Duration = Duration::from_millis(200);

/// Soonest after a look that a request without room causes another: a look asks the kernel about
/// every segment, some microseconds each.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What is populated ahead in each pool, bytes: two segments of the usual size.
const READY_AHEAD_BYTES: u64 = 2 * READY_BYTES;

/// A pool, for display.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolState {
    /// Its node.
    pub node: u16,
    /// The machine has no such node: the memory is on any node.
    pub emulated: bool,
    /// Its size, bytes.
    pub capacity_bytes: u64,
    /// May still be granted, bytes.
    pub free_bytes: u64,
    /// Populated ahead, bytes; part of the free bytes.
    pub ready_bytes: u64,
    /// Granted to processes, bytes.
    pub granted_bytes: u64,
    /// Returned, or of processes that are gone, and still mapped, bytes.
    pub lingering_bytes: u64,
    /// Segments granted so far.
    pub granted: u64,
    /// Segments refused so far.
    pub refused: u64,
    /// Why no segment can be populated; empty when they can.
    pub trouble: String,
}

/// The pools' thread. Dropping it ends the thread.
pub struct Pools {
    requests: SyncSender<PoolRequest>,
    state: Arc<Mutex<Vec<PoolState>>>,
    /// Until the thread has begun: what it needs.
    waiting: Option<(Keeper<Linux>, Receiver<PoolRequest>)>,
}

impl Pools {
    /// Pools of these capacities; `None` when there are none. A path that is not a folder is an
    /// error.
    pub fn new(capacities: &[Capacity], access: Access) -> std::io::Result<Option<Pools>> {
        if capacities.is_empty() {
            return Ok(None);
        }
        let in_folders = capacities.iter().filter_map(|one| Some((one.node, one.folder.clone()?)));
        let (filled, ready_bytes, user_parts) = match access {
            Access::Owner => (Filled::Ahead, READY_AHEAD_BYTES, 1),
            // What is filled ahead would be charged to the daemon.
            Access::AllUsers => (Filled::ByOwner, 0, USER_PARTS),
        };
        let memory = Linux { folders: in_folders.collect(), filled };
        if let Some(folder) = memory.folders.values().find(|folder| !folder.is_dir()) {
            let why = format!("{} is not a folder for the files of a pool", folder.display());
            return Err(std::io::Error::new(std::io::ErrorKind::NotADirectory, why));
        }
        let capacities: Vec<_> = capacities.iter().map(|one| (one.node, one.bytes)).collect();
        let (requests, inbox) = sync_channel(REQUESTS_MAX);
        let server = Server::new(memory, &capacities, ready_bytes).shared_by_users(user_parts);
        let state = Arc::new(Mutex::new(states(&server)));
        let keeper = Keeper {
            server,
            waiting: Arrivals::default(),
            looked: Instant::now(),
            owners: BTreeMap::new(),
            next: 1,
            secrets: RandomState::new(),
            state: Arc::clone(&state),
            is_busy: false,
        };
        Ok(Some(Pools { requests, state, waiting: Some((keeper, inbox)) }))
    }

    /// Begins to serve. Segments belong to the user of the thread that makes them, who alone may
    /// open them again for a grant: call it when privileges have been given up.
    pub fn start(&mut self) -> std::io::Result<()> {
        let Some((mut keeper, inbox)) = self.waiting.take() else { return Ok(()) };
        let work = move || keeper.serve(&inbox);
        std::thread::Builder::new().name("tiercel-pools".into()).spawn(work)?;
        Ok(())
    }

    /// Passes a request to the thread; it is refused when the queue is full.
    pub(crate) fn submit(&self, request: PoolRequest) {
        if let Err(TrySendError::Full(request) | TrySendError::Disconnected(request)) =
            self.requests.try_send(request)
        {
            decline(&request);
        }
    }

    /// All pools.
    pub fn state(&self) -> Vec<PoolState> {
        self.state.lock().map(|state| state.clone()).unwrap_or_default()
    }
}

/// Answers that there is no pool: the process allocates by itself.
pub(crate) fn decline(request: &PoolRequest) {
    answer(&request.connection, PoolAnswer::only(PoolStatus::None), None);
}

struct Keeper<M: Memory> {
    server: Server<M>,
    /// Requests, by user: each has its turn.
    waiting: Arrivals<PoolRequest>,
    /// When owners were looked at.
    looked: Instant,
    /// By process id.
    owners: BTreeMap<u32, (Owner, Peer)>,
    next: u64,
    /// Keys of the hash that makes a grant's secret of its owner and number: SipHash with random
    /// keys, a pseudorandom function, so that no secret has to be stored.
    secrets: RandomState,
    state: Arc<Mutex<Vec<PoolState>>>,
    /// Some process holds memory, and is checked for its end.
    is_busy: bool,
}

impl<M: Memory> Keeper<M> {
    fn serve(&mut self, inbox: &Receiver<PoolRequest>) {
        while self.server.prepare() {}
        self.publish();
        while self.receive(inbox) {
            if let Some(request) = self.waiting.pop() {
                self.serve_one(request);
            }
            // Requests that never cease do not put it off.
            if self.looked.elapsed() >= OWNER_CHECK {
                self.look();
            }
            self.publish();
        }
    }

    /// Takes all requests that came; waits for one, or until it is time to look at owners. False
    /// when it is time to end.
    fn receive(&mut self, inbox: &Receiver<PoolRequest>) -> bool {
        let mut is_open = true;
        if self.waiting.is_empty() {
            let left = OWNER_CHECK.saturating_sub(self.looked.elapsed());
            let first = match inbox.recv_timeout(left) {
                Err(RecvTimeoutError::Timeout) if !self.is_busy => inbox.recv().ok(),
                Err(RecvTimeoutError::Timeout) => return true,
                first => first.ok(),
            };
            is_open = first.is_some();
            first.into_iter().for_each(|request| self.waits(request));
        }
        inbox.try_iter().for_each(|request| self.waits(request));
        is_open
    }

    fn waits(&mut self, request: PoolRequest) {
        self.waiting.push(request.peer.uid(), request);
    }

    /// Finds what is no longer held, and fills what is to be ready.
    fn look(&mut self) {
        self.looked = Instant::now();
        self.reclaim();
        self.is_busy = self.server.reap() || !self.owners.is_empty();
        self.server.prepare();
    }

    /// Takes back what processes held that are gone.
    fn reclaim(&mut self) {
        let dead: Vec<u32> = self
            .owners
            .iter()
            .filter(|(_, (_, peer))| !peer.is_alive())
            .map(|(pid, _)| *pid)
            .collect();
        for pid in dead {
            if let Some((owner, _)) = self.owners.remove(&pid) {
                self.server.gone(owner);
            }
        }
    }

    fn serve_one(&mut self, request: PoolRequest) {
        let PoolRequest { ask, peer, connection: socket } = request;
        let granted = match self.perform(&ask, peer) {
            Ok(Some(granted)) => granted,
            Ok(None) => {
                answer(&socket, PoolAnswer::only(PoolStatus::Ok), None);
                return;
            }
            Err(status) => {
                answer(&socket, PoolAnswer::only(status), None);
                return;
            }
        };
        self.is_busy = true;
        let (owner, grant) = granted;
        let answered = PoolAnswer {
            status: PoolStatus::Ok,
            key: GrantKey { number: grant.id.0, secret: self.secret(owner, grant.id) },
            bytes: grant.bytes,
            is_emulated: grant.is_emulated,
            is_file: grant.is_file,
        };
        if !answer(&socket, answered, Some(&grant.fd)) {
            // The process has left, and never had the segment.
            let _ = self.server.give_back(owner, grant.id);
        }
    }

    /// A segment for a grant; none for what needs no more than a yes.
    fn perform(&mut self, ask: &PoolAsk, peer: Peer) -> Result<Option<(Owner, Grant)>, PoolStatus> {
        peer.check().map_err(|_| PoolStatus::Refused)?;
        let owner = self.owner(peer);
        match ask.0 {
            PoolVerb::Grant { node, bytes, vpage_shift } => {
                let node = NodeId(u16::try_from(node).map_err(|_| PoolStatus::None)?);
                let vpage = vpage(vpage_shift).ok_or(PoolStatus::Refused)?;
                let mut grant = self.server.grant(owner, node, bytes, vpage);
                let is_full =
                    matches!(grant, Err(PoolError::Exhausted { .. } | PoolError::Share { .. }));
                if is_full && self.looked.elapsed() >= LOOK_AGAIN {
                    // Owners may have ended since the last look.
                    self.look();
                    grant = self.server.grant(owner, node, bytes, vpage);
                }
                return Ok(Some((owner, grant.map_err(status)?)));
            }
            PoolVerb::Return(key) => self.server.give_back(owner, self.segment(owner, key)?),
            PoolVerb::Leave(key) => self.server.leave(owner, self.segment(owner, key)?),
        }
        .map_err(status)?;
        Ok(None)
    }

    /// The process's number, a new one for a new process.
    fn owner(&mut self, peer: Peer) -> Owner {
        match self.owners.get(&peer.pid()) {
            Some((owner, known)) if known.is_same_process(&peer) => return *owner,
            // It ended after the last look, and its number was given to another process.
            Some((owner, _)) => self.server.gone(*owner),
            None => {}
        }
        let owner = Owner { number: self.next, user: peer.uid() };
        self.owners.insert(peer.pid(), (owner, peer));
        self.next += 1;
        self.is_busy = true;
        owner
    }

    fn secret(&self, owner: Owner, id: SegmentId) -> u64 {
        self.secrets.hash_one((owner, id))
    }

    /// The segment of a grant, if the process has its secret.
    fn segment(&self, owner: Owner, key: GrantKey) -> Result<SegmentId, PoolStatus> {
        let id = SegmentId(key.number);
        let is_known = self.secret(owner, id) == key.secret;
        if is_known { Ok(id) } else { Err(PoolStatus::Refused) }
    }

    fn publish(&self) {
        if let Ok(mut state) = self.state.lock() {
            *state = states(&self.server);
        }
    }
}

/// The size of vpages by its logarithm: 4 KiB, 64 KiB or 2 MiB. A zero means the smallest.
fn vpage(shift: u32) -> Option<Vpage> {
    match shift {
        0 | 12 => Some(Vpage::Small),
        16 => Some(Vpage::Medium),
        21 => Some(Vpage::Large),
        _ => None,
    }
}

fn states<M: Memory>(server: &Server<M>) -> Vec<PoolState> {
    let one = |status: tiercel_pool::Status| PoolState {
        node: status.node.0,
        emulated: status.is_emulated,
        capacity_bytes: status.figures.capacity,
        free_bytes: status.figures.free,
        ready_bytes: status.figures.ready,
        granted_bytes: status.figures.granted,
        lingering_bytes: status.figures.left + status.figures.returned,
        granted: status.granted,
        refused: status.refused,
        trouble: status.trouble.map(|trouble| trouble.to_string()).unwrap_or_default(),
    };
    server.status().into_iter().map(one).collect()
}

fn status(error: PoolError) -> PoolStatus {
    match error {
        PoolError::NoPool(_) | PoolError::NoMemfd { .. } => PoolStatus::None,
        PoolError::Exhausted { .. }
        | PoolError::Share { .. }
        | PoolError::Full { .. }
        | PoolError::TooMany
        | PoolError::NoMemory { .. }
        | PoolError::NoFile { .. }
        | PoolError::Elsewhere { .. } => PoolStatus::Exhausted,
        PoolError::Size(_) | PoolError::Foreign(_) => PoolStatus::Refused,
    }
}

/// Sends one datagram; false when the peer has left.
fn answer(socket: &Connection, answer: PoolAnswer, memfd: Option<&OwnedFd>) -> bool {
    let bytes = answer.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = memfd.map(|memfd| [memfd.as_fd()]);
    if let Some(fds) = &fds
        && !ancillary.push(SendAncillaryMessage::ScmRights(fds))
    {
        return false;
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags).is_ok()
}
