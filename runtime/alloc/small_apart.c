/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * small_apart.c: samples the births of small objects, and gives sites that keep much in small
 * objects blocks of their own.
 * In: allocations that left mimalloc's fast path, with their callers. Out: slots; sampled births
 * and their deaths, for track/small_sites.c, which decides who gets blocks apart.
 * Knows nothing of records or plans.
 *
 *   sampled birth   one whose call was looked up; it stands for the births before it
 *   apart           of a site: its slots come from a heap of its own
 *   hot, cold       of an object: the caller states it; each has one heap, bound to one arena
 *   marked          of a size class: a site has blocks apart in it
 *   credit          births of marked classes that a thread may still look up
 *   guarded         marked, while the thread has credit: its list is empty
 *
 * The fast path takes a slot from the list of its size class, and knows neither how many it took
 * nor for whom. Nothing is added to it; instead, lists end where something is to be done:
 *
 *   sampling   the list that a block hands to the fast path is cut where the next sampled birth is
 *              due, after so many bytes of slots. The rest of the list waits in the block's local
 *              frees, which mimalloc takes next. Sampled births have blocks of a heap of their own,
 *              whose frees are not on the fast path, so that their deaths are seen.
 *   apart      the list of a guarded class is empty, so that each allocation comes here, and
 *              takes its slot from the heap of its site, or from the block that the list was of.
 *
 * Classes above MI_SMALL_SIZE_MAX have no such list: each of their allocations comes here anyway.
 */
#include "small.h"
#include <errno.h>
#include <string.h>

struct apart tcl_apart[TCL_APART_MAX];
_Atomic uint32_t tcl_apart_count;
mi_lock_t tcl_apart_lock = MI_LOCK_INITIALIZER;
__thread struct filling tcl_filling;

/* By site, and by temperature: 1 + the index in tcl_apart; 0: it has no blocks apart. Release;
 * after the heap. */
static _Atomic uint8_t apart_of[TCL_SITES_MAX];
static _Atomic uint8_t apart_of_heat[TCL_TEMPERATURES];
/* Bits by size class. */
static _Atomic uint64_t marked[(MI_BIN_COUNT + 63) / 64];
_Atomic bool tcl_has_guards;

/* What the thread knows of recent calls: the part of a heap that their births take slots from. */
struct memo {
    struct tcl_call call;
    uint32_t generation; /* 0: none */
    mi_theap_t *theap;   /* NULL: their site has no blocks apart */
};
/* In pairs. Chosen: 16 * 64 bytes a thread; loops that fill a structure allocate from a few places.
 */
#define MEMOS 16
static __thread struct memo memos[MEMOS];

/* Without credit, a thread's lists are full as if no class was marked. Blocks apart give
 * CREDIT_BLOCK for each slot, sampled births of sites with blocks apart one for every CREDIT_SHARE
 * slots that they stand for: what is built is looked up, and of what is only replaced an eighth.
 * Chosen: the first and the most that a thread can have take it about 1 ms. */
#define CREDIT_FIRST 16384
#define CREDIT_MAX 65536
#define CREDIT_BLOCK 4
#define CREDIT_SHARE 8
#define SAMPLED_BYTES 32768 /* bytes that a sampled birth stands for, at least */
static __thread int32_t credit;

static __thread int64_t gap;     /* bytes until the next sampled birth */
static __thread uint64_t random; /* 0: the thread has drawn no gap */

_Static_assert(TCL_APART_MAX < UINT8_MAX, "a site's heap has a number of 8 bits");

/* ---- Heaps ----------------------------------------------------------------------------------- */

static void add_credit(size_t births) {
    births += credit > 0 ? (size_t)credit : 0;
    credit = births < CREDIT_MAX ? (int32_t)births : CREDIT_MAX;
}

struct filling tcl_filling_begin(const mi_theap_t *theap, size_t bytes) {
    struct filling before = tcl_filling, now = {0};
    const mi_heap_t *heap = _mi_theap_heap(theap);
    uint32_t count = atomic_load_explicit(&tcl_apart_count, memory_order_acquire);
    enum tcl_temperature heat = TCL_LUKEWARM;
    for (uint32_t i = 0; i < count; i++)
        if (tcl_apart[i].heap == heap) {
            now.site = tcl_apart[i].site;
            heat = tcl_apart[i].heat;
            now.flags = heat ? BLOCK_OF_HEAT : now.site ? 0 : BLOCK_SAMPLES;
        }
    if (now.site)
        add_credit(CREDIT_BLOCK * MI_ARENA_SLICE_SIZE / bytes);
    now.arena = (uint8_t)((heat ? tcl_heat_arena(heat) : tcl_small_arena(now.site)) + 1);
    tcl_filling = now;
    return before;
}

