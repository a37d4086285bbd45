//! Trials: a small share moves first, and its measured benefit decides whether more follows. Moves
//! that did harm are reverted.
//! In: requested moves, their outcomes, extents' latencies, instructions. Out: verdicts, moves
//! back, what may be promoted meanwhile. Knows nothing of how moves are chosen.
//!
//! ```text
//! Share --asks for a share--> trial --paid----> four times the share ... --paid--> All ...
//!   ^                           | |                                      |
//!   +--- as much again <--------|-+ unclear                              |
//!   +---- held, twice as long <-+-- did not pay ; did harm: taken back <-+
//! ```
//! Moves that gained too little for their cost are not reverted: the cost is spent, and going back
//! costs as much again.
//! The effect of a move is measured on the extents it moved: their latencies once it is done,
//! compared with those of the memory they came from at the same time. Few samples are weak
//! evidence, so a verdict uses [`Evidence`].
//! Without latencies in samples, instructions per second at least show a loss. Without either,
//! nothing is measured, nothing is held back, and the verdict states that.

use std::collections::{HashMap, VecDeque};
use tiercel_machine::number::saturating_u64;

use tiercel_ledger::movement::{Failure, Move, Outcome, Reason};
use tiercel_ledger::{Ledger, realized_mean};
use tiercel_machine::NodeId;

use crate::evidence::{Evidence, Finding, Measured};
use crate::interval::Interval;
use crate::routine::Benefit;
use crate::trial_result::{TrialResult, Verdict};

/// Moves of one trial that are remembered to be judged and taken back; those beyond stay.
pub const TRIAL_MOVES_MAX: usize = 8192;

/// Ticks after the last outcome at which a trial is judged: with latencies seen, or without. A tick
/// may come a little early.
const JUDGE_TICKS: [f64; 2] = [0.95, 1.95];
/// Ticks after which it is judged although outcomes are missing.
const TRIAL_TICKS_MAX: f64 = 9.95;
/// Samples with latency that must have arrived since.
const SAMPLES_MIN: u64 = 64;
/// Share of its former accesses that must have returned to promoted memory.
const RETURNED_MIN: f64 = 0.5;
/// Intervals before a trial whose instructions are compared with those after.
const BASELINE: usize = 8;
/// Nothing is compared with fewer.
const BASELINE_MIN: usize = 3;
/// Fewer instructions per second than this share of the baseline are a loss, if the drop exceeds
/// [`LOSS_DEVIATIONS`] as well.
const LOSS: f64 = 0.97;
/// Standard deviations of the baseline that a loss exceeds: 2.3% of drops by chance do.
const LOSS_DEVIATIONS: f64 = 2.0;
/// After a trial that paid comes one four times as large: from a twentieth, all in the fourth.
pub(crate) const RAMP: f64 = 4.0;
/// Maximum number of doublings of the back-off.
const DOUBLINGS_MAX: u32 = 5;

/// What may be promoted now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum PromotionAllowance {
    /// Anything.
    All,
    /// A share of the best tier, to see whether it pays.
    Share(f64),
    /// Nothing: a first trial is under way, or the last one did not pay.
    Nothing,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Trials {
    /// Shares that paid since the last time one did not.
    paid: u32,
    /// Nothing is promoted before this time, daemon's clock.
    held_until_ms: u64,
    doublings: u32,
    open: Option<Trial>,
    evidence: Evidence,
    /// Instructions per second of the latest intervals.
    speeds: VecDeque<f64>,
    samples_with_latency: u64,
}

#[derive(Debug)]
struct Trial {
    asked_ms: u64,
    canary: bool,
    moved: Vec<Moved>,
    /// Index into `moved`, by request.
    by_request: HashMap<(u32, u64, NodeId), usize>,
    expected_ns_per_s: f64,
    believed: f64,
    cost_ns: f64,
    /// Outcomes that are still to come.
    awaited: usize,
    /// Since it was asked for, in ticks of the usual length.
    ticks: f64,
    /// Since an interval began with all outcomes known; `None` before that.
    since: Option<f64>,
    /// Intervals in that time.
    intervals_since: usize,
    /// As of that interval's begin.
    samples_before: u64,
    speeds_before: Vec<f64>,
}

#[derive(Debug)]
struct Moved {
    asked: Move,
    moved_bytes: u64,
    /// Failed for lack of memory.
    no_memory_bytes: u64,
    /// Mean latency, divided by parallelism, at the request.
    stall_ns: f64,
    /// Estimated accesses per second at the request.
    believed_per_s: f64,
    /// Averages at the beginning of the first interval after it was done.
    accesses_per_s: f64,
    cost_ns_per_s: f64,
}

