//! The mover and the jobs it was given, so that the loop never waits for it.
//! In: lookups and moves. Out: completions, when they are known. Knows nothing of why anything
//! moves.
//!
//! The kernel's mover copies for seconds, and rings must be drained meanwhile: it has a thread of
//! its own. The modelled mover only accounts for memory: it runs inline, so that a job is complete
//! when it was submitted, and it learns of births and deaths.

use super::log::MoveLog;
use super::self_moves::Refusals;
use crate::cpu;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use tiercel_broker::Peer;
use tiercel_ledger::Range;
use tiercel_ledger::movement::{Failure, Move, Outcome};
use tiercel_machine::NodeId;
use tiercel_mover::{self as mover, Mover, Residency, ResidencyError, SelfMovers};

/// Jobs that may wait: a lookup and an execution. More would be decided on stale knowledge.
const JOBS_MAX: usize = 2;

/// Bytes of one process that are moved between two checks of its identity: a quarter of a second of
/// copying at 1 GB/s.
const BATCH_BYTES_MAX: u64 = 256 << 20;

/// What a mover can be requested to do.
#[derive(Debug)]
enum Job {
    /// Look up where ranges are, process by process.
    LookUp(Vec<(u32, Vec<mover::Range>)>),
    /// Execute moves in order.
    Execute(Vec<Move>),
}

/// What became of a job.
#[derive(Debug)]
pub enum Completion {
    /// Where ranges are.
    Located {
        /// In the order of the request.
        answers: Vec<Answer>,
        /// CPU time it took, nanoseconds.
        took_ns: u64,
    },
    /// What became of moves.
    Executed {
        /// One per move, in order.
        outcomes: Vec<Outcome>,
        /// CPU time it took, nanoseconds.
        took_ns: u64,
    },
}

/// The processes that attached, by process id, shared with the mover's thread: it touches no other.
type Peers = Arc<Mutex<HashMap<u32, Arc<Peer>>>>;

/// Process, range, where it is.
pub type Answer = (u32, mover::Range, Result<Residency, ResidencyError>);

/// A phase entry at which a client waits for its moves: session number, count of entries.
pub type PhaseEntry = (u32, u32);

/// Moves that the mover has not completed.
struct InFlight {
    ranges: Vec<Range>,
    entry: Option<PhaseEntry>,
}

/// The mover, its jobs in flight, and what became of those before.
pub struct MoveQueue {
    worker: Worker,
    /// Oldest first.
    in_flight: VecDeque<InFlight>,
    /// Outcomes so far.
    pub log: MoveLog,
    /// What processes refused to move themselves.
    pub refusals: Refusals,
}

/// The mover, on whichever thread.
enum Worker {
    /// On this thread.
    Inline {
        mover: Box<dyn Mover + Send>,
        /// Jobs done, not collected.
        done: Vec<Completion>,
    },
    /// On its own thread.
    Thread {
        /// Where jobs go in; dropping it ends the thread.
        jobs: SyncSender<Job>,
        /// Where completions come out.
        done: Receiver<Completion>,
        /// Readable when a completion waits.
        wake: Arc<OwnedFd>,
        /// Jobs submitted and not collected.
        pending: usize,
        /// The thread is gone: it panicked.
        has_failed: bool,
        /// Processes that move their own memory; `None`: the mover asks none.
        self_movers: Option<SelfMovers>,
        /// The processes it may touch.
        peers: Peers,
    },
}

impl MoveQueue {
    /// Puts `mover` to work: inline when its moves are modelled.
    pub fn new(mover: Box<dyn Mover + Send>) -> std::io::Result<MoveQueue> {
        let worker = if mover.is_modelled() {
            Worker::Inline { mover, done: Vec::new() }
        } else {
            start_thread(mover)?
        };
        let log = MoveLog::default();
        Ok(MoveQueue { worker, in_flight: VecDeque::new(), log, refusals: Refusals::default() })
    }

    /// Submits a lookup; false when the queue is full.
    pub fn look_up(&mut self, ranges: Vec<Range>) -> bool {
        self.worker.submit(Job::LookUp(by_process(ranges))).is_ok()
    }

