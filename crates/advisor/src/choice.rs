//! Compares several candidate plans and keeps the one with the best prediction.
//! In: a profile as the planner gets it, memories with their capacity. Out: [`Candidate`]: a plan
//! with all that it was made from. Knows nothing of where memories and capacities come from.

use tiercel_machine::Machine;
use tiercel_machine::number::saturating_u64;
use tiercel_planner::{
    self as planner, Cost, Memory, Objective, Options, Placement, PlanError, Strategy, Workload,
    object_cost,
};

use crate::assemble::{Assembly, Group, assemble};
use crate::input::{Cut, Part, PlannerInput};
use crate::intervals::Intervals;
use crate::peak::peak_of;
use crate::predict::predict_of;
use crate::request::PlanRequest;
use crate::throughput::Throughput;
use tiercel_plan::{Plan, Unplanned};
use tiercel_profile::Profile;

/// Objects are cut if they are larger than this fraction of the fastest memory: those that do not
/// fit into it at all, or more of them.
const CUT_PARTS: [u64; 2] = [1, 8];

/// Most objects and parts that are planned with.
const CUT_OBJECTS_MAX: usize = 1 << 14;

/// Most cut objects that exchange their room: those with the largest gain.
const EXCHANGED_MAX: usize = 4;

/// Most exchanges.
const EXCHANGES_MAX: usize = 4;

/// An exchange must be predicted to save more than it costs by the planner's sums, or this share of
/// the run time: predictions from one recording that differ by less are not significant (bt at 25%:
/// 1.4% predicted, 2% lost, and 9% by the sums).
const EXCHANGE_WIN_MIN: f64 = 1.0 / 64.0;

/// Densities that differ by less than one of so many parts of a nanosecond a byte are equal.
const DENSITY_STEPS: f64 = 1e6;

/// A margin is one part of this many of the room.
const MARGIN_PARTS: u64 = 16;

/// The margin is filled where that gains more than so much of what such a part gains in the mean.
/// It costs what it would have gained in every run, and helps in those that have less room than the
/// plan, where what is born last is slow, whatever it is. hotcold's lukewarm objects gain a 50th to
/// a 190th; of H2M's workloads what gains least (xsbench's grid at 50%) gains a 19th, and none of
/// their runs was seen to lack room.
const MARGIN_GAIN_MIN: f64 = 1.0 / 32.0;

/// What a plan is made for.
pub(crate) struct Search<'a> {
    pub(crate) profile: &'a Profile,
    pub(crate) input: &'a PlannerInput,
    pub(crate) intervals: &'a Intervals,
    pub(crate) machine: &'a Machine,
    pub(crate) throughput: Throughput,
    pub(crate) request: &'a PlanRequest,
}

/// Memories with the capacity that a plan may fill, and what it leaves free of the fastest.
#[derive(Clone)]
pub(crate) struct Capacity {
    pub(crate) memories: Vec<Memory>,
    pub(crate) held_back_bytes: u64,
}

/// A plan, the placement it was made from, and the planner's input.
pub(crate) struct Candidate {
    pub(crate) found: planner::Placements,
    pub(crate) plan: Plan,
    pub(crate) groups: Vec<Group>,
    pub(crate) cut: Cut,
    strategy: Strategy,
    pub(crate) room: Capacity,
}

