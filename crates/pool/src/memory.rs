//! Memory of a node as sealed memfds, or as files of a folder. In: node, size, kind of OS pages.
//! Out: [`Segment`]s whose memory is populated and was seen to lie there. Knows nothing of who gets
//! it.
//!
//! A folder is for memory that the kernel has no node for: a file system on a persistent memory's
//! device, mounted with `dax`, whose files are that memory. Its files have no name and go with
//! their last mapping. Files have no seals: an owner may cut its own short, and be ended by a touch
//! behind the end; what it makes longer is cut off when the pool looks the next time.

use crate::PoolError;
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use tiercel_machine::NodeId;

/// Bytes of an OS page; vpages are multiples.
const OS_PAGE_BYTES: usize = 4096;

/// OS pages asked about in one call: 128 KiB of addresses, and as many statuses.
const ASKED_MAX: usize = 16_384;

/// linux/mempolicy.h: that node first, others when it is full. Strict binding would meet the
/// out-of-memory killer instead of an error; where the memory came from is looked up afterwards.
const MPOL_PREFERRED: libc::c_int = 1;

/// Filled between two looks at how much the system has left, bytes: about 20 ms.
const POPULATED_MAX: usize = 64 << 20;

/// Left to the system at least, bytes.
const LEFT_BYTES: u64 = 256 << 20;

/// What a segment is divided into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vpage {
    /// 4 KiB.
    Small,
    /// 64 KiB, of small OS pages.
    Medium,
    /// 2 MiB, of huge OS pages where the kernel gives any for shared memory.
    Large,
}

/// Who touches memory of a node first, and is charged for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Filled {
    /// We, before it is granted: it was seen to lie on the node.
    #[default]
    Ahead,
    /// Its owner, where and when it is touched: on the node, as long as that has room. It had room
    /// when the memory was made.
    ByOwner,
}

/// What makes memory.
pub trait Memory {
    /// Memory of `node`.
    fn make(&mut self, node: NodeId, bytes: u64, vpage: Vpage) -> Result<Made, PoolError>;

    /// True: what it makes of `node` are files without seals.
    fn is_of_files(&self, _node: NodeId) -> bool {
        false
    }
}

/// Memory that was made.
pub struct Made {
    /// It.
    pub segment: Box<dyn Segment>,
    /// True: the kernel has no such node; the memory lies anywhere.
    pub is_emulated: bool,
}

/// Memory in one piece.
pub trait Segment: Send {
    /// A file description to pass to its owner; an errno when the kernel refuses.
    fn share(&self) -> Result<OwnedFd, i32>;

    /// Takes the memory from every process that maps it; it reads as zeroes from then on. False
    /// when the kernel refuses.
    fn scrub(&self) -> bool;

    /// Bytes of memory it holds.
    fn resident_bytes(&self) -> u64;

    /// Cuts off what an owner made longer, where seals do not forbid that.
    fn keep_size(&self) {}

    /// True when no other process maps it or holds it open.
    fn is_let_go(&self) -> bool;
}

/// The running kernel's.
#[derive(Debug, Default)]
pub struct Linux {
    /// Whose memory is files of a folder; it is filled ahead, and the kernel charges no one.
    pub folders: BTreeMap<NodeId, PathBuf>,
    /// Who fills memory of nodes.
    pub filled: Filled,
}

impl Memory for Linux {
    fn make(&mut self, node: NodeId, bytes: u64, vpage: Vpage) -> Result<Made, PoolError> {
        let folder = self.folders.get(&node);
        let segment = match folder {
            Some(folder) => SharedFile::in_folder(folder, bytes)?,
            None => SharedFile::memfd(bytes)?,
        };
        let length = usize::try_from(bytes).map_err(|_| PoolError::Size(bytes))?;
        let no_memory = |what| {
            move |errno: rustix::io::Errno| PoolError::NoMemory {
                node,
                bytes,
                what,
                errno: errno.raw_os_error(),
            }
        };
        let window = segment.writable().and_then(|file| Window::new(&file, length));
        let window = window.map_err(no_memory("mapping it"))?;
        if vpage == Vpage::Large {
            window.advise(Advice::LinuxHugepage).ok(); // Where there are none, small ones do.
        }
        let is_emulated = match folder {
            Some(_) => !is_dax(&segment.file),
            None => !window.prefer(node),
        };
        if folder.is_none() && self.filled == Filled::ByOwner {
            // The policy is the memory's own, also when its owner touches it.
            let free = (!is_emulated).then(|| node_free_bytes(node)).flatten();
            return match free {
                Some(free) if free < bytes => Err(PoolError::Full { node, asked: bytes, free }),
                _ => Ok(Made { segment: Box::new(segment), is_emulated }),
            };
        }
        window.populate().map_err(no_memory("populating it"))?;
        if folder.is_some() {
            return Ok(Made { segment: Box::new(segment), is_emulated });
        }
        let wanted = (!is_emulated).then_some(node);
        let elsewhere = window.bytes_elsewhere(wanted).map_err(no_memory("looking where it is"))?;
        if elsewhere > 0 {
            return Err(PoolError::Elsewhere { node, bytes, elsewhere });
        }
        Ok(Made { segment: Box::new(segment), is_emulated })
    }

