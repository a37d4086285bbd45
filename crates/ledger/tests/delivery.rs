//! No order in which records and samples are delivered changes what belongs to whom.
//! In: random true histories of several threads; samples at random times and places; random
//! schedules. Out: whether each object gets what a slow obvious model gives it. Knows nothing of
//! the ledger's insides.
//!
//! What rings and samplers promise is all that is used: records of a thread keep their order, a
//! process is settled up to a time when all its records of before were delivered, and no sample
//! comes that is older than what was forgotten.

mod program;

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use tiercel_ledger::{Attributed, Config, Event, Ledger};
use tiercel_wire::{AccessKind, Flags, ObjectSnapshot, Record, Sample, Version};

use program::{Life, OS_PAGE, PID, Program, Step, THREADS, TICK_NS};

const WEIGHT: u32 = 1000;

/// Accesses of each site; 0: of none.
type Accesses = BTreeMap<u32, u64>;

fn ledger() -> Ledger {
    let config = Config { extent_bytes: 4 * OS_PAGE, finest_bytes: OS_PAGE, ..Config::default() };
    let mut ledger = Ledger::new(config, 0).expect("a good config");
    ledger.process_born(PID).expect("a new process");
    ledger.listen();
    ledger
}

fn sample(page: u64, from_ns: u64, until_ns: u64) -> Sample {
    Sample {
        from_ns,
        until_ns,
        pid: PID,
        tid: 0,
        addr: page * OS_PAGE + 8,
        kind: AccessKind::Read,
        latency_ns: None,
        node: None,
        weight: WEIGHT,
        around: None,
        cpu: None,
        by: None,
    }
}

/// One sample within each of some lives, so many ticks long, or an instant.
fn samples_of(lives: &[Life], picks: &[(usize, u64, u64)], now_ns: u64) -> Vec<Sample> {
    let one = |&(pick, at, ticks): &(usize, u64, u64)| {
        let life = lives.get(pick % lives.len().max(1))?;
        let lasted = life.until_ns.min(now_ns) - life.from_ns;
        // Programs do not access what does not live: somewhere in the life, off the ticks.
        let at_ns = life.from_ns + (at % (lasted / TICK_NS).max(1)) * TICK_NS + TICK_NS / 2;
        Some(sample(life.page, at_ns.saturating_sub(ticks * TICK_NS), at_ns))
    };
    picks.iter().filter_map(one).filter(|one| one.until_ns <= now_ns).collect()
}

/// The slow obvious model: each sample is shared by the lives of its OS page, by their overlap.
fn truth(lives: &[Life], samples: &[Sample]) -> Accesses {
    let mut sums = Accesses::new();
    for one in samples {
        let on_page = lives.iter().filter(|life| life.page == one.addr / OS_PAGE);
        let overlap = |life: &&Life| match one.until_ns - one.from_ns {
            0 => u64::from(life.from_ns <= one.from_ns && one.from_ns < life.until_ns),
            _ => life.until_ns.min(one.until_ns).saturating_sub(life.from_ns.max(one.from_ns)),
        };
        let mut parts: Vec<(u64, u32, u64)> =
            on_page.map(|life| (life.from_ns, life.site, overlap(&life))).collect();
        parts.sort_unstable();
        let all: u64 = parts.iter().map(|(_, _, ns)| ns).sum();
        let (mut so_far, mut given) = (0, 0);
        for (_, site, ns) in parts {
            so_far += ns;
            let until_here = u64::from(one.weight) * so_far / all.max(1);
            *sums.entry(site).or_default() += until_here - given;
            given = until_here;
        }
        *sums.entry(0).or_default() += u64::from(one.weight) - given;
    }
    sums.retain(|_, accesses| *accesses > 0);
    sums
}

/// How the rest is delivered: how far the next sweep goes, which ring is read next, how many
/// records are read beyond it, how many samples come.
type Sweep = (u64, Vec<usize>, usize, usize, bool);

fn sweeps() -> impl Strategy<Value = Vec<Sweep>> {
    let picks = proptest::collection::vec(0..THREADS, 1..20);
    let sweep = (1u64..40, picks, 0usize..10, 0usize..20, any::<bool>());
    proptest::collection::vec(sweep, 1..8)
}

