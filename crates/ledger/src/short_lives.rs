//! What the short lives of a site are worth, and how much memory they take at a time.
//! In: lives that end, samples that hit them, bytes that come and go. Out: [`ShortLives`]. Knows
//! nothing of where memory lies, nor of policies.
//!
//! An object that dies before a decision could move it is placed by its birth alone. So the value
//! of such objects is counted by site, once they are dead. Objects of the same site that live
//! longer are extents of their own and do not count here.

use tiercel_machine::NodeId;
use tiercel_machine::number::share_of;
use tiercel_wire::Sample;

use crate::flows::Flow;
use crate::ledger::Ledger;
use crate::value::{Entry, ExtentValue};

/// Lives are short up to so many units of the time scale. In replay, streams of kind `churn` have
/// 1.730 of the bound's 1.954 over first touch with 2, and 1.735 with 4, 8 and 16.
const SHORT_UNITS: f64 = 8.0;

/// The short lives of a site so far.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortLives {
    /// The site, by its number.
    pub site: u32,
    /// Value of samples that hit them, nanoseconds: see [`ExtentValue::total_ns`].
    pub total_ns: f64,
    /// Means as [`ExtentValue::ns_per_s`] has them.
    pub ns_per_s: [f64; 2],
    /// Their standard deviations by sampling.
    pub deviation: [f64; 2],
    /// Bytes of lives that are over.
    pub ended_bytes: u64,
    /// Of these, bytes by node, where that was known: by a look at what lived, or by the arena.
    pub ended_on: Vec<(NodeId, u64)>,
    /// Bytes times seconds that these lived.
    pub byte_s: f64,
    /// The most bytes of the site that lived at a time in the last closed interval, beyond the
    /// fewest.
    pub swing_bytes: u64,
    /// Of these, bytes that live now.
    pub live_bytes: u64,
    /// The most bytes of the site that lived at a time in that interval, long lives included.
    pub most_bytes: u64,
}

impl Ledger {
    /// The short lives of a process, by site: of sites that samples hit. Nothing where values are
    /// not counted.
    pub fn short_lives(&self, pid: u32) -> Vec<ShortLives> {
        let Some(slot) = self.slot_of(pid) else { return Vec::new() };
        let flows = self.process(slot).flows.0.iter();
        flows.map(|(site, flow)| self.short_lives_of(*site, flow)).collect()
    }

    fn short_lives_of(&self, site: u32, flow: &Flow) -> ShortLives {
        let ExtentValue { total_ns, ns_per_s, deviation, .. } =
            self.value_since(0, &flow.value, self.sampled_since());
        ShortLives {
            site,
            total_ns,
            ns_per_s,
            deviation,
            ended_bytes: flow.ended_bytes,
            ended_on: flow.ended_on.iter().map(|(node, bytes)| (*node, *bytes)).collect(),
            byte_s: flow.byte_ns / 1e9,
            swing_bytes: flow.swing_bytes,
            live_bytes: flow.above_bytes,
            most_bytes: flow.most_bytes,
        }
    }

    /// A range of a row is over.
    pub(crate) fn count_short_life(&mut self, number: u32, bytes: u64, died_ns: u64) {
        let row = &self.rows[number];
        let (slot, site, born_ns) = (row.process, row.site(), row.born_ns());
        let lived_ns = died_ns.saturating_sub(born_ns);
        if !self.is_short(site, lived_ns) {
            return;
        }
        let part = bytes as f64 / row.bytes().max(1) as f64;
        let value = self.values.entries.get(&number).map(|entry| entry.part(part, 0.0));
        // Most sites are never sampled: their deaths cost no more than this.
        if value.is_none() && !self.process(slot).flows.0.contains_key(&site) {
            return;
        }
        let (places, since) = (self.places_of(number, bytes), self.sampled_since());
        let Some(flow) = self.flow(slot, site, died_ns) else { return };
        flow.ended_bytes += bytes;
        for (node, bytes) in places {
            *flow.ended_on.entry(node).or_default() += bytes;
        }
        flow.byte_ns += bytes as f64 * lived_ns as f64;
        if let Some(value) = value {
            flow.value.add_sum(value.total_ns, value.squares, died_ns, since);
        }
    }

    /// Where so many bytes of a row lie, as far as that is known: as all of it.
    fn places_of(&self, number: u32, bytes: u64) -> Vec<(NodeId, u64)> {
        let row = &self.rows[number];
        let located = self.homes_of(number);
        let all_bytes: u64 = located.iter().map(|(_, bytes)| bytes).sum();
        if all_bytes > 0 {
            let part =
                |(node, of_node): &(NodeId, u64)| (*node, share_of(bytes, *of_node, all_bytes));
            return located.iter().map(part).collect();
        }
        let of_arena = row.arena().and_then(|arena| *self.arenas.get(usize::from(arena))?);
        of_arena.map(|node| (node, bytes)).into_iter().collect()
    }

    /// A sample hit a life that had ended by the time it was read, and how long that had lived.
    pub(crate) fn count_value_of_ended(
        &mut self,
        (slot, site): (u16, u32),
        lived_ns: u64,
        sample: &Sample,
    ) {
        let Some(ns) = self.value_of_sample(sample) else { return };
        if !self.is_short(site, lived_ns) {
            return;
        }
        let (at_ns, since) = (sample.until_ns, self.sampled_since());
        if let Some(flow) = self.flow(slot, site, at_ns) {
            flow.value.add(ns, at_ns, since);
        }
    }

    /// Ends the interval.
    pub(crate) fn close_short_lives(&mut self) {
        for process in self.processes.iter_mut().flatten() {
            for (site, flow) in &mut process.flows.0 {
                let live_bytes = process.sites.get(*site).map_or(0, |history| history.live_bytes);
                flow.swing_bytes = flow.live.1.saturating_sub(flow.live.0);
                flow.most_bytes = flow.live.1;
                flow.above_bytes = live_bytes.saturating_sub(flow.live.0);
                flow.live = (live_bytes, live_bytes);
            }
        }
    }

    /// How long a life may be and still be short, now; milliseconds.
    pub fn short_ms(&self) -> f64 {
        let since = self.sampled_since();
        SHORT_UNITS * since.scale.unit_s(since.age_s(self.now_ms * 1_000_000)) * 1e3
    }

    fn is_short(&self, site: u32, lived_ns: u64) -> bool {
        self.values.of.is_some() && site != 0 && lived_ns as f64 <= self.short_ms() * 1e6
    }

    fn flow(&mut self, slot: u16, site: u32, at_ns: u64) -> Option<&mut Flow> {
        let since = self.sampled_since();
        let live_bytes = self.process(slot).sites.get(site).map_or(0, |one| one.live_bytes);
        self.process_mut(slot).flows.of(site, || Flow {
            value: Entry::new(at_ns, since),
            ended_bytes: 0,
            ended_on: Default::default(),
            byte_ns: 0.0,
            live: (live_bytes, live_bytes),
            swing_bytes: 0,
            above_bytes: 0,
            most_bytes: 0,
        })
    }
}
