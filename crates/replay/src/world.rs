//! The modelled machine while a stream runs on it: clock, memory, mover.
//! In: work and accesses. Out: the time they take. Knows nothing of who decides.
//!
//! ```text
//! clock = work at all-fast pace + what misses in slow memory cost more + the mover + Tiercel's own
//! ```
//! All share one CPU: while the mover works, it and the program advance in turns.

use tiercel_machine::number::saturating_u64;
use tiercel_wire::layout::OS_PAGE_BYTES;

use crate::energy::Traffic;
use crate::memory::{Memory, Pages, pages_of};
use crate::mover::Mover;
use crate::speed::Speeds;
use crate::stream::Accesses;

/// See the module.
#[derive(Debug)]
pub struct World<'a> {
    /// What things cost.
    pub speeds: &'a Speeds,
    /// Where memory lies.
    pub memory: Memory,
    /// What moves it beside the program.
    pub mover: Mover,
    clock_ns: f64,
    /// What the time was spent on.
    pub spent: Spent,
    /// Bytes through fast and slow memory, by accesses.
    pub traffic: [Traffic; 2],
}

/// What a run's time was spent on, nanoseconds, beside the mover's.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Spent {
    /// The program's work, all of its data fast.
    pub work_ns: f64,
    /// Misses in slow memory.
    pub stall_ns: f64,
    /// Samples.
    pub sampling_ns: f64,
    /// Ticks.
    pub ticks_ns: f64,
    /// OS pages moved while the program waited.
    pub faults_ns: f64,
    /// Misses, and those that fast memory served.
    pub misses: f64,
    /// Of those.
    pub fast_misses: f64,
}

