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
 *   its pages      keep the mark by which frees are checked, where they are
 *   its heaps      small_apart.c makes more, for sites that have blocks apart
 *   its mmap       bypasses our interposed one; its madvise respects vregions under the heap
 *   its start-up   follows our constructor, at the first allocation; it never cleans up at exit
 *
 * Long, because all that these macros change must be in one file.
 */
#include "heap.h"
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* clang-format off: their order matters. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "small.h"

static void unfull_late(mi_page_t *page);
static mi_page_t *page_alloc(mi_theap_t *theap, size_t bytes, size_t align);
static void set_has_aligned(mi_page_t *page, bool has_aligned);
static bool block_born(mi_page_t *page);
static void block_died(mi_page_t *page);
static mi_heap_t *preferring_heap(const mi_theap_t *theap);
static void *small_chunk(size_t bytes, size_t align, bool open, bool large, mi_memid_t *id);
static void start_options(void);

/* Good enough for when memory is given back, and not made of the CPU's counter, which a program may
 * forbid itself to read (track/clock.h). */
static int coarse_time(clockid_t clock, struct timespec *time) {
    return clock_gettime(clock == CLOCK_MONOTONIC ? CLOCK_MONOTONIC_COARSE : clock, time);
}

#define _mi_malloc_generic tcl_small_generic
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
#define _mi_os_numa_node() ((int)tcl_filling_arena())
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
#define mi_page_set_has_interior_pointers set_has_aligned
#include <src/page.c>
#undef _mi_arenas_page_alloc
#undef mi_page_set_has_interior_pointers
#define mmap tcl_os_mmap
#define munmap tcl_os_munmap
#define madvise tcl_os_madvise
#define pthread_key_create tcl_key_create
#define clock_gettime coarse_time
#include <src/prim/prim.c>
#undef mmap
#undef munmap
#undef madvise
#undef pthread_key_create
#undef clock_gettime
#include <src/random.c>
#include <src/stats.c>
#include <src/theap.c>
#include <src/threadlocal.c>
#pragma GCC diagnostic pop
/* clang-format on */

static void enter(struct run *run);
static void leave(struct run *run);
#include "small_adopt.h"

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
    if (found)
        return NULL; /* search again */
    struct filling before = tcl_filling_begin(theap, bytes);
    mi_page_t *page = align ? NULL : adopted(theap, bytes);
    if (!page)
        page = _mi_arenas_page_alloc(theap, bytes, align);
    tcl_filling_end(before);
    return page;
}

