//! The `perf` sampler: the CPU's precise memory events, by process, without root where the kernel
//! allows it. In: processes. Out: samples with data addresses.
//! Knows nothing of which addresses matter.
//!
//! ```text
//!   thread A ---- event on cpu 0 --+--> ring of cpu 0 --+
//!           \---- event on cpu 1 --|-+                  +--> drain
//!   thread B ---- event on cpu 0 --+ +> ring of cpu 1 --+
//! ```
//!
//! An event that new threads inherit may not have a ring of its own unless it is bound to one CPU.
//! Therefore each thread found at attach gets one event per CPU, and all events on a CPU write into
//! one ring. That ring belongs to a dummy event of the daemon, which outlives every process.
//! Threads started later inherit the events; forked processes do not (`inherit_thread`): they are
//! attached separately.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tiercel_machine::number::saturating_u32;

use tiercel_wire::{Now, Sample};

use crate::clock;
use crate::{
    Config, Cost, Counters, Drained, Granularity, Kind, Method, Sampler, SamplerCapabilities,
    SamplerError,
};

pub mod attr;
pub mod choose;
mod count;
pub mod decode;
pub mod events;
pub mod pace;
pub mod record;
mod ring;
mod spe;
pub mod tasks;

use attr::{Attr, flag};
use choose::{Choice, choose};
use events::{Decode, PAGE_FAULTS};
use pace::Pace;
use record::{AuxChunk, PerfRecord, RawSample};
use ring::Ring;

/// Most events of one process: threads x CPUs x events. Each takes a descriptor here and about 1
/// KiB in the kernel; larger processes are for the bpf sampler.
const EVENTS_MAX: usize = 8192;
/// Reads of the thread list at attach: a later read finds threads that started during an earlier
/// one.
const TASK_LOOKS: usize = 4;
/// AUX area per CPU where the PMU writes packets: 1 MiB holds 16,000 SPE records of 64 bytes.
const AUX_BYTES: usize = 1 << 20;
/// First address of the kernel's half.
pub const USER_END: u64 = 1 << 63;

/// The kernel writes what an AUX area has when a thread is switched out or a part of it is full: at
/// this age, nanoseconds, packets are in a chunk. Chosen, not measured.
const AUX_LATE_NS: u64 = 1_000_000_000;

/// See the module.
pub struct PerfSampler {
    config: Config,
    choice: Choice,
    /// By CPU. Of an AUX area also when its last chunk was written, on the daemon's clock.
    rings: Vec<(i32, Ring, u64)>,
    processes: HashMap<u32, Process>,
    /// Index into `choice.events` by the kernel's id.
    kinds: HashMap<u64, usize>,
    pace: Pace,
    cost: Cost,
    cycles_per_ns: Option<f64>,
    counting: bool,
    last_drain_ns: u64,
    aux_scratch: Vec<u8>,
}

#[derive(Default)]
struct Process {
    events: Vec<(u64, OwnedFd)>,
    counts: Vec<count::Pair>,
}

impl PerfSampler {
    /// Opens the rings.
    ///
    /// # Errors
    /// As [`choose`], or [`SamplerError::Limit`] when the rings take too much locked memory.
    pub fn open(config: &Config) -> Result<PerfSampler, SamplerError> {
        let choice = choose(config)?;
        let mut rings = Vec::new();
        for cpu in tasks::online_cpus() {
            rings.push((cpu, open_ring(config, &choice, cpu)?, 0));
        }
        Ok(PerfSampler {
            config: config.clone(),
            pace: Pace::new(config.cpu_budget),
            cycles_per_ns: tasks::cycles_per_ns(),
            counting: count::works(),
            last_drain_ns: clock::monotonic_ns(),
            choice,
            rings,
            processes: HashMap::new(),
            kinds: HashMap::new(),
            cost: Cost::default(),
            aux_scratch: Vec::new(),
        })
    }

    /// Current events per sample of an event.
    fn period(&self, kind: usize) -> u64 {
        choose::period(&self.config, self.choice.events[kind].event, self.pace.factor())
    }

