//! The hosted process's side of a session, in Rust: for tests, benches and fuzzers. In: what a
//! runtime would record. Out: a memfd as `libtiercel.so` makes it, or a malformed one. Knows
//! nothing of a real process.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};

use crate::bits::{byte, half, high32, index, low8, low16, low32};
use crate::layout::{
    ARENA_UNKNOWN, ARENAS_MAX, BUILD_ID_MAX, CONTROL, HEADER_AT, MAGIC, MAP_BYTES, MAP_SHARE,
    MAPS_AT, MAPS_MAX, MODULE_BUILD_ID, MODULE_BUILD_ID_BYTES, MODULE_BYTES, MODULE_PATH,
    MODULE_PATH_BYTES, MODULE_PUBLISHED, MODULES_AT, MODULES_AT as FRONT_BYTES, MODULES_MAX,
    MOVE_BYTES, MOVED_BYTES, MOVES_MAX, OS_PAGE_BYTES, PATH_MAX, PHASE_BYTES, PHASE_NAME,
    PHASE_NAME_BYTES, PHASE_NAME_MAX, PHASE_PUBLISHED, PHASES_AT, PHASES_MAX, PLAN_AT,
    PLAN_ROW_BYTES, PLAN_ROWS_MAX, RING_BYTES, RING_HEAD, RING_LOST, RING_RECORDS, RING_SLOTS,
    RING_TAIL, RINGS_AT, RINGS_MAX, RUN_BYTES, RUNS_AT, SITE_BYTES, SITE_FRAME_COUNT, SITE_FRAMES,
    SITE_FRAMES_AT, SITE_KIND, SITE_PUBLISHED, SITES_AT, SITES_MAX, SMALL_BYTES, SMALLS_AT, SPACES,
    STOPS_MAX, WIRE_VERSION, control, header, session_bytes,
};
use crate::mapping::Mapping;
use crate::planned::{PlanRange, PlanRow, phase_hash};
use crate::record::Record;
use crate::ring::{Words, WriteCursor, push};
use crate::site::{Module, Site};
use crate::small::Small;
use crate::snapshot::ObjectSnapshot;

/// Makes a [`ClientSession`].
#[derive(Clone, Copy, Debug)]
pub struct SessionBuilder {
    range_base: u64,
    range_pages: u64,
    pid: u32,
    is_sealed: bool,
}

/// A session, from the side of the hosted process.
pub struct ClientSession {
    fd: OwnedFd,
    front: Mapping,
    rings: Mapping,
    /// All of the memfd, for its tables: once the daemon has it, it can be written by mappings
    /// alone.
    whole: Mapping,
    range_base: u64,
}

/// The producer of one ring. One per thread.
pub struct RingWriter<'a> {
    words: Words<'a, AtomicU64>,
    writer: WriteCursor,
}

impl Default for SessionBuilder {
    fn default() -> Self {
        let pid = rustix::process::getpid().as_raw_nonzero().get().cast_unsigned();
        SessionBuilder { range_base: 1 << 40, range_pages: 1 << 16, pid, is_sealed: true }
    }
}

impl SessionBuilder {
    /// A session of this process with a reserved range of 256 MiB at 1 TiB.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets another reserved range: first byte and OS pages.
    #[must_use]
    pub fn range(mut self, base: u64, pages: u64) -> Self {
        (self.range_base, self.range_pages) = (base, pages);
        self
    }

    /// Sets another process id.
    #[must_use]
    pub fn pid(mut self, pid: u32) -> Self {
        self.pid = pid;
        self
    }

    /// Leaves the memfd unsealed, which no daemon may accept.
    #[must_use]
    pub fn unsealed(mut self) -> Self {
        self.is_sealed = false;
        self
    }

