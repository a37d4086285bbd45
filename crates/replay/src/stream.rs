//! A stream: what a program does to its memory, in the time of its own work.
//! In: what a source wrote by a [`Script`]. Out: events in order. Knows nothing of where memory
//! lies: the same stream is replayed with each placement.
//!
//! ```text
//! at_ns     0 ........ 5 ms ........ 10 ms ...        work of the program, all of its data fast
//! records   born           born           died        what the runtime would write
//! accesses  [addr, bytes) x 40,000 reads ...          misses, spread evenly over whole OS pages
//! ```

use tiercel_machine::number::share_of;
use tiercel_wire::layout::OS_PAGE_BYTES;
use tiercel_wire::{Flags, Record, Version};

/// First address of a stream's memory; below it lies what a program's image takes.
pub const BASE: u64 = 1 << 32;

/// Most OS pages of a stream: 16 GiB, whose maps take 1.5 MiB.
pub const OS_PAGES_MAX: u64 = 1 << 22;

/// Most events of a stream: 350 MiB.
pub const EVENTS_MAX: usize = 1 << 22;

/// Whether a stream is for tuning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Half {
    /// Policies may be tuned on it.
    Tuned,
    /// Never tuned on: it shows what tuning is worth elsewhere.
    HeldOut,
}

/// What a program does to its memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Stream {
    /// Unique, as `moving/2`.
    pub name: String,
    /// A sentence.
    pub what: String,
    /// Whether it is for tuning.
    pub half: Half,
    /// Its processes, which share a CPU.
    pub pids: Vec<u32>,
    /// Ascending by time.
    pub events: Vec<Event>,
    /// All of the program's work with all data in fast memory, nanoseconds.
    pub work_ns: u64,
    /// OS pages from [`BASE`] on.
    pub os_pages: u64,
    /// What its source could not take over.
    pub lost: Vec<String>,
}

/// Something that happens after so much work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// Work done before, nanoseconds at all-fast pace.
    pub at_ns: u64,
    /// Whose memory.
    pub pid: u32,
    /// What happens.
    pub what: What,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    /// An object is born, resized or dies, or a phase begins. Time and arena are set in the replay.
    Record(Record),
    /// Memory is accessed.
    Accesses(Accesses),
}

/// Accesses that missed all caches, spread evenly over a range of whole OS pages, all of which they
/// touch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Accesses {
    /// First byte, in a live object.
    pub addr: u64,
    /// Bytes.
    pub bytes: u64,
    /// Loads.
    pub reads: u64,
    /// Stores.
    pub writes: u64,
    /// Lines that stores made dirty: each goes back to memory once.
    pub dirtied: u64,
    /// Misses that were under way at once; at least 1.
    pub at_once: f64,
    /// No neighbour in the blocks of a memory that reads blocks.
    pub apart: bool,
}

impl Accesses {
    /// Loads and stores.
    pub fn misses(&self) -> u64 {
        self.reads + self.writes
    }
}

/// Why a stream is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stream {name}: event {event}: {what}")]
pub struct StreamError {
    /// The stream.
    pub name: String,
    /// Which event.
    pub event: usize,
    /// What is wrong with it.
    pub what: &'static str,
}

/// An object of a stream that is being written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Piece {
    /// First byte.
    pub addr: u64,
    /// Bytes, whole OS pages.
    pub bytes: u64,
}

impl Piece {
    /// A part of it, from a share of it to another; whole OS pages, at least one.
    pub fn part(self, from: f64, to: f64) -> Piece {
        let pages = self.bytes / OS_PAGE_BYTES;
        let page = |share: f64| {
            tiercel_machine::number::saturating_u64((share * pages as f64).round()).min(pages)
        };
        let first = page(from).min(pages - 1);
        let end = page(to).max(first + 1);
        Piece { addr: self.addr + first * OS_PAGE_BYTES, bytes: (end - first) * OS_PAGE_BYTES }
    }
}

/// How memory is accessed, beside where and how often.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// Share of stores.
    pub writes: f64,
    /// Misses under way at once.
    pub at_once: f64,
    /// No neighbours.
    pub apart: bool,
}

