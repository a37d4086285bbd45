//! A daemon on a thread, with parts of our own, and everything a test wants to do to it.
//! In: settings to change. Out: [`Stage`]. Knows nothing of what is tested.

use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use std::io::{BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};
use tiercel_broker::Identity;
use tiercel_daemon::protocol::{Request, request_line};
use tiercel_daemon::{
    Daemon, DaemonConfig, DaemonError, FinalReport, Handle, Parts, Settings, Summary,
};
use tiercel_ledger::movement::{Move, Outcome};
use tiercel_machine::{Machine, Node, NodeId};
use tiercel_mover::{ModelledMover, Mover, Residency, ResidencyError};
use tiercel_sampler::{
    Cost, Counters, Drained, Granularity, Kind, Method, Sampler, SamplerCapabilities, SamplerError,
};
use tiercel_wire::client::{ClientSession, SessionBuilder};
use tiercel_wire::{
    AccessKind, Flags, Hello, Now, ObjectSnapshot, Record, Sample, Status, Version, Welcome,
};

pub const MIB: u64 = 1 << 20;

/// What is awaited takes milliseconds on a quiet machine, and seconds on a very busy one.
const DEADLINE: Duration = Duration::from_secs(300);

type Samples = Arc<Mutex<Vec<(Range<u64>, u32)>>>;
type Watched = Arc<Mutex<Vec<Range<u64>>>>;
type Released = Arc<Mutex<Vec<Vec<Range<u64>>>>>;

pub struct Stage {
    directory: tempfile::TempDir,
    clients_path: PathBuf,
    control_path: PathBuf,
    handle: Handle,
    thread: Option<JoinHandle<Result<FinalReport, DaemonError>>>,
    samples: Samples,
    /// The ranges the sampler watches.
    pub watched: Watched,
    /// The ranges it was made to release, one entry for each call.
    pub release: Released,
    /// The sufficient rate it was given, samples per second; 0: none.
    pub enough_per_s: Arc<AtomicU64>,
    /// Processes it was attached to.
    pub attaches: Arc<AtomicU64>,
}

/// Lets a [`Stage::with_slow_mover`] go on.
pub struct Gate {
    pub open: Arc<AtomicBool>,
    pub thread: Thread,
}

