//! A hostile session, as far as it can reach: through the greeting, the daemon's clients, ledger,
//! policy and mover to the answers as JSON, Prometheus text, tables and the final report. Whatever
//! the session holds, every answer is one line of JSON of a bounded size, and what a terminal gets
//! is printable.
//!
//! The input is a list of steps. Addresses, sites and versions come from small sets, so that they
//! collide, and bytes may be written anywhere beside.

#![no_main]

#[path = "../../crates/tiercel/src/figures.rs"]
#[allow(dead_code)]
mod figures;
#[path = "../../crates/tiercel/src/show.rs"]
#[allow(dead_code)]
mod show;
#[path = "../../crates/tiercel/src/table.rs"]
mod table;
#[path = "../../crates/tiercel/src/terminal.rs"]
#[allow(dead_code)]
mod terminal;

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use tiercel_daemon::{FinalReport, SiteRows, Stepped, Summary, UNREAD_BYTES_MAX};
use tiercel_fuzz::{Seen, assert_printable, connection, send, stepped};
use tiercel_symbolize::{Reader, Symbols};
use tiercel_wire::client::{ClientSession, SessionBuilder};
use tiercel_wire::layout::{
    HEADER_AT, MAPS_AT, MODULES_AT, PHASES_AT, RING_BYTES, RING_SLOTS, RINGS_AT, RUNS_AT, SITES_AT,
    SMALLS_AT,
};
use tiercel_wire::{
    AccessKind, Flags, Frame, Hello, Module, ObjectSnapshot, Record, Sample, Site, SiteKind,
    Version,
};

// Steps of one input, processes that attach, and samples of a step. Chosen, not measured.
const STEPS_MAX: usize = 200;
const ATTACHES_MAX: usize = 4;
const SAMPLES_MAX: u64 = 64;
/// First byte and OS pages of the reserved range.
const BASE: u64 = 1 << 40;
const PAGES: u64 = 1 << 16;
const AREAS: [u64; 10] = [
    HEADER_AT,
    PHASES_AT,
    MODULES_AT,
    SITES_AT,
    SMALLS_AT,
    MAPS_AT,
    RINGS_AT,
    RINGS_AT + RING_SLOTS as u64,
    RINGS_AT + RING_BYTES as u64,
    RUNS_AT,
];
const REQUESTS: [&[u8]; 7] = [
    br#"{"version":1,"request":"status"}"#,
    br#"{"version":1,"request":"metrics"}"#,
    br#"{"version":1,"request":{"moves":{"limit":1000}}}"#,
    br#"{"version":1,"request":{"objects":{"by":"heat","limit":1000}}}"#,
    br#"{"version":1,"request":{"objects":{"by":"size","limit":1000}}}"#,
    br#"{"version":1,"request":{"objects":{"by":"site","limit":1000}}}"#,
    br#"{"version":1,"request":{"objects":{"by":"node","limit":1000}}}"#,
];

/// The hostile process, and the daemon.
struct World {
    daemon: Stepped,
    seen: Seen,
    sessions: Vec<ClientSession>,
}

impl World {
    fn attach(&mut self, parent_pid: u32) {
        let Ok(session) = SessionBuilder::new().range(BASE, PAGES).build() else { return };
        let (theirs, ours) = connection();
        let hello = Hello { pid: 1, parent_pid, total_bytes: session.total_bytes(), image: 0 };
        let Ok(memfd) = session.fd() else { return };
        assert!(send(&theirs, &hello.encode(), &[memfd.as_fd()]));
        assert!(self.daemon.greet(ours), "an honest hello");
        assert_eq!(self.daemon.clients(), 1, "the same process replaces itself");
        self.sessions.push(session);
    }

    fn step(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let step = input.int_in_range(0..=11_u8)?;
        match step {
            0 => self.daemon.drain(),
            1 => {
                self.daemon.pass(u64::from(input.arbitrary::<u16>()?));
                self.daemon.tick();
            }
            2 => self.ask(usize::from(input.int_in_range(0..=6_u8)?)),
            3 if self.sessions.len() < ATTACHES_MAX => self.attach(input.arbitrary::<u8>()?.into()),
            4 => self.seen.lock().expect("no panic").extend(samples(input)?),
            _ => {
                let at = usize::from(input.arbitrary::<u8>()?) % self.sessions.len();
                write(&self.sessions[at], step, input)?;
            }
        }
        Ok(())
    }

