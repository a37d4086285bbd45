//! Write tracking of one process: which windows are registered, and which spots in them are armed.
//! In: ranges, userfaultfds, the daemon's clock. Out: samples of written OS pages, and their cost.
//! Knows nothing of other processes or of referenced bits.
//!
//! ```text
//! windows   [------ registered, so a mapping by itself ------][-- the next, other userfaultfd --]
//! ranges    [ object ][   object      ]     [ object         ][ object     ][ object ]
//! spots        ^             ^         stride        ^             ^            ^  32 KiB each
//! ```
//!
//! The first write to an armed OS page costs the program a fault. The number of spots that are
//! armed at a time keeps these faults within the budget. Where they go is up to `areas`. In huge OS
//! pages a spot is a whole huge page, unless it was seen busy and may be split.
//!
//! Invariant: every armed spot has stayed registered since it was armed; otherwise memory that was
//! never protected would look written.

use fastrand::Rng;
use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use tiercel_machine::number::saturating_usize;

use tiercel_wire::AccessKind;

use super::areas::{Areas, Place};
use super::rate::Seen;
use super::sys::{self, Scan};
use super::windows::{self, Window};
use super::{HUGE_OS_PAGE, OS_PAGE, Pass, StepLimits};
use crate::clock;

/// CPU time that a write to a protected OS page takes from the program (measured: 4096 in 4.7 ms).
const WRITE_FAULT: Duration = Duration::from_nanos(1150);
/// CPU time that arming a spot takes from the program: its CPUs flush translations.
const FLUSH: Duration = Duration::from_nanos(1500);
/// OS pages of a spot: 8 are enough for a share of used ones, and 8 faults cost about as much as
/// the calls that arm and read them.
pub const SPOT_BYTES: u64 = 8 * OS_PAGE;
/// Spots that are armed before the first of them is read: some 30 us. Where all CPUs are busy any
/// sleep takes as long as time slices do, and only what runs beside the daemon is seen in between.
const BATCH: usize = 8;
/// Sleep between two reads of a batch: with one CPU the program runs only while the daemon sleeps.
const BATCH_NAP: Duration = Duration::from_micros(30);
/// CPU times of other processes are as of the last tick of their CPU (4 ms at 250 Hz): shorter
/// windows are measured by the wall clock, times the program's pace.
const CPU_TIME_MIN: Duration = Duration::from_millis(20);
/// Time for which the pace of a program counts: some tens of time slices. Chosen, not measured.
const PACE_KEPT_S: f64 = 1.0;
/// Time for which it is taken to have had a CPU before it was watched.
const PACE_PRIOR_S: f64 = 0.02;
/// A program that waits nearly always has run when something was seen.
const PACE_MIN: f64 = 0.01;
/// Cost of a spot before one was measured: 8 faults, and the calls that arm and read it.
const SPOT_COST: Duration = Duration::from_micros(25);
/// Weight of the newest step in the measured cost of a spot. Chosen, not measured.
const SPOT_COST_NEWEST: f64 = 0.25;
/// Adjacent OS pages whose protection change makes a CPU flush its whole TLB (x86: more than 33).
const FLUSH_OS_PAGES: u64 = 40;
/// Addresses that are tried for such a flush.
const FLUSH_TRIES: usize = 8;
/// Huge OS pages that may be split per second: a split one costs the program TLB reach until the
/// kernel joins it again (khugepaged, 16 MiB in 10 s by default).
const SPLITS_PER_S: u64 = 8;
/// Huge OS pages that may be split at once after a time without splits.
const SPLITS_MAX: u64 = 16;
/// Busy huge OS pages that are remembered until a spot falls on one.
const BUSY_MAX: usize = 4096;
/// Userfaultfds in use: two suffice to keep adjacent windows apart.
const UFFDS_MAX: usize = 2;
/// Windows registered in one step (5 us each); the others follow in the next.
const REGISTERED_PER_STEP: usize = 64;

/// See the module.
#[derive(Default)]
pub struct Writes {
    uffds: Vec<OwnedFd>,
    windows: Vec<Watched>,
    areas: Areas,
    armed: Vec<Armed>,
    armed_at_ms: u64,
    /// CPU time of the program when they were armed.
    armed_at: Duration,
    /// The same by the wall clock.
    armed_when: Option<Instant>,
    pace: Pace,
    /// Mean cost of a spot, the program's included; zero: not measured yet.
    spot_cost: Duration,
    /// Accesses that were reported, those of long ago less.
    pub reported: f64,
    /// Addresses of spots in memory that is registered no longer.
    lost: Vec<u64>,
    /// Windows from this index on have not been registered yet.
    untried: usize,
    /// Ranges in which nothing may be registered, ascending and disjoint.
    excluded: Vec<Range<u64>>,
    splits: Splits,
}