impl Stage {
    pub fn new() -> Stage {
        Stage::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut DaemonConfig)) -> Stage {
        let machine = machine();
        let first_touch = vec![(NodeId(1), u64::MAX)];
        let mover = ModelledMover::new(machine.clone(), first_touch);
        Stage::start(change, Box::new(mover))
    }

    /// The mover's first call lasts until the gate is opened.
    pub fn with_slow_mover() -> (Stage, Gate) {
        let open = Arc::new(AtomicBool::new(false));
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let is_open = Arc::clone(&open);
        let mover = FakeMover(move |_: &_| {
            // No receiver is left from the second call on.
            let _ = sender.try_send(std::thread::current());
            while !is_open.load(Ordering::Acquire) {
                std::thread::park();
            }
            Err(ResidencyError::Vanished)
        });
        let stage = Stage::start(|_| {}, Box::new(mover));
        // The thread names itself at its first call, which the first objects bring about.
        let _session = stage.host(MIB);
        let thread = receiver.recv_timeout(DEADLINE).unwrap();
        (stage, Gate { open, thread })
    }

    /// No program has touched any memory; what is free is this machine's.
    pub fn with_untouched_memory(change: impl FnOnce(&mut DaemonConfig)) -> Stage {
        let nothing =
            |bytes| Residency { nodes: Vec::new(), absent_bytes: bytes, queried_bytes: bytes };
        let mover = FakeMover(move |range: &tiercel_mover::Range| Ok(nothing(range.bytes)));
        Stage::start(change, Box::new(mover))
    }

    pub fn with_failing_mover() -> Stage {
        Stage::start(|_| {}, Box::new(FakeMover(|_: &_| panic!("a defect"))))
    }

    fn start(change: impl FnOnce(&mut DaemonConfig), mover: Box<dyn Mover + Send>) -> Stage {
        let directory = tempfile::tempdir().unwrap();
        let mut config = DaemonConfig::new(&Settings::default()).unwrap();
        config.directory = directory.path().join("t");
        config.tick_ms = 50;
        config.policy.tick_ms = 50;
        config.policy.configure(&mut config.ledger);
        config.poll_min_ms = 1;
        config.poll_max_ms = 10;
        config.policy.trigger = "time:ticks=1".parse().unwrap();
        config.policy.gate = "none".parse().unwrap();
        change(&mut config);
        let samples = Samples::default();
        let (watched, attaches) = (Watched::default(), Arc::new(AtomicU64::new(0)));
        let release = Released::default();
        let enough_per_s = Arc::new(AtomicU64::new(0));
        let sampler = Box::new(FedSampler {
            samples: Arc::clone(&samples),
            watched: Arc::clone(&watched),
            release: Arc::clone(&release),
            enough_per_s: Arc::clone(&enough_per_s),
            attaches: Arc::clone(&attaches),
        });
        let parts = Parts {
            machine: machine(),
            sampler: Some(sampler),
            mover,
            identity: Identity::default(),
        };
        let daemon = Daemon::new(config, parts).unwrap();
        let handle = daemon.handle();
        let clients_path = daemon.clients_path().to_owned();
        let control_path = daemon.control_path();
        let thread = Some(std::thread::spawn(move || daemon.run()));
        Stage {
            directory,
            clients_path,
            control_path,
            handle,
            thread,
            samples,
            watched,
            release,
            enough_per_s,
            attaches,
        }
    }

    /// Where programs attach.
    #[allow(dead_code, reason = "not every test has programs of its own")]
    pub fn clients_path(&self) -> &std::path::Path {
        &self.clients_path
    }

    /// Greets as a runtime does.
    pub fn attach(&self, session: &ClientSession) -> Welcome {
        let socket = socket();
        connect(&socket, &self.clients_path);
        greet(&socket, session).unwrap()
    }

    /// Attaches a process with one object of so many bytes, at 1 TiB.
    pub fn host(&self, bytes: u64) -> ClientSession {
        let session = SessionBuilder::new().build().unwrap();
        session.put_run(&object(1 << 40, bytes)).unwrap();
        assert_eq!(self.attach(&session).status, Status::Ok);
        session
    }

    /// From now on every drain brings a sample in every OS page of the range.
    pub fn feed(&self, addr: u64, bytes: u64) {
        let pid = std::process::id();
        self.samples.lock().unwrap().push((addr..addr + bytes, pid));
    }

    /// A control connection.
    pub fn peer(&self) -> BufReader<UnixStream> {
        let stream = UnixStream::connect(&self.control_path).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        BufReader::new(stream)
    }

    pub fn ask(&self, request: &Request, name: &str) -> serde_json::Value {
        let mut peer = self.peer();
        peer.get_mut().write_all(&request_line(request)).unwrap();
        let value: serde_json::Value = serde_json::from_str(&line(&mut peer)).unwrap();
        value["answer"][name].clone()
    }

    pub fn status(&self) -> Summary {
        serde_json::from_value(self.ask(&Request::Status, "status")).unwrap()
    }

    /// Asks until `holds`; the status it held for.
    pub fn until(&self, what: &str, mut holds: impl FnMut(&Summary) -> bool) -> Summary {
        let end = Instant::now() + DEADLINE;
        let mut peer = self.peer();
        loop {
            peer.get_mut().write_all(&request_line(&Request::Status)).unwrap();
            let value: serde_json::Value = serde_json::from_str(&line(&mut peer)).unwrap();
            let status = serde_json::from_value(value["answer"]["status"].clone()).unwrap();
            if holds(&status) {
                return status;
            }
            assert!(Instant::now() < end, "not so: {what}; {status:#?}");
            // The daemon's next turn, not a nap: it answers when it has drained and ticked.
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }

    pub fn stop(mut self) -> FinalReport {
        self.handle.stop();
        let farewell = self.thread.take().unwrap().join().unwrap().unwrap();
        let left = std::fs::read_dir(self.directory.path().join("t")).unwrap().count();
        assert_eq!(left, 0, "the daemon leaves no files");
        farewell
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take()
            && !std::thread::panicking()
        {
            thread.join().unwrap().unwrap();
        }
    }
}

/// As a runtime opens it.
pub fn socket() -> OwnedFd {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap()
}

