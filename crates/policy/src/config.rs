//! A policy as chosen by the user: the `[policy]` table of a configuration, or the command line.
//! In: TOML. Out: a checked [`Config`]. Knows nothing of how a routine works.

use serde::{Deserialize, Serialize};
use tiercel_machine::number::{index, index_u16, nearest_f32};

use crate::interval::Interval;
use crate::routine::{Aggregate, Enforce, Fill, Gate, Prioritise, Time, Trigger};

/// Shortest unit in which the ledger counts time, milliseconds: 2^32 of them are a year.
const UNIT_MS_MIN: u64 = 10;

/// A policy. The defaults are MAT's constants, with shadow placements in place of its assignments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Time between two ticks, milliseconds; 2000 by default (MAT 4.5.1).
    pub tick_ms: u64,
    /// The first ticks are as short as this, milliseconds, and lengthen to `tick_ms`; 32 by
    /// default. 0: all ticks are equally long, as in MAT.
    pub first_tick_ms: u64,
    /// How an interval's accesses join those before.
    pub aggregate: Aggregate,
    /// Which extents deserve the best tier.
    pub prioritise: Prioritise,
    /// When tiers are assigned anew.
    pub trigger: Trigger,
    /// How priorities become tiers.
    pub enforce: Enforce,
    /// What is in front of the mover.
    pub gate: Gate,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            tick_ms: 2000,
            first_tick_ms: 32,
            aggregate: Aggregate::default(),
            prioritise: Prioritise::default(),
            // Shadow placements look at each tick, and move rarely.
            trigger: Trigger::Time(Time { ticks: 1, first: 1 }),
            enforce: Enforce::default(),
            gate: Gate::default(),
        }
    }
}

/// A setting that makes no sense.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("policy: {name} = {value}: {want}")]
pub struct ConfigError {
    /// The setting, as a path.
    pub name: &'static str,
    /// What it was set to.
    pub value: String,
    /// What it must be.
    pub want: &'static str,
}

impl Config {
    /// MAT as published: accesses per byte, every assignment enforced, ticks of one length (MAT
    /// 3.4, 4.5.1, 5.3.1).
    pub fn mat() -> Config {
        let ticks = Time::default().ticks;
        let trigger = Trigger::Time(Time { ticks, first: ticks });
        let enforce = Enforce::Fill(Fill { follow_births: false, ..Fill::default() });
        let (prioritise, gate) = (Prioritise::Apb, Gate::None);
        let first_tick_ms = 0;
        Config { first_tick_ms, prioritise, trigger, enforce, gate, ..Config::default() }
    }

    /// Refuses what cannot work.
    pub fn check(&self) -> Result<(), ConfigError> {
        let Aggregate::Ewma(ewma) = &self.aggregate;
        let Enforce::Fill(fill) = &self.enforce;
        let alpha = ewma.alpha;
        ensure("tick_ms", self.tick_ms as f64, self.tick_ms >= 1, "must be at least 1")?;
        let want = "must be above 0 and at most 1";
        ensure("aggregate.ewma.alpha", alpha, alpha > 0.0 && alpha <= 1.0, want)?;
        let ok = (1..=100).contains(&fill.percent);
        ensure("enforce.fill.percent", f64::from(fill.percent), ok, "must be from 1 to 100")?;
        match &self.trigger {
            Trigger::Time(time) => {
                let want = "must be at least 1";
                ensure("trigger.time.ticks", f64::from(time.ticks), time.ticks >= 1, want)?;
                ensure("trigger.time.first", f64::from(time.first), time.first >= 1, want)?;
            }
            Trigger::Llcmpi(llcmpi) => {
                let (threshold, intervals) = (llcmpi.threshold, llcmpi.intervals);
                ensure("trigger.llcmpi.threshold", threshold, threshold > 0.0, "must be above 0")?;
                let ok = (1..=1000).contains(&intervals);
                let want = "must be from 1 to 1000";
                ensure("trigger.llcmpi.intervals", f64::from(intervals), ok, want)?;
            }
            Trigger::Allocation(_) | Trigger::Never => {}
        }
        if let Some(gate) = self.gate.shadow() {
            let cost = gate.move_ns_per_byte;
            let is_share = (0.0..=1.0).contains(&gate.loss);
            ensure("gate.shadow.loss", gate.loss, is_share, "must be from 0 to 1")?;
            let is_cost = cost > 0.0 && cost.is_finite();
            ensure("gate.shadow.move_ns_per_byte", cost, is_cost, "must be above 0")?;
        }
        Ok(())
    }

    /// What the ledger must do for this policy.
    pub fn configure(&self, ledger: &mut tiercel_ledger::Config) {
        let Aggregate::Ewma(ewma) = &self.aggregate;
        ledger.alpha = nearest_f32(ewma.alpha);
        ledger.tick_ms = self.tick_ms;
        let units = (self.tick_ms / UNIT_MS_MIN).clamp(1, u64::from(tiercel_ledger::UNITS_MAX));
        ledger.units = if self.ticks_vary() { index_u16(index(units)) } else { 1 };
    }

    /// Whether the first ticks are shorter than the others.
    pub fn ticks_vary(&self) -> bool {
        (1..self.tick_ms).contains(&self.first_tick_ms)
    }

    /// How many ticks of the usual length an interval was.
    pub(crate) fn ticks(&self, interval: &Interval) -> f64 {
        if self.ticks_vary() { interval.elapsed_ms as f64 / self.tick_ms as f64 } else { 1.0 }
    }
}

pub(crate) fn ensure(
    name: &'static str,
    value: f64,
    holds: bool,
    want: &'static str,
) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError { name, value: value.to_string(), want }) }
}
