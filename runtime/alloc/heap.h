/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * heap.h: the page-run layer, as its own files see it.
 * In: nothing. Out: struct tcl_run_info, the range, and the functions of heap*.c and small.c.
 * Knows nothing of records, sites or sessions.
 *
 *   base                       runs                                         runs + run_bytes
 *   |  arenas of small slots   |  chunk | chunk | chunk | ... not yet used   |
 *   |  (mimalloc, small.c)     |  run run run ...                            |
 *
 * The range is reserved once without access rights and opened chunk by chunk, so that whether a
 * pointer is in the heap, and in which layer, is one compare each. The metadata of OS page i of the
 * range is table[i], out of band: a program that writes past its objects cannot reach it.
 *
 * A *run* is a sequence of OS pages that are handed out and freed together. Its first entry
 * describes it; the last entry of a free run repeats state and total (a boundary tag), so that a
 * freed run finds its free neighbours.
 *
 *      total = 7, pages = 4, touched = 5
 *      [####.~~]     # handed out   . handed out once, dirty   ~ never touched, zero
 */
#ifndef TCL_HEAP_H
#define TCL_HEAP_H

#include "../track/track.h"
#include "../vmem/vmem.h"
#include "alloc.h"
#include <pthread.h>
#include <stdatomic.h>

/* log2 of TCL_PAGE. */
#define PAGE_SHIFT 12
#define PAGE ((size_t)TCL_PAGE)
#define PAGES_OF(bytes) (((bytes) + PAGE - 1) >> PAGE_SHIFT)

/* Objects below this many bytes are small slots; from an OS page on they are placed on their own.
 */
#define SMALL_LIMIT ((size_t)4096)

static inline int heap_lock(pthread_mutex_t *mutex) {
    return tcl_unlikely(tcl_in_fork) ? 0 : pthread_mutex_lock(mutex);
}
static inline int heap_unlock(pthread_mutex_t *mutex) {
    return tcl_unlikely(tcl_in_fork) ? 0 : pthread_mutex_unlock(mutex);
}

/* Takes a lock before a fork. False where the calling thread holds it already: a signal handler
 * forks in the middle of an allocation of the process's only thread. */
static inline bool heap_lock_for_fork(pthread_mutex_t *mutex) {
    return tcl_forks_alone ? !pthread_mutex_trylock(mutex) : !pthread_mutex_lock(mutex);
}

/* In the child: makes a lock that the interrupted allocation holds this process's own. */
static inline void heap_lock_inherit(pthread_mutex_t *mutex) {
    pthread_mutex_init(mutex, NULL);
    pthread_mutex_lock(mutex);
}

enum run_state {
    RUN_NONE = 0, /* neither first nor last entry of a run */
    RUN_LIVE,     /* the program's */
    RUN_CACHED,   /* in a thread's cache */
    RUN_DIRTY,    /* in the page heap; contents unknown, resident */
    RUN_CLEAN,    /* in the page heap; zero, not resident */
    RUN_PURGING,  /* being purged, from dirty to clean, outside the lock */
    RUN_BLOCK /* a block of small slots; `total`, `carve`, `arena`, `site`, `block_flags` hold */
};

/* Written under the heap lock, except that the owner of a live or cached run changes pages,
 * generation, site, touched and state (live <-> cached) alone. */
struct run {
    uint32_t total;   /* OS pages of the run */
    uint32_t pages;   /* OS pages handed out, <= total */
    uint32_t touched; /* leading OS pages that may be non-zero, >= pages while live */
    uint32_t carve;   /* see tcl_record */
    uint16_t generation;
    _Atomic uint8_t state;
    uint8_t arena; /* as reported at birth */
    uint32_t site;
    union {
        uint32_t next;  /* in a bin or a cache: OS page number of the next run, 0 ends */
        uint32_t shift; /* live: bytes from the run's first to the object's first, < TCL_PAGE */
        uint32_t block_flags; /* of a block: bits of small.h */
    };
    union {
        uint32_t prev;     /* in a bin: OS page number of the previous run, 0 begins */
        uint32_t reserved; /* live or cached: OS pages that it was given only to grow into */
    };
};
_Static_assert(sizeof(struct run) == 32, "two runs a cache line");

struct range {
    uintptr_t base;     /* all 0 when nothing could be reserved */
    uintptr_t runs;     /* where runs begin */
    size_t small_bytes; /* from base: arenas of small slots. As what follows, less under a limit */
    size_t run_bytes;   /* from runs */
    size_t pages;       /* OS pages from base to the end of what was reserved at first */
    struct run *table;  /* by OS page number from base */
    void **slices;      /* mimalloc's page of each slice of the small part; only small.c uses it */
};
#define SLICE_SHIFT 16 /* MI_ARENA_SLICE_SHIFT, which small.c checks */
TCL_HIDDEN extern struct range tcl_heap_range;

/* The range that a session has entries for. */
#define TCL_RANGE_MAX ((size_t)1 << 40)
_Static_assert(TCL_RANGE_MAX == TCL_RANGE_PAGES_MAX * TCL_PAGE, "an entry for each OS page");

/* Reserves the range at the first call of any thread; later calls cost one load. */
TCL_HIDDEN void tcl_heap_init(void);

static inline size_t page_number(uintptr_t addr) {
    return (addr - tcl_heap_range.base) >> PAGE_SHIFT;
}
static inline uintptr_t page_address(size_t number) {
    return tcl_heap_range.base + (number << PAGE_SHIFT);
}
static inline struct run *run_at(size_t number) {
    return &tcl_heap_range.table[number];
}
static inline size_t number_of(const struct run *run) {
    return (size_t)(run - tcl_heap_range.table);
}
static inline bool is_small(const void *p) {
    return (uintptr_t)p - tcl_heap_range.base < tcl_heap_range.small_bytes;
}
/* Of a pointer that is not small. */
static inline bool is_run(const void *p) {
    return (uintptr_t)p - tcl_heap_range.runs < tcl_heap_range.run_bytes;
}
static inline uintptr_t range_runs(void) {
    return tcl_heap_range.runs;
}
static inline uintptr_t range_end(void) {
    return tcl_heap_range.runs + tcl_heap_range.run_bytes;
}

/* ---- heap_range.c ---------------------------------------------------------------------------- */

/* Reserves at most TCL_RANGE_MAX bytes and their metadata, halving down to `least` while that
 * fails; both parts are multiples of `align`. Without access rights: nothing is committed. */
TCL_HIDDEN bool tcl_range_reserve(struct range *range, size_t least, size_t align);
/* Gives back what a limit on address space does not leave, but nothing below `next_small` and
 * `next_runs`, multiples of `align`. Under the heap lock. */
TCL_HIDDEN void tcl_range_shrink(struct range *range, size_t limit, size_t align,
                                 uintptr_t next_small, uintptr_t next_runs);

/* ---- heap.c: chunks, bins, coalescing, purge. `lock`: callers hold tcl_heap_lock ------------- */

TCL_HIDDEN extern pthread_mutex_t tcl_heap_lock;

enum take { TAKE_ANY, TAKE_CLEAN, TAKE_DIRTY };

/* A run of exactly `total` OS pages of arena k, its address a multiple of `align` OS pages (a power
 * of two), with touched = its dirty leading pages. State is RUN_CACHED, carve fresh, generation 0.
 * NULL when the range is used up. Under the lock. */
TCL_HIDDEN struct run *tcl_pages_take(unsigned k, size_t total, size_t align, enum take take);

/* The same for a growing object of `pages`: up to `most` OS pages, at least `pages`. */
TCL_HIDDEN struct run *tcl_pages_take_growing(unsigned k, size_t pages, size_t most);

/* After an object has grown to `pages` within its run: those are no longer reserved. Under the
 * lock. */
TCL_HIDDEN void tcl_pages_count_growth(struct run *run, size_t pages);

/* Returns a run (live or cached) to the page heap. Under the lock. */
TCL_HIDDEN void tcl_pages_give(struct run *run);

/* Extends run->total to at least `least` and at most `most` OS pages by a free run behind it; false
 * without one. Under the lock. */
TCL_HIDDEN bool tcl_pages_extend(struct run *run, size_t least, size_t most);

/* Cuts run->total down to `total` and frees the rest. Under the lock. */
TCL_HIDDEN void tcl_pages_trim(struct run *run, size_t total);

/* Purges what is due; `all`: everything. Takes the lock itself; callers do not hold it. */
TCL_HIDDEN void tcl_pages_purge(bool all);

/* So many OS pages of the biggest dirty run of arena k; NULL when it has fewer. Under the lock. */
TCL_HIDDEN struct run *tcl_pages_take_biggest(unsigned k, size_t pages);

/* Before the program touches the clean part of a run that was just taken from arena k: purges dirty
 * memory in exchange, as far as there is more than the heap may have, or, if it is a MiB or more,
 * of that arena, to make room on its node. Under the lock, which it releases meanwhile. */
TCL_HIDDEN void tcl_pages_purge_for(unsigned k, const struct run *run);

/* Likewise before `fresh` OS pages of a new block are touched. Takes the lock itself. */
TCL_HIDDEN void tcl_pages_exchange(size_t fresh);

/* OS pages in live and cached runs, without what was reserved for growth: what caches and reserves
 * are sized by. Any thread may read it. */
TCL_HIDDEN size_t tcl_pages_used(void);

/* Calls `visit` for every run, in any state. Under the lock. */
TCL_HIDDEN void tcl_pages_each(void (*visit)(struct run *, void *), void *context);

/* True when tcl_pages_purge may have something to do; one load. */
TCL_HIDDEN extern _Atomic bool tcl_purge_due;

/* A piece of the small part of the range, for a mimalloc arena of arena k; NULL when used up.
 * `open`: readable and writable, else without access. A multiple of 64 MiB. */
TCL_HIDDEN void *tcl_small_chunk(unsigned k, size_t bytes, bool open);

/* Every block of small slots is below this OS page number. */
TCL_HIDDEN size_t tcl_small_top(void);

/* Binds the chunks of arena k to its node if that changed; returns the arena number to report. */
TCL_HIDDEN uint8_t tcl_arena_bind(unsigned k);

/* The arena whose chunk holds OS page `number`. */
TCL_HIDDEN unsigned tcl_arena_of_page(size_t number);

/* ---- heap_split.c ---------------------------------------------------------------------------- */

/* Objects of at least so many OS pages may be born in two memories: all that the page heap serves
 * and no thread's cache, whose runs are too many to be bound one by one. */
#define SPLIT_PAGES (TCL_HEADS_FROM_BYTES >> PAGE_SHIFT)

/* Before the birth of a run in an arena that is not the best: binds its head to a better one, if
 * the plan or the budget provides for it. True when the budget did: its record is to name no arena,
 * and *head is to be noted. Call with no lock held. */
TCL_HIDDEN bool tcl_split_begin(struct run *run, size_t bytes, uint32_t site,
                                struct tcl_head *head);
/* When the run that begins with this OS page is freed (0 `pages`) or shrinks: undoes it beyond its
 * first `pages`. The memory there is released, unless it `keeps_contents`. By the run's owner, with
 * no lock held. */
TCL_HIDDEN void tcl_split_end(size_t number, size_t pages, bool keeps_contents);

/* ---- heap_home.c ----------------------------------------------------------------------------- */

/* Objects of at least so many OS pages are looked at: 1 MiB. Chosen: smaller ones are touched in
 * less time than the system calls take. */
#define HOME_PAGES ((size_t)(1 << 20) / TCL_PAGE)

/* Before the birth of an object of `pages` in a run that an earlier life touched: the run, or a
 * dead one on a better node. Where fresh memory would lie better, that of the run is released. Call
 * with no lock held. */
TCL_HIDDEN struct run *tcl_home_choose(struct run *run, size_t pages);

struct heap_figures {
    size_t open, dirty, clean; /* OS pages; the rest is in live and cached runs */
    size_t live;               /* OS pages handed out, without caches and room to grow */
    size_t objects, free_runs;
};
TCL_HIDDEN struct heap_figures tcl_heap_figures(void);

/* ---- heap_cache.c: called by malloc.c -------------------------------------------------------- */

/* The caller of the public function, for tcl_site_here. */
struct caller {
    void *return_address, *frame_address;
};

/* `bytes` from SMALL_LIMIT up to PTRDIFF_MAX; `align` in bytes, a power of two. NULL, ENOMEM. */
TCL_HIDDEN __attribute__((noinline)) void *tcl_run_alloc(size_t bytes, size_t align, bool zero,
                                                         struct caller caller);
TCL_HIDDEN __attribute__((noinline)) void tcl_run_free(void *p);
TCL_HIDDEN size_t tcl_run_usable(const void *p);
/* Resizes in place or by moving within the run layer; bytes >= SMALL_LIMIT. NULL, ENOMEM, p lives.
 */
TCL_HIDDEN void *tcl_run_realloc(void *p, size_t bytes, struct caller caller);
/* Returns this thread's cache to the page heap. */
TCL_HIDDEN void tcl_cache_flush(void);

/* ---- heap_far.c: objects outside the range, one mmap each ------------------------------------ */

TCL_HIDDEN void *tcl_far_alloc(size_t bytes, size_t align);
TCL_HIDDEN bool tcl_far_free(void *p);                   /* false: no such object */
TCL_HIDDEN size_t tcl_far_usable(const void *p);         /* 0: no such object */
TCL_HIDDEN void *tcl_far_realloc(void *p, size_t bytes); /* NULL, ENOMEM, p lives */
TCL_HIDDEN void tcl_far_before_fork(void), tcl_far_after_fork(void), tcl_far_after_fork_child(void);

/* ---- malloc.c -------------------------------------------------------------------------------- */

/* malloc with an alignment (a power of two), for the caller that is passed. */
TCL_HIDDEN void *tcl_allocate(size_t bytes, size_t align, struct caller caller);
/* calloc and realloc likewise. */
TCL_HIDDEN void *tcl_allocate_zeroed(size_t count, size_t each, struct caller caller);
TCL_HIDDEN void *tcl_resize(void *p, size_t bytes, struct caller caller);

/* Objects behind handles that were moved while the process forked are where they were.
 * (api/handles.c) */
TCL_HIDDEN void tcl_handles_after_fork_child(void);

/* This library's own free and operator delete: a program may have others. */
TCL_HIDDEN void tcl_own_free(void *p);
TCL_HIDDEN void tcl_own_delete(void *p);

/* True when frees of small slots are checked. Small objects with an alignment are runs then: a slot
 * of theirs begins in front of its object. */
TCL_HIDDEN extern bool tcl_is_secure;
/* Set to other than 0 to have them checked from the constructor on. */
#define TCL_SECURE_ENV "TIERCEL_SECURE_HEAP"

/* Writes `text` to stderr and aborts, as glibc does for an invalid pointer that it recognises. */
TCL_HIDDEN void tcl_abort_with(const char *text, size_t bytes) __attribute__((noreturn, cold));

/* ---- small.c: mimalloc ----------------------------------------------------------------------- */

/* A slot from the list of its size class, zeroed in the second; NULL: the list is empty, or there
 * is none for this size. They know no caller, whose address would have to be computed. */
TCL_HIDDEN void *tcl_small_fast(size_t bytes);
TCL_HIDDEN void *tcl_small_zfast(size_t bytes);
/* Where these return NULL. */
TCL_HIDDEN void *tcl_small_alloc(size_t bytes, bool zero, struct caller caller);
TCL_HIDDEN void *tcl_small_aligned(size_t bytes, size_t align, struct caller caller);
/* In small_apart.c: a slot among objects that are as hot; NULL: there is none. */
TCL_HIDDEN void *tcl_small_of_heat(size_t bytes, bool zero, enum tcl_temperature heat);
TCL_HIDDEN void tcl_small_free(void *p);     /* is_small(p) */
TCL_HIDDEN void tcl_small_free_far(void *p); /* tcl_small_owns(p), outside the range */
TCL_HIDDEN size_t tcl_small_usable(const void *p);
/* True when mimalloc knows p, inside the range or outside. */
TCL_HIDDEN bool tcl_small_owns(const void *p);
TCL_HIDDEN void tcl_small_trim(void);
/* Bytes in slots that were handed out, and in those that other threads freed since their block's
 * thread last looked. */
TCL_HIDDEN size_t tcl_small_used(void);
/* Before the program touches so many fresh bytes of runs: purges dead blocks in exchange, if there
 * are too many. Call with no lock held. */
TCL_HIDDEN void tcl_small_exchange(size_t fresh);
/* Once, in the constructor: from now on the first allocation may make keys. */
TCL_HIDDEN void tcl_small_may_start(void);
TCL_HIDDEN void tcl_small_secure(void); /* once, before tcl_is_secure is set */
TCL_HIDDEN void tcl_small_before_fork(void), tcl_small_after_fork(void);
TCL_HIDDEN void tcl_small_each(void (*visit)(const struct tcl_use *, void *), void *context);

#endif
