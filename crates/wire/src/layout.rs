//! Constants and offsets of `include/tiercel_wire.h`, byte for byte.
//! In: nothing. Out: numbers. `tests/layout.rs` compiles the C header and compares every one.
//! Knows nothing of what the fields mean.

/// "TRCL", little endian: first word of a session, of the control page and of the greeting.
pub const MAGIC: u32 = 0x4c43_5254;
/// "POOL", little endian: first word of a request to the pools, and of the answer.
pub const POOL_MAGIC: u32 = 0x4c4f_4f50;
/// Flag of a pool's answer: the node is modelled.
pub const POOL_EMULATED: u32 = 1;
/// Flag of a pool's answer: a file without a name, which has no seals.
pub const POOL_FILE: u32 = 2;
/// Version of the layout; both sides must agree exactly.
pub const WIRE_VERSION: u32 = 12;
/// Bytes of an OS page, the unit of the object table.
pub const OS_PAGE_BYTES: u64 = 4096;

/// Bytes of a record.
pub const RECORD_BYTES: usize = 32;
/// Records a ring holds, a power of two.
pub const RING_RECORDS: usize = 4096;
/// Rings of a session.
pub const RINGS_MAX: usize = 1024;
/// Bytes of a ring: one OS page of counters, then the records.
pub const RING_BYTES: usize = 4096 + RING_RECORDS * RECORD_BYTES;
/// Offset of the producer's count of records written, in a ring.
pub const RING_HEAD: usize = 0;
/// Offset of the producer's count of records that found the ring full, in a ring.
pub const RING_LOST: usize = 8;
/// Offset of the ownership word, in a ring.
pub const RING_STATE: usize = 16;
/// Offset of the owner's thread id, in a ring.
pub const RING_TID: usize = 20;
/// Offset of the consumer's count of records read, in a ring.
pub const RING_TAIL: usize = 64;
/// Offset of the first record, in a ring.
pub const RING_SLOTS: usize = 4096;

/// Phases a program can name, phase 0 among them.
pub const PHASES_MAX: usize = 256;
/// What plans call phase 0, which comes before the first name.
pub const PHASE_START: &str = "start";
/// Bytes of an entry of the phase table.
pub const PHASE_BYTES: usize = 64;
/// Most bytes that are kept of a phase name; the rest is cut off.
pub const PHASE_NAME_MAX: usize = 51;
/// Offset of `published` in a phase entry.
pub const PHASE_PUBLISHED: usize = 8;
/// Offset of `name_bytes` in a phase entry.
pub const PHASE_NAME_BYTES: usize = 12;
/// Offset of `name` in a phase entry.
pub const PHASE_NAME: usize = 13;

/// Rows of a plan.
pub const PLAN_ROWS_MAX: usize = 32768;
/// Bytes of a row of a plan.
pub const PLAN_ROW_BYTES: usize = 40;
/// Size class of rows that hold for every size.
pub const PLAN_CLASS_ANY: u8 = 0xff;
/// Share of rows that send every birth to their first arena.
pub const PLAN_SHARE_ALL: u8 = 0xff;
/// Ranges of an object that a row places apart.
pub const PLAN_RANGES: usize = 4;
/// Parts of an object in which ranges count.
pub const PLAN_PARTS: u16 = 0xffff;

/// Modules of a session.
pub const MODULES_MAX: usize = 4096;
/// Bytes of a module entry.
pub const MODULE_BYTES: usize = 512;
/// Longest build-id kept, bytes.
pub const BUILD_ID_MAX: usize = 20;
/// Most bytes that are kept of a path: its tail.
pub const PATH_MAX: usize = 224;
/// Offset of `published` in a module entry.
pub const MODULE_PUBLISHED: usize = 8;
/// Offset of `build_id_bytes` in a module entry.
pub const MODULE_BUILD_ID_BYTES: usize = 12;
/// Offset of `build_id` in a module entry.
pub const MODULE_BUILD_ID: usize = 13;
/// Offset of `path_bytes` in a module entry.
pub const MODULE_PATH_BYTES: usize = 33;
/// Offset of `path` in a module entry.
pub const MODULE_PATH: usize = 40;

