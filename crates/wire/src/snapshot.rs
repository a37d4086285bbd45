//! The object table, walked without trust and without filling its holes.
//! In: a session's memfd. Out: [`TableSlice`]s of [`ObjectSnapshot`]s.
//! Knows nothing of rings.
//!
//! Entries are copied twice and believed when both copies agree, which is the reader's half of the
//! protocol in `tiercel_wire.h`: a writer clears the entry's first word, writes the rest, and sets
//! the first word last.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::fs::SeekFrom;

use crate::bits;
use crate::layout::{MAP_BYTES, MAP_SHARE, MAPS_AT, MAPS_MAX, OS_PAGE_BYTES, RUN_BYTES, RUNS_AT};
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

/// What one look at the object table found: all objects that begin in a range of addresses.
#[derive(Clone, Debug)]
pub struct TableSlice {
    /// Ascending by address.
    pub objects: Vec<ObjectSnapshot>,
    /// Of those that show memory which others may show too, address and name of that memory,
    /// ascending by address.
    pub shares: Vec<(u64, u64)>,
    /// Where they begin; the next look goes on at its end.
    pub range: Range<u64>,
    /// Entries that were looked at.
    pub entries: u64,
}

/// The object table of a session, read in slices in order of address: entries of the reserved range
/// where it lies, maps below and above it. Maps within it are none that a runtime would report.
pub(crate) struct ObjectTable<'a> {
    pub(crate) fd: BorrowedFd<'a>,
    pub(crate) range_base: u64,
    pub(crate) range_pages: u64,
    /// OS pages of the range that were ever in use.
    pub(crate) run_high_water: u64,
    /// Entries of maps that were ever in use.
    pub(crate) map_high_water: u64,
}

impl ObjectTable<'_> {
    /// Reads on at address `from`: at most `max` objects, and [`RUN_ENTRIES_MAX`] entries of the
    /// reserved range or all of the maps.
    pub(crate) fn slice(&self, from: u64, max: usize) -> TableSlice {
        let range_end = self.range_base + self.range_pages * OS_PAGE_BYTES;
        if from < self.range_base {
            self.maps(from..self.range_base, max)
        } else if from < range_end {
            self.runs(from, range_end, max)
        } else {
            self.maps(from..u64::MAX, max)
        }
    }

    fn runs(&self, from: u64, range_end: u64, max: usize) -> TableSlice {
        let mut copier = Copier::new(self.fd, RUNS_AT, RUN_BYTES);
        let high_water = self.run_high_water.min(self.range_pages);
        let mut page = (from - self.range_base) / OS_PAGE_BYTES;
        let (mut objects, mut entries) = (Vec::new(), 0);
        while objects.len() < max && entries < RUN_ENTRIES_MAX {
            let Some(found) = copier.seek(page, high_water) else {
                let shares = Vec::new();
                return TableSlice { objects, shares, range: from..range_end, entries };
            };
            let entry = copier.entry(found);
            let object = decode_run(entry, self.range_base, found, self.range_pages);
            let (behind, looked_at) = match object {
                Some(object) => (found + object.bytes / OS_PAGE_BYTES, 1),
                None => {
                    let used = copier.skip_empty(found + 1);
                    (used, used - found)
                }
            };
            page = behind;
            entries += looked_at;
            objects.extend(object);
        }
        let range = from..self.range_base + page * OS_PAGE_BYTES;
        TableSlice { objects, shares: Vec::new(), range, entries }
    }

    fn maps(&self, mut range: Range<u64>, max: usize) -> TableSlice {
        let mut copier = Copier::new(self.fd, MAPS_AT, MAP_BYTES);
        let end = self.map_high_water.min(MAPS_MAX as u64);
        let (mut objects, mut shares, mut entries) = (Vec::new(), Vec::new(), 0);
        let mut index = 0;
        while let Some(found) = copier.seek(index, end) {
            entries += 1;
            index = found + 1;
            let entry = copier.entry(found);
            let share = word(entry, MAP_SHARE);
            let object = decode_map(entry).filter(|object| range.contains(&object.addr));
            shares.extend(object.filter(|_| share != 0).map(|object| (object.addr, share)));
            objects.extend(object);
        }
        objects.sort_unstable_by_key(|object| object.addr);
        objects.dedup_by_key(|object| object.addr);
        if let Some(beyond) = objects.get(max) {
            range.end = beyond.addr;
            objects.truncate(max);
        }
        shares.retain(|(addr, _)| range.contains(addr));
        shares.sort_unstable();
        shares.dedup_by_key(|(addr, _)| *addr);
        TableSlice { objects, shares, range, entries }
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

/// Entries of the reserved range that one slice looks at: a table without objects must not take
/// longer than one that is full. 64 copies of 64 KiB, about a millisecond.
const RUN_ENTRIES_MAX: u64 = 1 << 18;

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

    /// The first entry at or after `index` that is in use, or the first behind the chunk.
    fn skip_empty(&self, index: u64) -> u64 {
        let behind = self.chunk.get(bits::index(index - self.first) * self.entry_bytes..);
        let mut entries = behind.unwrap_or_default().chunks_exact(self.entry_bytes);
        let empty = entries.by_ref().take_while(|entry| word(entry, 0) == 0).count();
        index + empty as u64
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
