//! Birth budgets: how much each client may still allocate in each arena before the next decision.
//! In: the policy's birth plans, or what the best tier's budget leaves. Out: figures in control
//! pages. Knows nothing of moves, or of how a decision is made.

use crate::clients::client::Client;
use crate::clients::table::Clients;
use crate::tiers::Tiers;
use tiercel_ledger::{Extent, Ledger};
use tiercel_policy::{BirthPlan, Limit};
use tiercel_wire::Session;

/// Birth budget of tiers without a budget, bytes: 64 PiB, never used up between two ticks.
const UNLIMITED_BYTES: u64 = 1 << 56;

/// What a new client may allocate in the best tier until the first decision, bytes, if the budget
/// is a share of a peak that is not known yet: one extent.
const FIRST_GRANT_BYTES: u64 = 64 << 20;

/// Assigns a new client its arenas, and budgets until the first decision.
pub(crate) fn welcome(
    session: &Session,
    tiers: &Tiers,
    clients: &Clients,
    ledger: &Ledger,
    peak_bytes: u64,
) {
    if tiers.arenas.is_empty() {
        return;
    }
    let used_bytes = fast_used_bytes(tiers, clients, ledger);
    let left_bytes = tiers.fast_budget_bytes(peak_bytes).saturating_sub(used_bytes);
    let share_bytes = share_of_arena(tiers, left_bytes, clients.len() + 1);
    let is_share = matches!(tiers.budget, Limit::ShareOfPeak(_));
    let share_bytes = if is_share { share_bytes.max(FIRST_GRANT_BYTES) } else { share_bytes };
    grant(session, tiers, share_bytes);
    session.set_small_arena(0);
    session.set_arenas(&tiers.arenas.iter().map(|node| tiers.wire_node(*node)).collect::<Vec<_>>());
}

/// Carries out a birth plan of the policy.
pub(crate) fn apply(plan: &BirthPlan, tiers: &Tiers, clients: &Clients) {
    let Some(client) = clients.of_pid(plan.pid) else { return };
    for (nodes, bytes) in &plan.tiers {
        let arenas = || tiers.arenas.iter().enumerate().filter(|(_, node)| nodes.contains(node));
        let share_bytes = bytes / arenas().count().max(1) as u64;
        for (arena, _) in arenas() {
            set_budget(&client.session, arena, share_bytes);
        }
    }
    let small = plan.tiers.get(plan.small_tier).and_then(|(nodes, _)| nodes.first());
    if let Some(arena) = small.and_then(|node| tiers.arenas.iter().position(|one| one == node)) {
        client.session.set_small_arena(arena);
    }
}

/// Divides what the best tier's budget leaves among all clients: where a plan places births.
pub(crate) fn divide_budget(tiers: &Tiers, clients: &Clients, ledger: &Ledger, peak_bytes: u64) {
    let used_bytes: u64 = clients.iter().map(|one| fast_bytes_of(one, tiers, ledger)).sum();
    let left_bytes = tiers.fast_budget_bytes(peak_bytes).saturating_sub(used_bytes);
    let share_bytes = share_of_arena(tiers, left_bytes, clients.len());
    clients.iter().for_each(|client| grant(&client.session, tiers, share_bytes));
}

/// Bytes of live objects in the best tier, as far as their residency is known.
pub(crate) fn fast_used_bytes(tiers: &Tiers, clients: &Clients, ledger: &Ledger) -> u64 {
    let resident = clients.iter().flat_map(|client| ledger.resident_bytes(client.pid));
    resident.filter(|(node, _)| tiers.is_fast(*node)).map(|(_, bytes)| bytes).sum()
}

/// Of `left_bytes` in the best tier, what one of its arenas of one of `clients` may take.
fn share_of_arena(tiers: &Tiers, left_bytes: u64, clients: usize) -> u64 {
    let arenas = tiers.arenas.iter().filter(|node| tiers.is_fast(**node)).count();
    left_bytes / clients.max(1) as u64 / arenas.max(1) as u64
}

/// Lets a client allocate `share_bytes` on each node of the best tier, and any amount elsewhere.
fn grant(session: &Session, tiers: &Tiers, share_bytes: u64) {
    for (arena, node) in tiers.arenas.iter().enumerate() {
        let bytes = if tiers.is_fast(*node) { share_bytes } else { UNLIMITED_BYTES };
        set_budget(session, arena, bytes);
    }
}

fn set_budget(session: &Session, arena: usize, bytes: u64) {
    session.set_birth_budget(arena, bytes.min(UNLIMITED_BYTES).cast_signed());
}

/// Bytes of live objects that are in the best tier, or will be when they are touched.
fn fast_bytes_of(client: &Client, tiers: &Tiers, ledger: &Ledger) -> u64 {
    let is_fast = |extent: &Extent<'_>| {
        let born_on = || extent.arena.and_then(|arena| tiers.node_of(arena));
        extent.residency.main_node().or_else(born_on).is_some_and(|node| tiers.is_fast(node))
    };
    let extents = ledger.extents_of(client.pid);
    let fast = extents.filter(|extent| !extent.is_mixed() && is_fast(extent));
    fast.map(|extent| extent.bytes).sum()
}
