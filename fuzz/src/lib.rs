//! What several fuzzers share: a daemon with parts of their own, connections to it, and what must
//! hold of all that it prints. In: bytes. Out: [`stepped`], [`connection`], [`assert_printable`].
//! Knows nothing of any target.

#![forbid(unsafe_code)]

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sockopt,
};
use tiercel_broker::Identity;
use tiercel_daemon::{DaemonConfig, Parts, Settings, Stepped};
use tiercel_machine::{Machine, Node, NodeId};
use tiercel_mover::ModelledMover;
use tiercel_sampler::{
    Cost, Counters, Drained, Granularity, Kind, Method, Sampler, SamplerCapabilities, SamplerError,
};
use tiercel_wire::{Now, Sample};

/// Descriptors of one message: more than the gate accepts.
pub const FDS_MAX: usize = 8;

/// What the sampler sees next.
pub type Seen = Arc<Mutex<Vec<Sample>>>;

/// A daemon with two tiers of 1 GiB and a modelled mover, whose folder is below `folder`.
pub fn stepped(folder: &tempfile::TempDir, seen: &Seen, gate: &str) -> Stepped {
    let mut config = DaemonConfig::new(&Settings::default()).expect("good settings");
    config.directory = folder.path().join("t");
    config.policy.trigger = "time:ticks=1".parse().expect("a trigger");
    config.policy.gate = gate.parse().expect("a gate");
    let machine = machine();
    let mover = ModelledMover::new(machine.clone(), vec![(NodeId(1), u64::MAX)]);
    let parts = Parts {
        machine,
        sampler: Some(Box::new(Fed(Arc::clone(seen)))),
        mover: Box::new(mover),
        identity: Identity::default(),
    };
    Stepped::new(config, parts).expect("a daemon")
}

fn machine() -> Machine {
    let mut fast = Node::new(NodeId(0), 1 << 30);
    let mut slow = Node::new(NodeId(1), 1 << 30);
    (fast.tier, slow.tier) = (Some(0), Some(1));
    (fast.figures.read_latency_ns, slow.figures.read_latency_ns) = (Some(80.0), Some(300.0));
    Machine {
        name: "fuzzed".into(),
        description: String::new(),
        distances: vec![vec![10, 20], vec![20, 10]],
        nodes: vec![fast, slow],
        links: Vec::new(),
    }
}

/// Two ends: the process's, and the daemon's.
pub fn connection() -> (OwnedFd, OwnedFd) {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
    let ends = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).expect("a pair");
    sockopt::set_socket_passcred(&ends.1, true).expect("credentials");
    ends
}

/// Sends one message. False when the kernel refuses it.
pub fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || beside.push(SendAncillaryMessage::ScmRights(fds)));
    let parts = [IoSlice::new(bytes)];
    rustix::net::sendmsg(socket.as_fd(), &parts, &mut beside, SendFlags::NOSIGNAL).is_ok()
}

/// Text for a terminal has no character that moves the cursor or reorders what follows.
pub fn assert_printable(text: &str) {
    let reorders = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}');
    let isolates = |c| matches!(c, '\u{2066}'..='\u{2069}');
    let is_bad = |c: char| (c.is_control() && c != '\n') || reorders(c) || isolates(c);
    assert!(!text.chars().any(is_bad), "{text:?}");
}

/// Returns what it is given.
#[derive(Default)]
pub struct Fed(pub Seen);

impl Sampler for Fed {
    fn kind(&self) -> Kind {
        Kind::Probe
    }

    fn method(&self) -> Method {
        Method::PageTables
    }

    fn attach(&mut self, _pid: u32) -> Result<(), SamplerError> {
        Ok(())
    }

    fn detach(&mut self, _pid: u32) {}

    /// Ranges are whole OS pages, ascending and apart: a real sampler relies on it.
    fn watch(&mut self, _pid: u32, ranges: &[Range<u64>]) {
        let mut end = 0;
        for range in ranges {
            assert!(range.start < range.end && range.start >= end, "{ranges:x?}");
            assert!(range.start % 4096 == 0 && range.end % 4096 == 0, "{ranges:x?}");
            end = range.end;
        }
    }

    fn drain(&mut self, now: Now, out: &mut Vec<Sample>) -> Drained {
        let seen = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let samples = seen.len() as u64;
        out.extend(seen);
        Drained { samples, complete_ns: now.ns, ..Drained::default() }
    }

    fn counters(&mut self) -> Option<Counters> {
        None
    }

    fn capabilities(&self) -> SamplerCapabilities {
        SamplerCapabilities {
            reads: Granularity::Exact,
            writes: Granularity::Exact,
            latency: false,
            node: false,
            around: false,
            dirtied: false,
            counters: false,
            source: "fed".into(),
            text: "sees what it is fed".into(),
        }
    }

    fn cost(&self) -> Cost {
        Cost::default()
    }
}
