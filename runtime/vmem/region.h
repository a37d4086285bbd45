/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * region.h: memory that the program places itself, as the files of vmem/ see it.
 * In: nothing. Out: segments, vpages, vregions, tracking, moves. Knows nothing of records or heaps.
 *
 *   vregion    [ v0 | v1 | v2 | v3 ]        addresses of the program, mapped shared
 *                 \    \    |    |
 *   segment of    [ ...  v0  v1 ... ]       a sealed memfd of one node, twice mapped aside:
 *   node 0                                  `shared`, to copy by and to map from,
 *   segment of      [ v2  v3 ... ]          `private`, which replaces mappings before a fork
 *   node 1
 *
 * A vpage's home is the place its vregion maps; its twin is a second place that may hold the same
 * bytes: a replica made ahead, or the shadow a move left behind. A twin is believed only as far as
 * the kernel says that nothing was written since it was seen to be equal.
 *
 * Under the heap each stretch that an arena takes is a vregion. With pools it has a segment of its
 * own, and its vpages lie there in their order until one is moved; without it is private memory
 * like any other until then, and its vpages have no home (arena.c).
 *
 * All of it is under one lock, which a move holds for a piece at a time. Who holds it waits for
 * nobody and allocates nothing: the heap's lock may be held outside of it.
 */
#ifndef TCL_REGION_H
#define TCL_REGION_H

#include "../alloc/alloc.h"
#include "../track/track.h"
#include "vmem.h"
#include <sys/mman.h>

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4 /* linux/mman.h, 5.7; of shared memory 5.13 */
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24 /* linux/mman.h, 5.18: also what the program locked */
#endif

#define VMEM_SEGMENTS_MAX 1024u
#define VMEM_REGIONS_MAX 4096u
#define VMEM_UNIT ((size_t)2 << 20)           /* segments are multiples of this, bytes */
#define VMEM_SEGMENT_BYTES ((size_t)64 << 20) /* usual size of a segment */
#define VMEM_PIECE ((size_t)2 << 20) /* moved under one lock; the longest stall goes by it */

/* ---- Segments and their vpages (segment.c) ---------------------------------------------- */

struct vmem_segment {
    char *shared;    /* NULL: an empty slot */
    char *private;   /* pieces of it are used up by forks */
    uint64_t *taken; /* a bit for each OS page */
    uint64_t *stale; /* likewise: not taken, and holds what it held */
    size_t pages;    /* OS pages */
    size_t taken_pages;
    size_t hint; /* where the search for room begins, OS pages */
    int node;
    uint64_t inode;    /* of the memfd */
    uint32_t number;   /* the pool server's; 0: of our own making */
    bool is_frozen;    /* a child may map it: nothing of it is ever reused or scrubbed */
    bool is_emulated;  /* there is no such node */
    bool is_huge;      /* of huge OS pages, as far as the kernel gave any */
    bool is_arena;     /* of one vregion under the heap: nothing of it is handed out */
    bool is_inherited; /* in a child: its windows are closed */
};

/* A place in a segment; 0: none. From the low end: OS page, 40 bits; segment + 1, 12 bits; node + 1
 * where the kernel moved the memory without us, 11 bits, else 0; and whether a child maps it too.
 */
typedef uint64_t vmem_place;
#define VMEM_FORKED (1ull << 63)
#define VMEM_PAGE_BITS 40
#define VMEM_ELSEWHERE_AT 52
#define VMEM_NODES_MAX 1024

TCL_HIDDEN extern struct vmem_segment vmem_segments[VMEM_SEGMENTS_MAX];

static inline vmem_place vmem_place_of(unsigned segment, size_t page) {
    return (vmem_place)(segment + 1) << VMEM_PAGE_BITS | page;
}
static inline unsigned vmem_segment_of(vmem_place place) {
    return (unsigned)(place >> VMEM_PAGE_BITS & 0xfff) - 1;
}
static inline size_t vmem_page_of(vmem_place place) {
    return place & (((vmem_place)1 << VMEM_PAGE_BITS) - 1);
}
static inline char *vmem_shared(vmem_place place) {
    return vmem_segments[vmem_segment_of(place)].shared + vmem_page_of(place) * TCL_PAGE;
}
static inline char *vmem_private(vmem_place place) {
    return vmem_segments[vmem_segment_of(place)].private + vmem_page_of(place) * TCL_PAGE;
}
static inline int vmem_node_of(vmem_place place) {
    int elsewhere = (int)(place >> VMEM_ELSEWHERE_AT & 0x7ff);
    return elsewhere ? elsewhere - 1 : vmem_segments[vmem_segment_of(place)].node;
}