    fn ask(&mut self, which: usize) {
        let line = self.daemon.ask(REQUESTS[which]);
        assert!(line.len() <= UNREAD_BYTES_MAX, "{} bytes would be dropped", line.len());
        let text = std::str::from_utf8(&line).expect("an answer is text");
        assert_eq!(text.matches('\n').count(), 1, "an answer is one line");
        assert!(!text.trim_end().contains(|c: char| c.is_ascii_control()));
        let value: serde_json::Value = serde_json::from_str(text).expect("an answer is JSON");
        let answer = &value["answer"];
        if let Some(metrics) = answer["metrics"].as_str() {
            assert_exposition(metrics);
        }
        if !answer["objects"].is_null() {
            let sites: SiteRows = serde_json::from_value(answer["objects"].clone()).expect("rows");
            let mut symbols = Symbols::new(&Reader::InProcess);
            assert_printable(&show::sites(&sites.rows, &Summary::default(), &mut symbols));
        }
        if !answer["status"].is_null() {
            let status: Summary = serde_json::from_value(answer["status"].clone()).expect("status");
            assert_printable(&figures::figures(&status));
        }
        assert_printable(&terminal::json_line(&value).expect("plain data"));
    }
}

/// Writes into a session what a runtime writes, or anything.
fn write(session: &ClientSession, step: u8, input: &mut Unstructured<'_>) -> Result<()> {
    // A write that the kernel refuses leaves the session as it is.
    match step {
        5 | 6 => {
            let ring = usize::from(input.int_in_range(0..=2_u8)?);
            let _ = session.ring(ring).push(&record(input)?);
        }
        7 => drop(session.put_site(small(input)?, &site(input)?)),
        8 => drop(session.put_module(u16::from(input.arbitrary::<u8>()? % 4), &module(input)?)),
        9 => {
            let object = object(input)?;
            let _ = match input.arbitrary::<bool>()? {
                true => session.put_run(&ObjectSnapshot { addr: BASE + object.addr, ..object }),
                false => session.put_map(usize::from(input.arbitrary::<u8>()?), Some(&object)),
            };
        }
        10 => {
            let name: String = input.arbitrary()?;
            let _ = session.enter_phase(small(input)?, &name, input.arbitrary()?);
        }
        _ => {
            let area = *input.choose(&AREAS)?;
            let at = u64::from(input.arbitrary::<u16>()?) % 8192;
            let bytes: [u8; 24] = input.arbitrary()?;
            let count = usize::from(input.arbitrary::<u8>()?) % bytes.len();
            let _ = session.write_at(area + at, &bytes[..count]);
        }
    }
    Ok(())
}

fn small(input: &mut Unstructured<'_>) -> Result<u32> {
    Ok(u32::from(input.arbitrary::<u8>()? % 16))
}

/// Any site number, but mostly one of few.
fn site_number(input: &mut Unstructured<'_>) -> Result<u32> {
    if input.ratio(1, 16)? { input.arbitrary() } else { small(input) }
}

fn version(input: &mut Unstructured<'_>) -> Result<Version> {
    let carve = if input.ratio(1, 16)? { input.arbitrary()? } else { small(input)? };
    Ok(Version { carve, generation: u16::from(input.arbitrary::<u8>()? % 4) })
}

/// Bytes of whole OS pages: few, or up to all that a record can state.
fn bytes(input: &mut Unstructured<'_>) -> Result<u64> {
    let few = u64::from(input.int_in_range(1..=9_u8)?);
    let shift = if input.ratio(1, 8)? { input.int_in_range(0..=43_u32)? } else { few as u32 };
    Ok((few << shift).min((1 << 44) - 1) << 12)
}

fn address(input: &mut Unstructured<'_>) -> Result<u64> {
    let page = u64::from(input.arbitrary::<u8>()?);
    Ok(if input.ratio(1, 16)? { input.arbitrary::<u64>()? >> 7 & !4095 } else { page << 12 })
}

fn object(input: &mut Unstructured<'_>) -> Result<ObjectSnapshot> {
    Ok(ObjectSnapshot {
        addr: u64::from(input.arbitrary::<u16>()?) << 12,
        bytes: bytes(input)?,
        site: site_number(input)?,
        version: version(input)?,
        arena: input.arbitrary()?,
        flags: Flags(input.arbitrary()?),
    })
}

