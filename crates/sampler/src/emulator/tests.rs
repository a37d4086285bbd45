//! The sampler against a simulated emulator, which is this file. In: an area in a file, below a
//! folder that looks like sysfs. Out: assertions. Knows nothing of QEMU.

use super::*;
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use tiercel_wire::emulator::{AREA_BYTES, Miss};
use tiercel_wire::ring::{WriteCursor, push};
use tiercel_wire::{AccessKind, Now};

fn ourselves() -> u32 {
    std::process::id()
}

/// An area, as the emulator's side sees it and as the sampler does.
fn both(rings: usize) -> (fs::File, Area, Area) {
    let path = unique("area");
    let file = fs::File::options().read(true).write(true).create_new(true).open(&path);
    let file = file.expect("a file");
    fs::remove_file(&path).expect("it stays open");
    file.set_len(AREA_BYTES as u64).expect("sized");
    let emulator = Area::map(&file).expect("mapped");
    emulator.publish(rings);
    let sampler = Area::map(&file).expect("mapped");
    (file, emulator, sampler)
}

fn unique(what: &str) -> PathBuf {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("tiercel-{what}-{}-{number}", ourselves()))
}

fn sampler(area: Area, rings: usize) -> EmulatorSampler {
    let mut sampler = EmulatorSampler::begin(&Config::default(), area, rings);
    sampler.attach(ourselves()).expect("we live");
    sampler
}

fn observation(pid: u32, addr: u64) -> Observation {
    let miss = Miss {
        kind: AccessKind::Write,
        addr,
        physical: 1 << 33,
        instruction: 0x40_0000,
        latency_ns: 250,
        node: 2,
        weight: 4000,
        at_once: Some(2.5),
        apart: true,
    };
    Observation {
        time_ns: 5_000_000,
        pid,
        tid: 7,
        misses: 4096,
        instructions: 100_000,
        access: Some(miss),
    }
}

#[test]
fn samples_of_attached_processes_are_complete_and_others_are_dropped() {
    let (_file, emulator, area) = both(2);
    let mut sampler = sampler(area, 2);
    assert_eq!(emulator.period(), Some(4096));
    let (mut writer, ring) = (WriteCursor::default(), emulator.ring(1));
    emulator.set_clock_ns(25_000_000);
    push(&ring, &mut writer, &observation(ourselves(), 0x7000).encode());
    push(&ring, &mut writer, &observation(ourselves() + 1, 0x7000).encode());
    let count = Observation { misses: 4, instructions: 10, access: None, ..observation(1, 0) };
    push(&ring, &mut writer, &Observation { pid: ourselves(), ..count }.encode());
    let mut out = Vec::new();
    let met = sampler.drain(Now::at_ms(1000), &mut out);
    assert_eq!((met.samples, met.lost), (1, 0));
    // 20 ms before the drain, on the emulator's clock; the drain itself takes a moment.
    assert!(out[0].until_ns >= 980_000_000, "{out:?}");
    let expect = Sample {
        from_ns: out[0].until_ns,
        until_ns: out[0].until_ns,
        pid: ourselves(),
        tid: 7,
        addr: 0x7000,
        kind: AccessKind::Write,
        latency_ns: Some(250),
        node: Some(2),
        weight: 4000,
        around: Some(Around { at_once: 2.5, apart: true }),
        cpu: Some(1),
        by: None,
    };
    assert_eq!(out, [expect]);
    let counted = Counters { llc_misses: 4100, instructions: 100_010 };
    assert_eq!(sampler.counters(), Some(counted));
    assert_eq!(sampler.counters(), Some(Counters::default()), "since the last call");
    sampler.detach(ourselves());
    push(&ring, &mut writer, &observation(ourselves(), 0x7000).encode());
    assert_eq!(sampler.drain(Now::at_ms(1000), &mut out).samples, 0);
}

#[test]
fn losses_and_invalid_samples_are_counted_and_kernel_addresses_dropped() {
    let (_file, emulator, area) = both(1);
    let mut sampler = sampler(area, 1);
    let (mut writer, ring) = (WriteCursor::default(), emulator.ring(0));
    push(&ring, &mut writer, &[u64::MAX; 8]);
    push(&ring, &mut writer, &observation(ourselves(), u64::MAX).encode());
    while push(&ring, &mut writer, &observation(ourselves(), 64).encode()) {}
    let met = sampler.drain(Now::at_ms(0), &mut Vec::new());
    let room = tiercel_wire::emulator::RING_RECORDS as u64;
    assert_eq!((met.samples, met.lost), (room - 2, 2));
}

