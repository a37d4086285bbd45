/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * session.h: the tracking half of the runtime, as its own files see it.
 * In: nothing. Out: the session as it is mapped, the page of the process, which a fork wipes, and
 * functions of session.c, attach.c, offer.c, ring.c, birth.c, phase.c, site.c, small_sites.c,
 * unwind.c, map.c, image.c.
 * Knows nothing of heaps.
 *
 *   tcl_offer  |offer|control|      |plan|                         mapped as the program starts
 *   tcl_shared (one address for the life of the process; another memfd is mapped over it)
 *   |header|control|phases|plan|modules|sites|maps|rings|runs ...         written, never trusted
 *
 *   tcl_process -> [epoch, locks]      one OS page with MADV_WIPEONFORK: all zero in a forked
 * child, which has no session and holds no lock until it attaches
 *
 * A thread belongs to a session when its own epoch equals tcl_process->epoch. That one comparison
 * distinguishes: attached; forked (0); detached (0); attached again (another number).
 */
#ifndef TCL_SESSION_H
#define TCL_SESSION_H

#include "../alloc/alloc.h"
#include "../vmem/vmem.h"
#include "track.h"
#include <stdatomic.h>

/* State of this process; a page of its own, which a fork wipes. */
struct tcl_process {
    _Atomic uint32_t epoch; /* 0: no session */
    _Atomic uint32_t attach_lock, map_lock, site_lock, phase_lock, small_lock, image_lock;
    _Atomic bool is_awaited;     /* no answer to the hello yet */
    _Atomic uint32_t pid;        /* whose state this is; 0: not known yet */
    _Atomic uint64_t began_ms;   /* of the program, or of a child's first birth; 0: none yet */
    _Atomic uint64_t born_bytes; /* while there is no session */
    _Atomic uint64_t hello_ms;   /* when the last hello was sent */
    _Atomic uint32_t tries;      /* failures in a row */
    uint64_t next_try_ms;        /* under attach_lock, as what follows: no attach before */
    bool was_attached, has_failed;
};
TCL_HIDDEN extern struct tcl_process *tcl_process;

enum tcl_mode {
    TCL_MODE_EARLY = 0, /* before the constructor: mmap objects are kept, none is reported */
    TCL_MODE_ALONE,     /* there is no offer, or detached for good */
    TCL_MODE_TRACKED    /* there is a session, or there will be one */
};
TCL_HIDDEN extern _Atomic uint32_t tcl_mode;

/* The offer; mapped in every process whose mode is TRACKED. */
TCL_HIDDEN extern struct tcl_offer *tcl_offer;

/* Where the session is mapped. Valid once an epoch other than 0 was seen. */
TCL_HIDDEN extern char *tcl_shared;
/* True when a range of addresses overlaps the session's mapping, or the tables of sites. */
TCL_HIDDEN bool tcl_session_overlaps(uintptr_t start, uintptr_t end);
TCL_HIDDEN bool tcl_site_tables_overlap(uintptr_t start, uintptr_t end);

static inline struct tcl_header *tcl_header(void) {
    return (struct tcl_header *)(tcl_shared + TCL_HEADER_AT);
}
static inline struct tcl_control *tcl_control(void) {
    return (struct tcl_control *)(tcl_shared + TCL_CONTROL_AT);
}
static inline const struct tcl_control *tcl_offered_control(void) {
    return (const struct tcl_control *)((const char *)tcl_offer + TCL_CONTROL_AT);
}
static inline struct tcl_phase_name *tcl_phases(void) {
    return (struct tcl_phase_name *)(tcl_shared + TCL_PHASES_AT);
}
static inline struct tcl_plan_row *tcl_plan_table(uint32_t generation) {
    char *from = generation >= TCL_PLAN_OFFERED ? (char *)tcl_offer : tcl_shared;
    return (struct tcl_plan_row *)(from + TCL_PLAN_AT) + generation % 2 * TCL_PLAN_ROWS_MAX;
}
static inline struct tcl_module *tcl_modules(void) {
    return (struct tcl_module *)(tcl_shared + TCL_MODULES_AT);
}
static inline struct tcl_site *tcl_sites(void) {
    return (struct tcl_site *)(tcl_shared + TCL_SITES_AT);
}
static inline struct tcl_small *tcl_smalls(void) {
    return (struct tcl_small *)(tcl_shared + TCL_SMALLS_AT);
}
static inline struct tcl_map *tcl_maps(void) {
    return (struct tcl_map *)(tcl_shared + TCL_MAPS_AT);
}
static inline struct tcl_ring *tcl_rings(void) {
    return (struct tcl_ring *)(tcl_shared + TCL_RINGS_AT);
}
static inline struct tcl_run *tcl_runs(void) {
    return (struct tcl_run *)(tcl_shared + TCL_RUNS_AT);
}

