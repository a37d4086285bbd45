/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * arena.c: vregions under the heap.
 * In: ranges that the heap claims or frees, moves, forks. Out: memory that the runtime can move.
 * Knows nothing of runs, blocks or records.
 *
 * Memory of the heap is ordinary private memory, also when it has moved (private.c): shared memory
 * would cost half as much again at each first touch, and twice as much when it is freed, and would
 * lose who waits for futexes.
 *
 * With pools a range is memory of a pool from the beginning; what returns, or is freed, goes to its
 * own place again, where the kernel joins the mappings:
 *
 *   range of an arena      [ a  b  c  d  e ... ]     one mapping
 *                            |  |      |  |
 *   its own segment        [ a  b  .  d  e ... ]     sparse: untouched parts cost nothing
 *                                  \
 *   segment of a node      [ ...  c ... ]            where a move put c, leaving a hole
 *
 * Vpages have 4 KiB: an extent may be as small, and a larger vpage would take its neighbours along.
 * A home of 0 means "in its own place", so that the tables of memory that never moved stay
 * untouched.
 *
 * Only resident memory moves: a hole would be filled by the copy. Swapped out memory looks like a
 * hole, and does not move either.
 *
 * After a fork (region.c) memory of pools is private, and OS pages written since exist twice:
 * in the memfd, for the child, and as a private copy. When no child is left, the former is freed.
 * To know that, every child inherits a System V segment, and the kernel counts who has it attached.
 */
#include "../track/session.h"
#include "region.h"
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PIECE_PAGES (VMEM_PIECE / TCL_PAGE)
#define RIGHTS (PROT_READ | PROT_WRITE)

/* Time between two checks whether children are gone, because freeing their copies walks the heap's
 * page table, which programs that fork all the time should not pay each time. Chosen, not measured:
 * less than the second after which remote_moves.c calls. */
#define CHILDREN_CHECK_MS 900

/* Runs that are moved at a time: each may add two mappings, of 65530 that a process may have
 * (vm.max_map_count); half of them. Beyond, moves are refused. */
#define MOVED_RUNS_MAX 16384u

static _Atomic bool is_backing; /* ranges that the heap claims become vregions */
static _Atomic bool is_any;     /* some have */
static bool has_pools, is_reported;
static unsigned moved_runs; /* an upper bound: some have returned since they were counted */

static int child_probe = -1; /* the System V segment that children inherit */

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

/* Its own segment; NULL: it is private memory. */
static struct vmem_segment *segment_of(const struct vmem_region *region) {
    return region->own ? &vmem_segments[vmem_segment_of(region->own)] : NULL;
}

/* The vpage is not in its own place. */
static bool is_moved(const struct vmem_region *region, size_t first) {
    vmem_place home = region->home[first] & ~VMEM_FORKED;
    return home && (!region->own || home != region->own + first);
}

/* ---- Backing of ranges ----------------------------------------------------------------------- */

bool vmem_is_pooled(void) {
    return has_pools;
}

bool tcl_vmem_is_backing(void) {
    return atomic_load_explicit(&is_backing, memory_order_relaxed);
}

/* Calls `each` for the parts of a mapping that are resident; `own`: only for private copies. False:
 * unknown. */
static bool each_present(uintptr_t start, size_t bytes, bool own,
                         void (*each)(uintptr_t start, size_t bytes, void *), void *context) {
    /* Documentation/admin-guide/mm/pagemap.rst */
    const uint64_t present = 1ull << 63, swapped = 1ull << 62, of_file = 1ull << 61;
    uint64_t entries[512];
    int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC, 0);
    bool is_known = fd >= 0;
    for (size_t page = 0, pages = bytes / TCL_PAGE; is_known && page < pages;) {
        size_t count = pages - page < 512 ? pages - page : 512, from = 0;
        uintptr_t at = start + page * TCL_PAGE;
        long got = syscall(SYS_pread64, fd, entries, count * 8, at / TCL_PAGE * 8);
        is_known = got == (long)(count * 8);
        for (size_t i = 0; is_known && i < count; i++) {
            /* Swapped may also be a marker without memory, so it does not count for `own`. */
            bool is_one = own ? (entries[i] & (present | of_file)) == present
                              : (entries[i] & (present | swapped)) != 0;
            if (is_one && i + 1 < count)
                continue;
            size_t to = is_one ? i + 1 : i;
            if (to > from)
                each(at + from * TCL_PAGE, (to - from) * TCL_PAGE, context);
            from = i + 1;
        }
        page += count;
    }
    if (fd >= 0)
        syscall(SYS_close, fd);
    return is_known;
}

