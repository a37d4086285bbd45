//! Gives a mover its work without waiting for it: on a thread, or inline on paper.
//! In: jobs. Out: what became of them, when it is known. Knows nothing of why anything moves.
//!
//! The kernel's mover copies for seconds; rings must be drained meanwhile, so it has a thread of
//! its own. The modelled mover only keeps books: it runs inline, and hears of births and deaths.

use crate::cpu;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use tiercel_ledger::movement::{Move, Outcome};
use tiercel_machine::NodeId;
use tiercel_mover::{Insiders, Mover, Range, Residency, ResidencyError};

/// Jobs that may wait: a look and an execution. More would decide on stale knowledge.
const JOBS_MAX: usize = 2;

/// What a mover can be asked to do.
#[derive(Debug)]
pub enum Job {
    /// Say where ranges are; one process at a time.
    Look(Vec<(u32, Vec<Range>)>),
    /// Execute moves in order.
    Execute(Vec<Move>),
}

/// What became of a job.
#[derive(Debug)]
pub enum Done {
    /// Where ranges are.
    Looked {
        /// In the order asked.
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

/// Process, range, where it is.
pub type Answer = (u32, Range, Result<Residency, ResidencyError>);

/// The mover, wherever it works.
pub enum Hands {
    /// On this thread.
    Inline {
        /// The mover.
        mover: Box<dyn Mover + Send>,
        /// Jobs done, not collected.
        done: Vec<Done>,
    },
    /// On its own thread.
    Thread {
        /// Where jobs go in; dropping it ends the thread.
        jobs: SyncSender<Job>,
        /// Where results come out.
        done: Receiver<Done>,
        /// Readable when a result waits.
        wake: Arc<OwnedFd>,
        /// Jobs given and not collected.
        pending: usize,
        /// The thread is gone: it panicked.
        failed: bool,
        /// Processes that move their own memory; `None`: the mover asks nobody.
        insiders: Option<Insiders>,
    },
}

impl Hands {
    /// Puts `mover` to work: inline when it only keeps books.
    pub fn new(mover: Box<dyn Mover + Send>) -> std::io::Result<Hands> {
        if mover.is_modelled() {
            return Ok(Hands::Inline { mover, done: Vec::new() });
        }
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (jobs, inbox) = sync_channel::<Job>(JOBS_MAX);
        let (outbox, done) = sync_channel::<Done>(JOBS_MAX);
        let (bell, insiders) = (Arc::clone(&wake), mover.insiders());
        std::thread::Builder::new().name("tiercel-mover".into()).spawn(move || {
            let mut mover = mover;
            while let Ok(job) = inbox.recv() {
                if outbox.send(perform(mover.as_mut(), job)).is_err() {
                    return;
                }
                // Fails only when the counter is full, and then it is readable.
                let _ = rustix::io::write(&*bell, &1u64.to_ne_bytes());
            }
        })?;
        Ok(Hands::Thread { jobs, done, wake, pending: 0, failed: false, insiders })
    }

    /// Gives a job; hands it back when there is no room.
    pub fn give(&mut self, job: Job) -> Result<(), Job> {
        match self {
            Hands::Inline { mover, done } => {
                done.push(perform(mover.as_mut(), job));
                Ok(())
            }
            Hands::Thread { jobs, pending, .. } => match jobs.try_send(job) {
                Ok(()) => {
                    *pending += 1;
                    Ok(())
                }
                Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => Err(job),
            },
        }
    }

    /// What is done, without waiting.
    pub fn collect(&mut self) -> Vec<Done> {
        match self {
            Hands::Inline { done, .. } => std::mem::take(done),
            Hands::Thread { done, wake, pending, failed, .. } => {
                let _ = rustix::io::read(&**wake, &mut [0u8; 8]);
                let mut results = Vec::new();
                loop {
                    match done.try_recv() {
                        Ok(result) => results.push(result),
                        Err(TryRecvError::Empty) => break,
                        Err(TryRecvError::Disconnected) => {
                            *failed = true;
                            break;
                        }
                    }
                }
                *pending -= results.len();
                results
            }
        }
    }

    /// True when the mover's thread is gone; nothing moves any longer.
    pub fn has_failed(&self) -> bool {
        matches!(self, Hands::Thread { failed: true, .. })
    }

    /// True while a job is under way.
    pub fn is_busy(&self) -> bool {
        match self {
            Hands::Inline { done, .. } => !done.is_empty(),
            Hands::Thread { pending, .. } => *pending > 0,
        }
    }

    /// Becomes readable when a result waits; `None` inline.
    pub fn wake(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Hands::Inline { .. } => None,
            Hands::Thread { wake, .. } => Some(wake.as_fd()),
        }
    }

    /// Processes that move their own memory; `None`: the mover asks nobody.
    pub fn insiders(&self) -> Option<&Insiders> {
        match self {
            Hands::Inline { .. } => None,
            Hands::Thread { insiders, .. } => insiders.as_ref(),
        }
    }

    /// True when somebody keeps books of births and deaths.
    pub fn keeps_books(&self) -> bool {
        matches!(self, Hands::Inline { .. })
    }

    /// An object was born, on `node` if its arena has one.
    pub fn born(&mut self, pid: u32, range: Range, node: Option<NodeId>) {
        if let Hands::Inline { mover, .. } = self {
            mover.born(pid, range, node);
        }
    }

    /// An object died.
    pub fn died(&mut self, pid: u32, range: Range) {
        if let Hands::Inline { mover, .. } = self {
            mover.died(pid, range);
        }
    }

    /// A process is gone.
    pub fn gone(&mut self, pid: u32) {
        if let Some(insiders) = self.insiders() {
            insiders.left(pid);
        }
        if let Hands::Inline { mover, .. } = self {
            mover.gone(pid);
        }
    }
}

fn perform(mover: &mut dyn Mover, job: Job) -> Done {
    let began_ns = cpu::thread_ns();
    match job {
        Job::Execute(moves) => {
            Done::Executed { outcomes: mover.execute(&moves), took_ns: cpu::since_ns(began_ns) }
        }
        Job::Look(asked) => {
            let mut answers = Vec::new();
            for (pid, ranges) in asked {
                let found = mover.residency(pid, &ranges);
                answers.extend(ranges.into_iter().zip(found).map(|(range, at)| (pid, range, at)));
            }
            Done::Looked { answers, took_ns: cpu::since_ns(began_ns) }
        }
    }
}
