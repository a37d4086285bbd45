/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * region.h: memory that the program places itself, as the files of vmem/ see it.
 * In: nothing. Out: segments, vpages, vregions, tracking, moves. Knows nothing of records or heaps.
 *
 *   vregion    [ v0 | v1 | v2 | v3 ]        addresses of the program, mapped shared
 *                 \    \    |    |
 *   segment of    [ ...  v0  v1 ... ]       a sealed memfd of one node, with two more mappings:
 *   node 0                                  `shared`, to copy by and to map from,
 *   segment of      [ v2  v3 ... ]          `private`, which replaces mappings before a fork
 *   node 1
 *
 * A vpage's home is the place that its vregion maps; its twin is a second place that may have the
 * same bytes: a replica made ahead, or the shadow that a move left. A twin is used only where the
 * kernel reports no write since both were equal.
 *
 * Under the heap each range that an arena claims is a vregion of private memory, whose vpages have
 * no home (arena.c, private.c).
 *
 * One lock protects all of it; a move holds it for one piece at a time. A thread that holds it
 * waits for no other and does not allocate, because the heap's lock may be held outside of it.
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
#define MADV_DONTNEED_LOCKED 24 /* linux/mman.h, 5.18: also memory that the program locked */
#endif

/* Chosen, not measured: 64 GiB of usual segments; their numbers have 12 bits in a vmem_place. */
#define VMEM_SEGMENTS_MAX 1024u
/* Chosen, not measured: lookups search them one by one. */
#define VMEM_REGIONS_MAX 4096u
#define VMEM_UNIT ((size_t)2 << 20) /* bytes of a huge OS page; segments are multiples of it */
/* Usual size of a segment, a unit of the heap. Chosen, not measured. */
#define VMEM_SEGMENT_BYTES ((size_t)64 << 20)
/* Bytes moved each time the lock is held, one page table's: it determines the longest stall. */
#define VMEM_PIECE ((size_t)2 << 20)

/* ---- Segments and their vpages (segment.c) ---------------------------------------------- */

struct vmem_segment {
    char *shared;    /* NULL: an empty slot */
    char *private;   /* pieces of it are used up by forks */
    uint64_t *taken; /* a bit for each OS page */
    uint64_t *stale; /* likewise: not taken, and not zeroed yet */
    size_t pages;    /* OS pages */
    size_t taken_pages;
    size_t hint; /* where a search begins, OS pages */
    int node;
    uint64_t inode;    /* of the memfd */
    uint32_t number;   /* the pool server's; 0: made by this process */
    uint64_t secret;   /* the grant's, by which it is returned */
    bool is_frozen;    /* a child may map it: nothing of it is reused or scrubbed */
    bool is_emulated;  /* there is no such node */
    bool is_huge;      /* of huge OS pages, as far as the kernel had any */
};

/* A place in a segment; 0: none. From the low end: OS page, 40 bits; segment + 1, 12 bits; node + 1
 * where the kernel moved the memory by mbind, 11 bits, else 0; and whether a child maps it too. */
typedef uint64_t vmem_place;
#define VMEM_FORKED (1ull << 63)
#define VMEM_PAGE_BITS 40    /* 4 PiB a segment */
#define VMEM_ELSEWHERE_AT 52 /* 40 + 12 */
#define VMEM_NODES_MAX 1024  /* the kernel's: CONFIG_NODES_SHIFT is at most 10 */
_Static_assert(VMEM_SEGMENTS_MAX < 1 << 12 && VMEM_NODES_MAX < 1 << 11, "fields of vmem_place");

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

/* True when there is, or was, a segment. */
TCL_HIDDEN bool vmem_is_any_segment(void);

/* `bytes` contiguous bytes on `node` at a multiple of `align` bytes, zeroed or with any content; 0
 * and ENOMEM (exhausted), ENOSYS (no memfd). */
TCL_HIDDEN vmem_place vmem_take(int node, size_t bytes, size_t align, bool zeroed);
/* Frees it; a later vmem_take never shows its content when `zeroed`. */
TCL_HIDDEN void vmem_give(vmem_place place, size_t bytes);
/* Maps the place at `at`; children of raw system calls do not inherit the mapping. False: there are
 * too many mappings. */
