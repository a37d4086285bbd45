//! Executes the missing runs of an experiment. In: runs, a [`Store`], something that boots. Out:
//! results and failures in the store. Knows nothing of QEMU: a boot is a trait, so that tests can
//! simulate a guest that dies.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::experiment::{Experiment, Metric};
use super::run_result::{Event, Failure, Measured, RunResult, Spec};
use super::runs::{Run, Target};
use super::store::{Entry, Store};

/// Attempts per run: a failed run is tried once more, because a busy host can also end a guest.
/// Chosen, not measured: a third attempt would cost as much again and hide intermittent defects.
pub const ATTEMPTS: u32 = 2;

/// Boots a guest of a machine and executes runs in it, one after another.
pub trait Boot {
    /// Returns when the guest has ended. `events` gets each event of the guest with the seconds, on
    /// the host, since the previous event. An error means that the guest died, and has its last
    /// lines.
    fn boot(
        &mut self,
        target: &Target,
        batch: &[(&Run, Option<u64>)],
        events: &mut (dyn FnMut(Event, f64) + Send),
    ) -> Result<()>;

    /// The run's command in the guest.
    fn command(&self, run: &Run) -> Vec<String>;

    /// The specification of one run for the guest.
    fn spec(
        &self,
        experiment: &Experiment,
        target: &Target,
        run: &Run,
        fast_bytes: Option<u64>,
    ) -> Spec {
        run.spec(experiment, target, self.command(run), fast_bytes)
    }
}

/// An experiment in progress.
pub struct Drive<'a> {
    /// What it compares.
    pub experiment: &'a Experiment,
    /// Its machines.
    pub targets: &'a [Target],
    /// All its runs, in order.
    pub runs: &'a [Run],
    /// The folder of its results.
    pub store: &'a Store,
    /// Repeat runs that failed in earlier calls.
    pub retry: bool,
}

/// The progress of an experiment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Runs with a result.
    pub done: usize,
    /// Runs that failed at every attempt.
    pub failed: usize,
    /// Runs that cannot be sized, because their all-fast run failed.
    pub unsized_runs: usize,
}

enum State {
    Done(Box<RunResult>),
    Todo { attempts: u32 },
    Failed,
}

impl State {
    /// Failed this often.
    fn after(attempts: u32) -> State {
        if attempts >= ATTEMPTS { State::Failed } else { State::Todo { attempts } }
    }
}

