//! A front under the control of an attacker: any messages and descriptors to the broker's services.
//! Each service ends, moves and samples only the process that was identified, and hands ranges to
//! the sampler as its contract states them.
//!
//! ```text
//! service u8, then messages: flags u8, length u8 (times 16 with a flag), body
//! ```

#![no_main]

use std::io::{Read, Write};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use libfuzzer_sys::fuzz_target;
use rustix::fs::{MemfdFlags, memfd_create};
use tiercel_broker::{Channel, Services};
use tiercel_fuzz::{Fed, connection, send};
use tiercel_machine::NodeId;
use tiercel_mover::{Errno, Kernel};
use tiercel_sampler::{
    Cost, Counters, Drained, Kind, Method, Sampler, SamplerCapabilities, SamplerError,
};
use tiercel_wire::{Now, Sample};

/// Bytes of all messages: what a socket holds while nothing reads it, several times less.
const BYTES_MAX: usize = 16 << 10;
const SERVICES_MAX: usize = 4;

/// Answers for this process alone.
struct Ours;

impl Kernel for Ours {
    fn move_pages(
        &mut self,
        pid: u32,
        addrs: &[u64],
        _: Option<NodeId>,
        status: &mut [i32],
    ) -> Result<u64, Errno> {
        assert_eq!((pid, addrs.len()), (std::process::id(), status.len()));
        status.fill(0);
        Ok(0)
    }

    fn os_page_bytes(&self) -> u64 {
        4096
    }
}

/// The same, as a sampler.
struct OurSampler(Fed);

impl Sampler for OurSampler {
    fn kind(&self) -> Kind {
        self.0.kind()
    }

    fn method(&self) -> Method {
        self.0.method()
    }

    fn attach(&mut self, pid: u32) -> Result<(), SamplerError> {
        assert_eq!(pid, std::process::id());
        Ok(())
    }

    fn detach(&mut self, _: u32) {}

    fn watch(&mut self, pid: u32, ranges: &[Range<u64>]) {
        assert_eq!(pid, std::process::id());
        self.0.watch(pid, ranges);
    }

    fn release(&mut self, pid: u32, ranges: &[Range<u64>]) {
        self.0.watch(pid, ranges);
    }

    fn drain(&mut self, now: Now, out: &mut Vec<Sample>) -> Drained {
        self.0.drain(now, out)
    }

    fn counters(&mut self) -> Option<Counters> {
        self.0.counters()
    }

    fn capabilities(&self) -> SamplerCapabilities {
        self.0.capabilities()
    }

    fn cost(&self) -> Cost {
        self.0.cost()
    }
}

/// Splits one message off: its header and body as they are sent, and a descriptor.
fn message<'a>(data: &mut &'a [u8]) -> Option<(Vec<u8>, &'a [u8], Option<OwnedFd>)> {
    let ([flags, length], rest) = data.split_first_chunk()?;
    let length = usize::from(*length) << if flags & 1 == 0 { 0 } else { 4 };
    let (body, rest) = rest.split_at(length.min(rest.len()));
    *data = rest;
    let fd = match flags >> 1 & 3 {
        0 | 1 => None,
        2 => Some(connection().0),
        _ => memfd_create("fuzzed", MemfdFlags::CLOEXEC).ok(),
    };
    let stated = if flags & 8 == 0 { body.len() as u32 } else { u32::from(*flags) << 20 };
    let fds = u32::from(fd.is_some() ^ (flags & 16 != 0));
    let header = [stated.to_ne_bytes(), fds.to_ne_bytes()].concat();
    Some((header, body, fd))
}

/// Sends all messages of a service, then closes that direction; the other end.
fn front(data: &mut &[u8]) -> Option<(UnixStream, Channel)> {
    let (mut ours, theirs) = UnixStream::pair().ok()?;
    let mut sent = 0;
    while let Some((header, body, fd)) = message(data) {
        sent += header.len() + body.len();
        if sent > BYTES_MAX {
            break;
        }
        let socket = ours.as_fd().try_clone_to_owned().ok()?;
        let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
        send(&socket, &header, &fds);
        ours.write_all(body).ok()?;
        if body.last() == Some(&0xfe) {
            break; // the next service
        }
    }
    ours.shutdown(std::net::Shutdown::Write).ok()?;
    Some((ours, theirs.into()))
}

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let services = Services::default();
    for _ in 0..SERVICES_MAX {
        let Some((service, rest)) = data.split_first() else { return };
        data = rest;
        let Some((mut ours, channel)) = front(&mut data) else { return };
        match service % 3 {
            0 => services.identify(channel),
            1 => services.move_pages(channel, &mut Ours),
            _ => services.sample(channel, &mut OurSampler(Fed::default())),
        }
        let mut answers = Vec::new();
        let _ = ours.read_to_end(&mut answers);
    }
});