struct Armed {
    spot: Range<u64>,
    /// Bytes of its OS pages.
    os_page: u64,
    /// The chosen address; the start of the spot, unless the spot is a huge OS page.
    at: u64,
    /// Index of its area, and the longest window that counts.
    area: usize,
    longest: Duration,
    /// Bytes of memory that it stands for.
    stands_for: f64,
    /// CPU time of the program when it was armed.
    armed_at: Duration,
    /// CLOCK_MONOTONIC at that time.
    armed_ns: u64,
    looks: SpotLooks,
}

/// When a spot is looked at before the step that reads it.
#[derive(Clone, Copy)]
enum When {
    /// All spots of its batch are armed.
    Batch,
    /// After [`BATCH_NAP`].
    Nap,
    /// After the sleep of the drain that armed it.
    Sleep,
    /// At a drain before a later step.
    Drain,
}

/// What one look showed, and CLOCK_MONOTONIC then.
#[derive(Clone, Copy, Default)]
struct SpotLook {
    seen: Seen,
    at_ns: u64,
}

/// The looks at a spot before its step; those that were left out are empty.
#[derive(Default)]
struct SpotLooks {
    batch: SpotLook,
    nap: SpotLook,
    sleep: SpotLook,
    drain: SpotLook,
}

impl SpotLooks {
    fn set(&mut self, when: When, look: SpotLook) {
        *match when {
            When::Batch => &mut self.batch,
            When::Nap => &mut self.nap,
            When::Sleep => &mut self.sleep,
            When::Drain => &mut self.drain,
        } = look;
    }

    /// All looks, the one of the longest window first: `last` is that of the step.
    fn longest_first(&self, last: SpotLook) -> [SpotLook; 5] {
        [last, self.drain, self.sleep, self.nap, self.batch]
    }
}

struct Watched {
    window: Window,
    /// Which userfaultfd it is registered with.
    uffd: Option<usize>,
}

/// CPU time of the program over wall time lately.
#[derive(Default)]
struct Pace {
    cpu_s: f64,
    wall_s: f64,
}

/// Which huge OS pages may be split to see inside them.
#[derive(Default)]
struct Splits {
    allowed: bool,
    /// First bytes of those that were seen busy.
    busy: BTreeSet<u64>,
    left: u64,
    /// When `left` was last updated, milliseconds of the daemon's clock.
    since_ms: u64,
}

impl Writes {
    /// Takes in a userfaultfd; closes one that cannot be used.
    pub fn accept(&mut self, uffd: OwnedFd) {
        if self.uffds.len() < UFFDS_MAX && sys::take_up(&uffd).is_ok() {
            self.uffds.push(uffd);
            self.untried = 0;
        }
    }

    /// Whether writes can be seen.
    pub fn works(&self) -> bool {
        !self.uffds.is_empty()
    }

    /// CPU time of the program over wall time lately; `None`: not known.
    pub fn pace(&self) -> Option<f64> {
        self.works().then(|| self.pace.share())
    }

