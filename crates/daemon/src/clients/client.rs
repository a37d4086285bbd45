//! One hosted process: its session, its pidfd, its counters.
//! In: an [`Arrival`], units of work. Out: records; the object table, read in slices when the
//! process attached and when records were lost. Knows nothing of policies.

use super::client_uses::ClientUses;
use super::heads::Heads;
use super::layouts::Layouts;
use super::misses::Misses;
use super::shares::SharedMappings;
use super::sites::ClientSites;
use super::statics::{Born, Part, Statics};
use super::turns::Served;
use crate::net::arrival::Arrival;
use crate::observe::unnamed::NAME as UNNAMED;
use crate::quota::Allowance;
use crate::schedule::pause_ms;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tiercel_broker::Peer;
use tiercel_ledger::{Ledger, Slice};
use tiercel_symbolize::SiteFrame;
use tiercel_wire::{
    Drained, Flags, ObjectSnapshot, PlanRow, Record, Sample, Session, TableSlice, Timeline,
    phase_hash,
};

/// Records taken of a process that has left: all of its rings, 1024 of 4096 records. A child that
/// keeps its session could write for ever.
const LAST_RECORDS_MAX: usize = 4 << 20;

/// What a unit of work takes, nanoseconds (`bench ledger`: 30 to 130 for a record).
const UNIT_NS: u64 = 100;

/// Units for an object of the table: it is read twice, compared and looked up, 0.3 us.
const OBJECT_UNITS: usize = 3;

/// Entries of the table that are read for a unit: without an object one takes 6 ns.
const ENTRIES_PER_UNIT: u64 = 16;

/// Units for each slice of the table: seeks, two buffers, two copies of 64 KiB, 20 us.
const SLICE_UNITS: usize = 200;

/// Objects of a slice at most: 1.2 ms.
const SLICE_OBJECTS_MAX: usize = 4096;

/// Shortest time between two resyncs of one client, milliseconds. A resync reads the whole object
/// table, and a client that loses records all the time must not cause it all the time.
const RESYNC_MS_MIN: u64 = 200;

/// Share of wall time that resyncs of one client may take.
const RESYNC_TIME_SHARE: f64 = 0.1;

/// Longest time between two resyncs, milliseconds: one tick. A view that is stale for longer is of
/// no use to a decision.
const RESYNC_MS_MAX: u64 = 2_000;

/// A scan of an object table.
#[derive(Clone, Copy, Debug, Default)]
struct Scan {
    /// The address from which it goes on.
    next: u64,
    /// Units so far.
    work: usize,
    /// What it finds was born before the client attached.
    is_first: bool,
}

/// A hosted process.
pub struct Client {
    /// Number of its session.
    pub number: u32,
    /// Process id in our namespace.
    pub pid: u32,
    /// Process id in its own namespace, as it claims.
    pub stated_pid: u32,
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
    /// Whose share it is served in: its user when it attached.
    pub user: u32,
    /// What it was born in the best tier and has not touched yet.
    pub(crate) heads: Heads,
    /// Sites that keep room for their births, ascending, and bytes of that room.
    pub(crate) nursery_sites: Vec<u32>,
    pub(crate) nursery_bytes: u64,
    /// The rows by which births of those sites find it.
    pub(crate) nursery_rows: Vec<PlanRow>,
    /// Its modules' data.
    statics: Statics,
    /// What its compiled code reported; `None` where it is not asked.
    pub(crate) misses: Option<Misses>,
    /// The site of memory that no allocation made.
    unnamed: Option<u32>,
    /// A mapped object that was born, until it is known what it shows.
    unshared: Option<Record>,
    /// Where its object table is being read.
    scan: Option<Scan>,
    /// Births that its first scan counted may still come as records: they count once. Until the
    /// next tick but one.
    counts_late_births: bool,
    /// All its rings were empty at some time since the last tick.
    is_drained: bool,
    /// It has left: so many of its last records may still be taken.
    last_records: Option<usize>,
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
    pub fn new(arrival: Arrival, number: u32, allowance: Allowance, now_ms: u64) -> Client {
        let Arrival { peer, session, stated_pid, .. } = arrival;
        Client {
            stated_pid,
            scan: Some(Scan { is_first: true, ..Scan::default() }),
            counts_late_births: true,
            ..Client::adopted(peer, session, number, allowance, now_ms)
        }
    }

