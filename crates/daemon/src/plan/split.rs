//! Objects that a plan has in two memories: which part of them belongs where.
//! In: rows of a plan, extents. Out: parts, moves of them, and for the modelled mover what was born
//! in two memories. Knows nothing of when anything moves.

use super::objects::{current_phase, objects, size_class};
use super::rows::PlanRows;
use crate::clients::client::Client;
use crate::tiers::Tiers;
use tiercel_ledger::movement::{Move, Reason};
use tiercel_ledger::{Extent, Ledger, Range};
use tiercel_machine::NodeId;
use tiercel_wire::PlanRow;
use tiercel_wire::layout::{CUT_BYTES, PLAN_SHARE_ALL};

/// Bytes of an object, counted from its first one.
pub(crate) type Part = std::ops::Range<u64>;

/// Parts of an object and the arenas they belong to; none where births, not objects, are split.
pub(crate) fn parts_of(row: &PlanRow, bytes: u64) -> Vec<(Part, u8)> {
    match row.share {
        PLAN_SHARE_ALL => vec![(0..bytes, row.arena)],
        _ if bytes >= CUT_BYTES => {
            let (mut parts, mut end) = (Vec::new(), 0);
            for range in row.ranges_of(bytes) {
                parts.push((end..range.start, row.other));
                end = range.end;
                parts.push((range, row.arena));
            }
            parts.push((end..bytes, row.other));
            parts.retain(|(part, _)| !part.is_empty());
            parts
        }
        _ => Vec::new(),
    }
}

/// What of a part that belongs to `arena` was in a better one by the row that held before.
pub(crate) fn demoted(part: &Part, arena: u8, was: &[(Part, u8)]) -> Vec<Part> {
    let better = was.iter().filter(|(_, before)| *before < arena);
    better.filter_map(|(before, _)| common(before.clone(), 0, part)).collect()
}

/// A move of the bytes that an extent has in common with a part of the object at `start`.
pub(crate) fn move_of(
    pid: u32,
    extent: &Extent<'_>,
    start: u64,
    part: &Part,
    to: NodeId,
) -> Option<Move> {
    let common = common(extent.addr..extent.addr + extent.bytes, start, part)?;
    Some(Move {
        pid,
        addr: common.start,
        bytes: common.end - common.start,
        from: extent.residency.main_node(),
        to,
        reason: Reason::Asked,
        gain_ns_per_s: 0.0,
        cost_ns: 0.0,
    })
}

/// What a range of addresses has in common with a part of the object at `start`.
fn common(range: Part, start: u64, part: &Part) -> Option<Part> {
    let both = range.start.max(start + part.start)..range.end.min(start + part.end);
    (!both.is_empty()).then_some(both)
}

/// Of objects of one client that were just born in two memories, the ranges that the plan places
/// apart, and their nodes: the modelled mover learns of a birth as a whole, and then of the parts
/// that are elsewhere. The client's sites are known.
pub(crate) fn ranges_of(
    rows: &PlanRows,
    client: &Client,
    ledger: &Ledger,
    tiers: &Tiers,
    born: &[Range],
) -> Vec<(Range, NodeId)> {
    let (pid, phase) = (client.pid, current_phase(&client.session));
    let mut ranges = Vec::new();
    for object in objects(ledger, pid) {
        let bytes = object.iter().map(|extent| extent.bytes).sum();
        let hash = client.uses.hash(object[0].site);
        let row = hash.and_then(|hash| rows.find(hash, size_class(bytes), phase));
        let Some(row) = row.filter(|row| row.share != PLAN_SHARE_ALL) else { continue };
        let Some(node) = tiers.node_of(row.arena) else { continue };
        for (part, _) in parts_of(row, bytes).iter().filter(|(_, arena)| *arena == row.arena) {
            ranges.extend(born.iter().filter(|range| range.pid == pid).filter_map(|range| {
                let common = common(range.addr..range.addr + range.bytes, object[0].addr, part)?;
                let (addr, bytes) = (common.start, common.end - common.start);
                Some((Range { pid, addr, bytes }, node))
            }));
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_wire::PlanRange;
    use tiercel_wire::layout::PLAN_PARTS;

    fn row(share: u8, ranges: &[(u16, u16)]) -> PlanRow {
        let mut row = PlanRow { site: 1, other: 1, share, ..PlanRow::default() };
        for (to, (from, end)) in row.ranges.iter_mut().zip(ranges) {
            *to = PlanRange { from: *from, to: *end };
        }
        row
    }

    #[test]
    fn large_objects_are_cut_and_births_of_small_ones_are_split() {
        assert_eq!(parts_of(&row(PLAN_SHARE_ALL, &[]), 4096), [(0..4096, 0)]);
        let head = row(64, &[(0, 16384)]);
        assert_eq!(parts_of(&head, CUT_BYTES - 1), []);
        let quarter = CUT_BYTES / 4;
        assert_eq!(parts_of(&head, CUT_BYTES), [(0..quarter, 0), (quarter..CUT_BYTES, 1)]);
        let [(whole_steps, _), _] = &parts_of(&row(128, &[(0, 32900)]), 1 << 30)[..] else {
            panic!("cut")
        };
        assert_eq!(whole_steps.end % (2 << 20), 0);
        let tails = row(128, &[(16384, 32768), (49152, PLAN_PARTS)]);
        let at = |quarters: u64| quarters * quarter;
        let expected = [(at(0)..at(1), 1), (at(1)..at(2), 0), (at(2)..at(3), 1), (at(3)..at(4), 0)];
        assert_eq!(parts_of(&tails, CUT_BYTES), expected);
    }

    #[test]
    fn what_leaves_a_better_arena_is_found_by_the_row_before() {
        let half = CUT_BYTES / 2;
        let (first, second) = (row(128, &[(0, 32768)]), row(128, &[(32768, PLAN_PARTS)]));
        let was = parts_of(&first, CUT_BYTES);
        let now = parts_of(&second, CUT_BYTES);
        let down: Vec<_> =
            now.iter().flat_map(|(part, arena)| demoted(part, *arena, &was)).collect();
        assert_eq!(down, std::slice::from_ref(&(0..half)));
        let whole = parts_of(&PlanRow { arena: 1, ..row(PLAN_SHARE_ALL, &[]) }, CUT_BYTES);
        assert_eq!(
            demoted(&whole[0].0, whole[0].1, &now),
            std::slice::from_ref(&(half..CUT_BYTES))
        );
        assert_eq!(demoted(&(0..half), 0, &was), [], "it goes up");
    }

    #[test]
    fn a_range_has_what_it_has_in_common_with_a_part() {
        assert_eq!(common(100..200, 100, &(50..80)), Some(150..180));
        assert_eq!(common(100..160, 100, &(50..80)), Some(150..160));
        assert_eq!(common(100..150, 100, &(50..80)), None);
    }
}
