//! What the ledger costs with many extents, against a plain one.
//! In: `--quick` for a tenth of the extents. Out: bench rows, one JSON line each.
//! Knows nothing of real programs: objects and accesses are made up, from a fixed seed.
//!
//! The plain ledger is the obvious one, and MAT's as far as the paper describes it: a map from
//! address to record per process, and an aggregation over all of them at every tick. Both see the
//! same intervals in turn, so that what the machine does beside hits both.

use fastrand::Rng;
use std::collections::{BTreeMap, HashMap};

use tiercel_bench::{BenchResult, resident_bytes, thread_cpu_ns};
use tiercel_ledger::{Config, Ledger};
use tiercel_wire::{AccessKind, Flags, Record, Sample, Version};

/// As many processes as a busy node runs. Chosen, not measured.
const PROCESSES: u64 = 100;
const OS_PAGE: u64 = 4096;
/// Distance of two objects' first bytes; half of it is the object.
const STRIDE: u64 = 16 * OS_PAGE;
/// MAT table 3: 190,000 records live; here as many are written in one interval.
const RECORDS: u64 = 190_000;
/// Half of the births die within their interval, as in most programs (MAT 3.2.1).
const EPHEMERAL: u64 = 2;
/// "Tens of thousands of samples per second" (MAT 4.5.1), 2 s.
const SAMPLES: u64 = 100_000;
const ROUNDS: usize = 9;

fn main() {
    let quick = std::env::args().any(|arg| arg == "--quick");
    let extents: u64 = if quick { 1_000_000 } else { 10_000_000 };
    let per_process = extents / PROCESSES;
    let before = resident_bytes();
    let mut ours = Ours(Ledger::new(Config::default(), 0).expect("a good config"));
    (0..PROCESSES).for_each(|pid| ours.0.process_born(pid as u32).expect("a new process"));
    fill(&mut ours, per_process);
    ours.tick(2000);
    let per_extent = (resident_bytes() - before) as f64 / extents as f64;
    let before = resident_bytes();
    let mut plain = Plain::default();
    fill(&mut plain, per_process);
    plain.tick(2000);
    let plain_per_extent = (resident_bytes() - before) as f64 / extents as f64;

    let (mut mine, mut peers) = (Vec::new(), Vec::new());
    let mut random = Rng::with_seed(1);
    for round in 0..ROUNDS {
        let interval = IntervalInput::new(&mut random, per_process, round as u64);
        mine.push(interval.play(&mut ours, round as u64));
        peers.push(interval.play(&mut plain, round as u64));
    }
    let size = format!("{} M extents", extents / 1_000_000);
    let pick = |figure: fn(&Costs) -> f64| {
        (mine.iter().map(figure).collect::<Vec<_>>(), peers.iter().map(figure).collect::<Vec<_>>())
    };
    let (tick, plain_tick) = pick(|costs| costs.tick_ms);
    print_result(&format!("tick, {size}, 100 processes"), &tick, None, Some(100.0), "ms");
    print_result(&format!("tick against plain, {size}"), &tick, Some(&plain_tick), Some(1.0), "ms");
    let (apply, plain_apply) = pick(|costs| costs.record_ns);
    print_result("record applied", &apply, Some(&plain_apply), None, "ns");
    let (sample, plain_sample) = pick(|costs| costs.sample_ns);
    print_result("sample added", &sample, Some(&plain_sample), None, "ns");
    print_result("memory per extent", &[per_extent], Some(&[plain_per_extent]), None, "bytes");
    let held = ours.0.bytes_held();
    eprintln!("slab {} MB, indexes {} MB", held.0 / 1_000_000, held.1 / 1_000_000);
}

trait Accounts {
    fn apply(&mut self, pid: u32, record: &Record);
    fn sample(&mut self, sample: &Sample);
    fn tick(&mut self, now_ms: u64);
}

struct Ours(Ledger);

impl Accounts for Ours {
    fn apply(&mut self, pid: u32, record: &Record) {
        self.0.apply(pid, record);
    }

    fn sample(&mut self, sample: &Sample) {
        self.0.sample(sample);
    }

    fn tick(&mut self, now_ms: u64) {
        self.0.tick(now_ms);
    }
}

/// The obvious ledger. Knows neither late records nor extents.
#[derive(Default)]
struct Plain {
    processes: HashMap<u32, BTreeMap<u64, PlainRecord>>,
    buffered: HashMap<(u32, u64), PlainRecord>,
}

#[derive(Clone, Copy, Default)]
struct PlainRecord {
    bytes: u64,
    last_access_ms: u64,
    reads: f64,
    writes: f64,
    stall_ns: f64,
    new_reads: f64,
    new_writes: f64,
    new_stall_ns: f64,
}

impl Accounts for Plain {
    fn apply(&mut self, pid: u32, record: &Record) {
        match *record {
            Record::Born { addr, bytes, .. } => {
                let record = PlainRecord { bytes, ..Default::default() };
                self.buffered.insert((pid, addr), record);
            }
            Record::Died { addr, .. } => {
                let is_brief = self.buffered.remove(&(pid, addr)).is_some();
                let process = self.processes.entry(pid).or_default();
                is_brief.then_some(()).or_else(|| process.remove(&addr).map(drop));
            }
            _ => {}
        }
    }

