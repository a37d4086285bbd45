//! Streams made from a seed: patterns of public programs and of those that policies fail on.
//! In: a seed. Out: [`Stream`]s. Knows nothing of policies.
//!
//! Each kind of stream has [`SETS`] sets of parameters; every second one is held out. Parameters
//! follow from the name alone, the rest (which objects are hot, when) from name and seed.

mod objects;
mod patterns;

use crate::chance::Chance;
use crate::stream::{Half, Script, Stream};

/// Sets of parameters of each kind.
pub const SETS: u32 = 8;

/// A stream that can be made.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Kind and number: `moving/2`.
    pub name: String,
    /// Whether it is for tuning.
    pub half: Half,
    kind: &'static Kind,
}

/// A kind of stream.
#[derive(Debug)]
struct Kind {
    name: &'static str,
    what: &'static str,
    write: fn(&mut Writer),
}

/// All kinds.
const KINDS: &[Kind] = &[
    Kind { name: "hot", what: "some objects are hot all the time", write: patterns::hot },
    Kind {
        name: "moving",
        what: "other objects are hot from time to time",
        write: patterns::moving,
    },
    Kind { name: "turns", what: "a few sets of objects are hot in turns", write: patterns::turns },
    Kind { name: "drift", what: "a window of hot objects moves steadily", write: patterns::drift },
    Kind {
        name: "scan",
        what: "an array is read from end to end, again and again",
        write: patterns::scan,
    },
    Kind { name: "uniform", what: "everything is accessed alike", write: patterns::uniform },
    Kind { name: "zipf", what: "parts of one array by Zipf's law", write: patterns::zipf },
    Kind { name: "halves", what: "a part of each array is hot", write: patterns::halves },
    Kind {
        name: "bursts",
        what: "one object is hot for a moment, then another",
        write: patterns::bursts,
    },
    Kind {
        name: "mixed",
        what: "a list that is chased beside arrays that stream",
        write: patterns::mixed,
    },
    Kind { name: "phases", what: "marked phases with sets of their own", write: patterns::phases },
    Kind {
        name: "multigrid",
        what: "cycles over levels, each an eighth of the last",
        write: patterns::multigrid,
    },
    Kind {
        name: "churn",
        what: "hot temporaries are born anew in each round",
        write: objects::churn,
    },
    Kind {
        name: "growing",
        what: "vectors grow, in place or into new ones",
        write: objects::growing,
    },
    Kind {
        name: "squeeze",
        what: "a structure is squeezed into a new one, which is hot",
        write: objects::squeeze,
    },
    Kind {
        name: "tenants",
        what: "two programs with hot sets share a CPU",
        write: objects::tenants,
    },
];

/// All streams that can be made.
pub fn recipes() -> Vec<Recipe> {
    let of_kind = |kind: &'static Kind| {
        (0..SETS).map(move |number| {
            let half = if number.is_multiple_of(2) { Half::Tuned } else { Half::HeldOut };
            Recipe { name: format!("{}/{number}", kind.name), half, kind }
        })
    };
    KINDS.iter().flat_map(of_kind).collect()
}

impl Recipe {
    /// Its kind.
    pub fn kind(&self) -> &'static str {
        self.kind.name
    }

    /// The stream of a seed.
    pub fn stream(&self, seed: u64) -> Stream {
        let mut writer = Writer::new(&self.name, seed);
        (self.kind.write)(&mut writer);
        writer.script.end(&self.name, self.kind.what, self.half)
    }
}

/// A script with what all kinds need: parameters, chance, pace.
struct Writer {
    script: Script,
    /// Of the parameters.
    set: Chance,
    /// Of everything else.
    chance: Chance,
    /// Work of a step, nanoseconds.
    step_ns: u64,
    /// Steps of the run.
    steps: u64,
    /// Misses of a step.
    misses: u64,
}

/// A step, nanoseconds: ten to a tick of lab/experiments/mat.toml.
const STEP_NS: u64 = 5_000_000;

/// Time to fill a byte, nanoseconds: 4 GB/s, as a loop of one CPU that computes what it writes.
const FILL_NS_PER_BYTE: f64 = 0.25;

impl Writer {
    fn new(name: &str, seed: u64) -> Writer {
        let (mut set, chance) = (Chance::of(name, 0), Chance::of(name, seed.wrapping_add(1)));
        // 1.5 to 4 s of work, as the lab's workloads take; 1 to 10 million misses a second, which
        // make slow memory up to three times as slow.
        let steps = 300 + set.below(500);
        let misses = pick(&mut set, &[5_000, 12_000, 25_000, 50_000]);
        Writer { script: Script::new(), set, chance, step_ns: STEP_NS, steps, misses }
    }

    /// A parameter.
    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        pick(&mut self.set, choices)
    }

    /// An object that is filled when it is born.
    fn filled(&mut self, bytes: u64, site: u32) -> crate::stream::Piece {
        let piece = self.script.born(bytes, site);
        self.fill(piece);
        piece
    }

    fn fill(&mut self, piece: crate::stream::Piece) {
        // In parts, as a loop gets on.
        let parts = (piece.bytes >> 20).clamp(1, 64);
        for part in 0..parts {
            let share = |part: u64| part as f64 / parts as f64;
            let one = piece.part(share(part), share(part + 1));
            self.script.fill(one);
            let ns = one.bytes as f64 * FILL_NS_PER_BYTE;
            self.script.work(tiercel_machine::number::saturating_u64(ns));
        }
    }

    /// Objects of a size, filled one after another.
    fn objects(&mut self, count: u64, bytes: u64) -> Vec<crate::stream::Piece> {
        (0..count).map(|_| self.filled(bytes, 1)).collect()
    }

    fn step(&mut self) {
        self.script.work(self.step_ns);
    }
}

fn pick<T: Copy>(set: &mut Chance, choices: &[T]) -> T {
    choices[tiercel_machine::number::index(set.below(choices.len() as u64))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stream_is_sound_repeats_and_has_its_half() {
        let recipes = recipes();
        assert_eq!(recipes.len(), 128);
        for recipe in &recipes {
            let stream = recipe.stream(1);
            assert_eq!(stream.check(), Ok(()), "{}", recipe.name);
            assert!(stream.misses() > 0 && stream.peak_bytes() > 4 << 20, "{}", recipe.name);
            assert!(stream.events.len() < 100_000, "{}: {}", recipe.name, stream.events.len());
        }
        let held_out = recipes.iter().filter(|recipe| recipe.half == Half::HeldOut).count();
        assert_eq!(held_out, 64);
        assert_eq!(recipes[8].stream(5), recipes[8].stream(5));
        assert_ne!(recipes[8].stream(5), recipes[8].stream(6));
    }
}
