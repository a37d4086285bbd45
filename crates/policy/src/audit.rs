//! Compares realised with predicted benefit of executed moves, over the horizon of the prediction.
//! In: executed moves with their predicted gains; the ledger after each tick. Out: by what factor
//! to discount gains from now on. Knows nothing of verdicts.
//!
//! A trial measures a moment. It cannot see phases that end, gains that samples overstate, or
//! programs whose access rate rises once their data is fast. So moves are observed for the horizon
//! for which their benefit was estimated:
//!
//! ```text
//! share = (c + realised) / (c + predicted)     nanoseconds of stall, of late
//! ```
//! where c is the cost of the latest moves: without evidence the share is 1.

use tiercel_ledger::movement::{Move, Outcome, Reason};
use tiercel_ledger::{Ledger, realized_mean};

use crate::trial::heat_of;

/// Most moves that are observed; others are assumed to behave like them.
const WATCHED_MAX: usize = 512;

/// Bounds of the realised share: the future may differ from the past.
const SHARE: [f64; 2] = [0.25, 4.0];

/// Weight of the latest assignment's cost.
const LATEST: f64 = 0.5;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    watched: Vec<Watched>,
    /// Realised and predicted benefit, nanoseconds, fading over the horizon.
    realised_ns: f64,
    predicted_ns: f64,
    /// Of an assignment's moves.
    cost_ns: f64,
    /// Those reported since the last tick.
    cost_now_ns: f64,
}

#[derive(Debug)]
struct Watched {
    asked: Move,
    /// How long it has been observed.
    for_s: f64,
    /// Averages at the last tick; `None` before the first.
    last: Option<(f64, f64)>,
}

impl Audit {
    /// The executed result of a move.
    pub(crate) fn outcome(&mut self, outcome: &Outcome) {
        let asked = &outcome.asked;
        if outcome.moved_bytes == 0 || asked.reason == Reason::TakeBack {
            return;
        }
        self.cost_now_ns += outcome.took_ns as f64;
        // It was moved again: the observation of the last move ends here.
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
        let kept = ledger.kept(intervals);
        let parallelism = f64::from(ledger.config().parallelism);
        let fade = (-elapsed_s / horizon_s).exp();
        let (mut realised_ns, mut predicted_ns) =
            (self.realised_ns * fade, self.predicted_ns * fade);
        for one in &mut self.watched {
            let now = heat_of(ledger, &one.asked);
            let Some(last) = one.last.replace(now) else { continue };
            one.for_s += elapsed_s;
            let Some(from_ns) = one.asked.from.and_then(|from| ledger.latency_ns(from)) else {
                continue;
            };
            let of_interval = |now: f64, last: f64| realized_mean(now, last, kept).max(0.0);
            let stall_ns = of_interval(now.0, last.0) * f64::from(from_ns) / parallelism;
            realised_ns += (stall_ns - of_interval(now.1, last.1)) * elapsed_s;
            predicted_ns += one.asked.gain_ns_per_s * elapsed_s;
        }
        (self.realised_ns, self.predicted_ns) = (realised_ns, predicted_ns);
        self.watched.retain(|one| one.for_s < horizon_s);
    }

    /// The factor by which to multiply gains.
    pub(crate) fn gains_believed(&self) -> f64 {
        let share = (self.cost_ns + self.realised_ns) / (self.cost_ns + self.predicted_ns.max(0.0));
        if share.is_finite() { share.clamp(SHARE[0], SHARE[1]) } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use tiercel_ledger::{Config, Range};
    use tiercel_machine::NodeId;
    use tiercel_wire::{AccessKind, Flags, Record, Sample, Version};

    use super::*;

    const PID: u32 = 1;
    const ADDR: u64 = 1 << 30;
    const BYTES: u64 = 1 << 20;
    const HORIZON_S: f64 = 30.0;

    /// An extent in node 1, accessed a hundred thousand times a second at 400 ns, four at once: 10
    /// ms of stall a second.
    struct World {
        ledger: Ledger,
        now_ms: u64,
    }

    impl World {
        fn new() -> World {
            let mut ledger = Ledger::new(Config::default(), 0).expect("good");
            ledger.process_born(PID).expect("new");
            let version = Version { carve: 1, generation: 0 };
            let (addr, bytes, site, arena, flags) = (ADDR, BYTES, 0, None, Flags(0));
            ledger
                .apply(PID, &Record::Born { addr, bytes, site, version, arena, flags, time_ns: 0 });
            let mut world = World { ledger, now_ms: 0 };
            (0..20).for_each(|_| world.step(100, 400));
            let range = Range { pid: PID, addr: ADDR, bytes: BYTES };
            world.ledger.set_residency(range, &[(NodeId(1), BYTES)], world.now_ms);
            (0..20).for_each(|_| world.step(100, 400));
            world
        }

        /// Two seconds with so many samples.
        fn step(&mut self, samples: u64, latency_ns: u32) {
            for nth in 0..samples {
                self.ledger.sample(&Sample {
                    from_ns: self.now_ms * 1_000_000,
                    until_ns: self.now_ms * 1_000_000,
                    pid: PID,
                    tid: 0,
                    addr: ADDR + nth % 100 * BYTES / 100,
                    kind: AccessKind::Read,
                    latency_ns: Some(latency_ns),
                    node: None,
                    weight: 2000,
                    around: None,
                    cpu: None,
                });
            }
            self.now_ms += 2000;
            self.ledger.tick(self.now_ms);
        }

        /// The share after the extent moved, for 10 ms, to save all of that, and so many intervals.
        fn share(&mut self, intervals: u32, samples: u64, latency_ns: u32) -> f64 {
            let mut audit = Audit::default();
            let asked = Move {
                pid: PID,
                addr: ADDR,
                bytes: BYTES,
                from: Some(NodeId(1)),
                to: NodeId(0),
                reason: Reason::Promote,
                gain_ns_per_s: 10_000_000.0,
                cost_ns: 0.0,
            };
            audit.outcome(&Outcome {
                moved_bytes: BYTES,
                resident_bytes: BYTES,
                took_ns: 10_000_000,
                ..Outcome::of(asked)
            });
            let range = Range { pid: PID, addr: ADDR, bytes: BYTES };
            self.ledger.set_residency(range, &[(NodeId(0), BYTES)], self.now_ms);
            for _ in 0..intervals {
                self.step(samples, latency_ns);
                audit.observe(&self.ledger, 2000, HORIZON_S);
            }
            audit.gains_believed()
        }
    }

    #[test]
    fn nothing_seen_changes_nothing() {
        assert_eq!(Audit::default().gains_believed(), 1.0);
        assert_eq!(World::new().share(1, 100, 400), 1.0);
    }

    #[test]
    fn gains_that_come_true_are_believed_and_others_less() {
        let whole = World::new().share(10, 100, 1);
        assert!((0.9..1.1).contains(&whole), "{whole}");
        let half = World::new().share(10, 50, 1);
        assert!((0.5..0.55).contains(&half), "{half}");
        assert_eq!(World::new().share(14, 0, 1), SHARE[0], "no access returned");
        let twice = World::new().share(10, 200, 1);
        assert!((1.7..2.0).contains(&twice), "{twice}");
    }

    #[test]
    fn what_came_is_forgotten_after_the_horizon() {
        let share = World::new().share(150, 0, 1);
        assert!(share > 0.9, "{share}");
    }
}
