//! Residency of extents: as scanned, as movers report it, and as assumed at birth.
//! In: residency by node, [`Outcome`]s, nodes of arenas. Out: residency of each extent, and the
//! extents of unknown residency. Knows nothing of how memory is scanned.

use tiercel_machine::NodeId;
use tiercel_machine::number::share_of;

use crate::extent::Range;
use crate::ledger::Ledger;
use crate::movement::{Failure, Outcome};
use crate::row::{FRESH, Home, QUEUED, SPILLED, Stamp};

/// Most extents that wait to be located; more are counted and come up again when something else
/// happens to them.
pub const UNLOCATED_MAX: usize = 1 << 20;

impl Ledger {
    /// Says which node each arena is memory of. Objects born in a known arena are believed to lie
    /// there wholly until a scan says otherwise.
    pub fn set_arenas(&mut self, nodes: &[Option<NodeId>]) {
        self.arenas = nodes.to_vec();
    }

    /// Up to `max` extents of unknown residency, longest unknown first.
    /// Each comes once; answer with [`Ledger::set_residency`].
    pub fn take_unlocated(&mut self, max: usize) -> Vec<Range> {
        let mut ranges = Vec::new();
        while ranges.len() < max {
            let Some((number, addr)) = self.unlocated.pop_front() else { break };
            let known = self.rows.get(number).filter(|row| row.addr == addr);
            let Some(&row) = known.filter(|row| row.has(QUEUED)) else { continue };
            self.rows[number].flags &= !QUEUED;
            let pid = self.process(row.process).pid;
            ranges.push(Range { pid, addr, bytes: row.bytes() });
        }
        ranges
    }

    /// Takes the result of a scan: `on` has the bytes of this range per node. A range over several
    /// extents is shared out by size. An unknown process or a range without extents is no error.
    pub fn set_residency(&mut self, range: Range, on: &[(NodeId, u64)], as_of_ms: u64) {
        let Some(slot) = self.slot(range.pid) else { return };
        let end = range.addr.saturating_add(range.bytes);
        let mut below = end;
        while below > range.addr {
            let Some(number) = self.overlapping(slot, range.addr, below) else { break };
            let row = &self.rows[number];
            let bytes = row.end().min(end) - row.addr.max(range.addr);
            below = row.addr;
            let is_whole = row.addr >= range.addr && row.end() <= end;
            if row.has(FRESH) {
                continue;
            }
            if !is_whole {
                // Joined with others, or grown, since the scan or the move was requested.
                self.queue_for_scan(number);
                continue;
            }
            let share = |total: u64| share_of(total, bytes, range.bytes);
            let homes: Vec<_> = on.iter().map(|&(node, total)| (node, share(total))).collect();
            self.set_row_residency(number, homes, Stamp::at(as_of_ms));
        }
    }

    /// What became of a move.
    pub fn outcome(&mut self, outcome: &Outcome) {
        self.counts.moved_bytes += outcome.moved_bytes;
        let asked = &outcome.asked;
        if outcome.failed.iter().any(|(failure, _)| *failure == Failure::Vanished) {
            return;
        }
        let range = Range { pid: asked.pid, addr: asked.addr, bytes: asked.bytes };
        let present = asked.bytes.saturating_sub(outcome.absent_bytes);
        let elsewhere = present.saturating_sub(outcome.resident_bytes);
        let mut on = vec![(asked.to, outcome.resident_bytes)];
        if elsewhere > 0 {
            // What did not move stayed where it was; if that is unknown, it has no known node.
            let was = self.find(asked.pid, asked.addr).map(|extent| extent.residency);
            let main = was.and_then(|was| {
                let others = was.iter().filter(|(node, _)| *node != asked.to);
                others.max_by_key(|(_, bytes)| *bytes).map(|(node, _)| node)
            });
            if let Some(node) = main.or(asked.from).filter(|node| *node != asked.to) {
                on.push((node, elsewhere));
            }
        }
        self.set_residency(range, &on, self.now_ms);
    }

    /// Subtracts a row's residency from the totals of the nodes.
    pub(crate) fn clear_residency(&mut self, number: u32) {
        let row = self.rows[number];
        if row.homes_as_of == Stamp::NEVER {
            return;
        }
        let more = if row.has(SPILLED) { self.spill.remove(&number) } else { None };
        let on_nodes = &mut self.process_mut(row.process).on_nodes;
        for (node, bytes) in row.homes.map(Home::get).into_iter().chain(more.into_iter().flatten())
        {
            if let Some(sum) = on_nodes.get_mut(&node).filter(|_| bytes > 0) {
                *sum -= bytes;
            }
        }
        let row = &mut self.rows[number];
        row.homes = Default::default();
        row.homes_as_of = Stamp::NEVER;
        row.flags &= !SPILLED;
    }

    /// Bytes of a row on each node, as far as its residency is known.
    pub(crate) fn homes_of(&self, number: u32) -> Vec<(NodeId, u64)> {
        let row = &self.rows[number];
        let more = self.spill.get(&number).filter(|_| row.has(SPILLED));
        let all = row.homes.map(Home::get).into_iter().chain(more.into_iter().flatten().copied());
        all.filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// A row of unknown residency waits to be looked up.
    pub(crate) fn queue_for_scan(&mut self, number: u32) {
        self.clear_residency(number);
        let row = &mut self.rows[number];
        if row.has(FRESH) || row.has(QUEUED) {
            return;
        }
        if self.unlocated.len() >= UNLOCATED_MAX {
            self.counts.unlocated_forgotten += 1;
            return;
        }
        row.flags |= QUEUED;
        self.unlocated.push_back((number, row.addr));
    }

    /// The extents from `first` to `last` became records: they lie where their arena is, if it is
    /// known.
    pub(crate) fn locate_born(&mut self, first: u32, last: u32) {
        let mut number = first;
        loop {
            let row = &self.rows[number];
            let node = row.arena().and_then(|arena| self.arenas.get(usize::from(arena)));
            match node.copied().flatten() {
                Some(node) => self.set_row_residency(
                    number,
                    vec![(node, row.bytes())],
                    Stamp::at(self.now_ms),
                ),
                None => self.queue_for_scan(number),
            }
            if number == last {
                return;
            }
            number = self.next_of(number).expect("`last` follows `first` in one object");
        }
    }

    pub(crate) fn set_row_residency(
        &mut self,
        number: u32,
        mut homes: Vec<(NodeId, u64)>,
        as_of: Stamp,
    ) {
        self.clear_residency(number);
        homes.retain(|(_, bytes)| *bytes > 0);
        homes.sort_by_key(|&(node, bytes)| (std::cmp::Reverse(bytes), node));
        let row = &mut self.rows[number];
        row.homes_as_of = as_of;
        for (home, (node, bytes)) in row.homes.iter_mut().zip(&homes) {
            *home = Home::new(*node, *bytes);
        }
        row.flags &= !QUEUED;
        let (slot, kept) = (row.process, row.homes.map(Home::get));
        if homes.len() > kept.len() {
            row.flags |= SPILLED;
        }
        let more = homes.split_off(homes.len().min(kept.len()));
        let on_nodes = &mut self.process_mut(slot).on_nodes;
        for &(node, bytes) in kept.iter().chain(&more).filter(|(_, bytes)| *bytes > 0) {
            *on_nodes.entry(node).or_default() += bytes;
        }
        if !more.is_empty() {
            self.spill.insert(number, more);
        }
    }
}
