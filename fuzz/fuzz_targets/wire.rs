//! A hostile client: whatever it writes into its session, the daemon's calls return, stay within
//! their bounds and hand out only sane objects; and whatever datagram comes, decoding returns.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tiercel_wire::client::SessionBuilder;
use tiercel_wire::layout::{
    CONTROL_AT, HEADER_AT, MAPS_AT, MODULES_AT, PHASES_AT, RING_BYTES, RING_SLOTS, RINGS_AT,
    RUNS_AT, SITES_AT,
};
use tiercel_wire::{Hello, PoolAnswer, PoolAsk, Record, Session, Timeline, Welcome};

// A range of 256 MiB where the runtime may reserve one, and records of one drain. Chosen, not
// measured.
const BASE: u64 = 1 << 40;
const PAGES: u64 = 1 << 16;
const DRAIN_MAX: usize = 1000;
const AREAS: [u64; 10] = [
    HEADER_AT,
    CONTROL_AT,
    PHASES_AT,
    MODULES_AT,
    SITES_AT,
    MAPS_AT,
    RINGS_AT,
    RINGS_AT + RING_SLOTS as u64,
    RINGS_AT + RING_BYTES as u64,
    RUNS_AT,
];

/// Splits `count` bytes off the front, or what is there.
fn split<'a>(data: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (front, rest) = data.split_at(count.min(data.len()));
    *data = rest;
    front
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// Every call a daemon makes, and what must hold of its answer.
fn look(session: &mut Session) {
    let mut out = Vec::new();
    let drained = session.drain(&mut out, DRAIN_MAX);
    assert!(drained.records <= DRAIN_MAX && out.len() as u64 + drained.malformed <= 1000);
    for record in out {
        assert_eq!(Record::decode(&record.encode(), &Timeline::at(0)), Some(record), "re-encoded");
    }
    let mut end = 0;
    for object in session.objects() {
        assert!(object.bytes > 0 && object.addr % 4096 == 0 && object.bytes % 4096 == 0);
        if (BASE..BASE + PAGES * 4096).contains(&object.addr) && object.addr >= end {
            end = object.addr + object.bytes;
        }
    }
    let header = session.header();
    for id in 0..header.site_count.min(4) {
        assert!(session.site(id).is_none_or(|site| site.frames.len() <= 30));
    }
    let (_, phase) = session.phase_entered();
    assert!(session.phase_name(phase).is_none_or(|phase| phase.name.chars().count() <= 51));
    let _ = (session.module(0), session.module(u16::MAX), session.site(u32::MAX));
}

fuzz_target!(|data: &[u8]| {
    let _ = (Hello::decode(data), Welcome::decode(data));
    let _ = (PoolAsk::is_one(data), PoolAsk::decode(data), PoolAnswer::decode(data));
    let mut data = data;
    let Ok(client) = SessionBuilder::new().range(BASE, PAGES).build() else { return };
    let (Ok(early), Ok(late)) = (client.fd(), client.fd()) else { return };
    let Ok(mut session) = Session::open(early) else { unreachable!("an honest header") };
    let _ = client.ring(1);
    while !data.is_empty() {
        let head = split(&mut data, 4);
        let area = AREAS[usize::from(head[0]) % AREAS.len()];
        let at = number(&head[1..head.len().min(3)]) % 8192;
        let count = usize::from(head.get(3).copied().unwrap_or(1)) % 64;
        let _ = client.write_at(area + at, split(&mut data, count));
        if head[0] & 0x80 != 0 {
            look(&mut session);
        }
    }
    look(&mut session);
    if let Ok(mut spoilt) = Session::open(late) {
        look(&mut spoilt);
    }
});