fn record(input: &mut Unstructured<'_>) -> Result<Record> {
    let (addr, bytes, version) = (BASE + address(input)?, bytes(input)?, version(input)?);
    let (site, time_ns) = (site_number(input)?, 0);
    let arena = input.arbitrary::<Option<u8>>()?.map(|arena| arena % 4);
    let flags = Flags(input.arbitrary::<u8>()? % 16);
    Ok(match input.arbitrary::<u8>()? % 8 {
        0..=3 => Record::Born { addr, bytes, site, version, arena, flags, time_ns },
        4 => Record::Died { addr, bytes, version, flags, time_ns },
        5 => Record::Resized { addr, bytes, site, version, arena, flags, time_ns },
        6 if bytes % 8192 == 0 => Record::Share { addr, share: bytes, version, time_ns },
        6 if bytes % 12288 == 0 => {
            let arena = arena.unwrap_or(0);
            Record::Head { addr, bytes, version, arena, time_ns }
        }
        6 if bytes % 20480 == 0 => {
            let (reads, writes, dirtied) = (version.carve, site, version.carve % 3);
            Record::Misses { addr, reads, writes, dirtied, by: None, tid: 0, time_ns }
        }
        6 => Record::Cut { addr, bytes, version, time_ns },
        _ => Record::Phase { number: small(input)?.into(), time_ns },
    })
}

fn site(input: &mut Unstructured<'_>) -> Result<Site> {
    let frames = 0..input.int_in_range(0..=31_u8)?;
    let frame = |_| {
        let module = input.arbitrary::<Option<u8>>()?.map(|module| u16::from(module % 4));
        Ok(Frame { module, offset: u64::from(input.arbitrary::<u16>()?) })
    };
    let frames = frames.map(frame).collect::<Result<_>>()?;
    let kinds = [SiteKind::Call, SiteKind::Static, SiteKind::Constant, SiteKind::Stack];
    let kind = kinds[usize::from(input.arbitrary::<u8>()?) % kinds.len()];
    Ok(Site { hash: small(input)?.into(), frames, kind })
}

fn module(input: &mut Unstructured<'_>) -> Result<Module> {
    let path = OsString::from_vec(input.arbitrary::<Vec<u8>>()?);
    let (build_id, base) = (input.arbitrary::<Vec<u8>>()?, input.arbitrary()?);
    Ok(Module { base, build_id, path: path.into() })
}

fn samples(input: &mut Unstructured<'_>) -> Result<Vec<Sample>> {
    let (addr, count) = (BASE + address(input)?, u64::from(input.arbitrary::<u8>()?) % SAMPLES_MAX);
    let (weight, is_write) = (input.arbitrary()?, input.arbitrary::<bool>()?);
    let kind = if is_write { AccessKind::Write } else { AccessKind::Read };
    let sample = |number: u64| Sample {
        from_ns: 0,
        until_ns: 0,
        pid: std::process::id(),
        tid: 1,
        addr: addr + number * 4096,
        kind,
        latency_ns: None,
        node: None,
        weight,
        around: None,
        cpu: None,
        by: None,
    };
    Ok((0..count).map(sample).collect())
}

/// The text exposition format: comments, and `name{label="value"} number`.
fn assert_exposition(text: &str) {
    for line in text.lines() {
        if line.starts_with("# ") {
            continue;
        }
        let (name, value) = line.rsplit_once(' ').expect("a name and a number");
        assert!(name.starts_with("tiercel_") && value.parse::<f64>().is_ok(), "{line}");
    }
}

fn assert_final(report: &FinalReport) {
    let mut symbols = Symbols::new(&Reader::InProcess);
    assert_printable(&show::final_report(report, &mut symbols, 20));
    let json = show::named_json(report, &mut symbols).expect("plain data");
    assert_printable(&terminal::json_line(&json).expect("plain data"));
}

fuzz_target!(|data: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    let mut input = Unstructured::new(data);
    let gate = if input.arbitrary().unwrap_or(false) { "none" } else { "shadow:" };
    let seen = Seen::default();
    let mut world = World { daemon: stepped(&folder, &seen, gate), seen, sessions: Vec::new() };
    world.attach(0);
    for _ in 0..STEPS_MAX {
        if input.is_empty() || world.step(&mut input).is_err() {
            break;
        }
    }
    (0..REQUESTS.len()).for_each(|which| world.ask(which));
    assert_final(&world.daemon.finish());
});
