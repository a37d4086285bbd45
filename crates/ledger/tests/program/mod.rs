//! A program whose objects a ledger follows, as slow and obvious as can be; tests and a fuzzer
//! compare both. In: steps. Out: records as the threads of a runtime write them, in the versions
//! the runtime would give them; what lives; what lived where and when. Knows nothing of the
//! ledger's insides.
#![allow(dead_code)] // Each test uses a part.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use tiercel_ledger::{Config, Event, Ledger};
use tiercel_wire::{AccessKind, Flags, ObjectSnapshot, Record, Sample, Version};

/// Between two records: a multiple of the resolution of births, 256 ns.
pub const TICK_NS: u64 = 1024;
pub const PID: u32 = 7;
pub const OS_PAGE: u64 = 4096;
pub const THREADS: usize = 3;
/// OS pages of the heap, then of the mapped area, from OS page `BASE` on. Small, so that everything
/// collides.
pub const BASE: u64 = 16;
pub const HEAP: u64 = 24;
pub const MAPS: u64 = 24;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Object {
    pub pages: u64,
    pub version: Version,
    pub is_mapped: bool,
    /// Another one for each object, so that it names the object.
    pub site: u32,
}

/// An object had an OS page from a time until before another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Life {
    pub page: u64,
    pub from_ns: u64,
    pub until_ns: u64,
    pub site: u32,
}

/// The program: what is live, and what each thread has written and the ledger has not read.
#[derive(Default)]
pub struct Program {
    pub live: BTreeMap<u64, Object>,
    /// Shape of the runs of the heap, live or free: OS pages and version of the last use.
    runs: BTreeMap<u64, (u64, Version)>,
    carve: u32,
    pub rings: [VecDeque<Record>; THREADS],
    /// What was read, for people.
    pub log: String,
    /// Time of the latest record.
    pub now_ns: u64,
    sites: u32,
    /// Who has each OS page since when.
    owners: BTreeMap<u64, (u64, u32)>,
    /// What lived, as records taken in the order of time say.
    pub lives: Vec<Life>,
}

/// What a thread does, with random numbers that are made to fit.
pub type Step = (usize, u8, u64, u64);

impl Program {
    fn carve(&mut self) -> Version {
        self.carve += 1;
        // Starts close to the wrap-around, so that it happens.
        Version { carve: self.carve.wrapping_sub(20), generation: 0 }
    }

    pub fn step(&mut self, (thread, kind, a, b): Step) {
        match kind % 9 {
            0 | 1 => self.alloc(thread, BASE + a % HEAP, 1 + b % 6),
            2 => self.free(thread, a, false),
            3 => self.resize(thread, a, 1 + b % 8),
            4 => self.map(thread, BASE + HEAP + a % MAPS, 1 + b % 8),
            5 => self.free(thread, a, true),
            8 => self.realloc(thread, a, BASE + b % HEAP),
            6 => self.cut(thread, BASE + HEAP + a % MAPS, 1 + b % 5),
            _ => self.grow_map(thread, a, 1 + b % 4),
        }
    }

    fn is_free(&self, page: u64, pages: u64, end: u64) -> bool {
        page + pages <= end
            && self
                .live
                .range(..page + pages)
                .next_back()
                .is_none_or(|(at, o)| at + o.pages <= page)
    }

    fn alloc(&mut self, thread: usize, page: u64, pages: u64) {
        if !self.is_free(page, pages, BASE + HEAP) {
            return;
        }
        let version = self.version_at(page, pages);
        self.reshape(page, pages, version);
        let site = self.next_site();
        self.born(thread, page, Object { pages, version, is_mapped: false, site });
    }

    fn version_at(&mut self, page: u64, pages: u64) -> Version {
        match self.runs.get(&page) {
            Some((same, last)) if *same == pages => {
                Version { generation: last.generation.wrapping_add(1), ..*last }
            }
            _ => self.carve(),
        }
    }

    /// Runs that overlap a new one are no more.
    fn reshape(&mut self, page: u64, pages: u64, version: Version) {
        self.runs.retain(|at, (size, _)| *at + *size <= page || *at >= page + pages);
        self.runs.insert(page, (pages, version));
    }