struct filling {
    uintptr_t start;
    char *to;
};

static void fill(uintptr_t at, size_t bytes, void *context) {
    struct filling *filling = context;
    memcpy(filling->to + (at - filling->start), (void *)at, bytes);
}

/* Maps a segment of a pool there. 0: not available. */
static vmem_place pooled(uintptr_t start, size_t bytes, uintptr_t open, int node, bool live) {
    struct vmem_segment *segment = vmem_arena_segment(node, bytes);
    if (!segment)
        return 0;
    vmem_place own = vmem_place_of((unsigned)(segment - vmem_segments), 0);
    struct filling filling = {start, segment->shared};
    if ((live && !each_present(start, bytes, false, fill, &filling)) ||
        !vmem_map_place(start, own, bytes)) {
        segment->is_arena = false;
        vmem_give(own, 0);
        return 0;
    }
    if (open < start + bytes)
        syscall(SYS_mprotect, open, start + bytes - open, PROT_NONE);
    return own;
}

static bool back(uintptr_t start, size_t bytes, uintptr_t open, int node, bool live) {
    struct vmem_region *region = vmem_new_region(bytes / TCL_PAGE);
    vmem_place own = region && has_pools ? pooled(start, bytes, open, node, live) : 0;
    if (!region || (has_pools && !own))
        return false;
    *region = (struct vmem_region){.start = start,
                                   .bytes = bytes,
                                   .prot = RIGHTS,
                                   .node = node,
                                   .shift = 12,
                                   .home = region->home,
                                   .twin = region->twin,
                                   .is_private = !own,
                                   .is_heap = true,
                                   .own = own};
    atomic_store(&is_any, true);
    return true;
}

bool tcl_vmem_back(uintptr_t start, size_t bytes, uintptr_t open, int node, bool live) {
    int saved = errno;
    errno = ENOMEM;
    vmem_lock();
    bool is_backed = back(start, bytes, open, node, live);
    vmem_unlock();
    if (!is_backed && !is_reported) {
        is_reported = true;
        tcl_warn("memory for vregions cannot be had; the heap goes on with ordinary memory");
    }
    errno = saved;
    return is_backed;
}

void tcl_vmem_back_heap(bool pools) {
    if (pools && vmem_threads() != 1) {
        tcl_warn("this program has threads before it begins: its heap stays ordinary memory");
        return;
    }
    has_pools = pools;
    atomic_store(&is_backing, true);
    tcl_heap_back();
    vmem_serve();
}

void tcl_vmem_rebind(uintptr_t start, size_t bytes, int node) {
    if (!atomic_load_explicit(&is_any, memory_order_relaxed))
        return;
    int saved = errno;
    vmem_lock();
    struct vmem_region *region = arena_over(start, bytes);
    struct vmem_segment *segment = region ? segment_of(region) : NULL;
    if (segment && region->start <= start && region->node != node) {
        segment->node = node;
        segment->is_emulated = !vmem_bind_preferred(segment->shared, region->bytes, node, 0);
    }
    if (region)
        region->node = node;
    vmem_unlock();
    errno = saved;
}

/* ---- Releasing memory ------------------------------------------------------------------------ */

/* Vpages from `first` with contiguous homes, or all in their own places. */
static size_t home_run(const struct vmem_region *region, size_t first, size_t count) {
    return vmem_run(region, region->home, first, count);
}

/* Empties the memory of `home` in place. False: not possible, or a child may see it. The window is
 * writable, whatever rights the program set. */
static bool empty(uintptr_t at, vmem_place home, size_t bytes) {
    const struct vmem_segment *segment = &vmem_segments[vmem_segment_of(home)];
    if (home & VMEM_FORKED)
        return false;
    return !syscall(SYS_madvise, at, bytes, MADV_REMOVE) ||
           (!segment->is_inherited && !syscall(SYS_madvise, vmem_shared(home), bytes, MADV_REMOVE));
}

