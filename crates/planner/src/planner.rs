//! The planner's entry point: picks the strategy and evaluates what it found.
//! In: a [`Workload`], [`Memory`]s, [`Options`]. Out: [`Placements`] with their [`Promise`].
//! Knows nothing of files, or of how placements are carried out.

use crate::PlanError;
use crate::baseline::{first_come, greedy};
use crate::dymalloc::by_utility;
use crate::estimate::{Cost, MoveSpeed, Weights, phase_cost};
use crate::evaluate::{evaluate, moved_bytes};
use crate::lifetimes::{lifetime_by_lifetime, memory_by_memory};
use crate::memory::{MEMORIES_MAX, Memory};
use crate::objective::{Trial, Wanted, best};
use crate::options::{Levels, Objective, Options, Strategy, UtilityRules};
use crate::order::in_order;
use crate::phased::phase_by_phase;
use crate::placement::{Placement, Placements, Promise};
use crate::problem::Problem;
use crate::slots::Slots;
use crate::solve::{Solution, solve};
use crate::workload::{Object, Workload};
use tiercel_machine::number::{index_u8, index_u32};

/// Makes a plan. `memories` are fastest first; what fits nowhere else goes to the last.
pub fn plan(
    workload: &Workload,
    memories: &[Memory],
    options: &Options,
) -> Result<Placements, PlanError> {
    workload.check()?;
    check(memories, options)?;
    let planner = Planner::new(workload, memories, options);
    let compute_ns = workload.phases.iter().map(|phase| phase.compute_ns).sum();
    let wanted = match options.strategy {
        Strategy::Utility(rules) => planner.by_utility(rules, compute_ns)?,
        _ => best(options.objective, options.slowdown_max, compute_ns, |weights| {
            planner.run(weights)
        })?,
    };
    Ok(planner.finish(wanted, compute_ns))
}

/// What all accesses to an object cost if it is in one memory all its life; with
/// [`Placements::prices`] this explains a placement. `object` is one of the workload's.
pub fn object_cost(workload: &Workload, object: &Object, memory: &Memory) -> Cost {
    let (first, last) = workload.phases_of(object);
    let mut uses = object.uses.iter().peekable();
    let mut sum = Cost::default();
    for phase in first..=last {
        let one = uses.next_if(|one| one.phase as usize == phase);
        sum += phase_cost(workload, object, phase, one, memory);
    }
    sum
}

impl Placements {
    /// The plan with other placements, which the caller found by a model of time; they must keep
    /// the capacities. By the planner's sums it may be worse, and the bound states by how much. For
    /// plans that minimize time.
    pub fn with(
        &self,
        workload: &Workload,
        memories: &[Memory],
        copy: &MoveSpeed,
        placements: Vec<Placement>,
    ) -> Placements {
        let (cost, moved) = evaluate(workload, memories, copy, &placements);
        let (value, before) = (cost.time_ns, self.promise);
        let promise = Promise {
            cost,
            moves: moved,
            moved_bytes: moved_bytes(workload, &placements),
            value,
            gap: before.bound.map(|bound| gap(value, bound, before.in_last.time_ns)),
            proven: false,
            ..before
        };
        let (moves, overflow_bytes) = in_order(workload, memories, &placements);
        Placements { placements, moves, overflow_bytes, promise, prices: self.prices.clone() }
    }
}

fn check(memories: &[Memory], options: &Options) -> Result<(), PlanError> {
    if memories.is_empty() || memories.len() > MEMORIES_MAX {
        return Err(PlanError::Options("a plan needs 1 to 8 memories"));
    }
    if !memories.iter().all(Memory::is_sound) {
        return Err(PlanError::Options(
            "latencies and bandwidths are numbers above 0, energies from 0, threads ascend",
        ));
    }
    let copy = options.copy;
    let mut measured = copy.measured_ns.iter().flatten();
    if copy.threads == 0
        || copy.gb_s_max.is_some_and(|most| !(most.is_finite() && most > 0.0))
        || measured.any(|ns| !(ns.is_finite() && *ns >= 0.0))
    {
        return Err(PlanError::Options(
            "copies need a thread, a speed above 0, and measured times from 0",
        ));
    }
    if options.slowdown_max.is_some_and(|most| !(most.is_finite() && most >= 0.0)) {
        return Err(PlanError::Options("a slowdown is a number from 0: 0.1 for a tenth longer"));
    }
    if options.strategy == (Strategy::Phases { ahead: 0 }) {
        return Err(PlanError::Options("phases are planned at least 1 ahead"));
    }
    if let Strategy::Utility(UtilityRules { epsilon, phi, .. }) = options.strategy {
        if !(epsilon.is_finite() && epsilon > 1.0 && (0.0..=1.0).contains(&phi)) {
            return Err(PlanError::Options("epsilon is a number above 1, phi one from 0 to 1"));
        }
        if options.slowdown_max.is_some() {
            return Err(PlanError::Options("placement by utility (oam) keeps no slowdown"));
        }
    }
    let unknown = memories.iter().find(|memory| memory.energy.is_none());
    match unknown {
        Some(memory) if options.objective != Objective::Time => {
            Err(PlanError::NoEnergy(memory.name.clone()))
        }
        _ => Ok(()),
    }
}