/* A segment for a vregion under the heap, of exactly so many bytes, of the daemon's pools if there
 * is one for the node; NULL and errno. */
TCL_HIDDEN struct vmem_segment *vmem_arena_segment(int node, size_t bytes);
/* A child may map some of them. */
TCL_HIDDEN bool vmem_is_any_frozen(void);
/* What is not taken is emptied, and everything may be used again: no child maps any of it. */
TCL_HIDDEN void vmem_thaw(void);

/* `bytes` of one piece on `node` at a multiple of `align` bytes, zeroed or as they come; 0 and
 * ENOMEM (exhausted), ENOSYS (no memfd). */
TCL_HIDDEN vmem_place vmem_take(int node, size_t bytes, size_t align, bool zeroed);
/* They are empty from now on to all who take them zeroed. */
TCL_HIDDEN void vmem_give(vmem_place place, size_t bytes);
/* The mapping at `at` shows this place, and is kept from children of raw system calls. False: there
 * are too many mappings. */
TCL_HIDDEN bool vmem_show(uintptr_t at, vmem_place place, size_t bytes);
/* The kernel is to serve the mapping from this node, as far as there is room. */
TCL_HIDDEN bool vmem_prefer(void *start, size_t bytes, int node, unsigned flags);
/* Nothing that exists now is reused: a child is about to map it. */
TCL_HIDDEN void vmem_freeze(void);
/* In a child: the shared windows go, so that it cannot reach what its parent writes. */
TCL_HIDDEN void vmem_disown(void);

/* A segment of the pool server's; false: there is none, or it refuses. (pool_client.c) */
struct vmem_grant {
    int memfd;
    size_t bytes;
    uint32_t number;
    bool is_emulated;
};
TCL_HIDDEN bool vmem_ask(int node, size_t bytes, bool huge, struct vmem_grant *grant);
/* Gives it back; `is_shared`: a child of ours may still map it. */
TCL_HIDDEN void vmem_tell(uint32_t number, bool is_shared);

/* False: so much more memory of our own would be more than the process's control group may have,
 * and the kernel would end it. (memory_limit.c) */
TCL_HIDDEN bool vmem_is_room(size_t bytes);

/* ---- This process (process.c) -------------------------------------------------------------- */

/* Of a small file of /proc or /sys, as text; false: it cannot be read, or is empty. */
TCL_HIDDEN bool vmem_read_text(const char *path, char *text, size_t size);
/* Threads there are; 0: it cannot be seen. */
TCL_HIDDEN int vmem_threads(void);
/* A thread of the runtime's own, with all signals blocked, which nobody joins: 0 or an errno. Not
 * under the lock. */
TCL_HIDDEN int vmem_begin_thread(void *(*work)(void *), void *argument);

/* ---- What is mapped (verify.c) ------------------------------------------------------------ */

#define VMEM_ANY_RIGHTS (-1)
/* Opens and closes what looking needs; without it only holes are seen. */
TCL_HIDDEN void vmem_look_open(void), vmem_look_close(void);
/* Bytes from `at`, at most `bytes`, of which all show `place` (0: private memory of no file) with
 * these rights, or all do not: *is_so. */
TCL_HIDDEN size_t vmem_look(uintptr_t at, size_t bytes, vmem_place place, int prot, bool *is_so);
/* All of it does; else errno is EFAULT. */
TCL_HIDDEN bool vmem_is_shown(uintptr_t at, size_t bytes, vmem_place place, int prot);

/* ---- Tracking of writes (write_tracking.c)
 * ------------------------------------------------------- */

struct vmem_range {
    uintptr_t start, end;
};

/* A userfaultfd that also holds up the kernel's own accesses, not blocking; -1: none is to be had
 * here. And whether a descriptor still is one: a program may close what it does not know. */
TCL_HIDDEN int vmem_open_userfaultfd(uint64_t features);
TCL_HIDDEN bool vmem_is_userfaultfd(int fd);
/* True when writes to mappings can be seen, and all access be held up: by a userfaultfd that also
 * holds up the kernel's own accesses. */
TCL_HIDDEN bool vmem_can_track(void);
/* Opens and closes what scans need; between them only. */
TCL_HIDDEN bool vmem_track_open(void);
TCL_HIDDEN void vmem_track_close(void);
/* From now on writes to the mapping are noted. */
TCL_HIDDEN bool vmem_track(uintptr_t start, size_t bytes);
/* False: `start` is not tracked, nothing is known. Else calls `each` for what was written since the
 * last scan, and begins anew. */
