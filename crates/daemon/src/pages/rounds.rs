//! Moves of a tick in rounds: each round asks the kernel only for what its targets grant now.
//! In: moves, what each needs, what nodes grant. Out: outcomes. Knows nothing of why they move.
//!
//! ```text
//!   waiting --(what it needs is done, its target has room)--> round --mover--> done
//!      ^                                                        |
//!      '----- refused for want of room, others moved -----------'
//! ```
//! So pairs change places through few free bytes, and a move that fails keeps its partner where it
//! is. The loop ends: each round settles a move, or is the last.
//!
//! The kernel puts memory that a move frees on a list of the CPU that moved it, where only that CPU
//! finds it. So a job stays on one CPU, and what it freed on a node counts as room for it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use tiercel_ledger::movement::{Failure, Move, Outcome};
use tiercel_machine::{Granted, MoveRoom, NodeId};
use tiercel_mover::{Errno, Mover};

use super::reshape::Reshape;

/// What a tick asks for: moves, and for each the earlier one that must succeed first.
#[derive(Clone, Debug, Default)]
pub struct Job {
    pub moves: Vec<Move>,
    pub needs: Vec<Option<usize>>,
    /// What happens to huge OS pages after the moves.
    pub reshapes: Vec<Reshape>,
}

/// What became of a job.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// In the order of the moves.
    pub outcomes: Vec<Outcome>,
    /// For each of them, how long after the job's begin it was known; 0 for what was never asked.
    pub after: Vec<Duration>,
    /// Pairs that have changed places.
    pub exchanges: u64,
    /// Times that the kernel refused a move for want of room.
    pub refusals: u64,
    pub rounds: u64,
    /// In the order of the job.
    pub reshaped: Vec<(Reshape, Result<(), Errno>)>,
}

/// Executes a job's moves; `room` reads what nodes grant, `None` where that is not known.
pub fn execute(
    mover: &mut dyn Mover,
    job: &Job,
    room: &mut dyn FnMut() -> Option<MoveRoom>,
) -> Done {
    let _pin = Pin::to_this_cpu();
    let (mut rounds, began) = (Rounds::new(job), Instant::now());
    loop {
        let round = rounds.next_round(room().as_ref());
        if round.is_empty() {
            return rounds.end();
        }
        let moves: Vec<Move> = round.iter().map(|nth| job.moves[*nth].clone()).collect();
        let outcomes = mover.execute(&moves);
        rounds.settle(&round, outcomes, began.elapsed());
    }
}

/// Keeps this thread on the CPU that it is on, until it is dropped.
struct Pin {
    before: Option<CpuSet>,
}

impl Pin {
    fn to_this_cpu() -> Pin {
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        let before = sched_getaffinity(None).ok();
        let is_pinned = before.is_some() && sched_setaffinity(None, &here).is_ok();
        Pin { before: before.filter(|_| is_pinned) }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // If it fails, moves stay on a CPU that they may use.
            let _ = sched_setaffinity(None, before);
        }
    }
}

struct Rounds<'a> {
    job: &'a Job,
    /// For each move, where the one goes that needs it.
    second_to: Vec<Option<NodeId>>,
    /// Bytes that this job has freed on each node and not taken again.
    freed: BTreeMap<NodeId, u64>,
    states: Vec<State>,
    after: Vec<Duration>,
    /// Those that are not settled, ascending.
    waiting: Vec<usize>,
    refusals: u64,
    rounds: u64,
}

#[derive(Clone, Debug)]
enum State {
    Waiting,
    /// Refused for want of room, with what it moved before.
    Refused(Outcome),
    Settled(Outcome),
}

