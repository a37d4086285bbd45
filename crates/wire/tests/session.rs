//! A client and a daemon over one memfd: what is put in comes out, and nothing hostile harms.

use std::os::fd::OwnedFd;

use proptest::prelude::*;
use tiercel_wire::client::{ClientSession, SessionBuilder};
use tiercel_wire::layout::{
    self, CONTROL_AT, HEADER_AT, PHASE_NAME_MAX, PHASE_WAIT_MS_MAX, PLAN_ROWS_MAX, RING_BYTES,
    RING_RECORDS, RINGS_AT, header,
};
use tiercel_wire::{
    ClockSource, Flags, Frame, Module, ObjectSnapshot, PhaseName, PlanError, PlanRange, PlanRow,
    Record, Session, SessionError, Site, SiteKind, Small, Version, phase_hash,
};

const BASE: u64 = 1 << 40;

fn pair() -> (ClientSession, Session) {
    let client = SessionBuilder::new().build().expect("memfd");
    let session = Session::open(client.fd().expect("fd")).expect("opens");
    (client, session)
}

fn born(page: u64, generation: u16) -> Record {
    Record::Born {
        addr: BASE + page * 4096,
        bytes: 8192,
        site: 3,
        version: Version { carve: 1, generation },
        arena: Some(1),
        flags: Flags::BLOCK,
        time_ns: 0,
    }
}

fn object(page: u64, pages: u64) -> ObjectSnapshot {
    ObjectSnapshot {
        addr: BASE + page * 4096,
        bytes: pages * 4096,
        site: 9,
        version: Version { carve: 77, generation: 5 },
        arena: None,
        flags: Flags::default(),
    }
}

#[test]
fn records_arrive_whole_and_losses_are_counted() {
    let (client, mut session) = pair();
    let mut ring = client.ring(0);
    let sent: Vec<_> = (0..RING_RECORDS as u64).map(|page| born(page, 1)).collect();
    assert!(sent.iter().all(|record| ring.push(record)));
    assert!(!ring.push(&born(0, 2)), "the ring is full");
    client.lose_without_ring(3);
    let mut out = vec![];
    let drained = session.drain(&mut out, usize::MAX);
    assert_eq!((drained.records, drained.lost, drained.more), (RING_RECORDS, 4, false));
    assert_eq!(out, sent);
    assert!(ring.push(&born(0, 2)), "the ring has room again");
    assert_eq!(session.drain(&mut out, 10).lost, 0, "a loss is reported once");
}

#[test]
fn a_busy_ring_does_not_starve_the_others() {
    let (client, mut session) = pair();
    let (mut busy, mut quiet) = (client.ring(0), client.ring(1));
    for generation in 0..100 {
        busy.push(&born(0, generation));
    }
    quiet.push(&born(7, 0));
    let mut out = vec![];
    assert!(session.drain(&mut out, 10).more);
    assert!(!out.contains(&born(7, 0)));
    session.drain(&mut out, 10);
    assert!(out.contains(&born(7, 0)));
}

#[test]
fn a_malformed_record_counts_as_a_loss() {
    let (client, mut session) = pair();
    client.ring(0).push(&born(0, 0));
    client.write_at(RINGS_AT + layout::RING_SLOTS as u64 + 30, &[0xee]).expect("writes");
    let mut out = vec![];
    let drained = session.drain(&mut out, 10);
    assert_eq!((out.len(), drained.malformed, drained.lost), (0, 1, 1));
}

