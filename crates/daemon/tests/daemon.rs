//! The daemon in a thread, with clients of this process, a sampler and a mover of our own.
//! In: sessions as a runtime makes them. Out: what the daemon says over its control socket.
//! Knows nothing of libtiercel.so: crates/tiercel/tests has the real programs.

mod stage;

use rustix::net::sockopt;
use stage::{MIB, Stage, born, died, object};
use std::ffi::OsStr;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tiercel_daemon::protocol::{Order, PEERS_MAX, REQUEST_BYTES_MAX, Request};
use tiercel_daemon::{Fits, Summary};
use tiercel_policy::Limit;
use tiercel_wire::client::{ClientSession, SessionBuilder};
use tiercel_wire::layout::{MAPS_AT, RING_RECORDS, RINGS_AT, RUNS_AT};
use tiercel_wire::{
    Backing, Flags, Frame, Module, ObjectSnapshot, Record, Site, SiteKind, Status, Version,
};

#[test]
fn a_client_is_hosted_and_its_objects_are_seen() {
    let stage = Stage::new();
    let session = stage.host(2 * MIB);
    let mut ring = session.ring(0);
    assert!(ring.push(&born((1 << 40) + 4 * MIB, MIB, 2)));
    stage.until("three MiB live", |s: &Summary| s.objects.live_bytes == 3 * MIB);
    assert!(ring.push(&died((1 << 40) + 4 * MIB, MIB, 2)));
    stage.until("two MiB live", |s| s.objects.live_bytes == 2 * MIB);
    assert_eq!(session.clock(), tiercel_wire::ClockSource::of_this_machine() as u32);
    assert!(!session.is_detached());
    let farewell = stage.stop();
    assert!(session.is_detached(), "a daemon that leaves says so");
    assert_eq!(farewell.summary.objects.peak_bytes, 3 * MIB);
    assert_eq!(farewell.summary.clients.attached, 1);
    assert_eq!(farewell.sites.iter().map(|row| row.used.births).sum::<u64>(), 2);
}

#[test]
fn the_same_process_again_replaces_itself() {
    let stage = Stage::new();
    let _first = stage.host(MIB);
    let _second = stage.host(5 * MIB);
    stage.until("only the second lives", |s| {
        s.clients.now == 1 && s.clients.replaced == 1 && s.objects.live_bytes == 5 * MIB
    });
}

#[test]
fn a_full_ring_heals() {
    let stage = Stage::with(|config| config.poll_max_ms = 100);
    let session = SessionBuilder::new().build().unwrap();
    assert_eq!(stage.attach(&session).status, Status::Ok);
    let mut ring = session.ring(0);
    let mut lost = 0;
    // More than a ring holds at once: whatever the daemon's pace, most of a burst is lost.
    for i in 0..20 * RING_RECORDS as u64 {
        let addr = (1 << 40) + (i % 1024) * MIB / 4;
        let version = (i / 1024) as u32 * 2 + 1;
        lost += u64::from(!ring.push(&born(addr, MIB / 4, version)));
    }
    assert!(lost > 0, "the burst fitted: this test tests nothing");
    for i in 0..3 {
        session.put_run(&object((1 << 40) + i * 16 * MIB, 16 * MIB)).unwrap();
    }
    stage.until("the table is the truth again", |s| {
        s.records.lost == lost && s.records.resyncs > 0 && s.objects.live_bytes == 48 * MIB
    });
}

#[test]
fn a_first_look_at_a_full_table_lets_others_be_served() {
    const OBJECTS: u64 = 1 << 18;
    let stage = Stage::new();
    let session = SessionBuilder::new().range(1 << 40, 1 << 20).build().unwrap();
    let entry = |_| [(1u64 << 32 | 1).to_le_bytes(), (1u64 << 8).to_le_bytes()].concat();
    let table: Vec<u8> = (0..OBJECTS).flat_map(entry).collect();
    session.write_at(RUNS_AT, &table).unwrap();
    let last = object((1 << 40) + OBJECTS * 4096, 4096);
    session.put_run(&last).unwrap();
    assert_eq!(stage.attach(&session).status, Status::Ok);
    // It takes 24 turns at least, and between two of them a request is answered.
    let all = (OBJECTS + 1) * 4096;
    let early = stage.status().objects.live_bytes;
    assert!(early < all, "it was answered after the whole look");
    // What is born meanwhile, in what was read and in what was not, counts once.
    let more = object((1 << 40) + (OBJECTS + 1) * 4096, 4096);
    session.put_run(&more).unwrap();
    let mut ring = session.ring(0);
    assert!(ring.push(&born(more.addr, 4096, 1_000_000)));
    stage.until("all of it is read", |s| s.objects.live_bytes == all + 4096);
    stage.until("a tick has passed", |s| s.spent.ticks > 1);
    let births: u64 = stage.stop().sites.iter().map(|row| row.used.births).sum();
    assert_eq!(births, OBJECTS + 2);
}

