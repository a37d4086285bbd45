//! One probed process: its files in /proc, and when the next scan is due. In: the daemon's clock,
//! ranges, userfaultfds. Out: samples, and their cost to the program. Knows nothing of other
//! processes.

use fastrand::Rng;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tiercel_machine::number::saturating_u64;

use tiercel_wire::AccessKind;

use super::rate::{self, Seen, Shown};
use super::smaps::{self, Mapping};
use super::windows;
use super::writes::Writes;
use super::{BURST_MS, HUGE_OS_PAGE, OS_PAGE, Pass, StepLimits};
use crate::{Allowed, clock};

/// Time to walk one OS page in clear_refs and smaps together (measured: 0.9 + 1.1 ms for 16,384).
const WALK_NS: u64 = 125;
/// Longest walk. A larger process is not probed for touches: both walks hold its memory-map lock,
/// and its own changes of mappings would wait.
const WALK_MAX: Duration = Duration::from_millis(250);
/// A window in which less than this share was used has too little evidence.
const EMPTY: f64 = 0.05;
/// Parts of the watched memory below this share are not worth a second scan.
const LITTLE: f64 = 0.01;
/// In every eighth cycle there are both reads, whatever the last one saw.
const BOTH_EVERY: u64 = 8;
/// What counts of earlier reports at each cycle, when the budget is divided. Chosen, not measured.
const REPORTED_KEPT: f64 = 0.75;
/// Resolution in which accesses are distributed.
const PARTS: f64 = 1024.0;
/// Bytes of smaps per read.
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
    /// All watched ranges as the caller passed them, ascending.
    ranges: Vec<Range<u64>>,
    /// Some of them are in huge OS pages, as far as known.
    has_huge: bool,
    cleared: Option<Cleared>,
    /// How often the referenced bits were cleared.
    cycles: u64,
    /// How much of its time the early read shows.
    shown: Shown,
    /// Which reads follow.
    looks: Looks,
    may_burst: bool,
    /// When its burst began, milliseconds of the daemon's clock.
    burst_ms: Option<u64>,
    /// Accesses that were reported of touches, those of long ago less.
    reported: f64,
    /// When write tracking is due, milliseconds of the daemon's clock.
    pub writes_due_ms: u64,
    /// When referenced bits are due.
    pub touches_due_ms: u64,
}

/// A cycle of referenced bits: cleared, read at once or a moment later, and read again at the next
/// step.
struct Cleared {
    /// CPU time of the program at that time.
    at: Duration,
    /// CLOCK_MONOTONIC before and after: the kernel walks upwards through the addresses meanwhile.
    began_ns: u64,
    ended_ns: u64,
    /// What the early read saw.
    early: Option<Look>,
}

struct Look {
    /// CLOCK_MONOTONIC afterwards.
    at_ns: u64,
    /// Mappings, and the program's CPU time since each was cleared.
    mappings: Vec<(Mapping, Duration)>,
}

impl Look {
    /// Share of the watched memory that was used.
    fn used(&self) -> f64 {
        let sum = |of: fn(&Mapping) -> u64| self.mappings.iter().map(|one| of(&one.0)).sum::<u64>();
        let resident = sum(|mapping| mapping.resident_bytes).max(1);
        sum(|mapping| mapping.referenced_bytes) as f64 / resident as f64
    }
}

/// If the early read distinguishes all watched memory, the late one is skipped, and vice versa:
/// each is a walk over the whole process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Looks {
    Early,
    Late,
    Both,
}

