//! Birth budgets: how much each client may still allocate in each arena before the next decision.
//! In: the policy's birth budgets, or what the best tier's budget leaves. Out: figures in control
//! pages. Knows nothing of moves, or of how a decision is made.

use crate::clients::client::Client;
use crate::clients::table::Clients;
use crate::tiers::Tiers;
use std::collections::{BTreeMap, HashMap};
use tiercel_ledger::{Extent, Ledger};
use tiercel_policy::{BirthBudget, Limit, NurseryBudget, divide};
use tiercel_wire::layout::{ARENAS_MAX, PLAN_CLASS_ANY, PLAN_SHARE_ALL};
use tiercel_wire::{PlanRow, Session};

/// Birth budget of tiers without a budget, bytes: 64 PiB, never used up between two ticks.
const UNLIMITED_BYTES: u64 = 1 << 56;

/// What a new client may allocate in the best tier until the first decision, bytes, if the budget
/// is a share of a peak that is not known yet: one extent.
const FIRST_GRANT_BYTES: u64 = 64 << 20;

/// Bytes in each arena that a process allocated before it was welcomed, out of the offer's grant.
pub(crate) type Early = [u64; ARENAS_MAX];

/// Compares what a new session has left with what the offer grants.
pub(crate) fn early(session: &Session, offer: Option<&Session>) -> Early {
    let Some(offer) = offer else { return [0; ARENAS_MAX] };
    std::array::from_fn(|arena| {
        let taken = offer.birth_budget(arena).saturating_sub(session.birth_budget(arena));
        u64::try_from(taken).unwrap_or(0)
    })
}

/// Assigns a new client its arenas, and budgets until the first decision: it will allocate as much
/// as all others together, as far as is known.
pub(crate) fn welcome(
    session: &Session,
    tiers: &Tiers,
    clients: &Clients,
    ledger: &Ledger,
    peak_bytes: u64,
    early: &Early,
) {
    if tiers.arenas.is_empty() {
        return;
    }
    let share_bytes = shares_with_newcomer(tiers, clients, ledger, peak_bytes).pop().unwrap_or(0);
    let is_share = matches!(tiers.budget, Limit::ShareOfPeak(_));
    let share_bytes = if is_share { share_bytes.max(FIRST_GRANT_BYTES) } else { share_bytes };
    grant_beyond(session, tiers, share_bytes, early);
    session.set_small_arena(0);
    session.set_nursery_arena(tiers.nursery_arena);
    session.set_arenas(&tiers.arenas.iter().map(|node| tiers.wire_node(*node)).collect::<Vec<_>>());
    tiers.name_placer(session);
}

/// Takes from the clients that are there what a new one is given. Call before it is one of them.
pub(crate) fn make_room(tiers: &Tiers, clients: &Clients, ledger: &Ledger, peak_bytes: u64) {
    let shares = shares_with_newcomer(tiers, clients, ledger, peak_bytes);
    clients.iter().zip(shares).for_each(|(client, share)| grant(&client.session, tiers, share));
}

/// Gives a process the birth budget that the policy decided on; true when other sites have
/// nurseries than before.
pub(crate) fn apply(budget: &BirthBudget, tiers: &Tiers, clients: &mut Clients) -> bool {
    let Some(client) = clients.of_pid_mut(budget.pid) else { return false };
    for (nodes, bytes) in &budget.tiers {
        let arenas = || tiers.budgeted().filter(|(_, node)| nodes.contains(node));
        let share_bytes = bytes / arenas().count().max(1) as u64;
        for (arena, _) in arenas() {
            set_budget(&client.session, arena, share_bytes);
        }
    }
    let small = budget.tiers.get(budget.small_tier).and_then(|(nodes, _)| nodes.first());
    if let Some(arena) = small.and_then(|node| tiers.arenas.iter().position(|one| one == node)) {
        client.session.set_small_arena(arena);
    }
    apply_nursery(&budget.nursery, tiers, client)
}

fn apply_nursery(nursery: &NurseryBudget, tiers: &Tiers, client: &mut Client) -> bool {
    let Some(arena) = tiers.nursery_arena else { return false };
    set_budget(&client.session, usize::from(arena), nursery.left_bytes);
    client.nursery_bytes = nursery.bytes;
    let has_changed = client.nursery_sites != nursery.sites;
    if has_changed {
        client.uses.learn(&client.session);
        let hashes = nursery.sites.iter().filter_map(|site| client.uses.hash(*site));
        client.nursery_rows = hashes.map(|site| nursery_row(site, arena)).collect();
        client.nursery_sites.clone_from(&nursery.sites);
    }
    has_changed
}

/// Births of a site are in this arena, whatever their size and the phase.
fn nursery_row(site: u64, arena: u8) -> PlanRow {
    let (size_class, share) = (PLAN_CLASS_ANY, PLAN_SHARE_ALL);
    PlanRow { site, size_class, arena, share, ..PlanRow::default() }
}

