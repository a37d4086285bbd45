/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * tiercel_wire.h: every byte that crosses a process boundary.
 * In: nothing. Out: the layout of a session (one memfd per hosted process) and of the greeting.
 * Knows nothing of allocators, policies or the kernel. crates/wire mirrors this file; both sides
 * assert every size and offset.
 *
 *   hosted process (runtime)                          daemon
 *   ------------------------                          ------
 *   maps the offer                          <-------  writes the offer, a file beside its socket
 *   when it is worth it: creates a memfd with the
 *   offer's control page, seals it, connects,
 *   sends tcl_hello + the memfd, closes both ------>  checks seals, size, peer credentials; maps it
 *   goes on without waiting                 <=======  answers in the control page
 *   writes records, sites, objects          =======>  polls, drains, rescans after a loss
 *   reads the control page and the plan     <=======  writes arenas, budgets, a plan
 *
 * Neither side trusts the other: the runtime keeps its allocator metadata in private memory and
 * only *writes* to the session (except that it reads control page and plan table, and clamps their
 * values); the daemon copies what it reads before it checks it, and bounds every index.
 *
 * A session, at fixed offsets (sparse: untouched parts cost nothing):
 *
 *   TCL_HEADER_AT    tcl_header     process, version, counters
 *   TCL_CONTROL_AT   tcl_control    daemon -> runtime
 *   TCL_PHASES_AT    tcl_phase_name [TCL_PHASES_MAX] phases the program named, append only
 *   TCL_PLAN_AT      tcl_plan_row   [2][TCL_PLAN_ROWS_MAX] daemon -> runtime: arenas of births
 *   TCL_MODULES_AT   tcl_module  [TCL_MODULES_MAX]   loaded objects by build-id
 *   TCL_SITES_AT     tcl_site    [TCL_SITES_MAX]     allocation sites, append only
 *   TCL_SMALLS_AT    tcl_small   [TCL_SITES_MAX]     small objects by site, estimated
 *   TCL_MAPS_AT      tcl_map     [TCL_MAPS_MAX]      live mmap objects, one slot each
 *   TCL_RINGS_AT     tcl_ring    [TCL_RINGS_MAX]     one per thread
 *   TCL_RUNS_AT      tcl_run     [header.range_pages] live objects and blocks of the reserved
 *                                                    range, by OS page number of their first byte
 *
 * Maps and runs together are the *object table*: what the daemon rescans when a ring overflowed.
 */
#ifndef TIERCEL_WIRE_H
#define TIERCEL_WIRE_H

#include <stdint.h>

#define TCL_MAGIC 0x4c435254u /* "TRCL", little endian */
/* One more with each change of this file that either side can notice. */
#define TCL_WIRE_VERSION 12u

#define TCL_PAGE 4096u /* bytes of an OS page, the smallest that the supported machines have */

/* ---- Records ----------------------------------------------------------------------------- */

enum tcl_record_kind {
    TCL_NONE = 0,    /* an unwritten slot; a reader that meets one stops there */
    TCL_BORN = 1,    /* addr, size, site; the object lives */
    TCL_DIED = 2,    /* addr; the object is gone */
    TCL_RESIZED = 3, /* addr, size = new size; same address */
    TCL_CUT = 4,     /* addr, size: this range left all objects that it overlapped (munmap) */
    TCL_PHASE = 5,   /* addr = number of the phase that was entered, an index of its name */
    TCL_EXEC = 6,    /* the process is about to exec; its objects are gone if it succeeds */
    TCL_EXIT = 7,    /* the process is about to exit */
    TCL_SHARE = 8,   /* addr, size = tcl_map.share: what the object of this version shows; follows
                      * its BORN in the same ring */
    TCL_HEAD = 9,    /* addr, size: the first bytes of the object of this version are bound to this
                      * arena, which was charged; follows its BORN in the same ring */
    TCL_MISSES = 10  /* addr: an OS page; size = reads | writes << 32, carve = lines made dirty:
                      * what compiled code (tiercel_probe.h) missed there, until this time. site:
                      * the code that did so last, generation: enum tiercel_probe_pattern of it */
};