/* Empties a run with the same rights. False: there are too many mappings, or a child may see it. */
static bool clear_run(struct vmem_region *region, size_t first, size_t count) {
    uintptr_t at = region->start + first * TCL_PAGE;
    size_t bytes = count * TCL_PAGE;
    vmem_place home = vmem_home(region, first), own = region->own + first;
    struct vmem_segment *mine = segment_of(region);
    bool is_home = (home & ~VMEM_FORKED) == own, is_closed = mine->is_frozen || mine->is_inherited;
    bool has_rights = vmem_prot(region, first) != RIGHTS; /* which a new mapping would lose */
    if (!(home & VMEM_FORKED) && (is_home || is_closed || has_rights))
        return empty(at, home, bytes);
    if (is_closed || has_rights) {
        syscall(SYS_madvise, at, bytes, MADV_DONTNEED);
        errno = EBUSY;
        return false;
    }
    if (!vmem_map_place(at, own, bytes))
        return empty(at, home, bytes);
    memset(&region->home[first], 0, count * sizeof(vmem_place));
    region->is_private = false;
    if (!is_home)
        vmem_give(home & ~VMEM_FORKED, bytes);
    return !syscall(SYS_madvise, at, bytes, MADV_REMOVE);
}

static bool clear(struct vmem_region *region, uintptr_t start, uintptr_t end) {
    size_t first = (start - region->start) / TCL_PAGE, stop = (end - region->start) / TCL_PAGE;
    bool is_clear = true;
    for (size_t run; first < stop; first += run) {
        run = vmem_same_run(region, first, stop - first);
        is_clear &= clear_run(region, first, run);
    }
    return is_clear;
}

int tcl_os_clear(uintptr_t start, size_t bytes) {
    uintptr_t at = start, end = start + bytes;
    int failed = 0;
    if (tcl_likely(!atomic_load_explicit(&is_any, memory_order_relaxed)))
        return (int)syscall(SYS_madvise, start, bytes, MADV_DONTNEED);
    vmem_lock();
    if (!has_pools) {
        failed = (int)syscall(SYS_madvise, start, bytes, MADV_DONTNEED);
        at = end;
    }
    while (at < end) {
        struct vmem_region *region = arena_over(at, end - at);
        uintptr_t from = !region ? end : region->start > at ? region->start : at;
        uintptr_t to =
            region && region->start + region->bytes < end ? region->start + region->bytes : end;
        if (from > at && syscall(SYS_madvise, at, from - at, MADV_DONTNEED))
            failed = -1;
        if (region && !clear(region, from, to))
            failed = -1;
        at = region ? to : end;
    }
    vmem_unlock();
    return failed;
}

/* By the recorded rights. The kernel has cleared what is no vregion. */
static bool is_writable(uintptr_t start, size_t bytes) {
    bool is_so = true;
    vmem_lock();
    for (uintptr_t at = start; is_so && at < start + bytes; at += TCL_PAGE) {
        const struct vmem_region *region = arena_over(at, TCL_PAGE);
        is_so = !region || vmem_prot(region, (at - region->start) / TCL_PAGE) & PROT_WRITE;
    }
    vmem_unlock();
    return is_so;
}

int tcl_os_madvise(void *start, size_t bytes, int advice) {
    uintptr_t at = (uintptr_t)start;
    size_t whole = (bytes + TCL_PAGE - 1) & -(size_t)TCL_PAGE;
    bool is_away = advice == MADV_DONTNEED || advice == MADV_FREE || advice == MADV_DONTNEED_LOCKED;
    if (tcl_likely(!is_away || !atomic_load_explicit(&is_any, memory_order_relaxed)) ||
        at % TCL_PAGE || !whole)
        return (int)syscall(SYS_madvise, start, bytes, advice);
    vmem_lock();
    bool is_ours = has_pools && arena_over(at, whole);
    int failed = has_pools ? 0 : (int)syscall(SYS_madvise, start, bytes, advice);
    vmem_unlock();
    if (!has_pools)
        return failed;
    if (!is_ours)
        return (int)syscall(SYS_madvise, start, bytes, advice);
    if (!tcl_os_clear(at, whole) || advice == MADV_FREE)
        return 0;
    if (!is_writable(at, whole)) {
        errno = EAGAIN;
        return -1;
    }
    memset(start, 0, whole);
    return 0;
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
            if (region->twin[i] != rights)
                region->twin[i] = rights;
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
    while (*skip < count && (!(present[*skip] & 1) || region->twin[first + *skip]))
        ++*skip;
    while (*skip + run < count && present[*skip + run] & 1 && !region->twin[first + *skip + run])
        run++;
    return run;
}

