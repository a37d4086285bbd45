//! How the objects of one class vote for the memory their class gets in each phase.
//! In: votes in bytes, by memory and phase. Out: the [`Choice`] of a [`Class`]. Knows nothing of
//! plans or profiles.

use std::collections::{BTreeMap, HashMap};

use tiercel_machine::number::saturating_u32;
use tiercel_plan::PlannedRange;
use tiercel_planner::{MEMORIES_MAX, Workload};
use tiercel_wire::layout::PLAN_RANGES;

use crate::place::Place;

/// A smaller part below this share is no split: one object in a hundred is chance.
const PART_MIN: f64 = 0.02;

/// Parts of an object: six decimal digits of its length, as the file has them.
const PARTS: u32 = 1_000_000;

/// All parts of an object.
const WHOLE: (u32, u32) = (0, PARTS);

/// Votes of the objects of one class, by phase.
#[derive(Default)]
pub(crate) struct Class {
    pub(crate) objects: u64,
    pub(crate) peak_bytes: u64,
    pub(crate) samples: u64,
    /// By index of the phase's name.
    pub(crate) phases: BTreeMap<usize, Votes>,
}

/// What is known of objects in a phase.
#[derive(Clone, Default)]
pub(crate) struct Votes {
    /// By part of the objects, from one of its [`PARTS`] to another.
    parts: BTreeMap<(u32, u32), Vote>,
    /// Accesses were observed.
    pub(crate) used: bool,
}

/// What is known of one part of objects, by memory.
#[derive(Clone, Copy, Default)]
pub(crate) struct Vote {
    /// Bytes that the planner places there.
    pub(crate) bytes: [f64; MEMORIES_MAX],
    /// Time saved compared with the slowest memory if all of them were there.
    pub(crate) gain_ns: [f64; MEMORIES_MAX],
}

/// Neighbouring parts of an object, the last one exclusive; both 0: none.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    from: u32,
    to: u32,
}

/// Where a class is in a phase.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Choice {
    pub(crate) memory: usize,
    /// Where the rest is.
    pub(crate) other: Option<usize>,
    /// What of each object is in `memory`, ascending; used only with `other`.
    pub(crate) ranges: [Span; PLAN_RANGES],
}

impl Choice {
    fn whole(memory: usize) -> Choice {
        Choice { memory, other: None, ranges: [Span::default(); PLAN_RANGES] }
    }

    pub(crate) fn place(&self) -> Place {
        match self.other {
            Some(other) => Place::cut(self.memory, other, self.planned_ranges()),
            None => Place::whole(self.memory),
        }
    }

    /// As a plan's file has them; none without another memory.
    pub(crate) fn planned_ranges(&self) -> Vec<PlannedRange> {
        let used = self.ranges.iter().filter(|range| self.other.is_some() && range.to > 0);
        used.map(|range| PlannedRange { from: share_of(range.from), to: share_of(range.to) })
            .collect()
    }

    /// How much of a part of the objects is in `memory`, 0 to 1.
    fn share_of_part(&self, (from, to): (u32, u32)) -> f64 {
        if self.other.is_none() {
            return 1.0;
        }
        let common = |range: &Span| range.to.min(to).saturating_sub(range.from.max(from));
        let covered: f64 = self.ranges.iter().map(common).map(f64::from).sum();
        covered / f64::from(to.saturating_sub(from).max(1))
    }
}

/// A part of an object as a share of it.
fn share_of(part: u32) -> f64 {
    f64::from(part) / f64::from(PARTS)
}

/// The part of an object at a share of it, the nearest.
fn part_at(share: f64) -> u32 {
    saturating_u32((share * f64::from(PARTS)).round()).min(PARTS)
}

impl Votes {
    /// The vote on a part of the objects; `None`: on all of them.
    pub(crate) fn part(&mut self, range: Option<PlannedRange>) -> &mut Vote {
        let key = range.map_or(WHOLE, |range| (part_at(range.from), part_at(range.to)));
        self.parts.entry(key).or_default()
    }

