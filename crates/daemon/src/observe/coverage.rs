//! How much of what hosted processes have in memory is in rows, and what is not.
//! In: what rows hold of each process; `/proc/PID/smaps`, read on a thread of its own, because that
//! takes about a millisecond for each GiB. Out: a [`Coverage`], and mappings of which nothing is in
//! rows. Knows nothing of accesses.
//!
//! Of a mapping that is partly in rows the kernel does not say which of its OS pages are resident:
//! what is tracked is between two bounds. Files and shared memory count once for all processes. The
//! runtime's own memory, as far as it has a name, is not counted.

use crate::cpu;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tiercel_wire::maps::Line;

use super::unnamed::Unnamed;

/// Processes that are looked at in one round; the rest has its turn in the next.
const PROCESSES_MAX: usize = 64;

/// CPU time that looking may take, as a share of wall time: a sixth of what a daemon may cost where
/// nothing can be gained.
const TIME_SHARE: f64 = 0.0005;

/// Shortest time between two rounds.
const ROUND_MS_MIN: u64 = 250;

/// Ranges of one process that are compared: 1 MiB of them.
const RANGES_MAX: usize = 65_536;

/// Bytes of `/proc/PID/smaps` that are read: 65530 mappings have 50 MiB.
const SMAPS_BYTES_MAX: usize = 64 << 20;

/// Smaller mappings of which nothing is in rows are not worth a row: 16 OS pages.
const UNNAMED_BYTES_MIN: u64 = 64 << 10;

/// Longest name of a mapping that is kept, characters.
const NAME_MAX: usize = 96;

/// What rows hold of the memory of hosted processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// Resident bytes of all hosted processes, when they had most; 0: they were never looked at.
    pub rss_bytes: u64,
    /// Of these, bytes in rows: at least, and at most.
    pub tracked_bytes: (u64, u64),
    /// The largest mapping of which nothing is in a row, and its resident bytes.
    pub largest_untracked: Option<(String, u64)>,
    /// Processes whose mappings cannot be read: they are not in these figures.
    pub unread: u64,
}

/// A process to be looked at.
pub(crate) struct Asked {
    pub(crate) pid: u32,
    /// Ranges in rows, ascending.
    pub(crate) ranges: Vec<Range<u64>>,
    /// Of these, what was taken in because nothing else of its mapping was in rows. `None`: nothing
    /// is.
    pub(crate) adopted: Option<Vec<Range<u64>>>,
}

/// What a round found.
struct Found {
    coverage: Coverage,
    unnamed: Vec<Unnamed>,
    took: Duration,
}

/// Rounds to it, and what it found.
type Thread = (SyncSender<Vec<Asked>>, Receiver<Found>);

/// Looks at processes, on a thread that starts with the first round.
#[derive(Default)]
pub(crate) struct Looking {
    thread: Option<Thread>,
    is_busy: bool,
    /// When the next round may begin; while one is under way, when that began.
    due_ms: u64,
    /// Of the round with most resident bytes.
    most: Coverage,
    unnamed: Vec<Unnamed>,
}

impl Looking {
    /// Whether a round may begin.
    pub(crate) fn is_due(&mut self, now_ms: u64) -> bool {
        self.collect();
        !self.is_busy && now_ms >= self.due_ms
    }

    /// Whether no process was looked at yet.
    pub(crate) fn is_first(&self) -> bool {
        !self.is_busy && self.most == Coverage::default()
    }

    /// Begins a round.
    pub(crate) fn look(&mut self, processes: impl Iterator<Item = Asked>, now_ms: u64) {
        self.due_ms = now_ms;
        let asked: Vec<Asked> = processes.take(PROCESSES_MAX).collect();
        if asked.is_empty() {
            return;
        }
        if self.thread.is_none() {
            self.thread = start();
        }
        let Some((requests, _)) = &self.thread else { return };
        self.is_busy = requests.try_send(asked).is_ok();
    }

    /// Mappings of which nothing is in rows, of the last round, once.
    pub(crate) fn take_unnamed(&mut self) -> Vec<Unnamed> {
        std::mem::take(&mut self.unnamed)
    }

    /// What was found in the round with most resident bytes.
    pub(crate) fn coverage(&self) -> Coverage {
        self.most.clone()
    }

