//! The `bpf` sampler: the events of `perf`, machine-wide, filtered in the kernel by process (MAT
//! 3.3). In: processes. Out: samples with data addresses.
//! Knows nothing of which addresses matter.
//!
//! It needs one event per CPU, however many processes and threads there are, so a machine-wide
//! daemon uses it. It needs root: CAP_BPF and CAP_PERFMON, and the kernel's own pid namespace.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use libbpf_rs::RingBufferBuilder;
use libbpf_rs::{Link, MapCore, MapFlags, Object, ObjectBuilder, PerfEventOpts, RingBuffer};
use tiercel_wire::{Now, Sample};

use crate::clock;
use crate::perf::attr::{self, Attr, flag, sample_type};
use crate::perf::choose::{self, Choice, Chosen};
use crate::perf::decode;
use crate::perf::events::PAGE_FAULTS;
use crate::perf::pace::{Pace, SAMPLE_COST};
use crate::perf::record::RawSample;
use crate::perf::{sees_of, tasks, to_sample};
use crate::{
    Config, Cost, Counters, Drained, Kind, Method, Sampler, SamplerCapabilities, SamplerError,
    Source,
};

/// The compiled program, made by build.rs from bpf/sample.bpf.c.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sample.bpf.o"));
/// Bytes of `struct event` in bpf/sample.bpf.c.
const EVENT_BYTES: usize = 56;
/// Inode of the kernel's first pid namespace (PROC_PID_INIT_INO).
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// See the module. Fields are dropped in order: links before events, the ring before its object.
pub struct BpfSampler {
    config: Config,
    choice: Choice,
    links: Vec<Link>,
    /// Index into `choice.events`, and the event.
    events: Vec<(usize, OwnedFd)>,
    ring: RingBuffer<'static>,
    arrived: Arc<Mutex<Vec<Event>>>,
    object: Object,
    tracked: HashSet<u32>,
    lost_before: u64,
    pace: Pace,
    cost: Cost,
    cycles_per_ns: Option<f64>,
    last_drain_ns: u64,
}

/// One event as the program wrote it.
struct Event {
    raw: RawSample,
    kind: usize,
    cpu: Option<u16>,
}

impl BpfSampler {
    /// Loads the program and attaches it to events on all CPUs.
    ///
    /// # Errors
    /// [`SamplerError::Permission`] without root, [`SamplerError::Unavailable`] with what is
    /// missing.
    pub fn open(config: &Config) -> Result<BpfSampler, SamplerError> {
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        if namespace.as_os_str() != FIRST_PID_NAMESPACE {
            let why = "the daemon is in a container's pid namespace, the kernel counts in its own";
            return Err(unavailable(why, "run the daemon outside, or with --pid=host"));
        }
        let mut choice = choose::choose(config)?;
        if choice.aux {
            return Err(unavailable("this PMU writes packets past BPF", "use perf"));
        }
        if config.page_events && config.source == Source::Hardware {
            let mut attr = Attr::user_mode(attr::TYPE_SOFTWARE, attr::SW_PAGE_FAULTS);
            attr.sample_type = choice.sample_type;
            choice.events.push(Chosen { event: &PAGE_FAULTS, attr });
        }
        let object = load(config).map_err(load_error)?;
        let arrived = Arc::new(Mutex::new(Vec::new()));
        let ring = open_ring(&object, Arc::clone(&arrived)).map_err(load_error)?;
        let mut sampler = BpfSampler {
            config: config.clone(),
            choice,
            links: Vec::new(),
            events: Vec::new(),
            ring,
            arrived,
            object,
            tracked: HashSet::new(),
            lost_before: 0,
            pace: Pace::new(config.cpu_budget),
            cost: Cost::default(),
            cycles_per_ns: tasks::cycles_per_ns(),
            last_drain_ns: clock::monotonic_ns(),
        };
        sampler.attach_program()?;
        Ok(sampler)
    }