/// Sites of a session.
pub const SITES_MAX: usize = 65536;
/// First of the numbers that no process hands out: the daemon's own.
pub const SITES_NAMED: usize = 61_440;
/// Bytes of a site entry.
pub const SITE_BYTES: usize = 256;
/// Frames of a site.
pub const SITE_FRAMES: usize = 30;
/// Offset of `published` in a site entry.
pub const SITE_PUBLISHED: usize = 8;
/// Offset of `frame_count` in a site entry.
pub const SITE_FRAME_COUNT: usize = 12;
/// Offset of `kind` in a site entry.
pub const SITE_KIND: usize = 14;
/// Offset of `frames` in a site entry.
pub const SITE_FRAMES_AT: usize = 16;
/// Module number of a frame that lies in no module.
pub const NO_MODULE: u16 = 0xffff;

/// Bytes of an entry of the table of small objects, one for each site.
pub const SMALL_BYTES: usize = 32;

/// Live mmap objects of a session.
pub const MAPS_MAX: usize = 65536;
/// Bytes of an entry of the map table.
pub const MAP_BYTES: usize = 40;
/// Offset of `share` in an entry of the map table.
pub const MAP_SHARE: usize = 32;
/// Bytes of an entry of the run table.
pub const RUN_BYTES: usize = 16;
/// OS pages a reserved range may have: 1 TiB.
pub const RANGE_PAGES_MAX: u64 = 1 << 28;
/// Arenas of the control page.
pub const ARENAS_MAX: usize = 8;
/// Arena of an object whose place the kernel chooses.
pub const ARENA_UNKNOWN: u8 = 0xff;
/// Node of an arena whose place the kernel chooses.
pub const NODE_NONE: i32 = -1;
/// Node of a modelled arena: the arena has a name, but is bound to no node.
pub const NODE_MODELLED: i32 = -2;
/// Spaces: high-bandwidth, low-latency, large-capacity.
pub const SPACES: usize = 3;
/// Most moves that a program can be requested to make at once.
pub const MOVES_MAX: usize = 64;
/// Bytes of one in the control page.
pub const MOVE_BYTES: usize = 24;
/// Bytes of the result of one move, in the header.
pub const MOVED_BYTES: usize = 16;
/// Phases whose entry may wait for moves.
pub const STOPS_MAX: usize = 64;
/// Longest wait of a phase entry, milliseconds.
pub const PHASE_WAIT_MS_MAX: u32 = 10_000;
/// Most births of one site that are numbered.
pub const NUMBERED_MAX: u32 = 256;
/// Objects must have this many bytes to be numbered.
pub const NUMBERED_BYTES: u64 = 256 << 10;
/// Objects of this many bytes can lie in two memories: a share of each object instead of a share of
/// the births.
pub const CUT_BYTES: u64 = 4 << 20;
/// Heads that a plan states are multiples of a huge OS page,
pub const HEAD_STEP: u64 = 2 << 20;
/// ranges of a plan are so only from this size on, where rounding makes little difference.
pub const HEAD_WHOLE: u64 = 32 << 20;
/// Bits of `size` in a record; the arena rides above them.
pub const SIZE_BITS: u32 = 56;
/// Bits of the clock that a record keeps.
pub const TIME_BITS: u32 = 48;

/// Remark of a process: the program brings its own malloc.
pub const REMARK_OWN_MALLOC: u32 = 1 << 0;
/// Remark of a process: its memory is limited, so its heap has no vregions.
pub const REMARK_LIMITED: u32 = 1 << 1;
/// Remark of a process: memory for vregions could not be had.
pub const REMARK_NO_VREGIONS: u32 = 1 << 2;
/// Remark of a process: it had threads before it began, so its heap is not of a pool.
pub const REMARK_THREADS: u32 = 1 << 3;
/// Remark: more sites should have blocks apart than can have them.
pub const REMARK_MIXED: u32 = 1 << 4;
/// It has compiled code that reports misses.
pub const REMARK_PROBED: u32 = 1 << 5;

