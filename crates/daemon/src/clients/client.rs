//! One hosted process: its session, its pidfd, its counters.
//! In: an [`Arrival`]. Out: records, resyncs when records were lost. Knows nothing of policies.

use super::sites::{ClientUses, Present};
use crate::net::arrival::Arrival;
use crate::schedule::pause_ms;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;
use tiercel_broker::Peer;
use tiercel_ledger::Ledger;
use tiercel_wire::{Drained, Flags, Record, Session, Version};

/// Records taken from one client before the next has its turn: 16 full rings of 4096, 2 MiB.
pub const RECORDS_PER_TURN: usize = 65_536;

/// Turns in which a dead client's rings are drained at most: 64 turns of 16 rings, every ring of a
/// session at least once.
pub const LAST_TURNS_MAX: usize = 64;

/// Objects of the first snapshot that are remembered, 16 bytes each: 1 MiB. Beyond it, births
/// written while the snapshot was taken may count twice.
const FIRST_OBJECTS_MAX: usize = 1 << 16;

/// Shortest time between two resyncs of one client, milliseconds. A resync reads the whole object
/// table, and a client that loses records all the time must not cause it all the time.
const RESYNC_MS_MIN: u64 = 200;

/// Share of wall time that resyncs of one client may take.
const RESYNC_TIME_SHARE: f64 = 0.1;

/// Longest time between two resyncs, milliseconds: one tick. A view that is stale for longer is of
/// no use to a decision.
const RESYNC_MS_MAX: u64 = 2_000;

/// A hosted process.
pub struct Client {
    /// Number of its session.
    pub number: u32,
    /// Process id in our namespace.
    pub pid: u32,
    /// Name of its program, from `/proc/PID/comm` at attach.
    pub program: String,
    /// Its shared memory.
    pub session: Session,
    /// The process, as it was when it attached. Held also to stay in the poller.
    pub peer: Arc<Peer>,
    /// When it attached, milliseconds on the daemon's clock.
    pub since_ms: u64,
    /// What its sites did.
    pub uses: ClientUses,
    /// Objects of the first snapshot whose births may still come as records, by address and
    /// version: they count once. Cleared at the next tick.
    first_objects: HashSet<(u64, Version)>,
    /// Records drained.
    pub records: u64,
    /// Records lost.
    pub lost: u64,
    /// Times its object table was read after a loss.
    pub resyncs: u64,
    /// Its object table must be read again, no sooner than this.
    resync_due_ms: Option<u64>,
    next_resync_ms: u64,
}

impl Client {
    /// A client from its hello; the ledger knows its process.
    pub fn new(arrival: Arrival, number: u32, now_ms: u64) -> Client {
        Client {
            number,
            pid: arrival.peer.pid(),
            program: program_name(arrival.peer.pid()),
            session: arrival.session,
            peer: Arc::new(arrival.peer),
            since_ms: now_ms,
            uses: ClientUses::default(),
            first_objects: HashSet::new(),
            records: 0,
            lost: 0,
            resyncs: 0,
            resync_due_ms: None,
            next_resync_ms: 0,
        }
    }

    /// What its sites did, for tables.
    pub fn present(&mut self, ledger: &Ledger) -> Present<'_> {
        self.uses.learn(&self.session);
        let peak_bytes = ledger.tracked_bytes(self.pid).map_or(0, |(_, peak)| peak);
        Present { uid: self.peer.uid(), program: &self.program, uses: &self.uses, peak_bytes }
    }

    /// Bytes of its live objects.
    pub fn live_bytes(&self, ledger: &Ledger) -> u64 {
        ledger.tracked_bytes(self.pid).map_or(0, |(live, _)| live)
    }

    /// Reads the object table for the first time: what lived before the client attached.
    pub fn read_first_objects(&mut self, ledger: &mut Ledger) {
        let Client { uses, first_objects, .. } = self;
        let objects = self.session.snapshot().inspect(|object| {
            uses.born(object.site, 1, object.bytes, object.flags.has(Flags::BLOCK));
            if first_objects.len() < FIRST_OBJECTS_MAX {
                first_objects.insert((object.addr, object.version));
            }
        });
        ledger.resync(self.pid, objects);
    }

    /// Takes at most [`RECORDS_PER_TURN`] records into the ledger. `died` is called with each range
    /// of memory whose life ended.
    pub fn drain(
        &mut self,
        ledger: &mut Ledger,
        buffer: &mut Vec<Record>,
        now_ms: u64,
        mut died: impl FnMut(u32, u64, u64),
    ) -> Drained {
        buffer.clear();
        let drained = self.session.drain(buffer, RECORDS_PER_TURN);
        for record in buffer.iter() {
            match *record {
                Record::Born { addr, site, bytes, flags, version, .. } => {
                    let was_counted = !self.first_objects.is_empty()
                        && self.first_objects.remove(&(addr, version));
                    let births = u64::from(!was_counted);
                    self.uses.born(site, births, births * bytes, flags.has(Flags::BLOCK));
                }
                Record::Died { addr, bytes, .. } | Record::Cut { addr, bytes, .. } => {
                    died(self.pid, addr, bytes);
                }
                _ => {}
            }
            ledger.apply(self.pid, record);
        }
        self.records += drained.records as u64;
        self.lost = self.lost.saturating_add(drained.lost);
        if drained.lost > 0 && self.resync_due_ms.is_none() {
            self.resync_due_ms = Some(now_ms.max(self.next_resync_ms));
        }
        drained
    }

    /// A tick has passed: what was written around the first snapshot is drained.
    pub fn forget_first_objects(&mut self) {
        self.first_objects = HashSet::new();
    }

    /// True when it is gone, has another owner, or runs another program that has not attached: its
    /// objects are gone. A failed exec changes nothing, and a program that attaches again replaces
    /// this client.
    pub fn has_changed(&self) -> bool {
        self.peer.check().is_err()
    }

    /// Reads the object table again if records were lost and it is time; the rings are drained.
    pub fn heal(&mut self, ledger: &mut Ledger, now_ms: u64) {
        if self.resync_due_ms.is_some_and(|due_ms| due_ms <= now_ms) {
            let began = Instant::now();
            ledger.resync(self.pid, self.session.snapshot());
            self.resyncs += 1;
            self.resync_due_ms = None;
            let pause_ms = pause_ms(began.elapsed(), RESYNC_TIME_SHARE);
            self.next_resync_ms = now_ms + pause_ms.clamp(RESYNC_MS_MIN, RESYNC_MS_MAX);
        }
    }
}

/// At most 15 bytes by the kernel's own bound; control characters become question marks.
fn program_name(pid: u32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&bytes);
    name.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
