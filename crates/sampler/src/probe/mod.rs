//! The `probe` sampler: page-table bits, without counters and without root.
//! In: processes, ranges to watch, their userfaultfds. Out: samples of written OS pages and
//! of referenced mappings. Knows nothing of objects.
//!
//! Two mechanisms for each process, each with its own interval. `rate` estimates how many accesses
//! a hit stands for; to that end both read the page tables at several times after arming:
//!
//! ```text
//! writes  arm: PAGEMAP_SCAN protects spots of 32 KiB that `areas` chose, asynchronously
//!         look: PAGEMAP_SCAN again reports which were written     -> a sample per spot
//! any     arm: "1" to /proc/PID/clear_refs drops all referenced bits
//!         look: /proc/PID/smaps reports referenced bytes          -> a sample per watched range
//! ```
//!
//! Adjacent windows are registered with different userfaultfds, which keeps them separate mappings:
//! the second mechanism, which works by mapping, then works by window. The program never waits for
//! the daemon: the kernel resolves protection, and closing the descriptors undoes it.

use fastrand::Rng;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::time::Duration;
use tiercel_machine::number::{saturating_u32, saturating_u64};

use tiercel_wire::{AccessKind, Now, Sample};

use crate::{
    Allowed, Config, Cost, Counters, Drained, Granularity, Kind, Method, Sampler,
    SamplerCapabilities, SamplerError, TargetHandle,
};
use crate::{clock, descriptor};

mod areas;
#[cfg(test)]
mod model;
mod process;
mod rate;
mod smaps;
mod sys;
mod windows;
mod writes;

use process::Process;

/// Bytes of an OS page.
const OS_PAGE: u64 = 4096;
/// Bytes of a huge OS page.
const HUGE_OS_PAGE: u64 = 2 << 20;
/// CPU time after which a drain ends; the next one continues where it stopped.
const DRAIN_CPU: Duration = Duration::from_millis(50);
/// Longest interval: older heat would be of no use.
const INTERVAL_MAX_MS: u64 = 30_000;
/// Time from arming to the early read. If a program uses all its OS pages in every interval, only a
/// window this short shows which of them it uses most. A ring of records (10 ms at the maximum
/// rate) does not fill in this time.
const SHORT_WINDOW: Duration = Duration::from_millis(2);
/// The share of a process's budget that each of the two mechanisms gets at least; the rest goes to
/// the one that reports more accesses.
const MECHANISM_MIN: f64 = 0.25;
/// How long more may be spent on a process, from when that was allowed: a first answer comes after
/// 0.2 s.
const BURST_MS: u64 = 200;
/// Share of one CPU that this may cost: at most 20 ms for each process, in all.
const BURST_SHARE: f64 = 0.1;
/// Shortest time between two passes meanwhile.
const BURST_INTERVAL_MS: u64 = 8;

/// See the module.
pub struct ProbeSampler {
    config: Config,
    processes: BTreeMap<u32, Process>,
    /// The process with which the next drain begins.
    next_pid: u32,
    random: Rng,
    cost: Cost,
}

impl ProbeSampler {
    /// Checks, on the current process, that the kernel has the required interfaces.
    ///
    /// # Errors
    /// [`SamplerError::Unavailable`] without /proc/PID/clear_refs or smaps.
    pub fn open(config: &Config) -> Result<ProbeSampler, SamplerError> {
        let ourselves = Process::open(std::process::id());
        ourselves.map_err(|error| SamplerError::Unavailable {
            kind: Kind::Probe,
            why: format!("/proc does not show page-table bits: {error}"),
            remedy: "a kernel with CONFIG_PROC_PAGE_MONITOR is needed".to_owned(),
        })?;
        Ok(ProbeSampler {
            config: config.clone(),
            processes: BTreeMap::new(),
            next_pid: 0,
            random: Rng::with_seed(config.seed),
            cost: Cost::default(),
        })
    }

    /// What each mechanism may spend on a process now: writes, then touches.
    fn terms(&self, process: &Process, now_ms: u64) -> [StepLimits; 2] {
        let is_burst = process.is_in_burst(now_ms);
        let interval_ms = self.config.probe_interval_ms.max(1);
        let share = self.config.cpu_budget / self.processes.len().max(1) as f64;
        let (interval_ms, share) = match is_burst {
            true => (interval_ms.min(BURST_INTERVAL_MS), share.max(BURST_SHARE)),
            false => (interval_ms, share),
        };
        let writes = process.writes_part().clamp(MECHANISM_MIN, 1.0 - MECHANISM_MIN);
        [writes, 1.0 - writes].map(|part| StepLimits {
            interval_ms,
            cpu_share: share * part,
            spots_max: self.config.probe_spots,
        })
    }