    /// A client that did not attach: it was forked, and its session is our own.
    pub(crate) fn adopted(
        peer: Peer,
        session: Session,
        number: u32,
        allowance: Allowance,
        now_ms: u64,
    ) -> Client {
        Client {
            number,
            pid: peer.pid(),
            stated_pid: 0,
            program: program_name(&peer),
            session,
            user: peer.uid(),
            peer: Arc::new(peer),
            since_ms: now_ms,
            uses: ClientUses::new(allowance),
            heads: Heads::default(),
            nursery_sites: Vec::new(),
            nursery_bytes: 0,
            nursery_rows: Vec::new(),
            statics: Statics::default(),
            misses: None,
            unnamed: None,
            unshared: None,
            scan: None,
            counts_late_births: false,
            is_drained: false,
            last_records: None,
            records: 0,
            lost: 0,
            resyncs: 0,
            resync_due_ms: None,
            next_resync_ms: 0,
        }
    }

    /// Whether it did not attach.
    pub(crate) fn is_adopted(&self) -> bool {
        self.stated_pid == 0
    }

    /// Knows the sites that its parent knows.
    pub(crate) fn inherit(&mut self, parent: &mut Client) {
        parent.uses.learn(&parent.session);
        self.uses.inherit(&parent.uses);
    }