enum tcl_record_flags {
    TCL_BLOCK = 1u << 0,     /* a block of small slots, not one allocation */
    TCL_MAPPED = 1u << 1,    /* made by mmap, served by the kernel: lives outside the range */
    TCL_CONTINUED = 1u << 2, /* a realloc that moved; its old address dies in the next record */
    TCL_FRESH = 1u << 3,     /* most of its memory was never touched: the kernel zeroes it then */
    TCL_TICKS = 1u << 7      /* the record's time is of the CPU's counter (enum tcl_clock) */
};

/* Records of different threads are drained in any order, so each carries a version that totally
 * orders all uses of one address: `carve` counts changes of shape (a run split, coalesced, mapped;
 * taken from one process-wide counter under a lock that is held anyway), `generation` counts
 * reuses of an unchanged run. (carve, generation) compare as a pair, with wrap-around:
 *  - of two live records over the same bytes, the one with the higher version holds;
 *  - DIED names the version it ends, and may arrive before its BORN. */
struct tcl_record {
    uint64_t addr; /* bytes */
    uint64_t size; /* bytes, a multiple of TCL_PAGE; BORN: | arena << TCL_SIZE_BITS */
    uint16_t site; /* index into the site table, 0 = unknown */
    uint16_t time_high;
    uint32_t carve;
    uint32_t time_low;
    uint16_t generation;
    uint8_t kind;      /* enum tcl_record_kind */
    uint8_t flags_low; /* enum tcl_record_flags */
};
/* When a record was written: the low 48 bits of CLOCK_MONOTONIC in nanoseconds (78 hours), or of
 * the CPU's counter with TCL_TICKS (15 hours at 5 GHz). A birth is written before the program has
 * its memory, a death before the memory can be used again, so that each access to an object lies
 * between its birth and its death. */
#define TCL_TIME_BITS 48

/* What records take their time from. Reading the counter costs 8 ns, and clock_gettime, which is
 * right everywhere, 3 times as much. The daemon names the counter where the kernel itself keeps
 * time by it, so that all CPUs agree, and converts. */
enum tcl_clock { TCL_CLOCK_MONOTONIC = 0, TCL_CLOCK_COUNTER = 1 };
/* The top byte of `size` is the arena that an object was born in: addresses, and so sizes, stay
 * below 2^56 (57 bits with five levels of page tables, of which programs have the lower half). */
#define TCL_SIZE_BITS 56
#define TCL_ARENA_UNKNOWN 0xffu /* the kernel places it */

/* ---- Ring: single producer (the owning thread), single consumer (the daemon) --------------- */

/* A power of two; 4096 * 32 bytes = 128 KiB a ring. Chosen, not measured. */
#define TCL_RING_RECORDS 4096u
/* Threads beyond that lose their records, counted in the header. Chosen, not measured: several
 * threads for each CPU of a large machine. */
#define TCL_RINGS_MAX 1024u

enum tcl_ring_state { TCL_RING_FREE = 0, TCL_RING_OWNED = 1 };

struct tcl_ring {
    /* Producer's line. `head` counts records ever written; a record's slot is head % RECORDS.
     * Stored with release after the record; pairs with the consumer's acquire load. */
    uint64_t head;
    uint64_t lost;  /* records not written because the ring was full; only grows */
    uint32_t state; /* enum tcl_ring_state, by compare-exchange; a freed ring keeps its records */
    uint32_t tid;
    uint8_t pad0[40];
    /* Consumer's line. `tail` counts records ever read; release, pairs with the producer's
     * acquire. */
    uint64_t tail;
    uint8_t pad1[4096 - 72];
    struct tcl_record records[TCL_RING_RECORDS];
};

/* ---- Modules and sites --------------------------------------------------------------------- */

/* Chosen, not measured: 2 MiB of the session; large programs load some hundreds. */
#define TCL_MODULES_MAX 4096u
#define TCL_BUILD_ID_MAX 20u /* SHA-1, which ld --build-id makes by default */
#define TCL_PATH_MAX 224u    /* with the 288 other bytes a module fills 512 */