static bool is_room_for_runs(void) {
    if (moved_runs < MOVED_RUNS_MAX)
        return true;
    moved_runs = 0;
    for (unsigned i = 0; i < vmem_region_slots(); i++) {
        const struct vmem_region *region = &vmem_regions[i];
        size_t count = region->is_heap ? region->bytes / TCL_PAGE : 0;
        for (size_t first = 0; first < count; first += home_run(region, first, count - first))
            moved_runs += is_moved(region, first);
    }
    return moved_runs < MOVED_RUNS_MAX;
}

static int move_pooled(struct vmem_region *region, size_t first, size_t count, int node,
                       size_t *moved) {
    int failed = is_room_for_runs() ? vmem_move(region, first, count, node, VMEM_MIGRATE) : ENOSPC;
    moved_runs += !failed && is_moved(region, first);
    *moved = failed ? 0 : count * TCL_PAGE;
    return failed;
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
    for (size_t done = 0, skip, run; done < count; done += skip + run) {
        run = present_run(region, present + done, first + done, count - done, &skip);
        if (!run)
            break;
        size_t bytes = run * TCL_PAGE;
        int failed = region->own
                         ? move_pooled(region, first + done + skip, run, node, &bytes)
                         : vmem_move_private(region->start + (first + done + skip) * TCL_PAGE,
                                             run * TCL_PAGE, node, &bytes);
        moved += bytes;
        *error = *error ? *error : failed;
        if (failed == ENOMEM || failed == ENOSPC)
            break;
    }
    return moved;
}

size_t vmem_move_range(uintptr_t start, size_t bytes, int node, bool (*is_wanted)(void),
                       int *error) {
    uintptr_t at = start, end = start + bytes;
    size_t moved = 0;
    *error = 0;
    while (at < end && is_wanted() && *error != ENOMEM && *error != ENOSPC) {
        if (has_pools)
            vmem_copy_prepare();
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

/* ---- Children -------------------------------------------------------------------------------- */

void vmem_watch_children(void) {
    if (!has_pools || child_probe >= 0 || tcl_is_filtered())
        return;
    int number = shmget(IPC_PRIVATE, TCL_PAGE, IPC_CREAT | 0600);
    if (number < 0)
        return; /* forbidden, or too many: children are not observed, and nothing is freed */
    if (shmat(number, NULL, SHM_RDONLY) != (void *)-1)
        child_probe = number;
    shmctl(number, IPC_RMID, NULL); /* it lives as long as a process has it attached */
}

/* The inherited segment stays attached: to the parent this is a child that may see its memory. */
void vmem_forget_children(void) {
    child_probe = -1;
}

static bool has_children(void) {
    struct shmid_ds state;
    return child_probe < 0 || shmctl(child_probe, IPC_STAT, &state) || state.shm_nattch != 1;
}

/* Frees the memfd's memory where this process has a private copy. */
static void free_shared_copies(uintptr_t at, size_t bytes, void *context) {
    const struct vmem_region *region = context;
    size_t first = (at - region->start) / TCL_PAGE, stop = first + bytes / TCL_PAGE;
    for (size_t run; first < stop; first += run) {
        vmem_place home = vmem_home(region, first);
        run = home_run(region, first, stop - first);
        if (home & VMEM_FORKED && !vmem_segments[vmem_segment_of(home)].is_inherited)
            syscall(SYS_madvise, vmem_shared(home), run * TCL_PAGE, MADV_REMOVE);
    }
}

void vmem_after_children(void) {
    tcl_assert_debug(vmem_is_locked());
    static uint64_t checked_ms;
    uint64_t now_ms = tcl_now_ms();
    if (!atomic_load_explicit(&is_any, memory_order_relaxed) || child_probe < 0 ||
        tcl_is_filtered() || now_ms - checked_ms < CHILDREN_CHECK_MS)
        return;
    checked_ms = now_ms;
    if (has_children())
        return;
    bool was_frozen = vmem_is_any_frozen();
    for (unsigned i = 0; was_frozen && i < vmem_region_slots(); i++) {
        struct vmem_region *region = &vmem_regions[i];
        if (!region->is_heap)
            continue;
        each_present(region->start, region->bytes, true, free_shared_copies, region);
        size_t count = region->own ? region->bytes / TCL_PAGE : 0;
        for (size_t first = 0, run; first < count; first += run) {
            run = home_run(region, first, count - first);
            if (is_moved(region, first) && !segment_of(region)->is_inherited)
                syscall(SYS_madvise, vmem_shared(region->own + first), run * TCL_PAGE, MADV_REMOVE);
        }
    }
    if (was_frozen)
        vmem_thaw();
}