TCL_HIDDEN bool vmem_scan(uintptr_t start, size_t bytes, void (*each)(struct vmem_range, void *),
                          void *context);
/* Holds up every access to a tracked mapping, and then calls `each` for what was written since the
 * last scan. False, with nothing held up: it cannot be had. */
TCL_HIDDEN bool vmem_hold(uintptr_t start, size_t bytes, void (*each)(struct vmem_range, void *),
                          void *context);
/* True when the page table has all of it in entries for huge OS pages; and when besides each is
 * protected, so that nothing was written since vmem_track. */
TCL_HIDDEN bool vmem_is_whole(uintptr_t start, size_t bytes);
TCL_HIDDEN bool vmem_is_unwritten(uintptr_t start, size_t bytes);
/* Bytes from `start`, at most `bytes`, that all have memory or all have none: *is_any. What is
 * swapped out has some; and what cannot be looked at. */
TCL_HIDDEN size_t vmem_look_for_memory(uintptr_t start, size_t bytes, bool *is_any);
/* Holds up every write to such a mapping, and if it was written since vmem_track, or *is_alike is
 * false, every access; then *is_alike is false afterwards. False: it cannot be had. */
TCL_HIDDEN bool vmem_hold_whole(uintptr_t start, size_t bytes, bool *is_alike);
/* Holds up every write to a private mapping, which need not be tracked. */
TCL_HIDDEN bool vmem_hold_private(uintptr_t start, size_t bytes);
/* True when it held up all writes to all of it until now: nobody mapped or emptied a part anew. */
TCL_HIDDEN bool vmem_is_held_private(uintptr_t start, size_t bytes);
/* Copies from a mapping that somebody may unmap meanwhile: then false, and some of it came. */
TCL_HIDDEN bool vmem_read(void *to, const void *from, size_t bytes);
/* No userfaultfd of these two (-1: none) has any of it registered any longer. */
TCL_HIDDEN void vmem_unregister(int one, int other, uintptr_t start, size_t bytes);
/* No write is noted any longer, nobody is held. */
TCL_HIDDEN void vmem_untrack(uintptr_t start, size_t bytes);
/* Lets all wait no longer. */
TCL_HIDDEN void vmem_wake(uintptr_t start, size_t bytes);
/* In a child: the parent's descriptors are not ours. */
TCL_HIDDEN void vmem_track_forget(void);

/* ---- Copies (copy.c) -------------------------------------------------------------------- */

enum vmem_copy_how {
    VMEM_COPY_PROGRAM_S = 1, /* it may be taken away while it is read */
    VMEM_COPY_HELD = 2       /* the program waits: this thread copies, and waits for nobody */
};

/* Copies OS pages. False: they were taken away, and some of them came. Under the lock. */
TCL_HIDDEN bool vmem_copy(char *to, const char *from, size_t bytes, unsigned how);
/* Before each piece, with no lock held: makes threads that help, if a copy before missed them. */
TCL_HIDDEN void vmem_copy_prepare(void);
/* A move begins: how many may help is seen anew, which takes 6 us, at its first copy of size. */
TCL_HIDDEN void vmem_copy_begin(void);
/* In a child: its parent's threads and queue are not its own. */
TCL_HIDDEN void vmem_copy_forget(void);

/* There is a device that copies; looked for at the first call. (dsa.c) */
TCL_HIDDEN bool vmem_dsa_is_there(void);
/* So many bytes from the first one on, in whole OS pages, were copied by the device, which is done
 * with all of it; all of `bytes`, some, or 0. Never while the program is held. */
TCL_HIDDEN size_t vmem_dsa_copy(char *to, const char *from, size_t bytes);
/* In a child: its parent's queue is not its own. */
TCL_HIDDEN void vmem_dsa_forget(void);

/* ---- Vregions (region.c) -----------------------------------------------------------------------
 */

struct vmem_region {
    uintptr_t start; /* 0: an empty slot */
    size_t bytes;
    int prot;
    int node;         /* where its memory is wished for; TCL_NODE_NONE: where it is */
    uint8_t shift;    /* of a vpage's size */
    vmem_place *home; /* by vpage; 0 under the heap: in its order in the vregion's own segment, or
                         private memory where there is none; 0 else: not touched yet, or private
                         memory since nobody serves touches any longer */
    vmem_place *twin; /* by vpage; under the heap: 0, or 1 + its rights, if the program set them */
    bool is_private;  /* every vpage is, since a fork, and was not moved since */
    bool is_heap;     /* the allocator's, and not the program's own */
    bool is_on_touch; /* vpages without a home get one when they are touched (fault.c) */
    bool has_homes;   /* under the heap: some vpage is, or was, not in its own place */
    vmem_place own;   /* under the heap with pools: where vpage 0 lies by itself; else 0 */
};

