/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * small_adopt.h: blocks change heaps, so that none stay half empty where another site replaces what
 * their site built. Part of small.c, which has mimalloc's sources.
 * In: a thread that is about to take a fresh block. Out: one of another of its heaps instead.
 * Knows nothing of sites' placements.
 *
 * What one site built, another replaces: its objects leave free slots in blocks apart whose site
 * allocates no more, and take slots in blocks of their own. Such a program would hold twice its
 * live memory. Therefore, once a thread's other heaps have SLACK_SHARE of all blocks free in a size
 * class, one of their blocks is taken over. It then is of any site, as blocks of the main heap are.
 */
#ifndef TCL_SMALL_ADOPT_H
#define TCL_SMALL_ADOPT_H

/* So that the 24 classes from 64 bytes to 4 KiB keep less than a twentieth unused. A key-value
 * store of 48 MiB, whose sets replace what its start built, held 93 MB without this, 67 with 256,
 * 62 with 1024, and 58 in the main heap alone. */
#define SLACK_SHARE 512
/* An eighth of the slots must be free in a block that is taken over: fewer would be a scan for each
 * few objects. A quarter: 65 MB of those 62. */
#define TAKEN_FRACTION 8
/* Blocks of a heap that are looked at. Chosen, not measured: 5 us where each is a cache miss. */
#define TAKEN_SEARCH 64

static size_t free_slots(const mi_page_t *page) {
    return (size_t)page->capacity - page->used;
}

/* Whether slots of the block may serve what the thread is about to allocate: it is in memory as
 * good, and its frees take the usual path. */
static bool may_serve(mi_page_t *page) {
    if (!is_small(mi_page_slice_start(page)))
        return false;
    struct run *run = run_of(page);
    return !(run->block_flags & (BLOCK_SAMPLES | BLOCK_OF_HEAT)) &&
           tcl_arena_of_page(number_of(run)) <= tcl_filling_arena();
}

/* Of a heap's blocks of a size class, the one with most free slots, if they are more than `best`
 * has. Adds the bytes of free slots. */
static mi_page_t *emptiest(mi_theap_t *theap, size_t bytes, mi_page_t *best, size_t *free_bytes) {
    int left = TAKEN_SEARCH;
    for (mi_page_t *page = mi_page_queue(theap, bytes)->first; page && left-- > 0;
         page = page->next) {
        if (!may_serve(page))
            continue;
        *free_bytes += free_slots(page) * page->block_size;
        if (!best || free_slots(page) > free_slots(best))
            best = page;
    }
    return best;
}

/* The block, which the thread has, leaves its heap for that of `theap`, as mi_heap_delete does it
 * with all of a heap's; false when memory is short. */
static bool change_heap(mi_page_t *page, mi_theap_t *theap) {
    mi_heap_t *heap = _mi_theap_heap(theap);
    size_t slice;
    mi_arena_pages_t *before = NULL;
    mi_arena_t *arena = mi_page_arena_pages(page, &slice, NULL, &before);
    mi_arena_pages_t *after = mi_heap_ensure_arena_pages(heap, arena);
    if (!after)
        return false;
    mi_theap_t *from = mi_page_theap(page);
    mi_page_queue_remove(mi_page_queue_of(page), page);
    mi_bitmap_clear(before->pages, slice);
    mi_bitmap_set(after->pages, slice);
    mi_theap_stat_decrease(from, page_bins[_mi_page_stats_bin(page)], 1);
    mi_theap_stat_decrease(from, pages, 1);
    mi_theap_stat_increase(theap, page_bins[_mi_page_stats_bin(page)], 1);
    mi_theap_stat_increase(theap, pages, 1);
    page->heap = _mi_is_heap_main(heap) ? NULL : heap;
    page->retire_expire = 0;
    mi_page_set_theap(page, NULL); /* the caller takes it as it takes abandoned ones */
    return true;
}

/* A block of another heap of the thread, for that of `theap`; NULL: a fresh one is to be taken. */
static mi_page_t *adopted(mi_theap_t *theap, size_t bytes) {
    if (tcl_likely(!atomic_load_explicit(&tcl_apart_count, memory_order_relaxed)) ||
        tcl_filling.flags & (BLOCK_SAMPLES | BLOCK_OF_HEAT) || bytes > MI_SMALL_MAX_OBJ_SIZE)
        return NULL;
    mi_page_t *best = NULL;
    size_t free_bytes = 0;
    for (mi_theap_t *other = theap->tld->theaps; other; other = other->tnext)
        if (other != theap)
            best = emptiest(other, bytes, best, &free_bytes);
    if (!best || free_bytes < tcl_small_bytes() / SLACK_SHARE ||
        free_slots(best) < best->capacity / TAKEN_FRACTION || !change_heap(best, theap))
        return NULL;
    struct run *run = run_of(best);
    run->block_flags &= ~(uint32_t)BLOCK_DUE; /* a sampled birth comes with the next list */
    if (run->site) {
        leave(run);
        run->site = 0;
        run->carve = tcl_next_carve();
        enter(run);
    }
    return best;
}

#endif
