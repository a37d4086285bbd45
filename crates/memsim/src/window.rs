//! Memory-level parallelism without an out-of-order core.
//! In: misses in program order, each with the time its address is known. Out: when each may go out,
//! and how far the core gets. Knows nothing of addresses or nodes.
//!
//! Three limits, as in a real core: the reorder window (an instruction may not run further ahead of
//! the oldest unfinished load than the window is long), the MSHRs (so many misses at
//! once), and the store buffer (stores retire without waiting, until it is full).
//!
//! ```text
//!   held       loads in program order, done times strictly ascending: a load that is done no later
//!              than an older one never causes a wait, and is left out
//!   MSHRs  when each is free
//!   stores     when each leaves, in order
//! ```

use std::collections::VecDeque;
use tiercel_machine::number::{index, share_of};

use crate::ModelError;

/// Longest reorder window.
pub const MAX_WINDOW: u64 = 4096;
/// Most MSHRs, and most stores in the buffer.
pub const MAX_MSHRS: usize = 256;

/// Limits of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowShape {
    /// Instructions between the oldest outstanding load and the newest instruction; 224 on Skylake.
    pub instructions: u64,
    /// Miss status holding registers (line fill buffers): misses outstanding at once; 10 to 16 in
    /// today's first-level caches.
    pub mshrs: usize,
    /// Stores that wait for their line at once; 56 on Skylake.
    pub stores: usize,
}

/// What is outstanding in one core.
#[derive(Clone, Debug)]
pub struct Window {
    shape: WindowShape,
    held: VecDeque<Held>,
    mshrs: Vec<u64>,
    /// The MSHR taken last: the next one is most likely free.
    turn: usize,
    stores: VecDeque<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    /// The first instruction that has to wait.
    until: u64,
    done_ps: u64,
}

/// How far a core is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Instructions so far.
    pub instruction: u64,
    /// Its clock, picoseconds.
    pub now_ps: u64,
}

/// An MSHR and the time it can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mshr {
    index: usize,
    /// When the miss goes out.
    pub out_ps: u64,
}

impl Progress {
    /// The clock at an instruction on the way to another point, at an even pace.
    fn until(self, instruction: u64, to: Progress) -> u64 {
        let done = instruction.saturating_sub(self.instruction);
        let all = (to.instruction - self.instruction).max(1);
        self.now_ps + share_of(to.now_ps - self.now_ps, done, all)
    }
}

impl Window {
    /// Nothing outstanding.
    pub fn new(shape: WindowShape) -> Result<Window, ModelError> {
        let WindowShape { instructions, mshrs, stores } = shape;
        if !(1..=MAX_WINDOW).contains(&instructions)
            || !(1..=MAX_MSHRS).contains(&mshrs)
            || !(1..=MAX_MSHRS).contains(&stores)
        {
            let what = "a miss window needs 1 to 4096 instructions, 1 to 256 MSHRs and stores";
            return Err(ModelError::Shape(what));
        }
        Ok(Window {
            shape,
            held: VecDeque::with_capacity(index(instructions)),
            mshrs: vec![0; mshrs],
            turn: 0,
            stores: VecDeque::with_capacity(stores),
        })
    }

    /// The core was at `from` and wants to be at `to`, at an even pace; returns when it can be
    /// there. On its way it stops wherever a load a window behind is not done, so that a load can
    /// only be hidden by the instructions of one window, however many follow.
    #[inline]
    pub fn reach(&mut self, from: Progress, to: Progress) -> u64 {
        let mut late_ps = 0;
        while let Some(&oldest) = self.held.front() {
            if oldest.until > to.instruction {
                break;
            }
            self.held.pop_front();
            if oldest.done_ps > from.now_ps {
                let there_ps = from.until(oldest.until, to) + late_ps;
                late_ps += oldest.done_ps.saturating_sub(there_ps);
            }
        }
        to.now_ps + late_ps
    }

    /// An MSHR for a miss whose address is known at `known_ps` (`now_ps` or later): of those
    /// free by then the one free the shortest time, so that a miss of the far future does not keep
    /// one from a miss of now; else the first one to be free.
    #[inline]
    pub fn mshr(&mut self, now_ps: u64, known_ps: u64) -> Mshr {
        self.turn = if self.turn + 1 == self.mshrs.len() { 0 } else { self.turn + 1 };
        // Of several that are free already none is better than another.
        if known_ps <= now_ps && self.mshrs[self.turn] <= now_ps {
            return Mshr { index: self.turn, out_ps: now_ps };
        }
        // Times stay below 2^62, so what is free too late ranks behind all that is free in time:
        // a difference below 0 wraps to more than `free_ps` with the highest bit.
        let (mut index, mut best) = (0, u64::MAX);
        for (at, &free_ps) in self.mshrs.iter().enumerate() {
            let rank = known_ps.wrapping_sub(free_ps).min(free_ps | 1 << 63);
            if rank < best {
                (index, best) = (at, rank);
            }
        }
        Mshr { index, out_ps: known_ps.max(self.mshrs[index]) }
    }

    /// The MSHR is taken until `done_ps`.
    #[inline]
    pub fn take(&mut self, mshr: Mshr, done_ps: u64) {
        self.mshrs[mshr.index] = done_ps;
    }

    /// A load of `instruction` is done at `done_ps`; returns when the core goes on, which is at
    /// once unless more loads than the window has instructions are unfinished.
    #[inline]
    pub fn load(&mut self, instruction: u64, now_ps: u64, done_ps: u64) -> u64 {
        let mut now_ps = now_ps;
        if done_ps <= now_ps || self.held.back().is_some_and(|last| last.done_ps >= done_ps) {
            return now_ps;
        }
        if self.held.len() as u64 >= self.shape.instructions
            && let Some(oldest) = self.held.pop_front()
        {
            now_ps = now_ps.max(oldest.done_ps);
        }
        self.held.push_back(Held { until: instruction + self.shape.instructions, done_ps });
        now_ps
    }

    /// A store whose line is there at `done_ps`; returns when the core goes on, which is at once
    /// unless the buffer is full.
    #[inline]
    pub fn store(&mut self, now_ps: u64, done_ps: u64) -> u64 {
        let mut now_ps = now_ps;
        while self.stores.front().is_some_and(|&first_ps| first_ps <= now_ps) {
            self.stores.pop_front();
        }
        if self.stores.len() >= self.shape.stores
            && let Some(first_ps) = self.stores.pop_front()
        {
            now_ps = now_ps.max(first_ps);
        }
        let after_ps = self.stores.back().copied().unwrap_or(0);
        self.stores.push_back(done_ps.max(after_ps));
        now_ps
    }

    /// When everything outstanding is there, at `now_ps` the earliest; nothing is outstanding then.
    pub fn drain(&mut self, now_ps: u64) -> u64 {
        let loads_ps = self.held.back().map_or(0, |last| last.done_ps);
        let stores_ps = self.stores.back().copied().unwrap_or(0);
        self.held.clear();
        self.stores.clear();
        now_ps.max(loads_ps).max(stores_ps)
    }
}