struct tcl_module {
    uint64_t base;          /* load address: an absolute address minus this is the ELF address */
    uint32_t published;     /* 1 once complete; release, pairs with the reader's acquire */
    uint8_t build_id_bytes; /* 0: the module has none, then the path stands for it */
    uint8_t build_id[TCL_BUILD_ID_MAX];
    uint8_t path_bytes; /* the last TCL_PATH_MAX bytes of a longer one */
    uint8_t pad[6];
    char path[TCL_PATH_MAX];
    uint8_t pad2[248];
};

#define TCL_SITES_MAX 65536u /* numbers of 16 bits; the runtime packs them so in its cache */
/* Numbers from here on no process hands out: the daemon gives them to symbols of static data.
 * 4096 of them. Chosen, not measured: a program seldom has a hundred symbols of an OS page. */
#define TCL_SITES_NAMED 61440u
#define TCL_SITE_FRAMES 30u /* 16 + 30 * 8 bytes: a site fills 256 */

#define TCL_NO_MODULE 0xffffu /* of a frame in generated code; above TCL_MODULES_MAX */

/* What made the objects of a site. */
enum tcl_site_kind {
    TCL_SITE_CALL = 0,       /* a call: frames are its stack, here and where nothing else is said */
    TCL_SITE_STATIC = 1,     /* the loader: writable static data of frame 0's module, from the ELF
                              * address there on */
    TCL_SITE_CONSTANT = 2,   /* the same, of data that is only read */
    TCL_SITE_MAIN_STACK = 3, /* the kernel: the stack of the first thread; no frames */
    TCL_SITE_STACK = 4,      /* the C library: the stack of another thread; no frames */
    TCL_SITE_SHARED = 5,     /* a call that mapped memory which other mappings may show as well */
    TCL_SITE_FILE = 6        /* a call that mapped a file privately: page cache, until written */
};

struct tcl_site {
    uint64_t hash; /* FNV-1a over (build-id, offset) of every frame: stable under ASLR and reruns */
    uint32_t published; /* 1 once complete; release, pairs with the reader's acquire */
    uint16_t frame_count;
    uint16_t kind; /* enum tcl_site_kind */
    /* Innermost first, allocator and wrappers left out. module << 48 | ELF virtual address of the
     * return address. TCL_NO_MODULE: not in any module (generated code), then the low 48 bits of
     * the address itself. */
    uint64_t frames[TCL_SITE_FRAMES];
};

/* ---- Small objects by site ---------------------------------------------------------------------
 *
 * Objects in slots are not reported one by one. A site that keeps much in them has blocks of its
 * own, which bear its number. Of all other sites, and of what those had before, this is estimated
 * from sampled births. Each word is written on its own. */
struct tcl_small {
    uint64_t born_bytes; /* estimate */
    uint64_t live_bytes; /* estimate: outside of the site's own blocks */
    uint32_t births;     /* sampled ones, from which the estimates are made */
    uint32_t lives;      /* of them, those that count as live */
    uint32_t deaths;     /* of them, those whose end was seen */
    uint32_t life_ms;    /* mean of those */
};

/* ---- Object table -------------------------------------------------------------------------- */

/* One entry per OS page of the reserved range; only the entry of an object's first page is used.
 * A writer clears `shape`, stores `identity`, then stores `shape` with release (in a reuse of the
 * same shape, `identity` alone changes). A reader copies the entry twice and accepts it when both
 * copies agree; the changes of an entry that keeps changing are also in a ring. */
struct tcl_run {
    uint64_t shape;    /* 0: nothing starts here. Else pages << 32 | carve */
    uint64_t identity; /* site << 32 | generation << 16 | arena << 8 | flags_low */
};

/* 2^28 * 4 KiB = 1 TiB; the run table then has 2^28 * 16 bytes = 4 GiB, sparse. */
#define TCL_RANGE_PAGES_MAX (1ull << 28)

/* A process may have 65530 mappings: the default of vm.max_map_count. */
#define TCL_MAPS_MAX 65536u

