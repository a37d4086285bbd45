//! Contenders by name.
//! In: a name. Out: [`Contender`]s. Knows nothing of streams.
//!
//! Streams last as long as the lab's workloads, so that MAT's policies have the pace and the sizes
//! of lab/experiments/mat.toml, which divides MAT's by 40.

use tiercel_planner::{Objective, Strategy, UtilityRules};
use tiercel_policy::pages::baseline::{ClockRules, MeanOf};
use tiercel_policy::{Config, Prioritise, Trigger};

use crate::drive::Setting;
use crate::planned::PlanSetting;
use crate::run::Contender;

/// A tick, milliseconds.
const TICK_MS: u64 = 50;
/// Largest and finest extents, bytes.
const EXTENT_BYTES: u64 = 2 << 20;
const FINEST_BYTES: u64 = 256 << 10;

/// Names that stand for contenders, and what they are.
pub const PRESETS: [(&str, &str); 15] = [
    ("tiercel", "the default policy: shadow placements"),
    ("tiercel-50ms", "the same with ticks of 50 ms, as in the lab's experiments"),
    ("never", "births by budget, no moves"),
    ("mat", "MAT as published: nine policies, each assignment enforced"),
    ("interleave", "OS pages in turns"),
    ("clock-dwf", "CLOCK-DWF"),
    ("clock-dwf-16", "the same with twice the age at which the hand takes an OS page"),
    ("clock-dwf-forgets", "the same with a mean over as many looks as OS pages are fast"),
    ("2pp", "2PP"),
    (
        "oam",
        "a plan of the stream by OAM's utility, with moves; by time where energies are unknown",
    ),
    ("oam-unmoved", "the same without moves"),
    ("joint", "a plan of the stream that minimises time, with moves"),
    ("joint-edp", "a plan that minimises the product of energy and delay, if energies are known"),
    ("all-fast", "fast memory for everything"),
    ("first-touch", "the kernel's first touch, with which all others are compared"),
];

/// The contenders of a name; `None`: it is none of [`PRESETS`], and no `mat:PRIORITISE:TRIGGER`.
pub fn preset(name: &str) -> Option<Vec<(String, Contender)>> {
    let one = |contender| Some(vec![(name.to_owned(), contender)]);
    match name {
        "tiercel" => one(by_default(name, Config::default().trigger)),
        "tiercel-50ms" => one(tiercel(name, at_pace(Config::default()))),
        "never" => one(by_default(name, Trigger::Never)),
        "interleave" => one(Contender::Interleave),
        "clock-dwf" => one(Contender::ClockDwf(ClockRules::default())),
        "clock-dwf-16" => {
            one(Contender::ClockDwf(ClockRules { age_max: 16, ..ClockRules::default() }))
        }
        "clock-dwf-forgets" => {
            let mean_of = MeanOf::Resident;
            one(Contender::ClockDwf(ClockRules { mean_of, ..ClockRules::default() }))
        }
        "oam" => one(by_utility(true)),
        "oam-unmoved" => one(by_utility(false)),
        "joint" => one(planned(Strategy::Joint, Objective::Time)),
        "joint-edp" => one(planned(Strategy::Joint, Objective::EnergyDelay)),
        "all-fast" => one(Contender::AllFast),
        "2pp" => one(Contender::TwoPhase),
        "first-touch" => one(Contender::FirstTouch),
        "mat" => Some(mat()),
        _ => {
            let found = mat().into_iter().find(|(known, _)| known == name)?;
            Some(vec![found])
        }
    }
}

/// A configuration of the user's as a contender, with its own pace.
pub fn configured(
    name: &str,
    policy: Config,
    (extent_bytes, finest_bytes): (u64, u64),
) -> Contender {
    let name = name.to_owned();
    Contender::Tiercel(Box::new(Setting { name, policy, extent_bytes, finest_bytes }))
}

/// As the daemon comes, but for the trigger.
fn by_default(name: &str, trigger: Trigger) -> Contender {
    let objects = tiercel_ledger::Config::default();
    let policy = Config { trigger, ..Config::default() };
    configured(name, policy, (objects.extent_bytes, objects.finest_bytes))
}

fn tiercel(name: &str, policy: Config) -> Contender {
    configured(name, policy, (EXTENT_BYTES, FINEST_BYTES))
}

fn by_utility(moves: bool) -> Contender {
    let rules = UtilityRules { moves, ..UtilityRules::default() };
    planned(Strategy::Utility(rules), Objective::EnergyDelay)
}

fn planned(strategy: Strategy, objective: Objective) -> Contender {
    Contender::Planned(PlanSetting { strategy, objective })
}

/// Times divided by 40, as in that experiment.
fn at_pace(config: Config) -> Config {
    Config { tick_ms: TICK_MS, ..config }
}

fn mat() -> Vec<(String, Contender)> {
    let orders = [("fifo", Prioritise::Fifo), ("lru", Prioritise::Lru), ("apb", Prioritise::Apb)];
    let triggers =
        [("time", "time:ticks=5"), ("llcmpi", "llcmpi"), ("allocation", "allocation:bytes=24MiB")];
    let of_order = |(order, prioritise): (&str, Prioritise)| {
        triggers.map(|(trigger, text)| {
            let name = format!("mat:{order}:{trigger}");
            let trigger = text.parse().expect("a trigger");
            let prioritise = prioritise.clone();
            let policy = Config { tick_ms: TICK_MS, prioritise, trigger, ..Config::mat() };
            (name.clone(), tiercel(&name, policy))
        })
    };
    orders.into_iter().flat_map(of_order).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_contender_that_works() {
        for (name, _) in PRESETS {
            assert!(!preset(name).unwrap().is_empty(), "{name}");
        }
        assert_eq!(preset("mat").unwrap().len(), 9);
        assert_eq!(preset("mat:lru:llcmpi").unwrap()[0].0, "mat:lru:llcmpi");
        assert!(preset("mat:lru").is_none() && preset("").is_none());
        for (name, contender) in preset("mat").unwrap() {
            let Contender::Tiercel(setting) = contender else { panic!("{name}") };
            setting.policy.check().unwrap();
        }
    }
}
