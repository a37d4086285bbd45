//! Write tracking of one process: which windows are registered, which pieces of them are armed.
//! In: ranges, userfaultfds, the daemon's clock. Out: samples of written OS pages, what they cost.
//! Knows nothing of other processes, nor of referenced bits.
//!
//! ```text
//! window   [------- registered, so a mapping by itself -------][--- the next, other userfaultfd ---]
//! pieces   [ 2 MiB ][ 2 MiB ][ armed ][ 2 MiB ] ...                      [ armed ] ...
//! ```
//!
//! Each write to an armed OS page costs the program a fault, once. So only so many pieces, at random,
//! are armed at a time that the faults stay in budget; what they show stands for all pieces.
//!
//! Invariant: every armed piece has been registered without a break since it was armed; otherwise
//! what was never protected would look written.

use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tiercel_wire::AccessKind;

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
/// One sample stands for at most this many times what was seen.
const FACTOR_MAX: u128 = 1 << 20;

/// See the module.
#[derive(Default)]
pub struct Writes {
    uffds: Vec<OwnedFd>,
    windows: Vec<Watched>,
    /// Pieces in windows `0..=i`.
    pieces_to: Vec<u64>,
    armed: Vec<Range<u64>>,
    armed_at_ms: u64,
    /// How many pieces the armed ones were picked from.
    armed_of: u64,
    /// Pieces to arm at a time.
    count: usize,
    /// Windows from here on have not been tried since they came.
    untried: usize,
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
        let elapsed_ms = pass.now_ms.saturating_sub(self.armed_at_ms);
        let (armed, mut written) = (std::mem::take(&mut self.armed), 0);
        let seen = u128::from(terms.interval_ms) * armed.len() as u128;
        let stands_for = u128::from(elapsed_ms) * u128::from(self.armed_of);
        for piece in &armed {
            let mut runs = Vec::new();
            // A piece that was unmapped since shows nothing; a process that is gone neither.
            let _ = sys::scan(pagemap, piece, Scan::Look, |run| runs.push(run));
            written += runs.iter().map(|run| (run.end - run.start) / OS_PAGE).sum::<u64>();
            let scale = |bytes: u64| {
                let factor_of = stands_for.min(seen * FACTOR_MAX).max(seen);
                u64::try_from(u128::from(bytes) * factor_of / seen).unwrap_or(u64::MAX)
            };
            report(ranges, &runs, |addr, bytes| {
                pass.push(pid, addr, AccessKind::Write, scale(bytes));
            });
        }
        let theirs = WRITE_FAULT * u32::try_from(written).unwrap_or(u32::MAX);
        if !armed.is_empty() {
            let spent = clock::thread_cpu() - began + theirs;
            let allowed = Duration::from_millis(elapsed_ms).mul_f64(terms.cpu_share);
            self.adapt(spent, allowed, terms.pieces_max);
        }
        self.register_some();
        self.arm(pagemap, random, pass.now_ms);
        theirs
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
                self.armed.push(piece);
            }
        }
        (self.armed_at_ms, self.armed_of) = (now_ms, total);
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
        self.armed.retain(|piece| piece.end <= part.start || part.end <= piece.start);
        // The pieces that are left stand for as many others as before.
        self.armed_of = self.armed_of * self.armed.len() as u64 / before.max(1);
        // It may be unmapped by now, and then there is nothing to undo.
        let _ = sys::unregister(&self.uffds[uffd], part);
    }
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
