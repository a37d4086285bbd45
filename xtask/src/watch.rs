//! Stops commands that hang or run away, however busy the machine is. In: a child that leads a
//! process group, and how much CPU time it may use. Out: its exit status, or an error once it was
//! stopped. Knows nothing of what the command does.
//!
//! No limit is one of wall time: a busy machine stretches that without bound. A command is stopped
//! when it has used its CPU time, which other load hardly changes, or when it makes no progress: it
//! prints nothing and uses next to no CPU time for minutes.

use std::collections::BTreeMap;
use std::fs::File;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// How often a running command is asked whether it has ended.
const POLL: Duration = Duration::from_millis(20);
/// How often its CPU time is added up, which reads `/proc/PID/stat` of every process.
const LOOK: Duration = Duration::from_secs(1);
/// A command hangs when it has used less than [`STALL_CPU`] and printed nothing for this long.
/// Chosen, not measured: no step waits for timers alone for longer than some seconds.
const STALL: Duration = Duration::from_secs(300);
/// 1% of [`STALL`]. With 50 other threads on its CPU a busy thread still gets 2%; a process that
/// only wakes up to look at a deadline uses less.
const STALL_CPU: Duration = Duration::from_secs(3);

/// Waits for a child that leads a process group, and kills it with all below it once it has used
/// `cpu_limit` or hangs. `log` is where it prints, if that is a file.
pub fn wait(mut child: Child, cpu_limit: Duration, log: Option<&File>) -> Result<ExitStatus> {
    let mut progress = Progress::new(Instant::now());
    let mut next_look = Instant::now() + LOOK;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let now = Instant::now();
        if now >= next_look {
            next_look = now + LOOK;
            let printed = log.and_then(|log| Some(log.metadata().ok()?.len())).unwrap_or(0);
            let tree = Tree::below(child.id());
            if let Some(why) = progress.look(now, tree.cpu(), printed, cpu_limit) {
                tree.kill(&child);
                child.wait()?;
                bail!("stopped: {why}");
            }
        }
        std::thread::sleep(POLL);
    }
}

/// Where a command last made progress.
struct Progress {
    at: Instant,
    cpu: Duration,
    printed: u64,
}

impl Progress {
    fn new(now: Instant) -> Progress {
        Progress { at: now, cpu: Duration::ZERO, printed: 0 }
    }

    /// Takes note of CPU time used and bytes printed so far; the reason why the command is to be
    /// stopped, if it is.
    fn look(
        &mut self,
        now: Instant,
        cpu: Duration,
        printed: u64,
        cpu_limit: Duration,
    ) -> Option<String> {
        if cpu > cpu_limit {
            return Some(format!("it used {} s of CPU time, its limit", cpu_limit.as_secs()));
        }
        if printed != self.printed || cpu >= self.cpu + STALL_CPU {
            *self = Progress { at: now, cpu, printed };
        }
        // A process that outlives its parent is no longer counted: the sum may fall.
        self.cpu = self.cpu.min(cpu);
        (now - self.at > STALL).then(|| {
            format!("it printed nothing and used hardly any CPU time for {} s", STALL.as_secs())
        })
    }
}

/// A process and all below it.
struct Tree {
    processes: Vec<Process>,
}

/// What `/proc/PID/stat` has of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Process {
    pid: i32,
    parent: i32,
    /// User and system time, its own and that of children it has waited for.
    ticks: u64,
}

impl Tree {
    fn below(root: u32) -> Tree {
        let mut children: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
        let mut open = Vec::new();
        for process in all_processes() {
            if u32::try_from(process.pid) == Ok(root) {
                open.push(process);
            } else {
                children.entry(process.parent).or_default().push(process);
            }
        }
        let mut processes = Vec::new();
        while let Some(process) = open.pop() {
            processes.push(process);
            open.extend(children.remove(&process.pid).unwrap_or_default());
        }
        Tree { processes }
    }

    fn cpu(&self) -> Duration {
        let ticks: u64 = self.processes.iter().map(|process| process.ticks).sum();
        Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
    }

    /// Kills the group that `child` leads, and what is below it in other groups.
    fn kill(&self, child: &Child) {
        let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
        for pid in self.processes.iter().filter_map(|process| Pid::from_raw(process.pid)) {
            // One that is gone already is no error.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn all_processes() -> Vec<Process> {
    let Ok(proc) = std::fs::read_dir("/proc") else { return Vec::new() };
    let stats =
        proc.filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("stat")).ok());
    stats.filter_map(|stat| parse(&stat)).collect()
}

/// Fields 1, 4 and 14 to 17 of proc(5); the second, the name in brackets, may contain anything.
fn parse(stat: &str) -> Option<Process> {
    let (pid, rest) = stat.split_once(' ')?;
    let (_, rest) = rest.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let ticks = fields.get(11..15)?.iter().map(|field| field.parse::<u64>().ok());
    Some(Process {
        pid: pid.parse().ok()?,
        parent: fields.get(1)?.parse().ok()?,
        ticks: ticks.sum::<Option<u64>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec;

    const LIMIT: Duration = Duration::from_secs(100);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_stat_line_is_parsed() {
        let stat = "7 (a) b) S 3 7 7 0 -1 4194560 1 2 3 4 50 6 7 8 20 0 1 0 1";
        assert_eq!(parse(stat), Some(Process { pid: 7, parent: 3, ticks: 71 }));
        assert_eq!(parse("7 (a) S 3"), None);
    }

    #[test]
    fn a_slow_command_goes_on_and_a_stuck_one_is_stopped() {
        let start = Instant::now();
        let mut progress = Progress::new(start);
        // 2% of a CPU, as on a busy machine.
        for minute in 1..60 {
            let cpu = Duration::from_millis(minute * 1200);
            assert_eq!(progress.look(start + seconds(minute * 60), cpu, 0, LIMIT), None);
        }
        // It only prints.
        let cpu = seconds(71);
        for minute in 60..80 {
            assert_eq!(progress.look(start + seconds(minute * 60), cpu, minute, LIMIT), None);
        }
        let later = start + seconds(79 * 60) + STALL + seconds(1);
        assert!(progress.look(later, cpu, 79, LIMIT).is_some());
    }

    #[test]
    fn a_command_is_stopped_at_its_cpu_limit() {
        let now = Instant::now();
        assert!(Progress::new(now).look(now, LIMIT + seconds(1), 0, LIMIT).is_some());
        let error =
            exec::run_limited(exec::command("sh").args(["-c", "while :; do :; done"]), seconds(1));
        assert!(format!("{:#}", error.expect_err("it runs for ever")).contains("its limit"));
    }

    #[test]
    fn an_exit_status_is_passed_on() {
        let status = exec::run_limited(exec::command("sh").args(["-c", "exit 3"]), LIMIT);
        assert_eq!(status.expect("it ends").code(), Some(3));
    }
}
