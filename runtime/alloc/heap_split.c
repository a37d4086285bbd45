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
 * The record names no arena, unless the daemon knows the ranges from the plan, so that the daemon
 * looks at the next tick where all parts are. A record of its own states the head, which the daemon
 * counts, touched or not, before it grants room anew.
 * When the run is freed, they are released and bound to its own arena again, so that their room is
 * free for the next birth. A binding affects only OS pages that are not resident yet: ranges of a
 * run that was touched before are released first. The owner of a run makes the system calls,
 * without the heap's lock, which protects the table alone.
 */
#include "heap.h"

/* Live runs that are split; under tcl_heap_lock. 256: chosen, not measured; a birth that finds no
 * slot is not split. */
static struct split_run {
    uint32_t number; /* OS page number of the run's first */
    struct tcl_split split;
} splits[256];
static _Atomic unsigned split_count; /* changed under tcl_heap_lock */

#define SPLITS_MAX (sizeof splits / sizeof *splits)

/* ---- The memory of ranges -------------------------------------------------------------------- */

static uintptr_t address_of(size_t number, const struct tcl_split_range *range) {
    return page_address(number) + range->at;
}

/* Binds all ranges to an arena's node; false: the kernel refused. */
static bool bind_ranges(size_t number, const struct tcl_split *split, unsigned arena) {
    bool is_bound = true;
    for (unsigned i = 0; i < split->count; i++)
        is_bound &= tcl_os_bind(address_of(number, &split->ranges[i]), split->ranges[i].bytes,
                                tcl_arena_node(arena));
    return is_bound;
}

static void release_ranges(size_t number, const struct tcl_split *split) {
    for (unsigned i = 0; i < split->count; i++)
        tcl_os_clear(address_of(number, &split->ranges[i]), split->ranges[i].bytes);
}

static void refund_ranges(const struct tcl_split *split) {
    for (unsigned i = 0; i < split->count; i++)
        tcl_birth_refund(split->arena, split->ranges[i].bytes);
}

/* ---- The table ------------------------------------------------------------------------------- */

static bool add_split(struct split_run split) {
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
static struct split_run *find_split(size_t number) {
    tcl_assert_debug(tcl_is_held(&tcl_heap_lock) && split_count <= SPLITS_MAX);
    for (unsigned i = 0; i < split_count; i++)
        if (splits[i].number == number)
            return &splits[i];
    return NULL;
}

/* Takes what lies from `limit` bytes on out of a split. */
static struct tcl_split take_from(struct tcl_split *split, size_t limit) {
    struct tcl_split taken = {.arena = split->arena};
    unsigned kept = 0;
    for (unsigned i = 0; i < split->count; i++) {
        struct tcl_split_range range = split->ranges[i];
        size_t left = range.at < limit ? limit - range.at : 0;
        size_t keep = range.bytes < left ? range.bytes : left;
        if (keep)
            split->ranges[kept++] = (struct tcl_split_range){range.at, keep};
        if (keep < range.bytes)
            taken.ranges[taken.count++] =
                (struct tcl_split_range){range.at + keep, range.bytes - keep};
    }
    split->count = kept;
    return taken;
}

/* Cuts the ranges of a run down to its first `pages`. What was cut off. */
static struct tcl_split cut_ranges(size_t number, size_t pages) {
    struct tcl_split gone = {0};
    heap_lock(&tcl_heap_lock);
    struct split_run *split = find_split(number);
    if (split) {
        gone = take_from(&split->split, pages << PAGE_SHIFT);
        if (!split->split.count)
            *split = splits[--split_count];
    }
    heap_unlock(&tcl_heap_lock);
    return gone;
}

/* ---- Births and deaths ----------------------------------------------------------------------- */

bool tcl_split_begin(struct run *run, size_t bytes, uint32_t site, struct tcl_head *head) {
    size_t number = number_of(run);
    unsigned k = tcl_arena_of_page(number);
    struct tcl_split split = tcl_birth_split(bytes, site, k);
    if (!split.count)
        return false;
    if (!add_split((struct split_run){(uint32_t)number, split})) {
        refund_ranges(&split);
    } else if (!bind_ranges(number, &split, split.arena)) {
        cut_ranges(number, 0);
        bind_ranges(number, &split, k); /* those that were bound */
        refund_ranges(&split);
    } else {
        if (run->touched)
            release_ranges(number, &split);
        if (split.is_planned)
            return false;
        tcl_birth_refund(k, bytes); /* its death will refund no arena */
        *head = (struct tcl_head){split.ranges[0].bytes, split.arena};
        return true;
    }
    return false;
}

void tcl_split_end(size_t number, size_t pages, bool keeps_contents) {
    if (tcl_likely(!atomic_load_explicit(&split_count, memory_order_relaxed)))
        return;
    struct tcl_split gone = cut_ranges(number, pages);
    if (!gone.count)
        return;
    bind_ranges(number, &gone, tcl_arena_of_page(number));
    if (!keeps_contents)
        release_ranges(number, &gone);
    refund_ranges(&gone);
}
