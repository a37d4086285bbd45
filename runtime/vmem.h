/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * vmem.h: memory that the program places itself, as the files of vmem*.c see it.
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
 * All of it is under one lock, which a move holds for a piece at a time.
 */
#ifndef TCL_VMEM_H
#define TCL_VMEM_H

#include "tcl.h"
#include <sys/mman.h>

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4 /* linux/mman.h, 5.7; of shared memory 5.13 */
#endif

#define VMEM_SEGMENTS_MAX 1024u
#define VMEM_REGIONS_MAX 4096u
#define VMEM_UNIT ((size_t)2 << 20)           /* segments are multiples of this, bytes */
#define VMEM_SEGMENT_BYTES ((size_t)64 << 20) /* usual size of a segment */
#define VMEM_PIECE ((size_t)4 << 20) /* moved under one lock; the longest stall goes by it */

/* ---- Segments and their vpages (vmem_segment.c) ---------------------------------------------- */

struct vmem_segment {
    char *shared;    /* NULL: an empty slot */
    char *private;   /* pieces of it are used up by forks */
    uint64_t *taken; /* a bit for each OS page */
    size_t pages;    /* OS pages */
    size_t taken_pages;
    size_t hint; /* where the search for room begins, OS pages */
    int node;
    uint32_t number;  /* the pool server's; 0: of our own making */
    bool is_frozen;   /* a child may map it: nothing of it is ever reused or scrubbed */
    bool is_emulated; /* there is no such node */
    bool is_huge;     /* of huge OS pages, as far as the kernel gave any */
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

/* `bytes` of one piece on `node`, zeroed, at a multiple of `align` bytes; 0 and ENOMEM (exhausted),
 * ENOSYS (no memfd). */
TCL_HIDDEN vmem_place vmem_take(int node, size_t bytes, size_t align);
/* They are empty from now on. */
TCL_HIDDEN void vmem_give(vmem_place place, size_t bytes);
/* The kernel is to serve the mapping from this node, as far as there is room. */
TCL_HIDDEN bool vmem_prefer(void *start, size_t bytes, int node, unsigned flags);
/* Nothing that exists now is reused: a child is about to map it. */
TCL_HIDDEN void vmem_freeze(void);
/* In a child: the shared windows go, so that it cannot reach what its parent writes. */
TCL_HIDDEN void vmem_disown(void);

/* A segment of the pool server's; false: there is none, or it refuses. (vmem_ask.c) */
struct vmem_grant {
    int memfd;
    size_t bytes;
    uint32_t number;
    bool is_emulated;
};
TCL_HIDDEN bool vmem_ask(int node, size_t bytes, bool huge, struct vmem_grant *grant);
/* Gives it back; `is_shared`: a child of ours may still map it. */
TCL_HIDDEN void vmem_tell(uint32_t number, bool is_shared);

/* ---- Tracking of writes (vmem_track.c) ------------------------------------------------------- */

struct vmem_range {
    uintptr_t start, end;
};

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
/* The same for a private mapping, whose memory is found at `aside` from then on. */
TCL_HIDDEN bool vmem_hold_private(uintptr_t start, size_t bytes, void *aside);
/* Lets all wait no longer. */
TCL_HIDDEN void vmem_wake(uintptr_t start, size_t bytes);
/* In a child: the parent's descriptors are not ours. */
TCL_HIDDEN void vmem_track_forget(void);

/* ---- Vregions (vmem.c) ----------------------------------------------------------------------- */

struct vmem_region {
    uintptr_t start; /* 0: an empty slot */
    size_t bytes;
    int prot;
    int node;         /* where its memory is wished for; TCL_NODE_NONE: where it is */
    uint8_t shift;    /* of a vpage's size */
    vmem_place *home; /* by vpage */
    vmem_place *twin; /* by vpage */
};

static inline size_t vmem_vpage(const struct vmem_region *region) {
    return (size_t)1 << region->shift;
}

/* Gives every twin back; false: there was none. Under the lock. */
TCL_HIDDEN bool vmem_drop_twins(void);
/* Bytes of twins; more than the limit are not kept. */
TCL_HIDDEN extern size_t vmem_twin_bytes, vmem_twin_limit;
/* Gives the twins of these vpages back. */
TCL_HIDDEN void vmem_drop_twin(struct vmem_region *region, size_t first, size_t count);

/* ---- Moves (vmem_move.c) --------------------------------------------------------------------- */

enum vmem_how { VMEM_REPLICATE, VMEM_MIGRATE };

/* Under the lock, of vpages [first, first + count), at most a piece. 0 or an errno: some of them
 * may have moved. */
TCL_HIDDEN int vmem_move(struct vmem_region *region, size_t first, size_t count, int node,
                         enum vmem_how how);
/* Vpages from `first` whose places in `list` follow one another, at most `count`. */
TCL_HIDDEN size_t vmem_run(const struct vmem_region *region, const vmem_place *list, size_t first,
                           size_t count);

#endif
