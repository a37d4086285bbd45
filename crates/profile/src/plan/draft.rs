//! From a profile to a plan in one step.
//! In: a [`Profile`], a machine, a [`Wish`]. Out: [`Drafted`]: the plan with all it was made of.
//! Knows nothing of files.

use tiercel_machine::Machine;
use tiercel_planner::{self as planner, Cost, Memory, Objective, Options, PlanError, Strategy};

use super::pace::{Pace, pace_of};
use super::predict::predict_of;
use super::{Asked, Group, Plan, PlanOptions, Unplanned, plan_of};
use crate::profile::Profile;
use crate::stretches::Stretches;
use crate::workload::{Cut, Part, Told};

/// Of the room that was asked for, at most this part is held back for what is no object: a small
/// program's plan would have no room else.
const HELD_BACK_PARTS: u64 = 2;

/// Objects are cut that are larger than such a part of the fastest memory: all that find no room
/// in it at all, and more.
const CUT_PARTS: [u64; 2] = [1, 8];

/// More objects and parts are not planned with.
const CUT_OBJECTS_MAX: usize = 1 << 14;

/// One part of so many of the room is a margin.
const MARGIN_PARTS: f64 = 16.0;

/// The margin is filled where that gains more than so much of what such a part gains in the mean.
/// It costs what it would have gained in every run, and helps in those that have less room than the
/// plan, where what is born last is slow, whatever it is. hotcold's lukewarm objects gain a 50th to
/// a 190th; of H2M's workloads what gains least (xsbench's grid at 50%) gains a 19th, and none of
/// their runs was seen to lack room.
const MARGIN_GAIN_MIN: f64 = 1.0 / 32.0;

/// How a plan is wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    /// How placements are found.
    pub strategy: Strategy,
    /// What is made small.
    pub objective: Objective,
    /// Most that time may grow for objectives other than time (0.1: a tenth).
    pub slowdown_max: Option<f64>,
    /// Room in the fastest memory for all of the program, bytes; at most its capacity is used.
    pub fast_bytes: u64,
    /// The same as the user said it.
    pub fast: String,
    /// The default for what the plan does not know.
    pub unplanned: Unplanned,
    /// Objects may move before the phase they move for.
    pub early: bool,
}

/// A plan, and what it was made of.
pub struct Drafted {
    /// For the file.
    pub plan: Plan,
    /// What the planner was told; large objects are several there.
    pub told: Told,
    /// What its objects are.
    pub groups: Vec<Group>,
    /// Memories, the fastest one as large as was wished.
    pub memories: Vec<Memory>,
    /// What it answered.
    pub found: planner::Plan,
    /// What the user must know.
    pub remarks: Vec<String>,
}

/// Why no plan was made.
#[derive(Debug, thiserror::Error)]
pub enum DraftError {
    /// Nothing to plan.
    #[error("the profile has no objects: nothing can be planned")]
    Empty,
    /// Nothing to choose from.
    #[error("the machine {0} has memories of one kind only; name another with --machine")]
    OneMemory(String),
    /// The planner's word.
    #[error(transparent)]
    Planner(#[from] PlanError),
}

/// Makes a plan.
///
/// # Errors
/// As [`DraftError`] says.
pub fn draft(profile: &Profile, machine: &Machine, wish: &Wish) -> Result<Drafted, DraftError> {
    let told = profile.to_workload();
    if told.workload.objects.is_empty() {
        return Err(DraftError::Empty);
    }
    let mut remarks = Vec::new();
    let mut memories = memories_of(machine, &mut remarks);
    if memories.len() < 2 {
        return Err(DraftError::OneMemory(machine.name.clone()));
    }
    if profile.accesses.is_empty() {
        remarks.push("no accesses were observed: the plan rests on sizes alone".to_owned());
    }
    let strategy = usable(profile, &told, wish.strategy, &mut remarks);
    let held_back_bytes = give_room(&mut memories[0], wish.fast_bytes, untracked_bytes(profile));
    let pace = pace_of(profile, machine, &mut memories);
    let room = Room { memories, held_back_bytes };
    let stretches = profile.stretches(&told);
    let scene = Scene { profile, told: &told, stretches: &stretches, machine, pace, wish };
    let Made { found, plan, groups, cut, room, .. } = scene.best(strategy, &room, &mut remarks)?;
    Ok(Drafted { plan, told: cut.told, groups, memories: room.memories, found, remarks })
}

/// What a plan is made for.
struct Scene<'a> {
    profile: &'a Profile,
    told: &'a Told,
    stretches: &'a Stretches,
    machine: &'a Machine,
    pace: Pace,
    wish: &'a Wish,
}