    /// Opens all events of a process at the current period.
    fn open_events(&mut self, pid: u32) -> Result<Vec<(u64, OwnedFd)>, SamplerError> {
        let mut opened = Vec::new();
        let mut known: Vec<i32> = Vec::new();
        for _ in 0..TASK_LOOKS {
            let fresh: Vec<i32> =
                tasks::threads(pid).into_iter().filter(|tid| !known.contains(tid)).collect();
            if fresh.is_empty() {
                break;
            }
            for tid in fresh {
                self.open_thread(pid, tid, &mut opened)?;
                known.push(tid);
            }
        }
        if opened.is_empty() { Err(SamplerError::Vanished { pid }) } else { Ok(opened) }
    }

    fn open_thread(
        &mut self,
        pid: u32,
        tid: i32,
        opened: &mut Vec<(u64, OwnedFd)>,
    ) -> Result<(), SamplerError> {
        for kind in 0..self.choice.events.len() {
            let attr = Attr { period: self.period(kind), ..self.choice.events[kind].attr };
            for (cpu, ring, _) in &self.rings {
                if opened.len() == EVENTS_MAX {
                    return Err(too_many(pid));
                }
                let made = attr::open(&attr, tid, *cpu).and_then(|event| {
                    attr::redirect(&event, ring.owner())?;
                    Ok((attr::id(&event)?, event))
                });
                match made {
                    Ok((id, event)) => {
                        self.kinds.insert(id, kind);
                        opened.push((id, event));
                    }
                    // The thread has ended, or the CPU went offline, since the lists were read.
                    Err(e) if matches!(e.raw_os_error(), Some(libc::ESRCH | libc::ENODEV)) => {}
                    Err(error) => return Err(self.attach_error(pid, kind, error)),
                }
            }
        }
        Ok(())
    }

    fn attach_error(&self, pid: u32, kind: usize, error: io::Error) -> SamplerError {
        let event = self.choice.events[kind].event;
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => SamplerError::Permission {
                what: format!("perf event {} on process {pid}", event.name),
                remedy: "it must be yours and not setuid; as root the daemon sees all processes"
                    .into(),
            },
            Some(libc::EMFILE | libc::ENFILE) => too_many(pid),
            _ => SamplerError::Io {
                what: format!("perf event {} on process {pid}", event.name),
                source: error,
            },
        }
    }

    /// Opens all events again at the current period. PERF_EVENT_IOC_PERIOD would leave threads that
    /// inherited an event at the old period (measured).
    fn reopen(&mut self) {
        let pids: Vec<u32> = self.processes.keys().copied().collect();
        for pid in pids {
            self.close_events(pid);
            // An event that does not open now is tried again at the next change, unless its process
            // has ended by then.
            let events = self.open_events(pid).unwrap_or_default();
            if let Some(process) = self.processes.get_mut(&pid) {
                process.events = events;
            }
        }
    }

    fn close_events(&mut self, pid: u32) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        for (id, _event) in process.events.drain(..) {
            self.kinds.remove(&id);
        }
    }
}

impl Sampler for PerfSampler {
    fn kind(&self) -> Kind {
        Kind::Perf
    }

    fn method(&self) -> Method {
        Method::Misses
    }

    fn attach(&mut self, pid: u32) -> Result<(), SamplerError> {
        if self.processes.contains_key(&pid) {
            return Ok(());
        }
        let events = self.open_events(pid)?;
        let counts = if self.counting {
            tasks::threads(pid).into_iter().filter_map(count::Pair::open).collect()
        } else {
            Vec::new()
        };
        self.processes.insert(pid, Process { events, counts });
        Ok(())
    }

    fn detach(&mut self, pid: u32) {
        self.close_events(pid);
        self.processes.remove(&pid);
    }

    fn watch(&mut self, _pid: u32, _ranges: &[std::ops::Range<u64>]) {}

    fn set_useful_rate(&mut self, samples_per_s: f64) {
        self.pace.set_useful_rate(samples_per_s);
    }

