/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * small.h: mimalloc's types, and what small.c and small_apart.c share.
 * In: mimalloc's headers. Out: the flags of blocks, the heaps that have blocks apart.
 * Knows nothing of how a site is found to need them.
 */
#ifndef TCL_SMALL_H
#define TCL_SMALL_H

#include "heap.h"

/* clang-format off: their order matters. Both files see the same layout of mimalloc's types. */
#define MI_USE_PTHREADS 1
#define MI_PRIM_HAS_PROCESS_ATTACH 1
#define MI_DEFAULT_ARENA_RESERVE (64L * 1024L) /* KiB: a unit of heap.c; doubles every 8 arenas */
#define pthread_mutex_lock heap_lock
#define pthread_mutex_unlock heap_unlock
#include <mimalloc.h>
#include <mimalloc/internal.h>
#include <mimalloc/prim.h>
#undef pthread_mutex_lock
#undef pthread_mutex_unlock
/* clang-format on */

/* run.block_flags. The thread that has the block writes them. */
enum block_flags {
    BLOCK_HAS_ALIGNED = 1u << 0, /* it had aligned objects before: its frees cannot be checked */
    BLOCK_SAMPLES = 1u << 1,     /* its slots are sampled births; frees do not take the fast path */
    BLOCK_DUE = 1u << 2,         /* the birth after the last slot of its free list is sampled */
    BLOCK_OF_HEAT = 1u << 3      /* it has hot, or cold objects alone, and stays in its heap */
};

/* mimalloc aligns slots of 8 bytes to 8; glibc aligns everything to 16. */
static inline size_t at_least_16(size_t bytes) {
    return bytes < 16 ? 16 : bytes;
}

/* mimalloc's page map has two levels; in a reserved range one suffices. */
static inline void **slice_of(const void *p) {
    return &tcl_heap_range.slices[((uintptr_t)p - tcl_heap_range.base) >> SLICE_SHIFT];
}

/* The first run of a block in the range. */
static inline struct run *run_of(mi_page_t *page) {
    return run_at(page_number((uintptr_t)mi_page_slice_start(page)));
}

/* ---- small.c --------------------------------------------------------------------------------- */

/* The end of mimalloc's fast path: a slot of any block of `theap`. Bit 0 of `zero`: zeroed. */
TCL_HIDDEN void *tcl_small_generic(mi_theap_t *theap, size_t bytes, size_t zero, size_t *usable);

/* ---- small_apart.c --------------------------------------------------------------------------- */

/* Heaps beside the main one: of sampled births, of hot and of cold objects, and of sites that have
 * blocks apart. Chosen, not measured: each takes 6 KiB, some 15 KiB an arena of mimalloc, and 8 KiB
 * a thread that uses it. */
#define TCL_APART_MAX 64u

struct apart {
    mi_heap_t *heap;
    uint32_t site;             /* 0: of any */
    enum tcl_temperature heat; /* without a site and TCL_LUKEWARM: of sampled births */
};
/* Append only, under tcl_apart_lock; a reader has seen the count, or a site's number. */
TCL_HIDDEN extern struct apart tcl_apart[TCL_APART_MAX];
TCL_HIDDEN extern _Atomic uint32_t tcl_apart_count;
TCL_HIDDEN extern mi_lock_t tcl_apart_lock;

/* What a block that the thread is about to make is for; all 0: for any site. */
struct filling {
    uint32_t site;
    uint8_t flags;
    uint8_t arena; /* + 1; 0: of any site's blocks */
};
TCL_HIDDEN extern __thread struct filling tcl_filling;
TCL_HIDDEN struct filling tcl_filling_begin(const mi_theap_t *theap, size_t bytes);
static inline void tcl_filling_end(struct filling before) {
    tcl_filling = before;
}
/* The arena that the thread's next block should be in. */
static inline unsigned tcl_filling_arena(void) {
    return tcl_filling.arena ? tcl_filling.arena - 1u : tcl_small_arena(0);
}

/* While the process is tracked: allocations that did not find a slot on the fast path. */
TCL_HIDDEN __attribute__((noinline)) void *tcl_small_by_site(mi_theap_t *theap, size_t bytes,
                                                             bool zero, struct caller caller);
TCL_HIDDEN __attribute__((noinline)) void *tcl_small_aligned_by_site(size_t bytes, size_t align,
                                                                     struct caller caller);
/* After a change of a size class's blocks outside of those, in the calling thread, where a class is
 * guarded. */
TCL_HIDDEN void tcl_small_guard(size_t bytes);
TCL_HIDDEN extern _Atomic bool tcl_has_guards;

#endif