/* Memory for an arena of mimalloc; less than MI_ARENA_MIN_SIZE is for a block without an arena. */
static void *small_chunk(size_t bytes, size_t align, bool open, bool large, mi_memid_t *id) {
    void *chunk = NULL;
    if (bytes >= MI_ARENA_MIN_SIZE) {
        open = open && !tcl_frugal;
        chunk = tcl_small_chunk(tcl_filling_arena(), bytes, open);
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
    int arena = (int)tcl_filling_arena();
    if (tcl_unlikely(heap && __atomic_load_n(&heap->numa_node, __ATOMIC_RELAXED) != arena))
        __atomic_store_n(&heap->numa_node, arena, __ATOMIC_RELAXED);
    return heap;
}

static struct tcl_use use_of(const struct run *run) {
    return (struct tcl_use){.addr = page_address(number_of(run)),
                            .bytes = (size_t)run->total << PAGE_SHIFT,
                            .site = run->site,
                            .carve = run->carve,
                            .arena = run->arena,
                            .flags = TCL_BLOCK};
}

_Static_assert(SLICE_SHIFT == MI_ARENA_SLICE_SHIFT, "one entry a slice");

static void set_slices(void *start, size_t pages, mi_page_t *page) {
    void **slices = slice_of(start);
    for (size_t i = 0; i < pages << PAGE_SHIFT >> SLICE_SHIFT; i++)
        __atomic_store_n(&slices[i], page, __ATOMIC_RELAXED);
}

/* ---- Invalid frees ---------------------------------------------------------------------------
 *
 * With tcl_is_secure each block looks like one with aligned slots, whose frees do not take the fast
 * path: without it, this costs nothing. A free slot has a mark in its second word, as in mimalloc's
 * secure mode (a choice at build time, which would take a second library): a slot with the mark is
 * looked up in its block's lists of free slots, because the program may not have written to it.
 */
#define LISTED_MAX 8192 /* more than there are slots of 16 bytes in 64 KiB */

static uintptr_t secret; /* differs from run to run, and the mark from slot to slot */

static uintptr_t *mark_of(const void *p) {
    return (uintptr_t *)p + 1;
}

static bool is_listed(const mi_page_t *page, const mi_block_t *block, const mi_block_t *wanted) {
    for (int i = 0; block && i < LISTED_MAX; i++, block = mi_block_next(page, block))
        if (block == wanted)
            return true;
    return false;
}

/* Of a pointer into a block, before it is freed. Slots that other threads have freed are found by
 * the thread of the block alone: it may take their list at any time. */
static void check_free(void *p, const mi_page_t *page) {
    static const char invalid[] = "free(): invalid pointer\n";
    static const char twice[] = "free(): double free detected\n";
    size_t offset = (size_t)((uint8_t *)p - mi_page_start(page));
    uint8_t *start = mi_page_slice_start(page);
    if (!is_small(start) || run_at(page_number((uintptr_t)start))->block_flags & BLOCK_HAS_ALIGNED)
        return;
    if ((uint8_t *)p < mi_page_start(page) || offset % page->block_size != 0 ||
        offset / page->block_size >= page->capacity)
        tcl_abort_with(invalid, sizeof invalid - 1);
    bool is_mine = _mi_prim_thread_id() == mi_page_thread_id(page);
    if (is_mine && *mark_of(p) == (secret ^ (uintptr_t)p)) {
        const mi_block_t *theirs = mi_tf_block(mi_atomic_load_acquire(&page->xthread_free));
        if (is_listed(page, page->free, p) || is_listed(page, page->local_free, p) ||
            is_listed(page, theirs, p))
            tcl_abort_with(twice, sizeof twice - 1);
    }
    *mark_of(p) = secret ^ (uintptr_t)p;
}

static _Atomic bool may_start; /* mimalloc starts at the first allocation */

/* Called where a block becomes empty. */
static void set_has_aligned(mi_page_t *page, bool has_aligned) {
    bool is_sampled =
        is_small(mi_page_slice_start(page)) && (run_of(page)->block_flags & BLOCK_SAMPLES);
    mi_page_set_has_interior_pointers(page, has_aligned || tcl_is_secure || is_sampled);
}

void tcl_small_secure(void) {
    tcl_heap_init();
    if (atomic_exchange(&may_start, false))
        _mi_auto_process_init();
    size_t slices = tcl_small_top() << PAGE_SHIFT >> SLICE_SHIFT;
    secret = _mi_theap_random_next(_mi_theap_default()) | 1;
    for (size_t i = 0; i < slices; i++) {
        mi_page_t *page = tcl_heap_range.slices[i];
        if (!page || (i > 0 && tcl_heap_range.slices[i - 1] == page))
            continue;
        struct run *run = run_at(i << SLICE_SHIFT >> PAGE_SHIFT);
        if (mi_page_has_interior_pointers(page) && !(run->block_flags & BLOCK_SAMPLES))
            run->block_flags |= BLOCK_HAS_ALIGNED;
        mi_page_set_has_interior_pointers(page, true);
    }
}

/* ---- Memory of dead blocks -------------------------------------------------------------------
 *
 * mimalloc keeps it for a second. Runs cannot use it, so it is purged in exchange for runs in fresh
 * memory; and blocks in fresh memory are exchanged for the dirty memory of dead runs. */
static _Atomic size_t block_bytes;     /* of live blocks in the range */
static _Atomic size_t block_bytes_top; /* resident at most: of live and dead blocks */
static _Atomic size_t run_bytes_fresh; /* touched by runs since the last purge of dead blocks */

/* Dead blocks that the heap may have: this share of live ones, or 256 KiB. Chosen, not measured.
 */
#define DEAD_SHARE 16
#define DEAD_MIN ((size_t)256 << 10)
/* As EXCHANGE_MIN of heap.c. */
#define FRESH_MIN ((size_t)256 << 10)

size_t tcl_small_bytes(void) {
    return atomic_load_explicit(&block_bytes, memory_order_relaxed);
}

/* Purges up to *left of the slices. Those it does not claim are in use again. */
static bool purge_some(size_t slice, size_t count, mi_arena_t *arena, void *context) {
    size_t *left = context, purged = count < *left ? count : *left;
    if (*left == 0)
        return false;
    mi_purge_visit_info_t info = {0};
    mi_arena_try_purge_visitor(slice, purged, arena, &info);
    if (purged < count)
        mi_bitmap_setN(arena->slices_purge, slice + purged, count - purged, NULL);
    *left -= purged;
    return true;
}

static void purge_dead(size_t bytes) {
    size_t left = bytes / MI_ARENA_SLICE_SIZE, all = left;
    mi_subproc_t *subproc = _mi_subproc();
    for (size_t i = mi_arenas_get_count(subproc); left > 0 && i-- > 0;) {
        mi_arena_t *arena = mi_arena_from_index(subproc, i);
        if (arena)
            _mi_bitmap_forall_setc_ranges(arena->slices_purge, purge_some, arena, &left);
    }
    /* What was not found is in blocks that mimalloc keeps for the next allocation. */
    atomic_fetch_sub_explicit(&block_bytes_top, (all - left) * MI_ARENA_SLICE_SIZE,
                              memory_order_relaxed);
}

void tcl_small_exchange(size_t fresh) {
    size_t live = tcl_small_bytes(), allowed = live / DEAD_SHARE;
    size_t dead = atomic_load_explicit(&block_bytes_top, memory_order_relaxed) - live;
    allowed = allowed < DEAD_MIN ? DEAD_MIN : allowed;
    if (tcl_likely(dead <= allowed || dead > SIZE_MAX / 2))
        return;
    fresh += atomic_fetch_add_explicit(&run_bytes_fresh, fresh, memory_order_relaxed);
    if (fresh < FRESH_MIN)
        return;
    atomic_store_explicit(&run_bytes_fresh, 0, memory_order_relaxed);
    int saved = errno;
    purge_dead(fresh < dead - allowed ? fresh : dead - allowed);
    errno = saved;
}

static void count_born(size_t pages) {
    size_t bytes = pages << PAGE_SHIFT;
    size_t live = bytes + atomic_fetch_add_explicit(&block_bytes, bytes, memory_order_relaxed);
    if (live <= atomic_load_explicit(&block_bytes_top, memory_order_relaxed))
        return;
    atomic_store_explicit(&block_bytes_top, live, memory_order_relaxed);
    tcl_pages_exchange(pages);
}

/* Of a block, what counts before the process attaches. The first of its size hardly gets used by a
 * small program, which has objects of many sizes: it counts as the first OS page of its slots. */
static size_t attaching_bytes(const mi_page_t *page, size_t bytes) {
    static _Atomic bool has_blocks[MI_BIN_COUNT];
    _Atomic bool *has = &has_blocks[_mi_bin(page->block_size)];
    return atomic_exchange_explicit(has, true, memory_order_relaxed) ? bytes : TCL_PAGE;
}

/* A block as the tracker sees it is there from now on. */
static void enter(struct run *run) {
    atomic_store_explicit(&run->state, RUN_BLOCK, memory_order_release);
    if (tcl_unlikely(tcl_tracking())) {
        struct tcl_use use = use_of(run);
        tcl_note_born(&use);
    }
}

static void leave(struct run *run) {
    tcl_assert_debug(run->state == RUN_BLOCK);
    if (tcl_unlikely(tcl_tracking())) {
        struct tcl_use use = use_of(run);
        tcl_note_died(&use);
    }
    atomic_store_explicit(&run->state, RUN_NONE, memory_order_release);
}

static bool block_born(mi_page_t *page) {
    if (!_mi_page_map_register(page))
        return false;
    uint8_t *start = mi_page_slice_start(page);
    if (tcl_unlikely(!is_small(start)))
        return true;
    struct run *run = run_at(page_number((uintptr_t)start));
    tcl_assert_debug(run->state == RUN_NONE);
    unsigned k = tcl_arena_of_page(number_of(run)), wanted = tcl_filling_arena();
    run->total = (uint32_t)(mi_page_full_size(page) >> PAGE_SHIFT);
    run->carve = tcl_next_carve();
    run->arena = tcl_arena_bind(k);
    run->site = tcl_filling.site;
    run->block_flags = tcl_filling.flags;
    if (tcl_unlikely(tcl_is_secure || (run->block_flags & BLOCK_SAMPLES)))
        mi_page_set_has_interior_pointers(page, true);
    set_slices(start, run->total, page);
    enter(run);
    count_born(run->total);
    if (tcl_unlikely(tcl_tracking())) {
        size_t block = (size_t)run->total << PAGE_SHIFT;
        tcl_birth_charge(k, block);
        tcl_session_note_block(attaching_bytes(page, block));
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
        size_t bytes = (size_t)run->total << PAGE_SHIFT;
        atomic_fetch_sub_explicit(&block_bytes, bytes, memory_order_relaxed);
        leave(run);
        set_slices(start, run->total, NULL);
    }
    _mi_page_map_unregister(page);
}

/* ---- Called by malloc.c ---------------------------------------------------------------------- */

/* The end of mimalloc's fast path. It may set errno or not, whatever the result. */
__attribute__((noinline)) void *tcl_small_generic(mi_theap_t *theap, size_t bytes, size_t zero,
                                                  size_t *usable) {
    int saved = errno;
    if (tcl_likely(mi_theap_is_initialized(theap)))
        theap->allow_page_abandon = theap->pages[MI_BIN_FULL].count >= FULL_PAGES_MAX;
    else if (atomic_exchange(&may_start, false))
        _mi_auto_process_init();
    void *p = _mi_malloc_generic(theap, bytes, zero, usable);
    if (tcl_unlikely(atomic_load_explicit(&tcl_attach_due, memory_order_relaxed)))
        tcl_session_attach_due();
    if (tcl_unlikely(atomic_load_explicit(&tcl_limit_due, memory_order_relaxed)))
        tcl_limit_look();
    errno = p ? saved : ENOMEM;
    return p;
}

/* mi_malloc, without clearing the first word of the slot: a program that reads uninitialised memory
 * finds an address of its own heap there, as with glibc. */
void *tcl_small_fast(size_t bytes) {
    if (tcl_unlikely(bytes > MI_SMALL_SIZE_MAX))
        return NULL;
    mi_page_t *page = _mi_theap_get_free_small_page(_mi_theap_default(), at_least_16(bytes));
    mi_block_t *block = page->free;
    if (tcl_likely(block != NULL)) {
        page->free = mi_block_next(page, block);
        page->used++;
    }
    return block;
}

void *tcl_small_zfast(size_t bytes) {
    if (tcl_unlikely(bytes > MI_SMALL_SIZE_MAX))
        return NULL;
    mi_theap_t *theap = _mi_theap_default();
    mi_page_t *page = _mi_theap_get_free_small_page(theap, at_least_16(bytes));
    if (tcl_unlikely(page->free == NULL))
        return NULL;
    return _mi_page_malloc_zero(theap, page, at_least_16(bytes), true);
}

void *tcl_small_alloc(size_t bytes, bool zero, struct caller caller) {
    mi_theap_t *theap = _mi_theap_default();
    if (tcl_unlikely(tcl_tracking()))
        return tcl_small_by_site(theap, at_least_16(bytes), zero, caller);
    return tcl_small_generic(theap, at_least_16(bytes), zero, NULL);
}

void *tcl_small_aligned(size_t bytes, size_t align, struct caller caller) {
    bytes = at_least_16(bytes);
    if (tcl_unlikely(tcl_tracking()))
        return tcl_small_aligned_by_site(bytes, align, caller);
    return mi_malloc_aligned(bytes, align);
}

/* A page of this thread has become empty, or a full one worth using. */
static __attribute__((noinline)) void page_changed(mi_page_t *page) {
    size_t bytes = page->block_size;
    if (mi_page_is_in_full(page))
        _mi_page_unfull(page);
    if (page->used == 0 && page->retire_expire == 0)
        _mi_page_retire(page);
    if (tcl_unlikely(atomic_load_explicit(&tcl_has_guards, memory_order_relaxed)))
        tcl_small_guard(bytes);
}

/* In a block that looks like one with aligned slots: so do those of sampled births, and all where
 * frees are checked. */
static __attribute__((noinline)) void free_marked(void *p, mi_page_t *page) {
    if (tcl_is_secure)
        check_free(p, page);
    if (run_of(page)->block_flags & BLOCK_SAMPLES)
        tcl_small_died(p);
    mi_free_ex(p, NULL, page);
}

static __attribute__((noinline)) void free_elsewhere(void *p, mi_page_t *page) {
    if (tcl_unlikely(mi_page_has_interior_pointers(page)))
        free_marked(p, page);
    else
        mi_free_ex(p, NULL, page);
}

static __attribute__((noinline, cold)) void free_outside(void) {
    static const char text[] = "free(): invalid pointer\n";
    if (tcl_is_secure)
        tcl_abort_with(text, sizeof text - 1);
}

/* mi_free, with one branch for a page of this thread, full or not: nearly all are nearly full. */
void tcl_small_free(void *p) {
    mi_page_t *page = *slice_of(p);
    if (tcl_unlikely(page == NULL)) {
        free_outside();
        return; /* never handed out */
    }
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
    uint32_t count = atomic_load_explicit(&tcl_apart_count, memory_order_acquire);
    mi_collect(true);
    for (uint32_t i = 0; i < count; i++) {
        mi_theap_t *theap = _mi_heap_theap_get_peek(tcl_apart[i].heap);
        if (theap && mi_theap_is_initialized(theap))
            mi_theap_collect(theap, true);
    }
}
void tcl_small_may_start(void) {
    bool has_begun = _mi_process_is_initialized;
    if (has_begun)
        _mi_auto_process_init();
    else
        atomic_store(&may_start, true);
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

size_t tcl_small_used(void) {
    size_t used = 0, slices = tcl_small_top() << PAGE_SHIFT >> SLICE_SHIFT;
    for (size_t i = 0; i < slices; i++) {
        const mi_page_t *page = __atomic_load_n(&tcl_heap_range.slices[i], __ATOMIC_RELAXED);
        bool is_first = page && (i == 0 || tcl_heap_range.slices[i - 1] != page);
        /* A block that dies meanwhile: its description stays readable, and counts as it is read. */
        if (is_first)
            used += (size_t)__atomic_load_n(&page->used, __ATOMIC_RELAXED) * page->block_size;
    }
    return used;
}

/* ---- Fork: no thread that the child will not have may hold a lock ---------------------------- */

static mi_lock_t *const main_locks[] = {
    &heap_main.theaps_lock,
    &subproc_main.heaps_lock,
    &subproc_main.arena_reserve_lock,
    &heap_main.arena_pages_lock,
    &heap_main.os_abandoned_pages_lock,
    &mi_page_map_lock,
};
#define MAIN_LOCKS (sizeof main_locks / sizeof main_locks[0])
#define HEAP_LOCKS 3 /* of a heap of blocks apart */
#define FORK_LOCKS (1 + HEAP_LOCKS * TCL_APART_MAX + MAIN_LOCKS)

static mi_lock_t *fork_locks[FORK_LOCKS]; /* those held, in their order */
static size_t fork_lock_count;

static void hold_for_fork(mi_lock_t *lock) {
    /* As heap_lock_for_fork: where the only thread holds it, an allocation was interrupted. */
    bool is_held = tcl_forks_alone && !mi_lock_try_acquire(lock);
    if (is_held)
        return;
    if (!tcl_forks_alone)
        mi_lock_acquire(lock);
    fork_locks[fork_lock_count++] = lock;
}

void tcl_small_before_fork(void) {
    fork_lock_count = 0;
    hold_for_fork(&tcl_apart_lock); /* first: no heap is made from here on */
    for (size_t i = 0; i < tcl_apart_count; i++) {
        hold_for_fork(&tcl_apart[i].heap->theaps_lock);
        hold_for_fork(&tcl_apart[i].heap->arena_pages_lock);
        hold_for_fork(&tcl_apart[i].heap->os_abandoned_pages_lock);
    }
    for (size_t i = 0; i < MAIN_LOCKS; i++)
        hold_for_fork(main_locks[i]);
}

void tcl_small_after_fork(void) {
    while (fork_lock_count > 0)
        mi_lock_release(fork_locks[--fork_lock_count]);
}