    pub(crate) fn absorb(&mut self, other: &Votes) {
        for (key, vote) in &other.parts {
            let sum = self.parts.entry(*key).or_default();
            for memory in 0..MEMORIES_MAX {
                sum.bytes[memory] += vote.bytes[memory];
                sum.gain_ns[memory] += vote.gain_ns[memory];
            }
        }
        self.used |= other.used;
    }

    /// Bytes, by memory.
    pub(crate) fn bytes(&self) -> [f64; MEMORIES_MAX] {
        let of = |memory: usize| self.parts.values().map(|vote| vote.bytes[memory]).sum();
        std::array::from_fn(of)
    }

    pub(crate) fn gain_of(&self, choice: Choice) -> f64 {
        let gain = |(key, vote): (&(u32, u32), &Vote)| {
            let share = choice.share_of_part(*key);
            let other = choice.other.map_or(0.0, |other| vote.gain_ns[other] * (1.0 - share));
            vote.gain_ns[choice.memory] * share + other
        };
        self.parts.iter().map(gain).sum()
    }

    /// Gain if all of them were in the fastest memory.
    fn gain_in_fastest(&self) -> f64 {
        self.parts.values().map(|vote| vote.gain_ns[0]).sum()
    }

    /// The two memories with most bytes, the faster one first.
    pub(crate) fn choice(&self) -> Option<Choice> {
        let bytes = self.bytes();
        let mut order: Vec<usize> = (0..MEMORIES_MAX).collect();
        order.sort_by(|a, b| bytes[*b].total_cmp(&bytes[*a]));
        let (most, next) = (order[0], order[1]);
        if bytes[most] <= 0.0 {
            return None;
        }
        let both = bytes[most] + bytes[next];
        let is_cut = self.parts.keys().any(|key| *key != WHOLE);
        if bytes[next] <= 0.0 || (!is_cut && bytes[next] / both < PART_MIN) {
            return Some(Choice::whole(most));
        }
        let (memory, other) = (most.min(next), most.max(next));
        let share = bytes[memory] / both;
        // Of births, hundredths are enough, and phases that differ by less have one place.
        let share = if is_cut { share } else { (share * 100.0).round().clamp(1.0, 99.0) / 100.0 };
        let ranges = self.ranges(memory, other, part_at(share).clamp(1, PARTS - 1));
        Some(Choice { memory, other: Some(other), ranges })
    }

