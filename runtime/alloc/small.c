/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * small.c: small slots, by mimalloc v3 compiled into this file.
 * In: requests below 4 KiB. Out: slots, and a note of each block (mimalloc page) born and died.
 * Knows nothing of runs; its memory comes from tcl_small_chunk.
 *
 * mimalloc's sources are included, not copied, and macros change them at these points:
 *   its arenas     come from our range (small_chunk), tagged with a "NUMA node" = our arena number;
 *                  the node a thread prefers is the arena for new blocks
 *   its blocks     are noted where arena.c enters and removes a page in the page map
 *   its options    cannot be set from the environment
 *   its mmap       bypasses our interposed one; its madvise respects vregions under the heap
 *   its start-up   is called by our constructor; it never cleans up at exit
 */
#include "heap.h"
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

/* clang-format off: their order matters. */
#define MI_USE_PTHREADS 1
#define MI_PRIM_HAS_PROCESS_ATTACH 1
#define MI_DEFAULT_ARENA_RESERVE (64L * 1024L) /* KiB: a unit of heap.c; doubles every 8 arenas */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#define pthread_mutex_lock heap_lock
#define pthread_mutex_unlock heap_unlock
#include <mimalloc.h>
#include <mimalloc/internal.h>
#include <mimalloc/prim.h>

static void *malloc_generic(mi_theap_t *theap, size_t bytes, size_t zero, size_t *usable);
static void unfull_late(mi_page_t *page);
static mi_page_t *page_alloc(mi_theap_t *theap, size_t bytes, size_t align);
static bool block_born(mi_page_t *page);
static void block_died(mi_page_t *page);
static mi_heap_t *preferring_heap(const mi_theap_t *theap);
static void *small_chunk(size_t bytes, size_t align, bool open, bool large, mi_memid_t *id);
static void start_options(void);

#undef pthread_mutex_lock
#undef pthread_mutex_unlock

#define _mi_malloc_generic malloc_generic
#define _mi_page_unfull unfull_late
#include <src/alloc.c>
#undef _mi_malloc_generic
#undef _mi_page_unfull
#include <src/alloc-aligned.c>
#include <src/alloc-posix.c>

#define _mi_page_map_register block_born
#define _mi_page_map_unregister block_died
#define _mi_theap_heap preferring_heap
#define _mi_os_alloc_aligned small_chunk
#define _mi_os_numa_node() ((int)tcl_small_arena())
#define _mi_preloading() false
#include <src/arena.c>
#undef _mi_page_map_register
#undef _mi_page_map_unregister
#undef _mi_theap_heap
#undef _mi_os_alloc_aligned
#undef _mi_preloading

#include <src/arena-meta.c>
#include <src/bitmap.c>
#include <src/heap.c>
#define _mi_options_init start_options
#include <src/init.c>
#undef _mi_options_init
#undef _mi_os_numa_node
#include <src/libc.c>
#define _mi_getenv(name, result, bytes) false
#include <src/options.c>
#undef _mi_getenv
#include <src/os.c>
#include <src/page-map.c>
#define _mi_arenas_page_alloc page_alloc
#include <src/page.c>
#undef _mi_arenas_page_alloc
#define mmap tcl_os_mmap
#define munmap tcl_os_munmap
#define madvise tcl_os_madvise
#include <src/prim/prim.c>
#undef mmap
#undef munmap
#undef madvise
#include <src/random.c>
#include <src/stats.c>
#include <src/theap.c>
#include <src/threadlocal.c>
#pragma GCC diagnostic pop
/* clang-format on */

/* ---- Called by arena.c ----------------------------------------------------------------------- */

static void start_options(void) {
    _mi_options_init();
    mi_option_set(mi_option_arena_is_numa_local, 1);
    mi_option_set(mi_option_page_full_retain, -1);
    _mi_theap_options_init(&theap_main); /* statically initialised, with the default */
}

