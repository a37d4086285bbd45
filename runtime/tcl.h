/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * tcl.h: what the files of the runtime say to one another.
 * In: nothing. Out: declarations of every tcl_ function. Knows nothing of the program it is loaded
 * into.
 *
 *   malloc.c --+--> small.c (mimalloc, < 4 KiB) --blocks--+
 *              +--> heap.c  (page runs, >= 4 KiB) --------+--> track.h --> ring.c, session.c
 *   map.c (mmap, munmap, mremap interposed) --------------+         |
 *                                                                site.c
 *
 * Order of start-up: whichever of (constructor, first malloc) comes first initialises the heap; the
 * session is attached in the constructor only. Events before that are not lost: the daemon rescans
 * at attach.
 */
#ifndef TCL_H
#define TCL_H

#include "../include/tiercel_wire.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TCL_HIDDEN __attribute__((visibility("hidden")))
#define TCL_EXPORT __attribute__((visibility("default")))
#define tcl_likely(x) __builtin_expect(!!(x), 1)
#define tcl_unlikely(x) __builtin_expect(!!(x), 0)

/* One use of an address range; see tcl_record in tiercel_wire.h for (carve, generation). */
struct tcl_use {
    uintptr_t addr;
    size_t bytes; /* a multiple of TCL_PAGE */
    uint32_t site;
    uint32_t carve;
    uint16_t generation;
    uint8_t arena;
    uint8_t flags; /* enum tcl_record_flags */
};

/* ---- Tracking, called by the allocator and by map.c (session.c, ring.c, site.c) -------------- */

/* True once a session was attached, here or in the process that forked us; one load. When false,
 * the calls below return at once, and callers skip tcl_site_here. */
TCL_HIDDEN bool tcl_tracking(void);

TCL_HIDDEN void tcl_note_born(const struct tcl_use *use);
TCL_HIDDEN void tcl_note_died(const struct tcl_use *use);
TCL_HIDDEN void tcl_note_resized(const struct tcl_use *use); /* same address, use->bytes is new */

/* Site of the caller of the public function: its return address and frame address. Never allocates
 * by malloc, never blocks on a lock that a signal handler's owner may hold; 0 when unknown. */
TCL_HIDDEN uint32_t tcl_site_here(void *return_address, void *frame_address);

/* Arena a new object of `bytes` should be born in, taking from its birth budget; and where new
 * blocks of small slots go. 0 when nothing is attached. In a forked child tcl_birth_arena and
 * tcl_site_here are where it attaches anew, which visits the heap: hold no heap lock. */
TCL_HIDDEN unsigned tcl_birth_arena(size_t bytes);
TCL_HIDDEN unsigned tcl_small_arena(void);

/* Kernel node of an arena, -1 when it has none (then memory is not bound). */
TCL_HIDDEN int tcl_arena_node(unsigned arena);

/* A fresh carve number; callers hold whatever lock orders the shape change. */
TCL_HIDDEN uint32_t tcl_next_carve(void);

/* ---- The allocator, called by tracking (heap.c, small.c) ------------------------------------- */

/* The reserved range: base address and OS pages; pages 0 when none could be had. */
TCL_HIDDEN void tcl_range(uintptr_t *base, size_t *pages);

/* Calls `visit` for every live object and block of the heap (not mmap objects). Takes heap locks;
 * used to fill the object table of a new session (attach, fork child). `visit` must
 * not allocate. */
TCL_HIDDEN void tcl_heap_each(void (*visit)(const struct tcl_use *use, void *context),
                              void *context);

/* ---- Fork: handlers registered once by init.c, in this order --------------------------------- */

TCL_HIDDEN void tcl_heap_before_fork(void), tcl_heap_after_fork_parent(void),
    tcl_heap_after_fork_child(void);

/* Attaches a session if TCL_SOCKET_ENV is set and the process may be tracked; else steps aside. */
TCL_HIDDEN void tcl_session_start(void);

/* The kernel's own mmap family, past our interposers (raw system calls). */
TCL_HIDDEN void *tcl_os_mmap(void *addr, size_t bytes, int prot, int flags, int fd, long offset);
TCL_HIDDEN int tcl_os_munmap(void *addr, size_t bytes);
TCL_HIDDEN void *tcl_os_mremap(void *addr, size_t old_bytes, size_t new_bytes, int flags, void *to);

#endif
