//! Detects phases of programs that mark none: change points in the distribution of accesses over
//! objects. In: accesses by time slot. Out: spans of slots, each with a class; similar spans have
//! the same class. Knows nothing of files, and of objects only their identity.
//!
//! 1. A slot with samples is a *look*. A sampler that samples intermittently sees only some of the
//!    objects each time, so its looks differ even if nothing changed.
//! 2. Adjacent looks form *windows* of at least [`WINDOW_SAMPLES`] samples and [`WINDOW_LOOKS`]
//!    looks; windows grow until chance explains little of their differences.
//! 3. A window is a list of shares: which share of its accesses went to each object. Objects that
//!    live for less than half of the run, or are merged, count by site and size class.
//! 4. Two lists differ by half the sum of their differences, 0 to 1. A window that differs from the
//!    span before it by more than [`CHANGE`] plus what chance explains begins a new span, if its
//!    successor differs as well. The looks show what chance explains: it is how much those of one
//!    window differ from each other.
//! 5. A span that differs from the mean of an earlier class by no more than that belongs to that
//!    class: the phase recurs. Adjacent spans of one class are joined.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::check::NS_MAX;
use crate::profile::{Phase, Profile};
use tiercel_machine::number::index_u32;

/// Samples of one window. With 8 objects of equal heat, chance then explains a difference of 0.14.
const WINDOW_SAMPLES: u64 = 64;

/// Looks of one window: fewer do not show how much looks differ by chance.
const WINDOW_LOOKS: u32 = 4;

/// Most of a window's difference that chance may explain: two thirds of a change.
const NOISE_MAX: f64 = CHANGE * 2.0 / 3.0;

/// Windows stop growing when so few are left: phases shorter than a window are not detected.
const WINDOWS_LEAST: usize = 24;

/// Difference that counts as a change: three tenths of the accesses go elsewhere.
const CHANGE: f64 = 0.3;

/// Most spans of a run; if there are more, windows grow until there are fewer.
pub const DETECTED_MAX: usize = 256;

/// Samples and accesses of one time slot, the latter by object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Slot {
    pub(crate) samples: u64,
    pub(crate) accesses: BTreeMap<u32, f64>,
}

/// First slot; the span ends where the next one starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u32,
    /// Class, from 0 in order of first appearance.
    pub(crate) class: u32,
}

impl Profile {
    /// Detects the phases of processes that marked none, in each run, replacing those that were
    /// detected before.
    pub fn detect_phases(&mut self) {
        let mut phases = Vec::new();
        // The new index of each phase; `None` for a detected one.
        let mut now_at = vec![None; self.phases.len()];
        let mut detected = Vec::with_capacity(self.runs.len());
        for run in 0..index_u32(self.runs.len()) {
            let first = index_u32(phases.len());
            let spans = spans(&self.slots_of(run));
            phases.extend(self.phases_of(run, &spans));
            detected.push((first, spans));
            let mut marked: Vec<usize> = (0..self.phases.len())
                .filter(|at| self.phases[*at].run == run && self.phases[*at].process.is_some())
                .collect();
            marked.sort_by_key(|at| (self.phases[*at].process, self.phases[*at].start_ns));
            for at in marked {
                now_at[at] = Some(index_u32(phases.len()));
                phases.push(self.phases[at].clone());
            }
        }
        for access in &mut self.accesses {
            access.phase = now_at[access.phase as usize].unwrap_or_else(|| {
                let process = self.objects[access.object as usize].process;
                let (first, spans) = &detected[self.processes[process as usize].run as usize];
                let after = spans.partition_point(|span| span.start <= access.slot);
                first + index_u32(after.saturating_sub(1))
            });
        }
        self.phases = phases;
        self.settle();
    }

    /// Accesses of a run by slot, outside marked phases.
    fn slots_of(&self, run: u32) -> Vec<Slot> {
        let duration_ns = self.runs[run as usize].duration_ns;
        let mut names: HashMap<(bool, u32, u32), u32> = HashMap::new();
        let mut slots: BTreeMap<u32, Slot> = BTreeMap::new();
        for access in &self.accesses {
            let phase = &self.phases[access.phase as usize];
            if phase.run != run || phase.process.is_some() {
                continue;
            }
            let object = &self.objects[access.object as usize];
            let lives_long = object.count == 1 && object.lifetime_ns >= duration_ns / 2;
            let name = match lives_long {
                true => (true, access.object, 0),
                false => (false, object.site, object.size_class()),
            };
            let fresh = index_u32(names.len());
            let name = *names.entry(name).or_insert(fresh);
            let slot = slots.entry(access.slot).or_default();
            slot.samples = slot.samples.saturating_add(access.samples);
            *slot.accesses.entry(name).or_default() += access.accesses() as f64;
        }
        let last = slots.keys().next_back().copied().unwrap_or(0);
        // Slots without accesses belong to their neighbours; a hostile profile may have one access
        // in slot 2^32.
        let mut all = Vec::new();
        for (at, slot) in slots {
            let gap = at as usize - all.len().min(at as usize);
            if gap > SLOTS_MAX || last as usize > SLOTS_MAX {
                return Vec::new();
            }
            all.resize(at as usize, Slot::default());
            all.push(slot);
        }
        all
    }

