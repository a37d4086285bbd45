//! The `probe` sampler against real processes: it must find the part of a buffer that they use.

use super::*;
use crate::testing::{Child, OS_PAGE};

const INTERVAL_MS: u64 = 100;
/// When [`warm`] ends.
const WARM_MS: u64 = 2000;

fn sampler() -> ProbeSampler {
    let config = Config { probe_interval_ms: INTERVAL_MS, cpu_budget: 100.0, ..Config::default() };
    ProbeSampler::open(&config).expect("/proc is there")
}

/// A child whose buffer is fully present, watched in pieces of `piece` OS pages.
fn watched(os_pages: u64, piece: u64, sampler: &mut ProbeSampler) -> Child {
    let mut child = Child::new(os_pages);
    child.write(0..os_pages);
    sampler.attach(child.pid).expect("our own child");
    for uffd in child.userfaultfds() {
        sampler.accept(child.pid, TargetHandle::Userfaultfd(uffd));
    }
    sampler.may_split(child.pid, child.buffer.clone());
    let pieces = child.buffer.clone().step_by((piece * OS_PAGE) as usize);
    let ranges: Vec<_> =
        pieces.map(|at| at..(at + piece * OS_PAGE).min(child.buffer.end)).collect();
    sampler.watch(child.pid, &ranges);
    child
}

/// Lets the number of armed spots grow until all are armed, ending at 2000.
fn warm(sampler: &mut ProbeSampler) {
    for turn in (0..12).rev() {
        drained(sampler, WARM_MS - turn * INTERVAL_MS);
    }
}

fn drained(sampler: &mut ProbeSampler, now_ms: u64) -> (Vec<Sample>, Drained) {
    let mut out = Vec::new();
    let now = Now::at_ms(now_ms);
    let met = sampler.drain(now, &mut out);
    for sample in &out {
        assert!(sample.from_ns < sample.until_ns, "between two looks: {sample:?}");
    }
    let began_ns = sampler.processes.values().filter_map(Process::began_ns).min();
    let began_ns = began_ns.unwrap_or(now.monotonic_ns);
    assert_eq!(met.complete_ns, now.when(began_ns), "what is watched is not complete");
    (out, met)
}

/// Accesses seen in each piece of the buffer.
fn by_piece(child: &Child, piece: u64, samples: &[Sample], kind: AccessKind) -> Vec<u64> {
    let pieces = (child.buffer.end - child.buffer.start).div_ceil(piece * OS_PAGE);
    let mut sums = vec![0; pieces as usize];
    for sample in samples.iter().filter(|sample| sample.kind == kind) {
        assert_eq!(sample.pid, child.pid);
        sums[((sample.addr - child.buffer.start) / (piece * OS_PAGE)) as usize] +=
            u64::from(sample.weight);
    }
    sums
}

/// The accesses for which `used` OS pages of `total` stand.
fn accesses(used: u64, total: u64) -> u64 {
    let total = total as f64;
    (total * (total / (total - used as f64).max(0.5)).ln()).round() as u64
}

/// OS pages of a spot.
const SPOT: u64 = 8;

/// The accesses for which writes to these OS pages stand, with all spots armed.
fn counted(os_pages: Range<u64>) -> u64 {
    let spots = os_pages.start / SPOT..os_pages.end.div_ceil(SPOT);
    let used = |spot: u64| os_pages.end.min((spot + 1) * SPOT) - os_pages.start.max(spot * SPOT);
    let hazard = |used: u64| (0..used).map(|before| 1.0 / (SPOT - before) as f64).sum::<f64>();
    spots.map(|spot| (SPOT as f64 * hazard(used(spot))).round() as u64).sum()
}

#[test]
fn written_os_pages_are_seen_exactly() {
    let mut sampler = sampler();
    let mut child = watched(4096, 1024, &mut sampler);
    assert!(
        sampler.capabilities().writes == Granularity::PerOsPage,
        "needs Linux 6.7 and userfaultfd"
    );
    warm(&mut sampler);
    child.write(10..20);
    child.write(2048..3072);
    let (samples, _) = drained(&mut sampler, WARM_MS + INTERVAL_MS);
    let seen = by_piece(&child, 1024, &samples, AccessKind::Write);
    assert_eq!(seen, [counted(10..20), 0, counted(2048..3072), 0]);
    let first = samples.iter().find(|sample| sample.kind == AccessKind::Write).expect("some");
    assert_eq!(first.addr, child.buffer.start + 10 * OS_PAGE);
    let (samples, _) = drained(&mut sampler, WARM_MS + 2 * INTERVAL_MS);
    let seen = by_piece(&child, 1024, &samples, AccessKind::Write);
    assert_eq!(seen, [0; 4], "armed again, and nothing was written since");
}

