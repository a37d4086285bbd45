//! The values of extents, as samples come and extents change.
//! In: samples that hit rows, rows that are split, joined, moved and removed. Out:
//! [`ExtentValue`]s. Knows nothing of how the value of an access is found.
//!
//! Rows that have an entry have the flag VALUED, so that the others cost no look.

use tiercel_wire::{AccessKind, Sample};

use crate::extent::{Extent, ExtentId};
use crate::ledger::Ledger;
use crate::row::VALUED;
use crate::value::{AccessValue, Entry, ExtentValue, Since, TimeScale, VALUE_TAU_UNITS};

/// Entries without a sample for so many of the longest time constants are forgotten: what is left
/// of them is 3e-4.
const FORGOTTEN_TAUS: f64 = 8.0;

/// Entries looked at in a tick to forget them: 1 ms at 0.2 us each.
const SWEEP_ENTRIES: usize = 4096;

impl Ledger {
    /// From now on the value of accesses is counted, extent by extent.
    pub fn set_values(&mut self, value: AccessValue) {
        self.values.of = Some(value);
    }

    /// The extents that samples hit of late, ascending from a number on; some may be no records.
    pub fn valued_from(&self, number: u32) -> impl Iterator<Item = ExtentId> {
        self.values.entries.range(number..).map(|(number, _)| ExtentId(*number))
    }

    /// The value of an extent; nothing where no sample hit it of late.
    pub fn value(&self, extent: &Extent) -> Option<ExtentValue> {
        let entry = self.values.entries.get(&extent.id.0)?;
        Some(self.value_of(extent.id.0, entry))
    }

    fn value_of(&self, number: u32, entry: &Entry) -> ExtentValue {
        self.value_since(number, entry, self.observed_since(number))
    }

    /// The value of an entry whose samples are known since then.
    pub(crate) fn value_since(&self, number: u32, entry: &Entry, since: Since) -> ExtentValue {
        let now_ns = self.now_ms * 1_000_000;
        let ns_per_s = entry.at(now_ns, since).rates(since.least_weights());
        let Entry { total_ns, squares, .. } = *entry;
        let of_sample = squares / total_ns.abs().max(f64::MIN_POSITIVE);
        // Half a unit at least.
        let age_s = since.age_s(now_ns).max(since.scale.unit_s(0.0) / 2.0);
        let support_s = since.support_s(now_ns);
        let deviation = std::array::from_fn(|at| {
            (ns_per_s[at].abs() * of_sample / age_s.min(support_s[at])).sqrt()
        });
        ExtentValue { id: ExtentId(number), total_ns, ns_per_s, deviation }
    }

    /// The unit of time, by age, that averages count in.
    pub fn time_scale(&self) -> TimeScale {
        TimeScale::new(self.present_tick_ms, self.config.tick_ms)
    }

    /// From when on a row's samples are known: from its birth, or from the first sample at all.
    fn observed_since(&self, number: u32) -> Since {
        let since = self.sampled_since();
        Since { begin_ns: self.rows[number].born_ns().max(since.begin_ns), ..since }
    }

    /// From when on samples are known at all.
    pub(crate) fn sampled_since(&self) -> Since {
        let first_ns = self.values.first_ns.unwrap_or(self.now_ms * 1_000_000);
        Since { scale: self.time_scale(), begin_ns: first_ns }
    }

    /// A sample hit a row.
    pub(crate) fn count_value(&mut self, number: u32, sample: &Sample) {
        let Some(ns) = self.value_of_sample(sample) else { return };
        let at_ns = sample.until_ns;
        let since = self.observed_since(number);
        let entry = self.values.entries.entry(number);
        let entry = entry.or_insert_with(|| Entry::new(at_ns, since));
        entry.add(ns, at_ns, since);
        self.rows[number].flags |= VALUED;
    }

    /// What a sample stands for, nanoseconds; `None` where values are not counted.
    pub(crate) fn value_of_sample(&mut self, sample: &Sample) -> Option<f64> {
        let value = self.values.of.as_mut()?;
        value.observe(sample);
        self.values.has_dirtied |= sample.kind == AccessKind::Dirtied;
        self.values.first_ns.get_or_insert(sample.until_ns);
        Some(value.ns(sample, !self.values.has_dirtied))
    }

    /// A row is gone.
    pub(crate) fn forget_value(&mut self, number: u32) {
        self.values.entries.remove(&number);
    }

    /// A row gave so much of itself away: another one got that part, or none did.
    pub(crate) fn share_value(&mut self, number: u32, to: Option<u32>, bytes: f64, heat: f32) {
        let Some(entry) = self.values.entries.get_mut(&number) else { return };
        let part = entry.part(bytes, heat);
        *entry = entry.part(1.0 - bytes, 1.0 - heat);
        if let Some(to) = to {
            self.add_value(to, part);
        }
    }

    /// A row takes over what is known of another one.
    pub(crate) fn move_value(&mut self, from: u32, to: u32) {
        if let Some(entry) = self.values.entries.remove(&from) {
            self.rows[from].flags &= !VALUED;
            self.add_value(to, entry);
        }
    }

    fn add_value(&mut self, number: u32, part: Entry) {
        let since = self.observed_since(number);
        let entry = self.values.entries.entry(number);
        let entry = entry.or_insert_with(|| Entry { weights: part.weights, ..part.part(0.0, 0.0) });
        let at_ns = entry.at_ns.max(part.at_ns);
        let (ours, theirs) = (entry.at(at_ns, since), part.at(at_ns, since));
        *entry = Entry {
            means: [0, 1].map(|tau| ours.means[tau] + theirs.means[tau]),
            total_ns: ours.total_ns + theirs.total_ns,
            squares: ours.squares + theirs.squares,
            ..ours
        };
        self.rows[number].flags |= VALUED;
    }

    /// Forgets entries that no sample has hit for long; bounded.
    pub(crate) fn forget_old_values(&mut self) {
        let kept_ns = self.config.tick_ms as f64 * 1e6 * VALUE_TAU_UNITS[1] * FORGOTTEN_TAUS;
        let now_ns = self.now_ms * 1_000_000;
        let is_old = |entry: &Entry| now_ns.saturating_sub(entry.at_ns) as f64 > kept_ns;
        let from = self.values.sweep_at;
        let seen = self.values.entries.range(from..).take(SWEEP_ENTRIES);
        let seen: Vec<(u32, bool)> = seen.map(|(number, entry)| (*number, is_old(entry))).collect();
        self.values.sweep_at = match seen.last() {
            Some((last, _)) if seen.len() == SWEEP_ENTRIES => last + 1,
            _ => 0,
        };
        for (number, _) in seen.into_iter().filter(|(_, is_old)| *is_old) {
            self.rows[number].flags &= !VALUED;
            self.values.entries.remove(&number);
        }
    }
}