    fn sample(&mut self, sample: &Sample) {
        let Some(process) = self.processes.get_mut(&sample.pid) else { return };
        let Some((addr, record)) = process.range_mut(..=sample.addr).next_back() else { return };
        if sample.addr >= addr + record.bytes {
            return;
        }
        match sample.kind {
            AccessKind::Write => record.new_writes += f64::from(sample.weight),
            _ => record.new_reads += f64::from(sample.weight),
        }
        let latency_ns = f64::from(sample.latency_ns.unwrap_or(100));
        record.new_stall_ns += f64::from(sample.weight) * latency_ns;
        record.last_access_ms = sample.until_ns / 1_000_000;
    }

    fn tick(&mut self, _now_ms: u64) {
        for ((pid, addr), record) in self.buffered.drain() {
            self.processes.entry(pid).or_default().insert(addr, record);
        }
        for record in self.processes.values_mut().flat_map(BTreeMap::values_mut) {
            for (average, new) in [
                (&mut record.reads, &mut record.new_reads),
                (&mut record.writes, &mut record.new_writes),
                (&mut record.stall_ns, &mut record.new_stall_ns),
            ] {
                *average = 0.1 * *new + 0.9 * *average;
                *new = 0.0;
            }
        }
    }
}

fn address(nth: u64) -> u64 {
    0x7000_0000_0000 + nth * STRIDE
}

fn birth(nth: u64, generation: u16) -> Record {
    Record::Born {
        addr: address(nth),
        bytes: STRIDE / 2,
        site: nth as u32 % 1000,
        version: Version { carve: 1, generation },
        arena: None,
        flags: Flags(0),
        time_ns: 0,
    }
}

fn death(nth: u64, generation: u16) -> Record {
    let version = Version { carve: 1, generation };
    Record::Died { addr: address(nth), bytes: STRIDE / 2, version, flags: Flags(0), time_ns: 0 }
}

fn fill(accounts: &mut impl Accounts, per_process: u64) {
    for pid in 0..PROCESSES as u32 {
        (0..per_process).for_each(|nth| accounts.apply(pid, &birth(nth, 0)));
    }
}

/// One interval's records, in bunches per process as a drain gives them, and samples.
struct IntervalInput {
    records: Vec<(u32, Record)>,
    samples: Vec<Sample>,
}

struct Costs {
    record_ns: f64,
    sample_ns: f64,
    tick_ms: f64,
}

impl IntervalInput {
    fn new(random: &mut Rng, per_process: u64, round: u64) -> IntervalInput {
        let mut records = Vec::new();
        let per_drain = RECORDS / PROCESSES / 4;
        for pid in 0..PROCESSES as u32 {
            for _ in 0..per_drain {
                // An object dies and another is born in its place, and a third comes and goes.
                let nth = random.u64(..per_process / 64) * 64 + round;
                records.push((pid, death(nth, 0)));
                records.push((pid, birth(nth, 0)));
                let brief = per_process + random.u64(..EPHEMERAL * per_drain);
                records.push((pid, birth(brief, round as u16)));
                records.push((pid, death(brief, round as u16)));
            }
        }
        let sample = |random: &mut Rng| Sample {
            from_ns: 0,
            until_ns: 0,
            pid: random.u64(..PROCESSES) as u32,
            tid: 0,
            // A tenth of the objects take most of the accesses.
            addr: address(random.u64(..per_process) / (1 + 9 * random.u64(..2)))
                + random.u64(..STRIDE / 2),
            kind: if random.u64(..4) == 0 { AccessKind::Write } else { AccessKind::Read },
            latency_ns: Some(300),
            node: None,
            weight: 4096,
            around: None,
            cpu: None,
            by: None,
        };
        let mut samples: Vec<_> = (0..SAMPLES).map(|_| sample(random)).collect();
        // A sampler drains its buffers process by process.
        samples.sort_by_key(|sample| sample.pid);
        IntervalInput { records, samples }
    }

    fn play(&self, accounts: &mut impl Accounts, round: u64) -> Costs {
        let began = thread_cpu_ns();
        self.records.iter().for_each(|(pid, record)| accounts.apply(*pid, record));
        let record_ns = (thread_cpu_ns() - began) / self.records.len() as f64;
        let began = thread_cpu_ns();
        self.samples.iter().for_each(|sample| accounts.sample(sample));
        let sample_ns = (thread_cpu_ns() - began) / self.samples.len() as f64;
        let began = thread_cpu_ns();
        accounts.tick(4000 + 2000 * round);
        let tick_ms = (thread_cpu_ns() - began) / 1e6;
        Costs { record_ns, sample_ns, tick_ms }
    }
}

/// Medians; with a peer, of paired ratios.
fn print_result(name: &str, ours: &[f64], peer: Option<&[f64]>, limit: Option<f64>, unit: &str) {
    let row = match peer {
        Some(peer) => BenchResult::of_pairs(name.into(), "plain maps", ours, peer, limit, unit),
        None => BenchResult::of_values(name.into(), ours, limit, unit),
    };
    println!("{row}");
}
