//! Write tracking of one process: which windows are registered, which pieces of them are armed.
//! In: ranges, userfaultfds, the daemon's clock. Out: samples of written OS pages, what they cost.
//! Knows nothing of other processes, nor of referenced bits.
//!
//! ```text
//! window   [------- registered, so a mapping by itself -------][-- the next, other userfaultfd --]
//! pieces   [ 2 MiB ][ 2 MiB ][ armed ][ 2 MiB ] ...                      [ armed ] ...
//! ```
//!
//! Each write to an armed OS page costs the program a fault, once. So only so many pieces, at
//! random, are armed at a time that the faults stay in budget; what they show stands for all
//! pieces.
//!
//! Invariant: every armed piece has been registered without a break since it was armed; otherwise
//! what was never protected would look written.

use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tiercel_wire::AccessKind;

use super::rate::{self, Seen};
use super::sys::{self, Scan};
use super::windows::{self, Random, Window};
use super::{OS_PAGE, Pass, Terms};
use crate::clock;

/// CPU time a write to a protected OS page takes from the program (measured: 4096 in 4.7 ms).
const WRITE_FAULT: Duration = Duration::from_nanos(1150);
/// What is armed and reported as one: a huge OS page; at worst 512 faults, 0.6 ms.
const PIECE_BYTES: u64 = 2 << 20;
/// Userfaultfds in use: two keep touching windows apart, more would be of no use.
const UFFDS_MAX: usize = 2;
/// Windows registered in one step; the others follow in the next (5 us each).
const REGISTERED_PER_STEP: usize = 64;

/// See the module.
#[derive(Default)]
pub struct Writes {
    uffds: Vec<OwnedFd>,
    windows: Vec<Watched>,
    /// Pieces in windows `0..=i`.
    pieces_to: Vec<u64>,
    armed: Vec<Armed>,
    armed_at_ms: u64,
    armed_at_ns: u64,
    /// From arming to the short look.
    short: Duration,
    /// How many pieces the armed ones were picked from.
    armed_of: u64,
    /// Pieces to arm at a time.
    count: usize,
    /// Windows from here on have not been tried since they came.
    untried: usize,
}

struct Armed {
    piece: Range<u64>,
    /// OS pages written at the short look.
    written_soon: u64,
}

struct Watched {
    window: Window,
    /// Which userfaultfd it is registered with.
    uffd: Option<usize>,
}

impl Writes {
    /// Takes a userfaultfd up; one that cannot be used is closed.
    pub fn lend(&mut self, uffd: OwnedFd) {
        if self.uffds.len() < UFFDS_MAX && sys::take_up(&uffd).is_ok() {
            self.uffds.push(uffd);
            self.untried = 0;
        }
    }

    /// Whether writes are seen at all.
    pub fn works(&self) -> bool {
        !self.uffds.is_empty()
    }

    /// Replaces the windows; one that overlaps an old one takes over its registration.
    pub fn watch(&mut self, windows: Vec<Window>) {
        let mut old = std::mem::take(&mut self.windows).into_iter().peekable();
        let mut next = Vec::with_capacity(windows.len());
        for window in windows {
            let span = window.span.clone();
            let mut uffd = None;
            while let Some(before) = old.next_if(|before| before.window.span.start < span.end) {
                if uffd.is_none() && before.window.span.end > span.start {
                    uffd = self.succeed(&before, &span);
                } else {
                    self.forget(&before, &before.window.span);
                }
            }
            next.push(Watched { window, uffd });
        }
        old.for_each(|before| self.forget(&before, &before.window.span));
        let mut pieces = 0;
        let count = |watched: &Watched| windows::piece_count(&watched.window.span, PIECE_BYTES);
        let running = next.iter().map(|watched| {
            pieces += count(watched);
            pieces
        });
        self.pieces_to = running.collect();
        self.windows = next;
        self.untried = 0;
    }

    /// Looks at the pieces armed before, arms others. Answers what it cost the program.
    pub fn step(
        &mut self,
        (pid, pagemap): (u32, &File),
        ranges: &[Range<u64>],
        terms: &Terms,
        random: &mut Random,
        pass: &mut Pass<'_>,
    ) -> Duration {
        if self.uffds.is_empty() {
            return Duration::ZERO;
        }
        let began = clock::thread_cpu();
        let elapsed = Duration::from_millis(pass.now_ms.saturating_sub(self.armed_at_ms));
        let armed = std::mem::take(&mut self.armed);
        let stands_for = self.armed_of as f64 / armed.len().max(1) as f64;
        let mut written = 0;
        for Armed { piece, written_soon } in &armed {
            let runs = written_runs(pagemap, piece);
            let seen = |used, elapsed| {
                let total = (piece.end - piece.start) / OS_PAGE;
                Seen { used, total, elapsed }
            };
            let used = os_pages(&runs);
            written += used;
            let (long, short) = (seen(used, elapsed), seen(*written_soon, self.short));
            let accesses = rate::accesses(&long, &short, terms.interval()) * stands_for;
            report(ranges, &runs, |addr, bytes| {
                let share = bytes as f64 / (used * OS_PAGE) as f64;
                pass.push(pid, addr, AccessKind::Write, accesses * share);
            });
        }
        let theirs = WRITE_FAULT * u32::try_from(written).unwrap_or(u32::MAX);
        if !armed.is_empty() {
            let spent = clock::thread_cpu() - began + theirs;
            self.adapt(spent, elapsed.mul_f64(terms.cpu_share), terms.pieces_max);
        }
        self.register_some();
        self.arm(pagemap, random, pass.now_ms);
        theirs
    }