/// Delivers everything by a schedule; what the ledger gave each site.
fn deliver(
    program: &mut Program,
    mut samples: VecDeque<Sample>,
    sweeps: &[Sweep],
) -> (Accesses, Ledger) {
    let mut ledger = ledger();
    let mut given = Vec::new();
    let mut settled_ns = 0;
    let all = (u64::MAX / TICK_NS / 2, vec![0, 1, 2], 0, usize::MAX, true);
    for (ticks, picks, beyond, count, has_tick) in sweeps.iter().chain([&all]) {
        settled_ns += ticks * TICK_NS;
        // Samples may come before the records that explain them, and long after.
        let early = (*count).min(samples.len());
        samples.drain(..early).for_each(|one| ledger.observe(one));
        read_rings(program, &mut ledger, settled_ns, picks, *beyond);
        ledger.settle(PID, settled_ns);
        ledger.attribute(&mut given);
        let oldest = samples.iter().map(|one| one.from_ns).min();
        ledger.forget_before(oldest.unwrap_or(settled_ns).min(settled_ns));
        if *has_tick {
            ledger.tick(ledger.now_ms() + 2000);
        }
    }
    let mut sums = Accesses::new();
    for Attributed { sample, hit, .. } in given {
        *sums.entry(hit.site).or_default() += u64::from(sample.weight);
    }
    (sums, ledger)
}

/// Reads all rings up to a time in some order, and a few records more of whatever comes.
fn read_rings(
    program: &mut Program,
    ledger: &mut Ledger,
    until_ns: u64,
    picks: &[usize],
    beyond: usize,
) {
    let mut picks = picks.iter().cycle();
    let mut more = beyond;
    loop {
        let is_due = |ring: &VecDeque<Record>| {
            ring.front().is_some_and(|record| record.time_ns() <= until_ns)
        };
        let waiting: Vec<_> = (0..THREADS).filter(|t| !program.rings[*t].is_empty()).collect();
        let must = waiting.iter().any(|t| is_due(&program.rings[*t]));
        if waiting.is_empty() || !must && more == 0 {
            return;
        }
        let ring = waiting[picks.next().expect("cycles") % waiting.len()];
        let is_due = is_due(&program.rings[ring]);
        if !is_due && more == 0 {
            continue_with_due(program, ledger, until_ns);
            return;
        }
        more -= usize::from(!is_due);
        ledger.deliver(PID, program.rings[ring].pop_front().expect("waits"));
    }
}

fn continue_with_due(program: &mut Program, ledger: &mut Ledger, until_ns: u64) {
    for ring in &mut program.rings {
        while ring.front().is_some_and(|record| record.time_ns() <= until_ns) {
            ledger.deliver(PID, ring.pop_front().expect("waits"));
        }
    }
}

/// What the events give each site, as a recorder keeps them.
fn by_events(ledger: &mut Ledger) -> Accesses {
    let mut events = Vec::new();
    ledger.take_events(&mut events);
    let mut live: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
    let mut ended: BTreeMap<u64, u32> = BTreeMap::new();
    let mut sums = Accesses::new();
    for one in events {
        match one.event {
            Event::Born { addr, bytes, site, .. } => {
                live.insert(addr, (addr + bytes, site));
            }
            Event::Grown { addr, bytes } => {
                let (_, (end, _)) = live.range_mut(..addr).next_back().expect("it lives");
                *end += bytes;
            }
            Event::Gone { addr, bytes, life } => {
                let end = addr + bytes;
                let hit: Vec<_> = live.range(..end).filter(|(_, one)| one.0 > addr).collect();
                let hit: Vec<(u64, (u64, u32))> =
                    hit.iter().map(|(at, one)| (**at, **one)).collect();
                for (at, (old_end, site)) in hit {
                    live.remove(&at);
                    ended.insert(life, site);
                    if at < addr {
                        live.insert(at, (addr, site));
                    }
                    if end < old_end {
                        live.insert(end, (old_end, site));
                    }
                }
            }
            Event::Accessed { sample, life } => {
                let site = match life {
                    Some(life) => ended[&life],
                    None => live.range(..=sample.addr).next_back().expect("it lives").1.1,
                };
                *sums.entry(site).or_default() += u64::from(sample.weight);
            }
            Event::Forgotten { before } => ended = ended.split_off(&before),
            Event::Phase { .. } => {}
        }
    }
    sums
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec((0..THREADS, any::<u8>(), any::<u64>(), any::<u64>()), 1..60)
}

