//! The front's side of the broker: the same traits that work in one process.
//! In: calls. Out: the broker's answers. Knows nothing of how anything is done.
//!
//! When the broker ends, calls fail as if every process had vanished; the front ends then, too.

use crate::channel::Channel;
use crate::peer::{Guard, Peer};
use crate::protocol::{
    CHECK_HOLDS, Command as Order, IdentityAnswer, IdentityAsk, MoveAsk, Moved, PeerError, PeerId,
    SamplerAnswer, SamplerAsk, SamplerOpened, Service,
};
use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tiercel_machine::NodeId;
use tiercel_mover::{Errno, Kernel};
use tiercel_sampler::{
    Allowed, Config, Cost, Counters, Drained, Granularity, Kind, Method, Sampler,
    SamplerCapabilities, SamplerError, TargetHandle,
};
use tiercel_symbolize::StartChild;
use tiercel_wire::{Now, Sample};

/// The privileged process, as its front sees it.
#[derive(Debug)]
pub struct Broker {
    primary: Channel,
    process: Child,
}

impl Broker {
    /// Starts `command`, which must end in [`crate::serve`] with its standard input.
    ///
    /// # Errors
    /// When there is no memory or no descriptor for it.
    pub fn start(mut command: Command) -> io::Result<Broker> {
        let (ours, theirs) = UnixStream::pair()?;
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        Ok(Broker { process: command.spawn()?, primary: ours.into() })
    }

    fn open(&mut self, service: Service) -> io::Result<Channel> {
        let (ours, theirs) = Channel::pair()?;
        self.primary.send(&Order::Open(service), Some(theirs.as_fd()))?;
        Ok(ours)
    }

    /// Identifies processes that connect.
    pub fn identity(&mut self) -> io::Result<Identity> {
        let greeting = self.open(Service::Identity)?;
        Ok(Identity::over(greeting, self.open(Service::Identity)?))
    }

    /// The kernel's `move_pages` on processes that were identified.
    pub fn kernel(&mut self) -> io::Result<BrokeredKernel> {
        self.open(Service::Mover).map(BrokeredKernel::over)
    }

    /// A sampler of processes that were identified.
    ///
    /// # Errors
    /// Those of [`tiercel_sampler::open`], or the broker is gone.
    pub fn sampler(
        &mut self,
        kind: Kind,
        config: &Config,
    ) -> Result<Box<dyn Sampler>, SamplerError> {
        let gone = |source| SamplerError::Io { what: "cannot ask the broker".into(), source };
        let service = Service::Sampler(kind, Box::new(config.clone()));
        let mut channel = self.open(service).map_err(gone)?;
        let opened = channel.receive::<SamplerOpened>().map_err(gone)?;
        let (opened, _) = opened.ok_or_else(|| gone(io::ErrorKind::UnexpectedEof.into()))?;
        let (kind, method) = opened?;
        Ok(Box::new(BrokeredSampler { kind, method, channel: RefCell::new(channel) }))
    }

    /// Starts the children that read symbols.
    pub fn symbols(&mut self) -> io::Result<BrokeredSymbols> {
        Ok(BrokeredSymbols(Mutex::new(self.open(Service::Symbols)?)))
    }

    /// Leaves it to the broker to remove files, which the front will have no right to, when the
    /// front is gone. `lock` is held until then.
    pub fn remove_at_end(&mut self, files: Vec<PathBuf>, lock: BorrowedFd<'_>) -> io::Result<()> {
        self.primary.send(&Order::RemoveAtEnd(files), Some(lock))
    }

    /// Takes it apart: its process, which ends when the connection is dropped and every service
    /// with it.
    pub fn into_parts(self) -> (Child, Channel) {
        (self.process, self.primary)
    }
}

/// Who identifies processes: this process itself, or its broker.
#[derive(Clone, Debug, Default)]
pub struct Identity(Option<Arc<Asking>>);

/// Where the broker is asked.
#[derive(Debug)]
struct Asking {
    /// By threads that greet.
    greeting: Mutex<Channel>,
    /// By all others, who wait for no greeting.
    checking: Mutex<Channel>,
}

impl Identity {
    pub(crate) fn over(greeting: Channel, checking: Channel) -> Identity {
        let [greeting, checking] = [greeting, checking].map(Mutex::new);
        Identity(Some(Arc::new(Asking { greeting, checking })))
    }

