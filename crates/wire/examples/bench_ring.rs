//! Bench: ring throughput with eight producers, and whether every record is read or counted as
//! lost. In: `--quick`. Out: rows of `./x bench ledger`, one JSON object a line.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tiercel_bench::{BenchResult, median};
use tiercel_wire::client::SessionBuilder;
use tiercel_wire::{Flags, ObjectSnapshot, Record, Session, Version};

// Threads, one for each ring of a busy program, and an address for its heap. Chosen, not measured.
const PRODUCERS: usize = 8;
const BASE: u64 = 1 << 40;
/// Most records of one drain, as in the daemon's loop.
const DRAIN_MAX: usize = 1 << 16;

fn record(thread: usize, count: u64) -> Record {
    Record::Born {
        addr: BASE + (thread as u64) * 4096,
        bytes: 4096,
        site: thread as u32,
        version: Version { carve: count as u32, generation: thread as u16 },
        arena: None,
        flags: Flags::default(),
        time_ns: 0,
    }
}

/// Records read, records counted as lost, seconds, and whether each thread's arrived in order.
struct Run {
    read: u64,
    lost: u64,
    seconds: f64,
    in_order: bool,
}

fn run(each: u64) -> Run {
    let client = SessionBuilder::new().build().expect("a memfd");
    let mut session = Session::open(client.fd().expect("a descriptor")).expect("a session");
    let done = AtomicBool::new(false);
    let began = Instant::now();
    let mut run = Run { read: 0, lost: 0, seconds: 0.0, in_order: true };
    std::thread::scope(|scope| {
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|thread| {
                let mut ring = client.ring(thread);
                scope.spawn(move || {
                    for count in 1..=each {
                        ring.push(&record(thread, count));
                    }
                })
            })
            .collect();
        let done = &done;
        scope.spawn(move || {
            for producer in producers {
                producer.join().expect("a producer ends");
            }
            done.store(true, Ordering::Release);
        });
        let (mut out, mut last) = (Vec::with_capacity(DRAIN_MAX), [0; PRODUCERS]);
        loop {
            let ended = done.load(Ordering::Acquire);
            out.clear();
            let drained = session.drain(&mut out, DRAIN_MAX);
            run.lost += drained.lost;
            run.read += drained.records as u64;
            for record in &out {
                let Record::Born { version, .. } = record else { continue };
                let last = &mut last[usize::from(version.generation)];
                run.in_order &= version.carve > *last;
                *last = version.carve;
            }
            if ended && drained.records == 0 {
                break;
            }
        }
    });
    run.seconds = began.elapsed().as_secs_f64();
    run
}

/// Nanoseconds of one push and of draining one record, with one thread: the minimum of many
/// batches.
fn push_and_drain_ns(batches: u64) -> (f64, f64) {
    // As many records as one ring holds.
    const BATCH: u64 = 4096;
    let client = SessionBuilder::new().build().expect("a memfd");
    let mut session = Session::open(client.fd().expect("a descriptor")).expect("a session");
    let mut ring = client.ring(0);
    let mut out = Vec::new();
    let (mut push, mut drain) = (f64::MAX, f64::MAX);
    for batch in 0..batches {
        let began = Instant::now();
        for count in 0..BATCH {
            assert!(ring.push(&record(0, batch * BATCH + count)), "read in time");
        }
        push = push.min(began.elapsed().as_secs_f64());
        out.clear();
        let began = Instant::now();
        assert_eq!(session.drain(&mut out, usize::MAX).records as u64, BATCH);
        drain = drain.min(began.elapsed().as_secs_f64());
    }
    (push * 1e9 / BATCH as f64, drain * 1e9 / BATCH as f64)
}

/// Milliseconds of a snapshot over `objects` live objects, every second OS page one.
fn snapshot_ms(objects: u64) -> f64 {
    let client = SessionBuilder::new().range(BASE, objects * 2).build().expect("a memfd");
    for index in 0..objects {
        let object = ObjectSnapshot {
            addr: BASE + index * 8192,
            bytes: 4096,
            site: 1,
            version: Version { carve: 1, generation: 1 },
            arena: None,
            flags: Flags::default(),
        };
        client.put_run(&object).expect("writes");
    }
    let session = Session::open(client.fd().expect("a descriptor")).expect("a session");
    let began = Instant::now();
    assert_eq!(session.objects().len() as u64, objects);
    began.elapsed().as_secs_f64() * 1e3
}

fn row(name: &str, ours: f64, limit: Option<f64>, unit: &str) {
    println!("{}", BenchResult::alone(name.into(), ours, limit, unit));
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let (runs, each) = if quick { (3, 500_000) } else { (7, 3_000_000) };
    let all: Vec<Run> = (0..runs).map(|_| run(each)).collect();
    let sent = each * PRODUCERS as u64;
    let undetected: u64 = all.iter().map(|run| sent.abs_diff(run.read + run.lost)).sum();
    let disorders = all.iter().filter(|run| !run.in_order).count();
    let rate =
        median(&all.iter().map(|run| run.read as f64 / run.seconds / 1e6).collect::<Vec<_>>());
    let share = median(&all.iter().map(|run| run.lost as f64 / sent as f64).collect::<Vec<_>>());
    row(
        "ring, 8 producers: records neither read nor counted lost",
        undetected as f64,
        Some(0.0),
        "",
    );
    row("ring, 8 producers: runs with records out of order", disorders as f64, Some(0.0), "");
    row("ring, 8 producers at full rate: records read", rate, None, "M/s");
    row("ring, 8 producers at full rate: share counted lost", share, None, "");
    let (push, drain) = push_and_drain_ns(if quick { 500 } else { 5000 });
    row("ring, one push", push, Some(10.0), "ns");
    row("ring, one record drained", drain, Some(50.0), "ns");
    let snapshot = median(
        &(0..runs).map(|_| snapshot_ms(if quick { 1 << 17 } else { 1 << 20 })).collect::<Vec<_>>(),
    );
    row("object table, snapshot", snapshot, None, "ms");
}
