//! Moves that a process is requested to make itself: one request at a time, in its control page.
//! In: ranges and a node. Out: what the process answers. Knows nothing of residency.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::thread::futex;

use crate::bits::half;
use crate::layout::{CONTROL, MOVE_BYTES, MOVED_BYTES, MOVES_MAX, control, header};
use crate::mapping::Mapping;
use crate::session::Session;

/// What the heap of a process is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum Backing {
    /// Ordinary memory, which only the kernel can move.
    #[default]
    Kernel = 0,
    /// Vregions, which the process moves itself.
    Vmem = 1,
}

/// The result of a move as the process states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Bytes of its vregions that are there now.
    pub bytes: u64,
    /// Errno of the first bytes that are not there; 0 if all are.
    pub error: i32,
}

/// Requests to one process, for use by one thread. Once the session is gone, no request is
/// answered.
pub struct MoveLine {
    front: Arc<Mapping>,
    asked: u32,
}

impl MoveLine {
    /// True while the process states that it moves its memory.
    #[must_use]
    pub fn is_mover(&self) -> bool {
        self.front.half(header::IS_MOVER).load(Ordering::Relaxed) == 1
    }

    /// Requests these moves: address, bytes, node. It replaces the last request.
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
        // It makes no difference whether a thread waits.
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }

    /// Withdraws the last request.
    pub fn cancel(&mut self) {
        self.ask(&[]);
    }

    /// Waits for the answer at most this long; true if it has come.
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

    /// What the process states of the move at `index` of the last request.
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
    /// Sets what the heap is to be made of; call it before the welcome.
    pub fn set_backing(&self, backing: Backing) {
        self.control_half(control::BACKING).store(backing as u32, Ordering::Release);
    }

    /// A line to the process, for another thread. At most one is used at a time.
    #[must_use]
    pub fn move_line(&self) -> MoveLine {
        let asked = self.control_half(control::MOVES_ASKED).load(Ordering::Relaxed);
        MoveLine { front: Arc::clone(self.front()), asked }
    }
}
