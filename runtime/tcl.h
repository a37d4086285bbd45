/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * tcl.h: what the files of the runtime say to one another.
 * In: nothing. Out: declarations of every tcl_ function. Knows nothing of the program it is loaded
 * into.
 *
 *   traits.c (tiercel_alloc)
 *       |
 *   malloc.c --+--> small.c (mimalloc, < 4 KiB) --blocks--+
 *              +--> heap.c  (page runs, >= 4 KiB) --------+--> track.h --> ring.c, session.c
 *   map.c (mmap, munmap, mremap interposed) --------------+         |
 *                                    birth.c (which arena) --> site.c, phase.c
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

/* Where a new object of `bytes` belongs, and who wants it: the caller of the public function, by
 * its return address and frame address. Never allocates by malloc, never blocks on a lock that a
 * signal handler's owner may hold. Arena 0 and site 0 (unknown) when nothing is attached. In a
 * forked child it attaches anew, which visits the heap: hold no heap lock. */
struct tcl_birth {
    uint32_t site;
    uint32_t arena;
};
TCL_HIDDEN struct tcl_birth tcl_birth_here(size_t bytes, void *return_address, void *frame_address);

/* The arena alone, for an object whose site is known; and where new blocks of small slots go. */
TCL_HIDDEN unsigned tcl_birth_arena(size_t bytes, uint32_t site);
TCL_HIDDEN unsigned tcl_small_arena(void);

/* A block of small slots took so many bytes of an arena's birth budget. */
TCL_HIDDEN void tcl_birth_block(unsigned arena, size_t bytes);
/* An object of `arena` died: its bytes may be born there again. The daemon's next count, which
 * knows what was moved meanwhile, replaces this one. */
TCL_HIDDEN void tcl_birth_give(unsigned arena, size_t bytes);

/* Bytes at the head of an object of `arena` that lie in a better arena, taken off that one's
 * budget: as many as the plan says, without one as many as there are; 0: none. Takes no lock. */
TCL_HIDDEN size_t tcl_birth_head(size_t bytes, uint32_t site, unsigned arena, unsigned *better);
/* There is a plan. */
TCL_HIDDEN bool tcl_birth_is_planned(void);

/* Births of the calling thread go to arena `wish` as far as there is one, and to `hint` where no
 * plan knows better; TCL_ARENA_UNKNOWN for both ends that. */
TCL_HIDDEN void tcl_birth_wish(unsigned wish, unsigned hint);

/* Kernel node of an arena; TCL_NODE_NONE or TCL_NODE_ON_PAPER: memory is not bound. */
TCL_HIDDEN int tcl_arena_node(unsigned arena);

/* A fresh carve number; callers hold whatever lock orders the shape change. */
TCL_HIDDEN uint32_t tcl_next_carve(void);

/* ---- The allocator, called by tracking (heap.c, small.c) ------------------------------------- */

/* True when memory is accounted when opened (RLIMIT_AS, RLIMIT_DATA, overcommit 2): then nothing is
 * opened ahead of need. Valid after the first allocation. */
TCL_HIDDEN extern bool tcl_frugal;

/* The reserved range: base address and OS pages; pages 0 when none could be had. */
TCL_HIDDEN void tcl_range(uintptr_t *base, size_t *pages);

/* Calls `visit` for every live object and block of the heap (not mmap objects). Takes heap locks;
 * used to fill the object table of a new session (attach, fork child). `visit` must
 * not allocate. */
TCL_HIDDEN void tcl_heap_each(void (*visit)(const struct tcl_use *use, void *context),
                              void *context);

/* Asks the kernel to serve the range from `node`, as far as there is room; not below 0. */
TCL_HIDDEN void tcl_os_bind(uintptr_t start, size_t bytes, int node);

/* ---- Fork: handlers registered once by init.c, in this order --------------------------------- */

TCL_HIDDEN void tcl_heap_before_fork(void), tcl_heap_after_fork_parent(void),
    tcl_heap_after_fork_child(void);

/* Attaches a session if TCL_SOCKET_ENV is set and the process may be tracked; else steps aside. */
TCL_HIDDEN void tcl_session_start(void);

/* Lets OpenMP's spaces reach us, in programs that have an OpenMP runtime. */
TCL_HIDDEN void tcl_openmp_start(void);

