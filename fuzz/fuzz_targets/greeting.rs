//! Any messages with any descriptors through the gate of a daemon: only whole sessions pass, no
//! descriptor stays open, and what passed can be drained, decided over and reported on.
//!
//! ```text
//! greetings: kinds u8, that many descriptors (kind u8, size u16), length u8, message or changes
//! ```

#![no_main]

use std::os::fd::{AsFd, OwnedFd};

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use tiercel_daemon::Stepped;
use tiercel_fuzz::{FDS_MAX, Seen, connection, send, stepped};
use tiercel_wire::Hello;
use tiercel_wire::client::SessionBuilder;
use tiercel_wire::layout::session_bytes;

/// Of one input. Chosen, not measured: each costs some 100 us.
const GREETINGS_MAX: usize = 8;

fn open(path: &str, flags: OFlags) -> Option<OwnedFd> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// A memfd around the size of a session, with any seals.
fn memfd(input: &mut Unstructured<'_>) -> Result<Option<OwnedFd>> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let Ok(fd) = rustix::fs::memfd_create("fuzzed", flags) else { return Ok(None) };
    let near = session_bytes(u64::from(input.arbitrary::<u8>()?));
    let sizes = [0, 1, 4096, near - 1, near, near + 1, near * 2];
    let _ = rustix::fs::ftruncate(&fd, *input.choose(&sizes)?);
    let seals = SealFlags::from_bits_truncate(u32::from(input.arbitrary::<u8>()? % 32));
    let _ = rustix::fs::fcntl_add_seals(&fd, seals);
    Ok(Some(fd))
}

/// A session, honest or with bytes of its header changed.
fn session(input: &mut Unstructured<'_>, is_sealed: bool) -> Result<Option<OwnedFd>> {
    let pages = u64::from(input.arbitrary::<u16>()?);
    let builder = SessionBuilder::new().range(1 << 40, pages);
    let builder = if is_sealed { builder } else { builder.unsealed() };
    let Ok(session) = builder.build() else { return Ok(None) };
    for _ in 0..input.arbitrary::<u8>()? % 4 {
        let at = u64::from(input.arbitrary::<u8>()?);
        let bytes: [u8; 8] = input.arbitrary()?;
        let _ = session.write_at(at, &bytes);
    }
    Ok(session.fd().ok())
}

fn descriptor(input: &mut Unstructured<'_>) -> Result<Option<OwnedFd>> {
    Ok(match input.arbitrary::<u8>()? % 16 {
        0..=3 => session(input, true)?,
        4 => session(input, false)?,
        5 | 6 => memfd(input)?,
        7 => rustix::pipe::pipe().ok().map(|ends| ends.0),
        8 => rustix::pipe::pipe().ok().map(|ends| ends.1),
        9 => Some(connection().0),
        10 => open("/tmp", OFlags::DIRECTORY),
        11 => open("/dev/null", OFlags::RDWR),
        12 => open("/proc/self/maps", OFlags::RDONLY),
        13 => open("/proc/self/exe", OFlags::PATH),
        14 => {
            let own = rustix::process::getpid();
            rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty()).ok()
        }
        _ => open("/dev/zero", OFlags::RDONLY),
    })
}

/// A hello with some bytes changed, or any bytes.
fn message(input: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    if input.ratio(1, 4)? {
        let length = usize::from(input.arbitrary::<u8>()?);
        return Ok(input.bytes(length.min(input.len()))?.to_vec());
    }
    let total_bytes = session_bytes(input.arbitrary::<u16>()?.into());
    let mut bytes = Hello { pid: 1, parent_pid: 1, total_bytes, image: 0 }.encode().to_vec();
    for _ in 0..input.arbitrary::<u8>()? % 3 {
        let at = usize::from(input.arbitrary::<u8>()?) % bytes.len();
        bytes[at] = input.arbitrary()?;
    }
    bytes.truncate(bytes.len() - usize::from(input.ratio(1, 16)?));
    Ok(bytes)
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn greet(daemon: &mut Stepped, input: &mut Unstructured<'_>) -> Result<()> {
    let before = open_descriptors();
    let (theirs, ours) = connection();
    let mut fds = Vec::new();
    for _ in 0..usize::from(input.arbitrary::<u8>()?) % (FDS_MAX + 1) {
        fds.extend(descriptor(input)?);
    }
    let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    if !send(&theirs, &message(input)?, &borrowed) {
        return Ok(());
    }
    drop(fds);
    let hosted = daemon.clients();
    if !daemon.greet(ours) {
        drop(theirs);
        assert!(open_descriptors() <= before, "a descriptor of a refused process is open");
        assert_eq!(daemon.clients(), hosted, "a refused process changes nothing");
    }
    Ok(())
}

fuzz_target!(|data: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    let mut input = Unstructured::new(data);
    let mut daemon = stepped(&folder, &Seen::default(), "none");
    for _ in 0..GREETINGS_MAX {
        if input.is_empty() || greet(&mut daemon, &mut input).is_err() {
            break;
        }
        daemon.drain();
        daemon.pass(2000);
        daemon.tick();
    }
    let answer = daemon.ask(br#"{"version":1,"request":"status"}"#);
    assert!(serde_json::from_slice::<serde_json::Value>(&answer).is_ok());
    daemon.finish();
});