#[test]
fn the_snapshot_skips_holes_and_lists_live_objects() {
    let pages = layout::RANGE_PAGES_MAX;
    let client = SessionBuilder::new().range(BASE, pages).build().expect("memfd");
    let session = Session::open(client.fd().expect("fd")).expect("opens");
    let runs = [object(0, 1), object(1, 5000), object(9000, 3), object(pages - 4, 4)];
    let inside_another = object(2, 1);
    let beyond_the_range = object(pages - 5, 6);
    for run in runs.iter().chain([&inside_another, &beyond_the_range]) {
        client.put_run(run).expect("writes");
    }
    let map = ObjectSnapshot { addr: 4096, flags: Flags::MAPPED, arena: Some(0), ..object(0, 2) };
    client.put_map(5, Some(&map)).expect("writes");
    let all = session.objects();
    assert_eq!((all[0], &all[1..]), (map, &runs[..]), "ascending by address");
    let slices = std::iter::successors(Some(session.objects_from(0, 1)), |slice| {
        (slice.range.end < u64::MAX).then(|| session.objects_from(slice.range.end, 1))
    });
    let slices: Vec<_> = slices.collect();
    assert!(slices.iter().all(|slice| slice.objects.len() <= 1), "{slices:?}");
    assert!(slices.windows(2).all(|two| two[0].range.end == two[1].range.start), "{slices:?}");
    let sliced: Vec<_> = slices.into_iter().flat_map(|slice| slice.objects).collect();
    assert_eq!(sliced, all);
    client.clear_run(runs[2].addr).expect("writes");
    client.put_map(5, None).expect("writes");
    assert_eq!(session.objects(), [runs[0], runs[1], runs[3]]);
}

#[test]
fn sites_and_modules_are_read_as_written() {
    let (client, session) = pair();
    let site = Site {
        kind: SiteKind::Shared,
        hash: 0xfeed,
        frames: vec![
            Frame { module: Some(2), offset: 0x1234 },
            Frame { module: None, offset: 0x7f00_0000_0000 },
        ],
    };
    let module = Module { base: 4096, build_id: vec![1, 2, 3], path: "/usr/lib/libx.so".into() };
    client.put_site(7, &site).expect("writes");
    client.put_module(2, &module).expect("writes");
    assert_eq!(session.site(7), Some(site));
    assert_eq!(session.module(2), Some(module));
    assert_eq!((session.site(8), session.module(3)), (None, None));
    assert_eq!((session.site(u32::MAX), session.module(u16::MAX)), (None, None));
    assert_eq!((session.header().site_count, session.header().module_count), (8, 3));
}

#[test]
fn small_objects_are_read_as_written() {
    let (client, session) = pair();
    assert_eq!(session.smalls(), []);
    let small = Small {
        site: 7,
        born_bytes: 1 << 40,
        live_bytes: 5 << 15,
        births: 9,
        lives: 5,
        deaths: 4,
        life_ms: 30,
    };
    let last = Small { site: 65_535, lives: 20, ..small };
    client.put_small(&small).expect("writes");
    client.put_small(&last).expect("writes");
    // More live ones than births are a lie.
    assert_eq!(session.smalls(), [small, Small { lives: 9, ..last }]);
}

#[test]
fn births_since_the_mark_reduce_the_next_budget() {
    let (client, session) = pair();
    session.set_birth_budget(0, 1000);
    client.take_birth_bytes(0, 100);
    session.mark_births();
    client.take_birth_bytes(0, 30);
    session.set_birth_budget(0, 500);
    assert_eq!(session.birth_budget(0), 470);
    // Corrected without a mark: it replaces the one before.
    session.set_birth_budget(0, 600);
    assert_eq!(session.birth_budget(0), 570);
    // Whatever the client writes there, the next mark begins anew.
    client.take_birth_bytes(0, i64::MIN);
    session.set_birth_budget(0, i64::MAX);
    session.mark_births();
    session.set_birth_budget(0, 7);
    assert_eq!(session.birth_budget(0), 7);
}

#[test]
fn the_control_page_reaches_the_client() {
    let (client, session) = pair();
    session.set_clock(ClockSource::Counter);
    session.set_arenas(&[2, 0]);
    session.set_birth_budget(1, 1 << 20);
    session.set_small_arena(1);
    assert_eq!((client.clock(), client.arenas()), (1, vec![2, 0]));
    assert_eq!(client.take_birth_bytes(1, 4096), (1 << 20) - 4096);
    assert_eq!(session.birth_budget(1), (1 << 20) - 4096);
    assert_eq!((client.small_arena(), client.is_detached()), (1, false));
    session.detach();
    assert!(client.is_detached());
}

