//! Serves the pools on a thread of its own: populating takes milliseconds, and the loop has none.
//! In: questions with their sockets. Out: segments, by `SCM_RIGHTS`. Knows nothing of sessions.
//!
//! An owner is a process: its number is new for each process that asks, and its pidfd tells when it
//! is gone. What a process says is checked; whose it is, the socket's credentials say.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::PidfdFlags;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tiercel_machine::NodeId;
use tiercel_pool::{
    Capacity, Linux, Memory, Owner, PoolError, READY_BYTES, SegmentId, Server, Vpage,
};
use tiercel_wire::{PoolAnswer, PoolAsk, PoolStatus, PoolVerb};

/// Questions that may wait; those beyond are refused, and the process makes its own memory.
const QUESTIONS_MAX: usize = 64;

/// How soon the death of an owner is seen, while there are any.
const LOOK: Duration = Duration::from_millis(200);

/// What is kept ready of each pool, bytes: two usual segments.
const READY_AHEAD_BYTES: u64 = 2 * READY_BYTES;

/// A question, and who asked.
pub struct Question {
    /// What.
    pub ask: PoolAsk,
    /// Process id in our namespace, by the kernel's word.
    pub pid: u32,
    /// Where the answer goes.
    pub socket: OwnedFd,
}

/// A pool, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolState {
    /// Of which node.
    pub node: u16,
    /// The machine has no such node: the memory lies anywhere.
    pub emulated: bool,
    /// Its size, bytes.
    pub capacity_bytes: u64,
    /// May still be handed out, bytes.
    pub free_bytes: u64,
    /// Populated ahead, bytes; part of the free.
    pub ready_bytes: u64,
    /// In processes' hands, bytes.
    pub granted_bytes: u64,
    /// Of processes that are gone, or returned, and still mapped by somebody, bytes.
    pub lingering_bytes: u64,
    /// Segments granted so far.
    pub granted: u64,
    /// Segments refused so far.
    pub refused: u64,
    /// Why none can be made ready; empty when they can.
    pub trouble: String,
}

/// The thread, from outside. Dropping it ends the thread.
pub struct Pools {
    questions: SyncSender<Question>,
    state: Arc<Mutex<Vec<PoolState>>>,
}

impl Pools {
    /// Begins to serve pools of so many bytes; `None` when there are none.
    /// A folder that is none is an error.
    pub fn start(capacities: &[Capacity]) -> std::io::Result<Option<Pools>> {
        if capacities.is_empty() {
            return Ok(None);
        }
        let in_folders = capacities.iter().filter_map(|one| Some((one.node, one.folder.clone()?)));
        let memory = Linux { folders: in_folders.collect() };
        if let Some(folder) = memory.folders.values().find(|folder| !folder.is_dir()) {
            let why = format!("{} is no folder that a pool could have files in", folder.display());
            return Err(std::io::Error::new(std::io::ErrorKind::NotADirectory, why));
        }
        let capacities: Vec<_> = capacities.iter().map(|one| (one.node, one.bytes)).collect();
        let (questions, inbox) = sync_channel(QUESTIONS_MAX);
        let server = Server::new(memory, &capacities, READY_AHEAD_BYTES);
        let state = Arc::new(Mutex::new(states(&server)));
        let mut keeper = Keeper {
            server,
            owners: BTreeMap::new(),
            next: 1,
            state: Arc::clone(&state),
            is_busy: false,
        };
        let work = move || keeper.serve(&inbox);
        std::thread::Builder::new().name("tiercel-pools".into()).spawn(work)?;
        Ok(Some(Pools { questions, state }))
    }

    /// Gives a question to the thread; without room it is refused.
    pub fn ask(&self, question: Question) {
        if let Err(TrySendError::Full(question) | TrySendError::Disconnected(question)) =
            self.questions.try_send(question)
        {
            decline(&question);
        }
    }

    /// All pools.
    pub fn state(&self) -> Vec<PoolState> {
        self.state.lock().map(|state| state.clone()).unwrap_or_default()
    }
}

/// There is no pool for it: the process makes its own memory.
pub fn decline(question: &Question) {
    answer(&question.socket, PoolAnswer::only(PoolStatus::None), None);
}

