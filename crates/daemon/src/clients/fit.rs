//! How much of each site the best tier has room for.
//! In: the extents that an assignment made now would put there. Out: a `Fit` per site.
//! Knows nothing of triggers and gates: this is what deserves the best tier, not what is moved.

use super::client::Client;
use super::pass::Pass;
use super::site_use::Fits;
use crate::decisions::ExtentSet;
use crate::schedule::pause_of_long_work_ms;
use std::collections::HashMap;
use std::time::Duration;
use tiercel_ledger::Extent;

/// Share of wall time that finding it out may take: 5%. It sorts all extents, and runs at ticks,
/// when a client leaves and when objects are requested.
const TIME_SHARE: f64 = 0.05;

/// When it may be found out again.
#[derive(Debug, Default)]
pub(crate) struct FitScan {
    due_ms: u64,
}

impl FitScan {
    /// False while the last scan is paid off.
    pub(crate) fn is_due(&self, now_ms: u64) -> bool {
        now_ms >= self.due_ms
    }

    /// A scan took so long.
    pub(crate) fn scanned(&mut self, took: Duration, now_ms: u64) {
        self.due_ms = now_ms + pause_of_long_work_ms(took, TIME_SHARE);
    }
}

/// A scan of everything that lives.
pub(crate) struct Fitting {
    /// The extents that deserve the best tier.
    best: ExtentSet,
    /// By site of the client that is being scanned.
    fits: HashMap<u32, Fits>,
    is_counted: bool,
}

impl Fitting {
    pub(crate) fn new(best: ExtentSet) -> Fitting {
        Fitting { best, fits: HashMap::new(), is_counted: false }
    }
}

impl Pass for Fitting {
    // Those of one object follow each other.
    fn see(&mut self, extent: &Extent<'_>) {
        let fit = self.fits.entry(extent.site).or_default();
        let bytes = extent.footprint_bytes();
        fit.of_bytes += bytes;
        if extent.is_head {
            fit.of_objects += 1;
            self.is_counted = false;
        }
        if extent.accesses_per_s() > 0.0 && self.best.contains(extent.id) {
            fit.bytes += bytes;
            fit.objects += u64::from(!self.is_counted);
            self.is_counted = true;
        }
    }

    fn seen(&mut self, client: &mut Client) {
        client.uses.set_fits(self.fits.drain());
    }

    fn forget(&mut self) {
        self.fits.clear();
        self.is_counted = false;
    }
}