    /// A realloc that moves.
    fn realloc(&mut self, thread: usize, number: u64, to: u64) {
        let Some((page, old)) = self.pick(number, false) else { return };
        if !self.is_free(to, old.pages, BASE + HEAP) {
            return;
        }
        let version = self.version_at(to, old.pages);
        self.reshape(to, old.pages, version);
        let site = self.next_site();
        let new = Object { version, site, ..old };
        self.born_with(thread, to, new, Flags::CONTINUED);
        self.died(thread, page, old);
    }

    fn next_site(&mut self) -> u32 {
        self.sites += 1;
        self.sites
    }

    /// From now on an object, or none, has these OS pages.
    fn own(&mut self, page: u64, pages: u64, site: Option<u32>) {
        for page in page..page + pages {
            if let Some((from_ns, site)) = self.owners.remove(&page) {
                self.lives.push(Life { page, from_ns, until_ns: self.now_ns, site });
            }
            if let Some(site) = site {
                self.owners.insert(page, (self.now_ns, site));
            }
        }
    }

    /// All lives, those that last included.
    pub fn all_lives(&self) -> Vec<Life> {
        let living = self.owners.iter().map(|(page, (from_ns, site))| Life {
            page: *page,
            from_ns: *from_ns,
            until_ns: u64::MAX,
            site: *site,
        });
        self.lives.iter().copied().chain(living).collect()
    }

    fn born(&mut self, thread: usize, page: u64, object: Object) {
        self.born_with(thread, page, object, Flags(0));
    }

    fn born_with(&mut self, thread: usize, page: u64, object: Object, more: Flags) {
        self.now_ns += TICK_NS;
        self.live.insert(page, object);
        self.own(page, object.pages, Some(object.site));
        let record = Record::Born {
            addr: page * OS_PAGE,
            bytes: object.pages * OS_PAGE,
            site: object.site,
            version: object.version,
            arena: None,
            flags: Flags(flags(object).0 | more.0),
            time_ns: self.now_ns,
        };
        self.rings[thread].push_back(record);
    }

    fn pick(&self, number: u64, is_mapped: bool) -> Option<(u64, Object)> {
        let of_kind: Vec<_> = self.live.iter().filter(|(_, o)| o.is_mapped == is_mapped).collect();
        let (page, object) = of_kind.get(number as usize % of_kind.len().max(1))?;
        Some((**page, **object))
    }

    fn free(&mut self, thread: usize, number: u64, is_mapped: bool) {
        if let Some((page, object)) = self.pick(number, is_mapped) {
            self.died(thread, page, object);
        }
    }

    fn died(&mut self, thread: usize, page: u64, object: Object) {
        self.now_ns += TICK_NS;
        self.live.remove(&page);
        self.own(page, object.pages, None);
        self.rings[thread].push_back(Record::Died {
            addr: page * OS_PAGE,
            bytes: object.pages * OS_PAGE,
            version: object.version,
            flags: flags(object),
            time_ns: self.now_ns,
        });
    }

    fn resize(&mut self, thread: usize, number: u64, pages: u64) {
        let Some((page, object)) = self.pick(number, false) else { return };
        let grows = pages > object.pages;
        let more = pages.saturating_sub(object.pages);
        if grows && !self.is_free(page + object.pages, more, BASE + HEAP) {
            return;
        }
        let version = self.carve();
        self.reshape(page, pages, version);
        self.resized(thread, page, Object { pages, version, ..object });
    }

    fn resized(&mut self, thread: usize, page: u64, object: Object) {
        self.now_ns += TICK_NS;
        let before = self.live.insert(page, object).expect("it lives").pages;
        let (common, now) = (before.min(object.pages), object.pages);
        self.own(page + common, before - common, None);
        self.own(page + common, now - common, Some(object.site));
        self.rings[thread].push_back(Record::Resized {
            addr: page * OS_PAGE,
            bytes: object.pages * OS_PAGE,
            site: object.site,
            version: object.version,
            arena: None,
            flags: flags(object),
            time_ns: self.now_ns,
        });
    }

