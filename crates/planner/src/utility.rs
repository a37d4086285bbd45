//! How much better the fastest memory suits an object than the slowest: utility, OAM Eq. 1 to 3.
//! In: accesses to an object, two memories. Out: ratios of delay and energy. Knows nothing of room.

use crate::estimate::{Cost, phase_cost};
use crate::memory::Memory;
use crate::options::Objective;
use crate::workload::{Object, Use, Workload};

/// Largest ratio of two costs: where one memory costs nothing, the ratio is no number.
const RATIO_MAX: f64 = 1e9;

/// U_D and U_E of OAM Eq. 1. Each is the slowest memory's cost over the fastest one's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Utility {
    /// Of delays.
    pub delay: f64,
    /// Of energies; 1 where they are unknown.
    pub energy: f64,
}

impl Utility {
    /// U of OAM Eq. 1. As OAM 3.3 says, an objective of time or of energy alone takes the other
    /// factor as 1.
    pub fn of(&self, objective: Objective) -> f64 {
        match objective {
            Objective::Time => self.delay,
            Objective::Energy => self.energy,
            Objective::EnergyDelay => self.delay * self.energy,
        }
    }

    fn between(slowest: Cost, fastest: Cost) -> Utility {
        Utility {
            delay: ratio(slowest.time_ns, fastest.time_ns),
            energy: ratio(slowest.energy_pj, fastest.energy_pj),
        }
    }
}

/// D of OAM Eq. 2, nanoseconds: every line that is read from memory, and every line that goes back
/// to it, takes its latency. Accesses that hit a cache are none of memory's (OAM 3.2).
pub fn delay_ns(one: &Use, memory: &Memory) -> f64 {
    let lines_read = one.reads + one.writes;
    let waited = lines_read * memory.read_latency_ns + one.writes * memory.write_latency_ns;
    waited * (1.0 - one.hit_ratio)
}

/// Utility of an object in each phase that it lives in. `memories` are fastest first, at least one.
pub fn utilities(workload: &Workload, object: &Object, memories: &[Memory]) -> Vec<Utility> {
    let costs = [memories.len() - 1, 0].map(|at| costs(workload, object, &memories[at]));
    costs[0].iter().zip(&costs[1]).map(|(slow, fast)| Utility::between(*slow, *fast)).collect()
}

/// Utility of an object over its whole life.
pub fn utility(workload: &Workload, object: &Object, memories: &[Memory]) -> Utility {
    let sum = |at: usize| {
        let costs = costs(workload, object, &memories[at]);
        costs.into_iter().fold(Cost::default(), |sum, cost| sum + cost)
    };
    Utility::between(sum(memories.len() - 1), sum(0))
}

/// D and E by phase. The energy is that of Eq. 3: accesses, and what holding the object takes.
fn costs(workload: &Workload, object: &Object, memory: &Memory) -> Vec<Cost> {
    let (first, last) = workload.phases_of(object);
    let mut uses = object.uses.iter().peekable();
    let cost = |phase: usize| {
        let one = uses.next_if(|one| one.phase as usize == phase);
        let delay = one.map_or(0.0, |one| delay_ns(one, memory));
        Cost {
            time_ns: delay * workload.sample_period,
            ..phase_cost(workload, object, phase, one, memory)
        }
    };
    (first..=last).map(cost).collect()
}

fn ratio(slowest: f64, fastest: f64) -> f64 {
    match (slowest > 0.0, fastest > 0.0) {
        // Nothing is accessed, or no energy known.
        (false, false) => 1.0,
        (true, false) => RATIO_MAX,
        _ => (slowest / fastest).min(RATIO_MAX),
    }
}
