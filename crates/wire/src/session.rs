//! A session seen from the daemon: drains rings, reads tables, writes the control page.
//! In: a memfd from an untrusted client. Out: [`Record`]s, snapshots, sites, modules, counters.
//! Knows nothing of sockets, nor of what records are for.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{SealFlags, SeekFrom};
use rustix::io::Errno;

use crate::bits::{half, index};
use crate::clock::{ClockSource, Timeline};
use crate::greeting::Status;
use crate::layout::{
    self, ARENAS_MAX, CONTROL, HEADER_AT, MAGIC, MODULE_BYTES, MODULES_AT,
    MODULES_AT as FRONT_BYTES, MODULES_MAX, OS_PAGE_BYTES, RANGE_PAGES_MAX, RECORD_BYTES,
    RING_BYTES, RING_HEAD, RING_LOST, RING_RECORDS, RING_SLOTS, RING_TAIL, RING_TID, RINGS_AT,
    RINGS_MAX, SITE_BYTES, SITES_AT, SITES_MAX, WIRE_VERSION, control, header,
};
use crate::mapping::Mapping;
use crate::record::{ADDR_END, Record};
use crate::ring::{Cursor, Words, pull_present};
use crate::site::{Module, Site};
use crate::small::{self, Small};
use crate::snapshot::{ObjectSnapshot, ObjectTable, TableSlice};

/// One hosted process's shared memory.
///
/// Whatever the client writes there, or does to the memfd, every method returns in bounded time
/// and none panics: seals keep the file from shrinking, indices are bounded by constants, and the
/// consumer's counters are kept here, not in the shared memory.
pub struct Session {
    fd: OwnedFd,
    /// Header and control page.
    front: Arc<Mapping>,
    rings: Mapping,
    /// Those that have memory, by number; grows as far as rings are in use.
    cursors: Vec<RingCursor>,
    next_ring: usize,
    lost_without_ring: u64,
    range_base: u64,
    range_pages: u64,
    timeline: Timeline,
    /// Birth budgets at the last mark, or as set since.
    births_marked: [Cell<i64>; ARENAS_MAX],
    /// The generation of the plan that was written last.
    plan_generation: u32,
}

/// What the first look at a ring takes, in later looks: a system call of 0.3 us.
const LOOK_RINGS: usize = 3;

/// Where we are in a ring, and which of its OS pages were seen to have memory, one bit each.
#[derive(Clone, Copy, Debug, Default)]
struct RingCursor {
    cursor: Cursor,
    seen: u64,
}

// One bit for each OS page of a ring: 33.
const _: () = assert!(RING_BYTES as u64 / OS_PAGE_BYTES <= 64);

/// Whether an OS page of a ring has memory. It keeps it then, so that one look suffices.
fn has_memory(fd: &OwnedFd, ring: usize, os_page: usize, seen: &mut u64) -> bool {
    let bit = 1 << os_page;
    if *seen & bit == 0 {
        let at = RINGS_AT + (ring * RING_BYTES) as u64 + os_page as u64 * OS_PAGE_BYTES;
        // Moves the file offset that the client shares; neither side uses it.
        if rustix::fs::seek(fd, SeekFrom::Data(at)) != Ok(at) {
            return false;
        }
        *seen |= bit;
    }
    true
}

/// What one [`Session::drain`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Records appended.
    pub records: usize,
    /// Records known lost since the last call, malformed ones included. When it is not 0, the
    /// caller's picture of the process is incomplete until it takes a snapshot.
    pub lost: u64,
    /// Records that made no sense, counted in `lost` too.
    pub malformed: u64,
    /// True when records were left for the next call.
    pub more: bool,
    /// Rings that were looked at; the first look at one counts for [`LOOK_RINGS`].
    pub rings: usize,
}

/// A copy of a session's header. Counters are the client's claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Process id as the client sees it.
    pub pid: u32,
    /// First byte of the allocator's reserved range; 0 when there is none.
    pub range_base: u64,
    /// OS pages of the reserved range.
    pub range_pages: u64,
    /// Module slots handed out, at most [`MODULES_MAX`].
    pub module_count: u32,
    /// Site slots handed out, at most [`SITES_MAX`].
    pub site_count: u32,
    /// Sites that were first seen when the table was full.
    pub site_overflows: u32,
    /// Rings ever used.
    pub ring_high_water: u32,
    /// Records of threads that got no ring.
    pub lost_without_ring: u64,
    /// mmap objects that found no slot in the object table.
    pub map_overflows: u64,
    /// Why the runtime detached; `None` while it is attached.
    pub detached: Option<String>,
    /// What the user should know of the process: bits `REMARK_*` of the layout.
    pub remarks: u32,
    /// Phase entries that were not reported: too many names, or several threads at once.
    pub phase_overflows: u32,
}

