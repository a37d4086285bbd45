//! When a pass of the kernel's NUMA scan over several processes has ended.
//! In: how often each was scanned, the CPU time it used, the time. Out: ends of passes. Knows
//! nothing of faults.
//!
//! The kernel scans a thread's process when the thread has used a scan period of CPU time. So a
//! pass waits for processes that are due and run; one that sleeps, as a shell does that waits for
//! its child, is not scanned, and accesses nothing.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock;

/// How far the kernel is with a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Scans of all its memory.
    pub scans: u64,
    /// CPU time that it has used.
    pub cpu: Duration,
}

impl Progress {
    /// `None` when the process is gone.
    pub fn of(pid: u32) -> Option<Progress> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/sched")).ok()?;
        Some(Progress { scans: scans(&text)?, cpu: clock::process_cpu(pid)? })
    }
}

/// `mm->numa_scan_seq` in the text of /proc/PID/sched.
pub fn scans(sched: &str) -> Option<u64> {
    let line = sched.lines().find(|line| line.starts_with("mm->numa_scan_seq"))?;
    line.split(':').nth(1)?.trim().parse().ok()
}

/// See the module.
#[derive(Debug)]
pub struct Passes {
    /// The kernel's scan period, milliseconds.
    period_ms: u64,
    processes: HashMap<u32, Process>,
}

#[derive(Debug)]
struct Process {
    /// When its last pass ended.
    began: Progress,
    /// Its CPU time at the last look at which that had advanced, and when.
    cpu: Duration,
    ran_ms: u64,
}

impl Passes {
    /// Of no process.
    pub fn new(period_ms: u64) -> Passes {
        Passes { period_ms, processes: HashMap::new() }
    }

    /// A process joins, unless it is known.
    pub fn add(&mut self, pid: u32, began: Progress) {
        let process = Process { began, cpu: began.cpu, ran_ms: 0 };
        self.processes.entry(pid).or_insert(process);
    }

    /// A process leaves.
    pub fn remove(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    /// Ends the pass if a process was scanned since the last one ended, and none is waited for.
    pub fn end(&mut self, now_ms: u64, look: &dyn Fn(u32) -> Option<Progress>) -> bool {
        let mut scanned = Vec::new();
        let mut is_waited_for = false;
        for (pid, process) in &mut self.processes {
            let Some(now) = look(*pid) else { continue };
            if now.scans > process.began.scans {
                scanned.push((*pid, now));
            } else {
                is_waited_for |= process.is_due(now, now_ms, self.period_ms);
            }
        }
        if scanned.is_empty() || is_waited_for {
            return false;
        }
        for (pid, now) in scanned {
            self.processes.entry(pid).and_modify(|process| process.began = now);
        }
        true
    }
}

impl Process {
    /// Whether the kernel will scan it soon: it has used a period of CPU time since its last pass,
    /// and has run within a period.
    fn is_due(&mut self, now: Progress, now_ms: u64, period_ms: u64) -> bool {
        if now.cpu > self.cpu {
            (self.cpu, self.ran_ms) = (now.cpu, now_ms);
        }
        let used = now.cpu.saturating_sub(self.began.cpu);
        used >= Duration::from_millis(period_ms) && now_ms < self.ran_ms + period_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD_MS: u64 = 200;

    fn at(scans: u64, cpu_ms: u64) -> Progress {
        Progress { scans, cpu: Duration::from_millis(cpu_ms) }
    }

    /// Looks at 20 ms, 40 ms and so on; returns at which of them passes end.
    fn ends(looks: &[&[(u32, Progress)]]) -> Vec<usize> {
        let mut passes = Passes::new(PERIOD_MS);
        looks[0].iter().for_each(|(pid, began)| passes.add(*pid, *began));
        let mut ends = Vec::new();
        for (nth, look) in looks.iter().enumerate() {
            let of = |pid| look.iter().find(|(one, _)| *one == pid).map(|(_, now)| *now);
            if passes.end((nth as u64 + 1) * 20, &of) {
                ends.push(nth);
            }
        }
        ends
    }

    #[test]
    fn a_pass_waits_for_all_that_are_due_and_run() {
        let looks: [&[_]; 4] = [
            &[(1, at(5, 0)), (2, at(0, 0))],
            &[(1, at(6, 210)), (2, at(0, 210))],
            &[(1, at(6, 220)), (2, at(1, 220))],
            &[(1, at(6, 230)), (2, at(1, 230))],
        ];
        assert_eq!(ends(&looks), [2], "2 is scanned later than 1");
    }

    #[test]
    fn a_pass_does_not_wait_for_a_process_that_sleeps() {
        let mut looks = vec![vec![(1, at(5, 0)), (2, at(0, 0))]];
        // 2 runs for a second before the kernel first scans it, and then sleeps for good.
        looks.push(vec![(1, at(5, 10)), (2, at(0, 1000))]);
        looks.extend((2..20).map(|nth| vec![(1, at(5 + nth, 10 * nth)), (2, at(0, 1000))]));
        let looks: Vec<&[_]> = looks.iter().map(Vec::as_slice).collect();
        let period = usize::try_from(PERIOD_MS / 20).unwrap();
        assert_eq!(ends(&looks), (1 + period..20).collect::<Vec<_>>());
    }

    #[test]
    fn what_hardly_runs_is_not_waited_for_until_it_has_used_a_period() {
        let looks: [&[_]; 3] = [
            &[(1, at(5, 0)), (2, at(0, 0))],
            &[(1, at(6, 190)), (2, at(0, 150))],
            &[(1, at(7, 380)), (2, at(0, 300))],
        ];
        assert_eq!(ends(&looks), [1], "150 ms are too little, both 150 are not");
    }

    #[test]
    fn processes_that_are_gone_end_nothing() {
        let mut passes = Passes::new(PERIOD_MS);
        passes.add(1, at(3, 0));
        assert!(!passes.end(20, &|_| None));
        assert!(passes.end(40, &|_| Some(at(4, 0))));
        passes.add(1, at(0, 0));
        assert!(!passes.end(60, &|_| Some(at(4, 0))), "it was known");
        passes.remove(1);
        assert!(!passes.end(80, &|_| Some(at(9, 0))));
    }
}
