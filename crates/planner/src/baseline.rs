//! Placements to compare with: first come first served, greedy by score, all in one memory.
//! In: a problem of one segment per item. Out: a choice. Knows nothing of moves.

use crate::problem::Problem;
use crate::room::Room;
use tiercel_machine::number::index_u8;

/// In order of birth, each into the first memory with room at that moment (IDP-FCFS of H2M IV-C).
/// Deaths free room for later births. The first object without room is the error.
pub fn first_come(problem: &Problem, births: &[u64]) -> Result<Vec<u8>, usize> {
    let mut order: Vec<usize> = (0..problem.items.len()).collect();
    order.sort_by_key(|index| (births[*index], *index));
    into_first_with_room(problem, &order, |_| true)
}

/// In order of score per byte (H2M Eq. 2, the last memory against the first), each into the first
/// memory with room; objects without gain go into the last memory with room.
pub fn greedy(problem: &Problem) -> Result<Vec<u8>, usize> {
    let last = problem.memories - 1;
    let score = |index: usize| {
        let item = &problem.items[index];
        let segment = item.first as usize;
        let score = problem.cost(segment, last) - problem.cost(segment, 0);
        if score.is_nan() { f64::NEG_INFINITY } else { score / item.bytes as f64 }
    };
    let mut order: Vec<usize> = (0..problem.items.len()).collect();
    order.sort_by(|a, b| score(*b).total_cmp(&score(*a)).then(a.cmp(b)));
    into_first_with_room(problem, &order, |index| score(index) > 0.0)
}

fn into_first_with_room(
    problem: &Problem,
    order: &[usize],
    upwards: impl Fn(usize) -> bool,
) -> Result<Vec<u8>, usize> {
    let mut room = Room::empty(problem.memories, problem.slots);
    let mut choice = vec![0; problem.spans.len()];
    for index in order {
        let item = &problem.items[*index];
        let segment = item.first as usize;
        let span = problem.spans[segment];
        let fits = |memory: &usize| room.fits(span, *memory, item.bytes, problem.capacity[*memory]);
        let mut memories = 0..problem.memories;
        let found = if upwards(*index) { memories.find(fits) } else { memories.rev().find(fits) };
        let memory = found.ok_or(*index)?;
        room.take(span, memory, item.bytes);
        choice[segment] = index_u8(memory);
    }
    Ok(choice)
}
