//! Generates small valid profiles with one of everything. In: random numbers. Out: profiles. Knows
//! nothing of the tests.
#![allow(dead_code)] // Each test file uses a part of it.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::Index;
use tiercel_machine::{CopySpeed, Machine, NodeId, Speeds, StreamSpeed};
use tiercel_profile::{
    Access, AccessSite, Coarsening, Frame, Mixed, MixedSite, Name, Object, Observed, Phase,
    Process, Profile, Run, SLOT_NS_MIN, ServedBy, Site,
};
use tiercel_wire::Pattern;

pub fn text() -> impl Strategy<Value = Arc<str>> {
    prop_oneof!["[a-z]{0,8}", "\\PC{0,12}"].prop_map(Arc::from)
}

fn name() -> impl Strategy<Value = Name> {
    ("[a-z]{1,6}", text(), 0u32..99).prop_map(|(function, file, line)| Name {
        function: function.into(),
        file,
        line,
    })
}

fn frame() -> impl Strategy<Value = Frame> {
    (text(), text(), any::<u64>(), proptest::collection::vec(name(), 0..3))
        .prop_map(|(module, build_id, address, names)| Frame { module, build_id, address, names })
}

/// Sites with hashes 0, 1, 2, ... of a program: the same in every profile of it.
fn sites() -> impl Strategy<Value = Vec<Site>> {
    proptest::collection::vec(proptest::collection::vec(frame(), 0..4), 1..5).prop_map(|stacks| {
        let site = |(hash, frames)| Site { hash, frames };
        (0..).zip(stacks).map(site).collect()
    })
}

fn speeds(ns_per_byte: f64) -> Speeds {
    let (from, to) = (NodeId(0), NodeId(2));
    let stream = StreamSpeed {
        node: to,
        read_ns_per_byte: ns_per_byte,
        write_ns_per_byte: 2.0 * ns_per_byte,
        read_line_ns: 80.0 * ns_per_byte,
        write_line_ns: 160.0 * ns_per_byte,
    };
    Speeds { streams: vec![stream], moves: vec![CopySpeed { from, to, ns_per_byte }] }
}

fn run() -> impl Strategy<Value = Run> {
    let figures = (any::<u32>(), 1u64..1 << 40, 0.0f64..1e6, any::<bool>(), any::<u32>());
    (proptest::collection::vec("\\PC{0,8}", 1..3), figures).prop_map(
        |(arguments, (start, duration_ns, sample_period, misses_only, samples))| Run {
            program: "/bin/program".into(),
            build_id: "00ff".into(),
            arguments,
            start_unix_ns: u64::from(start),
            duration_ns,
            ending: "exited 0".into(),
            sampler: "perf".into(),
            sampler_note: "sees misses".into(),
            sample_period,
            misses_only,
            observed: Observed { samples: u64::from(samples), births: 3, ..Observed::default() },
            served: vec![ServedBy {
                node: NodeId(u16::try_from(samples % 3).unwrap()),
                accesses: samples.into(),
            }],
            speeds: speeds(f64::from(samples % 7) + 0.25),
            mixed: Mixed {
                samples: u64::from(samples % 9),
                sites: vec![MixedSite {
                    hash: start.into(),
                    label: "make a.c:1".into(),
                    samples: u64::from(samples % 9) / 2,
                }],
            },
        },
    )
}

/// Process, site, sizes, times, how many, kind.
type RawObject = (Index, Index, (u64, u64), (u64, u64), u64, u8);
/// Object, phase, slot, extent, counts, threads.
type RawAccess = (Index, Index, (u32, u32), (u64, u64, u64), Option<u64>, u64);

fn raw_object() -> impl Strategy<Value = RawObject> {
    let sizes = (1u64..1 << 30, 0u64..1 << 20);
    (any::<Index>(), any::<Index>(), sizes, (0u64..1 << 36, 1u64..1 << 36), 1u64..4, any::<u8>())
}

fn raw_access() -> impl Strategy<Value = RawAccess> {
    let counts = (0u64..1 << 40, 0u64..1 << 40, 0u64..1 << 20);
    let at = (0u32..200, 0u32..80);
    let cached = proptest::option::of(any::<u64>());
    (any::<Index>(), any::<Index>(), at, counts, cached, any::<u64>())
}

/// A profile with at most this many runs.
pub fn profiles(runs_max: usize) -> impl Strategy<Value = Profile> {
    let processes = proptest::collection::vec((text(), 1u32..9, 0usize..3), 1..4);
    let runs = proptest::collection::vec((run(), processes), 1..=runs_max);
    let objects = proptest::collection::vec(raw_object(), 0..40);
    let accesses = proptest::collection::vec(raw_access(), 0..80);
    (runs, sites(), objects, accesses, 0u32..3, 0u32..4).prop_map(
        |(runs, sites, objects, accesses, doubled, marks)| {
            let mut profile = Profile {
                machine: Machine::builtin("spr-cxl").expect("it is built in").expect("it is right"),
                slot_ns: SLOT_NS_MIN << (4 + doubled),
                sites,
                coarsening: Coarsening { slots_doubled: doubled, ..Coarsening::default() },
                ..Profile::default()
            };
            for (run, processes) in runs {
                add_run(&mut profile, run, processes, marks);
            }
            add_objects(&mut profile, &objects);
            add_accesses(&mut profile, &accesses);
            add_access_sites(&mut profile);
            profile
        },
    )
}

