//! The `emulator` sampler: in a timed guest of the lab, the misses of the modelled machine. In: the
//! sample area of the emulator's device. Out: samples with latency and node, counters. Knows
//! nothing of how the emulator computes them.
//!
//! ```text
//!   emulator, outside --records--> ring of each virtual CPU --> drain --> samples, counters
//!                     <--period, where the kernel keeps who runs--
//! ```

use std::collections::HashSet;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use tiercel_machine::Finding;
use tiercel_machine::number::index_u16;
use tiercel_wire::emulator::{Area, Miss, Observation};
use tiercel_wire::ring::{Cursor, pull};
use tiercel_wire::{AccessKind, Around, Now, Sample};

use crate::clock;
use crate::perf::USER_END;
use crate::perf::pace::{Pace, SAMPLE_COST};
use crate::{
    Config, Cost, Counters, Drained, Granularity, Kind, Method, Sampler, SamplerCapabilities,
    SamplerError,
};

mod btf;
mod detail;
mod device;

pub use detail::in_detail;

/// The kernel's description of its own types.
const BTF: &str = "/sys/kernel/btf/vmlinux";
const SYS: &str = "/sys";

/// See the module.
pub struct EmulatorSampler {
    config: Config,
    area: Area,
    cursors: Vec<Cursor>,
    processes: HashSet<u32>,
    counted: Counters,
    pace: Pace,
    cost: Cost,
    last_drain_ns: u64,
}

impl EmulatorSampler {
    /// Finds the device, claims it and begins to sample.
    ///
    /// # Errors
    /// [`SamplerError::Unavailable`] where there is no device or another process has it,
    /// [`SamplerError::Permission`] without root.
    pub fn open(config: &Config) -> Result<EmulatorSampler, SamplerError> {
        let (area, rings) = area(Path::new(SYS))?;
        let types = std::fs::read(BTF).map_err(|error| {
            unavailable(format!("{BTF}: {error}"), "the guest's kernel needs CONFIG_DEBUG_INFO_BTF")
        })?;
        let offsets = btf::task_offsets(&types).ok_or_else(|| {
            let remedy = "the lab's own kernel is needed, Linux 6.2 or newer";
            unavailable(format!("{BTF} does not say where the running task is"), remedy)
        })?;
        take_over(&area)?;
        area.set_task_offsets(offsets);
        Ok(EmulatorSampler::begin(config, area, rings))
    }

    fn begin(config: &Config, area: Area, rings: usize) -> EmulatorSampler {
        area.set_wants_dirtied(config.dirtied);
        area.set_origin_ns(0);
        area.set_period(Some(config.period));
        EmulatorSampler {
            config: config.clone(),
            cursors: (0..rings).map(|vcpu| Cursor::at_end(&area.ring(vcpu))).collect(),
            area,
            processes: HashSet::new(),
            counted: Counters::default(),
            pace: Pace::new(config.cpu_budget),
            cost: Cost::default(),
            last_drain_ns: clock::monotonic_ns(),
        }
    }
}

/// Whether it works here, without disturbing a process that samples; `None` outside timed guests,
/// where it is not expected.
pub fn support() -> Option<Finding> {
    const NAME: &str = "sampler-emulator";
    if device::candidates(Path::new(SYS)).is_empty() {
        return None;
    }
    Some(match area(Path::new(SYS)) {
        Ok((_, rings)) => Finding::ok(NAME, format!("a timed guest of {rings} virtual CPUs")),
        Err(error) => {
            let remedy = "it is for timed guests: tiercel lab run --timed -- tiercel run ...";
            Finding::absent(NAME, error.to_string(), remedy)
        }
    })
}

impl Sampler for EmulatorSampler {
    fn kind(&self) -> Kind {
        Kind::Emulator
    }

    fn method(&self) -> Method {
        Method::Misses
    }

    fn attach(&mut self, pid: u32) -> Result<(), SamplerError> {
        if !Path::new(&format!("/proc/{pid}")).exists() {
            return Err(SamplerError::Vanished { pid });
        }
        self.processes.insert(pid);
        Ok(())
    }

