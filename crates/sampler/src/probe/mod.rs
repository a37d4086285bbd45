//! The `probe` sampler: page-table bits, without counters and without root.
//! In: processes, ranges to watch, their userfaultfds. Out: samples of written OS pages and
//! of referenced mappings. Knows nothing of objects.
//!
//! Two mechanisms for each process, each with its own interval. `rate` estimates how many accesses
//! a hit stands for; for this both read the page tables a second time, shortly after arming:
//!
//! ```text
//! writes  arm: PAGEMAP_SCAN protects spots of 32 KiB at even distances, asynchronously
//!         look: PAGEMAP_SCAN again reports which were written     -> a sample per spot
//! any     arm: "1" to /proc/PID/clear_refs drops all referenced bits
//!         look: /proc/PID/smaps reports referenced bytes          -> a sample per watched range
//! ```
//!
//! Windows that touch are registered with different userfaultfds; that keeps them separate
//! mappings, and so the second sight, which is by mapping, becomes one by window. Nothing here can
//! make the program wait for us: protection is resolved in the kernel, and closing the descriptors
//! undoes it.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::time::Duration;
use tiercel_machine::number::{saturating_u32, saturating_u64};

use tiercel_wire::{AccessKind, Sample};

use crate::{
    Config, Cost, Counters, Drained, Granularity, Kind, Method, Sampler, SamplerCapabilities,
    SamplerError, TargetHandle,
};
use crate::{clock, descriptor};

mod process;
mod rate;
mod smaps;
mod sys;
mod windows;
mod writes;

use process::Process;
use windows::Random;

/// Bytes of an OS page.
const OS_PAGE: u64 = 4096;
/// Bytes of a huge OS page.
const HUGE_OS_PAGE: u64 = 2 << 20;
/// One drain ends when it has used this much CPU time; the next goes on where it stopped.
const DRAIN_CPU: Duration = Duration::from_millis(50);
/// No pace is slower than this: beyond it heat would be older than it is useful.
const INTERVAL_MAX_MS: u64 = 30_000;
/// From arming to the short read. A program that uses all its OS pages in every interval shows only
/// in such a short window which of them it uses most; a ring of records (10 ms at the maximum rate)
/// does not fill meanwhile.
const SHORT_WINDOW: Duration = Duration::from_millis(2);
/// Of a process's share of the budget, each of the two mechanisms gets one half.
const MECHANISMS: f64 = 2.0;

/// See the module.
pub struct ProbeSampler {
    config: Config,
    processes: BTreeMap<u32, Process>,
    /// Where the next drain begins.
    next_pid: u32,
    random: Random,
    cost: Cost,
}

impl ProbeSampler {
    /// Checks on this very process that the kernel has what is needed.
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
            random: Random(config.seed),
            cost: Cost::default(),
        })
    }

    /// What each sight of each process may do now.
    fn terms(&self) -> StepLimits {
        StepLimits {
            interval_ms: self.config.probe_interval_ms.max(1),
            cpu_share: self.config.cpu_budget / MECHANISMS / self.processes.len().max(1) as f64,
            spots_max: self.config.probe_pieces,
        }
    }

    /// Attached processes, beginning with the one whose turn it is.
    fn turn(&self) -> Vec<u32> {
        let later = self.processes.range(self.next_pid..);
        let earlier = self.processes.range(..self.next_pid);
        later.chain(earlier).map(|(pid, _)| *pid).collect()
    }

    /// Whatever is due for one process; its costs are settled in [`ProbeSampler::settle`].
    fn step(&mut self, pid: u32, terms: &StepLimits, pass: &mut Pass<'_>) -> Option<Spent> {
        let now_ms = pass.now_ms;
        let process = self.processes.get_mut(&pid)?;
        let (began, mut spent) = (clock::thread_cpu(), Spent::default());
        if now_ms >= process.writes_due_ms {
            let theirs = process.step_writes(terms, &mut self.random, pass);
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

    /// The short looks of this drain, all after one nap.
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

    /// Says when the next steps are due, by what these cost.
    fn settle(&mut self, stepped: &[(u32, Spent)], terms: &StepLimits, now_ms: u64) {
        for (pid, spent) in stepped {
            let Some(process) = self.processes.get_mut(pid) else { continue };
            if let Some(spent) = spent.writes {
                process.writes_due_ms = now_ms + terms.amortised_ms(spent);
                self.cost.passes += 1;
            }
            if let Some(spent) = spent.touches {
                process.touches_due_ms = now_ms + terms.amortised_ms(spent);
                self.cost.passes += 1;
            }
        }
    }
}

/// CPU time the steps of one process took, ours and the program's; `None`: not due.
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
    /// Shortest time between two looks.
    interval_ms: u64,
    /// Share of one CPU.
    cpu_share: f64,
    /// Spots armed at once.
    spots_max: usize,
}

impl StepLimits {
    /// The interval over which a step's cost stays within the CPU share, milliseconds.
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

    /// A process that exec'ed is attached anew; so is one attached twice.
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

    fn may_split_huge(&mut self, pid: u32, allowed: bool) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.may_split_huge(allowed);
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

    fn drain(&mut self, now_ms: u64, out: &mut Vec<Sample>) -> Drained {
        let began = clock::thread_cpu();
        let room = self.config.drain_max;
        let mut pass = Pass { out, now_ms, room, met: Drained::default() };
        let terms = self.terms();
        let mut stepped = Vec::new();
        for pid in self.turn() {
            if clock::thread_cpu() - began > DRAIN_CPU || pass.room == 0 {
                self.next_pid = pid;
                break;
            }
            stepped.extend(self.step(pid, &terms, &mut pass).map(|spent| (pid, spent)));
        }
        self.look_soon(&mut stepped);
        self.settle(&stepped, &terms, now_ms);
        let met = pass.met;
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

/// What one drain carries from process to process.
struct Pass<'a> {
    out: &'a mut Vec<Sample>,
    now_ms: u64,
    /// Samples that may still be appended.
    room: usize,
    met: Drained,
}

impl Pass<'_> {
    /// A sample that stands for `accesses`; nothing when they round to none.
    fn push(&mut self, pid: u32, addr: u64, kind: AccessKind, accesses: f64) {
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
            time_us: self.now_ms * 1000,
            pid,
            tid: 0,
            addr,
            kind,
            latency_ns: None,
            node: None,
            weight,
            around: None,
        });
    }
}

fn attach_error(pid: u32, error: io::Error) -> SamplerError {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => SamplerError::Vanished { pid },
        Some(libc::EACCES | libc::EPERM) => SamplerError::Permission {
            what: format!("reading the page tables of process {pid}"),
            remedy: "it must be yours and not setuid; as root the daemon sees all".to_owned(),
        },
        _ => SamplerError::Io { what: format!("/proc/{pid}"), source: error },
    }
}

/// Whether processes here can pass a userfaultfd, tried on this very process.
pub fn write_tracking() -> io::Result<()> {
    const USER_MODE_ONLY: libc::c_int = 1;
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
    // SAFETY: a plain system call, which answers a new descriptor.
    let uffd = unsafe { descriptor::owned(libc::syscall(libc::SYS_userfaultfd, flags))? };
    sys::take_up(&uffd)
}

#[cfg(test)]
mod tests;