#[test]
fn too_many_samples_lengthen_the_period() {
    let (_file, emulator, area) = both(1);
    let mut sampler = sampler(area, 1);
    let (mut writer, ring) = (WriteCursor::default(), emulator.ring(0));
    // As if the time had passed: 4096 samples in 700 ms take 0.6% of a CPU, and 0.5% is allowed.
    sampler.last_drain_ns -= 700_000_000;
    while push(&ring, &mut writer, &observation(ourselves(), 64).encode()) {}
    sampler.drain(Now::at_ms(0), &mut Vec::new());
    assert!(emulator.period().is_some_and(|period| period >= 2 * 4096), "{:?}", emulator.period());
}

#[test]
fn one_process_samples_at_a_time_and_stops_the_emulator_when_it_ends() {
    let (_file, emulator, area) = both(1);
    take_over(&area).expect("no process has it");
    let said = take_over(&emulator).expect_err("we live").to_string();
    assert!(said.contains(&ourselves().to_string()), "{said}");
    drop(EmulatorSampler::begin(&Config::default(), area, 1));
    assert_eq!((emulator.owner(), emulator.period()), (0, None));
    // A process that died without releasing it: no process has this number.
    emulator.take(0, u64::from(u32::MAX)).expect("free");
    take_over(&emulator).expect("the dead do not sample");
}

/// A folder like sysfs with one device; its memory has `bytes`.
fn sysfs(vendor: &str, bytes: u64) -> PathBuf {
    let root = unique("sys");
    let device = root.join("bus/pci/devices/0000:00:04.0");
    fs::create_dir_all(&device).expect("made");
    fs::write(device.join("vendor"), format!("{vendor}\n")).expect("written");
    fs::write(device.join("device"), "0x1110\n").expect("written");
    fs::write(device.join("enable"), "0\n").expect("written");
    let memory = fs::File::create(device.join("resource2")).expect("made");
    memory.set_len(bytes).expect("sized");
    root
}

#[test]
fn the_device_is_found_enabled_and_accepted_only_with_its_magic() {
    let why = |root: &Path| match area(root) {
        Ok(_) => panic!("it is no emulator"),
        Err(error) => error.to_string(),
    };
    let none = sysfs("0x8086", AREA_BYTES as u64);
    assert!(why(&none).contains("no device of the emulator"), "{}", why(&none));
    let small = sysfs("0x1af4", 4096);
    assert!(why(&small).contains("4096 bytes"), "{}", why(&small));
    let root = sysfs("0x1af4", AREA_BYTES as u64);
    assert!(why(&root).contains("magic"), "{}", why(&root));
    let folder = root.join("bus/pci/devices/0000:00:04.0");
    let memory = fs::File::options().read(true).write(true).open(folder.join("resource2"));
    Area::map(memory.expect("there")).expect("mapped").publish(3);
    assert!(matches!(area(&root), Ok((_, 3))));
    assert_eq!(fs::read_to_string(folder.join("enable")).expect("there").trim(), "1");
    for root in [none, small, root] {
        fs::remove_dir_all(root).expect("removed");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_content_is_safe(
        words in prop::collection::vec((0usize..AREA_BYTES / 8, any::<u64>()), 0..200),
        fronts in prop::collection::vec((0usize..16, any::<u64>()), 0..20),
    ) {
        let (file, _emulator, area) = both(1);
        let mut sampler = sampler(area, 1);
        let put = |at: usize, value: u64| file.write_all_at(&value.to_le_bytes(), at as u64);
        for (at, value) in words {
            put(at * 8, value).expect("written");
        }
        // Counters and control words are a small part of the area: hit them often.
        for (at, value) in fronts {
            put(at * 8, value).expect("written");
            put(4096 + at * 8, value).expect("written");
        }
        let mut out = Vec::new();
        for _ in 0..3 {
            let met = sampler.drain(Now::at_ms(7), &mut out);
            prop_assert!(met.samples <= tiercel_wire::emulator::RING_RECORDS as u64);
        }
        prop_assert!(sampler.counters().is_some());
    }
}