#[test]
fn a_corrupted_session_harms_no_other_client() {
    let stage = Stage::new();
    let session = SessionBuilder::new().build().unwrap();
    assert_eq!(stage.attach(&session).status, Status::Ok);
    let mut seed = 1u64;
    let mut garbage = || {
        let next = |_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 56) as u8
        };
        (0..65_536).map(next).collect::<Vec<u8>>()
    };
    for at in [0, 65_536, MAPS_AT, RINGS_AT, RINGS_AT + (4 << 20), RUNS_AT] {
        session.write_at(at, &garbage()).unwrap();
    }
    let ticks = stage.status().spent.ticks;
    stage.until("it ticks on", |s| s.spent.ticks > ticks + 2);
    assert_eq!(stage.attach(&SessionBuilder::new().build().unwrap()).status, Status::Ok);
}

/// Whether the last close of one is the daemon's or ours is a race: of several, some are the
/// daemon's.
const LINGERING: u64 = 8;

#[test]
fn a_descriptor_that_takes_an_hour_to_close_delays_neither_requests_nor_clients() {
    let stage = Stage::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut open = Vec::new();
    for _ in 0..LINGERING {
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        sender.set_nonblocking(true).unwrap();
        while (&sender).write(&[0; 65_536]).is_ok() {}
        sockopt::set_socket_linger(&sender, Some(Duration::from_secs(3600))).unwrap();
        let hostile = stage::socket();
        stage::connect(&hostile, stage.clients_path());
        stage::send_hello(&hostile, 4096, sender.as_fd()).unwrap();
        // Waits here if the daemon was first, and ends with the process.
        std::thread::spawn(move || drop(sender));
        open.push((receiver, hostile));
    }
    stage
        .until("all are refused", |s| s.clients.refused.get("no usable memfd") == Some(&LINGERING));
    assert_eq!(stage.attach(&SessionBuilder::new().build().unwrap()).status, Status::Ok);
}

#[test]
fn a_path_that_is_not_utf8_is_answered() {
    let stage = Stage::new();
    let session = SessionBuilder::new().build().unwrap();
    // One of Latin-1, and one that was cut in the middle of a character.
    for (id, path) in [(0, &b"/home/fran\xe7ois/solver"[..]), (1, b"\xa9/solver")] {
        let path = PathBuf::from(OsStr::from_bytes(path));
        let module = Module { base: 4096, build_id: Vec::new(), path };
        session.put_module(id, &module).unwrap();
        let frames = vec![Frame { module: Some(id), offset: 16 }];
        let site = Site { hash: 5 + u64::from(id), frames, ..Site::default() };
        session.put_site(1 + u32::from(id), &site).unwrap();
        let at = (1 << 40) + u64::from(id) * 16 * MIB;
        session.put_run(&ObjectSnapshot { site: 1 + u32::from(id), ..object(at, MIB) }).unwrap();
    }
    assert_eq!(stage.attach(&session).status, Status::Ok);
    stage.until("both live", |s| s.objects.live_bytes == 2 * MIB);
    let objects = stage.ask(&Request::Sites { by: Order::Site, limit: 10 }, "objects");
    let rows = objects["rows"].as_array().unwrap().iter();
    let mut paths: Vec<_> = rows.filter_map(|row| row["frames"][0]["path"].as_str()).collect();
    paths.sort_unstable();
    assert_eq!(paths, ["/home/fran\u{fffd}ois/solver", "\u{fffd}/solver"]);
}

#[test]
fn a_memfd_that_could_shrink_is_refused() {
    let stage = Stage::new();
    let session = SessionBuilder::new().unsealed().build().unwrap();
    assert_eq!(stage.attach(&session).status, Status::RefusedMemfd);
    let refused = stage.status().clients.refused;
    assert_eq!(refused.get("no usable memfd"), Some(&1), "{refused:?}");
}