fn picks() -> impl Strategy<Value = Vec<(usize, u64, u64)>> {
    proptest::collection::vec((any::<usize>(), any::<u64>(), 0u64..30), 1..60)
}

fn run(steps: &[Step]) -> Program {
    let mut program = Program::default();
    steps.iter().for_each(|step| program.step(*step));
    program
}

proptest! {
    // More with PROPTEST_CASES.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(2000)))]

    #[test]
    fn an_access_belongs_to_what_lived_then(
        steps in steps(), picks in picks(), sweeps in sweeps(), turn in any::<usize>(),
    ) {
        let mut program = run(&steps);
        let lives = program.all_lives();
        let instants: Vec<_> = picks.iter().map(|(pick, at, _)| (*pick, *at, 0)).collect();
        let mut samples = samples_of(&lives, &instants, program.now_ns);
        let want = truth(&lives, &samples);
        prop_assert!(!want.contains_key(&0), "all samples are within lives");
        let middle = turn % samples.len().max(1);
        samples.rotate_left(middle);
        let (got, mut ledger) = deliver(&mut program, samples.into(), &sweeps);
        prop_assert_eq!(&got, &want, "{:?}", steps);
        prop_assert_eq!(by_events(&mut ledger), want, "{:?}", steps);
        let counts = ledger.tick(1 << 40).counts;
        prop_assert_eq!((counts.samples_undecided, counts.records_late), (0, 0));
    }

    #[test]
    fn what_was_seen_between_two_looks_is_shared_by_the_lives_in_between(
        steps in steps(), picks in picks(), sweeps in sweeps(),
    ) {
        // Without realloc and growth: what those add keeps the age of the object.
        let is_plain = |step: &Step| ![3, 7, 8].contains(&(step.1 % 9));
        let steps: Vec<Step> = steps.into_iter().filter(is_plain).collect();
        let mut program = run(&steps);
        let lives = program.all_lives();
        let samples = samples_of(&lives, &picks, program.now_ns);
        let want = truth(&lives, &samples);
        let (got, mut ledger) = deliver(&mut program, samples.into(), &sweeps);
        prop_assert_eq!(&got, &want, "{:?}", steps);
        prop_assert_eq!(by_events(&mut ledger), want, "{:?}", steps);
    }
}

/// Loses some records, then reads the object table in slices while the program goes on; the ledger,
/// what it gave so far, and the time at which its records were complete again.
fn lose_and_scan(
    program: &mut Program,
    early: &[Sample],
    lossy: (&[Step], &[bool]),
    slices: &[(Vec<Step>, u64, usize, usize)],
) -> (Ledger, Vec<Attributed>, u64) {
    let (mut ledger, mut given) = (ledger(), Vec::new());
    let sound_ns = program.now_ns;
    continue_with_due(program, &mut ledger, sound_ns);
    ledger.settle(PID, sound_ns);
    early.iter().for_each(|one| ledger.observe(*one));
    lossy.0.iter().for_each(|step| program.step(*step));
    let mut keep = lossy.1.iter().cycle();
    for ring in &mut program.rings {
        ring.retain(|_| *keep.next().expect("cycles"));
    }
    continue_with_due(program, &mut ledger, program.now_ns);
    ledger.records_lost(PID);
    ledger.settle(PID, sound_ns);
    let mut from = 0;
    let rest = [(Vec::new(), 0, usize::MAX, usize::MAX)];
    for (steps, held, objects, work) in slices.iter().chain(&rest) {
        if from < u64::MAX {
            let (range, table) = program.table_from(from, *objects);
            from = ledger.resync_slice(PID, range, &table, *work, program.now_ns).next;
        }
        steps.iter().take(8).for_each(|step| program.step(*step));
        let until_ns = program.now_ns.saturating_sub(held * TICK_NS);
        read_rings(program, &mut ledger, until_ns, &[0, 1, 2], *held as usize);
        ledger.settle(PID, until_ns);
        ledger.attribute(&mut given);
    }
    (ledger, given, program.now_ns)
}

fn slices() -> impl Strategy<Value = Vec<(Vec<Step>, u64, usize, usize)>> {
    proptest::collection::vec((steps(), 0u64..20, 1usize..6, 1usize..8), 0..12)
}