/// Offset of the header.
pub const HEADER_AT: u64 = 0;
/// Offset of the control page.
pub const CONTROL_AT: u64 = 4096;
/// The same as an index.
pub(crate) const CONTROL: usize = crate::bits::index(CONTROL_AT);
/// Offset of the phase table.
pub const PHASES_AT: u64 = 8192;
/// Offset of the two plan tables.
pub const PLAN_AT: u64 = 65536;
/// Offset of the module table.
pub const MODULES_AT: u64 = PLAN_AT + (2 * PLAN_ROWS_MAX * PLAN_ROW_BYTES) as u64;
/// Bytes of an offer: what a session has before its modules.
pub const OFFER_BYTES: u64 = MODULES_AT;
/// What an offer's name adds to that of the socket.
pub const OFFER_SUFFIX: &str = ".offer";
/// First generation of the plans of offers.
pub const PLAN_OFFERED: u32 = 0x8000_4000;
/// Offset of the site table.
pub const SITES_AT: u64 = MODULES_AT + (MODULES_MAX * MODULE_BYTES) as u64;
/// Offset of the table of small objects.
pub const SMALLS_AT: u64 = SITES_AT + (SITES_MAX * SITE_BYTES) as u64;
/// Offset of the map table.
pub const MAPS_AT: u64 = SMALLS_AT + (SITES_MAX * SMALL_BYTES) as u64;
/// Offset of the rings.
pub const RINGS_AT: u64 = MAPS_AT + (MAPS_MAX * MAP_BYTES) as u64;
/// Offset of the run table.
pub const RUNS_AT: u64 = RINGS_AT + (RINGS_MAX * RING_BYTES) as u64;

/// Offsets in the header.
pub mod header {
    #![allow(missing_docs)] // The names are the C fields'.
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 4;
    pub const TOTAL_BYTES: usize = 8;
    pub const RANGE_BASE: usize = 16;
    pub const RANGE_PAGES: usize = 24;
    pub const PID: usize = 32;
    pub const MODULE_COUNT: usize = 36;
    pub const SITE_COUNT: usize = 40;
    pub const SITE_OVERFLOWS: usize = 44;
    pub const RING_HIGH_WATER: usize = 48;
    pub const MAP_HIGH_WATER: usize = 52;
    pub const RUN_HIGH_WATER: usize = 56;
    pub const LOST_WITHOUT_RING: usize = 64;
    pub const MAP_OVERFLOWS: usize = 72;
    pub const DETACHED: usize = 80;
    pub const REASON: usize = 88;
    pub const REASON_BYTES: usize = 128;
    pub const PHASE_ENTERED: usize = 216;
    pub const PHASE_COUNT: usize = 224;
    pub const PHASE_OVERFLOWS: usize = 228;
    pub const IS_MOVER: usize = 232;
    pub const MOVES_DONE: usize = 236;
    pub const REMARKS: usize = 240;
    pub const SMALL_TOP: usize = 244;
    pub const FORKS: usize = 248;
    pub const LOST_MISSES: usize = 256;
    pub const MOVED: usize = 264;
    pub const IDLE_BYTES: usize = 1288;
}

/// Offsets in the offer.
pub mod offer {
    #![allow(missing_docs)] // The names are the C fields'.
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 4;
    pub const ATTACH_BYTES: usize = 8;
    pub const ATTACH_MS: usize = 16;
    pub const USERFAULTFDS: usize = 20;
    pub const IS_COUNTED: usize = 24;
    pub const BEGAN: usize = 32;
    pub const ATTACHED: usize = 40;
    pub const FAILED: usize = 48;
    pub const FAILED_STEP: usize = 56;
    pub const FAILED_ERRNO: usize = 60;
    pub const BYTES: usize = 64;
}

/// Offsets in the control page.
pub mod control {
    #![allow(missing_docs)] // The names are the C fields'.
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 4;
    pub const CLOCK: usize = 8;
    pub const KERNEL_ARENA: usize = 12;
    pub const ARENA_COUNT: usize = 16;
    pub const SMALL_ARENA: usize = 20;
    pub const ARENA_NODE: usize = 24;
    pub const PHASE_WAIT_MS: usize = 56;
    pub const DETACH: usize = 60;
    pub const BIRTH_BYTES_LEFT: usize = 64;
    pub const PLAN: usize = 128;
    pub const UNPLANNED_ARENA: usize = 136;
    pub const SPACE_ARENA: usize = 137;
    pub const PHASE_DONE: usize = 140;
    pub const STOPS: usize = 144;
    pub const NUMBERED_BIRTHS: usize = 656;
    pub const BACKING: usize = 660;
    pub const MOVES_ASKED: usize = 664;
    pub const MOVE_COUNT: usize = 668;
    pub const ANSWER: usize = 672;
    pub const SESSION: usize = 676;
    pub const MOVES: usize = 680;
    pub const FAST_NODES: usize = 2216;
    pub const PROBE: usize = 2224;
    pub const NURSERY_ARENA: usize = 2256;
}

/// Bytes of the memfd of a session whose reserved range has `range_pages` OS pages.
#[must_use]
pub fn session_bytes(range_pages: u64) -> u64 {
    (RUNS_AT + range_pages * RUN_BYTES as u64).next_multiple_of(OS_PAGE_BYTES)
}