    /// Takes in what is there, and waits for a round that is under way, for so long at most.
    pub(crate) fn finish(&mut self, longest: Duration) {
        let Some((_, found)) = self.thread.as_ref().filter(|_| self.is_busy) else { return };
        if let Ok(found) = found.recv_timeout(longest) {
            self.add(found.coverage);
        }
        self.is_busy = false;
    }

    fn collect(&mut self) {
        let Some((_, found)) = &self.thread else { return };
        let Ok(Found { coverage, unnamed, took }) = found.try_recv() else { return };
        self.is_busy = false;
        let pause_ms = crate::schedule::pause_ms(took, TIME_SHARE);
        self.due_ms += pause_ms.max(ROUND_MS_MIN);
        self.add(coverage);
        self.unnamed = unnamed;
    }

    fn add(&mut self, coverage: Coverage) {
        if coverage.rss_bytes >= self.most.rss_bytes {
            self.most = coverage;
        }
    }
}

/// Ranges of a process as they are compared: those in rows, and those that show what others have in
/// rows.
pub(crate) fn ranges(
    rows: impl Iterator<Item = Range<u64>>,
    views: impl Iterator<Item = Range<u64>>,
) -> Vec<Range<u64>> {
    let mut all: Vec<_> = rows.take(RANGES_MAX).chain(views.take(RANGES_MAX)).collect();
    all.sort_unstable_by_key(|range| range.start);
    all
}

fn start() -> Option<Thread> {
    let (requests, inbox) = sync_channel::<Vec<Asked>>(1);
    let (outbox, found) = sync_channel(1);
    let work = move || {
        while let Ok(asked) = inbox.recv() {
            let began_ns = cpu::thread_ns();
            let mut sum = Sum::default();
            asked.iter().for_each(|one| sum.add_process(one, read_smaps(one.pid).as_deref()));
            let unnamed = std::mem::take(&mut sum.unnamed);
            let found = Found { coverage: sum.coverage(), unnamed, took: took(began_ns) };
            if outbox.send(found).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("tiercel-rss".into()).spawn(work).ok()?;
    Some((requests, found))
}

fn took(began_ns: u64) -> Duration {
    Duration::from_nanos(cpu::since_ns(began_ns))
}

/// `None`: it is over, or may not be read.
fn read_smaps(pid: u32) -> Option<String> {
    use std::io::Read;
    let file = std::fs::File::open(format!("/proc/{pid}/smaps")).ok()?;
    let mut bytes = Vec::new();
    file.take(SMAPS_BYTES_MAX as u64).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8(bytes);
    let text = text.unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned());
    (!text.is_empty()).then_some(text)
}

/// One mapping of `/proc/PID/smaps`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Mapping {
    range: Range<u64>,
    /// Device, inode and offset; `None`: no file backs it.
    file: Option<(String, u64, u64)>,
    name: String,
    rss_bytes: u64,
    /// Of these, bytes that are this process's own.
    anonymous_bytes: u64,
    /// It is memory that the process reads and shares with no other.
    is_private: bool,
}

impl Mapping {
    /// From its first line.
    fn of_line(line: &str) -> Option<Mapping> {
        let Line { range, permissions, offset, device, inode, name } = Line::parse(line)?;
        let file = (inode != 0).then(|| (device.to_owned(), inode, offset));
        let is_private = permissions.starts_with('r') && permissions.ends_with('p');
        let name = name.to_owned();
        Some(Mapping { range, file, name, is_private, ..Mapping::default() })
    }

    /// Takes in a line that follows: `Rss:   12 kB`.
    fn add_line(&mut self, line: &str) {
        let kib = |value: &str| value.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0);
        if let Some(value) = line.strip_prefix("Rss:") {
            self.rss_bytes = kib(value).saturating_mul(1024);
        } else if let Some(value) = line.strip_prefix("Anonymous:") {
            self.anonymous_bytes = kib(value).saturating_mul(1024);
        }
    }

    /// Whether a program made it that may be placed; the kernel's own begin with `[v`, and stacks
    /// are reported by the runtime.
    fn is_placeable(&self) -> bool {
        let is_special = self.name.starts_with("[v") || self.name.starts_with("[stack");
        self.is_private && self.file.is_none() && !is_special && self.rss_bytes >= UNNAMED_BYTES_MIN
    }

    fn is_ours(&self) -> bool {
        self.name.contains("libtiercel.so")
            || self.name == "/memfd:tiercel (deleted)"
            || self.name.trim_end_matches(" (deleted)").ends_with(".offer")
    }
}