    fn is_of_files(&self, node: NodeId) -> bool {
        self.folders.contains_key(&node)
    }
}

/// statx(2): the file's memory is the device's own, and no copy of it.
const STATX_ATTR_DAX: u64 = 0x0020_0000;

fn is_dax(file: &OwnedFd) -> bool {
    let flags = rustix::fs::AtFlags::EMPTY_PATH;
    rustix::fs::statx(file, "", flags, rustix::fs::StatxFlags::BASIC_STATS)
        .is_ok_and(|found| found.stx_attributes.bits() & STATX_ATTR_DAX != 0)
}

/// A sealed memfd, or a file without a name, and a second look at it. The kernel counts writers by
/// file description: what the owner gets is one of its own, so that its end can be seen.
struct SharedFile {
    file: OwnedFd,
    bytes: u64,
    /// Read only: the kernel refuses a read lease on it while the memory is open for writing or
    /// mapped.
    watch: OwnedFd,
    /// False: this kernel grants no leases; then memory counts as unused when its owner is gone.
    leases_work: bool,
}

impl SharedFile {
    fn memfd(bytes: u64) -> Result<SharedFile, PoolError> {
        let refused = |what| {
            move |errno: rustix::io::Errno| PoolError::NoMemfd { what, errno: errno.raw_os_error() }
        };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("tiercel-pool", flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| rustix::fs::memfd_create("tiercel-pool", flags))
            .map_err(refused("memfd_create"))?;
        rustix::fs::ftruncate(&file, bytes).map_err(refused("ftruncate"))?;
        // A memfd is born with mode 0777: a client of another user could open it once more through
        // /proc, for reading or as a path, and hold memory that no lease shows.
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(refused("fchmod"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(refused("sealing"))?;
        let watch = reopen(&file, OFlags::RDONLY).map_err(refused("opening it once more"))?;
        let leases_work = is_unused(&watch);
        Ok(SharedFile { file, bytes, watch, leases_work })
    }

    fn in_folder(folder: &Path, bytes: u64) -> Result<SharedFile, PoolError> {
        let refused = |what| {
            move |errno: rustix::io::Errno| PoolError::NoFile {
                folder: folder.to_owned(),
                bytes,
                what,
                errno: errno.raw_os_error(),
            }
        };
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR)
            .map_err(refused("making a file without a name"))?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)
            .map_err(refused("making room"))?;
        // Unlike a memfd's first description, that of a file counts as a writer: it must not stay.
        let again = || reopen(&file, OFlags::RDONLY).map_err(refused("opening it once more"));
        let (kept, watch) = (again()?, again()?);
        drop(file);
        let leases_work = is_unused(&watch);
        Ok(SharedFile { file: kept, bytes, watch, leases_work })
    }

    fn writable(&self) -> rustix::io::Result<OwnedFd> {
        reopen(&self.file, OFlags::RDWR)
    }
}

impl Segment for SharedFile {
    fn share(&self) -> Result<OwnedFd, i32> {
        self.writable().map_err(rustix::io::Errno::raw_os_error)
    }

    fn scrub(&self) -> bool {
        let size = rustix::fs::fstat(&self.file).map_or(0, |stat| stat.st_size.unsigned_abs());
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punch = |file: OwnedFd| rustix::fs::fallocate(&file, flags, 0, size);
        size == 0 || self.writable().and_then(punch).is_ok()
    }

    fn resident_bytes(&self) -> u64 {
        rustix::fs::fstat(&self.file).map_or(0, |stat| stat.st_blocks.unsigned_abs() * 512)
    }

    fn keep_size(&self) {
        let found = rustix::fs::fstat(&self.file);
        if found.is_ok_and(|stat| stat.st_size.unsigned_abs() > self.bytes) {
            let cut = |file: OwnedFd| rustix::fs::ftruncate(&file, self.bytes);
            self.writable().and_then(cut).ok(); // Or at the next look.
        }
    }

    fn is_let_go(&self) -> bool {
        !self.leases_work || is_unused(&self.watch)
    }
}

/// `fcntl(2)`: which signal announces that a lease is to be broken; `libc` does not name it.
const F_SETSIG: libc::c_int = 10;

/// True when the kernel grants a read lease, which it does only while no writer exists.
///
/// The lease lasts for an instant. A client that opens the memory within that instant breaks it,
/// and the kernel then sends the holder a signal: `SIGIO` by default, which would end this
/// process. `SIGURG` is ignored unless a handler is installed.
fn is_unused(watch: &OwnedFd) -> bool {
    let control = |operation: libc::c_int, value: libc::c_int| {
        // SAFETY: changes a descriptor that we own; no memory is passed.
        unsafe { libc::fcntl(watch.as_raw_fd(), operation, value) }
    };
    if control(F_SETSIG, libc::SIGURG) != 0 {
        return false;
    }
    let is_granted = control(libc::F_SETLEASE, libc::F_RDLCK) == 0;
    if is_granted {
        control(libc::F_SETLEASE, libc::F_UNLCK);
    }
    is_granted
}