    fn phases_of(&self, run: u32, spans: &[Span]) -> Vec<Phase> {
        let start_ns = |span: &Span| u64::from(span.start) * self.slot_ns;
        let of_run =
            self.accesses.iter().filter(|access| self.phases[access.phase as usize].run == run);
        let last_ns = of_run.map(|access| (u64::from(access.slot) + 1) * self.slot_ns).max();
        let end_ns = self.runs[run as usize].duration_ns.max(last_ns.unwrap_or(0));
        let end_ns = end_ns.clamp(1, NS_MAX);
        let ends = spans.iter().skip(1).map(start_ns).chain([end_ns]);
        let phase = |(span, end_ns): (&Span, u64)| Phase {
            run,
            process: None,
            name: class_name(span.class),
            start_ns: start_ns(span),
            end_ns,
        };
        spans.iter().zip(ends).map(phase).collect()
    }
}

/// Most slots that are examined: 64 times what the recorder makes ([`crate::recorder::SLOTS_MAX`]).
const SLOTS_MAX: usize = 1 << 20;

/// A, B, ..., Z, AA, AB, ...
fn class_name(class: u32) -> Arc<str> {
    let mut letters = Vec::new();
    let mut left = class + 1;
    while left > 0 {
        letters.push(b'A' + ((left - 1) % 26) as u8);
        left = (left - 1) / 26;
    }
    letters.reverse();
    String::from_utf8(letters).expect("letters").into()
}

/// The spans of slots: at least one, the first of which starts at slot 0.
pub(crate) fn spans(slots: &[Slot]) -> Vec<Span> {
    let looks = looks(slots);
    let (mut samples, mut count) = (WINDOW_SAMPLES, WINDOW_LOOKS);
    loop {
        let windows = windows(&looks, samples, count);
        if windows.len() <= WINDOWS_LEAST || usual_noise(&windows) <= NOISE_MAX {
            let found = classify(&windows);
            if found.len() <= DETECTED_MAX {
                return found;
            }
        }
        (samples, count) = (samples.saturating_mul(2), count.saturating_mul(2));
    }
}

/// The median.
fn usual_noise(windows: &[Window]) -> f64 {
    let mut noises: Vec<f64> = windows.iter().map(Window::noise).collect();
    noises.sort_by(f64::total_cmp);
    noises.get(noises.len() / 2).copied().unwrap_or(0.0)
}

/// Slots with samples, each as a window.
fn looks(slots: &[Slot]) -> Vec<Window> {
    let seen = (0..).zip(slots).filter(|(_, slot)| slot.samples > 0);
    seen.map(|(start, slot)| Window::of_look(start, slot)).collect()
}

/// Adjacent looks, joined.
#[derive(Clone, Debug, Default)]
struct Window {
    start: u32,
    samples: u64,
    looks: u32,
    objects: BTreeMap<u32, Seen>,
    sum: f64,
    /// Sum over the looks of their squared accesses.
    squares: f64,
}

/// One object in a window.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    accesses: f64,
    /// Sums over the looks: accesses squared, and accesses times all accesses of the look.
    squares: f64,
    products: f64,
}

impl Window {
    /// A look is weighted by its samples, not by the accesses they represent: one look may
    /// represent a hundred times as many as the next, and would dominate it.
    fn of_look(start: u32, slot: &Slot) -> Window {
        let all: f64 = slot.accesses.values().sum();
        let sum = slot.samples as f64;
        let each = if all > 0.0 { sum / all } else { 0.0 };
        let seen = |(name, accesses): (&u32, &f64)| {
            let accesses = accesses * each;
            let (squares, products) = (accesses * accesses, accesses * sum);
            (*name, Seen { accesses, squares, products })
        };
        let objects = slot.accesses.iter().map(seen).collect();
        Window { start, samples: slot.samples, looks: 1, objects, sum, squares: sum * sum }
    }

    fn absorb(&mut self, other: &Window) {
        self.samples = self.samples.saturating_add(other.samples);
        self.looks = self.looks.saturating_add(other.looks);
        self.sum += other.sum;
        self.squares += other.squares;
        for (name, more) in &other.objects {
            let seen = self.objects.entry(*name).or_default();
            seen.accesses += more.accesses;
            seen.squares += more.squares;
            seen.products += more.products;
        }
    }