#[test]
fn written_os_pages_are_seen_where_sizes_are_odd() {
    let mut sampler = sampler();
    const OS_PAGES: u64 = 5003;
    let mut child = watched(OS_PAGES, OS_PAGES, &mut sampler);
    warm(&mut sampler);
    let range = child.buffer.clone();
    child.write(0..OS_PAGES);
    let (samples, _) = drained(&mut sampler, WARM_MS + INTERVAL_MS);
    for eighth in 0..8 {
        let part = OS_PAGES * eighth / 8 * OS_PAGE..OS_PAGES * (eighth + 1) / 8 * OS_PAGE;
        let within = |sample: &&Sample| part.contains(&(sample.addr - range.start));
        let written = samples.iter().filter(|sample| sample.kind == AccessKind::Write);
        assert!(written.filter(within).count() > 0, "no write is seen in eighth {eighth}");
    }
}

#[test]
fn reads_are_seen_by_window_if_windows_are_registered() {
    let mut sampler = sampler();
    let mut child = watched(4096, 1024, &mut sampler);
    drained(&mut sampler, 1000); // registers and clears
    child.read(1024..2048);
    child.read(3072..3072 + 256);
    let (samples, _) = drained(&mut sampler, 1000 + INTERVAL_MS);
    let seen = by_piece(&child, 1024, &samples, AccessKind::Unknown);
    assert_eq!(seen, [0, accesses(1024, 1024), 0, accesses(256, 1024)]);
    assert_eq!(by_piece(&child, 1024, &samples, AccessKind::Write), [0; 4]);
}

#[test]
fn without_a_userfaultfd_reads_are_spread_over_the_mapping() {
    let mut sampler = sampler();
    let mut child = Child::new(4096);
    child.write(0..4096);
    sampler.attach(child.pid).expect("our own child");
    let half = child.buffer.start + 2048 * OS_PAGE;
    sampler.may_split(child.pid, child.buffer.clone());
    sampler.watch(child.pid, &[child.buffer.start..half, half..child.buffer.end]);
    assert_eq!(sampler.capabilities().writes, Granularity::PerMapping);
    drained(&mut sampler, 1000);
    child.read(0..1024);
    let (samples, _) = drained(&mut sampler, 1000 + INTERVAL_MS);
    let seen = by_piece(&child, 2048, &samples, AccessKind::Unknown);
    // This shows a limit: the quarter that was read is in the first half alone, and the probe does
    // not see it. The mapping may have merged with a neighbour, so the shares are only roughly
    // even.
    let (least, most) = (seen[0].min(seen[1]), seen[0].max(seen[1]));
    assert!(least > 0 && most <= least * 11 / 10 + 1, "{seen:?}");
}

#[test]
fn a_random_subset_of_spots_stands_for_all() {
    let mut sampler = sampler();
    sampler.config.probe_spots = 64;
    let mut child = watched(4096, 1024, &mut sampler); // 512 spots
    let mut sums = [0u64; 4];
    for turn in 0..400 {
        let (samples, _) = drained(&mut sampler, 1000 + turn * INTERVAL_MS);
        let seen = by_piece(&child, 1024, &samples, AccessKind::Write);
        sums.iter_mut().zip(seen).for_each(|(sum, seen)| *sum += seen);
        child.write(0..4);
        child.write(2048..2052);
    }
    assert_eq!((sums[1], sums[3]), (0, 0));
    // 4 OS pages in each of 400 intervals; an eighth of them is read, and stands for eight times as
    // many.
    let truth = 400 * 8 * counted(0..4) / 8;
    for hot in [sums[0], sums[2]] {
        assert!(hot.abs_diff(truth) < truth * 4 / 10, "{sums:?}, expected {truth}");
    }
}

#[test]
fn the_number_of_spots_follows_their_cost() {
    let mut sampler = sampler();
    let mut child = watched(8192, 8192, &mut sampler); // 1024 spots
    let seen = |sampler: &mut ProbeSampler, now_ms| {
        let (samples, _) = drained(sampler, now_ms);
        samples.iter().filter(|sample| sample.kind == AccessKind::Write).count()
    };
    seen(&mut sampler, 1000);
    let cheap: Vec<usize> = (1..8)
        .map(|turn| {
            (0..1024).for_each(|spot| child.write(spot * SPOT..spot * SPOT + SPOT / 2));
            seen(&mut sampler, 1000 + turn * INTERVAL_MS)
        })
        .collect();
    assert!(cheap[6] >= 512, "{cheap:?}");
    sampler.config.cpu_budget = 1e-6;
    let mut now_ms = 2000;
    let dear: Vec<usize> = (1..8)
        .map(|_| {
            (0..1024).for_each(|spot| child.write(spot * SPOT..spot * SPOT + SPOT / 2));
            now_ms += INTERVAL_MAX_MS;
            seen(&mut sampler, now_ms)
        })
        .collect();
    assert!(dear[6] <= 4, "{dear:?}");
}

