/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * heap_split.c: large objects that are born in two memories, because the better one has room for
 * only a part of them, or because the plan states it. First touch would use that room, too.
 * In: runs at birth and at death. Out: ranges of a run bound to the better arena's node.
 * Knows nothing of budgets (birth.c) or of how runs are found.
 *
 *   |<----- range ----->|<-- rest -->|<--- range --->|<-- rest -->|
 *    node of a better    node of the run's own arena                  each binding adds a VMA
 *    arena
 *
 * The record names the run's own arena; the daemon's first residency scan finds the ranges. When
 * the run is freed, its ranges are bound to its own arena again. A binding affects only OS pages
 * that are not resident yet, so the ranges of a run that was touched before would not move. With a
 * plan, their memory is therefore released first, and again at the death: other planned births need
 * its room.
 */
#include "heap.h"

/* Live runs that are split; under tcl_heap_lock. 256: chosen, not measured; a birth that finds no
 * slot is not split. */
static struct split_run {
    uint32_t number; /* OS page number of the run's first */
    bool is_planned;
    struct tcl_split split;
} splits[256];
static unsigned split_count;

#define SPLITS_MAX (sizeof splits / sizeof *splits)

static uintptr_t address_of(size_t number, const struct tcl_split_range *range) {
    return tcl_heap_range.base + (number << PAGE_SHIFT) + range->at;
}

/* Binds all ranges to an arena's node. */
static void bind_ranges(size_t number, const struct tcl_split *split, unsigned arena) {
    for (unsigned i = 0; i < split->count; i++)
        tcl_os_bind(address_of(number, &split->ranges[i]), split->ranges[i].bytes,
                    tcl_arena_node(arena));
}

static void release_ranges(size_t number, const struct tcl_split *split) {
    for (unsigned i = 0; i < split->count; i++)
        tcl_os_clear(address_of(number, &split->ranges[i]), split->ranges[i].bytes);
}

void tcl_split_begin(struct run *run, size_t bytes, bool is_touched) {
    size_t number = number_of(run);
    unsigned k = tcl_arena_of_page(number);
    bool is_planned = tcl_birth_is_planned();
    if (is_touched && !is_planned)
        return;
    heap_lock(&tcl_heap_lock);
    struct tcl_split split = {0};
    if (split_count < SPLITS_MAX)
        split = tcl_birth_split(bytes, run->site, k);
    if (split.count) {
        splits[split_count++] = (struct split_run){(uint32_t)number, is_planned, split};
        bind_ranges(number, &split, split.arena);
        if (is_touched)
            release_ranges(number, &split);
    }
    heap_unlock(&tcl_heap_lock);
}

void tcl_split_end(size_t number, bool is_dead) {
    tcl_assert_debug(tcl_is_held(&tcl_heap_lock) && split_count <= SPLITS_MAX);
    for (unsigned i = 0; i < split_count; i++)
        if (splits[i].number == number) {
            const struct tcl_split *split = &splits[i].split;
            bind_ranges(number, split, tcl_arena_of_page(number));
            if (is_dead && splits[i].is_planned)
                release_ranges(number, split);
            for (unsigned k = 0; k < split->count; k++)
                tcl_birth_refund(split->arena, split->ranges[k].bytes);
            splits[i] = splits[--split_count];
            return;
        }
}