    /// What its sites did, for tables.
    pub fn present(&mut self, ledger: &Ledger) -> ClientSites<'_> {
        self.uses.learn_all(&self.session);
        let peak_bytes = ledger.tracked_bytes(self.pid).map_or(0, |(_, peak)| peak);
        ClientSites { uid: self.peer.uid(), program: &self.program, uses: &self.uses, peak_bytes }
    }

    /// Bytes of its live objects.
    pub fn live_bytes(&self, ledger: &Ledger) -> u64 {
        ledger.tracked_bytes(self.pid).map_or(0, |(live, _)| live)
    }

    /// Takes records, and reads on in the object table where that is under way or due, for about
    /// so many units. All records of before the timeline's moment are settled when none is left.
    pub(super) fn serve(
        &mut self,
        (ledger, shares): (&mut Ledger, &mut SharedMappings),
        buffer: &mut Vec<Record>,
        timeline: &Timeline,
        units: usize,
        died: impl FnMut(u32, u64, u64),
    ) -> Served {
        let now_ms = timeline.now().ms();
        self.session.set_timeline(*timeline);
        let drained = self.drain((ledger, shares), buffer, now_ms, units, died);
        if drained.more {
            ledger.settle_delivered(self.pid);
        } else {
            ledger.settle(self.pid, timeline.now().ns);
        }
        let mut work = drained.records + drained.rings;
        if self.has_left() {
            // What it had when it attached is known from its table alone, which stays as it is.
            self.scan = self.scan.filter(|scan| scan.is_first);
        } else if self.scan.is_none() && !drained.more && self.is_resync_due(now_ms) {
            self.resync_due_ms = None;
            self.scan = Some(Scan::default());
        }
        while let Some(scan) = self.scan.filter(|_| work < units) {
            work += self.scan_on(scan, (ledger, shares), units - work, timeline);
        }
        let has_more =
            if self.has_left() { !self.is_done() } else { drained.more || self.scan.is_some() };
        Served { work, has_more }
    }

    /// Reads the next slice of the object table into the ledger, before any other record comes.
    fn scan_on(
        &mut self,
        scan: Scan,
        (ledger, shares): (&mut Ledger, &mut SharedMappings),
        units: usize,
        timeline: &Timeline,
    ) -> usize {
        let objects_max = (units / OBJECT_UNITS).clamp(1, SLICE_OBJECTS_MAX);
        let table = self.session.objects_from(scan.next, objects_max);
        let own = self.without_views(&table, (ledger, shares));
        let (objects, read_ns) = (&self.divided(&own), timeline.elapsed_ns());
        let slice = if scan.is_first {
            // All that is known came from records: nothing is dead that is not in the table.
            ledger.adopt_objects(self.pid, objects, read_ns, |object| {
                let is_block = object.flags.has(Flags::BLOCK);
                self.uses.born(object.site, 1, object.bytes, is_block);
            });
            Slice { next: table.range.end, work: objects.len() }
        } else {
            ledger.resync_slice(self.pid, table.range, objects, SLICE_OBJECTS_MAX, read_ns)
        };
        let entries = usize::try_from(table.entries / ENTRIES_PER_UNIT).unwrap_or(usize::MAX);
        let work = slice.work * OBJECT_UNITS + entries + SLICE_UNITS;
        let scan = Scan { next: slice.next, work: scan.work + work, ..scan };
        self.scan = (scan.next < u64::MAX).then_some(scan);
        if self.scan.is_none() && !scan.is_first {
            self.resyncs += 1;
            let took = Duration::from_nanos(scan.work as u64 * UNIT_NS);
            let pause_ms = pause_ms(took, RESYNC_TIME_SHARE);
            self.next_resync_ms =
                timeline.now().ms() + pause_ms.clamp(RESYNC_MS_MIN, RESYNC_MS_MAX);
        }
        work
    }

    fn is_resync_due(&self, now_ms: u64) -> bool {
        self.resync_due_ms.is_some_and(|due_ms| due_ms <= now_ms)
    }

    /// Delivers at most `max` records to the ledger. `died` is called with each range of memory
    /// whose life ended.
    fn drain(
        &mut self,
        (ledger, shares): (&mut Ledger, &mut SharedMappings),
        buffer: &mut Vec<Record>,
        now_ms: u64,
        max: usize,
        mut died: impl FnMut(u32, u64, u64),
    ) -> Drained {
        buffer.clear();
        let drained = self.session.drain(buffer, max);
        for record in buffer.iter() {
            match *record {
                Record::Born { addr, site, bytes, flags, version, arena, .. } => {
                    let born = Born { addr, bytes, site, version };
                    self.heads.born((addr, version), bytes, arena, now_ms);
                    if flags.has(Flags::MAPPED) && self.statics.is_shared(born, &self.session) {
                        // What it shows is in the record that follows.
                        let before = self.unshared.replace(*record);
                        before.into_iter().for_each(|before| ledger.deliver(self.pid, before));
                        continue;
                    }
                    if let Some(parts) = self.parts_of(born, flags) {
                        parts.iter().for_each(|part| self.born_part(ledger, record, part));
                        continue;
                    }
                    self.count_birth(ledger, born, flags);
                }
                Record::Died { addr, bytes, .. } | Record::Cut { addr, bytes, .. } => {
                    died(self.pid, addr, bytes);
                    self.heads.gone(addr..addr.saturating_add(bytes));
                    self.unmapped(addr..addr.saturating_add(bytes), (ledger, shares));
                }
                Record::Resized { addr, bytes, version, .. } => {
                    self.heads.resized(addr, bytes, version);
                }
                Record::Head { addr, bytes, version, arena, .. } => {
                    self.heads.born((addr, version), bytes, Some(arena), now_ms);
                    continue;
                }
                Record::Misses { .. } => {
                    self.misses.iter_mut().for_each(|misses| misses.take(self.pid, record));
                    continue;
                }
                Record::Share { addr, share, .. } => {
                    self.share(addr, share, (ledger, shares));
                    continue;
                }
                _ => {}
            }
            ledger.deliver(self.pid, *record);
        }
        self.records += drained.records as u64;
        self.lost = self.lost.saturating_add(drained.lost);
        if drained.lost > 0 {
            ledger.records_lost(self.pid);
        }
        if drained.lost > 0 && self.resync_due_ms.is_none() {
            self.resync_due_ms = Some(now_ms.max(self.next_resync_ms));
        }
        self.is_drained |= !drained.more;
        if let Some(left) = &mut self.last_records {
            *left = if drained.more { left.saturating_sub(drained.records) } else { 0 };
        }
        drained
    }

    /// Moves to `found` what its compiled code reported since the last call; how many misses it
    /// could not report.
    pub(crate) fn take_misses(&mut self, found: &mut Vec<Sample>) -> u64 {
        let Some(misses) = &mut self.misses else { return 0 };
        found.append(&mut misses.found);
        misses.newly_lost(self.session.lost_misses())
    }

    fn count_birth(&mut self, ledger: &Ledger, born: Born, flags: Flags) {
        let Born { addr, bytes, site, version } = born;
        let was_counted = self.counts_late_births && ledger.was_adopted(self.pid, addr, version);
        let births = u64::from(!was_counted);
        self.uses.born(site, births, births * bytes, flags.has(Flags::BLOCK));
    }

    // ---- Shared memory -------------------------------------------------------------------------

    /// The object that was born last shows memory of a name: it is in the ledger once.
    fn share(&mut self, of: u64, share: u64, (ledger, shares): (&mut Ledger, &mut SharedMappings)) {
        let is_it = |record: &Record| matches!(record, Record::Born { addr, .. } if *addr == of);
        let Some(record) = self.unshared.take_if(|record| is_it(record)) else { return };
        let Record::Born { addr, bytes, site, version, arena, flags, .. } = record else { return };
        let heirs = shares.gone(self.pid, addr..addr + 1);
        heirs.iter().for_each(|(heir, object)| ledger.inherit_object(*heir, object));
        let object = ObjectSnapshot { addr, bytes, site, version, arena, flags };
        if shares.born(self.user, self.pid, share, object) {
            self.count_birth(ledger, Born { addr, bytes, site, version }, flags);
            ledger.deliver(self.pid, record);
        }
    }

    /// Mappings in a range are gone, in part or as a whole.
    fn unmapped(&self, range: Range<u64>, (ledger, shares): (&mut Ledger, &mut SharedMappings)) {
        let heirs = shares.gone(self.pid, range);
        heirs.iter().for_each(|(heir, object)| ledger.inherit_object(*heir, object));
    }

    /// Objects of the table but for those that show what is in the ledger already.
    fn without_views(
        &mut self,
        table: &TableSlice,
        (ledger, shares): (&mut Ledger, &mut SharedMappings),
    ) -> Vec<ObjectSnapshot> {
        let names: HashMap<u64, u64> = table.shares.iter().copied().collect();
        let is_there = |addr: u64| names.contains_key(&addr);
        for range in shares.mappings_of(self.pid, table.range.clone()) {
            if !is_there(range.start) {
                self.unmapped(range, (ledger, shares));
            }
        }
        let mut own = table.objects.clone();
        own.retain(|object| {
            let share = names.get(&object.addr);
            share.is_none_or(|share| shares.born(self.user, self.pid, *share, *object))
        });
        own
    }

    /// The site of its memory that no allocation made; `None`: there is no room for one more.
    pub(crate) fn unnamed_site(&mut self) -> Option<u32> {
        if self.unnamed.is_none() {
            let frame = SiteFrame { path: Path::new("").into(), build_id: [].into(), addr: 0 };
            self.unnamed = self.uses.name_site(phase_hash(UNNAMED), frame, UNNAMED.into());
        }
        self.unnamed
    }

    // ---- Static data ---------------------------------------------------------------------------

    /// The parts of an object that has several.
    fn parts_of(&mut self, born: Born, flags: Flags) -> Option<Vec<Part>> {
        flags.has(Flags::MAPPED).then(|| self.statics.born(born, &self.session, &mut self.uses))?
    }

    /// A part of an object is born with it.
    fn born_part(&mut self, ledger: &mut Ledger, whole: &Record, part: &Part) {
        let Record::Born { version, arena, flags, time_ns, .. } = *whole else { return };
        let Part { addr, bytes, site } = *part;
        self.count_birth(ledger, Born { addr, bytes, site, version }, flags);
        let born = Record::Born { addr, bytes, site, version, arena, flags, time_ns };
        ledger.deliver(self.pid, born);
    }

    /// Objects of the table, those with several parts as these.
    fn divided(&mut self, objects: &[ObjectSnapshot]) -> Vec<ObjectSnapshot> {
        let mut all = Vec::with_capacity(objects.len());
        for object in objects {
            let ObjectSnapshot { addr, bytes, site, version, flags, .. } = *object;
            match self.parts_of(Born { addr, bytes, site, version }, flags) {
                None => all.push(*object),
                Some(parts) => all.extend(parts.iter().map(|part| {
                    let Part { addr, bytes, site } = *part;
                    ObjectSnapshot { addr, bytes, site, ..*object }
                })),
            }
        }
        all
    }

    /// Whether an address belongs to data whose symbols are being read.
    pub(super) fn awaits_symbols(&mut self, addr: u64) -> bool {
        self.statics.awaits(addr) && !self.has_left()
    }

    /// Divides what was born before the symbols of its module were read.
    pub(super) fn divide_statics(&mut self, layouts: &mut Layouts, ledger: &mut Ledger) {
        if !self.statics.is_waiting() {
            return;
        }
        let user = self.user;
        let divided = self.statics.divide(&mut self.uses, |module| layouts.of(user, module));
        for (whole, parts) in divided {
            let parts: Vec<_> = parts.iter().map(|one| (one.addr, one.bytes, one.site)).collect();
            ledger.divide_object(self.pid, whole.addr, whole.version, &parts);
        }
    }

    /// It has left: what waits in its rings is taken, and what its table had when it attached.
    pub(super) fn leave(&mut self) {
        self.last_records.get_or_insert(LAST_RECORDS_MAX);
    }

    /// True from [`Client::leave`] on.
    pub fn has_left(&self) -> bool {
        self.last_records.is_some()
    }

    /// It has left, and nothing of it is left.
    pub(super) fn is_done(&self) -> bool {
        self.last_records == Some(0) && self.scan.is_none()
    }

    /// Records that wait are lost.
    pub(super) fn lose_rest(&mut self) {
        self.lost = self.lost.saturating_add(self.session.waiting());
    }

    /// A tick has passed. True when all rings were empty at some time since the last one.
    pub(super) fn tick(&mut self) -> bool {
        // Late births were written before the first scan ended.
        self.counts_late_births &= self.scan.is_some() || !self.is_drained;
        std::mem::take(&mut self.is_drained)
    }
}

/// At most 15 bytes by the kernel's own bound; control characters become question marks.
/// Of a process that has ended it is unknown: its number may be another's.
fn program_name(peer: &Peer) -> String {
    let comm = std::fs::read(format!("/proc/{}/comm", peer.pid()));
    let bytes = comm.ok().filter(|_| peer.is_alive()).unwrap_or_default();
    let name = String::from_utf8_lossy(&bytes);
    name.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
