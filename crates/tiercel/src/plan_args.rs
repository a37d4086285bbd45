//! Arguments of the verbs that plan: `plan`, `whatif`, `report`.
//! In: the command line. Out: plain data, and a [`PlanRequest`]. Knows nothing of profiles.

use anyhow::{Context, Result, bail};
use clap::{Args as ClapArgs, ValueEnum};
use std::path::PathBuf;
use tiercel_advisor::PlanRequest;
use tiercel_plan::Unplanned;
use tiercel_planner::{Objective, Strategy, UtilityRules};
use tiercel_policy::Limit;

/// Arguments of `tiercel plan`.
#[derive(ClapArgs, Debug)]
pub struct PlanArgs {
    /// The profile: what `tiercel record` wrote
    #[arg(value_name = "PROFILE")]
    pub profile: PathBuf,
    #[command(flatten)]
    pub request: PlanRequestArgs,
    /// Write the plan to this file; default: the profile's name with .plan
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Explain the placement of these sites, given by a part of their name or by their hash. Writes
    /// no plan
    #[arg(long, value_name = "SITE", conflicts_with = "output")]
    pub explain: Option<String>,
    /// Rows of the table
    #[arg(long, value_name = "ROWS", default_value_t = 20)]
    pub rows: usize,
    /// Print the plan as JSON instead of a table
    #[arg(long, conflicts_with = "explain")]
    pub json: bool,
}

/// What the plan is to achieve; shared with `whatif`.
#[derive(ClapArgs, Debug)]
pub struct PlanRequestArgs {
    /// Plan for this machine instead of the profile's: a description's file, or a built-in name
    #[arg(long, value_name = "FILE|NAME")]
    pub machine: Option<String>,
    /// Capacity of fast memory: a share of the program's peak (25%), a size (8GiB), or all
    #[arg(long, value_name = "SHARE|SIZE", default_value = "25%")]
    pub fast: Limit,
    /// How placements are found
    #[arg(long, value_enum, default_value_t = StrategyArg::Joint)]
    pub strategy: StrategyArg,
    /// How many phases `phased` looks ahead
    #[arg(long, value_name = "PHASES", default_value_t = 1)]
    pub ahead: u32,
    /// Utility above which an object is hot for `oam`; above 1
    #[arg(long, value_name = "UTILITY", default_value_t = UtilityRules::default().epsilon)]
    pub epsilon: f64,
    /// Share of the fast memory that `oam` fills without regard to what comes, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = UtilityRules::default().phi)]
    pub phi: f64,
    /// What to minimise; by default time, and edp for `oam`
    #[arg(long, value_enum)]
    pub objective: Option<ObjectiveArg>,
    /// Largest slowdown accepted for energy: 10%
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub slowdown: Option<f64>,
    /// Where objects of unplanned sites are placed
    #[arg(long, value_enum, default_value_t = UnplannedArg::Slowest)]
    pub unplanned: UnplannedArg,
    /// Move objects only at the entry of the phase that needs them; by default, objects that a
    /// phase does not access may move during it, ahead of the next one
    #[arg(long)]
    pub at_entry: bool,
}

/// Strategies by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StrategyArg {
    /// First come, first served: the baseline
    Fcfs,
    /// One knapsack over all objects, as if all lived all the time
    Idp,
    /// Knapsacks over the objects that live together
    Lifetimes,
    /// At each phase, for the next phases, with the cost of moves
    Phased,
    /// All phases in one program: objects move when the benefit over the whole run exceeds the cost
    Joint,
    /// OAM as published: by utility at each birth, and where it changes
    Oam,
    /// OAM as published, without moves
    OamUnmoved,
}

/// Objectives by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ObjectiveArg {
    /// Time
    Time,
    /// Energy
    Energy,
    /// Energy-delay product
    Edp,
}

/// Defaults by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UnplannedArg {
    /// The slowest memory
    Slowest,
    /// The fastest memory, while there is room
    Budget,
}

impl PlanRequestArgs {
    /// The defaults, with a strategy.
    pub fn usual(strategy: StrategyArg) -> PlanRequestArgs {
        PlanRequestArgs {
            machine: None,
            fast: Limit::Capacity,
            strategy,
            ahead: 1,
            epsilon: UtilityRules::default().epsilon,
            phi: UtilityRules::default().phi,
            objective: None,
            slowdown: None,
            unplanned: UnplannedArg::Slowest,
            at_entry: false,
        }
    }