#[test]
fn garbage_on_the_control_socket_gets_an_error() {
    let stage = Stage::new();
    let mut peer = stage.peer();
    for line in [&b"{}"[..], b"nonsense", b"\xff\xfe\x00", b"[[[[", b"{\"version\":9}"] {
        peer.get_mut().write_all(line).unwrap();
        peer.get_mut().write_all(b"\n").unwrap();
        let answer = stage::line(&mut peer);
        assert!(answer.contains("\"error\""), "{answer}");
    }
    let long = vec![b'x'; 3 * REQUEST_BYTES_MAX];
    // The daemon may close before all of it is written: that is an answer too.
    let _ = peer.get_mut().write_all(&long);
    assert!(stage::line(&mut peer).contains("longer than"));
    assert_eq!(stage::line(&mut peer), "", "the connection ends");
    stage.status();
}

#[test]
fn control_connections_are_bounded_and_the_rest_goes_on() {
    let stage = Stage::new();
    let mut peers: Vec<_> = (0..PEERS_MAX).map(|_| stage.peer()).collect();
    for peer in &mut peers {
        peer.get_mut()
            .write_all(&tiercel_daemon::protocol::request_line(&Request::Status))
            .unwrap();
        assert!(stage::line(peer).contains("\"status\""));
    }
    let mut beyond = stage.peer();
    assert_eq!(stage::line(&mut beyond), "");
    // One that asks and never reads is dropped, and costs the others nothing.
    let ask = tiercel_daemon::protocol::request_line(&Request::Metrics);
    for _ in 0..100_000 {
        if peers[0].get_mut().write_all(&ask).is_err() {
            break;
        }
    }
    peers[1].get_mut().write_all(&ask).unwrap();
    assert!(stage::line(&mut peers[1]).contains("tiercel_clients"));
    drop(peers);
    stage.until("there is room again", |_| true);
}

#[test]
fn what_is_hot_and_slow_is_promoted_and_the_log_says_why() {
    let stage = Stage::with(|config| config.fast = Limit::Bytes(8 * MIB));
    let session = SessionBuilder::new().build().unwrap();
    let (cold, hot) = (1 << 40, (1 << 40) + 16 * MIB);
    session.put_run(&object(cold, 8 * MIB)).unwrap();
    session.put_run(&object(hot, 4 * MIB)).unwrap();
    assert_eq!(stage.attach(&session).status, Status::Ok);
    stage.feed(hot, 4 * MIB);
    // Piece by piece: an extent has at most a sixteenth of the budget.
    let promoted = |s: &Summary| s.moves.moved_bytes.get("promote").copied().unwrap_or(0);
    let moved = stage.until("the hot one moves", |s| promoted(s) >= 4 * MIB);
    assert!(moved.modelled && !moved.mover_note.is_empty());
    let log = stage.ask(&Request::Moves { limit: 100 }, "moves");
    let log = log.as_array().unwrap();
    // Without a gate what is not hot fills the rest of the budget.
    let is_hot = |row: &serde_json::Value| {
        let asked = &row["asked"];
        let is_within = (hot..hot + 4 * MIB).contains(&asked["addr"].as_u64().unwrap());
        let gains = asked["gain_ns_per_s"].as_f64().unwrap() > 0.0;
        asked["reason"] == "promote" && is_within && gains
    };
    assert!(log.iter().any(is_hot), "{log:?}");
    let objects = stage.ask(&Request::Sites { by: Order::Heat, limit: 5 }, "objects");
    assert!(objects["rows"][0]["used"]["samples"].as_u64().unwrap() > 0);
}

#[test]
fn what_a_program_moves_itself_the_sampler_lets_go_meanwhile() {
    let released = |backing| {
        let stage = Stage::with(|config| config.backing = backing);
        let _session = stage.host(64 * MIB);
        stage.feed(1 << 40, 4 * MIB);
        stage.until("something moves", |s| s.moves.moved_bytes_all() > 0);
        stage.release.lock().unwrap().clone()
    };
    assert_eq!(released(Backing::Kernel), [[]; 0], "the kernel moves anything");
    let released = released(Backing::Vmem);
    let heap = 1 << 40..(1 << 40) + 64 * MIB;
    let inside = |range: &Range<u64>| heap.start <= range.start && range.end <= heap.end;
    assert!(!released[0].is_empty() && released[0].iter().all(inside), "{released:?}");
    assert!(released.iter().skip(1).step_by(2).all(Vec::is_empty), "{released:?}");
}

