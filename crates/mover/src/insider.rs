//! Processes that move their own memory, and who they are.
//! In: what the daemon knows of a process. Out: [`Insiders`], asked by the kernel mover before it
//! moves anything itself. Knows nothing of how a process is asked.
//!
//! A process can copy while it writes and switch afterwards, which nobody else can do for it. What
//! it says is not believed: residency tells, and the kernel moves what is not there then.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use tiercel_machine::NodeId;

use crate::Range;

/// A process that can be asked.
pub trait Insider: Send {
    /// Asks for as much of `ranges` on `to` as it can move, and waits for it, bounded whatever it
    /// does. False: it was not asked, or did not answer in time.
    fn move_own(&mut self, ranges: &[Range], to: NodeId) -> bool;
}

/// By process id.
type Known = BTreeMap<u32, Arc<Mutex<dyn Insider>>>;

/// Everybody who can be asked. Whoever clones it sees the same processes.
#[derive(Clone, Default)]
pub struct Insiders(Arc<Mutex<Known>>);

impl Insiders {
    /// A process has come.
    pub fn came(&self, pid: u32, insider: impl Insider + 'static) {
        if let Ok(mut known) = self.0.lock() {
            known.insert(pid, Arc::new(Mutex::new(insider)));
        }
    }

    /// A process has gone.
    pub fn left(&self, pid: u32) {
        if let Ok(mut known) = self.0.lock() {
            known.remove(&pid);
        }
    }

    /// As [`Insider::move_own`], of whoever has this process id. The others are not held up.
    pub(crate) fn move_own(&self, pid: u32, ranges: &[Range], to: NodeId) -> bool {
        let insider = self.0.lock().ok().and_then(|known| known.get(&pid).cloned());
        insider.is_some_and(|insider| {
            insider.lock().is_ok_and(|mut insider| insider.move_own(ranges, to))
        })
    }
}

impl fmt::Debug for Insiders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Insiders")
    }
}