pub fn connect(socket: impl AsFd, path: &Path) {
    rustix::net::connect(socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
}

/// Says a hello with the session's memfd and takes the answer. Both can fail when the daemon has
/// refused the connection already.
pub fn greet(socket: impl AsFd + Copy, session: &ClientSession) -> rustix::io::Result<Welcome> {
    send_hello(socket, session.total_bytes(), session.fd().unwrap().as_fd())?;
    let mut answer = [0u8; 64];
    let (_, got) = rustix::net::recv(socket, &mut answer[..], RecvFlags::empty())?;
    Ok(Welcome::decode(&answer[..got]).unwrap())
}

/// Says a hello with this descriptor as its memfd.
pub fn send_hello(
    socket: impl AsFd,
    total_bytes: u64,
    memfd: BorrowedFd<'_>,
) -> rustix::io::Result<()> {
    let bytes = Hello { pid: 1, parent_pid: 0, total_bytes, image: 0 }.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [memfd];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    let (slices, flags) = ([IoSlice::new(&bytes)], SendFlags::NOSIGNAL);
    rustix::net::sendmsg(socket, &slices, &mut ancillary, flags).map(drop)
}

/// A line, empty when the connection ended.
pub fn line(peer: &mut BufReader<UnixStream>) -> String {
    let mut line = String::new();
    match peer.read_line(&mut line) {
        Ok(_) => line,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => String::new(),
        Err(error) => panic!("{error}"),
    }
}

pub fn object(addr: u64, bytes: u64) -> ObjectSnapshot {
    let version = Version { carve: 1_000_000, generation: 0 };
    ObjectSnapshot { addr, bytes, site: 0, version, arena: Some(1), flags: Flags::default() }
}

pub fn born(addr: u64, bytes: u64, carve: u32) -> Record {
    let version = Version { carve, generation: 0 };
    let (site, arena, flags, time_ns) = (0, Some(1), Flags::default(), 0);
    Record::Born { addr, bytes, site, version, arena, flags, time_ns }
}

pub fn died(addr: u64, bytes: u64, carve: u32) -> Record {
    let version = Version { carve, generation: 0 };
    Record::Died { addr, bytes, version, flags: Flags::default(), time_ns: 0 }
}

/// Two tiers of 1 GiB.
fn machine() -> Machine {
    let mut fast = Node::new(NodeId(0), 1 << 30);
    let mut slow = Node::new(NodeId(1), 1 << 30);
    (fast.tier, slow.tier) = (Some(0), Some(1));
    (fast.figures.read_latency_ns, slow.figures.read_latency_ns) = (Some(80.0), Some(300.0));
    Machine {
        name: "test".into(),
        description: String::new(),
        distances: vec![vec![10, 20], vec![20, 10]],
        nodes: vec![fast, slow],
        links: Vec::new(),
    }
}

/// Returns the samples it is given; it is given ranges to watch, as the probe is.
struct FedSampler {
    samples: Samples,
    watched: Watched,
    release: Released,
    enough_per_s: Arc<AtomicU64>,
    attaches: Arc<AtomicU64>,
}

impl Sampler for FedSampler {
    fn kind(&self) -> Kind {
        Kind::Probe
    }

    fn method(&self) -> Method {
        Method::PageTables
    }

    fn attach(&mut self, _pid: u32) -> Result<(), SamplerError> {
        self.attaches.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn detach(&mut self, _pid: u32) {}

    fn watch(&mut self, _pid: u32, ranges: &[Range<u64>]) {
        *self.watched.lock().unwrap() = ranges.to_vec();
    }

    fn release(&mut self, _pid: u32, ranges: &[Range<u64>]) {
        self.release.lock().unwrap().push(ranges.to_vec());
    }

    fn set_useful_rate(&mut self, samples_per_s: f64) {
        self.enough_per_s.store(samples_per_s as u64, Ordering::Relaxed);
    }

    fn drain(&mut self, now: Now, out: &mut Vec<Sample>) -> Drained {
        let before = out.len();
        for (range, pid) in self.samples.lock().unwrap().iter() {
            out.extend(range.clone().step_by(4096).map(|addr| Sample {
                from_ns: now.ns,
                until_ns: now.ns,
                pid: *pid,
                tid: *pid,
                addr,
                kind: AccessKind::Read,
                latency_ns: None,
                node: None,
                weight: 64,
                around: None,
                cpu: None,
                by: None,
            }));
        }
        Drained { samples: (out.len() - before) as u64, blind: 1, ..Drained::default() }
    }

    fn counters(&mut self) -> Option<Counters> {
        None
    }

    fn capabilities(&self) -> SamplerCapabilities {
        SamplerCapabilities {
            reads: Granularity::Exact,
            writes: Granularity::Blind,
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

/// A mover that the daemon takes for a real one: it moves nothing, and answers lookups range by
/// range with a function.
struct FakeMover<F>(F);

impl<F: FnMut(&tiercel_mover::Range) -> Result<Residency, ResidencyError>> Mover for FakeMover<F> {
    fn execute(&mut self, _moves: &[Move]) -> Vec<Outcome> {
        Vec::new()
    }

    fn residency(
        &mut self,
        _pid: u32,
        ranges: &[tiercel_mover::Range],
    ) -> Vec<Result<Residency, ResidencyError>> {
        ranges.iter().map(&mut self.0).collect()
    }

    fn is_modelled(&self) -> bool {
        false
    }
}