#[test]
fn the_pace_follows_the_budget() {
    let mut sampler = sampler();
    sampler.config.cpu_budget = 1e-6;
    let mut child = watched(4096, 1024, &mut sampler);
    warm(&mut sampler);
    child.write(0..4096);
    assert_eq!(drained(&mut sampler, WARM_MS + INTERVAL_MS).0, [], "not due yet");
    let (samples, _) = drained(&mut sampler, WARM_MS + INTERVAL_MAX_MS);
    assert!(!samples.is_empty(), "due at the latest now");
    assert!(sampler.cost().passes >= 4 && sampler.cost().daemon_cpu > Duration::ZERO);
}

#[test]
fn a_drain_is_bounded_and_counts_what_it_skipped() {
    let mut sampler = sampler();
    sampler.config.drain_max = 3;
    let mut child = watched(8192, 1024, &mut sampler);
    warm(&mut sampler);
    (0..8).for_each(|i| child.write(i * 1024..i * 1024 + 1));
    let (samples, met) = drained(&mut sampler, WARM_MS + INTERVAL_MS);
    assert_eq!((samples.len(), met.samples), (3, 3));
    assert!(met.lost >= 5, "{met:?}");
}

#[test]
fn outside_the_heap_mappings_stay_whole() {
    let mut sampler = sampler();
    let mut child = watched(4096, 1024, &mut sampler);
    sampler.may_split(child.pid, 0..0);
    let middle = child.buffer.start + 2048 * OS_PAGE;
    sampler.watch(child.pid, &[child.buffer.start..middle, middle..child.buffer.end]);
    drained(&mut sampler, 1000);
    assert!(child.moves_whole(), "mremap of the whole buffer works");
    sampler.may_split(child.pid, child.buffer.clone());
    sampler.watch(child.pid, &[child.buffer.start..middle, middle..child.buffer.end]);
    drained(&mut sampler, 1000 + INTERVAL_MS);
    assert!(!child.moves_whole(), "why it matters: a split mapping does not");
}

#[test]
fn a_resized_window_keeps_what_was_seen() {
    let mut sampler = sampler();
    let mut child = watched(4096, 2048, &mut sampler);
    warm(&mut sampler);
    child.write(0..100);
    let at = |os_page| child.buffer.start + os_page * OS_PAGE;
    sampler.watch(child.pid, &[at(0)..at(1024), at(3072)..at(4096)]);
    let (samples, _) = drained(&mut sampler, WARM_MS + INTERVAL_MS);
    let seen = by_piece(&child, 1024, &samples, AccessKind::Write);
    assert_eq!(seen, [counted(0..100), 0, 0, 0], "shrunk: still armed");
    sampler.watch(child.pid, std::slice::from_ref(&(at(0)..at(2048))));
    let (samples, _) = drained(&mut sampler, WARM_MS + 2 * INTERVAL_MS);
    let seen = by_piece(&child, 1024, &samples, AccessKind::Write);
    assert_eq!(seen, [0; 4], "grown: memory that was not armed does not count as written");
    // Of new memory one look shows which windows show how it is used.
    drained(&mut sampler, WARM_MS + 3 * INTERVAL_MS);
    child.write(1500..1600);
    let (samples, _) = drained(&mut sampler, WARM_MS + 4 * INTERVAL_MS);
    let seen = by_piece(&child, 1024, &samples, AccessKind::Write);
    assert_eq!(seen, [0, counted(1500..1600), 0, 0]);
}

#[test]
fn released_ranges_can_be_registered_with_another_userfaultfd() {
    let mut sampler = sampler();
    let mut child = watched(4096, 2048, &mut sampler);
    warm(&mut sampler);
    let at = |os_page| child.buffer.start + os_page * OS_PAGE;
    let (halves, moving) = ([at(0)..at(2048), at(2048)..at(4096)], at(100)..at(200));
    let userfaultfds = child.userfaultfds();
    let is_refused =
        |uffd: &&std::os::fd::OwnedFd, half: usize| sys::register(uffd, &halves[half]).is_err();
    let stranger =
        |half| userfaultfds.iter().find(|uffd| is_refused(uffd, half)).expect("half is held");
    let (first, second) = (stranger(0), stranger(1));
    sampler.release(child.pid, std::slice::from_ref(&moving));
    sampler.watch(child.pid, &halves);
    drained(&mut sampler, WARM_MS + INTERVAL_MS);
    assert!(
        !is_refused(&first, 0),
        "the window of the moving range is free, whatever is watched meanwhile"
    );
    assert!(is_refused(&second, 1), "the other one is not");
    sys::unregister(first, &halves[0]).expect("it was registered just now");
    sampler.release(child.pid, &[]);
    drained(&mut sampler, WARM_MS + 2 * INTERVAL_MS);
    child.write(0..100);
    let (samples, _) = drained(&mut sampler, WARM_MS + 3 * INTERVAL_MS);
    assert_eq!(by_piece(&child, 2048, &samples, AccessKind::Write), [counted(0..100), 0]);
}

