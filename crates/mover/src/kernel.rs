//! The kernel mover: `move_pages` in large batches, believed only by residency.
//! In: moves. Out: outcomes counted from where the OS pages are afterwards.
//! Knows nothing of system call numbers (see `syscall`) and of why a move was asked for.
//!
//! A batch is a run of OS pages with one process and one target:
//!
//! ```text
//!   ask where all are --> there | absent | elsewhere
//!        elsewhere --> move (all at once) --> ask again --> there | absent | elsewhere + failure
//!             ^                                                                    |
//!             '------ if busy: once more, in pieces an eighth as long -------------'
//! ```
//!
//! Why pieces: after an OS page that cannot be migrated, the kernel may leave the rest of the call
//! alone (a short move); shorter calls confine that to its neighbours.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tiercel_machine::number::{index, share_of, whole_ns};

use tiercel_ledger::movement::{Failure, Move, Outcome};
use tiercel_machine::NodeId;

use crate::self_mover::SelfMovers;
use crate::syscall::{Errno, Kernel, Linux, STATUS_UNTOUCHED};
use crate::{Mover, Range, Residency, ResidencyError};

/// OS pages per call. A query costs 0.24 us for each OS page in calls of 64 or more, 1.25 us
/// singly; a call that moves costs 61 us before it moves anything (it drains the lists of every
/// CPU), 15 ns an OS page at 4096 (2-core VM, kernel 6.18, `./x bench mover`). 4096 holds eight
/// huge ones and keeps the program's memory map locked for milliseconds only.
pub const BATCH_OS_PAGES: usize = 4096;
/// Rounds per batch: pieces of 4096, 512, 64 and 8 OS pages.
const ROUNDS: u32 = 4;
/// Each round's pieces are this many powers of two shorter.
const ROUND_SHIFT: u32 = 3;
/// OS pages of one range that a residency question looks at, evenly spread; exact up to 256 KiB.
/// All 16384 of an extent of 64 MiB took 5 ms. The error is at most 6% of the size for a range
/// whose OS pages are on two nodes at random, and 1.6% for one that changes nodes once.
pub const MAX_QUERIED_OS_PAGES: u64 = 64;
/// Queried of each range at first. Where they lie in one place, so will the others: first touch and
/// moves leave few boundaries. An eighth of the cost, which was 1 us an OS page in a timed guest.
const FIRST_QUERIED_OS_PAGES: u64 = 8;
/// Longest move; all of the runtime's address range. A longer one is a caller's error and
/// fails.
pub const MAX_MOVE_BYTES: u64 = 1 << 40;
/// Bytes the kernel moves at once when transparent huge pages are in use (x86-64, and arm64 with 4
/// KiB).
const HUGE_BYTES: u64 = 2 << 20;

/// Moves memory of any process that the kernel lets us move: our own user's, or with privilege any
/// user's.
#[derive(Debug)]
pub struct KernelMover<K = Linux> {
    kernel: K,
    os_page_bytes: u64,
    /// Whether the last head of a huge piece brought its tail along.
    huge_expected: bool,
    /// Targets that ran out of memory during this `execute`.
    full: BTreeSet<NodeId>,
    /// Processes that are asked first; `None`: the kernel moves everything.
    self_movers: Option<SelfMovers>,
}

/// One OS page on its way.
#[derive(Clone, Copy, Debug)]
struct OsPage {
    addr: u64,
    /// Index of the move it belongs to.
    owner: usize,
    place: Place,
    /// Failure of the last attempt, if any.
    last_failure: Option<Failure>,
    /// The process itself brought it there.
    is_own: bool,
}

/// Where the OS pages of a range are that were asked about.
#[derive(Clone, Debug, Default)]
struct Count {
    nodes: BTreeMap<NodeId, u64>,
    absent: u64,
}