    /// Looks up where ranges are, at once; `None` unless moves are modelled.
    pub fn look_up_now(&mut self, ranges: Vec<Range>) -> Option<(Vec<Answer>, u64)> {
        let Worker::Inline { mover, .. } = &mut self.worker else { return None };
        match perform(mover.as_mut(), Job::LookUp(by_process(ranges)), &|_| true) {
            Completion::Located { answers, took_ns } => Some((answers, took_ns)),
            Completion::Executed { .. } => None,
        }
    }

    /// Announces moves that will be submitted next: from now on their ranges are in flight.
    pub fn announce(&mut self, moves: &[Move], entry: Option<PhaseEntry>) {
        let range = |one: &Move| Range { pid: one.pid, addr: one.addr, bytes: one.bytes };
        self.in_flight.push_back(InFlight { ranges: moves.iter().map(range).collect(), entry });
    }

    /// Submits the moves that were announced last. False when the queue is full: then they are no
    /// longer in flight.
    pub fn submit_announced(&mut self, moves: Vec<Move>) -> bool {
        let is_taken = self.worker.submit(Job::Execute(moves)).is_ok();
        if !is_taken {
            self.in_flight.pop_back();
        }
        is_taken
    }

    /// The oldest moves in flight are complete; the phase entry that waited for them.
    pub fn executed(&mut self) -> Option<PhaseEntry> {
        self.in_flight.pop_front()?.entry
    }

    /// Executions in flight.
    pub fn executions(&self) -> usize {
        self.in_flight.len()
    }

    /// Ranges of one process that are being moved.
    pub fn ranges_in_flight(&self, pid: u32) -> Vec<std::ops::Range<u64>> {
        let ranges = self.in_flight.iter().flat_map(|job| &job.ranges);
        let theirs = ranges.filter(|range| range.pid == pid);
        theirs.map(|range| range.addr..range.addr + range.bytes).collect()
    }

    /// What is complete, without waiting.
    pub fn collect(&mut self) -> Vec<Completion> {
        self.worker.collect()
    }

    /// True when the mover's thread is gone; nothing moves any longer.
    pub fn has_failed(&self) -> bool {
        matches!(self.worker, Worker::Thread { has_failed: true, .. })
    }

    /// True while a job is not collected.
    pub fn is_busy(&self) -> bool {
        match &self.worker {
            Worker::Inline { done, .. } => !done.is_empty(),
            Worker::Thread { pending, .. } => *pending > 0,
        }
    }

    /// Becomes readable when a completion waits. `None`: the modelled mover has no eventfd; it is
    /// polled.
    pub fn eventfd(&self) -> Option<BorrowedFd<'_>> {
        match &self.worker {
            Worker::Inline { .. } => None,
            Worker::Thread { wake, .. } => Some(wake.as_fd()),
        }
    }

    /// Processes that move their own memory; `None`: the mover asks none.
    pub fn self_movers(&self) -> Option<&SelfMovers> {
        match &self.worker {
            Worker::Inline { .. } => None,
            Worker::Thread { self_movers, .. } => self_movers.as_ref(),
        }
    }

    /// True when moves are modelled: nothing is copied.
    pub fn is_modelled(&self) -> bool {
        matches!(self.worker, Worker::Inline { .. })
    }

    /// Reports a birth to the modelled mover, on `node` if the object's arena has one.
    pub fn born(&mut self, range: Range, node: Option<NodeId>) {
        if let Worker::Inline { mover, .. } = &mut self.worker {
            let Range { pid, addr, bytes } = range;
            mover.born(pid, mover::Range { addr, bytes }, node);
        }
    }

    /// Reports a death to the modelled mover.
    pub fn died(&mut self, pid: u32, addr: u64, bytes: u64) {
        if let Worker::Inline { mover, .. } = &mut self.worker {
            mover.died(pid, mover::Range { addr, bytes });
        }
    }

    /// Reports a process that attached. Its memory is looked up and moved only while its identity
    /// check holds.
    pub fn came(&mut self, peer: Arc<Peer>) {
        if let Worker::Thread { peers, .. } = &self.worker {
            peers.lock().unwrap_or_else(PoisonError::into_inner).insert(peer.pid(), peer);
        }
    }

    /// Reports the end of a process.
    pub fn gone(&mut self, pid: u32) {
        if let Worker::Thread { peers, .. } = &self.worker {
            peers.lock().unwrap_or_else(PoisonError::into_inner).remove(&pid);
        }
        if let Some(self_movers) = self.self_movers() {
            self_movers.left(pid);
        }
        if let Worker::Inline { mover, .. } = &mut self.worker {
            mover.gone(pid);
        }
    }
}