/* ---- Full pages ------------------------------------------------------------------------------
 *
 * mimalloc abandons a page that is full: the next free into it is an atomic operation and reclaims
 * the page, with one free slot, for the next malloc to fill. A program that replaces objects of one
 * size at random does that every time (43 ns an operation with 50,000 of them). Therefore:
 *   a thread keeps up to FULL_PAGES_MAX full pages to itself, which bounds what other threads'
 * frees can leave unused in a thread that sleeps, and abandons more, as mimalloc does; a page
 * leaves the full ones when a FREE_FRACTION of its slots is free, not at the first one; before a
 * thread takes a fresh page, it examines some full ones for slots that others freed. */
/* 256 * 64 KiB = 16 MiB a thread. Chosen, not measured. */
#define FULL_PAGES_MAX 256
/* A sixteenth of the slots. Chosen, not measured. */
#define FREE_FRACTION 16
/* Chosen, not measured: bounds the search of one allocation. */
#define FULL_PAGES_SEARCH 8

static inline bool worth_using(const mi_page_t *page) {
    return page->capacity - page->used > page->capacity / FREE_FRACTION;
}

static void unfull_late(mi_page_t *page) {
    if (worth_using(page))
        _mi_page_unfull(page);
}

static mi_page_t *page_alloc(mi_theap_t *theap, size_t bytes, size_t align) {
    mi_page_queue_t *full = &theap->pages[MI_BIN_FULL];
    bool found = false;
    for (int i = 0; i < FULL_PAGES_SEARCH && full->first; i++) {
        mi_page_t *page = full->first;
        _mi_page_free_collect(page, false);
        if (worth_using(page)) {
            bool same = page->block_size == bytes;
            _mi_page_unfull(page);
            if (!same && mi_page_all_free(page))
                _mi_page_retire(page);
            found |= same;
        } else {
            mi_page_queue_enqueue_from_ex(full, full, true, page);
        }
    }
    return found ? NULL : _mi_arenas_page_alloc(theap, bytes, align); /* NULL: search again */
}

/* Memory for an arena of mimalloc; less than MI_ARENA_MIN_SIZE is for a block without an arena. */
static void *small_chunk(size_t bytes, size_t align, bool open, bool large, mi_memid_t *id) {
    void *chunk = NULL;
    if (bytes >= MI_ARENA_MIN_SIZE) {
        open = open && !tcl_frugal;
        chunk = tcl_small_chunk(tcl_small_arena(), bytes, open);
    }
    if (!chunk)
        return _mi_os_alloc_aligned(bytes, align, open, large, id);
    *id = _mi_memid_create(MI_MEM_EXTERNAL); /* never unmapped */
    id->mem.os.base = chunk;
    id->mem.os.size = bytes;
    id->initially_committed = open;
    id->initially_zero = true;
    return chunk;
}

static mi_heap_t *preferring_heap(const mi_theap_t *theap) {
    mi_heap_t *heap = _mi_theap_heap(theap);
    int arena = (int)tcl_small_arena();
    if (tcl_unlikely(heap == &heap_main &&
                     __atomic_load_n(&heap_main.numa_node, __ATOMIC_RELAXED) != arena))
        __atomic_store_n(&heap_main.numa_node, arena, __ATOMIC_RELAXED);
    return heap;
}

static struct tcl_use use_of(const struct run *run) {
    return (struct tcl_use){.addr = page_address(number_of(run)),
                            .bytes = (size_t)run->total << PAGE_SHIFT,
                            .carve = run->carve,
                            .arena = run->arena,
                            .flags = TCL_BLOCK};
}

/* mimalloc's page map has two levels; in a reserved range one suffices. */
static inline void **slice_of(const void *p) {
    return &tcl_heap_range.slices[((uintptr_t)p - tcl_heap_range.base) >> SLICE_SHIFT];
}
_Static_assert(SLICE_SHIFT == MI_ARENA_SLICE_SHIFT, "one entry a slice");

static void set_slices(void *start, size_t pages, mi_page_t *page) {
    void **slices = slice_of(start);
    for (size_t i = 0; i < pages << PAGE_SHIFT >> SLICE_SHIFT; i++)
        __atomic_store_n(&slices[i], page, __ATOMIC_RELAXED);
}

