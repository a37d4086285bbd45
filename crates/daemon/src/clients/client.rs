//! One hosted process as the daemon holds it: its session, its death notice, its counters.
//! In: an [`Arrival`]. Out: records, resyncs when records were lost. Knows nothing of policies.

use crate::clients::sites::{ClientUses, Present};
use crate::net::handshake::Arrival;
use crate::observe::sampling::Watch;
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::time::Instant;
use tiercel_ledger::Ledger;
use tiercel_wire::{Drained, Flags, Record, Session, Version};

/// Records taken from one client before the next has its turn: 16 full rings, 2 MiB.
pub const RECORDS_PER_TURN: usize = 65_536;

/// Turns a dead client's rings are drained for at most: all its rings once.
pub const LAST_TURNS_MAX: usize = 64;

/// Objects of the first look that are remembered: some may count twice beyond.
const LOOKED_MAX: usize = 1 << 16;

/// Shortest time between two resyncs of one client, milliseconds: a resync reads the whole object
/// table, and a client that loses records all the time must not make us do that all the time.
pub const RESYNC_MS_MIN: u64 = 200;

/// And so many times as long as the last one took: resyncs cost at most a tenth of the time,
const RESYNC_PAUSES: u64 = 10;

/// but never longer than this, milliseconds: a picture that is wrong is of no use to anybody.
const RESYNC_MS_MAX: u64 = 2_000;

/// A hosted process.
pub struct Client {
    /// Process id in our namespace.
    pub pid: u32,
    /// Name of its program, from `/proc/PID/comm` at attach.
    pub program: String,
    /// Its shared memory.
    pub session: Session,
    /// Readable when it died. Held to stay in the poller.
    _pidfd: OwnedFd,
    /// When it attached, milliseconds on the daemon's clock.
    pub since_ms: u64,
    /// How far the sampler knows it.
    pub(crate) watch: Watch,
    /// The sampler is told again no sooner than this.
    pub(crate) tell_due_ms: u64,
    /// What its sites did.
    pub uses: ClientUses,
    /// Objects of the first look whose births may still come as records, by address and version:
    /// they count once. Forgotten at the next tick.
    looked: HashSet<(u64, Version)>,
    /// Entries into phases that were followed.
    pub(crate) phase_entries: u32,
    /// Sites it had, and sites it had used, when they were last looked for in a plan.
    pub(crate) sites_looked: (u32, usize),
    /// Stacks of it that the plan was asked about.
    pub(crate) stacks_looked: usize,
    /// Records drained.
    pub records: u64,
    /// Records lost.
    pub lost: u64,
    /// Times its object table was read after a loss.
    pub resyncs: u64,
    /// It said that it is about to run another program, and this was its file then.
    exec_from: Option<(u64, u64)>,
    /// Its table must be read anew; no sooner than this time.
    resync_due_ms: Option<u64>,
    next_resync_ms: u64,
}

impl Client {
    /// A client from its greeting; `process_born` has been told.
    pub fn new(arrival: Arrival, now_ms: u64) -> Client {
        Client {
            pid: arrival.pid,
            program: program_name(arrival.pid),
            session: arrival.session,
            _pidfd: arrival.pidfd,
            since_ms: now_ms,
            watch: Watch::Probation(arrival.lent),
            tell_due_ms: 0,
            uses: ClientUses::default(),
            looked: HashSet::new(),
            phase_entries: 0,
            sites_looked: (0, 0),
            stacks_looked: 0,
            records: 0,
            lost: 0,
            resyncs: 0,
            exec_from: None,
            resync_due_ms: None,
            next_resync_ms: 0,
        }
    }

    /// What its sites did, for tables.
    pub fn present(&mut self, ledger: &Ledger) -> Present<'_> {
        self.uses.learn(&self.session);
        let peak_bytes = ledger.tracked_bytes(self.pid).map_or(0, |(_, peak)| peak);
        Present { program: &self.program, uses: &self.uses, peak_bytes }
    }

    /// Reads the object table for the first time: what lived before the client attached.
    pub fn first_look(&mut self, ledger: &mut Ledger) {
        let Client { uses, looked, .. } = self;
        let objects = self.session.snapshot().inspect(|object| {
            uses.born(object.site, 1, object.bytes, object.flags.has(Flags::BLOCK));
            if looked.len() < LOOKED_MAX {
                looked.insert((object.addr, object.version));
            }
        });
        ledger.resync(self.pid, objects);
    }

    /// Takes at most [`RECORDS_PER_TURN`] records into the ledger. `died` hears of what ended.
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
                    let counted = !self.looked.is_empty() && self.looked.remove(&(addr, version));
                    let births = u64::from(!counted);
                    self.uses.born(site, births, births * bytes, flags.has(Flags::BLOCK));
                }
                Record::Died { addr, bytes, .. } | Record::Cut { addr, bytes, .. } => {
                    died(self.pid, addr, bytes);
                }
                Record::Exec { .. } => self.exec_from = executable(self.pid),
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

    /// A tick has passed: what was written around the first look is drained.
    pub fn end_first_look(&mut self) {
        self.looked = HashSet::new();
    }

    /// True when it runs another program that has not attached: its objects are gone. A failed exec
    /// changes nothing, and one that attaches anew replaces this client.
    pub fn has_exec_ed(&self) -> bool {
        self.exec_from.is_some_and(|before| executable(self.pid).is_some_and(|now| now != before))
    }

    /// Reads the object table anew when records were lost and it is time; the rings are drained.
    pub fn heal(&mut self, ledger: &mut Ledger, now_ms: u64) {
        if self.resync_due_ms.is_some_and(|due_ms| due_ms <= now_ms) {
            let began = Instant::now();
            ledger.resync(self.pid, self.session.snapshot());
            let took_ms = began.elapsed().as_millis() as u64;
            self.resyncs += 1;
            self.resync_due_ms = None;
            self.next_resync_ms =
                now_ms + (took_ms * RESYNC_PAUSES).clamp(RESYNC_MS_MIN, RESYNC_MS_MAX);
        }
    }
}

/// Which file the process runs: device and inode.
fn executable(pid: u32) -> Option<(u64, u64)> {
    let meta = std::fs::metadata(format!("/proc/{pid}/exe")).ok()?;
    Some((meta.dev(), meta.ino()))
}

/// At most 15 bytes by the kernel's own bound; unprintable ones are replaced.
fn program_name(pid: u32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&bytes);
    name.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
