//! Moves that a process is asked to execute itself: one question at a time, in its control page.
//! In: ranges and a node. Out: the process's claim. Knows nothing of residency.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::thread::futex;

use crate::bits::{half, index};
use crate::layout::{CONTROL, MOVE_BYTES, MOVED_BYTES, MOVES_MAX, PLAN_AT, control, header};
use crate::mapping::Mapping;
use crate::session::Session;

/// What the heap of a process is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum Backing {
    /// Ordinary memory, which the kernel alone can move.
    #[default]
    Kernel = 0,
    /// Vregions with memory of the process's own making.
    Vmem = 1,
    /// Vregions with memory of the daemon's pools.
    Pools = 2,
}

/// What a process says became of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Bytes of its vregions that are there now.
    pub bytes: u64,
    /// Errno of the first that are not; 0.
    pub error: i32,
}

/// Requests to one process, for use by one thread. After the session has gone, none is answered.
pub struct MoveLine {
    front: Mapping,
    asked: u32,
}

impl MoveLine {
    /// True while the process says that it executes moves.
    #[must_use]
    pub fn is_mover(&self) -> bool {
        self.front.half(header::IS_MOVER).load(Ordering::Relaxed) == 1
    }

    /// Asks for these moves: address, bytes, node. What was asked before is no longer wanted.
    ///
    /// # Panics
    /// When they are more than [`MOVES_MAX`].
    pub fn ask(&mut self, moves: &[(u64, u64, u16)]) {
        assert!(moves.len() <= MOVES_MAX, "{} moves, at most {MOVES_MAX}", moves.len());
        let at = CONTROL;
        for (index, &(addr, bytes, node)) in moves.iter().enumerate() {
            let at = at + control::MOVES + index * MOVE_BYTES;
            self.front.word(at).store(addr, Ordering::Relaxed);
            self.front.word(at + 8).store(bytes, Ordering::Relaxed);
            self.front.word(at + 16).store(node.into(), Ordering::Relaxed);
        }
        self.front.half(at + control::MOVE_COUNT).store(half(moves.len()), Ordering::Relaxed);
        self.asked = self.asked.wrapping_add(1).max(1);
        let word = self.front.half(at + control::MOVES_ASKED);
        // Pairs with the runtime's acquire load, before it reads what is asked.
        word.store(self.asked, Ordering::Release);
        // Whether a thread waits makes no difference.
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }

    /// Nothing is wanted any longer.
    pub fn cancel(&mut self) {
        self.ask(&[]);
    }

    /// Waits for the answer, so long at most; true when it has come.
    #[must_use]
    pub fn await_answer(&self, timeout: Duration) -> bool {
        let word = self.front.half(header::MOVES_DONE);
        let done = word.load(Ordering::Acquire);
        if done == self.asked {
            return true;
        }
        let timeout = timeout.try_into().ok();
        let _ = futex::wait(word, futex::Flags::empty(), done, timeout.as_ref());
        word.load(Ordering::Acquire) == self.asked
    }

    /// What the process says became of the move at `index` of the last question.
    ///
    /// # Panics
    /// When `index` is not below [`MOVES_MAX`].
    #[must_use]
    pub fn moved(&self, index: usize) -> Moved {
        assert!(index < MOVES_MAX, "move {index}, at most {MOVES_MAX}");
        let at = header::MOVED + index * MOVED_BYTES;
        let bytes = self.front.word(at).load(Ordering::Relaxed);
        let error = self.front.half(at + 8).load(Ordering::Relaxed);
        Moved { bytes, error: error.cast_signed() }
    }
}

impl Session {
    /// Says what the heap is to be made of; before the welcome.
    pub fn set_backing(&self, backing: Backing) {
        self.control_half(control::BACKING).store(backing as u32, Ordering::Release);
    }

    /// A line to the process, for another thread. At most one is used at a time.
    ///
    /// # Errors
    /// The kernel would not map it.
    pub fn move_line(&self) -> rustix::io::Result<MoveLine> {
        let front = Mapping::new(self.fd(), 0, index(PLAN_AT))?;
        let asked = front.half(CONTROL + control::MOVES_ASKED).load(Ordering::Relaxed);
        Ok(MoveLine { front, asked })
    }
}
