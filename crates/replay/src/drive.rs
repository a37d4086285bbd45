//! The real ledger and the real policy, called as the daemon calls them.
//! In: records, samples, time, where memory lies. Out: decisions. Knows nothing of the model.
//!
//! All calls of [`Ledger::tick`] and [`Policy::tick`] in this crate are here:
//!
//! ```text
//! record --deliver--> |
//! sample --observe--> | drain: settle, attribute, forget | close: fit, tick | decide: policy
//! ```

use std::collections::{BTreeMap, HashSet};
use tiercel_ledger::movement::Outcome;
use tiercel_ledger::{Attributed, Ledger, LedgerError, Range};
use tiercel_machine::number::saturating_u64;
use tiercel_machine::{Machine, NodeId};
use tiercel_policy::{Budgets, Decision, Interval, Limit, Policy};
use tiercel_wire::{Record, Sample};

use crate::speed::Speeds;

/// Extents without a known residency that one tick looks up; the daemon's `LOOKUPS_MAX`.
const LOOKUPS_MAX: usize = 4096;
/// Extents whose residency one tick refreshes, as in the daemon.
const REFRESHES_MAX: usize = 256;
/// Share of wall time for look-ups before stale residency waits, as in the daemon.
const REFRESH_TIME_SHARE: f64 = 0.001;

/// A policy as it is replayed, with what the ledger does for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// For the reader, as `mat:apb:time`.
    pub name: String,
    /// The policy.
    pub policy: tiercel_policy::Config,
    /// Largest extents, bytes.
    pub extent_bytes: u64,
    /// Finest extents, bytes.
    pub finest_bytes: u64,
}

/// Why a policy cannot be replayed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SettingError {
    /// The ledger refuses it.
    #[error("{0}")]
    Ledger(String),
    /// The policy refuses it.
    #[error("{0}")]
    Policy(#[from] tiercel_policy::ConfigError),
    /// The planner refuses it.
    #[error("{0}")]
    Plan(#[from] tiercel_planner::PlanError),
}

impl From<LedgerError> for SettingError {
    fn from(error: LedgerError) -> SettingError {
        SettingError::Ledger(error.to_string())
    }
}

/// What the counters counted since the last decision.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Misses of the last-level cache.
    pub llc_misses: u64,
    /// Instructions.
    pub instructions: u64,
}

/// Nodes of the arenas of [`crate::births`].
fn arenas(speeds: &Speeds) -> [Option<NodeId>; 3] {
    [Some(speeds.fast), Some(speeds.slow), Some(speeds.fast)]
}

/// See the module.
pub struct Driver {
    ledger: Ledger,
    policy: Policy,
    machine: Machine,
    fast: NodeId,
    ticks_vary: bool,
    undecided: Interval,
    attributed: Vec<Attributed>,
    refresh_due_ms: u64,
}

impl Driver {
    /// A ledger and a policy that have seen nothing, on a machine with so much fast memory.
    pub fn new(
        setting: &Setting,
        speeds: &Speeds,
        room_bytes: u64,
        pids: &[u32],
    ) -> Result<Driver, SettingError> {
        let mut config = tiercel_ledger::Config {
            extent_bytes: setting.extent_bytes,
            finest_bytes: setting.finest_bytes,
            ..tiercel_ledger::Config::default()
        };
        setting.policy.configure(&mut config);
        let mut ledger = Ledger::new(config, 0)?;
        ledger.set_arenas(&arenas(speeds));
        if let Some(value) = tiercel_ledger::AccessValue::of(&speeds.machine) {
            ledger.set_values(value);
        }
        for pid in pids {
            ledger.process_born(*pid)?;
        }
        Ok(Driver {
            ledger,
            policy: Policy::new(setting.policy.clone())?,
            machine: speeds.with_room(room_bytes),
            fast: speeds.fast,
            ticks_vary: setting.policy.ticks_vary(),
            undecided: Interval::default(),
            attributed: Vec::new(),
            refresh_due_ms: 0,
        })
    }

    /// A record of a process.
    pub fn deliver(&mut self, pid: u32, record: Record) {
        self.ledger.deliver(pid, record);
    }

    /// Samples.
    pub fn observe(&mut self, samples: &mut Vec<Sample>) {
        samples.drain(..).for_each(|sample| self.ledger.observe(sample));
    }

    /// All that happened until now is known.
    pub fn drain(&mut self, pids: &[u32], now_ns: u64) {
        self.ledger.advance(now_ns / 1_000_000);
        pids.iter().for_each(|pid| self.ledger.settle(*pid, now_ns));
        self.ledger.attribute(&mut self.attributed);
        self.attributed.clear();
        self.ledger.forget_before(now_ns);
    }

    /// Ends the ledger's interval; the ranges whose residency is to be looked up, unless the mover
    /// is busy.
    pub fn close(&mut self, now_ms: u64, budget_bytes: u64, is_busy: bool) -> Vec<Range> {
        self.ledger.fit_extents(budget_bytes);
        let closed = Interval::of(&self.ledger.tick(now_ms));
        self.undecided.elapsed_ms += closed.elapsed_ms;
        self.undecided.allocated_bytes += closed.allocated_bytes;
        if is_busy {
            return Vec::new();
        }
        let stale = self.stale(now_ms);
        let mut wanted = self.ledger.take_unlocated(LOOKUPS_MAX);
        wanted.extend(stale);
        wanted
    }

    /// How long the next interval will be.
    pub fn expect_tick_in(&mut self, ms: u64) {
        if self.ticks_vary {
            self.ledger.expect_tick_in(ms);
        }
    }

    fn stale(&self, now_ms: u64) -> Vec<Range> {
        if now_ms < self.refresh_due_ms {
            return Vec::new();
        }
        let old = self.ledger.extents().filter(|extent| extent.is_residency_stale(now_ms));
        let range = |extent: tiercel_ledger::Extent<'_>| Range {
            pid: extent.pid,
            addr: extent.addr,
            bytes: extent.bytes,
        };
        old.map(range).take(REFRESHES_MAX).collect()
    }

    /// Takes in where ranges are; looking took so long.
    pub fn located(&mut self, found: &[(Range, Vec<(NodeId, u64)>)], took_ns: f64, now_ms: u64) {
        self.refresh_due_ms = now_ms + saturating_u64(took_ns / 1e6 / REFRESH_TIME_SHARE);
        found.iter().for_each(|(range, on)| self.ledger.set_residency(*range, on, now_ms));
    }

    /// Decides. `left_bytes`: free on the fast node.
    /// `nursed_bytes`: what lives in nurseries, by process.
    pub fn decide(
        &mut self,
        counted: Counted,
        left_bytes: u64,
        nursed_bytes: BTreeMap<u32, u64>,
    ) -> Decision {
        let passed = std::mem::take(&mut self.undecided);
        let interval = Interval {
            llc_misses: Some(counted.llc_misses),
            instructions: Some(counted.instructions),
            ..passed
        };
        let left_bytes = BTreeMap::from([(self.fast, left_bytes)]);
        let placed = HashSet::new();
        let nursed_bytes = Some(nursed_bytes);
        let budgets =
            Budgets { left_bytes, placed, nursed_bytes, ..Budgets::fast(Limit::Capacity) };
        self.policy.tick(&self.ledger, &self.machine, &budgets, &interval)
    }

    /// What became of a move.
    pub fn outcome(&mut self, outcome: &Outcome) {
        self.policy.outcome(outcome);
        self.ledger.outcome(outcome);
    }
}
