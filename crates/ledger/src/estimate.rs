//! Access rates that a few samples justify: shrunk towards the mean of the site.
//! In: a ledger after a tick. Out: [`RateEstimates`]: rates of each extent, between its own samples
//! and its site's mean. Knows nothing of tiers.
//!
//! Sampled counts are small. Of a thousand equal extents some look hot and would be promoted, and
//! some look cold and would be demoted, by chance alone. How much the extents of a site really
//! differ shows in the overdispersion of their counts n, given their means m: their variance beyond
//! that of a Poisson process. This is the empirical Bayes estimate under a gamma prior:
//!
//! ```text
//! overdispersion h = (sum (n - m)^2 - sum m) / sum m^2      at least 0
//! estimate         = s x own + (1 - s) x mean of the site   s = m h / (m h + 1)
//! ```
//! Extents that differ by chance alone all get their site's mean. Extents with many samples, or of
//! a site with hot and cold ones, keep their own rate.

use crate::by_site::{BySite, SITES_MAX};
use crate::extent::Extent;
use crate::ledger::Ledger;
use tiercel_machine::number::nearest_f32;

/// The overdispersion of fewer extents cannot be estimated: it is taken as 1, which is a standard
/// deviation as large as the mean. Chosen, not measured: a variance over fewer values is off by
/// more than half.
const EXTENTS_MIN: u32 = 8;

/// Rates of all extents as of one tick, shrunk towards the means of their sites.
#[derive(Clone, Debug, Default)]
pub struct RateEstimates {
    /// By process's place, then by site.
    sites: Vec<BySite<SiteMoments>>,
    keep: f32,
    /// Bounds of [`RateEstimates::warm_up`]: a unit of the ledger's time, and its length.
    unit: (f32, f32),
    /// See [`Ledger::samples_per_rate`].
    samples_per_rate: f32,
}

/// Moments over the extents of a site: `n` counts samples, `e` is bytes times intervals observed.
#[derive(Clone, Copy, Debug, Default)]
struct SiteMoments {
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
    /// Rates of all extents, in one pass.
    pub fn rate_estimates(&self) -> RateEstimates {
        let mut estimates = RateEstimates::new(self);
        for extent in self.extents() {
            estimates.add(&extent);
        }
        estimates
    }

    /// A unit of time, in intervals and in milliseconds.
    fn unit(&self) -> (f32, f32) {
        let unit = 1.0 / f32::from(self.config().units);
        (unit, self.config().tick_ms as f32 * unit)
    }

    /// Samples per interval that one access per second yields.
    pub fn samples_per_rate(&self) -> f32 {
        let totals = self.totals();
        let weight = totals.sampled_accesses as f32 / totals.samples.max(1) as f32;
        let tick_s = self.config().tick_ms as f32 / 1e3;
        if weight > 0.0 { tick_s / weight } else { 0.0 }
    }
}

impl RateEstimates {
    /// Without extents yet: every extent keeps its own rate.
    pub fn new(ledger: &Ledger) -> RateEstimates {
        RateEstimates {
            sites: Vec::new(),
            keep: 1.0 - ledger.config().alpha,
            unit: ledger.unit(),
            samples_per_rate: ledger.samples_per_rate(),
        }
    }

    /// Adds an extent to the moments of its site.
    pub fn add(&mut self, extent: &Extent) {
        if extent.site == 0 || extent.site as usize >= SITES_MAX {
            return;
        }
        let (grown, intervals) = self.warm_up(extent);
        let n = f64::from(self.samples(extent, grown, intervals));
        let e = extent.bytes as f64 * f64::from(intervals);
        let place = usize::from(extent.place);
        if place >= self.sites.len() {
            self.sites.resize(place + 1, BySite::default());
        }
        let sites = &mut self.sites[place];
        sites.grow(extent.site, SiteMoments::default());
        let Some(sums) = sites.get_mut(extent.site) else { return };
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

    /// The extent with estimated rates. The warm-up of a young extent, whose EWMA began at zero
    /// (MAT Eq. 1), is corrected.
    pub fn estimate<'a>(&self, extent: &Extent<'a>) -> Extent<'a> {
        let (grown, intervals) = self.warm_up(extent);
        let sites = self.sites.get(usize::from(extent.place));
        let sums = sites.and_then(|sites| sites.get(extent.site));
        let sums = sums.filter(|sums| extent.site != 0 && sums.n > 0.0);
        let bytes = extent.bytes as f64;
        let share = sums.map_or(1.0, |sums| {
            let mean = sums.n / sums.e * bytes * f64::from(intervals);
            let differs = mean * sums.overdispersion();
            differs / (differs + 1.0)
        });
        let of_site = |sum: f64| sum * bytes / sums.map_or(1.0, |sums| sums.bytes);
        let estimated = |own: f32, sum: f64| {
            nearest_f32(share * f64::from(own * grown) + (1.0 - share) * of_site(sum))
        };
        let sums = sums.copied().unwrap_or_default();
        let reads_per_s = estimated(extent.reads_per_s, sums.reads);
        let writes_per_s = estimated(extent.writes_per_s, sums.writes);
        let cost_ns_per_s = if extent.accesses_per_s() > 0.0 {
            // Its own latencies: others of its site may lie elsewhere.
            extent.cost_ns_per_s * (reads_per_s + writes_per_s) / extent.accesses_per_s()
        } else {
            estimated(0.0, sums.stall_ns)
        };
        Extent { reads_per_s, writes_per_s, cost_ns_per_s, ..extent.clone() }
    }

    fn samples(&self, extent: &Extent, grown: f32, intervals: f32) -> f32 {
        extent.accesses_per_s() * grown * self.samples_per_rate * intervals
    }

    /// The factor that corrects an EWMA for its warm-up, and how many intervals its evidence is
    /// worth: after n intervals from zero it has reached 1 - keep^n of the true rate.
    fn warm_up(&self, extent: &Extent) -> (f32, f32) {
        let old = (1.0 + self.keep) / (1.0 - self.keep);
        let (unit, unit_ms) = self.unit;
        if extent.is_warm || unit_ms <= 0.0 {
            return (1.0, old); // It began with its site's average.
        }
        let age_ms = extent.as_of_ms.saturating_sub(extent.born_ms);
        let units = (age_ms as f32 / unit_ms).round().clamp(1.0, 1000.0 / unit);
        let unseen = self.keep.powf(units * unit);
        (1.0 / (1.0 - unseen), (1.0 - unseen) / (1.0 + unseen) * old)
    }
}

impl SiteMoments {
    /// Variance of the extents' true rates over the square of their mean.
    fn overdispersion(&self) -> f64 {
        if self.extents < EXTENTS_MIN {
            return 1.0;
        }
        let rate = self.n / self.e;
        let differ = self.nn - 2.0 * rate * self.ne + rate * rate * self.ee;
        ((differ - self.n) / (rate * rate * self.ee)).max(0.0)
    }
}
