//! Everything against the slow obvious model, and that no written line is lost on its way to
//! memory.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tiercel_machine::{Machine, NodeId};
use tiercel_memsim::{
    Access, Cache, CacheShape, CoreShape, Evicted, LINE_BYTES, LevelShape, ModelError,
    PrefetchShape, Simulator, SimulatorShape, WindowShape,
};

mod slow;

fn shape(sets: u64, ways: u32) -> CacheShape {
    CacheShape { bytes: sets * u64::from(ways) * LINE_BYTES, ways }
}

fn level(sets: u64, ways: u32) -> LevelShape {
    LevelShape { cache: shape(sets, ways), latency_ps: 1000 }
}

fn core(levels: Vec<LevelShape>) -> CoreShape {
    let window = WindowShape { instructions: 224, mshrs: 16, stores: 48 };
    CoreShape { levels, window, prefetch: None, instruction_ps: 100, home: None }
}

fn processor(levels: Vec<LevelShape>, shared: Option<LevelShape>) -> Simulator {
    let machine = Machine::builtin("spr-cxl").unwrap().unwrap();
    let cores = vec![core(levels.clone()), core(levels)];
    Simulator::new(&machine, &SimulatorShape { cores, shared }).unwrap()
}

fn access(line: u64, write: bool) -> Access {
    Access { instructions: 1, addr: line * LINE_BYTES, write, after_ps: 0 }
}

/// Lines take turns between the nodes of two sockets.
fn node_of(addr: u64) -> NodeId {
    NodeId((addr / LINE_BYTES % 2) as u16)
}

fn processors() -> impl Strategy<Value = SimulatorShape> {
    let level = || (1u64..5, 1u32..6).prop_map(|(sets, ways)| level(sets, ways));
    let window = (1u64..40, 1usize..5, 1usize..4)
        .prop_map(|(instructions, mshrs, stores)| WindowShape { instructions, mshrs, stores });
    let prefetch = (1u32..4, 1u32..9, 1u32..6).prop_map(|(degree, ahead, lines)| PrefetchShape {
        degree,
        ahead,
        lines,
    });
    let parts = (level(), level(), level(), window, proptest::option::of(prefetch));
    parts.prop_map(|(first, second, shared, window, prefetch)| {
        let far = LevelShape { latency_ps: 9000, ..second };
        let base = CoreShape { window, prefetch, ..core(vec![first, far]) };
        let cores = [0, 1].map(|home| CoreShape { home: Some(NodeId(home)), ..base.clone() });
        let shared = Some(LevelShape { latency_ps: 30_000, ..shared });
        SimulatorShape { cores: cores.to_vec(), shared }
    })
}

/// Which core, what, and whether the address comes from the access before.
fn accesses() -> impl Strategy<Value = (usize, Access, bool)> {
    let line = prop_oneof![0u64..24, (0u64..3, 0u64..22).prop_map(|(s, i)| 4096 + s * 64 + i * 3)];
    (0usize..2, 1u64..20, line, any::<bool>(), any::<bool>()).prop_map(
        |(core, instructions, line, write, after)| {
            let access = Access { instructions, ..access(line, write) };
            (core, access, after)
        },
    )
}