/* True while this process itself, not only its parent, has a session. */
static inline bool tcl_attached(void) {
    return atomic_load_explicit(&tcl_process->epoch, memory_order_acquire) != 0;
}

/* ---- session.c ------------------------------------------------------------------------------- */

/* Before a birth of `bytes`: attaches when this is worth it. Call with no lock held. */
TCL_HIDDEN void tcl_session_poll(size_t bytes);

/* Attaches if there is a daemon: the program asks for what only a session has. */
TCL_HIDDEN void tcl_session_want(void);

/* Attaches again after the daemon stopped reading; rate limited. Call with no lock held. */
TCL_HIDDEN void tcl_session_reattach(void);

/* Before the address space is limited: attaches for the last time, where there is room for that. */
TCL_HIDDEN void tcl_session_limit(bool has_room);

/* Called at births: while no answer came, and when the daemon wants no more records. */
TCL_HIDDEN void tcl_session_await_answer(void);
TCL_HIDDEN void tcl_session_asked_to_detach(void);

/* Detaches for good; the first reason is kept. */
TCL_HIDDEN void tcl_session_detach(const char *reason);

/* Populates shared memory now, where a failure is a return value and not a SIGBUS. False: there is
 * none, and the process has detached. */
TCL_HIDDEN bool tcl_provide(const void *start, size_t bytes);

/* Takes a lock word of tcl_process; false after a bounded wait, because losing an update is better
 * than a deadlock. */
TCL_HIDDEN bool tcl_lock(_Atomic uint32_t *word);
/* True while any thread holds `word`; for assertions. */
static inline bool tcl_is_locked(const _Atomic uint32_t *word) {
    return atomic_load_explicit(word, memory_order_relaxed) != 0;
}
static inline void tcl_unlock(_Atomic uint32_t *word) {
    atomic_store_explicit(word, 0, memory_order_release);
}

/* Milliseconds of a monotonic clock, a few ns. */
TCL_HIDDEN uint64_t tcl_now_ms(void);

/* ---- attach.c -------------------------------------------------------------------------------- */

/* Bytes of a socket's path with its end: those of sockaddr_un. */
#define TCL_SOCKET_PATH_MAX 108

/* Sets the daemon's address, and opens its offer. */
TCL_HIDDEN bool tcl_set_daemon(const char *path);

/* Makes a session and says hello, without waiting for an answer. Where it failed, with errno;
 * TCL_STEP_NONE: it did not. Under attach_lock. */
TCL_HIDDEN enum tcl_step tcl_attach(void);

/* After the heap was shrunk: gives back what the session has for the rest. */
TCL_HIDDEN void tcl_session_shrink(void);

/* ---- offer.c --------------------------------------------------------------------------------- */

/* Maps the offer beside a socket; false: there is none that can be believed. */
TCL_HIDDEN bool tcl_offer_open(const char *socket_path);
/* Again, of a daemon that was started since; without one nothing changes. (attach.c) */
TCL_HIDDEN void tcl_offer_reopen(void);
/* Counts this process in the offer, where processes are counted. */
TCL_HIDDEN void tcl_offer_count(uint64_t *counter);
TCL_HIDDEN void tcl_offer_failed(enum tcl_step step, int error);
TCL_HIDDEN bool tcl_offer_overlaps(uintptr_t start, uintptr_t end);