/// Why a memfd is not a session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// Not a memfd, or one of huge OS pages.
    #[error("the descriptor is no memfd of ordinary memory ({0})")]
    NotMemfd(Errno),
    /// The client could shrink it.
    #[error("the memfd is not sealed against shrinking")]
    NotSealed,
    /// It cannot be sealed against losing memory.
    #[error("the memfd cannot be sealed against holes ({0}); it needs Linux 5.1")]
    Seal(Errno),
    /// Wrong length.
    #[error("the memfd has {got} bytes, a session of {pages} OS pages has {want}")]
    Size {
        /// Its length, bytes.
        got: u64,
        /// The length it should have, bytes.
        want: u64,
        /// OS pages of its reserved range.
        pages: u64,
    },
    /// It does not begin as a session does.
    #[error("the memfd does not begin with Tiercel's magic")]
    Magic,
    /// Another version.
    #[error("the memfd has wire version {0}, not {WIRE_VERSION}; install matching versions")]
    Version(u32),
    /// The reserved range is impossible.
    #[error("the memfd claims a reserved range of {pages} OS pages at {base:#x}")]
    Range {
        /// First byte.
        base: u64,
        /// OS pages.
        pages: u64,
    },
    /// The kernel would not map it.
    #[error("the memfd cannot be mapped ({0})")]
    Map(Errno),
}

impl Session {
    /// Checks the memfd, maps it, and stamps the control page so that the client may begin.
    pub fn open(fd: OwnedFd) -> Result<Session, SessionError> {
        Session::open_owned(fd).map(|(session, _)| session)
    }

    /// The same, and the user who owns the memfd.
    pub fn open_owned(fd: OwnedFd) -> Result<(Session, u32), SessionError> {
        let (size, owner) = check_memfd(&fd)?;
        if size < layout::session_bytes(0) {
            return Err(SessionError::Size { got: size, want: layout::session_bytes(0), pages: 0 });
        }
        let front = Mapping::new(&fd, HEADER_AT, index(FRONT_BYTES)).map_err(SessionError::Map)?;
        let (range_base, range_pages) = check_header(&front, size)?;
        let rings =
            Mapping::new(&fd, RINGS_AT, RINGS_MAX * RING_BYTES).map_err(SessionError::Map)?;
        // From here on a part that has memory keeps it: the seal forbids to punch holes.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)
            .map_err(SessionError::Seal)?;
        let session = Session {
            fd,
            front: Arc::new(front),
            rings,
            cursors: Vec::new(),
            next_ring: 0,
            lost_without_ring: 0,
            range_base,
            range_pages,
            timeline: Timeline::at(0),
            births_marked: Default::default(),
            plan_generation: 0,
        };
        session.mark_births();
        session.control_half(control::MAGIC).store(MAGIC, Ordering::Relaxed);
        session.control_half(control::VERSION).store(WIRE_VERSION, Ordering::Release);
        Ok((session, owner))
    }

    /// Appends at most `max` records to `out`, taking the rings in turn so that a busy thread
    /// cannot starve the others.
    pub fn drain(&mut self, out: &mut Vec<Record>, max: usize) -> Drained {
        let mut drained = Drained::default();
        let count = (self.ring_high_water() as usize).min(RINGS_MAX);
        // A runtime fills rings from the first on: behind one without memory none is in use.
        // Touching a hole would fill it, at our expense.
        while self.cursors.len() < count {
            let mut next = RingCursor::default();
            drained.rings += LOOK_RINGS;
            if !has_memory(&self.fd, self.cursors.len(), 0, &mut next.seen) {
                break;
            }
            self.cursors.push(next);
        }
        let count = count.min(self.cursors.len());
        let first = if self.next_ring < count { self.next_ring } else { 0 };
        for ring in (first..count).chain(0..first) {
            let room = max - drained.records;
            drained.rings += 1;
            self.drain_ring(ring, room, out, &mut drained);
            if drained.records == max {
                self.next_ring = ring + 1;
                drained.more = true;
                break;
            }
        }
        let without_ring = self.header_word(header::LOST_WITHOUT_RING);
        let more_lost = without_ring.wrapping_sub(self.lost_without_ring).min(u64::from(u32::MAX));
        self.lost_without_ring = without_ring;
        drained.lost = drained.lost.saturating_add(more_lost);
        drained
    }