/// Loads, one line here and one there, four at once: a look-up in a table.
pub const RANDOM: Manner = Manner { writes: 0.0, at_once: 4.0, apart: true };
/// The same, of which a quarter are stores.
pub const UPDATES: Manner = Manner { writes: 0.25, at_once: 4.0, apart: true };
/// Loads, one after another, each with the address of the next.
pub const CHASED: Manner = Manner { writes: 0.0, at_once: 1.0, apart: true };
/// A loop over an array, as fast as the prefetcher goes.
pub const SEQUENTIAL: Manner = Manner { writes: 0.0, at_once: 8.0, apart: false };
/// The same, writing a third of what it reads.
pub const STENCIL: Manner = Manner { writes: 0.25, at_once: 8.0, apart: false };
/// Fills memory.
pub const FILLING: Manner = Manner { writes: 1.0, at_once: 8.0, apart: false };

/// Writes a stream: keeps time, addresses and versions.
#[derive(Clone, Debug, Default)]
pub struct Script {
    events: Vec<Event>,
    now_ns: u64,
    next_page: u64,
    carve: u32,
    pid: u32,
    pids: Vec<u32>,
}

impl Script {
    /// An empty one of process 1.
    pub fn new() -> Script {
        Script { pid: 1, pids: vec![1], ..Script::default() }
    }

    /// What follows is of this process.
    pub fn of_process(&mut self, pid: u32) {
        self.pid = pid;
        if !self.pids.contains(&pid) {
            self.pids.push(pid);
        }
    }

    /// So much work passes.
    pub fn work(&mut self, ns: u64) {
        self.now_ns += ns;
    }

    /// An object at addresses that none had before.
    pub fn born(&mut self, bytes: u64, site: u32) -> Piece {
        let addr = BASE + self.next_page * OS_PAGE_BYTES;
        let pages = bytes.div_ceil(OS_PAGE_BYTES).max(1);
        self.next_page += pages;
        self.born_at(Piece { addr, bytes: pages * OS_PAGE_BYTES }, site)
    }

    /// An object where a dead one was.
    pub fn born_at(&mut self, piece: Piece, site: u32) -> Piece {
        let Piece { addr, bytes } = piece;
        let (version, flags) = (self.version(), Flags::default());
        self.record(Record::Born { addr, bytes, site, version, arena: None, flags, time_ns: 0 });
        piece
    }

    /// An object grows or shrinks in place, into addresses that are free.
    pub fn resized(&mut self, piece: Piece, bytes: u64, site: u32) -> Piece {
        let (addr, version, flags) = (piece.addr, self.version(), Flags::default());
        self.record(Record::Resized { addr, bytes, site, version, arena: None, flags, time_ns: 0 });
        Piece { addr, bytes }
    }

    /// Addresses for an object that will grow to so many bytes.
    pub fn reserve(&mut self, bytes: u64) -> Piece {
        let addr = BASE + self.next_page * OS_PAGE_BYTES;
        let pages = bytes.div_ceil(OS_PAGE_BYTES).max(1);
        self.next_page += pages;
        Piece { addr, bytes: pages * OS_PAGE_BYTES }
    }

    /// An object dies.
    pub fn died(&mut self, piece: Piece) {
        let Piece { addr, bytes } = piece;
        let version = Version { carve: self.carve, generation: 0 };
        self.record(Record::Died { addr, bytes, version, flags: Flags::default(), time_ns: 0 });
    }

    /// A phase begins.
    pub fn phase(&mut self, number: u64) {
        self.record(Record::Phase { number, time_ns: 0 });
    }

    /// So many misses in a piece.
    pub fn access(&mut self, piece: Piece, misses: u64, manner: Manner) {
        let writes = tiercel_machine::number::saturating_u64(misses as f64 * manner.writes);
        let Manner { at_once, apart, .. } = manner;
        let Piece { addr, bytes } = piece;
        let reads = misses - writes;
        let accesses = Accesses { addr, bytes, reads, writes, dirtied: writes, at_once, apart };
        self.accesses(accesses);
    }

    /// The same as its source counted them.
    pub fn accesses(&mut self, accesses: Accesses) {
        if accesses.misses() > 0 {
            self.push(What::Accesses(accesses));
        }
    }

    /// Touches a piece, which costs nothing that is known.
    pub fn touch(&mut self, piece: Piece) {
        let Piece { addr, bytes } = piece;
        let none = Accesses { addr, bytes, at_once: 1.0, ..Accesses::default() };
        self.push(What::Accesses(none));
    }

