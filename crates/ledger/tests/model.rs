//! Random true histories against a slow obvious model.
//! In: random operations of several threads, in the versions the runtime would give them. Out:
//! whether the ledger's live set is the program's. Knows nothing of the ledger's insides.
//!
//! Each thread's records keep their order; threads are drained in any order, and a tick may find
//! them half drained. That is the promise of the rings, and all the ledger may rely on.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use tiercel_ledger::{Config, Event, Ledger};
use tiercel_wire::{AccessKind, Flags, ObjectSnapshot, Record, Sample, Version};

const PID: u32 = 7;
const OS_PAGE: u64 = 4096;
const THREADS: usize = 3;
/// OS pages of the heap, then of the mapped area, from OS page `BASE` on. Small, so that everything
/// collides.
const BASE: u64 = 16;
const HEAP: u64 = 24;
const MAPS: u64 = 24;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Object {
    pages: u64,
    version: Version,
    is_mapped: bool,
}

/// The program: what is live, and what each thread has written and the ledger has not read.
#[derive(Default)]
struct Program {
    live: BTreeMap<u64, Object>,
    /// Shape of the runs of the heap, live or free: OS pages and version of the last use.
    runs: BTreeMap<u64, (u64, Version)>,
    carve: u32,
    rings: [VecDeque<Record>; THREADS],
    /// What was read, for people.
    log: String,
}

/// What a thread does, with random numbers that are made to fit.
type Step = (usize, u8, u64, u64);

impl Program {
    fn carve(&mut self) -> Version {
        self.carve += 1;
        // Starts close to the wrap-around, so that it happens.
        Version { carve: self.carve.wrapping_sub(20), generation: 0 }
    }