    fn drain_ring(&mut self, ring: usize, max: usize, out: &mut Vec<Record>, sum: &mut Drained) {
        let at = ring * RING_BYTES;
        let RingCursor { cursor, seen } = &mut self.cursors[ring];
        let words: Words<'_, AtomicU64> = Words {
            head: self.rings.word(at + RING_HEAD),
            lost: self.rings.word(at + RING_LOST),
            tail: self.rings.word(at + RING_TAIL),
            slots: self.rings.words(at + RING_SLOTS, RING_RECORDS * 4),
        };
        let timeline = self.timeline;
        let tid = self.rings.half(at + RING_TID).load(Ordering::Relaxed);
        let mut malformed = 0;
        let fd = &self.fd;
        // A record in a hole was never written.
        let is_there = |slot| {
            let os_page = 1 + slot * RECORD_BYTES / index(OS_PAGE_BYTES);
            has_memory(fd, ring, os_page, seen)
        };
        let pulled = pull_present(&words, cursor, max, is_there, |raw| {
            match Record::decode(&raw, &timeline) {
                Some(record) => out.push(record.of_thread(tid)),
                None => malformed += 1,
            }
        });
        // Malformed records use up `max` too: the work of a call stays bounded.
        sum.records += pulled.records;
        sum.malformed += malformed;
        sum.lost = sum.lost.saturating_add(pulled.lost).saturating_add(malformed);
        sum.more |= pulled.left > 0;
    }

    /// Records that wait in the rings.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        let waiting = |(ring, at): (usize, &RingCursor)| {
            let head = self.rings.word(ring * RING_BYTES + RING_HEAD);
            at.cursor.waiting(head.load(Ordering::Relaxed))
        };
        let all = self.cursors.iter().enumerate().map(waiting);
        all.map(|waiting| waiting.min(RING_RECORDS as u64)).sum()
    }

    /// Reads on in the object table at an address, at most `max` objects and some hundred
    /// thousand entries: all objects that begin in the range that is returned. Begin at 0, go on
    /// where the last range ended, and end at `u64::MAX`. Objects born or gone meanwhile may or may
    /// not be seen; their records follow.
    #[must_use]
    pub fn objects_from(&self, from: u64, max: usize) -> TableSlice {
        let table = ObjectTable {
            fd: self.fd.as_fd(),
            range_base: self.range_base,
            range_pages: self.range_pages,
            run_high_water: self.header_word(header::RUN_HIGH_WATER),
            map_high_water: self.header_half(header::MAP_HIGH_WATER).into(),
        };
        table.slice(from, max)
    }

    /// All of the object table, slice by slice.
    #[must_use]
    pub fn objects(&self) -> Vec<ObjectSnapshot> {
        /// As many entries as are copied at a time.
        const AT_A_TIME: usize = 4096;
        let (mut from, mut objects) = (0, Vec::new());
        while from < u64::MAX {
            let slice = self.objects_from(from, AT_A_TIME);
            objects.extend(slice.objects);
            from = slice.range.end;
        }
        objects
    }

    /// A site, once the client has published it.
    #[must_use]
    pub fn site(&self, id: u32) -> Option<Site> {
        let id = usize::try_from(id).ok().filter(|id| *id < SITES_MAX)?;
        Site::decode(&self.read_entry::<SITE_BYTES>(SITES_AT + (id * SITE_BYTES) as u64)?)
    }

    /// What each site keeps in small objects outside of its own blocks.
    #[must_use]
    pub fn smalls(&self) -> Vec<Small> {
        small::read(self.fd.as_fd(), self.header_half(header::SMALL_TOP))
    }

    /// A module, once the client has published it.
    #[must_use]
    pub fn module(&self, id: u16) -> Option<Module> {
        let id = Some(usize::from(id)).filter(|id| *id < MODULES_MAX)?;
        Module::decode(&self.read_entry::<MODULE_BYTES>(MODULES_AT + (id * MODULE_BYTES) as u64)?)
    }

    /// How often the process forked, as it claims.
    #[must_use]
    pub fn forks(&self) -> u32 {
        self.header_half(header::FORKS)
    }

    /// A copy of the header.
    #[must_use]
    pub fn header(&self) -> Header {
        Header {
            pid: self.header_half(header::PID),
            range_base: self.range_base,
            range_pages: self.range_pages,
            module_count: self.header_half(header::MODULE_COUNT).min(half(MODULES_MAX)),
            site_count: self.header_half(header::SITE_COUNT).min(half(SITES_MAX)),
            site_overflows: self.header_half(header::SITE_OVERFLOWS),
            ring_high_water: self.ring_high_water().min(half(RINGS_MAX)),
            lost_without_ring: self.header_word(header::LOST_WITHOUT_RING),
            map_overflows: self.header_word(header::MAP_OVERFLOWS),
            remarks: self.header_half(header::REMARKS),
            phase_overflows: self.header_half(header::PHASE_OVERFLOWS),
            detached: (self.header_word(header::DETACHED) != 0).then(|| self.reason()),
        }
    }

    /// Names the clock that the records to come take their time from.
    pub fn set_clock(&self, source: ClockSource) {
        self.control_half(control::CLOCK).store(source as u32, Ordering::Relaxed);
    }

    /// Dates the records of the next drain.
    pub fn set_timeline(&mut self, timeline: Timeline) {
        self.timeline = timeline;
    }

    /// Names the kernel's node number of each arena, best tier first; empty: the
    /// kernel places objects. At most [`ARENAS_MAX`].
    pub fn set_arenas(&self, nodes: &[i32]) {
        assert!(nodes.len() <= ARENAS_MAX, "{} arenas, at most {ARENAS_MAX}", nodes.len());
        for (arena, node) in nodes.iter().enumerate() {
            let at = control::ARENA_NODE + arena * 4;
            self.control_half(at).store(node.cast_unsigned(), Ordering::Relaxed);
        }
        // Pairs with the runtime's acquire load of the count.
        self.control_half(control::ARENA_COUNT).store(half(nodes.len()), Ordering::Release);
    }

    /// Names the nodes of the best tier, and leaves births that nothing else places to the kernel
    /// (`by_kernel`), in an arena behind those that have nodes: [`ARENAS_MAX`] must have room for
    /// it. Otherwise they count against the budgets.
    pub fn set_first_touch(&self, fast: &[i32], by_kernel: bool) {
        let bits = fast.iter().filter(|node| (0..64).contains(*node)).map(|node| 1u64 << node);
        let bits = bits.fold(0, |all, bit| all | bit);
        self.control_word(control::FAST_NODES).store(bits, Ordering::Relaxed);
        let count = self.control_half(control::ARENA_COUNT).load(Ordering::Relaxed);
        let arena = if by_kernel { count + 1 } else { 0 };
        self.control_half(control::KERNEL_ARENA).store(arena, Ordering::Relaxed);
    }

    /// Names the arena in which only births are whose row names it.
    pub fn set_nursery_arena(&self, arena: Option<u8>) {
        let arena = arena.map_or(0, |arena| u32::from(arena) + 1);
        self.control_half(control::NURSERY_ARENA).store(arena, Ordering::Relaxed);
    }

    /// Bytes that the client's heap keeps resident for its next births, without those of objects,
    /// in each arena: claims.
    #[must_use]
    pub fn idle_bytes(&self) -> [u64; ARENAS_MAX] {
        std::array::from_fn(|arena| self.header_word(header::IDLE_BYTES + arena * 8))
    }

    /// From here on births count against the budgets that are set next. Call before the rings are
    /// drained from which those budgets follow.
    pub fn mark_births(&self) {
        for (arena, marked) in self.births_marked.iter().enumerate() {
            marked.set(self.birth_budget(arena));
        }
    }

    /// Sets the bytes that may be born in `arena` from the last mark on; what was born since is
    /// taken off.
    pub fn set_birth_budget(&self, arena: usize, bytes: i64) {
        assert!(arena < ARENAS_MAX, "arena {arena}, at most {ARENAS_MAX}");
        let at = control::BIRTH_BYTES_LEFT + arena * 8;
        let marked = self.births_marked[arena].replace(bytes);
        // The client subtracts meanwhile. Whatever it wrote there, sums may only wrap.
        let more = bytes.wrapping_sub(marked).cast_unsigned();
        self.control_word(at).fetch_add(more, Ordering::Relaxed);
    }

    /// Bytes that could still be born in `arena` at the last mark, or by what was set since.
    #[must_use]
    pub fn birth_budget_at_mark(&self, arena: usize) -> i64 {
        assert!(arena < ARENAS_MAX, "arena {arena}, at most {ARENAS_MAX}");
        self.births_marked[arena].get()
    }

    /// Bytes that may still be born in `arena`; the client subtracts births from it.
    #[must_use]
    pub fn birth_budget(&self, arena: usize) -> i64 {
        assert!(arena < ARENAS_MAX, "arena {arena}, at most {ARENAS_MAX}");
        let at = control::BIRTH_BYTES_LEFT + arena * 8;
        self.control_word(at).load(Ordering::Relaxed).cast_signed()
    }

    /// Names the arena that new blocks of small slots are born in.
    pub fn set_small_arena(&self, arena: usize) {
        assert!(arena < ARENAS_MAX, "arena {arena}, at most {ARENAS_MAX}");
        self.control_half(control::SMALL_ARENA).store(half(arena), Ordering::Relaxed);
    }

    /// Answers the hello. A refused process writes nothing more; where there was no room for it, it
    /// attaches again later.
    pub fn answer(&self, status: Status, number: u32) {
        self.control_half(control::SESSION).store(number, Ordering::Relaxed);
        let answer = self.control_half(control::ANSWER);
        // Pairs with the runtime's acquire load.
        answer.store(1 + status as u32, Ordering::Release);
        if status != Status::Ok {
            self.detach();
        }
    }

    /// Requests that the client write nothing more: the daemon detaches it.
    pub fn detach(&self) {
        self.control_half(control::DETACH).store(1, Ordering::Release);
    }

    pub(crate) fn read_entry<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let mut entry = [0; N];
        // `pread` copies, and does not fill holes as touching a mapping would.
        let got = rustix::io::pread(&self.fd, &mut entry, at).ok()?;
        (got == N).then_some(entry)
    }

    pub(crate) fn front(&self) -> &Arc<Mapping> {
        &self.front
    }

    /// The generation of the plan that is written next.
    pub(crate) fn next_plan_generation(&mut self) -> u32 {
        self.plan_generation = self.plan_generation.wrapping_add(1);
        self.plan_generation
    }

    /// A copy of the pages in front of the modules; both figures are multiples of 8.
    pub(crate) fn copy_front(&self, at: usize, bytes: usize) -> Vec<u8> {
        let words = self.front.words(at, bytes / 8);
        words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect()
    }

    fn reason(&self) -> String {
        let words = self.front.words(header::REASON, header::REASON_BYTES / 8);
        let bytes = words.iter().flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes());
        let text: Vec<u8> = bytes.take_while(|b| *b != 0).collect();
        String::from_utf8_lossy(&text).into_owned()
    }

    fn ring_high_water(&self) -> u32 {
        self.front.half(header::RING_HIGH_WATER).load(Ordering::Acquire)
    }

    pub(crate) fn header_word(&self, at: usize) -> u64 {
        self.front.word(at).load(Ordering::Relaxed)
    }

    pub(crate) fn header_half(&self, at: usize) -> u32 {
        self.front.half(at).load(Ordering::Relaxed)
    }

    pub(crate) fn header_atomic(&self, at: usize) -> &AtomicU64 {
        self.front.word(at)
    }

    pub(crate) fn control_word(&self, at: usize) -> &AtomicU64 {
        self.front.word(CONTROL + at)
    }

    pub(crate) fn control_half(&self, at: usize) -> &std::sync::atomic::AtomicU32 {
        self.front.half(CONTROL + at)
    }
}