/* ---- ring.c ---------------------------------------------------------------------------------- */

TCL_HIDDEN void tcl_ring_start(void); /* once, before the first attach */
TCL_HIDDEN bool tcl_ring_fill(void); /* enters every live object into the table; false: no memory */
TCL_HIDDEN void tcl_note_cut(uintptr_t addr, size_t bytes, uint32_t carve);
/* What an object that was born shows: see tcl_map.share. */
TCL_HIDDEN void tcl_note_share(const struct tcl_use *use, uint64_t share);
TCL_HIDDEN void tcl_note_phase(uint32_t number);

/* ---- Misses of compiled code (probe/) -------------------------------------------------------- */

struct tcl_misses {
    uint64_t page;                   /* address */
    uint32_t reads, writes, dirtied; /* among sampled lines */
    uint64_t time; /* of the last one: TCL_TIME_BITS of it, the flag of its clock from bit 56 on */
    uint32_t site; /* of the code that missed last; 0: not known */
    uint32_t pattern; /* enum tiercel_probe_pattern of it */
};
/* Writes a record; false where the ring has room for objects' records only. */
TCL_HIDDEN bool tcl_note_misses(const struct tcl_misses *misses);
TCL_HIDDEN void tcl_lose_misses(uint32_t count);
/* Gives the calling thread a ring, so that tcl_probe_thread_ends is called when it ends. */
TCL_HIDDEN bool tcl_ring_attend(void);

/* Each miss stands for 2^this. */
TCL_HIDDEN uint32_t tcl_probe_shift(void);
/* Changes when an OS page may have another meaning: what it had died, or a phase was entered. */
TCL_HIDDEN uint32_t tcl_probe_stamp(uint64_t page);
TCL_HIDDEN void tcl_probe_died(uintptr_t addr, size_t bytes);
TCL_HIDDEN void tcl_probe_phase(void);
/* The process has a session from now on. */
TCL_HIDDEN void tcl_probe_attached(void);
TCL_HIDDEN void tcl_probe_thread_ends(void);
TCL_HIDDEN void tcl_probe_after_fork_child(void);
/* Acts on a request to detach, and on a reader that is gone; called at births. */
TCL_HIDDEN void tcl_ring_check(void);

/* ---- birth.c --------------------------------------------------------------------------------- */

/* Site of a new object of `bytes`, as tcl_site_here, with its number where births are numbered. */
TCL_HIDDEN uint32_t tcl_birth_site(size_t bytes, void *return_address, void *frame_address);

/* True when the plan has a row for blocks of this site. */
TCL_HIDDEN bool tcl_birth_has_row(uint32_t site);

/* Arena the kernel should be asked for, of an mmap object; TCL_ARENA_UNKNOWN: it is not asked.
 * Address space that is only reserved is charged to no budget. */
TCL_HIDDEN unsigned tcl_birth_mapped(size_t bytes, uint32_t site, bool is_reserved);

/* Node for the runtime's own memory, the slowest tier's; TCL_NODE_NONE: any. */
TCL_HIDDEN int tcl_own_node(void);

/* ---- phase.c --------------------------------------------------------------------------------- */

/* Publishes every known name, and the current phase, in a new session. */
TCL_HIDDEN bool tcl_phase_republish(void);
/* Number of the current phase, and the hash of a phase's name. */
TCL_HIDDEN uint32_t tcl_phase_now(void);
TCL_HIDDEN uint64_t tcl_phase_hash(uint32_t number);
/* Enters a phase as tiercel_phase does; its number, 0: it has none. Or one that is known, unless it
 * is the current one. */
TCL_HIDDEN uint32_t tcl_phase_enter(const char *name);
TCL_HIDDEN void tcl_phase_return(uint32_t number);
/* True once the program entered a phase by itself. */
TCL_HIDDEN bool tcl_phases_are_own(void);

/* ---- mark.c ---------------------------------------------------------------------------------- */

/* Whether the loop that the program is in is a phase by now; called at times. */
TCL_HIDDEN void tcl_mark_look(void);
/* A module is being unloaded: its loops are over. */
TCL_HIDDEN void tcl_mark_forget(void);

