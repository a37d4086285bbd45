//! One probed process: what /proc shows of it, when the next look is due.
//! In: the daemon's clock, ranges, userfaultfds. Out: samples, what they cost the program.
//! Knows nothing of other processes.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tiercel_wire::AccessKind;

use super::rate::{self, Seen};
use super::windows::{self, Random};
use super::writes::Writes;
use super::{OS_PAGE, Pass, Terms, smaps};
use crate::clock;

/// Walking one OS page in clear_refs and in smaps together (measured: 0.9 + 1.1 ms for 16,384).
const WALK_NS: u64 = 125;
/// A process whose walk would take longer is not probed for touches: both walks hold its
/// memory-map lock, and its own changes of mappings would wait.
const WALK_MAX: Duration = Duration::from_millis(250);
/// Touches of a longer range are shared out over pieces of one extent (MAT 4.5.1).
const TOUCH_PIECE_BYTES: u64 = 64 << 20;
/// Fewer touched than this share of what is watched: the window may be longer.
const EMPTY: f64 = 0.01;
/// Accesses are shared out in this many parts each.
const PARTS: f64 = 1024.0;
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
    cleared: Option<Cleared>,
    /// Referenced bits are looked at a moment after they were cleared, not at the next step.
    short_touches: bool,
    /// When write tracking is due, milliseconds of the daemon's clock.
    pub writes_due_ms: u64,
    /// When referenced bits are due.
    pub touches_due_ms: u64,
}

struct Cleared {
    at_ms: u64,
    at_ns: u64,
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
            cleared: None,
            short_touches: false,
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

    /// Reports what was written where it was armed, arms elsewhere. Answers what it cost the
    /// program.
    pub fn step_writes(
        &mut self,
        terms: &Terms,
        random: &mut Random,
        pass: &mut Pass<'_>,
    ) -> Duration {
        self.writes.step((self.pid, &self.pagemap), &self.ranges, terms, random, pass)
    }

    /// Reads referenced bits since they were cleared, clears them. In short windows the look comes
    /// in [`Process::look_soon`].
    pub fn step_touches(&mut self, terms: &Terms, pass: &mut Pass<'_>) {
        let predicted = Duration::from_nanos(self.resident_os_pages() * WALK_NS);
        if predicted > WALK_MAX || self.ranges.is_empty() {
            self.cleared = None;
            pass.met.blind += u64::from(predicted > WALK_MAX);
            return;
        }
        if let Some(cleared) = self.cleared.take() {
            let elapsed = Duration::from_millis(pass.now_ms.saturating_sub(cleared.at_ms));
            self.look_at_touches(elapsed, terms, pass);
        }
        if self.clear_refs.write_all(b"1").is_ok() {
            let at_ns = clock::monotonic_ns();
            self.cleared = Some(Cleared { at_ms: pass.now_ms, at_ns });
        }
    }

    /// Whether [`Process::look_soon`] has anything to look at.
    pub fn looks_soon(&self) -> bool {
        self.writes.is_armed() || (self.short_touches && self.cleared.is_some())
    }

    /// The short look, a moment after the steps.
    pub fn look_soon(&mut self, terms: &Terms, pass: &mut Pass<'_>) {
        self.writes.look_soon(&self.pagemap);
        if let Some(cleared) = self.cleared.take_if(|_| self.short_touches) {
            let elapsed = clock::monotonic_ns().saturating_sub(cleared.at_ns);
            self.look_at_touches(Duration::from_nanos(elapsed), terms, pass);
        }
    }

    fn look_at_touches(&mut self, elapsed: Duration, terms: &Terms, pass: &mut Pass<'_>) {
        if self.smaps.rewind().is_err() {
            return;
        }
        let mut accesses_by_range = vec![0u64; self.ranges.len()];
        let mut all = Seen { elapsed, ..Seen::default() };
        for mapping in smaps::read(BufReader::with_capacity(SMAPS_CHUNK, &self.smaps)) {
            let (used, total) =
                (mapping.referenced_bytes / OS_PAGE, mapping.resident_bytes / OS_PAGE);
            let accesses = Seen { used, total, elapsed }.accesses(terms.interval());
            // In 1/1024, so that many small ranges of one mapping do not all round to nothing.
            let parts = (accesses * PARTS) as u64;
            let add = |index: usize, share| accesses_by_range[index] += share;
            windows::spread(&self.ranges, &mapping.range, parts, add);
            let watched = self.ranges.partition_point(|range| range.end <= mapping.range.start);
            if self.ranges.get(watched).is_some_and(|range| range.start < mapping.range.end) {
                (all.used, all.total) = (all.used + used, all.total + total);
            }
        }
        for (range, parts) in self.ranges.iter().zip(accesses_by_range) {
            let pieces: Vec<_> = windows::pieces(range, TOUCH_PIECE_BYTES).collect();
            windows::spread(&pieces, range, parts, |index, share| {
                let (addr, accesses) = (pieces[index].start, share as f64 / PARTS);
                pass.push(self.pid, addr, AccessKind::Unknown, accesses);
            });
        }
        // Full windows tell nothing apart, empty ones nothing at all.
        self.short_touches = match all.share() {
            share if share > rate::FULL => true,
            share if share < EMPTY => false,
            _ => self.short_touches,
        };
    }

    fn resident_os_pages(&mut self) -> u64 {
        let mut text = String::new();
        if self.statm.rewind().is_err() || self.statm.read_to_string(&mut text).is_err() {
            return 0;
        }
        text.split_ascii_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
    }
}
