//! Asks a hosted process to move its own memory, and does not wait for those that never answer.
//! In: the process's line. Out: a [`SelfMover`] for the mover's thread. Knows nothing of what is
//! worth moving.
//!
//! A process that is stopped or gone is not waited for; one that is there and does not answer,
//! because it is frozen, starved or hostile, gets the deadline once, and then no process of its
//! user is asked for a while: all moves wait for the one that is asked. The kernel moves their
//! memory meanwhile. An answer in time ends that.

use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tiercel_machine::NodeId;
use tiercel_mover::{Range, SelfMover};
use tiercel_wire::layout::MOVES_MAX;
use tiercel_wire::{MoveLine, stat};

/// A question may take this long, and
const DEADLINE: Duration = Duration::from_secs(2);
/// so much more for each byte: 20 MB/s, a tenth of what a slow machine copies.
const DEADLINE_PER_BYTE: Duration = Duration::from_nanos(50);
/// Between two looks whether the process is still there to answer.
const LOOK: Duration = Duration::from_millis(100);
/// A user of whom a process did not answer has no process asked for so long, and
const PAUSE: Duration = Duration::from_secs(10);
/// twice as long for each further time, up to this: one wait of 2 s in ten minutes.
const PAUSE_MAX: Duration = Duration::from_secs(640);

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

/// Whether the processes of a user answer, for all of them. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Reliability(Arc<Mutex<Silence>>);

#[derive(Debug, Default)]
struct Silence {
    /// How often no process answered since one did.
    times: u32,
    not_before: Option<Instant>,
}

impl Reliability {
    fn silence(&self) -> MutexGuard<'_, Silence> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True while its processes are not asked.
    fn is_silent(&self, now: Instant) -> bool {
        self.silence().not_before.is_some_and(|then| now < then)
    }

    fn answered(&self) {
        *self.silence() = Silence::default();
    }

    fn did_not_answer(&self, now: Instant) {
        let mut silence = self.silence();
        let pause = PAUSE.saturating_mul(1u32.checked_shl(silence.times).unwrap_or(u32::MAX));
        silence.times += 1;
        silence.not_before = Some(now + pause.min(PAUSE_MAX));
    }
}

/// The reliability of each user with hosted processes. One that has none is forgotten.
#[derive(Debug, Default)]
pub struct Users(BTreeMap<u32, Reliability>);

impl Users {
    /// Of a user; a silent one stays so until its pause is over.
    pub fn of(&mut self, uid: u32, now: Instant) -> Reliability {
        self.0.retain(|_, known| Arc::strong_count(&known.0) > 1 || known.is_silent(now));
        self.0.entry(uid).or_default().clone()
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
    user: Reliability,
}

impl Hosted {
    /// The process at the other end of `line`.
    pub fn new(pid: u32, line: MoveLine, user: Reliability, refusals: Refusals) -> Hosted {
        Hosted { pid, refusals, line, deadline: DEADLINE, user }
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
                self.user.answered();
                self.count_refused(ranges);
                return true;
            }
            if left.is_zero() {
                break;
            }
        }
        self.line.cancel();
        self.user.did_not_answer(Instant::now());
        false
    }
}

impl SelfMover for Hosted {
    fn move_own(&mut self, ranges: &[Range], to: NodeId) -> bool {
        if !self.line.is_mover() || self.user.is_silent(Instant::now()) {
            return false;
        }
        ranges.chunks(MOVES_MAX).all(|ranges| self.ask(ranges, to))
    }
}

/// Field of `stat` (proc_pid_stat(5)).
const STATE: usize = 3;

/// False when the process is stopped, traced, dead or gone: it does not answer soon.
fn can_run(pid: u32) -> bool {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    matches!(stat::field(&String::from_utf8_lossy(&stat), STATE), Some("R" | "S" | "D" | "I"))
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
        let line = Session::open(client.fd().unwrap()).unwrap().move_line();
        (client, Hosted::new(pid, line, Reliability::default(), Refusals::default()))
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
    fn a_process_that_does_not_answer_silences_its_user_alone() {
        let mut users = Users::default();
        let now = Instant::now();
        let movers = [7, 7, 8].map(|uid| {
            let (client, mut hosted) = hosted(std::process::id(), true);
            hosted.user = users.of(uid, now);
            hosted.deadline = Duration::from_millis(1);
            (client, hosted)
        });
        let asked = movers.map(|(client, mut hosted)| {
            assert!(!hosted.move_own(&RANGE, NodeId(1)));
            client.asked_moves().is_some()
        });
        assert_eq!(asked, [true, false, true]);
    }

    #[test]
    fn the_pause_of_a_user_doubles_until_a_process_answers() {
        let (user, mut now) = (Reliability::default(), Instant::now());
        for seconds in [10, 20, 40, 80, 160, 320, 640, 640] {
            user.did_not_answer(now);
            now += Duration::from_secs(seconds);
            assert!(user.is_silent(now - Duration::from_millis(1)) && !user.is_silent(now));
        }
        user.answered();
        user.did_not_answer(now);
        assert!(!user.is_silent(now + PAUSE));
    }

    #[test]
    fn who_leaves_and_comes_back_is_silent_still() {
        let (mut users, now) = (Users::default(), Instant::now());
        users.of(7, now).did_not_answer(now);
        drop(users.of(8, now));
        assert!(users.of(7, now).is_silent(now));
        assert!(!users.of(7, now + PAUSE).is_silent(now), "it was forgotten");
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
