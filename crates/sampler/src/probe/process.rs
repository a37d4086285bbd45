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
/// Runs of written OS pages reported one by one in a window; the rest come as one.
const RUNS_MAX: usize = 256;
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

    /// Replaces the windows; those that stay the same keep what is known of them.
    pub fn watch(&mut self, ranges: &[Range<u64>]) {
        let mut old = std::mem::take(&mut self.windows).into_iter().peekable();
        let mut next = Vec::new();
        for window in windows::cut(ranges) {
            while old.peek().is_some_and(|before| before.window.span.start < window.span.start) {
                self.forget(old.next().expect("just seen"));
            }
            match old.next_if(|before| before.window.span == window.span) {
                Some(before) => next.push(Watched { window, ..before }),
                None => {
                    let (armed_at_ms, uffd) = (None, None);
                    next.push(Watched { window, uffd, armed_at_ms, looked_at_ms: 0 });
                }
            }
        }
        old.for_each(|before| self.forget(before));
        self.windows = next;
        self.ranges = self.windows.iter().flat_map(|w| w.window.ranges.iter().cloned()).collect();
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
        for (range, bytes) in self.ranges.iter().zip(bytes_by_range) {
            if bytes > 0 {
                pass.push(self.pid, range.start, AccessKind::Unknown, bytes, intervals);
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

    fn forget(&self, watched: Watched) {
        if let Some(uffd) = watched.uffd {
            // It may be unmapped by now, and then there is nothing to undo.
            let _ = sys::unregister(&self.uffds[uffd], &watched.window.span);
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

/// A sample per run of written OS pages within a watched range, the tail of many as one.
fn report(pid: u32, window: &Window, runs: &[Range<u64>], intervals: u64, pass: &mut Pass<'_>) {
    let mut reported = 0;
    let mut tail: Vec<(usize, u64, u64)> = Vec::new();
    for run in runs {
        windows::spread(&window.ranges, run, run.end - run.start, |index, bytes| {
            let addr = run.start.max(window.ranges[index].start);
            reported += 1;
            match tail.last_mut() {
                _ if reported <= RUNS_MAX => {
                    pass.push(pid, addr, AccessKind::Write, bytes, intervals);
                }
                Some(last) if last.0 == index => last.2 += bytes,
                _ => tail.push((index, addr, bytes)),
            }
        });
    }
    for (_, addr, bytes) in tail {
        pass.push(pid, addr, AccessKind::Write, bytes, intervals);
    }
}