impl<'a> Rounds<'a> {
    fn new(job: &'a Job) -> Rounds<'a> {
        let count = job.moves.len();
        assert_eq!(count, job.needs.len(), "each move needs one or none");
        let comes_before = |(nth, need): (usize, &Option<usize>)| need.is_none_or(|one| one < nth);
        assert!(job.needs.iter().enumerate().all(comes_before), "what a move needs comes first");
        let mut second_to = vec![None; count];
        for (second, need) in job.moves.iter().zip(&job.needs) {
            if let Some(first) = need {
                second_to[*first] = Some(second.to);
            }
        }
        let (states, after) = (vec![State::Waiting; count], vec![Duration::ZERO; count]);
        let (freed, waiting) = (BTreeMap::new(), (0..count).collect());
        Rounds { job, second_to, freed, states, after, waiting, refusals: 0, rounds: 0 }
    }

    /// Those that can move now, in order, as far as their targets grant. What completes a pair
    /// comes alone: so allocations and releases of a node take turns, and the kernel's refills of
    /// its lists stay small (see [`MoveRoom`]).
    fn next_round(&mut self, room: Option<&MoveRoom>) -> Vec<usize> {
        self.drop_unpaired();
        let certain = |granted: &Granted| granted.certain_bytes;
        let likely = |granted: &Granted| granted.likely_bytes;
        let first = |room_of: &dyn Fn(&Granted) -> u64| {
            let rounds = [true, false].map(|second| self.fitting(room, second, room_of));
            rounds.into_iter().find(|round| !round.is_empty())
        };
        first(&certain).or_else(|| first(&likely)).unwrap_or_default()
    }

    /// Settles moves whose partner has failed.
    fn drop_unpaired(&mut self) {
        for nth in std::mem::take(&mut self.waiting) {
            match self.needed(nth) {
                Some(State::Settled(need)) if !need.failed.is_empty() => {
                    let outcome = stayed(&self.job.moves[nth], Failure::Unpaired);
                    self.states[nth] = State::Settled(outcome);
                }
                _ => self.waiting.push(nth),
            }
        }
    }

    fn needed(&self, nth: usize) -> Option<&State> {
        self.job.needs[nth].map(|need| &self.states[need])
    }

    /// Those for which there is room, among second halves or among all others.
    fn fitting(
        &self,
        room: Option<&MoveRoom>,
        are_second: bool,
        room_of: &dyn Fn(&Granted) -> u64,
    ) -> Vec<usize> {
        let mut left: BTreeMap<NodeId, u64> = BTreeMap::new();
        let mut fits = |asked: &Move| {
            let left =
                left.entry(asked.to).or_insert_with(|| self.room_on(asked.to, room, room_of));
            let fits = *left >= asked.bytes;
            *left -= if fits { asked.bytes } else { 0 };
            fits
        };
        let is_ready = |nth: &usize| match self.needed(*nth) {
            None => !are_second,
            Some(State::Settled(_)) => are_second,
            Some(_) => false,
        };
        // Where nothing at all is granted, freed memory does not help: the lists hide it.
        let is_hopeless = |nth: &usize| {
            let grants = |to| room.is_none_or(|room| room.granted(to).bytes > 0);
            self.second_to[*nth].is_some_and(|to| !grants(to))
        };
        let ready = self.waiting.iter().copied().filter(is_ready);
        let ready = ready.filter(|nth| !is_hopeless(nth));
        ready.filter(|nth| fits(&self.job.moves[*nth])).collect()
    }

    /// What a node grants to this job now.
    fn room_on(
        &self,
        node: NodeId,
        room: Option<&MoveRoom>,
        room_of: &dyn Fn(&Granted) -> u64,
    ) -> u64 {
        let Some(room) = room else { return u64::MAX };
        let granted = room.granted(node);
        let freed = self.freed.get(&node).copied().unwrap_or(0);
        if granted.bytes == 0 { 0 } else { room_of(&granted).max(freed) }
    }

    /// Notes what became of a round. What was refused waits for the room that others leave, if any
    /// of them moved.
    fn settle(&mut self, round: &[usize], outcomes: Vec<Outcome>, after: Duration) {
        self.rounds += 1;
        let has_moved = outcomes.iter().any(|outcome| outcome.moved_bytes > 0);
        for (nth, outcome) in round.iter().zip(outcomes) {
            self.after[*nth] = after;
            self.transfer(&outcome);
            let is_refused = outcome.failed.iter().any(|(why, _)| *why == Failure::NoMemory);
            self.refusals += u64::from(is_refused);
            let outcome = match &self.states[*nth] {
                State::Refused(before) => again(before, outcome),
                _ => outcome,
            };
            let waits = is_refused && has_moved;
            self.states[*nth] =
                if waits { State::Refused(outcome) } else { State::Settled(outcome) };
        }
        let states = &self.states;
        self.waiting.retain(|nth| !matches!(states[*nth], State::Settled(_)));
    }

    /// Bytes have left one node for another.
    fn transfer(&mut self, outcome: &Outcome) {
        let Outcome { asked, moved_bytes, .. } = outcome;
        if let Some(from) = asked.from {
            *self.freed.entry(from).or_default() += moved_bytes;
        }
        let taken = self.freed.entry(asked.to).or_default();
        *taken = taken.saturating_sub(*moved_bytes);
    }

    /// What still waits stays where it is.
    fn end(self) -> Done {
        let settle = |(state, asked): (State, &Move)| match state {
            State::Settled(outcome) | State::Refused(outcome) => outcome,
            State::Waiting => stayed(asked, Failure::NoRoom),
        };
        let outcomes: Vec<Outcome> =
            self.states.into_iter().zip(&self.job.moves).map(settle).collect();
        let (exchanges, after) = (exchanged(self.job, &outcomes), self.after);
        let (refusals, rounds, reshaped) = (self.refusals, self.rounds, Vec::new());
        Done { outcomes, after, exchanges, refusals, rounds, reshaped }
    }
}

/// Pairs of which both are where the other was.
fn exchanged(job: &Job, outcomes: &[Outcome]) -> u64 {
    let has_moved = |nth: usize| outcomes[nth].failed.is_empty() && outcomes[nth].moved_bytes > 0;
    let is_swap = |one: &Move, other: &Move| {
        one.from == Some(other.to) && other.from == Some(one.to) && one.bytes == other.bytes
    };
    let is_pair = |(nth, need): &(usize, &Option<usize>)| {
        need.is_some_and(|need| {
            is_swap(&job.moves[*nth], &job.moves[need]) && has_moved(*nth) && has_moved(need)
        })
    };
    job.needs.iter().enumerate().filter(is_pair).count() as u64
}

/// The kernel was not asked.
fn stayed(asked: &Move, why: Failure) -> Outcome {
    Outcome { failed: vec![(why, asked.bytes)], ..Outcome::of(asked.clone()) }
}

/// The outcome of a second attempt, with what the first one moved.
fn again(before: &Outcome, outcome: Outcome) -> Outcome {
    Outcome {
        moved_bytes: before.moved_bytes + outcome.moved_bytes,
        own_bytes: before.own_bytes + outcome.own_bytes,
        took_ns: before.took_ns + outcome.took_ns,
        ..outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use tiercel_ledger::movement::Reason;
    use tiercel_mover::{Range, Residency, ResidencyError};

    const OS_PAGE: u64 = 4096;

    /// Nodes with so many free OS pages; some addresses never move.
    #[derive(Default)]
    struct Nodes {
        free: RefCell<BTreeMap<NodeId, u64>>,
        pinned: Vec<u64>,
        asked: RefCell<Vec<Vec<u64>>>,
    }

    impl Nodes {
        fn new(free: &[u64]) -> Nodes {
            let free = (0..).zip(free).map(|(node, free)| (NodeId(node), *free)).collect();
            Nodes { free: RefCell::new(free), ..Nodes::default() }
        }

        fn room(&self) -> Option<MoveRoom> {
            let free = self.free.borrow();
            Some(MoveRoom::of_bytes(free.iter().map(|(node, free)| (*node, free * OS_PAGE))))
        }

        fn one(&self, asked: &Move) -> Outcome {
            if self.pinned.contains(&asked.addr) {
                return stayed(asked, Failure::Busy);
            }
            let mut free = self.free.borrow_mut();
            let to = free.get_mut(&asked.to).unwrap();
            if *to == 0 {
                return stayed(asked, Failure::NoMemory);
            }
            *to -= 1;
            *free.get_mut(&asked.from.unwrap()).unwrap() += 1;
            let bytes = asked.bytes;
            Outcome { moved_bytes: bytes, resident_bytes: bytes, ..Outcome::of(asked.clone()) }
        }
    }

    impl Mover for &Nodes {
        fn execute(&mut self, moves: &[Move]) -> Vec<Outcome> {
            let addrs = moves.iter().map(|one| one.addr / OS_PAGE).collect();
            self.asked.borrow_mut().push(addrs);
            moves.iter().map(|one| self.one(one)).collect()
        }

        fn residency(&mut self, _: u32, _: &[Range]) -> Vec<Result<Residency, ResidencyError>> {
            Vec::new()
        }

        fn is_modelled(&self) -> bool {
            false
        }
    }

    fn one(nth: u64, from: u16, to: u16) -> Move {
        Move {
            pid: 1,
            addr: nth * OS_PAGE,
            bytes: OS_PAGE,
            from: Some(NodeId(from)),
            to: NodeId(to),
            reason: if to == 0 { Reason::Promote } else { Reason::Demote },
            gain_ns_per_s: 0.0,
            cost_ns: 0.0,
        }
    }

    /// Pairs: unit `n` goes up from node 1, unit `100 + n` down from node 0.
    fn pairs(count: u64, is_up_first: bool) -> Job {
        let mut job = Job::default();
        for nth in 0..count {
            let (up, down) = (one(nth, 1, 0), one(100 + nth, 0, 1));
            job.moves.extend(if is_up_first { [up, down] } else { [down, up] });
            job.needs.extend([None, Some(2 * index(nth))]);
        }
        job
    }

    fn index(nth: u64) -> usize {
        usize::try_from(nth).unwrap()
    }

    fn run(nodes: &Nodes, job: &Job) -> Done {
        let mut mover = nodes;
        execute(&mut mover, job, &mut || nodes.room())
    }

    fn failures(done: &Done) -> Vec<Failure> {
        done.outcomes.iter().flat_map(|outcome| &outcome.failed).map(|(why, _)| *why).collect()
    }

    #[test]
    fn pairs_change_places_through_few_free_bytes() {
        for (free, is_up_first) in [([3, 1], true), ([1, 3], false)] {
            let nodes = Nodes::new(&free);
            let done = run(&nodes, &pairs(10, is_up_first));
            assert_eq!(done.exchanges, 10);
            assert_eq!((done.refusals, failures(&done)), (0, vec![]));
            assert!(
                done.after.chunks(2).all(|pair| pair[0] <= pair[1]),
                "what a move needs is first"
            );
            assert!(nodes.asked.borrow().iter().all(|round| round.len() <= 3), "no more than fits");
        }
    }

    #[test]
    fn without_a_free_byte_nothing_is_asked() {
        let nodes = Nodes::new(&[0, 0]);
        let done = run(&nodes, &pairs(2, true));
        assert!(nodes.asked.borrow().is_empty());
        assert_eq!(failures(&done), [Failure::NoRoom; 4]);
        assert_eq!(done.rounds, 0);
    }

    #[test]
    fn what_fails_keeps_its_partner_where_it_is() {
        let nodes = Nodes { pinned: vec![OS_PAGE], ..Nodes::new(&[3, 1]) };
        let done = run(&nodes, &pairs(3, true));
        assert_eq!(failures(&done), [Failure::Busy, Failure::Unpaired]);
        assert_eq!(done.exchanges, 2);
        assert!(!nodes.asked.borrow().concat().contains(&101));
    }

    #[test]
    fn a_chain_ends_where_it_fails() {
        let nodes = Nodes { pinned: vec![101 * OS_PAGE], ..Nodes::new(&[0, 9]) };
        let moves = vec![one(100, 0, 1), one(101, 0, 1), one(0, 1, 0)];
        let job = Job { moves, needs: vec![None, Some(0), Some(1)], ..Job::default() };
        assert_eq!(failures(&run(&nodes, &job)), [Failure::Busy, Failure::Unpaired]);
    }

    #[test]
    fn what_is_refused_waits_for_room() {
        // Node 0 seems to have room for two and has it for one.
        let nodes = Nodes::new(&[1, 0]);
        let mut mover = &nodes;
        let granted = [(NodeId(0), 2 * OS_PAGE), (NodeId(1), OS_PAGE)];
        let mut room = || Some(MoveRoom::of_bytes(granted));
        let done = execute(&mut mover, &pairs(2, true), &mut room);
        assert_eq!((done.exchanges, done.refusals), (2, 1));
        assert_eq!(failures(&done), []);
    }

    #[test]
    fn a_round_that_moves_nothing_is_not_repeated() {
        let nodes = Nodes::new(&[0, 0]);
        let mut mover = &nodes;
        let mut room = || None;
        let done = execute(&mut mover, &pairs(2, true), &mut room);
        let expected = [Failure::NoMemory, Failure::Unpaired, Failure::NoMemory, Failure::Unpaired];
        assert_eq!((done.rounds, failures(&done)), (1, expected.to_vec()));
    }

    #[test]
    fn a_likely_grant_is_used_where_none_is_certain() {
        // 5 above the minimum with batches of 1: refills of 1 and 2 fit, one of 4 does not.
        let zone =
            |node| format!("Node {node}, zone Normal\n pages free 105\n min 100\n managed 1000\n");
        let granted = MoveRoom::of(&(zone(0) + &zone(1)), OS_PAGE);
        let nodes = Nodes::new(&[5, 5]);
        let mut mover = &nodes;
        let done = execute(&mut mover, &pairs(8, true), &mut || Some(granted.clone()));
        assert_eq!((done.exchanges, done.refusals), (8, 0));
        assert_eq!(nodes.asked.borrow()[0].len(), 3);
    }

    #[test]
    fn what_the_job_freed_is_room_for_it_unless_nothing_is_granted() {
        let run = |granted| {
            let nodes = Nodes::new(&[4, 4]);
            let mut mover = &nodes;
            let mut room = || {
                let of_1 = if nodes.asked.borrow().is_empty() { 4 } else { 0 };
                Some(MoveRoom::of_bytes([(NodeId(0), granted), (NodeId(1), of_1 * OS_PAGE)]))
            };
            let done = execute(&mut mover, &pairs(4, false), &mut room);
            (done.exchanges, nodes.asked.borrow().concat().len())
        };
        assert_eq!(run(1), (4, 8), "of one byte, and what four demotions freed");
        assert_eq!(run(0), (0, 0), "nothing is demoted in vain");
    }

    #[test]
    fn a_job_leaves_its_thread_where_it_may_run() {
        let may_run = || {
            let set = sched_getaffinity(None).unwrap();
            (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect::<Vec<_>>()
        };
        let before = may_run();
        run(&Nodes::new(&[1, 1]), &pairs(1, true));
        assert_eq!(may_run(), before);
    }
}
