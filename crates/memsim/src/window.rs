//! Memory-level parallelism without an out-of-order core.
//! In: misses in program order, each with the time its address is known. Out: when each may go out,
//! and how far the core gets. Knows nothing of addresses or nodes.
//!
//! Two limits, as in a real core: the reorder window (an instruction may not run further ahead of
//! the oldest miss than the window is long) and the miss registers (so many misses at once).

use std::collections::VecDeque;

use crate::ModelError;

/// Limits of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowShape {
    /// Instructions between the oldest outstanding miss and the newest instruction; 224 on Skylake.
    pub instructions: u64,
    /// Misses outstanding at once; 10 to 16 on today's first-level caches.
    pub registers: usize,
}

/// The outstanding misses of one core.
#[derive(Clone, Debug)]
pub struct Window {
    shape: WindowShape,
    /// In program order.
    outstanding: VecDeque<Outstanding>,
}

#[derive(Clone, Copy, Debug)]
struct Outstanding {
    instruction: u64,
    done_ps: u64,
}

/// A miss that went out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// Where the core is: later than before only if it had to wait for a free register.
    pub now_ps: u64,
    /// When the data is there.
    pub done_ps: u64,
}

impl Window {
    /// Nothing outstanding.
    pub fn new(shape: WindowShape) -> Result<Window, ModelError> {
        if shape.instructions == 0 || shape.registers == 0 {
            return Err(ModelError::Shape("a miss window needs instructions and registers"));
        }
        Ok(Window { shape, outstanding: VecDeque::with_capacity(shape.registers) })
    }

    /// The core wants to be at `instruction` at `now_ps`; returns when it can be: after every miss
    /// that is a window or more behind.
    pub fn reach(&mut self, instruction: u64, now_ps: u64) -> u64 {
        let mut now_ps = now_ps;
        while let Some(oldest) = self.outstanding.front() {
            let held_up = oldest.instruction + self.shape.instructions <= instruction;
            if oldest.done_ps > now_ps && !held_up {
                break;
            }
            now_ps = now_ps.max(oldest.done_ps);
            self.outstanding.pop_front();
        }
        now_ps
    }

    /// A miss of `instruction`, whose address is known at `known_ps` (0 unless it depends on
    /// another miss). `latency_ps` is asked once, with the time the miss goes out. Call `reach`
    /// first.
    pub fn miss(
        &mut self,
        instruction: u64,
        now_ps: u64,
        known_ps: u64,
        latency_ps: impl FnOnce(u64) -> u64,
    ) -> Miss {
        let mut now_ps = now_ps;
        if self.outstanding.len() >= self.shape.registers {
            self.outstanding.retain(|miss| miss.done_ps > now_ps);
        }
        if self.outstanding.len() >= self.shape.registers {
            let soonest = self.outstanding.iter().map(|miss| miss.done_ps).min();
            now_ps = now_ps.max(soonest.unwrap_or(now_ps));
            self.outstanding.retain(|miss| miss.done_ps > now_ps);
        }
        let out_ps = now_ps.max(known_ps);
        let done_ps = out_ps + latency_ps(out_ps);
        self.outstanding.push_back(Outstanding { instruction, done_ps });
        Miss { now_ps, done_ps }
    }

    /// When everything outstanding is there, at `now_ps` the earliest; nothing is outstanding then.
    pub fn drain(&mut self, now_ps: u64) -> u64 {
        let last = self.outstanding.iter().map(|miss| miss.done_ps).max().unwrap_or(0);
        self.outstanding.clear();
        now_ps.max(last)
    }
}