    /// Whether a short look would see anything.
    pub fn is_armed(&self) -> bool {
        !self.armed.is_empty()
    }

    /// Looks at the pieces armed a moment ago: the busiest show now how busy they are.
    pub fn look_soon(&mut self, pagemap: &File) {
        for armed in &mut self.armed {
            armed.written_soon = os_pages(&written_runs(pagemap, &armed.piece));
        }
        self.short = Duration::from_nanos(clock::monotonic_ns().saturating_sub(self.armed_at_ns));
    }

    /// More pieces while it is cheap, fewer when it was too dear.
    fn adapt(&mut self, spent: Duration, allowed: Duration, pieces_max: usize) {
        if spent > allowed {
            self.count /= 2;
        } else if spent < allowed / 2 {
            self.count *= 2;
        }
        self.count = self.count.clamp(1, pieces_max.max(1));
    }

    fn arm(&mut self, pagemap: &File, random: &mut Random, now_ms: u64) {
        let Some(total) = self.pieces_to.last().copied().filter(|total| *total > 0) else { return };
        for number in windows::pick(total, self.count.max(1), random) {
            let index = self.pieces_to.partition_point(|to| *to <= number);
            let Watched { window, uffd } = &self.windows[index];
            let before = index.checked_sub(1).map_or(0, |before| self.pieces_to[before]);
            let mut pieces = windows::pieces_aligned(&window.span, PIECE_BYTES);
            let piece = pieces.nth((number - before) as usize).expect("counted in watch");
            if uffd.is_some() && sys::scan(pagemap, &piece, Scan::Arm, |_| ()).is_ok() {
                self.armed.push(Armed { piece, written_soon: 0 });
            }
        }
        (self.armed_at_ms, self.armed_of) = (now_ms, total);
        (self.armed_at_ns, self.short) = (clock::monotonic_ns(), Duration::ZERO);
    }

    fn register_some(&mut self) {
        let end = self.windows.len().min(self.untried + REGISTERED_PER_STEP);
        for index in self.untried..end {
            if self.windows[index].uffd.is_none() {
                self.register(index);
            }
        }
        self.untried = end;
    }

    /// Registers a window with a userfaultfd that its neighbours do not have. One that the kernel
    /// refuses (part of it is not memory of the program's) stays unseen.
    fn register(&mut self, index: usize) {
        let span = &self.windows[index].window.span;
        let touching = |other: usize| {
            let Watched { window, uffd } = self.windows.get(other)?;
            (window.span.end == span.start || span.end == window.span.start).then_some((*uffd)?)
        };
        let before = index.checked_sub(1).and_then(touching);
        let after = touching(index + 1);
        let free = |uffd: &usize| Some(*uffd) != before && Some(*uffd) != after;
        let uffd = (0..self.uffds.len()).find(free).unwrap_or(index % self.uffds.len());
        if sys::register(&self.uffds[uffd], span).is_ok() {
            self.windows[index].uffd = Some(uffd);
        }
    }

    /// Gives a window's registration another outline: what fell off is given back, what was added
    /// is registered. Answers the userfaultfd it is registered with.
    fn succeed(&mut self, before: &Watched, is: &Range<u64>) -> Option<usize> {
        let was = &before.window.span;
        self.forget(before, &(was.start..is.start));
        self.forget(before, &(is.end..was.end));
        let covered = was.start <= is.start && is.end <= was.end;
        before.uffd.filter(|uffd| covered || sys::register(&self.uffds[*uffd], is).is_ok())
    }

    /// Gives back part of what a window registered.
    fn forget(&mut self, watched: &Watched, part: &Range<u64>) {
        let Some(uffd) = watched.uffd.filter(|_| part.start < part.end) else { return };
        let before = self.armed.len() as u64;
        let apart = |piece: &Range<u64>| piece.end <= part.start || part.end <= piece.start;
        self.armed.retain(|armed| apart(&armed.piece));
        // The pieces that are left stand for as many others as before.
        self.armed_of = self.armed_of * self.armed.len() as u64 / before.max(1);
        // It may be unmapped by now, and then there is nothing to undo.
        let _ = sys::unregister(&self.uffds[uffd], part);
    }
}

/// What was written of a piece. One that was unmapped since shows nothing, and neither does a
/// process that is gone.
fn written_runs(pagemap: &File, piece: &Range<u64>) -> Vec<Range<u64>> {
    let mut runs = Vec::new();
    let _ = sys::scan(pagemap, piece, Scan::Look, |run| runs.push(run));
    runs
}

fn os_pages(runs: &[Range<u64>]) -> u64 {
    runs.iter().map(|run| (run.end - run.start) / OS_PAGE).sum()
}

/// Hands to `visit`, for each watched range and piece in which something was written, the first
/// written byte and the bytes. Single OS pages would say no more about an extent.
fn report(ranges: &[Range<u64>], runs: &[Range<u64>], mut visit: impl FnMut(u64, u64)) {
    let mut open: Option<(usize, u64, u64)> = None; // range, first written byte, bytes
    for run in runs {
        windows::spread(ranges, run, run.end - run.start, |index, bytes| match &mut open {
            Some((last, _, sum)) if *last == index => *sum += bytes,
            _ => {
                let first = run.start.max(ranges[index].start);
                if let Some((_, at, sum)) = open.replace((index, first, bytes)) {
                    visit(at, sum);
                }
            }
        });
    }
    if let Some((_, at, sum)) = open {
        visit(at, sum);
    }
}