fn add_run(profile: &mut Profile, run: Run, processes: Vec<(Arc<str>, u32, usize)>, marks: u32) {
    let number = u32::try_from(profile.runs.len()).unwrap();
    let first = u32::try_from(profile.processes.len()).unwrap();
    let phase = |process, name: String, start_ns, end_ns| Phase {
        run: number,
        process,
        name: name.into(),
        start_ns,
        end_ns,
    };
    profile.phases.push(phase(None, "A".into(), 0, 50));
    profile.phases.push(phase(None, "B".into(), 50, run.duration_ns.max(51)));
    for (index, (program, pid, threads)) in (first..).zip(processes) {
        profile.processes.push(Process {
            run: number,
            pid,
            parent: (index > first).then_some(first),
            program,
            start_ns: 5,
            end_ns: run.duration_ns.max(5),
            peak_bytes: 1 << 20,
            threads: (0..u32::try_from(threads).unwrap()).map(|thread| pid + thread).collect(),
        });
        if index == first {
            let mark = |at: u32| {
                let at = u64::from(at);
                phase(Some(index), format!("mark {at}"), at * 10, at * 10 + 10)
            };
            profile.phases.extend((0..marks).map(mark));
        }
    }
    profile.runs.push(run);
}

fn add_objects(profile: &mut Profile, raw: &[RawObject]) {
    for (process, site, (bytes, more), (birth_ns, life_ns), count, kind) in raw {
        let peak_bytes = bytes + more;
        profile.objects.push(Object {
            fresh_bytes: 0,
            process: u32::try_from(process.index(profile.processes.len())).unwrap(),
            site: u32::try_from(site.index(profile.sites.len())).unwrap(),
            count: *count,
            bytes: *bytes,
            peak_bytes,
            born_bytes: peak_bytes * count,
            address: if *count == 1 { 0x7f00_0000_0000 } else { 0 },
            birth_ns: *birth_ns,
            death_ns: birth_ns + life_ns,
            freed: count / 2,
            lifetime_ns: life_ns * count,
            extent_bytes: if *count == 1 && kind & 4 == 0 { 1 << 20 } else { 0 },
            is_block: kind & 1 > 0,
            is_mapped: kind & 2 > 0,
        });
    }
    profile.objects.sort_by_key(|object| (object.process, object.birth_ns));
}

fn add_accesses(profile: &mut Profile, raw: &[RawAccess]) {
    if profile.objects.is_empty() {
        return;
    }
    for (object, phase, (slot, extent), (reads, writes, samples), cached, threads) in raw {
        let number = object.index(profile.objects.len());
        let object = &profile.objects[number];
        let run = profile.run_of(object);
        let fits: Vec<u32> = (0..u32::try_from(profile.phases.len()).unwrap())
            .filter(|at| {
                let phase = &profile.phases[*at as usize];
                phase.run == run && phase.process.is_none_or(|process| process == object.process)
            })
            .collect();
        let extents = object.peak_bytes.checked_div(object.extent_bytes).unwrap_or(1).max(1);
        profile.accesses.push(Access {
            object: u32::try_from(number).unwrap(),
            extent: u32::try_from(u64::from(*extent) % extents).unwrap(),
            phase: fits[phase.index(fits.len())],
            slot: *slot,
            reads: *reads,
            writes: *writes,
            samples: *samples,
            timed_reads: reads / 2,
            read_ns: reads * 90,
            timed_writes: writes / 3,
            write_ns: writes * 50,
            cached: cached.map(|cached| cached % (reads + writes + 1)),
            dirtied: cached.map(|cached| cached % 1000),
            mlp_known: reads + writes,
            serialized: reads / 3,
            isolated: *writes,
            threads: *threads,
        });
    }
    profile.accesses.sort_by_key(Access::key);
    profile.accesses.dedup_by_key(|access| access.key());
}

/// Each access, by code that is the site of its object.
fn add_access_sites(profile: &mut Profile) {
    for access in &profile.accesses {
        let site = profile.objects[access.object as usize].site;
        let pattern = Pattern::ALL[access.slot as usize % Pattern::ALL.len()].name().into();
        let (reads, writes) = (access.reads, access.writes);
        profile.access_sites.push(AccessSite { code: site, site, pattern, reads, writes });
    }
    profile.access_sites.sort_by(|a, b| a.key().cmp(&b.key()));
    profile.access_sites.dedup_by(|a, b| a.key() == b.key());
}

/// Sums that merging must not change: allocations, bytes, reads, writes, samples, latency, reads
/// and writes by code.
pub fn totals(profile: &Profile) -> [u64; 10] {
    let by_code = |of: fn(&AccessSite) -> u64| profile.access_sites.iter().map(of).sum();
    let objects = |of: fn(&Object) -> u64| profile.objects.iter().map(of).sum();
    let accesses = |of: fn(&Access) -> u64| profile.accesses.iter().map(of).sum();
    [
        objects(|object| object.count),
        objects(|object| object.born_bytes),
        objects(|object| object.lifetime_ns),
        objects(|object| object.freed),
        accesses(|access| access.reads),
        accesses(|access| access.writes),
        accesses(|access| access.samples),
        accesses(|access| access.read_ns),
        by_code(|one| one.reads),
        by_code(|one| one.writes),
    ]
}
