//! Hosted processes that move their own memory.
//! In: processes that come and go. Out: [`RemoteMovers`], which the kernel mover asks before it
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
pub trait RemoteMover: Send {
    /// Asks for as much of `ranges` on `to` as it can move, and waits for it, bounded whatever it
    /// does. False: it was not asked, or did not answer in time.
    fn move_own(&mut self, ranges: &[Range], to: NodeId) -> bool;
}

/// By process id.
type Known = BTreeMap<u32, Arc<Mutex<dyn RemoteMover>>>;

/// All such processes. Clones share one list.
#[derive(Clone, Default)]
pub struct RemoteMovers(Arc<Mutex<Known>>);

impl RemoteMovers {
    /// Adds a process.
    pub fn came(&self, pid: u32, remote_mover: impl RemoteMover + 'static) {
        if let Ok(mut known) = self.0.lock() {
            known.insert(pid, Arc::new(Mutex::new(remote_mover)));
        }
    }

    /// Removes a process.
    pub fn left(&self, pid: u32) {
        if let Ok(mut known) = self.0.lock() {
            known.remove(&pid);
        }
    }

    /// As [`RemoteMover::move_own`], by the process with this id. Other processes are not delayed.
    pub(crate) fn move_own(&self, pid: u32, ranges: &[Range], to: NodeId) -> bool {
        let remote_mover = self.0.lock().ok().and_then(|known| known.get(&pid).cloned());
        remote_mover.is_some_and(|remote_mover| {
            remote_mover.lock().is_ok_and(|mut remote_mover| remote_mover.move_own(ranges, to))
        })
    }
}

impl fmt::Debug for RemoteMovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemoteMovers")
    }
}