/* A connection to the daemon, for one message each way; -1 and errno: ENOENT, none was named. */
TCL_HIDDEN int tcl_daemon_connect(void);

/* True between our fork handlers, for the forking thread: it holds every lock of the heap and of
 * vregions, and handlers of other libraries that run after ours may allocate. */
TCL_HIDDEN extern __thread bool tcl_in_fork;

/* ---- Vregions under the heap (vmem_arena.c) -------------------------------------------------- */

/* From now on this program can move memory of its heap, also what there is. `pools`: it is of the
 * daemon's from the beginning, where the program has one thread. */
TCL_HIDDEN void tcl_vmem_back_heap(bool pools);
/* True when the heap asks for vregions. */
TCL_HIDDEN bool tcl_vmem_is_backing(void);
/* Puts a vregion under a piece of the heap that is empty (`live`: that may hold something). False:
 * it stays as it is. Addresses up to `open` may be used. */
TCL_HIDDEN bool tcl_vmem_back(uintptr_t start, size_t bytes, uintptr_t open, int node, bool live);
/* Memory of the heap is given back and zero from now on, whatever is under it. -1 and errno:
 * nobody knows what is in it. */
TCL_HIDDEN int tcl_os_clear(uintptr_t start, size_t bytes);
/* As madvise, of the heap or not. */
TCL_HIDDEN int tcl_os_madvise(void *start, size_t bytes, int advice);
/* As mprotect. Memory of the heap that has other rights than usual is not moved. */
TCL_HIDDEN int tcl_vmem_rights(uintptr_t start, size_t bytes, int prot);
/* The heap's memory is wished for on another node. */
TCL_HIDDEN void tcl_vmem_rebind(uintptr_t start, size_t bytes, int node);
/* True when this process executes the daemon's moves. (vmem_asked.c) */
TCL_HIDDEN bool tcl_vmem_is_mover(void);
/* It will, from the first occasion on at which its heap is worth it. Call with no lock held. */
TCL_HIDDEN extern _Atomic bool tcl_vmem_waits;
TCL_HIDDEN void tcl_vmem_serve_if_worth(void);
/* Bytes of the heap that are opened for runs; those of blocks of small slots. */
TCL_HIDDEN size_t tcl_heap_open_bytes(void), tcl_small_bytes(void);
/* What there is of the heap, as vregions. */
TCL_HIDDEN void tcl_heap_back(void);

/* A line on stderr, in one write, without stdio or malloc. */
TCL_HIDDEN void tcl_say(const char *what);

/* ---- Vregions (vmem.c), called by init.c and map.c ------------------------------------------- */

TCL_HIDDEN void tcl_vmem_before_fork(void), tcl_vmem_after_fork_parent(void),
    tcl_vmem_after_fork_child(void);

/* True when a vregion overlaps; one load where there are none. */
TCL_HIDDEN bool tcl_vmem_any(uintptr_t start, size_t bytes);
/* What lies there is no vregion any more, and its addresses have no access. False and errno: it
 * would cut a vpage (EINVAL). */
TCL_HIDDEN bool tcl_vmem_cut(uintptr_t start, size_t bytes);
/* As mprotect, of vregions and what lies between them. */
TCL_HIDDEN int tcl_vmem_protect(uintptr_t start, size_t bytes, int prot);

/* False where the program, or a library before us, exports a malloc that is not ours. */
TCL_HIDDEN bool tcl_is_our_malloc(void);

/* A sealed memfd of so many bytes, closed by exec; -1 and errno. */
TCL_HIDDEN int tcl_memfd(const char *name, size_t bytes);
/* The same file under a number above those that programs expect to get, if there is one. */
TCL_HIDDEN int tcl_raise_fd(int fd);

/* The kernel's own mmap family, past our interposers (raw system calls). */
TCL_HIDDEN void *tcl_os_mmap(void *addr, size_t bytes, int prot, int flags, int fd, long offset);
TCL_HIDDEN int tcl_os_munmap(void *addr, size_t bytes);
TCL_HIDDEN void *tcl_os_mremap(void *addr, size_t old_bytes, size_t new_bytes, int flags, void *to);

#endif
