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
    /// The thread is gone: it panicked.
    has_failed: bool,
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
        let thread = Some(thread);
        Ok(Worker { jobs: Some(jobs), done, is_busy: false, has_failed: false, thread })
    }

    pub fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Nothing moves any longer.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Gives it moves; it must not be busy.
    pub fn execute(&mut self, moves: Vec<Move>) {
        assert!(!self.is_busy, "one job at a time");
        let jobs = self.jobs.as_ref().expect("it has not ended");
        self.is_busy = jobs.send(moves).is_ok();
        self.has_failed = !self.is_busy;
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
                (self.is_busy, self.has_failed) = (false, true);
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

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_mover::{Range, Residency, ResidencyError};

    struct Defect;

    impl Mover for Defect {
        fn execute(&mut self, _moves: &[Move]) -> Vec<Outcome> {
            panic!("a defect")
        }

        fn residency(&mut self, _: u32, _: &[Range]) -> Vec<Result<Residency, ResidencyError>> {
            Vec::new()
        }

        fn is_modelled(&self) -> bool {
            false
        }
    }

    #[test]
    fn a_mover_that_panics_is_noticed() {
        let mut worker = Worker::start(Box::new(Defect)).unwrap();
        worker.execute(Vec::new());
        assert!(!worker.has_failed() && worker.is_busy());
        while worker.is_busy() {
            assert!(worker.outcomes().is_none());
            std::thread::yield_now();
        }
        assert!(worker.has_failed());
        assert!(worker.finish().is_empty());
    }
}