/* The first by address of the program's own; those under the heap are none of its business. */
TCL_HIDDEN struct vmem_region *vmem_region_over(uintptr_t start, size_t bytes);
/* All vregions, under the lock; slots are empty where `start` is 0. */
TCL_HIDDEN extern struct vmem_region vmem_regions[VMEM_REGIONS_MAX];
TCL_HIDDEN unsigned vmem_region_slots(void);
TCL_HIDDEN void vmem_lock(void), vmem_unlock(void);
/* True when the calling thread holds it; for assertions. */
TCL_HIDDEN bool vmem_is_locked(void);
/* Before all others who wait: threads of the program are held up for as long. */
TCL_HIDDEN void vmem_lock_for_touch(void);
/* An empty slot with tables for `count` vpages; NULL: there is none, or no memory. */
TCL_HIDDEN struct vmem_region *vmem_new_region(size_t count);

static inline vmem_place vmem_home(const struct vmem_region *region, size_t vpage) {
    vmem_place step = ((vmem_place)1 << region->shift) / TCL_PAGE;
    return region->home[vpage] ? region->home[vpage] : region->own ? region->own + vpage * step : 0;
}

static inline size_t vmem_vpage(const struct vmem_region *region) {
    return (size_t)1 << region->shift;
}

/* Rights of a vpage: those of its vregion, or under the heap what the program set. */
TCL_HIDDEN int vmem_prot(const struct vmem_region *region, size_t vpage);
/* Vpages from `first` in one run of homes, with the same rights; at most `count`. */
TCL_HIDDEN size_t vmem_alike(const struct vmem_region *region, size_t first, size_t count);

/* Gives every twin back; false: there was none. Under the lock. */
TCL_HIDDEN bool vmem_drop_twins(void);
/* Bytes of twins; more than the limit are not kept. */
TCL_HIDDEN extern size_t vmem_twin_bytes, vmem_twin_limit;
/* Gives the twins of these vpages back. */
TCL_HIDDEN void vmem_drop_twin(struct vmem_region *region, size_t first, size_t count);

/* ---- Faults (fault.c) ------------------------------------------------------------------- */

/* A thread serves touches of what is watched; false: that cannot be had. Not under the lock. */
TCL_HIDDEN bool vmem_serve_touches(void);
/* From now on who touches this private memory, in which nothing is, waits for that thread. */
TCL_HIDDEN bool vmem_watch_touches(uintptr_t start, size_t bytes);
/* In a child: nobody serves it, and nothing of it is watched. */
TCL_HIDDEN void vmem_forget_touches(void);

/* ---- Moves (move.c) --------------------------------------------------------------------- */

enum vmem_how { VMEM_REPLICATE, VMEM_MIGRATE };

/* Under the lock, of vpages [first, first + count), at most a piece. 0 or an errno: some of them
 * may have moved. */
TCL_HIDDEN int vmem_move(struct vmem_region *region, size_t first, size_t count, int node,
                         enum vmem_how how);
/* Moves what has memory of [start, start + bytes), piece by piece, as long as `is_wanted` says so;
 * the bytes that are on the node then. 0 or the first errno in *error. (arena.c) */
TCL_HIDDEN size_t vmem_move_range(uintptr_t start, size_t bytes, int node, bool (*is_wanted)(void),
                                  int *error);
/* Vregions of which nothing is mapped by a child any longer: their memory is had once again, and
 * not twice. Under the lock. (arena.c) */
TCL_HIDDEN void vmem_after_children(void);
/* A child is about to be forked: it will be seen when it is gone. (arena.c) */
TCL_HIDDEN void vmem_watch_children(void);
/* In a child: its own children are others. */
TCL_HIDDEN void vmem_forget_children(void);
/* Has a thread execute the daemon's moves, where that is possible, as soon as it is worth one; in a
 * child there is none. (remote_moves.c) */
TCL_HIDDEN void vmem_serve(void), vmem_stop_serving(void);
/* Vpages from `first` whose places in `list` follow one another, at most `count`. */
TCL_HIDDEN size_t vmem_run(const struct vmem_region *region, const vmem_place *list, size_t first,
                           size_t count);

#endif