fn mappings(smaps: &str) -> Vec<Mapping> {
    let mut all: Vec<Mapping> = Vec::new();
    for line in smaps.lines() {
        // Addresses are in small letters, and a mapping has 24 lines of others.
        match line.starts_with(|first: char| first.is_ascii_uppercase()) {
            true => all.iter_mut().last().into_iter().for_each(|last| last.add_line(line)),
            false => all.extend(Mapping::of_line(line)),
        }
    }
    all
}

/// Bytes, and of these those in rows: at least, and at most.
#[derive(Clone, Copy, Default)]
struct Part {
    rss_bytes: u64,
    tracked_bytes: (u64, u64),
}

impl Part {
    fn of(mapping: &Mapping, covered_bytes: u64, rss_bytes: u64) -> Part {
        let uncovered_bytes =
            (mapping.range.end - mapping.range.start).saturating_sub(covered_bytes);
        let least = rss_bytes.saturating_sub(uncovered_bytes);
        Part { rss_bytes, tracked_bytes: (least, rss_bytes.min(covered_bytes)) }
    }

    fn add(&mut self, other: Part) {
        self.rss_bytes += other.rss_bytes;
        self.tracked_bytes.0 += other.tracked_bytes.0;
        self.tracked_bytes.1 += other.tracked_bytes.1;
    }
}

#[derive(Default)]
struct Sum {
    own: Part,
    /// Of each file and offset, of the process that has most of it.
    files: HashMap<(String, u64, u64), Part>,
    largest: Option<(String, u64)>,
    unread: u64,
    unnamed: Vec<Unnamed>,
}

impl Sum {
    fn add_process(&mut self, process: &Asked, smaps: Option<&str>) {
        let Some(smaps) = smaps else {
            self.unread += 1;
            return;
        };
        let all: Vec<Mapping> = mappings(smaps).into_iter().filter(|one| !one.is_ours()).collect();
        if let Some(adopted) = &process.adopted {
            let ranges = unnamed(&all, &process.ranges, adopted);
            self.unnamed.push(Unnamed { pid: process.pid, ranges });
        }
        for mapping in all {
            let covered_bytes = covered(&process.ranges, &mapping.range);
            let anonymous_bytes = mapping.anonymous_bytes.min(mapping.rss_bytes);
            let of_file_bytes = mapping.rss_bytes - anonymous_bytes;
            self.own.add(Part::of(&mapping, covered_bytes, anonymous_bytes));
            let of_file = Part::of(&mapping, covered_bytes, of_file_bytes);
            match &mapping.file {
                None => self.own.add(of_file),
                Some(file) => {
                    let known = self.files.entry(file.clone()).or_default();
                    if of_file.rss_bytes >= known.rss_bytes {
                        *known = of_file;
                    }
                }
            }
            if covered_bytes == 0 {
                self.note_untracked(&mapping);
            }
        }
    }

    fn note_untracked(&mut self, mapping: &Mapping) {
        if self.largest.as_ref().is_some_and(|(_, bytes)| *bytes >= mapping.rss_bytes) {
            return;
        }
        let file = mapping.name.rsplit('/').next().unwrap_or_default();
        let name = if file.is_empty() { "anonymous memory" } else { file };
        self.largest = Some((name.chars().take(NAME_MAX).collect(), mapping.rss_bytes));
    }

    fn coverage(self) -> Coverage {
        let mut all = self.own;
        self.files.values().for_each(|file| all.add(*file));
        Coverage {
            rss_bytes: all.rss_bytes,
            tracked_bytes: all.tracked_bytes,
            largest_untracked: self.largest.filter(|(_, bytes)| *bytes > 0),
            unread: self.unread,
        }
    }
}

/// Mappings of which nothing is in rows but what was taken in because of that.
fn unnamed(mappings: &[Mapping], ranges: &[Range<u64>], adopted: &[Range<u64>]) -> Vec<Range<u64>> {
    let is_free = |mapping: &&Mapping| {
        let (all, own) = (covered(ranges, &mapping.range), covered(adopted, &mapping.range));
        mapping.is_placeable() && all <= own
    };
    mappings.iter().filter(is_free).map(|mapping| mapping.range.clone()).collect()
}