impl Trials {
    /// What may be promoted now. Without a gate or a measure, anything.
    pub(crate) fn allowance(
        &self,
        gate: Option<&Benefit>,
        interval: &Interval,
        now_ms: u64,
    ) -> PromotionAllowance {
        let Some(gate) = gate.filter(|gate| gate.canary > 0.0) else {
            return PromotionAllowance::All;
        };
        if !self.measures(interval) {
            return PromotionAllowance::All;
        }
        let share = gate.canary * RAMP.powi(i32::try_from(self.paid).unwrap_or(i32::MAX));
        match () {
            () if now_ms < self.held_until_ms => PromotionAllowance::Nothing,
            // Once moving has paid repeatedly, nothing waits for one more verdict.
            () if share >= 1.0 => PromotionAllowance::All,
            () if self.open.is_some() => PromotionAllowance::Nothing,
            () if self.samples_with_latency == 0 && self.speeds.len() < BASELINE_MIN => {
                PromotionAllowance::Nothing
            }
            () => PromotionAllowance::Share(share),
        }
    }

    fn measures(&self, interval: &Interval) -> bool {
        !interval.is_modelled && (self.samples_with_latency > 0 || interval.instructions.is_some())
    }

    /// An interval ended.
    pub(crate) fn observe(&mut self, ledger: &Ledger, interval: &Interval, ticks: f64) {
        self.samples_with_latency = ledger.totals().samples_with_latency;
        if let Some(instructions) = interval.instructions.filter(|_| interval.elapsed_ms > 0) {
            if self.speeds.len() == BASELINE {
                self.speeds.pop_front();
            }
            self.speeds.push_back(instructions as f64 * 1e3 / interval.elapsed_ms as f64);
        }
        if let Some(trial) = &mut self.open {
            trial.ticks += ticks;
            match &mut trial.since {
                Some(since) => {
                    (*since, trial.intervals_since) = (*since + ticks, trial.intervals_since + 1)
                }
                None if trial.awaited == 0 => {
                    (trial.since, trial.samples_before) = (Some(0.0), self.samples_with_latency);
                    for moved in &mut trial.moved {
                        (moved.accesses_per_s, moved.cost_ns_per_s) = heat_of(ledger, &moved.asked);
                    }
                }
                None => {}
            }
        }
    }

    /// Begins a trial of these moves, which were requested.
    pub(crate) fn begin(
        &mut self,
        ledger: &Ledger,
        moves: &[Move],
        allowance: PromotionAllowance,
        believed: f64,
    ) {
        if self.open.is_some() || !moves.iter().any(|asked| asked.reason == Reason::Promote) {
            return;
        }
        let moved = moves.iter().take(TRIAL_MOVES_MAX).map(|asked| {
            let (accesses_per_s, cost_ns_per_s) = heat_of(ledger, asked);
            let stall_ns = if accesses_per_s > 0.0 { cost_ns_per_s / accesses_per_s } else { 0.0 };
            Moved {
                asked: asked.clone(),
                moved_bytes: 0,
                no_memory_bytes: 0,
                stall_ns,
                believed_per_s: accesses_per_s,
                accesses_per_s,
                cost_ns_per_s,
            }
        });
        let moved: Vec<_> = moved.collect();
        // The first of equal ones counts, so the last is noted first.
        let by_request =
            moved.iter().enumerate().rev().map(|(at, one)| (request_key(&one.asked), at));
        self.open = Some(Trial {
            asked_ms: ledger.now_ms(),
            canary: matches!(allowance, PromotionAllowance::Share(_)),
            expected_ns_per_s: moves.iter().map(|asked| asked.gain_ns_per_s).sum(),
            believed,
            cost_ns: 0.0,
            awaited: moved.len(),
            by_request: by_request.collect(),
            moved,
            ticks: 0.0,
            since: None,
            intervals_since: 0,
            samples_before: self.samples_with_latency,
            speeds_before: self.speeds.iter().copied().collect(),
        });
    }

    /// The outcome of a move.
    pub(crate) fn outcome(&mut self, outcome: &Outcome) {
        let Some(trial) = &mut self.open else { return };
        let Some(&at) = trial.by_request.get(&request_key(&outcome.asked)) else { return };
        let short = outcome.failed.iter().filter(|(failure, _)| *failure == Failure::NoMemory);
        trial.moved[at].no_memory_bytes = short.map(|(_, bytes)| bytes).sum();
        trial.moved[at].moved_bytes = outcome.moved_bytes;
        trial.awaited = trial.awaited.saturating_sub(1);
        trial.cost_ns += outcome.took_ns as f64;
    }

