//! How much of each site the best tier has room for.
//! In: the extents that an assignment made now would put there. Out: a `Fit` per site.
//! Knows nothing of triggers and gates: this is what deserves the best tier, not what is moved.

use super::client::Client;
use super::table::Clients;
use crate::schedule::pause_of_long_work_ms;
use std::collections::HashSet;
use std::time::Instant;
use tiercel_ledger::{ExtentId, Ledger};

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

    /// Scans everything that lives. `best` yields the extents that deserve the best tier.
    pub(crate) fn scan(
        &mut self,
        clients: &mut Clients,
        ledger: &Ledger,
        best: impl FnOnce() -> HashSet<ExtentId>,
        now_ms: u64,
    ) {
        let began = Instant::now();
        let best = best();
        clients.iter_mut().for_each(|client| scan_client(ledger, client, &best));
        self.due_ms = now_ms + pause_of_long_work_ms(began.elapsed(), TIME_SHARE);
    }
}

fn scan_client(ledger: &Ledger, client: &mut Client, best: &HashSet<ExtentId>) {
    client.uses.begin_fit();
    // Extents come by address: those of one object follow each other.
    let mut is_counted = false;
    for extent in ledger.extents_of(client.pid) {
        let fit = &mut client.uses.of(extent.site).fits;
        let bytes = extent.footprint_bytes();
        fit.of_bytes += bytes;
        if extent.is_head {
            fit.of_objects += 1;
            is_counted = false;
        }
        if extent.accesses_per_s() > 0.0 && best.contains(&extent.id) {
            fit.bytes += bytes;
            fit.objects += u64::from(!is_counted);
            is_counted = true;
        }
    }
    client.uses.end_fit();
}
