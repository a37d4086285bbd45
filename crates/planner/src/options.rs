//! What the caller of the planner chooses.
//! In: nothing. Out: [`Options`]: strategy, objective, effort. Knows nothing of workloads.

use crate::estimate::MoveSpeed;

/// How placements are found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Strategy {
    /// Each object into the first memory with room at its birth (IDP-FCFS of H2M IV-C).
    FirstCome,
    /// By score per byte, each into the first memory with room.
    Greedy,
    /// One knapsack over all objects, as if all lived all the time (H2M III-D2, IDP-RT).
    Initial,
    /// H2M Algorithm 1 (IDP-RT-LT). Always memory by memory.
    Lifetimes,
    /// All lifetimes in one program: Algorithm 1's aim, exactly.
    Intervals,
    /// At each phase start, for the next `ahead` phases (H2M Eq. 6, PBDP-RT has 1).
    Phases {
        /// At least 1.
        ahead: u32,
    },
    /// All phases in one program: moves are made when they pay over the whole run.
    Joint,
    /// By utility at each birth, and where it changes (OAM 3.3 to 3.6).
    Utility(UtilityRules),
}

/// OAM's thresholds. The paper gives neither; both are reconstructed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UtilityRules {
    /// Utility above which an object is hot; above 1. OAM's epsilon.
    pub epsilon: f64,
    /// Share of the fastest memory, 0 to 1, that is filled without regard to what comes. OAM's phi.
    pub phi: f64,
    /// Objects whose utility changes move; otherwise each stays where it was born.
    pub moves: bool,
}

impl Default for UtilityRules {
    fn default() -> UtilityRules {
        UtilityRules { epsilon: 1.5, phi: 0.8, moves: true }
    }
}

/// How more than two memories are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Levels {
    /// All in one program.
    #[default]
    Joint,
    /// The fastest against the next, then the next against the one after (H2M III-D5). Without a
    /// bound.
    OneByOne,
}

/// What is minimized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Objective {
    /// Nanoseconds of accesses and moves.
    #[default]
    Time,
    /// Picojoules of accesses, moves, and of holding data.
    Energy,
    /// Their product, compute time included.
    EnergyDelay,
}

/// How much is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Most rounds of the bound.
    pub rounds_max: usize,
    /// Most segments that all rounds process together: large programs get fewer rounds.
    pub path_steps: usize,
    /// Steps of the complete search, about 50 ns each; 0: none.
    pub search_steps: u64,
    /// Solve `Initial`, `Intervals` and `Joint` by HiGHS, however long it takes; the fast path
    /// answers where HiGHS finds no solution.
    #[cfg(feature = "exact")]
    pub by_reference: bool,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort {
            rounds_max: 300,
            path_steps: 9_000_000,
            search_steps: 100_000,
            #[cfg(feature = "exact")]
            by_reference: false,
        }
    }
}

/// What is requested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// How placements are found.
    pub strategy: Strategy,
    /// How more than two memories are handled.
    pub levels: Levels,
    /// What is minimized.
    pub objective: Objective,
    /// Most that time may grow over that of the plan for time alone (0.1: a tenth), for objectives
    /// other than time.
    pub slowdown_max: Option<f64>,
    /// How fast objects move.
    pub copy: MoveSpeed,
    /// How much is computed.
    pub effort: Effort,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            strategy: Strategy::Joint,
            levels: Levels::Joint,
            objective: Objective::Time,
            slowdown_max: None,
            copy: MoveSpeed::default(),
            effort: Effort::default(),
        }
    }
}