    fn share(&self, name: u32) -> f64 {
        let sum = self.sum.max(f64::MIN_POSITIVE);
        self.objects.get(&name).map_or(0.0, |seen| seen.accesses / sum)
    }

    /// Half the sum of the absolute differences of shares.
    fn difference(&self, other: &Window) -> f64 {
        let ours = self.objects.keys().map(|name| (self.share(*name) - other.share(*name)).abs());
        let only_theirs = other.objects.keys().filter(|name| !self.objects.contains_key(name));
        let theirs: f64 = only_theirs.map(|name| other.share(*name)).sum();
        (ours.sum::<f64>() + theirs) / 2.0
    }

    /// The approximate difference from the true shares by chance: the larger of two estimates.
    fn noise(&self) -> f64 {
        self.noise_of_samples().max(self.noise_of_looks())
    }

    /// Shares of n samples among k objects of equal heat differ by sqrt(k / (2 pi n)) in this
    /// measure.
    fn noise_of_samples(&self) -> f64 {
        let squares: f64 = self.objects.keys().map(|name| self.share(*name).powi(2)).sum();
        let objects = 1.0 / squares.max(1e-9);
        (objects / (std::f64::consts::TAU * self.samples.max(1) as f64)).sqrt()
    }

    /// The same from looks that each see different objects: a share is a ratio of two sums over
    /// looks, and its variance follows from the looks' deviations from it. Half the sum of the mean
    /// deviations, each sqrt(2 / pi) of the standard deviation.
    fn noise_of_looks(&self) -> f64 {
        let looks = f64::from(self.looks);
        if self.looks < 2 || self.sum <= 0.0 {
            return if self.samples == 0 { 0.0 } else { 1.0 };
        }
        let deviation = |seen: &Seen| {
            let share = seen.accesses / self.sum;
            let off = seen.squares - 2.0 * share * seen.products + share * share * self.squares;
            (off.max(0.0) * looks / (looks - 1.0)).sqrt() / self.sum
        };
        let sum: f64 = self.objects.values().map(deviation).sum();
        sum / 2.0 * std::f64::consts::FRAC_2_PI.sqrt()
    }

    fn differs(&self, other: &Window) -> bool {
        self.difference(other) > CHANGE + self.noise() + other.noise()
    }
}

fn windows(looks: &[Window], samples: u64, count: u32) -> Vec<Window> {
    let mut windows: Vec<Window> = Vec::new();
    let mut open: Option<Window> = None;
    for look in looks {
        let window = match &mut open {
            Some(window) => {
                window.absorb(look);
                window
            }
            // A slot without accesses belongs to its neighbours.
            None if windows.is_empty() => open.insert(Window { start: 0, ..look.clone() }),
            None => open.insert(look.clone()),
        };
        if window.samples >= samples && window.looks >= count {
            windows.extend(open.take());
        }
    }
    // The remainder is too short for a window.
    match (windows.last_mut(), open) {
        (Some(last), Some(open)) => last.absorb(&open),
        (None, open) => windows.push(open.unwrap_or_default()),
        (Some(_), None) => {}
    }
    windows
}

fn classify(windows: &[Window]) -> Vec<Span> {
    let mut means: Vec<Window> = Vec::new();
    let mut found: Vec<Span> = Vec::new();
    for span in split(windows) {
        let nearest = (0..means.len())
            .min_by(|a, b| means[*a].difference(&span).total_cmp(&means[*b].difference(&span)));
        let class = match nearest.filter(|class| !means[*class].differs(&span)) {
            Some(class) => {
                means[class].absorb(&span);
                class
            }
            None => {
                means.push(span.clone());
                means.len() - 1
            }
        };
        if found.last().is_none_or(|last| last.class as usize != class) {
            found.push(Span { start: span.start, class: index_u32(class) });
        }
    }
    found
}

