//! What to believe of extents with few samples: as much of their own as is more than chance.
//! In: a ledger after a tick. Out: rates of each extent, between its own and its site's.
//! Knows nothing of tiers.
//!
//! Sampled counts are small, so of a thousand alike extents some look hot, and those a policy would
//! promote, and some look cold, and those it would demote, for nothing. How different the extents
//! of a site really are shows in how much more their counts n differ than those of a Poisson
//! process with their means m would (an empirical Bayes estimate, as for a gamma prior):
//!
//! ```text
//! unlikeness h = (sum (n - m)^2 - sum m) / sum m^2      at least 0
//! believed     = s x own + (1 - s) x mean of the site   s = m h / (m h + 1)
//! ```
//! Extents that differ only by chance are all believed to be like their site; those with many
//! samples, or of a site of hot and cold ones, to be what their own samples say. A [`Forecast`]
//! corrects this by what came of it before.

use crate::extent::Extent;
use crate::forecast::{CLASSES, Forecast, Tally, class};
use crate::ledger::Ledger;
use crate::prior::SITES_MAX;

/// Of fewer extents nobody can say how different they are: they are taken to differ by as much as
/// their mean.
const EXTENTS_MIN: u32 = 8;

/// What all extents say of their sites, as of one tick.
#[derive(Clone, Debug, Default)]
pub struct Beliefs {
    /// By process's place, then by site.
    sites: Vec<Vec<Sums>>,
    keep: f32,
    tick_ms: u64,
    /// See [`Ledger::samples_per_rate`].
    samples_per_rate: f32,
    /// What came of beliefs before, by class of sample counts.
    tallies: [Tally; CLASSES],
}

/// Over the extents of a site. `n` counts samples, `e` is bytes times intervals seen.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    extents: u32,
    bytes: f64,
    reads: f64,
    writes: f64,
    stall_ns: f64,
    n: f64,
    e: f64,
    nn: f64,
    ne: f64,
    ee: f64,
}

impl Ledger {
    /// Looks at all extents once.
    pub fn beliefs(&self) -> Beliefs {
        let mut beliefs = Beliefs::new(self);
        for extent in self.extents() {
            beliefs.count(&extent);
        }
        beliefs
    }

    /// What is left of an average after so many intervals (MAT Eq. 1).
    pub fn kept(&self, intervals: f64) -> f64 {
        (1.0 - f64::from(self.config().alpha)).powf(intervals)
    }

    /// Samples that one access per second gives in an interval.
    pub fn samples_per_rate(&self) -> f32 {
        let totals = self.totals();
        let weight = totals.sampled_accesses as f32 / totals.samples.max(1) as f32;
        let tick_s = self.config().tick_ms as f32 / 1e3;
        if weight > 0.0 { tick_s / weight } else { 0.0 }
    }
}

impl Beliefs {
    /// Of extents that are yet to be counted; until then every extent is what its own samples say.
    pub fn new(ledger: &Ledger) -> Beliefs {
        Beliefs {
            sites: Vec::new(),
            keep: 1.0 - ledger.config().alpha,
            tick_ms: ledger.config().tick_ms,
            samples_per_rate: ledger.samples_per_rate(),
            tallies: [Tally::default(); CLASSES],
        }
    }

    /// What one more extent says of its site.
    pub fn count(&mut self, extent: &Extent) {
        let site = extent.site as usize;
        if site == 0 || site >= SITES_MAX {
            return;
        }
        let (grown, intervals) = self.maturity(extent);
        let n = f64::from(self.samples(extent, grown, intervals));
        let e = extent.bytes as f64 * f64::from(intervals);
        let place = usize::from(extent.place);
        if place >= self.sites.len() {
            self.sites.resize(place + 1, Vec::new());
        }
        let sites = &mut self.sites[place];
        if site >= sites.len() {
            sites.resize(site + 1, Sums::default());
        }
        let sums = &mut sites[site];
        sums.extents += 1;
        sums.bytes += extent.bytes as f64;
        sums.reads += f64::from(extent.reads_per_s * grown);
        sums.writes += f64::from(extent.writes_per_s * grown);
        sums.stall_ns += f64::from(extent.cost_ns_per_s * grown);
        sums.n += n;
        sums.e += e;
        sums.nn += n * n;
        sums.ne += n * e;
        sums.ee += e * e;
    }