    fn step(&mut self, (thread, kind, a, b): Step) {
        match kind % 8 {
            0 | 1 => self.alloc(thread, BASE + a % HEAP, 1 + b % 6),
            2 => self.free(thread, a, false),
            3 => self.resize(thread, a, 1 + b % 8),
            4 => self.map(thread, BASE + HEAP + a % MAPS, 1 + b % 8),
            5 => self.free(thread, a, true),
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
        let version = match self.runs.get(&page) {
            Some((same, last)) if *same == pages => {
                Version { generation: last.generation.wrapping_add(1), ..*last }
            }
            _ => self.carve(),
        };
        self.reshape(page, pages, version);
        self.born(thread, page, Object { pages, version, is_mapped: false });
    }

    /// Runs that overlap a new one are no more.
    fn reshape(&mut self, page: u64, pages: u64, version: Version) {
        self.runs.retain(|at, (size, _)| *at + *size <= page || *at >= page + pages);
        self.runs.insert(page, (pages, version));
    }

    fn born(&mut self, thread: usize, page: u64, object: Object) {
        self.live.insert(page, object);
        let record = Record::Born {
            addr: page * OS_PAGE,
            bytes: object.pages * OS_PAGE,
            site: 1,
            version: object.version,
            arena: None,
            flags: flags(object),
            time_ms: 0,
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
        self.live.remove(&page);
        self.rings[thread].push_back(Record::Died {
            addr: page * OS_PAGE,
            bytes: object.pages * OS_PAGE,
            version: object.version,
            flags: flags(object),
            time_ms: 0,
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
        self.live.insert(page, object);
        self.rings[thread].push_back(Record::Resized {
            addr: page * OS_PAGE,
            bytes: object.pages * OS_PAGE,
            site: 1,
            version: object.version,
            arena: None,
            flags: flags(object),
            time_ms: 0,
        });
    }

    /// Mappings replace what they overlap, as with MAP_FIXED.
    fn map(&mut self, thread: usize, page: u64, pages: u64) {
        let pages = pages.min(BASE + HEAP + MAPS - page);
        self.cut(thread, page, pages);
        let version = self.carve();
        self.born(thread, page, Object { pages, version, is_mapped: true });
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

    fn snapshot(&self) -> Vec<ObjectSnapshot> {
        let object = |(page, object): (&u64, &Object)| ObjectSnapshot {
            addr: page * OS_PAGE,
            bytes: object.pages * OS_PAGE,
            site: 1,
            version: object.version,
            arena: None,
            flags: flags(*object),
        };
        self.live.iter().map(object).collect()
    }

    fn ranges(&self) -> Vec<(u64, u64)> {
        self.live.iter().map(|(page, object)| (*page, object.pages)).collect()
    }
}

fn flags(object: Object) -> Flags {
    if object.is_mapped { Flags::MAPPED } else { Flags(0) }
}

/// The ledger's objects as (OS page, OS pages), glued together from extents.
fn objects(ledger: &Ledger) -> Vec<(u64, u64)> {
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

fn new_ledger() -> Ledger {
    // Extents of few OS pages, so that objects have several; they may be split and joined.
    let config = Config { extent_bytes: 4 * OS_PAGE, finest_bytes: OS_PAGE, ..Config::default() };
    let mut ledger = Ledger::new(config, 0).expect("a good config");
    ledger.process_born(PID).expect("a new process");
    ledger.listen();
    ledger
}

/// The objects according to all events since the beginning, in the same form.
fn announced(ledger: &mut Ledger) -> Vec<(u64, u64)> {
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
            Event::Gone { addr, bytes } => {
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
            Event::Phase { .. } => {}
        }
    }
    objects.into_iter().map(|(addr, bytes)| (addr / OS_PAGE, bytes / OS_PAGE)).collect()
}

/// A budget that changes, and one hot OS page: extents are split and joined.
fn resize_extents(ledger: &mut Ledger, budget_os_pages: u64, hot: u64) {
    ledger.fit_extents(budget_os_pages * OS_PAGE);
    for _ in 0..40 {
        ledger.sample(&Sample {
            time_us: 0,
            pid: PID,
            tid: 0,
            addr: (BASE + hot % (HEAP + MAPS)) * OS_PAGE,
            kind: AccessKind::Read,
            latency_ns: None,
            node: None,
            weight: 100,
            around: None,
        });
    }
}

/// Reads up to `most` records of the rings in a random order; `picks` chooses the ring each time.
fn drain(program: &mut Program, ledger: &mut Ledger, picks: &[usize], most: usize, keep: &[bool]) {
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
            ledger.apply(PID, &record);
        }
    }
}

/// `born 16+3 v 1.0`: OS pages and version.
fn shown(record: &Record) -> String {
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

fn steps() -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec((0..THREADS, any::<u8>(), any::<u64>(), any::<u64>()), 1..60)
}

fn raw_records() -> impl Strategy<Value = Vec<([u64; 4], u8, u64, u64)>> {
    proptest::collection::vec((any::<[u64; 4]>(), 0u8..8, 0u64..40, 1u64..20), 0..100)
}

fn picks() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(0..THREADS, 1..40)
}

proptest! {
    // More with PROPTEST_CASES.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(2000)))]

    #[test]
    fn any_interleaving_ends_in_the_programs_objects(
        epochs in proptest::collection::vec((steps(), picks(), 0usize..60, 0u64..80), 1..5),
    ) {
        let mut program = Program::default();
        let mut ledger = new_ledger();
        let mut now_ms = 0;
        for (steps, picks, most, budget) in &epochs {
            // What was written before the last tick is read before the next: one sweep of all
            // rings.
            drain(&mut program, &mut ledger, picks, usize::MAX, &[]);
            steps.iter().for_each(|step| program.step(*step));
            drain(&mut program, &mut ledger, picks, *most, &[]);
            resize_extents(&mut ledger, *budget, *budget);
            now_ms += 2000;
            ledger.tick(now_ms);
        }
        drain(&mut program, &mut ledger, &[0], usize::MAX, &[]);
        ledger.tick(now_ms + 2000);
        prop_assert_eq!(objects(&ledger), program.ranges(), "{}", program.log);
        prop_assert_eq!(announced(&mut ledger), program.ranges(), "{}", program.log);
        let (extents, bytes) = ledger.extent_totals();
        prop_assert_eq!(extents, ledger.extents().count() as u64);
        prop_assert_eq!(bytes, ledger.extents().map(|extent| extent.bytes).sum::<u64>());
        prop_assert_eq!(ledger.tracked_bytes(PID).map(|(live, _)| live), Some(bytes));
    }

    #[test]
    fn a_resync_heals_any_loss(
        before in steps(),
        after in steps(),
        picks in picks(),
        keep in proptest::collection::vec(any::<bool>(), 1..20),
    ) {
        let mut program = Program::default();
        let mut ledger = new_ledger();
        before.iter().for_each(|step| program.step(*step));
        drain(&mut program, &mut ledger, &picks, usize::MAX, &keep);
        ledger.tick(2000);
        ledger.resync(PID, program.snapshot());
        ledger.tick(4000);
        prop_assert_eq!(objects(&ledger), program.ranges(), "{}", program.log);
        // And the accounting goes on from there.
        after.iter().for_each(|step| program.step(*step));
        drain(&mut program, &mut ledger, &picks, usize::MAX, &[]);
        ledger.tick(6000);
        prop_assert_eq!(objects(&ledger), program.ranges(), "{}", program.log);
        prop_assert_eq!(announced(&mut ledger), program.ranges(), "{}", program.log);
        let (extents, bytes) = ledger.extent_totals();
        prop_assert_eq!(extents, ledger.extents().count() as u64);
        prop_assert_eq!(bytes, ledger.extents().map(|extent| extent.bytes).sum::<u64>());
    }

    #[test]
    fn records_after_a_snapshot_are_sorted_out(
        first in steps(),
        during in steps(),
        picks in picks(),
    ) {
        // The daemon drains, then reads the table; what is written in between is in both.
        let mut program = Program::default();
        let mut ledger = new_ledger();
        first.iter().for_each(|step| program.step(*step));
        drain(&mut program, &mut ledger, &picks, usize::MAX, &[]);
        during.iter().for_each(|step| program.step(*step));
        ledger.resync(PID, program.snapshot());
        drain(&mut program, &mut ledger, &picks, usize::MAX, &[]);
        ledger.tick(2000);
        prop_assert_eq!(objects(&ledger), program.ranges(), "{}", program.log);
    }

    #[test]
    fn no_records_make_it_panic(
        records in raw_records(),
    ) {
        let mut ledger = new_ledger();
        for ([a, b, c, d], kind, page, pages) in records {
            // Addresses collide, everything else is random.
            let kind = u64::from(kind) << 48 | d & !(0xff << 48);
            let raw = [page * OS_PAGE, (pages * OS_PAGE) | (a << 56), b ^ c, kind];
            if let Some(record) = Record::decode(&raw, 0) {
                ledger.apply(PID, &record);
            }
        }
        ledger.tick(2000);
        let found = objects(&ledger);
        prop_assert_eq!(announced(&mut ledger), found);
        ledger.process_exec(PID);
        ledger.tick(4000);
        prop_assert_eq!(ledger.extent_totals(), (0, 0));
        prop_assert_eq!(ledger.tracked_bytes(PID).map(|(now, _)| now), Some(0));
    }
}
