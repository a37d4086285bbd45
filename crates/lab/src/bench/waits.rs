//! How long a program waited: for its CPU while others ran on it, and for memory. In: the guest's
//! file system, observed at intervals. Out: [`Waits`]. Knows nothing of moves.
//!
//! The kernel's scheduler accounts for the time that a thread waits (`kernel.sched_schedstats`) in
//! nanoseconds, and for its longest waits. Only the program's first thread counts: in
//! single-threaded programs it does the work, in others it waits for the rest.

use std::fs;
use std::path::{Path, PathBuf};
use tiercel_machine::number;

use super::run_result::Waits;

/// Observation that serves as the baseline: the first may fall into the program's start, when it
/// waits for the daemon to attach it.
const FIRST_OBSERVATION: u32 = 2;

/// Longest name of a command, bytes (`TASK_COMM_LEN` without the terminator).
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

/// The kernel's account of a thread since its start, nanoseconds: totals, and the longest waits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Account {
    cpu: (u64, u64),
    memory: (u64, u64),
}

impl WaitTracker {
    /// Watches the program with this path.
    pub(crate) fn of(program: &str) -> WaitTracker {
        let name = Path::new(program).file_name().unwrap_or_default().as_encoded_bytes();
        let name = String::from_utf8_lossy(&name[..name.len().min(NAME_BYTES)]).into_owned();
        let (first, last) = (Account::default(), Account::default());
        WaitTracker { name, account: None, observations: 0, first, last }
    }

    /// Searches the processes of `group` for it once.
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

    /// The waits from its second observation to its last; `None`: it was observed less often, or
    /// the kernel does not count.
    pub(crate) fn waits(&self) -> Option<Waits> {
        let since = |of: fn(&Account) -> (u64, u64)| {
            let ((all_before, most_before), (all, most)) = (of(&self.first), of(&self.last));
            let all = all.saturating_sub(all_before);
            // A longer wait before the baseline hides shorter ones, which are part of the sum.
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

/// The account of the group's first process with that name.
fn find(root: &Path, group: &Path, name: &str) -> Option<PathBuf> {
    let processes = fs::read_to_string(group.join("cgroup.procs")).ok()?;
    let mut folders = processes.lines().map(|process| root.join("proc").join(process));
    let is_named = |folder: &PathBuf| {
        fs::read_to_string(folder.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    folders.find(is_named).map(|folder| folder.join("sched"))
}

impl Account {
    /// Parses `/proc/PID/sched`: lines `name : milliseconds`. Time asleep includes interruptible
    /// waits and blocking; the longest of each has its own line. `None`: the kernel does not count.
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
    fn only_waits_after_the_start_count() {
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
            // No longer than the total wait: the 60 ms belong to its start.
            for_memory_ns_max: 3_000_000,
        };
        assert_eq!(held, Some(expected));
        assert_eq!(watch(&[start.clone(), start]), None, "nothing to compare with");
    }

    #[test]
    fn without_an_account_there_are_no_waits() {
        let off = "hotcold (7, #threads: 1)\nse.exec_start : 3.0\nnr_switches : 3\n".to_owned();
        assert_eq!(watch(&[off.clone(), off.clone(), off]), None);
        let mut waits = WaitTracker::of("a-name-that-is-too-long");
        assert_eq!(waits.name, "a-name-that-is-");
        waits.observe(guest().path(), guest().path());
        assert_eq!(waits.waits(), None);
    }
}