impl Count {
    /// Whether not all of them are in one place.
    fn is_mixed(&self) -> bool {
        self.nodes.len() + usize::from(self.absent > 0) > 1
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// On the target before the move.
    AlreadyThere,
    /// On the target now.
    Moved,
    /// On another node.
    Elsewhere(NodeId),
    /// Nowhere.
    Absent,
    /// Not known, and given up.
    Lost(Failure),
}

impl KernelMover<Linux> {
    /// A mover on the running kernel.
    pub fn new() -> KernelMover<Linux> {
        KernelMover::with_kernel(Linux::default())
    }
}

impl Default for KernelMover<Linux> {
    fn default() -> Self {
        KernelMover::new()
    }
}

impl<K: Kernel> KernelMover<K> {
    /// A mover on any kernel, a failing one for example.
    pub fn with_kernel(kernel: K) -> KernelMover<K> {
        let os_page_bytes = kernel.os_page_bytes();
        assert!(os_page_bytes.is_power_of_two());
        KernelMover {
            kernel,
            os_page_bytes,
            huge_expected: false,
            full: BTreeSet::new(),
            self_movers: None,
        }
    }

    /// Processes that say so move their own memory; the kernel moves what is left.
    pub fn with_self_movers(mut self) -> KernelMover<K> {
        self.self_movers = Some(SelfMovers::default());
        self
    }

    /// Settles a batch and adds it up into the outcomes of its moves.
    fn flush(&mut self, batch: &mut Vec<OsPage>, outcomes: &mut [Outcome]) {
        let Some(first) = batch.first() else { return };
        let (pid, to) = (outcomes[first.owner].asked.pid, outcomes[first.owner].asked.to);
        // The CPU time it takes, not what others had of that CPU meanwhile.
        let began = thread_time();
        let waited = self.settle(pid, to, batch);
        let took_ns = whole_ns(thread_time().saturating_sub(began) + waited);
        let (length, bytes) = (batch.len() as u64, self.os_page_bytes);
        for run in batch.chunk_by(|a, b| a.owner == b.owner) {
            let outcome = &mut outcomes[run[0].owner];
            outcome.took_ns += took_ns * run.len() as u64 / length;
            run.iter().for_each(|os_page| count(outcome, os_page, bytes));
        }
        batch.clear();
    }

    /// Brings every OS page of the batch to its final place. Answers how long the process itself
    /// was waited for.
    fn settle(&mut self, pid: u32, to: NodeId, batch: &mut [OsPage]) -> Duration {
        let all: Vec<usize> = (0..batch.len()).collect();
        self.locate(pid, to, batch, &all);
        let waited = self.ask_process(pid, to, batch);
        for round in 0..ROUNDS {
            let waiting: Vec<usize> = all.iter().copied().filter(|&i| batch[i].waits()).collect();
            if waiting.is_empty() {
                break;
            }
            if self.full.contains(&to) {
                waiting.iter().for_each(|&i| batch[i].last_failure = Some(Failure::NoMemory));
                break;
            }
            let (attempt, heads) = self.heads_first(round, batch, &waiting);
            for piece in attempt.chunks(BATCH_OS_PAGES >> (ROUND_SHIFT * round)) {
                if !self.full.contains(&to) {
                    self.attempt(pid, to, batch, piece);
                }
            }
            let before: Vec<Place> = waiting.iter().map(|&i| batch[i].place).collect();
            self.locate(pid, to, batch, &waiting);
            self.note_room_left(batch, &waiting, &before);
            if let Some(&head) = heads.last() {
                self.huge_expected = batch[head + 1].place == Place::Moved;
            }
        }
        waited
    }

    /// Lets the process move what waits, if it does. Answers how long that took.
    fn ask_process(&mut self, pid: u32, to: NodeId, batch: &mut [OsPage]) -> Duration {
        let Some(self_movers) = &self.self_movers else { return Duration::ZERO };
        let waiting: Vec<usize> = (0..batch.len()).filter(|&i| batch[i].waits()).collect();
        let bytes = self.os_page_bytes;
        let mut ranges: Vec<Range> = Vec::new();
        for &index in &waiting {
            match ranges.last_mut() {
                Some(last) if last.addr + last.bytes == batch[index].addr => last.bytes += bytes,
                _ => ranges.push(Range { addr: batch[index].addr, bytes }),
            }
        }
        let began = Instant::now();
        let has_moved = !ranges.is_empty() && self_movers.move_own(pid, &ranges, to);
        let waited = began.elapsed();
        if has_moved {
            let before: Vec<Place> = waiting.iter().map(|&i| batch[i].place).collect();
            self.locate(pid, to, batch, &waiting);
            self.note_room_left(batch, &waiting, &before);
            waiting.iter().for_each(|&i| batch[i].is_own = batch[i].place == Place::Moved);
        }
        waited
    }

