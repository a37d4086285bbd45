//! The 64 bytes the ledger keeps per extent, and the slab they lie in.
//! In: births, deaths. Out: rows by number. Knows nothing of addresses' order or of processes.
//!
//! One cache line per extent: a sample touches one line of the index and one row; a policy that
//! reads all extents streams through the slab.

use tiercel_machine::NodeId;
use tiercel_machine::number::index_u32;
use tiercel_wire::Version;
use tiercel_wire::layout::OS_PAGE_BYTES;

/// OS pages to bytes, as a shift.
pub(crate) const PAGE_SHIFT: u32 = OS_PAGE_BYTES.trailing_zeros();

/// First extent of its object.
pub(crate) const HEAD: u8 = 1;
/// Last extent of its object. With HEAD it delimits an object without a look at its neighbours.
pub(crate) const LAST: u8 = 1 << 1;
/// Born in the open interval: no record yet, readers do not see it (MAT 3.2.1).
pub(crate) const FRESH: u8 = 1 << 2;
pub(crate) const BLOCK: u8 = 1 << 3;
pub(crate) const MAPPED: u8 = 1 << 4;
/// Lies on more than two nodes: the rest is in the ledger's spill table.
pub(crate) const SPILLED: u8 = 1 << 5;
/// In the queue of extents of unknown residency.
pub(crate) const QUEUED: u8 = 1 << 6;

/// In `hits` of a record: its averages began with its site's.
pub(crate) const WARM: u16 = 1;

/// In place of an arena: the kernel placed the object.
pub(crate) const NO_ARENA: u8 = u8::MAX;

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
    pub(crate) site: u32,
    pub(crate) carve: u32,
    pub(crate) generation: u16,
    /// Index into the ledger's process table.
    pub(crate) process: u16,
    pub(crate) flags: u8,
    pub(crate) arena: u8,
    /// Samples that hit it while FRESH, saturating; of a record: [`WARM`] or 0.
    pub(crate) hits: u16,
    pub(crate) born: Stamp,
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
    pub(crate) fn end(&self) -> u64 {
        self.addr + self.bytes()
    }

    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.pages) << PAGE_SHIFT
    }

    pub(crate) fn version(&self) -> Version {
        Version { carve: self.carve, generation: self.generation }
    }

    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Rows by number; freed numbers are used again, the latest first.
pub(crate) struct Rows {
    rows: Vec<Row>,
    free: u32,
    live: u32,
}

/// In place of a row number: the end of the free list.
const NONE: u32 = u32::MAX;

impl Rows {
    pub(crate) fn new() -> Rows {
        Rows { rows: Vec::new(), free: NONE, live: 0 }
    }

    pub(crate) fn live(&self) -> u32 {
        self.live
    }

    /// One more than the highest number there ever was.
    pub(crate) fn slots(&self) -> u32 {
        index_u32(self.rows.len())
    }

    pub(crate) fn bytes_held(&self) -> usize {
        self.rows.capacity() * size_of::<Row>()
    }

    /// Callers keep `live` below the configured limit, which is below `u32::MAX`.
    pub(crate) fn insert(&mut self, row: Row) -> u32 {
        self.live += 1;
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
        self.live -= 1;
        row
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Row)> {
        self.rows.iter().enumerate().filter(|(_, r)| r.addr != 0).map(|(i, r)| (index_u32(i), r))
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