struct tcl_map {
    uint64_t addr; /* 0: free slot. Stored last with release */
    uint64_t size;
    uint32_t site;
    uint32_t carve;
    uint16_t generation;
    uint8_t flags_low;
    uint8_t arena;
    uint8_t pad[4];
    /* Not 0: a name of the memory that it shows, in 56 bits. Mappings with one name, of any
     * processes of a user, begin with the same byte of it. */
    uint64_t share;
};

/* ---- Phases -------------------------------------------------------------------------------- */

/* Phase 0 lasts until the first name; its slot stays empty, and plans call it TCL_PHASE_START. A
 * name that finds the table full is counted in the header, and the program stays in the phase it
 * was in. */
#define TCL_PHASE_START "start"
#define TCL_PHASES_MAX 256u    /* numbers of 8 bits; the runtime packs them so in its decisions */
#define TCL_PHASE_NAME_MAX 51u /* 13 + 51 bytes: a name fills 64 */

struct tcl_phase_name {
    uint64_t hash;      /* FNV-1a over the whole name, also of a longer one; never 0 */
    uint32_t published; /* 1 once complete; release, pairs with the reader's acquire */
    uint8_t name_bytes;
    char name[TCL_PHASE_NAME_MAX]; /* the first bytes of a longer one */
};

/* ---- Plan: written by the daemon, read at births -------------------------------------------- */

/* Rows ascend by (site, class, phase). Of those that fit a birth the first of these holds:
 * (site, class, phase), (site, class, any), (site, any, phase), (site, any, any).
 * There are two tables: the daemon writes the one that is not in use, then stores control.plan. A
 * reader that still reads the other one may find rows out of order, or the arena of another row:
 * it then misses a row or uses a wrong arena, which is harmless.
 * Before the daemon has answered a hello, the rows are those of the offer. */
/* 32768 * 40 bytes = 1.25 MiB a table. Chosen, not measured. */
#define TCL_PLAN_ROWS_MAX 32768u
#define TCL_PLAN_CLASS_ANY 0xffu
#define TCL_PLAN_SHARE_ALL 0xffu
/* Ranges of an object that a row places apart, and the parts of an object in which they count.
 * Chosen, not measured: each range binds memory anew, which is a system call and a VMA. */
#define TCL_PLAN_RANGES 4u
#define TCL_PLAN_PARTS 0xffffu
/* Of a generation: its rows are in the offer. Offers count from here on, far from the generations
 * of a session, which begin at 1, so that their low bits differ as well. */
#define TCL_PLAN_OFFERED 0x80004000u

/* From `from` of TCL_PLAN_PARTS parts of an object on, up to `to`; both 0: none. */
struct tcl_plan_range {
    uint16_t from, to;
};

struct tcl_plan_row {
    uint64_t site;      /* tcl_site.hash; 0: the unknown site */
    uint64_t phase;     /* tcl_phase_name.hash; 0: any */
    uint8_t size_class; /* ceil(log2(bytes in whole OS pages)); TCL_PLAN_CLASS_ANY */
    uint8_t arena;      /* for `share` of TCL_PLAN_SHARE_ALL births, evenly spread; of objects of
                         * TCL_CUT_BYTES and more for these ranges of each */
    uint8_t other;      /* for the rest */
    uint8_t share;
    uint8_t pad[4];
    struct tcl_plan_range ranges[TCL_PLAN_RANGES]; /* ascending, disjoint; those in use first */
};

/* ---- Header and control -------------------------------------------------------------------- */

/* Chosen, not measured: no machine that is known to have Tiercel's kinds of memory has more. */
#define TCL_ARENAS_MAX 8u

/* What backs the heap of a program: ordinary memory; vregions (docs/pools.md). */
enum tcl_backing { TCL_BACKING_KERNEL = 0, TCL_BACKING_VMEM = 1 };

/* Moves that the program itself executes, and their results as the program claims them. */
/* A batch; 64 * (24 + 16) bytes fit control page and header. Chosen, not measured. */
#define TCL_MOVES_MAX 64u
struct tcl_move {
    uint64_t addr;  /* a multiple of TCL_PAGE */
    uint64_t bytes; /* likewise */
    int32_t node;
    uint32_t pad;
};
struct tcl_moved {
    uint64_t bytes; /* of vregions that are on the node now */
    int32_t error;  /* errno of the first vregion that is not; 0 */
    uint32_t pad;
};