    /// The process that connected to `socket`.
    ///
    /// # Errors
    /// When it is gone, or may not be hosted.
    pub fn peer(&self, socket: BorrowedFd<'_>) -> Result<Peer, PeerError> {
        let Some(asking) = &self.0 else { return Peer::of(socket) };
        let (mut known, pidfd) = ask(&asking.greeting, &IdentityAsk::Identify, Some(socket))?;
        let known = known.pop().ok_or(PeerError::NoBroker)??;
        let (asking, seen) = (Arc::clone(asking), Mutex::new((Instant::now(), known.uid)));
        let guard = BrokerGuard { asking, id: known.id, seen };
        Ok(Peer::guarded(known, pidfd.ok_or(PeerError::NoBroker)?, Box::new(guard)))
    }

    /// Whether a broker is asked, one question after the other.
    pub fn is_brokered(&self) -> bool {
        self.0.is_some()
    }

    /// [`Peer::check`] of each. A broker is asked once for all.
    pub fn check(&self, peers: &[&Peer]) -> Vec<Result<(), PeerError>> {
        let stale: Vec<Option<PeerId>> = peers.iter().map(|peer| peer.stale_id()).collect();
        let ids: Vec<PeerId> = stale.iter().flatten().copied().collect();
        let users = match &self.0 {
            Some(asking) if !ids.is_empty() => users(&asking.checking, ids),
            _ => Ok(Vec::new()),
        };
        let mut users = users.unwrap_or_default().into_iter();
        let one = |(peer, stale): (&&Peer, &Option<PeerId>)| match stale {
            Some(_) => peer.found(users.next().unwrap_or(Err(PeerError::NoBroker))),
            None => peer.check(),
        };
        peers.iter().zip(&stale).map(one).collect()
    }
}

fn ask(
    channel: &Mutex<Channel>,
    question: &IdentityAsk,
    fd: Option<BorrowedFd<'_>>,
) -> Result<(IdentityAnswer, Option<OwnedFd>), PeerError> {
    let mut channel = channel.lock().unwrap_or_else(PoisonError::into_inner);
    channel.call(question, fd).map_err(|_| PeerError::NoBroker)
}

/// The effective users of processes that are what they were.
fn users(
    channel: &Mutex<Channel>,
    ids: Vec<PeerId>,
) -> Result<Vec<Result<u32, PeerError>>, PeerError> {
    let (known, _) = ask(channel, &IdentityAsk::Check(ids), None)?;
    Ok(known.into_iter().map(|one| one.map(|one| one.uid)).collect())
}

#[derive(Debug)]
struct BrokerGuard {
    asking: Arc<Asking>,
    id: PeerId,
    /// When the broker found it to be the same, and its user then.
    seen: Mutex<(Instant, u32)>,
}

impl BrokerGuard {
    fn seen(&self) -> MutexGuard<'_, (Instant, u32)> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn user(&self, channel: &Mutex<Channel>) -> Result<u32, PeerError> {
        let (at, user) = *self.seen();
        if at.elapsed() < CHECK_HOLDS {
            return Ok(user);
        }
        let user = users(channel, vec![self.id])?.pop().ok_or(PeerError::NoBroker)?;
        self.note(user);
        user
    }
}

impl Guard for BrokerGuard {
    fn check(&self, _: &Peer) -> Result<u32, PeerError> {
        self.user(&self.asking.checking)
    }

    fn check_in_greeting(&self, _: &Peer) -> Result<u32, PeerError> {
        self.user(&self.asking.greeting)
    }

    fn stale_id(&self) -> Option<PeerId> {
        (self.seen().0.elapsed() >= CHECK_HOLDS).then_some(self.id)
    }

    fn note(&self, user: Result<u32, PeerError>) {
        if let Ok(user) = user {
            *self.seen() = (Instant::now(), user);
        }
    }
}

impl Drop for BrokerGuard {
    fn drop(&mut self) {
        let mut channel = self.asking.checking.lock().unwrap_or_else(PoisonError::into_inner);
        // Without a broker there is nothing left to forget.
        let _ = channel.send(&IdentityAsk::Forget(self.id), None);
    }
}

/// `move_pages`, by the broker.
#[derive(Debug)]
pub struct BrokeredKernel {
    channel: Channel,
}

impl BrokeredKernel {
    pub(crate) fn over(channel: Channel) -> BrokeredKernel {
        BrokeredKernel { channel }
    }
}

impl Kernel for BrokeredKernel {
    fn move_pages(
        &mut self,
        pid: u32,
        addrs: &[u64],
        target: Option<NodeId>,
        status: &mut [i32],
    ) -> Result<u64, Errno> {
        let question = MoveAsk { pid, addrs: addrs.to_vec(), target: target.map(|node| node.0) };
        let answer = self.channel.call::<_, Moved>(&question, None);
        let (moved, _) = answer.map_err(|_| Errno::GONE)?;
        if moved.status.len() != status.len() {
            return Err(Errno::GONE);
        }
        status.copy_from_slice(&moved.status);
        moved.result.map_err(Errno)
    }