/* Makes the heap `fresh` unless `known` has one; NULL: there is none. */
static mi_heap_t *heap_made(_Atomic uint8_t *known, struct apart fresh) {
    int saved = errno;
    mi_lock_acquire(&tcl_apart_lock);
    uint32_t count = atomic_load_explicit(&tcl_apart_count, memory_order_relaxed);
    unsigned at = atomic_load_explicit(known, memory_order_relaxed);
    fresh.heap = at || count == TCL_APART_MAX ? NULL : mi_heap_new();
    if (fresh.heap) {
        tcl_apart[count] = fresh;
        atomic_store_explicit(&tcl_apart_count, count + 1, memory_order_release);
        atomic_store_explicit(known, (uint8_t)(count + 1), memory_order_release);
    } else if (at) {
        fresh.heap = tcl_apart[at - 1].heap;
    }
    mi_lock_release(&tcl_apart_lock);
    errno = saved;
    return fresh.heap;
}

/* The heap of a site, made if there is none and `make`; NULL: there is none. */
static mi_heap_t *heap_of(uint32_t site, bool make) {
    unsigned at = atomic_load_explicit(&apart_of[site], memory_order_acquire);
    if (tcl_likely(at || !make))
        return at ? tcl_apart[at - 1].heap : NULL;
    return heap_made(&apart_of[site], (struct apart){.site = site});
}

static mi_heap_t *heap_of_heat(enum tcl_temperature heat) {
    unsigned at = atomic_load_explicit(&apart_of_heat[heat], memory_order_acquire);
    if (tcl_likely(at))
        return tcl_apart[at - 1].heap;
    return heap_made(&apart_of_heat[heat], (struct apart){.heat = heat});
}

/* The calling thread's part of a heap; NULL when memory is short. */
static mi_theap_t *theap_of(mi_heap_t *heap) {
    mi_theap_t *theap = heap ? _mi_heap_theap(heap) : NULL;
    return theap && mi_theap_is_initialized(theap) ? theap : NULL;
}

/* ---- Guarded size classes -------------------------------------------------------------------- */

static inline bool is_marked(size_t bin) {
    return atomic_load_explicit(&marked[bin / 64], memory_order_relaxed) >> bin % 64 & 1;
}
static inline bool is_marked_with_credit(size_t bin) {
    return is_marked(bin) && credit > 0;
}

/* Empties the list that the fast path has of a marked class; without credit, fills it again. */
static void set_list(mi_theap_t *theap, size_t bin) {
    size_t words = theap->pages[bin].block_size / sizeof(void *);
    mi_page_t *first = theap->pages[bin].first, *none = (mi_page_t *)&_mi_page_empty;
    mi_page_t *list = credit > 0 || !first ? none : first;
    if (theap->pages[bin].block_size > MI_SMALL_SIZE_MAX || theap->pages_free_direct[words] == list)
        return;
    for (; words > 0 && _mi_bin(words * sizeof(void *)) == bin; words--)
        theap->pages_free_direct[words] = list;
}

void tcl_small_guard(size_t bytes) {
    mi_theap_t *theap = _mi_theap_default();
    size_t bin = _mi_bin(bytes);
    if (tcl_unlikely(is_marked(bin)) && tcl_tracking() && mi_theap_is_initialized(theap))
        set_list(theap, bin);
}

static void mark(size_t bin) {
    atomic_fetch_or_explicit(&marked[bin / 64], 1ull << bin % 64, memory_order_relaxed);
    atomic_store_explicit(&tcl_has_guards, true, memory_order_relaxed);
}

/* A slot of the first block of its class, as on the fast path, or of another. */
static void *take(mi_theap_t *theap, size_t bytes, bool zero) {
    mi_page_t *page = mi_page_queue(theap, bytes)->first;
    if (tcl_likely(page && page->free && bytes <= MI_SMALL_SIZE_MAX))
        return _mi_page_malloc_zero(theap, page, bytes, zero);
    return tcl_small_generic(theap, bytes, zero, NULL);
}

/* ---- Sampled births -------------------------------------------------------------------------- */

static void draw_gap(void) {
    if (!random)
        add_credit(CREDIT_FIRST);
    gap = tcl_small_gap(&random);
}

