//! Shadow placements with a loss budget.
//! In: the ledger's values, tiers, room, what moves cost. Out: who changes sides, and an account of
//! why. Knows nothing of how anything is moved.
//!
//! Every access is sampled wherever it lies, so any placement can be scored without making it. Each
//! expert keeps a placement of its own, a bit for each extent, pays for its moves and is credited
//! with what it would have saved. The real placement exchanges by the best expert's rates and
//! horizon, and spends no more than the bank:
//!
//! ```text
//! bank  = loss x age + saved - spent + max(0, lead of the best expert)
//! saved = value served fast by the real placement, less what home would have served fast
//! ```
//! (ski rental with the choice of experts). Doing nothing is the default: without a lead only the
//! loss budget is spent, and what failed is not spent again. There is one such placement for each
//! group and each boundary between tiers.

mod exchange;
mod experts;
mod follow;
mod nurseries;
mod report;
mod shrink;

use tiercel_ledger::{ExtentId, Ledger, PIECE_UNITS, Pace, VALUE_TAU_UNITS};

pub use report::ShadowReport;

use exchange::{Exchanged, Item, Terms, evict, exchange};
use experts::{Expert, Experts, by_density};
pub(crate) use follow::Scope;
use follow::{Entry, Key, Marks};
use nurseries::{Nurseries, NurseryScope};
use shrink::shrink;

/// Part of its lead that is trusted to the best expert. In replay 0.5 to 2 differ by less than a
/// point of the bound's gain, and 1 loses least.
const CREDIT: f64 = 1.0;

/// Extents that are looked at in a tick for those that no sample hit, which leave first.
const SWEEP_EXTENTS: usize = PIECE_UNITS;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    marks: Marks,
    pub(crate) nurseries: Nurseries,
    experts: Experts,
    age_s: f64,
    saved_ns: f64,
    spent_ns: f64,
    /// The last decision kept the budget, and nothing else.
    was_forced: bool,
    sweep_at: usize,
}

/// What a tick is given.
pub(crate) struct TickInput<'a> {
    pub(crate) scope: Scope<'a>,
    /// Nanoseconds a byte that comes in or goes.
    pub(crate) up: f64,
    pub(crate) down: f64,
    /// Bytes that may lie in the tier above the boundary, and that do.
    pub(crate) room: u64,
    pub(crate) used: u64,
    /// Bytes that the group may have there at all: what is beyond leaves, whether that pays or not.
    pub(crate) budget: u64,
    /// Share of the time that moves may cost without having brought anything.
    pub(crate) loss: f64,
    pub(crate) elapsed_s: f64,
    pub(crate) bytes_left: u64,
    /// Whether the real placement may change.
    pub(crate) acts: bool,
    /// Processes whose sites may have nurseries.
    pub(crate) nurseries: Option<&'a [u32]>,
}

/// An extent that changes sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) id: ExtentId,
    pub(crate) bytes: u64,
    pub(crate) is_promotion: bool,
    pub(crate) gain_ns_per_s: f64,
}

/// What a tick found out and asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Step {
    pub(crate) changes: Vec<Change>,
    pub(crate) report: ShadowReport,
    pub(crate) extents: u64,
    pub(crate) bytes: u64,
    /// Extents in slow memory that samples hit and that do not move: it does not pay, the bank is
    /// too small, the mover's rate is used up. Number and bytes.
    pub(crate) left: [(u64, u64); 3],
}

impl Shadow {
    /// The moves of the last decision took so long.
    pub(crate) fn spent(&mut self, ns: f64) {
        self.spent_ns += if self.was_forced { 0.0 } else { ns };
    }

    /// Scores the experts, lets them exchange, and says what the real placement should exchange.
    pub(crate) fn tick(&mut self, pace: &mut dyn Pace, input: &TickInput) -> Step {
        self.age_s += input.elapsed_s;
        let mut entries = self.marks.entries(pace, &input.scope);
        let unit_s = unit_s(pace.ledger(), &entries);
        let used = input.used + self.add_nurseries(pace, input, unit_s, &mut entries);
        self.score(&entries, input, unit_s);
        let is_wanted = entries.iter().any(|entry| !entry.is_fast() && entry.new_ns > 0.0);
        if is_wanted || input.used > input.budget {
            self.sweep(pace, &input.scope, &mut entries);
        }
        let ledger = pace.ledger();
        shrink(&mut entries, |pid, site| ledger.site_live_bytes(pid, site));
        pace.compared(entries.len().min(PIECE_UNITS));
        let terms = |experts: &Experts, expert| Terms {
            up: input.up,
            down: input.down,
            horizon_s: experts.horizon_s(expert, unit_s),
            room: input.room,
            used,
            bank: 0.0,
            bytes_left: input.bytes_left,
        };
        entries.iter_mut().for_each(|entry| entry.bits_before = entry.bits);
        let is_forced = input.acts && input.used > input.budget;
        for expert in Experts::all().filter(|_| !is_forced) {
            let terms = terms(&self.experts, expert);
            self.experts.exchange(expert, &mut entries, &terms);
            pace.compared(entries.len().min(PIECE_UNITS));
        }
        let (best, lead_ns) = self.experts.best();
        let bank = self.bank_ns(input.loss, lead_ns);
        let terms = Terms { bank, ..terms(&self.experts, best) };
        let items: Vec<Item> = entries.iter().map(|entry| best.real_item(entry)).collect();
        let order = by_density(&items);
        let done = match (is_forced, input.acts) {
            (true, _) => {
                let (room, used) = (input.budget, input.used);
                evict(&items, &order, &Terms { room, used, ..terms })
            }
            (false, true) => exchange(&items, &order, &terms),
            (false, false) => Exchanged::default(),
        };
        self.was_forced = is_forced;
        if is_forced {
            force(&done, &mut entries);
        }
        self.marks.keep(&entries);
        let changed: std::collections::HashSet<usize> = done.chosen.iter().copied().collect();
        self.nurseries.keep(&entries, |at| changed.contains(&at));
        let report = self.report((best, unit_s), (lead_ns, bank), entries.len());
        step(&entries, &items, done, report)
    }

