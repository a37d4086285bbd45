//! Where memory is: scans of what is known of it, and what has to be looked up.
//! In: live extents, answers of the mover. Out: live bytes by site and node, residency in the
//! ledger. Knows nothing of how the mover looks it up.

use crate::clients::client::Client;
use crate::clients::table::Clients;
use crate::moves::queue::Answer;
use crate::schedule::pause_ms;
use std::time::Duration;
use tiercel_ledger::{Ledger, Range};
use tiercel_mover::ResidencyError;

/// Extents without a known residency that one tick looks up: 26 to 80 ms on the mover's thread, at
/// 0.1 to 0.3 us an OS page and at most 64 queried OS pages an extent.
const LOOKUPS_MAX: usize = 4096;

/// The same for the modelled mover, at half a microsecond each: 0.13 s.
const MODELLED_LOOKUPS_MAX: usize = 1 << 18;

/// Extents whose residency one tick refreshes although something is known of it: a sixteenth of
/// [`LOOKUPS_MAX`], since new extents come first.
const REFRESHES_MAX: usize = 256;

/// Age at which residency is stale, in ticks: memory is touched after its birth, and the kernel
/// moves it as well. Chosen, not measured: 10 s at the default tick.
const REFRESH_TICKS: u64 = 5;

/// Share of wall time that lookups by the mover may take before stale residency waits.
const REFRESH_TIME_SHARE: f64 = 0.005;

/// Share of wall time that scans of all extents may take. They serve reports, and find
/// what is to be looked up again.
const SCAN_TIME_SHARE: f64 = 0.005;

/// When the next scan and the next refresh may begin.
#[derive(Debug, Default)]
pub(crate) struct ResidencyScan {
    due_ms: u64,
    refresh_due_ms: u64,
}

impl ResidencyScan {
    /// False while the last scan is paid off.
    pub(crate) fn is_due(&self, now_ms: u64) -> bool {
        now_ms >= self.due_ms
    }

    /// Counts what lives, by site; the extents whose residency is stale.
    pub(crate) fn scan(
        &self,
        clients: &mut Clients,
        ledger: &Ledger,
        now_ms: u64,
        tick_ms: u64,
    ) -> Vec<Range> {
        let stale_since_ms = now_ms.saturating_sub(tick_ms * REFRESH_TICKS);
        let refreshes_max = if now_ms < self.refresh_due_ms { 0 } else { REFRESHES_MAX };
        let mut stale = Vec::new();
        for client in clients.iter_mut() {
            count_live(client, ledger);
            let known = ledger.extents_of(client.pid);
            let old = known.filter(|extent| {
                extent.residency.as_of_ms.is_some_and(|as_of_ms| as_of_ms <= stale_since_ms)
            });
            let range = |extent: tiercel_ledger::Extent<'_>| Range {
                pid: extent.pid,
                addr: extent.addr,
                bytes: extent.bytes,
            };
            stale.extend(old.map(range).take(refreshes_max - stale.len()));
        }
        stale
    }

    /// The scan, and what went with it, took so long.
    pub(crate) fn scanned(&mut self, took: Duration, now_ms: u64) {
        self.due_ms = now_ms + pause_ms(took, SCAN_TIME_SHARE);
    }

    /// Takes what the mover found into the ledger. Returns what could not be looked up, for the
    /// user.
    pub(crate) fn located(
        &mut self,
        ledger: &mut Ledger,
        answers: Vec<Answer>,
        took_ns: u64,
        now_ms: u64,
    ) -> Vec<String> {
        self.refresh_due_ms = now_ms + pause_ms(Duration::from_nanos(took_ns), REFRESH_TIME_SHARE);
        let mut problems = Vec::new();
        for (pid, range, found) in answers {
            match found {
                Ok(at) => {
                    let range = Range { pid, addr: range.addr, bytes: range.bytes };
                    ledger.set_residency(range, &at.nodes, now_ms);
                }
                Err(ResidencyError::Vanished) => {}
                Err(error) => problems.push(format!("cannot look up where memory is: {error}")),
            }
        }
        problems
    }
}

/// New extents whose residency is unknown, as many as one tick looks up.
pub(crate) fn take_unlocated(ledger: &mut Ledger, is_modelled: bool) -> Vec<Range> {
    ledger.take_unlocated(if is_modelled { MODELLED_LOOKUPS_MAX } else { LOOKUPS_MAX })
}

/// Counts what lives of one client, by site.
pub(crate) fn count_live(client: &mut Client, ledger: &Ledger) {
    client.uses.begin_scan();
    for extent in ledger.extents_of(client.pid) {
        let used = client.uses.of(extent.site);
        used.live_bytes += extent.bytes;
        used.heat += f64::from(extent.accesses_per_s());
        for (node, bytes) in extent.residency.iter() {
            *used.nodes.entry(node).or_default() += bytes;
        }
    }
    client.uses.end_scan();
}