impl<'a> World<'a> {
    /// Time 0.
    pub fn new(speeds: &'a Speeds, memory: Memory) -> World<'a> {
        let (mover, spent, traffic) = (Mover::default(), Spent::default(), Default::default());
        World { speeds, memory, mover, clock_ns: 0.0, spent, traffic }
    }

    /// The clock, nanoseconds.
    pub fn now_ns(&self) -> u64 {
        saturating_u64(self.clock_ns)
    }

    /// The same, fractions included.
    pub fn clock_ns(&self) -> f64 {
        self.clock_ns
    }

    /// The program works.
    pub fn work(&mut self, ns: f64) {
        self.spent.work_ns += ns;
        self.pass(ns);
    }

    /// The program accesses memory, touching it if it was not.
    pub fn access(&mut self, accesses: &Accesses) {
        let pages = pages_of(accesses.addr, accesses.bytes);
        self.memory.touch(pages.clone());
        let slow_share = self.slow_share(pages);
        let misses = accesses.misses() as f64;
        self.spent.misses += misses;
        self.spent.fast_misses += misses * (1.0 - slow_share);
        for (is_fast, share) in [(true, 1.0 - slow_share), (false, slow_share)] {
            let line_bytes = self.speeds.drawn_bytes(is_fast, accesses.apart) * share;
            let traffic = &mut self.traffic[usize::from(!is_fast)];
            traffic.read_bytes += misses * line_bytes;
            traffic.written_bytes += accesses.dirtied as f64 * line_bytes;
        }
        let stall_ns = self.speeds.value_ns(accesses) * slow_share;
        self.spent.stall_ns += stall_ns;
        self.pass(stall_ns);
    }

    /// Samples take so long.
    pub fn sampled(&mut self, ns: f64) {
        self.spent.sampling_ns += ns;
        self.pass(ns);
    }

    /// A tick takes so long.
    pub fn ticked(&mut self, ns: f64) {
        self.spent.ticks_ns += ns;
        self.pass(ns);
    }

    /// OS pages are moved while the program waits: up and down, each with so much more than the
    /// copy.
    pub fn faulted(&mut self, promoted: u64, demoted: u64, more_ns: f64) {
        let up_ns = (promoted * OS_PAGE_BYTES) as f64 * self.speeds.promote_ns_per_byte();
        let down_ns = (demoted * OS_PAGE_BYTES) as f64 * self.speeds.demote_ns_per_byte();
        let ns = up_ns + down_ns + (promoted + demoted) as f64 * more_ns;
        self.mover.promoted += promoted;
        self.mover.demoted += demoted;
        self.spent.faults_ns += ns;
        self.clock_ns += ns;
    }

    fn slow_share(&self, pages: Pages) -> f64 {
        let (fast, slow) = self.memory.lies(pages);
        slow as f64 / (fast + slow).max(1) as f64
    }

    /// Time of the program, during which the mover gets as much until it has nothing to do. Where
    /// slow memory is the quicker one for some accesses, the program gains time.
    fn pass(&mut self, ns: f64) {
        let mut left_ns = ns;
        while left_ns > 0.0 {
            let used_ns = self.mover.run(&mut self.memory, self.speeds, left_ns);
            if used_ns <= 0.0 {
                break;
            }
            self.clock_ns += 2.0 * used_ns;
            left_ns -= used_ns;
        }
        self.clock_ns += left_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::BASE;
    use tiercel_ledger::Range;
    use tiercel_ledger::movement::{Move, Reason};
    use tiercel_machine::{Machine, NodeId};

    fn speeds() -> Speeds {
        Speeds::new(&Machine::builtin("cascadelake-optane").unwrap().unwrap()).unwrap()
    }

    fn moved(to: NodeId, os_pages: u64) -> Move {
        let (bytes, reason) = (os_pages * OS_PAGE_BYTES, Reason::Promote);
        Move { pid: 1, addr: BASE, bytes, from: None, to, reason, gain_ns_per_s: 0.0, cost_ns: 0.0 }
    }

    #[test]
    fn the_mover_and_the_program_take_turns() {
        let speeds = speeds();
        let mut world = World::new(&speeds, Memory::new(100, 100));
        world.memory.bind(0..100, true);
        world.access(&Accesses {
            addr: BASE,
            bytes: 100 * 4096,
            at_once: 1.0,
            ..Default::default()
        });
        assert_eq!(world.memory.lies(0..100), (0, 100));
        world.mover.submit(vec![moved(speeds.fast, 50), moved(speeds.fast, 100)]);
        let half_ns = 50.0 * 4096.0 * speeds.promote_ns_per_byte();
        world.work(half_ns * 0.99);
        assert_eq!(world.memory.lies(0..100), (0, 100), "not before it is copied");
        world.work(half_ns * 0.02);
        assert_eq!(world.memory.lies(0..100), (50, 50));
        world.work(half_ns * 3.0);
        assert_eq!(world.memory.lies(0..100), (100, 0));
        assert!((world.clock_ns() - half_ns * 6.01).abs() < 1.0, "each OS page was paid once");
        let Some(crate::mover::Done::Executed(outcomes)) = world.mover.collect() else {
            panic!("not done");
        };
        assert_eq!([outcomes[0].moved_bytes, outcomes[1].moved_bytes], [50 * 4096; 2]);
        assert_eq!(outcomes[1].resident_bytes, 100 * 4096);
    }

    #[test]
    fn what_does_not_fit_fails_and_a_look_finds_it() {
        let speeds = speeds();
        let mut world = World::new(&speeds, Memory::new(100, 30));
        world.memory.touch(0..90);
        world.mover.submit(vec![moved(speeds.fast, 100)]);
        world.work(1.0);
        let Some(crate::mover::Done::Executed(outcomes)) = world.mover.collect() else {
            panic!("not done");
        };
        assert_eq!(outcomes[0].absent_bytes, 10 * 4096);
        assert_eq!(outcomes[0].failed[0].1, 60 * 4096);
        let range = Range { pid: 1, addr: BASE, bytes: 100 * 4096 };
        world.mover.look_up(vec![range], 10.0);
        world.work(9.0);
        assert!(world.mover.collect().is_none());
        world.work(2.0);
        let Some(crate::mover::Done::Located(found, _)) = world.mover.collect() else {
            panic!("not done");
        };
        let want = vec![(speeds.fast, 30 * 4096), (speeds.slow, 60 * 4096)];
        assert_eq!(found, [(range, want)]);
    }
}