#[test]
fn what_a_program_maps_anew_is_seen_again() {
    let mut sampler = sampler();
    let mut child = watched(4096, 4096, &mut sampler);
    warm(&mut sampler);
    assert!(child.maps_anew());
    child.write(0..4096);
    // Spots that show nothing find out that nothing is registered there.
    drained(&mut sampler, WARM_MS + INTERVAL_MS);
    for turn in 2..5 {
        drained(&mut sampler, WARM_MS + turn * INTERVAL_MS);
    }
    child.write(0..100);
    let (samples, _) = drained(&mut sampler, WARM_MS + 5 * INTERVAL_MS);
    assert_eq!(by_piece(&child, 4096, &samples, AccessKind::Write), [counted(0..100)]);
}

#[test]
fn a_vanished_process_harms_no_other() {
    let mut sampler = sampler();
    let mut child = watched(4096, 1024, &mut sampler);
    drained(&mut sampler, 1000);
    child.exit();
    assert_eq!(drained(&mut sampler, 1000 + INTERVAL_MS).0, []);
    sampler.watch(child.pid, &[]);
    sampler.detach(child.pid);
    let error = sampler.attach(child.pid).expect_err("it is gone");
    assert!(matches!(error, SamplerError::Vanished { .. }), "{error}");
}

#[test]
fn a_descriptor_that_is_not_a_userfaultfd_is_closed_and_reads_still_work() {
    let mut sampler = sampler();
    let child = Child::new(16);
    sampler.attach(child.pid).expect("our own child");
    let null = std::fs::File::open("/dev/null").expect("/dev/null");
    sampler.accept(child.pid, TargetHandle::Userfaultfd(null.into()));
    assert_eq!(sampler.capabilities().writes, Granularity::PerMapping);
}

#[test]
fn ranges_that_are_not_mapped_are_skipped() {
    let mut sampler = sampler();
    let mut child = watched(4096, 1024, &mut sampler);
    let beyond = 1 << 46;
    sampler.watch(child.pid, &[child.buffer.clone(), beyond..beyond + (4 << 20)]);
    warm(&mut sampler);
    child.write(0..8);
    let (samples, _) = drained(&mut sampler, WARM_MS + INTERVAL_MS);
    let seen = by_piece(&child, 4096, &samples, AccessKind::Write);
    assert_eq!(seen, [counted(0..8)]);
}

/// A program that uses all its memory in every interval: 128 MiB, half of it 20 times as hot.
fn hot_and_warm(writes: bool, kind: AccessKind) -> (u64, u64) {
    const HALF: u64 = 16_384;
    let mut sampler = sampler();
    let mut child = watched(2 * HALF, HALF, &mut sampler);
    warm(&mut sampler);
    child.hammer(writes, 20);
    let mut sums = (0, 0);
    for turn in 1..30 {
        let (samples, _) = drained(&mut sampler, WARM_MS + turn * INTERVAL_MS);
        let seen = by_piece(&child, HALF, &samples, kind);
        sums = (sums.0 + seen[0], sums.1 + seen[1]);
    }
    sums
}

/// Where others have the CPUs, the program hardly runs within the short windows, so it has several
/// chances; a sampler that cannot distinguish them would see a ratio near 1 in each.
fn assert_distinguished(writes: bool, kind: AccessKind) {
    let mut seen = Vec::new();
    for _ in 0..4 {
        let (hot, warm) = hot_and_warm(writes, kind);
        if warm > 0 && hot > 3 * warm {
            return;
        }
        seen.push((hot, warm));
    }
    panic!("hot and warm: {seen:?}");
}

#[test]
fn busy_memory_is_distinguished_by_writes() {
    assert_distinguished(true, AccessKind::Write);
}

#[test]
fn busy_memory_is_distinguished_by_reads() {
    assert_distinguished(false, AccessKind::Unknown);
}

#[test]
fn small_os_pages_are_no_huge_ones() {
    let mut child = Child::new(8);
    child.write(0..8);
    match huge_runs(child.pid, std::slice::from_ref(&child.buffer)) {
        Ok(runs) => assert_eq!(runs, [], "32 KiB"),
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOTTY), "before 6.7"),
    }
    assert!(huge_runs(u32::MAX, &[]).is_err(), "no such process");
}
