//! Any bytes as a file of a profile, in place of a good one or as changes of it: refused with a
//! reason or read, never a panic, within bounded memory; and what is read holds, whatever is done
//! with it.

#![no_main]

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use tiercel_advisor::PlannerInput;
use tiercel_ledger::{Event, LedgerEvent};
use tiercel_machine::Machine;
use tiercel_profile::{
    Frame, LIMIT_BYTES_MIN, Name, Names, Profile, Recorder, RecorderConfig, Relation, Run, Site,
    check, forge, merge, read_forged,
};
use tiercel_wire::{AccessKind, Sample};

struct Numbers;

impl Names for Numbers {
    fn site(&mut self, number: u32) -> Site {
        let name = |line| Name { function: "make".into(), file: "make.c".into(), line };
        let frame = |address| Frame {
            module: "/bin/app".into(),
            build_id: "00ff".into(),
            address,
            names: vec![name(number), name(number + 1)],
        };
        Site { hash: number.into(), frames: (0..u64::from(number)).map(frame).collect() }
    }

    fn phase(&mut self, number: u64) -> Arc<str> {
        format!("phase {number}").into()
    }
}

/// Nanoseconds of a millisecond.
const MS_NS: u64 = 1_000_000;

/// A profile with something in every table.
fn good() -> Profile {
    let mut recorder = Recorder::new(RecorderConfig::default());
    for pid in [7, 8] {
        recorder.process_born(pid, (pid == 8).then_some(7), "app", 1);
        for number in 0..6_u32 {
            let (addr, bytes) = ((u64::from(number) + 1) << 24, 1 << (13 + number));
            let (site, is_block) = (number % 3, number == 5);
            let is_fresh = number % 2 == 1;
            let event =
                Event::Born { addr, bytes, site, is_block, is_mapped: number == 4, is_fresh };
            let at_ns = u64::from(number) * MS_NS;
            recorder.consume(&LedgerEvent { pid, at_ns, event });
            let kind = if number % 2 == 0 { AccessKind::Read } else { AccessKind::Write };
            let latency_ns = (number > 2).then_some(90);
            for time_ms in [20, 40, 300] {
                let addr = addr + 4096;
                let sample = Sample {
                    from_ns: time_ms * MS_NS,
                    until_ns: time_ms * MS_NS,
                    pid,
                    tid: pid + number,
                    addr,
                    kind,
                    latency_ns,
                    node: None,
                    weight: 100,
                    around: None,
                    cpu: None,
                    by: None,
                };
                recorder.sampled(&sample);
                let event = Event::Accessed { sample, life: None };
                recorder.consume(&LedgerEvent { pid, at_ns: sample.until_ns, event });
            }
        }
        if pid == 8 {
            let event = Event::Phase { number: 1 };
            recorder.consume(&LedgerEvent { pid, at_ns: 30 * MS_NS, event });
        }
        let event = Event::Gone { addr: 1 << 24, bytes: 4096, life: 0 };
        recorder.consume(&LedgerEvent { pid, at_ns: 400 * MS_NS, event });
    }
    recorder.process_gone(8, 500, &mut Numbers);
    recorder.process_gone(7, 500, &mut Numbers);
    let machine = Machine::builtin("spr-cxl").expect("it is built in").expect("it is right");
    recorder.finish(machine, Run { duration_ns: 500_000_000, ..Run::default() })
}

fn files() -> &'static BTreeMap<String, Vec<u8>> {
    static FILES: OnceLock<BTreeMap<String, Vec<u8>>> = OnceLock::new();
    FILES.get_or_init(|| {
        // A defect of the Parquet parser is an error there; the engine's hook would end us first.
        std::panic::set_hook(Box::new(|_| {}));
        let good = good();
        let files = forge(&good);
        assert_eq!(read_forged(files.clone()).expect("a good profile"), good);
        files
    })
}

/// The first byte says which file, the second whether the rest is all of it, or changes: place
/// and byte, three bytes each.
fn changed(data: &[u8]) -> Option<BTreeMap<String, Vec<u8>>> {
    let ([which, how], rest) = data.split_first_chunk()?;
    let mut files = files().clone();
    let count = files.len();
    let (_, bytes) = files.iter_mut().nth(usize::from(*which) % count)?;
    if how % 4 == 0 {
        *bytes = rest.to_vec();
    } else {
        for change in rest.chunks_exact(3) {
            let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len();
            bytes[at] = change[2];
        }
    }
    Some(files)
}

fuzz_target!(|data: &[u8]| {
    let Some(files) = changed(data) else { return };
    let Ok(profile) = read_forged(files) else { return };
    assert_eq!(check(&profile), Ok(()));
    assert_eq!(read_forged(forge(&profile)).expect("its own files are refused"), profile);
    let _ = PlannerInput::of(&profile).workload.check();
    let _ = profile.overview();
    let mut again = profile.clone();
    again.detect_phases();
    assert_eq!(check(&again), Ok(()));
    again.keep(LIMIT_BYTES_MIN);
    assert_eq!(check(&again), Ok(()));
    if let Ok(both) = merge(vec![profile.clone(), profile], Relation::Parts) {
        assert_eq!(check(&both), Ok(()));
    }
});
