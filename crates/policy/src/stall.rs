//! What accesses to a range would stall for, had it stayed where it was.
//! In: the ledger when a move is asked for, and later. Out: nanoseconds an access. Knows nothing of
//! what became of the move.

use tiercel_ledger::Ledger;
use tiercel_ledger::movement::Move;

use crate::trial::heat_of;

/// As of when the move was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stayed {
    /// Of an access to the range; `None`: none was seen.
    own_ns: Option<f64>,
    /// Mean latency of the memory it was in.
    latency_ns: Option<f64>,
}

impl Stayed {
    pub(crate) fn of(ledger: &Ledger, asked: &Move) -> Stayed {
        let (accesses_per_s, cost_ns_per_s) = heat_of(ledger, asked);
        let own_ns = (accesses_per_s > 0.0).then(|| cost_ns_per_s / accesses_per_s);
        Stayed { own_ns, latency_ns: latency_of_from(ledger, asked) }
    }

    /// Now. Load changes all latencies of a memory alike: what others see there now says more than
    /// what the range saw before. `None` where nobody sees latencies.
    pub(crate) fn stall_ns(&self, ledger: &Ledger, asked: &Move) -> Option<f64> {
        let now_ns = latency_of_from(ledger, asked);
        match (self.own_ns, self.latency_ns, now_ns) {
            (Some(own_ns), Some(then_ns), Some(now_ns)) => Some(own_ns * now_ns / then_ns),
            (Some(own_ns), ..) => Some(own_ns),
            (None, _, Some(now_ns)) => Some(now_ns / f64::from(ledger.config().parallelism)),
            (None, ..) => None,
        }
    }
}

fn latency_of_from(ledger: &Ledger, asked: &Move) -> Option<f64> {
    let ns = asked.from.and_then(|from| ledger.latency_ns(from))?;
    (ns > 0.0).then(|| f64::from(ns))
}