    fn drain(&mut self, now: Now, out: &mut Vec<Sample>) -> Drained {
        let began = clock::thread_cpu();
        let now_ns = clock::monotonic_ns();
        let late_ns = if self.choice.aux { AUX_LATE_NS } else { 0 };
        let complete_ns = now.when(now_ns).saturating_sub(late_ns);
        let met = Drained { complete_ns, ..Drained::default() };
        let mut pass = Pass { out, now, met, records: 0 };
        for index in 0..self.rings.len() {
            self.drain_ring(index, &mut pass);
        }
        let (met, records) = (pass.met, pass.records);
        let ours = clock::thread_cpu() - began;
        let theirs = pace::SAMPLE_COST * u32::try_from(records).unwrap_or(u32::MAX);
        self.cost.daemon_cpu += ours;
        self.cost.program_cpu += theirs;
        self.cost.samples += met.samples;
        self.cost.passes += 1;
        let elapsed = Duration::from_nanos(now_ns - self.last_drain_ns);
        self.last_drain_ns = now_ns;
        if self.pace.look(elapsed, ours + theirs, met.samples, met.throttled) {
            self.reopen();
        }
        met
    }

    fn counters(&mut self) -> Option<Counters> {
        let mut sum = Counters::default();
        self.processes.values_mut().flat_map(|p| &mut p.counts).for_each(|c| c.add_to(&mut sum));
        self.counting.then_some(sum)
    }

    fn capabilities(&self) -> SamplerCapabilities {
        SamplerCapabilities {
            counters: self.counting,
            ..sees_of(&self.choice, self.cycles_per_ns.is_some())
        }
    }

    fn cost(&self) -> Cost {
        self.cost
    }
}

/// What a set of events can see, apart from counters.
pub fn sees_of(choice: &Choice, latency: bool) -> SamplerCapabilities {
    let has = |decode| choice.events.iter().any(|chosen| chosen.event.decode == decode);
    let first_touch = choice.events.iter().all(|chosen| chosen.event.decode == Decode::Fault);
    let sight = |sees: bool| match (first_touch, sees) {
        (true, _) => Granularity::FirstTouch,
        (false, true) => Granularity::Exact,
        (false, false) => Granularity::Blind,
    };
    let all = has(Decode::Ibs) || has(Decode::Spe);
    let names: Vec<&str> = choice.events.iter().map(|chosen| chosen.event.name).collect();
    let text = if first_touch {
        "Only the first access of an OS page after it was mapped or moved; no heat."
    } else {
        "Accesses that hardware prefetchers served in time, and those of the kernel on the \
         program's behalf, are not seen; nor how many misses were under way at once, nor which \
         lines that were loaded were stored to later."
    };
    SamplerCapabilities {
        reads: sight(has(Decode::LoadMiss) || all),
        writes: sight(has(Decode::Store) || all),
        latency: !first_touch && latency,
        node: false,
        around: false,
        dirtied: false,
        counters: false,
        source: names.join(", "),
        text: text.to_owned(),
    }
}

/// A sample in the form that all samplers report. `task`: process, thread, CPU; the access happened
/// between the two times.
pub fn to_sample(
    access: &decode::Access,
    task: (u32, u32, Option<u16>),
    (from_ns, until_ns): (u64, u64),
    period: u64,
    cycles_per_ns: Option<f64>,
) -> Sample {
    let cycles = access.latency_cycles as f64;
    let (pid, tid, cpu) = task;
    Sample {
        from_ns,
        until_ns,
        pid,
        tid,
        addr: access.addr,
        kind: access.kind,
        latency_ns: cycles_per_ns
            .filter(|_| cycles > 0.0)
            .map(|per_ns| saturating_u32(cycles / per_ns)),
        node: None,
        weight: u32::try_from(period).unwrap_or(u32::MAX),
        around: None,
        cpu,
        by: None,
    }
}

/// What one drain carries from ring to ring.
struct Pass<'a> {
    out: &'a mut Vec<Sample>,
    now: Now,
    met: Drained,
    records: u64,
}

impl Pass<'_> {
    fn push(&mut self, sample: Sample) {
        self.met.samples += 1;
        self.out.push(sample);
    }
}

impl PerfSampler {
    fn drain_ring(&mut self, index: usize, pass: &mut Pass<'_>) {
        let share = (self.config.drain_max / self.rings.len()).max(1);
        let mut records = Vec::new();
        pass.met.lost += self.rings[index].1.drain(share, |record| records.push(record));
        let is_cut = records.len() == share;
        for record in records {
            pass.records += 1;
            match record {
                PerfRecord::Sample(raw) => self.take_sample(index, &raw, pass),
                PerfRecord::Lost(count) => pass.met.lost += count,
                PerfRecord::Throttle => pass.met.throttled += 1,
                PerfRecord::Aux(chunk) => self.take_aux(index, &chunk, pass),
                PerfRecord::Other => {}
            }
        }
        if let Some(last) = pass.out.last().filter(|_| is_cut) {
            pass.met.complete_ns = pass.met.complete_ns.min(last.from_ns);
        }
    }