/* Bits. */
enum tcl_remark {
    TCL_REMARK_OWN_MALLOC = 1u << 0,  /* the program brings its own: only what it maps is tracked */
    TCL_REMARK_LIMITED = 1u << 1,     /* memory is limited: no vregions in the heap */
    TCL_REMARK_NO_VREGIONS = 1u << 2, /* memory for vregions could not be had */
    TCL_REMARK_THREADS = 1u << 3, /* threads before the program begins: no pool under its heap */
    TCL_REMARK_MIXED = 1u << 4,   /* more sites should have blocks apart than can have them */
    TCL_REMARK_PROBED = 1u << 5   /* it has code that reports misses */
};

struct tcl_header {
    uint32_t magic;
    uint32_t version;
    uint64_t total_bytes; /* of the memfd */
    uint64_t range_base;  /* reserved range of the allocator; 0 when there is none */
    uint64_t range_pages;
    uint32_t pid;
    uint32_t module_count; /* slots handed out; entries may not be published yet */
    uint32_t site_count;
    uint32_t site_overflows;  /* new sites that found the table full */
    uint32_t ring_high_water; /* rings at or above were never used */
    uint32_t map_high_water;
    uint64_t run_high_water;    /* no object starts at or above this page number of the range */
    uint64_t lost_without_ring; /* records of threads that got no ring */
    uint64_t map_overflows;     /* mmap objects that found no slot */
    uint64_t detached;          /* 1: the runtime detached, for `reason` */
    char reason[128];
    /* entries << 32 | phase: how often any phase was entered, modulo 2^32, and the current one. One
     * word, so that a reader gets both of the same entry. Release, before the record. */
    uint64_t phase_entered;
    uint32_t phase_count;     /* names handed out, phase 0 among them */
    uint32_t phase_overflows; /* entries lost: no room for the name, or the lock was held */
    uint32_t is_mover;        /* 1: a thread of the runtime executes control.moves */
    uint32_t moves_done;      /* the last control.moves_asked that was answered; a futex. Release */
    uint32_t remarks;         /* enum tcl_remark, what the user should know of this process */
    uint32_t small_top;       /* sites at or above have no small objects. Release */
    uint32_t forks;           /* how often it forked: it may have children that do not attach */
    uint32_t pad;
    uint64_t lost_misses; /* that no record was written of; only grows */
    struct tcl_moved moved[TCL_MOVES_MAX];
    /* Of each arena, bytes that no object has and that the heap keeps resident for the next births.
     * Relaxed. */
    uint64_t idle_bytes[TCL_ARENAS_MAX];
};

#define TCL_NODE_NONE (-1)     /* of an arena: the kernel places */
#define TCL_NODE_MODELLED (-2) /* the kernel places, but births still report their arena */
#define TCL_SPACES 3u          /* high-bandwidth, low-latency, large-capacity, in this order */
/* Phases with moves at their entry. Chosen, not measured: an entry searches them one by one. */
#define TCL_STOPS_MAX 64u
/* Chosen, not measured: how long a stalled daemon may hold a program up. */
#define TCL_PHASE_WAIT_MS_MAX 10000u
/* Births of a site that get a number, and the smallest object that does. Chosen, not measured: they
 * keep sites with many births from filling the table of sites. */
#define TCL_NUMBERED_MAX 256u
#define TCL_NUMBERED_BYTES (256ull << 10)
/* Smaller objects lie in one memory: 2 huge OS pages, below which a part would be none or all. */
#define TCL_CUT_BYTES (4ull << 20)
/* With a plan: a huge OS page of x86-64, of which large ranges are multiples; smaller ones, of
 * which a huge OS page would be more than a sixteenth, are in OS pages. Chosen, not measured. */
#define TCL_HEAD_STEP (2ull << 20)
#define TCL_HEAD_WHOLE (32ull << 20)
/* Without a plan objects of more bytes than thread caches keep may have a head, which ends at the
 * OS page at which the room ends. The smallest head is worth its two system calls and its VMA:
 * first touches of 64 KiB take 10 us. Chosen, not measured. */
