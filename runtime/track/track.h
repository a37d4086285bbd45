/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track.h: tracking and births, as the allocator, vregions and the public API see them.
 * In: nothing. Out: functions that report objects and choose arenas for new ones. Knows nothing of
 * heaps.
 */
#ifndef TCL_TRACK_H
#define TCL_TRACK_H

#include "../base.h"
#include <stdatomic.h>

/* True while there is a session, or there will be one; one load. When false, the
 * functions below return at once, and callers skip tcl_site_here. */
TCL_HIDDEN bool tcl_tracking(void);

TCL_HIDDEN void tcl_note_born(const struct tcl_use *use);
TCL_HIDDEN void tcl_note_died(const struct tcl_use *use);
/* The first bytes of an object that was born are bound to an arena and charged to it; its own
 * record names another arena or none. */
struct tcl_head {
    size_t bytes; /* 0: none */
    unsigned arena;
};
TCL_HIDDEN void tcl_note_head(const struct tcl_use *use, struct tcl_head head);
TCL_HIDDEN void tcl_note_resized(const struct tcl_use *use); /* same address, use->bytes is new */

/* The site and the arena of a new object of `bytes` bytes. The caller of the public function is
 * given by its return address and its frame address. Never allocates by malloc, never blocks on a
 * lock that a signal handler's owner may hold. Arena 0 and site 0 (unknown) when nothing is
 * attached. In a forked child it attaches first, which visits the heap: hold no heap lock. */
struct tcl_birth {
    uint32_t site;
    uint32_t arena;
};
TCL_HIDDEN struct tcl_birth tcl_birth_here(size_t bytes, void *return_address, void *frame_address);

/* The arena alone, for an object whose site is known; and the arena of a new block of small slots,
 * of one site, or of many (0). */
TCL_HIDDEN unsigned tcl_birth_arena(size_t bytes, uint32_t site);
TCL_HIDDEN unsigned tcl_small_arena(uint32_t site);

/* How often a small object will be accessed, as the program or its compiler states it; the numbers
 * are those of enum tiercel_temperature. */
enum tcl_temperature { TCL_LUKEWARM = 0, TCL_HOT, TCL_COLD, TCL_TEMPERATURES };
/* The arena of a new block of hot or of cold objects. */
TCL_HIDDEN unsigned tcl_heat_arena(enum tcl_temperature heat);

/* ---- Small objects by site (small_sites.c) ---- */

/* As tcl_birth_here, of a small object: its site alone; attaches nothing. */
TCL_HIDDEN uint32_t tcl_small_site(void *return_address, void *frame_address);
/* A call as it is known again without a key: what tcl_small_site looks at. The outer return
 * addresses are so many words above the first. */
#define TCL_CALL_OUTER 3
struct tcl_call {
    uintptr_t return_address, frame; /* frame 0: any */
    uintptr_t outer[TCL_CALL_OUTER];
    uint16_t distance[TCL_CALL_OUTER], count;
};
/* After tcl_small_site of the same call, in the same frame; false: it cannot be known again. */
TCL_HIDDEN bool tcl_call_learn(uintptr_t return_address, uintptr_t frame, struct tcl_call *call);
static inline bool tcl_call_is(const struct tcl_call *call, uintptr_t return_address,
                               uintptr_t frame) {
    if (call->return_address != return_address || (call->frame && call->frame != frame))
        return false;
    const uintptr_t *start = (const uintptr_t *)frame - 1;
    for (unsigned i = 0; i < call->count; i++)
        if (start[call->distance[i]] != call->outer[i])
            return false;
    return true;
}
/* Counts up when calls that were learnt may be others now. */
TCL_HIDDEN extern _Atomic uint32_t tcl_calls_forgotten;
/* Bytes of births from one sampled birth to the next: exponentially distributed, 1 at least.
 * `random` is the state of a thread's random numbers. */
TCL_HIDDEN int64_t tcl_small_gap(uint64_t *random);
/* Of a sampled birth, an object of `bytes` bytes. True when later births of its site should have
 * blocks apart. */
TCL_HIDDEN bool tcl_small_born(const void *p, size_t bytes, uint32_t site);
TCL_HIDDEN void tcl_small_died(const void *p);