/// Joins windows until the next one differs.
fn split(windows: &[Window]) -> Vec<Window> {
    let mut spans: Vec<Window> = Vec::new();
    for (at, window) in windows.iter().enumerate() {
        let begins = spans.last().is_none_or(|last| {
            let lasts = |next: &Window| last.differs(next);
            last.differs(window) && windows.get(at + 1).is_some_and(lasts)
        });
        match spans.last_mut() {
            Some(last) if !begins => last.absorb(window),
            _ => spans.push(window.clone()),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each letter is a slot of 400 samples on the two objects of that letter; one in ten is
    /// anywhere.
    fn slots(text: &str) -> Vec<Slot> {
        let mut chance = fastrand::Rng::with_seed(12345);
        let mut random = |below: u64| chance.u64(..below);
        let mut slot = |letter: u8| {
            let mut slot = Slot { samples: 400, ..Slot::default() };
            for sample in 0..400 {
                let own = u64::from(letter - b'a') * 2 + random(2);
                let name = if sample % 10 == 0 { random(8) } else { own };
                *slot.accesses.entry(u32::try_from(name).unwrap()).or_default() += 4096.0;
            }
            slot
        };
        text.bytes().map(|b| if b == b'.' { Slot::default() } else { slot(b) }).collect()
    }

    fn check(text: &str, expect: &str) {
        let found = spans(&slots(text)).into_iter();
        let shown: Vec<String> =
            found.map(|one| format!("{}{}", class_name(one.class), one.start)).collect();
        assert_eq!(shown.join(" "), expect, "{text}");
    }

    #[test]
    fn changes_and_recurring_phases_are_detected() {
        check("", "A0");
        check("aaaaaaaa", "A0");
        check("aaaaaaaabbbbbbbbaaaaaaaacccccccc", "A0 B8 A16 C24");
        check("aaaaaaaa....bbbbbbbb", "A0 B12");
        // A few odd slots are not a phase.
        check("aaaaaaaabaaaaaaa", "A0");
        check("aaaaaaaabbbbaaaaaaaa", "A0");
    }

    #[test]
    fn chance_differences_are_not_phases() {
        // The same distribution everywhere, with 30 samples per slot.
        let mut thin = slots("abcdabcdabcdabcdabcdabcd");
        thin.iter_mut().for_each(|slot| slot.samples = 30);
        assert_eq!(spans(&thin).len(), 1);
    }

    /// A sampler that looks only at each `pause`th slot, and then at only some of 32 objects.
    /// Phases are (class, looks): eight objects of a class are hot, and one access in fifteen is
    /// anywhere.
    fn looked_at(phases: &[(u32, u32)], pause: u32, seed: u64) -> Vec<Slot> {
        let mut chance = fastrand::Rng::with_seed(seed);
        let mut random = |below: u64| chance.u64(..below);
        let mut slots = Vec::new();
        for (class, looks) in phases {
            for _ in 0..*looks {
                slots.resize(slots.len() + pause as usize - 1, Slot::default());
                let mut slot = Slot::default();
                for name in (0..32).filter(|_| random(3) == 0).collect::<Vec<u32>>() {
                    let heat = if name / 8 == *class { 30 } else { 1 };
                    let seen = 1 + random(heat);
                    slot.samples += seen;
                    slot.accesses.insert(name, (seen * (500 + random(1000))) as f64);
                }
                slots.push(slot);
            }
        }
        slots
    }

    proptest::proptest! {
        /// Asserts the number of spans and classes, and that each span begins within a window of
        /// its true start.
        #[test]
        fn phases_are_detected_although_each_look_sees_only_a_part(
            pause in 1u32..8,
            seed: u64,
            lengths in proptest::collection::vec(100u32..300, 1..9),
        ) {
            let classes = lengths.iter().zip([0, 1, 2, 3, 1, 0, 3, 2]);
            let phases: Vec<(u32, u32)> = classes.map(|(looks, class)| (class, *looks)).collect();
            let found = spans(&looked_at(&phases, pause, seed));
            proptest::prop_assert_eq!(found.len(), phases.len(), "{:?}", found);
            let mut start = 0;
            for (one, (class, looks)) in found.iter().zip(&phases) {
                let off = one.start.abs_diff(start);
                proptest::prop_assert!(off <= 48 * pause, "{:?} is off by {}", one, off);
                let first = phases.iter().position(|(other, _)| other == class);
                let same = found[first.unwrap_or(0)].class;
                proptest::prop_assert_eq!(one.class, same, "recurrence: {:?}", found);
                start += looks * pause;
            }
        }

        /// Nothing changes, although the looks differ.
        #[test]
        fn differences_of_looks_are_not_phases(pause in 1u32..8, seed: u64, looks in 1u32..900) {
            let found = spans(&looked_at(&[(0, looks)], pause, seed));
            proptest::prop_assert_eq!(found.len(), 1, "{:?}", found);
        }
    }

    #[test]
    fn too_many_changes_lengthen_the_windows() {
        let text = "aaaaaaaabbbbbbbb".repeat(200);
        assert!(spans(&slots(&text)).len() <= DETECTED_MAX);
    }

    #[test]
    fn classes_are_named_by_letters() {
        let names: Vec<_> = [0, 25, 26, 27, 701, 702].map(class_name).into();
        assert_eq!(
            names.iter().map(|n| &**n).collect::<Vec<_>>(),
            ["A", "Z", "AA", "AB", "ZZ", "AAA"]
        );
    }
}