struct Planner<'a> {
    workload: &'a Workload,
    memories: &'a [Memory],
    options: &'a Options,
    slots: Slots,
}

impl<'a> Planner<'a> {
    fn new(workload: &'a Workload, memories: &'a [Memory], options: &'a Options) -> Planner<'a> {
        let slots = match options.strategy {
            Strategy::Initial => Slots::whole(workload),
            Strategy::Phases { .. } | Strategy::Joint => Slots::by_lifetime(workload, true),
            _ => Slots::by_lifetime(workload, false),
        };
        Planner { workload, memories, options, slots }
    }

    /// OAM's placements, which no weighing of time and energy changes.
    fn by_utility(&self, rules: UtilityRules, compute_ns: f64) -> Result<Wanted, PlanError> {
        let found = by_utility(self.workload, self.memories, self.options, rules);
        let placements = found.map_err(|object| self.no_room(object))?;
        let (cost, moves) = evaluate(self.workload, self.memories, &self.options.copy, &placements);
        let value = self.options.objective.value(&cost, compute_ns);
        let (bound, proven, prices) = (None, false, Vec::new());
        let weights = Weights::TIME;
        let trial = Trial { placements, cost, moves, bound, proven, weights, prices };
        Ok(Wanted { trial, value, bound, proven })
    }

    fn no_room(&self, object: usize) -> PlanError {
        PlanError::NoRoom { object, bytes: self.workload.objects[object].bytes }
    }

    /// The strategy, for one weighing of time and energy.
    fn run(&self, weights: Weights) -> Result<Trial, PlanError> {
        let (found, known) = self.choose(weights);
        let choice = found.map_err(|object| self.no_room(object))?;
        let placements = self.placements(&choice, self.is_by_phase());
        let (cost, moves) = evaluate(self.workload, self.memories, &self.options.copy, &placements);
        Ok(Trial {
            placements,
            cost,
            moves,
            bound: known.as_ref().map(|solution| solution.bound),
            proven: known.as_ref().is_some_and(|solution| solution.proven),
            weights,
            prices: known.map_or(Vec::new(), |known| self.room_prices(&known, self.is_by_phase())),
        })
    }

    /// Whether placements differ from phase to phase.
    fn is_by_phase(&self) -> bool {
        matches!(self.options.strategy, Strategy::Phases { .. } | Strategy::Joint)
    }

    fn problem(&self, weights: Weights, by_phase: bool) -> Problem {
        let (memories, copy) = (self.memories, &self.options.copy);
        Problem::of(self.workload, memories, copy, weights, &self.slots, by_phase)
    }

    /// What the strategy chooses, or an object that fits nowhere; with the solution of the joint
    /// program, where the strategy solves one.
    fn choose(&self, weights: Weights) -> (Result<Vec<u8>, usize>, Option<Solution>) {
        let effort = &self.options.effort;
        let found = match self.options.strategy {
            Strategy::FirstCome => {
                let problem = Problem::without_costs(self.workload, self.memories, &self.slots);
                first_come(&problem, &self.births())
            }
            Strategy::Greedy => greedy(&self.problem(weights, false)),
            Strategy::Lifetimes => {
                lifetime_by_lifetime(&self.problem(weights, false), &self.lifetimes(), effort)
            }
            Strategy::Phases { ahead } => {
                let (ahead, slots) = (ahead as usize, &self.slots);
                phase_by_phase(self.workload, self.memories, self.options, weights, slots, ahead)
            }
            Strategy::Initial | Strategy::Intervals | Strategy::Joint => {
                return self.choose_jointly(&self.problem(weights, self.is_by_phase()));
            }
            Strategy::Utility(_) => unreachable!("no weighing changes what goes by utility"),
        };
        (found, None)
    }

    fn choose_jointly(&self, problem: &Problem) -> (Result<Vec<u8>, usize>, Option<Solution>) {
        let effort = &self.options.effort;
        if self.options.levels == Levels::OneByOne && self.memories.len() > 2 {
            return (memory_by_memory(problem, effort), None);
        }
        match solve(problem, effort, self.seed(problem)) {
            Ok(solution) => (Ok(solution.choice.clone()), Some(solution)),
            Err(object) => (Err(object), None),
        }
    }

    /// First come, first served, so that no plan is worse. Not with a single slot, where it does
    /// not fit.
    fn seed(&self, problem: &Problem) -> Option<Vec<u8>> {
        if self.options.strategy == Strategy::Initial {
            return None;
        }
        let whole = Problem::without_costs(self.workload, self.memories, &self.slots);
        let choice = first_come(&whole, &self.births()).ok()?;
        let times = |item: &crate::problem::Item| item.count as usize;
        let each = problem.items.iter().zip(choice);
        Some(each.flat_map(|(item, memory)| std::iter::repeat_n(memory, times(item))).collect())
    }

    /// Prices of slots added up to phases, or to the whole run.
    fn room_prices(&self, solution: &Solution, by_phase: bool) -> Vec<f64> {
        let memories = self.memories.len();
        let rows = if by_phase { self.workload.phases.len() } else { 1 };
        let mut prices = vec![0.0; rows * memories];
        let mut row = 0;
        for (slot, of_slot) in solution.prices.chunks(memories).enumerate() {
            while row + 1 < rows && self.slots.of_phase[row + 1] as usize <= slot {
                row += 1;
            }
            let sums = &mut prices[row * memories..][..memories];
            sums.iter_mut().zip(of_slot).for_each(|(sum, price)| *sum += price);
        }
        prices
    }

    fn births(&self) -> Vec<u64> {
        self.workload.objects.iter().map(|object| object.birth_ns).collect()
    }

    fn lifetimes(&self) -> Vec<u64> {
        let length = |object: &Object| object.death_ns - object.birth_ns;
        self.workload.objects.iter().map(length).collect()
    }

    fn placements(&self, choice: &[u8], by_phase: bool) -> Vec<Placement> {
        let mut rest = choice;
        let mut placements = Vec::with_capacity(self.workload.objects.len());
        for object in &self.workload.objects {
            let (first, last) = self.workload.phases_of(object);
            let count = if by_phase { last - first + 1 } else { 1 };
            let (own, others) = rest.split_at(count);
            rest = others;
            let pairs = own.windows(2).enumerate().filter(|(_, pair)| pair[0] != pair[1]);
            let moves = pairs.map(|(at, pair)| (index_u32(first + at + 1), pair[1])).collect();
            placements.push(Placement { birth: own[0], moves });
        }
        placements
    }

    fn finish(&self, wanted: Wanted, compute_ns: f64) -> Placements {
        let Wanted { trial, value, bound, proven } = wanted;
        let (workload, memories) = (self.workload, self.memories);
        let last = Placement { birth: index_u8(memories.len() - 1), moves: Vec::new() };
        let all_last = vec![last; workload.objects.len()];
        let (in_last, _) = evaluate(workload, memories, &self.options.copy, &all_last);
        let value_in_last = self.options.objective.value(&in_last, compute_ns);
        let gap = bound.map(|bound| gap(value, bound, value_in_last));
        let promise = Promise {
            cost: trial.cost,
            moves: trial.moves,
            moved_bytes: moved_bytes(workload, &trial.placements),
            in_last,
            value,
            bound,
            gap,
            proven,
        };
        let (moves, overflow_bytes) = in_order(workload, memories, &trial.placements);
        let (placements, prices) = (trial.placements, trial.prices);
        Placements { placements, moves, overflow_bytes, promise, prices }
    }
}

/// Missing gain over the best possible gain.
fn gap(value: f64, bound: f64, in_last: f64) -> f64 {
    let missing = (value - bound).max(0.0);
    let possible = in_last - bound;
    match missing {
        0.0 => 0.0,
        _ if possible > 0.0 => missing / possible,
        // The last memory cannot hold them all, or is as good as any.
        _ => f64::INFINITY,
    }
}
