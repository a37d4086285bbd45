//! How much of what is believed of extents comes true: the next interval tells.
//! In: extents with what is believed of them; later the ledger again. Out: by how many samples they
//! had, what came over what was believed. Knows nothing of tiers, and moves nothing.
//!
//! A few extents in a thousand take most of the accesses (Zipf's law), and heat wanders. So most of
//! those with one sample get none in the next interval, and a mean and a variance do not tell. But
//! what really came can be counted, without moving anything:
//!
//! ```text
//! came = (average now - keep^k x average then) / (1 - keep^k)     k intervals later (MAT Eq. 1)
//! lasting (of a class of sample counts) = sum came / sum believed
//! ```

use crate::belief::Beliefs;
use crate::extent::Extent;
use crate::ledger::Ledger;

/// Classes of sample counts: below a half, then one each time the count doubles.
pub(crate) const CLASSES: usize = 8;

/// Most extents that are looked at again.
pub const WITNESSES_MAX: usize = 512;

/// As if so many samples had come as believed.
const PRIOR_SAMPLES: f32 = 16.0;

/// What earlier looks said keeps this weight at each one.
const KEPT: f32 = 0.75;

/// What was expected, and what came.
#[derive(Clone, Debug, Default)]
pub struct Forecast {
    witnesses: Vec<Witness>,
    tallies: [Tally; CLASSES],
}

/// Samples of a class of extents.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    believed: f32,
    came: f32,
}

#[derive(Clone, Copy, Debug)]
struct Witness {
    pid: u32,
    addr: u64,
    bytes: u64,
    born_ms: u64,
    class: usize,
    believed_per_s: f32,
    /// Its average, and when that was, daemon's clock.
    accesses_per_s: f32,
    as_of_ms: u64,
}

impl Forecast {
    /// Notes what is believed of some extents, before corrections: as many as there is room for,
    /// those with samples of their own first. It is they that a policy moves, and they are few.
    pub fn note<'a>(&mut self, extents: impl Iterator<Item = Extent<'a>>, beliefs: &Beliefs) {
        let mut cold = Vec::new();
        for extent in extents {
            let witness = Witness::of(&extent, beliefs);
            let witnesses = if witness.class > 0 { &mut self.witnesses } else { &mut cold };
            if witnesses.len() < WITNESSES_MAX {
                witnesses.push(witness);
            }
        }
        cold.truncate(WITNESSES_MAX - self.witnesses.len());
        self.witnesses.append(&mut cold);
    }

    /// Looks at what was noted again, once an interval has passed, and forgets it.
    pub fn observe(&mut self, ledger: &Ledger) {
        let tick_ms = ledger.config().tick_ms.max(1);
        let is_due = |first: &Witness| ledger.now_ms() >= first.as_of_ms + tick_ms;
        if !self.witnesses.first().is_some_and(is_due) {
            return;
        }
        for tally in &mut self.tallies {
            *tally = Tally { believed: tally.believed * KEPT, came: tally.came * KEPT };
        }
        for witness in std::mem::take(&mut self.witnesses) {
            let Some(extent) = ledger.find(witness.pid, witness.addr) else { continue };
            let here = (extent.addr, extent.bytes, extent.born_ms);
            if here != (witness.addr, witness.bytes, witness.born_ms) {
                continue; // It was split or joined, or is another one.
            }
            let elapsed_ms = extent.as_of_ms.saturating_sub(witness.as_of_ms);
            if elapsed_ms < tick_ms {
                continue;
            }
            let intervals = elapsed_ms as f32 / tick_ms as f32;
            let kept = ledger.kept(f64::from(intervals));
            let came = came(extent.accesses_per_s(), witness.accesses_per_s, kept) as f32;
            let samples = ledger.samples_per_rate() * intervals;
            let tally = &mut self.tallies[witness.class];
            tally.believed += witness.believed_per_s * samples;
            tally.came += came.max(0.0) * samples;
        }
    }

    pub(crate) fn tallies(&self) -> [Tally; CLASSES] {
        self.tallies
    }
}

impl Witness {
    fn of(extent: &Extent, beliefs: &Beliefs) -> Witness {
        let (believed, samples) = beliefs.uncorrected(extent);
        Witness {
            pid: extent.pid,
            addr: extent.addr,
            bytes: extent.bytes,
            born_ms: extent.born_ms,
            class: class(samples),
            believed_per_s: believed.accesses_per_s(),
            accesses_per_s: extent.accesses_per_s(),
            as_of_ms: extent.as_of_ms,
        }
    }
}

impl Tally {
    /// What came over what was believed.
    pub(crate) fn lasting(self) -> f32 {
        (PRIOR_SAMPLES + self.came) / (PRIOR_SAMPLES + self.believed)
    }
}

/// Of an average (MAT Eq. 1), the mean of what came since it was `before`, of which this part is
/// left: an average is a sum, and the rest is new.
pub fn came(now: impl Into<f64>, before: impl Into<f64>, kept: f64) -> f64 {
    (now.into() - kept * before.into()) / (1.0 - kept)
}

/// Of an extent with so many samples.
pub(crate) fn class(samples: f32) -> usize {
    // Powers of two from a half on; the cast takes what is below, or no number, to 0.
    ((samples.log2() + 2.0) as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_double() {
        let classes = [0.0, 0.4, 0.5, 1.0, 1.9, 2.0, 16.0, 32.0, 1e9].map(class);
        assert_eq!(classes, [0, 0, 1, 2, 2, 3, 6, 7, 7]);
    }
}