    fn detach(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    fn watch(&mut self, _pid: u32, _ranges: &[std::ops::Range<u64>]) {}

    fn set_useful_rate(&mut self, samples_per_s: f64) {
        self.pace.set_useful_rate(samples_per_s);
    }

    fn drain(&mut self, now: Now, out: &mut Vec<Sample>) -> Drained {
        let began = clock::thread_cpu();
        let now_ns = clock::monotonic_ns();
        let mut pass = Pass {
            processes: &self.processes,
            counted: &mut self.counted,
            now: at_clock(now, &self.area),
            out,
            met: Drained::default(),
            sampled: 0,
            cpu: 0,
        };
        pass.met.complete_ns = pass.now.ns;
        state_origin(&self.area, pass.now);
        let share = (self.config.drain_max / self.cursors.len()).max(1);
        for (vcpu, cursor) in self.cursors.iter_mut().enumerate() {
            pass.cpu = index_u16(vcpu);
            let pulled =
                pull(&self.area.ring(vcpu), cursor, share, |raw| match Observation::decode(&raw) {
                    Some(one) => pass.take(&one),
                    None => pass.met.lost += 1,
                });
            pass.met.lost = pass.met.lost.saturating_add(pulled.lost);
            if let Some(last) = pass.out.last().filter(|_| pulled.left > 0) {
                pass.met.complete_ns = pass.met.complete_ns.min(last.from_ns);
            }
        }
        let (met, sampled) = (pass.met, pass.sampled);
        let ours = clock::thread_cpu() - began;
        let theirs = SAMPLE_COST * sampled;
        self.cost.daemon_cpu += ours;
        self.cost.program_cpu += theirs;
        self.cost.samples += met.samples;
        self.cost.passes += 1;
        let elapsed = Duration::from_nanos(now_ns.saturating_sub(self.last_drain_ns));
        self.last_drain_ns = now_ns;
        if self.pace.look(elapsed, ours + theirs, met.samples, 0) {
            self.area.set_period(Some(self.config.period.saturating_mul(self.pace.factor())));
        }
        met
    }

    fn counters(&mut self) -> Option<Counters> {
        Some(std::mem::take(&mut self.counted))
    }

    fn capabilities(&self) -> SamplerCapabilities {
        SamplerCapabilities {
            reads: Granularity::Exact,
            writes: Granularity::Exact,
            latency: true,
            node: true,
            around: true,
            dirtied: self.config.dirtied,
            counters: true,
            source: "last-level misses of the timed guest's model".to_owned(),
            text: "Accesses that the model's caches or prefetcher served, and those of the kernel \
                   on the program's behalf, are not seen."
                .to_owned(),
        }
    }

    fn cost(&self) -> Cost {
        self.cost
    }
}

impl Drop for EmulatorSampler {
    fn drop(&mut self) {
        self.area.set_period(None);
        // A process that has claimed it since then keeps it.
        let _ = self.area.take(std::process::id().into(), 0);
    }
}

/// State of one drain, carried from ring to ring.
struct Pass<'a> {
    processes: &'a HashSet<u32>,
    counted: &'a mut Counters,
    /// The daemon's clock, and the emulator's at that moment.
    now: Now,
    out: &'a mut Vec<Sample>,
    met: Drained,
    sampled: u32,
    /// The CPU of the ring: the guest's kernel numbers them as the emulator does.
    cpu: u16,
}

impl Pass<'_> {
    fn take(&mut self, one: &Observation) {
        self.sampled += u32::from(one.access.is_some());
        if !self.processes.contains(&one.pid) {
            return;
        }
        self.counted.llc_misses = self.counted.llc_misses.saturating_add(one.misses.into());
        self.counted.instructions =
            self.counted.instructions.saturating_add(one.instructions.into());
        let Some(miss) = one.access.filter(|miss| miss.addr < USER_END && miss.weight > 0) else {
            return;
        };
        self.met.samples += 1;
        let at_ns = self.now.when(one.time_ns);
        self.out.push(Sample {
            from_ns: at_ns,
            until_ns: at_ns,
            pid: one.pid,
            tid: one.tid,
            addr: miss.addr,
            kind: miss.kind,
            latency_ns: Some(miss.latency_ns).filter(|_| miss.kind != AccessKind::Dirtied),
            node: Some(miss.node),
            weight: miss.weight,
            around: around(&miss),
            cpu: Some(self.cpu),
            by: None,
        });
    }
}

/// The same moment on the daemon's clock and on the emulator's, which goes as fast as the guest's.
fn at_clock(now: Now, area: &Area) -> Now {
    let clock_ns = area.clock_ns();
    Now { ns: now.when(clock::monotonic_ns()), monotonic_ns: clock_ns }
}

/// What the emulator states about a miss; it states nothing about a dirtied line.
fn around(miss: &Miss) -> Option<Around> {
    let at_once = miss.at_once.filter(|_| miss.kind != AccessKind::Dirtied)?;
    Some(Around { at_once: at_once.max(1.0), apart: miss.apart })
}

/// States what the emulator's clock was when the daemon's was 0, for what the emulator gives to the
/// host. The clock in the area lags by up to a quantum: the latest origin is the truest.
fn state_origin(area: &Area, now: Now) {
    let origin_ns = now.monotonic_ns.saturating_sub(now.ns);
    if area.origin_ns().is_none_or(|known_ns| known_ns < origin_ns) {
        area.set_origin_ns(origin_ns);
    }
}

/// The area of the first emulator device, with its number of rings.
fn area(sys: &Path) -> Result<(Area, usize), SamplerError> {
    let mut reasons = Vec::new();
    for folder in device::candidates(sys) {
        match device::open(&folder).and_then(|memory| map(&memory)) {
            Ok(found) => return Ok(found),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                return Err(SamplerError::Permission {
                    what: format!("the emulator's device {}", folder.display()),
                    remedy: "run as root, which every guest of the lab is".to_owned(),
                });
            }
            Err(error) => reasons.push(format!("{}: {error}", folder.display())),
        }
    }
    let why = match reasons.is_empty() {
        true => "no device of the emulator was found".to_owned(),
        false => reasons.join("; "),
    };
    Err(unavailable(why, "start the guest with tiercel lab run --timed"))
}

fn map(memory: &File) -> std::io::Result<(Area, usize)> {
    let area = Area::map(memory)?;
    let rings = area.check().map_err(std::io::Error::other)?;
    Ok((area, rings))
}

/// Makes this process the one that samples, unless another live process does.
fn take_over(area: &Area) -> Result<(), SamplerError> {
    let before = area.owner();
    let lives = before != 0 && Path::new(&format!("/proc/{before}")).exists();
    let taken = match lives {
        true => Err(before),
        false => area.take(before, std::process::id().into()),
    };
    taken.map_err(|owner| {
        let why = format!("process {owner} already samples the emulator");
        unavailable(why, "only one daemon at a time can; stop that one")
    })
}

fn unavailable(why: String, remedy: &str) -> SamplerError {
    SamplerError::Unavailable { kind: Kind::Emulator, why, remedy: remedy.to_owned() }
}

#[cfg(test)]
mod tests;