    /// Corrects what is believed from now on by what came of it before.
    pub fn heed(&mut self, forecast: &Forecast) {
        self.tallies = forecast.tallies();
    }

    /// An extent with the rates that are to be believed. A young one, whose average began with zero
    /// (MAT Eq. 1), has grown up.
    pub fn of<'a>(&self, extent: &Extent<'a>) -> Extent<'a> {
        let (mut believed, samples) = self.uncorrected(extent);
        let lasting = self.tallies[class(samples)].lasting();
        believed.reads_per_s *= lasting;
        believed.writes_per_s *= lasting;
        believed.cost_ns_per_s *= lasting;
        believed
    }

    /// The same without what came before, and how many samples an extent has of its own.
    pub(crate) fn uncorrected<'a>(&self, extent: &Extent<'a>) -> (Extent<'a>, f32) {
        let (grown, intervals) = self.maturity(extent);
        let sites = self.sites.get(usize::from(extent.place));
        let sums = sites.and_then(|sites| sites.get(extent.site as usize));
        let sums = sums.filter(|sums| extent.site != 0 && sums.n > 0.0);
        let bytes = extent.bytes as f64;
        let share = sums.map_or(1.0, |sums| {
            let mean = sums.n / sums.e * bytes * f64::from(intervals);
            let differs = mean * sums.unlikeness();
            differs / (differs + 1.0)
        });
        let of_site = |sum: f64| sum * bytes / sums.map_or(1.0, |sums| sums.bytes);
        let believed = |own: f32, sum: f64| {
            (share * f64::from(own * grown) + (1.0 - share) * of_site(sum)) as f32
        };
        let sums = sums.copied().unwrap_or_default();
        let reads_per_s = believed(extent.reads_per_s, sums.reads);
        let writes_per_s = believed(extent.writes_per_s, sums.writes);
        let cost_ns_per_s = if extent.accesses_per_s() > 0.0 {
            // Its own latencies: others of its site may lie elsewhere.
            extent.cost_ns_per_s * (reads_per_s + writes_per_s) / extent.accesses_per_s()
        } else {
            believed(0.0, sums.stall_ns)
        };
        let believed = Extent { reads_per_s, writes_per_s, cost_ns_per_s, ..extent.clone() };
        (believed, self.samples(extent, grown, intervals))
    }

    fn samples(&self, extent: &Extent, grown: f32, intervals: f32) -> f32 {
        extent.accesses_per_s() * grown * self.samples_per_rate * intervals
    }

    /// What an average must be multiplied by, and how many intervals it is worth. After n intervals
    /// from zero it has seen 1 - keep^n of the truth.
    fn maturity(&self, extent: &Extent) -> (f32, f32) {
        let old = (1.0 + self.keep) / (1.0 - self.keep);
        if extent.is_warm || self.tick_ms == 0 {
            return (1.0, old); // It began with its site's average.
        }
        let age_ms = extent.as_of_ms.saturating_sub(extent.born_ms);
        let intervals = ((age_ms + self.tick_ms / 2) / self.tick_ms).clamp(1, 1000);
        let unseen = self.keep.powi(intervals as i32);
        (1.0 / (1.0 - unseen), (1.0 - unseen) / (1.0 + unseen) * old)
    }
}

impl Sums {
    /// Variance of the extents' true rates over their mean's square.
    fn unlikeness(&self) -> f64 {
        if self.extents < EXTENTS_MIN {
            return 1.0;
        }
        let rate = self.n / self.e;
        let differ = self.nn - 2.0 * rate * self.ne + rate * rate * self.ee;
        ((differ - self.n) / (rate * rate * self.ee)).max(0.0)
    }
}
