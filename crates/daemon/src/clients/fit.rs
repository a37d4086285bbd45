//! How much of each site the best tier has room for.
//! In: the extents an assignment made now would put there. Out: [`Fits`] per site.
//! Knows nothing of triggers and gates: this is what deserves, not what is moved.

use crate::clients::client::Client;
use crate::daemon::Daemon;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::time::Instant;
use tiercel_ledger::{ExtentId, Ledger};
use tiercel_policy::Budgets;

/// Finding out may cost this part of the time.
const PAUSES: u64 = 20;

/// What of a site's objects deserves the best tier, as far as its budget goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fits {
    /// Bytes that are accessed and fit.
    pub bytes: u64,
    /// Objects, or blocks of small slots, of which at least a part is.
    pub objects: u64,
    /// Of so many bytes that lived; 0: nobody looked while any did.
    pub of_bytes: u64,
    /// Of so many objects.
    pub of_objects: u64,
}

impl Fits {
    /// Adds another process's.
    pub fn absorb(&mut self, other: &Fits) {
        self.bytes += other.bytes;
        self.objects += other.objects;
        self.of_bytes += other.of_bytes;
        self.of_objects += other.of_objects;
    }
}

impl Daemon {
    /// Finds out for everything that lives, unless that was done a short while ago.
    pub(crate) fn note_fits(&mut self) {
        let now_ms = self.now_ms();
        if now_ms < self.pace.fits_due_ms {
            return;
        }
        let began = Instant::now();
        let budgets = Budgets::fast(self.config.fast);
        let best = self.policy.best(&self.ledger, &self.machine, &budgets);
        let best: HashSet<ExtentId> = best.into_iter().collect();
        for client in self.clients.values_mut() {
            note(&self.ledger, client, &best);
        }
        self.pace.fits_due_ms = now_ms + began.elapsed().as_millis() as u64 * PAUSES;
    }
}

fn note(ledger: &Ledger, client: &mut Client, best: &HashSet<ExtentId>) {
    client.uses.begin_fits();
    // Extents come by address: those of one object follow each other.
    let mut is_counted = false;
    for extent in ledger.extents_of(client.pid) {
        let fits = &mut client.uses.of(extent.site).fits;
        let bytes = extent.footprint_bytes();
        fits.of_bytes += bytes;
        if extent.is_head {
            fits.of_objects += 1;
            is_counted = false;
        }
        if extent.accesses_per_s() > 0.0 && best.contains(&extent.id) {
            fits.bytes += bytes;
            fits.objects += u64::from(!is_counted);
            is_counted = true;
        }
    }
    client.uses.end_fits();
}
