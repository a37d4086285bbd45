//! Forked children that do not attach, because they allocate little: found from outside, at no cost
//! to them.
//! In: hosted processes, how often each says that it forked, `/proc/PID/task/TID/children`. Out:
//! children that have lived long enough to count. Knows nothing of what becomes of them.
//!
//! A child that executes a program or ends is over before the second look, and one that allocates
//! attaches by itself.

use super::client::Client;
use super::table::Clients;
use crate::schedule::pause_ms;
use std::collections::{HashMap, HashSet};
use std::time::Instant;

/// Between two looks, milliseconds, and so the least age of a child that counts: the age at which a
/// process is sampled.
const LOOK_MS: u64 = 250;

/// Share of wall time that looks may take: a look at a process takes some 10 us for each thread.
const TIME_SHARE: f64 = 0.002;

/// Threads of a process whose children are read; any may fork. Chosen, not measured: servers that
/// fork have few.
const TASKS_MAX: usize = 64;

/// Children of a process that are looked at.
const CHILDREN_MAX: usize = 256;

/// Processes that are looked at in one round.
const PARENTS_MAX: usize = 64;

/// Children that may have to be taken in, by their parents.
#[derive(Default)]
pub(crate) struct Children {
    /// Seen once, in the last look.
    young: HashSet<u32>,
    /// How often each client had forked at the last look at it, by session number.
    forks: HashMap<u32, u32>,
    due_ms: u64,
}

impl Children {
    /// Children that were there at the last look too and are not hosted, with their parent's
    /// session number. Nothing is read where no client has forked since.
    pub(crate) fn look(&mut self, clients: &Clients, now_ms: u64) -> Vec<(u32, u32)> {
        if now_ms < self.due_ms {
            return Vec::new();
        }
        let began = Instant::now();
        self.forks.retain(|number, _| clients.get(*number).is_some());
        let parents = clients.iter().filter(|client| !client.has_left());
        let parents = parents.filter(|client| self.may_have(client)).take(PARENTS_MAX);
        let (mut young, mut old, mut seen) = (HashSet::new(), Vec::new(), Vec::new());
        for parent in parents {
            let mut is_awaited = false;
            for pid in children_of(parent.pid) {
                if clients.number_of(pid).is_some() {
                    continue;
                }
                if self.young.contains(&pid) {
                    old.push((parent.number, pid));
                } else {
                    young.insert(pid);
                    is_awaited = true;
                }
            }
            // Looked at again while a child may become old enough.
            let forks = parent.session.forks();
            seen.push((parent.number, if is_awaited { forks.wrapping_sub(1) } else { forks }));
        }
        self.forks.extend(seen);
        self.young = young;
        self.due_ms = now_ms + pause_ms(began.elapsed(), TIME_SHARE).max(LOOK_MS);
        old
    }

    /// Whether a client may have children that were not seen yet. Of one that does not attach
    /// itself it is not known.
    fn may_have(&self, client: &Client) -> bool {
        client.is_adopted()
            || self.forks.get(&client.number).copied() != Some(client.session.forks())
    }
}

/// The children of all threads of a process; none where the kernel does not list them.
pub(crate) fn children_of(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten().take(TASKS_MAX);
    let read = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let numbers = |text: String| -> Vec<u32> {
        text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    read.flat_map(numbers).take(CHILDREN_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn children_of_a_process_are_found() {
        let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let found = children_of(std::process::id());
        assert!(found.contains(&child.id()), "{found:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!children_of(std::process::id()).contains(&child.id()));
        assert!(children_of(u32::MAX).is_empty());
    }
}