impl Process {
    /// Opens its files in /proc; they stay bound to this process even if its pid is reused.
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
            has_huge: may_be_huge(),
            cleared: None,
            cycles: 0,
            shown: Shown::default(),
            looks: Looks::Both,
            may_burst: false,
            burst_ms: None,
            reported: 0.0,
            writes_due_ms: 0,
            touches_due_ms: 0,
        })
    }

    /// Takes in a userfaultfd; closes one that cannot be used.
    pub fn accept(&mut self, uffd: OwnedFd) {
        self.writes.accept(uffd);
    }

    /// Whether writes are seen OS page by OS page.
    pub fn tracks_writes(&self) -> bool {
        self.writes.works()
    }

    /// Where mappings may be split.
    pub fn may_split(&mut self, within: Range<u64>) {
        self.splittable = within;
    }

    /// What may be done to it beyond its share of CPU time.
    pub fn allow(&mut self, allowed: Allowed) {
        self.writes.may_split_huge(allowed.huge_splits);
        self.may_burst = allowed.burst;
    }

    /// Replaces the watched ranges.
    pub fn watch(&mut self, ranges: &[Range<u64>]) {
        let whole = windows::unsplit(ranges, &self.splittable);
        self.ranges = ranges.to_vec();
        self.writes.watch(windows::cut_finely(&whole, self.has_huge));
    }

    /// Unregisters `ranges`, and registers nothing there from now on.
    pub fn release(&mut self, ranges: &[Range<u64>]) {
        self.writes.release(ranges);
    }

    /// Reports the writes to armed spots, then arms others. Returns the cost to the program.
    pub fn step_writes(
        &mut self,
        terms: &StepLimits,
        random: &mut Rng,
        pass: &mut Pass<'_>,
    ) -> Duration {
        if self.is_watched() && self.may_burst {
            self.burst_ms.get_or_insert(pass.now_ms);
        }
        self.writes.step((self.pid, &self.pagemap), terms, random, pass)
    }

    /// Whether anything of it is watched.
    pub fn is_watched(&self) -> bool {
        !self.ranges.is_empty()
    }

    /// Whether more may be spent on it now.
    pub fn is_in_burst(&self, now_ms: u64) -> bool {
        let is_early = self.burst_ms.is_none_or(|since| now_ms < since + BURST_MS);
        self.is_watched() && self.may_burst && is_early
    }

    /// The part of all accesses that write tracking reported.
    pub fn writes_part(&self) -> f64 {
        let (writes, touches) = (self.writes.reported, self.reported);
        if writes + touches > 0.0 { writes / (writes + touches) } else { 0.5 }
    }

    /// Reads the referenced bits, then clears them. The early read follows in
    /// [`Process::look_soon`].
    pub fn step_touches(&mut self, random: &mut Rng, pass: &mut Pass<'_>) {
        let predicted = Duration::from_nanos(self.resident_os_pages() * WALK_NS);
        if predicted > WALK_MAX || self.ranges.is_empty() {
            self.cleared = None;
            pass.met.blind += u64::from(predicted > WALK_MAX);
            return;
        }
        if let Some(cleared) = self.cleared.take() {
            self.reported *= REPORTED_KEPT;
            self.writes.reported *= REPORTED_KEPT;
            let used = self.cpu().saturating_sub(cleared.at);
            let late = if self.looks == Looks::Early { None } else { self.look(&cleared, None) };
            self.report(&cleared, late.as_ref(), used, pass);
        }
        let (before, began_ns) = (self.cpu(), clock::monotonic_ns());
        if self.clear_refs.write_all(b"1").is_ok() {
            let ended_ns = clock::monotonic_ns();
            self.writes.flush(&self.pagemap, random);
            // Both walks go upwards through the addresses: the time runs from the middle of one to
            // the middle of the other.
            let at = (before + self.cpu()) / 2;
            self.cleared = Some(Cleared { at, began_ns, ended_ns, early: None });
            self.cycles += 1;
            self.look_at_once();
        }
    }

    /// Since when something is watched that was not reported, CLOCK_MONOTONIC.
    pub fn began_ns(&self) -> Option<u64> {
        let cleared = self.cleared.as_ref().map(|cleared| cleared.began_ns);
        cleared.into_iter().chain(self.writes.began_ns()).min()
    }

    /// Whether [`Process::look_soon`] has anything to read.
    pub fn looks_soon(&self) -> bool {
        let is_unread = |cleared: &Cleared| self.looks != Looks::Late && cleared.early.is_none();
        self.writes.is_armed() || self.cleared.as_ref().is_some_and(is_unread)
    }

    /// Reads the armed spots while no step is due.
    pub fn look_between(&mut self) {
        self.writes.look_between((self.pid, &self.pagemap));
    }

    /// The early read, a moment after the steps.
    pub fn look_soon(&mut self) {
        self.writes.look_soon((self.pid, &self.pagemap));
        self.look_early(|_| true);
    }

    /// Reads the referenced bits right after they were cleared: the window is as long as the walks
    /// take. If the program hardly ran meanwhile, as on a machine with one CPU or on a busy one,
    /// the read a moment later is the early one instead.
    fn look_at_once(&mut self) {
        if self.writes.pace().is_some() {
            self.look_early(|look| look.used() > LITTLE);
        }
    }

    fn look_early(&mut self, is_enough: impl Fn(&Look) -> bool) {
        let pace = self.writes.pace();
        let Some(mut cleared) = self.cleared.take() else { return };
        if self.looks != Looks::Late && cleared.early.is_none() {
            cleared.early = self.look(&cleared, pace).filter(is_enough);
        }
        self.cleared = Some(cleared);
    }

    /// Reads the referenced bits since they were cleared. With the program's `pace`, windows have
    /// the length that the clock says times that, each of its own: CPU time is known by ticks.
    fn look(&mut self, cleared: &Cleared, pace: Option<f64>) -> Option<Look> {
        self.smaps.rewind().ok()?;
        let before = self.cpu();
        let text = BufReader::with_capacity(SMAPS_CHUNK, &self.smaps);
        let mappings = smaps::read(text, clock::monotonic_ns);
        let elapsed = ((before + self.cpu()) / 2).saturating_sub(cleared.at);
        let at_ns = clock::monotonic_ns();
        let resident = |mapping: &Mapping| mapping.resident_bytes as f64;
        let (all, mut below) = (mappings.iter().map(resident).sum::<f64>().max(1.0), 0.0);
        let walk_ns = cleared.ended_ns.saturating_sub(cleared.began_ns) as f64;
        let mut watched = Vec::new();
        for mapping in mappings {
            let part = (below + resident(&mapping) / 2.0) / all;
            below += resident(&mapping);
            let cleared_ns = cleared.began_ns + saturating_u64(walk_ns * part);
            let wall = Duration::from_nanos(mapping.read_ns.saturating_sub(cleared_ns));
            let length = pace.map_or(elapsed, |pace| wall.mul_f64(pace));
            if windows::touches(&self.ranges, &mapping.range) {
                watched.push((mapping, length));
            }
        }
        self.has_huge = watched.iter().any(|(mapping, _)| mapping.huge_bytes > 0);
        Some(Look { at_ns, mappings: watched })
    }

    fn cpu(&self) -> Duration {
        clock::process_cpu(self.pid).unwrap_or_default()
    }

    /// Distributes what the reads of one cycle saw over the watched ranges; `used` is the program's
    /// CPU time in the cycle.
    fn report(
        &mut self,
        cleared: &Cleared,
        late: Option<&Look>,
        used: Duration,
        pass: &mut Pass<'_>,
    ) {
        let early = cleared.early.as_ref();
        let Some(latest) = late.or(early) else { return };
        // Of each range, and when the last look was that saw them.
        let mut accesses_by_range = vec![(0u64, 0u64); self.ranges.len()];
        let mut state = State::default();
        for (mapping, elapsed) in &latest.mappings {
            // For mappings that changed between the reads only the later read counts.
            let before = early.filter(|_| late.is_some()).and_then(|look| {
                let start = |one: &(Mapping, Duration)| one.0.range.start;
                let at = look.mappings.binary_search_by_key(&mapping.range.start, start);
                at.ok().map(|at| &look.mappings[at])
            });
            let before = before.filter(|(early, _)| early.range == mapping.range);
            let last = seen(mapping, *elapsed);
            let first = before.map_or(Seen::default(), |(first, elapsed)| seen(first, *elapsed));
            self.shown.compare(&first, &last);
            let seen = [last, self.shown.corrected(&first)];
            state.add(&seen, late.is_some());
            let (rate, seen_in) = rate::rate(&seen);
            // What was written is reported already: an access is seen once.
            let rate = (rate - self.writes.rate_within(&mapping.range)).max(0.0);
            let accesses = rate * seen[0].total as f64 * used.as_secs_f64();
            let seen_by = early.filter(|_| seen_in > 0).unwrap_or(latest);
            // In units of 1/1024, so that many small ranges of one mapping do not all round to
            // zero.
            let parts = saturating_u64(accesses * PARTS);
            let add = |index: usize, share| {
                let (sum, at_ns) = &mut accesses_by_range[index];
                (*sum, *at_ns) = (*sum + share, seen_by.at_ns.max(*at_ns));
            };
            windows::spread(&self.ranges, &mapping.range, parts, add);
        }
        for (range, (parts, at_ns)) in self.ranges.iter().zip(accesses_by_range) {
            let looks = (cleared.began_ns, at_ns);
            let accesses = parts as f64 / PARTS;
            self.reported += accesses;
            pass.push((self.pid, range.start), AccessKind::Unknown, accesses, looks);
        }
        self.looks = match () {
            () if self.cycles.is_multiple_of(BOTH_EVERY) => Looks::Both,
            () => state.looks(self.looks),
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

/// Whether the kernel uses huge OS pages by itself: assumed until a mapping was read.
fn may_be_huge() -> bool {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    enabled.is_ok_and(|text| text.contains("[always]"))
}

/// Each huge OS page counts as one.
fn seen(mapping: &Mapping, elapsed: Duration) -> Seen {
    let small = (mapping.resident_bytes - mapping.huge_bytes) / OS_PAGE;
    let total = small + mapping.huge_bytes.div_ceil(HUGE_OS_PAGE);
    let share = mapping.referenced_bytes as f64 / mapping.resident_bytes as f64;
    let used = saturating_u64((total as f64 * share.min(1.0)).ceil());
    Seen { used, total, elapsed }
}

/// How many watched OS pages each read could not distinguish.
#[derive(Default)]
struct State {
    all: u64,
    late_full: u64,
    early_empty: u64,
}

impl State {
    fn add(&mut self, [latest, early]: &[Seen; 2], has_late: bool) {
        let early = if has_late { early } else { latest };
        self.all += latest.total;
        if has_late && latest.share() > rate::FULL {
            self.late_full += latest.total;
        }
        if early.share() < EMPTY {
            self.early_empty += latest.total;
        }
    }

    fn looks(&self, now: Looks) -> Looks {
        let little = saturating_u64(self.all as f64 * LITTLE);
        let (is_late_sharp, is_early_sharp) =
            (self.late_full <= little, self.early_empty <= little);
        match now {
            Looks::Early if !is_early_sharp => Looks::Both,
            Looks::Late if !is_late_sharp => Looks::Both,
            Looks::Both if is_late_sharp => Looks::Late,
            Looks::Both if is_early_sharp => Looks::Early,
            same => same,
        }
    }
}
