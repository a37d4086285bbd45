//! One probed process: what /proc shows of it, when the next look is due.
//! In: the daemon's clock, ranges, userfaultfds. Out: samples, what they cost the program.
//! Knows nothing of other processes.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tiercel_machine::number::saturating_u64;

use tiercel_wire::AccessKind;

use super::rate::{self, Seen};
use super::smaps::{self, Mapping};
use super::windows::{self, Random};
use super::writes::Writes;
use super::{HUGE_OS_PAGE, OS_PAGE, Pass, StepLimits};
use crate::clock;

/// Walking one OS page in clear_refs and in smaps together (measured: 0.9 + 1.1 ms for 16,384).
const WALK_NS: u64 = 125;
/// A process whose walk would take longer is not probed for touches: both walks hold its
/// memory-map lock, and its own changes of mappings would wait.
const WALK_MAX: Duration = Duration::from_millis(250);
/// In a window with less than this share used, little is known.
const EMPTY: f64 = 0.05;
/// A part of what is watched that is too small to look twice for.
const LITTLE: f64 = 0.01;
/// Every so many cycles there are both looks, whatever the last one saw.
const BOTH_EVERY: u64 = 8;
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
    /// All watched ranges as the caller gave them, ascending.
    ranges: Vec<Range<u64>>,
    /// Some of them are in huge OS pages, as far as is known.
    has_huge: bool,
    cleared: Option<Cleared>,
    /// How many times referenced bits were cleared.
    cycles: u64,
    /// Which looks follow.
    looks: Looks,
    /// When write tracking is due, milliseconds of the daemon's clock.
    pub writes_due_ms: u64,
    /// When referenced bits are due.
    pub touches_due_ms: u64,
}

/// A cycle of referenced bits: cleared, looked at a moment later, and again at the next step.
struct Cleared {
    /// CPU time of the program then.
    at: Duration,
    /// What the early look saw.
    early: Option<Look>,
}

#[derive(Clone)]
struct Look {
    elapsed: Duration,
    mappings: Vec<Mapping>,
}

