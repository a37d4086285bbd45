//! The `bpf` sampler in the kernel: loads the program and observes a child's page faults. Without
//! root the kernel refuses to load it, and the tests check the refusal instead.

use super::*;
use crate::testing::{Child, OS_PAGE};

fn is_root() -> bool {
    // SAFETY: a query without arguments.
    unsafe { libc::geteuid() == 0 }
}

/// `None` without root, after checking that the error asks for it.
fn sampler(config: Config) -> Option<BpfSampler> {
    match BpfSampler::open(&Config { source: Source::PageFaults, ..config }) {
        Ok(sampler) => Some(sampler),
        Err(error) if is_root() => panic!("{error}"),
        Err(error) => {
            assert!(matches!(error, SamplerError::Permission { .. }), "{error}");
            None
        }
    }
}

fn drained(sampler: &mut BpfSampler) -> (Vec<Sample>, Drained) {
    let mut out = Vec::new();
    let met = sampler.drain(Now::at_ms(1_000_000), &mut out);
    (out, met)
}

#[test]
fn all_tracked_processes_are_sampled_and_no_others() {
    let (mut one, mut two, mut other) = (Child::new(1000), Child::new(1000), Child::new(1000));
    let Some(mut sampler) = sampler(Config { cpu_budget: 1.0, ..Config::default() }) else {
        return;
    };
    sampler.attach(one.pid).expect("alive");
    sampler.attach(two.pid).expect("alive");
    one.write(100..300);
    two.write(0..50);
    other.write(0..1000);
    let (samples, met) = drained(&mut sampler);
    let seen = |child: &Child| {
        let mine = samples.iter().filter(|s| s.pid == child.pid && child.buffer.contains(&s.addr));
        mine.map(|s| (s.addr - child.buffer.start) / OS_PAGE).collect::<Vec<_>>()
    };
    assert_eq!(seen(&one), (100..300).collect::<Vec<_>>());
    assert_eq!(seen(&two), (0..50).collect::<Vec<_>>());
    assert!(samples.iter().all(|sample| sample.pid != other.pid));
    let times = 900_000_000_000..=1_000_000_000_000;
    assert!(samples.iter().all(|sample| times.contains(&sample.until_ns)));
    assert_eq!(met.lost, 0);
    sampler.detach(one.pid);
    one.write(400..500);
    assert!(drained(&mut sampler).0.iter().all(|sample| sample.pid != one.pid));
}

#[test]
fn a_full_ring_counts_its_losses() {
    let mut child = Child::new(4000);
    let Some(mut sampler) = sampler(Config { ring_bytes: 1, cpu_budget: 1.0, ..Config::default() })
    else {
        return;
    };
    sampler.attach(child.pid).expect("alive");
    child.write(0..4000);
    let met = drained(&mut sampler).1;
    assert!(met.lost > 2000 && met.samples > 1000, "{met:?}");
    assert!(met.lost + met.samples >= 4000, "{met:?}");
}

#[test]
fn the_period_follows_the_budget() {
    let mut child = Child::new(4000);
    let Some(mut sampler) = sampler(Config { cpu_budget: 1e-9, ..Config::default() }) else {
        return;
    };
    sampler.attach(child.pid).expect("alive");
    child.write(0..100);
    sampler.last_drain_ns -= 1_000_000_000; // As if a second had passed.
    assert!(drained(&mut sampler).1.samples >= 100);
    assert_eq!(sampler.pace.factor(), 64);
    child.write(100..1380);
    let (samples, _) = drained(&mut sampler);
    assert!((10..=40).contains(&samples.len()), "1280 / 64 = 20, saw {}", samples.len());
    assert!(samples.iter().all(|sample| sample.weight == 64));
}

#[test]
fn attaching_a_vanished_process_fails_as_vanished() {
    let Some(mut sampler) = sampler(Config::default()) else { return };
    let error = sampler.attach(u32::MAX >> 1).expect_err("no such process");
    assert!(matches!(error, SamplerError::Vanished { .. }), "{error}");
    sampler.detach(u32::MAX >> 1);
}

#[test]
fn a_short_event_is_refused() {
    assert!(read_event(&[0; EVENT_BYTES - 1]).is_none());
    let mut bytes = [0u8; EVENT_BYTES];
    bytes[8] = 0x40;
    bytes[32] = 7;
    bytes[40] = 1;
    bytes[48] = 9;
    let event = read_event(&bytes).expect("whole");
    assert_eq!((event.raw.addr, event.raw.pid, event.kind), (0x40, 7, 1));
    assert_eq!(event.cpu, Some(9));
}