    /// Attached processes, beginning with the one that is next in turn.
    fn turn(&self) -> Vec<u32> {
        let later = self.processes.range(self.next_pid..);
        let earlier = self.processes.range(..self.next_pid);
        later.chain(earlier).map(|(pid, _)| *pid).collect()
    }

    /// Does what is due for one process; [`ProbeSampler::settle`] accounts for the costs.
    fn step(&mut self, pid: u32, pass: &mut Pass<'_>) -> Option<Spent> {
        let now_ms = pass.now_ms;
        let terms = self.terms(self.processes.get(&pid)?, now_ms);
        let process = self.processes.get_mut(&pid)?;
        let (began, mut spent) = (clock::thread_cpu(), Spent::default());
        if now_ms >= process.writes_due_ms {
            let theirs = process.step_writes(&terms[0], &mut self.random, pass);
            spent.writes = Some(clock::thread_cpu() - began + theirs);
            self.cost.program_cpu += theirs;
        } else {
            process.look_between();
        }
        if now_ms >= process.touches_due_ms {
            let began = clock::thread_cpu();
            process.step_touches(&mut self.random, pass);
            spent.touches = Some(clock::thread_cpu() - began);
        }
        spent.any().then_some(spent)
    }

    /// The early reads of this drain, all after one sleep.
    fn look_soon(&mut self, stepped: &mut [(u32, Spent)]) {
        let looks = |process: Option<&Process>| process.is_some_and(Process::looks_soon);
        if !stepped.iter().any(|(pid, _)| looks(self.processes.get(pid))) {
            return;
        }
        std::thread::sleep(SHORT_WINDOW);
        for (pid, spent) in stepped {
            let Some(process) = self.processes.get_mut(pid) else { continue };
            let began = clock::thread_cpu();
            process.look_soon();
            let looked = clock::thread_cpu() - began;
            let half = spent.touches.as_mut().or(spent.writes.as_mut());
            if let Some(half) = half {
                *half += looked;
            }
        }
    }

    /// Schedules the next steps by the cost of these.
    fn settle(&mut self, stepped: &[(u32, Spent)], now_ms: u64) {
        for (pid, spent) in stepped {
            let Some(process) = self.processes.get(pid) else { continue };
            let [writes, touches] = self.terms(process, now_ms);
            let Some(process) = self.processes.get_mut(pid) else { continue };
            if let Some(spent) = spent.writes {
                process.writes_due_ms = now_ms + writes.amortised_ms(spent);
                self.cost.passes += 1;
            }
            if let Some(spent) = spent.touches {
                process.touches_due_ms = now_ms + touches.amortised_ms(spent);
                self.cost.passes += 1;
            }
        }
    }

    /// When the next step is due, milliseconds of the daemon's clock.
    fn due_ms(&self) -> Option<u64> {
        let due = |process: &Process| process.writes_due_ms.min(process.touches_due_ms);
        self.processes.values().filter(|process| process.is_watched()).map(due).min()
    }
}

/// CPU time of the steps of one process, the daemon's and the program's; `None`: not due.
#[derive(Default)]
struct Spent {
    writes: Option<Duration>,
    touches: Option<Duration>,
}

impl Spent {
    fn any(&self) -> bool {
        self.writes.is_some() || self.touches.is_some()
    }
}

/// What one mechanism may spend on one process.
struct StepLimits {
    /// Shortest time between two scans.
    interval_ms: u64,
    /// Share of one CPU.
    cpu_share: f64,
    /// Spots that are armed at once.
    spots_max: usize,
}

impl StepLimits {
    /// What one step may cost.
    fn allowed(&self) -> Duration {
        Duration::from_millis(self.interval_ms).mul_f64(self.cpu_share)
    }

    /// The interval at which a step's cost stays within the CPU share, milliseconds.
    fn amortised_ms(&self, spent: Duration) -> u64 {
        let earned = spent.as_secs_f64() * 1e3 / self.cpu_share;
        saturating_u64(earned).clamp(self.interval_ms, INTERVAL_MAX_MS.max(self.interval_ms))
    }
}

impl Sampler for ProbeSampler {
    fn kind(&self) -> Kind {
        Kind::Probe
    }

    fn method(&self) -> Method {
        Method::PageTables
    }

    /// A process that called exec attaches again, and a second attach replaces the first.
    fn attach(&mut self, pid: u32) -> Result<(), SamplerError> {
        let process = Process::open(pid).map_err(|error| attach_error(pid, error))?;
        self.processes.insert(pid, process);
        Ok(())
    }

    fn accept(&mut self, pid: u32, handle: TargetHandle) {
        let TargetHandle::Userfaultfd(uffd) = handle;
        if let Some(process) = self.processes.get_mut(&pid) {
            process.accept(uffd);
        }
    }