impl Worker {
    /// Gives the mover a job; the job comes back when the queue is full.
    fn submit(&mut self, job: Job) -> Result<(), Job> {
        match self {
            Worker::Inline { mover, done } => done.push(perform(mover.as_mut(), job, &|_| true)),
            Worker::Thread { jobs, pending, .. } => {
                jobs.try_send(job).map_err(|error| match error {
                    TrySendError::Full(job) | TrySendError::Disconnected(job) => job,
                })?;
                *pending += 1;
            }
        }
        Ok(())
    }

    fn collect(&mut self) -> Vec<Completion> {
        match self {
            Worker::Inline { done, .. } => std::mem::take(done),
            Worker::Thread { done, wake, pending, has_failed, .. } => {
                let _ = rustix::io::read(&**wake, &mut [0u8; 8]);
                let mut completions = Vec::new();
                loop {
                    match done.try_recv() {
                        Ok(completion) => completions.push(completion),
                        Err(TryRecvError::Empty) => break,
                        Err(TryRecvError::Disconnected) => {
                            *has_failed = true;
                            break;
                        }
                    }
                }
                *pending -= completions.len();
                completions
            }
        }
    }
}

fn start_thread(mover: Box<dyn Mover + Send>) -> std::io::Result<Worker> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (jobs, inbox) = sync_channel::<Job>(JOBS_MAX);
    let (outbox, done) = sync_channel::<Completion>(JOBS_MAX);
    let (eventfd, self_movers) = (Arc::clone(&wake), mover.self_movers());
    let peers = Peers::default();
    let known = Arc::clone(&peers);
    std::thread::Builder::new().name("tiercel-mover".into()).spawn(move || {
        let mut mover = mover;
        let is_same = |pid| is_same(&known, pid);
        while let Ok(job) = inbox.recv() {
            if outbox.send(perform(mover.as_mut(), job, &is_same)).is_err() {
                return;
            }
            // Fails only when the counter is full, and then it is readable.
            let _ = rustix::io::write(&*eventfd, &1u64.to_ne_bytes());
        }
    })?;
    Ok(Worker::Thread { jobs, done, wake, pending: 0, has_failed: false, self_movers, peers })
}

/// Whether a process attached and is still what attached.
fn is_same(peers: &Peers, pid: u32) -> bool {
    let peer = peers.lock().unwrap_or_else(PoisonError::into_inner).get(&pid).cloned();
    peer.is_some_and(|peer| peer.check().is_ok())
}

/// Performs a job on the processes for which `is_same` holds; the others count as vanished.
fn perform(mover: &mut dyn Mover, job: Job, is_same: &dyn Fn(u32) -> bool) -> Completion {
    let began_ns = cpu::thread_ns();
    match job {
        Job::Execute(moves) => {
            let mut outcomes = Vec::with_capacity(moves.len());
            for batch in batches(&moves) {
                if is_same(batch[0].pid) {
                    outcomes.extend(mover.execute(batch));
                } else {
                    outcomes.extend(batch.iter().cloned().map(vanished));
                }
            }
            Completion::Executed { outcomes, took_ns: cpu::since_ns(began_ns) }
        }
        Job::LookUp(requested) => {
            let mut answers = Vec::new();
            for (pid, ranges) in requested {
                let found = if is_same(pid) {
                    mover.residency(pid, &ranges)
                } else {
                    vec![Err(ResidencyError::Vanished); ranges.len()]
                };
                answers.extend(ranges.into_iter().zip(found).map(|(range, at)| (pid, range, at)));
            }
            Completion::Located { answers, took_ns: cpu::since_ns(began_ns) }
        }
    }
}

