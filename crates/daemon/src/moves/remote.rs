//! Asks a hosted process to move its own memory, and does not wait for those that never answer.
//! In: the process's line. Out: an [`RemoteMover`] for the mover's thread. Knows nothing of what is
//! worth moving.
//!
//! A process that is stopped or gone is not waited for; one that is there and does not answer,
//! because it is frozen, starved or hostile, gets the deadline once and then no request for a
//! while. The kernel moves its memory meanwhile.

use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tiercel_machine::NodeId;
use tiercel_mover::{Range, RemoteMover};
use tiercel_wire::MoveLine;
use tiercel_wire::layout::MOVES_MAX;

/// A question may take this long, and
const DEADLINE: Duration = Duration::from_secs(2);
/// so much more for each byte: 20 MB/s, a tenth of what a slow machine copies.
const DEADLINE_PER_BYTE: Duration = Duration::from_nanos(50);
/// Between two looks whether the process is still there to answer.
const LOOK: Duration = Duration::from_millis(100);
/// Who did not answer is not asked for so long.
const PAUSE: Duration = Duration::from_secs(10);

/// Bytes that processes refused to move, by reason. Clones share one count.
#[derive(Clone, Debug, Default)]
pub struct Refusals(Arc<Mutex<BTreeMap<&'static str, u64>>>);

impl Refusals {
    /// So far.
    pub fn bytes(&self) -> BTreeMap<String, u64> {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.iter().map(|(reason, bytes)| ((*reason).to_owned(), *bytes)).collect()
    }

    fn add(&self, errno: i32, bytes: u64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *all.entry(reason(errno)).or_default() += bytes;
    }
}

/// What the runtime means by an errno (`runtime/vmem/private.c`).
fn reason(errno: i32) -> &'static str {
    match Errno::from_raw_os_error(errno) {
        Errno::BUSY => "pinned",
        Errno::INVAL => "locked-or-protected",
        Errno::PERM => "traced",
        Errno::NOMEM | Errno::NOSPC => "no-room",
        _ => "other",
    }
}

/// One process.
pub struct Hosted {
    pid: u32,
    refusals: Refusals,
    line: MoveLine,
    deadline: Duration,
    not_before: Option<Instant>,
}

impl Hosted {
    /// The process at the other end of `line`.
    pub fn new(pid: u32, line: MoveLine, refusals: Refusals) -> Hosted {
        Hosted { pid, refusals, line, deadline: DEADLINE, not_before: None }
    }

    fn count_refused(&self, ranges: &[Range]) {
        for (index, range) in ranges.iter().enumerate() {
            let moved = self.line.moved(index);
            if moved.error != 0 {
                self.refusals.add(moved.error, range.bytes.saturating_sub(moved.bytes));
            }
        }
    }

    fn ask(&mut self, ranges: &[Range], to: NodeId) -> bool {
        let moves: Vec<_> = ranges.iter().map(|range| (range.addr, range.bytes, to.0)).collect();
        let bytes: u64 = ranges.iter().map(|range| range.bytes).sum();
        let per_bytes = DEADLINE_PER_BYTE.saturating_mul(u32::try_from(bytes).unwrap_or(u32::MAX));
        let deadline = Instant::now() + self.deadline + per_bytes;
        self.line.ask(&moves);
        while can_run(self.pid) {
            let left = deadline.saturating_duration_since(Instant::now());
            if self.line.await_answer(left.min(LOOK)) {
                self.count_refused(ranges);
                return true;
            }
            if left.is_zero() {
                break;
            }
        }
        self.line.cancel();
        self.not_before = Some(Instant::now() + PAUSE);
        false
    }
}

impl RemoteMover for Hosted {
    fn move_own(&mut self, ranges: &[Range], to: NodeId) -> bool {
        if !self.line.is_mover() || self.not_before.is_some_and(|then| Instant::now() < then) {
            return false;
        }
        ranges.chunks(MOVES_MAX).all(|ranges| self.ask(ranges, to))
    }
}

/// False when the process is stopped, traced, dead or gone: it does not answer soon.
fn can_run(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in parentheses may hold anything.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, Some('R' | 'S' | 'D' | 'I'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use tiercel_wire::Session;
    use tiercel_wire::client::{ClientSession, SessionBuilder};

    const RANGE: [Range; 1] = [Range { addr: 1 << 40, bytes: 8192 }];

    fn hosted(pid: u32, is_mover: bool) -> (ClientSession, Hosted) {
        let client = SessionBuilder::new().build().unwrap();
        if is_mover {
            client.be_mover();
        }
        let line = Session::open(client.fd().unwrap()).unwrap().move_line().unwrap();
        (client, Hosted::new(pid, line, Refusals::default()))
    }

    #[test]
    fn who_executes_nothing_is_not_asked() {
        let (client, mut hosted) = hosted(std::process::id(), false);
        assert!(!hosted.move_own(&RANGE, NodeId(1)));
        assert_eq!(client.asked_moves(), None);
    }

    #[test]
    fn what_is_asked_arrives_and_the_answer_returns() {
        let (client, mut hosted) = hosted(std::process::id(), true);
        let answer = std::thread::spawn(move || {
            loop {
                if let Some((asked, moves)) = client.asked_moves() {
                    client.answer_moves(asked, &[(8192, 0)]);
                    return moves;
                }
                std::thread::yield_now();
            }
        });
        assert!(hosted.move_own(&RANGE, NodeId(1)));
        assert_eq!(hosted.line.moved(0), tiercel_wire::Moved { bytes: 8192, error: 0 });
        assert_eq!(answer.join().unwrap(), [[1 << 40, 8192, 1]]);
    }

    #[test]
    fn what_a_process_refuses_is_counted_by_reason() {
        let (client, mut hosted) = hosted(std::process::id(), true);
        let count = hosted.refusals.clone();
        let ranges = [Range { addr: 1 << 40, bytes: 8192 }, Range { addr: 1 << 41, bytes: 4096 }];
        let answer = std::thread::spawn(move || {
            loop {
                if let Some((asked, _)) = client.asked_moves() {
                    client.answer_moves(asked, &[(4096, libc::EBUSY), (0, libc::EPERM)]);
                    return;
                }
                std::thread::yield_now();
            }
        });
        assert!(hosted.move_own(&ranges, NodeId(1)));
        answer.join().unwrap();
        let expected = [("pinned".to_owned(), 4096), ("traced".to_owned(), 4096)];
        assert_eq!(count.bytes(), BTreeMap::from(expected));
    }

    #[test]
    fn a_process_that_does_not_answer_gets_no_further_requests() {
        let (client, mut hosted) = hosted(std::process::id(), true);
        hosted.deadline = Duration::from_millis(1);
        assert!(!hosted.move_own(&RANGE, NodeId(1)));
        let (asked, moves) = client.asked_moves().unwrap();
        assert!(moves.is_empty(), "it is no longer wanted");
        assert!(!hosted.move_own(&RANGE, NodeId(1)));
        assert_eq!(client.asked_moves().unwrap().0, asked, "and not asked again");
    }

    #[test]
    fn the_stopped_and_the_dead_are_not_waited_for() {
        let mut child =
            std::process::Command::new("sleep").arg("1000").arg0("z) R").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        while can_run(child.id()) {
            std::thread::yield_now();
        }
        let (_client, mut hosted) = hosted(child.id(), true);
        hosted.deadline = Duration::from_secs(1000);
        assert!(!hosted.move_own(&RANGE, NodeId(1)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!can_run(child.id()));
    }
}