    /// The request for a given capacity of fast memory and peak of the program, bytes.
    pub fn request(&self, fast: Limit, peak_bytes: u64) -> PlanRequest {
        PlanRequest {
            strategy: self.strategy(),
            objective: self.objective(),
            slowdown_max: self.slowdown,
            fast_bytes: match fast {
                Limit::Capacity => u64::MAX,
                Limit::Bytes(bytes) => bytes,
                Limit::ShareOfPeak(share) => {
                    tiercel_machine::number::saturating_u64(peak_bytes as f64 * share)
                }
            },
            fast: fast.to_string(),
            unplanned: match self.unplanned {
                UnplannedArg::Slowest => Unplanned::Slowest,
                UnplannedArg::Budget => Unplanned::Budget,
            },
            prefetch: !self.at_entry,
        }
    }

    fn strategy(&self) -> Strategy {
        let utility =
            |moves| Strategy::Utility(UtilityRules { epsilon: self.epsilon, phi: self.phi, moves });
        match self.strategy {
            StrategyArg::Fcfs => Strategy::FirstCome,
            StrategyArg::Idp => Strategy::Initial,
            StrategyArg::Lifetimes => Strategy::Lifetimes,
            StrategyArg::Phased => Strategy::Phases { ahead: self.ahead },
            StrategyArg::Joint => Strategy::Joint,
            StrategyArg::Oam => utility(true),
            StrategyArg::OamUnmoved => utility(false),
        }
    }

    /// OAM's model is the product of energy and delay (OAM 3.3); all others minimise time.
    fn objective(&self) -> Objective {
        let is_oam = matches!(self.strategy, StrategyArg::Oam | StrategyArg::OamUnmoved);
        match self.objective {
            Some(ObjectiveArg::Time) => Objective::Time,
            Some(ObjectiveArg::Energy) => Objective::Energy,
            Some(ObjectiveArg::Edp) => Objective::EnergyDelay,
            None if is_oam => Objective::EnergyDelay,
            None => Objective::Time,
        }
    }
}

/// Arguments of `tiercel whatif`.
#[derive(ClapArgs, Debug)]
pub struct WhatifArgs {
    /// The profile: what `tiercel record` wrote
    #[arg(value_name = "PROFILE")]
    pub profile: PathBuf,
    /// Predict for these machines instead of the profile's; repeatable
    #[arg(long, value_name = "FILE|NAME")]
    pub machine: Vec<String>,
    /// Capacities of fast memory to predict for; repeatable
    #[arg(long, value_name = "SHARE|SIZE")]
    pub fast: Vec<Limit>,
    /// How placements are found
    #[arg(long, value_enum, default_value_t = StrategyArg::Joint)]
    pub strategy: StrategyArg,
    /// Predict for this plan instead, on the machine it was made for
    #[arg(long, value_name = "FILE", conflicts_with_all = ["machine", "fast", "strategy"])]
    pub plan: Option<PathBuf>,
    /// Write a plot to this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `tiercel report`.
#[derive(ClapArgs, Debug)]
pub struct ReportArgs {
    /// The profile: what `tiercel record` wrote
    #[arg(value_name = "PROFILE")]
    pub profile: PathBuf,
    /// Show this plan with it
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Draw the capacity curve for these machines instead of the profile's; repeatable
    #[arg(long, value_name = "FILE|NAME")]
    pub machine: Vec<String>,
    /// Compare predictions with these results of `tiercel lab bench`
    #[arg(long, value_name = "FOLDER")]
    pub lab: Option<PathBuf>,
    /// Write the report to this file; default: the profile's name with .html
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Rows of each table, and of the heat map
    #[arg(long, value_name = "ROWS", default_value_t = 40)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=400))]
    pub rows: u16,
}

fn percent(text: &str) -> Result<f64> {
    let number = text.strip_suffix('%').unwrap_or(text);
    let share =
        number.parse::<f64>().with_context(|| format!("{text} is not a percentage"))? / 100.0;
    if !(0.0..=10.0).contains(&share) {
        bail!("{text}: from 0% to 1000%");
    }
    Ok(share)
}
