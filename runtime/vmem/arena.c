/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * arena.c: vregions under the heap.
 * In: ranges that the heap claims or frees, rights, requests to move. Out: memory that the runtime
 * can move. Knows nothing of runs, blocks or records.
 *
 * Memory of the heap is ordinary private memory, also when it has moved (private.c). It never comes
 * from a pool, and never becomes shared: shared memory costs half as much again at each first
 * touch, and twice as much when it is freed, and a move of it would lose who waits for futexes,
 * what is locked, and what a device writes.
 *
 * Vpages have 4 KiB: an extent may be as small, and a larger vpage would take its neighbours along.
 * They have no homes; of their tables only the rights are used, so that what never was protected
 * stays untouched.
 *
 * Only resident memory moves: a hole would be filled by the copy. Swapped out memory looks like a
 * hole, and does not move either.
 */
#include "region.h"
#include <errno.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PIECE_PAGES (VMEM_PIECE / TCL_PAGE)
#define RIGHTS (PROT_READ | PROT_WRITE)

static _Atomic bool is_backing; /* ranges that the heap claims become vregions */
static _Atomic bool is_any;     /* some have */

static struct vmem_region *arena_over(uintptr_t start, size_t bytes) {
    tcl_assert_debug(vmem_is_locked());
    struct vmem_region *first = NULL;
    for (unsigned i = 0; i < vmem_region_slots(); i++) {
        struct vmem_region *region = &vmem_regions[i];
        if (region->is_heap && region->start < start + bytes &&
            start < region->start + region->bytes && (!first || region->start < first->start))
            first = region;
    }
    return first;
}

/* ---- Backing of ranges ----------------------------------------------------------------------- */

bool tcl_vmem_is_backing(void) {
    return atomic_load_explicit(&is_backing, memory_order_relaxed);
}

static bool back(uintptr_t start, size_t bytes) {
    struct vmem_region *region = vmem_new_region(bytes / TCL_PAGE);
    if (!region)
        return false;
    *region = (struct vmem_region){.start = start,
                                   .bytes = bytes,
                                   .prot = RIGHTS,
                                   .shift = 12,
                                   .home = region->home,
                                   .own_rights = region->own_rights,
                                   .is_private = true,
                                   .is_heap = true};
    atomic_store(&is_any, true);
    return true;
}

void tcl_vmem_back(uintptr_t start, size_t bytes) {
    int saved = errno;
    vmem_lock();
    bool is_backed = back(start, bytes);
    vmem_unlock();
    if (!is_backed)
        tcl_remark(TCL_REMARK_NO_VREGIONS);
    errno = saved;
}

void tcl_vmem_back_heap(void) {
    atomic_store(&is_backing, true);
    tcl_heap_back();
    vmem_serve();
}

/* ---- Releasing memory ------------------------------------------------------------------------ */

/* A chunk that is moving is temporarily unmapped from its address. */
int tcl_os_madvise(void *start, size_t bytes, int advice) {
    bool is_away = advice == MADV_DONTNEED || advice == MADV_FREE || advice == MADV_DONTNEED_LOCKED;
    if (tcl_likely(!is_away || !atomic_load_explicit(&is_any, memory_order_relaxed)))
        return (int)syscall(SYS_madvise, start, bytes, advice);
    vmem_lock();
    int failed = (int)syscall(SYS_madvise, start, bytes, advice);
    vmem_unlock();
    return failed;
}

int tcl_os_clear(uintptr_t start, size_t bytes) {
    return tcl_os_madvise((void *)start, bytes, MADV_DONTNEED);
}

/* Records the rights of the heap's vpages there. */
static void note_rights(uintptr_t start, uintptr_t end, int prot) {
    for (struct vmem_region *region; start < end && (region = arena_over(start, end - start));) {
        uintptr_t from = start > region->start ? start : region->start;
        uintptr_t stop = region->start + region->bytes;
        start = stop;
        for (size_t i = (from - region->start) / TCL_PAGE;
             i < ((stop < end ? stop : end) - region->start) / TCL_PAGE; i++) {
            vmem_place rights = prot == RIGHTS ? 0 : (vmem_place)prot + 1;
            if (region->own_rights[i] != rights)
                region->own_rights[i] = rights;
        }
    }
}

int tcl_vmem_set_rights(uintptr_t start, size_t bytes, int prot) {
    if (tcl_likely(!atomic_load_explicit(&is_any, memory_order_relaxed)) || !bytes)
        return (int)syscall(SYS_mprotect, start, bytes, prot);
    vmem_lock();
    int failed = (int)syscall(SYS_mprotect, start, bytes, prot);
    if (!failed)
        note_rights(start, start + ((bytes + TCL_PAGE - 1) & -(size_t)TCL_PAGE), prot);
    vmem_unlock();
    return failed;
}

/* ---- Moves ----------------------------------------------------------------------------------- */

/* The first run in [first, first + count) that is resident and has the usual rights. */
static size_t present_run(const struct vmem_region *region, const unsigned char *present,
                          size_t first, size_t count, size_t *skip) {
    size_t run = 0;
    *skip = 0;
    while (*skip < count && (!(present[*skip] & 1) || region->own_rights[first + *skip]))
        ++*skip;
    while (*skip + run < count && present[*skip + run] & 1 &&
           !region->own_rights[first + *skip + run])
        run++;
    return run;
}

/* At most a piece. */
static size_t move_piece(struct vmem_region *region, size_t first, size_t count, int node,
                         int *error) {
    unsigned char present[PIECE_PAGES];
    size_t moved = 0;
    if (syscall(SYS_mincore, region->start + first * TCL_PAGE, count * TCL_PAGE, present)) {
        *error = errno;
        return 0;
    }
    for (size_t done = 0, skip, run; done < count && *error != ENOMEM; done += skip + run) {
        run = present_run(region, present + done, first + done, count - done, &skip);
        if (!run)
            break;
        size_t bytes = 0;
        uintptr_t start = region->start + (first + done + skip) * TCL_PAGE;
        int failed = vmem_move_private(start, run * TCL_PAGE, node, &bytes);
        moved += bytes;
        *error = *error && failed != ENOMEM ? *error : failed;
    }
    return moved;
}

size_t vmem_move_range(uintptr_t start, size_t bytes, int node, bool (*is_wanted)(void),
                       int *error) {
    uintptr_t at = start, end = start + bytes;
    size_t moved = 0;
    *error = 0;
    while (at < end && is_wanted() && *error != ENOMEM) {
        vmem_lock();
        struct vmem_region *region = tcl_is_filtered() ? NULL : arena_over(at, end - at);
        if (region) {
            at = at > region->start ? at : region->start;
            uintptr_t piece = (at / VMEM_PIECE + 1) * VMEM_PIECE, to = end < piece ? end : piece;
            to = to < region->start + region->bytes ? to : region->start + region->bytes;
            moved += move_piece(region, (at - region->start) / TCL_PAGE, (to - at) / TCL_PAGE, node,
                                error);
            at = to;
        }
        vmem_unlock();
        if (!region)
            break;
    }
    return moved;
}