    /// Whether busy huge OS pages may be split.
    pub fn may_split_huge(&mut self, allowed: bool) {
        self.splits.allowed = allowed;
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
                    uffd = self.resize_registration(&before, &span);
                } else {
                    self.forget(&before, &before.window.span);
                }
            }
            next.push(Watched { window, uffd });
        }
        old.for_each(|before| self.forget(&before, &before.window.span));
        self.areas.watch(next.iter().map(|watched| &watched.window));
        self.windows = next;
        self.untried = 0;
    }

    /// Unregisters the windows that overlap `ranges`, and keeps them unregistered until the next
    /// call.
    pub fn release(&mut self, ranges: &[Range<u64>]) {
        if self.excluded.is_empty() && ranges.is_empty() {
            return;
        }
        self.excluded = joined(ranges);
        for index in 0..self.windows.len() {
            let Watched { window, uffd } = &mut self.windows[index];
            let span = window.span.clone();
            if windows::touches(&self.excluded, &span)
                && let Some(uffd) = uffd.take()
            {
                self.give_back(uffd, &span);
            }
        }
        self.untried = 0;
    }

    /// Reads the spots that were armed before, then arms others. Returns the cost to the program.
    pub fn step(
        &mut self,
        (pid, pagemap): (u32, &File),
        terms: &StepLimits,
        random: &mut Rng,
        pass: &mut Pass<'_>,
    ) -> Duration {
        if self.uffds.is_empty() {
            return Duration::ZERO;
        }
        let began = clock::thread_cpu();
        let now = clock::process_cpu(pid).unwrap_or_default();
        if let Some(when) = self.armed_when.replace(Instant::now()) {
            self.pace.ran(now.saturating_sub(self.armed_at), when.elapsed());
        }
        let armed = std::mem::take(&mut self.armed);
        let written: u64 =
            armed.iter().map(|spot| self.read(spot, (pid, pagemap), now, pass)).sum();
        // Not before all are read: they are no longer armed there.
        std::mem::take(&mut self.lost).into_iter().for_each(|at| self.registration_lost(at));
        let theirs = WRITE_FAULT * u32::try_from(written).unwrap_or(u32::MAX)
            + FLUSH * u32::try_from(armed.len()).unwrap_or(u32::MAX);
        self.register_some();
        (self.armed_at_ms, self.armed_at) = (pass.now_ms, now);
        self.splits.earn(pass.now_ms);
        self.arm((pid, pagemap), terms, random);
        self.measure(armed.len(), clock::thread_cpu() - began + theirs);
        theirs
    }

    /// Reports what a spot saw; how many of its OS pages were written.
    fn read(
        &mut self,
        spot: &Armed,
        (pid, pagemap): (u32, &File),
        now: Duration,
        pass: &mut Pass<'_>,
    ) -> u64 {
        let runs = written_runs(pagemap, &spot.spot);
        let late = spot.seen(&runs, now, self.pace.share());
        let last = SpotLook { seen: late, at_ns: clock::monotonic_ns() };
        if spot.is_busy_and_huge() {
            self.splits.note(spot.spot.start);
        }
        let looks = spot.looks.longest_first(last);
        let windows = looks.map(|look| look.seen);
        let page_seconds = spot.stands_for / spot.os_page as f64 * late.elapsed.as_secs_f64();
        if late.used == 0 && !sys::is_registered(pagemap, spot.at) {
            self.lost.push(spot.at);
            return 0;
        }
        let area = (spot.area, spot.longest);
        let found = self.areas.judge(area, &windows, page_seconds);
        let Some((accesses, seen_in)) = found else { return late.used };
        self.reported += accesses;
        let addr = runs.first().map_or(spot.at, |run| run.start.max(spot.at));
        let between = (spot.armed_ns, looks[seen_in].at_ns);
        pass.push((pid, addr), AccessKind::Write, accesses, between);
        late.used
    }

    /// Since when what is armed is watched, CLOCK_MONOTONIC.
    pub fn began_ns(&self) -> Option<u64> {
        self.armed.iter().map(|spot| spot.armed_ns).min()
    }

    /// Whether an early read would see anything.
    pub fn is_armed(&self) -> bool {
        !self.armed.is_empty()
    }

    /// Reads the spots that were armed a moment ago: only now do the busiest show how busy they
    /// are.
    pub fn look_soon(&mut self, process: (u32, &File)) {
        let pace = self.pace.share();
        self.armed.iter_mut().for_each(|armed| armed.look(process, When::Sleep, pace));
    }

    /// Reads once more some time before the next step, which may be seconds away.
    pub fn look_between(&mut self, process: (u32, &File)) {
        let is_new = |spot: &&Armed| spot.looks.drain.seen.elapsed.is_zero();
        if self.armed.first().as_ref().is_some_and(is_new) {
            let pace = self.pace.share();
            self.armed.iter_mut().for_each(|armed| armed.look(process, When::Drain, pace));
        }
    }

    /// Accesses per OS page and second of CPU time that writes within a range showed.
    pub fn rate_within(&self, range: &Range<u64>) -> f64 {
        self.areas.rate_within(range)
    }

    /// Makes the program's CPUs flush their TLBs. A CPU with a cached translation does not walk the
    /// page tables and sets no referenced bit: after its bits were cleared, a hot MiB would look
    /// unused for as long as its translations stay cached. Nothing stays protected afterwards.
    pub fn flush(&mut self, pagemap: &File, random: &mut Rng) {
        for _ in 0..FLUSH_TRIES {
            let Some((area, at)) = self.areas.any(random) else { return };
            let area = self.areas.get(area);
            let start = at / OS_PAGE * OS_PAGE;
            let run = start..start + FLUSH_OS_PAGES * OS_PAGE;
            let Some(uffd) = self.windows[area.window].uffd else { continue };
            let is_armed = |spot: &Armed| spot.spot.start < run.end && run.start < spot.spot.end;
            if run.end > area.range.end
                || self.armed.iter().any(is_armed)
                || sys::is_huge(pagemap, start)
            {
                continue;
            }
            // Memory that is already protected would not change.
            let uffd = &self.uffds[uffd];
            let changed =
                sys::disarm(uffd, &run).and_then(|()| sys::scan(pagemap, &run, Scan::Arm, |_| ()));
            if changed.and_then(|()| sys::disarm(uffd, &run)).is_ok() {
                return;
            }
        }
    }

    /// So many spots cost so much.
    fn measure(&mut self, spots: usize, spent: Duration) {
        let Some(spots) = u32::try_from(spots).ok().filter(|spots| *spots > 0) else { return };
        let (newest, known) = (spent / spots, self.spot_cost);
        self.spot_cost = match known {
            Duration::ZERO => newest,
            _ => known.mul_f64(1.0 - SPOT_COST_NEWEST) + newest.mul_f64(SPOT_COST_NEWEST),
        };
    }

    /// Spots that cost what a step may spend.
    fn count(&self, terms: &StepLimits) -> usize {
        let cost = if self.spot_cost.is_zero() { SPOT_COST } else { self.spot_cost };
        let allowed = terms.allowed().as_secs_f64() / cost.as_secs_f64().max(f64::EPSILON);
        saturating_usize(allowed).clamp(1, terms.spots_max.max(1))
    }

    fn arm(&mut self, process: (u32, &File), terms: &StepLimits, random: &mut Rng) {
        let windows = &self.windows;
        self.areas.open(|window| windows[window].uffd.is_some());
        let places = self.areas.places(self.count(terms), SPOT_BYTES, random);
        for batch in places.chunks(BATCH) {
            let first = self.armed.len();
            batch.iter().for_each(|place| self.arm_spot(process, place));
            let pace = self.pace.share();
            self.armed[first..].iter_mut().for_each(|armed| armed.look(process, When::Batch, pace));
            if self.armed.len() > first {
                clock::nap(BATCH_NAP);
            }
            self.armed[first..].iter_mut().for_each(|armed| armed.look(process, When::Nap, pace));
        }
    }

    /// Arms the spot at a place. Places in one spot are seen together.
    fn arm_spot(&mut self, (pid, pagemap): (u32, &File), place: &Place) {
        let area = self.areas.get(place.area);
        if self.windows[area.window].uffd.is_none() {
            return;
        }
        let range = &area.range;
        let at = range.start + (place.at - range.start) / SPOT_BYTES * SPOT_BYTES;
        let (mut spot, mut os_page) = (at..range.end.min(at + SPOT_BYTES), OS_PAGE);
        let whole = at / HUGE_OS_PAGE * HUGE_OS_PAGE..(at / HUGE_OS_PAGE + 1) * HUGE_OS_PAGE;
        if sys::is_huge(pagemap, at) && !self.splits.take(whole.start) {
            (spot, os_page) = (whole, HUGE_OS_PAGE);
        }
        let stands_for = place.stands_for;
        if let Some(same) = self.armed.last_mut().filter(|armed| armed.spot == spot) {
            same.stands_for += stands_for;
            return;
        }
        let Some(armed_at) = clock::process_cpu(pid) else { return };
        let armed_ns = clock::monotonic_ns();
        if sys::scan(pagemap, &spot, Scan::Arm, |_| ()).is_ok() {
            self.armed.push(Armed {
                spot,
                os_page,
                at,
                area: place.area,
                longest: self.areas.longest(place.area),
                stands_for,
                armed_at,
                armed_ns,
                looks: SpotLooks::default(),
            });
        }
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

    /// The program moved the mapping at an address, or made it anew: its window is registered
    /// again. What of it is still registered stays so.
    fn registration_lost(&mut self, addr: u64) {
        let at = self.windows.partition_point(|one| one.window.span.end <= addr);
        let Some(Watched { window, uffd: Some(uffd) }) = self.windows.get(at) else { return };
        if sys::register(&self.uffds[*uffd], &window.span).is_err() {
            self.windows[at].uffd = None;
        }
    }

    /// Registers a window with a userfaultfd that its neighbours do not use. A window that the
    /// kernel refuses, because part of it is not mapped, stays unseen.
    fn register(&mut self, index: usize) {
        let span = &self.windows[index].window.span;
        if windows::touches(&self.excluded, span) {
            return;
        }
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

    /// Resizes a registration to a new window: unregisters what the window lost and registers what
    /// it gained. Returns its userfaultfd.
    fn resize_registration(&mut self, before: &Watched, is: &Range<u64>) -> Option<usize> {
        let was = &before.window.span;
        if windows::touches(&self.excluded, is) {
            self.forget(before, was);
            return None;
        }
        self.forget(before, &(was.start..is.start));
        self.forget(before, &(is.end..was.end));
        let covered = was.start <= is.start && is.end <= was.end;
        before.uffd.filter(|uffd| covered || sys::register(&self.uffds[*uffd], is).is_ok())
    }

    /// Unregisters part of a window.
    fn forget(&mut self, watched: &Watched, part: &Range<u64>) {
        if let Some(uffd) = watched.uffd.filter(|_| part.start < part.end) {
            self.give_back(uffd, part);
        }
    }

    fn give_back(&mut self, uffd: usize, part: &Range<u64>) {
        let apart = |spot: &Range<u64>| spot.end <= part.start || part.end <= spot.start;
        self.armed.retain(|armed| apart(&armed.spot));
        // The range may be unmapped by now; then there is nothing to undo.
        let _ = sys::unregister(&self.uffds[uffd], part);
    }
}

impl Armed {
    /// The OS pages of it that were written so far. A spot that was unmapped since then shows none,
    /// and neither does a process that is gone.
    fn look(&mut self, (pid, pagemap): (u32, &File), when: When, pace: f64) {
        let runs = written_runs(pagemap, &self.spot);
        let seen = self.seen(&runs, clock::process_cpu(pid).unwrap_or_default(), pace);
        self.looks.set(when, SpotLook { seen, at_ns: clock::monotonic_ns() });
    }

    /// `now` is the program's CPU time.
    fn seen(&self, runs: &[Range<u64>], now: Duration, pace: f64) -> Seen {
        let wall = Duration::from_nanos(clock::monotonic_ns().saturating_sub(self.armed_ns));
        let cpu = now.saturating_sub(self.armed_at);
        let elapsed = if wall < CPU_TIME_MIN { wall.mul_f64(pace) } else { cpu };
        let written: u64 = runs.iter().map(|run| run.end - run.start).sum();
        let total = (self.spot.end - self.spot.start) / self.os_page;
        let used = written.div_ceil(self.os_page).min(total);
        // While it takes the faults the program accesses nothing.
        let faults = WRITE_FAULT * u32::try_from(used).unwrap_or(u32::MAX);
        let elapsed = elapsed.saturating_sub(faults).max(elapsed / 4);
        let seen = Seen { used, total, elapsed };
        seen.between_ticks(wall, pace)
    }

    /// A huge OS page that was written at an early read: its parts may be hot or warm.
    fn is_busy_and_huge(&self) -> bool {
        let early = self.looks.longest_first(SpotLook::default());
        self.os_page == HUGE_OS_PAGE && early.iter().any(|look| look.seen.used > 0)
    }
}

impl Pace {
    /// The program used so much CPU time in so much wall time.
    fn ran(&mut self, cpu: Duration, wall: Duration) {
        let kept = (-wall.as_secs_f64() / PACE_KEPT_S).exp();
        self.cpu_s = self.cpu_s * kept + cpu.as_secs_f64();
        self.wall_s = self.wall_s * kept + wall.as_secs_f64();
    }

    /// CPU time over wall time; until something is known, a CPU of its own.
    fn share(&self) -> f64 {
        ((self.cpu_s + PACE_PRIOR_S) / (self.wall_s + PACE_PRIOR_S)).max(PACE_MIN)
    }
}

impl Splits {
    fn earn(&mut self, now_ms: u64) {
        let earned = now_ms.saturating_sub(self.since_ms) * SPLITS_PER_S / 1000;
        if earned > 0 {
            self.left = (self.left + earned).min(SPLITS_MAX);
            self.since_ms = now_ms;
        }
    }

    fn note(&mut self, first_byte: u64) {
        if self.allowed && self.busy.len() < BUSY_MAX {
            self.busy.insert(first_byte);
        }
    }

    /// Whether the huge OS page may be split now; if so, the split is counted.
    fn take(&mut self, first_byte: u64) -> bool {
        if self.left == 0 || !self.allowed || !self.busy.remove(&first_byte) {
            return false;
        }
        self.left -= 1;
        true
    }
}

/// Ranges in ascending order; overlapping ones are merged.
fn joined(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable_by_key(|range| range.start);
    let mut out: Vec<Range<u64>> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match out.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => out.push(range),
        }
    }
    out
}

fn written_runs(pagemap: &File, spot: &Range<u64>) -> Vec<Range<u64>> {
    let mut runs = Vec::new();
    let _ = sys::scan(pagemap, spot, Scan::Look, |run| runs.push(run));
    runs
}
