//! The object table, walked without trust and without filling its holes.
//! In: a session's memfd. Out: [`ObjectSnapshot`]s.
//! Knows nothing of rings.
//!
//! Entries are copied twice and believed when both copies agree, which is the reader's half of the
//! protocol in `tiercel_wire.h`: a writer clears the entry's first word, writes the rest, and sets
//! the first word last.

use std::os::fd::BorrowedFd;

use rustix::fs::SeekFrom;

use crate::bits;
use crate::layout::{MAP_BYTES, MAPS_AT, MAPS_MAX, OS_PAGE_BYTES, RUN_BYTES, RUNS_AT};
use crate::record::{Flags, Version, arena_from_wire, is_object_range};
use crate::site::{half, quarter, word};

/// A live object of the object table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectSnapshot {
    /// First byte.
    pub addr: u64,
    /// Bytes, a multiple of an OS page.
    pub bytes: u64,
    /// Index into the site table, 0 = unknown.
    pub site: u32,
    /// Which use of the address.
    pub version: Version,
    /// Arena it was born in; `None` where the kernel places it.
    pub arena: Option<u8>,
    /// Kind of object.
    pub flags: Flags,
}

/// Iterator over the object table: first the reserved range in order of address, then the maps.
pub struct Snapshot<'a> {
    runs: Copier<'a>,
    maps: Copier<'a>,
    range_base: u64,
    range_pages: u64,
    /// Next OS page of the range to look at, and where to stop.
    page: u64,
    page_end: u64,
    map: u64,
    map_end: u64,
}

impl<'a> Snapshot<'a> {
    pub(crate) fn new(
        fd: BorrowedFd<'a>,
        range_base: u64,
        range_pages: u64,
        page_end: u64,
        map_end: u32,
    ) -> Snapshot<'a> {
        Snapshot {
            runs: Copier::new(fd, RUNS_AT, RUN_BYTES),
            maps: Copier::new(fd, MAPS_AT, MAP_BYTES),
            range_base,
            range_pages,
            page: 0,
            page_end,
            map: 0,
            map_end: u64::from(map_end).min(MAPS_MAX as u64),
        }
    }

    fn next_run(&mut self) -> Option<ObjectSnapshot> {
        while self.page < self.page_end {
            let Some(page) = self.runs.seek(self.page, self.page_end) else {
                self.page = self.page_end;
                break;
            };
            let found = decode_run(self.runs.entry(page), self.range_base, page, self.range_pages);
            self.page = page + found.map_or(1, |object| object.bytes / OS_PAGE_BYTES);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    fn next_map(&mut self) -> Option<ObjectSnapshot> {
        while self.map < self.map_end {
            let Some(index) = self.maps.seek(self.map, self.map_end) else {
                self.map = self.map_end;
                break;
            };
            self.map = index + 1;
            let found = decode_map(self.maps.entry(index));
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

impl Iterator for Snapshot<'_> {
    type Item = ObjectSnapshot;

    fn next(&mut self) -> Option<ObjectSnapshot> {
        self.next_run().or_else(|| self.next_map())
    }
}

fn decode_run(entry: &[u8], base: u64, page: u64, range_pages: u64) -> Option<ObjectSnapshot> {
    let (shape, identity) = (word(entry, 0), word(entry, 8));
    let pages = shape >> 32;
    if pages == 0 || page + pages > range_pages {
        return None;
    }
    Some(ObjectSnapshot {
        addr: base + page * OS_PAGE_BYTES,
        bytes: pages * OS_PAGE_BYTES,
        site: half(entry, 12),
        version: Version { carve: half(entry, 0), generation: quarter(entry, 10) },
        arena: arena_from_wire(bits::low8(identity >> 8)),
        flags: Flags::from_wire(bits::low8(identity)),
    })
}

fn decode_map(entry: &[u8]) -> Option<ObjectSnapshot> {
    let (addr, bytes) = (word(entry, 0), word(entry, 8));
    is_object_range(addr, bytes).then(|| ObjectSnapshot {
        addr,
        bytes,
        site: half(entry, 16),
        version: Version { carve: half(entry, 20), generation: quarter(entry, 24) },
        flags: Flags::from_wire(entry[26]),
        arena: arena_from_wire(entry[27]),
    })
}

/// Bytes copied at a time: the run entries of 16 MiB of heap.
const CHUNK_BYTES: usize = 64 << 10;
/// Looks at a chunk that changes under us before its unstable entries are passed over. A process
/// that writes this often has said the same in its rings.
const LOOKS: usize = 4;

/// Copies a table in chunks and hops over the file's holes.
struct Copier<'a> {
    fd: BorrowedFd<'a>,
    table_at: u64,
    entry_bytes: usize,
    chunk: Vec<u8>,
    again: Vec<u8>,
    /// Index of the first entry of `chunk`.
    first: u64,
}

impl<'a> Copier<'a> {
    fn new(fd: BorrowedFd<'a>, table_at: u64, entry_bytes: usize) -> Copier<'a> {
        Copier { fd, table_at, entry_bytes, chunk: Vec::new(), again: Vec::new(), first: 0 }
    }

    /// The first entry at or after `index`, below `end`, that does not lie in a hole.
    fn seek(&mut self, index: u64, end: u64) -> Option<u64> {
        let held = (self.chunk.len() / self.entry_bytes) as u64;
        if index >= self.first && index < self.first + held {
            return Some(index);
        }
        let size = self.entry_bytes as u64;
        let from = self.table_at + index * size;
        // Moves the file offset that the client shares; neither side uses it.
        let data = rustix::fs::seek(self.fd, SeekFrom::Data(from)).ok()?;
        let found = index.max(data.saturating_sub(self.table_at) / size);
        if found >= end {
            return None;
        }
        let entries = (end - found).min((CHUNK_BYTES / self.entry_bytes) as u64);
        self.copy(found, bits::index(entries) * self.entry_bytes)
    }

    fn copy(&mut self, first: u64, bytes: usize) -> Option<u64> {
        self.first = first;
        let at = self.table_at + first * self.entry_bytes as u64;
        read_up_to(self.fd, &mut self.chunk, at, bytes)?;
        for _ in 1..LOOKS {
            read_up_to(self.fd, &mut self.again, at, bytes)?;
            if self.chunk == self.again {
                return Some(first);
            }
            std::mem::swap(&mut self.chunk, &mut self.again);
        }
        read_up_to(self.fd, &mut self.again, at, bytes)?;
        let pairs = self.chunk.chunks_mut(self.entry_bytes);
        for (entry, again) in pairs.zip(self.again.chunks(self.entry_bytes)) {
            if entry != again {
                entry.fill(0);
            }
        }
        Some(first)
    }

    fn entry(&self, index: u64) -> &[u8] {
        let at = bits::index(index - self.first) * self.entry_bytes;
        &self.chunk[at..at + self.entry_bytes]
    }
}

/// Fills `buffer` with exactly `bytes` from the file, or empties it: a file sealed against
/// shrinking reads short only when something is badly wrong.
fn read_up_to(fd: BorrowedFd<'_>, buffer: &mut Vec<u8>, at: u64, bytes: usize) -> Option<()> {
    buffer.resize(bytes, 0);
    let got = rustix::io::pread(fd, &mut buffer[..], at).unwrap_or(0);
    if got == bytes {
        return Some(());
    }
    buffer.clear();
    None
}
