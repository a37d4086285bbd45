//! Moves ahead of time: what a phase leaves alone goes where the next one has it, while it lasts.
//! In: the phase that was entered, the plan. Out: jobs for the mover, a few MiB each.
//! Knows nothing of how a plan foretells the next phase.
//!
//! Nobody waits for these moves. A phase that comes sooner than foretold waits for the one job
//! under way, and one that was not foretold puts things right at its entry, as without them.

use std::collections::VecDeque;

use crate::daemon::Daemon;
use tiercel_ledger::movement::Move;

/// Bytes of one job, or a single extent: what an entry may have to wait for. 4 MiB at 1 GB/s are 4
/// ms.
const JOB_BYTES: u64 = 4 << 20;

/// Moves that wait in one phase of one client; what is beyond moves at the next entry.
const WAITING_MAX: usize = 1 << 16;

/// Moves for the next phase of one client.
#[derive(Debug)]
pub(crate) struct Ahead {
    number: u32,
    /// The entry they began after; another one makes them void.
    entries: u32,
    waiting: VecDeque<Move>,
}

impl Ahead {
    /// As many moves as one job has.
    fn take_job(&mut self) -> Vec<Move> {
        let mut bytes = 0;
        let fit = self.waiting.iter().take_while(|one| {
            bytes += one.bytes;
            bytes <= JOB_BYTES
        });
        let count = fit.count().max(1).min(self.waiting.len());
        self.waiting.drain(..count).collect()
    }
}

impl Daemon {
    /// A phase was entered, and what it waited for is done or under way: what may move during it
    /// waits for the mover from now on.
    pub(crate) fn look_ahead(&mut self, number: u32, entries: u32, phase: u64) {
        let next = self.planned.as_ref().and_then(|planned| planned.next_of(phase));
        let mut waiting = match next {
            Some(next) => self.moves_into(number, next, Some(phase)),
            None => Vec::new(),
        };
        waiting.truncate(WAITING_MAX);
        let Some(planned) = &mut self.planned else { return };
        planned.ahead.retain(|ahead| ahead.number != number);
        if !waiting.is_empty() {
            planned.ahead.push(Ahead { number, entries, waiting: waiting.into() });
        }
    }

    /// Gives the mover one job, when it has nothing to do.
    pub(crate) fn move_ahead(&mut self) {
        let Some(planned) = &mut self.planned else { return };
        if !planned.is_idle() {
            return;
        }
        let clients = &self.clients;
        planned.ahead.retain(|ahead| {
            let client = clients.get(&ahead.number);
            !ahead.waiting.is_empty()
                && client.is_some_and(|client| client.session.phase_entered().0 == ahead.entries)
        });
        let Some(ahead) = planned.ahead.first_mut() else { return };
        let job = ahead.take_job();
        let bytes: u64 = job.iter().map(|one| one.bytes).sum();
        if self.give_moves(job, None)
            && let Some(planned) = &mut self.planned
        {
            planned.early_bytes += bytes;
        }
    }
}
