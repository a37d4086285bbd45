//! The mover on a thread of its own, so that rings are drained while memory is copied.
//! In: moves. Out: outcomes, when they are known. Knows nothing of why anything moves.

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use tiercel_ledger::movement::{Move, Outcome};
use tiercel_mover::Mover;

/// See the module.
pub struct Worker {
    /// `None` after the end.
    jobs: Option<SyncSender<Vec<Move>>>,
    done: Receiver<Vec<Outcome>>,
    is_busy: bool,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Worker {
    pub fn start(mut mover: Box<dyn Mover + Send>) -> std::io::Result<Worker> {
        // One job at a time: more would be decided on stale knowledge.
        let (jobs, todo) = sync_channel::<Vec<Move>>(1);
        let (report, done) = sync_channel(1);
        let work = move || {
            while let Ok(moves) = todo.recv() {
                if report.send(mover.execute(&moves)).is_err() {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new().name("tiercel-mover".to_owned()).spawn(work)?;
        Ok(Worker { jobs: Some(jobs), done, is_busy: false, thread: Some(thread) })
    }

    pub fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Gives it moves; it must not be busy.
    pub fn execute(&mut self, moves: Vec<Move>) {
        assert!(!self.is_busy, "one job at a time");
        let jobs = self.jobs.as_ref().expect("it has not ended");
        self.is_busy = jobs.send(moves).is_ok();
    }

    /// The outcomes of the last job, once.
    pub fn outcomes(&mut self) -> Option<Vec<Outcome>> {
        match self.done.try_recv() {
            Ok(outcomes) => {
                self.is_busy = false;
                Some(outcomes)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                self.is_busy = false;
                None
            }
        }
    }

    /// Waits for the job under way, so that no move outlives the command.
    pub fn finish(mut self) -> Vec<Outcome> {
        self.jobs = None;
        let last = if self.is_busy { self.done.recv().unwrap_or_default() } else { Vec::new() };
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        last
    }
}