/// Bytes that live in the nurseries of each process's sites, as of the last mark of its births;
/// `None` where there are none.
pub(crate) fn nursed_bytes(tiers: &Tiers, clients: &Clients) -> Option<BTreeMap<u32, u64>> {
    let arena = usize::from(tiers.nursery_arena?);
    let of = |client: &Client| {
        let left = client.session.birth_budget_at_mark(arena);
        let left_bytes = u64::try_from(left).unwrap_or(0);
        (client.pid, client.nursery_bytes.saturating_sub(left_bytes))
    };
    Some(clients.iter().map(of).collect())
}

/// Divides what the best tier's budget leaves among all clients: where a plan places births.
pub(crate) fn divide_budget(tiers: &Tiers, clients: &Clients, ledger: &Ledger, peak_bytes: u64) {
    let used_bytes: u64 = clients.iter().map(|one| fast_bytes_of(one, tiers, ledger)).sum();
    let left_bytes = left_bytes(tiers, clients, used_bytes, peak_bytes);
    let shares = divide(left_bytes, &born_bytes(clients, ledger));
    let of_arena = |share| share / fast_arenas(tiers);
    let shares = shares.into_iter().map(of_arena);
    clients.iter().zip(shares).for_each(|(client, share)| grant(&client.session, tiers, share));
}

/// What the best tier's budget leaves, and no more than its nodes have: free, or dead memory of
/// programs, which their next births use.
fn left_bytes(tiers: &Tiers, clients: &Clients, used_bytes: u64, peak_bytes: u64) -> u64 {
    let promised_bytes = promised_bytes(clients);
    let taken_bytes = used_bytes.saturating_add(promised_bytes);
    let of_budget = tiers.fast_budget_bytes(peak_bytes).saturating_sub(taken_bytes);
    let Some(of_nodes) = tiers.fast_left_bytes() else { return of_budget };
    let idle = clients.iter().map(|client| fast_idle_bytes(client, tiers));
    of_budget.min(idle.fold(of_nodes.saturating_sub(promised_bytes), u64::saturating_add))
}

/// Bytes of the best tier that clients will touch of what was born there.
pub(crate) fn promised_bytes(clients: &Clients) -> u64 {
    clients.iter().fold(0, |sum, client| sum.saturating_add(client.heads.promised_bytes))
}

/// Leaves each user no more promises than its part: who writes records that promise much takes none
/// of the others' room.
pub(crate) fn bound_promises(clients: &mut Clients, of_user_bytes: u64) {
    let mut left: HashMap<u32, u64> = HashMap::new();
    for client in clients.iter_mut() {
        let left_bytes = left.entry(client.user).or_insert(of_user_bytes);
        client.heads.promised_bytes = client.heads.promised_bytes.min(*left_bytes);
        *left_bytes -= client.heads.promised_bytes;
    }
}

/// Dead memory that a client's heap keeps in the arenas of the best tier.
fn fast_idle_bytes(client: &Client, tiers: &Tiers) -> u64 {
    let idle = tiers.arenas.iter().zip(client.session.idle_bytes());
    let fast = idle.filter(|(node, _)| tiers.is_fast(**node));
    fast.fold(0, |sum, (_, bytes)| sum.saturating_add(bytes))
}

/// Bytes that each client lately allocated.
fn born_bytes(clients: &Clients, ledger: &Ledger) -> Vec<u64> {
    clients.iter().map(|client| ledger.born_bytes(client.pid).unwrap_or(0)).collect()
}

/// What each client may allocate on each node of the best tier when there is one more, which comes
/// last.
fn shares_with_newcomer(
    tiers: &Tiers,
    clients: &Clients,
    ledger: &Ledger,
    peak_bytes: u64,
) -> Vec<u64> {
    let used_bytes = fast_used_bytes(tiers, clients, ledger);
    let left_bytes = left_bytes(tiers, clients, used_bytes, peak_bytes);
    let mut born = born_bytes(clients, ledger);
    born.push(born.iter().fold(0, |all: u64, one| all.saturating_add(*one)).max(1));
    divide(left_bytes, &born).into_iter().map(|share| share / fast_arenas(tiers)).collect()
}

/// Arenas of the best tier, at least one.
fn fast_arenas(tiers: &Tiers) -> u64 {
    let arenas = tiers.budgeted().filter(|(_, node)| tiers.is_fast(*node)).count();
    arenas.max(1) as u64
}

/// Bytes of live objects in the best tier, as far as their residency is known.
pub(crate) fn fast_used_bytes(tiers: &Tiers, clients: &Clients, ledger: &Ledger) -> u64 {
    let resident = clients.iter().flat_map(|client| ledger.resident_bytes(client.pid));
    resident.filter(|(node, _)| tiers.is_fast(*node)).map(|(_, bytes)| bytes).sum()
}

/// Lets a client allocate `share_bytes` on each node of the best tier, and any amount elsewhere.
fn grant(session: &Session, tiers: &Tiers, share_bytes: u64) {
    grant_beyond(session, tiers, share_bytes, &[0; ARENAS_MAX]);
}

/// The same, less what was allocated before.
fn grant_beyond(session: &Session, tiers: &Tiers, share_bytes: u64, early: &Early) {
    for (arena, node) in tiers.budgeted() {
        let left_bytes = share_bytes.saturating_sub(early[arena]);
        let bytes = if tiers.is_fast(node) { left_bytes } else { UNLIMITED_BYTES };
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