    /// Judges the open trial when it is due. Returns the verdict, and the moves that revert it.
    pub(crate) fn judge(
        &mut self,
        ledger: &Ledger,
        gate: Option<&Benefit>,
        interval: &Interval,
    ) -> Option<(TrialResult, Vec<Move>)> {
        let trial = self.open.as_ref()?;
        let measured = self.measures(interval).then(|| self.measure(ledger, trial)).flatten();
        let is_due = match trial.since {
            Some(since) => {
                let has_seen = self.samples_with_latency >= trial.samples_before + SAMPLES_MIN;
                let sees_none = self.samples_with_latency == 0;
                // Latencies are waited for where there are any: they say more than instructions.
                // A trial also waits for accesses to return; harm ends it at once.
                let harms = || trial.did_harm(gate, measured.as_ref());
                (has_seen && since >= JUDGE_TICKS[0] && (trial.has_returned(ledger) || harms()))
                    || (sees_none && since >= JUDGE_TICKS[1])
                    || since >= TRIAL_TICKS_MAX
            }
            None => trial.ticks >= TRIAL_TICKS_MAX,
        };
        if !is_due {
            return None;
        }
        let trial = self.open.take()?;
        let verdict = self.verdict(&trial, gate, measured.as_ref());
        let now_ms = ledger.now_ms();
        let mut back = Vec::new();
        match (verdict, gate) {
            (Verdict::NotPaid | Verdict::TakenBack, Some(gate)) => {
                (self.paid, self.evidence) = (0, Evidence::default());
                let wait_ms = gate.settle_s * 1e3 * f64::from(1 << self.doublings);
                self.held_until_ms = now_ms + saturating_u64(wait_ms);
                self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
                if verdict == Verdict::TakenBack {
                    back = trial.back();
                }
            }
            (Verdict::Paid, _) => {
                (self.paid, self.doublings) = (self.paid.saturating_add(1), 0);
            }
            _ => {}
        }
        let judged = TrialResult {
            asked_ms: trial.asked_ms,
            judged_ms: now_ms,
            canary: trial.canary,
            moves: trial.moved.len() as u64,
            moved_bytes: trial.moved.iter().map(|moved| moved.moved_bytes).sum(),
            expected_ns_per_s: trial.expected_ns_per_s,
            believed: trial.believed,
            measured_ns_per_s: measured.as_ref().map(Measured::ns_per_s),
            samples: measured.map_or(0.0, |measured| measured.samples),
            cost_ns: trial.cost_ns,
            verdict,
        };
        Some((judged, back))
    }

    fn verdict(
        &mut self,
        trial: &Trial,
        gate: Option<&Benefit>,
        measured: Option<&Measured>,
    ) -> Verdict {
        let promotions = trial.moved.iter().filter(|one| one.asked.reason == Reason::Promote);
        let add =
            |(moved, short), one: &Moved| (moved + one.moved_bytes, short + one.no_memory_bytes);
        let (moved_bytes, no_memory_bytes) = promotions.fold((0, 0), add);
        if moved_bytes <= no_memory_bytes {
            return Verdict::Unmeasured; // Little came of it, which says nothing of moving.
        }
        match (gate, measured) {
            (Some(_), Some(_)) if trial.did_harm(gate, measured) => Verdict::TakenBack,
            (Some(gate), Some(measured)) => {
                match self.evidence.weigh(measured, trial.needed_ns_per_s(gate)) {
                    Finding::Paid => Verdict::Paid,
                    Finding::NotPaid => Verdict::NotPaid,
                    Finding::Unclear => Verdict::Unclear,
                }
            }
            (Some(_), None) if self.has_lost(trial) => Verdict::TakenBack,
            (Some(_), None) if !trial.speeds_before.is_empty() => Verdict::Paid,
            _ => Verdict::Unmeasured,
        }
    }

    /// Stall time saved per second, by the latencies of what was moved.
    fn measure(&self, ledger: &Ledger, trial: &Trial) -> Option<Measured> {
        if self.samples_with_latency < trial.samples_before + SAMPLES_MIN {
            return None;
        }
        let (fade, intervals) = (trial.fade(ledger)?, trial.since?);
        let samples_per_rate = f64::from(ledger.samples_per_rate()) * intervals;
        if samples_per_rate <= 0.0 {
            return None;
        }
        let parallelism = f64::from(ledger.config().parallelism);
        let mut measured = Measured::default();
        for moved in trial.moved.iter().filter(|moved| moved.moved_bytes > 0) {
            let (accesses_per_s, cost_ns_per_s) = moved.heat_since(ledger, fade);
            // Load changes all latencies: earlier ones say less than what other memory shows now.
            let there = moved.asked.from.and_then(|from| ledger.latency_ns(from));
            let stall_ns = there.map_or(moved.stall_ns, |ns| f64::from(ns) / parallelism);
            measured.sample_ns_per_s = measured.sample_ns_per_s.max(stall_ns / samples_per_rate);
            // Memory without later accesses saved nothing.
            if accesses_per_s > 0.0 && stall_ns > 0.0 {
                let saved_ns_per_s = accesses_per_s * stall_ns - cost_ns_per_s.max(0.0);
                measured.samples += accesses_per_s * samples_per_rate;
                measured.add(saved_ns_per_s);
            }
        }
        (measured.sample_ns_per_s > 0.0).then_some(measured)
    }