/* Notes a birth; the thread's next one is due a gap later. */
static void note_sampled(const void *p, size_t bytes, size_t bin, uint32_t site) {
    draw_gap();
    bool is_apart = heap_of(site, false) != NULL;
    if (tcl_small_born(p, bytes, site) && !is_apart) {
        is_apart = heap_of(site, true) != NULL;
        if (!is_apart)
            tcl_remark(TCL_REMARK_MIXED);
    }
    if (is_apart) {
        mark(bin);
        add_credit(SAMPLED_BYTES / CREDIT_SHARE / bytes + 1);
    }
}

/* A slot among sampled births; NULL: there is none, and nothing was noted. */
static void *sampled(size_t bytes, size_t align, bool zero, size_t bin, struct caller caller) {
    mi_theap_t *theap = theap_of(heap_of(0, true));
    if (!theap)
        return NULL;
    void *p = align > 16 ? mi_theap_malloc_aligned(theap, bytes, align)
                         : tcl_small_generic(theap, bytes, zero, NULL);
    if (!p || !is_small(p))
        return p;
    uint32_t site = tcl_small_site(caller.return_address, caller.frame_address);
    note_sampled(p, theap->pages[bin].block_size, bin, site);
    return p;
}

/* Cuts the list that the fast path gets with this slot, where the next sampled birth is due within
 * it. The slot itself counts. */
static void cut_list(const void *p) {
    mi_page_t *page = *slice_of(p);
    struct run *run = run_of(page);
    size_t bytes = page->block_size, slots = page->capacity - page->used + 1u;
    if (page->local_free || (run->block_flags & BLOCK_SAMPLES))
        return; /* the list was handed out before, and counted */
    if (tcl_unlikely(!random))
        draw_gap();
    int64_t left = gap - (int64_t)(slots * bytes);
    if (tcl_likely(left > 0)) {
        gap = left;
        return;
    }
    /* Of the slots behind p, `most` are handed out before the sampled birth. */
    size_t most = (size_t)gap / bytes;
    mi_block_t *last = page->free;
    if (most == 0) {
        page->local_free = last;
        page->free = NULL;
    } else {
        for (size_t i = 1; last && i < most; i++)
            last = mi_block_next(page, last);
        if (last) {
            page->local_free = mi_block_next(page, last);
            mi_block_set_next(page, last, NULL);
        }
    }
    run->block_flags |= BLOCK_DUE;
}

/* True when the block that serves a class next, whose list is empty, has reached the sampled birth.
 */
static bool is_due(mi_page_t *page) {
    if (!page || !is_small(mi_page_slice_start(page)))
        return false;
    struct run *run = run_of(page);
    bool is = run->block_flags & BLOCK_DUE;
    run->block_flags &= ~(uint32_t)BLOCK_DUE;
    return is;
}

/* ---- Called by small.c ----------------------------------------------------------------------- */

/* Changes when a site gets blocks apart, and when code may have been replaced. */
static inline uint32_t memo_generation(void) {
    return 1 + atomic_load_explicit(&tcl_apart_count, memory_order_acquire) +
           atomic_load_explicit(&tcl_calls_forgotten, memory_order_relaxed);
}

static inline struct memo *pair_of(struct caller caller) {
    uintptr_t mixed = (uintptr_t)caller.return_address ^ (uintptr_t)caller.frame_address >> 4;
    return &memos[(mixed ^ mixed >> 4) % (MEMOS / 2) * 2];
}

static inline bool is_known(const struct memo *memo, struct caller caller) {
    return memo->generation == memo_generation() &&
           tcl_call_is(&memo->call, (uintptr_t)caller.return_address,
                       (uintptr_t)caller.frame_address);
}

/* The memo of a call; NULL: there is none. */
static inline struct memo *memo_of(struct caller caller) {
    struct memo *pair = pair_of(caller);
    return is_known(pair, caller) ? pair : is_known(pair + 1, caller) ? pair + 1 : NULL;
}

/* Counts a birth that came here by itself; true when it is to be sampled. */
static bool counts_down(size_t bytes) {
    if (tcl_unlikely(!random))
        draw_gap();
    gap -= (int64_t)bytes;
    return gap <= 0;
}