/// Memories with the room that a plan may fill, and what it leaves free of the fastest.
#[derive(Clone)]
struct Room {
    memories: Vec<Memory>,
    held_back_bytes: u64,
}

/// A plan, what the planner answered, and what it was told.
struct Made {
    found: planner::Plan,
    plan: Plan,
    groups: Vec<Group>,
    cut: Cut,
    strategy: Strategy,
    room: Room,
}

impl Scene<'_> {
    /// The best plan: with large objects in one piece or in several, which can be placed better and
    /// are harder to place well; and with moves or without.
    fn best(
        &self,
        strategy: Strategy,
        room: &Room,
        remarks: &mut Vec<String>,
    ) -> Result<Made, PlanError> {
        let still = match strategy {
            Strategy::Joint => Some(Strategy::Intervals),
            Strategy::Phases { .. } => Some(Strategy::Lifetimes),
            _ => None,
        };
        let (mut made, mut failed) = (Vec::new(), None);
        for strategy in [Some(strategy), still].into_iter().flatten() {
            for cut in self.cuts(strategy, room) {
                match self.make(strategy, cut, room.clone()) {
                    Ok(one) => made.push(one),
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
        }
        let moves = |made: &Made| made.plan.expected.moved_bytes > 0;
        let some_move = made.iter().any(moves);
        let better = |best, one| if self.is_better(&one, &best) { one } else { best };
        let best = made.into_iter().reduce(better);
        if some_move && best.as_ref().is_some_and(|best| !moves(best)) {
            remarks.push("no moves pay here: every object stays where it is born".to_owned());
        }
        best.map(|best| self.with_margin(best))
            .ok_or_else(|| failed.expect("without a plan there was an error"))
    }

    /// The same plan in a room smaller by a margin, where filling that gains little. A run may have
    /// less room than a plan knows of; then what is born last is slow, and that may be what gains
    /// most. The strategies of H2M fill the room.
    fn with_margin(&self, made: Made) -> Made {
        if !matches!(made.strategy, Strategy::Intervals | Strategy::Joint) {
            return made;
        }
        let gain = |made: &Made| {
            let (promise, time) = (made.found.promise, made.plan.expected.time.unwrap_or_default());
            let Cost { time_ns, energy_pj } = promise.in_last;
            match self.wish.objective {
                Objective::Time => time.all_slow - time.slowdown,
                Objective::Energy => energy_pj - promise.value,
                Objective::EnergyDelay => time_ns * energy_pj - promise.value,
            }
        };
        let little = gain(&made) / MARGIN_PARTS * MARGIN_GAIN_MIN;
        match self.make(made.strategy, made.cut.clone(), made.room.with_margin()) {
            Ok(less)
                if less.found.placements != made.found.placements
                    && gain(&made) - gain(&less) <= little =>
            {
                less
            }
            _ => made,
        }
    }

    /// All objects whole, and the largest cut. The strategies of H2M place whole ones.
    fn cuts(&self, strategy: Strategy, room: &Room) -> Vec<Cut> {
        let mut cuts = vec![self.told.cut(self.profile, u64::MAX)];
        if !matches!(strategy, Strategy::Intervals | Strategy::Joint) {
            return cuts;
        }
        for parts in CUT_PARTS {
            let cut = self.told.cut(self.profile, room.memories[0].capacity_bytes / parts);
            let count = cut.parts.len();
            if count > cuts[cuts.len() - 1].parts.len() && count <= CUT_OBJECTS_MAX {
                cuts.push(cut);
            }
        }
        cuts
    }

    /// By what is foretold of the program's time: it knows what overlaps, which the planner's sums
    /// over objects do not. Other objectives are the planner's.
    fn is_better(&self, made: &Made, than: &Made) -> bool {
        let value = |made: &Made| match self.wish.objective {
            Objective::Time => {
                let expected = &made.plan.expected;
                (expected.time.map_or(f64::INFINITY, |time| time.slowdown), expected.access_ns)
            }
            _ => (made.found.promise.value, 0.0),
        };
        value(made) < value(than)
    }

    fn make(&self, strategy: Strategy, cut: Cut, room: Room) -> Result<Made, PlanError> {
        let options = Options {
            strategy,
            objective: self.wish.objective,
            slowdown_max: self.wish.slowdown_max,
            copy: self.pace.copy,
            ..Options::default()
        };
        let workload = &cut.told.workload;
        let found = planner::plan(workload, &room.memories, &options)?;
        let groups = groups_of(self.profile, &cut);
        let mut plan = plan_of(&Asked {
            profile: self.profile,
            workload,
            groups: &groups,
            machine: self.machine,
            memories: &room.memories,
            found: &found,
            pace: self.pace,
            held_back_bytes: room.held_back_bytes,
            options: self.wish.options(),
            unplanned: self.wish.unplanned,
        });
        if strategy == Strategy::FirstCome {
            // Who comes first is served first: that is what a run does without knowing any site.
            (plan.unplanned, plan.small_objects) = (Unplanned::Budget, None);
            plan.sites.clear();
            plan.modules.clear();
        }
        let seen = (self.told, self.stretches);
        plan.expected.time = Some(predict_of(self.profile, seen, self.machine, &plan));
        Ok(Made { found, plan, groups, cut, strategy, room })
    }
}

impl Room {
    /// With a part of the fastest memory's room held back, too.
    fn with_margin(&self) -> Room {
        let mut room = self.clone();
        let margin_bytes = (room.memories[0].capacity_bytes as f64 / MARGIN_PARTS) as u64;
        room.memories[0].capacity_bytes -= margin_bytes;
        room.held_back_bytes += margin_bytes;
        room
    }
}

impl Wish {
    /// As it stands in a plan's file.
    fn options(&self) -> PlanOptions {
        PlanOptions {
            strategy: strategy_name(self.strategy).to_owned(),
            objective: objective_name(self.objective).to_owned(),
            fast: self.fast.clone(),
            early: self.early,
        }
    }
}

/// Leaves a memory so much room for objects as `bytes` leave beside what is no object; returns what
/// that takes.
fn give_room(memory: &mut Memory, bytes: u64, untracked_bytes: u64) -> u64 {
    let room = memory.capacity_bytes.min(bytes);
    let held_back = untracked_bytes.min(room / HELD_BACK_PARTS);
    memory.capacity_bytes = room - held_back;
    held_back
}

/// Most memory beside the objects in any run.
fn untracked_bytes(profile: &Profile) -> u64 {
    profile.runs.iter().map(|run| run.seen.untracked_bytes).max().unwrap_or(0)
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

/// Most bytes of live objects at a time, over all runs, and of memory that is none: what a share of
/// the peak is a share of.
pub fn peak_bytes(profile: &Profile) -> u64 {
    let workload = profile.to_workload().workload;
    let mut changes: Vec<(u64, i128)> = Vec::with_capacity(workload.objects.len() * 2);
    for object in &workload.objects {
        changes.push((object.birth_ns, i128::from(object.bytes)));
        changes.push((object.death_ns, -i128::from(object.bytes)));
    }
    // What dies makes room for what is born at the same time.
    changes.sort_unstable();
    let (mut live, mut peak) = (0, 0);
    for (_, change) in changes {
        live += change;
        peak = peak.max(live);
    }
    u64::try_from(peak).unwrap_or(u64::MAX).saturating_add(untracked_bytes(profile))
}

/// Only phases the program marks are known again in a run; between others nothing can move.
fn usable(
    profile: &Profile,
    told: &Told,
    strategy: Strategy,
    remarks: &mut Vec<String>,
) -> Strategy {
    let marked = |phase: &u32| profile.phases[*phase as usize].process.is_some();
    let by_phase = matches!(strategy, Strategy::Phases { .. } | Strategy::Joint);
    if !by_phase || told.phases.iter().any(marked) {
        return strategy;
    }
    remarks.push(
        "the program marks no phases: every object stays where it is born; mark them with \
         tiercel_phase (docs/planning.md) to plan moves"
            .to_owned(),
    );
    if strategy == Strategy::Joint { Strategy::Intervals } else { Strategy::Lifetimes }
}

fn groups_of(profile: &Profile, cut: &Cut) -> Vec<Group> {
    let mut samples = vec![0u64; profile.objects.len()];
    for access in &profile.accesses {
        samples[access.object as usize] += access.samples;
    }
    let group = |(index, part): (&u32, &Part)| {
        let object = &profile.objects[*index as usize];
        let once = |count: u64| if part.is_first { count } else { 0 };
        Group {
            site: object.site,
            size_class: object.size_class(),
            is_block: object.is_block,
            count: once(object.count),
            samples: once(samples[*index as usize]),
            middle: part.middle,
        }
    };
    cut.told.objects.iter().zip(&cut.parts).map(group).collect()
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