    /// Makes the memfd and its header.
    pub fn build(self) -> io::Result<ClientSession> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("tiercel-session", flags)?;
        let bytes = session_bytes(self.range_pages);
        rustix::fs::ftruncate(&fd, bytes)?;
        if self.is_sealed {
            rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        }
        let front = Mapping::new(&fd, HEADER_AT, index(FRONT_BYTES))?;
        let rings = Mapping::new(&fd, RINGS_AT, RINGS_MAX * RING_BYTES)?;
        let whole = Mapping::new(&fd, HEADER_AT, index(bytes))?;
        let session = ClientSession { fd, front, rings, whole, range_base: self.range_base };
        session.header_half(header::MAGIC, MAGIC);
        session.header_half(header::VERSION, WIRE_VERSION);
        session.header_word(header::TOTAL_BYTES, bytes);
        session.header_word(header::RANGE_BASE, self.range_base);
        session.header_word(header::RANGE_PAGES, self.range_pages);
        session.header_half(header::PID, self.pid);
        // No space and no default, as in the offer of a daemon that has set none.
        let bytes = session.front.half(CONTROL + (control::UNPLANNED_ARENA & !3));
        bytes.store(u32::from_le_bytes([ARENA_UNKNOWN; 4]), Ordering::Relaxed);
        Ok(session)
    }
}

impl ClientSession {
    /// Another descriptor of the memfd, to pass to the daemon.
    pub fn fd(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// Bytes of the memfd, as the greeting states them.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.front.word(header::TOTAL_BYTES).load(Ordering::Relaxed)
    }