impl Drive<'_> {
    /// Executes the missing runs; returns when nothing is left to do.
    pub fn go(&self, boot: &mut dyn Boot, note: &mut (dyn FnMut(&str) + Send)) -> Result<Tally> {
        let mut states = self.load(note)?;
        let mut run_times = RunTimes::default();
        for state in &states {
            if let State::Done(result) = state {
                run_times.add(&result.cell.workload, result.host_s);
            }
        }
        let here = states.iter().filter(|state| matches!(state, State::Done(_))).count();
        if here > 0 {
            note(&format!("lab: {here} of {} runs are there already", self.runs.len()));
        }
        loop {
            let batch = self.batch(&states);
            let Some(&first) = batch.first() else { break };
            let target = &self.targets[self.runs[first].machine];
            note(&format!("lab: booting {} for {} runs", target.name, batch.len()));
            let before = settled(&states);
            self.boot(boot, target, &batch, &mut states, &mut run_times, note)?;
            ensure!(
                settled(&states) > before,
                "a boot settled no run; this is a defect of the lab"
            );
        }
        let count = |want: fn(&State) -> bool| states.iter().filter(|state| want(state)).count();
        Ok(Tally {
            done: count(|state| matches!(state, State::Done(_))),
            failed: count(|state| matches!(state, State::Failed)),
            unsized_runs: count(|state| matches!(state, State::Todo { .. })),
        })
    }

    fn load(&self, note: &mut (dyn FnMut(&str) + Send)) -> Result<Vec<State>> {
        let mut entries = self.store.entries(note)?;
        let state = |run: &Run| match entries.remove(&run.key) {
            Some(Entry::Finished(result)) => State::Done(result),
            Some(Entry::Failure(failure)) if !self.retry => State::after(failure.attempts),
            _ => State::Todo { attempts: 0 },
        };
        Ok(self.runs.iter().map(state).collect())
    }

    /// Runs for one boot: of one machine and of known size, those that were never tried first.
    fn batch(&self, states: &[State]) -> Vec<usize> {
        let mut ready: Vec<(usize, u32)> = Vec::new();
        for (at, state) in states.iter().enumerate() {
            if let State::Todo { attempts } = state
                && (self.runs[at].sized_by.is_none() || self.fast_bytes(at, states).is_some())
            {
                ready.push((at, *attempts));
            }
        }
        let Some(fewest) = ready.iter().map(|(_, attempts)| *attempts).min() else {
            return Vec::new();
        };
        ready.retain(|(_, attempts)| *attempts == fewest);
        let machine = self.runs[ready[0].0].machine;
        ready.retain(|(at, _)| self.runs[*at].machine == machine);
        // All-fast runs come first and have a boot of their own, so that sizes are known in later
        // boots.
        let sizing = self.runs[ready[0].0].sized_by.is_none();
        ready.retain(|(at, _)| self.runs[*at].sized_by.is_none() == sizing);
        let by_marks = |at: usize| self.runs[at].workload.metric == Metric::Regions;
        let alone = by_marks(ready[0].0);
        ready.retain(|(at, _)| by_marks(*at) == alone);
        ready.truncate(if alone { 1 } else { self.experiment.boot_runs });
        ready.into_iter().map(|(at, _)| at).collect()
    }

    /// Bytes of fast memory of a run with a capacity; `None` while its peak is not known.
    fn fast_bytes(&self, at: usize, states: &[State]) -> Option<u64> {
        let run = &self.runs[at];
        let share = run.cell.share?;
        let sizer = self.runs.iter().position(|other| Some(&other.key) == run.sized_by.as_ref())?;
        match &states[sizer] {
            State::Done(result) => Some(share.of(result.measured.peak_bytes)),
            _ => None,
        }
    }

    fn boot(
        &self,
        boot: &mut dyn Boot,
        target: &Target,
        batch: &[usize],
        states: &mut [State],
        run_times: &mut RunTimes,
        note: &mut (dyn FnMut(&str) + Send),
    ) -> Result<()> {
        let sized: Vec<(&Run, Option<u64>)> =
            batch.iter().map(|at| (&self.runs[*at], self.fast_bytes(*at, states))).collect();
        // The position in the batch of the run that the guest is executing.
        let mut at = 0;
        let mut store_error: Option<anyhow::Error> = None;
        let mut on_event = |event: Event, host_s: f64| {
            let Some(&index) = batch.get(at) else { return };
            let settled = match event {
                Event::Begin(_) => return,
                Event::Done(measured) => {
                    let result = self.result(index, sized[at].1, *measured, host_s);
                    run_times.add(&result.cell.workload, host_s);
                    self.store.save_result(&result).map(|()| State::Done(Box::new(result)))
                }
                Event::Failed(why) => self.fail(index, &states[index], why),
            };
            at += 1;
            match settled {
                Ok(state) => {
                    states[index] = state;
                    note(&self.line(index, states, run_times));
                }
                Err(error) => store_error = store_error.take().or(Some(error)),
            }
        };
        let ended = boot.boot(target, &sized, &mut on_event);
        let (at, store_error) = (at, store_error);
        if let Some(error) = store_error {
            return Err(error);
        }
        let Some(&index) = batch.get(at) else { return Ok(()) };
        let why = match ended {
            Ok(()) => "the guest ended before this run did".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        states[index] = self.fail(index, &states[index], why)?;
        note(&self.line(index, states, run_times));
        Ok(())
    }

    fn result(
        &self,
        index: usize,
        fast: Option<u64>,
        measured: Measured,
        host_s: f64,
    ) -> RunResult {
        let run = &self.runs[index];
        RunResult {
            key: run.key.clone(),
            cell: run.cell.clone(),
            timed: self.experiment.timed,
            vcpus: self.experiment.vcpus,
            fast_bytes: fast,
            measured,
            host_s: (host_s * 10.0).round() / 10.0,
        }
    }

    fn fail(&self, index: usize, state: &State, why: String) -> Result<State> {
        let before = if let State::Todo { attempts } = state { *attempts } else { 0 };
        let run = &self.runs[index];
        let attempts = before + 1;
        let failure = Failure { key: run.key.clone(), cell: run.cell.clone(), attempts, why };
        self.store.save_failure(&failure)?;
        Ok(State::after(attempts))
    }

    /// `lab: 12 of 60, about 34 min left: hot/lru/25% 1.234 s`.
    fn line(&self, index: usize, states: &[State], run_times: &RunTimes) -> String {
        let settled = settled_runs(states);
        let left = (0..states.len()).filter(|at| matches!(states[*at], State::Todo { .. }));
        let left_s: f64 = left.map(|at| run_times.estimate(&self.runs[at].cell.workload)).sum();
        let verdict = match &states[index] {
            State::Done(result) => {
                let odd: String =
                    result.measured.warnings.iter().map(|w| format!("; {w}")).collect();
                format!("{:.3} s{odd}", result.measured.time_ns as f64 / 1e9)
            }
            State::Todo { .. } => "failed, will be tried again".to_owned(),
            State::Failed => "FAILED".to_owned(),
        };
        let label = self.runs[index].cell.label();
        let left = duration(Duration::from_secs_f64(left_s));
        format!("lab: {settled} of {}, about {left} left: {label}: {verdict}", states.len())
    }
}

/// Counts attempts, so that a boot in which a run failed for the first time counts as progress.
fn settled(states: &[State]) -> u32 {
    let worth = |state: &State| match state {
        State::Done(_) | State::Failed => ATTEMPTS,
        State::Todo { attempts } => *attempts,
    };
    states.iter().map(worth).sum()
}

fn settled_runs(states: &[State]) -> usize {
    states.iter().filter(|state| !matches!(state, State::Todo { .. })).count()
}

/// Mean host time of runs, by workload; predicts the time left.
#[derive(Debug, Default)]
struct RunTimes {
    by_workload: BTreeMap<String, (f64, u32)>,
}

impl RunTimes {
    fn add(&mut self, workload: &str, host_s: f64) {
        let entry = self.by_workload.entry(workload.to_owned()).or_default();
        entry.0 += host_s;
        entry.1 += 1;
    }

    /// The workload's mean, or the mean of all known workloads.
    fn estimate(&self, workload: &str) -> f64 {
        let mean = |(sum, count): (f64, u32)| if count == 0 { 0.0 } else { sum / f64::from(count) };
        let all = || {
            let add = |a: (f64, u32), b: &(f64, u32)| (a.0 + b.0, a.1 + b.1);
            mean(self.by_workload.values().fold((0.0, 0), add))
        };
        self.by_workload.get(workload).map_or_else(all, |known| mean(*known))
    }
}

fn duration(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..=99 => format!("{seconds} s"),
        seconds => format!("{} min", seconds.div_ceil(60)),
    }
}

#[cfg(test)]
#[path = "drive_tests.rs"]
mod tests;
