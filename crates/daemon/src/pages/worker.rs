//! The mover on a thread of its own, so that rings are drained while memory is copied.
//! In: jobs. Out: what became of them, when it is known. Knows nothing of why anything moves.

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use tiercel_machine::MoveRoom;
use tiercel_mover::Mover;

use super::rounds::{Done, Job, execute};

/// See the module.
pub struct Worker {
    /// `None` after the end.
    jobs: Option<SyncSender<Job>>,
    done: Receiver<Done>,
    is_busy: bool,
    /// The thread is gone: it panicked.
    has_failed: bool,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Worker {
    /// `room` reads what nodes grant.
    pub fn start(
        mut mover: Box<dyn Mover + Send>,
        mut room: impl FnMut() -> Option<MoveRoom> + Send + 'static,
    ) -> std::io::Result<Worker> {
        // One job at a time: more would be decided on stale knowledge.
        let (jobs, todo) = sync_channel::<Job>(1);
        let (report, done) = sync_channel(1);
        let work = move || {
            while let Ok(job) = todo.recv() {
                let mut done = execute(&mut *mover, &job, &mut room);
                done.reshaped = job.reshapes.iter().map(|one| (*one, one.execute())).collect();
                if report.send(done).is_err() {
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

    /// Gives it a job; it must not be busy.
    pub fn execute(&mut self, job: Job) {
        assert!(!self.is_busy, "one job at a time");
        let jobs = self.jobs.as_ref().expect("it has not ended");
        self.is_busy = jobs.send(job).is_ok();
        self.has_failed = !self.is_busy;
    }

    /// What became of the last job, once.
    pub fn done(&mut self) -> Option<Done> {
        match self.done.try_recv() {
            Ok(done) => {
                self.is_busy = false;
                Some(done)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                (self.is_busy, self.has_failed) = (false, true);
                None
            }
        }
    }

    /// Waits for the job under way, so that no move outlives the command.
    pub fn finish(mut self) -> Done {
        self.jobs = None;
        let last =
            if self.is_busy { self.done.recv().unwrap_or_default() } else { Done::default() };
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_ledger::movement::{Move, Outcome, Reason};
    use tiercel_machine::NodeId;
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
        let mut worker = Worker::start(Box::new(Defect), || None).unwrap();
        let asked = Move {
            pid: 1,
            addr: 0,
            bytes: 4096,
            from: None,
            to: NodeId(0),
            reason: Reason::Promote,
            gain_ns_per_s: 0.0,
            cost_ns: 0.0,
        };
        worker.execute(Job { moves: vec![asked], needs: vec![None], ..Job::default() });
        assert!(!worker.has_failed() && worker.is_busy());
        while worker.is_busy() {
            assert!(worker.done().is_none());
            std::thread::yield_now();
        }
        assert!(worker.has_failed());
        assert!(worker.finish().outcomes.is_empty());
    }
}
