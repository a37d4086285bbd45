//! How much of what moves were to gain came true, for as long as it was to last.
//! In: moves that were done, with the gain believed; the ledger after each tick. Out: the share to
//! believe of gains from now on. Knows nothing of verdicts.
//!
//! A trial sees an instant. What it cannot see: phases that end, gains that samples overstate, and
//! programs that come to use what they need all the faster. So moves are watched for the horizon
//! that their gain was reckoned with:
//!
//! ```text
//! share = (c + came) / (c + believed)     nanoseconds of stall, of late
//! ```
//! where c is what the latest moves cost: as if so much had come as believed.

use tiercel_ledger::Ledger;
use tiercel_ledger::movement::{Move, Outcome, Reason};

use crate::trial::heat_of;

/// Most moves that are watched; others are taken to be like them.
const WATCHED_MAX: usize = 512;

/// The share is neither below nor above, whatever came: the future may differ.
const SHARE: [f64; 2] = [0.125, 4.0];

/// Weight of the latest assignment's cost.
const LATEST: f64 = 0.5;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    watched: Vec<Watched>,
    /// What came and what was believed, nanoseconds, fading over the horizon.
    came_ns: f64,
    believed_ns: f64,
    /// Of an assignment's moves.
    cost_ns: f64,
    /// Of those that were told since the last tick.
    cost_now_ns: f64,
}

#[derive(Debug)]
struct Watched {
    asked: Move,
    /// How long it has been watched.
    for_s: f64,
    /// Averages at the last tick; `None` before the first.
    last: Option<(f64, f64)>,
}

impl Audit {
    /// What became of a move.
    pub(crate) fn outcome(&mut self, outcome: &Outcome) {
        let asked = &outcome.asked;
        if outcome.moved_bytes == 0 || asked.reason == Reason::TakeBack {
            return;
        }
        self.cost_now_ns += outcome.took_ns as f64;
        // It was moved on: what came of the last move ends here.
        self.watched.retain(|one| (one.asked.pid, one.asked.addr) != (asked.pid, asked.addr));
        if self.watched.len() < WATCHED_MAX {
            self.watched.push(Watched { asked: asked.clone(), for_s: 0.0, last: None });
        }
    }

    /// An interval ended.
    pub(crate) fn observe(&mut self, ledger: &Ledger, elapsed_ms: u64, horizon_s: f64) {
        if self.cost_now_ns > 0.0 {
            self.cost_ns += (self.cost_now_ns - self.cost_ns) * LATEST;
            self.cost_now_ns = 0.0;
        }
        let elapsed_s = elapsed_ms as f64 / 1e3;
        let intervals = elapsed_ms as f64 / ledger.config().tick_ms.max(1) as f64;
        let keep = (1.0 - f64::from(ledger.config().alpha)).powf(intervals);
        let parallelism = f64::from(ledger.config().parallelism);
        let fade = (-elapsed_s / horizon_s).exp();
        let (mut came_ns, mut believed_ns) = (self.came_ns * fade, self.believed_ns * fade);
        for one in &mut self.watched {
            let now = heat_of(ledger, &one.asked);
            let Some(last) = one.last.replace(now) else { continue };
            one.for_s += elapsed_s;
            let Some(from_ns) = one.asked.from.and_then(|from| ledger.latency_ns(from)) else {
                continue;
            };
            let of_interval = |now: f64, last: f64| ((now - keep * last) / (1.0 - keep)).max(0.0);
            let stall_ns = of_interval(now.0, last.0) * f64::from(from_ns) / parallelism;
            came_ns += (stall_ns - of_interval(now.1, last.1)) * elapsed_s;
            believed_ns += one.asked.gain_ns_per_s * elapsed_s;
        }
        (self.came_ns, self.believed_ns) = (came_ns, believed_ns);
        self.watched.retain(|one| one.for_s < horizon_s);
    }

    /// What to multiply gains by.
    pub(crate) fn share(&self) -> f64 {
        let share = (self.cost_ns + self.came_ns) / (self.cost_ns + self.believed_ns.max(0.0));
        if share.is_finite() { share.clamp(SHARE[0], SHARE[1]) } else { 1.0 }
    }
}