/* An object of `arena` grows where it is: charges what it gains. False: the arena has no room. */
TCL_HIDDEN bool tcl_birth_grow(unsigned arena, size_t bytes);
/* A block of small slots, or an object that grew, took `bytes` bytes of an arena's birth budget. */
TCL_HIDDEN void tcl_birth_charge(unsigned arena, size_t bytes);
/* The heap now keeps `bytes` bytes of dead objects resident in an arena. */
TCL_HIDDEN void tcl_note_idle(unsigned arena, size_t bytes);
/* An object of `arena` died: its bytes return to the birth budget. The daemon's next count, which
 * includes moves, replaces this estimate. */
TCL_HIDDEN void tcl_birth_refund(unsigned arena, size_t bytes);

/* Ranges of an object of `arena` that go to a better arena, charged to that arena's budget: those
 * that the plan states; where it has none for the site one from the first byte, as large as the
 * budget. Ascending and disjoint, in whole OS pages. Takes no lock. */
struct tcl_split {
    unsigned arena, count;
    bool is_planned;
    struct tcl_split_range {
        size_t at, bytes;
    } ranges[TCL_PLAN_RANGES];
};
TCL_HIDDEN struct tcl_split tcl_birth_split(size_t bytes, uint32_t site, unsigned arena);
/* Bits of the best tier's nodes; 0: unknown, or not attached. */
TCL_HIDDEN uint64_t tcl_fast_nodes(void);

/* Sets the arenas of the calling thread's births: `arena` while it has budget, `hint` where the
 * plan has no row. TCL_ARENA_UNKNOWN for both ends that. */
TCL_HIDDEN void tcl_birth_prefer(unsigned arena, unsigned hint);

/* Kernel node of an arena; TCL_NODE_NONE or TCL_NODE_MODELLED: memory is not bound. */
TCL_HIDDEN int tcl_arena_node(unsigned arena);

/* The heap opened memory that it had reserved. Under mlockall(MCL_FUTURE) it is locked as it is
 * touched. (memlock.c) */
TCL_HIDDEN extern bool tcl_locks_opened;
TCL_HIDDEN void tcl_lock_opened(uintptr_t start, size_t bytes);
/* A limit on address space may have been set unseen: it is looked for when no lock is held. */
TCL_HIDDEN extern _Atomic bool tcl_limit_due;
static inline void tcl_note_opened(uintptr_t start, size_t bytes) {
    if (tcl_unlikely(__atomic_load_n(&tcl_locks_opened, __ATOMIC_ACQUIRE)))
        tcl_lock_opened(start, bytes);
    atomic_store_explicit(&tcl_limit_due, true, memory_order_relaxed);
}

/* A fresh carve number; callers hold the lock that orders the change of shape. */
TCL_HIDDEN uint32_t tcl_next_carve(void);

/* Opens the offer of the daemon that TCL_SOCKET_ENV names; without one, nothing is tracked. */
TCL_HIDDEN void tcl_session_start(void);
TCL_HIDDEN void tcl_session_before_fork(void), tcl_session_after_fork_parent(void);
TCL_HIDDEN void tcl_session_after_fork_child(void);

/* The calling thread is the main one: as the program starts, and in a forked child. (mark.c) */
TCL_HIDDEN void tcl_mark_start(void), tcl_mark_after_fork_child(void);

/* A block of small slots was born, with locks held: when it is time to attach, tcl_attach_due is
 * set, and the allocation calls the function after it once it holds none. */
TCL_HIDDEN void tcl_session_note_block(size_t bytes);
TCL_HIDDEN extern _Atomic bool tcl_attach_due;
TCL_HIDDEN void tcl_session_attach_due(void);

/* Reports what the user should know of this process. */
TCL_HIDDEN void tcl_remark(enum tcl_remark remark);

/* From now on limits are this process's: as it starts, and in a forked child. (limit.c) */
TCL_HIDDEN void tcl_limit_start(void);
/* Looks whether a lower limit on address space was set, with no lock held; true: what it does not
 * leave was given back. errno stays. */
TCL_HIDDEN bool tcl_limit_look(void);

/* Connects OpenMP's memory spaces to the runtime, in programs that have an OpenMP runtime.
 * (api/openmp.c) */
TCL_HIDDEN void tcl_openmp_start(void);

/* A connection to the daemon, for one message each way, whose system calls wait for so long, or
 * not at all; -1 and errno (ENOENT: no daemon was named. EAGAIN: many connections wait). */
TCL_HIDDEN int tcl_daemon_connect(long wait_ms);

#endif
