//! Where memory is: scans of what is known of it, and what has to be looked up.
//! In: live extents, answers of the mover. Out: live bytes by site and node, residency in the
//! ledger. Knows nothing of how the mover looks it up.

use crate::clients::client::Client;
use crate::clients::live::LiveUse;
use crate::clients::pass::Pass;
use crate::moves::queue::Answer;
use crate::observe::learning::{LivesScan, SiteLives};
use crate::schedule::pause_ms;
use std::collections::HashMap;
use std::time::Duration;
use tiercel_ledger::{Extent, Ledger, Range};
use tiercel_mover::ResidencyError;

/// Extents without a known residency that one tick looks up: 26 to 80 ms on the mover's thread, at
/// 0.1 to 0.3 us an OS page and at most 64 queried OS pages an extent.
pub(crate) const LOOKUPS_MAX: usize = 4096;

/// The same for the modelled mover, at half a microsecond each: 0.13 s, in pieces.
pub(crate) const MODELLED_LOOKUPS_MAX: usize = 1 << 18;

/// Extents whose residency one tick refreshes although something is known of it: a sixteenth of
/// [`LOOKUPS_MAX`], since new extents come first.
const REFRESHES_MAX: usize = 256;

/// Share of wall time that lookups by the mover may take before stale residency waits.
const REFRESH_TIME_SHARE: f64 = 0.001;

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

    /// A pass that counts what lives, by site, and finds the extents whose residency is stale.
    pub(crate) fn counting(&self, now_ms: u64, learns: bool) -> Counting {
        Counting {
            live: HashMap::new(),
            scan: learns.then(LivesScan::default),
            lives: Vec::new(),
            stale: Vec::new(),
            now_ms,
            refreshes_max: if now_ms < self.refresh_due_ms { 0 } else { REFRESHES_MAX },
        }
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

/// Counts what lives of each client, by site.
pub(crate) struct Counting {
    /// Of the client whose extents are being counted.
    live: HashMap<u32, LiveUse>,
    /// The same of it, for the next run of its program; `None`: nothing is learned.
    scan: Option<LivesScan>,
    /// That of all clients that were counted.
    lives: Vec<(u32, HashMap<u32, SiteLives>)>,
    stale: Vec<Range>,
    now_ms: u64,
    refreshes_max: usize,
}

impl Counting {
    /// The extents whose residency is to be looked up again.
    pub(crate) fn stale(self) -> Vec<Range> {
        self.stale
    }

    /// What lives of each client, by site, for the next run of its program.
    pub(crate) fn take_lives(&mut self) -> Vec<(u32, HashMap<u32, SiteLives>)> {
        std::mem::take(&mut self.lives)
    }
}

impl Pass for Counting {
    fn see(&mut self, extent: &Extent<'_>) {
        let (pid, addr, bytes) = (extent.pid, extent.addr, extent.bytes);
        if let Some(scan) = &mut self.scan {
            scan.see(extent);
        }
        let live = self.live.entry(extent.site).or_default();
        live.bytes += bytes;
        live.heat += f64::from(extent.accesses_per_s());
        live.largest.see(extent);
        for (node, on_node) in extent.residency.iter() {
            *live.nodes.entry(node).or_default() += on_node;
        }
        if self.stale.len() < self.refreshes_max && extent.is_residency_stale(self.now_ms) {
            self.stale.push(Range { pid, addr, bytes });
        }
    }

    fn seen(&mut self, client: &mut Client) {
        client.uses.set_live(self.live.drain(), self.now_ms);
        let lives = self.scan.as_mut().map(|scan| (client.pid, scan.take()));
        self.lives.extend(lives);
    }

    fn forget(&mut self) {
        self.live.clear();
        if let Some(scan) = &mut self.scan {
            scan.take();
        }
    }
}

/// Counts what lives of one client, by site.
pub(crate) fn count_live(client: &mut Client, ledger: &Ledger, now_ms: u64) {
    let mut counting = ResidencyScan::default().counting(now_ms, false);
    ledger.extents_of(client.pid).for_each(|extent| counting.see(&extent));
    counting.seen(client);
}