#[test]
fn births_can_be_left_to_the_kernel_in_an_arena_of_their_own() {
    let (client, session) = pair();
    session.set_arenas(&[2, 0, 64]);
    session.set_first_touch(&[2, 63, 64, -2], true);
    assert_eq!(client.first_touch(), (1 << 2 | 1 << 63, Some(3)));
    session.set_first_touch(&[], false);
    assert_eq!(client.first_touch(), (0, None));
}

#[test]
fn the_daemon_learns_what_a_heap_keeps_of_dead_objects() {
    let (client, session) = pair();
    client.set_idle_bytes(1, 3 << 20);
    client.set_idle_bytes(7, u64::MAX);
    assert_eq!(session.idle_bytes(), [0, 3 << 20, 0, 0, 0, 0, 0, u64::MAX]);
}

#[test]
fn a_plan_reaches_the_client_sorted_and_can_be_replaced() {
    let (client, mut session) = pair();
    assert_eq!((client.plan(), client.spaces()), ((vec![], None), [None; 3]));
    let row = |site, size_class, arena| PlanRow {
        site,
        size_class,
        phase: phase_hash("solve"),
        arena,
        other: 0,
        share: 255,
        ranges: [
            PlanRange { from: 3, to: 60_000 },
            PlanRange::default(),
            PlanRange::default(),
            PlanRange { from: 60_001, to: 65_535 },
        ],
    };
    session.set_plan(&[row(9, 12, 1), row(2, 255, 0), row(2, 14, 1)], Some(1)).expect("a plan");
    session.set_spaces([Some(0), None, Some(1)]);
    let rows = vec![row(2, 14, 1), row(2, 255, 0), row(9, 12, 1)];
    assert_eq!(client.plan(), (rows, Some(1)));
    assert_eq!(client.spaces(), [Some(0), None, Some(1)]);
    session.set_plan(&[row(7, 12, 0)], None).expect("another");
    assert_eq!(client.plan(), (vec![row(7, 12, 0)], None));
    assert_eq!(client.spaces(), [Some(0), None, Some(1)]);
    let many = vec![row(1, 1, 0); PLAN_ROWS_MAX + 1];
    assert!(matches!(session.set_plan(&many, None), Err(PlanError::TooLarge(_))));
    assert_eq!(client.plan(), (vec![row(7, 12, 0)], None));
}

#[test]
fn phases_are_entered_by_name_and_answered() {
    let (client, session) = pair();
    assert_eq!((session.phase_entered(), session.phase_name(0)), ((0, 0), None));
    session.set_stops(&[phase_hash("solve")], u32::MAX);
    assert_eq!(client.phase_wait_ms("solve"), PHASE_WAIT_MS_MAX);
    assert_eq!(client.phase_wait_ms("setup"), 0);
    let long = "x".repeat(80);
    client.enter_phase(1, "solve", 1).expect("writes");
    client.enter_phase(255, &long, 2).expect("writes");
    assert_eq!(session.phase_entered(), (2, 255));
    let solve = PhaseName { hash: phase_hash("solve"), name: "solve".to_owned() };
    assert_eq!(session.phase_name(1), Some(solve));
    assert_eq!(session.phase_name(255).map(|p| p.name), Some(long[..PHASE_NAME_MAX].to_owned()));
    assert_eq!((session.phase_name(2), session.phase_name(u32::MAX)), (None, None));
    session.set_phase_done(2);
    assert_eq!(client.phase_done(), 2);
}

#[test]
fn a_runtime_that_detached_states_the_reason() {
    let (client, session) = pair();
    assert_eq!(session.header().detached, None);
    client.write_at(HEADER_AT + header::REASON as u64, b"out of memory\0").expect("writes");
    client.write_at(HEADER_AT + header::DETACHED as u64, &[1]).expect("writes");
    assert_eq!(session.header().detached.as_deref(), Some("out of memory"));
}

fn refusal(fd: OwnedFd) -> SessionError {
    Session::open(fd).err().expect("refused")
}