    fn os_page_bytes(&self) -> u64 {
        rustix::param::page_size() as u64
    }
}

struct BrokeredSampler {
    kind: Kind,
    method: Method,
    channel: RefCell<Channel>,
}

impl BrokeredSampler {
    fn ask(&self, question: &SamplerAsk) -> io::Result<SamplerAnswer> {
        self.channel.borrow_mut().call(question, None).map(|(answer, _)| answer)
    }

    /// Requests what has no answer; without a broker nothing is done.
    fn request(&self, question: &SamplerAsk) {
        self.pass(question, None);
    }

    fn pass(&self, question: &SamplerAsk, fd: Option<OwnedFd>) {
        let _ = self.channel.borrow_mut().send(question, fd.as_ref().map(AsFd::as_fd));
    }
}

fn pairs(ranges: &[Range<u64>]) -> Vec<(u64, u64)> {
    ranges.iter().map(|range| (range.start, range.end)).collect()
}

impl Sampler for BrokeredSampler {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn method(&self) -> Method {
        self.method
    }

    fn attach(&mut self, pid: u32) -> Result<(), SamplerError> {
        let gone = |source| SamplerError::Io { what: "cannot ask the broker".into(), source };
        match self.ask(&SamplerAsk::Attach(pid)).map_err(gone)? {
            SamplerAnswer::Attached(result) => result.map_err(Into::into),
            _ => Err(gone(io::ErrorKind::InvalidData.into())),
        }
    }

    fn accept(&mut self, pid: u32, TargetHandle::Userfaultfd(fd): TargetHandle) {
        self.pass(&SamplerAsk::AcceptUserfaultfd(pid), Some(fd));
    }

    fn detach(&mut self, pid: u32) {
        self.request(&SamplerAsk::Detach(pid));
    }

    fn may_split(&mut self, pid: u32, within: Range<u64>) {
        self.request(&SamplerAsk::MaySplit(pid, (within.start, within.end)));
    }

    fn allow(&mut self, pid: u32, allowed: Allowed) {
        self.request(&SamplerAsk::Allow(pid, allowed));
    }

    fn watch(&mut self, pid: u32, ranges: &[Range<u64>]) {
        self.request(&SamplerAsk::Watch(pid, pairs(ranges)));
    }

    fn release(&mut self, pid: u32, ranges: &[Range<u64>]) {
        self.request(&SamplerAsk::Release(pid, pairs(ranges)));
    }

    fn set_useful_rate(&mut self, samples_per_s: f64) {
        self.request(&SamplerAsk::SetUsefulRate(samples_per_s));
    }

    fn drain(&mut self, now: Now, out: &mut Vec<Sample>) -> Drained {
        match self.ask(&SamplerAsk::Drain(now)) {
            Ok(SamplerAnswer::Drained(drained, samples)) => {
                out.extend(samples);
                drained
            }
            _ => Drained::default(),
        }
    }

    fn counters(&mut self) -> Option<Counters> {
        match self.ask(&SamplerAsk::Counters) {
            Ok(SamplerAnswer::Counters(counters)) => counters,
            _ => None,
        }
    }

    fn capabilities(&self) -> SamplerCapabilities {
        match self.ask(&SamplerAsk::Capabilities) {
            Ok(SamplerAnswer::Capabilities(found)) => found,
            _ => no_capabilities(),
        }
    }

    fn cost(&self) -> Cost {
        match self.ask(&SamplerAsk::Cost) {
            Ok(SamplerAnswer::Cost(cost)) => cost,
            _ => Cost::default(),
        }
    }
}

fn no_capabilities() -> SamplerCapabilities {
    SamplerCapabilities {
        reads: Granularity::Blind,
        writes: Granularity::Blind,
        latency: false,
        node: false,
        around: false,
        dirtied: false,
        counters: false,
        source: "none".into(),
        text: "The daemon's broker is gone: nothing is seen.".into(),
    }
}

/// Children that read symbols, started by the broker.
#[derive(Debug)]
pub struct BrokeredSymbols(Mutex<Channel>);

impl StartChild for BrokeredSymbols {
    /// The child ends when its socket is closed; the broker ends it when it starts the next one for
    /// this user.
    fn start(&self, uid: u32) -> io::Result<(UnixStream, Option<Child>)> {
        let mut channel = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match channel.call::<u32, bool>(&uid, None)? {
            (true, Some(socket)) => Ok((socket.into(), None)),
            _ => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}