/// Where the early look distinguishes all that is watched, the late one is not needed, and vice
/// versa: each is a walk over the whole process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Looks {
    Early,
    Late,
    Both,
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
            has_huge: may_be_huge(),
            cleared: None,
            cycles: 0,
            looks: Looks::Both,
            writes_due_ms: 0,
            touches_due_ms: 0,
        })
    }

    /// Takes a userfaultfd up; one that cannot be used is closed.
    pub fn accept(&mut self, uffd: OwnedFd) {
        self.writes.accept(uffd);
    }

    /// Whether writes are seen by OS page.
    pub fn tracks_writes(&self) -> bool {
        self.writes.works()
    }

    /// Where mappings may be split.
    pub fn may_split(&mut self, within: Range<u64>) {
        self.splittable = within;
    }

    /// Whether busy huge OS pages may be split.
    pub fn may_split_huge(&mut self, allowed: bool) {
        self.writes.may_split_huge(allowed);
    }

    /// Replaces what is watched.
    pub fn watch(&mut self, ranges: &[Range<u64>]) {
        let whole = windows::unsplit(ranges, &self.splittable);
        self.ranges = ranges.to_vec();
        self.writes.watch(windows::cut_finely(&whole, self.has_huge));
    }

    /// Gives back what is registered in `ranges`, and registers nothing there.
    pub fn release(&mut self, ranges: &[Range<u64>]) {
        self.writes.release(ranges);
    }

    /// Reports what was written where it was armed, arms elsewhere. Answers what it cost the
    /// program.
    pub fn step_writes(
        &mut self,
        terms: &StepLimits,
        random: &mut Random,
        pass: &mut Pass<'_>,
    ) -> Duration {
        self.writes.step((self.pid, &self.pagemap), terms, random, pass)
    }

    /// Reads referenced bits since they were cleared, clears them. The early look comes in
    /// [`Process::look_soon`].
    pub fn step_touches(&mut self, random: &mut Random, pass: &mut Pass<'_>) {
        let predicted = Duration::from_nanos(self.resident_os_pages() * WALK_NS);
        if predicted > WALK_MAX || self.ranges.is_empty() {
            self.cleared = None;
            pass.met.blind += u64::from(predicted > WALK_MAX);
            return;
        }
        if let Some(cleared) = self.cleared.take() {
            let used = self.cpu().saturating_sub(cleared.at);
            let late = if self.looks == Looks::Early { None } else { self.look(cleared.at) };
            self.report(cleared.early.as_ref(), late.as_ref(), used, pass);
        }
        let before = self.cpu();
        if self.clear_refs.write_all(b"1").is_ok() {
            self.writes.flush(&self.pagemap, random);
            // Both walks go up through the addresses: from the middle of one to that of the other.
            let at = (before + self.cpu()) / 2;
            self.cleared = Some(Cleared { at, early: None });
            self.cycles += 1;
        }
    }

    /// Whether [`Process::look_soon`] has anything to look at.
    pub fn looks_soon(&self) -> bool {
        let looks_early = self.looks != Looks::Late && self.cleared.is_some();
        self.writes.is_armed() || looks_early
    }

    /// Looks at what was armed, at a time when no step is due.
    pub fn look_between(&mut self) {
        self.writes.look_between((self.pid, &self.pagemap));
    }

    /// The early look, a moment after the steps.
    pub fn look_soon(&mut self) {
        self.writes.look_soon((self.pid, &self.pagemap));
        let Some(at) = self.cleared.as_ref().filter(|c| c.early.is_none()).map(|c| c.at) else {
            return;
        };
        if self.looks != Looks::Late {
            let early = self.look(at);
            self.cleared.iter_mut().for_each(|cleared| cleared.early = early.clone());
        }
    }

    /// Looks at the referenced bits since they were cleared.
    fn look(&mut self, cleared_at: Duration) -> Option<Look> {
        self.smaps.rewind().ok()?;
        let before = self.cpu();
        let mut mappings = smaps::read(BufReader::with_capacity(SMAPS_CHUNK, &self.smaps));
        let at = (before + self.cpu()) / 2;
        mappings.retain(|mapping| windows::touches(&self.ranges, &mapping.range));
        self.has_huge = mappings.iter().any(|mapping| mapping.huge_bytes > 0);
        Some(Look { elapsed: at.saturating_sub(cleared_at), mappings })
    }

    fn cpu(&self) -> Duration {
        clock::process_cpu(self.pid).unwrap_or_default()
    }

    /// Shares out what the looks of one cycle saw over what is watched; `used` is the program's CPU
    /// time in it.
    fn report(
        &mut self,
        early: Option<&Look>,
        late: Option<&Look>,
        used: Duration,
        pass: &mut Pass<'_>,
    ) {
        let Some(latest) = late.or(early) else { return };
        let mut accesses_by_range = vec![0u64; self.ranges.len()];
        let mut state = State::default();
        for mapping in &latest.mappings {
            // Mappings that changed between the looks are judged by the later one alone.
            let before = early.filter(|_| late.is_some()).and_then(|look| {
                let at =
                    look.mappings.binary_search_by_key(&mapping.range.start, |m| m.range.start);
                at.ok().map(|at| (&look.mappings[at], look.elapsed))
            });
            let before = before.filter(|(early, _)| early.range == mapping.range);
            let seen = [
                seen(mapping, latest.elapsed),
                before.map_or(Seen::default(), |(early, elapsed)| seen(early, elapsed)),
            ];
            state.add(&seen, late.is_some());
            let accesses = rate::rate(&seen) * seen[0].total as f64 * used.as_secs_f64();
            // In 1/1024, so that many small ranges of one mapping do not all round to nothing.
            let parts = saturating_u64(accesses * PARTS);
            let add = |index: usize, share| accesses_by_range[index] += share;
            windows::spread(&self.ranges, &mapping.range, parts, add);
        }
        for (range, parts) in self.ranges.iter().zip(accesses_by_range) {
            pass.push(self.pid, range.start, AccessKind::Unknown, parts as f64 / PARTS);
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

/// Whether the kernel uses huge OS pages unasked: assumed until a mapping was read.
fn may_be_huge() -> bool {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    enabled.is_ok_and(|text| text.contains("[always]"))
}

/// Huge OS pages count as one each.
fn seen(mapping: &Mapping, elapsed: Duration) -> Seen {
    let small = (mapping.resident_bytes - mapping.huge_bytes) / OS_PAGE;
    let total = small + mapping.huge_bytes.div_ceil(HUGE_OS_PAGE);
    let share = mapping.referenced_bytes as f64 / mapping.resident_bytes as f64;
    let used = saturating_u64((total as f64 * share.min(1.0)).ceil());
    Seen { used, total, elapsed }
}

/// How much of what is watched each look could not distinguish, OS pages.
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