    /// Whether the programs run slower than before.
    fn has_lost(&self, trial: &Trial) -> bool {
        let before = &trial.speeds_before;
        let since = trial.intervals_since;
        let after: Vec<f64> = self.speeds.iter().rev().take(since).copied().collect();
        if before.len() < BASELINE_MIN || after.is_empty() {
            return false;
        }
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let (mean_before, mean_after) = (mean(before), mean(&after));
        let squares = before.iter().map(|speed| (speed - mean_before).powi(2)).sum::<f64>();
        let deviation = (squares / (before.len() - 1) as f64).sqrt();
        mean_after < mean_before * LOSS && mean_after < mean_before - LOSS_DEVIATIONS * deviation
    }
}

/// What distinguishes the moves of one assignment.
fn request_key(asked: &Move) -> (u32, u64, NodeId) {
    (asked.pid, asked.addr, asked.to)
}

/// Accesses per second and stall time per second of the extents in a move's range: it may have been
/// split, or joined with others, since.
pub(crate) fn heat_of(ledger: &Ledger, asked: &Move) -> (f64, f64) {
    let (mut at, end) = (asked.addr, asked.addr + asked.bytes);
    let mut sums = (0.0, 0.0);
    while at < end {
        let Some(extent) = ledger.find(asked.pid, at) else { break };
        let after = extent.addr + extent.bytes;
        let share = (end.min(after) - at) as f64 / extent.bytes as f64;
        sums.0 += share * f64::from(extent.accesses_per_s());
        sums.1 += share * f64::from(extent.cost_ns_per_s);
        at = after;
    }
    sums
}

impl Moved {
    /// As [`heat_of`], of the time since it was done.
    fn heat_since(&self, ledger: &Ledger, fade: f64) -> (f64, f64) {
        let (accesses_per_s, cost_ns_per_s) = heat_of(ledger, &self.asked);
        let since = |now: f64, before: f64| realized_mean(now, before, fade);
        (since(accesses_per_s, self.accesses_per_s), since(cost_ns_per_s, self.cost_ns_per_s))
    }
}

impl Trial {
    /// What it has to save to pay, stall time per second.
    fn needed_ns_per_s(&self, gate: &Benefit) -> f64 {
        self.cost_ns * gate.margin / gate.horizon_s
    }

    /// Whether reverting would pay.
    fn did_harm(&self, gate: Option<&Benefit>, measured: Option<&Measured>) -> bool {
        let seen = gate.zip(measured);
        seen.is_some_and(|(gate, measured)| measured.did_harm(self.needed_ns_per_s(gate)))
    }

    /// What remains of averages from the time when it was done.
    fn fade(&self, ledger: &Ledger) -> Option<f64> {
        Some(ledger.kept(self.since?))
    }

    /// Whether what was promoted was accessed again at half its former rate. Data that is reused
    /// with a period of many intervals returns late; until then the trial is undecided.
    fn has_returned(&self, ledger: &Ledger) -> bool {
        let Some(fade) = self.fade(ledger) else { return false };
        let promoted = |one: &&Moved| one.asked.reason == Reason::Promote && one.moved_bytes > 0;
        let (mut believed, mut came) = (0.0, 0.0);
        for one in self.moved.iter().filter(promoted) {
            believed += one.believed_per_s;
            came += one.heat_since(ledger, fade).0;
        }
        came >= believed * RETURNED_MIN
    }

    /// The moves that revert it, those that make room first.
    fn back(&self) -> Vec<Move> {
        let moved = self.moved.iter().filter(|moved| moved.moved_bytes > 0);
        let back = moved.filter_map(|moved| {
            let asked = &moved.asked;
            let to = asked.from.filter(|to| *to != asked.to)?;
            let (gain, from) = (-asked.gain_ns_per_s, Some(asked.to));
            let reason = Reason::TakeBack;
            Some((asked.reason, Move { from, to, reason, gain_ns_per_s: gain, ..asked.clone() }))
        });
        let mut back: Vec<_> = back.collect();
        back.sort_by_key(|(was, _)| *was != Reason::Promote);
        back.into_iter().map(|(_, asked)| asked).collect()
    }
}
