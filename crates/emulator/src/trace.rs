// SPDX-License-Identifier: GPL-2.0-or-later
//! Every miss of user code, as a file for the host. In: misses in the order of time. Out: records
//! of 16 bytes, little endian. Knows nothing of objects: `crates/lab` finds them.
//!
//! ```text
//!   u64  kind << 48 | value      kind 0: the guest's clock, nanoseconds
//!   u32  nanoseconds since the        1: the process of what follows
//!        record before                2: read  3: write  4: line made dirty; virtual address
//!   u32  stall, picoseconds
//! ```
//!
//! Memory is bounded by one buffer, the file by a limit: what is beyond is counted.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::stats::TraceStats;

/// Bytes of a record, and of what is written at once.
const RECORD_BYTES: u64 = 16;
const BUFFER_BYTES: usize = 1 << 20;

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The clock.
    Time = 0,
    /// Whose the misses after it are.
    Process = 1,
    /// Memory served a load,
    Read = 2,
    /// or the line of a store.
    Write = 3,
    /// A store made a line dirty.
    Dirtied = 4,
}

/// The file.
#[derive(Debug)]
pub struct Trace {
    out: BufWriter<File>,
    left: u64,
    stats: TraceStats,
    last_ns: u64,
    process: Option<u32>,
}

impl Trace {
    /// An empty file of at most so many bytes.
    pub fn create(path: &Path, bytes_max: u64) -> std::io::Result<Trace> {
        let out = BufWriter::with_capacity(BUFFER_BYTES, File::create(path)?);
        let (left, stats) = (bytes_max / RECORD_BYTES, TraceStats::default());
        Ok(Trace { out, left, stats, last_ns: 0, process: None })
    }

    /// A miss of a process, for which the processor waited so long.
    pub fn miss(&mut self, now_ns: u64, process: u32, kind: Kind, address: u64, stall_ps: u64) {
        if u32::try_from(now_ns.wrapping_sub(self.last_ns)).is_err() {
            self.last_ns = now_ns;
            self.put(Kind::Time, now_ns, 0, 0);
        }
        if self.process.replace(process) != Some(process) {
            self.put(Kind::Process, process.into(), 0, 0);
        }
        let since_ns = u32::try_from(now_ns.wrapping_sub(self.last_ns)).unwrap_or(0);
        self.last_ns = now_ns;
        let stall_ps = u32::try_from(stall_ps).unwrap_or(u32::MAX);
        if self.put(kind, address, since_ns, stall_ps) {
            self.stats.misses += 1;
        } else {
            self.stats.lost += 1;
        }
    }

    /// All is written. How many misses the file has, and how many it has not.
    pub fn finish(&mut self) -> TraceStats {
        if self.out.flush().is_err() {
            // How many of them are in the file is not known.
            self.stats.lost += std::mem::take(&mut self.stats.misses);
        }
        self.stats.clone()
    }

    /// False when it is not in the file: the file is full, or so is the disk.
    fn put(&mut self, kind: Kind, value: u64, since_ns: u32, stall_ps: u32) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        let mut record = [0; 16];
        let first = (kind as u64) << 48 | value & ((1 << 48) - 1);
        record[..8].copy_from_slice(&first.to_le_bytes());
        record[8..12].copy_from_slice(&since_ns.to_le_bytes());
        record[12..].copy_from_slice(&stall_ps.to_le_bytes());
        let is_written = self.out.write_all(&record).is_ok();
        if !is_written {
            self.left = 0;
        }
        is_written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(trace: impl FnOnce(&mut Trace), bytes_max: u64) -> (Vec<[u64; 4]>, TraceStats) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let mut made = Trace::create(file.path(), bytes_max).expect("created");
        trace(&mut made);
        let stats = made.finish();
        let bytes = std::fs::read(file.path()).expect("read");
        let word = |bytes: &[u8]| u64::from(u32::from_le_bytes(bytes.try_into().expect("four")));
        let record = |bytes: &[u8]| {
            let first = u64::from_le_bytes(bytes[..8].try_into().expect("eight"));
            [first >> 48, first & ((1 << 48) - 1), word(&bytes[8..12]), word(&bytes[12..])]
        };
        (bytes.chunks(16).map(record).collect(), stats)
    }

    #[test]
    fn misses_follow_their_process_and_times_are_differences() {
        let start_ns = 1 << 40;
        let (seen, stats) = records(
            |trace| {
                trace.miss(start_ns, 7, Kind::Read, 0x7f00_0000_1000, 90_000);
                trace.miss(start_ns + 5, 7, Kind::Write, 64, 1 << 40);
                trace.miss(start_ns + 9, 8, Kind::Dirtied, 128, 0);
            },
            1 << 20,
        );
        let most = u64::from(u32::MAX);
        let expected = [
            [0, start_ns, 0, 0],
            [1, 7, 0, 0],
            [2, 0x7f00_0000_1000, 0, 90_000],
            [3, 64, 5, most],
            [1, 8, 0, 0],
            [4, 128, 4, 0],
        ];
        assert_eq!(seen, expected);
        assert_eq!((stats.misses, stats.lost), (3, 0));
    }

    #[test]
    fn a_full_file_counts_what_it_has_not() {
        let miss = |trace: &mut Trace| (0..9).for_each(|at| trace.miss(at, 7, Kind::Read, at, 0));
        let (seen, stats) = records(miss, 5 * 16 + 15);
        assert_eq!((seen.len(), stats.misses, stats.lost), (5, 4, 5));
        // A device that is always full.
        let mut full = Trace::create(Path::new("/dev/full"), 1 << 30).expect("opened");
        miss(&mut full);
        let stats = full.finish();
        assert_eq!((stats.misses, stats.lost), (0, 9));
    }
}
