//! What given placements cost by the planner's sums.
//! In: a workload, memories, a placement for each object. Out: time and energy. Knows nothing of
//! how placements are found.

use crate::estimate::{Cost, MoveSpeed, move_cost_per_byte, phase_cost};
use crate::memory::Memory;
use crate::placement::Placement;
use crate::workload::Workload;

/// What placements cost, and the moves' share of it. One placement per object.
pub fn evaluate(
    workload: &Workload,
    memories: &[Memory],
    copy: &MoveSpeed,
    placements: &[Placement],
) -> (Cost, Cost) {
    let (mut all, mut moved) = (Cost::default(), Cost::default());
    for (object, placement) in workload.objects.iter().zip(placements) {
        let (first, last) = workload.phases_of(object);
        let mut uses = object.uses.iter().peekable();
        let (mut at, mut moves) = (placement.birth, placement.moves.iter().peekable());
        for phase in first..=last {
            if let Some((_, to)) = moves.next_if(|(one, _)| *one as usize == phase) {
                let per_byte = move_cost_per_byte(memories, at.into(), (*to).into(), copy);
                moved += per_byte * object.bytes as f64;
                at = *to;
            }
            let one = uses.next_if(|one| one.phase as usize == phase);
            all += phase_cost(workload, object, phase, one, &memories[at as usize]);
        }
    }
    (all + moved, moved)
}

/// Bytes that placements move.
pub(crate) fn moved_bytes(workload: &Workload, placements: &[Placement]) -> u64 {
    let moved = workload.objects.iter().zip(placements);
    moved.map(|(object, one)| object.bytes * one.moves.len() as u64).sum()
}