/// Runs of moves of one process, in order, of at most [`BATCH_BYTES_MAX`] beside a first move.
fn batches(moves: &[Move]) -> impl Iterator<Item = &[Move]> {
    let mut bytes = 0;
    moves.chunk_by(move |one, next| {
        bytes += one.bytes;
        let goes_on = one.pid == next.pid && bytes < BATCH_BYTES_MAX;
        if !goes_on {
            bytes = 0;
        }
        goes_on
    })
}

fn vanished(asked: Move) -> Outcome {
    let failed = vec![(Failure::Vanished, asked.bytes)];
    Outcome { failed, ..Outcome::of(asked) }
}

/// Ranges grouped by process, as movers take them.
fn by_process(ranges: Vec<Range>) -> Vec<(u32, Vec<mover::Range>)> {
    let mut grouped: BTreeMap<u32, Vec<mover::Range>> = BTreeMap::new();
    for Range { pid, addr, bytes } in ranges {
        grouped.entry(pid).or_default().push(mover::Range { addr, bytes });
    }
    grouped.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_ledger::movement::Reason;

    /// Notes the calls it gets.
    #[derive(Default)]
    struct Recorder(Vec<String>);

    impl Mover for Recorder {
        fn execute(&mut self, moves: &[Move]) -> Vec<Outcome> {
            let addrs: Vec<u64> = moves.iter().map(|one| one.addr).collect();
            self.0.push(format!("{}: {addrs:?}", moves[0].pid));
            moves.iter().cloned().map(Outcome::of).collect()
        }

        fn residency(
            &mut self,
            pid: u32,
            ranges: &[mover::Range],
        ) -> Vec<Result<Residency, ResidencyError>> {
            self.0.push(format!("look at {pid}"));
            vec![Ok(Residency::default()); ranges.len()]
        }

        fn is_modelled(&self) -> bool {
            false
        }
    }

    fn moved(pid: u32, addr: u64, bytes: u64) -> Move {
        let (from, to, reason) = (None, NodeId(1), Reason::Promote);
        Move { pid, addr, bytes, from, to, reason, gain_ns_per_s: 0.0, cost_ns: 0.0 }
    }

    #[test]
    fn the_process_is_checked_before_each_batch_and_each_look() {
        let (mut recorder, checks) = (Recorder::default(), std::cell::RefCell::new(Vec::new()));
        let is_same = |pid| {
            checks.borrow_mut().push(pid);
            pid != 2
        };
        let (small, half) = (4096, BATCH_BYTES_MAX / 2);
        let moves = vec![
            moved(1, 1, half),
            moved(1, 2, half),
            moved(1, 3, small),
            moved(2, 4, small),
            moved(1, 5, small),
        ];
        let Completion::Executed { outcomes, .. } =
            perform(&mut recorder, Job::Execute(moves.clone()), &is_same)
        else {
            panic!("not executed");
        };
        assert_eq!(
            outcomes.iter().map(|one| &one.asked).collect::<Vec<_>>(),
            Vec::from_iter(&moves)
        );
        assert_eq!(outcomes[3].failed, [(Failure::Vanished, small)]);
        let range = mover::Range { addr: 0, bytes: 4096 };
        let job = Job::LookUp(vec![(1, vec![range]), (2, vec![range])]);
        let Completion::Located { answers, .. } = perform(&mut recorder, job, &is_same) else {
            panic!("not located");
        };
        assert_eq!(answers[1].2, Err(ResidencyError::Vanished));
        assert_eq!(recorder.0, ["1: [1, 2]", "1: [3]", "1: [5]", "look at 1"]);
        assert_eq!(*checks.borrow(), [1, 1, 2, 1, 1, 2]);
    }

    #[test]
    fn a_process_that_did_not_attach_is_never_touched() {
        assert!(!is_same(&Peers::default(), std::process::id()));
    }
}
