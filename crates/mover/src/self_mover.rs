//! Hosted processes that move their own memory.
//! In: processes that come and go. Out: [`SelfMovers`], which the kernel mover asks before it
//! moves anything itself. Knows nothing of how a process is asked.
//!
//! Only a process itself can copy its memory while it writes, and switch afterwards. Its answer is
//! not trusted: the mover reads residency, and the kernel moves whatever is not on the target.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use tiercel_machine::NodeId;

use crate::Range;

/// A process that moves its own memory on request.
pub trait SelfMover: Send {
    /// Asks for as much of `ranges` on `to` as it can move, and waits for it, bounded whatever it
    /// does. False: it was not asked, or did not answer in time.
    fn move_own(&mut self, ranges: &[Range], to: NodeId) -> bool;
}

/// By process id.
type Known = BTreeMap<u32, Arc<Mutex<dyn SelfMover>>>;

/// All such processes. Clones share one list.
#[derive(Clone, Default)]
pub struct SelfMovers(Arc<Mutex<Known>>);

impl SelfMovers {
    /// Adds a process.
    pub fn came(&self, pid: u32, self_mover: impl SelfMover + 'static) {
        if let Ok(mut known) = self.0.lock() {
            known.insert(pid, Arc::new(Mutex::new(self_mover)));
        }
    }

    /// Removes a process.
    pub fn left(&self, pid: u32) {
        if let Ok(mut known) = self.0.lock() {
            known.remove(&pid);
        }
    }

    /// As [`SelfMover::move_own`], by the process with this id. Other processes are not delayed.
    pub(crate) fn move_own(&self, pid: u32, ranges: &[Range], to: NodeId) -> bool {
        let self_mover = self.0.lock().ok().and_then(|known| known.get(&pid).cloned());
        self_mover.is_some_and(|self_mover| {
            self_mover.lock().is_ok_and(|mut self_mover| self_mover.move_own(ranges, to))
        })
    }
}

impl fmt::Debug for SelfMovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SelfMovers")
    }
}
