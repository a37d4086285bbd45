//! Stops commands that hang or run away, however busy the machine is. In: a child that leads a
//! process group, and how much CPU time it may use. Out: its exit status, or an error once it was
//! stopped. Knows nothing of what the command does.
//!
//! Steps have no limit of wall time: a busy machine stretches that without bound. A command is
//! stopped when it has used its CPU time, which other load hardly changes, or when it makes no
//! progress: it prints nothing and uses next to no CPU time for minutes. A single test has limits
//! of wall time and memory besides.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// How often a running command is asked whether it has ended.
const POLL: Duration = Duration::from_millis(20);
/// How often its CPU time is added up, which reads `/proc/PID/stat` of every process.
const LOOK: Duration = Duration::from_secs(1);
/// How long a step may make no progress. Chosen, not measured: no step waits for timers alone for
/// longer than some seconds.
const STALL: Duration = Duration::from_secs(300);
/// A command that uses less than one part in so many of a CPU makes no progress: 1%.
const STALL_SHARE: u32 = 100;

/// How much a command may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// CPU time, with all below it.
    pub cpu: Duration,
    /// It hangs when it has used less than 1% of a CPU and printed nothing for this long. With 50
    /// other threads on its CPU a busy thread still gets 2%; a process that only wakes up to look
    /// at a deadline uses less.
    pub stall: Duration,
    /// It is stopped after this long whatever it does, if that is sure to be a hang.
    pub wall: Option<Duration>,
    /// Resident memory, with all below it.
    pub memory: Option<u64>,
    /// It runs another command, and what it uses itself, ticks of a daemon, is no progress.
    pub is_host: bool,
}

impl Limits {
    /// The limits of a step that may use so much CPU time.
    pub fn of_step(cpu: Duration) -> Limits {
        Limits { cpu, stall: STALL, wall: None, memory: None, is_host: false }
    }
}

/// How a command ended.
pub enum Ended {
    Itself(ExitStatus),
    /// It was stopped: the reason, and what its processes did then.
    Stopped {
        why: String,
        stacks: String,
    },
}

/// Waits for a child that leads a process group, and kills it with all below it once it has used
/// its CPU time or hangs. `log` is where it prints, if that is a file.
pub fn wait(mut child: Child, limits: Limits, log: Option<&File>) -> Result<Ended> {
    let mut progress = Progress::new(Instant::now(), limits);
    let mut next_look = Instant::now() + LOOK;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Ended::Itself(status));
        }
        let now = Instant::now();
        if now >= next_look {
            next_look = now + LOOK;
            let printed = log.and_then(|log| Some(log.metadata().ok()?.len())).unwrap_or(0);
            let tree = Tree::below(child.id());
            let cpu = (tree.cpu(), tree.useful(limits.is_host));
            let stop = progress.look(now, cpu, printed);
            if let Some(why) = stop.or_else(|| tree.exceeds(limits.memory)) {
                let stacks = tree.stacks();
                tree.kill(&child);
                child.wait()?;
                return Ok(Ended::Stopped { why, stacks });
            }
        }
        std::thread::sleep(POLL);
    }
}

/// Where a command last made progress.
struct Progress {
    limits: Limits,
    begun: Instant,
    at: Instant,
    cpu: Duration,
    printed: u64,
}

impl Progress {
    fn new(now: Instant, limits: Limits) -> Progress {
        Progress { limits, begun: now, at: now, cpu: Duration::ZERO, printed: 0 }
    }