#define TCL_HEADS_FROM_BYTES ((256ull << 10) + 4096)
#define TCL_HEAD_LEAST (64ull << 10)

/* What compiled code reports: misses of caches of this shape, among the lines that are sampled. The
 * caches are as small a share of their size as the lines are of all, 2^-shift. */
struct tcl_probe_cache {
    uint32_t sets, ways;
};
struct tcl_probe_terms {
    uint32_t limit; /* of hashes (tiercel_probe.h); 0: nothing is sampled */
    uint32_t shift; /* each miss stands for 2^shift */
    struct tcl_probe_cache caches[3]; /* L1 and L2 of a thread, the last level of the process */
};

/* Written by the daemon, except birth_bytes_left. The first cache line is read at every event, the
 * second is written at births, the third is read at births: they are kept apart. Arena k is memory
 * of node arena_node[k]; k = 0 is the best tier. The runtime clamps every value. */
struct tcl_control {
    uint32_t magic;
    uint32_t version;
    uint32_t clock; /* enum tcl_clock, of the records to come */
    /* 1 + the arena of births that neither the program nor a plan places, while the nodes' memory
     * and no budget limits them: one beyond arena_count, whose memory is bound to no node, so that
     * the first touch places it. 0: they count against the budgets. */
    uint32_t kernel_arena;
    uint32_t arena_count; /* 0: the kernel places */
    uint32_t small_arena; /* where new blocks of small slots are born */
    int32_t arena_node[TCL_ARENAS_MAX];
    uint32_t phase_wait_ms; /* an entry into a phase of `stops` waits so long at most */
    uint32_t detach;        /* 1: the daemon leaves for good; the runtime writes nothing more */
    /* Bytes that may still be born in each arena until the daemon's next update. The runtime
     * charges the arena that is planned for an object, or arena 0; when that has none left, the
     * next; the last arena is never refused. Deaths are refunded. Signed and atomic: both sides add
     * and subtract. A thread takes up to TCL_BIRTH_CREDIT bytes ahead. */
    int64_t birth_bytes_left[TCL_ARENAS_MAX];
    uint64_t plan; /* generation << 32 | rows; 0 rows: no plan. Release, after the rows of table
                    * generation % 2; pairs with the runtime's acquire */
    uint8_t unplanned_arena; /* of births without a row; TCL_ARENA_UNKNOWN: as without a plan */
    uint8_t space_arena[TCL_SPACES]; /* TCL_ARENA_UNKNOWN: there is no such space here */
    uint32_t phase_done;             /* entries (see tcl_header) whose moves are over; a futex */
    uint64_t stops[TCL_STOPS_MAX];   /* hashes of phases with moves at their entry; 0 ends */
    /* How many large objects of each site get a site of their own, which has one frame more: no
     * module, and the number of the birth, from 1. 0: none. */
    uint32_t numbered_births;
    uint32_t backing;     /* enum tcl_backing; read once, when the program starts */
    uint32_t moves_asked; /* number of the request in `moves`; a futex. Release, after `moves` */
    uint32_t move_count;  /* of `moves`; 0 cancels the request before */
    uint32_t answer;      /* to the hello: 1 + enum tcl_status, 0: none yet. Release */
    uint32_t session;     /* number of the session, from 1; before `answer` */
    struct tcl_move moves[TCL_MOVES_MAX];
    uint64_t fast_nodes; /* a bit of each node of the best tier below 64 */
    struct tcl_probe_terms probe;
    /* 1 + the arena whose budget is room that some sites keep for their births: of memory of the
     * best tier, and for births alone whose row names it. 0: there is none. */
    uint32_t nursery_arena;
    uint8_t pad[4096 - 212 - TCL_STOPS_MAX * 8 - TCL_MOVES_MAX * 24];
};
/* Chosen, not measured: 64 births of the smallest object for one atomic subtraction. */
#define TCL_BIRTH_CREDIT (256 << 10)