#[test]
fn births_are_budgeted() {
    let stage = Stage::with(|config| config.fast = Limit::Bytes(3 * MIB));
    let session = SessionBuilder::new().build().unwrap();
    // It begins with the budget of the offer, and allocates before it is welcomed.
    session.take_birth_bytes(0, MIB as i64 - 3 * MIB as i64);
    assert_eq!(stage.attach(&session).status, Status::Ok);
    assert_eq!(session.arenas(), [-1, -1], "modelled arenas have no nodes");
    assert_eq!(session.take_birth_bytes(0, 0), 2 * MIB as i64);
    let set = stage.ask(&Request::Budget { fast: Limit::Bytes(MIB) }, "budget");
    assert_eq!(set, "1 MiB");
    stage.until("the next tick says so", |_| session.take_birth_bytes(0, 0) <= MIB as i64);
}

#[test]
fn room_that_a_birth_was_given_is_not_given_again_before_it_is_touched() {
    let stage = Stage::with_untouched_memory(|config| config.fast = Limit::Bytes(12 * MIB));
    let session = SessionBuilder::new().build().unwrap();
    assert_eq!(stage.attach(&session).status, Status::Ok);
    let (left, all) = (|| session.take_birth_bytes(0, 0), 12 * MIB as i64);
    stage.until("all of it is room", |_| left() == all);
    session.take_birth_bytes(0, all);
    let mut ring = session.ring(0);
    let Record::Born { addr, version, .. } = born(1 << 40, 16 * MIB, 2) else { panic!("a birth") };
    assert!(ring.push(&born(addr, 16 * MIB, 2)));
    let head = Record::Head { addr, bytes: 12 * MIB, version, arena: 0, time_ns: 0 };
    assert!(ring.push(&head));
    let is_taken = |s: &Summary| s.budget.promised_bytes == 12 * MIB && left() == 0;
    let ticks = stage.until("it is taken", is_taken).spent.ticks;
    let later = stage.until("ticks find nothing touched", |s| s.spent.ticks > ticks + 3);
    assert!(is_taken(&later) && later.budget.used_bytes == 0, "{:?}", later.budget);
    assert!(ring.push(&died(addr, 16 * MIB, 2)));
    stage.until("its death leaves the room", |s| s.budget.promised_bytes == 0 && left() == all);
}

#[test]
fn a_slow_mover_does_not_stop_the_draining() {
    let (stage, gate) = Stage::with_slow_mover();
    let session = stage.host(MIB);
    stage.until("the mover is stuck", |s| s.spent.ticks_busy > 0);
    let mut ring = session.ring(0);
    assert!(ring.push(&born((1 << 40) + 4 * MIB, MIB, 2)));
    stage.until("records are drained meanwhile", |s| s.objects.live_bytes == 2 * MIB);
    gate.open.store(true, Ordering::Release);
    gate.thread.unpark();
    let busy = stage.status().spent.ticks_busy;
    stage.until("it goes on", |s| s.spent.ticks > busy + 5 && s.spent.mover_ns > 0);
}

#[test]
fn a_mover_that_panics_is_a_problem_not_an_end() {
    let stage = Stage::with_failing_mover();
    let session = stage.host(MIB);
    let failed = |s: &Summary| s.problems.keys().any(|text| text.contains("mover failed"));
    stage.until("it is said", failed);
    assert!(session.ring(0).push(&born((1 << 40) + 4 * MIB, MIB, 2)));
    stage.until("records are drained on", |s| s.objects.live_bytes == 2 * MIB);
}

#[test]
fn large_processes_are_observed_before_the_first_tick() {
    let stage = Stage::with(|config| config.tick_ms = 3_600_000);
    let session = stage.host(64 * MIB);
    let all = |bytes: u64| {
        let watched = stage.watched.lock().unwrap();
        watched.iter().map(|range| range.end - range.start).sum::<u64>() == bytes
    };
    stage.until("what lived at first is watched", |_| all(64 * MIB));
    assert!(session.ring(0).push(&born((1 << 40) + 64 * MIB, 32 * MIB, 2)));
    let status = stage.until("what was born since is watched", |_| all(96 * MIB));
    assert_eq!(status.spent.ticks, 0);
}