    /// Asks where the OS pages at these indices are.
    fn locate(&mut self, pid: u32, to: NodeId, batch: &mut [OsPage], indices: &[usize]) {
        let addrs: Vec<u64> = indices.iter().map(|&i| batch[i].addr).collect();
        let mut status = vec![STATUS_UNTOUCHED; addrs.len()];
        let answer = self.kernel.move_pages(pid, &addrs, None, &mut status);
        for (&index, status) in indices.iter().zip(status) {
            let os_page = &mut batch[index];
            os_page.place = match (answer, status) {
                (Err(errno), _) => Place::Lost(failure_of_call(errno)),
                (Ok(_), status) => match place_of(status) {
                    Ok(Some(node)) if node == to => match os_page.place {
                        Place::Elsewhere(_) => Place::Moved,
                        _ => Place::AlreadyThere,
                    },
                    Ok(Some(node)) => Place::Elsewhere(node),
                    Ok(None) => Place::Absent,
                    Err(failure) => Place::Lost(failure),
                },
            };
        }
    }

    /// What to attempt in this round: of each whole huge piece only its head where the memory seems
    /// to be huge (it takes the other 511 along), and one such head otherwise, to find out. Later
    /// rounds attempt all that waits. Also returns the heads.
    fn heads_first(
        &self,
        round: u32,
        batch: &[OsPage],
        waiting: &[usize],
    ) -> (Vec<usize>, Vec<usize>) {
        let length = index(HUGE_BYTES / self.os_page_bytes);
        let is_head = |at: usize| {
            let whole = waiting.get(at + length - 1).is_some_and(|&last| {
                let first = waiting[at];
                last == first + length - 1
                    && batch[last].addr == batch[first].addr + HUGE_BYTES - self.os_page_bytes
            });
            whole && batch[waiting[at]].addr.is_multiple_of(HUGE_BYTES)
        };
        let (mut attempt, mut heads) = (Vec::with_capacity(waiting.len()), Vec::new());
        let mut at = 0;
        while at < waiting.len() {
            attempt.push(waiting[at]);
            let look = round == 0 && length > 1 && (self.huge_expected || heads.is_empty());
            if look && is_head(at) {
                heads.push(waiting[at]);
                at += length;
            } else {
                at += 1;
            }
        }
        (attempt, heads)
    }

    /// One call that moves, and what it said about each OS page.
    fn attempt(&mut self, pid: u32, to: NodeId, batch: &mut [OsPage], indices: &[usize]) {
        let addrs: Vec<u64> = indices.iter().map(|&i| batch[i].addr).collect();
        let mut status = vec![STATUS_UNTOUCHED; addrs.len()];
        let answer = self.kernel.move_pages(pid, &addrs, Some(to), &mut status);
        for (&index, status) in indices.iter().zip(status) {
            batch[index].last_failure = Some(match answer {
                Err(errno) => failure_of_call(errno),
                Ok(short) => failure_of_status(status, short > 0),
            });
            if batch[index].last_failure == Some(Failure::NoMemory) {
                self.full.insert(to);
            }
        }
    }

    /// A node that OS pages have left has room again.
    fn note_room_left(&mut self, batch: &[OsPage], indices: &[usize], before: &[Place]) {
        for (&index, before) in indices.iter().zip(before) {
            if let (Place::Elsewhere(from), Place::Moved) = (before, batch[index].place) {
                self.full.remove(from);
            }
        }
    }

    /// Asks where a batch of OS pages is, each of the range it names, and counts the answers.
    fn ask(
        &mut self,
        pid: u32,
        batch: &[(usize, u64)],
        counts: &mut [Result<Count, ResidencyError>],
    ) {
        let addrs: Vec<u64> = batch.iter().map(|(_, addr)| *addr).collect();
        let mut status = vec![STATUS_UNTOUCHED; addrs.len()];
        let asked = self.kernel.move_pages(pid, &addrs, None, &mut status);
        let failed = asked.err().map(|errno| match errno.0 {
            libc::EPERM | libc::EACCES => ResidencyError::Permission,
            // EINVAL: it is ending, and has no memory any more.
            libc::ESRCH | libc::EINVAL => ResidencyError::Vanished,
            _ => ResidencyError::Kernel(errno),
        });
        for (&(owner, _), status) in batch.iter().zip(status) {
            match (failed, &mut counts[owner]) {
                (Some(error), count) => *count = Err(error),
                (None, Ok(count)) => match place_of(status) {
                    Ok(Some(node)) => *count.nodes.entry(node).or_default() += 1,
                    _ => count.absent += 1,
                },
                (None, Err(_)) => {}
            }
        }
    }