/// A file description of its own for the same memory.
fn reopen(file: &OwnedFd, access: OFlags) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty())
}

/// A segment, mapped here for as long as it is filled. Nothing of it is read or written by us.
struct Window {
    start: *mut c_void,
    bytes: usize,
}

impl Window {
    fn new(file: &OwnedFd, bytes: usize) -> rustix::io::Result<Window> {
        let (access, how) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses the address; nothing of ours is replaced.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, access, how, file, 0)? };
        Ok(Window { start, bytes })
    }

    fn advise(&self, advice: Advice) -> rustix::io::Result<()> {
        // SAFETY: the range is our own mapping, which no reference points into.
        unsafe { rustix::mm::madvise(self.start, self.bytes, advice) }
    }

    /// Fills it piece by piece, and stops with an error before the system is short of memory: the
    /// kernel would end some process instead.
    fn populate(&self) -> rustix::io::Result<()> {
        for at in (0..self.bytes).step_by(POPULATED_MAX) {
            let bytes = POPULATED_MAX.min(self.bytes - at);
            if available_bytes().is_some_and(|available| available < LEFT_BYTES + bytes as u64) {
                return Err(rustix::io::Errno::NOMEM);
            }
            // SAFETY: a part of our own mapping, which no reference points into.
            unsafe {
                let start = self.start.byte_add(at);
                rustix::mm::madvise(start, bytes, Advice::LinuxPopulateWrite)?;
            }
        }
        Ok(())
    }

    /// Asks for memory of `node`, whichever CPU touches it first; false when there is no such node.
    fn prefer(&self, node: NodeId) -> bool {
        let mut mask = [0u64; 17];
        let Some(word) = mask.get_mut(usize::from(node.0) / 64) else { return false };
        *word = 1 << (node.0 % 64);
        // SAFETY: the range is our own mapping; the kernel reads `bits` bits of `mask`, fewer than
        // it has.
        let result = unsafe {
            let bits = (mask.len() - 1) * 64 + 1;
            libc::syscall(
                libc::SYS_mbind,
                self.start,
                self.bytes,
                MPOL_PREFERRED,
                mask.as_ptr(),
                bits,
                0,
            )
        };
        result == 0
    }

    /// Bytes that do not lie on `node`; with `None`, those that lie nowhere.
    fn bytes_elsewhere(&self, node: Option<NodeId>) -> rustix::io::Result<u64> {
        let os_pages = self.bytes / OS_PAGE_BYTES;
        let mut elsewhere = 0;
        for first in (0..os_pages).step_by(ASKED_MAX) {
            let count = ASKED_MAX.min(os_pages - first);
            let at = |n: usize| self.start as usize + (first + n) * OS_PAGE_BYTES;
            let addresses: Vec<usize> = (0..count).map(at).collect();
            let mut status = vec![-libc::ENOENT; count];
            // SAFETY: the kernel reads `count` addresses and writes `count` statuses; both live.
            let result = unsafe {
                let (no_targets, flags) = (std::ptr::null::<libc::c_int>(), 0);
                libc::syscall(
                    libc::SYS_move_pages,
                    0,
                    count,
                    addresses.as_ptr(),
                    no_targets,
                    status.as_mut_ptr(),
                    flags,
                )
            };
            if result != 0 {
                let errno = std::io::Error::last_os_error().raw_os_error();
                return Err(rustix::io::Errno::from_raw_os_error(errno.unwrap_or(libc::EIO)));
            }
            let is_there = |status: &i32| match node {
                Some(node) => *status == i32::from(node.0),
                None => *status >= 0,
            };
            elsewhere += status.iter().filter(|one| !is_there(one)).count();
        }
        Ok((elsewhere * OS_PAGE_BYTES) as u64)
    }
}

/// What the system could give without swapping, bytes; `None` where the kernel does not report it.
fn available_bytes() -> Option<u64> {
    bytes_in(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
}

/// What a node could give without swapping, bytes: free memory, and copies of files that were not
/// used lately.
fn node_free_bytes(node: NodeId) -> Option<u64> {
    let path = format!("/sys/devices/system/node/node{}/meminfo", node.0);
    let text = std::fs::read_to_string(path).ok()?;
    Some(bytes_in(&text, "MemFree:")? + bytes_in(&text, "Inactive(file):")?)
}

/// The figure behind a name, in a text of the kernel's with one in each line.
fn bytes_in(text: &str, name: &str) -> Option<u64> {
    let (_, line) = text.lines().find_map(|line| line.split_once(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nothing points into.
        let _ = unsafe { rustix::mm::munmap(self.start, self.bytes) };
    }
}