#[test]
fn the_more_extents_there_are_the_more_samples_are_of_use() {
    let (stage, gate) = Stage::with_slow_mover();
    let session = SessionBuilder::new().build().unwrap();
    assert_eq!(stage.attach(&session).status, Status::Ok);
    let requested = |samples_per_tick: u64| {
        stage.enough_per_s.load(Ordering::Relaxed) == samples_per_tick * 1000 / 50
    };
    stage.until("few extents ask for this at least", |_| requested(1024));
    let mut ring = session.ring(0);
    assert!((0..100).all(|nth| ring.push(&born((1 << 41) + nth * 4 * MIB, MIB, nth as u32 + 2))));
    stage.until("a hundred extents live", |_| requested(3200));
    gate.open.store(true, Ordering::Release);
    gate.thread.unpark();
}

#[test]
fn on_a_modelled_machine_every_extent_is_looked_up() {
    let stage = Stage::new();
    let _session = stage.host(MIB);
    stage.until("an interval ends", |s| s.spent.ticks > 2);
    assert_eq!(stage.enough_per_s.load(Ordering::Relaxed), 0);
}

#[test]
fn processes_that_are_gone_at_once_are_only_counted() {
    let stage = Stage::new();
    for _ in 0..20 {
        let _session = stage.host(MIB);
    }
    stage.until("all but the last were replaced", |s| s.clients.replaced == 19);
    let attaches = || stage.attaches.load(Ordering::Relaxed);
    stage.until("the last one stays and is observed", |_| attaches() > 0);
    assert!(attaches() < 20, "each of them was observed");
}

#[test]
fn parts_of_the_time_add_up_and_blind_looks_are_shown() {
    let stage = Stage::new();
    let _session = stage.host(64 * MIB);
    stage.feed(1 << 40, MIB);
    let seen = |s: &Summary| s.spent.ticks > 5 && s.samples.seen > 0 && s.samples.blind > 0;
    let spent = stage.until("it works", seen).spent;
    let parts = [spent.records_ns, spent.samples_ns, spent.ledger_ns, spent.policy_ns];
    let sum = parts.iter().sum::<u64>() + spent.mover_ns + spent.other_ns();
    assert!(parts.iter().all(|part| *part > 0), "{spent:?}");
    assert_eq!(sum, spent.cpu_ns, "{spent:?}");
}

#[test]
fn rows_say_how_much_of_them_deserves_fast_memory() {
    let stage = Stage::with(|config| {
        config.fast = Limit::Bytes(4 * MIB);
        config.ledger.finest_bytes = MIB; // an extent is an object, however long it takes
    });
    let session = SessionBuilder::new().build().unwrap();
    for i in 0..8 {
        session.put_run(&object((1 << 40) + i * MIB, MIB)).unwrap();
    }
    assert_eq!(stage.attach(&session).status, Status::Ok);
    stage.feed((1 << 40) + 3 * MIB, 2 * MIB);
    let request = Request::Sites { by: Order::Heat, limit: 1 };
    stage.until("two of eight deserve it", |_| {
        let objects = stage.ask(&request, "objects");
        let fits = &objects["rows"][0]["used"]["fits"];
        fits["objects"] == 2 && fits["of_objects"] == 8
    });
    let row = &stage.stop().sites[0];
    assert!(row.deserves_fast);
    let fits = Fits { bytes: 2 * MIB, objects: 2, of_bytes: 8 * MIB, of_objects: 8 };
    assert_eq!(row.used.last_fits, fits);
}

/// Extents of which the work of one turn of the loop is: 0.3 to 1 ms.
const PIECE: u64 = 4096;

#[test]
fn what_a_user_with_a_full_table_has_is_looked_at_in_pieces() {
    let stage = Stage::new();
    let session = SessionBuilder::new().build().unwrap();
    let objects = 4 * PIECE;
    let place = |nth: u64| (1 << 40) + nth * 4096;
    (0..objects).for_each(|nth| session.put_run(&object(place(nth), 4096)).unwrap());
    assert_eq!(stage.attach(&session).status, Status::Ok);
    stage.feed(place(0), objects / 4 * 4096);
    let is_decided = |s: &Summary| s.objects.extents == objects && !s.moves.moved_bytes.is_empty();
    let ticks = stage.until("it decides", is_decided).spent.ticks;
    let spent = stage.until("it ticks on", |s| s.spent.ticks > ticks + 3).spent;
    // Weighing a move takes two looks at its extent, and a trial one at each of its 8192 moves.
    assert!(spent.extents_at_once <= 2 * PIECE + 8192, "{spent:?}");
    assert!(spent.pauses > spent.ticks, "{spent:?}");
    let live_bytes = stage.stop().sites.iter().map(|row| row.used.peak_bytes).sum::<u64>();
    assert_eq!(live_bytes, objects * 4096);
}

