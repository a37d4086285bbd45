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
 * The record names the run's own arena; the daemon's first residency scan finds the head. When the
 * run is freed, its head is bound to its own arena again. A binding affects only OS pages that are
 * not resident yet, so the head of a run that was touched before would not move. With a plan, its
 * memory is therefore released first, and again at the death: other planned births need its room.
 */
#include "heap.h"

/* Live runs that are split; under tcl_heap_lock. 256: chosen, not measured; a birth that finds no
 * slot is not split. */
static struct split {
    uint32_t number; /* OS page number of the run's first */
    uint32_t pages;  /* of its head */
    uint32_t arena;  /* of its head */
    bool is_planned;
} splits[256];
static unsigned split_count;

#define SPLITS_MAX (sizeof splits / sizeof *splits)

static void release_pages(size_t number, size_t pages) {
    tcl_os_clear(tcl_heap_range.base + (number << PAGE_SHIFT), pages << PAGE_SHIFT);
}

static void bind_head(size_t number, size_t pages, unsigned k) {
    tcl_os_bind(tcl_heap_range.base + (number << PAGE_SHIFT), pages << PAGE_SHIFT,
                tcl_arena_node(k));
}

void tcl_split_begin(struct run *run, size_t bytes, bool is_touched) {
    size_t number = number_of(run);
    unsigned k = tcl_arena_of_page(number), better = 0;
    bool is_planned = tcl_birth_is_planned();
    if (is_touched && !is_planned)
        return;
    heap_lock(&tcl_heap_lock);
    size_t head = 0;
    if (split_count < SPLITS_MAX)
        head = tcl_birth_head(bytes, run->site, k, &better) >> PAGE_SHIFT;
    if (head) {
        splits[split_count++] =
            (struct split){(uint32_t)number, (uint32_t)head, better, is_planned};
        bind_head(number, head, better);
        if (is_touched)
            release_pages(number, head);
    }
    heap_unlock(&tcl_heap_lock);
}

void tcl_split_end(size_t number, bool is_dead) {
    tcl_assert_debug(tcl_is_held(&tcl_heap_lock) && split_count <= SPLITS_MAX);
    for (unsigned i = 0; i < split_count; i++)
        if (splits[i].number == number) {
            bind_head(number, splits[i].pages, tcl_arena_of_page(number));
            if (is_dead && splits[i].is_planned)
                release_pages(number, splits[i].pages);
            tcl_birth_refund(splits[i].arena, (size_t)splits[i].pages << PAGE_SHIFT);
            splits[i] = splits[--split_count];
            return;
        }
}
