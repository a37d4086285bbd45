//! The broker: does what takes privilege, for processes that it identified itself.
//! In: a socket to the front. Out: when the front is gone. Knows nothing of what clients say.
//!
//! It reads nothing that a client sent: of clients it sees what `/proc` shows. From the front it
//! takes process ids, addresses and users, and acts only on processes that connected to the daemon
//! and still are what they were. A front under the control of an attacker can observe and move the
//! memory of programs that are hosted, which is what a daemon is for; it can neither read nor write
//! it, nor touch any other process.
//!
//! Long, because most of it is tests of what each service refuses.

use crate::channel::Channel;
use crate::peer::{Peer, as_owner_of_files};
use crate::protocol::{
    CHECK_HOLDS, Command, Identified, IdentityAnswer, IdentityAsk, MoveAsk, Moved, PeerError,
    PeerId, SamplerAnswer, SamplerAsk, SamplerFault, SamplerOpened, Service,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tiercel_machine::NodeId;
use tiercel_mover::{Kernel, Linux, STATUS_UNTOUCHED};
use tiercel_sampler::{Config, Drained, Kind, Sampler, TargetHandle};
use tiercel_symbolize::start_child;
use tiercel_wire::layout::OS_PAGE_BYTES;

/// OS pages of one call. Sixteen times what the mover asks at once.
const OS_PAGES_MAX: usize = 1 << 16;
/// Processes that are identified at a time: the daemon's own bound is lower. 200 bytes each.
const PEERS_MAX: usize = 1 << 16;
/// Users whose files may be read: those that had a process here. 4 bytes each.
const USERS_MAX: usize = 1 << 16;
/// Children that read symbols, at a time; the front keeps as many.
const CHILDREN_MAX: usize = 8;

/// Serves the front until it closes `primary`.
///
/// # Errors
/// When the front breaks the protocol, or no thread can be made.
pub fn serve(primary: OwnedFd, symbols: Vec<OsString>) -> io::Result<()> {
    let mut primary = Channel::from(primary);
    let known = Arc::new(Known::default());
    let mut leftover = None;
    while let Some((command, fd)) = primary.receive::<Command>()? {
        let fd = fd.ok_or(io::ErrorKind::InvalidData)?;
        match command {
            Command::Open(service) => open(service, fd.into(), &known, &symbols)?,
            Command::RemoveAtEnd(files) if leftover.is_none() => {
                leftover = Some(Leftover { files, _lock: fd });
            }
            Command::RemoveAtEnd(_) => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
    Ok(())
}

/// Files that the front could not remove. While the lock is held they are ours.
struct Leftover {
    files: Vec<PathBuf>,
    _lock: OwnedFd,
}

impl Drop for Leftover {
    fn drop(&mut self) {
        // A file that is gone already is what was wanted.
        self.files.iter().for_each(|file| drop(std::fs::remove_file(file)));
    }
}

/// Gives a channel a thread. What breaks a channel ends its service; the front sees the end.
fn open(
    service: Service,
    channel: Channel,
    known: &Arc<Known>,
    symbols: &[OsString],
) -> io::Result<()> {
    let (known, symbols) = (Arc::clone(known), symbols.to_vec());
    let serve = move || match service {
        Service::Identity => identify(channel, &known),
        Service::Mover => move_pages(channel, &known, &mut Linux::default()),
        Service::Sampler(kind, config) => sample(channel, &known, kind, &config),
        Service::Symbols => read_symbols(channel, &known, &symbols),
    };
    std::thread::Builder::new().name("tiercel-broker".into()).spawn(serve).map(drop)
}

/// The processes that may be observed and moved.
#[derive(Default)]
pub(crate) struct Known(Mutex<Table>);

#[derive(Default)]
struct Table {
    last: PeerId,
    /// By process id: each connection of a process is identified on its own.
    peers: BTreeMap<(u32, PeerId), Arc<Peer>>,
    pids: HashMap<PeerId, u32>,
    checked: HashMap<u32, Instant>,
    users: BTreeSet<u32>,
}

impl Known {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, peer: Peer) -> Result<PeerId, PeerError> {
        let mut table = self.table();
        if table.pids.len() >= PEERS_MAX {
            return Err(PeerError::NoBroker);
        }
        table.last += 1;
        let id = table.last;
        table.pids.insert(id, peer.pid());
        if table.users.len() < USERS_MAX {
            table.users.insert(peer.uid());
        }
        table.peers.insert((peer.pid(), id), Arc::new(peer));
        Ok(id)
    }

    fn get(&self, id: PeerId) -> Result<Arc<Peer>, PeerError> {
        let table = self.table();
        let pid = table.pids.get(&id).ok_or(PeerError::Gone)?;
        table.peers.get(&(*pid, id)).cloned().ok_or(PeerError::Gone)
    }

    fn forget(&self, id: PeerId) -> Result<Arc<Peer>, PeerError> {
        let mut table = self.table();
        let pid = table.pids.remove(&id).ok_or(PeerError::Gone)?;
        table.checked.remove(&pid);
        table.peers.remove(&(pid, id)).ok_or(PeerError::Gone)
    }

    /// Whether a process connected and still is what it was, as far as is known now.
    fn is_same(&self, pid: u32) -> bool {
        self.owner(pid).is_some()
    }

    /// The user of such a process.
    fn owner(&self, pid: u32) -> Option<u32> {
        let peers: Vec<Arc<Peer>> = {
            let table = self.table();
            table.peers.range((pid, 0)..=(pid, PeerId::MAX)).map(|(_, one)| one.clone()).collect()
        };
        peers.iter().find(|peer| peer.check().is_ok()).map(|peer| peer.uid())
    }

    /// The same, unless it was so a moment ago.
    fn was_same(&self, pid: u32) -> bool {
        let is_fresh = |at: &Instant| at.elapsed() < CHECK_HOLDS;
        if self.table().checked.get(&pid).is_some_and(is_fresh) {
            return true;
        }
        let is_same = self.is_same(pid);
        let mut table = self.table();
        if is_same {
            table.checked.insert(pid, Instant::now());
        } else {
            table.checked.remove(&pid);
        }
        is_same
    }

    fn has_user(&self, uid: u32) -> bool {
        self.table().users.contains(&uid)
    }
}

/// Answers until the channel ends, by the front or by what it sent. `None`: no answer is awaited.
fn answer<Q, A>(
    mut channel: Channel,
    mut one: impl FnMut(Q, Option<OwnedFd>) -> Option<(A, Option<OwnedFd>)>,
) where
    Q: serde::de::DeserializeOwned,
    A: serde::Serialize,
{
    while let Ok(Some((question, fd))) = channel.receive::<Q>() {
        let Some((answer, fd)) = one(question, fd) else { continue };
        if channel.send(&answer, fd.as_ref().map(AsFd::as_fd)).is_err() {
            return;
        }
    }
}

pub(crate) fn identify(channel: Channel, known: &Known) {
    answer(channel, |question, fd| match question {
        IdentityAsk::Identify => match fd.ok_or(PeerError::Gone).and_then(|fd| came(known, &fd)) {
            Ok((answer, pidfd)) => Some((vec![Ok(answer)], Some(pidfd))),
            Err(error) => Some((vec![Err(error)], None)),
        },
        IdentityAsk::Check(ids) => {
            let checked: IdentityAnswer = ids.into_iter().map(|id| checked(known, id)).collect();
            Some((checked, None))
        }
        IdentityAsk::Forget(id) => {
            // What is not known is forgotten already.
            let _ = known.forget(id);
            None
        }
    });
}

fn came(known: &Known, connection: &OwnedFd) -> Result<(Identified, OwnedFd), PeerError> {
    let peer = Peer::of(connection.as_fd())?;
    let pidfd = peer.pidfd().try_clone_to_owned().map_err(|_| PeerError::Gone)?;
    let identified = peer.identified(0);
    let id = known.add(peer)?;
    Ok((Identified { id, ..identified }, pidfd))
}

fn checked(known: &Known, id: PeerId) -> Result<Identified, PeerError> {
    let peer = known.get(id)?;
    peer.check()?;
    Ok(peer.identified(id))
}

pub(crate) fn move_pages(channel: Channel, known: &Known, kernel: &mut impl Kernel) {
    /// No such process.
    const ESRCH: i32 = 3;
    /// Argument list too long.
    const E2BIG: i32 = 7;
    answer(channel, |MoveAsk { pid, addrs, target }, _| {
        let mut status = vec![STATUS_UNTOUCHED; addrs.len()];
        let result = if addrs.len() > OS_PAGES_MAX {
            Err(E2BIG)
        } else if !known.was_same(pid) {
            Err(ESRCH)
        } else {
            let moved = kernel.move_pages(pid, &addrs, target.map(NodeId), &mut status);
            moved.map_err(|errno| errno.0)
        };
        Some((Moved { result, status }, None))
    });
}

fn sample(mut channel: Channel, known: &Known, kind: Kind, config: &Config) {
    match tiercel_sampler::open(kind, config) {
        Ok(mut sampler) => {
            if channel.send(&SamplerOpened::Ok((sampler.kind(), sampler.method())), None).is_ok() {
                observe(channel, known, sampler.as_mut());
            }
        }
        // The front sees the end of the channel if it does not get this.
        Err(error) => drop(channel.send(&SamplerOpened::Err(error.into()), None)),
    }
}

pub(crate) fn observe(channel: Channel, known: &Known, sampler: &mut dyn Sampler) {
    answer(channel, |ask, fd| Some((sampler_answer(sampler, known, ask, fd)?, None)));
}

pub(crate) fn sampler_answer(
    sampler: &mut dyn Sampler,
    known: &Known,
    ask: SamplerAsk,
    fd: Option<OwnedFd>,
) -> Option<SamplerAnswer> {
    match ask {
        SamplerAsk::Attach(pid) => {
            return Some(SamplerAnswer::Attached(attach(sampler, known, pid)));
        }
        SamplerAsk::Drain(now) => {
            let mut samples = Vec::new();
            let drained: Drained = sampler.drain(now, &mut samples);
            return Some(SamplerAnswer::Drained(drained, samples));
        }
        SamplerAsk::Counters => return Some(SamplerAnswer::Counters(sampler.counters())),
        SamplerAsk::Capabilities => {
            return Some(SamplerAnswer::Capabilities(sampler.capabilities()));
        }
        SamplerAsk::Cost => return Some(SamplerAnswer::Cost(sampler.cost())),
        SamplerAsk::AcceptUserfaultfd(pid) => {
            fd.into_iter().for_each(|fd| sampler.accept(pid, TargetHandle::Userfaultfd(fd)));
        }
        SamplerAsk::Detach(pid) => sampler.detach(pid),
        SamplerAsk::MaySplit(pid, within) => {
            whole_ranges(&[within]).into_iter().for_each(|within| sampler.may_split(pid, within));
        }
        SamplerAsk::Allow(pid, allowed) => sampler.allow(pid, allowed),
        // Once a tick: what is no longer the same process is no longer observed.
        SamplerAsk::Watch(pid, _) if !known.was_same(pid) => sampler.detach(pid),
        SamplerAsk::Watch(pid, watched) => sampler.watch(pid, &whole_ranges(&watched)),
        SamplerAsk::Release(pid, released) => sampler.release(pid, &whole_ranges(&released)),
        SamplerAsk::SetUsefulRate(samples_per_s) => sampler.set_useful_rate(samples_per_s),
    }
    None
}

/// The ranges that keep the sampler's contract: whole OS pages, ascending and apart. An honest
/// front sends no others.
fn whole_ranges(ranges: &[(u64, u64)]) -> Vec<Range<u64>> {
    let mut free = 0;
    let is_whole = |addr: u64| addr.is_multiple_of(OS_PAGE_BYTES);
    let keeps = |&(begin, end): &(u64, u64)| {
        let keeps = begin >= free && begin < end && is_whole(begin) && is_whole(end);
        free = if keeps { end } else { free };
        keeps.then_some(begin..end)
    };
    ranges.iter().filter_map(keeps).collect()
}

/// What is opened first and checked then belongs to the process that was checked.
fn attach(sampler: &mut dyn Sampler, known: &Known, pid: u32) -> Result<(), SamplerFault> {
    let owner = known.owner(pid).ok_or(SamplerFault::Vanished(pid))?;
    // Root owns the files of programs that must not be dumped; only its other rights open those.
    as_owner_of_files(owner, || sampler.attach(pid)).or_else(|_| sampler.attach(pid))?;
    if known.is_same(pid) {
        return Ok(());
    }
    sampler.detach(pid);
    Err(SamplerFault::Vanished(pid))
}

/// Starts a child for each user that is asked for, with that user's rights. A child ends when its
/// socket is closed, and at its limits.
fn read_symbols(channel: Channel, known: &Known, command: &[OsString]) {
    let mut children: BTreeMap<u32, Child> = BTreeMap::new();
    let mut ending: Vec<Child> = Vec::new();
    answer(channel, |uid: u32, _| {
        ending.extend(children.remove(&uid));
        if children.len() >= CHILDREN_MAX {
            ending.extend(std::mem::take(&mut children).into_values());
        }
        // What has no time left ends by itself; we may have no right to end it.
        ending.retain_mut(|child| {
            let _ = child.kill();
            matches!(child.try_wait(), Ok(None))
        });
        let may_start = ending.len() < CHILDREN_MAX && known.has_user(uid);
        let started = may_start.then(|| start_child(command, uid).ok()).flatten();
        let socket = started.map(|(socket, child)| {
            children.insert(uid, child);
            OwnedFd::from(socket)
        });
        Some((socket.is_some(), socket))
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{BrokeredKernel, Identity};
    use crate::peer::Guard;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use tiercel_mover::Errno;
    use tiercel_sampler::{Cost, Counters, Method, SamplerCapabilities};
    use tiercel_wire::peer::Credentials;

    /// A process that stays the same for as long as we like.
    #[derive(Clone, Debug)]
    struct Switch(Arc<AtomicBool>);

    impl Guard for Switch {
        fn check(&self, peer: &Peer) -> Result<u32, PeerError> {
            let is_same = self.0.load(Ordering::Relaxed);
            if is_same { Ok(peer.uid()) } else { Err(PeerError::Program) }
        }
    }

    const PID: u32 = 7;

    fn pidfd() -> OwnedFd {
        rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()
    }

    fn known(uid: u32) -> (Arc<Known>, PeerId, Switch) {
        let known = Arc::new(Known::default());
        let is_same = Switch(Arc::new(AtomicBool::new(true)));
        let identified = Identified { id: 0, pid: PID, uid, start_ticks: 1, image: 0 };
        let peer = Peer::guarded(identified, pidfd(), Box::new(is_same.clone()));
        let id = known.add(peer).unwrap();
        (known, id, is_same)
    }

    /// Counts calls, and puts every OS page on node 3.
    #[derive(Clone, Default)]
    struct Counting(Arc<AtomicU64>);

    impl Kernel for Counting {
        fn move_pages(
            &mut self,
            _: u32,
            _: &[u64],
            _: Option<NodeId>,
            status: &mut [i32],
        ) -> Result<u64, Errno> {
            self.0.fetch_add(1, Ordering::Relaxed);
            status.fill(3);
            Ok(0)
        }

        fn os_page_bytes(&self) -> u64 {
            4096
        }
    }

    fn mover(known: &Arc<Known>) -> (BrokeredKernel, Counting) {
        let (ours, theirs) = Channel::pair().unwrap();
        let (known, kernel) = (Arc::clone(known), Counting::default());
        let mut served = kernel.clone();
        std::thread::spawn(move || move_pages(theirs, &known, &mut served));
        (BrokeredKernel::over(ours), kernel)
    }

    #[test]
    fn only_processes_that_connected_are_moved() {
        let (known, id, _) = known(1000);
        let (mut front, kernel) = mover(&known);
        let mut status = [0; 2];
        let target = Some(NodeId(3));
        assert_eq!(front.move_pages(PID, &[4096, 8192], target, &mut status), Ok(0));
        assert_eq!(status, [3, 3]);
        assert_eq!(front.move_pages(1, &[4096, 8192], target, &mut status), Err(Errno::GONE));
        known.forget(id).unwrap();
        assert_eq!(front.move_pages(PID, &[4096, 8192], target, &mut status), Err(Errno::GONE));
        assert_eq!(kernel.0.load(Ordering::Relaxed), 1, "the kernel was asked only for ours");
    }

    #[test]
    fn a_process_that_runs_another_program_is_no_longer_moved() {
        let (known, _, is_same) = known(1000);
        let (mut front, kernel) = mover(&known);
        is_same.0.store(false, Ordering::Relaxed);
        assert_eq!(front.move_pages(PID, &[4096], None, &mut [0]), Err(Errno::GONE));
        assert_eq!(kernel.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn ranges_that_are_reversed_overlap_or_cut_an_os_page_are_left_out() {
        let sent = [(4096, 8192), (16384, 12288), (8192, 8192), (4096, 12288), (8192, 9000)];
        assert_eq!(whole_ranges(&sent), std::slice::from_ref(&(4096..8192)));
        let last = u64::MAX - 4095;
        assert_eq!(whole_ranges(&[(0, 4096), (4096, last)]), [0..4096, 4096..last]);
    }

    #[test]
    fn a_call_on_too_many_os_pages_is_refused() {
        let (known, _, _) = known(1000);
        let (mut front, kernel) = mover(&known);
        let addrs = vec![0; OS_PAGES_MAX + 1];
        let refused = front.move_pages(PID, &addrs, None, &mut vec![0; addrs.len()]);
        assert_eq!(refused, Err(Errno(7)));
        assert_eq!(kernel.0.load(Ordering::Relaxed), 0);
    }

    /// Notes what it observes.
    #[derive(Default)]
    struct Noting {
        attached: Vec<u32>,
        /// What happens while it attaches.
        meanwhile: Option<Switch>,
    }

    impl Sampler for Noting {
        fn kind(&self) -> Kind {
            Kind::Probe
        }
        fn method(&self) -> Method {
            Method::PageTables
        }
        fn attach(&mut self, pid: u32) -> Result<(), tiercel_sampler::SamplerError> {
            self.attached.push(pid);
            self.meanwhile.iter().for_each(|switch| switch.0.store(false, Ordering::Relaxed));
            Ok(())
        }
        fn detach(&mut self, pid: u32) {
            self.attached.retain(|&one| one != pid);
        }
        fn watch(&mut self, _: u32, _: &[std::ops::Range<u64>]) {}
        fn drain(&mut self, _: tiercel_wire::Now, _: &mut Vec<tiercel_wire::Sample>) -> Drained {
            Drained::default()
        }
        fn counters(&mut self) -> Option<Counters> {
            None
        }
        fn capabilities(&self) -> SamplerCapabilities {
            unreachable!("no test asks")
        }
        fn cost(&self) -> Cost {
            Cost::default()
        }
    }

    fn attached(sampler: &mut Noting, known: &Known, pid: u32) -> bool {
        let answer = sampler_answer(sampler, known, SamplerAsk::Attach(pid), None);
        matches!(answer, Some(SamplerAnswer::Attached(Ok(()))))
    }

    #[test]
    fn only_processes_that_connected_are_sampled() {
        let (known, _, is_same) = known(rustix::process::geteuid().as_raw());
        let mut sampler = Noting::default();
        assert!(!attached(&mut sampler, &known, 1));
        assert!(sampler.attached.is_empty(), "nothing of it was opened");
        assert!(attached(&mut sampler, &known, PID));
        // It runs another program: no longer observed from the next tick on.
        is_same.0.store(false, Ordering::Relaxed);
        known.table().checked.clear();
        sampler_answer(&mut sampler, &known, SamplerAsk::Watch(PID, Vec::new()), None);
        assert!(sampler.attached.is_empty());
    }

    #[test]
    fn a_process_that_changes_while_it_is_opened_is_not_sampled() {
        let (known, _, is_same) = known(rustix::process::geteuid().as_raw());
        let mut sampler = Noting { meanwhile: Some(is_same), ..Noting::default() };
        assert!(!attached(&mut sampler, &known, PID));
        assert!(sampler.attached.is_empty());
    }

    #[test]
    fn the_front_gets_peers_of_what_the_broker_identified() {
        let known = Arc::new(Known::default());
        let service = || {
            let (ours, theirs) = Channel::pair().unwrap();
            let table = Arc::clone(&known);
            (ours, std::thread::spawn(move || identify(theirs, &table)))
        };
        let ((greeting, greeted), (checking, checked)) = (service(), service());
        let identity = Identity::over(greeting, checking);
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (socket, _other) =
            rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        let peer = identity.peer(socket.as_fd()).unwrap();
        assert_eq!(peer.pid(), std::process::id());
        assert_eq!(peer.check(), Ok(()));
        assert_eq!(identity.check(&[&peer, &peer]), [Ok(()), Ok(())]);
        assert_eq!(peer.sent(Some(Credentials { pid: peer.pid(), uid: peer.uid() })), Ok(()));
        assert!(peer.is_alive() && known.is_same(std::process::id()));
        drop((peer, identity));
        [greeted, checked].into_iter().for_each(|service| service.join().unwrap());
        assert!(!known.is_same(std::process::id()), "what the front drops is forgotten");
    }

    #[test]
    fn the_broker_is_asked_once_for_all_processes() {
        let (known, first, is_same) = known(1000);
        let others = [1001, 1002].map(|uid| {
            let identified = Identified { id: 0, pid: uid, uid, start_ticks: 1, image: 0 };
            let always = Switch(Arc::new(AtomicBool::new(true)));
            known.add(Peer::guarded(identified, pidfd(), Box::new(always))).unwrap()
        });
        is_same.0.store(false, Ordering::Relaxed);
        let (mut ours, theirs) = Channel::pair().unwrap();
        let service = std::thread::spawn(move || identify(theirs, &known));
        let ids = vec![first, others[0], 77, others[1]];
        let (answers, _) = ours.call::<_, IdentityAnswer>(&IdentityAsk::Check(ids), None).unwrap();
        let users: Vec<_> = answers.into_iter().map(|one| one.map(|one| one.uid)).collect();
        assert_eq!(
            users,
            [Err(PeerError::Program), Ok(1001), Err(PeerError::Gone), Ok(1002)],
            "one answer for all"
        );
        drop(ours);
        service.join().unwrap();
    }

    #[test]
    fn without_a_broker_no_process_is_accepted() {
        let [greeting, checking] = [(), ()].map(|()| Channel::pair().unwrap().0);
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let refused = Identity::over(greeting, checking).peer(socket.as_fd());
        assert_eq!(refused.unwrap_err(), PeerError::NoBroker);
    }

    #[test]
    fn symbols_are_read_only_for_users_who_had_a_process() {
        let user = rustix::process::geteuid().as_raw();
        let (known, _, _) = known(user);
        let (mut ours, theirs) = Channel::pair().unwrap();
        let command = ["cat", "-"].map(OsString::from).to_vec();
        let served = std::thread::spawn(move || read_symbols(theirs, &known, &command));
        let (started, socket) = ours.call::<u32, bool>(&(user + 1), None).unwrap();
        assert!(!started && socket.is_none());
        let (started, socket) = ours.call::<u32, bool>(&user, None).unwrap();
        assert!(started && socket.is_some());
        drop(ours);
        served.join().unwrap();
    }

    #[test]
    fn a_front_that_breaks_the_protocol_is_left() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut ours = Channel::from(ours);
        ours.send(&u64::MAX, None).unwrap();
        assert!(serve(theirs.into(), Vec::new()).is_err());
    }

    #[test]
    fn files_are_removed_when_the_front_is_gone_and_only_those_named_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        ["a", "b"].iter().for_each(|name| std::fs::write(path(name), "").unwrap());
        let lock = std::fs::File::open(folder.path()).unwrap();
        let (mut ours, theirs) = Channel::pair().unwrap();
        let served = std::thread::spawn(move || serve(theirs.into_fd(), Vec::new()));
        ours.send(&Command::RemoveAtEnd(vec![path("a")]), Some(lock.as_fd())).unwrap();
        ours.send(&Command::RemoveAtEnd(vec![path("b")]), Some(lock.as_fd())).unwrap();
        assert!(served.join().unwrap().is_err(), "a second list is refused");
        assert!(!path("a").exists() && path("b").exists());
    }
}
