//! A mover beside the program: what it is asked for takes its time, and pages change place when
//! they are copied.
//! In: moves and look-ups, time of the CPU. Out: what became of them. Knows nothing of why.
//!
//! One job at a time, as the daemon decides nothing while one is under way. A range changes place
//! as a whole when it is copied, and never more of it than was copied.

use std::collections::VecDeque;
use tiercel_ledger::Range;
use tiercel_ledger::movement::{Failure, Move, Outcome};
use tiercel_machine::NodeId;
use tiercel_machine::number::saturating_u64;
use tiercel_wire::layout::OS_PAGE_BYTES;

use crate::memory::{Memory, pages_of};
use crate::speed::Speeds;

/// What became of a job.
#[derive(Debug)]
pub enum Done {
    /// Where ranges are: range, bytes by node.
    Located(Vec<(Range, Vec<(NodeId, u64)>)>, f64),
    /// What became of moves.
    Executed(Vec<Outcome>),
}

/// See the module.
#[derive(Debug, Default)]
pub struct Mover {
    job: Option<Job>,
    done: Option<Done>,
    /// OS pages moved up and down.
    pub promoted: u64,
    /// OS pages moved to the slow node.
    pub demoted: u64,
    /// CPU time so far.
    pub spent_ns: f64,
}

#[derive(Debug)]
enum Job {
    LookUp { ranges: Vec<Range>, left_ns: f64, took_ns: f64 },
    Execute { waiting: VecDeque<Move>, copying: Option<Copying>, outcomes: Vec<Outcome> },
}

#[derive(Debug)]
struct Copying {
    asked: Move,
    os_pages: u64,
    took_ns: f64,
    left_ns: f64,
}

impl Mover {
    /// True while a job is under way or not collected.
    pub fn is_busy(&self) -> bool {
        self.job.is_some() || self.done.is_some()
    }

    /// Has ranges looked up, which takes so long.
    pub fn look_up(&mut self, ranges: Vec<Range>, took_ns: f64) {
        assert!(!self.is_busy(), "one job at a time");
        self.job = Some(Job::LookUp { ranges, left_ns: took_ns, took_ns });
    }

    /// Has moves executed in order.
    pub fn submit(&mut self, moves: Vec<Move>) {
        assert!(!self.is_busy(), "one job at a time");
        let (waiting, outcomes) = (moves.into(), Vec::new());
        self.job = Some(Job::Execute { waiting, copying: None, outcomes });
    }

    /// What is complete.
    pub fn collect(&mut self) -> Option<Done> {
        self.done.take()
    }

    /// Works for at most so long; how long it was.
    pub fn run(&mut self, memory: &mut Memory, speeds: &Speeds, most_ns: f64) -> f64 {
        let mut used_ns = 0.0;
        while used_ns < most_ns
            && let Some(job) = &mut self.job
        {
            match job {
                Job::LookUp { ranges, left_ns, took_ns } => {
                    used_ns += take(left_ns, most_ns - used_ns);
                    if *left_ns <= 0.0 {
                        let found = ranges.iter().map(|one| (*one, lies(memory, speeds, one)));
                        self.done = Some(Done::Located(found.collect(), *took_ns));
                        self.job = None;
                    }
                }
                Job::Execute { waiting, copying, outcomes } => {
                    if copying.is_none() {
                        let next = waiting.pop_front();
                        *copying = next.map(|asked| Copying::begin(asked, memory, speeds));
                    }
                    let Some(current) = copying else {
                        self.done = Some(Done::Executed(std::mem::take(outcomes)));
                        self.job = None;
                        continue;
                    };
                    used_ns += take(&mut current.left_ns, most_ns - used_ns);
                    if current.left_ns <= 0.0
                        && let Some(current) = copying.take()
                    {
                        let (outcome, moved) = current.end(memory, speeds);
                        let is_up = outcome.asked.to == speeds.fast;
                        *(if is_up { &mut self.promoted } else { &mut self.demoted }) += moved;
                        outcomes.push(outcome);
                    }
                }
            }
        }
        self.spent_ns += used_ns;
        used_ns
    }
}

impl Copying {
    fn begin(asked: Move, memory: &Memory, speeds: &Speeds) -> Copying {
        let (fast, slow) = memory.lies(pages_of(asked.addr, asked.bytes));
        let (os_pages, per_byte) = match asked.to == speeds.fast {
            true => (slow.min(memory.left()), speeds.promote_ns_per_byte()),
            false => (fast, speeds.demote_ns_per_byte()),
        };
        let took_ns = (os_pages * OS_PAGE_BYTES) as f64 * per_byte;
        Copying { asked, os_pages, took_ns, left_ns: took_ns }
    }

    fn end(self, memory: &mut Memory, speeds: &Speeds) -> (Outcome, u64) {
        let to_fast = self.asked.to == speeds.fast;
        let pages = pages_of(self.asked.addr, self.asked.bytes);
        let moved = memory.place(pages.clone(), to_fast, self.os_pages);
        let (fast, slow) = memory.lies(pages);
        let (there, elsewhere) = if to_fast { (fast, slow) } else { (slow, fast) };
        let mut outcome = Outcome::of(self.asked);
        outcome.moved_bytes = moved * OS_PAGE_BYTES;
        outcome.resident_bytes = there * OS_PAGE_BYTES;
        outcome.absent_bytes = outcome.asked.bytes - (there + elsewhere) * OS_PAGE_BYTES;
        if elsewhere > 0 {
            let why = if to_fast { Failure::NoMemory } else { Failure::Misplaced };
            outcome.failed.push((why, elsewhere * OS_PAGE_BYTES));
        }
        outcome.took_ns = saturating_u64(self.took_ns);
        (outcome, moved)
    }
}

/// Takes up to `most` of what is left.
fn take(left_ns: &mut f64, most_ns: f64) -> f64 {
    let taken_ns = left_ns.min(most_ns);
    *left_ns -= taken_ns;
    taken_ns
}

fn lies(memory: &Memory, speeds: &Speeds, range: &Range) -> Vec<(NodeId, u64)> {
    let (fast, slow) = memory.lies(pages_of(range.addr, range.bytes));
    vec![(speeds.fast, fast * OS_PAGE_BYTES), (speeds.slow, slow * OS_PAGE_BYTES)]
}