    fn attach_program(&mut self) -> Result<(), SamplerError> {
        for kind in 0..self.choice.events.len() {
            let attr = self.attr(kind);
            for cpu in tasks::online_cpus() {
                let event = attr::open(&attr, -1, cpu)
                    .map_err(|error| choose::refusal(self.choice.events[kind].event, error))?;
                let program = self.object.progs_mut().next().expect("it has one program");
                let opts = PerfEventOpts { cookie: kind as u64, ..PerfEventOpts::default() };
                // A link owns its descriptor and closes it; we keep ours to change the period.
                let theirs = event.try_clone().map_err(|error| SamplerError::Io {
                    what: "duplicating a perf event".to_owned(),
                    source: error,
                })?;
                let link = program.attach_perf_event_with_opts(theirs.as_raw_fd(), opts);
                self.links.push(link.map_err(load_error)?);
                let _ = theirs.into_raw_fd();
                self.events.push((kind, event));
            }
        }
        Ok(())
    }

    /// The event machine-wide: nothing to inherit; address, source and latency in every record.
    fn attr(&self, kind: usize) -> Attr {
        let chosen = &self.choice.events[kind];
        let fields = sample_type::ADDR | sample_type::WEIGHT | sample_type::DATA_SRC;
        let period = self.period(kind);
        let flags = chosen.attr.flags & !(flag::INHERIT | flag::INHERIT_THREAD);
        Attr { sample_type: chosen.attr.sample_type | fields, flags, period, ..chosen.attr }
    }

    fn period(&self, kind: usize) -> u64 {
        choose::period(&self.config, self.choice.events[kind].event, self.pace.factor())
    }

    /// No thread inherits a machine-wide event, so the kernel's ioctl changes the period
    /// everywhere.
    fn repace(&self) {
        for (kind, event) in &self.events {
            // The event of a CPU that went offline keeps its period; it counts nothing.
            let _ = attr::set_period(event, self.period(*kind));
        }
    }

    fn lost_since(&mut self) -> u64 {
        let map = self.object.maps().find(|map| map.name() == "lost").expect("see the program");
        let value = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok().flatten();
        let now = value.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes);
        let since = now.saturating_sub(self.lost_before);
        self.lost_before = now;
        since
    }

    fn with_tracked(&self, use_map: impl FnOnce(&dyn MapCore) -> libbpf_rs::Result<()>) -> bool {
        let map = self.object.maps().find(|map| map.name() == "tracked").expect("see the program");
        use_map(&map).is_ok()
    }
}

impl Sampler for BpfSampler {
    fn kind(&self) -> Kind {
        Kind::Bpf
    }

    fn method(&self) -> Method {
        Method::Misses
    }

    fn attach(&mut self, pid: u32) -> Result<(), SamplerError> {
        if tasks::threads(pid).is_empty() {
            return Err(SamplerError::Vanished { pid });
        }
        if !self.with_tracked(|map| map.update(&pid.to_ne_bytes(), &[1], MapFlags::ANY)) {
            return Err(SamplerError::Limit {
                what: format!("process {pid}: the map of tracked processes is full"),
                remedy: "track fewer processes".to_owned(),
            });
        }
        self.tracked.insert(pid);
        Ok(())
    }

    fn detach(&mut self, pid: u32) {
        self.with_tracked(|map| map.delete(&pid.to_ne_bytes()));
        self.tracked.remove(&pid);
    }

    fn watch(&mut self, _pid: u32, _ranges: &[Range<u64>]) {}

    fn set_useful_rate(&mut self, samples_per_s: f64) {
        self.pace.set_useful_rate(samples_per_s);
    }