/* The part of the heap that a birth of a guarded class takes its slot from. */
static mi_theap_t *theap_for(mi_theap_t *theap, struct caller caller) {
    struct memo *memo = memo_of(caller);
    if (tcl_unlikely(!memo)) {
        uint32_t generation = memo_generation();
        memo = pair_of(caller);
        memo[1] = memo[0]; /* the older one of the pair is forgotten */
        memo->generation = 0;
        uint32_t site = tcl_small_site(caller.return_address, caller.frame_address);
        mi_theap_t *apart = site ? theap_of(heap_of(site, false)) : NULL;
        if (!site || !tcl_call_learn((uintptr_t)caller.return_address,
                                     (uintptr_t)caller.frame_address, &memo->call))
            return apart ? apart : theap;
        memo->generation = generation;
        memo->theap = apart;
    }
    return memo->theap ? memo->theap : theap;
}

/* A slot from the list of its size class in the heap of a site; NULL: it is empty. */
static inline void *take_known(mi_theap_t *theap, size_t bytes, bool zero) {
    mi_page_t *page = _mi_theap_get_free_small_page(theap, bytes);
    mi_block_t *block = page->free;
    if (tcl_unlikely(!block))
        return NULL;
    if (zero)
        return _mi_page_malloc_zero(theap, page, bytes, true);
    page->free = mi_block_next(page, block);
    page->used++;
    return block;
}

static void *by_site(mi_theap_t *theap, size_t bytes, bool zero, struct caller caller);

void *tcl_small_by_site(mi_theap_t *theap, size_t bytes, bool zero, struct caller caller) {
    if (tcl_unlikely(!mi_theap_is_initialized(theap))) {
        memset(memos, 0, sizeof(memos)); /* the thread may have ended, and its heaps with it */
        return tcl_small_generic(theap, bytes, zero, NULL);
    }
    if (bytes <= MI_SMALL_SIZE_MAX && credit > 0) {
        const struct memo *memo = memo_of(caller);
        void *p = memo && memo->theap ? take_known(memo->theap, bytes, zero) : NULL;
        if (tcl_likely(p != NULL)) {
            credit--;
            return p;
        }
    }
    return by_site(theap, bytes, zero, caller);
}

static __attribute__((noinline)) void *by_site(mi_theap_t *theap, size_t bytes, bool zero,
                                               struct caller caller) {
    size_t bin = _mi_bin(bytes);
    bool is_alone = is_marked_with_credit(bin);
    void *p = NULL;
    if (is_alone || bytes > MI_SMALL_SIZE_MAX) {
        mi_theap_t *from = is_alone ? theap_for(theap, caller) : theap;
        credit -= is_alone;
        if (from == theap && counts_down(bytes))
            p = sampled(bytes, 16, zero, bin, caller);
        if (!p)
            p = take(from, bytes, zero);
        if (tcl_unlikely(!p && from != theap))
            p = take(theap, bytes, zero);
    } else {
        mi_page_t *page = theap->pages[bin].first;
        bool ends = !page || !page->free;
        if (tcl_unlikely(ends && is_due(page)))
            p = sampled(bytes, 16, zero, bin, caller);
        if (!p && (p = tcl_small_generic(theap, bytes, zero, NULL)) && ends && is_small(p))
            cut_list(p);
    }
    if (tcl_unlikely(is_marked(bin)))
        set_list(theap, bin);
    return p;
}

void *tcl_small_aligned_by_site(size_t bytes, size_t align, struct caller caller) {
    mi_theap_t *theap = _mi_theap_default();
    if (tcl_unlikely(!mi_theap_is_initialized(theap))) {
        memset(memos, 0, sizeof(memos));
        return mi_malloc_aligned(bytes, align);
    }
    size_t bin = _mi_bin(bytes);
    mi_theap_t *from = is_marked_with_credit(bin) ? theap_for(theap, caller) : theap;
    void *p = NULL;
    if (from == theap && counts_down(bytes))
        p = sampled(bytes, align, false, bin, caller);
    if (!p)
        p = mi_theap_malloc_aligned(from, bytes, align);
    if (tcl_unlikely(!p && from != theap))
        p = mi_theap_malloc_aligned(theap, bytes, align);
    tcl_small_guard(bytes);
    return p;
}

void *tcl_small_of_heat(size_t bytes, bool zero, enum tcl_temperature heat) {
    tcl_assert_debug(bytes < SMALL_LIMIT && heat > TCL_LUKEWARM && heat < TCL_TEMPERATURES);
    if (tcl_unlikely(!mi_theap_is_initialized(_mi_theap_default())))
        return NULL;
    mi_theap_t *theap = theap_of(heap_of_heat(heat));
    return theap ? take(theap, at_least_16(bytes), zero) : NULL;
}
