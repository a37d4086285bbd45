//! Live objects as a plan sees them: all extents of an object together, its size class, its phase.
//! In: the ledger, a session. Out: objects. Knows nothing of plans.

use tiercel_ledger::{Extent, Ledger};
use tiercel_wire::layout::PHASE_START;
use tiercel_wire::{Session, phase_hash};

/// Objects of a process, with all their extents.
pub(crate) fn objects<'a>(ledger: &'a Ledger, pid: u32) -> Vec<Vec<Extent<'a>>> {
    let mut objects: Vec<Vec<Extent<'a>>> = Vec::new();
    // Extents come by address: those of one object follow each other.
    for extent in ledger.extents_of(pid).filter(|extent| !extent.is_mixed()) {
        match objects.last_mut() {
            Some(object) if !extent.is_head => object.push(extent),
            _ => objects.push(vec![extent]),
        }
    }
    objects
}

/// ceil(log2) of an object's bytes, whole OS pages.
pub(crate) fn size_class(bytes: u64) -> u8 {
    // Above 2^63 no power of two is left: the class of all such sizes is 64, and none exists.
    let class = bytes.max(1).checked_next_power_of_two().map_or(64, u64::trailing_zeros);
    class.to_le_bytes()[0]
}

/// Hash of a phase by its number in a session. A phase that was never published is in no plan.
pub(crate) fn phase_hash_of(session: &Session, phase: u32) -> u64 {
    match phase {
        0 => phase_hash(PHASE_START),
        _ => session.phase_name(phase).map_or(0, |name| name.hash),
    }
}

/// Hash of the phase that a session's program is in.
pub(crate) fn current_phase(session: &Session) -> u64 {
    let (_, phase) = session.phase_entered();
    phase_hash_of(session, phase)
}
