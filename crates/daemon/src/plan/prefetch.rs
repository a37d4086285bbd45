//! Moves ahead of time: what a phase does not use goes where the next phase has it.
//! In: the moves that a plan has for the next phase. Out: jobs for the mover, a few MiB each.
//! Knows nothing of how a plan predicts the next phase.
//!
//! No program waits for these moves. A phase that comes sooner than predicted waits for the one job
//! in flight; one that was not predicted moves at its entry what is misplaced, as without prefetch.

use crate::clients::table::Clients;
use std::collections::VecDeque;
use tiercel_ledger::movement::Move;

/// Bytes of one job, or a single extent: what a phase entry may have to wait for. 4 MiB at 1 GB/s
/// take 4 ms.
const JOB_BYTES: u64 = 4 << 20;

/// Moves that wait in one phase of one client, 64 bytes each: 4 MiB. What is beyond moves at the
/// next entry.
const WAITING_MAX: usize = 1 << 16;

/// Moves for the next phases of all clients.
#[derive(Debug, Default)]
pub(crate) struct Prefetch {
    ahead: Vec<Ahead>,
    bytes: u64,
}

/// Moves for the next phase of one client.
#[derive(Debug)]
struct Ahead {
    number: u32,
    /// The entry after which they began; another entry cancels them.
    entries: u32,
    waiting: VecDeque<Move>,
}

impl Prefetch {
    /// A client entered a phase: from now on these moves wait for the mover, and earlier ones of
    /// the client no longer.
    pub(crate) fn plan(&mut self, number: u32, entries: u32, mut moves: Vec<Move>) {
        self.ahead.retain(|ahead| ahead.number != number);
        moves.truncate(WAITING_MAX);
        if !moves.is_empty() {
            self.ahead.push(Ahead { number, entries, waiting: moves.into() });
        }
    }

    /// The next job; `None` when nothing waits.
    pub(crate) fn take_job(&mut self, clients: &Clients) -> Option<Vec<Move>> {
        self.ahead.retain(|ahead| {
            let client = clients.get(ahead.number);
            !ahead.waiting.is_empty()
                && client.is_some_and(|client| client.session.phase_entered().0 == ahead.entries)
        });
        self.ahead.first_mut().map(Ahead::take_job)
    }

    /// The mover took a job.
    pub(crate) fn submitted(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Bytes submitted so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Cancels everything that waits.
    pub(crate) fn clear(&mut self) {
        self.ahead.clear();
    }
}

impl Ahead {
    /// As many moves as one job has, at least one.
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

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_ledger::movement::Reason;
    use tiercel_machine::NodeId;

    fn moves(mib: &[u64]) -> Vec<Move> {
        let one = |mib: &u64| Move {
            pid: 1,
            addr: 0,
            bytes: mib << 20,
            from: None,
            to: NodeId(0),
            reason: Reason::Asked,
            gain_ns_per_s: 0.0,
            cost_ns: 0.0,
        };
        mib.iter().map(one).collect()
    }

    #[test]
    fn a_job_is_a_few_mib_or_one_extent() {
        let waiting = moves(&[1, 2, 2, 64, 1]).into();
        let mut ahead = Ahead { number: 1, entries: 1, waiting };
        let jobs: Vec<usize> = (0..4).map(|_| ahead.take_job().len()).collect();
        assert_eq!(jobs, [2, 1, 1, 1]);
    }
}
