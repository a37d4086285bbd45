/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * heap_split.c: large objects that are born in two memories, because the better one has room for
 * only a part of them, or because the plan states it. First touch would use that room, too.
 * In: runs at birth and at death. Out: the head of a run bound to the better arena's node.
 * Knows nothing of budgets (birth.c) or of how runs are found.
 *
 *   |<------- head ------->|<------------- rest ------------->|
 *    node of a better arena  node of the run's own arena         each binding adds a VMA
 *
 * The record names no arena, unless the daemon knows the head from the plan, so that the daemon
 * looks at the next tick where both parts are, and counts the head before it grants room anew. When
 * the run is freed, its head is released and bound to its own arena again, so that its room is free
 * for the next birth. A binding affects only OS pages that are not resident yet: the head of a run
 * that was touched before is released first. The owner of a run makes the system calls, without the
 * heap's lock, which protects the table alone.
 */
#include "heap.h"

/* Live runs that are split; under tcl_heap_lock. 256: chosen, not measured; a birth that finds no
 * slot is not split. */
static struct split {
    uint32_t number; /* OS page number of the run's first */
    uint32_t pages;  /* of its head */
    uint32_t arena;  /* of its head */
} splits[256];
static _Atomic unsigned split_count; /* changed under tcl_heap_lock */

#define SPLITS_MAX (sizeof splits / sizeof *splits)

static bool bind_split(size_t number, size_t pages, unsigned k) {
    return tcl_os_bind(page_address(number), pages << PAGE_SHIFT, tcl_arena_node(k));
}

static bool add_split(struct split split) {
    heap_lock(&tcl_heap_lock);
    unsigned count = split_count;
    if (count < SPLITS_MAX) {
        splits[count] = split;
        split_count = count + 1;
    }
    heap_unlock(&tcl_heap_lock);
    return count < SPLITS_MAX;
}

/* Of the run that begins with this OS page; NULL: it is not split. Under the lock. */
static struct split *find_split(size_t number) {
    tcl_assert_debug(tcl_is_held(&tcl_heap_lock) && split_count <= SPLITS_MAX);
    for (unsigned i = 0; i < split_count; i++)
        if (splits[i].number == number)
            return &splits[i];
    return NULL;
}

/* Cuts the head down to `pages`, or removes the entry. What was cut off; no pages: nothing. */
static struct split cut_split(size_t number, size_t pages) {
    struct split cut = {0};
    heap_lock(&tcl_heap_lock);
    struct split *split = find_split(number);
    if (split && split->pages > pages) {
        cut = (struct split){(uint32_t)(number + pages), split->pages - (uint32_t)pages,
                             split->arena};
        split->pages = (uint32_t)pages;
        if (!pages)
            *split = splits[--split_count];
    }
    heap_unlock(&tcl_heap_lock);
    return cut;
}

bool tcl_split_begin(struct run *run, size_t bytes, uint32_t site) {
    size_t number = number_of(run);
    unsigned k = tcl_arena_of_page(number), better = 0;
    size_t head = tcl_birth_head(bytes, site, k, &better) >> PAGE_SHIFT;
    if (!head)
        return false;
    if (!add_split((struct split){(uint32_t)number, (uint32_t)head, better})) {
        tcl_birth_refund(better, head << PAGE_SHIFT);
    } else if (!bind_split(number, head, better)) {
        cut_split(number, 0);
        tcl_birth_refund(better, head << PAGE_SHIFT);
    } else {
        if (run->touched)
            tcl_os_clear(page_address(number), head << PAGE_SHIFT);
        if (tcl_birth_is_planned())
            return false;
        tcl_birth_refund(k, bytes); /* its death will refund no arena */
        return true;
    }
    return false;
}

void tcl_split_end(size_t number, size_t pages, bool keeps_contents) {
    if (tcl_likely(!atomic_load_explicit(&split_count, memory_order_relaxed)))
        return;
    struct split gone = cut_split(number, pages);
    if (!gone.pages)
        return;
    bind_split(gone.number, gone.pages, tcl_arena_of_page(number));
    if (!keeps_contents)
        tcl_os_clear(page_address(gone.number), (size_t)gone.pages << PAGE_SHIFT);
    tcl_birth_refund(gone.arena, (size_t)gone.pages << PAGE_SHIFT);
}
