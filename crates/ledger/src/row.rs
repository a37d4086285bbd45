//! The 64 bytes the ledger keeps per extent, and the slab they lie in.
//! In: births, deaths. Out: rows by number. Knows nothing of addresses' order or of processes.
//!
//! One cache line per extent: a sample touches one line of the index and one row; a policy that
//! reads all extents streams through the slab.

use tiercel_machine::NodeId;
use tiercel_machine::number::index_u32;
use tiercel_wire::Version;
use tiercel_wire::layout::{ARENAS_MAX, OS_PAGE_BYTES};

/// OS pages to bytes, as a shift.
pub(crate) const PAGE_SHIFT: u32 = OS_PAGE_BYTES.trailing_zeros();

/// First extent of its object.
pub(crate) const HEAD: u16 = 1;
/// Last extent of its object. With HEAD it delimits an object without a look at its neighbours.
pub(crate) const LAST: u16 = 1 << 1;
/// Born in the open interval: no record yet, readers do not see it (MAT 3.2.1).
pub(crate) const FRESH: u16 = 1 << 2;
pub(crate) const BLOCK: u16 = 1 << 3;
pub(crate) const MAPPED: u16 = 1 << 4;
/// Lies on more than two nodes: the rest is in the ledger's spill table.
pub(crate) const SPILLED: u16 = 1 << 5;
/// In the queue of extents of unknown residency.
pub(crate) const QUEUED: u16 = 1 << 6;
/// Known from the object table: the record of its birth may still come.
pub(crate) const ADOPTED: u16 = 1 << 7;
/// Its life at this address may have begun after `born`: a realloc moved it here or made it longer,
/// or its birth was lost. What ended here meanwhile goes first.
pub(crate) const VAGUE: u16 = 1 << 8;
/// Samples hit it: it has an entry among the values.
pub(crate) const VALUED: u16 = 1 << 9;
/// The four bits of the arena, from 1 on; 0: the kernel placed the object. There are 8 arenas.
const ARENA_SHIFT: u16 = 12;

/// In `hits` of a record: its averages began with its site's.
pub(crate) const WARM: u16 = 1;

/// A time in units of 16 ms, so that 32 bits last 2.2 years; 0 = never.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp(u32);

impl Stamp {
    /// Milliseconds of a unit: 2^32 of them are 2.2 years.
    const MS: u64 = 16;
    pub(crate) const NEVER: Stamp = Stamp(0);

    pub(crate) fn at(ms: u64) -> Stamp {
        Stamp(u32::try_from(ms / Self::MS).unwrap_or(u32::MAX).max(1))
    }

    /// Milliseconds; of `NEVER`, `None`.
    pub(crate) fn ms(self) -> Option<u64> {
        (self.0 != 0).then(|| u64::from(self.0) * Self::MS)
    }
}

/// OS pages on one node: the node in 10 bits (Linux has at most 1024), the count in 22.
#[derive(Clone, Copy, Default)]
pub(crate) struct Home(u32);

impl Home {
    /// Of 32 bits, 10 hold the node.
    const PAGES_BITS: u32 = 22;

    pub(crate) fn new(node: NodeId, bytes: u64) -> Home {
        let pages = bytes.div_ceil(OS_PAGE_BYTES).min((1 << Self::PAGES_BITS) - 1) as u32;
        debug_assert!(node.0 < 1 << (32 - Self::PAGES_BITS), "node {node:?}");
        Home(u32::from(node.0) << Self::PAGES_BITS | pages)
    }

    pub(crate) fn get(self) -> (NodeId, u64) {
        let pages = self.0 & ((1 << Self::PAGES_BITS) - 1);
        (NodeId((self.0 >> Self::PAGES_BITS) as u16), u64::from(pages) << PAGE_SHIFT)
    }
}

/// Invariants: `addr` is 0 exactly in free rows; the rows of one object follow each other without a
/// gap in address order, the first has HEAD, the last LAST; a FRESH object is a single row, however
/// large, unless a sample hit it.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) addr: u64,
    pub(crate) pages: u32,
    /// Sites of a session have 16 bits.
    pub(crate) site: u16,
    /// What `born` leaves, in units of [`Row::FINE_NS`].
    pub(crate) born_fine: u16,
    pub(crate) carve: u32,
    pub(crate) generation: u16,
    /// Index into the ledger's process table.
    pub(crate) process: u16,
    /// And the arena.
    pub(crate) flags: u16,
    /// Samples that hit it while FRESH, saturating; of a record: [`WARM`] or 0.
    pub(crate) hits: u16,
    /// In units of 16 ms, as a [`Stamp`].
    pub(crate) born: u32,
    pub(crate) last_access: Stamp,
    /// Averages in the making: with d = 1 - alpha, after interval n = `clock` began,
    /// d x average(n) + alpha x (sum so far in n). Closing an interval needs no work, and any later
    /// average is this times a power of d.
    pub(crate) reads: f32,
    pub(crate) writes: f32,
    pub(crate) stall_ns: f32,
    /// Interval of the averages. While FRESH: position in the list of fresh rows instead
    /// (the interval is the open one). In a free row: the next free row.
    pub(crate) clock: u32,
    pub(crate) homes: [Home; 2],
    pub(crate) homes_as_of: Stamp,
}