    /// Writes a piece once, as a program does that makes it.
    pub fn fill(&mut self, piece: Piece) {
        self.access(piece, piece.bytes / 64, FILLING);
    }

    /// The stream.
    pub fn end(self, name: &str, what: &str, half: Half) -> Stream {
        Stream {
            name: name.to_owned(),
            what: what.to_owned(),
            half,
            pids: self.pids,
            events: self.events,
            work_ns: self.now_ns,
            os_pages: self.next_page,
            lost: Vec::new(),
        }
    }

    fn version(&mut self) -> Version {
        self.carve += 1;
        Version { carve: self.carve, generation: 0 }
    }

    fn record(&mut self, record: Record) {
        self.push(What::Record(record));
    }

    fn push(&mut self, what: What) {
        self.events.push(Event { at_ns: self.now_ns, pid: self.pid, what });
    }
}

impl Stream {
    /// The same stream at another pace: all of its work takes so many nanoseconds.
    pub fn lasting(mut self, work_ns: u64) -> Stream {
        let before_ns = self.work_ns.max(1);
        let scaled = |ns: u64| share_of(work_ns, ns, before_ns);
        self.events.iter_mut().for_each(|event| event.at_ns = scaled(event.at_ns));
        self.work_ns = work_ns;
        self
    }

    /// Most bytes of live objects.
    pub fn peak_bytes(&self) -> u64 {
        let (mut live, mut peak) = (Lives::default(), 0);
        for event in &self.events {
            if let What::Record(record) = &event.what {
                live.apply(event.pid, record);
            }
            peak = peak.max(live.bytes);
        }
        peak
    }

    /// Misses of all accesses.
    pub fn misses(&self) -> u64 {
        let of = |event: &Event| match &event.what {
            What::Accesses(accesses) => accesses.misses(),
            What::Record(_) => 0,
        };
        self.events.iter().map(of).sum()
    }

    /// Refuses what cannot be replayed: time that goes back, objects that overlap, accesses outside
    /// of live objects, or more than the limits.
    pub fn check(&self) -> Result<(), StreamError> {
        let refuse = |event, what| Err(StreamError { name: self.name.clone(), event, what });
        if self.os_pages > OS_PAGES_MAX || self.events.len() > EVENTS_MAX {
            return refuse(0, "more memory or events than a replay holds");
        }
        let (mut at_ns, mut lives) = (0, Lives::default());
        for (number, event) in self.events.iter().enumerate() {
            if event.at_ns < at_ns || event.at_ns > self.work_ns {
                return refuse(number, "it is not in the order of time");
            }
            at_ns = event.at_ns;
            if let Err(what) = self.check_event(event, &mut lives) {
                return refuse(number, what);
            }
        }
        Ok(())
    }

    fn check_event(&self, event: &Event, lives: &mut Lives) -> Result<(), &'static str> {
        if !self.pids.contains(&event.pid) {
            return Err("its process is not one of the stream's");
        }
        match &event.what {
            What::Record(record) => {
                if range_of(record).is_some_and(|piece| !self.holds(piece)) {
                    return Err("it is outside of the stream's memory");
                }
                if lives.apply(event.pid, record) { Ok(()) } else { Err("objects overlap") }
            }
            What::Accesses(one) => {
                let piece = Piece { addr: one.addr, bytes: one.bytes };
                let is_sound = one.at_once >= 1.0 && one.dirtied <= one.writes;
                match () {
                    () if !self.holds(piece) => Err("it is outside of the stream's memory"),
                    () if !is_sound => Err("less than one miss at once, or more dirty than stored"),
                    () if !lives.has(event.pid, piece) => Err("no object lives there"),
                    () => Ok(()),
                }
            }
        }
    }

    fn holds(&self, piece: Piece) -> bool {
        let Piece { addr, bytes } = piece;
        let end = BASE + self.os_pages * OS_PAGE_BYTES;
        addr.is_multiple_of(OS_PAGE_BYTES)
            && bytes.is_multiple_of(OS_PAGE_BYTES)
            && bytes > 0
            && addr >= BASE
            && addr.checked_add(bytes).is_some_and(|own| own <= end)
    }
}

/// The range of a record that has one.
pub(crate) fn range_of(record: &Record) -> Option<Piece> {
    match *record {
        Record::Born { addr, bytes, .. }
        | Record::Died { addr, bytes, .. }
        | Record::Resized { addr, bytes, .. } => Some(Piece { addr, bytes }),
        _ => None,
    }
}

