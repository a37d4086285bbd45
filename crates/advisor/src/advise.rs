//! From a profile to a plan in one step.
//! In: a [`Profile`], a machine, a [`PlanRequest`]. Out: a [`PlanResult`]: the plan, and what it
//! was made from. Knows nothing of files.

use tiercel_machine::Machine;
use tiercel_planner::{self as planner, Memory, Objective, PlanError, Strategy, UtilityRules};

use crate::assemble::Group;
use crate::ceiling::ceiling_of;
use crate::choice::{Candidate, Capacity, Search};
use crate::input::PlannerInput;
use crate::intervals::Intervals;
use crate::peak::peak_of;
use crate::request::PlanRequest;
use crate::throughput::apply_measurements;
use tiercel_plan::{Plan, PlanOptions};
use tiercel_profile::Profile;

/// At most one part in this many of the requested fast memory is held back for what is no object:
/// otherwise the plan of a small program would have no room.
const HELD_BACK_PARTS: u64 = 2;

/// A plan, and what it was made from.
pub struct PlanResult {
    /// For the plan's file.
    pub plan: Plan,
    /// The planner's input; a large object may be several objects there.
    pub input: PlannerInput,
    /// What each of its objects is in the profile.
    pub groups: Vec<Group>,
    /// The memories, of which the fastest has the requested size.
    pub memories: Vec<Memory>,
    /// The planner's answer.
    pub found: planner::Placements,
    /// What the user must know.
    pub remarks: Vec<String>,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanRequestError {
    /// Nothing to plan.
    #[error("the profile has no objects: nothing can be planned")]
    Empty,
    /// Nothing to choose from.
    #[error("the machine {0} has memories of one kind only; name another with --machine")]
    OneMemory(String),
    /// The planner refused.
    #[error(transparent)]
    Planner(#[from] PlanError),
}

/// Makes a plan.
///
/// # Errors
/// As [`PlanRequestError`] says.
pub fn advise(
    profile: &Profile,
    machine: &Machine,
    request: &PlanRequest,
) -> Result<PlanResult, PlanRequestError> {
    let input = PlannerInput::of(profile);
    if input.workload.objects.is_empty() {
        return Err(PlanRequestError::Empty);
    }
    let mut remarks = Vec::new();
    let mut memories = memories_of(machine, &mut remarks);
    if memories.len() < 2 {
        return Err(PlanRequestError::OneMemory(machine.name.clone()));
    }
    if profile.accesses.is_empty() {
        remarks.push("no accesses were observed: the plan rests on sizes alone".to_owned());
    } else if let Some(sampler) = ceiling_of(profile) {
        remarks.push(format!(
            "sampler {sampler} sees that memory is used, not how often caches are missed: the order \
             of objects is an estimate, and the times are no prediction; `tiercel whatif` shows \
             their bounds"
        ));
    }
    let strategy = usable(profile, &input, request.strategy, &mut remarks);
    let held_back_bytes =
        set_fast_capacity(&mut memories[0], request.fast_bytes, untracked_bytes(profile));
    let throughput = apply_measurements(profile, machine, &mut memories);
    let room = Capacity { memories, held_back_bytes };
    let intervals = Intervals::of(profile, &input);
    let search =
        Search { profile, input: &input, intervals: &intervals, machine, throughput, request };
    let Candidate { found, plan, groups, cut, room, .. } =
        search.best(strategy, &room, &mut remarks)?;
    Ok(PlanResult { plan, input: cut.input, groups, memories: room.memories, found, remarks })
}

impl PlanRequest {
    /// The options as a plan's file records them.
    pub(crate) fn options(&self) -> PlanOptions {
        PlanOptions {
            strategy: strategy_name(self.strategy).to_owned(),
            objective: objective_name(self.objective).to_owned(),
            fast: self.fast.clone(),
            prefetch: self.prefetch,
        }
    }
}

/// Sets how many bytes of a memory objects may take: `bytes` less what memory outside of objects
/// needs. Returns the bytes that are held back for that.
fn set_fast_capacity(memory: &mut Memory, bytes: u64, untracked_bytes: u64) -> u64 {
    let room = memory.capacity_bytes.min(bytes);
    let held_back = untracked_bytes.min(room / HELD_BACK_PARTS);
    memory.capacity_bytes = room - held_back;
    held_back
}

/// Most memory outside of objects in any run.
fn untracked_bytes(profile: &Profile) -> u64 {
    profile.runs.iter().map(|run| run.observed.untracked_bytes).max().unwrap_or(0)
}

/// The machine's memories, fastest first.
fn memories_of(machine: &Machine, remarks: &mut Vec<String>) -> Vec<Memory> {
    let (memories, left) = Memory::of_machine(machine, None);
    for tier in left {
        let nodes: Vec<String> = tier.nodes.iter().map(ToString::to_string).collect();
        remarks.push(format!(
            "node {} is not planned with: its {} is unknown; give it in the machine description",
            nodes.join(", "),
            tier.figure,
        ));
    }
    memories
}

/// The peak over all runs of the bytes of live objects, plus memory outside of objects. Shares of
/// fast memory are shares of this.
pub fn peak_bytes(profile: &Profile) -> u64 {
    let workload = PlannerInput::of(profile).workload;
    let mut changes: Vec<(u64, i128)> = Vec::with_capacity(workload.objects.len() * 2);
    for object in &workload.objects {
        changes.push((object.birth_ns, i128::from(object.bytes)));
        changes.push((object.death_ns, -i128::from(object.bytes)));
    }
    peak_of(changes).saturating_add(untracked_bytes(profile))
}

/// A run recognizes only phases that the program marks: without marks, objects cannot move.
fn usable(
    profile: &Profile,
    input: &PlannerInput,
    strategy: Strategy,
    remarks: &mut Vec<String>,
) -> Strategy {
    let marked = |phase: &u32| profile.phases[*phase as usize].process.is_some();
    let still = match strategy {
        Strategy::Joint => Strategy::Intervals,
        Strategy::Phases { .. } => Strategy::Lifetimes,
        Strategy::Utility(rules) if rules.moves => {
            Strategy::Utility(UtilityRules { moves: false, ..rules })
        }
        _ => return strategy,
    };
    if input.phases.iter().any(marked) {
        return strategy;
    }
    remarks.push(
        "the program marks no phases: every object stays where it is born; mark them with \
         tiercel_phase (docs/planning.md) to plan moves"
            .to_owned(),
    );
    still
}

/// The name of a strategy on the command line.
pub fn strategy_name(strategy: Strategy) -> &'static str {
    match strategy {
        Strategy::FirstCome => "fcfs",
        Strategy::Greedy => "greedy",
        Strategy::Initial => "idp",
        Strategy::Lifetimes => "lifetimes",
        Strategy::Intervals => "intervals",
        Strategy::Phases { .. } => "phased",
        Strategy::Joint => "joint",
        Strategy::Utility(UtilityRules { moves: true, .. }) => "oam",
        Strategy::Utility(UtilityRules { moves: false, .. }) => "oam-unmoved",
    }
}

/// The name of an objective on the command line.
pub fn objective_name(objective: Objective) -> &'static str {
    match objective {
        Objective::Time => "time",
        Objective::Energy => "energy",
        Objective::EnergyDelay => "edp",
    }
}