    /// Mappings replace what they overlap, as with MAP_FIXED.
    fn map(&mut self, thread: usize, page: u64, pages: u64) {
        let pages = pages.min(BASE + HEAP + MAPS - page);
        self.cut(thread, page, pages);
        let version = self.carve();
        let site = self.next_site();
        self.born(thread, page, Object { pages, version, is_mapped: true, site });
    }

    fn grow_map(&mut self, thread: usize, number: u64, more: u64) {
        let Some((page, object)) = self.pick(number, true) else { return };
        if self.is_free(page + object.pages, more, BASE + HEAP + MAPS) {
            let version = self.carve();
            self.resized(thread, page, Object { pages: object.pages + more, version, ..object });
        }
    }

    /// munmap of any range: a head keeps its version's carve, a tail is a new object.
    fn cut(&mut self, thread: usize, page: u64, pages: u64) {
        let end = (page + pages).min(BASE + HEAP + MAPS);
        let hit: Vec<_> = self.live.range(..end).filter(|(at, o)| **at + o.pages > page).collect();
        let hit: Vec<(u64, Object)> = hit.into_iter().map(|(at, o)| (*at, *o)).collect();
        for (at, object) in hit {
            if at < page {
                let generation = object.version.generation.wrapping_add(1);
                let version = Version { generation, ..object.version };
                self.resized(thread, at, Object { pages: page - at, version, ..object });
            } else {
                self.died(thread, at, object);
            }
            if at + object.pages > end {
                let version = self.carve();
                self.born(
                    thread,
                    end,
                    Object { pages: at + object.pages - end, version, ..object },
                );
            }
        }
    }

    pub fn snapshot(&self) -> Vec<ObjectSnapshot> {
        let object = |(page, object): (&u64, &Object)| ObjectSnapshot {
            addr: page * OS_PAGE,
            bytes: object.pages * OS_PAGE,
            site: object.site,
            version: object.version,
            arena: None,
            flags: flags(*object),
        };
        self.live.iter().map(object).collect()
    }

    /// The table from an address on, so many objects, and the range that they are all of.
    pub fn table_from(&self, from: u64, max: usize) -> (Range<u64>, Vec<ObjectSnapshot>) {
        let mut objects = self.snapshot();
        objects.retain(|object| object.addr >= from);
        let end = objects.get(max).map_or(u64::MAX, |beyond| beyond.addr);
        objects.truncate(max);
        (from..end, objects)
    }

    /// Reads the table on from an address, and has it applied at once; where to go on.
    pub fn scan_slice(
        &self,
        ledger: &mut Ledger,
        from: u64,
        objects_max: usize,
        work: usize,
    ) -> u64 {
        let (range, objects) = self.table_from(from, objects_max);
        ledger.resync_slice(PID, range, &objects, work, self.now_ns).next
    }

    pub fn scan(&self, ledger: &mut Ledger) {
        assert_eq!(self.scan_slice(ledger, 0, usize::MAX, usize::MAX), u64::MAX);
    }

    pub fn ranges(&self) -> Vec<(u64, u64)> {
        self.live.iter().map(|(page, object)| (*page, object.pages)).collect()
    }
}

pub fn flags(object: Object) -> Flags {
    if object.is_mapped { Flags::MAPPED } else { Flags(0) }
}

/// The ledger's objects as (OS page, OS pages), glued together from extents.
pub fn objects(ledger: &Ledger) -> Vec<(u64, u64)> {
    let mut objects: Vec<(u64, u64)> = Vec::new();
    let mut is_open = false;
    for extent in ledger.extents_of(PID) {
        let (page, pages) = (extent.addr / OS_PAGE, extent.bytes / OS_PAGE);
        assert_eq!(extent.is_head, !is_open, "heads follow lasts");
        if extent.is_head {
            objects.push((page, pages));
        } else {
            let object = objects.last_mut().expect("a head before");
            assert_eq!(object.0 + object.1, page, "extents of an object leave no gap");
            object.1 += pages;
        }
        is_open = !extent.is_last;
    }
    assert!(!is_open, "the last object has a last extent");
    objects
}

pub fn new_ledger() -> Ledger {
    // Extents of few OS pages, so that objects have several; they may be split and joined.
    let config = Config { extent_bytes: 4 * OS_PAGE, finest_bytes: OS_PAGE, ..Config::default() };
    let mut ledger = Ledger::new(config, 0).expect("a good config");
    ledger.process_born(PID).expect("a new process");
    ledger.listen();
    ledger
}