proptest! {
    #[test]
    fn a_cache_does_what_the_rules_say(
        sets in 1u64..6,
        ways in 1u32..33,
        accesses in proptest::collection::vec((0u64..140, any::<bool>()), 1..600),
    ) {
        let mut cache = Cache::new(shape(sets, ways)).unwrap();
        let mut slow = slow::SlowCache::new(shape(sets, ways));
        for (line, write) in accesses {
            prop_assert_eq!(cache.holds(line), slow.holds(line));
            let hit = cache.hit(line, write);
            let left = if hit { None } else { Some(cache.fill(line, write)) };
            let left = left.map(|left| left.map(|Evicted { line, dirty }| (line, dirty)));
            prop_assert_eq!(left, slow.access(line, write));
        }
    }

    /// Same levels, same times, same clocks, same traffic, with everything switched on.
    #[test]
    fn two_cores_do_what_the_rules_say(
        shape in processors(),
        accesses in proptest::collection::vec(accesses(), 1..400),
    ) {
        let machine = Machine::builtin("emr-two-socket").unwrap().unwrap();
        let mut fast = Simulator::new(&machine, &shape).unwrap();
        let mut slow = slow::Slow::new(&machine, &shape, node_of);
        let mut done_ps = 0;
        for (core, mut access, after) in accesses {
            access.after_ps = if after { done_ps } else { 0 };
            let served = fast.access(core, &access, node_of);
            prop_assert_eq!((served.level, served.done_ps), slow.access(core, &access));
            prop_assert_eq!(fast.now_ps(core), slow.now_ps(core));
            done_ps = served.done_ps;
        }
        for core in 0..2 {
            prop_assert_eq!(fast.drain(core), slow.drain(core));
        }
        for node in [NodeId(0), NodeId(1)] {
            prop_assert_eq!(fast.memory().used(node), slow.memory.used(node));
        }
    }

    /// Every written line is written back at most once per write, and exactly once each time it has
    /// left for good: flooding the caches afterwards flushes all that is dirty.
    #[test]
    fn no_written_line_is_lost(
        accesses in proptest::collection::vec((0usize..2, 0u64..64, any::<bool>()), 1..300),
    ) {
        let mut caches = processor(vec![level(2, 2), level(2, 4)], Some(level(4, 4)));
        let mut backs = BTreeMap::<u64, u64>::new();
        let mut writes = BTreeMap::<u64, u64>::new();
        let flood = (0..2).flat_map(|core| (0..256).map(move |line| (core, 1000 + line, false)));
        for (core, line, write) in accesses.into_iter().chain(flood) {
            *writes.entry(line).or_default() += u64::from(write);
            let placed = std::cell::RefCell::new(Vec::new());
            let served = caches.access(core, &access(line, write), |addr| {
                placed.borrow_mut().push(addr / LINE_BYTES);
                NodeId(0)
            });
            // What memory reads is placed first.
            let read = usize::from(served.level == 3);
            let placed = placed.into_inner();
            placed[read..].iter().for_each(|&line| *backs.entry(line).or_default() += 1);
        }
        for (line, writes) in writes {
            let backs = backs.get(&line).copied().unwrap_or(0);
            prop_assert!(backs <= writes, "line {line}: {backs} write-backs of {writes} writes");
            prop_assert!(writes == 0 || backs > 0, "line {line} was written and never came out");
        }
        let used = caches.memory().used(NodeId(0));
        prop_assert_eq!(used.writes, backs.values().sum::<u64>());
    }
}

#[test]
fn what_fits_stays() {
    let mut cache = Cache::new(shape(64, 8)).unwrap();
    let mut misses = |lines: u64| {
        let missed = |&line: &u64| !cache.hit(line, false) && cache.fill(line, false).is_none();
        (0..lines).filter(missed).count()
    };
    assert_eq!(misses(512), 512, "cold");
    assert_eq!(misses(512), 0, "as large as the cache");
}

#[test]
fn each_level_serves_what_the_one_above_lost() {
    let mut caches = processor(vec![level(1, 2)], Some(level(4, 8)));
    let mut level = |line: u64| caches.access(0, &access(line, false), |_| NodeId(0)).level;
    assert_eq!([level(0), level(0), level(1), level(2), level(3)], [2, 0, 2, 2, 2]);
    assert_eq!(level(0), 1, "out of the first level, still in the second");
    assert_eq!(caches.served(0), [1, 1, 4]);
    assert_eq!(caches.served(1), [0, 0, 0], "the other core did nothing");
}

#[test]
fn shapes_that_cannot_be() {
    let refused = |bytes, ways| Cache::new(CacheShape { bytes, ways }).unwrap_err();
    let whats: BTreeSet<String> =
        [refused(4096, 0), refused(4096, 33), refused(0, 4), refused(1000, 4)]
            .map(|error| error.to_string())
            .into();
    assert_eq!(whats.len(), 4);
    let machine = Machine::builtin("spr-cxl").unwrap().unwrap();
    let refused = |core: CoreShape| {
        let shape = SimulatorShape { cores: vec![core], shared: None };
        matches!(Simulator::new(&machine, &shape), Err(ModelError::Shape(_)))
    };
    assert!(refused(core(vec![])));
    assert!(refused(core(vec![level(1, 1); 5])));
    let prefetch = Some(PrefetchShape { degree: 2, ahead: 8, lines: 16 });
    assert!(refused(CoreShape { prefetch, ..core(vec![level(1, 1)]) }), "nowhere to prefetch to");
    let window = WindowShape { instructions: 0, mshrs: 1, stores: 1 };
    assert!(refused(CoreShape { window, ..core(vec![level(1, 1)]) }));
}
