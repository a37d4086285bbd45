//! How long a program waited: for its CPU while others ran on it, and for memory.
//! In: the guest's file system, observed at intervals. Out: [`Waits`]. Knows nothing of moves.
//!
//! The kernel's scheduler counts what a thread waits (`kernel.sched_schedstats`), nanosecond by
//! nanosecond; the longest waits are kept as well. Only the program's first thread counts: it is
//! the one that works in programs of one, and waits for the others in programs of several.

use std::fs;
use std::path::{Path, PathBuf};
use tiercel_machine::number;

use super::row::Waits;

/// The baseline is taken at this observation: the first may fall into the program's start, where it
/// attaches to the daemon and waits for it.
const FIRST_OBSERVATION: u32 = 2;

/// Longest name of a command, bytes (`TASK_COMM_LEN`, without the end).
const NAME_BYTES: usize = 15;

/// Watches one program's first thread.
#[derive(Debug)]
pub(crate) struct WaitTracker {
    name: String,
    account: Option<PathBuf>,
    observations: u32,
    first: Account,
    last: Account,
}

/// What the kernel has counted of a thread since its beginning, nanoseconds: all, and the longest.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Account {
    cpu: (u64, u64),
    memory: (u64, u64),
}

impl WaitTracker {
    /// Of the program with this path.
    pub(crate) fn of(program: &str) -> WaitTracker {
        let name = Path::new(program).file_name().unwrap_or_default().as_encoded_bytes();
        let name = String::from_utf8_lossy(&name[..name.len().min(NAME_BYTES)]).into_owned();
        let (first, last) = (Account::default(), Account::default());
        WaitTracker { name, account: None, observations: 0, first, last }
    }

    /// Looks once for it among the processes of `group`.
    pub(crate) fn observe(&mut self, root: &Path, group: &Path) {
        if self.account.is_none() {
            self.account = find(root, group, &self.name);
        }
        let Some(path) = &self.account else { return };
        let text = fs::read_to_string(path).unwrap_or_default();
        let Some(seen) = Account::parse(&text) else { return };
        self.observations += 1;
        self.last = seen;
        if self.observations == FIRST_OBSERVATION {
            self.first = seen;
        }
    }

    /// From its second observation to its last; `None`: it was observed less often, or the kernel
    /// does not count.
    pub(crate) fn waits(&self) -> Option<Waits> {
        let since = |of: fn(&Account) -> (u64, u64)| {
            let ((all_before, most_before), (all, most)) = (of(&self.first), of(&self.last));
            let all = all.saturating_sub(all_before);
            // A longest wait of before hides shorter ones, which are part of the sum.
            (all, if most > most_before { most } else { most.min(all) })
        };
        let (for_cpu_ns, for_cpu_ns_max) = since(|account| account.cpu);
        let (for_memory_ns, for_memory_ns_max) = since(|account| account.memory);
        (self.observations > FIRST_OBSERVATION).then_some(Waits {
            for_cpu_ns,
            for_cpu_ns_max,
            for_memory_ns,
            for_memory_ns_max,
        })
    }
}

/// The account of the group's first process of that name.
fn find(root: &Path, group: &Path, name: &str) -> Option<PathBuf> {
    let processes = fs::read_to_string(group.join("cgroup.procs")).ok()?;
    let mut folders = processes.lines().map(|process| root.join("proc").join(process));
    let is_named = |folder: &PathBuf| {
        fs::read_to_string(folder.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    folders.find(is_named).map(|folder| folder.join("sched"))
}

impl Account {
    /// Of `/proc/PID/sched`: lines `name : milliseconds`, in which sleeping is interruptible waits
    /// and blocking, and the longest of each stands alone. `None`: the kernel does not count.
    fn parse(text: &str) -> Option<Account> {
        let figure = |name: &str| {
            let value = text.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim().parse::<f64>().ok())?
            })?;
            Some(number::saturating_u64((value * 1e6).round()))
        };
        let longest = figure("sleep_max")?.max(figure("block_max")?);
        Some(Account {
            cpu: (figure("wait_sum")?, figure("wait_max")?),
            memory: (figure("sum_sleep_runtime")?, longest),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sched(wait: (f64, f64), sleep: (f64, f64), block_max: f64) -> String {
        format!(
            "hotcold (7, #threads: 2)\n-----\nse.exec_start   :  3.000001\n\
             sum_sleep_runtime                            :  {:.6}\n\
             sum_block_runtime                            :  0.5\n\
             sleep_max                                    :  {:.6}\n\
             block_max                                    :  {block_max:.6}\n\
             wait_max                                     :  {:.6}\n\
             wait_sum                                     :  {:.6}\n",
            sleep.0, sleep.1, wait.1, wait.0
        )
    }

    /// A guest with two processes in the group.
    fn guest() -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        for (process, name) in [("6", "tiercel"), ("7", "hotcold")] {
            let folder = dir.path().join("proc").join(process);
            fs::create_dir_all(&folder).expect("made");
            fs::write(folder.join("comm"), format!("{name}\n")).expect("written");
        }
        fs::write(dir.path().join("cgroup.procs"), "6\n7\n").expect("written");
        dir
    }

    fn watch(accounts: &[String]) -> Option<Waits> {
        let dir = guest();
        let mut waits = WaitTracker::of("/root/bin/hotcold");
        for text in accounts {
            fs::write(dir.path().join("proc/7/sched"), text).expect("written");
            waits.observe(dir.path(), dir.path());
        }
        waits.waits()
    }

    #[test]
    fn what_it_waited_after_its_start_counts() {
        let start = sched((1.0, 0.5), (80.0, 60.0), 2.0);
        let held = watch(&[
            sched((0.5, 0.5), (60.0, 60.0), 0.0),
            start.clone(),
            sched((4.0, 2.5), (83.0, 60.0), 2.5),
        ]);
        let expected = Waits {
            for_cpu_ns: 3_000_000,
            for_cpu_ns_max: 2_500_000,
            for_memory_ns: 3_000_000,
            // No more than it waited at all: the 60 ms were its start's.
            for_memory_ns_max: 3_000_000,
        };
        assert_eq!(held, Some(expected));
        assert_eq!(watch(&[start.clone(), start]), None, "nothing to compare with");
    }

    #[test]
    fn without_an_account_nothing_is_known() {
        let off = "hotcold (7, #threads: 1)\nse.exec_start : 3.0\nnr_switches : 3\n".to_owned();
        assert_eq!(watch(&[off.clone(), off.clone(), off]), None);
        let mut waits = WaitTracker::of("a-name-that-is-too-long");
        assert_eq!(waits.name, "a-name-that-is-");
        waits.observe(guest().path(), guest().path());
        assert_eq!(waits.waits(), None);
    }
}
