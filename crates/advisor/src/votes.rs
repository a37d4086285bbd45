//! How the objects of one class vote for the memory their class gets in each phase.
//! In: votes in bytes, by memory and phase. Out: the [`Choice`] of a [`Class`]. Knows nothing of
//! plans or profiles.

use std::collections::{BTreeMap, HashMap};

use tiercel_planner::{MEMORIES_MAX, Workload};

use crate::parts::Parts;

/// A smaller part below this share is no split: one object in a hundred is chance.
const PART_MIN: f64 = 0.02;

/// Votes of the objects of one class, by phase.
#[derive(Default)]
pub(crate) struct Class {
    pub(crate) objects: u64,
    pub(crate) peak_bytes: u64,
    pub(crate) samples: u64,
    /// By index of the phase's name.
    pub(crate) phases: BTreeMap<usize, Votes>,
}

/// What is known of objects in a phase, by memory.
#[derive(Clone, Copy, Default)]
pub(crate) struct Votes {
    /// Bytes that the planner places there.
    pub(crate) bytes: [f64; MEMORIES_MAX],
    /// Time saved compared with the slowest memory if all of them were there.
    pub(crate) gain_ns: [f64; MEMORIES_MAX],
    /// Accesses were observed.
    pub(crate) used: bool,
}

/// Where a class is in a phase.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Choice {
    pub(crate) memory: usize,
    pub(crate) other: Option<usize>,
    /// Share in `memory`, in hundredths.
    pub(crate) share: u32,
}

impl Choice {
    pub(crate) fn parts(self) -> Parts {
        let mut parts = [0.0; MEMORIES_MAX];
        parts[self.memory] = f64::from(self.share) / 100.0;
        if let Some(other) = self.other {
            parts[other] = 1.0 - parts[self.memory];
        }
        parts
    }
}

impl Votes {
    pub(crate) fn absorb(&mut self, other: &Votes) {
        for memory in 0..MEMORIES_MAX {
            self.bytes[memory] += other.bytes[memory];
            self.gain_ns[memory] += other.gain_ns[memory];
        }
        self.used |= other.used;
    }

    pub(crate) fn gain_of(&self, choice: Choice) -> f64 {
        let share = f64::from(choice.share) / 100.0;
        let other = choice.other.map_or(0.0, |other| self.gain_ns[other] * (1.0 - share));
        self.gain_ns[choice.memory] * share + other
    }

    /// The two memories with most bytes, the faster one first.
    pub(crate) fn choice(&self) -> Option<Choice> {
        let mut order: Vec<usize> = (0..MEMORIES_MAX).collect();
        order.sort_by(|a, b| self.bytes[*b].total_cmp(&self.bytes[*a]));
        let (most, next) = (order[0], order[1]);
        if self.bytes[most] <= 0.0 {
            return None;
        }
        let both = self.bytes[most] + self.bytes[next];
        if self.bytes[next] / both < PART_MIN {
            return Some(Choice { memory: most, other: None, share: 100 });
        }
        let (memory, other) = (most.min(next), most.max(next));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped from 1 to 99"
        )]
        let share = (self.bytes[memory] / both * 100.0).round().clamp(1.0, 99.0) as u32;
        Some(Choice { memory, other: Some(other), share })
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
            let bytes: f64 = votes.bytes.iter().sum();
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
        let per_byte = |votes: &Votes| votes.gain_ns[0] / votes.bytes.iter().sum::<f64>().max(1.0);
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