    fn detach(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    fn may_split(&mut self, pid: u32, within: Range<u64>) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.may_split(within);
        }
    }

    fn allow(&mut self, pid: u32, allowed: Allowed) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.allow(allowed);
        }
    }

    fn watch(&mut self, pid: u32, ranges: &[Range<u64>]) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.watch(ranges);
        }
    }

    fn release(&mut self, pid: u32, ranges: &[Range<u64>]) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.release(ranges);
        }
    }

    fn drain(&mut self, now: Now, out: &mut Vec<Sample>) -> Drained {
        let began = clock::thread_cpu();
        let (now_ms, room) = (now.ms(), self.config.drain_max);
        let mut pass = Pass { out, now, now_ms, room, met: Drained::default() };
        let mut stepped = Vec::new();
        for pid in self.turn() {
            if clock::thread_cpu() - began > DRAIN_CPU || pass.room == 0 {
                self.next_pid = pid;
                break;
            }
            stepped.extend(self.step(pid, &mut pass).map(|spent| (pid, spent)));
        }
        self.look_soon(&mut stepped);
        self.settle(&stepped, now_ms);
        let mut met = pass.met;
        let open = self.processes.values().filter_map(Process::began_ns).min();
        met.complete_ns = now.when(open.unwrap_or(now.monotonic_ns));
        met.due_ms = self.due_ms();
        self.cost.daemon_cpu += clock::thread_cpu() - began;
        self.cost.samples += met.samples;
        met
    }

    fn counters(&mut self) -> Option<Counters> {
        None
    }

    fn capabilities(&self) -> SamplerCapabilities {
        let tracks_writes = self.processes.values().any(Process::tracks_writes);
        let (writes, source) = if tracks_writes {
            (Granularity::PerOsPage, "userfaultfd write protection, clear_refs and smaps")
        } else {
            (Granularity::PerMapping, "clear_refs and smaps")
        };
        SamplerCapabilities {
            reads: Granularity::PerMapping,
            writes,
            latency: false,
            node: false,
            around: false,
            dirtied: false,
            counters: false,
            source: source.to_owned(),
            text:
                "How often is judged by how many OS pages were used in a moment; reads by mapping \
                   only, and an OS page whose translation stays in the TLB may look unused."
                    .to_owned(),
        }
    }

    fn cost(&self) -> Cost {
        self.cost
    }
}

/// State of one drain, carried from process to process.
struct Pass<'a> {
    out: &'a mut Vec<Sample>,
    now: Now,
    now_ms: u64,
    /// Samples that may still be appended.
    room: usize,
    met: Drained,
}

impl Pass<'_> {
    /// Appends a sample that stands for `accesses` between two reads of the page tables
    /// (CLOCK_MONOTONIC, nanoseconds), unless they round to zero.
    fn push(
        &mut self,
        (pid, addr): (u32, u64),
        kind: AccessKind,
        accesses: f64,
        looks: (u64, u64),
    ) {
        let weight = saturating_u32(accesses.round());
        if weight == 0 {
            return;
        }
        if self.room == 0 {
            self.met.lost += 1;
            return;
        }
        self.room -= 1;
        self.met.samples += 1;
        self.out.push(Sample {
            from_ns: self.now.when(looks.0),
            until_ns: self.now.when(looks.1),
            pid,
            tid: 0,
            addr,
            kind,
            latency_ns: None,
            node: None,
            weight,
            around: None,
            cpu: None,
            by: None,
        });
    }
}

fn attach_error(pid: u32, error: io::Error) -> SamplerError {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => SamplerError::Vanished { pid },
        Some(libc::EACCES | libc::EPERM) => SamplerError::Permission {
            what: format!("reading the page tables of process {pid}"),
            remedy: "it must be yours and not setuid; as root the daemon sees all processes"
                .to_owned(),
        },
        _ => SamplerError::Io { what: format!("/proc/{pid}"), source: error },
    }
}

/// Whether processes here can pass a userfaultfd, tried on the current process.
pub fn write_tracking() -> io::Result<()> {
    const USER_MODE_ONLY: libc::c_int = 1;
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
    // SAFETY: a plain system call, which returns a new descriptor.
    let uffd = unsafe { descriptor::owned(libc::syscall(libc::SYS_userfaultfd, flags))? };
    sys::take_up(&uffd)
}

/// Where a process has huge OS pages, as far as it has them in `ranges`: ascending, apart.
///
/// # Errors
/// The kernel's: ENOTTY before Linux 6.7; ESRCH or ENOENT when the process is gone; EACCES when it
/// is another user's.
pub fn huge_runs(pid: u32, ranges: &[Range<u64>]) -> io::Result<Vec<Range<u64>>> {
    let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
    let mut runs: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        sys::huge_runs(&pagemap, range, |run| match runs.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => runs.push(run),
        })?;
    }
    Ok(runs)
}

#[cfg(test)]
mod tests;