struct Keeper<M: Memory> {
    server: Server<M>,
    /// By process id: number, and what tells its end.
    owners: BTreeMap<u32, (Owner, OwnedFd)>,
    next: u64,
    state: Arc<Mutex<Vec<PoolState>>>,
    /// Somebody holds something: look after them.
    is_busy: bool,
}

impl<M: Memory> Keeper<M> {
    fn serve(&mut self, inbox: &Receiver<Question>) {
        while self.server.prepare() {}
        self.publish();
        loop {
            let question = match inbox.recv_timeout(LOOK) {
                Ok(question) => Some(question),
                Err(RecvTimeoutError::Timeout) if !self.is_busy => match inbox.recv() {
                    Ok(question) => Some(question),
                    Err(_) => return,
                },
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            match question {
                Some(question) => self.treat(&question),
                None => {
                    self.bury();
                    self.is_busy = self.server.reap() || !self.owners.is_empty();
                    self.server.prepare();
                }
            }
            self.publish();
        }
    }

    /// Lets go what the dead held.
    fn bury(&mut self) {
        let dead: Vec<u32> =
            self.owners.iter().filter(|(_, (_, fd))| is_gone(fd)).map(|(pid, _)| *pid).collect();
        for pid in dead {
            if let Some((owner, _)) = self.owners.remove(&pid) {
                self.server.gone(owner);
            }
        }
    }

    fn treat(&mut self, question: &Question) {
        self.bury();
        let granted = self.owner(question.pid).and_then(|owner| match question.ask.0 {
            PoolVerb::Grant { node, bytes, vpage_shift } => {
                let node = NodeId(u16::try_from(node).map_err(|_| PoolStatus::None)?);
                let vpage = match vpage_shift {
                    0 | 12 => Vpage::Small,
                    16 => Vpage::Medium,
                    21 => Vpage::Large,
                    _ => return Err(PoolStatus::Refused),
                };
                let grant = self.server.grant(owner, node, bytes, vpage).map_err(status)?;
                Ok((owner, Some(grant)))
            }
            PoolVerb::Return(number) => {
                self.server.give_back(owner, SegmentId(number)).map_err(status)?;
                Ok((owner, None))
            }
            PoolVerb::Leave(number) => {
                self.server.leave(owner, SegmentId(number)).map_err(status)?;
                Ok((owner, None))
            }
        });
        match granted {
            Ok((_, None)) => {
                answer(&question.socket, PoolAnswer::only(PoolStatus::Ok), None);
            }
            Ok((owner, Some(grant))) => {
                self.is_busy = true;
                let said = PoolAnswer {
                    status: PoolStatus::Ok,
                    number: grant.id.0,
                    bytes: grant.bytes,
                    is_emulated: grant.is_emulated,
                    is_file: grant.is_file,
                };
                if !answer(&question.socket, said, Some(&grant.fd)) {
                    // It has left; what it never got is nobody's.
                    let _ = self.server.give_back(owner, grant.id);
                }
            }
            Err(status) => {
                answer(&question.socket, PoolAnswer::only(status), None);
            }
        }
    }

    /// The process's number, a new one for a new process.
    fn owner(&mut self, pid: u32) -> Result<Owner, PoolStatus> {
        if let Some((owner, _)) = self.owners.get(&pid) {
            return Ok(*owner);
        }
        let raw = rustix::process::Pid::from_raw(pid.cast_signed()).ok_or(PoolStatus::Refused)?;
        let pidfd = rustix::process::pidfd_open(raw, PidfdFlags::empty());
        let owner = Owner(self.next);
        self.owners.insert(pid, (owner, pidfd.map_err(|_| PoolStatus::Refused)?));
        self.next += 1;
        self.is_busy = true;
        Ok(owner)
    }

    fn publish(&self) {
        if let Ok(mut state) = self.state.lock() {
            *state = states(&self.server);
        }
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
        | PoolError::TooMany
        | PoolError::NoMemory { .. }
        | PoolError::NoFile { .. }
        | PoolError::Elsewhere { .. } => PoolStatus::Exhausted,
        PoolError::Size(_) | PoolError::Foreign(_) => PoolStatus::Refused,
    }
}

fn is_gone(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// One datagram; false when the peer has left.
fn answer(socket: &OwnedFd, answer: PoolAnswer, memfd: Option<&OwnedFd>) -> bool {
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