    /// Adds the entries of nurseries. Bytes of the faster memory that births will take again.
    fn add_nurseries(
        &mut self,
        pace: &mut dyn Pace,
        input: &TickInput,
        unit_s: f64,
        entries: &mut Vec<Entry>,
    ) -> u64 {
        let Some(pids) = input.nurseries else { return 0 };
        let (tiers, boundary) = (input.scope.tiers, input.scope.boundary);
        let scope = NurseryScope {
            pids,
            is_fast: &|node| tiers.rank(node) <= boundary,
            gap: input.scope.gap,
            elapsed_s: input.elapsed_s,
            unit_s,
        };
        let before = entries.len();
        let expected_bytes = self.nurseries.add_entries(pace.ledger(), &scope, entries);
        pace.worked(entries.len() - before);
        expected_bytes
    }

    fn score(&mut self, entries: &[Entry], input: &TickInput, unit_s: f64) {
        self.experts.score(entries, input.elapsed_s, unit_s);
        for entry in entries.iter().filter(|entry| entry.new_ns != 0.0) {
            // What was moved in the interval lay there for about half of it.
            let fast = (entry.real() + entry.real_before) / 2.0;
            self.saved_ns += entry.new_ns * (fast - entry.home);
        }
    }

    fn bank_ns(&self, loss: f64, lead_ns: f64) -> f64 {
        let budget = loss * self.age_s * 1e9;
        budget + self.saved_ns - self.spent_ns + CREDIT * lead_ns.max(0.0)
    }

    fn report(
        &self,
        (best, unit_s): (Expert, f64),
        (lead_ns, bank_ns): (f64, f64),
        extents: usize,
    ) -> ShadowReport {
        let (nurseries, nursery_bytes) = self.nurseries.all();
        ShadowReport {
            extents: extents as u64,
            average_s: VALUE_TAU_UNITS[best.tau()] * unit_s,
            horizon_s: self.experts.horizon_s(best, unit_s),
            lead_ns,
            saved_ns: self.saved_ns,
            spent_ns: self.spent_ns,
            bank_ns,
            nurseries,
            nursery_bytes,
            ..ShadowReport::default()
        }
    }

    /// Adds extents that lie above the boundary and that no sample hit of late; bounded, in turns.
    fn sweep(&mut self, pace: &mut dyn Pace, scope: &Scope, entries: &mut Vec<Entry>) {
        let ledger = pace.ledger();
        let known: std::collections::HashSet<ExtentId> =
            entries.iter().filter_map(Entry::id).collect();
        let places = ledger.extent_places();
        let count = places.min(SWEEP_EXTENTS);
        let from = self.sweep_at.checked_rem(places).unwrap_or(0);
        let wrapped = (from + count).saturating_sub(places);
        let seen = ledger.extents_from(from, count).chain(ledger.extents_from(0, wrapped));
        let seen = seen.filter(|extent| !known.contains(&extent.id));
        entries.extend(seen.filter_map(|extent| scope.entry(&extent).filter(|one| one.there > 0)));
        self.sweep_at = from + count;
        pace.worked(count);
    }
}

/// The unit of time in which experts count: by the age of the oldest extent that matters, so that a
/// program that came late to a long-lived daemon is judged by its own age.
fn unit_s(ledger: &Ledger, entries: &[Entry]) -> f64 {
    let oldest_ms = entries.iter().map(|entry| entry.born_ms).min();
    let age_ms = oldest_ms.map_or(0, |born_ms| ledger.now_ms().saturating_sub(born_ms));
    ledger.time_scale().unit_s(age_ms as f64 / 1e3)
}

/// A budget is kept whether that pays or not, so that costs no bank: what leaves could never have
/// stayed, for any expert.
fn force(done: &Exchanged, entries: &mut [Entry]) {
    for at in &done.chosen {
        (entries[*at].home, entries[*at].bits, entries[*at].bits_before) = (0.0, 0, 0);
    }
}

/// What the real placement exchanges.
fn step(entries: &[Entry], items: &[Item], done: Exchanged, report: ShadowReport) -> Step {
    let left = [(0, 0), done.unpaid, done.limited];
    let mut step = Step { report, left, ..Step::default() };
    let mut moves = vec![false; items.len()];
    for at in done.chosen {
        moves[at] = true;
        step.changes.extend(change(&entries[at], &items[at]));
    }
    for ((entry, item), moves) in entries.iter().zip(items).zip(moves) {
        step.extents += 1;
        step.bytes += entry.footprint;
        if !moves && !item.is_inside && item.rate > 0.0 {
            step.left[0].0 += 1;
            step.left[0].1 += item.bytes - item.there;
        }
    }
    let others = step.left[1].0 + step.left[2].0;
    let bytes = step.left[1].1 + step.left[2].1;
    step.left[0] = (step.left[0].0.saturating_sub(others), step.left[0].1.saturating_sub(bytes));
    step
}

fn change(entry: &Entry, item: &Item) -> Option<Change> {
    let Key::Extent(id) = entry.key else { return None };
    let is_promotion = !item.is_inside;
    let gain_ns_per_s = if is_promotion { item.gain() } else { -item.loss() };
    Some(Change { id, bytes: entry.footprint, is_promotion, gain_ns_per_s })
}
