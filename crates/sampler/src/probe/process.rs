//! One probed process: what /proc shows of it, when the next look is due.
//! In: the daemon's clock, ranges, userfaultfds. Out: samples, what they cost the program.
//! Knows nothing of other processes.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tiercel_wire::AccessKind;

use super::windows::{self, Random};
use super::writes::Writes;
use super::{Pass, Terms, smaps};

/// Walking one OS page in clear_refs and in smaps together (measured: 0.9 + 1.1 ms for 16,384).
const WALK_NS: u64 = 125;
/// A process whose walk would take longer is not probed for touches: both walks hold its
/// memory-map lock, and its own changes of mappings would wait.
const WALK_MAX: Duration = Duration::from_millis(250);
/// Touches of a longer range are shared out over pieces of one extent (MAT 4.5.1).
const TOUCH_PIECE_BYTES: u64 = 64 << 20;
/// Touches of one look stand for at most this many intervals.
const INTERVALS_MAX: u64 = 100;
/// Bytes of smaps read at once.
const SMAPS_CHUNK: usize = 64 << 10;

/// See the module.
pub struct Process {
    pid: u32,
    pagemap: File,
    smaps: File,
    clear_refs: File,
    statm: File,
    writes: Writes,
    /// Where mappings may be split.
    splittable: Range<u64>,
    /// All watched ranges, ascending.
    ranges: Vec<Range<u64>>,
    cleared_at_ms: Option<u64>,
    /// When write tracking is due, milliseconds of the daemon's clock.
    pub writes_due_ms: u64,
    /// When referenced bits are due.
    pub touches_due_ms: u64,
}

impl Process {
    /// Opens what /proc shows; all of it stays bound to this process, whatever its number becomes.
    ///
    /// # Errors
    /// ENOENT: gone; EACCES: not ours.
    pub fn open(pid: u32) -> io::Result<Process> {
        let file = |name: &str| File::open(format!("/proc/{pid}/{name}"));
        Ok(Process {
            pid,
            pagemap: file("pagemap")?,
            smaps: file("smaps")?,
            clear_refs: OpenOptions::new().write(true).open(format!("/proc/{pid}/clear_refs"))?,
            statm: file("statm")?,
            writes: Writes::default(),
            splittable: 0..0,
            ranges: Vec::new(),
            cleared_at_ms: None,
            writes_due_ms: 0,
            touches_due_ms: 0,
        })
    }

    /// Takes a userfaultfd up; one that cannot be used is closed.
    pub fn lend(&mut self, uffd: OwnedFd) {
        self.writes.lend(uffd);
    }

    /// Whether writes are seen by OS page.
    pub fn tracks_writes(&self) -> bool {
        self.writes.works()
    }

    /// Where mappings may be split.
    pub fn may_split(&mut self, within: Range<u64>) {
        self.splittable = within;
    }

    /// Replaces what is watched.
    pub fn watch(&mut self, ranges: &[Range<u64>]) {
        let windows = windows::cut(&windows::unsplit(ranges, &self.splittable));
        self.ranges = windows.iter().flat_map(|window| window.ranges.iter().cloned()).collect();
        self.writes.watch(windows);
    }

    /// Reports what was written where it was armed, arms elsewhere. Answers what it cost the program.
    pub fn step_writes(
        &mut self,
        terms: &Terms,
        random: &mut Random,
        pass: &mut Pass<'_>,
    ) -> Duration {
        self.writes.step((self.pid, &self.pagemap), &self.ranges, terms, random, pass)
    }

    /// Reads referenced bytes since they were cleared, clears them.
    pub fn step_touches(&mut self, terms: &Terms, pass: &mut Pass<'_>) {
        let predicted = Duration::from_nanos(self.resident_os_pages() * WALK_NS);
        if predicted > WALK_MAX || self.ranges.is_empty() {
            self.cleared_at_ms = None;
            pass.met.blind += u64::from(predicted > WALK_MAX);
            return;
        }
        if let Some(cleared_at_ms) = self.cleared_at_ms {
            let intervals = pass.now_ms.saturating_sub(cleared_at_ms) / terms.interval_ms;
            self.look_at_touches(intervals.clamp(1, INTERVALS_MAX), pass);
        }
        let cleared = self.clear_refs.write_all(b"1").is_ok();
        self.cleared_at_ms = cleared.then_some(pass.now_ms);
    }

    fn look_at_touches(&mut self, intervals: u64, pass: &mut Pass<'_>) {
        if self.smaps.rewind().is_err() {
            return;
        }
        let mut bytes_by_range = vec![0u64; self.ranges.len()];
        for mapping in smaps::read(BufReader::with_capacity(SMAPS_CHUNK, &self.smaps)) {
            let add = |index: usize, share| bytes_by_range[index] += share;
            windows::spread(&self.ranges, &mapping.range, mapping.referenced_bytes, add);
        }
        for (range, bytes) in self.ranges.iter().zip(bytes_by_range) {
            let pieces: Vec<_> = windows::pieces(range, TOUCH_PIECE_BYTES).collect();
            windows::spread(&pieces, range, bytes, |index, share| {
                let bytes = share.saturating_mul(intervals);
                pass.push(self.pid, pieces[index].start, AccessKind::Unknown, bytes);
            });
        }
    }

    fn resident_os_pages(&mut self) -> u64 {
        let mut text = String::new();
        if self.statm.rewind().is_err() || self.statm.read_to_string(&mut text).is_err() {
            return 0;
        }
        text.split_ascii_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
    }
}
