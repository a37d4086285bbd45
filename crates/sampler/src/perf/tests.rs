//! The `perf` sampler against real processes, on the kernel's page-fault event: it has addresses,
//! needs no PMU, and differs from the others only in decoding.

use std::collections::HashMap;

use super::*;
use crate::Source;
use crate::testing::{Child, OS_PAGE};

fn sampler(config: Config) -> PerfSampler {
    PerfSampler::open(&Config { source: Source::PageFaults, ..config }).expect("page faults")
}

fn drained(sampler: &mut PerfSampler) -> (Vec<Sample>, Drained) {
    let mut out = Vec::new();
    let met = sampler.drain(Now::at_ms(1_000_000), &mut out);
    (out, met)
}

#[test]
fn first_touches_are_sampled_with_their_addresses() {
    let mut child = Child::new(1000);
    let mut sampler = sampler(Config { cpu_budget: 1.0, ..Config::default() });
    sampler.attach(child.pid).expect("our own child");
    sampler.attach(child.pid).expect("twice is once");
    child.write(0..10);
    child.write(300..700);
    let (samples, met) = drained(&mut sampler);
    let mut by_hundred: HashMap<u64, u64> = HashMap::new();
    for sample in samples.iter().filter(|sample| child.buffer.contains(&sample.addr)) {
        assert_eq!((sample.pid, sample.weight), (child.pid, 1));
        assert_eq!(sample.from_ns, sample.until_ns);
        assert!((900_000_000_000..=1_000_000_000_000).contains(&sample.until_ns), "{sample:?}");
        *by_hundred.entry((sample.addr - child.buffer.start) / (100 * OS_PAGE)).or_default() += 1;
    }
    let expect = HashMap::from([(0, 10), (3, 100), (4, 100), (5, 100), (6, 100)]);
    assert_eq!(by_hundred, expect);
    assert_eq!((met.lost, met.samples), (0, samples.len() as u64));
}

#[test]
fn nothing_is_sampled_before_attach_or_after_detach() {
    let mut child = Child::new(100);
    let mut sampler = sampler(Config::default());
    child.write(0..10);
    sampler.attach(child.pid).expect("our own child");
    child.write(10..20);
    sampler.detach(child.pid);
    sampler.detach(child.pid);
    child.write(20..30);
    assert_eq!(drained(&mut sampler).0, [], "records still in the ring are dropped too");
    assert!(sampler.kinds.is_empty());
}

#[test]
fn a_small_ring_overruns_and_its_losses_are_counted() {
    let mut child = Child::new(4000);
    child.stay(); // Each CPU has a ring, which reports its losses with its own next record.
    let config = Config { ring_bytes: 4096, cpu_budget: 1.0, ..Config::default() };
    let mut sampler = sampler(config);
    sampler.attach(child.pid).expect("our own child");
    child.write(0..3900);
    let (samples, mut total) = drained(&mut sampler);
    let cpu = samples.first().expect("some fit").cpu;
    assert!(cpu.is_some() && samples.iter().all(|sample| sample.cpu == cpu), "it stays on one CPU");
    child.write(3900..3901); // The kernel reports a loss with the next record that fits.
    let more = drained(&mut sampler).1;
    total.lost += more.lost;
    total.samples += more.samples;
    assert!(total.lost > 3000 && total.samples > 0, "{total:?}");
    assert!(total.lost + total.samples >= 3901, "{total:?}");
}

#[test]
fn attaching_a_vanished_process_fails_as_vanished() {
    let mut child = Child::new(1);
    let mut sampler = sampler(Config::default());
    sampler.attach(child.pid).expect("our own child");
    child.exit();
    let gone = child.pid;
    assert_eq!(drained(&mut sampler).1.lost, 0);
    sampler.detach(gone);
    let error = sampler.attach(gone).expect_err("it is gone");
    assert!(matches!(error, SamplerError::Vanished { pid } if pid == gone), "{error}");
    assert!(sampler.kinds.is_empty() && sampler.processes.is_empty(), "nothing half attached");
}

#[test]
fn the_period_follows_the_budget_for_processes_already_attached() {
    let mut child = Child::new(4000);
    let mut sampler = sampler(Config { cpu_budget: 1e-9, ..Config::default() });
    sampler.attach(child.pid).expect("our own child");
    child.write(0..1000);
    sampler.last_drain_ns -= 1_000_000_000; // As if a second had passed.
    assert!(drained(&mut sampler).1.samples >= 1000);
    assert_eq!(sampler.pace.factor(), 64);
    child.write(1000..2280);
    let (samples, _) = drained(&mut sampler);
    let ours: Vec<_> = samples.iter().filter(|s| child.buffer.contains(&s.addr)).collect();
    assert!((18..=21).contains(&ours.len()), "1280 / 64 = 20, saw {}", ours.len());
    assert!(ours.iter().all(|sample| sample.weight == 64));
}

#[test]
fn without_a_pmu_hardware_events_are_refused_with_a_remedy() {
    match PerfSampler::open(&Config::default()) {
        Ok(sampler) => assert!(!sampler.capabilities().source.is_empty()),
        Err(error) => {
            let said = error.to_string();
            assert!(said.contains("PMU") || said.contains("paranoid"), "{said}");
        }
    }
}

#[test]
fn capabilities_are_reported_to_the_user() {
    let sees = sampler(Config::default()).capabilities();
    assert_eq!((sees.reads, sees.writes), (Granularity::FirstTouch, Granularity::FirstTouch));
    assert_eq!((sees.source.as_str(), sees.latency, sees.node), ("page-faults", false, false));
}