/* ---- map.c ----------------------------------------------------------------------------------- */

TCL_HIDDEN void tcl_map_start(void); /* once, in the constructor */
/* Gives the mmap objects slots in the object table of a new session, and enters them. */
TCL_HIDDEN bool tcl_map_fill(void);
/* Memory that no call of the program mapped: it is an object from now on, or no longer. */
TCL_HIDDEN void tcl_map_image(uintptr_t addr, size_t bytes, uint32_t site);
TCL_HIDDEN void tcl_map_image_gone(uintptr_t addr, size_t bytes);

/* ---- image.c --------------------------------------------------------------------------------- */

/* Bytes of the program's own writable static data. */
TCL_HIDDEN uint64_t tcl_image_program_bytes(void);
/* Reports the static data of modules that came or went, and, the first time, the main stack. Takes
 * the loader's lock: call with none of ours held. */
TCL_HIDDEN void tcl_image_scan(void);
/* The same where modules may have come; a load and a comparison when none has. */
TCL_HIDDEN void tcl_image_check(void);
/* What a forked child needs of both. */
TCL_HIDDEN void tcl_image_before_fork(void), tcl_image_after_fork_parent(void);
TCL_HIDDEN void tcl_image_after_fork_child(void);
/* The calling thread, which is not the first, has a stack, or has it no longer. */
TCL_HIDDEN void tcl_image_thread(void);
TCL_HIDDEN void tcl_image_thread_gone(void);

/* ---- small_sites.c --------------------------------------------------------------------------- */

/* Publishes what is known of small objects in a new session. */
TCL_HIDDEN void tcl_small_republish(void);

/* ---- site.c, unwind.c ------------------------------------------------------------------------ */

/* Makes the tables, if there are none. An epoch implies them: from then on every thread looks up
 * its sites. */
TCL_HIDDEN bool tcl_site_start(void);
/* Code was unloaded: what is known of addresses holds no longer. */
TCL_HIDDEN void tcl_site_forget(void);
/* Publishes every known site and module in a new session. */
TCL_HIDDEN bool tcl_site_republish(void);

/* What is known of calls (tcl_call) ends: other code may be at their addresses. */
TCL_HIDDEN void tcl_forget_calls(void);

/* Site of the caller of the public function: its return address and frame address. Never allocates
 * by malloc, never blocks on a lock that a signal handler's owner may hold; 0 when unknown. */
TCL_HIDDEN uint32_t tcl_site_here(void *return_address, void *frame_address);

/* The site of birth `number` (from 1) of a site, which is the same in every run of a program that
 * makes its objects in the same order; the site itself when there is no room for more. */
TCL_HIDDEN uint32_t tcl_site_numbered(uint32_t id, uint32_t number);

/* The site of another kind with the frames of this one, 0: with none; itself when there is no room
 * for more. */
TCL_HIDDEN uint32_t tcl_site_of_kind(uint32_t id, enum tcl_site_kind kind);
/* The site of a segment of a module; 0: of the runtime itself, or there is no room. False while the
 * loader does not find the module by an address, because it is loading it. */
TCL_HIDDEN bool tcl_site_of_segment(uintptr_t start, enum tcl_site_kind kind, uint32_t *site_id);

/* The hash of a site's frames, stable from run to run; 0 for the unknown site. */
TCL_HIDDEN uint64_t tcl_site_hash(uint32_t id);
/* The site whose only frame is this return address: code that accesses memory. 0: none is left. */
TCL_HIDDEN uint32_t tcl_site_of_code(uintptr_t from);

/* Called for each frame of a walk, innermost first, with its return address and the distance in
 * bytes on the stack from the inner frame's return address to this one's; 0 where that varies from
 * call to call. Returns false to end the walk. */
typedef bool tcl_frame_seen(uintptr_t return_address, size_t distance, void *context);

/* Walks the caller's stack outwards, at most `most` frames. Reads only mapped memory, takes no lock
 * and does not allocate. */
TCL_HIDDEN void tcl_unwind(unsigned most, tcl_frame_seen *seen, void *context);

#endif
