//! Caches against a slow obvious model, and a hierarchy that loses no written line.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tiercel_memsim::{
    Cache, CacheShape, Evicted, Hierarchy, HierarchyShape, LINE_BYTES, ModelError, Outcome,
};

/// The same rules, said slowly: a set is a list of ways with their three facts.
struct Slow {
    sets: Vec<Vec<Option<Way>>>,
}

#[derive(Clone, Copy)]
struct Way {
    line: u64,
    dirty: bool,
    recent: bool,
}

impl Slow {
    fn new(sets: usize, ways: usize) -> Slow {
        Slow { sets: vec![vec![None; ways]; sets] }
    }

    fn access(&mut self, line: u64, write: bool) -> Outcome {
        let count = self.sets.len() as u64;
        let set = &mut self.sets[(line % count) as usize];
        let found = set.iter().position(|way| way.is_some_and(|way| way.line == line));
        let at = found.unwrap_or_else(|| {
            let empty = set.iter().position(Option::is_none);
            let idle = set.iter().position(|way| way.is_some_and(|way| !way.recent));
            empty.or(idle).unwrap_or(0)
        });
        let left = if found.is_some() { None } else { set[at] };
        let dirty = found.is_some() && set[at].is_some_and(|way| way.dirty);
        set[at] = Some(Way { line, dirty: dirty || write, recent: true });
        if set.iter().all(|way| way.is_some_and(|way| way.recent)) {
            for (other, way) in set.iter_mut().flatten().enumerate() {
                way.recent = other == at;
            }
        }
        match found {
            Some(_) => Outcome::Hit,
            None => Outcome::Miss(left.map(|way| Evicted { line: way.line, dirty: way.dirty })),
        }
    }
}

fn shape(sets: u64, ways: u32) -> CacheShape {
    CacheShape { bytes: sets * u64::from(ways) * LINE_BYTES, ways }
}

proptest! {
    #[test]
    fn a_cache_does_what_the_rules_say(
        sets in 1u64..6,
        ways in 1u32..7,
        accesses in proptest::collection::vec((0u64..40, any::<bool>()), 1..400),
    ) {
        let mut cache = Cache::new(shape(sets, ways)).unwrap();
        let mut slow = Slow::new(sets as usize, ways as usize);
        for (line, write) in accesses {
            prop_assert_eq!(cache.access(line, write), slow.access(line, write));
            prop_assert!(cache.holds(line));
        }
    }

    /// Every written line is written back at most once per write, and exactly once each time it has
    /// left for good: flooding the caches afterwards flushes all that is dirty.
    #[test]
    fn no_written_line_is_lost(
        accesses in proptest::collection::vec((0usize..2, 0u64..64, any::<bool>()), 1..300),
    ) {
        let mut caches = Hierarchy::new(&HierarchyShape {
            cores: 2,
            private: vec![shape(2, 2), shape(2, 4)],
            shared: Some(shape(4, 4)),
        })
        .unwrap();
        let mut writes = BTreeMap::<u64, u64>::new();
        let mut backs = BTreeMap::<u64, u64>::new();
        let flood = (0..2).flat_map(|core| (0..4096).map(move |line| (core, 1000 + line, false)));
        for (core, line, write) in accesses.into_iter().chain(flood) {
            *writes.entry(line).or_default() += u64::from(write);
            let served = caches.access(core, line * LINE_BYTES, write);
            prop_assert!(served.level <= caches.levels());
            served.written_back.iter().for_each(|line| *backs.entry(line).or_default() += 1);
        }
        for (line, writes) in writes {
            let backs = backs.get(&line).copied().unwrap_or(0);
            prop_assert!(backs <= writes, "line {line}: {backs} write-backs of {writes} writes");
            prop_assert!(writes == 0 || backs > 0, "line {line} was written and never came out");
        }
    }
}

#[test]
fn what_fits_stays() {
    let mut cache = Cache::new(shape(64, 8)).unwrap();
    let misses = |cache: &mut Cache, lines: u64| {
        (0..lines).filter(|&line| cache.access(line, false) != Outcome::Hit).count()
    };
    assert_eq!(misses(&mut cache, 512), 512, "cold");
    assert_eq!(misses(&mut cache, 512), 0, "as large as the cache");
}

#[test]
fn each_level_serves_what_the_one_above_lost() {
    let mut caches = Hierarchy::new(&HierarchyShape {
        cores: 1,
        private: vec![shape(1, 2)],
        shared: Some(shape(4, 8)),
    })
    .unwrap();
    let mut level = |line: u64| caches.access(0, line * LINE_BYTES, false).level;
    assert_eq!([level(0), level(0), level(1), level(2), level(3)], [2, 0, 2, 2, 2]);
    assert_eq!(level(0), 1, "out of the first level, still in the second");
}

#[test]
fn shapes_that_cannot_be() {
    let refused = |bytes, ways| Cache::new(CacheShape { bytes, ways }).unwrap_err();
    let whats: BTreeSet<String> =
        [refused(4096, 0), refused(4096, 65), refused(0, 4), refused(1000, 4)]
            .map(|error| error.to_string())
            .into();
    assert_eq!(whats.len(), 4);
    let shape = HierarchyShape { cores: 0, private: vec![shape(1, 1)], shared: None };
    assert!(matches!(Hierarchy::new(&shape), Err(ModelError::Shape(_))));
    let deep = HierarchyShape { cores: 1, private: vec![shape.private[0]; 5], shared: None };
    assert!(matches!(Hierarchy::new(&deep), Err(ModelError::Shape(_))));
}