TCL_HIDDEN bool vmem_map_place(uintptr_t at, vmem_place place, size_t bytes);
/* Binds the mapping to this node, as far as that has free memory. */
TCL_HIDDEN bool vmem_bind_preferred(void *start, size_t bytes, int node, unsigned flags);
/* Before a fork: no segment that exists now is reused, because the child will map it. */
TCL_HIDDEN void vmem_freeze(void);
/* In a child: unmaps the shared windows, by which it could reach what its parent writes. */
TCL_HIDDEN void vmem_close_windows(void);

/* A segment of the pool server; false: there is none, or it refuses. (pool_client.c) */
struct vmem_grant {
    int memfd;
    size_t bytes;
    uint32_t number;
    uint64_t secret;
    bool is_emulated;
};
TCL_HIDDEN bool vmem_pool_grant(int node, size_t bytes, bool huge, struct vmem_grant *grant);
/* Returns it; `is_shared`: a child may still map it. */
TCL_HIDDEN void vmem_pool_return(uint32_t number, uint64_t secret, bool is_shared);

/* False: so much more memory would exceed the limit of the process's control group, and the kernel
 * would kill some process of the group. (memory_limit.c) */
TCL_HIDDEN bool vmem_fits_limit(size_t bytes);

/* ---- This process (process.c) -------------------------------------------------------------- */

/* Reads a small file of /proc or /sys as text; false: it cannot be read, or is empty. */
TCL_HIDDEN bool vmem_read_text(const char *path, char *text, size_t size);
/* Number of threads; 0: unknown. */
TCL_HIDDEN int vmem_threads(void);
/* Starts a detached thread of the runtime with all signals blocked: 0 or an errno. Not under the
 * lock. */
TCL_HIDDEN int vmem_start_thread(void *(*work)(void *), void *argument);
/* The same, of one that is to be joined. */
TCL_HIDDEN int vmem_start_joinable(pthread_t *thread, void *(*work)(void *), void *argument);
/* True when only threads of the runtime are left: libc ends the process with its last thread. */
TCL_HIDDEN bool vmem_has_no_program_thread(void);
/* Before such a thread returns; and in a child, which has none. */
TCL_HIDDEN void vmem_end_thread(void), vmem_forget_threads(void);

/* ---- Checks of mappings (verify.c) ----------------------------------------------------------- */

#define VMEM_ANY_RIGHTS (-1)
/* Opens and closes what queries need; without it only holes are found. */
TCL_HIDDEN void vmem_query_open(void), vmem_query_close(void);
/* Bytes from `at`, at most `bytes`, of which all map `place` (0: private memory of no file) with
 * these rights, or all do not: *is_so. */
TCL_HIDDEN size_t vmem_query_mapping(uintptr_t at, size_t bytes, vmem_place place, int prot,
                                     bool *is_so);
/* True when all of it does; else errno is EFAULT. */
TCL_HIDDEN bool vmem_is_mapped_as(uintptr_t at, size_t bytes, vmem_place place, int prot);

/* ---- Tracking of writes (write_tracking.c) --------------------------------------------------- */

struct vmem_range {
    uintptr_t start, end;
};

/* A non-blocking userfaultfd that also holds up the kernel's own accesses; -1: not available. And
 * whether a descriptor still is one: the program may have closed it. */
TCL_HIDDEN int vmem_open_userfaultfd(uint64_t features);
TCL_HIDDEN bool vmem_is_userfaultfd(int fd);
/* True when writes to mappings can be tracked, and accesses be held up, also the kernel's own. */
TCL_HIDDEN bool vmem_can_track(void);
/* Opens and closes what the functions below need. */
TCL_HIDDEN bool vmem_track_open(void);
TCL_HIDDEN void vmem_track_close(void);
/* Opens what vmem_is_huge_entry needs; closed by vmem_track_close. */
TCL_HIDDEN bool vmem_pagemap_open(void);
/* Begins to track writes to the mapping. */
TCL_HIDDEN bool vmem_track(uintptr_t start, size_t bytes);
/* Calls `each` for what was written since the last scan, and begins again. False: `start` is not
 * tracked. */
