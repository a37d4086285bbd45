/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * heap_split.c: large objects that are born in two memories, because the better one has room for a
 * part of them only, or the plan says so. First touch gives a program that part for nothing; so do
 * we.
 * In: runs at birth and at death. Out: the head of a run bound to the better arena's node.
 * Knows nothing of budgets (birth.c) or of how runs are found.
 *
 *   |<------- head ------->|<------------- rest ------------->|
 *    node of a better arena  node of the arena the run is of     each binding one VMA more
 *
 * The record names the run's own arena; the daemon's first look finds the head. A head is bound
 * back when its run is given back, so that an arena's free memory is the arena's again. Binding
 * says where memory is to come from, not where it goes: of a run that was touched before a head
 * would stay where it is. Where a plan wants it, it goes back to the kernel first, and so it does
 * at the end: other planned births count on its room.
 */
#include "heap.h"

/* Where one live run is split. All under tcl_heap_lock. */
static struct split {
    uint32_t number; /* OS page number of the run's first */
    uint32_t pages;  /* of its head */
    uint32_t arena;  /* of its head */
    bool is_planned;
} splits[256];
static unsigned split_count;

#define SPLITS_MAX (sizeof splits / sizeof *splits)

static void give_back(size_t number, size_t pages) {
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
            give_back(number, head);
    }
    heap_unlock(&tcl_heap_lock);
}

void tcl_split_end(size_t number, bool is_dead) {
    for (unsigned i = 0; i < split_count; i++)
        if (splits[i].number == number) {
            bind_head(number, splits[i].pages, tcl_arena_of_page(number));
            if (is_dead && splits[i].is_planned)
                give_back(number, splits[i].pages);
            tcl_birth_give(splits[i].arena, (size_t)splits[i].pages << PAGE_SHIFT);
            splits[i] = splits[--split_count];
            return;
        }
}