/// What lives.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lives {
    /// By first byte: bytes, process.
    objects: std::collections::BTreeMap<u64, (u64, u32)>,
    pub(crate) bytes: u64,
}

impl Lives {
    /// Follows a record; false where it contradicts what lives.
    pub(crate) fn apply(&mut self, pid: u32, record: &Record) -> bool {
        match *record {
            Record::Born { addr, bytes, .. } => {
                let is_free = self.is_free(addr, bytes);
                self.objects.insert(addr, (bytes, pid));
                self.bytes += bytes;
                is_free
            }
            Record::Died { addr, .. } => self.remove(addr).is_some_and(|known| known.1 == pid),
            Record::Resized { addr, bytes, .. } => {
                let known = self.remove(addr).is_some_and(|known| known.1 == pid);
                known && self.apply(pid, &born(addr, bytes))
            }
            Record::Phase { .. } => true,
            _ => false,
        }
    }

    fn remove(&mut self, addr: u64) -> Option<(u64, u32)> {
        let known = self.objects.remove(&addr)?;
        self.bytes -= known.0;
        Some(known)
    }

    fn is_free(&self, addr: u64, bytes: u64) -> bool {
        let last = self.objects.range(..addr + bytes).next_back();
        last.is_none_or(|(start, (bytes, _))| start + bytes <= addr)
    }

    fn has(&self, pid: u32, piece: Piece) -> bool {
        let last = self.objects.range(..=piece.addr).next_back();
        last.is_some_and(|(start, (bytes, owner))| {
            *owner == pid && piece.addr + piece.bytes <= start + bytes
        })
    }
}

fn born(addr: u64, bytes: u64) -> Record {
    let (version, flags) = (Version::default(), Flags::default());
    Record::Born { addr, bytes, site: 0, version, arena: None, flags, time_ns: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(script: Script) -> &'static str {
        let stream = script.end("test", "", Half::Tuned);
        stream.check().map_or_else(|error| error.what, |()| "accepted")
    }

    #[test]
    fn a_script_makes_a_stream_that_is_accepted() {
        let mut script = Script::new();
        let a = script.born(8192, 1);
        script.fill(a);
        script.work(10);
        let b = script.born(4096, 2);
        script.access(b.part(0.0, 1.0), 7, RANDOM);
        script.died(a);
        script.born_at(a, 1);
        let stream = script.end("test", "", Half::Tuned);
        assert_eq!(stream.check(), Ok(()));
        assert_eq!((stream.peak_bytes(), stream.misses()), (12_288, 128 + 7));
    }

    #[test]
    fn another_pace_keeps_order_and_accesses() {
        let mut script = Script::new();
        let piece = script.born(8192, 1);
        script.work(10);
        script.access(piece, 7, RANDOM);
        script.work(30);
        let stream = script.end("test", "", Half::Tuned).lasting(4);
        assert_eq!(stream.check(), Ok(()));
        let times: Vec<u64> = stream.events.iter().map(|event| event.at_ns).collect();
        assert_eq!((times, stream.work_ns, stream.misses()), (vec![0, 1], 4, 7));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut dead = Script::new();
        let piece = dead.born(8192, 1);
        dead.died(piece);
        dead.fill(piece);
        assert_eq!(refused(dead), "no object lives there");
        let mut twice = Script::new();
        let piece = twice.born(8192, 1);
        twice.born_at(piece.part(0.5, 1.0), 1);
        assert_eq!(refused(twice), "objects overlap");
        let mut other = Script::new();
        let piece = other.born(4096, 1);
        other.of_process(2);
        other.fill(piece);
        assert_eq!(refused(other), "no object lives there");
        let mut outside = Script::new();
        outside.born_at(Piece { addr: BASE, bytes: 4096 }, 1);
        assert_eq!(refused(outside), "it is outside of the stream's memory");
    }

    #[test]
    fn parts_are_whole_os_pages_and_never_empty() {
        let piece = Piece { addr: BASE, bytes: 10 * 4096 };
        assert_eq!(piece.part(0.0, 0.5), Piece { addr: BASE, bytes: 5 * 4096 });
        assert_eq!(piece.part(0.99, 1.0), Piece { addr: BASE + 9 * 4096, bytes: 4096 });
        assert_eq!(piece.part(0.5, 0.5).bytes, 4096);
    }
}