TCL_HIDDEN bool vmem_scan(uintptr_t start, size_t bytes, void (*each)(struct vmem_range, void *),
                          void *context);
/* Holds up every access to a tracked mapping, and then calls `each` for what was written since the
 * last scan. False: not possible, and nothing is held up. */
TCL_HIDDEN bool vmem_hold(uintptr_t start, size_t bytes, void (*each)(struct vmem_range, void *),
                          void *context);
/* True when the page table maps all of it by huge OS pages; and when, besides, each is protected,
 * so that nothing was written since vmem_track. */
TCL_HIDDEN bool vmem_is_huge_entry(uintptr_t start, size_t bytes);
TCL_HIDDEN bool vmem_is_unwritten(uintptr_t start, size_t bytes);
/* Bytes from `start`, at most `bytes`, that all have memory or all have none: *is_any. Swapped out
 * memory counts, and what cannot be examined. */
TCL_HIDDEN size_t vmem_find_memory(uintptr_t start, size_t bytes, bool *is_any);
/* Holds up every write to a mapping of huge OS pages; if it was written since vmem_track, or
 * *is_equal is false, every access, and clears *is_equal. False: not possible. */
TCL_HIDDEN bool vmem_hold_huge(uintptr_t start, size_t bytes, bool *is_equal);
/* Holds up every write to a private mapping, which need not be tracked. */
TCL_HIDDEN bool vmem_hold_private(uintptr_t start, size_t bytes);
/* True when it has held up all writes until now: no part was mapped anew or emptied. */
TCL_HIDDEN bool vmem_is_held_private(uintptr_t start, size_t bytes);
/* Copies from a mapping that the program may unmap meanwhile: then false, with a part copied. */
TCL_HIDDEN bool vmem_read(void *to, const void *from, size_t bytes);
/* Unregisters the range from these two userfaultfds (-1: none). */
TCL_HIDDEN void vmem_unregister(int one, int other, uintptr_t start, size_t bytes);
/* Ends tracking, and wakes the threads that are held up. */
TCL_HIDDEN void vmem_untrack(uintptr_t start, size_t bytes);
/* Wakes the threads that are held up. */
TCL_HIDDEN void vmem_wake(uintptr_t start, size_t bytes);
/* In a child: closes the parent's descriptors. */
TCL_HIDDEN void vmem_track_forget(void);

/* ---- Copies (copy.c) -------------------------------------------------------------------- */

enum vmem_copy_how {
    VMEM_COPY_FALLIBLE = 1, /* the program may unmap it while it is read */
    VMEM_COPY_HELD = 2      /* the program waits: this thread copies alone */
};

/* Copies OS pages. False: they were unmapped, with a part copied. Under the lock. */
TCL_HIDDEN bool vmem_copy(char *to, const char *from, size_t bytes, unsigned how);
/* Before each piece, with no lock held: starts helper threads, if an earlier copy lacked them. */
TCL_HIDDEN void vmem_copy_prepare(void);
/* At the start of a move: its first large copy counts the available helpers again, in 6 us. */
TCL_HIDDEN void vmem_copy_begin(void);
/* In a child, which has neither its parent's threads nor its queue. */
TCL_HIDDEN void vmem_copy_forget(void);

/* True when there is a device that copies; the first call searches for it. (dsa.c) */
TCL_HIDDEN bool vmem_dsa_is_available(void);
/* Copies by the device and waits for it. Returns how many bytes from the start it has copied, in
 * whole OS pages, maybe 0. Never while the program is held. */
TCL_HIDDEN size_t vmem_dsa_copy(char *to, const char *from, size_t bytes);
/* In a child, which does not have its parent's queue. */
TCL_HIDDEN void vmem_dsa_forget(void);

/* ---- Vregions (region.c) --------------------------------------------------------------------- */

struct vmem_region {
    uintptr_t start; /* 0: an empty slot */
    size_t bytes;
    int prot;
    int node;         /* of new memory; TCL_NODE_NONE: any */
    uint8_t shift;    /* log2 of a vpage's bytes */
    vmem_place *home; /* by vpage. 0: not touched yet, or private memory since touches are no
                         longer served; under the heap always */
    union {
        vmem_place *twin;       /* by vpage */
        vmem_place *own_rights; /* the same under the heap, where nothing has a twin: 0, or 1 + the
                                   rights that the program set */
    };
    bool is_private;  /* a fork made every vpage private, and none was moved since */
    bool is_heap;     /* the allocator's, not the program's */
    bool is_on_touch; /* vpages without a home get one when they are touched (fault.c) */
};