proptest! {
    // More with PROPTEST_CASES.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(2000)))]

    #[test]
    fn a_loss_that_a_sliced_scan_healed_changes_nothing_of_before_and_after(
        before in steps(), lossy in steps(),
        keep in proptest::collection::vec(any::<bool>(), 1..20),
        slices in slices(), after in steps(), picks in picks(), is_early in any::<bool>(),
    ) {
        let mut program = run(&before);
        let instants: Vec<_> = picks.iter().map(|(pick, at, _)| (*pick, *at, 0)).collect();
        let mut samples = samples_of(&program.all_lives(), &instants, program.now_ns);
        let early = if is_early { samples.as_slice() } else { &[] };
        let (mut ledger, mut given, sound_again_ns) =
            lose_and_scan(&mut program, early, (&lossy, &keep), &slices);
        after.iter().for_each(|step| program.step(*step));
        continue_with_due(&mut program, &mut ledger, u64::MAX);
        ledger.settle(PID, u64::MAX);
        let lives = program.all_lives();
        let mut late = samples_of(&lives, &instants, program.now_ns);
        late.retain(|one| one.until_ns > sound_again_ns);
        late.iter().chain(if is_early { &[] } else { samples.as_slice() })
            .for_each(|one| ledger.observe(*one));
        ledger.attribute(&mut given);
        samples.extend(late);
        let mut got = Accesses::new();
        for Attributed { sample, hit, .. } in given {
            *got.entry(hit.site).or_default() += u64::from(sample.weight);
        }
        prop_assert_eq!(&got, &truth(&lives, &samples));
        prop_assert_eq!(by_events(&mut ledger), got);
        prop_assert_eq!(ledger.tick(1 << 40).counts.samples_undecided, 0);
    }
}

#[test]
fn a_loss_during_a_scan_waits_for_the_next_one() {
    let mut ledger = after_a_loss();
    let (mut given, mut next_ns) = (Vec::new(), 4_000_000);
    for at_ns in [500_000, 2_900_000, 3_500_000] {
        ledger.observe(sample(20, at_ns, at_ns));
    }
    let table = [found(16, 1, 1), found(20, 4, 1)];
    for (is_lossy, want) in [(true, 2), (false, 1)] {
        ledger.resync_slice(PID, 0..18 * OS_PAGE, &table[..1], usize::MAX, next_ns);
        if is_lossy {
            ledger.records_lost(PID);
        }
        ledger.settle(PID, next_ns);
        next_ns += 1_000_000;
        ledger.resync_slice(PID, 18 * OS_PAGE..u64::MAX, &table[1..], usize::MAX, next_ns);
        given.clear();
        ledger.attribute(&mut given);
        assert_eq!(given.len(), want, "what is of before the later loss");
    }
}

/// Two objects of sites 1 and 2 have one OS page in turns, each for 10 us.
fn turns(ledger: &mut Ledger, count: u64) {
    for turn in 0..count {
        let (addr, bytes, flags) = (16 * OS_PAGE, OS_PAGE, Flags(0));
        let version = Version { carve: 1, generation: turn as u16 };
        let site = 1 + (turn % 2) as u32;
        let time_ns = turn * 10_240;
        let born = Record::Born { addr, bytes, site, version, arena: None, flags, time_ns };
        ledger.deliver(PID, born);
        let time_ns = time_ns + 9_216;
        ledger.deliver(PID, Record::Died { addr, bytes, version, flags, time_ns });
    }
}

fn sites(given: &[Attributed]) -> Vec<(u32, u32)> {
    given.iter().map(|one| (one.hit.site, one.sample.weight)).collect()
}

#[test]
fn two_sites_that_take_turns_get_their_own() {
    let mut ledger = ledger();
    turns(&mut ledger, 100);
    ledger.settle(PID, 1 << 30);
    // All are read at the end, when site 2 had the address last.
    (0..100).step_by(2).for_each(|turn| {
        ledger.observe(sample(16, turn * 10_240 + 5_000, turn * 10_240 + 5_000));
    });
    let mut given = Vec::new();
    ledger.attribute(&mut given);
    assert_eq!(sites(&given), vec![(1, WEIGHT); 50]);
    assert_eq!(ledger.tick(2000).counts.samples_of_ended, 50);
}

#[test]
fn a_sample_waits_for_the_records_of_its_time() {
    let mut ledger = ledger();
    ledger.observe(sample(16, 5_000, 5_000));
    let mut given = Vec::new();
    ledger.settle(PID, 4_000);
    ledger.attribute(&mut given);
    assert_eq!(given, []);
    turns(&mut ledger, 1);
    ledger.settle(PID, 6_000);
    ledger.attribute(&mut given);
    assert_eq!(sites(&given), [(1, WEIGHT)]);
}

