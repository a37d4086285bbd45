//! Objects by utility: OAM 3.4 to 3.6, with Algorithm 1 (DyMalloc) over the recorded births.
//! In: a workload, memories, [`UtilityRules`]. Out: a [`Placement`] for each object. Knows nothing
//! of prices: each birth is decided once, by what lives then and by the hottest object to come.
//!
//! ```text
//! birth    U < epsilon                                        slowest memory
//!          used / capacity < phi                              fastest,  U_t = epsilon
//!          U > U_t and free - S(hottest object of the
//!          next slot that is not fast yet) >= S(this one)     fastest,  U_t = U
//!          otherwise                                          slowest memory
//! phase    an object whose utility crosses epsilon moves, if that saves more than it costs
//! ```
//! As printed, U_t is never read; the text of 3.5 lets only hotter objects in while the fastest
//! memory is nearly full, and so does this. Slots are the workload's phases: a run moves objects at
//! their entries. The fastest memory is OAM's DRAM, the last one its NVM.

use crate::estimate::{Weights, move_cost_per_byte, phase_cost};
use crate::evaluate::evaluate;
use crate::memory::Memory;
use crate::object_phases::{ObjectPhase, ObjectSlot, object_phases};
use crate::options::{Objective, Options, UtilityRules};
use crate::placement::Placement;
use crate::utility::utilities;
use crate::workload::Workload;
use tiercel_machine::number::{index_u8, index_u32};

/// Where each object is placed. The object that finds no room in any memory is the error.
pub fn by_utility(
    workload: &Workload,
    memories: &[Memory],
    options: &Options,
    rules: UtilityRules,
) -> Result<Vec<Placement>, usize> {
    let objects = phases_of_objects(workload, memories, options.objective, rules.epsilon);
    let mut runner = Runner::new(workload, memories, options, rules, &objects);
    let still = runner.run(None)?;
    if !rules.moves {
        return Ok(still);
    }
    let weights = weights(workload, memories, options, &still);
    Runner::new(workload, memories, options, rules, &objects).run(Some(weights))
}

/// What a nanosecond and a picojoule are worth. Of a product each is worth the other sum, at the
/// placement without moves.
fn weights(
    workload: &Workload,
    memories: &[Memory],
    options: &Options,
    still: &[Placement],
) -> Weights {
    match options.objective {
        Objective::Time => Weights::TIME,
        Objective::Energy => Weights::ENERGY,
        Objective::EnergyDelay => {
            let (cost, _) = evaluate(workload, memories, &options.copy, still);
            let compute_ns: f64 = workload.phases.iter().map(|phase| phase.compute_ns).sum();
            Weights { time: cost.energy_pj, energy: cost.time_ns + compute_ns }
        }
    }
}

/// An object's phases in slots of the workload.
fn phases_of_objects(
    workload: &Workload,
    memories: &[Memory],
    objective: Objective,
    epsilon: f64,
) -> Vec<Vec<ObjectPhase>> {
    let phases = |object| {
        let (first, _) = workload.phases_of(object);
        let slot = |(at, utility): (usize, crate::utility::Utility)| ObjectSlot {
            length_ns: workload.overlap_ns(object, first + at),
            utility: utility.of(objective),
        };
        let slots = utilities(workload, object, memories).into_iter().enumerate().map(slot);
        let mut phases = object_phases(&slots.collect::<Vec<_>>(), epsilon);
        for phase in &mut phases {
            (phase.first, phase.end) = (phase.first + first, phase.end + first);
        }
        phases
    };
    workload.objects.iter().map(phases).collect()
}

/// At one time, deaths come first, then phase starts, then births.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Death(usize),
    Phase(usize),
    Birth(usize),
}

/// The run as recorded, from birth to birth.
struct Runner<'a> {
    workload: &'a Workload,
    memories: &'a [Memory],
    options: &'a Options,
    rules: UtilityRules,
    /// Phases of each object.
    objects: &'a [Vec<ObjectPhase>],
    /// Hot objects of each slot, the hottest first.
    hot: Vec<Vec<(f64, usize)>>,
    /// Phases of objects that begin at each slot, but the first ones.
    changes: Vec<Vec<(ObjectPhase, usize)>>,
    taken: Vec<u64>,
    /// Where each living object is.
    at: Vec<Option<u8>>,
    /// U_threshold of Algorithm 1.
    threshold: f64,
    placements: Vec<Placement>,
}