/* The first by address of the program's vregions in the range; those under the heap are left out.
 */
TCL_HIDDEN struct vmem_region *vmem_region_over(uintptr_t start, size_t bytes);
/* All vregions, under the lock; slots are empty where `start` is 0. */
TCL_HIDDEN extern struct vmem_region vmem_regions[VMEM_REGIONS_MAX];
TCL_HIDDEN unsigned vmem_region_slots(void);
TCL_HIDDEN void vmem_lock(void), vmem_unlock(void);
/* True when the calling thread holds it; for assertions. And when other threads wait for it. */
TCL_HIDDEN bool vmem_is_locked(void), vmem_is_awaited(void);
/* Takes precedence over other waiters, because threads of the program are held up meanwhile. */
TCL_HIDDEN void vmem_lock_for_touch(void);
/* An empty slot with tables for `count` vpages; NULL: no slot, or no memory. */
TCL_HIDDEN struct vmem_region *vmem_new_region(size_t count);

static inline size_t vmem_vpage(const struct vmem_region *region) {
    return (size_t)1 << region->shift;
}

/* Frees every twin; false: there was none. Under the lock. */
TCL_HIDDEN bool vmem_drop_twins(void);
/* Bytes of twins, and how many shadows may bring them to. */
TCL_HIDDEN extern size_t vmem_twin_bytes, vmem_twin_limit;
/* Frees the twins of these vpages. Under the lock. */
TCL_HIDDEN void vmem_drop_twin(struct vmem_region *region, size_t first, size_t count);

/* ---- Faults (fault.c) ------------------------------------------------------------------- */

/* Starts the thread that serves touches, if it is not running; false: not possible. Not under the
 * lock. */
TCL_HIDDEN bool vmem_serve_touches(void);
/* From now on a thread that touches this empty private memory waits for that thread. */
TCL_HIDDEN bool vmem_watch_touches(uintptr_t start, size_t bytes);
/* In a child, which has no such thread. */
TCL_HIDDEN void vmem_forget_touches(void);

/* ---- Moves (move.c) --------------------------------------------------------------------- */

enum vmem_how { VMEM_REPLICATE, VMEM_MIGRATE };

/* Moves vpages [first, first + count), at most a piece, under the lock. 0 or an errno; some may
 * have moved even then. */
TCL_HIDDEN int vmem_move(struct vmem_region *region, size_t first, size_t count, int node,
                         enum vmem_how how);
/* Moves private memory, at most a piece that has memory, under the lock: *moved of its bytes are
 * there then. 0, or why the first that is not stayed: EBUSY (pinned), EINVAL (locked, protected),
 * EPERM (traced), ENOMEM. Only in a thread that has begun by vmem_private_start. (private.c) */
TCL_HIDDEN int vmem_move_private(uintptr_t start, size_t bytes, int node, size_t *moved);
/* True when this process may do so; and true when the calling thread is ready to. It loses all its
 * descriptors, which its process keeps. */
TCL_HIDDEN bool vmem_private_can_move(void), vmem_private_start(void);
/* Moves the resident part of [start, start + bytes), piece by piece, while `is_wanted` is true.
 * Returns the bytes that are on the node then; *error is 0 or the first errno. (arena.c) */
TCL_HIDDEN size_t vmem_move_range(uintptr_t start, size_t bytes, int node, bool (*is_wanted)(void),
                                  int *error);
/* Starts the thread that executes the daemon's moves, where that is possible, at once or when the
 * heap is large enough; a child has none. (self_moves.c) */
TCL_HIDDEN void vmem_serve(void), vmem_forget_server(void);
/* Vpages from `first` whose places in `list` follow one another, at most `count`. */
TCL_HIDDEN size_t vmem_run(const struct vmem_region *region, const vmem_place *list, size_t first,
                           size_t count);

#endif