#[test]
fn an_area_seen_over_many_turns_is_shared_and_counted_as_undecided() {
    let mut ledger = ledger();
    turns(&mut ledger, 100);
    ledger.settle(PID, 1 << 30);
    ledger.observe(sample(16, 0, 100 * 10_240));
    let mut given = Vec::new();
    ledger.attribute(&mut given);
    let of = |site| sites(&given).iter().filter(|one| one.0 == site).map(|one| one.1).sum::<u32>();
    assert_eq!((of(1), of(2)), (WEIGHT / 2, WEIGHT / 2));
    assert_eq!(ledger.tick(2000).counts.samples_undecided, 1);
}

#[test]
fn what_is_forgotten_is_counted_and_bounded() {
    let mut ledger = ledger();
    let lives = tiercel_ledger::ENDED_MAX as u64 + 10;
    turns(&mut ledger, lives);
    ledger.settle(PID, u64::MAX);
    assert_eq!(ledger.tick(2000).counts.ended_forgotten, 10);
    ledger.forget_before(u64::MAX);
    ledger.observe(sample(16, 5_000, 5_000));
    let mut given = Vec::new();
    ledger.attribute(&mut given);
    assert_eq!(given, []);
    assert_eq!(ledger.tick(4000).counts.samples_outside, 1);
}

/// An object of site 1 lives when records are lost; afterwards one of site 2 is found there.
fn after_a_loss() -> Ledger {
    let mut ledger = ledger();
    let (addr, bytes, flags, time_ns) = (16 * OS_PAGE, OS_PAGE, Flags(0), 1_024);
    let version = Version { carve: 1, generation: 0 };
    for (page, site) in [(0, 1), (4, 4)] {
        let addr = addr + page * OS_PAGE;
        let born = Record::Born { addr, bytes, site, version, arena: None, flags, time_ns };
        ledger.deliver(PID, born);
    }
    ledger.settle(PID, 1_000_000);
    ledger.records_lost(PID);
    ledger.settle(PID, 3_000_000);
    ledger.advance(3);
    ledger
}

fn found(page: u64, site: u32, carve: u32) -> ObjectSnapshot {
    let version = Version { carve, generation: 0 };
    let (addr, bytes, arena) = (page * OS_PAGE, OS_PAGE, None);
    ObjectSnapshot { addr, bytes, site, version, arena, flags: Flags(0) }
}

#[test]
fn around_a_loss_what_is_sure_is_kept_and_the_rest_is_counted() {
    let mut ledger = after_a_loss();
    let mut given = Vec::new();
    // Site 4's object lives on; site 1's was replaced in the time of the loss, and one of site 3
    // was born where nothing lived.
    for (page, at_ns) in [(16, 500_000), (16, 2_000_000), (16, 3_000_000), (18, 2_000_000)] {
        ledger.observe(sample(page, at_ns, at_ns));
    }
    ledger.observe(sample(20, 2_000_000, 2_000_000));
    ledger.attribute(&mut given);
    assert_eq!(sites(&given), [(1, WEIGHT)], "the others wait for the resync");
    let table = [found(16, 2, 2), found(18, 3, 3), found(20, 4, 1)];
    ledger.resync_slice(PID, 0..u64::MAX, &table, usize::MAX, 3_000_000);
    given.clear();
    ledger.attribute(&mut given);
    let mut got = sites(&given);
    got.sort_unstable();
    // At 3 ms the resync had seen site 2's; at 2 ms it may have been either.
    assert_eq!(got, [(2, WEIGHT), (3, WEIGHT), (4, WEIGHT)]);
    assert_eq!(ledger.tick(2000).counts.samples_undecided, 1);
}

#[test]
fn samples_that_wait_are_bounded_and_counted() {
    let mut ledger = ledger();
    turns(&mut ledger, 1);
    let mut given = Vec::new();
    for _ in 0..=tiercel_ledger::WAITING_MAX {
        ledger.observe(sample(16, 5_000, 5_000));
    }
    ledger.attribute(&mut given);
    let counts = ledger.tick(2000).counts;
    let all = tiercel_ledger::WAITING_MAX as u64 + 1;
    assert_eq!((counts.samples_unsettled, counts.samples_outside), (all, all));
}