/// Bytes of a range that lie in others, which are ascending and apart.
fn covered(ranges: &[Range<u64>], of: &Range<u64>) -> u64 {
    let first = ranges.partition_point(|range| range.end <= of.start);
    let within = ranges[first..].iter().take_while(|range| range.start < of.end);
    within.map(|range| range.end.min(of.end) - range.start.max(of.start)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
00400000-00500000 r-xp 00000000 fe:01 77   /usr/bin/app
Rss:                 512 kB
Anonymous:             0 kB
VmFlags: rd ex mr
00600000-00700000 rw-p 00100000 fe:01 77   /usr/bin/app
Rss:                1024 kB
Anonymous:           256 kB
10000000-10400000 rw-p 00000000 00:00 0
Rss:                3072 kB
Anonymous:          3072 kB
20000000-20100000 rw-s 00000000 00:01 99   /memfd:table (deleted)
Rss:                1024 kB
Anonymous:             0 kB
30000000-30100000 rw-s 00000000 00:01 98   /memfd:tiercel (deleted)
Rss:                1024 kB
";

    fn asked(ranges: &[Range<u64>]) -> Asked {
        Asked { pid: 1, ranges: ranges.to_vec(), adopted: None }
    }

    fn sum(processes: &[&[Range<u64>]]) -> Coverage {
        let mut sum = Sum::default();
        processes.iter().for_each(|ranges| sum.add_process(&asked(ranges), Some(SMAPS)));
        sum.coverage()
    }

    #[test]
    fn what_rows_hold_lies_between_two_bounds() {
        let none = sum(&[&[]]);
        assert_eq!((none.rss_bytes >> 10, none.tracked_bytes), (5632, (0, 0)));
        assert_eq!(none.largest_untracked, Some(("anonymous memory".into(), 3 << 20)));
        // All of the data, and 2 of the 4 MiB of which 3 are resident: 1 or 2 of them.
        let some = sum(&[&[0x60_0000..0x70_0000, 0x1000_0000..0x1020_0000]]);
        assert_eq!(some.tracked_bytes, (2 << 20, 3 << 20));
        assert_eq!(some.largest_untracked, Some(("memfd:table (deleted)".into(), 1 << 20)));
    }

    #[test]
    fn private_memory_without_a_row_is_found_and_stays_found() {
        let found = |ranges: &[Range<u64>], adopted: &[Range<u64>]| {
            let asked = Asked { adopted: Some(adopted.to_vec()), ..asked(ranges) };
            let mut sum = Sum::default();
            sum.add_process(&asked, Some(SMAPS));
            sum.unnamed[0].ranges.clone()
        };
        let whole = 0x1000_0000..0x1040_0000;
        assert_eq!(
            found(&[], &[]),
            std::slice::from_ref(&whole),
            "neither files nor shared memory"
        );
        let taken = [whole.clone()];
        assert_eq!(found(&taken, &taken), taken, "what was taken in is not an allocation");
        assert_eq!(
            found(std::slice::from_ref(&(0x1000_0000..0x1000_1000)), &[]),
            [],
            "an allocation is there"
        );
        let mut sum = Sum::default();
        sum.add_process(&asked(&[]), Some(SMAPS));
        assert_eq!(sum.unnamed, [], "it was not asked for");
    }

    #[test]
    fn files_and_shared_memory_count_once() {
        let shared = 0x2000_0000..0x2010_0000;
        let rows = std::slice::from_ref(&shared);
        let (one, two) = (sum(&[rows]), sum(&[rows, rows]));
        // Anonymous memory twice, what files back once.
        assert_eq!(two.rss_bytes - one.rss_bytes, (3072 + 256) << 10);
        assert_eq!(
            (one.tracked_bytes, two.tracked_bytes),
            ((1 << 20, 1 << 20), (1 << 20, 1 << 20))
        );
    }

    #[test]
    fn a_process_that_cannot_be_read_is_counted() {
        let mut sum = Sum::default();
        sum.add_process(&asked(&[]), None);
        assert_eq!(sum.coverage(), Coverage { unread: 1, ..Coverage::default() });
        assert!(mappings("nonsense\nRss: many kB\n-\nffff-0 x\n").is_empty());
    }

    #[test]
    fn our_own_mappings_are_read() {
        let text = read_smaps(std::process::id()).expect("our own");
        let all = mappings(&text);
        assert!(all.len() > 5 && all.iter().any(|one| one.rss_bytes > 0 && one.file.is_some()));
        assert_eq!(read_smaps(u32::MAX), None);
    }
}