/* Of blocks born since tracking began; deaths of earlier ones make it too small. */
static _Atomic size_t block_bytes;

size_t tcl_small_bytes(void) {
    size_t bytes = atomic_load_explicit(&block_bytes, memory_order_relaxed);
    return bytes > SIZE_MAX / 2 ? 0 : bytes;
}

static bool block_born(mi_page_t *page) {
    if (!_mi_page_map_register(page))
        return false;
    uint8_t *start = mi_page_slice_start(page);
    if (tcl_unlikely(!is_small(start)))
        return true;
    struct run *run = run_at(page_number((uintptr_t)start));
    tcl_assert_debug(run->state == RUN_NONE);
    unsigned k = tcl_arena_of_page(number_of(run)), wanted = tcl_small_arena();
    run->total = (uint32_t)(mi_page_full_size(page) >> PAGE_SHIFT);
    run->carve = tcl_next_carve();
    run->arena = tcl_arena_bind(k);
    set_slices(start, run->total, page);
    atomic_store_explicit(&run->state, RUN_BLOCK, memory_order_release);
    if (tcl_unlikely(tcl_tracking())) {
        struct tcl_use use = use_of(run);
        tcl_note_born(&use);
        tcl_birth_block(k, use.bytes);
        atomic_fetch_add_explicit(&block_bytes, use.bytes, memory_order_relaxed);
    }
    /* mimalloc uses any arena before it makes a new one. Make one, for the next block. 2^26 bytes:
     * a unit of heap.c. */
    mi_subproc_t *subproc = _mi_subproc();
    if (tcl_unlikely(k != wanted && mi_arenas_get_count(subproc) < MI_MAX_ARENAS / 2))
        mi_reserve_os_memory_ex2(subproc, (size_t)1 << 26, true, false, false, NULL);
    return true;
}

static void block_died(mi_page_t *page) {
    uint8_t *start = mi_page_slice_start(page);
    if (tcl_likely(is_small(start))) {
        struct run *run = run_at(page_number((uintptr_t)start));
        tcl_assert_debug(run->state == RUN_BLOCK);
        if (tcl_unlikely(tcl_tracking())) {
            struct tcl_use use = use_of(run);
            tcl_note_died(&use);
            atomic_fetch_sub_explicit(&block_bytes, use.bytes, memory_order_relaxed);
        }
        atomic_store_explicit(&run->state, RUN_NONE, memory_order_release);
        set_slices(start, run->total, NULL);
    }
    _mi_page_map_unregister(page);
}

/* ---- Called by malloc.c ---------------------------------------------------------------------- */

/* The end of mimalloc's fast path. It may set errno or not, whatever the result. */
static __attribute__((noinline)) void *malloc_generic(mi_theap_t *theap, size_t bytes, size_t zero,
                                                      size_t *usable) {
    int saved = errno;
    if (tcl_likely(mi_theap_is_initialized(theap)))
        theap->allow_page_abandon = theap->pages[MI_BIN_FULL].count >= FULL_PAGES_MAX;
    void *p = _mi_malloc_generic(theap, bytes, zero, usable);
    errno = p ? saved : ENOMEM;
    return p;
}

/* mimalloc aligns slots of 8 bytes to 8; glibc aligns everything to 16. */
static inline size_t at_least_16(size_t bytes) {
    return bytes < 16 ? 16 : bytes;
}

/* mi_malloc, without clearing the first word of the slot: a program that reads uninitialised memory
 * finds an address of its own heap there, as with glibc. */
void *tcl_small_alloc(size_t bytes) {
    mi_theap_t *theap = _mi_theap_default();
    size_t size = at_least_16(bytes);
    if (tcl_likely(bytes <= MI_SMALL_SIZE_MAX)) {
        mi_page_t *page = _mi_theap_get_free_small_page(theap, size);
        mi_block_t *block = page->free;
        if (tcl_likely(block != NULL)) {
            page->free = mi_block_next(page, block);
            page->used++;
            return block;
        }
    }
    return malloc_generic(theap, size, 0, NULL);
}
void *tcl_small_zalloc(size_t bytes) {
    return mi_zalloc(at_least_16(bytes));
}