impl Search<'_> {
    /// The best plan: with large objects in one piece or in several, which can be placed better and
    /// are harder to place well; and with moves or without.
    pub(crate) fn best(
        &self,
        strategy: Strategy,
        room: &Capacity,
        remarks: &mut Vec<String>,
    ) -> Result<Candidate, PlanError> {
        let still = match strategy {
            Strategy::Joint => Some(Strategy::Intervals),
            Strategy::Phases { .. } => Some(Strategy::Lifetimes),
            _ => None,
        };
        let (mut candidates, mut failed) = (Vec::new(), None);
        for strategy in [Some(strategy), still].into_iter().flatten() {
            for cut in self.cuts(strategy, room) {
                match self.candidate(strategy, cut, room.clone()) {
                    Ok(one) => candidates.push(one),
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
        }
        let moves = |candidate: &Candidate| candidate.plan.expected.moved_bytes > 0;
        let some_move = candidates.iter().any(moves);
        let best = candidates.into_iter().reduce(|best, one| self.better(best, one));
        if some_move && best.as_ref().is_some_and(|best| !moves(best)) {
            remarks.push("no moves pay here: every object stays where it is born".to_owned());
        }
        best.map(|best| self.with_margin(self.exchanged(best)))
            .ok_or_else(|| failed.expect("without a plan there was an error"))
    }

    /// Lets cut objects exchange their room in the fastest memory, as long as that is predicted to
    /// help. Streams that are walked together gain little while one of them is slow; the planner's
    /// sums do not show which of them should be fast.
    fn exchanged(&self, candidate: Candidate) -> Candidate {
        let slowdown =
            |candidate: &Candidate| candidate.plan.expected.time.unwrap_or_default().slowdown;
        let is_published = matches!(candidate.strategy, Strategy::Utility(_));
        if is_published || self.request.objective != Objective::Time {
            return candidate;
        }
        let large = largest_cut(&candidate);
        let mut last = self.best_exchange(&candidate, &large);
        for _ in 1..EXCHANGES_MAX {
            let Some(next) = last.as_ref().and_then(|one| self.best_exchange(one, &large)) else {
                break;
            };
            last = Some(next);
        }
        let won = |last: &Candidate| slowdown(&candidate) - slowdown(last);
        let enough =
            |last: &Candidate| lost(&candidate, last).min(slowdown(&candidate) * EXCHANGE_WIN_MIN);
        last.filter(|last| won(last) >= enough(last)).unwrap_or(candidate)
    }

    /// The best plan in which two of these objects have exchanged their room, if it is better.
    fn best_exchange(&self, candidate: &Candidate, large: &[usize]) -> Option<Candidate> {
        let (workload, memories) = (&candidate.cut.input.workload, &candidate.room.memories);
        let pairs = large.iter().flat_map(|from| large.iter().map(move |to| (*from, *to)));
        let tried = pairs.filter(|(from, to)| from != to).filter_map(|(from, to)| {
            let placements = exchange(candidate, from, to)?;
            let found = candidate.found.with(workload, memories, &self.throughput.copy, placements);
            Some(self.plan(
                candidate.strategy,
                candidate.cut.clone(),
                candidate.room.clone(),
                found,
            ))
        });
        tried
            .reduce(|best, one| self.better(best, one))
            .filter(|best| self.is_better(best, candidate))
    }

    /// The same plan in a room smaller by a margin, where filling that gains little. A run may have
    /// less room than a plan knows of; then what is born last is slow, and that may be what gains
    /// most. The strategies of H2M fill the room.
    fn with_margin(&self, candidate: Candidate) -> Candidate {
        if !matches!(candidate.strategy, Strategy::Intervals | Strategy::Joint) {
            return candidate;
        }
        let gain = |candidate: &Candidate| {
            let (promise, time) =
                (candidate.found.promise, candidate.plan.expected.time.unwrap_or_default());
            let Cost { time_ns, energy_pj } = promise.in_last;
            match self.request.objective {
                Objective::Time => time.all_slow - time.slowdown,
                Objective::Energy => energy_pj - promise.value,
                Objective::EnergyDelay => time_ns * energy_pj - promise.value,
            }
        };
        let little = gain(&candidate) / MARGIN_PARTS as f64 * MARGIN_GAIN_MIN;
        let less =
            self.candidate(candidate.strategy, candidate.cut.clone(), candidate.room.with_margin());
        match less.map(|less| self.exchanged(less)) {
            Ok(less)
                if less.found.placements != candidate.found.placements
                    && gain(&candidate) - gain(&less) <= little =>
            {
                less
            }
            _ => candidate,
        }
    }

    /// All objects whole, and the largest ones cut. The strategies of H2M place whole ones, OAM
    /// places chunks of large ones (OAM 3.6).
    fn cuts(&self, strategy: Strategy, room: &Capacity) -> Vec<Cut> {
        let mut cuts = vec![self.input.cut(u64::MAX)];
        let is_utility = matches!(strategy, Strategy::Utility(_));
        if !is_utility && !matches!(strategy, Strategy::Intervals | Strategy::Joint) {
            return cuts;
        }
        for parts in CUT_PARTS {
            let cut = self.input.cut(room.memories[0].capacity_bytes / parts);
            let count = cut.parts.len();
            if count > cuts[cuts.len() - 1].parts.len() && count <= CUT_OBJECTS_MAX {
                cuts.push(cut);
            }
        }
        if is_utility {
            // The finest: the published system compares no plans.
            cuts.drain(..cuts.len() - 1);
        }
        cuts
    }

    /// Compares the predicted run time of the program, which accounts for overlap; the planner's
    /// sums over objects do not. Other objectives are compared by the planner's figures.
    fn is_better(&self, candidate: &Candidate, than: &Candidate) -> bool {
        let value = |candidate: &Candidate| match self.request.objective {
            Objective::Time => {
                let expected = &candidate.plan.expected;
                (expected.time.map_or(f64::INFINITY, |time| time.slowdown), expected.access_ns)
            }
            _ => (candidate.found.promise.value, 0.0),
        };
        value(candidate) < value(than)
    }

    fn better(&self, best: Candidate, one: Candidate) -> Candidate {
        if self.is_better(&one, &best) { one } else { best }
    }

    fn candidate(
        &self,
        strategy: Strategy,
        cut: Cut,
        room: Capacity,
    ) -> Result<Candidate, PlanError> {
        let options = Options {
            strategy,
            objective: self.request.objective,
            slowdown_max: self.request.slowdown_max,
            copy: self.throughput.copy,
            ..Options::default()
        };
        let found = planner::plan(&cut.input.workload, &room.memories, &options)?;
        Ok(self.plan(strategy, cut, room, found))
    }

    /// The plan that follows from placements, with its predicted effect.
    fn plan(
        &self,
        strategy: Strategy,
        cut: Cut,
        room: Capacity,
        found: planner::Placements,
    ) -> Candidate {
        let groups = groups_of(self.profile, &cut);
        let mut plan = assemble(&Assembly {
            profile: self.profile,
            workload: &cut.input.workload,
            groups: &groups,
            machine: self.machine,
            memories: &room.memories,
            found: &found,
            throughput: self.throughput,
            held_back_bytes: room.held_back_bytes,
            options: self.request.options(),
            unplanned: self.request.unplanned,
        });
        if strategy == Strategy::FirstCome {
            // First come, first served is what a run does without knowing any site.
            (plan.unplanned, plan.small_objects) = (Unplanned::Budget, None);
            plan.sites.clear();
            plan.modules.clear();
        }
        let seen = (self.input, self.intervals);
        plan.expected.time = Some(predict_of(self.profile, seen, self.machine, &plan));
        Candidate { found, plan, groups, cut, strategy, room }
    }
}

impl Capacity {
    /// The same with a margin of the fastest memory held back as well.
    fn with_margin(&self) -> Capacity {
        let mut room = self.clone();
        let margin_bytes = room.memories[0].capacity_bytes / MARGIN_PARTS;
        room.memories[0].capacity_bytes -= margin_bytes;
        room.held_back_bytes += margin_bytes;
        room
    }
}

/// What the second plan loses compared with the first, by the planner's sums, as a share of the
/// all-fast time.
fn lost(from: &Candidate, to: &Candidate) -> f64 {
    let (one, other) = (&from.plan.expected, &to.plan.expected);
    let all_slow = one.time.map_or(0.0, |time| time.all_slow - 1.0);
    let possible_ns = one.in_slowest_ns - one.in_fastest_ns;
    (other.access_ns - one.access_ns).max(0.0) / possible_ns.max(1.0) * all_slow.max(0.0)
}

/// The cut objects with the largest gain, by their index in the workload before cutting.
fn largest_cut(candidate: &Candidate) -> Vec<usize> {
    let (workload, memories) = (&candidate.cut.input.workload, &candidate.room.memories);
    let mut gains: Vec<(usize, f64)> = Vec::new();
    let parts = workload.objects.iter().zip(&candidate.cut.parts);
    for (object, part) in parts.filter(|(_, part)| part.range.is_some()) {
        let cost_ns = |memory: &Memory| object_cost(workload, object, memory).time_ns;
        let gain_ns = cost_ns(&memories[memories.len() - 1]) - cost_ns(&memories[0]);
        match gains.last_mut().filter(|(whole, _)| *whole == part.whole) {
            Some((_, sum_ns)) => *sum_ns += gain_ns,
            None => gains.push((part.whole, gain_ns)),
        }
    }
    gains.retain(|(_, gain_ns)| *gain_ns > 0.0);
    gains.sort_by(|a, b| b.1.total_cmp(&a.1));
    gains.into_iter().map(|(whole, _)| whole).take(EXCHANGED_MAX).collect()
}

/// Placements in which object `to` takes room in the fastest memory from object `from`, as much as
/// it can use: its densest parts go up, the least dense ones of `from` take their place, the tail
/// first where all are alike. `None`: there is nothing to
/// exchange, or the room is needed while only one of the two lives. Objects that move stay as they
/// are.
fn exchange(candidate: &Candidate, from: usize, to: usize) -> Option<Vec<Placement>> {
    let workload = &candidate.cut.input.workload;
    let mut placements = candidate.found.placements.clone();
    let parts_of = |whole, is_fast| parts_by_density(candidate, whole, is_fast);
    let mut given = parts_of(from, true);
    let life = |at: usize| (workload.objects[at].birth_ns, workload.objects[at].death_ns);
    let (gives, gets) = (life(*parts_of(from, true).first()?), life(*parts_of(to, false).first()?));
    let both = (gives.0.max(gets.0), gives.1.min(gets.1));
    let capacity = |memory: usize| candidate.room.memories[memory].capacity_bytes;
    let mut left_bytes = capacity(0).saturating_sub(most_bytes(workload, &placements, 0, both));
    let given_bytes: u64 = given.iter().map(|at| workload.objects[*at].bytes).sum();
    let mut room_bytes = left_bytes + given_bytes;
    for up in parts_of(to, false) {
        let bytes = workload.objects[up].bytes;
        if room_bytes < bytes {
            break;
        }
        room_bytes -= bytes;
        while left_bytes < bytes {
            let down = given.pop()?;
            left_bytes += workload.objects[down].bytes;
            placements[down].birth = placements[up].birth;
        }
        left_bytes -= bytes;
        placements[up].birth = 0;
    }
    let all = (0, u64::MAX);
    let fits = |memory| most_bytes(workload, &placements, memory, all) <= capacity(memory);
    (0..candidate.room.memories.len()).all(fits).then_some(placements)
}

/// The parts of an object that stay in the fastest memory, or in others: the densest first.
fn parts_by_density(candidate: &Candidate, whole: usize, is_fast: bool) -> Vec<usize> {
    let (workload, memories) = (&candidate.cut.input.workload, &candidate.room.memories);
    let all = candidate.found.placements.iter().zip(&candidate.cut.parts).enumerate();
    let wanted = all.filter(|(_, (one, part))| {
        part.whole == whole && one.moves.is_empty() && (one.birth == 0) == is_fast
    });
    let mut parts: Vec<usize> = wanted.map(|(at, _)| at).collect();
    let density = |at: usize| {
        let object = &workload.objects[at];
        let cost_ns = |memory: &Memory| object_cost(workload, object, memory).time_ns;
        (cost_ns(&memories[memories.len() - 1]) - cost_ns(&memories[0])) / object.bytes as f64
    };
    // Equal parts differ by rounding; of those the first stay first.
    let key = |at: usize| saturating_u64(density(at).max(0.0) * DENSITY_STEPS);
    parts.sort_by_key(|at| std::cmp::Reverse(key(*at)));
    parts
}

/// Most bytes of a memory that placements take at once in a span of time.
fn most_bytes(
    workload: &Workload,
    placements: &[Placement],
    memory: usize,
    (from_ns, to_ns): (u64, u64),
) -> u64 {
    let mut changes: Vec<(u64, i128)> = Vec::new();
    for (object, placement) in workload.objects.iter().zip(placements) {
        let (mut at, mut since_ns) = (usize::from(placement.birth), object.birth_ns);
        let start_ns = |phase: u32| workload.phases[phase as usize].start_ns;
        let moves = placement.moves.iter().map(|(phase, to)| (start_ns(*phase), usize::from(*to)));
        let death_ns = object.death_ns.max(object.birth_ns + 1);
        for (until_ns, next) in moves.chain([(death_ns, usize::MAX)]) {
            let (begin, end) = (since_ns.max(from_ns), until_ns.min(to_ns));
            if at == memory && begin < end {
                changes.push((begin, i128::from(object.bytes)));
                changes.push((end, -i128::from(object.bytes)));
            }
            (since_ns, at) = (until_ns, next);
        }
    }
    peak_of(changes)
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
            is_mixed: profile.is_mixed(object),
            count: once(object.count),
            samples: once(samples[*index as usize]),
            range: part.range,
        }
    };
    cut.input.objects.iter().zip(&cut.parts).map(group).collect()
}
