//! Phase after phase with a look-ahead: H2M Eq. 6.
//! In: a workload, the number of phases that are seen at once. Out: a memory for each object in
//! each phase it lives in. Knows nothing of phases further ahead, unlike the strategies that it is
//! compared with.

use crate::estimate::{Weights, phase_cost};
use crate::lifetimes::memory_by_memory;
use crate::memory::{MEMORIES_MAX, Memory};
use crate::options::{Levels, Options};
use crate::problem::Problem;
use crate::slots::Slots;
use crate::solve::solve;
use crate::span::Span;
use crate::workload::Workload;
use tiercel_machine::number::index_u32;

/// At each phase start, everything that lives in the next `ahead` phases is placed as if for all of
/// them; objects that were elsewhere pay for their move, unborn ones do not. Only the choice for
/// the first of these phases is kept. `slots` are cut by phase. The result is in the order of a
/// problem by phase. The object that finds no room is the error.
pub fn phase_by_phase(
    workload: &Workload,
    memories: &[Memory],
    options: &Options,
    weights: Weights,
    slots: &Slots,
    ahead: usize,
) -> Result<Vec<u8>, usize> {
    let lives: Vec<(usize, usize)> =
        workload.objects.iter().map(|object| workload.phases_of(object)).collect();
    let mut at: Vec<Option<u8>> = vec![None; lives.len()];
    let mut rows: Vec<Vec<u8>> = lives.iter().map(|(a, b)| Vec::with_capacity(b - a + 1)).collect();
    for phase in 0..workload.phases.len() {
        let until = (phase + ahead).min(workload.phases.len()) - 1;
        let window = Window { workload, memories, slots, lives: &lives, phase, until };
        let (problem, objects) = window.problem(options, weights, &at);
        let choice = match options.levels {
            Levels::Joint => solve(&problem, &options.effort, None).map(|solution| solution.choice),
            Levels::OneByOne => memory_by_memory(&problem, &options.effort),
        }
        .map_err(|item| objects[item])?;
        for (object, to) in objects.into_iter().zip(choice) {
            if lives[object].0 <= phase {
                at[object] = Some(to);
                rows[object].push(to);
            }
        }
    }
    Ok(rows.concat())
}

struct Window<'a> {
    workload: &'a Workload,
    memories: &'a [Memory],
    slots: &'a Slots,
    lives: &'a [(usize, usize)],
    /// First and last phase in the window.
    phase: usize,
    until: usize,
}

impl Window<'_> {
    /// One segment for each object that lives in the window, and which object it is.
    fn problem(
        &self,
        options: &Options,
        weights: Weights,
        at: &[Option<u8>],
    ) -> (Problem, Vec<usize>) {
        let base = self.slots.of_phase[self.phase];
        let end = self.slots.of_phase.get(self.until + 1).copied();
        let end = end.unwrap_or(index_u32(self.slots.count));
        let count = (end - base) as usize;
        let mut problem = Problem::new(self.workload, self.memories, &options.copy, weights, count);
        let mut objects = Vec::new();
        for (index, (first, last)) in self.lives.iter().enumerate() {
            if *last < self.phase || *first > self.until {
                continue;
            }
            let of_object = self.slots.of_object[index];
            let span = Span {
                first: of_object.first.max(base) - base,
                last: of_object.last.min(end - 1) - base,
            };
            let costs = self.costs(index, weights);
            let mut item = problem.begin(self.workload.objects[index].bytes, at[index]);
            problem.segment(&mut item, span, &costs);
            problem.items.push(item);
            objects.push(index);
        }
        (problem, objects)
    }

    fn costs(&self, index: usize, weights: Weights) -> [f64; MEMORIES_MAX] {
        let object = &self.workload.objects[index];
        let (first, last) = self.lives[index];
        let mut costs = [0.0; MEMORIES_MAX];
        for phase in first.max(self.phase)..=last.min(self.until) {
            let found = object.uses.binary_search_by_key(&index_u32(phase), |one| one.phase);
            let one = found.ok().map(|at| &object.uses[at]);
            for (cost, memory) in costs.iter_mut().zip(self.memories) {
                *cost += weights.of(phase_cost(self.workload, object, phase, one, memory));
            }
        }
        costs
    }
}