void *tcl_small_aligned(size_t bytes, size_t align) {
    return mi_malloc_aligned(at_least_16(bytes), align);
}

/* A page of this thread has become empty, or a full one worth using. */
static __attribute__((noinline)) void page_changed(mi_page_t *page) {
    if (mi_page_is_in_full(page))
        _mi_page_unfull(page);
    if (page->used == 0 && page->retire_expire == 0)
        _mi_page_retire(page);
}

static __attribute__((noinline)) void free_elsewhere(void *p, mi_page_t *page) {
    mi_free_ex(p, NULL, page);
}

/* mi_free, with one branch for a page of this thread, full or not: nearly all are nearly full. */
void tcl_small_free(void *p) {
    mi_page_t *page = *slice_of(p);
    if (tcl_unlikely(page == NULL))
        return; /* never handed out */
    mi_threadid_t other = _mi_prim_thread_id() ^ mi_page_xthread_id(page);
    if (tcl_unlikely(other > MI_PAGE_IN_FULL_QUEUE)) { /* another thread's, or with aligned slots */
        free_elsewhere(p, page);
        return;
    }
    mi_block_t *block = p;
    mi_block_set_next(page, block, page->local_free);
    page->local_free = block;
    unsigned used = --page->used;
    /* Each half of the first condition is unpredictable, the whole is rare: the asm keeps gcc from
     * splitting the branch. */
    unsigned changes = ((unsigned)other & (unsigned)worth_using(page)) | (used == 0);
    __asm__("" : "+r"(changes));
    if (tcl_unlikely(changes != 0))
        page_changed(page);
}

void tcl_small_free_far(void *p) {
    mi_free(p);
}
size_t tcl_small_usable(const void *p) {
    return mi_usable_size(p);
}
bool tcl_small_owns(const void *p) {
    return _mi_page_map && _mi_safe_ptr_page(p) != NULL;
}
void tcl_small_trim(void) {
    mi_collect(true);
}
void tcl_small_start(void) {
    _mi_auto_process_init();
}

void tcl_small_each(void (*visit)(const struct tcl_use *, void *), void *context) {
    size_t first = 0, end = tcl_small_top();
    for (size_t number = first; number < end; number += MI_ARENA_SLICE_SIZE >> PAGE_SHIFT) {
        struct run *run = run_at(number);
        if (atomic_load_explicit(&run->state, memory_order_acquire) != RUN_BLOCK)
            continue;
        struct tcl_use use = use_of(run);
        visit(&use, context);
        if (atomic_load_explicit(&run->state, memory_order_acquire) != RUN_BLOCK)
            tcl_note_died(&use); /* it died meanwhile; its note may have come too early */
    }
}

/* ---- Fork: no thread that the child will not have may hold a lock ---------------------------- */

static mi_lock_t *const fork_locks[] = {
    &heap_main.theaps_lock,
    &subproc_main.heaps_lock,
    &subproc_main.arena_reserve_lock,
    &heap_main.arena_pages_lock,
    &heap_main.os_abandoned_pages_lock,
    &mi_page_map_lock,
};
#define FORK_LOCKS (sizeof fork_locks / sizeof fork_locks[0])

static bool fork_holds[FORK_LOCKS]; /* each under its lock */

void tcl_small_before_fork(void) {
    for (size_t i = 0; i < FORK_LOCKS; i++) {
        /* As heap_lock_for_fork: where the only thread holds it, an allocation was interrupted. */
        bool is_held = tcl_forks_alone && !mi_lock_try_acquire(fork_locks[i]);
        if (!is_held && !tcl_forks_alone)
            mi_lock_acquire(fork_locks[i]);
        fork_holds[i] = !is_held;
    }
}

void tcl_small_after_fork(void) {
    for (size_t i = FORK_LOCKS; i-- > 0;)
        if (fork_holds[i])
            mi_lock_release(fork_locks[i]);
}