const _: () = assert!(size_of::<Row>() == 64);

impl Row {
    /// Nanoseconds of a unit of `born_fine`: 62,500 of them are the 16 ms of a unit of `born`.
    const FINE_NS: u64 = 256;
    const BORN_NS: u64 = Stamp::MS * 1_000_000;

    /// A row that nothing has hit yet.
    pub(crate) fn new(addr: u64, pages: u32, site: u32, born_ns: u64) -> Row {
        let mut row = Row {
            addr,
            pages,
            site: u16::try_from(site).unwrap_or(0),
            born_fine: 0,
            carve: 0,
            generation: 0,
            process: 0,
            flags: 0,
            hits: 0,
            born: 0,
            last_access: Stamp::NEVER,
            reads: 0.0,
            writes: 0.0,
            stall_ns: 0.0,
            clock: 0,
            homes: Default::default(),
            homes_as_of: Stamp::NEVER,
        };
        row.set_born_ns(born_ns);
        row
    }

    /// Index into the process's site table, 0 = unknown.
    pub(crate) fn site(&self) -> u32 {
        self.site.into()
    }

    /// The arena that it was born in; `None`: the kernel placed it.
    pub(crate) fn arena(&self) -> Option<u8> {
        u8::try_from(self.flags >> ARENA_SHIFT).ok()?.checked_sub(1)
    }

    /// The bits of `flags` that say so.
    pub(crate) fn arena_flags(arena: Option<u8>) -> u16 {
        let number = arena.filter(|arena| usize::from(*arena) < ARENAS_MAX);
        number.map_or(0, |number| (u16::from(number) + 1) << ARENA_SHIFT)
    }

    /// When it was born, rounded down to 256 ns.
    pub(crate) fn born_ns(&self) -> u64 {
        u64::from(self.born) * Self::BORN_NS + u64::from(self.born_fine) * Self::FINE_NS
    }

    pub(crate) fn set_born_ns(&mut self, ns: u64) {
        self.born = u32::try_from(ns / Self::BORN_NS).unwrap_or(u32::MAX);
        self.born_fine = u16::try_from(ns % Self::BORN_NS / Self::FINE_NS).unwrap_or(u16::MAX);
    }

    /// When it was born, milliseconds.
    pub(crate) fn born_ms(&self) -> u64 {
        self.born_ns() / 1_000_000
    }

    pub(crate) fn end(&self) -> u64 {
        self.addr + self.bytes()
    }

    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.pages) << PAGE_SHIFT
    }

    pub(crate) fn version(&self) -> Version {
        Version { carve: self.carve, generation: self.generation }
    }

    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Rows by number; freed numbers are used again, the latest first.
pub(crate) struct Rows {
    rows: Vec<Row>,
    free: u32,
}

/// In place of a row number: the end of the free list.
const NONE: u32 = u32::MAX;

impl Rows {
    pub(crate) fn new() -> Rows {
        Rows { rows: Vec::new(), free: NONE }
    }

    /// One more than the highest number there ever was.
    pub(crate) fn slots(&self) -> u32 {
        index_u32(self.rows.len())
    }

    pub(crate) fn bytes_held(&self) -> usize {
        self.rows.capacity() * size_of::<Row>()
    }

    /// Callers keep their number below the configured limit, which is below `u32::MAX`.
    pub(crate) fn insert(&mut self, row: Row) -> u32 {
        if self.free == NONE {
            self.rows.push(row);
            return index_u32(self.rows.len() - 1);
        }
        let number = self.free;
        self.free = self.rows[number as usize].clock;
        self.rows[number as usize] = row;
        number
    }

    pub(crate) fn remove(&mut self, number: u32) -> Row {
        let row = self.rows[number as usize];
        assert!(row.addr != 0, "row {number} is free already");
        self.rows[number as usize].addr = 0;
        self.rows[number as usize].clock = self.free;
        self.free = number;
        row
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Row)> {
        self.rows.iter().enumerate().filter(|(_, r)| r.addr != 0).map(|(i, r)| (index_u32(i), r))
    }

    /// The rows among `count` numbers from `from` on.
    pub(crate) fn iter_from(&self, from: usize, count: usize) -> impl Iterator<Item = (u32, &Row)> {
        let some = &self.rows[from.min(self.rows.len())..(from + count).min(self.rows.len())];
        let numbered = some.iter().zip(from..).filter(|(row, _)| row.addr != 0);
        numbered.map(|(row, number)| (index_u32(number), row))
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Row> {
        self.rows.get(number as usize).filter(|row| row.addr != 0)
    }
}

impl std::ops::Index<u32> for Rows {
    type Output = Row;

    fn index(&self, number: u32) -> &Row {
        &self.rows[number as usize]
    }
}

impl std::ops::IndexMut<u32> for Rows {
    fn index_mut(&mut self, number: u32) -> &mut Row {
        &mut self.rows[number as usize]
    }
}