/* Each begins where the one before ends, at an OS page; the assertions below check the sizes. */
#define TCL_HEADER_AT 0ull
#define TCL_OFFER_BYTES TCL_MODULES_AT
#define TCL_CONTROL_AT 4096ull
#define TCL_PHASES_AT 8192ull
#define TCL_PLAN_AT 65536ull
#define TCL_MODULES_AT (TCL_PLAN_AT + 2 * TCL_PLAN_ROWS_MAX * 40ull)
#define TCL_SITES_AT (TCL_MODULES_AT + TCL_MODULES_MAX * 512ull)
#define TCL_SMALLS_AT (TCL_SITES_AT + TCL_SITES_MAX * 256ull)
#define TCL_MAPS_AT (TCL_SMALLS_AT + TCL_SITES_MAX * 32ull)
#define TCL_RINGS_AT (TCL_MAPS_AT + TCL_MAPS_MAX * 40ull)
#define TCL_RUNS_AT (TCL_RINGS_AT + TCL_RINGS_MAX * (4096ull + TCL_RING_RECORDS * 32ull))

/* ---- Offer: what a process knows of the daemon before it attaches --------------------------- */

/* The name of the file is that of the socket and this. It begins as a session does: struct
 * tcl_offer at TCL_HEADER_AT, the control page of a new session, the tables of its plan; it ends at
 * TCL_OFFER_BYTES. Its owner is root or the user of the process, or it is not believed. Where the
 * process may write to it, it is counted. */
#define TCL_OFFER_SUFFIX ".offer"

/* Where an attach failed. */
enum tcl_step {
    TCL_STEP_NONE = 0,
    TCL_STEP_CONNECT = 1, /* to the daemon's socket */
    TCL_STEP_MEMORY = 2,  /* shared with the daemon */
    TCL_STEP_HELLO = 3    /* was not sent */
};

struct tcl_offer {
    uint32_t magic;
    uint32_t version;
    uint64_t attach_bytes; /* a process attaches when it has allocated so much; 0: as it starts */
    uint32_t attach_ms;    /* or at the first birth so long after its start */
    uint32_t userfaultfds; /* how many a hello should bring, at most TCL_UFFDS_MAX */
    uint32_t is_counted;   /* 1: processes count themselves in what follows */
    uint32_t pad;
    /* Written by all processes, atomically; claims. */
    uint64_t began;        /* programs that started, and forked children that allocated */
    uint64_t attached;     /* of those */
    uint64_t failed;       /* of those that tried to attach */
    uint32_t failed_step;  /* enum tcl_step of the first that failed */
    uint32_t failed_errno; /* its errno */
};

/* ---- Greeting: SOCK_SEQPACKET -------------------------------------------------------------- */

/* A hello carries by SCM_RIGHTS the session's memfd, and after it as many userfaultfds as the offer
 * asks for, which the process opened on itself with UFFD_USER_MODE_ONLY and did not use. The daemon
 * may track writes by them, asynchronously only; it splits mappings only inside the reserved range.
 * Two, because windows that touch each other need different ones, or the kernel would merge them.
 * It is answered in the control page. A tcl_welcome goes over the socket as well, for runtimes of
 * other versions, which wait there and learn that they do not match. */
#define TCL_UFFDS_MAX 2u

struct tcl_hello {
    uint32_t magic;
    uint32_t version;
    uint32_t pid;
    uint32_t parent_pid; /* of the process that forked it, as that one sees itself; 0 = none */
    uint64_t total_bytes;
    uint64_t image; /* AT_RANDOM of the auxiliary vector, which an exec changes; 0: unknown */
};

enum tcl_status {
    TCL_OK = 0,
    TCL_REFUSED_VERSION = 1,
    TCL_REFUSED_USER = 2,
    TCL_REFUSED_FULL = 3,
    TCL_REFUSED_MEMFD = 4,
    TCL_REFUSED_NAMESPACE = 5 /* the daemon does not see into the process's pid namespace */
};

struct tcl_welcome {
    uint32_t magic;
    uint32_t version;
    uint32_t status;  /* enum tcl_status */
    uint32_t session; /* from 1 */
};

/* ---- Pools: on the same socket, one message each way a connection --------------------------- */

