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
            let head = row.head_bytes(bytes);
            vec![(0..head, row.arena), (head..bytes, row.other)]
        }
        _ => Vec::new(),
    }
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

/// Of objects of one client that were just born in two memories, the heads and their nodes: the
/// modelled mover learns of a birth as a whole, and then of the part that is elsewhere. The
/// client's sites are known.
pub(crate) fn heads_of(
    rows: &PlanRows,
    client: &Client,
    ledger: &Ledger,
    tiers: &Tiers,
    born: &[Range],
) -> Vec<(Range, NodeId)> {
    let (pid, phase) = (client.pid, current_phase(&client.session));
    let mut heads = Vec::new();
    for object in objects(ledger, pid) {
        let bytes = object.iter().map(|extent| extent.bytes).sum();
        let hash = client.uses.hash(object[0].site);
        let row = hash.and_then(|hash| rows.find(hash, size_class(bytes), phase));
        let parts = row.map_or(Vec::new(), |row| parts_of(row, bytes));
        let [(head, arena), _] = &parts[..] else { continue };
        let Some(node) = tiers.node_of(*arena) else { continue };
        heads.extend(born.iter().filter(|range| range.pid == pid).filter_map(|range| {
            let common = common(range.addr..range.addr + range.bytes, object[0].addr, head)?;
            let (addr, bytes) = (common.start, common.end - common.start);
            Some((Range { pid, addr, bytes }, node))
        }));
    }
    heads
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(share: u8) -> PlanRow {
        PlanRow { site: 1, size_class: 0, phase: 0, arena: 0, other: 1, share }
    }

    #[test]
    fn large_objects_are_cut_and_births_of_small_ones_are_split() {
        assert_eq!(parts_of(&row(PLAN_SHARE_ALL), 4096), [(0..4096, 0)]);
        assert_eq!(parts_of(&row(64), CUT_BYTES - 1), []);
        let head = CUT_BYTES / 255 * 64 / 4096 * 4096;
        assert_eq!(parts_of(&row(64), CUT_BYTES), [(0..head, 0), (head..CUT_BYTES, 1)]);
        let [(whole_steps, _), _] = &parts_of(&row(128), 1 << 30)[..] else { panic!("cut") };
        assert_eq!(whole_steps.end % (2 << 20), 0);
    }

    #[test]
    fn a_range_has_what_it_has_in_common_with_a_part() {
        assert_eq!(common(100..200, 100, &(50..80)), Some(150..180));
        assert_eq!(common(100..160, 100, &(50..80)), Some(150..160));
        assert_eq!(common(100..150, 100, &(50..80)), None);
    }
}