/// The bytes and the owner of a memfd that cannot shrink. No call here waits for the creator of the
/// descriptor: for a descriptor that is not memory the first one fails.
fn check_memfd(fd: &OwnedFd) -> Result<(u64, u32), SessionError> {
    const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(SessionError::NotMemfd)?;
    let system = rustix::fs::fstatfs(fd).map_err(SessionError::NotMemfd)?;
    if system.f_type != TMPFS_MAGIC {
        return Err(SessionError::NotMemfd(Errno::INVAL));
    }
    if !seals.contains(SealFlags::SHRINK) {
        return Err(SessionError::NotSealed);
    }
    let stat = rustix::fs::fstat(fd).map_err(SessionError::NotMemfd)?;
    Ok((u64::try_from(stat.st_size).unwrap_or(0), stat.st_uid))
}

/// The reserved range, if the header is valid and matches the memfd's length.
fn check_header(front: &Mapping, size: u64) -> Result<(u64, u64), SessionError> {
    if front.half(header::MAGIC).load(Ordering::Relaxed) != MAGIC {
        return Err(SessionError::Magic);
    }
    let version = front.half(header::VERSION).load(Ordering::Relaxed);
    if version != WIRE_VERSION {
        return Err(SessionError::Version(version));
    }
    let base = front.word(header::RANGE_BASE).load(Ordering::Relaxed);
    let pages = front.word(header::RANGE_PAGES).load(Ordering::Relaxed);
    let sane = pages <= RANGE_PAGES_MAX
        && base.is_multiple_of(OS_PAGE_BYTES)
        && base <= ADDR_END - pages * OS_PAGE_BYTES
        && (base != 0 || pages == 0);
    if !sane {
        return Err(SessionError::Range { base, pages });
    }
    let want = layout::session_bytes(pages);
    if size != want {
        return Err(SessionError::Size { got: size, want, pages });
    }
    Ok((base, pages))
}