/* Requests memory of a node, or returns it. A segment belongs to the process that the socket's
 * credentials name, for as long as that lives. */
#define TCL_POOL_MAGIC 0x4c4f4f50u /* "POOL", little endian */

enum tcl_pool_verb {
    TCL_POOL_GRANT = 1,  /* node, bytes, vpage_shift: requests a segment */
    TCL_POOL_RETURN = 2, /* number: no process maps it, and its memory may be freed at once */
    TCL_POOL_LEAVE = 3   /* number: a child process may map it; it ends with the last mapping */
};

struct tcl_pool_ask {
    uint32_t magic; /* TCL_POOL_MAGIC */
    uint32_t version;
    uint32_t verb;   /* enum tcl_pool_verb */
    int32_t node;    /* the kernel's number */
    uint64_t bytes;  /* a multiple of 2 MiB */
    uint32_t number; /* of a segment */
    uint32_t vpage_shift;
    uint64_t secret; /* of the segment's grant */
};

enum tcl_pool_status {
    TCL_POOL_OK = 0,
    TCL_POOL_NONE = 1,      /* no pool of this node, or none at all */
    TCL_POOL_EXHAUSTED = 2, /* not enough is free, or the system has no memory for it */
    TCL_POOL_REFUSED = 3    /* an invalid request */
};

/* tcl_pool_answer.flags */
#define TCL_POOL_EMULATED 1u /* the node is modelled: its memory is on any node */
#define TCL_POOL_FILE 2u     /* an unlinked file, which has no seals */

/* With TCL_POOL_OK to TCL_POOL_GRANT the segment's memfd comes by SCM_RIGHTS. */
struct tcl_pool_answer {
    uint32_t magic; /* TCL_POOL_MAGIC */
    uint32_t version;
    uint32_t status; /* enum tcl_pool_status */
    uint32_t number;
    uint64_t bytes;
    uint32_t flags;
    uint32_t pad;
    uint64_t secret; /* must accompany TCL_POOL_RETURN and TCL_POOL_LEAVE of this segment */
};

/* The one environment variable: path of the daemon's socket. Absent: the allocator runs alone. */
#define TCL_SOCKET_ENV "TIERCEL_SOCKET"

/* ---- Layout assertions; crates/wire repeats them ------------------------------------------- */

#if defined(__cplusplus)
#define TCL_ASSERT static_assert
#else
#define TCL_ASSERT _Static_assert
#endif
TCL_ASSERT(sizeof(struct tcl_record) == 32, "record");
TCL_ASSERT(sizeof(struct tcl_ring) == 4096 + TCL_RING_RECORDS * 32, "ring");
TCL_ASSERT(sizeof(struct tcl_module) == 512, "module");
TCL_ASSERT(sizeof(struct tcl_site) == 256, "site");
TCL_ASSERT(sizeof(struct tcl_small) == 32, "small");
TCL_ASSERT(sizeof(struct tcl_run) == 16, "run");
TCL_ASSERT(sizeof(struct tcl_map) == 40, "map");
TCL_ASSERT(sizeof(struct tcl_header) <= 4096, "header");
TCL_ASSERT(sizeof(struct tcl_control) == 4096, "control");
TCL_ASSERT(sizeof(struct tcl_move) == 24, "move");
TCL_ASSERT(sizeof(struct tcl_moved) == 16, "moved");
TCL_ASSERT(sizeof(struct tcl_phase_name) == 64, "phase name");
TCL_ASSERT(sizeof(struct tcl_plan_row) == 40, "plan row");
TCL_ASSERT(TCL_PHASES_AT + TCL_PHASES_MAX * 64 <= TCL_PLAN_AT, "phases");
TCL_ASSERT(sizeof(struct tcl_offer) == 64, "offer");
TCL_ASSERT(sizeof(struct tcl_hello) == 32, "hello");
TCL_ASSERT(sizeof(struct tcl_welcome) == 16, "welcome");
TCL_ASSERT(sizeof(struct tcl_pool_ask) == 40, "pool ask");
TCL_ASSERT(sizeof(struct tcl_pool_answer) == 40, "pool answer");

#endif
