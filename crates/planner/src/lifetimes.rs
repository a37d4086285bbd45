//! Programs solved piece by piece, as H2M does: memory after memory, and lifetime after lifetime.
//! In: a problem. Out: a choice that keeps the capacities, without a bound.
//! Knows nothing of the joint program they stand for.

use crate::options::Effort;
use crate::problem::{Item, Problem};
use crate::room::Room;
use crate::solve::solve;
use crate::span::Span;
use tiercel_machine::number::{index_u8, index_u32};

/// First the fastest memory against the next one, then the next with what is left, and so on (H2M
/// III-D5). Objects that do not go into a memory are assumed to go into the next one that has room
/// for their size.
pub fn memory_by_memory(problem: &Problem, effort: &Effort) -> Result<Vec<u8>, usize> {
    let memories = problem.memories;
    let mut decided: Vec<Option<u8>> = vec![None; problem.spans.len()];
    let mut choice = vec![0; problem.spans.len()];
    for level in 0..memories - 1 {
        let mut narrow = problem.clone();
        if level + 2 < memories {
            narrow.capacity[level + 1] = u64::MAX;
        }
        for (segment, decided) in decided.iter().enumerate() {
            let costs = &mut narrow.costs[segment * memories..(segment + 1) * memories];
            let below = costs[level + 1..].iter().copied().find(|cost| cost.is_finite());
            for (memory, cost) in costs.iter_mut().enumerate() {
                match decided {
                    Some(decided) if memory == *decided as usize => {}
                    None if memory == level => {}
                    None if memory == level + 1 => *cost = below.unwrap_or(f64::INFINITY),
                    _ => *cost = f64::INFINITY,
                }
            }
        }
        choice = solve(&narrow, effort, None)?.choice;
        for (decided, choice) in decided.iter_mut().zip(&choice) {
            if *choice as usize <= level {
                *decided = Some(*choice);
            }
        }
    }
    Ok(choice)
}

/// H2M Algorithm 1, memory by memory. `problem` has one segment per item; `lifetime` are their
/// lengths.
///
/// One thing is added to the paper's algorithm: its limit counts what overlaps `cur`, but an object
/// of the result may also overlap objects that `cur` does not. Objects that would overfill the
/// memory at some moment stay undecided.
pub fn lifetime_by_lifetime(
    problem: &Problem,
    lifetimes: &[u64],
    effort: &Effort,
) -> Result<Vec<u8>, usize> {
    let last = problem.memories - 1;
    let mut choice: Vec<Option<u8>> = vec![None; problem.items.len()];
    let mut sorted: Vec<usize> = (0..problem.items.len()).collect();
    sorted.sort_by_key(|index| (std::cmp::Reverse(lifetimes[*index]), *index));
    for level in 0..last {
        one_memory(problem, &sorted, level, &mut choice, effort)?;
    }
    let mut room = Room::empty(problem.memories, problem.slots);
    let mut full = Vec::with_capacity(choice.len());
    for (index, chosen) in choice.iter().enumerate() {
        let chosen = chosen.unwrap_or(index_u8(last));
        room.take(problem.spans[index], chosen as usize, problem.items[index].bytes);
        full.push(chosen);
    }
    if room.keeps(&problem.capacity) { Ok(full) } else { Err(sorted.first().copied().unwrap_or(0)) }
}

fn one_memory(
    problem: &Problem,
    sorted: &[usize],
    level: usize,
    choice: &mut [Option<u8>],
    effort: &Effort,
) -> Result<(), usize> {
    let mut in_fast: Vec<usize> = Vec::new();
    let mut room = Room::empty(1, problem.slots);
    // Objects above are decided for good; `in_slow` only for this memory.
    let mut in_slow: Vec<bool> = choice.iter().map(Option::is_some).collect();
    for cur in sorted {
        if in_slow[*cur] || choice[*cur].is_some() {
            continue;
        }
        let overlaps = |other: &&usize| meet(problem.spans[**other], problem.spans[*cur]);
        let taken: u64 = in_fast.iter().filter(overlaps).map(|i| problem.items[*i].bytes).sum();
        let limit = problem.capacity[level].saturating_sub(taken);
        let open = |other: &&usize| choice[**other].is_none() && !in_slow[**other];
        let set: Vec<usize> = sorted.iter().filter(overlaps).filter(open).copied().collect();
        for index in knapsack(problem, &set, level, limit, effort)? {
            let (span, bytes) = (problem.spans[index], problem.items[index].bytes);
            if room.fits(span, 0, bytes, problem.capacity[level]) {
                room.take(span, 0, bytes);
                choice[index] = Some(index_u8(level));
                in_fast.push(index);
            }
        }
        in_slow[*cur] = choice[*cur].is_none();
    }
    Ok(())
}

/// H2M Eq. 3-5 over some items: those that go into memory `level` instead of the next.
fn knapsack(
    problem: &Problem,
    set: &[usize],
    level: usize,
    limit: u64,
    effort: &Effort,
) -> Result<Vec<usize>, usize> {
    let candidates: Vec<usize> =
        set.iter().copied().filter(|index| problem.items[*index].bytes <= limit).collect();
    if candidates.is_empty() {
        return Ok(candidates);
    }
    let mut one = Problem {
        memories: 2,
        slots: 1,
        capacity: vec![limit, u64::MAX],
        items: Vec::new(),
        spans: vec![Span { first: 0, last: 0 }; candidates.len()],
        costs: Vec::new(),
        moving: vec![0.0; 4],
        ties_to: problem.ties_to.min(1),
    };
    for (at, index) in candidates.iter().enumerate() {
        let bytes = problem.items[*index].bytes;
        one.items.push(Item { bytes, first: index_u32(at), count: 1, at: None });
        // As in H2M III-D5, objects that are not here are in the next memory that can hold them.
        let below = (level + 1..problem.memories).map(|memory| problem.cost(*index, memory));
        let below = below.into_iter().find(|cost| cost.is_finite()).unwrap_or(f64::INFINITY);
        one.costs.extend([problem.cost(*index, level), below]);
    }
    let solution = solve(&one, effort, None).map_err(|at| candidates[at])?;
    let chosen = candidates.iter().zip(&solution.choice).filter(|(_, to)| **to == 0);
    Ok(chosen.map(|(index, _)| *index).collect())
}

fn meet(a: Span, b: Span) -> bool {
    a.first <= b.last && b.first <= a.last
}