    fn drain(&mut self, now: Now, out: &mut Vec<Sample>) -> Drained {
        let began = clock::thread_cpu();
        let now_ns = clock::monotonic_ns();
        self.ring.consume_raw_n(self.config.drain_max);
        let arrived = std::mem::take(&mut *self.arrived.lock().expect("no holder panics"));
        let is_cut = arrived.len() >= self.config.drain_max;
        let last_ns = arrived.last().filter(|_| is_cut).map(|event| event.raw.time_ns);
        let complete_ns = now.when(last_ns.unwrap_or(now_ns));
        let mut met = Drained { lost: self.lost_since(), complete_ns, ..Drained::default() };
        for Event { raw, kind, cpu } in &arrived {
            let Some(chosen) = self.choice.events.get(*kind) else { continue };
            let Some(access) = decode::access(chosen.event.decode, raw) else { continue };
            if !self.tracked.contains(&raw.pid) || access.addr >= crate::perf::USER_END {
                continue;
            }
            let at_ns = now.when(raw.time_ns);
            let period = self.period(*kind);
            out.push(to_sample(
                &access,
                (raw.pid, raw.tid, *cpu),
                (at_ns, at_ns),
                period,
                self.cycles_per_ns,
            ));
            met.samples += 1;
        }
        let ours = clock::thread_cpu() - began;
        let theirs = SAMPLE_COST * u32::try_from(arrived.len()).unwrap_or(u32::MAX);
        self.cost.daemon_cpu += ours;
        self.cost.program_cpu += theirs;
        self.cost.samples += met.samples;
        self.cost.passes += 1;
        let elapsed = Duration::from_nanos(now_ns - self.last_drain_ns);
        self.last_drain_ns = now_ns;
        if self.pace.look(elapsed, ours + theirs, met.samples, 0) {
            self.repace();
        }
        met
    }

    fn counters(&mut self) -> Option<Counters> {
        None // Counts are per process; these events are not.
    }

    fn capabilities(&self) -> SamplerCapabilities {
        SamplerCapabilities {
            counters: false,
            ..sees_of(&self.choice, self.cycles_per_ns.is_some())
        }
    }

    fn cost(&self) -> Cost {
        self.cost
    }
}

fn load(config: &Config) -> libbpf_rs::Result<Object> {
    // libbpf would print to stderr, which only the binary may do.
    libbpf_rs::set_print(None);
    let mut open = ObjectBuilder::default().open_memory(PROGRAM)?;
    let bytes = config.ring_bytes.clamp(1 << 16, 1 << 28).next_power_of_two();
    for mut map in open.maps_mut().filter(|map| map.name() == "events") {
        map.set_max_entries(bytes as u32)?;
    }
    open.load()
}

fn open_ring(
    object: &Object,
    arrived: Arc<Mutex<Vec<Event>>>,
) -> libbpf_rs::Result<RingBuffer<'static>> {
    let map = object.maps().find(|map| map.name() == "events").expect("see the program");
    let mut builder = RingBufferBuilder::new();
    builder.add(&map, move |bytes| {
        if let Some(event) = read_event(bytes) {
            arrived.lock().expect("no holder panics").push(event);
        }
        0
    })?;
    builder.build()
}

/// Reads `struct event` of bpf/sample.bpf.c.
fn read_event(bytes: &[u8]) -> Option<Event> {
    let bytes: &[u8; EVENT_BYTES] = bytes.get(..EVENT_BYTES)?.try_into().ok()?;
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let half = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    Some(Event {
        raw: RawSample {
            time_ns: word(0),
            addr: word(8),
            data_src: word(16),
            weight: word(24),
            pid: half(32),
            tid: half(36),
            ..RawSample::default()
        },
        kind: usize::try_from(word(40)).ok()?,
        cpu: u16::try_from(half(48)).ok(),
    })
}

fn unavailable(why: &str, remedy: &str) -> SamplerError {
    SamplerError::Unavailable { kind: Kind::Bpf, why: why.into(), remedy: remedy.into() }
}

fn load_error(error: libbpf_rs::Error) -> SamplerError {
    match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => SamplerError::Permission {
            what: "loading the BPF program".to_owned(),
            remedy: "the bpf sampler needs root (CAP_BPF and CAP_PERFMON); use perf or probe"
                .into(),
        },
        _ => SamplerError::Io {
            what: "loading the BPF program (needs /sys/kernel/btf/vmlinux)".to_owned(),
            source: io::Error::other(error.to_string()),
        },
    }
}

#[cfg(test)]
mod tests;