    /// The CPU of a ring: only events of that CPU write into it.
    fn cpu(&self, index: usize) -> Option<u16> {
        u16::try_from(self.rings[index].0).ok()
    }

    fn take_sample(&self, index: usize, raw: &RawSample, pass: &mut Pass<'_>) {
        // The event of this record was closed since: its kind is unknown, its address still valid.
        let kind = self.kinds.get(&raw.id).copied().unwrap_or(0);
        let Some(access) = decode::access(self.choice.events[kind].event.decode, raw) else {
            return;
        };
        if access.addr >= USER_END || !self.processes.contains_key(&raw.pid) {
            return;
        }
        let period = if raw.period == 0 { self.period(kind) } else { raw.period };
        let sample = {
            let task = (raw.pid, raw.tid, self.cpu(index));
            let at_ns = pass.now.when(raw.time_ns);
            to_sample(&access, task, (at_ns, at_ns), period, self.cycles_per_ns)
        };
        pass.push(sample);
    }

    fn take_aux(&mut self, index: usize, chunk: &AuxChunk, pass: &mut Pass<'_>) {
        let ring = &self.rings[index].1;
        let whole = ring.copy_aux(chunk.offset, chunk.bytes, &mut self.aux_scratch);
        ring.release_aux(chunk.offset.saturating_add(chunk.bytes));
        pass.met.lost += u64::from(chunk.truncated) + u64::from(!whole);
        if !whole || !self.processes.contains_key(&chunk.pid) {
            return;
        }
        let mut accesses = Vec::new();
        pass.met.lost += spe::decode(&self.aux_scratch, &mut accesses) as u64;
        // The packets of a chunk were written since the one before it.
        let until_ns = pass.now.when(chunk.time_ns);
        let from_ns = std::mem::replace(&mut self.rings[index].2, until_ns).min(until_ns);
        let period = self.period(0);
        pass.records += accesses.len() as u64;
        for access in accesses.iter().filter(|access| access.addr < USER_END) {
            let task = (chunk.pid, chunk.tid, self.cpu(index));
            pass.push(to_sample(access, task, (from_ns, until_ns), period, self.cycles_per_ns));
        }
    }
}

fn too_many(pid: u32) -> SamplerError {
    SamplerError::Limit {
        what: format!("perf needs too many events for process {pid} (threads x CPUs)"),
        remedy: "raise `ulimit -n`, attach earlier (tiercel run), or use the bpf sampler as root"
            .into(),
    }
}

/// The ring of one CPU, owned by a dummy event that never fires.
fn open_ring(config: &Config, choice: &Choice, cpu: i32) -> Result<Ring, SamplerError> {
    let data_bytes = config.ring_bytes.clamp(1 << 12, 1 << 26).next_power_of_two();
    let aux_bytes = if choice.aux { AUX_BYTES } else { 0 };
    // An AUX area belongs to the PMU that writes it, so there the owner is one of the PMU's events.
    let owner = if choice.aux {
        let attr = choice.events[0].attr;
        Attr { flags: attr.flags | flag::DISABLED, period: 1 << 30, ..attr }
    } else {
        Attr {
            sample_type: choice.sample_type,
            ..Attr::user_mode(attr::TYPE_SOFTWARE, attr::SW_DUMMY)
        }
    };
    let opened = attr::open(&owner, 0, cpu)
        .and_then(|event| Ring::map(event, data_bytes, aux_bytes, choice.sample_type));
    opened.map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM | libc::ENOMEM) => SamplerError::Limit {
            what: format!("a perf ring of {data_bytes} bytes on CPU {cpu} does not fit"),
            remedy: "lower sampling.ring_bytes or raise kernel.perf_event_mlock_kb".into(),
        },
        _ => choose::refusal(&PAGE_FAULTS, error),
    })
}

#[cfg(test)]
mod tests;