#[test]
fn invalid_memfds_are_refused_with_the_reason() {
    let file: OwnedFd = tempfile::tempfile().expect("file").into();
    assert!(matches!(refusal(file), SessionError::NotMemfd(_)));
    let open = SessionBuilder::new().unsealed().build().expect("memfd");
    assert!(matches!(refusal(open.fd().expect("fd")), SessionError::NotSealed));
    let spoil = |at: usize, bytes: &[u8]| {
        let client = SessionBuilder::new().build().expect("memfd");
        client.write_at(HEADER_AT + at as u64, bytes).expect("writes");
        refusal(client.fd().expect("fd"))
    };
    assert!(matches!(spoil(header::MAGIC, &[0]), SessionError::Magic));
    assert!(matches!(spoil(header::VERSION, &[99]), SessionError::Version(99)));
    assert!(matches!(spoil(header::RANGE_PAGES, &[1]), SessionError::Size { .. }));
    assert!(matches!(spoil(header::RANGE_PAGES + 7, &[0xff]), SessionError::Range { .. }));
    assert!(matches!(spoil(header::RANGE_BASE, &[1]), SessionError::Range { .. }));
}

/// OS pages of memory that a session holds.
fn os_pages(client: &ClientSession) -> u64 {
    let stat = rustix::fs::fstat(client.fd().expect("fd")).expect("stat");
    stat.st_blocks.unsigned_abs() * 512 / 4096
}

#[test]
fn no_part_can_be_punched_out_once_the_daemon_has_it() {
    let (client, mut session) = pair();
    client.ring(0).push(&born(0, 0));
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    let fd = client.fd().expect("fd");
    let punched = rustix::fs::fallocate(&fd, flags, 0, client.total_bytes());
    assert_eq!(punched, Err(rustix::io::Errno::PERM));
    let mut out = vec![];
    session.drain(&mut out, 10);
    assert_eq!(out.len(), 1);
}

#[test]
fn reading_holes_of_rings_fills_none() {
    let (client, mut session) = pair();
    let mut ring = client.ring(0);
    ring.push(&born(0, 0));
    // Every ring claims to be in use; the second has counters, and no records below them.
    client.write_at(HEADER_AT + header::RING_HIGH_WATER as u64, &[0, 4]).expect("writes");
    let second = RINGS_AT + RING_BYTES as u64;
    client.write_at(second, &(RING_RECORDS as u64).to_le_bytes()).expect("writes");
    let before = os_pages(&client);
    let mut out = vec![];
    let drained = session.drain(&mut out, 10_000);
    assert_eq!((drained.records, drained.lost), (1, RING_RECORDS as u64));
    assert_eq!(os_pages(&client), before);
    // What is written later has memory, and arrives.
    assert!(client.ring(1).push(&born(1, 1)) && client.ring(2).push(&born(2, 2)));
    out.clear();
    assert_eq!(session.drain(&mut out, 10_000).records, 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a client scribbles, every call returns and what comes out is bounded and sane.
    #[test]
    fn arbitrary_writes_to_a_session_are_safe(
        scribbles in proptest::collection::vec(
            (0usize..6, 0u64..8192, proptest::collection::vec(any::<u8>(), 1..256)), 1..32),
    ) {
        let (client, mut session) = pair();
        client.ring(0).push(&born(1, 1));
        let areas = [
            HEADER_AT, CONTROL_AT, RINGS_AT, RINGS_AT + RING_BYTES as u64, layout::MAPS_AT,
            layout::RUNS_AT,
        ];
        let mut out = vec![];
        for (area, at, bytes) in scribbles {
            client.write_at(areas[area] + at, &bytes).expect("writes");
            let drained = session.drain(&mut out, 5000);
            prop_assert!(drained.records <= 5000);
            out.clear();
            for object in session.objects() {
                prop_assert!(object.bytes > 0 && object.addr % 4096 == 0);
            }
            let header = session.header();
            prop_assert!(header.ring_high_water as usize <= layout::RINGS_MAX);
        }
    }
}
