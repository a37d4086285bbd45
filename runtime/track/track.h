/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track.h: tracking and births, as the allocator, vregions and the public API see them.
 * In: nothing. Out: functions that report objects and choose arenas for new ones. Knows nothing of
 * heaps.
 */
#ifndef TCL_TRACK_H
#define TCL_TRACK_H

#include "../base.h"

/* True while there is a session, or there will be one; one load. When false, the
 * functions below return at once, and callers skip tcl_site_here. */
TCL_HIDDEN bool tcl_tracking(void);

TCL_HIDDEN void tcl_note_born(const struct tcl_use *use);
TCL_HIDDEN void tcl_note_died(const struct tcl_use *use);
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

/* The arena alone, for an object whose site is known; and the arena of new blocks. */
TCL_HIDDEN unsigned tcl_birth_arena(size_t bytes, uint32_t site);
TCL_HIDDEN unsigned tcl_small_arena(void);

/* A block of small slots, or an object that grew, took `bytes` bytes of an arena's birth budget. */
TCL_HIDDEN void tcl_birth_charge(unsigned arena, size_t bytes);
/* The heap now keeps `bytes` bytes of dead objects resident in an arena. */
TCL_HIDDEN void tcl_note_idle(unsigned arena, size_t bytes);
/* An object of `arena` died: its bytes return to the birth budget. The daemon's next count, which
 * includes moves, replaces this estimate. */
TCL_HIDDEN void tcl_birth_refund(unsigned arena, size_t bytes);

/* Bytes at the head of an object of `arena` that go to a better arena (*better), charged to that
 * arena's budget: as many as the plan states; without a plan, as many as the budget has; 0: none.
 * Takes no lock. */
TCL_HIDDEN size_t tcl_birth_head(size_t bytes, uint32_t site, unsigned arena, unsigned *better);
/* True when there is a plan. */
TCL_HIDDEN bool tcl_birth_is_planned(void);
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
static inline void tcl_note_opened(uintptr_t start, size_t bytes) {
    if (tcl_unlikely(__atomic_load_n(&tcl_locks_opened, __ATOMIC_ACQUIRE)))
        tcl_lock_opened(start, bytes);
}

/* A fresh carve number; callers hold the lock that orders the change of shape. */
TCL_HIDDEN uint32_t tcl_next_carve(void);

/* Opens the offer of the daemon that TCL_SOCKET_ENV names; without one, nothing is tracked. */
TCL_HIDDEN void tcl_session_start(void);
TCL_HIDDEN void tcl_session_before_fork(void), tcl_session_after_fork_parent(void);

/* A block of small slots was born, with locks held: when it is time to attach, tcl_attach_due is
 * set, and the allocation calls the function after it once it holds none. */
TCL_HIDDEN void tcl_session_note_block(size_t bytes);
TCL_HIDDEN extern _Atomic bool tcl_attach_due;
TCL_HIDDEN void tcl_session_attach_due(void);

/* Reports what the user should know of this process. */
TCL_HIDDEN void tcl_remark(enum tcl_remark remark);

/* From now on limits are this process's: as it starts, and in a forked child. (limit.c) */
TCL_HIDDEN void tcl_limit_start(void);

/* Connects OpenMP's memory spaces to the runtime, in programs that have an OpenMP runtime.
 * (api/openmp.c) */
TCL_HIDDEN void tcl_openmp_start(void);

/* A connection to the daemon, for one message each way, whose system calls wait for so long, or
 * not at all; -1 and errno (ENOENT: no daemon was named. EAGAIN: many connections wait). */
TCL_HIDDEN int tcl_daemon_connect(long wait_ms);

#endif