    /// OS pages of a range that are asked about, `most` at most.
    fn asked_of(&self, range: Range, most: u64) -> u64 {
        (range.bytes / self.os_page_bytes).min(most)
    }

    /// Counts where up to `most` OS pages of each range are.
    fn count(
        &mut self,
        pid: u32,
        ranges: &[Range],
        most: u64,
    ) -> Vec<Result<Count, ResidencyError>> {
        let (size, mut counts) = (self.os_page_bytes, vec![Ok(Count::default()); ranges.len()]);
        let questions: Vec<(u64, u64)> =
            ranges.iter().map(|range| (range.bytes / size, self.asked_of(*range, most))).collect();
        let mut questions =
            questions.into_iter().enumerate().flat_map(|(owner, (total, asked))| {
                (0..asked)
                    .map(move |i| (owner, ranges[owner].addr + spread(i, asked, total) * size))
            });
        loop {
            // Small ranges share a call: one by one each would cost five times as much.
            let batch: Vec<(usize, u64)> = questions.by_ref().take(BATCH_OS_PAGES).collect();
            if batch.is_empty() {
                return counts;
            }
            self.ask(pid, &batch, &mut counts);
        }
    }

    /// Counts of a sample as bytes of the range; the rounding goes to the largest share.
    fn scale(&self, range: Range, count: Count) -> Residency {
        let asked = count.nodes.values().sum::<u64>() + count.absent;
        let bytes_of = |count: u64| {
            let bytes = share_of(range.bytes, count, asked.max(1));
            bytes / self.os_page_bytes * self.os_page_bytes
        };
        let mut nodes: Vec<(NodeId, u64)> =
            count.nodes.into_iter().map(|(node, count)| (node, bytes_of(count))).collect();
        let mut absent_bytes = bytes_of(count.absent);
        let rest = range.bytes - absent_bytes - nodes.iter().map(|(_, bytes)| bytes).sum::<u64>();
        match nodes.iter_mut().max_by_key(|(_, bytes)| *bytes) {
            Some((_, bytes)) if *bytes >= absent_bytes => *bytes += rest,
            _ => absent_bytes += rest,
        }
        nodes.retain(|(_, bytes)| *bytes > 0);
        Residency { nodes, absent_bytes, queried_bytes: asked * self.os_page_bytes }
    }
}

impl<K: Kernel> Mover for KernelMover<K> {
    fn execute(&mut self, moves: &[Move]) -> Vec<Outcome> {
        self.full.clear();
        let mut outcomes: Vec<Outcome> = moves.iter().cloned().map(Outcome::of).collect();
        let mut batch: Vec<OsPage> = Vec::with_capacity(BATCH_OS_PAGES);
        for (owner, asked) in moves.iter().enumerate() {
            let key = |owner: usize| (moves[owner].pid, moves[owner].to);
            if batch.first().is_some_and(|first| key(first.owner) != key(owner)) {
                self.flush(&mut batch, &mut outcomes);
            }
            if asked.bytes > MAX_MOVE_BYTES {
                outcomes[owner].failed.push((Failure::Other, asked.bytes));
                continue;
            }
            for index in 0..asked.bytes / self.os_page_bytes {
                let addr = asked.addr.saturating_add(index * self.os_page_bytes);
                batch.push(OsPage {
                    addr,
                    owner,
                    place: Place::Absent,
                    last_failure: None,
                    is_own: false,
                });
                if batch.len() == BATCH_OS_PAGES {
                    self.flush(&mut batch, &mut outcomes);
                }
            }
        }
        self.flush(&mut batch, &mut outcomes);
        for outcome in &mut outcomes {
            outcome.failed.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        }
        outcomes
    }