/// Where mappings lie.
const MAPPINGS: u64 = 1 << 44;

fn mapped(addr: u64, bytes: u64, site: u32) -> ObjectSnapshot {
    ObjectSnapshot { site, flags: Flags::MAPPED, ..object(addr, bytes) }
}

fn born_mapped(addr: u64, bytes: u64, site: u32, carve: u32) -> Record {
    let Record::Born { arena, version, time_ns, .. } = born(addr, bytes, carve) else {
        panic!("a birth")
    };
    Record::Born { addr, bytes, site, version, arena, flags: Flags::MAPPED, time_ns }
}

fn share(addr: u64, share: u64, carve: u32) -> Record {
    Record::Share { addr, share, version: Version { carve, generation: 0 }, time_ns: 0 }
}

fn put_site(session: &ClientSession, id: u32, kind: SiteKind, module: u16) {
    let frames = vec![Frame { module: Some(module), offset: (1 << 48) - 1 }];
    session.put_site(id, &Site { hash: 50 + u64::from(id), frames, kind }).unwrap();
}

#[test]
fn a_client_that_lies_about_its_mappings_costs_its_own_rows_only() {
    let stage = Stage::new();
    let session = SessionBuilder::new().build().unwrap();
    let module = Module { base: u64::MAX - 7, build_id: vec![9; 20], path: "/dev/tty".into() };
    session.put_module(0, &module).unwrap();
    put_site(&session, 1, SiteKind::Static, 0);
    put_site(&session, 2, SiteKind::Constant, 4000); // a module that there is none of
    put_site(&session, 3, SiteKind::Shared, 0);
    put_site(&session, 65_535, SiteKind::Static, 0); // a number that no process hands out
    let all = [(0, 1), (1, 2), (2, 3), (3, 65_535)];
    for (slot, site) in all {
        let at = MAPPINGS + slot as u64 * 16 * MIB;
        session.put_map(slot, Some(&mapped(at, MIB, site))).unwrap();
        session.put_share(slot, 7).unwrap();
    }
    assert_eq!(stage.attach(&session).status, Status::Ok);
    // All claim to show one memory: the first is it.
    stage.until("one lives", |s: &Summary| s.objects.live_bytes == MIB);
    let mut ring = session.ring(0);
    let (a, b) = (MAPPINGS + 256 * MIB, MAPPINGS + 512 * MIB);
    let records = [
        share(a, 9, 2),                // of nothing
        born_mapped(a, 2 * MIB, 3, 2), // what it shows never comes
        born_mapped(b, 4 * MIB, 3, 3), // and then this one's does, for another
        share(a, 9, 2),
        share(b, 9, 3),
        born_mapped(b, 4 * MIB, 3, 4), // again, without a death
        share(b, 9, 4),
        born_mapped(a + 64 * MIB, MIB, 65_535, 5),
        died(a + 128 * MIB, MIB, 6), // of nothing
    ];
    records.iter().for_each(|record| assert!(ring.push(record)));
    stage.until("what lives", |s| {
        s.records.drained == 9 && s.objects.live_bytes == (1 + 2 + 4 + 1) * MIB
    });
    let rows = stage.ask(&Request::Sites { by: Order::Site, limit: 100 }, "objects");
    assert!(rows["rows"].as_array().is_some_and(|rows| !rows.is_empty()), "{rows}");
    // Of the mapping that owned what four show, another takes its place.
    assert!(ring.push(&Record::Died {
        addr: MAPPINGS,
        bytes: MIB,
        version: object(MAPPINGS, MIB).version,
        flags: Flags::MAPPED,
        time_ns: 0,
    }));
    stage.until("an heir", |s| s.records.drained == 10 && s.objects.live_bytes == 8 * MIB);
    assert!(!session.is_detached());
    assert_eq!(stage.stop().summary.clients.attached, 1);
}
