//! One probed process: its windows, what is armed, when the next look is due.
//! In: the daemon's clock, ranges, userfaultfds. Out: samples, what they cost the program.
//! Knows nothing of other processes.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tiercel_wire::AccessKind;

use super::sys::{self, Scan};
use super::windows::{self, Random, Window};
use super::{Pass, WRITE_FAULT, smaps};
use crate::Config;

/// Bytes of an OS page.
const OS_PAGE: u64 = 4096;
/// Userfaultfds in use: two keep touching windows apart, more would be of no use.
const UFFDS_MAX: usize = 2;
/// Written OS pages are reported together up to this many bytes, a huge OS page.
const WRITE_PIECE_BYTES: u64 = 2 << 20;
/// Touches of a longer range are shared out over pieces of one extent (MAT 4.5.1).
const TOUCH_PIECE_BYTES: u64 = 64 << 20;
/// Walking one OS page in clear_refs and in smaps together (measured: 0.9 + 1.1 ms for 16,384).
const WALK_NS: u64 = 125;
/// A process whose walk would take longer is not probed for touches: both walks hold its
/// memory-map lock, and its own page faults would wait.
const WALK_MAX: Duration = Duration::from_millis(250);
/// Bytes of smaps read at once.
const SMAPS_CHUNK: usize = 64 << 10;

/// See the module.
pub struct Process {
    pid: u32,
    pagemap: File,
    smaps: File,
    clear_refs: File,
    statm: File,
    uffds: Vec<OwnedFd>,
    windows: Vec<Watched>,
    /// Where mappings may be split.
    splittable: Range<u64>,
    /// All watched ranges, ascending.
    ranges: Vec<Range<u64>>,
    /// Pace of write tracking.
    pub writes: Pace,
    /// Pace of referenced bits.
    pub touches: Pace,
}

struct Watched {
    window: Window,
    /// Which userfaultfd it is registered with.
    uffd: Option<usize>,
    armed_at_ms: Option<u64>,
    /// 0 before the first look.
    looked_at_ms: u64,
}

/// When the next step is due.
#[derive(Default)]
pub struct Pace {
    armed_at_ms: Option<u64>,
    due_ms: u64,
}

impl Pace {
    /// True when it is time.
    pub fn due(&self, now_ms: u64) -> bool {
        now_ms >= self.due_ms
    }