    /// Of `parts` parts of each object those that most votes want in `memory` and not in `other`;
    /// of equal ones the first.
    fn ranges(&self, memory: usize, other: usize, mut parts: u32) -> [Span; PLAN_RANGES] {
        let mut wanted = self.between_ends(memory, other);
        wanted.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.from.cmp(&b.1.from)));
        let mut chosen = Vec::new();
        for (_, range) in wanted {
            let size = (range.to - range.from).min(parts);
            parts -= size;
            chosen.push(Span { from: range.from, to: range.from + size });
        }
        chosen.retain(|range| range.from < range.to);
        chosen.sort();
        let mut joined: Vec<Span> = Vec::new();
        for range in chosen {
            match joined.last_mut() {
                Some(last) if last.to == range.from => last.to = range.to,
                _ => joined.push(range),
            }
        }
        self.fewer(joined, memory)
    }

    /// The ranges between all ends of parts, each with the share of its votes for `memory`.
    fn between_ends(&self, memory: usize, other: usize) -> Vec<(f64, Span)> {
        let mut ends: Vec<u32> = self.parts.keys().flat_map(|(from, to)| [*from, *to]).collect();
        ends.sort_unstable();
        ends.dedup();
        let mut votes = vec![(0.0, 0.0); ends.len()];
        for ((from, to), vote) in &self.parts {
            let parts = f64::from(to.saturating_sub(*from).max(1));
            let (first, last) = (ends.binary_search(from), ends.binary_search(to));
            for sum in &mut votes[first.unwrap_or(0)..last.unwrap_or(0)] {
                sum.0 += vote.bytes[memory] / parts;
                sum.1 += (vote.bytes[memory] + vote.bytes[other]) / parts;
            }
        }
        let pairs = ends.windows(2).zip(votes);
        let range = |(two, (mine, all)): (&[u32], (f64, f64))| {
            (if all > 0.0 { mine / all } else { 0.0 }, Span { from: two[0], to: two[1] })
        };
        pairs.map(range).collect()
    }

    /// As many ranges as a row has: those that gain least are left out.
    fn fewer(&self, mut ranges: Vec<Span>, memory: usize) -> [Span; PLAN_RANGES] {
        let gain = |range: &Span| {
            let only = |part: &(&(u32, u32), &Vote)| {
                let (from, to) = *part.0;
                let common = range.to.min(to).saturating_sub(range.from.max(from));
                part.1.gain_ns[memory] * f64::from(common) / f64::from((to - from).max(1))
            };
            self.parts.iter().map(|part| only(&part)).sum::<f64>()
        };
        while ranges.len() > PLAN_RANGES {
            let all = ranges.iter().enumerate();
            let least = all.min_by(|a, b| gain(a.1).total_cmp(&gain(b.1))).map(|(at, _)| at);
            ranges.remove(least.expect("there are several"));
        }
        let mut fixed = [Span::default(); PLAN_RANGES];
        fixed.iter_mut().zip(ranges).for_each(|(to, range)| *to = range);
        fixed
    }
}

impl Class {
    /// The place of most phases, weighted by bytes.
    pub(crate) fn usual(&self) -> Option<Choice> {
        let mut all = Votes::default();
        self.phases.values().for_each(|votes| all.absorb(votes));
        let mut counts: Vec<(Choice, f64)> = Vec::new();
        for votes in self.phases.values() {
            let Some(choice) = votes.choice() else { continue };
            let bytes: f64 = votes.bytes().iter().sum();
            match counts.iter_mut().find(|(known, _)| *known == choice) {
                Some((_, sum)) => *sum += bytes,
                None => counts.push((choice, bytes)),
            }
        }
        counts.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(choice, _)| choice)
    }

    /// The memory that has all its objects in a phase.
    pub(crate) fn alone_in(&self, phase: usize) -> Option<usize> {
        let choice = self.place_in(phase)?;
        choice.other.is_none().then_some(choice.memory)
    }

    pub(crate) fn is_used_in(&self, phase: usize) -> bool {
        self.phases.get(&phase).is_some_and(|votes| votes.used)
    }

    /// Gain per byte of the fastest memory in a phase.
    pub(crate) fn gain_per_byte(&self, phase: usize) -> f64 {
        let per_byte =
            |votes: &Votes| votes.gain_in_fastest() / votes.bytes().iter().sum::<f64>().max(1.0);
        self.phases.get(&phase).map_or(0.0, per_byte)
    }

    pub(crate) fn place_in(&self, phase: usize) -> Option<Choice> {
        self.phases.get(&phase).and_then(Votes::choice)
    }
}

/// Index of each name in the order of first entries, and names by index.
pub(crate) struct Names<'a> {
    pub of_phase: Vec<usize>,
    pub names: Vec<&'a str>,
}

pub(crate) fn phase_names(workload: &Workload) -> Names<'_> {
    let mut names = Names { of_phase: Vec::new(), names: Vec::new() };
    let mut known: HashMap<&str, usize> = HashMap::new();
    for phase in &workload.phases {
        let index = *known.entry(&phase.name).or_insert_with(|| {
            names.names.push(&phase.name);
            names.names.len() - 1
        });
        names.of_phase.push(index);
    }
    names
}