impl<'a> Runner<'a> {
    fn new(
        workload: &'a Workload,
        memories: &'a [Memory],
        options: &'a Options,
        rules: UtilityRules,
        objects: &'a [Vec<ObjectPhase>],
    ) -> Runner<'a> {
        let slots = workload.phases.len();
        let count = workload.objects.len();
        Runner {
            workload,
            memories,
            options,
            rules,
            objects,
            hot: hottest(slots, objects, rules.epsilon),
            changes: changes(slots, objects),
            taken: vec![0; memories.len()],
            at: vec![None; count],
            threshold: rules.epsilon,
            placements: vec![Placement::default(); count],
        }
    }

    /// `weights`: of what moves save and cost; `None`: nothing moves.
    fn run(&mut self, weights: Option<Weights>) -> Result<Vec<Placement>, usize> {
        for (_, event) in events(self.workload) {
            match event {
                Event::Death(object) => self.give_back(object),
                Event::Phase(phase) => {
                    if let Some(weights) = weights {
                        self.migrate(phase, weights);
                    }
                }
                Event::Birth(object) => self.dymalloc(object)?,
            }
        }
        Ok(std::mem::take(&mut self.placements))
    }

    /// Algorithm 1.
    fn dymalloc(&mut self, object: usize) -> Result<(), usize> {
        let phase = self.objects[object][0];
        let to = if self.is_for_fastest(object, phase.utility) {
            0
        } else {
            let rooms = (0..self.memories.len()).rev();
            rooms.into_iter().find(|memory| self.fits(object, *memory)).ok_or(object)?
        };
        self.take(object, to);
        self.placements[object].birth = index_u8(to);
        Ok(())
    }

    fn is_for_fastest(&mut self, object: usize, utility: f64) -> bool {
        if utility < self.rules.epsilon || !self.fits(object, 0) {
            return false;
        }
        let capacity = self.memories[0].capacity_bytes;
        if (self.taken[0] as f64) < self.rules.phi * capacity as f64 {
            self.threshold = self.rules.epsilon;
            return true;
        }
        let free = (capacity - self.taken[0]).saturating_sub(self.reserved_bytes(object));
        let enters = utility > self.threshold && free >= self.bytes(object);
        if enters {
            self.threshold = utility;
        }
        enters
    }

    /// Room that the hottest object of the next slot will need.
    fn reserved_bytes(&self, object: usize) -> u64 {
        let (slot, _) = self.workload.phases_of(&self.workload.objects[object]);
        let next = self.hot.get(slot + 1).into_iter().flatten();
        let mut waiting = next.filter(|(_, one)| *one != object && self.at[*one] != Some(0));
        waiting.next().map_or(0, |(_, one)| self.bytes(*one))
    }

    /// MigrateToX at a phase start: down first, which makes room, then up, the hottest first.
    fn migrate(&mut self, phase: usize, weights: Weights) {
        let last = self.memories.len() - 1;
        let is_hot = |one: &ObjectPhase| one.utility > self.rules.epsilon;
        let mut wanted = std::mem::take(&mut self.changes[phase]);
        wanted.sort_by(|(a, _), (b, _)| {
            is_hot(a).cmp(&is_hot(b)).then(b.utility.total_cmp(&a.utility))
        });
        let target = |(one, object)| (one, object, if is_hot(&one) { 0 } else { last });
        let wanted: Vec<(ObjectPhase, usize, usize)> = wanted.into_iter().map(target).collect();
        for (one, object, to) in wanted {
            let Some(from) = self.at[object].map(usize::from) else { continue };
            if from != to && self.fits(object, to) && self.pays(object, one, (from, to), weights) {
                self.give_back(object);
                self.take(object, to);
                self.placements[object].moves.push((index_u32(phase), index_u8(to)));
            }
        }
    }

    /// Whether being in the other memory for a phase saves more than the move costs.
    fn pays(
        &self,
        object: usize,
        one: ObjectPhase,
        (from, to): (usize, usize),
        weights: Weights,
    ) -> bool {
        let known = &self.workload.objects[object];
        let uses = known.uses.partition_point(|a_use| (a_use.phase as usize) < one.first);
        let mut uses = known.uses[uses..].iter().peekable();
        let mut saved = 0.0;
        for slot in one.first..one.end {
            let a_use = uses.next_if(|a_use| a_use.phase as usize == slot);
            let cost = |memory: usize| {
                let memory = &self.memories[memory];
                weights.of(phase_cost(self.workload, known, slot, a_use, memory))
            };
            saved += cost(from) - cost(to);
        }
        let per_byte = move_cost_per_byte(self.memories, from, to, &self.options.copy);
        saved > weights.of(per_byte * known.bytes as f64)
    }

    fn bytes(&self, object: usize) -> u64 {
        self.workload.objects[object].bytes
    }

    fn fits(&self, object: usize, memory: usize) -> bool {
        self.bytes(object) <= self.memories[memory].capacity_bytes - self.taken[memory]
    }

    fn take(&mut self, object: usize, memory: usize) {
        self.taken[memory] += self.bytes(object);
        self.at[object] = Some(index_u8(memory));
    }

    fn give_back(&mut self, object: usize) {
        if let Some(memory) = self.at[object].take() {
            self.taken[usize::from(memory)] -= self.bytes(object);
        }
    }
}

/// Hot objects of each slot, the hottest first.
fn hottest(slots: usize, objects: &[Vec<ObjectPhase>], epsilon: f64) -> Vec<Vec<(f64, usize)>> {
    let mut hot: Vec<Vec<(f64, usize)>> = vec![Vec::new(); slots];
    for (object, phases) in objects.iter().enumerate() {
        for phase in phases.iter().filter(|phase| phase.utility > epsilon) {
            let own = hot[phase.first..phase.end].iter_mut();
            own.for_each(|of_slot| of_slot.push((phase.utility, object)));
        }
    }
    for of_slot in &mut hot {
        of_slot.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    }
    hot
}

/// Phases of objects that begin at each slot, but the first ones.
fn changes(slots: usize, objects: &[Vec<ObjectPhase>]) -> Vec<Vec<(ObjectPhase, usize)>> {
    let mut changes = vec![Vec::new(); slots];
    for (object, phases) in objects.iter().enumerate() {
        phases[1..].iter().for_each(|phase| changes[phase.first].push((*phase, object)));
    }
    changes
}

fn events(workload: &Workload) -> Vec<(u64, Event)> {
    let start_ns = workload.phases[0].start_ns;
    let mut events = Vec::with_capacity(2 * workload.objects.len() + workload.phases.len());
    for (index, object) in workload.objects.iter().enumerate() {
        events.push((object.birth_ns.max(start_ns), Event::Birth(index)));
        events.push((object.death_ns.max(start_ns), Event::Death(index)));
    }
    let starts = workload.phases.iter().enumerate().skip(1);
    events.extend(starts.map(|(index, phase)| (phase.start_ns, Event::Phase(index))));
    events.sort_unstable();
    events
}