    /// Sets the next time.
    pub fn pace(&mut self, now_ms: u64, interval_ms: u64) {
        self.due_ms = now_ms + interval_ms;
    }
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
            uffds: Vec::new(),
            windows: Vec::new(),
            splittable: 0..0,
            ranges: Vec::new(),
            writes: Pace::default(),
            touches: Pace::default(),
        })
    }

    /// Takes a userfaultfd up; one that cannot be used is closed.
    pub fn lend(&mut self, uffd: OwnedFd) {
        if self.uffds.len() < UFFDS_MAX && sys::take_up(&uffd).is_ok() {
            self.uffds.push(uffd);
        }
    }

    /// Whether writes are seen by OS page.
    pub fn tracks_writes(&self) -> bool {
        !self.uffds.is_empty()
    }

    /// Where mappings may be split.
    pub fn may_split(&mut self, within: Range<u64>) {
        self.splittable = within;
    }

    /// Replaces the windows; one that overlaps an old one takes over what is known of it.
    pub fn watch(&mut self, ranges: &[Range<u64>]) {
        let ranges = windows::unsplit(ranges, &self.splittable);
        let mut old = std::mem::take(&mut self.windows).into_iter().peekable();
        let mut next = Vec::new();
        for window in windows::cut(&ranges) {
            let span = window.span.clone();
            let mut watched = Watched { window, uffd: None, armed_at_ms: None, looked_at_ms: 0 };
            while let Some(before) = old.next_if(|before| before.window.span.start < span.end) {
                if watched.uffd.is_none() && before.window.span.end > span.start {
                    watched = self.succeed(before, watched.window);
                } else {
                    self.forget(&before, &before.window.span);
                }
            }
            next.push(watched);
        }
        old.for_each(|before| self.forget(&before, &before.window.span));
        self.windows = next;
        self.ranges = self.windows.iter().flat_map(|w| w.window.ranges.iter().cloned()).collect();
    }

    /// The same window with another outline: what fell off is given back, what was added registered.
    fn succeed(&self, before: Watched, window: Window) -> Watched {
        let (was, is) = (before.window.span.clone(), window.span.clone());
        self.forget(&before, &(was.start..is.start));
        self.forget(&before, &(is.end..was.end));
        let covered = was.start <= is.start && is.end <= was.end;
        let armed_at_ms = before.armed_at_ms.filter(|_| covered);
        let grown = before.uffd.is_some() && !covered;
        if let Some(uffd) = before.uffd.filter(|_| grown) {
            let registered = sys::register(&self.uffds[uffd], &is).is_ok();
            let uffd = registered.then_some(uffd);
            return Watched { window, uffd, armed_at_ms, ..before };
        }
        Watched { window, armed_at_ms, ..before }
    }

    /// Looks at the windows armed before, arms a random few. Answers what it cost the program.
    pub fn step_writes(
        &mut self,
        now_ms: u64,
        config: &Config,
        random: &mut Random,
        pass: &mut Pass<'_>,
    ) -> Duration {
        if self.uffds.is_empty() {
            return Duration::ZERO;
        }
        let picked = windows::pick(self.windows.len(), config.probe_extents, random);
        let mut again = vec![false; self.windows.len()];
        picked.iter().for_each(|index| again[*index] = true);
        let mut written = 0;
        for (index, again) in again.into_iter().enumerate() {
            written += self.look_and_arm(index, again, now_ms, config, pass);
        }
        WRITE_FAULT * u32::try_from(written).unwrap_or(u32::MAX)
    }

    /// Reads referenced bytes since they were cleared, clears them. Answers what it cost the program.
    pub fn step_touches(&mut self, now_ms: u64, config: &Config, pass: &mut Pass<'_>) -> Duration {
        let predicted = Duration::from_nanos(self.resident_os_pages() * WALK_NS);
        if predicted > WALK_MAX || self.ranges.is_empty() {
            self.touches.armed_at_ms = None;
            pass.met.blind += u64::from(predicted > WALK_MAX);
            return Duration::ZERO;
        }
        if let Some(armed_at_ms) = self.touches.armed_at_ms {
            let intervals = (now_ms - armed_at_ms) / config.probe_interval_ms.max(1);
            self.look_at_touches(intervals, pass);
        }
        let cleared = self.clear_refs.write_all(b"1").is_ok();
        self.touches.armed_at_ms = cleared.then_some(now_ms);
        Duration::ZERO
    }

    fn look_at_touches(&mut self, intervals: u64, pass: &mut Pass<'_>) {
        if self.smaps.rewind().is_err() {
            return;
        }
        let mappings = smaps::read(BufReader::with_capacity(SMAPS_CHUNK, &self.smaps));
        let mut bytes_by_range = vec![0u64; self.ranges.len()];
        for mapping in mappings {
            windows::spread(
                &self.ranges,
                &mapping.range,
                mapping.referenced_bytes,
                |index, share| {
                    bytes_by_range[index] += share;
                },
            );
        }
        for (range, bytes) in self.ranges.iter().zip(bytes_by_range).filter(|(_, bytes)| *bytes > 0)
        {
            for piece in windows::pieces(range, TOUCH_PIECE_BYTES) {
                let mut share = 0;
                windows::spread(std::slice::from_ref(&piece), range, bytes, |_, bytes| {
                    share = bytes
                });
                if share > 0 {
                    pass.push(self.pid, piece.start, AccessKind::Unknown, share, intervals);
                }
            }
        }
    }

    /// Reports what was written in a window if it was armed; arms it if it is to be looked at again.
    /// Answers how many OS pages were written.
    fn look_and_arm(
        &mut self,
        index: usize,
        again: bool,
        now_ms: u64,
        config: &Config,
        pass: &mut Pass<'_>,
    ) -> u64 {
        if again && self.windows[index].uffd.is_none() {
            self.register(index);
        }
        let watched = &mut self.windows[index];
        let armed = watched.armed_at_ms.take();
        let scan = match (armed.is_some(), again && watched.uffd.is_some()) {
            (true, true) => Scan::LookAndArm,
            (true, false) => Scan::Look,
            (false, true) => Scan::Arm,
            (false, false) => return 0,
        };
        let mut runs = Vec::new();
        let scanned = sys::scan(&self.pagemap, &watched.window.span, scan, |run| runs.push(run));
        if scanned.is_err() {
            return 0; // Unmapped or gone; the daemon will say so in its own time.
        }
        if scan != Scan::Look {
            watched.armed_at_ms = Some(now_ms);
        }
        let since = match watched.looked_at_ms {
            0 => armed.unwrap_or(now_ms),
            looked_at_ms => looked_at_ms,
        };
        if armed.is_some() {
            watched.looked_at_ms = now_ms;
        }
        let intervals = now_ms.saturating_sub(since) / config.probe_interval_ms.max(1);
        report(self.pid, &watched.window, &runs, intervals, pass);
        runs.iter().map(|run| (run.end - run.start) / OS_PAGE).sum()
    }

    /// Registers a window with a userfaultfd that its neighbours do not have.
    fn register(&mut self, index: usize) {
        let touching = |other: usize| {
            let other = self.windows.get(other)?;
            let (a, b) = (&other.window.span, &self.windows[index].window.span);
            (a.end == b.start || b.end == a.start).then_some(other.uffd?)
        };
        let before = index.checked_sub(1).and_then(touching);
        let after = touching(index + 1);
        let free = |uffd: &usize| Some(*uffd) != before && Some(*uffd) != after;
        let uffd = (0..self.uffds.len()).find(free).unwrap_or(index % self.uffds.len());
        let watched = &mut self.windows[index];
        if sys::register(&self.uffds[uffd], &watched.window.span).is_ok() {
            watched.uffd = Some(uffd);
        }
    }

    /// Gives back part of what a window registered.
    fn forget(&self, watched: &Watched, part: &Range<u64>) {
        if let Some(uffd) = watched.uffd.filter(|_| part.start < part.end) {
            // It may be unmapped by now, and then there is nothing to undo.
            let _ = sys::unregister(&self.uffds[uffd], part);
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

/// A sample per watched range and piece of it in which something was written, at the first written
/// byte. Single OS pages would be many samples that say no more about an extent.
fn report(pid: u32, window: &Window, runs: &[Range<u64>], intervals: u64, pass: &mut Pass<'_>) {
    let mut open: Option<(usize, u64, u64)> = None; // range, first written byte, bytes
    let piece_of = |addr: u64| addr / WRITE_PIECE_BYTES;
    for run in runs.iter().flat_map(|run| windows::pieces_aligned(run, WRITE_PIECE_BYTES)) {
        windows::spread(&window.ranges, &run, run.end - run.start, |index, bytes| {
            let addr = run.start.max(window.ranges[index].start);
            match &mut open {
                Some((last, at, sum)) if *last == index && piece_of(*at) == piece_of(addr) => {
                    *sum += bytes;
                }
                _ => {
                    if let Some((_, at, sum)) = open.replace((index, addr, bytes)) {
                        pass.push(pid, at, AccessKind::Write, sum, intervals);
                    }
                }
            }
        });
    }
    if let Some((_, at, sum)) = open {
        pass.push(pid, at, AccessKind::Write, sum, intervals);
    }
}