    fn residency(&mut self, pid: u32, ranges: &[Range]) -> Vec<Result<Residency, ResidencyError>> {
        let mut counts = self.count(pid, ranges, FIRST_QUERIED_OS_PAGES);
        let whole = FIRST_QUERIED_OS_PAGES * self.os_page_bytes;
        let is_mixed = |at: &usize| counts[*at].as_ref().is_ok_and(Count::is_mixed);
        let mixed = (0..ranges.len()).filter(|at| ranges[*at].bytes > whole && is_mixed(at));
        let mixed: Vec<usize> = mixed.collect();
        let again: Vec<Range> = mixed.iter().map(|at| ranges[*at]).collect();
        let precise = self.count(pid, &again, MAX_QUERIED_OS_PAGES);
        mixed.into_iter().zip(precise).for_each(|(at, count)| counts[at] = count);
        let answers = ranges.iter().zip(counts);
        answers.map(|(range, count)| count.map(|count| self.scale(*range, count))).collect()
    }

    fn self_movers(&self) -> Option<SelfMovers> {
        self.self_movers.clone()
    }

    fn is_modelled(&self) -> bool {
        false
    }
}

impl OsPage {
    /// Whether another attempt may help: not yet attempted, or busy when it was.
    fn waits(&self) -> bool {
        matches!(self.place, Place::Elsewhere(_))
            && matches!(self.last_failure, None | Some(Failure::Busy))
    }
}

/// CPU time this thread has had.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Adds one OS page to the outcome of its move.
fn count(outcome: &mut Outcome, os_page: &OsPage, bytes: u64) {
    let failure = match os_page.place {
        Place::AlreadyThere => return outcome.resident_bytes += bytes,
        Place::Absent => return outcome.absent_bytes += bytes,
        Place::Moved => {
            outcome.resident_bytes += bytes;
            outcome.own_bytes += if os_page.is_own { bytes } else { 0 };
            return outcome.moved_bytes += bytes;
        }
        Place::Lost(failure) => failure,
        Place::Elsewhere(_) => os_page.last_failure.unwrap_or(Failure::Other),
    };
    match outcome.failed.iter_mut().find(|(known, _)| *known == failure) {
        Some((_, sum)) => *sum += bytes,
        None => outcome.failed.push((failure, bytes)),
    }
}

/// What an errno of the whole call means.
fn failure_of_call(errno: Errno) -> Failure {
    match errno.0 {
        // EACCES: the target is outside the process's cpuset.
        libc::EPERM | libc::EACCES => Failure::Permission,
        // EINVAL: it is ending, and has no memory any more.
        libc::ESRCH | libc::EINVAL => Failure::Vanished,
        libc::ENOMEM => Failure::NoMemory,
        libc::ENODEV => Failure::NoNode,
        _ => Failure::Other,
    }
}

/// Maps the status of an attempt to a failure, if the OS page is still not on the target. `short`:
/// the kernel reports that it did not get to all OS pages.
fn failure_of_status(status: i32, short: bool) -> Failure {
    match status {
        STATUS_UNTOUCHED if short => Failure::Busy,
        STATUS_UNTOUCHED | 0.. => Failure::Misplaced,
        _ => match -status {
            libc::EBUSY | libc::EAGAIN => Failure::Busy,
            libc::EACCES => Failure::Shared,
            libc::EPERM => Failure::Permission,
            libc::ENOMEM => Failure::NoMemory,
            _ => Failure::Other,
        },
    }
}

/// What the status of a question means: a node, or nowhere. EFAULT is the kernel's word for the
/// shared zero page and for addresses that are not mapped at all: neither has memory that could
/// move.
fn place_of(status: i32) -> Result<Option<NodeId>, Failure> {
    match u16::try_from(status) {
        Ok(node) => Ok(Some(NodeId(node))),
        Err(_) if status == -libc::ENOENT || status == -libc::EFAULT => Ok(None),
        Err(_) => Err(Failure::Other),
    }
}

/// The i-th of `asked` indices below `total`: all of them, or one anywhere in each of `asked` equal
/// strips, so that memory interleaved in a regular pattern is not always hit at the same phase.
fn spread(i: u64, asked: u64, total: u64) -> u64 {
    // 2^64 over the golden ratio: its products spread neighbours over the highest bits.
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    let strip = total / asked;
    let start = share_of(total, i, asked);
    let mixed = i.wrapping_mul(GOLDEN);
    let chance = (mixed ^ (mixed >> 29)).wrapping_mul(GOLDEN) >> 32;
    start + ((chance * strip) >> 32)
}