    /// The producer of ring `index`, below [`RINGS_MAX`].
    #[must_use]
    pub fn ring(&self, index: usize) -> RingWriter<'_> {
        assert!(index < RINGS_MAX, "ring {index}, at most {RINGS_MAX}");
        self.front.half(header::RING_HIGH_WATER).fetch_max(half(index) + 1, Ordering::Release);
        let at = index * RING_BYTES;
        let words = Words {
            head: self.rings.word(at + RING_HEAD),
            lost: self.rings.word(at + RING_LOST),
            tail: self.rings.word(at + RING_TAIL),
            slots: self.rings.words(at + RING_SLOTS, RING_RECORDS * 4),
        };
        RingWriter { writer: WriteCursor::take(&words), words }
    }

    /// Enters an object of the reserved range into the object table.
    pub fn put_run(&self, object: &ObjectSnapshot) -> io::Result<()> {
        let page = (object.addr - self.range_base) / OS_PAGE_BYTES;
        let shape = ((object.bytes / OS_PAGE_BYTES) << 32) | u64::from(object.version.carve);
        let identity = u64::from(object.site) << 32
            | u64::from(object.version.generation) << 16
            | u64::from(object.arena.unwrap_or(crate::layout::ARENA_UNKNOWN)) << 8
            | u64::from(object.flags.0);
        let mut entry = [0; RUN_BYTES];
        entry[..8].copy_from_slice(&shape.to_le_bytes());
        entry[8..].copy_from_slice(&identity.to_le_bytes());
        self.front.word(header::RUN_HIGH_WATER).fetch_max(page + 1, Ordering::Relaxed);
        self.write_at(RUNS_AT + page * RUN_BYTES as u64, &entry)
    }

    /// Removes the object at `addr` from the object table.
    pub fn clear_run(&self, addr: u64) -> io::Result<()> {
        let page = (addr - self.range_base) / OS_PAGE_BYTES;
        self.write_at(RUNS_AT + page * RUN_BYTES as u64, &[0; 8])
    }

    /// Enters a mapped object into slot `slot` of the object table; `None` empties it.
    pub fn put_map(&self, slot: usize, object: Option<&ObjectSnapshot>) -> io::Result<()> {
        assert!(slot < MAPS_MAX, "map slot {slot}, at most {MAPS_MAX}");
        let mut entry = [0; MAP_BYTES];
        if let Some(object) = object {
            entry[..8].copy_from_slice(&object.addr.to_le_bytes());
            entry[8..16].copy_from_slice(&object.bytes.to_le_bytes());
            entry[16..20].copy_from_slice(&object.site.to_le_bytes());
            entry[20..24].copy_from_slice(&object.version.carve.to_le_bytes());
            entry[24..26].copy_from_slice(&object.version.generation.to_le_bytes());
            entry[26] = object.flags.0;
            entry[27] = object.arena.unwrap_or(crate::layout::ARENA_UNKNOWN);
        }
        self.front.half(header::MAP_HIGH_WATER).fetch_max(half(slot) + 1, Ordering::Relaxed);
        self.write_at(MAPS_AT + (slot * MAP_BYTES) as u64, &entry)
    }

    /// Counts a fork.
    pub fn fork(&self) {
        self.front.half(header::FORKS).fetch_add(1, Ordering::Relaxed);
    }

    /// Names what the object in slot `slot` shows.
    pub fn put_share(&self, slot: usize, share: u64) -> io::Result<()> {
        assert!(slot < MAPS_MAX, "map slot {slot}, at most {MAPS_MAX}");
        self.write_at(MAPS_AT + (slot * MAP_BYTES + MAP_SHARE) as u64, &share.to_le_bytes())
    }

    /// Publishes a site under number `id`; frames beyond the table's are cut off.
    pub fn put_site(&self, id: u32, site: &Site) -> io::Result<()> {
        assert!((id as usize) < SITES_MAX, "site {id}, at most {SITES_MAX}");
        let frames = &site.frames[..site.frames.len().min(SITE_FRAMES)];
        let mut entry = [0; SITE_BYTES];
        entry[..8].copy_from_slice(&site.hash.to_le_bytes());
        entry[SITE_PUBLISHED] = 1;
        entry[SITE_FRAME_COUNT] = byte(frames.len());
        entry[SITE_KIND..SITE_KIND + 2].copy_from_slice(&(site.kind as u16).to_le_bytes());
        for (i, frame) in frames.iter().enumerate() {
            let at = SITE_FRAMES_AT + i * 8;
            entry[at..at + 8].copy_from_slice(&frame.encode().to_le_bytes());
        }
        self.front.half(header::SITE_COUNT).fetch_max(id + 1, Ordering::Relaxed);
        self.write_at(SITES_AT + u64::from(id) * SITE_BYTES as u64, &entry)
    }

    /// Publishes what a site keeps in small objects.
    pub fn put_small(&self, small: &Small) -> io::Result<()> {
        assert!((small.site as usize) < SITES_MAX, "site {}, at most {SITES_MAX}", small.site);
        let mut entry = [0; SMALL_BYTES];
        entry[..8].copy_from_slice(&small.born_bytes.to_le_bytes());
        entry[8..16].copy_from_slice(&small.live_bytes.to_le_bytes());
        let counts = [small.births, small.lives, small.deaths, small.life_ms];
        for (count, to) in counts.iter().zip(entry[16..].chunks_exact_mut(4)) {
            to.copy_from_slice(&count.to_le_bytes());
        }
        self.front.half(header::SMALL_TOP).fetch_max(small.site + 1, Ordering::Relaxed);
        self.write_at(SMALLS_AT + u64::from(small.site) * SMALL_BYTES as u64, &entry)
    }

    /// Publishes a module under number `id`; a long path keeps its tail.
    pub fn put_module(&self, id: u16, module: &Module) -> io::Result<()> {
        assert!(usize::from(id) < MODULES_MAX, "module {id}, at most {MODULES_MAX}");
        let path = module.path.as_os_str().as_bytes();
        let path = &path[path.len().saturating_sub(PATH_MAX)..];
        let build_id = &module.build_id[..module.build_id.len().min(BUILD_ID_MAX)];
        let mut entry = [0; MODULE_BYTES];
        entry[..8].copy_from_slice(&module.base.to_le_bytes());
        entry[MODULE_PUBLISHED] = 1;
        entry[MODULE_BUILD_ID_BYTES] = byte(build_id.len());
        entry[MODULE_BUILD_ID..MODULE_BUILD_ID + build_id.len()].copy_from_slice(build_id);
        entry[MODULE_PATH_BYTES] = byte(path.len());
        entry[MODULE_PATH..MODULE_PATH + path.len()].copy_from_slice(path);
        self.front.half(header::MODULE_COUNT).fetch_max(u32::from(id) + 1, Ordering::Relaxed);
        self.write_at(MODULES_AT + u64::from(id) * MODULE_BYTES as u64, &entry)
    }

    /// Overwrites any bytes of the session, as a hostile client might.
    ///
    /// # Errors
    /// They would lie beyond its end.
    pub fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if at + bytes.len() as u64 > self.total_bytes() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.whole.write(index(at), bytes);
        Ok(())
    }

    /// Counts records of threads without a ring.
    pub fn lose_without_ring(&self, records: u64) {
        self.front.word(header::LOST_WITHOUT_RING).fetch_add(records, Ordering::Relaxed);
    }

    /// The answer to its hello and the number of the session; `None`: there is none yet.
    #[must_use]
    pub fn answer(&self) -> Option<(u32, u32)> {
        let answer = self.control_half(control::ANSWER);
        Some((answer.checked_sub(1)?, self.control_half(control::SESSION)))
    }

    /// The clock that records take their time from: a `ClockSource` as a number.
    #[must_use]
    pub fn clock(&self) -> u32 {
        self.control_half(control::CLOCK)
    }

    /// The nodes of the arenas that the daemon assigned.
    #[must_use]
    pub fn arenas(&self) -> Vec<i32> {
        let count = self.control_half(control::ARENA_COUNT) as usize;
        (0..count.min(ARENAS_MAX))
            .map(|arena| self.control_half(control::ARENA_NODE + arena * 4).cast_signed())
            .collect()
    }

    /// Takes `bytes` from the birth budget of `arena`; returns what is left.
    pub fn take_birth_bytes(&self, arena: usize, bytes: i64) -> i64 {
        assert!(arena < ARENAS_MAX, "arena {arena}, at most {ARENAS_MAX}");
        let word = self.control_word(control::BIRTH_BYTES_LEFT + arena * 8);
        let before = word.fetch_sub(bytes.cast_unsigned(), Ordering::Relaxed);
        before.cast_signed().wrapping_sub(bytes)
    }

    /// Bits of the best tier's nodes, and the arena of births that are left to the kernel.
    #[must_use]
    pub fn first_touch(&self) -> (u64, Option<u32>) {
        let fast = self.control_word(control::FAST_NODES).load(Ordering::Relaxed);
        (fast, self.control_half(control::KERNEL_ARENA).checked_sub(1))
    }

    /// States what the heap keeps of dead objects in `arena`.
    pub fn set_idle_bytes(&self, arena: usize, bytes: u64) {
        assert!(arena < ARENAS_MAX, "arena {arena}, at most {ARENAS_MAX}");
        self.front.word(header::IDLE_BYTES + arena * 8).store(bytes, Ordering::Relaxed);
    }

    /// The arena of new blocks of small slots.
    #[must_use]
    pub fn small_arena(&self) -> u32 {
        self.control_half(control::SMALL_ARENA)
    }

    /// Names phase `number`, below [`PHASES_MAX`], and enters it for the `entries`th time.
    pub fn enter_phase(&self, number: u32, name: &str, entries: u32) -> io::Result<()> {
        assert!((number as usize) < PHASES_MAX, "phase {number}, at most {PHASES_MAX}");
        let kept = &name.as_bytes()[..name.len().min(PHASE_NAME_MAX)];
        let mut entry = [0; PHASE_BYTES];
        entry[..8].copy_from_slice(&phase_hash(name).to_le_bytes());
        entry[PHASE_PUBLISHED] = 1;
        entry[PHASE_NAME_BYTES] = byte(kept.len());
        entry[PHASE_NAME..PHASE_NAME + kept.len()].copy_from_slice(kept);
        self.write_at(PHASES_AT + u64::from(number) * PHASE_BYTES as u64, &entry)?;
        self.front.half(header::PHASE_COUNT).fetch_max(number + 1, Ordering::Release);
        let word = u64::from(entries) << 32 | u64::from(number);
        self.front.word(header::PHASE_ENTERED).store(word, Ordering::Release);
        Ok(())
    }

    /// Announces that this process executes moves.
    pub fn be_mover(&self) {
        self.header_half(header::IS_MOVER, 1);
    }

    /// The moves that are requested and not answered: address, bytes and node of each; and the
    /// number of the request.
    #[must_use]
    pub fn asked_moves(&self) -> Option<(u32, Vec<[u64; 3]>)> {
        let at = CONTROL;
        let asked = self.front.half(at + control::MOVES_ASKED).load(Ordering::Acquire);
        if asked == self.front.half(header::MOVES_DONE).load(Ordering::Relaxed) {
            return None;
        }
        let count = self.front.half(at + control::MOVE_COUNT).load(Ordering::Relaxed) as usize;
        let one = |index: usize| {
            let word = |nth: usize| {
                let at = at + control::MOVES + index * MOVE_BYTES + nth * 8;
                self.front.word(at).load(Ordering::Relaxed)
            };
            [word(0), word(1), word(2)]
        };
        Some((asked, (0..count.min(MOVES_MAX)).map(one).collect()))
    }

    /// Answers the request of this number: bytes and errno of each move.
    pub fn answer_moves(&self, asked: u32, moved: &[(u64, i32)]) {
        for (index, &(bytes, error)) in moved.iter().enumerate().take(MOVES_MAX) {
            let at = header::MOVED + index * MOVED_BYTES;
            self.front.word(at).store(bytes, Ordering::Relaxed);
            self.front.half(at + 8).store(error.cast_unsigned(), Ordering::Relaxed);
        }
        self.front.half(header::MOVES_DONE).store(asked, Ordering::Release);
        let word = self.front.half(header::MOVES_DONE);
        let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::empty(), 1);
    }

    /// Entries whose moves are complete.
    #[must_use]
    pub fn phase_done(&self) -> u32 {
        self.front.half(CONTROL + control::PHASE_DONE).load(Ordering::Acquire)
    }

    /// How long an entry into the phase of this name waits, milliseconds.
    #[must_use]
    pub fn phase_wait_ms(&self, name: &str) -> u32 {
        let at = |index: usize| CONTROL + control::STOPS + index * 8;
        let mut stops = (0..STOPS_MAX).map(|i| self.front.word(at(i)).load(Ordering::Relaxed));
        let waits = stops.any(|stop| stop == phase_hash(name));
        let wait = self.front.half(CONTROL + control::PHASE_WAIT_MS);
        if waits { wait.load(Ordering::Relaxed) } else { 0 }
    }

    /// The plan as a runtime reads it: rows in the table's order, and the arena of other births.
    #[must_use]
    pub fn plan(&self) -> (Vec<PlanRow>, Option<u8>) {
        let word = self.front.word(CONTROL + control::PLAN).load(Ordering::Acquire);
        let rows = (low32(word) as usize).min(PLAN_ROWS_MAX);
        let table = index(PLAN_AT) + high32(word) as usize % 2 * PLAN_ROWS_MAX * PLAN_ROW_BYTES;
        let row = |index: usize| {
            let words = self.front.words(table + index * PLAN_ROW_BYTES, PLAN_ROW_BYTES / 8);
            let [site, phase, rest] = [0, 1, 2].map(|i: usize| words[i].load(Ordering::Relaxed));
            let [size_class, arena, other, share, ..] = rest.to_le_bytes();
            let both = [3, 4].map(|i: usize| words[i].load(Ordering::Relaxed));
            let range = |half: u32| PlanRange {
                from: low16(half.into()),
                to: low16(u64::from(half) >> 16),
            };
            let [a, b] = both.map(|word| [range(low32(word)), range(high32(word))]);
            let ranges = [a[0], a[1], b[0], b[1]];
            PlanRow { site, size_class, phase, arena, other, share, ranges }
        };
        let arenas = self.front.half(CONTROL + (control::UNPLANNED_ARENA & !3));
        let unplanned = low8(arenas.load(Ordering::Relaxed).into());
        let unplanned = (unplanned != ARENA_UNKNOWN).then_some(unplanned);
        ((0..rows).map(row).collect(), unplanned)
    }

    /// The arenas of the spaces; `None` for a space without an arena.
    #[must_use]
    pub fn spaces(&self) -> [Option<u8>; SPACES] {
        let word = self.front.half(CONTROL + (control::UNPLANNED_ARENA & !3));
        let [_, spaces @ ..] = word.load(Ordering::Relaxed).to_le_bytes();
        spaces.map(|arena| (arena != ARENA_UNKNOWN).then_some(arena))
    }

    /// True when the daemon has requested the client to stop.
    #[must_use]
    pub fn is_detached(&self) -> bool {
        self.control_half(control::DETACH) != 0
    }

    fn header_half(&self, at: usize, value: u32) {
        self.front.half(at).store(value, Ordering::Relaxed);
    }

    fn header_word(&self, at: usize, value: u64) {
        self.front.word(at).store(value, Ordering::Relaxed);
    }

    fn control_word(&self, at: usize) -> &AtomicU64 {
        self.front.word(CONTROL + at)
    }

    fn control_half(&self, at: usize) -> u32 {
        self.front.half(CONTROL + at).load(Ordering::Acquire)
    }
}

impl RingWriter<'_> {
    /// Appends a record; false when the ring was full and the loss was counted.
    pub fn push(&mut self, record: &Record) -> bool {
        push(&self.words, &mut self.writer, &record.encode())
    }
}