    /// Takes note of CPU time used, of what of it is progress, and of bytes printed so far; the
    /// reason why the command is to be stopped, if it is.
    fn look(
        &mut self,
        now: Instant,
        (all, cpu): (Duration, Duration),
        printed: u64,
    ) -> Option<String> {
        let Limits { cpu: limit, stall, wall, .. } = self.limits;
        if all > limit {
            return Some(format!("it used {} s of CPU time, its limit", limit.as_secs()));
        }
        if wall.is_some_and(|wall| now - self.begun > wall) {
            return Some(format!("it ran for {} s", (now - self.begun).as_secs()));
        }
        if printed != self.printed || cpu >= self.cpu + stall / STALL_SHARE {
            *self = Progress { at: now, cpu, printed, ..*self };
        }
        // A process that outlives its parent is no longer counted: the sum may fall.
        self.cpu = self.cpu.min(cpu);
        (now - self.at > stall).then(|| {
            format!("it printed nothing and used hardly any CPU time for {} s", stall.as_secs())
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
    resident_pages: u64,
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
        cpu_of(&self.processes)
    }

    /// The CPU time that is progress: without the first process's, if that is a host.
    fn useful(&self, is_host: bool) -> Duration {
        cpu_of(&self.processes[usize::from(is_host).min(self.processes.len())..])
    }

    /// Whether it has more resident memory than that.
    fn exceeds(&self, memory: Option<u64>) -> Option<String> {
        let pages: u64 = self.processes.iter().map(|process| process.resident_pages).sum();
        let page = u64::try_from(rustix::param::page_size()).unwrap_or(u64::MAX);
        let limit = memory.filter(|limit| pages.saturating_mul(page) > *limit)?;
        Some(format!("it had more than {} MiB of memory", limit >> 20))
    }

    /// What each process does, and its threads' stacks where gdb is installed.
    fn stacks(&self) -> String {
        let mut text = String::new();
        for Process { pid, .. } in &self.processes {
            let folder = format!("/proc/{pid}");
            let read = |name: &str| std::fs::read(format!("{folder}/{name}")).unwrap_or_default();
            let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
            let _ = writeln!(text, "process {pid}: {command}");
            for task in std::fs::read_dir(format!("{folder}/task")).into_iter().flatten().flatten()
            {
                let of_task = |name| std::fs::read_to_string(task.path().join(name));
                let words: Vec<String> =
                    ["comm", "wchan", "syscall"].into_iter().flat_map(of_task).collect();
                let _ = writeln!(text, "  {}", words.join(" ").replace('\n', " "));
            }
            text += &backtraces(*pid);
        }
        text
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

fn cpu_of(processes: &[Process]) -> Duration {
    let ticks: u64 = processes.iter().map(|process| process.ticks).sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

fn backtraces(pid: i32) -> String {
    let mut gdb = Command::new("timeout");
    gdb.args(["60", "gdb", "-batch", "-ex", "thread apply all backtrace", "-p", &pid.to_string()]);
    let output = gdb.stdin(Stdio::null()).stderr(Stdio::null()).output();
    output.map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn all_processes() -> Vec<Process> {
    let Ok(proc) = std::fs::read_dir("/proc") else { return Vec::new() };
    let stats =
        proc.filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("stat")).ok());
    stats.filter_map(|stat| parse(&stat)).collect()
}

/// Fields 1, 4, 14 to 17 and 24 of proc(5); the second, the name in brackets, may contain anything.
fn parse(stat: &str) -> Option<Process> {
    let (pid, rest) = stat.split_once(' ')?;
    let (_, rest) = rest.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let ticks = fields.get(11..15)?.iter().map(|field| field.parse::<u64>().ok());
    Some(Process {
        pid: pid.parse().ok()?,
        parent: fields.get(1)?.parse().ok()?,
        ticks: ticks.sum::<Option<u64>>()?,
        resident_pages: fields.get(21)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec;

    const LIMIT: Duration = Duration::from_secs(100);
    const LIMITS: Limits =
        Limits { cpu: LIMIT, stall: STALL, wall: None, memory: None, is_host: false };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_stat_line_is_parsed() {
        let stat = "7 (a) b) S 3 7 7 0 -1 4194560 1 2 3 4 50 6 7 8 20 0 1 0 1 4096 9 1";
        let expected = Process { pid: 7, parent: 3, ticks: 71, resident_pages: 9 };
        assert_eq!(parse(stat), Some(expected));
        assert_eq!(parse("7 (a) S 3"), None);
    }

    #[test]
    fn a_slow_command_continues_and_a_stuck_one_is_stopped() {
        let start = Instant::now();
        let mut progress = Progress::new(start, LIMITS);
        // 2% of a CPU, as on a busy machine.
        for minute in 1..60 {
            let cpu = Duration::from_millis(minute * 1200);
            assert_eq!(progress.look(start + seconds(minute * 60), (cpu, cpu), 0), None);
        }
        // It only prints.
        let cpu = seconds(71);
        for minute in 60..80 {
            assert_eq!(progress.look(start + seconds(minute * 60), (cpu, cpu), minute), None);
        }
        let later = start + seconds(79 * 60) + STALL + seconds(1);
        assert!(progress.look(later, (cpu, cpu), 79).is_some());
    }

    #[test]
    fn a_command_is_stopped_at_its_cpu_limit() {
        let now = Instant::now();
        assert!(Progress::new(now, LIMITS).look(now, (LIMIT + seconds(1), LIMIT), 0).is_some());
        let error =
            exec::run_limited(exec::command("sh").args(["-c", "while :; do :; done"]), seconds(1));
        assert!(format!("{:#}", error.expect_err("it runs for ever")).contains("its limit"));
    }

    #[test]
    fn what_a_host_uses_is_no_progress() {
        let process = |pid, ticks| Process { pid, parent: 1, ticks, resident_pages: 1 };
        let tree = Tree { processes: vec![process(2, 500), process(3, 100)] };
        let second = rustix::param::clock_ticks_per_second();
        assert_eq!(tree.useful(false), Duration::from_millis(600_000 / second));
        assert_eq!(tree.useful(true), Duration::from_millis(100_000 / second));
        assert_eq!(tree.exceeds(Some(1 << 20)), None);
        assert!(tree.exceeds(Some(4096)).is_some());
        assert_eq!(Tree { processes: Vec::new() }.useful(true), Duration::ZERO);
    }

    #[test]
    fn an_exit_status_is_passed_on() {
        let status = exec::run_limited(exec::command("sh").args(["-c", "exit 3"]), LIMIT);
        assert_eq!(status.expect("it ends").code(), Some(3));
    }
}