/// The objects according to all events since the beginning, in the same form.
pub fn announced(ledger: &mut Ledger) -> Vec<(u64, u64)> {
    let mut objects: BTreeMap<u64, u64> = BTreeMap::new();
    let mut news = Vec::new();
    ledger.take_events(&mut news);
    for one in news {
        match one.event {
            Event::Born { addr, bytes, .. } => {
                let under = objects.range(..addr + bytes).next_back();
                assert!(under.is_none_or(|(at, size)| at + size <= addr), "born where one lives");
                objects.insert(addr, bytes);
            }
            Event::Grown { addr, bytes } => {
                let (at, size) = objects.range_mut(..addr).next_back().expect("it lives");
                assert_eq!(at + *size, addr, "it grows at its end");
                *size += bytes;
            }
            Event::Gone { addr, bytes, .. } => {
                let end = addr + bytes;
                let hit = objects.range(..end).filter(|(at, size)| **at + **size > addr);
                for (at, size) in hit.map(|(at, size)| (*at, *size)).collect::<Vec<_>>() {
                    objects.remove(&at);
                    if at < addr {
                        objects.insert(at, addr - at);
                    }
                    if at + size > end {
                        objects.insert(end, at + size - end);
                    }
                }
            }
            Event::Phase { .. } | Event::Accessed { .. } | Event::Forgotten { .. } => {}
        }
    }
    objects.into_iter().map(|(addr, bytes)| (addr / OS_PAGE, bytes / OS_PAGE)).collect()
}

/// A budget that changes, and one hot OS page: extents are split and joined.
pub fn resize_extents(ledger: &mut Ledger, budget_os_pages: u64, hot: u64) {
    ledger.fit_extents(budget_os_pages * OS_PAGE);
    for _ in 0..40 {
        ledger.sample(&Sample {
            from_ns: 0,
            until_ns: 0,
            pid: PID,
            tid: 0,
            addr: (BASE + hot % (HEAP + MAPS)) * OS_PAGE,
            kind: AccessKind::Read,
            latency_ns: None,
            node: None,
            weight: 100,
            around: None,
            cpu: None,
            by: None,
        });
    }
}

/// Reads up to `most` records of the rings in a random order, and applies those that `keep` keeps
/// at once.
pub fn drain(
    program: &mut Program,
    ledger: &mut Ledger,
    picks: &[usize],
    most: usize,
    keep: &[bool],
) {
    read(program, picks, most, keep, |record| ledger.apply(PID, &record));
}

/// Reads up to `most` records of the rings in a random order; `picks` chooses the ring each time.
pub fn read(
    program: &mut Program,
    picks: &[usize],
    most: usize,
    keep: &[bool],
    mut take: impl FnMut(Record),
) {
    let mut picks = picks.iter().cycle();
    for nth in 0..most {
        let waiting: Vec<_> = (0..THREADS).filter(|t| !program.rings[*t].is_empty()).collect();
        if waiting.is_empty() {
            return;
        }
        let ring = waiting[picks.next().expect("cycles") % waiting.len()];
        let record = program.rings[ring].pop_front().expect("waits");
        program.log += &format!("{ring}: {}\n", shown(&record));
        if keep.is_empty() || keep[nth % keep.len()] {
            take(record);
        }
    }
}

/// `born 16+3 v 1.0`: OS pages and version.
pub fn shown(record: &Record) -> String {
    let text = |word, addr: u64, bytes: u64, v: Version| {
        let (page, pages) = (addr / OS_PAGE, bytes / OS_PAGE);
        format!("{word} {page}+{pages} v {}.{}", v.carve, v.generation)
    };
    match *record {
        Record::Born { addr, bytes, version, .. } => text("born", addr, bytes, version),
        Record::Died { addr, bytes, version, .. } => text("died", addr, bytes, version),
        Record::Resized { addr, bytes, version, .. } => text("resized", addr, bytes, version),
        Record::Cut { addr, bytes, version, .. } => text("cut", addr, bytes, version),
        _ => format!("{record:?}"),
    }
}
